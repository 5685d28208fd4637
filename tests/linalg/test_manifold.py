"""The manifold of orthonormal matrices: its tangent projection, gradients on it, and the ways back to it."""

from itertools import product

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from isoconv.linalg import is_orthonormal, on_manifold, project_to_tangent, retract
from isoconv.linalg.orthogonalisation import project_product_to_tangent
from linalg.linalg_reference import (
    DEVICES,
    PRECISIONS,
    conditioned,
    normal,
    orthonormal,
    orthonormality_error,
    polar_by_svd,
    spectral_norm,
    with_singular_values,
)

SHAPES = [(1, 1), (1, 6), (6, 1), (5, 5), (7, 12), (64, 64), (200, 30)]
PROMISED = {torch.float32: 2e-6, torch.float64: 1e-13}


def inner(a, b):
    return float((a * b).sum())


# The tangent space


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_projection_is_orthogonal_idempotent_and_tangent(shape):
    u, v, w = orthonormal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    eps = 20 * max(shape) * torch.finfo(torch.float64).eps
    pv, pw = project_to_tangent(u, v), project_to_tangent(u, w)
    torch.testing.assert_close(project_to_tangent(u, pv), pv, rtol=0, atol=eps)
    assert abs(inner(pv, w) - inner(v, pw)) <= eps * float(v.norm() * w.norm())
    skew = u.mT @ pv if shape[0] >= shape[1] else u @ pv.mT
    torch.testing.assert_close(skew, -skew.mT, rtol=0, atol=eps * 10)
    for rows in (1, 300):  # of a product of few rows, and of many
        left, right = normal(rows, shape[0], seed=3), normal(rows, shape[1], seed=4)
        of_product = project_product_to_tangent(u, left, right, left @ u, right @ u.mT)
        torch.testing.assert_close(of_product, project_to_tangent(u, left.mT @ right), rtol=1e-11, atol=1e-11)
    m, n = max(shape), min(shape)
    if m * n < 100:  # its trace Σ⟨E, proj E⟩ is the dimension of the manifold: a projection onto less would be found
        units = torch.eye(m * n, dtype=torch.float64).reshape(m * n, *shape)
        trace = inner(units, project_to_tangent(u.expand_as(units), units))
        assert trace == pytest.approx(m * n - n * (n + 1) / 2, abs=1e-11)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 3), (3, 6), (2, 5, 3), (40, 12)], ids=str)
def test_on_manifold_has_the_derivative_of_a_curve_on_the_manifold(shape):
    """Finite differences along polar(U + tV): no formula of ours on this side. The point is passed through."""
    u = orthonormal(*shape[-2:]).expand(shape).contiguous()
    v, g, t = normal(*shape, seed=5), normal(*shape, seed=6), 1e-5
    numeric = inner(g, polar_by_svd(u + t * v) - polar_by_svd(u - t * v)) / (2 * t)
    own, off = u.clone().requires_grad_(), (u + 0.1 * v).requires_grad_()
    for parameter, value in [(own, on_manifold(own)), (off, on_manifold(off, u))]:
        assert torch.equal(value, u)
        (gradient,) = torch.autograd.grad(value, parameter, g)
        assert inner(gradient, v) == pytest.approx(numeric, abs=1e-8 * float(g.norm() * v.norm() ** 3))


# Retraction, looking


