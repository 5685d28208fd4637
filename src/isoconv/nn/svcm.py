"""Singular value clipping and masking: project the kernel to norm 1 in the Frobenius sense, approximately."""

from collections.abc import Iterable

import torch

from isoconv.errors import require
from isoconv.linalg.clipping import clip_and_mask
from isoconv.linalg.matrices import full_precision
from isoconv.nn.built_weight import constraint_dtype
from isoconv.nn.convolution import SizedConv2d, StandardConv2d


class SVCMConv2d(SizedConv2d, StandardConv2d):
    """A convolution whose parameter training projects after every update; the paper does so after every 100 and the last.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and `input_size`, the height and width of the layer's input.
    Between projections the norm is free; after one it may still exceed 1 slightly. `isoconv.train.fit` projects; a loop of
    your own calls `project` after the optimiser's step.
    """

    @property
    def _projected_size(self) -> tuple[int, int]:
        """The size of the circular image on which the norm is constrained."""
        height, width = self.kernel_shape[2:]
        if height == width == 1:  # the same matrix at every frequency
            return 1, 1
        if self.padding_mode != "zeros":
            return self.convolved_size
        # The zero-padded image embeds in a circular one that is larger by that.
        return self.convolved_size[0] + height - 1, self.convolved_size[1] + width - 1

    def project(self, iterations: int = 50) -> None:
        """`iterations` times: clip the singular values at 1 (an exact projection), then cut back to k×k taps (another).

        See `isoconv.linalg.clipping` for how this is done without an SVD.
        """
        project_together([self], iterations)


@torch.no_grad()
def project_together(layers: Iterable[SVCMConv2d], iterations: int = 50) -> None:
    """Project each layer; all that agree in kernel shape, image size, dtype and device at once, which suits a GPU."""
    require(iterations >= 1, "at least one projection", iterations)
    alike: dict[tuple[object, ...], list[SVCMConv2d]] = {}
    for layer in layers:
        kind = layer.kernel.shape, layer._projected_size, layer.kernel.dtype, layer.kernel.device
        alike.setdefault(kind, []).append(layer)
    for group in alike.values():
        first = group[0].kernel
        with full_precision(first):
            kernels = torch.stack([layer.kernel for layer in group]).to(constraint_dtype(first))
            clipped = clip_and_mask(kernels, group[0]._projected_size, iterations)
            for layer, kernel in zip(group, clipped, strict=True):
                layer.kernel.copy_(kernel)
