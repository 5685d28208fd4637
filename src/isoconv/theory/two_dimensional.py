"""2-D kernels: their components, what BCOP cannot reach, how twice the channels make one component, and shifts.

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

Note [Doubling]
Theorem "BCOP Construction with Auxiliary Dimension": twice the channels, one component.
Every projector P of rank k becomes diag(P, S) with S of rank n − k, so that all ranks are n; H becomes diag(H, D).
The upper n channels never see the lower, "dummy" ones. The paper takes D = I, which leaves the sign of det H and with
it two components; D = diag(det H, 1, …, 1) puts everything into one.

Note [Where the dummies go]
MaxMin pairs channel i with channel i + C/2. With the real channels first, a doubled layer would pair each of them
with a dummy. So the channels of a doubled *network* are ordered in four blocks of n/2: first half of the real ones,
dummies, second half of the real ones, dummies. Real channels then meet the partners that they had before.

Note [Rotated shifts]
Let P = R₁R₁ᵀ be a projector, R = [R₁ R₂] orthogonal, and D = diag(1, …, 1, 0, …, 0) of the same rank. Then
[P  I−P] = R □ [D  I−D] □ Rᵀ: block convolution with matrices multiplies the taps, RDRᵀ = P, and R(I − D)Rᵀ = I − P. The
factor in the middle leaves the first channels where they are and moves the others by one pixel. So each of BCOP's factors
rotates the channels, shifts some of them and rotates back, and a kernel is the product of these. A network need not
multiply it out.

Note [Isometric depthwise convolutions]
Let w be a real filter with finitely many taps w_t ≠ 0, t in ℤ or ℤ². Its circular convolution is an isometry on every size
if and only if Σ_t w_t w_{t+τ} is 1 for τ = 0 and 0 otherwise: on a size that is large enough for no two differences of
taps to meet, this is what wᵀw = I says, and it implies it on all others. Order the taps lexicographically, and let a be
the first and b the last. A pair of taps t, t + (b − a) has t ≥ a and t + (b − a) ≤ b, so t = a: at τ = b − a the sum is the
one product w_a w_b ≠ 0. Hence b = a. There is one tap, and its square is 1: the filter is a shift, up to the sign. On one
size alone there are others: (−1, 1, 1, 1)/2 is an isometry on four pixels, where its differences meet.

So among the depthwise convolutions with orthonormal weights there is nothing to learn but whole numbers, and a network
of isometries that are cheap in space is one of shifts.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.linalg.bcop import bcop_kernel, compose_kernels, projector_column, projector_row
from isoconv.theory.one_dimensional import (
    describe,
    determinant_sign,
    leading_projector,
    orthogonality_tolerance,
    projector_families,
    rank_sum,
    require_orthogonal,
    require_orthogonal_matrix,
    require_orthonormal_rows,
    require_projector,
    signed_identity,
)


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
    tolerance = require_orthogonal(kernel, 2, tolerance)
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


class BCOPFactors(NamedTuple):
    """What a 2-D BCOP kernel is made of: `bcop_kernel(H, P, Q)`.

    H : (c_out, c_in), c_out ≤ c_in, with orthonormal rows
    P : K − 1 symmetric projectors (c_in, c_in) along the height
    Q : K − 1 symmetric projectors (c_in, c_in) along the width
    """

    H: Tensor
    P: list[Tensor]
    Q: list[Tensor]


class BCOPNetwork(NamedTuple):
    """Convolutions with MaxMin after each, then one matrix on the flattened features.

    The first convolution widens, as a network's first layer does: its kernel is built for the swapped channels, H of
    shape (m, n), and transposed. The others have n channels in and out. `head` is (classes, n·height·width).
    """

    first: BCOPFactors
    rest: list[BCOPFactors]
    head: Tensor

    def kernels(self) -> list[Tensor]:
        """Return the convolutions' weights, (n, m, K, K) and then (n, n, K, K)."""
        return [bcop_kernel(*self.first).transpose(0, 1), *(bcop_kernel(*layer) for layer in self.rest)]


def double(H: Tensor, P: Sequence[Tensor], Q: Sequence[Tensor]) -> BCOPFactors:
    """Return (H', P', Q') on 2n channels: all ranks n, det H' = 1, C'(x)_{1:n} = C(x_{1:n}); in the input's precision."""
    sign = require_orthogonal_matrix(H)
    dummy = signed_identity(H.shape[0], sign, H.dtype).to(H.device)
    return BCOPFactors(torch.block_diag(H, dummy), [_double_projector(p) for p in P], [_double_projector(q) for q in Q])


