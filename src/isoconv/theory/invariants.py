"""What a 1-D orthogonal kernel cannot change along a path: the sign of det H and the sum of its projectors' ranks.

Note [Rank sum]
With A(z) = Σ_j A_j z^j = H Π_i (P_i + z(I − P_i)) and each factor equal to zI + (1 − z)P_i, multiplying out gives

    A(z) = Σ_k z^k (1 − z)^{K−1−k} B_k,    B_k = H Σ_{|δ| = k} Π_i [P_i or, where δ_i = 1, I],

the paper's Lemma "Kernel Element Decomposition" in one line. Substituting u = z/(1 − z) gives the inverse in closed
form, B(u) = Σ_j A_j u^j (1 + u)^{K−1−j}. From the kernel alone: H = A(1) = Σ_j A_j = B_{K−1}, and B_{K−2} = H Σ_i
P_i, whose trace against H is the rank sum. It is continuous and an integer, hence constant on connected sets of
kernels. It is a winding number, too: det A(z) = det H · z^{(K−1)n − Σ rank P_i}.
"""

from collections.abc import Iterator
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.bcop import bcop_kernel_1d
from isoconv.linalg.spectrum import circular_symbol
from isoconv.theory.orthogonality import determinant_sign, require_orthogonal
from isoconv.theory.rank_balancing import canonical_ranks


class Component(NamedTuple):
    """A connected component of the 1-D orthogonal kernels of one shape (n, n, K)."""

    sign: int
    """+1 or −1: the determinant of H."""
    rank_sum: int
    """Σ rank P_i, between 0 and (K − 1)n."""


def kernel_elements(kernel: Tensor) -> Tensor:
    """B_0 … B_{K−1} of the Lemma "Kernel Element Decomposition", from the taps A_j alone; shape and precision stay.

    This is the Corollary "Triangular Map between A and B", solved: B_k = Σ_{j ≤ k} C(K−1−j, k−j) A_j.
    """
    m = _degree(kernel)
    return _apply(kernel, [[comb(m - j, k - j) if j <= k else 0 for j in range(m + 1)] for k in range(m + 1)])


def kernel_from_elements(elements: Tensor) -> Tensor:
    """The inverse of `kernel_elements`: A_j = Σ_{i ≤ j} (−1)^{j−i} C(K−1−i, j−i) B_i, the Lemma as it is stated."""
    m = _degree(elements)
    coefficients = [[(-1) ** (j - i) * comb(m - i, j - i) if i <= j else 0 for i in range(m + 1)] for j in range(m + 1)]
    return _apply(elements, coefficients)


def rank_sum(kernel: Tensor, *, tolerance: float | None = None) -> int:
    """Σ rank P_i of any factorisation of a 1-D orthogonal kernel (n, n, K), from its taps; see Note [Rank sum].

    Computed in float64. `tolerance` is how far from orthogonal the kernel may be, by default what rounding explains.
    """
    require_orthogonal(kernel, 1, tolerance)
    taps = kernel.detach().double()
    weights = torch.arange(taps.shape[-1] - 1, -1, -1, dtype=taps.dtype, device=taps.device)
    return round(float((taps.sum(-1) * (taps * weights).sum(-1)).sum()))


def component(kernel: Tensor, *, tolerance: float | None = None) -> Component:
    """The connected component of a 1-D orthogonal kernel.

    Theorem "Connected Components of 1-D Orthogonal Convolution": two kernels of one shape can be joined by a path of
    orthogonal kernels exactly if this agrees; `path` is that path.
    """
    total = rank_sum(kernel, tolerance=tolerance)
    return Component(determinant_sign(kernel.detach().double().sum(-1)), total)


def exhibit_components(n: int, K: int, *, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Component, Tensor]]:
    """One kernel (n, n, K) from each of the 2(K − 1)n + 2 components, with the component that it was built for."""
    if n < 1 or K < 1:
        raise IsoconvError(f"Expected n, K ≥ 1. Got n = {n} and K = {K}.")
    for sign in (1, -1):
        H = torch.eye(n, dtype=dtype)
        H[0, 0] = sign
        for total in range((K - 1) * n + 1):
            projectors = [leading_projector(n, rank, dtype) for rank in canonical_ranks(n, K, total)]
            yield Component(sign, total), bcop_kernel_1d(H, projectors)


def separation(kernel_a: Tensor, kernel_b: Tensor, *, frequencies: int = 256) -> float:
    """The operator norm of the difference of two convolutions: the largest over `frequencies` frequencies, an estimate.

    Kernels of different components are exactly 2 apart, as far as two isometries can be: were ‖A(z) − B(z)‖ < 2 for
    all |z| = 1, no A(z)ᴴB(z) would have the eigenvalue −1, its logarithm would join A to B by loops of unitary
    matrices, and neither the winding number of the determinant nor its value at z = 1 could differ.
    """
    if kernel_a.shape != kernel_b.shape:
        raise IsoconvError(
            f"Expected two kernels of one shape. Got {tuple(kernel_a.shape)} and {tuple(kernel_b.shape)}."
        )
    difference = circular_symbol((kernel_a - kernel_b).detach().double(), frequencies)
    return float(torch.linalg.matrix_norm(difference, ord=2).max())


def leading_projector(n: int, rank: int, dtype: torch.dtype) -> Tensor:
    """diag(1, …, 1, 0, …, 0) with `rank` ones."""
    return torch.diag((torch.arange(n) < rank).to(dtype))


def _degree(kernel: Tensor) -> int:
    if kernel.dim() != 3 or kernel.shape[-1] == 0:
        raise IsoconvError(f"Expected a 1-D kernel (c_out, c_in, K). Got shape {tuple(kernel.shape)}.")
    return kernel.shape[-1] - 1


def _apply(kernel: Tensor, coefficients: list[list[int]]) -> Tensor:
    """Tap k of the result is Σ_j coefficients[k][j] · tap j."""
    return kernel @ torch.tensor(coefficients, dtype=kernel.dtype, device=kernel.device).mT
