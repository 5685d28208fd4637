"""1-D kernels: every orthogonal one is H □ [P₁ I−P₁] □ … □ [P_{K−1} I−P_{K−1}], and two invariants tell components apart.

The invariants are the sign of det H and the sum of the projectors' ranks: no path of orthogonal kernels changes them. Many
factors make one kernel: rank moves between neighbouring projectors (the paper, "Equivalent SOCK Construction").

Note [Rank sum]
With A(z) = Σ_j A_j z^j = H Π_i (P_i + z(I − P_i)) and each factor equal to zI + (1 − z)P_i, multiplying out gives

    A(z) = Σ_k z^k (1 − z)^{K−1−k} B_k,    B_k = H Σ_{|δ| = k} Π_i [P_i or, where δ_i = 1, I],

the paper's Lemma "Kernel Element Decomposition" in one line. Substituting u = z/(1 − z) gives the inverse in closed
form, B(u) = Σ_j A_j u^j (1 + u)^{K−1−j}. From the kernel alone: H = A(1) = Σ_j A_j = B_{K−1}, and B_{K−2} = H Σ_i
P_i, whose trace against H is the rank sum. It is continuous and an integer, hence constant on connected sets of
kernels. It is a winding number, too: det A(z) = det H · z^{(K−1)n − Σ rank P_i}.

Note [Peeling]
Let A = W □ [P I−P] with one tap less in W. Then A_0 = W_0 P and A_{K−1} = W_{K−2}(I − P), so

    A_0 (I − P) = 0    and    A_{K−1} P = 0.                                                          (∗)

Conversely, for any P with (∗), W_i = A_i P + A_{i+1}(I − P) has K − 1 taps (the outer two are the products in (∗))
and is orthogonal as a product of orthogonal kernels. Orthogonality of A contains A_0 A_{K−1}ᵀ = 0: the row spaces of
the outer taps are perpendicular, so a P exists. K − 1 peelings prove the theorem. The same works from the left, with
columns.

In floating point the question "what is the rank of A_0?" has no good answer: its singular values can be of any size
between 1 and eps. It need not be asked. The rank sum is an integer that the taps give exactly (Note [Rank sum]), and
the kernel has factors of every balanced rank tuple with this sum ("Canonical Submanifold Dominates"), so the rank of
each P is known beforehand. P is then the best one of its rank: the one that minimises ‖A_0(I − P)‖² + ‖A_{K−1}P‖²,
chosen direction by direction, strongest first, and each time among what is perpendicular to those before, so that a
direction in which the outer taps are of size s is found with an error of eps/s and costs eps.

What remains: where s is small, P can differ by eps/s from the one that the kernel was made from, and the middle taps
notice. Then another order of peeling from the right and from the left does better; `factorise` tries some and keeps
the best.

Note [Pair equivalence]
The product of two neighbouring factors depends on their sum and product only:

    [P I−P] □ [Q I−Q] = [PQ,  P + Q − 2PQ,  I − P − Q + PQ].

A unit vector x in the range of P and orthogonal to the range of Q can be handed over, P − xxᵀ and Q + xxᵀ: the sum
stays, and both products stay since (P − xxᵀ)(Q + xxᵀ) = PQ − x(Qx)ᵀ + (Px)xᵀ − xxᵀ = PQ. If rank P > rank Q there
always is such an x, for the two subspaces' dimensions add up to more than n. So rank flows from the larger to the
smaller neighbour, and every kernel can be written with ranks as equal as their sum allows.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, pairwise, permutations, product
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.linalg.bcop import bcop_kernel_1d, block_convolve, is_projector, projector_from_basis, projector_rank
from isoconv.linalg.spectrum import circular_symbol

_MOST_ORDERS = 64
Factors = tuple[Tensor, list[Tensor]]


class Component(NamedTuple):
    """A connected component of the 1-D orthogonal kernels of one shape (n, n, K).

    sign : +1 or −1, the determinant of H
    rank_sum : Σ rank P_i, between 0 and (K − 1)n
    """

    sign: int
    rank_sum: int


def kernel_elements(kernel: Tensor) -> Tensor:
    """Return B_0 … B_{K−1} of the Lemma "Kernel Element Decomposition", from the taps A_j alone; shape and precision stay.

    This is the Corollary "Triangular Map between A and B", solved: B_k = Σ_{j ≤ k} C(K−1−j, k−j) A_j.
    """
    return _combine_taps(kernel, 1)


def kernel_from_elements(elements: Tensor) -> Tensor:
    """Return the inverse of `kernel_elements`: A_j = Σ_{i ≤ j} (−1)^{j−i} C(K−1−i, j−i) B_i, the Lemma as it is stated."""
    return _combine_taps(elements, -1)


def rank_sum(kernel: Tensor, *, tolerance: float | None = None) -> int:
    """Return Σ rank P_i of any factorisation of a 1-D orthogonal kernel (n, n, K), from its taps; see Note [Rank sum].

    Computed in float64. `tolerance` is how far from orthogonal the kernel may be, by default what rounding explains.
    """
    require_orthogonal(kernel, 1, tolerance)
    taps = kernel.detach().double()
    weights = torch.arange(taps.shape[-1] - 1, -1, -1, dtype=taps.dtype, device=taps.device)
    return round(float((taps.sum(-1) * (taps * weights).sum(-1)).sum()))


def component(kernel: Tensor, *, tolerance: float | None = None) -> Component:
    """Return the connected component of a 1-D orthogonal kernel.

    Theorem "Connected Components of 1-D Orthogonal Convolution": two kernels of one shape can be joined by a path of
    orthogonal kernels exactly if this agrees; `path` is that path.
    """
    total = rank_sum(kernel, tolerance=tolerance)
    return Component(determinant_sign(kernel.detach().double().sum(-1)), total)


def exhibit_components(n: int, K: int, *, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Component, Tensor]]:
    """Yield one kernel (n, n, K) from each of the 2(K − 1)n + 2 components, with the component that it was built for."""
    for sign, (total, projectors) in product((1, -1), enumerate(projector_families(n, K, dtype))):
        yield Component(sign, total), bcop_kernel_1d(signed_identity(n, sign, dtype), projectors)


def separation(kernel_a: Tensor, kernel_b: Tensor, *, frequencies: int = 256) -> float:
    """Estimate the operator norm of the difference of two convolutions: the largest over so many frequencies.

    Kernels of different components are exactly 2 apart, as far as two isometries can be: were ‖A(z) − B(z)‖ < 2 for
    all |z| = 1, no A(z)ᴴB(z) would have the eigenvalue −1, its logarithm would join A to B by loops of unitary
    matrices, and neither the winding number of the determinant nor its value at z = 1 could differ.
    """
    require_one_shape("kernels", kernel_a, kernel_b)
    difference = circular_symbol((kernel_a - kernel_b).detach().double(), frequencies)
    return float(torch.linalg.matrix_norm(difference, ord=2).max())


def projector_families(n: int, K: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Return K − 1 diagonal projectors for each rank sum from 0 to (K − 1)n."""
    require(n >= 1 and K >= 1, "n, K ≥ 1", f"n = {n} and K = {K}")
    totals = range((K - 1) * n + 1)
    return [[leading_projector(n, rank, dtype) for rank in canonical_ranks(n, K, total)] for total in totals]


