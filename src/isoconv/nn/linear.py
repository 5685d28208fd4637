"""Linear layers: with orthonormal rows or columns, with rows of norm one, and those of the field's methods.

The latter are convolutions of their method with one tap, on images of one pixel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError, require
from isoconv.linalg.matrices import is_traced
from isoconv.linalg.orthogonalisation import project_product_to_tangent
from isoconv.nn.aol import AOLConv2d
from isoconv.nn.bro import BROConv2d
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, check_dtype, constraint_dtype, is_built
from isoconv.nn.cayley import CayleyConv2d
from isoconv.nn.convolution import Conv2dWithKernel, SizedConv2d, chain, plain_linear
from isoconv.nn.cpl import CPLConv2d
from isoconv.nn.potential import PotentialConv2d
from isoconv.nn.sll import SLLConv2d


class LipschitzLinear(BuiltWeight):
    """A linear layer whose weight (out_features, in_features) is built from the parameter `matrix`.

    Subclasses fill in `_reset_matrices` and `_build`; `options` go to the class after this one.
    """

    _reset_matrices: Callable[[], None]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_dtype(dtype)
        features = f"{in_features} and {out_features}"
        require(min(in_features, out_features) >= 1, "at least one feature on each side", features)
        self.in_features, self.out_features = in_features, out_features
        self.matrix = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrix anew; the bias uniform within ±1/√in_features."""
        self._reset_matrices()
        self._reset_bias(self.in_features)

    def _sources(self) -> tuple[Tensor, ...]:
        return (self.matrix,)

    def forward(self, x: Tensor) -> Tensor:
        _check_features(self, x)
        return self._multiply(x, self.weight)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"

    def plain(self) -> nn.Module:
        """The same function as `nn.Linear`."""
        return plain_linear(self.evaluation_weight(), self.bias)


def _check_features(layer: Any, x: Tensor) -> None:
    if x.shape[-1:] != (layer.in_features,):
        name = type(layer).__name__
        raise IsoconvError(f"{name}: Expected input (…, {layer.in_features}). Got shape {tuple(x.shape)}.")


class OrthogonalLinear(LipschitzLinear, OrthogonalisedLayer):
    """`torch.nn.Linear` whose weight (out_features, in_features) has all singular values equal to 1.

    orthogonalisation : "manifold" (fast, the default) or "bjorck" (the paper's own; see `isoconv.nn.built_weight`)
    """

    _matrix_names = ("matrix",)

    def _build(self, matrix: Tensor) -> Tensor:
        return self._orthonormal(matrix)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        built = not is_traced() and is_built(weight)
        if built and x.dim() == 2 and self._writes_back and not torch.is_autocast_enabled(x.device.type):
            return _Multiply.apply(x, self.matrix, self.bias, (weight,))  # type: ignore[no-any-return,no-untyped-call]
        return super()._multiply(x, weight)


class _Multiply(torch.autograd.Function):
    """`F.linear` of a batch. The gradient goes to the parameter behind the weight at once, which takes fewer products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, built: tuple[Tensor]) -> Tensor:
        (ctx.weight,) = built
        y = F.linear(x, ctx.weight, bias)
        ctx.save_for_backward(x, matrix, bias, y.clone() if bias is None else y - bias)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, bias, image = ctx.saved_tensors
        if torch.is_grad_enabled():  # with a gradient of its own: the usual way
            wanted = [t for t, want in zip((x, matrix, bias), ctx.needs_input_grad, strict=False) if want]
            gradients = torch.autograd.grad(F.linear(x, ctx.weight, bias), wanted, gradient, create_graph=True)
            remaining = iter(gradients)
            return *(next(remaining) if want else None for want in ctx.needs_input_grad[:3]), None
        weight = ctx.weight.detach()
        of_x = gradient @ weight
        of_matrix = project_product_to_tangent(weight, gradient, x, of_x, image)
        return of_x, of_matrix, gradient.sum(0) if ctx.needs_input_grad[2] else None, None


class NormalisedLinear(LipschitzLinear):
    """`torch.nn.Linear` whose rows have norm one: every output is 1-Lipschitz, all of them together need not be.

    For the last layer of a classifier with many classes: a certificate uses ‖w_i − w_j‖, which is at most 2, for each pair.

    Note [Rows of norm at most one]. ‖v‖ is computed in float64 within a factor 1 ± (n + 2)·2⁻⁵³. v/‖v‖ is rounded twice more
    there, and once to the weight's own precision, by at most half its ε. Dividing by a factor 1 + ε + 2(n + 4)·2⁻⁵² covers
    all of it, so no row of the weight is longer than 1.
    """

    @torch.no_grad()
    def _reset_matrices(self) -> None:
        """Rows in uniformly random directions."""
        self.matrix.copy_(F.normalize(torch.randn_like(self.matrix, dtype=constraint_dtype(self.matrix))))

    def _build(self, matrix: Tensor) -> Tensor:
        rows, doubles = matrix.double(), torch.finfo(torch.float64)
        room = 1 + torch.finfo(self.matrix.dtype).eps + 2 * (self.in_features + 4) * doubles.eps
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=doubles.tiny)
        return (rows / (lengths * room)).to(self.matrix.dtype)


# Of the field's methods -------------------------------------------------------------------------------------------------


class _OnePixel(Conv2dWithKernel):
    """Take (…, in_features), as `torch.nn.Linear` does. `options` are those of the convolution."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Any) -> None:
        options |= {"input_size": 1} if isinstance(self, SizedConv2d) else {}
        super().__init__(in_features, out_features, 1, bias=bias, **options)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        _check_features(self, x)
        return super().forward(x.reshape(-1, self.in_features, 1, 1)).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"

    def plain(self) -> nn.Module:
        """The same function as `nn.Linear`, or as a `ConvexPotential2d` of images of one pixel."""
        if isinstance(self, PotentialConv2d):
            return chain(nn.Unflatten(-1, (self.in_features, 1, 1)), super().plain(), nn.Flatten(-3))
        return plain_linear(self.evaluation_weight()[:, :, 0, 0], self.bias)


class AOLLinear(_OnePixel, AOLConv2d):
    """`torch.nn.Linear` with its columns divided by the roots of the row sums of |WᵀW|: norm at most 1."""


class CayleyLinear(_OnePixel, CayleyConv2d):
    """`torch.nn.Linear` whose weight is a Cayley transform: all singular values are 1."""


class BROLinear(_OnePixel, BROConv2d):
    """`torch.nn.Linear` whose weight is the reflection I − 2P, P a projector of a given `rank`: orthogonal."""


class SLLLinear(_OnePixel, SLLConv2d):
    """x − 2WᵀT⁻¹relu(Wx + b), rescaled by weighted row sums of |WWᵀ|: 1-Lipschitz. Replaces a layer and its activation."""


class CPLLinear(_OnePixel, CPLConv2d):
    """x − (2/‖W‖²)·Wᵀrelu(Wx + b): 1-Lipschitz. Replaces a linear layer and its activation."""
