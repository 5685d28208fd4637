"""Block convolution □ and symmetric projectors: the remarks of the paper's section 3.1, each as a test."""

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.linalg import (
    block_convolve,
    compose_kernels,
    is_projector,
    projector_column,
    projector_from_basis,
    projector_pair_1d,
    projector_rank,
    projector_row,
    random_projector,
)
from linalg.linalg_reference import PRECISIONS, dense_convolution, normal

EYE = torch.eye(4, dtype=torch.float64)
RANKS = [(n, r) for n in (1, 2, 3, 5) for r in range(n + 1)]


def projector(n: int, rank: int, seed: int = 0) -> Tensor:
    return random_projector(n, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def convolve(kernel: np.ndarray, image: np.ndarray) -> np.ndarray:
    """A ∗ v on a circle, as PyTorch counts the taps: (A ∗ v)[x] = Σ_t A_t v[x + t]. v is (c_in, n…)."""
    out = np.zeros((kernel.shape[0], *image.shape[1:]))
    axes = tuple(range(1, image.ndim))
    for tap in np.ndindex(*kernel.shape[2:]):
        shifted = np.roll(image, [-t for t in tap], axes)
        out += np.tensordot(kernel[(slice(None), slice(None), *tap)], shifted, 1)
    return out


PAIRS = [
    ((2, 3, 1), (3, 4, 1)),
    ((2, 3, 2), (3, 4, 3)),
    ((5, 1, 4), (1, 2, 2)),
    ((2, 3, 2, 1), (3, 4, 1, 2)),
    ((3, 3, 3, 2), (3, 3, 2, 4)),
]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_is_composition_of_operators(left, right, size, dtype):
    """X ∗ (Y ∗ v) = (X □ Y) ∗ v, on images of every size, also smaller than the kernels."""
    x, y = normal(*left, seed=3, dtype=dtype), normal(*right, seed=4, dtype=dtype)
    z = block_convolve(x, y)
    assert z.dtype == dtype
    assert z.shape[2:] == tuple(p + q - 1 for p, q in zip(left[2:], right[2:], strict=True))
    image = normal(right[1], *[size + axis for axis in range(len(left) - 2)], seed=5).numpy()
    in_turn = convolve(x.double().numpy(), convolve(y.double().numpy(), image))
    at_once = convolve(z.double().numpy(), image)
    tolerance = 10 * torch.finfo(dtype).eps * max(left[1] * len(x.flatten()), abs(in_turn).max())
    np.testing.assert_allclose(at_once, in_turn, rtol=0, atol=tolerance)


def test_does_not_commute():
    """The smallest example: the two ways to multiply e₁e₁ᵀ and e₁e₂ᵀ."""
    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])[..., None]
    y = torch.tensor([[0.0, 1.0], [0.0, 0.0]])[..., None]
    assert torch.equal(block_convolve(x, y), y)
    assert not block_convolve(y, x).any()


@pytest.mark.parametrize("taps", [[(1,), (3,), (2,)], [(2, 1), (1, 2), (3, 2)]], ids=str)
def test_is_associative_and_composes_from_the_left(taps):
    x, y, z = normal(2, 3, *taps[0], seed=6), normal(3, 4, *taps[1], seed=7), normal(4, 5, *taps[2], seed=8)
    left, right = block_convolve(block_convolve(x, y), z), block_convolve(x, block_convolve(y, z))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-13)
    torch.testing.assert_close(compose_kernels(x, y, z), left, rtol=0, atol=0)
    assert torch.equal(compose_kernels(x), x)
    identity = torch.eye(3, dtype=torch.float64).reshape(3, 3, *[1 for _ in taps[0]])
    assert torch.equal(block_convolve(x, identity), x)
    assert torch.equal(block_convolve(identity, y), y)


