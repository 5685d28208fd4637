"""Orthonormal columns (rows, if wide): how to come to the manifold of such matrices, move along it, and come back.

    polar     the polar factor of a matrix, converged, with its exact gradient
    bjorck    the paper's own (its appendix "Orthogonalization Procedure"), differentiated through every step
    retract   the polar factor of a matrix that is close to it, without a gradient
    descend   a few steps, for a direction of descent

For a tall A = U S with UᵀU = I and S = (AᵀA)^½, U = A (AᵀA)^(−½). Everything here is matrix products, so that it batches
and runs at full speed on a GPU, and most of it happens on the small n×n Gram matrix.

Note [Gram passes]
Squaring a matrix squares its condition number, so (AᵀA)^(−½) taken in one go would lose everything about singular
values below √eps, and even above that its error, of size eps·‖(AᵀA)^(−½)‖, does not commute with AᵀA and turns U away
from the true factor. So one pass only multiplies by a polynomial Z of AᵀA that lifts singular values in [1/20, 1] to 1 and
smaller ones about twenty-fold; ‖Z‖ ≈ 20 bounds the damage to a backward error of about 20·eps. A matrix of condition κ
needs log₂₀ κ passes: one, for most. The last steps are Björck's with the Gram matrix of the matrix itself and not
one that was carried along: they remove what rounding in the small space has left.

Note [Minimax quintics]
Newton–Schulz multiplies a small singular value by at most 1.5 (cubic) or 1.875 (quintic) a step. The odd quintic
p(x) = ax + bx³ + cx⁵ that minimises max |1 − p| over [l, u] does far better (a ≈ 8 for small l); applying the best one
for the interval that is left, again and again, is the best composition of them.

Note [Staying on the manifold]
The fast path keeps the parameter U itself on the manifold. The forward pass uses U as it is. The derivative of the
polar factor at a point U of the manifold is the orthogonal projection onto the tangent space there,

    g ↦ g − U·sym(Uᵀg)  (tall),    g ↦ g − sym(gUᵀ)·U  (wide),

so projecting the gradient is exactly differentiating through the orthogonalisation, at the cost of two products.
An optimiser's step leaves the manifold by a little; `retract` comes back with a Newton–Schulz step or two, no gradient.
"""

from functools import lru_cache, reduce
from math import ceil, inf, log
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoconv.errors import IsoconvError, require
from isoconv.linalg.matrices import (
    SERIES,
    Function,
    add_product,
    as_tall,
    frobenius,
    gram_residual,
    identity_like,
    inverse_sqrt_correction,
    largest_entry,
    matmul_precision,
    orthonormality_tolerance,
    scaled_to_one,
)

_LOWEST = 0.05  # one pass lifts singular values from here to 1
_HEADROOM = 1.01  # keeps the spectrum inside the interval for which the minimax polynomials were made
_LOWEST_IN_HALF = 0.01  # the same in bfloat16, in 4 steps; lower ones overshoot in its rounding
_HIGHEST_ORDER = 12  # of the series by which a matrix is retracted
_LOWEST_DIRECTION = 0.03  # relative to the largest, singular values from here on come within 4 % of 1 in 3 steps

# The polar factor ---------------------------------------------------------------------------------------------------


def polar(matrix: Tensor) -> Tensor:
    """Return the polar factor of each matrix (…, m, n), converged, with its exact gradient; no iteration is stored for it.

    Works in the precision of the input, float32 or float64: ‖UᵀU − I‖₂ ≤ 2e-6 or 1e-13 for up to 4096×512, from any
    matrix that is not rank-deficient in that precision. A rank-deficient one is refused.
    """
    return _Polar.call(matrix)  # type: ignore[no-any-return]


