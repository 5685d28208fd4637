"""Convex potential layers (Meunier et al. 2022): residual layers, divided by a proved bound of their norm."""

import torch
from torch import Tensor

from isoconv.linalg.spectrum import fold_kernel
from isoconv.nn.convolution import SizedConv2d
from isoconv.nn.potential import PotentialConv2d

_ROUNDS = 3  # of two squarings each: the bound is at most n^(1/256) times the norm, for n channels


class CPLConv2d(PotentialConv2d, SizedConv2d):
    """x − (2/‖W‖²)·Wᵀrelu(Wx + b), with an upper bound of the norm for ‖W‖; Note [Convex potential].

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and `input_size`, the height and width of the layer's input;
    see `isoconv.nn.potential` for strides and channels.

    Note [Norm from above]. The paper estimates ‖W‖ by a power iteration, from below, so that its layer may expand. Here
    λ_max(M) ≤ ‖M^(2^t)‖_F^(2^−t) for the Gram matrix M of W at each frequency, of the image or, under zero padding, of one
    that is larger by k − 1. M is divided by its Frobenius norm before every other squaring, and the product of the norms'
    roots is kept. The largest over the frequencies is that of one frequency, from which alone the gradient comes.
    """

    def _norm_one(self, kernel: Tensor, *others: Tensor) -> Tensor:
        largest = kernel.detach().abs().amax()
        kernel = kernel / torch.where(largest > 0, largest, 1)  # so that no square overflows or vanishes
        margin = [k - 1 if self.padding_mode == "zeros" else 0 for k in kernel.shape[2:]]
        size = [n + more for n, more in zip(self.convolved_size, margin, strict=True)]
        if set(kernel.shape[2:]) == {1}:
            return kernel / _bound_norms(kernel[None, ..., 0, 0])[0]  # the same matrix at every frequency
        # One of each pair of conjugate frequencies.
        symbol = torch.fft.rfft2(fold_kernel(kernel, size), s=size).flatten(2).permute(2, 0, 1)
        with torch.no_grad():
            _, worst = _bound_norms(symbol)
        return kernel / _bound_norms(symbol.index_select(0, worst))[0]


def _bound_norms(symbol: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest of the bounds of the norms of matrices (N, m, n), and which of them has it, (1,)."""
    gram = symbol @ symbol.mH if symbol.shape[-2] <= symbol.shape[-1] else symbol.mH @ symbol
    least, bound = torch.finfo(symbol.dtype).eps ** 2, torch.ones((), dtype=gram.real.dtype, device=gram.device)
    for round_ in range(_ROUNDS + 1):
        norms = torch.linalg.vector_norm(gram, dim=(-2, -1))
        norm = norms.amax().clamp_min(least)
        bound = bound * norm ** (0.5 * 0.25**round_)
        if round_ < _ROUNDS:
            gram = gram / norm
            gram = gram @ gram
            gram = gram @ gram
    return bound, norms.argmax(keepdim=True)
