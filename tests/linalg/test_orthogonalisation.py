"""Orthogonalisation against the SVD, the paper's formula and exact arithmetic; its gradients; its minimax polynomials."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg import bjorck, norm_upper_bound, polar, retract
from isoconv.linalg.orthogonalisation import best_quintic, descend, minimax_schedule
from linalg.linalg_reference import (
    DEVICES,
    PRECISIONS,
    conditioned,
    exact,
    norm_at_most,
    normal,
    orthonormal,
    orthonormality_error,
    polar_by_svd,
    spectral_norm,
)

PROMISED = {torch.float32: 2e-6, torch.float64: 1e-13}
SHAPES = [(1, 1), (4, 4), (3, 7), (5, 1), (9, 2), (2, 3, 5), (2, 3, 6, 4)]
EXPONENTS = {torch.float32: (-37, -30, 30, 36), torch.float64: (-300, -160, 160, 300)}
KINDS = ["geometric", "one small", "one large"]

# Björck's steps


def binomial(p: int) -> float:
    """(−1)ᵖ (−½ choose p), from its definition."""
    value = Fraction(1)
    for i in range(p):
        value *= (Fraction(1, 2) + i) / (i + 1)
    return float(value)


def literal(a: Tensor, iterations: int, order: int) -> Tensor:
    """A (I + ½Q + ⅜Q² + … + (−1)ᵖ (−½ choose p) Qᵖ) with Q = I − AᵀA, that many times."""
    if a.shape[-2] < a.shape[-1]:
        return literal(a.mT, iterations, order).mT
    for _ in range(iterations):
        q = torch.eye(a.shape[-1], dtype=a.dtype) - a.mT @ a
        a = a @ sum(binomial(p) * torch.matrix_power(q, p) for p in range(order + 1))
    return a


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bjorck_is_the_papers_formula(shape):
    assert [binomial(p) for p in range(4)] == [1, 1 / 2, 3 / 8, 5 / 16]  # the paper's
    a, cotangent = normal(*shape, seed=1), normal(*shape, seed=2)
    a = (a / torch.linalg.matrix_norm(a, 2)[..., None, None]).requires_grad_()
    for (iterations, order), gram_space in product([(0, 1), (1, 1), (5, 1), (1, 2), (5, 3), (2, 7)], [False, True]):
        results = bjorck(a, iterations, order, scale=False, gram_space=gram_space), literal(a, iterations, order)
        tolerance = 100 * max(shape[-2:]) * (1 + iterations) * order * torch.finfo(a.dtype).eps
        torch.testing.assert_close(*results, rtol=0, atol=tolerance)
        gradients = [torch.autograd.grad(result, a, cotangent)[0] for result in results]
        torch.testing.assert_close(*gradients, rtol=0, atol=10 * tolerance * float(cotangent.norm()))
    # The matrices of a batch differ in scale a lot: each gets its own. One is zero, with a finite gradient.
    scales = torch.logspace(-6, 6, a[..., 0, 0].numel(), dtype=a.dtype)
    scales[1:2] = 0
    scaled = (a.detach() * scales.reshape(*shape[:-2], 1, 1)).requires_grad_()
    bounds = norm_upper_bound(scaled.detach())[..., None, None]
    expected = literal(scaled.detach() / torch.where(bounds > 0, bounds, 1), 4, 1)
    for gram_space in (None, False, True):
        found = bjorck(scaled, 4, gram_space=gram_space)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e3 * torch.finfo(a.dtype).eps)
        assert bool(torch.autograd.grad(found, scaled, cotangent)[0].isfinite().all())


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(64, 8), (30, 30), (2, 12)], ids=str)
def test_bjorck_of_ill_conditioned_matrices_of_any_scale(shape, dtype):
    """Singular values that a Gram matrix cannot hold, below √eps, must not be blown up by the steps.

    The steps are a polynomial of the singular values alone, and never end above 1. Its slope, growth^iterations or κ, is
    what the rounding of A itself is multiplied by.
    """
    n, eps = min(shape), torch.finfo(dtype).eps
    cases = product([(10.0, 1e-30), (1e4, 1e30), (1e12, 1.0)], KINDS, [(5, 1), (20, 3), (60, 1)])
    for (condition, scale), kind, (iterations, order) in cases:
        a = (scale * conditioned(*shape, condition, kind)).to(dtype)
        left, values, right = torch.linalg.svd(a.double() / float(norm_upper_bound(a)), full_matrices=False)
        coefficients = [binomial(p) for p in range(order + 1)]
        for _ in range(iterations):
            values = values * sum(c * (1 - values**2) ** p for p, c in enumerate(coefficients))
        slope = min(sum(coefficients) ** iterations, condition)
        for gram_space in (False, True):
            ours = bjorck(a, iterations, order, gram_space=gram_space).double()
            assert spectral_norm(ours) <= 1 + 4 * n * eps
            assert spectral_norm(ours - (left * values) @ right) <= 40 * n**0.5 * eps * slope


# The bound that everything is scaled by

MATRICES = {
    "normal": lambda m, n: normal(m, n, seed=11),
    "rank one": lambda m, n: torch.outer(normal(m, seed=9), normal(n, seed=10)),
    "flat": lambda m, n: orthonormal(m, n, seed=12),
    "ones": lambda m, n: torch.ones(m, n, dtype=torch.float64),
    "identity": lambda m, n: torch.eye(m, n, dtype=torch.float64),
    "one entry": lambda m, n: torch.nn.functional.pad(torch.ones(1, 1, dtype=torch.float64), (n - 1, 0, m - 1, 0)),
    "graded": lambda m, n: normal(m, n, seed=13) * torch.logspace(0, -12, n, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_norm_upper_bound_is_one_and_close(dtype):
    """Exactly for small matrices of any scale, also where a float holds but a few bits; by the SVD for larger ones."""
    small, eps = [(1, 1), (1, 6), (6, 1), (5, 4), (8, 8)], torch.finfo(dtype).eps
    cases = [*zip(small, [1.0, 1e30, 1e-30, 1.0, 1e-30], strict=True), ((300, 100), 1.0), ((31, 257), 1.0)]
    for kind, (shape, scale) in product(MATRICES, cases):
        a = (MATRICES[kind](*shape) * scale).to(dtype)
        bound, norm, n = float(norm_upper_bound(a)), spectral_norm(a), min(shape)
        assert norm_at_most(exact(a), bound) if shape in small else bound >= norm, kind
        assert bound <= norm * n**0.125 * (1 + 8 * sum(shape) * n * eps), kind
        if kind == "flat":
            assert bound >= norm * n**0.125 * (1 - 8 * n * eps)
    for entries in ([[1, 1]], [[1], [1]], [[3, 2], [1, 1]], [[1, 0, 1]], [[5, 5, 7]]):
        a = torch.tensor(entries, dtype=dtype) * torch.finfo(dtype).tiny * eps
        assert norm_at_most(exact(a), float(norm_upper_bound(a)))


# The polar factor


def check(matrix, factor, condition):
    """Orthonormal as promised, and as close to the SVD's factor as its condition number κ allows: c·√n·eps·κ.

    c = 4 leaves room for the SVD's own error; the largest seen is 1.4.
    """
    assert factor.dtype == matrix.dtype and factor.shape == matrix.shape
    assert orthonormality_error(factor) <= PROMISED[matrix.dtype]
    difference = torch.linalg.matrix_norm(factor.cpu().double() - polar_by_svd(matrix), 2)
    assert float(difference.max()) <= 4 * min(matrix.shape[-2:]) ** 0.5 * torch.finfo(matrix.dtype).eps * condition


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "conditions"), [(torch.float32, (1.0, 1e3, 1e6)), (torch.float64, (1.0, 1e6, 1e14))], ids=str
)
@pytest.mark.parametrize("shape", [(1, 1), (9, 1), (2, 2), (7, 13), (64, 64), (257, 101)], ids=str)
def test_polar_is_orthonormal_and_equal_to_the_svds(shape, dtype, conditions, device):
    for condition, kind in product(conditions if min(shape) > 1 else [1.0], KINDS):
        a = conditioned(*shape, condition, kind, seed=1).to(device, dtype)
        before = a.clone()
        check(a, polar(a), condition)
        check(a.mT, polar(a.mT), condition)
        assert torch.equal(a, before)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_extreme_scales(dtype):
    """Also all entries subnormal; or the largest finite, where only an upper bound of the norm overflows."""
    for shape, exponent in product([(1, 1), (1, 5), (6, 6), (40, 7), (7, 40)], EXPONENTS[dtype]):
        a = (conditioned(*shape, 100.0 if min(shape) > 1 else 1.0, seed=3) * 10.0**exponent).to(dtype)
        check(a, polar(a), 100.0)
    eps, tiny, largest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny, torch.finfo(dtype).max
    for a in (torch.eye(64, dtype=dtype), torch.tensor([[1, 1], [1, -1]], dtype=dtype)):
        check(a * largest, polar(a * largest), 1.0)
    for entries in ([[1, 1]], [[1, 1], [1, -1]], [[7, 1], [1, 9]]):
        a = torch.tensor(entries, dtype=dtype)
        torch.testing.assert_close(polar(a * tiny * eps), polar(a), rtol=0, atol=10 * eps)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_batch_of_easy_and_hard_matrices_and_an_empty_one(dtype):
    """One orthonormal, one well-conditioned, one at the edge, at scales far apart: each as good as it can be."""
    hard = 1e5 if dtype == torch.float32 else 1e13
    cases = [(1.0, 1.0), (3.0, 1e-20), (hard, 1e20), (30.0, 1.4), (1e3, 1.0), (hard, 1e-3)]
    batch = torch.stack([conditioned(20, 12, c, seed=i) * scale for i, (c, scale) in enumerate(cases)]).to(dtype)
    for given in (batch, batch.mT, batch.mT.contiguous()):
        factors = polar(given.reshape(2, 3, *given.shape[1:])).reshape(given.shape)
        for a, factor, (condition, _) in zip(given, factors, cases, strict=True):
            check(a, factor, condition)
    for shape in [(0, 5), (5, 0), (0, 0), (0, 3, 2), (3, 0, 2)]:
        a = torch.zeros(shape, dtype=dtype, requires_grad=True)
        polar(a).sum().backward()
        assert polar(a).shape == a.grad.shape == shape


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(6, 6), (40, 10), (10, 40)], ids=str)
def test_never_a_wrong_factor_between_full_rank_and_rank_deficient(shape, dtype):
    """For condition numbers around 1/eps it may refuse; what it gives is orthonormal, and a minimiser up to rounding:

    ⟨U, A⟩ is the sum of the singular values, the largest that an orthonormal U can reach.
    """
    eps, given = torch.finfo(dtype).eps, 0
    for condition in np.logspace(-2, 3, 11) / eps:
        a = conditioned(*shape, float(condition)).to(dtype)
        try:
            u = polar(a)
        except IsoconvError as error:
            assert "rank-deficient" in str(error)  # noqa: PT017
            continue
        given += 1
        assert orthonormality_error(u) <= PROMISED[dtype]
        nuclear = float(torch.linalg.svdvals(a.double()).sum())
        assert float((u * a).double().sum()) >= nuclear * (1 - 100 * min(shape) * eps)
    assert 0 < given < 11


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 3), (3, 5), (6, 1), (9, 4), (2, 2, 3, 4)], ids=str)
def test_gradcheck(shape):
    assert torch.autograd.gradcheck(polar, (normal(*shape, seed=5).requires_grad_(),))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_gradient_of_an_ill_conditioned_matrix(dtype):
    """κ = 1000, repeated singular values (where an SVD's own derivative does not exist): (UᵀG − GᵀU)ᵢⱼ / (σᵢ + σⱼ)."""
    values = torch.tensor([1.0, 1.0, 1.0, 0.001, 0.001], dtype=torch.float64)
    left, right, g = orthonormal(9, 5, seed=8), orthonormal(5, 5, seed=9), normal(9, 5, seed=10)
    a = ((left * values) @ right).to(dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(polar(a), a, g.to(dtype))
    inner = left.mT @ g @ right.mT
    expected = left @ ((inner - inner.mT) / (values[:, None] + values)) @ right
    expected = expected + (g - left @ (left.mT @ g)) @ right.mT / values @ right
    assert spectral_norm(gradient.double() - expected) <= 40 * torch.finfo(dtype).eps * 1e3 * spectral_norm(expected)


def test_no_iteration_is_stored_for_the_gradient_and_no_second_derivative_is_pretended():
    a = conditioned(60, 20, 1e5).float().requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        polar(a)
    assert saved == [(60, 20), (60, 20)]
    (gradient,) = torch.autograd.grad(polar(a).pow(3).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("shape", [(32, 16), (16, 64), (2, 8, 8)], ids=str)
def test_autocast_neither_hangs_it_nor_spoils_it(shape):
    """Under autocast a product is in bfloat16, where no step makes the residual small."""
    a = normal(*shape, seed=20, dtype=torch.float32)
    near = polar(a) + 0.02 * a
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = [polar(a), retract(near), retract(a)]
    for result in results:
        assert result.dtype == torch.float32 and orthonormality_error(result) <= PROMISED[torch.float32]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a GPU's")
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_tf32_neither_hangs_it_nor_spoils_it(precision):
    before = torch.get_float32_matmul_precision()
    a = conditioned(512, 256, 10.0).to("cuda", torch.float32)
    near = polar(a) + 0.02 * a
    try:
        torch.set_float32_matmul_precision(precision)
        results = [polar(a), retract(near)]
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert max(map(orthonormality_error, results)) <= PROMISED[torch.float32]


@pytest.mark.filterwarnings("ignore")  # the tracer warns of much
def test_compiled_with_what_breaks_the_graph_left_out():
    x = torch.randn(6, 4, requires_grad=True)
    compiled = torch.compile(lambda matrix: polar(matrix)[0].sum(), backend="aot_eager")
    (expected,), (found,) = (
        torch.autograd.grad(run(x), x) for run in (lambda matrix: polar(matrix)[0].sum(), compiled)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (3, 6, 4)], ids=str)
def test_descend_goes_along_the_polar_factor_in_place(shape):
    start, matrix = normal(*shape), conditioned(*shape[-2:], 10.0) * torch.logspace(-9, 9, 3)[: shape[0], None, None]
    matrix = matrix if len(shape) == 3 else matrix[0]
    point = start.clone()
    descend(point, matrix, 0.25)
    off = torch.linalg.matrix_norm(point - start + 0.25 * polar_by_svd(matrix), 2)
    assert float(off.max()) < 0.25 * 0.05


# Minimax quintics

INTERVALS = [(1e-3, 1.0), (0.05, 1.0), (0.5, 1.0), (0.3, 1.7), (0.9, 1.1), (0.1, 3.0)]


def values(quintic, x):
    a, b, c = quintic
    return a * x + b * x**3 + c * x**5


@pytest.mark.parametrize(("low", "high"), [*INTERVALS, (0.999, 1.001), (0.9999, 1.0), (1.0, 1.0), (1.98, 2.0)])
def test_quintics_equioscillate_and_their_error_is_the_largest_on_the_interval(low, high):
    """Chebyshev: an odd quintic (three coefficients) whose error alternates at four points is the only best one."""
    quintic, error = best_quintic(low, high)
    deviation = 1 - values(quintic, np.linspace(low, high, 200_001))
    assert error * (1 - 1e-6) - 1e-15 <= np.abs(deviation).max() <= error + 1e-15
    if (low, high) in INTERVALS:
        at = deviation[[0, *(np.flatnonzero(np.diff(np.sign(np.diff(deviation)))) + 1), -1]]
        assert list(np.sign(at)) == [1, -1, 1, -1]
        # The grid misses an extremum by at most half a step, and the error by the curvature times its square.
        np.testing.assert_allclose(np.abs(at), error, rtol=0, atol=1e-7 * error + 1e-13)


@pytest.mark.parametrize("target", [1e-1, 1e-4, 1e-12])
@pytest.mark.parametrize("lowest", [1e-6, 0.05 / 1.01, 0.5, 0.99])
def test_every_value_ends_within_the_target_and_a_number_of_steps_is_kept_to(lowest, target):
    schedule = minimax_schedule(lowest, target)
    x = np.concatenate([np.geomspace(lowest, 1.0, 50_001), np.linspace(lowest, 1.0, 50_001)])
    for quintic in schedule:
        x = values(quintic, x)
    # The coefficients add up to about 15, so each evaluation rounds by that many units at most.
    assert np.abs(1 - x).max() <= target + 20 * len(schedule) * np.finfo(float).eps
    for steps in range(len(schedule)):
        assert minimax_schedule(lowest, steps=steps) == schedule[:steps]
    assert minimax_schedule(1.0) == minimax_schedule(0.95, 0.1) == ()
