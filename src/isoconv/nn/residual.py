"""Sums that stay 1-Lipschitz: convex combinations, of two values or of a value and a branch that it takes."""

import torch
from torch import Tensor, nn

from isoconv.errors import is_number
from isoconv.nn.graph import Add
from isoconv.records import require

_STEPS = 2**24  # weights are whole multiples of 1/_STEPS


class ConvexSum(nn.Module):
    """(1 − a)·x + a·y for two values of one shape: 1-Lipschitz if both are.

    weight : a number from 0 to 1 for a; or None: it is learned, the sigmoid of the parameter `logit`, and begins at ½

    Note [Exact weights]. a is rounded to a multiple of 2⁻²⁴. From 0 to 1 these are float32 numbers, a and 1 − a alike: in
    float32 and float64 they add up to 1 exactly, so that the sum's constant is not above those of its parts.
    """

    def __init__(self, weight: float | None = None) -> None:
        super().__init__()
        fits = weight is None or (is_number(weight) and 0 <= weight <= 1)
        require(fits, "a weight from 0 to 1, or None to learn it", repr(weight))
        self.add = Add()
        self.fixed = None if weight is None else round(weight * _STEPS) / _STEPS
        self.logit = nn.Parameter(torch.zeros(())) if weight is None else None

    @property
    def weight(self) -> Tensor | float:
        """The weight a that is applied. See Note [Exact weights]."""
        if self.logit is None:
            return self.fixed  # type: ignore[return-value]
        learned = torch.sigmoid(self.logit.to(torch.promote_types(self.logit.dtype, torch.float32)))
        return learned + ((learned.detach() * _STEPS).round() / _STEPS - learned.detach())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.weight
        a = a.to(x.dtype) if isinstance(a, Tensor) else a
        return self.add(x * (1 - a), y * a)

    def extra_repr(self) -> str:
        return "learned weight" if self.fixed is None else f"weight={self.fixed:g}"


class Residual(ConvexSum):
    """(1 − a)·x + a·branch(x): 1-Lipschitz if the branch is. The branch keeps the shape of its input.

    `weight` as for `ConvexSum`.
    """

    def __init__(self, branch: nn.Module, weight: float | None = None) -> None:
        super().__init__(weight)
        require(isinstance(branch, nn.Module), "a module as the branch", type(branch).__name__)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, self.branch(x))
