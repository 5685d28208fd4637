"""Convex potential layers (Meunier et al. 2022): residual layers, divided by a proved bound of their norm."""

import torch
from torch import Tensor

from isoconv.linalg.spectrum import circular_symbol
from isoconv.nn.convolution import SizedConv2d
from isoconv.nn.potential import PotentialConv2d

_SQUARINGS = 8  # the bound is at most n^(1/1024) above the norm, for n channels


class CPLConv2d(PotentialConv2d, SizedConv2d):
    """x − (2/‖W‖²)·Wᵀrelu(Wx + b), with an upper bound of the norm for ‖W‖; Note [Convex potential].

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and `input_size`, the height and width of the layer's input;
    see `isoconv.nn.potential` for strides and channels.

    Note [Norm from above]. The paper estimates ‖W‖ by a power iteration, from below, so that its layer may expand. Here
    λ_max(M) ≤ ‖M^(2^t)‖_F^(2^−t) for the Gram matrix M of W at each frequency, of the image or, under zero padding, of one
    that is larger by k − 1. M is divided by its Frobenius norm before each squaring, and the roots of these multiplied.
    """

    def _norm_one(self, kernel: Tensor, *others: Tensor) -> Tensor:
        largest = kernel.detach().abs().amax()
        kernel = kernel / torch.where(largest > 0, largest, 1)  # so that no square overflows or vanishes
        margin = [k - 1 if self.padding_mode == "zeros" else 0 for k in kernel.shape[2:]]
        if set(kernel.shape[2:]) == {1}:  # the same matrix at every frequency
            symbol = kernel[..., 0, 0]
        else:
            symbol = circular_symbol(kernel, [n + more for n, more in zip(self.convolved_size, margin, strict=True)])
        gram = symbol @ symbol.mH if symbol.shape[-2] <= symbol.shape[-1] else symbol.mH @ symbol
        least, bound = torch.finfo(kernel.dtype).eps ** 2, torch.ones_like(largest)
        for squaring in range(_SQUARINGS + 1):
            norm = torch.linalg.vector_norm(gram, dim=(-2, -1)).amax().clamp_min(least)
            bound = bound * norm**0.5 ** (squaring + 1)
            gram = gram / norm @ (gram / norm) if squaring < _SQUARINGS else gram
        return kernel / bound
