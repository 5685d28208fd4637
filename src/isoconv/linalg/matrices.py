"""What every orthogonalisation here shares: products in a chosen precision, tall matrices, Gram matrices, safe scales."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import comb
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isoconv.errors import IsoconvError

_NOTHING_TO_SET: AbstractContextManager[None] = nullcontext()


def full_precision(tensor: Tensor) -> AbstractContextManager[None]:
    """Multiply and convolve tensors like this one without autocast and without TF32, within this context."""
    return matmul_precision(tensor, "highest", convolutions=True)


def matmul_precision(tensor: Tensor, precision: str, convolutions: bool = False) -> AbstractContextManager[None]:
    """Multiply float32 matrices like `tensor` in "highest" (float32) or "high" (TF32) precision, without autocast.

    TF32 keeps ten bits: enough for a direction or for a small correction, never for what decides orthonormality. It
    changes nothing on a CPU, nor in a compiled function, which makes its own choice.
    """
    if not tensor.is_cuda and not torch.is_autocast_enabled(tensor.device.type):
        return _NOTHING_TO_SET  # torch's own contexts take longer to enter than a small layer takes to build
    return _precision(tensor, precision, convolutions)


@contextmanager
def _precision(tensor: Tensor, precision: str, convolutions: bool) -> Iterator[None]:
    device = tensor.device.type
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        if not tensor.is_cuda or torch.compiler.is_compiling():
            yield
            return
        matmul, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        if matmul != precision:
            torch.set_float32_matmul_precision(precision)
        if convolutions and tf32:
            torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            if matmul != precision:
                torch.set_float32_matmul_precision(matmul)
            if convolutions and tf32:
                torch.backends.cudnn.allow_tf32 = True


class Function(torch.autograd.Function):
    """A `torch.autograd.Function` that costs little to call, and that `vmap` can be taken of.

    torch looks at the signature at each call, for default arguments, of which ours have none. That look takes longer
    than the products of a small layer.
    """

    generate_vmap_rule = True

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return cls.apply(*arguments)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]


def is_traced() -> bool:
    """Return True where a compiler, a tracer or a transform wants to see ordinary operations."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None


def as_tall(matrix: Tensor) -> tuple[Tensor, bool]:
    """Return the matrix with at least as many rows as columns, and whether it had to be transposed for that."""
    if matrix.dim() < 2 or not matrix.is_floating_point():
        got = f"{matrix.dtype} of shape {tuple(matrix.shape)}"
        raise IsoconvError(f"Expected a real floating-point matrix (…, m, n). Got {got}.")
    wide = matrix.shape[-2] < matrix.shape[-1]
    return (matrix.mT if wide else matrix), wide


_IDENTITIES: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def identity_like(gram: Tensor) -> Tensor:
    """Return the identity of the same size, precision and device; made once, since launches are what costs on a GPU."""
    key = (gram.shape[-1], gram.dtype, gram.device)
    if torch.compiler.is_compiling() or type(gram) not in (Tensor, torch.nn.Parameter):  # traced, or some tracer's own
        return torch.eye(key[0], dtype=key[1], device=key[2])
    if key not in _IDENTITIES:
        with torch.inference_mode(False):
            identity = torch.eye(key[0], dtype=key[1], device=key[2])
        if gram.is_cuda:
            if torch.cuda.is_current_stream_capturing():  # holds its numbers only after a replay
                return identity
            torch.cuda.current_stream(gram.device).synchronize()  # other streams will read it
        _IDENTITIES[key] = identity
    return _IDENTITIES[key]


def add_product(base: Tensor, left: Tensor, right: Tensor, factor: float = 1, base_factor: float = 1) -> Tensor:
    """Return base_factor·base + factor·left @ right, for matrices or batches; `base` may be one matrix for the batch."""
    # Where the base lies transposed in memory (a wide matrix seen as tall), so will the result, and no copy crosses over.
    turned = base.dim() == left.dim() and base.shape[-1] > 1 and base.stride(-2) == 1 != base.stride(-1)
    if turned:
        base, left, right = base.mT, right.mT, left.mT
    if base.dim() == left.dim() == right.dim() == 2:
        result = torch.addmm(base, left, right, beta=base_factor, alpha=factor)
    elif left.dim() == right.dim() == 3 and base.dim() <= 3:
        result = torch.baddbmm(base, left, right, beta=base_factor, alpha=factor)
    else:
        result = base_factor * base + factor * (left @ right)
    return result.mT if turned else result