def _combine_taps(kernel: Tensor, sign: int) -> Tensor:
    """Return the taps Σ_{j ≤ k} sign^{k−j} C(K−1−j, k−j) · tap j for each k."""
    fits = kernel.dim() == 3 and kernel.shape[-1] > 0
    require(fits, "a 1-D kernel (c_out, c_in, K)", f"shape {tuple(kernel.shape)}")
    K = kernel.shape[-1]
    coefficients = [[sign ** (k - j) * comb(K - 1 - j, k - j) if j <= k else 0 for j in range(K)] for k in range(K)]
    return kernel @ torch.tensor(coefficients, dtype=kernel.dtype, device=kernel.device).mT


def factorise(kernel: Tensor, *, tolerance: float | None = None) -> Factors:
    """Return (H, [P₁ … P_{K−1}]) with `bcop_kernel_1d(H, P)` equal to a 1-D orthogonal kernel (n, n, K).

    This is Theorem "Completeness". H is orthogonal and each P_i a symmetric projector to rounding, with the canonical
    ranks. Computed in float64 and returned in the kernel's precision. A kernel that is orthogonal to rounding because
    it was made by a formula is met to about 1e-14, degenerate ones included; those that almost degenerate (projectors
    at 1e-4 … 1e-12 from containing each other) can lose digits, down to 1e-9.

    `tolerance` is how far from orthogonal the kernel may be, by default what rounding explains. The result always is
    an exact kernel, but it need not be as close as the residual says: the set of orthogonal kernels has singular
    points. The scalar taps (ε, 1, −ε) have a residual of ε² and are ε away; with more taps it can be worse.
    """
    total, taps = rank_sum(kernel, tolerance=tolerance), kernel.detach().double()
    n, _, K = taps.shape
    ranks = canonical_ranks(n, K, total)
    good_enough = orthogonality_tolerance(taps) + 2 * orthogonality_residual(kernel)
    H, projectors, best_error = taps[..., 0], list[Tensor](), float("inf")
    for order in islice(_orders(K - 1), _MOST_ORDERS):
        factors = _peel(taps, ranks, order)
        error = float((bcop_kernel_1d(*factors) - taps).abs().max())
        if error < best_error:
            (H, projectors), best_error = factors, error
        if best_error <= good_enough:
            break
    return H.to(kernel.dtype), [p.to(kernel.dtype) for p in projectors]