def polar_value(matrix: Tensor) -> Tensor:
    """The polar factor without a gradient, in full precision whatever autocast and TF32 say."""
    tall, wide = as_tall(matrix.detach())
    shape, precise = tuple(matrix.shape), tall.dtype in (torch.float32, torch.float64)
    require(precise, "float32 or float64, the precisions this converges in", tall.dtype)
    if tall.numel() == 0:
        return matrix.detach().clone()
    with matmul_precision(matrix, "highest"):
        given = tall = scaled_to_one(tall)
        tolerance = orthonormality_tolerance(tall)
        last, passes = inf, 0
        # Enough passes for any condition number up to 1/eps, and three to spare.
        while passes <= ceil(log(torch.finfo(tall.dtype).eps) / log(_LOWEST)) + 3:
            residual = gram_residual(tall)
            size = float(frobenius(residual).amax())
            require(size < inf, "finite numbers", f"NaN or infinity in a matrix {shape}")
            if size <= tolerance or (last <= 64 * tolerance and size >= last / 2):  # or rounding allows no more
                if passes > 1 and _is_rank_deficient(given, tall):
                    break
                return tall.mT if wide else tall
            converges = last >= 0.5 or size < last / 2
            require(converges, f"{tall.dtype} arithmetic", f"products too coarse to converge: {size:.1e}")
            if size < 0.5:
                tall, last = add_product(tall, tall, inverse_sqrt_correction(residual, order=3)), size
            else:
                tall, passes = _gram_pass(tall, residual), passes + 1
    raise IsoconvError(f"Expected a matrix of full rank. Got one {shape} that is rank-deficient in {tall.dtype}.")


def _gram_pass(tall: Tensor, residual: Tensor) -> Tensor:
    """A Z(AᵀA) for singular values of A up to 1. See Note [Gram passes]."""
    eye = identity_like(residual)
    gram = (eye - residual) / _HEADROOM**2
    steps = []
    for a, b, c in minimax_schedule(_LOWEST / _HEADROOM):
        step = add_product(a * eye + b * gram, gram, gram, c)
        gram = step @ gram @ step
        gram = (gram + gram.mT) / 2  # they commute in exact arithmetic; left alone, the asymmetry would grow
        steps.append(step)
    return tall @ (reduce(torch.matmul, steps) / _HEADROOM)


def _is_rank_deficient(given: Tensor, factor: Tensor) -> bool:
    """Whether S = UᵀA, which has A's singular values for eigenvalues, fails to be positive definite beyond rounding.

    The passes lift anything that is not exactly zero, rounding errors included; this tells the two apart.
    """
    stretch = factor.mT @ given
    stretch = (stretch + stretch.mT) / 2 - torch.finfo(given.dtype).eps / 2 * identity_like(stretch)
    return bool((torch.linalg.cholesky_ex(stretch).info > 0).any())


