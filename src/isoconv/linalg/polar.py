"""The polar factor of a matrix: the closest matrix with orthonormal columns (or rows).

For a tall A = U S with UᵀU = I and S = (AᵀA)^½, U = A (AᵀA)^(−½). Everything here is matrix products, so that it batches
and runs at full speed on a GPU, and most of it happens on the small n×n Gram matrix.

Note [Gram passes]
Squaring a matrix squares its condition number, so (AᵀA)^(−½) taken in one go would lose everything about singular
values below √eps, and even above that its error, of size eps·‖(AᵀA)^(−½)‖, does not commute with AᵀA and turns U away
from the true factor. So one pass only multiplies by a polynomial Z of AᵀA that lifts singular values in [1/20, 1] to 1 and
smaller ones about twenty-fold; ‖Z‖ ≈ 20 bounds the damage to a backward error of about 20·eps. A matrix of condition κ
needs log₂₀ κ passes: one, for most. The last steps are Björck's with the Gram matrix of the matrix itself and not
one that was carried along: they remove what rounding in the small space has left.
"""

from math import ceil, log

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoconv.errors import IsoconvError
from isoconv.linalg.bjorck import inverse_sqrt_correction
from isoconv.linalg.function import call
from isoconv.linalg.gram import add_product, as_tall, frobenius, gram_residual, identity_like, scaled_to_one
from isoconv.linalg.minimax import minimax_schedule
from isoconv.linalg.precision import matmul_precision, without_autocast

_LOWEST = 0.05  # one pass lifts singular values from here to 1
_HEADROOM = 1.01  # keeps the spectrum inside the interval for which the minimax polynomials were made


def polar(matrix: Tensor) -> Tensor:
    """The polar factor of each matrix (…, m, n), converged, with its exact gradient; no iteration is stored for it.

    Works in the precision of the input, float32 or float64: ‖UᵀU − I‖₂ ≤ 2e-6 or 1e-13 for up to 4096×512, from any
    matrix that is not rank-deficient in that precision. A rank-deficient one is refused.
    """
    return call(_Polar, matrix)  # type: ignore[no-any-return]


def orthonormality_tolerance(tall: Tensor) -> float:
    """What rounding leaves of ‖I − UᵀU‖_F for a U with n columns that is as orthonormal as its precision allows.

    Mostly the rounding of the product UᵀU itself, which is larger, in units of eps, in float64, whose dot products are
    summed in fewer parts.
    """
    return (4 if tall.dtype == torch.float32 else 16) * torch.finfo(tall.dtype).eps * float(tall.shape[-1] ** 0.5)


def polar_value(matrix: Tensor) -> Tensor:
    """The polar factor without a gradient, in full precision whatever autocast and TF32 say."""
    with without_autocast(matrix), matmul_precision(matrix, "highest"):
        return _polar_value(matrix)


def _polar_value(matrix: Tensor) -> Tensor:
    tall, wide = as_tall(matrix.detach())
    if tall.dtype not in (torch.float32, torch.float64):
        raise IsoconvError(f"Expected float32 or float64, the precisions this converges in. Got {tall.dtype}.")
    if tall.numel() == 0:
        return matrix.detach().clone()
    given = tall = scaled_to_one(tall)
    tolerance = orthonormality_tolerance(tall)
    last = float("inf")
    passes = 0
    while passes <= _most_passes(tall):
        residual = gram_residual(tall)
        size = float(frobenius(residual).amax())
        if not size < float("inf"):
            raise IsoconvError(f"Expected finite numbers. Got NaN or infinity in a matrix {tuple(matrix.shape)}.")
        if size <= tolerance or (last <= 64 * tolerance and size >= last / 2):  # or rounding allows no more
            if passes > 1 and _is_rank_deficient(given, tall):
                break
            return tall.mT if wide else tall
        if last < 0.5 and size >= last / 2:
            raise IsoconvError(f"Expected {tall.dtype} arithmetic. Got products too coarse to converge: {size:.1e}.")
        if size < 0.5:
            tall, last = add_product(tall, tall, inverse_sqrt_correction(residual, order=3)), size
        else:
            tall, passes = _gram_pass(tall, residual), passes + 1
    raise IsoconvError(
        f"Expected a matrix of full rank. Got one of shape {tuple(matrix.shape)} that is rank-deficient in {tall.dtype}."
    )


def _gram_pass(tall: Tensor, residual: Tensor) -> Tensor:
    """A Z(AᵀA) for singular values of A up to 1. See Note [Gram passes]."""
    eye = identity_like(residual)
    gram = (eye - residual) / _HEADROOM**2
    total: Tensor | None = None
    for a, b, c in minimax_schedule(_LOWEST / _HEADROOM):
        step = add_product(a * eye + b * gram, gram, gram, c)
        total = step if total is None else total @ step
        gram = step @ gram @ step
        gram = (gram + gram.mT) / 2  # they commute in exact arithmetic; left alone, the asymmetry would grow
    assert total is not None
    return tall @ (total / _HEADROOM)


def _most_passes(tall: Tensor) -> int:
    """Enough for any condition number up to 1/eps, and three to spare."""
    return ceil(log(torch.finfo(tall.dtype).eps) / log(_LOWEST)) + 3


def _is_rank_deficient(given: Tensor, factor: Tensor) -> bool:
    """Whether S = UᵀA, which has A's singular values for eigenvalues, fails to be positive definite beyond rounding.

    The passes lift anything that is not exactly zero, rounding errors included; this tells the two apart.
    """
    stretch = factor.mT @ given
    stretch = (stretch + stretch.mT) / 2 - torch.finfo(given.dtype).eps / 2 * identity_like(stretch)
    return bool((torch.linalg.cholesky_ex(stretch).info > 0).any())


class _Polar(torch.autograd.Function):
    """dU = U Ω + (I − UUᵀ) dA S⁻¹ with SΩ + ΩS = UᵀdA − dAᵀU; backward is its adjoint, solved in S's eigenbasis."""

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:  # type: ignore[override]
        return polar_value(matrix)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor], output: Tensor) -> None:  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
        matrix, factor = ctx.saved_tensors
        tall, wide = as_tall(matrix)
        u = factor.mT if wide else factor
        g = gradient.mT if wide else gradient
        stretch = u.mT @ tall
        values, vectors = torch.linalg.eigh((stretch + stretch.mT) / 2)
        ug = u.mT @ g
        rotated = vectors.mT @ (ug - ug.mT) @ vectors
        rotation = vectors @ (rotated / (values[..., :, None] + values[..., None, :])) @ vectors.mT
        outside = (g - u @ ug) @ vectors / values[..., None, :] @ vectors.mT
        result = u @ rotation + outside
        return result.mT if wide else result
