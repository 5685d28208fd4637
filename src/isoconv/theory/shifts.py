"""Rotations and pixel shifts: what BCOP's kernels are made of, and all that isometric depthwise convolutions can be.

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

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg.bcop import compose_kernels, projector_column, projector_row
from isoconv.records import require
from isoconv.theory.orthogonality import describe, leading_projector, require_projector


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
