"""1-D kernels: "Completeness", "Connected Components of 1-D Orthogonal Convolution", "Equivalent SOCK Construction"."""

from itertools import product
from math import comb

import pytest
import torch

from helpers import winding_number
from isoconv import theory
from isoconv.linalg.bcop import bcop_kernel_1d, is_projector, projector_rank


def ranks_of(projectors):
    return tuple(int(projector_rank(p)) for p in projectors)


@pytest.mark.parametrize(("n", "K"), [(1, 1), (2, 2), (3, 4)])
def test_kernel_elements_are_the_sums_over_delta_and_follow_the_corollary(draw, n, K):
    """B_j = A_j − Σ_{k<j} (−1)^{j−k} C(K−1−k, j−k) B_k, one after the other as in the paper, for any taps at all."""
    H, P = draw.orthogonal(n), [draw.projector(n, draw.integer(0, n)) for _ in range(K - 1)]
    kernel, taps, B = bcop_kernel_1d(H, P), draw.normal(n, n, K), []
    sums = torch.zeros_like(kernel)
    for delta in product((0, 1), repeat=K - 1):
        term = H
        for d, p in zip(delta, P, strict=True):
            term = term if d else term @ p
        sums[..., sum(delta)] += term
    assert (theory.kernel_elements(kernel) - sums).abs().max() < 1e-12
    assert (theory.kernel_from_elements(sums) - kernel).abs().max() < 1e-12
    for j in range(K):
        B.append(taps[..., j] - sum((-1) ** (j - k) * comb(K - 1 - k, j - k) * B[k] for k in range(j)))
    assert (theory.kernel_elements(taps) - torch.stack(B, dim=-1)).abs().max() < 1e-11


