"""1-D kernels: Theorems "Completeness" and "Connected Components of 1-D Orthogonal Convolution"."""

from itertools import product
from math import comb, pi

import pytest
import torch

from isoconv import theory
from isoconv.linalg.bcop import bcop_kernel_1d, block_convolve, is_projector, projector_rank


def winding_number(kernel):
    """How often det A(z) turns around 0 while z turns around once: counted, no theorem used."""
    n, _, K = kernel.shape
    angles = torch.arange(64 * n * K + 1, dtype=torch.float64) * 2 * pi / (64 * n * K)
    powers = torch.exp(1j * angles[:, None] * torch.arange(K))
    determinant = torch.linalg.det(torch.einsum("fk,ijk->fij", powers, kernel + 0j))
    turns = torch.angle(determinant[1:] / determinant[:-1]).sum() / (2 * pi)
    assert abs(turns - turns.round()) < 1e-9
    return int(turns.round())


@pytest.mark.parametrize(("n", "K"), [(1, 1), (2, 2), (3, 3), (4, 4), (2, 5)])
def test_kernel_elements_are_the_sums_over_delta(draw, n, K):
    H = draw.orthogonal(n)
    P = [draw.projector(n, draw.integer(0, n)) for _ in range(K - 1)]
    kernel = bcop_kernel_1d(H, P)
    sums = [torch.zeros(n, n, dtype=torch.float64) for _ in range(K)]
    for delta in product((0, 1), repeat=K - 1):
        term = H
        for d, p in zip(delta, P, strict=True):
            term = term if d else term @ p
        sums[sum(delta)] = sums[sum(delta)] + term
    elements = theory.kernel_elements(kernel)
    assert (elements - torch.stack(sums, dim=-1)).abs().max() < 1e-12
    assert (theory.kernel_from_elements(elements) - kernel).abs().max() < 1e-12
    assert (theory.kernel_from_elements(torch.stack(sums, dim=-1)) - kernel).abs().max() < 1e-12
    assert (elements[..., -1] - H).abs().max() < 1e-12


def test_elements_follow_the_corollary(draw):
    """B_j = A_j − Σ_{k<j} (−1)^{j−k} C(K−1−k, j−k) B_k, one after the other as in the paper, for any taps at all."""
    kernel = draw.normal(3, 3, 6)
    B = []
    for j in range(6):
        B.append(kernel[..., j] - sum((-1) ** (j - k) * comb(5 - k, j - k) * B[k] for k in range(j)))
    assert (theory.kernel_elements(kernel) - torch.stack(B, dim=-1)).abs().max() < 1e-11


def test_components_are_two_apart(draw):
    """As far as isometries can be. A path between two components would have to jump that far."""
    kernels = {(s, r): draw.kernel(2, (r // 2, r - r // 2), s) for s in (1, -1) for r in range(5)}
    for a, b in product(kernels, repeat=2):
        distance = theory.separation(kernels[a], kernels[b], frequencies=1024)
        assert distance == 0 if a == b else 2 - 1e-3 < distance <= 2 + 1e-12


@pytest.mark.parametrize("length", [5, 6])
def test_determinant_of_the_operator(draw, length):
    """ "Special" means det H = 1, and not that the operator has determinant 1.

    On N positions that is det(H)^N, times −1 for each turn of the winding if N is even: then it says nothing about H.
    """
    for ranks, sign in product([(0, 1), (1, 1), (2, 2)], (1, -1)):
        kernel = draw.kernel(3, ranks, sign)
        blocks = torch.zeros(length, 3, length, 3, dtype=torch.float64)
        for i, tap in product(range(length), range(3)):
            blocks[i, :, (i + tap) % length] += kernel[..., tap]
        determinant = float(torch.linalg.det(blocks.reshape(3 * length, 3 * length)))
        winding = 2 * 3 - sum(ranks)
        assert determinant == pytest.approx(sign**length * (-1) ** ((length - 1) * winding))


def assert_factorises(kernel, bound=1e-12):
    n, _, K = kernel.shape
    H, P = theory.factorise(kernel)
    assert len(P) == K - 1
    assert (H.mT @ H - torch.eye(n, dtype=H.dtype)).abs().max() < 1e-13
    assert all(is_projector(p) for p in P)
    assert tuple(int(projector_rank(p)) for p in P) == theory.canonical_ranks(n, K, theory.rank_sum(kernel))
    assert (bcop_kernel_1d(H, P) - kernel).abs().max() <= bound


@pytest.mark.parametrize(("n", "K"), [(1, 1), (1, 3), (2, 4), (3, 3), (8, 2)])
def test_kernels_of_every_rank_tuple(draw, n, K):
    for ranks, sign in product(product(range(n + 1), repeat=K - 1), (1, -1)):
        kernel = draw.kernel(n, ranks, sign)
        assert theory.component(kernel) == (sign, sum(ranks))
        assert winding_number(kernel) == (K - 1) * n - sum(ranks)
        assert_factorises(kernel)
    for _ in range(5):  # and the largest size promised
        assert_factorises(draw.kernel(8, tuple(draw.integer(0, 8) for _ in range(5))), bound=1e-10)


@pytest.mark.parametrize(("n", "K"), [(1, 3), (2, 2), (2, 5), (3, 4), (5, 5)])
def test_kernels_built_from_delays_and_rotations(draw, n, K):
    for _ in range(20):
        kernel, winding = draw.lattice(n, K)
        assert theory.orthogonality_residual(kernel) < 1e-13
        assert winding_number(kernel) == winding == (K - 1) * n - theory.rank_sum(kernel)
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
        assert theory.orthogonality_residual(kernel) < 1e-14
        H, P = theory.factorise(kernel)
        assert (bcop_kernel_1d(H, P) - kernel).abs().max() < 1e-7


def test_repeated_nested_and_complementary_projectors(draw):
    """Among them are kernels of a single tap."""
    n = 4
    wide = draw.orthogonal(n)
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
        errors.append(float((bcop_kernel_1d(*theory.factorise(kernel)) - kernel).abs().max()))
    assert max(errors) < 1e-8
    assert sum(error > 1e-10 for error in errors) <= 2


def test_float32(draw):
    kernel = draw.kernel(4, (1, 2, 3)).float()
    H, P = theory.factorise(kernel)
    assert {H.dtype, *(p.dtype for p in P)} == {torch.float32}
    assert (bcop_kernel_1d(H, P) - kernel).abs().max() < 100 * torch.finfo(torch.float32).eps
