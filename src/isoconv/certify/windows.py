"""The bounds of what looks at an image through windows: convolutions, pooling by averages, linear interpolation.

Convolutions are torch's as they stand: strides, groups, dilation, and whatever they pad with. A transposed convolution is
the transpose of the convolution, with the same kernel, stride and zero padding, of an image of the size that it gives, or
of a part of it: `output_padding` of a stride or more leaves outputs of that convolution out.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums
from isoconv.linalg.rounding import gamma, mul_up, sqrt_up, up

if TYPE_CHECKING:
    from isoconv.certify.rules import Node

Pads = Sequence[Sequence[int]]  # (before, after) per axis
_STEPS = 64  # of the power iteration
_ROOM = 256  # times the rounding of one step: a checker's vector is rounded otherwise


# Convolutions -----------------------------------------------------------------------------------------------------


def convolution_bound(node: "Node") -> float:
    """Return an upper bound of the norm of a convolution, as one with the circular padding in front of it, if any.

    Under circular padding its outputs are those of the circular convolution at stride s, or a part of them. Reflect and
    replicate copy pixels; what follows is a convolution of the padded image with no padding of its own.
    """
    if is_transposed(node):
        node = replace(node, input_shape=node.output_shape)
    stride, size, (pads, mode) = node.settings["stride"], tuple(node.input_shape[1:]), _padding(node)
    if mode == "circular":
        # Where the stride does not divide the size, take it for a part of the convolution at stride 1.
        stride = [s if n % s == 0 else 1 for n, s in zip(size, stride, strict=True)]
    elif mode != "zeros":
        size, mode = tuple(n + sum(pair) for n, pair in zip(size, pads, strict=True)), "zeros"
    # Groups work on different channels side by side: the largest of their norms, not the product.
    bound = max(conv_norm_bound(kernel, stride, size, mode) for kernel in _kernels(node))
    copies = _copies(node)
    return mul_up(bound, sqrt_up(float(copies))) if copies > 1 else bound


def absolute_sums(node: "Node") -> tuple[float, float]:
    """Return upper bounds of the largest column sum and the largest row sum of |A|, A the matrix of a convolution.

    These are the norms of |A| for p = 1 and p = ∞ (so of A too), and the root of their product bounds it for p = 2.
    """
    sums, copies = [largest_absolute_sums(kernel) for kernel in _kernels(node)], float(_copies(node))
    if copies > 1 and _padding(node)[1] != "circular":
        copies = mul_up(sqrt_up(copies), sqrt_up(copies))
    columns, rows = mul_up(max(columns for _, columns in sums), copies), max(rows for rows, _ in sums)
    return (rows, columns) if is_transposed(node) else (columns, rows)


def is_transposed(node: "Node") -> bool:
    return "output_padding" in node.settings


def _padding(node: "Node") -> tuple[Pads, str]:
    """Return what the image is padded by, in front of the convolution or by itself, and how."""
    if node.circular is not None:
        return node.circular, "circular"
    pads, mode = node.settings["padding"], node.module.padding_mode
    return pads, mode if mode == "circular" or any(map(any, pads)) else "zeros"


def _copies(node: "Node") -> int:
    """Return how often padding lets the same pixel occur, or for circular padding the same output."""
    size, (pads, mode), copies = node.input_shape[1:], _padding(node), 1
    if mode == "zeros":
        return 1
    if mode != "circular":
        flat = [amount for pair in reversed(pads) for amount in pair]
        return most_copies(lambda pixels: F.pad(pixels, flat, mode=mode), (1, *size))
    spread = _kernels(node)[0].shape[2:]
    for n, s, taps, (before, after) in zip(size, node.settings["stride"], spread, pads, strict=True):
        outputs = (n + before + after - taps) // s + 1
        reached, around = (outputs, n // s) if n % s == 0 else ((outputs - 1) * s + 1, n)
        copies *= max(1, -(-reached // around))
    return copies


def _kernels(node: "Node") -> tuple[Tensor, ...]:
    """Return the kernel of each group, with zeros between its taps where it is dilated."""
    kernel = node.module.weight.detach()
    for axis, d in enumerate(node.settings["dilation"], start=2):
        if d > 1:
            places = torch.arange(0, (kernel.shape[axis] - 1) * d + 1, d, device=kernel.device)
            spread = kernel.new_zeros(*kernel.shape[:axis], int(places[-1]) + 1, *kernel.shape[axis + 1 :])
            kernel = spread.index_copy_(axis, places, kernel)
    return kernel.chunk(node.module.groups)


def most_copies(copy: Callable[[Tensor], Tensor], shape: Sequence[int]) -> int:
    """Return how often a map copies a pixel of its input (1, *shape) at the most; see Note [Kinds].

    Counted by what comes out, not by a gradient: of some modules torch's gradient counts other pixels than they take.
    """
    pixels = torch.arange(math.prod(shape), dtype=torch.float64)
    found, moved = (copy(values.reshape(1, *shape)).flatten() for values in (pixels, pixels + len(pixels)))
    taken = found[moved - found == len(pixels)].long()  # the others are constants
    return int(torch.bincount(taken, minlength=1).max())


# One matrix for each axis -----------------------------------------------------------------------------------------


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
