"""A linear layer with orthonormal rows or columns."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from isoconv.errors import IsoconvError
from isoconv.nn.built_weight import OrthogonalisedLayer
from isoconv.nn.convolution import evaluation_weight


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
        if in_features < 1 or out_features < 1:
            raise IsoconvError(f"Expected at least one feature on each side. Got {in_features} and {out_features}.")
        self.in_features, self.out_features = in_features, out_features
        self.matrix = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random orthonormal matrix; the bias uniform within ±1/√in_features."""
        bound = 1 / math.sqrt(self.in_features)
        self._reset_matrices(gain=bound)
        if self.bias is not None:
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
        weight = evaluation_weight(self)
        size, place = (self.in_features, self.out_features), {"device": weight.device, "dtype": weight.dtype}
        linear = skip_init(nn.Linear, *size, self.bias is not None, **place)  # draws no random numbers
        assert isinstance(linear, nn.Linear)
        with torch.no_grad():
            linear.weight.copy_(weight)
            if self.bias is not None:
                linear.bias.copy_(self.bias)
        return linear
