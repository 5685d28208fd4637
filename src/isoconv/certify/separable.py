"""Average pooling of every kind and linear interpolation: one matrix of non-negative weights for each axis of an image.

Note [Separable maps]
A window of average pooling is a product of intervals, and what its sum is divided by is a product of one number per
axis: the map is the Kronecker product of a matrix A per axis, whose rows hold 1/divisor on an interval. So is bilinear
interpolation, with rows (1 − λ, λ). The norm is the product of the matrices' norms.

A has no negative entries. For every positive vector v, ‖A‖² = ‖AAᵀ‖ ≤ maxᵢ (AAᵀv)ᵢ/vᵢ (Collatz and Wielandt), with
equality for the leading eigenvector. We take for v what some steps of the power iteration make of ones, as the floats
that they are. Entries are rounded to nearest, and sums of non-negative terms are off by a relative γ, which is added
many times over: so that a checker whose v is rounded otherwise finds no larger bound.

Note [Rounding of separable maps]
Average pooling is a sum of n products with equal weights of one sign, ‖|A|‖ = ‖A‖; the division takes one rounding, or
one for each axis. Sums of k terms along one axis and of m along the other, with rounded weights, round k + m + 2 ≤ km +
3 times: n = km + 2.

Interpolation takes output i from the position first + i·step of an axis of N pixels, kept within it. Libraries compute
the position with at most 5 roundings of numbers up to N + ½, and the `first` and `step` of our settings are within 2
roundings of theirs: positions are off by at most δ = 8u(N + 1). Interpolation is piecewise linear in the position, so a
row is off by at most δ in each of three neighbouring pixels. The step is at least N/(2·outputs), and half a pixel at
either end is cut off, so at most c = 5·max(1, outputs/N) rows lie between the same two pixels, and this difference has
norm at most δ·√(3·3c). As rows have norms of at least √½, ‖A‖² ≥ ‖A‖_F²/min(N, outputs) ≥ max(1, outputs/N)/2: a
relative 3√10·δ < 80u(N + 1) per axis. The weights, their products and the sum of four terms round 9 times: n = 80·Σ(N +
1) + 9, A = the bound.
"""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoconv.linalg.rounding import gamma, mul_up, sqrt_up, up

if TYPE_CHECKING:
    from isoconv.certify.rules import Node

_STEPS = 64  # of the power iteration
_ROOM = 256  # times the rounding of one step: a checker's vector is rounded otherwise


def separable_bound(node: "Node") -> float:
    """Return an upper bound of the norm; see Note [Separable maps]."""
    return mul_up(*(_axis_bound(places, weights.abs(), size) for places, weights, size in axis_taps(node)))


def axis_taps(node: "Node") -> list[tuple[Tensor, Tensor, int]]:
    """Return (places, weights, size) per axis: output i is Σ_k weights[i, k]·x[places[i, k]], x of `size` numbers."""
    sizes = node.input_shape[1:]
    if "factors" in node.settings:
        return [_interpolation(size, **axis) for size, axis in zip(sizes, node.settings["factors"], strict=True)]
    return [_average(node, axis, size) for axis, size in enumerate(sizes)]


def _average(node: "Node", axis: int, size: int) -> tuple[Tensor, Tensor, int]:
    settings, outputs = node.settings, torch.arange(node.output_shape[axis + 1])
    if "output_size" in settings:
        start, end = outputs * size // len(outputs), -(-(outputs + 1) * size // len(outputs))
        divisor = end - start
    else:
        taps, stride, padding = (settings[name][axis] for name in ("kernel_size", "stride", "padding"))
        start = outputs * stride - padding
        end = (start + taps).clamp(max=size + padding)  # what ceil_mode adds behind is not counted
        divisor = end - start
        start, end = start.clamp(min=0), end.clamp(max=size)
        if settings["divisor_override"] is not None:  # counted once, on the first axis
            divisor = torch.full_like(start, settings["divisor_override"] if axis == 0 else 1)
        elif not settings["count_include_pad"]:
            divisor = end - start
    places = start[:, None] + torch.arange(int((end - start).max()))
    weights = (places < end[:, None]) / divisor[:, None].double()
    return places.clamp(max=size - 1), weights, size


def _interpolation(size: int, outputs: int, first: float, step: float) -> tuple[Tensor, Tensor, int]:
    positions = [Fraction(first) + i * Fraction(step) for i in range(outputs)]
    positions = [min(max(position, Fraction(0)), Fraction(size - 1)) for position in positions]
    lower = [min(math.floor(position), max(size - 2, 0)) for position in positions]
    shares = [position - place for position, place in zip(positions, lower, strict=True)]
    weights = torch.tensor([[float(1 - share), float(share)] for share in shares], dtype=torch.float64)
    return torch.tensor(lower)[:, None] + torch.tensor([0, min(1, size - 1)]), weights, size


def _axis_bound(places: Tensor, weights: Tensor, size: int) -> float:
    vector = torch.ones(len(places), dtype=torch.float64)
    for _ in range(_STEPS):
        terms, seen = (weights * vector[:, None]).flatten(), torch.zeros(size, dtype=torch.float64)
        seen.index_add_(0, places.flatten(), terms)
        product = (weights * seen[places]).sum(dim=1)
        ratio, vector = float((product / vector).max()), (product / product.max()).clamp(min=1e-200)
    count = places.shape[1] + int(torch.bincount(places.flatten()).max()) + 8
    return sqrt_up(mul_up(ratio, up(1 + _ROOM * gamma(count))))
