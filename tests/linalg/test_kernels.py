"""Kernels: block convolution and projectors, each remark of the paper's section 3.1; equations 1 and 2; spectra; strides."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg import (
    bcop_kernel,
    bcop_kernel_1d,
    block_convolve,
    circular_singular_values,
    circular_symbol,
    compose_kernels,
    fold_stride,
    is_projector,
    projector_column,
    projector_from_basis,
    projector_pair_1d,
    projector_rank,
    projector_row,
    random_projector,
)
from isoconv.linalg.bcop import append_pair, append_pair_from_basis
from isoconv.linalg.spectrum import fold_kernel
from linalg.linalg_reference import DEVICES, PRECISIONS, dense_convolution, normal, orthonormal

EYE = torch.eye(4, dtype=torch.float64)
RANKS = [(1, 0), (1, 1), (2, 1), (3, 0), (3, 2), (5, 2), (5, 5)]


def projectors(n: int, ranks: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [random_projector(n, rank, generator=generator, dtype=torch.float64) for rank in ranks]


# Block convolution


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 2), (3, 4, 3)), ((5, 1, 4), (1, 2, 2)), ((2, 3, 2, 1), (3, 4, 1, 2)), ((3, 3, 3, 2), (3, 3, 2, 4))],
    ids=str,
)
def test_is_composition_of_operators(left, right, dtype):
    """X ∗ (Y ∗ v) = (X □ Y) ∗ v, as dense matrices, on images of every size, also smaller than the kernels."""
    x, y = normal(*left, seed=3, dtype=dtype), normal(*right, seed=4, dtype=dtype)
    z = block_convolve(x, y)
    assert z.dtype == dtype and z.shape[2:] == tuple(p + q - 1 for p, q in zip(left[2:], right[2:], strict=True))
    for size in [(1, 2), (2, 3), (5, 6)]:
        X, Y, Z = (dense_convolution(k.double().numpy(), size[: len(left) - 2]) for k in (x, y, z))
        np.testing.assert_allclose(Z, X @ Y, rtol=0, atol=100 * left[1] * torch.finfo(dtype).eps)
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(block_convolve, (x.requires_grad_(), y.requires_grad_()))


# Projectors


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_random_projectors(n, rank, dtype):
    p, again = (random_projector(n, rank, generator=torch.Generator().manual_seed(3), dtype=dtype) for _ in range(2))
    assert p.shape == (n, n) and p.dtype == dtype and torch.equal(p, again) and is_projector(p)
    assert int(projector_rank(p)) == int(torch.linalg.matrix_rank(p.double(), tol=0.5)) == rank


def test_random_projectors_are_uniform():
    """E[P] = (r/n)·I by symmetry, and so it must be in the mean of many."""
    mean = sum(projectors(3, [1] * 2000)) / 2000
    torch.testing.assert_close(mean, EYE[:3, :3] / 3, rtol=0, atol=5 * 0.3 / 2000**0.5)


def test_projectors_in_batches_and_what_is_not_one():
    bases = torch.linalg.qr(normal(2, 3, 5, 2, seed=13)).Q
    p = projector_from_basis(bases)
    assert p.shape == (2, 3, 5, 5) and is_projector(p) and torch.equal(projector_rank(p), torch.full((2, 3), 2))
    torch.testing.assert_close(p @ bases, bases, rtol=0, atol=1e-14)
    p[1, 2] *= 1.01
    idempotent, symmetric = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    wrong = [p, 2 * EYE, idempotent, symmetric, torch.full((2, 2), torch.nan), torch.zeros(2, 3), EYE * (1 + 1e-12)]
    assert not any(map(is_projector, wrong))
    assert is_projector(EYE * (1 + 1e-12), tolerance=1e-11)


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


@pytest.mark.parametrize(("c_out", "c_in", "K"), [(1, 1, 3), (1, 2, 1), (1, 2, 4), (2, 3, 3), (3, 3, 2), (1, 4, 3)])
def test_equals_equations_1_and_2_and_is_orthogonal_at_every_size(c_out, c_in, K):
    H = orthonormal(c_out, c_in, seed=1)
    for shift in range(c_in + 1):  # projectors of every rank, 0 and c_in among them
        ranks = [(shift + i) % (c_in + 1) for i in range(2 * (K - 1))]
        P, Q = projectors(c_in, ranks[0::2], seed=shift), projectors(c_in, ranks[1::2], seed=100 + shift)
        kernel, line = bcop_kernel(H, P, Q), bcop_kernel_1d(H, P)
        np.testing.assert_allclose(kernel.numpy(), every_choice(H, P, Q), rtol=0, atol=1e-12)
        np.testing.assert_allclose(line.numpy(), every_choice(H, P), rtol=0, atol=1e-12)
        pairs = [pair for p, q in zip(P, Q, strict=True) for pair in (projector_column(p), projector_row(q))]
        composed = (
            compose_kernels(H[..., None, None], *pairs),
            compose_kernels(H[..., None], *map(projector_pair_1d, P)),
        )
        for ours, theirs in zip((kernel, line), composed, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        if K > 1:
            assert torch.equal(bcop_kernel(H, torch.stack(P), torch.stack(Q)), kernel)
        rounded = bcop_kernel(H.float(), [p.float() for p in P], [q.float() for q in Q])
        torch.testing.assert_close(rounded, kernel.float(), rtol=0, atol=1e-5)
    for size in [(1, 1), (2, 3), (4, 5), (1,), (3,), (9,)]:
        operator = dense_convolution((kernel if len(size) == 2 else line).numpy(), size)
        np.testing.assert_allclose(operator @ operator.T, np.eye(len(operator)), rtol=0, atol=1e-13)


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


# Spectra: the shapes of kernel and image

CASES = [((2, 3, 3), (5,)), ((3, 2, 4), (8,)), ((2, 2, 7), (3,)), ((2, 1, 6), (1,))]
CASES += [((2, 3, 3, 3), (4, 4)), ((2, 2, 2, 4), (6, 5)), ((2, 2, 5, 5), (3, 3)), ((1, 2, 6, 4), (2, 3))]


@pytest.mark.parametrize(("shape", "size"), CASES, ids=str)
def test_singular_values_symbols_and_folded_kernels(shape, size):
    """Those of the dense operator; Σ_t W_t e^(−2πi⟨ω, t⟩/n); and taps added up modulo the size."""
    kernel = normal(*shape, seed=2)
    dense = np.linalg.svd(dense_convolution(kernel.numpy(), size), compute_uv=False)
    for dtype, device in product(PRECISIONS, DEVICES):
        given = kernel.to(device, dtype, copy=True).requires_grad_()
        values = circular_singular_values(given, size)
        assert values.dtype == dtype
        tolerance = 10 * sum(shape) * torch.finfo(dtype).eps * dense[0]
        np.testing.assert_allclose(values.detach().cpu().double().numpy(), dense, rtol=0, atol=tolerance)
        assert len(set(size)) > 1 or torch.equal(circular_singular_values(given, size[0]), values)
        values.sum().backward()
        assert bool(torch.isfinite(given.grad).all())
    symbol, taps = circular_symbol(kernel, size), kernel.numpy()
    expected, folded = (
        np.zeros((*size, *shape[:2]), dtype=complex),
        np.zeros((*shape[:2], *np.minimum(shape[2:], size))),
    )
    for tap in np.ndindex(*shape[2:]):
        matrix = taps[(slice(None), slice(None), *tap)]
        folded[(slice(None), slice(None), *[t % n for t, n in zip(tap, size, strict=True)])] += matrix
        for frequency in np.ndindex(*size):
            turns = sum(w * t / n for w, t, n in zip(frequency, tap, size, strict=True))
            expected[frequency] += matrix * np.exp(-2j * np.pi * turns)
    np.testing.assert_allclose(symbol.numpy(), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(fold_kernel(kernel, size).numpy(), folded, rtol=0, atol=1e-14)


# Folding a stride


def unshuffle(image: Tensor, strides: tuple[int, ...]) -> Tensor:
    """(c, n…) → (c·Πs, n/s…): channel c·Πs + phase, the phases in row-major order."""
    phases = [tuple(slice(p, None, s) for p, s in zip(phase, strides, strict=True)) for phase in np.ndindex(*strides)]
    return torch.stack([channel[phase] for channel in image for phase in phases])


@pytest.mark.parametrize("taps", [(1,), (5,), (1, 1), (4, 4), (5, 3), (1, 4)], ids=str)
@pytest.mark.parametrize("strides", [(2, 2), (2, 3), (4, 1)], ids=str)
def test_fold_stride_is_pixel_unshuffle(taps, strides):
    strides = strides[: len(taps)]
    kernel = normal(3, 2, *taps, seed=15)
    blocks = [-(-k // s) for k, s in zip(taps, strides, strict=True)]
    image = normal(2, *[(b + 2) * s for b, s in zip(blocks, strides, strict=True)], seed=16)
    convolve = F.conv1d if len(taps) == 1 else F.conv2d
    folded = fold_stride(kernel, strides)
    assert folded.shape == (3, 2 * math.prod(strides), *blocks)
    ours = convolve(unshuffle(image, strides)[None], folded)
    window = tuple(slice(0, n) for n in ours.shape[2:])  # zeros were filled in: as many outputs as whole blocks
    theirs = convolve(image[None], kernel, stride=strides)[(slice(None), slice(None), *window)]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