def gram_residual(tall: Tensor) -> Tensor:
    """I − XᵀX: zero exactly when the columns are orthonormal. On a CPU only a triangle of its blocks is multiplied."""
    if tall.is_cpu and tall.shape[-1] >= 256:
        left, right = tall.tensor_split(2, dim=-1)
        corner = -(left.mT @ right)
        rows = [gram_residual(left), corner], [corner.mT, gram_residual(right)]
        return torch.cat([torch.cat(row, -1) for row in rows], -2)
    return add_product(identity_like(tall), tall.mT, tall, -1)


#: 1, ½, ⅜, … : (−1)ᵖ C(−½, p), the Taylor coefficients of (1 − q)^(−½). A step of order p multiplies what is small by their
#: sum up to p.
SERIES = tuple(comb(2 * p, p) / 4**p for p in range(64))


def inverse_sqrt_correction(residual: Tensor, order: int, square: Tensor | None = None) -> Tensor:
    """Return ½Q + ⅜Q² + … + (−1)ᵖ C(−½, p) Qᵖ: the Taylor polynomial of (I − Q)^(−½), less its leading I.

    Without the I because A + A·(small) rounds far less than A·(I + small). Horner's rule in Q², which may be given: two
    orders for one product.
    """
    if order == 1:
        return SERIES[1] * residual
    square = residual @ residual if square is None else square
    series: Tensor | None = None
    for p in range((order - 1) | 1, 0, -2):
        terms = SERIES[p] * residual
        if p < order:
            terms = torch.add(terms, square, alpha=SERIES[p + 1])
        series = terms if series is None else add_product(terms, square, series)
    assert series is not None
    return series


def orthonormality_tolerance(tall: Tensor) -> float:
    """Return what rounding leaves of ‖I − UᵀU‖_F for a U with n columns that is as orthonormal as its precision allows.

    Mostly the rounding of the product UᵀU itself, which is larger, in units of eps, in float64, whose dot products are
    summed in fewer parts.
    """
    return (4 if tall.dtype == torch.float32 else 16) * torch.finfo(tall.dtype).eps * float(tall.shape[-1] ** 0.5)


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
    if tall.numel() == 0:
        return tall.new_zeros(tall.shape[:-2])
    largest = largest_entry(tall)
    bound = _unit_norm_bound(tall / torch.where(largest > 0, largest, 1.0)) * largest[..., 0, 0]
    return torch.where(bound > 0, torch.nextafter(bound, torch.full_like(bound, torch.inf)), bound)


def scaled_to_one(tall: Tensor) -> Tensor:
    """Each matrix divided by an upper bound of its norm, in two steps: the bound itself may overflow, or be subnormal.

    The scale counts as a constant: what is orthogonalised afterwards does not depend on it.
    """
    largest = largest_entry(tall.detach())
    unit = tall / torch.where(largest > 0, largest, 1.0)
    bound = _unit_norm_bound(unit.detach())[..., None, None]
    return unit / torch.where(bound > 0, bound, 1.0)


def _unit_norm_bound(unit: Tensor) -> Tensor:
    rows, columns = unit.shape[-2:]
    gram = unit.mT @ unit
    slack = 1 + 2 * (rows + columns) * columns**0.5 * torch.finfo(unit.dtype).eps
    return frobenius(gram @ gram) ** 0.25 * slack


def without_overflow(kernel: Tensor) -> Tensor:
    """Return a kernel; one with entries beyond 2²⁰ divided so that the largest is 2²⁰, and no product of few overflows."""
    return kernel / (kernel.abs().amax() / 2**20).clamp_min(1)
