"""Björck's orthogonalisation against the paper's formula, read literally, and against the SVD."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.linalg import bjorck, norm_upper_bound
from linalg.linalg_reference import (
    PRECISIONS,
    conditioned,
    exact,
    norm_at_most,
    normal,
    orthonormal,
    polar_by_svd,
    spectral_norm,
)

SHAPES = [(1, 1), (4, 4), (3, 7), (5, 1), (9, 2), (2, 3, 5), (2, 3, 6, 4)]


def binomial(p: int) -> float:
    """(−½ choose p), from its definition."""
    value = Fraction(1)
    for i in range(p):
        value *= (Fraction(-1, 2) - i) / (i + 1)
    return float(value)


def literal(a: Tensor, iterations: int, order: int) -> Tensor:
    """A (I + ½Q + ⅜Q² + … + (−1)ᵖ (−½ choose p) Qᵖ) with Q = I − AᵀA, that many times."""
    if a.shape[-2] < a.shape[-1]:
        return literal(a.mT, iterations, order).mT
    for _ in range(iterations):
        eye = torch.eye(a.shape[-1], dtype=a.dtype)
        q = eye - a.mT @ a
        a = a @ sum((-1) ** p * binomial(p) * torch.matrix_power(q, p) for p in range(order + 1))
    return a


@pytest.mark.parametrize("gram_space", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 7])
@pytest.mark.parametrize("iterations", [0, 1, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_papers_formula(shape, iterations, order, gram_space):
    a = normal(*shape, seed=1)
    a = (a / torch.linalg.matrix_norm(a, 2)[..., None, None]).requires_grad_()
    cotangent = normal(*shape, seed=2)
    ours = bjorck(a, iterations, order, scale=False, gram_space=gram_space)
    theirs = literal(a, iterations, order)
    assert [(-1) ** p * binomial(p) for p in range(4)] == [1, 1 / 2, 3 / 8, 5 / 16]  # the paper's
    tolerance = 100 * max(shape[-2:]) * (1 + iterations) * order * torch.finfo(a.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    (our_gradient,) = torch.autograd.grad(ours, a, cotangent)
    (their_gradient,) = torch.autograd.grad(theirs, a, cotangent)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=10 * tolerance * float(cotangent.norm()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scaling_divides_by_the_upper_bound_and_nothing_else(shape):
    a = 17 * normal(*shape, seed=6)
    expected = literal(a / norm_upper_bound(a)[..., None, None], 4, 1)
    torch.testing.assert_close(bjorck(a, 4), expected, rtol=0, atol=1e3 * torch.finfo(a.dtype).eps)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("gram_space", [None, False, True])
@pytest.mark.parametrize("condition", [10.0, 1e4, 1e12])
@pytest.mark.parametrize("shape", [(64, 8), (30, 30), (2, 12)], ids=str)
def test_ill_conditioned_matrices(shape, condition, gram_space, dtype):
    """Singular values that a Gram matrix cannot hold, below √eps, must not be blown up by the steps.

    The steps are a polynomial of the singular values alone, and never end above 1. Its slope, growth^iterations or κ, is
    what the rounding of A itself is multiplied by.
    """
    n, eps = min(shape), torch.finfo(dtype).eps
    for kind, iterations, order in product(["geometric", "one small", "one large"], [5, 20, 60], [1, 3]):
        a = conditioned(*shape, condition, kind).to(dtype)
        ours = bjorck(a, iterations, order, gram_space=gram_space).double()
        assert bool(torch.isfinite(ours).all())
        assert spectral_norm(ours) <= 1 + 4 * n * eps
        left, values, right = torch.linalg.svd(a.double() / float(norm_upper_bound(a)), full_matrices=False)
        coefficients = [(-1) ** p * binomial(p) for p in range(order + 1)]
        for _ in range(iterations):
            values = values * sum(c * (1 - values**2) ** p for p, c in enumerate(coefficients))
        slope = min(sum(coefficients) ** iterations, condition)
        assert spectral_norm(ours - (left * values) @ right) <= 40 * n**0.5 * eps * slope


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scale", [1e-30, 3.0, 1e30])
@pytest.mark.parametrize(("shape", "condition"), [((12, 5), 4.0), ((20, 20), 20.0), ((8, 33), 50.0)], ids=str)
def test_converges_to_the_polar_factor_from_any_scale(shape, condition, scale, dtype):
    a = conditioned(*shape, condition).to(dtype)
    tolerance = 8 * max(shape) * condition * torch.finfo(dtype).eps
    for order in (1, 3):
        torch.testing.assert_close(bjorck(a * scale, 25, order).double(), polar_by_svd(a), rtol=0, atol=tolerance)


@pytest.mark.parametrize("gram_space", [None, False, True])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 3, 4, 4), (2, 2, 9)], ids=str)
def test_batched_equals_looped_and_wide_equals_transposed_tall(shape, dtype, gram_space):
    # The matrices of a batch differ in scale a lot: each must get its own.
    a = normal(*shape, seed=7, dtype=dtype)
    a = a * torch.logspace(-6, 6, a[..., 0, 0].numel(), dtype=dtype).reshape(*shape[:-2], 1, 1)
    a.view(-1, *shape[-2:])[1] = 0
    tolerance = 50 * max(shape) * torch.finfo(dtype).eps
    batched, bounds = bjorck(a, 5, gram_space=gram_space), norm_upper_bound(a)
    for index in np.ndindex(*shape[:-2]):
        torch.testing.assert_close(batched[index], bjorck(a[index], 5, gram_space=gram_space), rtol=0, atol=tolerance)
        torch.testing.assert_close(bounds[index], norm_upper_bound(a[index]), rtol=tolerance, atol=0)
    torch.testing.assert_close(bjorck(a.mT, 5, gram_space=gram_space).mT, batched, rtol=0, atol=tolerance)


def test_zeros_stay_zeros_with_a_finite_gradient():
    a = torch.zeros(2, 4, 3, dtype=torch.float64, requires_grad=True)
    result = bjorck(a)
    result.sum().backward()
    assert not result.any()
    assert bool(torch.isfinite(a.grad).all())


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
@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (5, 4), (8, 8)], ids=str)
@pytest.mark.parametrize("kind", MATRICES)
def test_norm_upper_bound_is_one_exactly_and_close(kind, shape, scale, dtype):
    a = (MATRICES[kind](*shape) * scale).to(dtype)
    bound = float(norm_upper_bound(a))
    assert norm_at_most(exact(a), bound)
    assert bound <= spectral_norm(a) * min(shape) ** 0.125 * (1 + 8 * sum(shape) * min(shape) * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(64, 64), (300, 100), (31, 257), (2048, 128)], ids=str)
@pytest.mark.parametrize("kind", MATRICES)
def test_norm_upper_bound_of_larger_matrices(kind, shape, dtype):
    a = MATRICES[kind](*shape).to(dtype)
    bound, norm, n = float(norm_upper_bound(a)), spectral_norm(a), min(shape)
    assert bound >= norm
    assert bound <= norm * n**0.125 * (1 + 4 * sum(shape) * n**0.5 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_norm_upper_bound_of_flat_spectra_and_of_subnormal_matrices(dtype):
    """The eighth root above; and above at all where a float holds but a few bits."""
    slack = 1 + 4 * 128 * 8 * torch.finfo(dtype).eps
    assert 64**0.125 <= float(norm_upper_bound(orthonormal(64, 64).to(dtype))) <= 64**0.125 * slack
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    for entries in ([[1, 1]], [[1], [1]], [[3, 2], [1, 1]], [[1, 0, 1]], [[5, 5, 7]]):
        a = torch.tensor(entries, dtype=dtype) * smallest
        assert norm_at_most(exact(a), float(norm_upper_bound(a)))
