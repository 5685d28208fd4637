"""2-D kernels of size 2×2: their invariants, and the orthogonal kernel that BCOP cannot reach.

Note [2×2 kernels]
Let A = [A₁ A₂; A₃ A₄] be orthogonal. H = ΣA_i is orthogonal, and P = Hᵀ(A₁ + A₂) and Q = Hᵀ(A₁ + A₃), the upper row
and the left column of taps, are symmetric projectors: adding up the taps along one axis leaves a 1-D orthogonal
kernel, which is H □ [P I−P] by completeness. This holds for every orthogonal kernel, in BCOP's image or not, and the
ranks are integers that depend continuously on the kernel: hence the 2(n + 1)² components. If A = H □ [P; I−P] □ [Q
I−Q], then these are *its* H, P and Q, so they decide about membership: rebuild and compare.

One equation decides as well. A₁A₂ᵀ = HPQ(I − Q)PHᵀ = 0 for BCOP kernels; conversely, let A be orthogonal with A₁A₂ᵀ =
0. Writing Ã for HᵀA: Ã₁(I − Q) = Ã₁(Ã₂ + Ã₄)ᵀ = 0 and Ã₂Q = Ã₂(Ã₁ + Ã₃)ᵀ = 0, as A₁A₄ᵀ = A₂A₃ᵀ = 0 anyway, so that PQ
= (Ã₁ + Ã₂)Q = Ã₁, and the other taps follow from P and Q being sums of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.bcop import bcop_kernel
from isoconv.linalg.block_convolution import compose_kernels, projector_column, projector_row
from isoconv.theory.invariants import leading_projector
from isoconv.theory.orthogonality import determinant_sign, orthogonality_tolerance, require_orthogonal


class Component2x2(NamedTuple):
    """What tells components of the orthogonal kernels (n, n, 2, 2) apart; there may be more components than these."""

    sign: int
    """+1 or −1: the determinant of H."""
    rank_p: int
    """The rank of P (rows of taps, height)."""
    rank_q: int
    """The rank of Q (columns of taps, width)."""


def recover_2x2(kernel: Tensor, *, tolerance: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(H, P, Q) of any orthogonal kernel (n, n, 2, 2); see Note [2×2 kernels]. In the precision of the kernel."""
    if kernel.dim() != 4 or kernel.shape[2:] != (2, 2):
        raise IsoconvError(f"Expected a kernel (n, n, 2, 2). Got shape {tuple(kernel.shape)}.")
    require_orthogonal(kernel, 2, tolerance)
    H = kernel.sum((2, 3))
    return H, H.mT @ kernel[:, :, 0, :].sum(-1), H.mT @ kernel[:, :, :, 0].sum(-1)


def component_2x2(kernel: Tensor, *, tolerance: float | None = None) -> Component2x2:
    """The invariants of any orthogonal kernel (n, n, 2, 2).

    Theorem "Connected Components of 2-D Orthogonal Convolution with K = 2": kernels that differ in them cannot be
    joined.
    """
    H, P, Q = recover_2x2(kernel.detach(), tolerance=tolerance)
    return Component2x2(determinant_sign(H), round(float(P.trace())), round(float(Q.trace())))


def exhibit_components_2x2(n: int, *, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Component2x2, Tensor]]:
    """2(n + 1)² orthogonal kernels (n, n, 2, 2), no two in one component, with the invariants they were built for."""
    if n < 1:
        raise IsoconvError(f"Expected n ≥ 1. Got {n}.")
    for sign in (1, -1):
        H = torch.eye(n, dtype=dtype)
        H[0, 0] = sign
        for p in range(n + 1):
            for q in range(n + 1):
                P, Q = leading_projector(n, p, dtype), leading_projector(n, q, dtype)
                yield Component2x2(sign, p, q), bcop_kernel(H, [P], [Q])


def in_bcop_image_2x2(kernel: Tensor, *, tolerance: float | None = None) -> bool:
    """Whether an orthogonal kernel (n, n, 2, 2) equals H □ [P; I−P] □ [Q I−Q] for some H, P and Q: a complete decision.

    `tolerance` bounds the orthogonality residual and the largest difference of an entry; by default what rounding
    explains.
    """
    H, P, Q = recover_2x2(kernel.detach(), tolerance=tolerance)
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    return bool((bcop_kernel(H, [P], [Q]) - kernel).abs().max() <= tolerance)


def reordered_kernel(H: Tensor, P: Tensor, Q: Tensor) -> Tensor:
    """H □ [Q I−Q] □ [P; I−P]: BCOP's factors for K = 2 with the two axes taken in the other order."""
    return compose_kernels(H[..., None, None], projector_row(Q), projector_column(P))


def incompleteness_example(*, dtype: torch.dtype = torch.float64) -> Tensor:
    """The paper's orthogonal kernel (2, 2, 2, 2) outside BCOP's image (appendix "Incompleteness of 2-D …"), as printed.

    It equals `reordered_kernel(I, P, Q)` with the printed P = diag(1, 0) along the height and Q = ½[1 −1; −1 1] along
    the width (the paper prints the product with its axes the other way round, which is another kernel).
    """
    A1, A2 = [[1, 0], [-1, 0]], [[1, 0], [1, 0]]
    A3, A4 = [[0, -1], [0, 1]], [[0, 1], [0, 1]]
    return torch.tensor([[A1, A2], [A3, A4]], dtype=dtype).permute(2, 3, 0, 1).contiguous() / 2


def as_two_bcop_kernels(H: Tensor, P: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Two BCOP kernels of size 2×2, (outer, inner), that one after the other are `reordered_kernel(H, P, Q)`.

    Each takes one axis of its own and, along the other, the projector 0, that is [0 I]: with the circular padding of
    an even kernel this is the identity, so outer □ inner is the reordered kernel in the lower right of 3×3 taps, and
    a layer with it is exactly the two layers in turn. They belong to the whole family of kernels, not to the half
    ranks of Algorithm 1.
    """
    none = torch.zeros_like(P)
    return bcop_kernel(H, [none], [Q]), bcop_kernel(torch.eye(P.shape[0], dtype=P.dtype, device=P.device), [P], [none])
