"""Maps without parameters that torch has no module for."""

import math

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError


class Abs(nn.Module):
    """|x|, entry by entry: 1-Lipschitz, and preserves the norm of the gradient wherever no entry is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(x)


class Scale(nn.Module):
    """Multiplication by a fixed number, whose absolute value is its Lipschitz constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not math.isfinite(factor):
            raise IsoconvError(f"Expected a finite number to scale by. Got {factor!r}.")
        self.factor = float(factor)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:g}"
