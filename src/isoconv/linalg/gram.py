"""What every orthogonalisation here shares: the tall orientation, the Gram matrix, a safe scale."""

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


def as_tall(matrix: Tensor) -> tuple[Tensor, bool]:
    """The matrix with at least as many rows as columns, and whether it had to be transposed for that."""
    if matrix.dim() < 2 or not matrix.is_floating_point():
        raise IsoconvError(
            f"Expected a real floating-point matrix (…, m, n). Got {matrix.dtype} of shape {tuple(matrix.shape)}."
        )
    wide = matrix.shape[-2] < matrix.shape[-1]
    return (matrix.mT if wide else matrix), wide


_IDENTITIES: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def identity_like(gram: Tensor) -> Tensor:
    """The identity matrix of the same size, precision and device; made once, since small kernels are what costs on a GPU."""
    key = (gram.shape[-1], gram.dtype, gram.device)
    if torch.compiler.is_compiling() or type(gram) not in (Tensor, torch.nn.Parameter):  # traced, or some tracer's own
        return torch.eye(key[0], dtype=key[1], device=key[2])
    found = _IDENTITIES.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = torch.eye(key[0], dtype=key[1], device=key[2])
        if gram.is_cuda:
            if torch.cuda.is_current_stream_capturing():  # holds its numbers only after a replay
                return found
            torch.cuda.current_stream(gram.device).synchronize()  # other streams will read it
        _IDENTITIES[key] = found
    return found


def add_product(base: Tensor, left: Tensor, right: Tensor, factor: float = 1, base_factor: float = 1) -> Tensor:
    """base_factor·base + factor·left @ right, for matrices or batches; `base` may be one matrix for the whole batch."""
    if base.dim() == left.dim() and base.shape[-1] > 1 and base.stride(-2) == 1 != base.stride(-1):
        # The base lies transposed in memory (a wide matrix seen as tall): so will the result, and no copy crosses over.
        return _add_product(base.mT, right.mT, left.mT, factor, base_factor).mT
    return _add_product(base, left, right, factor, base_factor)


def _add_product(base: Tensor, left: Tensor, right: Tensor, factor: float, base_factor: float) -> Tensor:
    if base.dim() == left.dim() == right.dim() == 2:
        return torch.addmm(base, left, right, beta=base_factor, alpha=factor)
    if left.dim() == right.dim() == 3 and base.dim() <= 3:
        return torch.baddbmm(base, left, right, beta=base_factor, alpha=factor)
    return base_factor * base + factor * (left @ right)


def gram_residual(tall: Tensor) -> Tensor:
    """I − XᵀX: zero exactly when the columns are orthonormal."""
    return add_product(identity_like(tall), tall.mT, tall, -1)


def frobenius(matrix: Tensor) -> Tensor:
    """The Frobenius norm of each matrix of a batch."""
    return torch.linalg.vector_norm(matrix, dim=(-2, -1))


def largest_entry(matrix: Tensor) -> Tensor:
    """The largest magnitude in each matrix of a batch, (…, 1, 1)."""
    if matrix.is_cuda:
        return torch.linalg.vector_norm(matrix, float("inf"), dim=(-2, -1), keepdim=True)
    return matrix.abs().amax(dim=(-2, -1), keepdim=True)  # on a CPU that norm takes ten times as long


def norm_upper_bound(matrix: Tensor) -> Tensor:
    """An upper bound of the spectral norm of each matrix (…, m, n): (Σ σ⁸)^⅛ ≥ σ_max, at most n^⅛ above it.

    Dividing by the largest entry first keeps the eighth powers from overflowing or vanishing. The factor at the end
    covers the rounding of the two products (‖fl(XᵀX) − XᵀX‖_F ≤ m·eps·‖X‖_F² ≤ m·√n·eps·‖XᵀX‖_F), so the bound
    holds for the computed number and not only in exact arithmetic. A power iteration would give a *lower* bound.
    """
    tall, _ = as_tall(matrix)
    rows, columns = tall.shape[-2:]
    if rows == 0 or columns == 0:
        return tall.new_zeros(tall.shape[:-2])
    unit, largest = _by_largest_entry(tall)
    bound = _unit_norm_bound(unit) * largest[..., 0, 0]
    return torch.where(bound > 0, torch.nextafter(bound, torch.full_like(bound, torch.inf)), bound)


def scaled_to_one(tall: Tensor) -> Tensor:
    """Each matrix divided by an upper bound of its norm, in two steps: the bound itself may overflow, or be subnormal.

    The scale counts as a constant: what is orthogonalised afterwards does not depend on it.
    """
    _, largest = _by_largest_entry(tall.detach())
    unit = tall / torch.where(largest > 0, largest, 1.0)
    bound = _unit_norm_bound(unit.detach())[..., None, None]
    return unit / torch.where(bound > 0, bound, 1.0)


def _by_largest_entry(tall: Tensor) -> tuple[Tensor, Tensor]:
    """Each matrix divided by its largest entry, and that (…, 1, 1); a zero matrix is divided by 1."""
    largest = largest_entry(tall)
    return tall / torch.where(largest > 0, largest, 1.0), largest


def _unit_norm_bound(unit: Tensor) -> Tensor:
    rows, columns = unit.shape[-2:]
    gram = unit.mT @ unit
    slack = 1 + 2 * (rows + columns) * columns**0.5 * torch.finfo(unit.dtype).eps
    return frobenius(gram @ gram) ** 0.25 * slack