class _Polar(Function):
    """dU = U Ω + (I − UUᵀ) dA S⁻¹ with SΩ + ΩS = UᵀdA − dAᵀU; backward is its adjoint, solved in S's eigenbasis."""

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:  # type: ignore[override]
        return polar_value(matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
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


# Björck's steps -----------------------------------------------------------------------------------------------------


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
    require(iterations >= 0 and order >= 1, "iterations ≥ 0 and order ≥ 1", f"{iterations} and {order}")
    tall, wide = as_tall(matrix)
    if scale and tall.numel():
        tall = scaled_to_one(tall)
    if tall.shape[-2] >= 2 * tall.shape[-1] if gram_space is None else gram_space:
        tall = _iterate_in_gram_space(tall, iterations, order)
    else:
        for _ in range(iterations):
            tall = add_product(tall, tall, inverse_sqrt_correction(gram_residual(tall), order))
    return tall.mT if wide else tall


def _iterate_in_gram_space(tall: Tensor, iterations: int, order: int) -> Tensor:
    """A_k = A Z_k with Z_k a polynomial of AᵀA; both Z_k and A_kᵀA_k = Z_k AᵀA Z_k live in the small space.

    A step multiplies small singular values by Σ coefficients, and the Gram matrix's rounding by its square. So after as
    many steps as make that 20, A itself is multiplied, and its Gram matrix made anew. See Note [Gram passes] in `polar`.
    """
    at_once = max(1, int(log(20) / log(sum(SERIES[: order + 1]))))
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


# The manifold: see Note [Staying on the manifold] -----------------------------------------------------------------------


def project_to_tangent(point: Tensor, vector: Tensor, precision: str = "highest") -> Tensor:
    """The orthogonal projection of `vector` onto the tangent space at the orthonormal matrix `point`, batched.

    `precision` is for float32 on a GPU: "highest", or "high" for TF32 (see `isoconv.linalg.matrices`).
    """
    tall, wide = as_tall(point)
    v = vector.mT if wide else vector
    with matmul_precision(tall, precision):
        if tall.shape[-2] == tall.shape[-1]:  # UUᵀ = I too: U·sym(Uᵀv) = ½v + ½U(vᵀU), and no transposed sum
            tangent = add_product(v, tall, v.mT @ tall, -0.5, 0.5)
        else:
            inner = tall.mT @ v
            tangent = add_product(v, tall, inner + inner.mT, -0.5)
    return tangent.mT if wide else tangent


def project_product_to_tangent(
    point: Tensor, left: Tensor, right: Tensor, left_image: Tensor, right_image: Tensor
) -> Tensor:
    """`project_to_tangent(point, left.mT @ right)`, given the images left @ point and right @ point.mT.

    For a wide U and G = LᵀR, sym(GUᵀ)U = ½Lᵀ(RUᵀ)U + ½(RUᵀ)ᵀ(LU). With few rows of L and R these are smaller products
    than those of G. With many, the images still spare the product GUᵀ = LᵀRUᵀ its long side.
    """
    if point.shape[-2] > point.shape[-1]:
        return project_product_to_tangent(point.mT, right, left, right_image, left_image).mT
    if len(left) < len(point):
        return (left.mT @ add_product(right, right_image, point, -0.5)).addmm_(right_image.mT, left_image, alpha=-0.5)
    inner = left.mT @ right_image
    return (left.mT @ right).addmm_(inner + inner.mT, point, alpha=-0.5)


def on_manifold(parameter: Tensor, point: Tensor | None = None) -> Tensor:
    """`point` (by default the parameter itself, then already orthonormal), with the gradient that its polar factor has.

    `point` is the retracted parameter where that was not written back. See Note [Staying on the manifold].
    """
    point = (parameter if point is None else point).detach()
    return _OnManifold.call(parameter, point)  # type: ignore[no-any-return]


def is_orthonormal(matrix: Tensor, tolerance: float | None = None) -> bool:
    """Return True if ‖I − UᵀU‖_F (UUᵀ, if wide) is at most `tolerance` (default: twice what rounding leaves)."""
    tall, _ = as_tall(matrix)
    tolerance = 2 * orthonormality_tolerance(tall) if tolerance is None else tolerance
    return bool((frobenius(gram_residual(tall)) <= tolerance).all())


def retract(matrix: Tensor, steps: int | None = None, precision: str = "highest") -> Tensor:
    """Return the polar factor of a matrix that is close to orthonormal, without a gradient; batched, float32 or float64.

    With `steps=None` it looks at the matrix: one that is orthonormal to rounding is returned as it is (so retracting
    twice changes nothing), a near one takes as few products as its distance needs, a far one goes through `polar`,
    and a rank-deficient one through an SVD. With a number of steps it never looks, so that it can be captured in a CUDA
    graph or compiled: that many Newton–Schulz steps of order 3. To float32's rounding, one converges from singular
    values in [0.99, 1.01], two from [0.8, 1.2], three from [0.6, 1.4]. They never diverge: a
    matrix whose norm may exceed √2 is first divided by an upper bound of its norm. `precision` "high" lets a GPU
    multiply by the correction, which is small, in TF32: faster, and orthonormal only to ten bits of the correction.
    """
    matrix = matrix.detach() if matrix.requires_grad else matrix
    if matrix.numel() == 0:
        return matrix
    if matrix.dtype not in (torch.float32, torch.float64) and matrix.is_floating_point():
        raise IsoconvError(f"Expected float32 or float64. Got {matrix.dtype}.")
    if steps is not None and steps < 0:
        raise IsoconvError(f"Expected a number of steps of at least 0. Got {steps}.")
    if steps is None and (torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(matrix)):
        return _retract_opaquely(matrix)
    with matmul_precision(matrix, "highest"):
        if steps is not None:
            return _retract_blindly(matrix, steps, precision)
        tall, wide = as_tall(matrix)
        rounding = orthonormality_tolerance(tall)
        residual, square, size, norm = _look(tall)
        # What has been retracted must count as orthonormal when it is looked at again, rounded in another order perhaps:
        # hence two thresholds, the stricter one for stopping.
        if size <= 2 * rounding:
            return matrix
        if not norm < 0.5:  # perhaps many small errors: ‖R⁴‖_F^¼ bounds the operator norm more closely
            norm = float(frobenius(square @ square).amax()) ** 0.25
        if not norm < 0.9:
            return _polar_or_svd(matrix)
        if norm >= 0.5:  # the series would be long: iterate in Gram space, and look again
            tall = _retract_blindly(tall, 3, precision)
            residual, square, size, norm = _look(tall)
        while size > rounding:
            # The series of order p leaves a residual of at most ‖Rᵖ⁺¹‖_F ≤ ‖R²‖_F^½⁽ᵖ⁺¹⁾: take the first order that is
            # enough. Its products are of small matrices; another look and another step would be two more of the large one.
            order = 1
            while order < _HIGHEST_ORDER and norm ** (order + 1) > rounding / 8:
                order += 1
            tall, size = add_product(tall, tall, inverse_sqrt_correction(residual, order, square)), norm ** (order + 1)
            if size > rounding / 8:
                residual, square, size, norm = _look(tall)
        return tall.mT if wide else tall


def _look(tall: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """Return R = I − XᵀX, R², and of each batch the largest ‖R‖_F and ‖R²‖_F^½ ≥ ‖R‖. On a GPU the host waits once."""
    residual = gram_residual(tall)
    square = residual @ residual
    sizes = frobenius(torch.stack([residual, square]))
    size, squared = (sizes if sizes.dim() == 1 else sizes.flatten(1).amax(1)).tolist()
    return residual, square, size, squared**0.5


@torch.library.custom_op("isoconv::retract", mutates_args=())
def _retract_opaquely(matrix: Tensor) -> Tensor:
    """`retract` as one operator, which compilers and transforms do not look into: it is the same function to all."""
    result = retract(matrix.detach())
    unchanged = result.data_ptr() == matrix.data_ptr()  # an operator may not return its own argument
    return result.clone(memory_format=torch.contiguous_format) if unchanged else result.contiguous()


@_retract_opaquely.register_fake
def _(matrix: Tensor) -> Tensor:
    return matrix.new_empty(matrix.shape)


@_retract_opaquely.register_vmap
def _(info: object, in_dims: tuple[int], matrix: Tensor) -> tuple[Tensor, int]:
    return _retract_opaquely(matrix.movedim(in_dims[0], 0)), 0


def _polar_or_svd(matrix: Tensor) -> Tensor:
    got = f"NaN or infinity in a matrix {tuple(matrix.shape)}"
    require(bool(torch.isfinite(matrix).all()), "finite parameters (training may have diverged)", got)
    try:
        return polar_value(matrix)
    except IsoconvError:  # rank-deficient: there are many closest matrices, and the SVD picks one
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        return retract(left @ right)


def _retract_blindly(matrix: Tensor, steps: int, precision: str) -> Tensor:
    """Every decision is arithmetic on scalars, every iteration happens in Gram space; the matrix is multiplied once.

    Written for few kernels: on a GPU the launches are what this costs.
    """
    tall, wide = as_tall(matrix)
    tall = tall / largest_entry(tall).clamp_min(1)  # the entries of an orthonormal matrix are at most 1
    residual = gram_residual(tall)
    # b = 1 + 1.01·‖R⁴‖_F^¼ bounds σ² (1.01 covers its rounding). The steps converge for σ² < 2; beyond 1.9 divide by b/1.9.
    # Where R⁴ overflows, ‖R‖_F bounds it too (fmin passes over NaN).
    square = residual @ residual
    size = torch.fmin(frobenius(residual), frobenius(square @ square) ** 0.25)[..., None, None]
    shrink = (1.9 / 1.01 / (size + 1 / 1.01)).clamp_max(1)  # 1.9/b or 1
    residual = torch.lerp(identity_like(residual), residual, shrink)  # I − sXᵀX
    tall = tall * shrink.sqrt()
    # The factor is I + correction, and it is R that is carried along, by the exact law of the order-3 step,
    # 1 − (1 − r)(1 + r/2 + 3r²/8 + 5r³/16)² = r⁴(140 + 56r + 35r² + 25r³)/256: both are small, so their rounding is.
    correction: Tensor | None = None
    for step in range(steps):
        series = add_product(residual, residual, add_product(residual, residual, residual, 5 / 16, 3 / 8), 1, 1 / 2)
        correction = series if correction is None else add_product(correction + series, correction, series)
        if step + 1 < steps:
            square = residual @ residual
            tail = add_product(residual, residual, add_product(residual, residual, residual, 25, 35), 1, 56)
            residual = (square @ square) * (140 / 256) + square @ (square @ tail) / 256
    with matmul_precision(tall, precision):
        result = tall if correction is None else add_product(tall, tall, correction)
    return result.mT if wide else result


class _OnManifold(Function):
    @staticmethod
    def forward(parameter: Tensor, point: Tensor) -> Tensor:  # type: ignore[override]
        return point.view_as(point)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (point,) = ctx.saved_tensors
        return project_to_tangent(point, gradient, "high"), None  # a direction: the retraction forgives it


# About: the direction of steepest descent -----------------------------------------------------------------------------


def descend(point: Tensor, matrix: Tensor, rate: float | Tensor, steps: int = 3, half: bool = False) -> None:
    """point −= rate · U Vᵀ, about, for each matrix U Σ Vᵀ of a batch; in place, the direction is never in memory.

    The direction of steepest descent under the operator norm (the paper's Lemma "Steepest descent by matrix 2-norm"), by
    `steps` minimax quintics. Unlike `polar`, a few are enough: a direction need not be orthonormal to the last bit, and a
    singular value that is a thirtieth of the largest says little anyway. A zero matrix moves nothing. Both are one matrix
    (m, n) or a batch (b, m, n), of one dtype, in whose precision this works; never looks at the numbers, so that it may be
    captured in a CUDA graph or compiled.

    half : multiply matrices with m < 2n in bfloat16, with one step more. Eight bits suffice where the steps are of the
        matrix itself and not of its Gram matrix. That is faster on a GPU, where such matrices have thousands of rows.
    """
    if matrix.numel() == 0:
        return
    tall, wide = as_tall(matrix)
    if half and tall.shape[-2] < 2 * tall.shape[-1]:
        direction = _approximate_polar_in_half(tall, steps + 1)
        # On a GPU foreach reads many entries at a time; a product with a number that lies on the device does not.
        torch._foreach_mul_([direction], torch.as_tensor(rate, device=direction.device).to(direction.dtype))
        point.sub_(direction.mT if wide else direction)
        return
    tall = tall / largest_entry(tall).clamp_min(torch.finfo(tall.dtype).tiny)
    # A direction may be off by ten bits; the Gram matrix of a small one may not.
    with matmul_precision(tall, "highest"):
        gram = tall.mT @ tall
    with matmul_precision(tall, "high"):
        root, scale = _inverse_root(gram, steps)
        root = root * (scale * rate).to(root.dtype)
        left, right = (root.mT, tall.mT) if wide else (tall, root)
        (point.addmm_ if point.dim() == 2 else point.baddbmm_)(left, right, alpha=-1)


def _inverse_root(gram: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return about G^(−½) but for its scale (…, 1, 1), by minimax quintics for singular values from 0.03 of the largest."""
    # ‖G²‖_F^½ bounds the largest eigenvalue of G. A little more than rounding is added to the diagonal: an eigenvalue
    # that rounding made negative would grow under the steps, where every honest one goes to 1.
    eye = identity_like(gram)
    bound = (1.02 * frobenius(gram @ gram)[..., None, None].sqrt()).clamp_min(torch.finfo(gram.dtype).tiny)
    gram = torch.add(gram / bound, eye, alpha=gram.shape[-1] * torch.finfo(gram.dtype).eps)
    total: Tensor | None = None
    for k, (a, b, c) in enumerate(minimax_schedule(_LOWEST_DIRECTION, steps=steps), start=1):
        curved = add_product(gram, gram, gram, c, b)  # the step multiplies by aI + this
        total = torch.add(curved, eye, alpha=a) if total is None else add_product(total, total, curved, 1, a)
        if k < steps:
            half = add_product(gram, curved, gram, 1, a)
            gram = add_product(half, half, curved, 1, a)
    assert total is not None
    return total, bound.rsqrt()


def _approximate_polar_in_half(tall: Tensor, steps: int) -> Tensor:
    """Return about U Vᵀ in bfloat16, by minimax quintics for singular values from 0.01 of the largest on."""
    with matmul_precision(tall, "high"):
        x = tall.to(torch.bfloat16)
        x = x / largest_entry(x).clamp_min(torch.finfo(x.dtype).tiny)
        gram = x.mT @ x
        bound = 1.02 * torch.linalg.vector_norm(gram @ gram, dim=(-2, -1), keepdim=True, dtype=tall.dtype).sqrt()
        x = x * bound.clamp_min(torch.finfo(x.dtype).tiny).rsqrt().to(x.dtype)
        for a, b, c in minimax_schedule(_LOWEST_IN_HALF, steps=steps):
            gram = x.mT @ x
            x = add_product(x, x, add_product(gram, gram, gram, c, b), 1, a)
    return x


# Minimax quintics: see the Note ---------------------------------------------------------------------------------------

Quintic = tuple[float, float, float]


@lru_cache(maxsize=64)
def minimax_schedule(lowest: float, target: float = 1e-4, steps: int | None = None) -> tuple[Quintic, ...]:
    """Quintics to apply in turn so that every x in [lowest, 1] ends within `target` of 1 (up to rounding).

    With `steps`, exactly that many, whatever they reach.
    """
    require(0 < lowest <= 1, "the lowest singular value to be in (0, 1]", lowest)
    low, high = lowest, 1.0
    schedule: list[Quintic] = []
    while len(schedule) < steps if steps is not None else max(high - 1, 1 - low) > target:
        quintic, error = best_quintic(low, high)
        schedule.append(quintic)
        low, high = 1 - error, 1 + error
    return tuple(schedule)


def best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """The coefficients (a, b, c) of the odd quintic closest to 1 on [low, high], and its largest error there.

    Remez' exchange with four alternation points: the ends are two of them, the other two are the local extrema.
    """
    inner: list[float] = []
    if low >= 0.99 * high:  # alternation points nearly coincide: use the Taylor polynomial about the middle
        middle = (low + high) / 2
        a, b, c = 15 / 8 / middle, -10 / 8 / middle**3, 3 / 8 / middle**5
    else:
        inner, error = [0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high], 1.0
        for _ in range(100):
            points = np.array([low, *inner, high])
            system = np.stack([points, points**3, points**5, np.array([1.0, -1.0, 1.0, -1.0])], axis=1)
            a, b, c, signed = (float(v) for v in np.linalg.solve(system, np.ones(4)))
            # Extrema: p'(x) = a + 3b x² + 5c x⁴ = 0.
            root = max(9 * b * b - 20 * a * c, 0.0) ** 0.5
            inner = [((-3 * b - root) / (10 * c)) ** 0.5, ((-3 * b + root) / (10 * c)) ** 0.5]
            if abs(abs(signed) - error) <= 1e-13 * abs(signed):
                break
            error = abs(signed)
    # The largest error over the alternation points bounds it over the interval, whether or not Remez stopped early.
    return (a, b, c), max(abs(1 - x * (a + x * x * (b + x * x * c))) for x in (low, *inner, high))
