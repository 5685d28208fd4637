"""Singular value clipping and masking: project the kernel to norm 1 in the Frobenius sense, approximately."""

from typing import Any

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.clipping import clip_and_mask
from isoconv.nn.built_weight import constraint_dtype, constraint_precision
from isoconv.nn.sized import SizedConv2d


class SVCMConv2d(SizedConv2d):
    """A convolution whose parameter training projects now and then: the paper, every 100 updates and after the last.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and `input_size`, the height and width of the layer's input.
    Between projections nothing holds the norm; after one it exceeds 1 by what the iterations have left.
    """

    def __init__(self, *arguments: Any, input_size: int | tuple[int, int], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._set_input_size(input_size)

    @property
    def weight(self) -> Tensor:
        return self.kernel

    def _sources(self) -> tuple[Tensor, ...]:
        return ()  # nothing is built

    @torch.no_grad()
    def project(self, iterations: int = 50) -> None:
        """`iterations` times: clip the singular values at 1 (an exact projection), then cut back to k×k taps (another).

        See `isoconv.linalg.clipping` for how this is done without an SVD.
        """
        if iterations < 1:
            raise IsoconvError(f"Expected at least one projection. Got {iterations}.")
        taps, grid = self.kernel_shape[2], self.convolved_size
        if self.padding_mode == "zeros":  # the zero-padded image embeds in a circular one of this size
            grid = (grid[0] + taps - 1, grid[1] + taps - 1)
        with constraint_precision(self.kernel):
            self.kernel.copy_(clip_and_mask(self.kernel.to(constraint_dtype(self.kernel)), grid, iterations))