def near_and_far(shape, dtype):
    """Of large matrices many small errors add up to a large Frobenius norm."""
    u = orthonormal(*shape)
    noise = normal(*shape, seed=8) / max(shape) ** 0.5
    for size in (1e-7, 1e-3, 0.02, 0.1, 0.2, 0.3, 10.0):
        yield (u + size * noise).to(dtype)
    for scale in (1e-25, 0.9, 1.1, 1e25):
        yield (u * scale).to(dtype)
    yield conditioned(*shape, 1e4 if min(shape) > 1 else 1.0).to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_retract_is_the_polar_factor_and_idempotent_to_the_bit(shape, dtype, device):
    for start in near_and_far(shape, dtype):
        start = start.to(device)
        back = retract(start)
        assert torch.equal(retract(back), back)
        assert orthonormality_error(back) <= PROMISED[dtype]
        values = torch.linalg.svdvals(start.double())
        # Near the manifold it may stop at twice the rounding of a Gram matrix, 2·16·eps·√n.
        allowed = (32 + 4 * float(values[0] / values[-1])) * min(shape) ** 0.5 * torch.finfo(dtype).eps
        assert spectral_norm(back.cpu().double() - polar_by_svd(start)) <= allowed


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_orthonormal_is_not_touched_and_what_is_not_is_moved(shape, dtype):
    """There is no third thing."""
    u, eps = retract(orthonormal(*shape).to(dtype)), torch.finfo(dtype).eps
    stretched = u * (1 + 1e3 * eps)
    assert is_orthonormal(u) and is_orthonormal(stretched, tolerance=3e3 * eps * min(shape) ** 0.5)
    for matrix in (stretched, torch.zeros_like(u), torch.full_like(u, torch.nan), torch.stack([u, 2 * u])):
        assert not is_orthonormal(matrix)
    starts = [u * (1 + i * eps) for i in range(60)]
    touched = [retract(start).data_ptr() != start.data_ptr() for start in starts]
    assert touched == [not is_orthonormal(start) for start in starts] and True in touched and False in touched


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scales", [[1.0, 1.01, 1.0, 0.99], [0.8, 1.0, 1.3, 40.0]], ids=["near", "mixed"])
def test_batches(scales, dtype):
    u = torch.stack([orthonormal(9, 5, seed=s) for s in range(4)])
    start = (u * torch.tensor(scales)[:, None, None] + 1e-4 * normal(4, 9, 5, seed=10)).to(dtype)
    v, tolerance = normal(4, 9, 5, seed=3, dtype=dtype), 200 * torch.finfo(dtype).eps
    torch.testing.assert_close(retract(start).double(), polar_by_svd(start), rtol=0, atol=tolerance)
    for steps in (None, 3):
        alone = torch.stack([retract(matrix, steps) for matrix in start])
        torch.testing.assert_close(retract(start, steps), alone, rtol=0, atol=tolerance)
        torch.testing.assert_close(retract(start.mT, steps).mT, alone, rtol=0, atol=tolerance)
    alone = torch.stack([project_to_tangent(*pair) for pair in zip(u.to(dtype), v, strict=True)])
    torch.testing.assert_close(project_to_tangent(u.to(dtype), v), alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize("steps", [None, 3])
def test_retract_has_no_gradient_leaves_its_input_alone_and_takes_nothing(steps):
    start = (orthonormal(6, 4) + 0.01 * normal(6, 4, seed=11)).requires_grad_()
    before = start.detach().clone()
    assert not retract(start, steps).requires_grad
    assert torch.equal(start, before)
    for shape in [(0, 5), (5, 0), (0, 3, 2)]:
        assert retract(torch.zeros(shape), steps).shape == shape and is_orthonormal(torch.zeros(shape))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_retract_takes_a_rank_deficient_matrix_to_a_closest_one(dtype):
    outer, batch = torch.outer(torch.arange(1.0, 8.0), torch.arange(3.0)), [torch.eye(3), torch.zeros(3, 3)]
    for start in (torch.zeros(6, 4), torch.ones(4, 6), outer, torch.zeros(1, 1), torch.stack(batch)):
        start, eps = start.to(dtype), torch.finfo(dtype).eps
        back = retract(start)
        assert orthonormality_error(back) <= PROMISED[dtype] and torch.equal(retract(back), back)
        reached, nuclear = (back.double() * start.double()).sum((-2, -1)), torch.linalg.svdvals(start.double()).sum(-1)
        torch.testing.assert_close(reached, nuclear, rtol=20 * eps, atol=20 * eps)


# Retraction, blindly


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("steps", "low", "high"), [(1, 0.99, 1.01), (2, 0.8, 1.2), (3, 0.6, 1.4)])
@pytest.mark.parametrize("shape", [(1, 1), (6, 3), (3, 17), (64, 64), (200, 90)], ids=str)
def test_blind_steps_converge_to_float32s_rounding(shape, steps, low, high, device):
    n = min(shape)
    even, first = torch.linspace(0, 1, n), torch.eye(n)[0]
    for share in (torch.ones(n), torch.zeros(n), even, even.round(), first, 1 - first):
        start = with_singular_values(*shape, low + (high - low) * share.double()).to(device, torch.float32)
        back = retract(start, steps)
        assert orthonormality_error(back) <= PROMISED[torch.float32]
        assert spectral_norm(back.cpu().double() - polar_by_svd(start)) <= 8 * n**0.5 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("dtype", "exponents"),  # the Gram matrix of the last ones overflows
    [(torch.float32, [0.5, 2, 7, 18, 20, 37]), (torch.float64, [0.5, 8, 37, 150, 160, 300])],
)
def test_blind_steps_never_diverge(dtype, exponents):
    """However long the step was: finite, and of norm at most 1 but for rounding, after one step or many."""
    for exponent, shape, steps in product(exponents, [(1, 1), (5, 5), (30, 8), (8, 30)], [1, 2, 5]):
        for start in (normal(*shape, seed=12), conditioned(*shape, 30.0), torch.ones(shape, dtype=torch.float64)):
            assert spectral_norm(retract((10.0**exponent * start).to(dtype), steps)) <= 1 + 1e-3


def test_what_a_tracer_has_seen_is_not_taken_for_numbers():
    start = orthonormal(41, 37)  # of a size that no other test has
    with FakeTensorMode() as mode:
        assert retract(mode.from_tensor(start), 2).shape == (41, 37)
    torch.testing.assert_close(retract(start, 2), start)