def double_network(network: BCOPNetwork) -> BCOPNetwork:
    """Return the same function with 2n channels, where every projector has half rank and every square H determinant 1.

    The first layer's H gets n zero columns (its dummies are 0 throughout), the head zero columns for the dummies. The
    channels are ordered as in Note [Where the dummies go]; `real_channels(n)` says where those of a bias, say, are now.
    """
    first, rest, head = network
    fits = first.H.dim() == 2 and first.H.shape[0] <= first.H.shape[1]
    require(fits, "a first layer with H (m, n), m ≤ n", f"shape {tuple(first.H.shape)}")
    n = first.H.shape[1]
    require_orthonormal_rows(first.H)
    shapes = sorted({tuple(layer.H.shape) for layer in rest})
    require(shapes in ([], [(n, n)]), f"H of shape ({n}, {n}) after the first layer", shapes)
    fits = head.dim() == 2 and head.shape[1] % n == 0
    require(fits, f"a head (classes, {n}·height·width)", f"shape {tuple(head.shape)}")
    order = _channel_order(n).to(head.device)

    def arrange(H: Tensor, *families: Sequence[Tensor]) -> BCOPFactors:
        return BCOPFactors(H[:, order], *([p[order][:, order] for p in family] for family in families))

    widened = torch.cat([first.H, torch.zeros_like(first.H)], dim=1)
    families = ([_double_projector(p) for p in family] for family in (first.P, first.Q))
    doubled = [double(*layer) for layer in rest]
    layers = [arrange(H[order], P, Q) for H, P, Q in doubled]
    per_channel = head.reshape(head.shape[0], n, -1)
    padded = torch.cat([per_channel, torch.zeros_like(per_channel)], dim=1)
    return BCOPNetwork(arrange(widened, *families), layers, padded[:, order].flatten(1))


def real_channels(n: int) -> Tensor:
    """Return where channel i of n stands among the 2n channels of a doubled network."""
    return torch.argsort(_channel_order(n))[:n]


def _double_projector(projector: Tensor) -> Tensor:
    n, rank = projector.shape[0], require_projector(projector)
    return torch.block_diag(projector, leading_projector(n, n - rank, projector.dtype).to(projector.device))


def _channel_order(n: int) -> Tensor:
    """Return which of the channels "n real ones, then n dummies" stands at each place of a doubled layer."""
    require(n % 2 == 0, "an even number of channels, since MaxMin pairs them", n)
    channels = torch.arange(2 * n).reshape(2, 2, n // 2)  # real or dummy, half, place
    return channels.transpose(0, 1).reshape(-1)


# Rotations and pixel shifts ---------------------------------------------------------------------------------------


class RotatedShift(NamedTuple):
    """Rotate the channels by Rᵀ, move all but the first `staying` of them by one pixel along an axis, rotate back by R.

    rotation : R, an orthogonal matrix (n, n)
    axis : 0 for the height, 1 for the width
    """

    rotation: Tensor
    staying: int
    axis: int

    def kernel(self) -> Tensor:
        """Return the kernel of the three in turn, (n, n, 2, 1) or (n, n, 1, 2)."""
        R = self.rotation[..., None, None]
        D = leading_projector(len(self.rotation), self.staying, self.rotation.dtype)
        return compose_kernels(R, (projector_column, projector_row)[self.axis](D), R.transpose(0, 1))


def bcop_as_shifts(P: Sequence[Tensor], Q: Sequence[Tensor]) -> list[RotatedShift]:
    """Return the factors of H □ [P₁; I−P₁] □ [Q₁ I−Q₁] □ … behind H as rotated shifts; see Note [Rotated shifts]."""
    shifts = []
    for pair in zip(P, Q, strict=True):
        for axis, projector in enumerate(pair):
            # Eigenvalues come in ascending order, and a projector's are zeros and ones.
            rotation = torch.linalg.eigh((projector + projector.mT) / 2).eigenvectors.flip(1)
            shifts.append(RotatedShift(rotation, require_projector(projector), axis))
    return shifts


def kernel_of_shifts(H: Tensor, shifts: Sequence[RotatedShift]) -> Tensor:
    """Return the kernel (c_out, c_in, K, K') of a chain of rotated shifts, the last one first, and then H."""
    return compose_kernels(H[..., None, None], *(shift.kernel() for shift in shifts))


class DepthwiseShift(NamedTuple):
    """What a depthwise kernel is closest to. It is that, for a `defect` of 0, and no isometry otherwise.

    sign, tap : of the largest tap of each channel: (C,) numbers ±1, and (C, d) indices
    defect : the largest entry of Σ_t w_t w_{t+τ} − δ_τ over all channels and τ; float64
    """

    sign: Tensor
    tap: Tensor
    defect: float


def depthwise_shift(kernel: Tensor) -> DepthwiseShift:
    """Return the signed shift that a depthwise kernel (C, 1, K) or (C, 1, K, K') is, or how far from isometric it is.

    By Note [Isometric depthwise convolutions] a circular convolution with one filter per channel that is an isometry on
    every size moves each channel by whole pixels, up to the sign. Computed in float64.
    """
    fits = kernel.dim() in (3, 4) and kernel.shape[1] == 1 and kernel.numel() > 0 and kernel.is_floating_point()
    require(fits, "a depthwise kernel (C, 1, K) or (C, 1, K, K')", describe(kernel))
    taps = kernel.detach().double().reshape(len(kernel), 1, kernel.shape[2], -1)
    rows, columns = taps.shape[2:]
    products = F.conv2d(taps.transpose(0, 1), taps, padding=(rows - 1, columns - 1), groups=len(taps))[0]
    products[:, rows - 1, columns - 1] -= 1
    largest = taps.flatten(1).abs().argmax(dim=1)
    tap = torch.stack([largest // columns, largest % columns], dim=1)[:, : kernel.dim() - 2]
    return DepthwiseShift(taps.flatten(1).gather(1, largest[:, None])[:, 0].sign(), tap, float(products.abs().max()))
