"""The lemmas under "Equivalent SOCK Construction" and "Dominance of Canonical SOCK Submanifold"."""

from itertools import product
from math import prod

import pytest
import torch

from isoconv import theory
from isoconv.linalg.bcop import bcop_kernel_1d, compose_kernels, is_projector, projector_pair_1d, projector_rank


def ranks_of(projectors):
    return tuple(int(projector_rank(p)) for p in projectors)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_moving_rank_leaves_the_kernel(draw, n):
    """Lemma "Symmetric Projector Pair Equivalence under Product and Sum", from either neighbour to the other.

    If rank P ≤ rank Q, a vector of P orthogonal to Q is luck. Here is a pair that has one; test_bad_input has another.
    """
    H, before, after = draw.orthogonal(n), draw.projector(n, n // 2), draw.projector(n, (n + 1) // 2)
    pairs = [(draw.projector(n, more), draw.projector(n, less)) for more in range(1, n + 1) for less in range(more)]
    if n == 5:
        basis = draw.orthogonal(n)
        pairs.append((basis[:, :2] @ basis[:, :2].mT, basis[:, 1:3] @ basis[:, 1:3].mT))
    for donor, receiver in pairs:
        smaller, larger = theory.move_rank(donor, receiver)
        assert is_projector(smaller) and is_projector(larger)
        more, less = ranks_of([donor, receiver])
        assert ranks_of([smaller, larger]) == (more - 1, less + 1)
        assert (donor + receiver - smaller - larger).abs().max() < 1e-13
        for old, new in (((donor, receiver), (smaller, larger)), ((receiver, donor), (larger, smaller))):
            assert (old[0] @ old[1] - new[0] @ new[1]).abs().max() < 1e-13
            kernel = bcop_kernel_1d(H, [before, *old, after])
            assert (bcop_kernel_1d(H, [before, *new, after]) - kernel).abs().max() < 1e-13


def test_equal_kernels_have_equal_sums_and_products(draw):
    """Lemma "Equivalent SOCK Construction", ⇒: another factorisation has the same H, P + Q and PQ."""
    for r1, r2 in product(range(5), repeat=2):
        H, P, Q = draw.orthogonal(4), draw.projector(4, r1), draw.projector(4, r2)
        other_H, (other_P, other_Q) = theory.factorise(bcop_kernel_1d(H, [P, Q]))
        assert (other_H - H).abs().max() < 1e-12
        assert (other_P + other_Q - P - Q).abs().max() < 1e-12
        assert (other_P @ other_Q - P @ Q).abs().max() < 1e-12
        if abs(r1 - r2) > 1:  # the ranks differ, so that the two really are different factorisations
            assert (other_P - P).abs().max() > 1e-3


def test_other_sums_or_products_give_other_kernels(draw):
    """⇒ again: the difference of two kernels shows the differences in sum and product, whatever else they contain."""
    n = 4
    H, before, after = draw.orthogonal(n), draw.projector(n, 1), draw.projector(n, 3)
    inverses = [projector_pair_1d(torch.eye(n) - p) for p in (before, after)]
    for _ in range(20):
        P, Q, P2, Q2 = (draw.projector(n, draw.integer(1, 3)) for _ in range(4))
        difference = bcop_kernel_1d(H, [before, P, Q, after]) - bcop_kernel_1d(H, [before, P2, Q2, after])
        assert difference.abs().max() > 1e-2
        # Convolve away what they share, with the inverses (the flipped pairs): two taps of delay remain.
        inner = compose_kernels(inverses[0], H.mT[..., None], difference, inverses[1])[..., 2:5]
        assert (inner[..., 0] - (P @ Q - P2 @ Q2)).abs().max() < 1e-12
        assert (inner[..., 1] + 2 * inner[..., 0] - (P + Q - P2 - Q2)).abs().max() < 1e-12


@pytest.mark.parametrize(("top", "length"), [(4, 1), (4, 3), (2, 6)])
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
            change = 2 * (current[receiver] - current[donor]) + 2
            current[donor] -= 1
            current[receiver] += 1
            assert theory.imbalance_score(current) == before + change <= before
        assert tuple(current) == theory.canonical_ranks(top, length + 1, sum(ranks))
        least = min(theory.imbalance_score(other) for other in tuples if sum(other) == sum(ranks))
        assert theory.imbalance_score(current) == least
        assert (theory.imbalance_score(ranks) == least) == (max(ranks) - min(ranks) <= 1)


@pytest.mark.parametrize(("n", "K"), [(3, 2), (4, 3), (2, 5)])
def test_every_kernel_can_be_rewritten_with_canonical_ranks(draw, n, K):
    """Lemma "Canonical Submanifold Dominates": C(r) ⊆ C_k for every r."""
    for ranks in product(range(n + 1), repeat=K - 1):
        H, P = draw.orthogonal(n), [draw.projector(n, rank) for rank in ranks]
        same_H, balanced = theory.canonicalise(H, P)
        assert same_H is H
        assert all(is_projector(p) for p in balanced)
        assert ranks_of(balanced) == theory.canonical_ranks(n, K, sum(ranks))
        assert (bcop_kernel_1d(H, balanced) - bcop_kernel_1d(H, P)).abs().max() < 1e-12


def onto_span(basis):
    return basis @ torch.linalg.solve(basis.mT @ basis, basis.mT)


def differential_rank(function, *bases):
    """How many directions a function of bases moves in: the rank of its Jacobian there."""
    jacobians = torch.autograd.functional.jacobian(function, bases)
    columns = torch.cat([j.reshape(prod(j.shape[:-2]), prod(j.shape[-2:])) for j in jacobians], dim=1)
    return int(torch.linalg.matrix_rank(columns, atol=1e-9))


def test_canonical_ranks_have_the_most_kernels(draw):
    """C(r) ⊆ C_k, seen as dimensions: at a random point, kernels of balanced ranks move in the most directions."""

    def kernel(*bases):
        return bcop_kernel_1d(torch.eye(4, dtype=torch.float64), [onto_span(basis) for basis in bases])

    dimensions = [differential_rank(kernel, *(draw.normal(4, r) for r in (rank, 4 - rank))) for rank in range(5)]
    assert dimensions == [theory.projector_dimension(4, rank) * 2 for rank in range(5)] == [0, 6, 8, 6, 0]


def test_dimension_of_projectors(draw):
    """dim P(n, k) = k(n − k), measured: the rank of the differential of the projection onto the span of k vectors."""
    for n in range(1, 7):
        dimensions = [theory.projector_dimension(n, k) for k in range(n + 1)]
        for k in range(1, n + 1):
            assert differential_rank(onto_span, torch.linalg.qr(draw.normal(n, k)).Q) == dimensions[k]
        assert {k for k in range(n + 1) if dimensions[k] == max(dimensions)} == {n // 2, (n + 1) // 2}
