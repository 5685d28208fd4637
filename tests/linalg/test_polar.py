"""The polar factor: as orthonormal as promised, the one the SVD gives, with the gradient the mathematics gives."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.linalg import polar, retract
from isoconv.linalg.orthogonalisation import descend
from linalg.linalg_reference import (
    DEVICES,
    PRECISIONS,
    conditioned,
    normal,
    orthonormal,
    orthonormality_error,
    polar_by_svd,
    with_singular_values,
)

PROMISED = {torch.float32: 2e-6, torch.float64: 1e-13}
SHAPES = [(1, 1), (9, 1), (2, 2), (7, 13), (64, 64), (257, 101), (1024, 128)]
CONDITIONS = [(torch.float32, 1.0), (torch.float32, 1e3), (torch.float32, 1e6)]
CONDITIONS += [(torch.float64, 1.0), (torch.float64, 1e6), (torch.float64, 1e12), (torch.float64, 1e14)]


def check(matrix, factor, condition):
    """Orthonormal as promised, and as close to the SVD's factor as its condition number κ allows: c·√n·eps·κ.

    c = 4 leaves room for the SVD's own error; the largest seen is 1.4.
    """
    assert factor.dtype == matrix.dtype
    assert factor.shape == matrix.shape
    assert orthonormality_error(factor) <= PROMISED[matrix.dtype]
    difference = torch.linalg.matrix_norm(factor.cpu().double() - polar_by_svd(matrix), 2)
    assert float(difference.max()) <= 4 * min(matrix.shape[-2:]) ** 0.5 * torch.finfo(matrix.dtype).eps * condition


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["geometric", "one small", "one large"])
@pytest.mark.parametrize(("dtype", "condition"), CONDITIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_orthonormal_and_equal_to_the_svds(shape, dtype, condition, kind, device):
    if min(shape) == 1:
        condition = 1.0
    a = conditioned(*shape, condition, kind, seed=1).to(device, dtype)
    before = a.clone()
    check(a, polar(a), condition)
    check(a.mT, polar(a.mT), condition)
    assert torch.equal(a, before)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, s) for s in (1e-37, 1e-30, 1e30, 1e36)]
    + [(torch.float64, s) for s in (1e-300, 1e-160, 1e160, 1e300)],
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (6, 6), (40, 7), (7, 40)], ids=str)
def test_extreme_scales(shape, dtype, scale):
    a = (conditioned(*shape, 100.0 if min(shape) > 1 else 1.0, seed=3) * scale).to(dtype)
    check(a, polar(a), 100.0)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_largest_finite_and_the_smallest_entries(dtype):
    """Full rank, condition 1, all entries finite: only an upper bound of the norm overflows. Or all are subnormal."""
    eps, tiny, largest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny, torch.finfo(dtype).max
    for a in (torch.eye(64, dtype=dtype), torch.tensor([[1, 1], [1, -1]], dtype=dtype)):
        check(a * largest, polar(a * largest), 1.0)
    for entries in ([[1, 1]], [[1, 1], [1, -1]], [[7, 1], [1, 9]]):
        a = torch.tensor(entries, dtype=dtype)
        torch.testing.assert_close(polar(a * tiny * eps), polar(a), rtol=0, atol=10 * eps)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_batch_of_easy_and_hard_matrices(dtype):
    """One orthonormal, one well-conditioned, one at the edge, at scales far apart: each as good as it can be."""
    hard = 1e5 if dtype == torch.float32 else 1e13
    cases = [(1.0, 1.0), (3.0, 1e-20), (hard, 1e20), (30.0, 1.4), (1e3, 1.0), (hard, 1e-3)]
    batch = torch.stack([conditioned(20, 12, c, seed=i) * scale for i, (c, scale) in enumerate(cases)]).to(dtype)
    for given in (batch, batch.mT, batch.mT.contiguous()):
        factors = polar(given.reshape(2, 3, *given.shape[1:])).reshape(given.shape)
        for a, factor, (condition, _) in zip(given, factors, cases, strict=True):
            check(a, factor, condition)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 3, 2), (3, 0, 2)], ids=str)
def test_empty_matrices(shape):
    a = torch.zeros(shape, requires_grad=True)
    factor = polar(a)
    factor.sum().backward()
    assert factor.shape == shape
    assert a.grad is not None
    assert a.grad.shape == shape


# The gradient


GRADIENT_SHAPES = [(1, 1), (3, 3), (5, 3), (3, 5), (6, 1), (1, 6), (2, 4, 3), (2, 2, 3, 4)]


@pytest.mark.parametrize("shape", GRADIENT_SHAPES, ids=str)
def test_gradcheck(shape):
    assert torch.autograd.gradcheck(polar, (normal(*shape, seed=5).requires_grad_(),))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [*GRADIENT_SHAPES, (40, 12), (12, 40), (24, 24)], ids=str)
def test_gradient_equals_the_one_through_an_svd(shape, device):
    a = with_singular_values(*shape[-2:], torch.linspace(1, 2, min(shape[-2:])), seed=6)
    a = (a * torch.ones(*shape[:-2], 1, 1, dtype=torch.float64)).requires_grad_()
    cotangent = normal(*shape, seed=7)
    left, _, right = torch.linalg.svd(a, full_matrices=False)
    (expected,) = torch.autograd.grad(left @ right, a, cotangent)
    on_device = a.detach().to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(polar(on_device), on_device, cotangent.to(device))
    # torch differentiates the SVD with 1/(σᵢ² − σⱼ²): that is where its accuracy goes.
    torch.testing.assert_close(gradient.cpu(), expected, rtol=0, atol=1e-15 * min(shape[-2:]) ** 3 * 100)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_gradient_of_an_ill_conditioned_matrix(dtype):
    """κ = 1000, repeated singular values (where an SVD's own derivative does not exist): (UᵀG − GᵀU)ᵢⱼ / (σᵢ + σⱼ)."""
    values = torch.tensor([1.0, 1.0, 1.0, 0.001, 0.001], dtype=torch.float64)
    left, right = orthonormal(9, 5, seed=8), orthonormal(5, 5, seed=9)
    a = ((left * values) @ right).to(dtype).requires_grad_()
    g = normal(9, 5, seed=10)
    (gradient,) = torch.autograd.grad(polar(a), a, g.to(dtype))
    inner = left.mT @ g @ right.mT
    expected = left @ ((inner - inner.mT) / (values[:, None] + values)) @ right
    expected = expected + (g - left @ (left.mT @ g)) @ right.mT / values @ right
    error = torch.linalg.matrix_norm(gradient.double() - expected, 2) / torch.linalg.matrix_norm(expected, 2)
    assert float(error) <= 40 * torch.finfo(dtype).eps * 1e3


@pytest.mark.parametrize("condition", [1.0, 1e5])
def test_no_iteration_is_stored_for_the_gradient_and_no_second_derivative_is_pretended(condition):
    a = conditioned(60, 20, condition).float().requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        polar(a)
    assert saved == [(60, 20), (60, 20)]
    (gradient,) = torch.autograd.grad(polar(a).pow(3).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# It ends, whatever the arithmetic does


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_):
        raise TimeoutError(f"It still runs after {seconds} s.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("shape", [(32, 16), (16, 64), (2, 8, 8)], ids=str)
def test_autocast_neither_hangs_it_nor_spoils_it(shape):
    """Under autocast a product is in bfloat16, where no step makes the residual small."""
    a = normal(*shape, seed=20, dtype=torch.float32)
    near = polar(a) + 0.02 * a
    with torch.autocast("cpu", dtype=torch.bfloat16), at_most(3):
        results = [polar(a), retract(near), retract(a)]
    for result in results:
        assert result.dtype == torch.float32
        assert orthonormality_error(result) <= PROMISED[torch.float32]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a GPU's")
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_tf32_neither_hangs_it_nor_spoils_it(precision):
    before = torch.get_float32_matmul_precision()
    a = conditioned(512, 256, 10.0).to("cuda", torch.float32)
    near = polar(a) + 0.02 * a
    try:
        torch.set_float32_matmul_precision(precision)
        with at_most(20):
            results = [polar(a), retract(near)]
    finally:
        torch.set_float32_matmul_precision(before)
    assert max(map(orthonormality_error, results)) <= PROMISED[torch.float32]


# Between full rank and rank-deficient


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(6, 6), (40, 10), (10, 40)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_never_a_wrong_factor_near_the_edge(shape, dtype, seed):
    """For condition numbers around 1/eps it may refuse; what it gives is orthonormal, and a minimiser up to rounding:

    ⟨U, A⟩ is the sum of the singular values, the largest that an orthonormal U can reach.
    """
    eps = torch.finfo(dtype).eps
    given = 0
    for condition in np.logspace(-2, 3, 11) / eps:
        a = conditioned(*shape, float(condition), seed=seed).to(dtype)
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


@pytest.mark.filterwarnings("ignore")  # the tracer warns of much
def test_compiled_with_what_breaks_the_graph_left_out():
    x = torch.randn(6, 4, requires_grad=True)
    compiled = torch.compile(lambda matrix: polar(matrix)[0].sum(), backend="aot_eager")
    polar(x)[0].sum().backward()
    expected, x.grad = x.grad, None
    compiled(x).backward()
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (3, 6, 4)], ids=str)
def test_descend_goes_along_the_polar_factor_in_place(shape):
    start, matrix = normal(*shape), conditioned(*shape[-2:], 10.0) * torch.logspace(-9, 9, 3)[: shape[0], None, None]
    matrix = matrix if len(shape) == 3 else matrix[0]
    point = start.clone()
    descend(point, matrix, 0.25)
    off = torch.linalg.matrix_norm(point - start + 0.25 * polar_by_svd(matrix), 2)
    assert float(off.max()) < 0.25 * 0.05
