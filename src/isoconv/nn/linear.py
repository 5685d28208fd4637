"""A linear layer with orthonormal rows or columns."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError
from isoconv.nn.built_weight import OrthogonalisedLayer, with_parameters
from isoconv.records import require


class OrthogonalLinear(OrthogonalisedLayer):
    """`torch.nn.Linear` whose weight (out_features, in_features) has all singular values equal to 1.

    orthogonalisation : "manifold" (fast, the default) or "bjorck" (the paper's own; see `isoconv.nn.built_weight`)
    """

    _matrix_names = ("matrix",)
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        orthogonalisation: str = "manifold",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(orthogonalisation)
        features = f"{in_features} and {out_features}"
        require(min(in_features, out_features) >= 1, "at least one feature on each side", features)
        self.in_features, self.out_features = in_features, out_features
        self.matrix = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random orthonormal matrix; the bias uniform within ±1/√in_features."""
        self._reset_matrices()
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def _build(self, matrix: Tensor) -> Tensor:
        return self._orthonormal(matrix)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise IsoconvError(f"OrthogonalLinear: Expected input (…, {self.in_features}). Got shape {tuple(x.shape)}.")
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"

    def plain(self) -> nn.Module:
        """The same function as `nn.Linear`."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        return with_parameters(linear, self.evaluation_weight(), self.bias)