@pytest.mark.parametrize(("left", "right"), [((2, 3, 2), (3, 2, 2)), ((2, 2, 2, 1), (2, 3, 2, 2))], ids=str)
def test_is_differentiable(left, right):
    x, y = normal(*left, seed=10).requires_grad_(), normal(*right, seed=11).requires_grad_()
    assert torch.autograd.gradcheck(block_convolve, (x, y))


# Projectors


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_random_projectors(n, rank, dtype):
    p, again = (random_projector(n, rank, generator=torch.Generator().manual_seed(3), dtype=dtype) for _ in range(2))
    assert p.shape == (n, n)
    assert p.dtype == dtype
    assert torch.equal(p, again)
    assert is_projector(p)
    assert int(projector_rank(p)) == int(torch.linalg.matrix_rank(p.double(), tol=0.5)) == rank


def test_random_projectors_are_uniform():
    """E[P] = (r/n)·I by symmetry, and so it must be in the mean of many."""
    generator = torch.Generator().manual_seed(0)
    mean = sum(random_projector(3, 1, generator=generator, dtype=torch.float64) for _ in range(4000)) / 4000
    torch.testing.assert_close(mean, EYE[:3, :3] / 3, rtol=0, atol=5 * 0.3 / 4000**0.5)


def test_projectors_in_batches():
    bases = torch.linalg.qr(normal(2, 3, 5, 2, seed=13)).Q
    p = projector_from_basis(bases)
    assert p.shape == (2, 3, 5, 5)
    assert is_projector(p)
    torch.testing.assert_close(p @ bases, bases, rtol=0, atol=1e-14)
    assert torch.equal(projector_rank(p), torch.full((2, 3), 2))
    p[1, 2] *= 1.01
    assert not is_projector(p)


@pytest.mark.parametrize(
    "matrix",
    [
        2 * EYE,
        torch.tensor([[1.0, 1.0], [0.0, 0.0]]),  # idempotent, not symmetric
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),  # symmetric, not idempotent
        torch.full((2, 2), torch.nan),
        torch.zeros(2, 3),
        EYE * (1 + 1e-12),
    ],
    ids=lambda m: f"{tuple(m.shape)}-{float(m[0, 0]):g}",
)
def test_what_is_not_a_projector(matrix):
    assert not is_projector(matrix)
    assert is_projector(EYE * (1 + 1e-12), tolerance=1e-11)


@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_the_pair_is_orthogonal_and_its_inverse_is_the_mirrored_pair(n, rank):
    """[P I−P] □ [I−P P] = [0 I 0]: the identity, one pixel further."""
    p = projector(n, rank)
    complement = torch.eye(n, dtype=torch.float64) - p
    pair, mirrored = projector_pair_1d(p), projector_pair_1d(complement)
    torch.testing.assert_close(pair[..., 0], p, rtol=0, atol=0)
    torch.testing.assert_close(pair[..., 1], complement, rtol=0, atol=0)
    expected = torch.stack([torch.zeros(n, n), torch.eye(n), torch.zeros(n, n)], dim=-1).double()
    torch.testing.assert_close(block_convolve(pair, mirrored), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(block_convolve(mirrored, pair), expected, rtol=0, atol=1e-14)
    for size in (1, 2, 3, 7):
        operator = dense_convolution(pair.numpy(), [size])
        np.testing.assert_allclose(operator @ operator.T, np.eye(n * size), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("n", "rank"), [(3, 1), (4, 2)])
def test_columns_are_along_the_height_and_rows_along_the_width(n, rank):
    p = projector(n, rank)
    column, row = projector_column(p), projector_row(p)
    assert column.shape == (n, n, 2, 1)
    assert row.shape == (n, n, 1, 2)
    assert torch.equal(column[:, :, :, 0], projector_pair_1d(p))
    assert torch.equal(row[:, :, 0, :], projector_pair_1d(p))
    for kernel in (column, row, block_convolve(column, row), block_convolve(row, column)):
        operator = dense_convolution(kernel.numpy(), [3, 4])
        np.testing.assert_allclose(operator @ operator.T, np.eye(12 * n), rtol=0, atol=1e-14)
