"""The manifold of matrices with orthonormal columns (rows, if wide): how to come back to it, how to move along it.

Note [Staying on the manifold]
The fast path keeps the parameter U itself on the manifold. The forward pass uses U as it is. The derivative of the
polar factor at a point U of the manifold is the orthogonal projection onto the tangent space there,

    g ↦ g − U·sym(Uᵀg)  (tall),    g ↦ g − sym(gUᵀ)·U  (wide),

so projecting the gradient is exactly differentiating through the orthogonalisation, at the cost of two products.
An optimiser's step leaves the manifold by a little; `retract` comes back with a Newton–Schulz step or two, no gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoconv.errors import IsoconvError
from isoconv.linalg.matrices import (
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
)
from isoconv.linalg.orthogonalisation import polar_value
from isoconv.records import require

_HIGHEST_ORDER = 12


def project_to_tangent(point: Tensor, vector: Tensor, precision: str = "highest") -> Tensor:
    """The orthogonal projection of `vector` onto the tangent space at the orthonormal matrix `point`, batched.

    `precision` is for float32 on a GPU: "highest", or "high" for TF32 (see `isoconv.linalg.matrices`).
    """
    tall, wide = as_tall(point)
    v = vector.mT if wide else vector
    with matmul_precision(tall, precision):
        inner = tall.mT @ v
        tangent = add_product(v, tall, inner + inner.mT, -0.5)
    return tangent.mT if wide else tangent


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
        residual = gram_residual(tall)
        norm = size = float(torch.linalg.vector_norm(residual, dim=(-2, -1)).amax())
        # What has been retracted must count as orthonormal when it is looked at again, rounded in another order perhaps:
        # hence two thresholds, the stricter one for stopping.
        if size <= 2 * rounding:
            return matrix
        if not size < 0.5:  # perhaps many small errors: ‖R⁴‖_F^¼ bounds the operator norm too, and more closely
            square = residual @ residual
            norm = float(frobenius(square @ square).amax()) ** 0.25
        if not norm < 0.9:
            return _polar_or_svd(matrix)
        if norm >= 0.5:  # the series would be long: iterate in Gram space, and look again
            tall = _retract_blindly(tall, 3, precision)
            residual = gram_residual(tall)
            norm = size = float(torch.linalg.vector_norm(residual, dim=(-2, -1)).amax())
        while size > rounding:
            # The series of order p leaves a residual of at most ‖R‖_F·‖R‖^p: take the first order that is enough. Its
            # products are of small matrices; another look and another step would be two more of the large one.
            order = 1
            while order < _HIGHEST_ORDER and size * norm**order > rounding / 8:
                order += 1
            tall = add_product(tall, tall, inverse_sqrt_correction(residual, order))
            size *= norm**order
            if size > rounding / 8:
                residual = gram_residual(tall)
                norm = size = float(torch.linalg.vector_norm(residual, dim=(-2, -1)).amax())
        return tall.mT if wide else tall


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