def test_components_are_two_apart(draw):
    """As far as isometries can be. A path between two components would have to jump that far."""
    kernels = {(s, r): draw.kernel(2, (r // 2, r - r // 2), s) for s in (1, -1) for r in range(5)}
    for a, b in product(kernels, repeat=2):
        distance = theory.separation(kernels[a], kernels[b], frequencies=1024)
        assert distance == 0 if a == b else 2 - 1e-3 < distance <= 2 + 1e-12


# Factors ----------------------------------------------------------------------------------------------------------


def assert_factorises(kernel, bound=1e-12):
    n, _, K = kernel.shape
    H, P = theory.factorise(kernel)
    assert {H.dtype, *(p.dtype for p in P)} == {kernel.dtype}
    assert (H.mT @ H - torch.eye(n, dtype=H.dtype)).abs().max() < bound / 10
    assert all(is_projector(p) for p in P)
    assert ranks_of(P) == theory.canonical_ranks(n, K, theory.rank_sum(kernel))
    assert (bcop_kernel_1d(H, P) - kernel).abs().max() <= bound


@pytest.mark.parametrize(("n", "K"), [(1, 1), (3, 3), (2, 4), (5, 2)])
def test_kernels_of_every_rank_tuple(draw, n, K):
    for ranks, sign in product(product(range(n + 1), repeat=K - 1), (1, -1)):
        kernel = draw.kernel(n, ranks, sign)
        assert theory.component(kernel) == (sign, sum(ranks))
        assert winding_number(kernel) == (K - 1) * n - sum(ranks)
        assert_factorises(kernel)
    assert_factorises(draw.kernel(8, tuple(draw.integer(0, 8) for _ in range(5))), bound=1e-10)  # the largest promised
    assert_factorises(draw.kernel(4, (1, 2, 3)).float(), 100 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(("n", "K"), [(1, 3), (2, 5), (3, 4), (5, 5)])
def test_kernels_built_from_delays_and_rotations(draw, n, K):
    for _ in range(8):
        kernel, winding = draw.lattice(n, K)
        assert theory.orthogonality_residual(kernel) < 1e-13
        assert winding_number(kernel) == winding == (K - 1) * n - theory.rank_sum(kernel)
        assert_factorises(kernel)


def test_repeated_nested_and_complementary_projectors(draw):
    """Among them are kernels of a single tap."""
    n = 3
    wide = draw.orthogonal(n)
    nested = [wide[:, :r] @ wide[:, :r].mT for r in range(n + 1)]
    for i, j, k in product(range(n + 1), repeat=3):
        assert_factorises(bcop_kernel_1d(draw.orthogonal(n), [nested[i], torch.eye(n) - nested[j], nested[k]]))


def test_kernels_that_almost_degenerate(draw):
    """Projectors at 1e-1 … 1e-15 from containing each other: outer taps with singular values of any size.

    Peeling from the right only, or deciding weak directions before strong ones, leaves 1e-7 in some of these.
    """
    n, errors = 5, []
    for _ in range(40):
        P = [draw.projector(n, draw.integer(0, n))]
        for _ in range(4):
            rank, tilt = draw.integer(0, n), 10.0 ** -draw.integer(1, 15)
            vectors = torch.linalg.eigh(P[-1]).eigenvectors
            vectors = vectors.flip(1) if draw.integer(0, 1) else vectors  # near the range, or near the complement
            basis = torch.linalg.qr(vectors[:, n - rank :] + tilt * draw.normal(n, rank)).Q
            P.append(basis @ basis.mT)
        kernel = bcop_kernel_1d(draw.orthogonal(n), P)
        errors.append(float((bcop_kernel_1d(*theory.factorise(kernel)) - kernel).abs().max()))
    assert max(errors) < 1e-8 and sum(error > 1e-10 for error in errors) <= 1


# Many factors make one kernel -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4])
def test_moving_rank_leaves_the_kernel(draw, n):
    """From either neighbour to the other: Lemma "Symmetric Projector Pair Equivalence under Product and Sum".

    If rank P ≤ rank Q, a vector of P orthogonal to Q is luck. Here is a pair that has one; test_bad_input has another.
    """
    H, before, after = draw.orthogonal(n), draw.projector(n, n // 2), draw.projector(n, (n + 1) // 2)
    pairs = [(draw.projector(n, more), draw.projector(n, less)) for more in range(1, n + 1) for less in range(more)]
    if n == 4:
        basis = draw.orthogonal(n)
        pairs.append((basis[:, :2] @ basis[:, :2].mT, basis[:, 1:3] @ basis[:, 1:3].mT))
    for donor, receiver in pairs:
        smaller, larger = theory.move_rank(donor, receiver)
        assert is_projector(smaller) and is_projector(larger)
        more, less = ranks_of([donor, receiver])
        assert ranks_of([smaller, larger]) == (more - 1, less + 1)
        for old, new in (((donor, receiver), (smaller, larger)), ((receiver, donor), (larger, smaller))):
            assert (old[0] @ old[1] - new[0] @ new[1]).abs().max() < 1e-13
            kernel = bcop_kernel_1d(H, [before, *old, after])
            assert (bcop_kernel_1d(H, [before, *new, after]) - kernel).abs().max() < 1e-13


@pytest.mark.parametrize(("top", "length"), [(4, 1), (4, 3), (2, 5)])
def test_moves_lead_to_the_canonical_tuple(top, length):
    """For every rank tuple: each move is allowed by the lemma, the imbalance never rises, the end is canonical.

    The canonical tuple has the least imbalance for its sum, as all those and only those whose ranks are within one.
    """
    tuples = list(product(range(top + 1), repeat=length))
    for ranks in tuples:
        current = list(ranks)
        for donor, receiver in theory.balancing_moves(ranks):
            assert abs(donor - receiver) == 1 and current[donor] > current[receiver]
            before = theory.imbalance_score(current)
            current[donor], current[receiver] = current[donor] - 1, current[receiver] + 1
            assert theory.imbalance_score(current) <= before
        assert tuple(current) == theory.canonical_ranks(top, length + 1, sum(ranks))
        least = min(theory.imbalance_score(other) for other in tuples if sum(other) == sum(ranks))
        assert theory.imbalance_score(current) == least == sum(rank**2 for rank in current)
        assert (theory.imbalance_score(ranks) == least) == (max(ranks) - min(ranks) <= 1)


@pytest.mark.parametrize(("n", "K"), [(3, 2), (3, 3), (2, 5)])
def test_every_kernel_can_be_rewritten_with_canonical_ranks(draw, n, K):
    """Lemma "Canonical Submanifold Dominates": C(r) ⊆ C_k for every r."""
    for ranks in product(range(n + 1), repeat=K - 1):
        H, P = draw.orthogonal(n), [draw.projector(n, rank) for rank in ranks]
        same_H, balanced = theory.canonicalise(H, P)
        assert same_H is H and all(is_projector(p) for p in balanced)
        assert ranks_of(balanced) == theory.canonical_ranks(n, K, sum(ranks))
        assert (bcop_kernel_1d(H, balanced) - bcop_kernel_1d(H, P)).abs().max() < 1e-12


def test_dimensions_of_projectors(draw):
    """dim P(n, k) = k(n − k): counted as directions that bases move them in."""

    def onto_span(basis):
        return basis @ torch.linalg.solve(basis.mT @ basis, basis.mT)

    for n, k in ((1, 1), (3, 2), (5, 2), (6, 3)):
        jacobian = torch.autograd.functional.jacobian(onto_span, torch.linalg.qr(draw.normal(n, k)).Q)
        rank = torch.linalg.matrix_rank(jacobian.reshape(n * n, n * k), atol=1e-9)
        assert int(rank) == theory.projector_dimension(n, k)
