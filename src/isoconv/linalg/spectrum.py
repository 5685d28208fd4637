"""The singular values of a circular convolution, read off its symbol: one small matrix per frequency."""

from collections.abc import Sequence

import torch
from torch import Tensor

from isoconv.errors import require


def fold_kernel(kernel: Tensor, input_size: Sequence[int]) -> Tensor:
    """The kernel with taps added up modulo the image size: on a smaller image, taps of a circular convolution coincide."""
    for axis, size in enumerate(input_size, start=2):
        taps = kernel.shape[axis]
        if taps > size:
            pieces = torch.split(kernel, size, dim=axis)
            total = pieces[0]
            for piece in pieces[1:]:
                short = piece.shape[axis]
                total = torch.cat([total.narrow(axis, 0, short) + piece, total.narrow(axis, short, size - short)], axis)
            kernel = total
    return kernel


def spread_kernel(kernel: Tensor, dilation: Sequence[int]) -> Tensor:
    """The kernel with zeros between its taps: a dilated convolution as one without dilation."""
    for axis, d in enumerate(dilation, start=2):
        taps = torch.arange(kernel.shape[axis], device=kernel.device) * d
        shape = *kernel.shape[:axis], (kernel.shape[axis] - 1) * d + 1, *kernel.shape[axis + 1 :]
        kernel = kernel.new_zeros(shape).index_copy(axis, taps, kernel)
    return kernel


def circular_symbol(kernel: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """The matrices Σ_t W_t e^{−2πi⟨ω, t⟩/n}, one per frequency ω: (n…, c_out, c_in), complex, in the kernel's precision.

    `kernel` is (c_out, c_in, K) or (c_out, c_in, K, K'), at stride 1. Where the taps are centred only multiplies each
    matrix by a phase, which no singular value sees.
    """
    dimensions = kernel.dim() - 2
    size = (input_size,) * dimensions if isinstance(input_size, int) else tuple(input_size)
    fits = dimensions in (1, 2) and len(size) == dimensions and min(size) >= 1
    require(fits, "a 1-D or 2-D kernel and one positive size per dimension", f"{dimensions} and {input_size}")
    folded = fold_kernel(kernel, size)
    return torch.fft.fftn(folded, s=size, dim=tuple(range(2, kernel.dim()))).movedim((0, 1), (-2, -1))


def circular_singular_values(kernel: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """Return all singular values of the circular convolution with `kernel` on images of `input_size`, in descending order.

    There are Π n · min(c_out, c_in) of them, those of the dense Jacobian. An estimate to the precision of an SVD, not a
    bound: for that see `isoconv.linalg.bounds`.
    """
    return torch.linalg.svdvals(circular_symbol(kernel, input_size)).flatten().sort(descending=True).values