def _orders(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield orders of peeling, True for "from the right": all from one side first, then those that mix more and more."""
    for minority in range(count // 2 + 1):
        for places in combinations(range(count), minority):
            yield tuple(i not in places for i in range(count))
            yield tuple(i in places for i in range(count))


def _peel(kernel: Tensor, ranks: Sequence[int], order: Sequence[bool]) -> Factors:
    taps, remaining = kernel.unbind(-1), list(ranks)
    left, right = list[Tensor](), list[Tensor]()
    for from_right in order:
        if from_right:
            P = _best_projector(taps[0], taps[-1], remaining.pop())
            taps = tuple(near @ P + (far - far @ P) for near, far in pairwise(taps))
            right.insert(0, P)
        else:
            P = _best_projector(taps[0].mT, taps[-1].mT, remaining.pop(0))
            taps = tuple(P @ near + (far - P @ far) for near, far in pairwise(taps))
            left.append(P)
    factors = torch.linalg.svd(taps[0])
    H = factors.U @ factors.Vh  # the nearest orthogonal matrix; the tap need not be invertible
    # [P I−P] □ H = H □ [HᵀPH I−HᵀPH]: what was peeled from the left moves to the right of H.
    return H, [_symmetrised(H.mT @ p @ H) for p in left] + right


def _best_projector(first: Tensor, last: Tensor, rank: int) -> Tensor:
    """Return the projector of this rank with `first`·(I − P) ≈ 0 and `last`·P ≈ 0; see Note [Peeling]."""
    n = first.shape[1]
    undecided = torch.eye(n, dtype=first.dtype, device=first.device)
    inside, outside = list[Tensor](), 0
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
    """Return the same projector, rid of the rounding of a change of basis."""
    vectors = torch.linalg.eigh((projector + projector.mT) / 2)
    return projector_from_basis(vectors.eigenvectors[:, vectors.eigenvalues > 0.5])


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
        current[high], current[low] = current[high] - 1, current[low] + 1
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


# How far a kernel is from orthogonal, and the checks that every theorem begins with -------------------------------


def orthogonality_residual(kernel: Tensor) -> float:
    """Return the largest entry of W □ Wᵀ − I, or of Wᵀ □ W − I if there are more outputs than inputs; computed in float64.

    Wᵀ is the adjoint convolution: matrices transposed, taps reversed. The residual is zero exactly if the circular
    convolution with this 1-D or 2-D kernel is orthogonal on every image that is large enough for its taps not to meet.
    """
    weight = kernel.detach().double()
    adjoint = weight.transpose(0, 1).flip(tuple(range(2, weight.dim())))
    product = block_convolve(weight, adjoint) if weight.shape[0] <= weight.shape[1] else block_convolve(adjoint, weight)
    centre = product.movedim((0, 1), (-2, -1))[tuple(size - 1 for size in weight.shape[2:])]
    centre -= torch.eye(len(centre), dtype=product.dtype, device=product.device)  # in place, in `product`
    return float(product.abs().max())


def orthogonality_tolerance(kernel: Tensor) -> float:
    """Return what rounding may leave of `orthogonality_residual`: ten times the terms of one sum times eps of the kernel."""
    return 10 * kernel[0].numel() * torch.finfo(kernel.dtype).eps


def require_orthogonal(kernel: Tensor, dimensions: int, tolerance: float | None = None) -> float:
    """Raise if this is not the kernel of a square orthogonal convolution to the tolerance, and return that."""
    shape = "(n, n" + ", K" * dimensions + ")"
    square = kernel.dim() == 2 + dimensions and kernel.shape[0] == kernel.shape[1] and len(set(kernel.shape[2:])) == 1
    fits = square and kernel.numel() > 0 and kernel.is_floating_point()
    require(fits, f"a square floating-point kernel {shape}", describe(kernel))
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    residual = orthogonality_residual(kernel)
    bound = f"an orthogonal kernel, ‖W □ Wᵀ − I‖_max ≤ {tolerance:.1e}"
    require(residual <= tolerance, bound, f"a residual of {residual:.1e}")  # NaN is refused too
    return tolerance


def require_orthonormal_rows(matrix: Tensor) -> None:
    """Raise if the rows of H, which BCOP's kernels are built on, are not orthonormal."""
    residual = orthogonality_residual(matrix[..., None]) if matrix.dim() == 2 and matrix.numel() else float("nan")
    got = f"a residual of {residual:.1e} at shape {tuple(matrix.shape)}"
    require(residual <= orthogonality_tolerance(matrix), "H to have orthonormal rows", got)


def require_projector(projector: Tensor) -> int:
    """Return the rank of a symmetric projector, and raise if this is none."""
    fits = projector.dim() == 2 and projector.is_floating_point() and is_projector(projector)
    require(fits, "a symmetric projector, P = Pᵀ = P²", describe(projector))
    return int(projector_rank(projector))


def range_basis(projector: Tensor) -> Tensor:
    """Return an orthonormal basis (n, rank) of the range of a symmetric projector."""
    rank = require_projector(projector)
    # Eigenvalues come in ascending order, and a projector's are zeros and ones.
    return torch.linalg.eigh((projector + projector.mT) / 2).eigenvectors[:, len(projector) - rank :]


def leading_projector(n: int, rank: int, dtype: torch.dtype) -> Tensor:
    """Return diag(1, …, 1, 0, …, 0) with `rank` ones."""
    return torch.diag((torch.arange(n) < rank).to(dtype))


def signed_identity(n: int, sign: int, dtype: torch.dtype) -> Tensor:
    """Return diag(sign, 1, …, 1)."""
    return torch.diag(torch.tensor([sign] + [1] * (n - 1), dtype=dtype))


def describe(tensor: Tensor) -> str:
    """Return the type and shape of a tensor in words."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def is_square(matrix: Tensor) -> bool:
    return matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]


def require_one_shape(what: str, a: Tensor, b: Tensor) -> None:
    """Raise if two tensors differ in shape."""
    require(a.shape == b.shape, f"two {what} of one shape", f"{tuple(a.shape)} and {tuple(b.shape)}")


def require_orthogonal_matrix(H: Tensor) -> int:
    """Raise if H is not a square orthogonal matrix, and return the sign of its determinant."""
    require(is_square(H), "a square matrix H (n, n)", describe(H))
    require_orthonormal_rows(H)
    return determinant_sign(H)


def determinant_sign(matrix: Tensor) -> int:
    """Return +1 or −1 for an orthogonal matrix."""
    return 1 if float(torch.linalg.det(matrix)) > 0 else -1
