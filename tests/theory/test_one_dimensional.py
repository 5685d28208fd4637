"""Theorem "Completeness": every 1-D orthogonal kernel factorises, however it came about."""

from itertools import product

import pytest
import torch

from isoconv.linalg.bcop import bcop_kernel_1d, block_convolve, is_projector, projector_rank
from isoconv.theory import canonical_ranks, factorise, orthogonality_residual, rank_sum
from isoconv.theory.one_dimensional import _orders, _peel


def assert_factorises(kernel, bound=1e-12):
    n, _, K = kernel.shape
    H, P = factorise(kernel)
    assert len(P) == K - 1
    assert (H.mT @ H - torch.eye(n, dtype=H.dtype)).abs().max() < 1e-13
    assert all(is_projector(p) for p in P)
    assert tuple(int(projector_rank(p)) for p in P) == canonical_ranks(n, K, rank_sum(kernel))
    assert (bcop_kernel_1d(H, P) - kernel).abs().max() <= bound


@pytest.mark.parametrize(("n", "K"), [(1, 1), (1, 4), (2, 4), (3, 3), (4, 3), (3, 4), (8, 2)])
def test_kernels_of_every_rank_tuple(draw, n, K):
    for ranks in product(range(n + 1), repeat=K - 1):
        assert_factorises(draw.kernel(n, ranks))


def test_largest_size_promised(draw):
    for _ in range(20):
        assert_factorises(draw.kernel(8, tuple(draw.integer(0, 8) for _ in range(5))), bound=1e-10)


@pytest.mark.parametrize(("n", "K"), [(1, 3), (2, 2), (2, 5), (3, 4), (5, 5)])
def test_kernels_built_from_delays_and_rotations(draw, n, K):
    for _ in range(30):
        kernel, winding = draw.lattice(n, K)
        assert orthogonality_residual(kernel) < 1e-13
        assert rank_sum(kernel) == (K - 1) * n - winding
        assert_factorises(kernel)


@pytest.mark.parametrize("n", [2, 3])
def test_kernels_that_nobody_put_together(draw, n):
    """A random kernel is pushed towards W □ Wᵀ = I by damped Newton steps. Where it arrives has factors.

    Some arrive at singular points of the set of orthogonal kernels, which is only √residual close there.
    """

    def excess(flat):
        kernel = flat.reshape(n, n, 3)
        gram = block_convolve(kernel, kernel.transpose(0, 1).flip(2))
        return torch.cat([gram[..., :2], (gram[..., 2] - torch.eye(n, dtype=gram.dtype))[..., None]], dim=-1).flatten()

    for _ in range(6):
        flat = draw.normal(n * n * 3) / (3 * n) ** 0.5
        for _ in range(60):
            value = excess(flat)
            left, values, right = torch.linalg.svd(torch.func.jacrev(excess)(flat), full_matrices=False)
            flat = flat - right.mT @ (values / (values.square() + value.norm() / 100) * (left.mT @ value))
        kernel = flat.reshape(n, n, 3)
        assert orthogonality_residual(kernel) < 1e-14
        H, P = factorise(kernel)
        assert (bcop_kernel_1d(H, P) - kernel).abs().max() < 1e-7


@pytest.mark.parametrize("tap", range(4))
def test_a_single_tap(draw, tap):
    kernel = torch.zeros(3, 3, 4, dtype=torch.float64)
    kernel[..., tap] = draw.orthogonal(3)
    assert_factorises(kernel)


def test_repeated_nested_and_complementary_projectors(draw):
    n = 5
    wide = torch.linalg.qr(draw.normal(n, n)).Q
    nested = [wide[:, :r] @ wide[:, :r].mT for r in range(n + 1)]
    for i, j, k in product(range(n + 1), repeat=3):
        assert_factorises(bcop_kernel_1d(draw.orthogonal(n), [nested[i], torch.eye(n) - nested[j], nested[k]]))


def test_kernels_that_almost_degenerate(draw):
    """Projectors at 1e-1 … 1e-15 from containing each other: outer taps with singular values of any size.

    Peeling from the right only, or deciding weak directions before strong ones, leaves 1e-7 in some of these.
    """
    n, errors = 5, []
    for _ in range(100):
        P = [draw.projector(n, draw.integer(0, n))]
        for _ in range(4):
            rank, tilt = draw.integer(0, n), 10.0 ** -draw.integer(1, 15)
            vectors = torch.linalg.eigh(P[-1]).eigenvectors
            vectors = vectors.flip(1) if draw.integer(0, 1) else vectors  # near the range, or near the complement
            basis = torch.linalg.qr(vectors[:, n - rank :] + tilt * draw.normal(n, rank)).Q
            P.append(basis @ basis.mT)
        kernel = bcop_kernel_1d(draw.orthogonal(n), P)
        errors.append(float((bcop_kernel_1d(*factorise(kernel)) - kernel).abs().max()))
    assert max(errors) < 1e-8
    assert sum(error > 1e-10 for error in errors) <= 2


def test_every_order_of_peeling(draw):
    """From the right, from the left, mixed: each proves the theorem, and each gives factors of the canonical ranks."""
    for ranks in ((1, 3, 2), (0, 2, 3), (3, 3, 1)):
        kernel = draw.kernel(3, ranks)
        canonical = canonical_ranks(3, 4, sum(ranks))
        orders = list(_orders(3))
        assert set(orders) == set(product((True, False), repeat=3))
        for order in orders:
            H, P = _peel(kernel, canonical, order)
            assert tuple(int(projector_rank(p)) for p in P) == canonical
            assert (bcop_kernel_1d(H, P) - kernel).abs().max() < 1e-12


def test_float32(draw):
    kernel = draw.kernel(4, (1, 2, 3)).float()
    H, P = factorise(kernel)
    assert {H.dtype, *(p.dtype for p in P)} == {torch.float32}
    assert (bcop_kernel_1d(H, P) - kernel).abs().max() < 100 * torch.finfo(torch.float32).eps
