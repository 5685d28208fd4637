"""Orthogonal kernels: projectors, block convolution, and the paper's families (equations 1 and 2).

Block convolution □ (the paper, section 3.1) is convolution whose scalars are matrices. A kernel is stored as PyTorch
stores a convolution's weight: `(c_out, c_in, K)` in 1-D, `(c_out, c_in, K, K')` in 2-D, the matrix at tap t being
`kernel[:, :, t]`. Then `X □ Y` is the kernel of "first Y, then X":

    Z_i = Σ_j X_j Y_{i−j}        X ∗ (Y ∗ v) = (X □ Y) ∗ v

This holds for the cross-correlation that PyTorch computes as it does for true convolution, since the taps'
offsets add up in both. □ is associative; it does not commute, because matrices do not.

Multiplying by one projector pair on the right needs no block convolution. For a kernel with taps W_i,

    (W □ [P I−P])_i = W_i P + W_{i−1} (I − P) = W_{i−1} + (W_i − W_{i−1}) P,

one matrix product per tap; and with P = R Rᵀ it is `(D R) Rᵀ`, so that P is never formed.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.linalg.matrices import Function, matmul_precision

# Projectors P = P² = Pᵀ -----------------------------------------------------------------------------------------------


def projector_from_basis(basis: Tensor) -> Tensor:
    """Return P = R Rᵀ for R (…, n, r) with orthonormal columns: the orthogonal projection onto their span, of rank r."""
    return basis @ basis.mT


def is_projector(matrix: Tensor, tolerance: float | None = None) -> bool:
    """Return True if P = Pᵀ = P² holds entrywise within `tolerance` (default: 10·n·eps of the matrix's precision)."""
    n = matrix.shape[-1]
    if matrix.shape[-2] != n:
        return False
    tolerance = 10 * n * torch.finfo(matrix.dtype).eps if tolerance is None else tolerance
    deviations = torch.stack([matrix - matrix.mT, matrix @ matrix - matrix])
    return bool((deviations.abs() <= tolerance).all())


def projector_rank(projector: Tensor) -> Tensor:
    """Return the rank of a symmetric projector, from its trace (the eigenvalues are zeros and ones)."""
    return torch.round(projector.diagonal(dim1=-2, dim2=-1).sum(-1)).to(torch.int64)


def random_projector(
    n: int,
    rank: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return a projector drawn uniformly from P(n, rank), the Grassmannian of `rank`-dimensional subspaces of ℝⁿ."""
    require(0 <= rank <= n, f"a rank between 0 and {n}", rank)
    gaussian = torch.randn(n, rank, generator=generator, dtype=dtype, device=device)
    return projector_from_basis(torch.linalg.qr(gaussian).Q)


# Block convolution ----------------------------------------------------------------------------------------------------


def block_convolve(x: Tensor, y: Tensor) -> Tensor:
    """Return X □ Y for two 1-D kernels (c_out, c, K) or two 2-D kernels (c_out, c, K, K'), in the precision of the inputs.

    >>> h, p = torch.eye(2)[..., None], torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> block_convolve(h, torch.stack([p, torch.eye(2) - p], dim=-1)).shape
    torch.Size([2, 2, 2])
    """
    kinds, got = "two 1-D kernels (c_out, c_in, K) or two 2-D kernels (c_out, c_in, K, K')", (x.shape, y.shape)
    require(x.dim() == y.dim() and x.dim() in (3, 4), kinds, "shapes {} and {}".format(*map(tuple, got)))
    channels = "the left kernel's input channels to equal the right kernel's output channels"
    require(x.shape[1] == y.shape[0], channels, f"{x.shape[1]} and {y.shape[0]}")
    # One matrix product per tap of Y. Not F.conv2d: on a GPU that runs in TF32 unless told otherwise.
    left = x.movedim(1, -1)  # (c_out, taps…, c)
    total = x.new_zeros(x.shape[0], *[p + q - 1 for p, q in zip(x.shape[2:], y.shape[2:], strict=True)], y.shape[1])
    for position, tap in enumerate(product(*[range(size) for size in y.shape[2:]])):
        window = tuple(slice(offset, offset + size) for offset, size in zip(tap, x.shape[2:], strict=True))
        total[(slice(None), *window)] += left @ y.flatten(2)[:, :, position]
    return total.movedim(-1, 1).contiguous()


def compose_kernels(*kernels: Tensor) -> Tensor:
    """Return K₁ □ K₂ □ … □ K_m."""
    require(bool(kernels), "at least one kernel", "none")
    return reduce(block_convolve, kernels)


def projector_pair_1d(projector: Tensor) -> Tensor:
    """Return [P  I−P] as a 1-D kernel (n, n, 2)."""
    return torch.stack([projector, torch.eye(projector.shape[-1]).to(projector) - projector], dim=-1)


def projector_column(projector: Tensor) -> Tensor:
    """Return [P; I−P] as a 2-D kernel (n, n, 2, 1): P at the upper tap."""
    return projector_pair_1d(projector).unsqueeze(-1)


def projector_row(projector: Tensor) -> Tensor:
    """Return [P  I−P] as a 2-D kernel (n, n, 1, 2): P at the left tap."""
    return projector_pair_1d(projector).unsqueeze(-2)


# The paper's kernels --------------------------------------------------------------------------------------------------


def bcop_kernel(H: Tensor, P: Sequence[Tensor] | Tensor, Q: Sequence[Tensor] | Tensor) -> Tensor:
    """The paper's equation 2, exactly: H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ … □ [P_{K−1}; I−P_{K−1}] □ [Q_{K−1} I−Q_{K−1}].

    H is (c_out, c_in) with orthonormal rows, c_out ≤ c_in; P and Q are K−1 symmetric projectors (c_in, c_in) each,
    of any rank. The result is a weight for `conv2d`, (c_out, c_in, K, K), in the precision of its arguments; the rows
    of taps (height) belong to P, the columns (width) to Q.
    """
    return _append_pairs(H, P, Q)


def bcop_kernel_1d(H: Tensor, P: Sequence[Tensor] | Tensor) -> Tensor:
    """The paper's equation 1, exactly: H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}], as a `conv1d` weight (c_out, c_in, K)."""
    return _append_pairs(H, P)


def _append_pairs(H: Tensor, *families: Sequence[Tensor] | Tensor) -> Tensor:
    """Append a pair of each family in turn, one family along each axis of taps."""
    fits = H.dim() == 2 and H.shape[0] <= H.shape[1]
    require(fits, "H to be a matrix (c_out, c_in) with c_out ≤ c_in", f"shape {tuple(H.shape)}")
    counts, n = [len(family) for family in families], H.shape[-1]
    require(len(set(counts)) == 1, "as many projectors P as Q", " and ".join(map(str, counts)))
    taps = H[(None,) * len(families)]
    for projectors in zip(*families, strict=True):
        for dim, projector in enumerate(projectors):
            require(projector.shape == (n, n), f"projectors of shape ({n}, {n})", tuple(projector.shape))
            taps = append_pair(taps, projector, dim)
    return taps.movedim((-2, -1), (0, 1)).contiguous()


def append_pair(taps: Tensor, projector: Tensor, dim: int) -> Tensor:
    """W □ [P I−P] along tap axis `dim`, for a kernel with its taps first: (taps…, c_out, c_in)."""
    inner_axes = [0, 0] * (taps.dim() - 1 - dim)
    near, far = F.pad(taps, [*inner_axes, 0, 1]), F.pad(taps, [*inner_axes, 1, 0])  # W_i and W_{i−1} for i = 0 … K
    return far + (near - far) @ projector


class _AppendPair(Function):
    """The same for P = R Rᵀ given by its orthonormal basis R (c_in, rank), with a gradient of few, large products.

    A batch of kernels (b, taps…, c_out, c_in), each with a basis of its own (b, c_in, rank), is one call too.

    Forward: with A = W P, the taps A_i + (W − A)_{i−1}. Backward: with D_i = G_i − G_{i+1} for the gradient G of the
    result, that of W is G_{i+1} + D_i P, that of P is S = Σ W_iᵀ D_i, and that of R is (S + Sᵀ) R. All rows of a
    kernel's taps are one matrix; one for each kernel, where the basis is a batch.
    """

    @staticmethod
    def forward(taps: Tensor, basis: Tensor, dim: int) -> Tensor:  # type: ignore[override]
        count = taps.shape[dim]
        inside = (taps.flatten(basis.dim() - 2, -2) @ basis @ basis.mT).view(taps.shape)
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
        rows = difference.flatten(basis.dim() - 2, -2)
        of_taps = of_basis = None
        with matmul_precision(taps, "high"):  # a direction: ten bits of it are enough
            if ctx.needs_input_grad[0]:
                of_taps = far + (rows @ basis @ basis.mT).view(taps.shape)
            if ctx.needs_input_grad[1]:
                inner = taps.flatten(basis.dim() - 2, -2).mT @ rows
                of_basis = (inner + inner.mT) @ basis
        return of_taps, of_basis, None


append_pair_from_basis = _AppendPair.call
