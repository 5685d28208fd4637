"""The kernels of the paper: H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ … (equation 2), and the 1-D family (equation 1).

Multiplying by one projector pair on the right needs no block convolution. For a kernel with taps W_i,

    (W □ [P I−P])_i = W_i P + W_{i−1} (I − P) = W_{i−1} + (W_i − W_{i−1}) P,

one matrix product per tap; and with P = R Rᵀ it is `(D R) Rᵀ`, so that P is never formed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from isoconv.errors import IsoconvError
from isoconv.linalg.function import call
from isoconv.linalg.precision import matmul_precision


def bcop_kernel(H: Tensor, P: Sequence[Tensor] | Tensor, Q: Sequence[Tensor] | Tensor) -> Tensor:
    """The paper's equation 2, exactly: H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ … □ [P_{K−1}; I−P_{K−1}] □ [Q_{K−1} I−Q_{K−1}].

    H is (c_out, c_in) with orthonormal rows, c_out ≤ c_in; P and Q are K−1 symmetric projectors (c_in, c_in) each,
    of any rank. The result is a weight for `conv2d`, (c_out, c_in, K, K), in the precision of its arguments; the rows
    of taps (height) belong to P, the columns (width) to Q.
    """
    _check(H, P, Q)
    taps = H[None, None]
    for p, q in zip(P, Q, strict=True):
        taps = append_pair(taps, p, dim=0)
        taps = append_pair(taps, q, dim=1)
    return taps.permute(2, 3, 0, 1).contiguous()


def bcop_kernel_1d(H: Tensor, P: Sequence[Tensor] | Tensor) -> Tensor:
    """The paper's equation 1, exactly: H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}], as a `conv1d` weight (c_out, c_in, K)."""
    _check(H, P)
    taps = H[None]
    for p in P:
        taps = append_pair(taps, p, dim=0)
    return taps.permute(1, 2, 0).contiguous()


def append_pair(taps: Tensor, projector: Tensor, dim: int) -> Tensor:
    """W □ [P I−P] along tap axis `dim`, for a kernel with its taps first: (taps…, c_out, c_in)."""
    near, far = _shifts(taps, dim)
    return far + (near - far) @ projector


def append_pair_from_basis(taps: Tensor, basis: Tensor, dim: int) -> Tensor:
    """The same for P = R Rᵀ given by its orthonormal basis R (c_in, rank), with a gradient of few, large products.

    A batch of kernels (b, taps…, c_out, c_in), each with a basis of its own (b, c_in, rank), is one call too.
    """
    return call(_AppendPair, taps, basis, dim)  # type: ignore[no-any-return]


class _AppendPair(torch.autograd.Function):
    """Forward: with A = W P, the taps A_i + (W − A)_{i−1}. Backward: with D_i = G_i − G_{i+1} for the gradient G of the
    result, that of W is G_{i+1} + D_i P, that of P is S = Σ W_iᵀ D_i, and that of R is (S + Sᵀ) R.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(taps: Tensor, basis: Tensor, dim: int) -> Tensor:  # type: ignore[override]
        count = taps.shape[dim]
        inside = _times(_times(taps, basis), basis.mT)
        outside = taps - inside
        if count == 1:
            return torch.cat([inside, outside], dim)
        middle = inside.narrow(dim, 1, count - 1) + outside.narrow(dim, 0, count - 1)
        return torch.cat([inside.narrow(dim, 0, 1), middle, outside.narrow(dim, count - 1, 1)], dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        taps, basis, ctx.dim = inputs
        ctx.save_for_backward(taps, basis)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        taps, basis = ctx.saved_tensors
        count = taps.shape[ctx.dim]
        far = gradient.narrow(ctx.dim, 1, count)
        difference = gradient.narrow(ctx.dim, 0, count) - far
        of_taps = of_basis = None
        with matmul_precision(taps, "high"):  # a direction: ten bits of it are enough
            if ctx.needs_input_grad[0]:
                of_taps = far + _times(_times(difference, basis), basis.mT)
            if ctx.needs_input_grad[1]:
                inner = _rows(taps, basis).mT @ _rows(difference, basis)
                of_basis = (inner + inner.mT) @ basis
        return of_taps, of_basis, None


def _rows(taps: Tensor, basis: Tensor) -> Tensor:
    """All rows of a kernel's taps in one matrix; one for each kernel, where the basis is a batch."""
    return taps.flatten(basis.dim() - 2, -2)


def _times(taps: Tensor, matrix: Tensor) -> Tensor:
    """Every tap times the matrix (its kernel's own, of a batch), as one product."""
    return (_rows(taps, matrix) @ matrix).view(*taps.shape[:-1], matrix.shape[-1])


def _shifts(taps: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """W_i and W_{i−1} for i = 0 … K, with zeros out of range."""
    before_dim = [0, 0] * (taps.dim() - 1 - dim)
    return F.pad(taps, [*before_dim, 0, 1]), F.pad(taps, [*before_dim, 1, 0])


def _check(H: Tensor, *families: Sequence[Tensor] | Tensor) -> None:
    if H.dim() != 2 or H.shape[0] > H.shape[1]:
        raise IsoconvError(f"Expected H to be a matrix (c_out, c_in) with c_out ≤ c_in. Got shape {tuple(H.shape)}.")
    if len({len(family) for family in families}) > 1:
        raise IsoconvError(f"Expected as many projectors P as Q. Got {len(families[0])} and {len(families[1])}.")
    n = H.shape[1]
    for family in families:
        for projector in family:
            if projector.shape != torch.Size((n, n)):
                raise IsoconvError(f"Expected projectors of shape ({n}, {n}). Got {tuple(projector.shape)}.")
