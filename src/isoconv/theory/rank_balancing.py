"""Many factors, one kernel: how rank moves between neighbouring projectors (the paper, "Equivalent SOCK Construction").

Note [Pair equivalence]
The product of two neighbouring factors depends on their sum and product only:

    [P I−P] □ [Q I−Q] = [PQ,  P + Q − 2PQ,  I − P − Q + PQ].

A unit vector x in the range of P and orthogonal to the range of Q can be handed over, P − xxᵀ and Q + xxᵀ: the sum
stays, and both products stay since (P − xxᵀ)(Q + xxᵀ) = PQ − x(Qx)ᵀ + (Px)xᵀ − xxᵀ = PQ. If rank P > rank Q there
always is such an x, for the two subspaces' dimensions add up to more than n. So rank flows from the larger to the
smaller neighbour, and every kernel can be written with ranks as equal as their sum allows.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations

import torch
from torch import Tensor

from isoconv.linalg.bcop import projector_from_basis
from isoconv.records import require
from isoconv.theory.orthogonality import range_basis, require_one_shape, require_projector

Factors = tuple[Tensor, list[Tensor]]


def move_rank(donor: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
    """Move one unit of rank from `donor` to `receiver`; their sum and both products stay (see Note [Pair equivalence]).

    This is the Lemma "Symmetric Projector Pair Equivalence under Product and Sum". It does not matter which of the two
    comes first in the kernel. Always possible if the donor has the larger rank; otherwise only if some vector of
    the donor's range is orthogonal to the receiver's, and refused if there is none. In the precision of the input.
    """
    require_one_shape("projectors", donor, receiver)
    given, taken = range_basis(donor), range_basis(receiver)
    # x = given·v with takenᵀ·given·v = 0. Right singular vectors beyond the number of rows are null vectors without
    # any decision about what counts as zero: that is the case of the larger donor.
    _, values, right = torch.linalg.svd(taken.mT @ given)
    rank, other = given.shape[1], taken.shape[1]
    tolerance = 10 * len(donor) * torch.finfo(donor.dtype).eps
    exists = rank > other or (rank > 0 and bool(values[rank - 1] <= tolerance))
    require(exists, "a vector of the donor's range orthogonal to the receiver's", f"none, ranks {rank} and {other}")
    # `right` ends with the smallest singular value's vector (a null vector): it goes, the others stay.
    stays, moves = given @ right[:-1].mT, given @ right[-1:].mT
    grown = torch.linalg.qr(torch.cat([taken, moves], dim=1)).Q
    return projector_from_basis(stays), projector_from_basis(grown)


def imbalance_score(ranks: Sequence[int]) -> int:
    """Return Σ r_i²: least, for a given sum, exactly if all ranks are within one of each other."""
    return sum(rank * rank for rank in ranks)


def canonical_ranks(n: int, K: int, rank_sum: int) -> tuple[int, ...]:
    """Return the canonical rank tuple: K − 1 ranks within one of each other, ascending, with the given sum."""
    fits = K >= 1 and n >= 1 and 0 <= rank_sum <= (K - 1) * n
    require(fits, "n, K ≥ 1 and 0 ≤ rank sum ≤ (K − 1)n", f"n = {n}, K = {K}, {rank_sum}")
    low, larger = divmod(rank_sum, max(1, K - 1))
    return (low,) * (K - 1 - larger) + (low + 1,) * larger


def balancing_moves(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield moves (donor, receiver) between neighbours that lead from `ranks` to the canonical tuple.

    Lemmas "Balancing Subspace Dominates" and "Rank Balancing": while two ranks differ by two or more, take the
    closest such pair; everything between them lies one above the smaller and one below the larger, so a unit can
    travel from the larger to the smaller through the chain. Then "SOCKs with Balanced Rank Tuple are Equivalent":
    bubble sort. In every move the donor's rank exceeds the receiver's, which is what `move_rank` needs.
    """
    current = list(ranks)
    pairs = sorted(permutations(range(len(current)), 2), key=lambda pair: (abs(pair[0] - pair[1]), min(pair)))
    while unequal := [(low, high) for low, high in pairs if current[high] - current[low] >= 2]:
        low, high = unequal[0]
        step = 1 if low > high else -1
        for donor in range(high, low, step):
            yield donor, donor + step
        current[high] -= 1
        current[low] += 1
    for _ in current:
        for i in range(len(current) - 1):
            if current[i] > current[i + 1]:
                yield i, i + 1
                current[i], current[i + 1] = current[i + 1], current[i]


def canonicalise(H: Tensor, P: Sequence[Tensor]) -> Factors:
    """Return the same 1-D kernel, with its projectors' ranks in canonical order (Lemma "Canonical Submanifold Dominates").

    In the precision of the input: each move leaves an error of a few eps.
    """
    projectors = list(P)
    for donor, receiver in balancing_moves([require_projector(p) for p in projectors]):
        projectors[donor], projectors[receiver] = move_rank(projectors[donor], projectors[receiver])
    return H, projectors


def projector_dimension(n: int, rank: int) -> int:
    """Return the dimension of P(n, rank), the symmetric n×n projectors of that rank: rank·(n − rank), largest at n/2."""
    require(0 <= rank <= n, f"a rank between 0 and {n}", rank)
    return rank * (n - rank)
