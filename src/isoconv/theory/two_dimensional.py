"""2-D kernels: what tells their components apart, and the orthogonal kernel of size 2×2 that BCOP cannot reach.

Note [2-D components]
Adding up the taps of a 2-D orthogonal kernel along one axis leaves a 1-D orthogonal kernel, A(z, 1) if A(z, w) is the
2-D one, and its rank sum is an integer that depends continuously on the taps. So there are three invariants, for
every size: the sign of det H, with H = ΣA_ij, and one rank sum for each axis. For H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ … they
are Σ rank P_i and Σ rank Q_i, and every combination occurs: at least 2((K − 1)n + 1)² components. The paper states
this for K = 2, where it is 2(n + 1)².

Note [2×2 kernels]
For K = 2, A = [A₁ A₂; A₃ A₄], the 1-D kernels have two taps, so they *are* H □ [P I−P] with the projectors
P = Hᵀ(A₁ + A₂) and Q = Hᵀ(A₁ + A₃), the upper row and the left column of taps, for every orthogonal A, in BCOP's
image or not. If A = H □ [P; I−P] □ [Q I−Q], then these are *its* H, P and Q, so they decide: rebuild and compare.

One equation decides as well. BCOP kernels have A₁A₂ᵀ = HPQ(I − Q)PHᵀ = 0, as the paper says. Conversely, let A be
orthogonal with A₁A₂ᵀ = 0, and write Ã for HᵀA. Orthogonality contains A₁A₄ᵀ = A₂A₃ᵀ = 0, and P and Q are symmetric, so

    Ã₁(I − Q) = Ã₁(Ã₂ + Ã₄)ᵀ = 0,    Ã₂Q = Ã₂(Ã₁ + Ã₃)ᵀ = 0,    hence    PQ = (Ã₁ + Ã₂)Q = Ã₁,

and the other taps follow from P and Q being sums of them.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from isoconv.linalg.bcop import bcop_kernel, compose_kernels, projector_column, projector_row
from isoconv.records import require
from isoconv.theory.one_dimensional import projector_families, rank_sum
from isoconv.theory.orthogonality import determinant_sign, orthogonality_tolerance, require_orthogonal, signed_identity


class Component2d(NamedTuple):
    """What tells components of the orthogonal kernels (n, n, K, K) apart; there may be more components than these.

    sign : +1 or −1, the determinant of H
    rank_sum_p : Σ rank P_i (along the height)
    rank_sum_q : Σ rank Q_i (along the width)
    """

    sign: int
    rank_sum_p: int
    rank_sum_q: int


def component_2d(kernel: Tensor, *, tolerance: float | None = None) -> Component2d:
    """Return the invariants of any orthogonal kernel (n, n, K, K), in BCOP's image or not; see Note [2-D components].

    Theorem "Connected Components of 2-D Orthogonal Convolution with K = 2", for every K: kernels that differ in them
    cannot be joined by a path of orthogonal kernels. Computed in float64.
    """
    require_orthogonal(kernel, 2, tolerance)
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    taps = kernel.detach().double()
    # A coefficient of the sum's product with itself adds up 2K − 1 of the kernel's.
    sums = [rank_sum(taps.sum(axis), tolerance=(2 * taps.shape[-1] - 1) * tolerance) for axis in (3, 2)]
    return Component2d(determinant_sign(taps.sum((2, 3))), *sums)


def exhibit_components_2d(
    n: int, K: int = 2, *, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[Component2d, Tensor]]:
    """Yield 2((K − 1)n + 1)² orthogonal kernels (n, n, K, K), no two in one component, each with what it was built for."""
    families = list(enumerate(projector_families(n, K, dtype)))
    for sign, (p, P), (q, Q) in product((1, -1), families, families):
        yield Component2d(sign, p, q), bcop_kernel(signed_identity(n, sign, dtype), P, Q)


def recover_2x2(kernel: Tensor, *, tolerance: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (H, P, Q) of any orthogonal kernel (n, n, 2, 2); see Note [2×2 kernels]. In the precision of the kernel."""
    require(kernel.dim() == 4 and kernel.shape[2:] == (2, 2), "a kernel (n, n, 2, 2)", f"shape {tuple(kernel.shape)}")
    require_orthogonal(kernel, 2, tolerance)
    H = kernel.sum((2, 3))
    return H, H.mT @ kernel[:, :, 0, :].sum(-1), H.mT @ kernel[:, :, :, 0].sum(-1)


def in_bcop_image_2x2(kernel: Tensor, *, tolerance: float | None = None) -> bool:
    """Decide whether an orthogonal kernel (n, n, 2, 2) equals H □ [P; I−P] □ [Q I−Q] for some H, P and Q.

    `tolerance` bounds the orthogonality residual and the largest difference of an entry; by default what rounding
    explains.
    """
    H, P, Q = recover_2x2(kernel.detach(), tolerance=tolerance)
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    return bool((bcop_kernel(H, [P], [Q]) - kernel).abs().max() <= tolerance)


def reordered_kernel(H: Tensor, P: Tensor, Q: Tensor) -> Tensor:
    """Return H □ [Q I−Q] □ [P; I−P]: BCOP's factors for K = 2 with the two axes taken in the other order."""
    return compose_kernels(H[..., None, None], projector_row(Q), projector_column(P))


def incompleteness_example(*, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the paper's orthogonal kernel (2, 2, 2, 2) outside BCOP's image, as printed.

    It is in the appendix "Incompleteness of 2-D …". It equals `reordered_kernel(I, P, Q)` with the printed P = diag(1, 0)
    along the height and Q = ½[1 −1; −1 1] along the width (the paper prints the product with its axes the other way round,
    which is another kernel).
    """
    A1, A2 = [[1, 0], [-1, 0]], [[1, 0], [1, 0]]
    A3, A4 = [[0, -1], [0, 1]], [[0, 1], [0, 1]]
    return torch.tensor([[A1, A2], [A3, A4]], dtype=dtype).permute(2, 3, 0, 1).contiguous() / 2


def as_two_bcop_kernels(H: Tensor, P: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Return two BCOP kernels of size 2×2, (outer, inner), that one after the other are `reordered_kernel(H, P, Q)`.

    Each takes one axis of its own and, along the other, the projector 0, that is [0 I]: with the circular padding of
    an even kernel this is the identity, so outer □ inner is the reordered kernel in the lower right of 3×3 taps, and
    a layer with it is exactly the two layers in turn. They belong to the whole family of kernels, not to the half
    ranks of Algorithm 1.
    """
    none = torch.zeros_like(P)
    return bcop_kernel(H, [none], [Q]), bcop_kernel(torch.eye(P.shape[0], dtype=P.dtype, device=P.device), [P], [none])
