"""Projectors and block convolution, each remark of the paper's section 3.1 as a test; the kernels of equations 1 and 2."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.linalg import (
    bcop_kernel,
    bcop_kernel_1d,
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
from isoconv.linalg.bcop import append_pair, append_pair_from_basis
from linalg.linalg_reference import PRECISIONS, dense_convolution, normal, orthonormal

EYE = torch.eye(4, dtype=torch.float64)
RANKS = [(n, r) for n in (1, 2, 3, 5) for r in range(n + 1)]


def projectors(n: int, ranks: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [random_projector(n, rank, generator=generator, dtype=torch.float64) for rank in ranks]


def assert_orthogonal(kernel: Tensor, size: tuple[int, ...], tolerance: float = 1e-14) -> None:
    operator = dense_convolution(kernel.double().numpy(), size)
    np.testing.assert_allclose(operator @ operator.T, np.eye(len(operator)), rtol=0, atol=tolerance)


# Block convolution


def convolve(kernel: np.ndarray, image: np.ndarray) -> np.ndarray:
    """A ∗ v on a circle, as PyTorch counts the taps: (A ∗ v)[x] = Σ_t A_t v[x + t]. v is (c_in, n…)."""
    out = np.zeros((kernel.shape[0], *image.shape[1:]))
    for tap in np.ndindex(*kernel.shape[2:]):
        shifted = np.roll(image, [-t for t in tap], tuple(range(1, image.ndim)))
        out += np.tensordot(kernel[(slice(None), slice(None), *tap)], shifted, 1)
    return out


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 1), (3, 4, 1)),
        ((2, 3, 2), (3, 4, 3)),
        ((5, 1, 4), (1, 2, 2)),
        ((2, 3, 2, 1), (3, 4, 1, 2)),
        ((3, 3, 3, 2), (3, 3, 2, 4)),
    ],
    ids=str,
)
def test_is_composition_of_operators(left, right, dtype):
    """X ∗ (Y ∗ v) = (X □ Y) ∗ v, on images of every size, also smaller than the kernels."""
    x, y = normal(*left, seed=3, dtype=dtype), normal(*right, seed=4, dtype=dtype)
    z = block_convolve(x, y)
    assert z.dtype == dtype
    assert z.shape[2:] == tuple(p + q - 1 for p, q in zip(left[2:], right[2:], strict=True))
    for size in (1, 2, 5, 8):
        image = normal(right[1], *[size + axis for axis in range(len(left) - 2)], seed=5).numpy()
        in_turn = convolve(x.double().numpy(), convolve(y.double().numpy(), image))
        tolerance = 10 * torch.finfo(dtype).eps * max(left[1] * len(x.flatten()), abs(in_turn).max())
        np.testing.assert_allclose(convolve(z.double().numpy(), image), in_turn, rtol=0, atol=tolerance)


def test_does_not_commute():
    """The smallest example: the two ways to multiply e₁e₁ᵀ and e₁e₂ᵀ."""
    x, y = (torch.tensor([row, [0.0, 0.0]])[..., None] for row in ([1.0, 0.0], [0.0, 1.0]))
    assert torch.equal(block_convolve(x, y), y)
    assert not block_convolve(y, x).any()


@pytest.mark.parametrize("taps", [[(1,), (3,), (2,)], [(2, 1), (1, 2), (3, 2)]], ids=str)
def test_is_associative_composes_from_the_left_and_is_differentiable(taps):
    x, y, z = normal(2, 3, *taps[0], seed=6), normal(3, 4, *taps[1], seed=7), normal(4, 5, *taps[2], seed=8)
    left, right = block_convolve(block_convolve(x, y), z), block_convolve(x, block_convolve(y, z))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-13)
    assert torch.equal(compose_kernels(x, y, z), left)
    assert torch.equal(compose_kernels(x), x)
    identity = torch.eye(3, dtype=torch.float64).reshape(3, 3, *[1 for _ in taps[0]])
    assert torch.equal(block_convolve(x, identity), x)
    assert torch.equal(block_convolve(identity, y), y)
    assert torch.autograd.gradcheck(block_convolve, (x.requires_grad_(), y.requires_grad_()))


# Projectors


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_random_projectors(n, rank, dtype):
    p, again = (random_projector(n, rank, generator=torch.Generator().manual_seed(3), dtype=dtype) for _ in range(2))
    assert p.shape == (n, n) and p.dtype == dtype
    assert torch.equal(p, again)
    assert is_projector(p)
    assert int(projector_rank(p)) == int(torch.linalg.matrix_rank(p.double(), tol=0.5)) == rank


def test_random_projectors_are_uniform():
    """E[P] = (r/n)·I by symmetry, and so it must be in the mean of many."""
    mean = sum(projectors(3, [1] * 4000)) / 4000
    torch.testing.assert_close(mean, EYE[:3, :3] / 3, rtol=0, atol=5 * 0.3 / 4000**0.5)


def test_projectors_in_batches():
    bases = torch.linalg.qr(normal(2, 3, 5, 2, seed=13)).Q
    p = projector_from_basis(bases)
    assert p.shape == (2, 3, 5, 5) and is_projector(p)
    torch.testing.assert_close(p @ bases, bases, rtol=0, atol=1e-14)
    assert torch.equal(projector_rank(p), torch.full((2, 3), 2))
    p[1, 2] *= 1.01
    assert not is_projector(p)


def test_what_is_not_a_projector():
    idempotent, symmetric = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for matrix in (2 * EYE, idempotent, symmetric, torch.full((2, 2), torch.nan), torch.zeros(2, 3), EYE * (1 + 1e-12)):
        assert not is_projector(matrix)
    assert is_projector(EYE * (1 + 1e-12), tolerance=1e-11)


@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_the_pair_is_orthogonal_and_its_inverse_is_the_mirrored_pair(n, rank):
    """[P I−P] □ [I−P P] = [0 I 0]: the identity, one pixel further. Columns lie along the height, rows along the width."""
    (p,), eye = projectors(n, [rank]), torch.eye(n, dtype=torch.float64)
    pair, mirrored = projector_pair_1d(p), projector_pair_1d(eye - p)
    assert torch.equal(pair, torch.stack([p, eye - p], dim=-1))
    expected = torch.stack([torch.zeros_like(eye), eye, torch.zeros_like(eye)], dim=-1)
    torch.testing.assert_close(block_convolve(pair, mirrored), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(block_convolve(mirrored, pair), expected, rtol=0, atol=1e-14)
    for size in (1, 2, 3, 7):
        assert_orthogonal(pair, (size,))
    column, row = projector_column(p), projector_row(p)
    assert torch.equal(column, pair[:, :, :, None])
    assert torch.equal(row, pair[:, :, None, :])
    for kernel in (column, row, block_convolve(column, row), block_convolve(row, column)):
        assert_orthogonal(kernel, (3, 4))


# The paper's kernels


def every_choice(H: Tensor, *families: list[Tensor]) -> np.ndarray:
    """Equations 1 and 2 multiplied out: each factor contributes its first matrix, P or Q, or its second, I−P or I−Q.

    How often the second was taken in a [P; I−P] is the tap's row, in a [Q I−Q] its column.
    """
    K, n, dimensions = len(families[0]) + 1, H.shape[1], len(families)
    factors = [projector.numpy() for pair in zip(*families, strict=True) for projector in pair]
    kernel = np.zeros((*H.shape, *[K] * dimensions))
    for choice in product([0, 1], repeat=len(factors)):
        matrix = H.numpy()
        for taken, projector in zip(choice, factors, strict=True):
            matrix = matrix @ (np.eye(n) - projector if taken else projector)
        kernel[(slice(None), slice(None), *[sum(choice[d::dimensions]) for d in range(dimensions)])] += matrix
    return kernel


@pytest.mark.parametrize("K", [1, 2, 3, 4])
@pytest.mark.parametrize(("c_out", "c_in"), [(1, 1), (1, 2), (2, 3), (3, 3), (1, 4)])
def test_equals_equations_1_and_2(c_out, c_in, K):
    H = orthonormal(c_out, c_in, seed=1)
    for shift in range(c_in + 1):  # projectors of every rank, 0 and c_in among them
        ranks = [(shift + i) % (c_in + 1) for i in range(2 * (K - 1))]
        P, Q = projectors(c_in, ranks[0::2], seed=shift), projectors(c_in, ranks[1::2], seed=100 + shift)
        kernel, line = bcop_kernel(H, P, Q), bcop_kernel_1d(H, P)
        assert kernel.shape == (c_out, c_in, K, K)
        np.testing.assert_allclose(kernel.numpy(), every_choice(H, P, Q), rtol=0, atol=1e-12)
        np.testing.assert_allclose(line.numpy(), every_choice(H, P), rtol=0, atol=1e-12)
        if K > 1:
            assert torch.equal(bcop_kernel(H, torch.stack(P), torch.stack(Q)), kernel)


def test_rows_belong_to_p_and_columns_to_q():
    """With P = I the taps are in the first row, with P = 0 in the last; Q does the same to columns."""
    eye, zero, H = torch.eye(2), torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    for P, Q, row, column in [(eye, eye, 0, 0), (zero, eye, 2, 0), (eye, zero, 0, 2), (zero, zero, 2, 2)]:
        kernel = bcop_kernel(H, [P, P], [Q, Q])
        assert torch.equal(kernel[:, :, row, column], H)
        assert int((kernel != 0).sum()) == 2


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("c_out", "c_in", "K"), [(1, 1, 3), (2, 2, 2), (2, 4, 3), (2, 3, 4)])
def test_the_convolution_is_orthogonal_at_every_size(c_out, c_in, K, dtype):
    H = orthonormal(c_out, c_in).to(dtype)
    P, Q = (torch.stack(projectors(c_in, [r] * (K - 1), seed=5 + r)).to(dtype) for r in (1, c_in // 2))
    kernel, line = bcop_kernel(H, P, Q), bcop_kernel_1d(H, P)
    assert kernel.dtype == line.dtype == dtype
    for size in [(1, 1), (2, 3), (4, 5), (1,), (3,), (9,)]:
        assert_orthogonal(kernel if len(size) == 2 else line, size, 20 * K * c_in * torch.finfo(dtype).eps)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_gradcheck(K):
    H = normal(2, 3, seed=8).requires_grad_()
    P, Q = (normal(K - 1, 3, 3, seed=seed).requires_grad_(K > 1) for seed in (9, 10))
    assert torch.autograd.gradcheck(bcop_kernel, (H, P, Q))
    assert torch.autograd.gradcheck(bcop_kernel_1d, (H, P))


@pytest.mark.parametrize(("taps", "dim"), [((1,), -3), ((3,), -3), ((1, 1), -4), ((2, 3), -4), ((2, 3), -3)], ids=str)
def test_appending_a_pair_from_its_basis(taps, dim):
    """The same value as from the projector and, with P = RRᵀ, the same gradient; each of a batch with its own basis."""
    W = normal(3, *taps, 2, 5, seed=11).requires_grad_()
    R = torch.stack([orthonormal(5, 2, seed=seed) for seed in range(3)]).requires_grad_()
    batch = append_pair_from_basis(W, R, dim)
    expected = torch.stack([append_pair(w, r @ r.mT, dim + W.dim() - 1) for w, r in zip(W, R, strict=True)])
    torch.testing.assert_close(batch, expected, rtol=0, atol=1e-14)
    cotangent = normal(*batch.shape, seed=13)
    for a, b in zip(*(torch.autograd.grad(y, (W, R), cotangent) for y in (batch, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    assert torch.autograd.gradcheck(lambda w, r: append_pair_from_basis(w, r, dim), (W, R))
