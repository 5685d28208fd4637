"""Singular value clipping and masking: project the kernel to norm 1 in the Frobenius sense, approximately."""

from typing import Any

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.spectrum import fold_kernel
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
        """`iterations` times: clip the singular values at 1 (an exact projection), then cut back to k×k taps (another)."""
        if iterations < 1:
            raise IsoconvError(f"Expected at least one projection. Got {iterations}.")
        kernel = self.kernel.to(torch.promote_types(self.kernel.dtype, torch.float32))
        grid = self.convolved_size
        if self.padding_mode == "zeros":  # the zero-padded image embeds in a circular one of this size
            grid = (grid[0] + kernel.shape[2] - 1, grid[1] + kernel.shape[3] - 1)
        for _ in range(iterations):
            kernel = clip_and_mask(kernel, grid)
        self.kernel.copy_(kernel)


def clip_and_mask(kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """One alternating projection: all singular values of the circular convolution on `grid` at most 1, then k×k taps."""
    folded = fold_kernel(kernel, grid)
    symbol = torch.fft.rfftn(folded, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
    left, values, right = torch.linalg.svd(symbol, full_matrices=False)
    clipped = (left * values.clamp_max(1).unsqueeze(-2)) @ right
    spatial = torch.fft.irfftn(clipped.permute(2, 3, 0, 1), s=grid, dim=(2, 3))
    result = torch.zeros_like(kernel)
    rows, columns = folded.shape[2:]
    result[:, :, :rows, :columns] = spatial[:, :, :rows, :columns]
    return result
