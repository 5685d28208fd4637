"""Symmetric projectors P = P² = Pᵀ, the building block of orthogonal convolutions."""

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


def projector_from_basis(basis: Tensor) -> Tensor:
    """P = R Rᵀ for R (…, n, r) with orthonormal columns: the orthogonal projection onto their span, of rank r."""
    return basis @ basis.mT


def is_projector(matrix: Tensor, tolerance: float | None = None) -> bool:
    """Whether P = Pᵀ = P² holds entrywise within `tolerance` (default: 10·n·eps of the matrix's precision)."""
    n = matrix.shape[-1]
    if matrix.shape[-2] != n:
        return False
    tolerance = 10 * n * torch.finfo(matrix.dtype).eps if tolerance is None else tolerance
    asymmetry = (matrix - matrix.mT).abs().amax() if n else matrix.new_zeros(())
    excess = (matrix @ matrix - matrix).abs().amax() if n else matrix.new_zeros(())
    return bool(asymmetry <= tolerance) and bool(excess <= tolerance)


def projector_rank(projector: Tensor) -> Tensor:
    """The rank of a symmetric projector, read off its trace (the eigenvalues are zeros and ones)."""
    return torch.round(projector.diagonal(dim1=-2, dim2=-1).sum(-1)).to(torch.int64)


def random_projector(
    n: int,
    rank: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """A projector drawn uniformly from P(n, rank), the Grassmannian of `rank`-dimensional subspaces of ℝⁿ."""
    if not 0 <= rank <= n:
        raise IsoconvError(f"Expected a rank between 0 and {n}. Got {rank}.")
    gaussian = torch.randn(n, rank, generator=generator, dtype=dtype, device=device)
    return projector_from_basis(torch.linalg.qr(gaussian).Q)
