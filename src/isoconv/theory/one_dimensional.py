"""1-D completeness: every square 1-D orthogonal kernel is H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}].

Note [Peeling]
Let A = W □ [P I−P] with one tap less in W. Then A_0 = W_0 P and A_{K−1} = W_{K−2}(I − P), so

    A_0 (I − P) = 0    and    A_{K−1} P = 0.                                                          (∗)

Conversely, for any P with (∗), W_i = A_i P + A_{i+1}(I − P) has K − 1 taps (the outer two are the products in (∗))
and is orthogonal as a product of orthogonal kernels. Orthogonality of A contains A_0 A_{K−1}ᵀ = 0: the row spaces of
the outer taps are perpendicular, so a P exists. K − 1 peelings prove the theorem. The same works from the left, with
columns.

In floating point the question "what is the rank of A_0?" has no good answer: its singular values can be of any size
between 1 and eps. It need not be asked. The rank sum is an integer that the taps give exactly (Note [Rank sum] in
`invariants`), and the kernel has factors of every balanced rank tuple with this sum ("Canonical Submanifold
Dominates"), so the rank of each P is known beforehand. P is then the best one of its rank: the one that minimises
‖A_0(I − P)‖² + ‖A_{K−1}P‖², chosen direction by direction, strongest first, and each time among what is perpendicular
to those before, so that a direction in which the outer taps are of size s is found with an error of eps/s and costs
eps.

What remains: where s is small, P can differ by eps/s from the one that the kernel was made from, and the middle taps
notice. Then another order of peeling from the right and from the left does better; `factorise` tries some and keeps
the best.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, pairwise

import torch
from torch import Tensor

from isoconv.linalg.bcop import bcop_kernel_1d, projector_from_basis
from isoconv.theory.invariants import rank_sum
from isoconv.theory.orthogonality import (
    nearest_orthogonal,
    orthogonality_residual,
    orthogonality_tolerance,
    require_orthogonal,
)
from isoconv.theory.rank_balancing import Factors, canonical_ranks

_MOST_ORDERS = 64


def factorise(kernel: Tensor, *, tolerance: float | None = None) -> Factors:
    """(H, [P₁ … P_{K−1}]) with `bcop_kernel_1d(H, P)` equal to a 1-D orthogonal kernel (n, n, K).

    This is Theorem "Completeness". H is orthogonal and each P_i a symmetric projector to rounding, with the canonical
    ranks. Computed in float64 and returned in the kernel's precision. A kernel that is orthogonal to rounding because
    it was made by a formula is met to about 1e-14, degenerate ones included; those that almost degenerate (projectors
    at 1e-4 … 1e-12 from containing each other) can lose digits, down to 1e-9.

    `tolerance` is how far from orthogonal the kernel may be, by default what rounding explains. The result always is
    an exact kernel, but it need not be as close as the residual says: the set of orthogonal kernels has singular
    points. The scalar taps (ε, 1, −ε) have a residual of ε² and are ε away; with more taps it can be worse.
    """
    require_orthogonal(kernel, 1, tolerance)
    taps = kernel.detach().double()
    n, _, K = taps.shape
    ranks = canonical_ranks(n, K, rank_sum(kernel, tolerance=tolerance))
    good_enough = orthogonality_tolerance(taps) + 2 * orthogonality_residual(kernel)
    best, best_error = None, float("inf")
    for order in islice(_orders(K - 1), _MOST_ORDERS):
        factors = _peel(taps, ranks, order)
        error = float((bcop_kernel_1d(*factors) - taps).abs().max())
        if best is None or error < best_error:
            best, best_error = factors, error
        if best_error <= good_enough:
            break
    assert best is not None
    H, projectors = best
    return H.to(kernel.dtype), [p.to(kernel.dtype) for p in projectors]


def _orders(count: int) -> Iterator[tuple[bool, ...]]:
    """Orders of peeling, True for "from the right": all from one side first, then those that mix more and more."""
    for minority in range(count // 2 + 1):
        for places in combinations(range(count), minority):
            yield tuple(i not in places for i in range(count))
            yield tuple(i in places for i in range(count))


def _peel(kernel: Tensor, ranks: Sequence[int], order: Sequence[bool]) -> Factors:
    taps = list(kernel.unbind(-1))
    remaining = list(ranks)
    left: list[Tensor] = []
    right: list[Tensor] = []
    for from_right in order:
        if from_right:
            P = _best_projector(taps[0], taps[-1], remaining.pop())
            taps = [near @ P + (far - far @ P) for near, far in pairwise(taps)]
            right.insert(0, P)
        else:
            P = _best_projector(taps[0].mT, taps[-1].mT, remaining.pop(0))
            taps = [P @ near + (far - P @ far) for near, far in pairwise(taps)]
            left.append(P)
    H = nearest_orthogonal(taps[0])
    # [P I−P] □ H = H □ [HᵀPH I−HᵀPH]: what was peeled from the left moves to the right of H.
    return H, [_symmetrised(H.mT @ p @ H) for p in left] + right


def _best_projector(first: Tensor, last: Tensor, rank: int) -> Tensor:
    """The projector of this rank with `first`·(I − P) ≈ 0 and `last`·P ≈ 0; see Note [Peeling]."""
    n = first.shape[1]
    undecided = torch.eye(n, dtype=first.dtype, device=first.device)
    inside: list[Tensor] = []
    outside = 0
    while len(inside) < rank and outside < n - rank:
        near, far = first @ undecided, last @ undecided
        values, vectors = torch.linalg.eigh(near.mT @ near - far.mT @ far)
        if bool(values[-1] >= -values[0]):
            inside.append(undecided @ vectors[:, -1:])
            vectors = vectors[:, :-1]
        else:
            outside += 1
            vectors = vectors[:, 1:]
        undecided = torch.linalg.qr(undecided @ vectors).Q
    if len(inside) < rank:  # all that are still undecided belong inside
        inside.append(undecided)
    if not inside:
        return torch.zeros_like(first)
    return projector_from_basis(torch.linalg.qr(torch.cat(inside, dim=1)).Q)


def _symmetrised(projector: Tensor) -> Tensor:
    """The same projector, rid of the rounding of a change of basis."""
    vectors = torch.linalg.eigh((projector + projector.mT) / 2)
    return projector_from_basis(vectors.eigenvectors[:, vectors.eigenvalues > 0.5])
