"""Björck's orthogonalisation, the paper's own (its appendix "Orthogonalization Procedure")."""

from math import comb, log

from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.gram import add_product, as_tall, gram_residual, identity_like, scaled_to_one


def inverse_sqrt_correction(residual: Tensor, order: int) -> Tensor:
    """½Q + ⅜Q² + … + (−1)ᵖ C(−½, p) Qᵖ: the Taylor polynomial of (I − Q)^(−½), less its leading I, by Horner's rule.

    Without the I because A + A·(small) rounds far less than A·(I + small).
    """
    series = _coefficient(order) * residual
    for p in range(order - 1, 0, -1):
        series = add_product(_coefficient(p) * residual, residual, series)
    return series


def bjorck(
    matrix: Tensor, iterations: int = 20, order: int = 1, *, scale: bool = True, gram_space: bool | None = None
) -> Tensor:
    """`iterations` steps of A ← A (I + ½Q + … ), Q = I − AᵀA, differentiable through every step.

    The steps converge to the closest matrix with orthonormal columns (rows, if the matrix is wide) when all singular
    values lie in (0, √3); `scale` first divides by a true upper bound of the norm, which changes nothing at
    convergence because the limit does not depend on the scale. How far 20 steps get depends on the smallest singular
    value: each first-order step multiplies a small one by 1.5 at most.

    `gram_space` runs the same steps on the n×n Gram matrix and multiplies A itself only now and then: the same polynomial
    of A and the same gradient, at a fraction of the cost for very rectangular matrices. By default it does so from an
    aspect ratio of 2 on. Works in the precision of the input; batches over leading dimensions.
    """
    if iterations < 0 or order < 1:
        raise IsoconvError(f"Expected iterations ≥ 0 and order ≥ 1. Got {iterations} and {order}.")
    tall, wide = as_tall(matrix)
    if scale and tall.numel():
        tall = scaled_to_one(tall)
    if gram_space is None:
        gram_space = tall.shape[-2] >= 2 * tall.shape[-1]
    result = _in_gram_space(tall, iterations, order) if gram_space else _in_full_space(tall, iterations, order)
    return result.mT if wide else result


def _in_full_space(tall: Tensor, iterations: int, order: int) -> Tensor:
    for _ in range(iterations):
        tall = add_product(tall, tall, inverse_sqrt_correction(gram_residual(tall), order))
    return tall


def _in_gram_space(tall: Tensor, iterations: int, order: int) -> Tensor:
    """A_k = A Z_k with Z_k a polynomial of AᵀA; both Z_k and A_kᵀA_k = Z_k AᵀA Z_k live in the small space.

    A step multiplies small singular values by Σ coefficients, and the Gram matrix's rounding by its square. So after as
    many steps as make that 20, A itself is multiplied, and its Gram matrix made anew. See Note [Gram passes] in `polar`.
    """
    growth = sum(_coefficient(p) for p in range(order + 1))
    at_once = max(1, int(log(20) / log(growth)))
    for done in range(0, iterations, at_once):
        residual = gram_residual(tall)
        eye = total = identity_like(residual)
        gram = eye - residual
        for _ in range(min(at_once, iterations - done)):
            step = eye + inverse_sqrt_correction(eye - gram, order)
            total = total @ step
            gram = step @ gram @ step
        tall = tall @ total
    return tall


def _coefficient(p: int) -> float:
    return comb(2 * p, p) / 4**p
