"""Skew orthogonal convolutions (Singla and Feizi 2021): the exponential of a skew-symmetric convolution."""

import math
from typing import Any

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.linalg.matrices import identity_like
from isoconv.nn.torus import TorusConv2d

_LARGEST = 2.0  # the norm of the skew convolution, at most


class SOCConv2d(TorusConv2d):
    """The Taylor polynomial of exp(L), L = M − Mᵀ for the convolution M with the parameter, of `terms` powers.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, circular, `input_size`, the height and width of the layer's
    input, and `terms`, in training and in evaluation alike. Where the numbers of channels differ, M works on the larger
    one, and inputs or outputs are left out.

    Note [Truncation]. L is scaled down to ‖L‖ ≤ θ = 2, by the bound ‖L‖ ≤ ‖L⁴‖_F^¼ at each frequency. The eigenvalues of L
    are imaginary, and for |φ| ≤ θ the polynomial at iφ is within r = θ^(terms+1)/(terms+1)! of exp(iφ). L is normal, so the
    singular values of the polynomial lie within 1 ± r. Divided by 1 + r none is above 1, and for 12 terms none is below
    1 − 3e-6.
    """

    def __init__(self, *arguments: Any, terms: int = 12, **keywords: Any) -> None:
        require(isinstance(terms, int) and terms >= 1, "at least one term", repr(terms))
        super().__init__(*arguments, **keywords)
        self.terms = terms

    def _transform(self, symbol: Tensor) -> Tensor:
        skew = symbol - symbol.mH
        tiny = torch.finfo(skew.dtype).tiny
        rough = skew.detach().abs().amax().clamp_min(tiny)  # what follows does not depend on it; no power overflows
        unit = skew / rough
        square = unit @ unit
        fourth = square @ square
        norm = torch.linalg.vector_norm(fourth, dim=(-2, -1)).amax()
        scale = rough * (_LARGEST / (rough * norm.clamp_min(tiny) ** 0.25).clamp_min(_LARGEST))
        skew, square, fourth = scale * unit, scale**2 * square, scale**4 * fourth
        powers = identity_like(skew), skew, square, skew @ square
        starts = range(self.terms // 4 * 4, -1, -4)
        parts = [[power * (1 / math.factorial(start + n)) for n, power in enumerate(powers)] for start in starts]
        polynomial: Tensor = sum(parts[0][: self.terms % 4 + 1])  # type: ignore[assignment]
        for part in parts[1:]:  # Horner's rule in the fourth power, which takes fewer products
            polynomial = sum(part) + polynomial @ fourth
        return polynomial / (1 + _LARGEST ** (self.terms + 1) / math.factorial(self.terms + 1))
