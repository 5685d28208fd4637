"""Kinds that look through windows, copy pixels or multiply with weights: padding, pooling, resizing, convolutions.

Note [Norm of a channel]. y = √s, s the sum of the n squares of a channel, or of a window where windows do not overlap.
Each square is rounded, and then takes part in at most n − 1 additions, whatever their order; a fused multiply-add rounds
less often. All terms have one sign: ŝ = s(1 + θ_n) + e. Where a square or a partial sum is subnormal, or is set to zero
because of that, it changes by at most the smallest normal number t: 2n − 1 results, |e| ≤ 2nt. Then |√ŝ − √s| ≤
|√(s(1 + θ_n)) − √s| + √|e| ≤ γ_n√s + √(2nt), and rounding the root, which is far from underflow, gives γ_{n+1}√s + √(3nt).
Over all channels √s has at most the input's norm. As a function of a channel, √s is a norm, so 1-Lipschitz. A partial sum is
at most the square of the input's norm, up to rounding: none overflows while that is below the root of the largest number.

Note [Interpolation]. Output i of an axis of N pixels is taken at the position first + i·step, kept within it: weights 1
− λ and λ of two neighbours. Libraries compute positions with at most 5 roundings of numbers up to N + ½, and what the
settings say may be two roundings away from what the module holds: all within δ = 8u(N + 1). Weights then change by at
most δ in each of three neighbours. Where step ≥ N/(2·outputs) and at most half a pixel at either end is cut off, c =
5·max(1, outputs/N) rows have the same two neighbours, so what changes has norm at most 3δ√c. Rows have norms of at
least √½, so that the operator has at least √(max(1, outputs/N)/2): relative to it 3√10·δ < 76u(N + 1) per axis, and ten
more for weights, products and sums.

Note [Averages]. Sums over windows, divided by a product of one number per axis, are a Kronecker product of one matrix A
≥ 0 per axis; so is interpolation. For any v > 0, ‖A‖² ≤ maxᵢ (AAᵀv)ᵢ/vᵢ. Sums of k and of m terms ≥ 0, rounded weights
and the quotient change it by a relative γ_{k+m+9} at most.

Note [Convex potential]. y = x − Wᵀr(Wx + b), r = max(·, 0), W a convolution that gives as many pixels as it takes. Of two
inputs, r(s) − r(t) = D(s − t) with D diagonal and 0 ≤ D ≤ 1, so outputs differ by I − WᵀDW times what inputs do. It is
symmetric and 0 ⪯ WᵀDW ⪯ ‖W‖²I, so its eigenvalues lie between 1 − ‖W‖² and 1: a c ≥ 1 bounds the constant if ‖W‖² ≤ 1 + c.
Computed: n products and a bias are added up, then m products, and a difference is taken: at most n + m + 2 roundings of |x|
and of |W|ᵀ(|W||x| + |b|). Where a ≥ 1 and a ≥ ‖|W|‖ these have norms of at most (1 + a²)‖x‖ + a‖b‖, and all numbers on the
way are at most as large. 2(n + 1) results in each hidden number may lose a smallest normal number each, which Wᵀ takes to
at most a times as much, and 2(m + 1) in each output.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .exact import ONE, ZERO, Floats, Ints, largest_row_sum, root_down, root_up, sum_of_squares
from .files import Json, Reader, anything, bound, choice, each, flag, optional, real, record, whole
from .kinds import LARGEST_SETTING, PER_WEIGHT, SIZE, Apply, Kind, Place, Rounding, Shape, Step
from .norms import POINT, Axis, Estimate, Window, convolution_norm

_PER_TAP = 20_000  # multiplications that the norm of an axis costs per weight
_PER_POSITION = 300  # that looking at the padding of an axis costs


# Where windows lie, and what they see --------------------------------------------------------------------------------


def _window(place: Place, channels: int, taps: Sequence[int] = (1, 1), mode: str = "zeros") -> tuple[Window, Shape]:
    """Return the windows that a node looks through, and the shape that it gives with so many channels.

    There are two axes: a one-dimensional node has a first one of one pixel. With `ceil_mode`, there is one window more along
    an axis, if it begins inside of the image or before it.
    """
    d = place.dimensions
    expected = "an input (channels, length)" if d == 1 else "an input (channels, height, width)"
    place.require(len(place.shape) == d + 1, expected, place.shape)
    strides, dilations = (place.settings.get(name, (1, 1)) for name in ("stride", "dilation"))
    sizes, axes = (1,) * (2 - d) + place.shape[1:], []
    for size, (before, after), k, s, spread in zip(sizes, place["padding"], taps, strides, dilations, strict=True):
        fits = mode != "reflect" or max(before, after) < size
        place.require(fits, "reflection by less than the size", f"{before} and {after}")
        axis = Axis(size, k, s, spread, before, after, mode)
        if place.settings.get("ceil_mode", False):
            outputs = -(-(axis.padded - axis.reach - 1) // s) + 1
            outputs -= (outputs - 1) * s >= size + before
            axis = replace(axis, after=(outputs - 1) * s + axis.reach + 1 - size - before)
        axes.append(axis)
    place.spend(_PER_POSITION * sum(axis.padded for axis in axes))
    return Window((axes[0], axes[1])), place.give((channels, *(axis.outputs for axis in axes[2 - d :])))


def _excess(window: Window, channels: int, shape: Shape) -> int:
    """Return how many numbers a padded input of so many channels has beyond those of the image and of what is given."""
    return max(0, channels * (prod(axis.padded for axis in window.axes) - window.inputs) - prod(shape))


def _copy(x: Floats, sources: Iterable[Ints], fill: float = 0.0) -> Floats:
    """Return images whose pixels along each axis are those that the sources number; −1 is `fill`."""
    for number, source in enumerate(sources, start=2):
        x = np.take(x, source, axis=number, mode="clip")
        if (source < 0).any():
            x[(slice(None),) * number + (source < 0,)] = fill
    return x


def _pad_images(x: Floats, window: Window, fill: float = 0.0) -> Floats:
    """Return the padded images (batch, channels, height, width)."""
    images = x.reshape(*x.shape[:2], *(axis.size for axis in window.axes))
    return _copy(images, (axis.source() for axis in window.axes), fill)


def _convolve(x: Floats, kernel: Floats, window: Window) -> Floats:
    """Return the convolution with kernel (groups, outputs, inputs, taps, taps): (batch, channels, positions)."""
    groups, outputs, inputs, *taps = kernel.shape
    x, (rows, columns) = _pad_images(x, window), window.axes
    total = np.zeros((len(x), groups, outputs, window.outputs))
    for t, u in np.ndindex(*taps):
        seen = x[:, :, rows.seen(t), columns.seen(u)]
        total += kernel[..., t, u] @ seen.reshape(len(x), groups, inputs, -1)
    return total.reshape(len(x), groups * outputs, -1)


def _convolve_back(y: Floats, kernel: Floats, window: Window) -> Floats:
    """Return the transpose of that convolution: each pixel is given what the windows over it, or over a copy, hold."""
    groups, outputs, inputs, *taps = kernel.shape
    y, (rows, columns) = y.reshape(len(y), groups, outputs, -1), window.axes
    padded = np.zeros((len(y), groups, inputs, rows.padded, columns.padded))
    for t, u in np.ndindex(*taps):
        part = kernel[..., t, u].swapaxes(1, 2) @ y
        padded[..., rows.seen(t), columns.seen(u)] += part.reshape(*part.shape[:3], rows.outputs, columns.outputs)
    for number, axis in enumerate(window.axes, start=3):
        source, moved = axis.source(), np.moveaxis(padded, number, 0)
        pixels = np.zeros((axis.size, *moved.shape[1:]))
        np.add.at(pixels, source[source >= 0], moved[source >= 0])
        padded = np.moveaxis(pixels, 0, number)
    return padded.reshape(len(y), groups * inputs, -1)


# Padding and pooling -------------------------------------------------------------------------------------------------


def _pad(place: Place, mode: str) -> Step:
    """Padding copies pixels, or adds a constant; zeros and constants may also cut off."""
    window, shape = _window(place, place.shape[0], mode=mode)
    fill = place.hold("value") if "value" in place.settings else 0.0
    inside = prod(int((axis.source() >= 0).sum()) for axis in window.axes)
    at_zero = abs(Fraction(fill)) * root_up(shape[0] * (window.outputs - inside))
    copies = prod(axis.copies() for axis in window.axes)  # 0 where nothing of the image is left
    return Step(shape, copies, lambda x: _pad_images(x, window, fill).reshape(len(x), *shape), at_zero=at_zero)


def _pool(place: Place) -> tuple[Window, Shape, int]:
    """Return the windows of a pool, the shape that it gives, and what an image costs."""
    window, shape = _window(place, place.shape[0], place["kernel_size"])
    for axis in window.axes:
        first = np.arange(axis.outputs) * axis.stride - axis.before
        outside = -(np.minimum(first, 0) // axis.dilation)  # taps before the image
        reaches = bool(((outside < axis.taps) & (first + outside * axis.dilation < axis.size)).all())
        place.require(reaches, "every window to reach the image", f"padding {place['padding']}")
        place.spend((axis.taps + 20) * (axis.outputs + 1000) * 15)
    return window, shape, 10 * sum(place["kernel_size"]) * prod(place.shape)


def _combine(x: Floats, window: Window, combine: Apply, fill: float) -> Floats:
    """Combine what the taps of each window see, along one axis and then along the other."""
    x = _pad_images(x, window, fill)
    for number, axis in enumerate(window.axes, start=2):
        before = (slice(None),) * number
        x = reduce(combine, [x[(*before, axis.seen(t))] for t in range(axis.taps)])
    return x


def _max_pool(place: Place) -> Step:
    """A change of one pixel reaches at most the windows that it lies in."""
    window, shape, work = _pool(place)

    def apply(x: Floats) -> Floats:
        return _combine(x, window, np.maximum, -np.inf).reshape(len(x), *shape)

    return Step(shape, window.overlap, apply, work=work, padded=_excess(window, shape[0], shape))


def _norm_pool(place: Place) -> Step:
    """The L2 norm of each channel, or of each window, see Note [Norm of a channel]."""
    channels, *size = place.image
    whole_image = place["kernel_size"] is None
    taps, strides = place["kernel_size"] or tuple(size), place["stride"] or tuple(size)
    apart = whole_image == (place["stride"] is None) and all(k <= s for k, s in zip(taps, strides, strict=True))
    place.require(apart, "windows that do not overlap", f"{taps} by {strides}")
    counts = [(n - k) // s + 1 for n, k, s in zip(size, taps, strides, strict=True)]
    shape = place.give((channels,) if whole_image else (channels, *counts))
    underflow, largest = root_up(3 * prod(taps) / place.arithmetic.smallest), root_up(place.arithmetic.largest)
    rounding = Rounding(prod(taps) + 1, ONE, underflow=underflow, largest=(largest, ZERO))

    def apply(x: Floats) -> Floats:
        windows = sliding_window_view(x, taps, (2, 3))[:, :, :: strides[0], :: strides[1]]
        return np.sqrt((windows * windows).sum(axis=(4, 5))).reshape(len(x), *shape)

    return Step(shape, 1, apply, rounding)


def _average_pool(place: Place) -> Step:
    """The sum over each window, divided: by one number, or by the number of pixels (and padding) that it sees.

    The operator has entries of one sign, so its norm is ‖|A|‖. Row sums are at most 1 where the divisor counts what is seen,
    column sums at most the windows over a pixel by the least divisor: the root of their product is a bound. So is the norm
    of the sums by the least divisor.
    """
    window, shape, work = _pool(place)
    claim, taps, divisor = place.node.lipschitz, prod(place["kernel_size"]), place["divisor_override"]
    place.require(divisor != 0, "a divisor_override other than 0", "0")
    rows = ONE if divisor is None else Fraction(taps, abs(divisor))

    def seen(axis: Axis) -> tuple[Ints, Ints, Ints]:
        """Return where the windows along an axis begin and end inside of the image, and what is counted of them."""
        start = np.arange(axis.outputs) * axis.stride - axis.before
        end = np.minimum(start + axis.taps, axis.size + axis.before)  # what ceil_mode adds behind is never counted
        first, last = np.maximum(start, 0), np.minimum(end, axis.size)
        return first, last, end - start if place["count_include_pad"] else last - first

    def divisors() -> Floats:
        """Return what outputs are divided by. It is not kept: a small file may have many nodes of many outputs."""
        counts = [seen(axis)[2] for axis in window.axes if divisor is None]
        return np.multiply.outer(*counts).astype(np.float64) if counts else np.array([float(divisor)])

    sizes = np.abs(divisors())
    least, most = Fraction(float(sizes.min())), Fraction(float(sizes.max()))

    def prove() -> Estimate:
        work = _PER_TAP * sum(axis.taps * axis.outputs + axis.size for axis in window.axes)
        if divisor is None and place.budget.affords(work):
            place.spend(work)
            if claim**2 >= prod(_axis_square(*_intervals(*seen(axis), axis.size), axis.size) for axis in window.axes):
                return None
        place.spend(taps * PER_WEIGHT)
        ones = np.ones((1, 1, 1, *(axis.taps for axis in window.axes)))
        estimate = convolution_norm(ones, window, claim * least, place.budget, place.node)
        return None if estimate is None else estimate / float(least)

    def apply(x: Floats) -> Floats:
        return (_combine(x, window, np.add, 0.0) / divisors()).reshape(len(x), *shape)

    largest = (claim * max(ONE, most), ZERO)  # sums are divided at the end
    rounding = Rounding(taps + 1, claim, underflow=taps + 1, largest=largest)
    padded = _excess(window, shape[0], shape)
    return Step(shape, rows * window.overlap / least, apply, rounding, work=work, padded=padded, prove=prove)


# One matrix per axis, see Note [Averages] ----------------------------------------------------------------------------

Taps = tuple[Ints, Floats]  # (outputs, k): output i is the sum of weights[i, k]·x[places[i, k]]


def _separable(place: Place, shape: Shape, taps: Sequence[Taps], rounding: Rounding) -> Step:
    def apply(x: Floats) -> Floats:
        for number, (places, weights) in enumerate(taps, start=2):
            x = np.moveaxis(x, number, -1)
            columns = (x[..., places[:, k]] * weights[:, k] for k in range(places.shape[1]))
            x = np.moveaxis(reduce(np.add, columns), -1, number)
        return x

    square = prod(_axis_square(*tap, size) for tap, size in zip(taps, place.shape[1:], strict=True))
    work = 100 * sum(places.shape[1] for places, _ in taps) * max(prod(shape), prod(place.shape))
    return Step(shape, square, apply, rounding, work=work)


def _axis_square(places: Ints, weights: Floats, size: int) -> Fraction:
    """Return at least ‖A‖²."""
    vector, flat = np.ones(len(places)), places.ravel()
    for _ in range(65):
        before = vector
        seen = np.bincount(flat, (weights * before[:, None]).ravel(), size)
        vector = (weights * seen[places]).sum(axis=1)
        ratio, vector = float((vector / before).max()), np.maximum(vector / vector.max(), 1e-200)
    terms = places.shape[1] + int(np.bincount(flat).max()) + 9
    return Fraction(ratio) * (1 + Fraction(terms, 2**53 - terms))


def _intervals(start: Ints, end: Ints, divisor: Ints, size: int) -> Taps:
    places = start[:, None] + np.arange(int((end - start).max()))
    return np.minimum(places, size - 1), (places < end[:, None]) / divisor[:, None]


def _adaptive_pool(place: Place) -> Step:
    """Output i of o is the mean of the pixels from ⌊in/o⌋ up to ⌈(i + 1)n/o⌉. The sum may be divided once for each axis."""
    place.require(len(place.shape) == place.dimensions + 1, f"{place.dimensions + 1} axes", place.shape)
    shape, taps = place.give((place.shape[0], *place["output_size"])), []
    for size, outputs in zip(place.shape[1:], place["output_size"], strict=True):
        place.spend(_PER_TAP * (size + 2 * outputs))
        number = np.arange(outputs)
        start, end = number * size // outputs, -(-(number + 1) * size // outputs)
        taps.append(_intervals(start, end, end - start, size))
    count, claim = prod(places.shape[1] for places, _ in taps), place.node.lipschitz
    rounding = Rounding(count + 2, claim, underflow=count + 2, largest=(claim * count, ZERO))
    return _separable(place, shape, taps, rounding)


_POSITIONS: Reader[Json] = record(dict, {"outputs": SIZE, "first": real, "step": bound})


def _upsample(place: Place) -> Step:
    """Each pixel Π factors times, nearest neighbours; or linear interpolation, where an axis says at which positions."""
    place.require(len(place.shape) >= 2, "an input (channels, …)", place.shape)
    linear = isinstance(place["factors"], list) and isinstance((place["factors"] or [0])[0], dict)
    read: Reader[Any] = each(_POSITIONS if linear else SIZE, len(place.shape) - 1)
    factors = read(place["factors"], f"the factors of {place.node}")
    if linear:
        return _interpolate(place, factors)
    sizes = [n * factor for n, factor in zip(place.shape[1:], factors, strict=True)]
    shape = place.give((place.shape[0], *sizes))

    def apply(x: Floats) -> Floats:
        return _copy(x, (np.arange(size) // factor for size, factor in zip(sizes, factors, strict=True)))

    return Step(shape, prod(factors), apply)


def _interpolate(place: Place, axes: Sequence[Json]) -> Step:
    """See Note [Interpolation]."""
    shape, taps = place.give((place.shape[0], *(axis["outputs"] for axis in axes))), []
    place.spend(sum(shape) * 300_000)
    for size, axis in zip(place.shape[1:], axes, strict=True):
        outputs, first, step = axis["outputs"], Fraction(axis["first"]), axis["step"]
        usual = step >= Fraction(size, 2 * outputs) and first + (outputs - 1) * step <= size - Fraction(1, 2)
        usual = usual and Fraction(-1, 2) <= first <= step / 2 and (outputs != size or step == 1)
        usual = usual or size == 1 or (outputs == 1 and 0 <= first < size)
        place.require(usual, f"the positions of a resized axis of {size} pixels", "others")
        positions = [min(max(first + i * step, ZERO), Fraction(size - 1)) for i in range(outputs)]
        lower = [min(int(position), max(size - 2, 0)) for position in positions]
        shares = [position - low for position, low in zip(positions, lower, strict=True)]
        weights = np.array([[float(1 - share), float(share)] for share in shares])
        taps.append((np.minimum(np.array(lower)[:, None] + [0, 1], size - 1), weights))
    terms = 76 * sum(size + 1 for size in place.shape[1:]) + 10
    return _separable(place, shape, taps, Rounding(terms, place.node.lipschitz, underflow=10))


# Weights -------------------------------------------------------------------------------------------------------------


def _kernel(place: Place, groups: int = 1) -> Floats:
    """Return the node's kernel (groups, outputs per group, inputs per group, taps, taps)."""
    weight, d = place.tensor("weight"), place.dimensions
    place.require(weight.ndim == d + 2, f"a kernel of {d} axes", weight.shape)
    place.require(len(weight) % groups == 0, f"a number of channels that {groups} groups divide", weight.shape)
    place.spend(weight.size * PER_WEIGHT)
    return weight.reshape(groups, -1, weight.shape[1], *(1,) * (2 - d), *weight.shape[2:])


def _absolute_square(kernel: Floats, copies: int) -> Fraction:
    """Bound ‖|W|‖²: the largest row sum times the largest column sum, times the copies."""
    groups, outputs, inputs, *_ = kernel.shape
    rows, columns = kernel.reshape(groups * outputs, -1), kernel.swapaxes(1, 2).reshape(groups * inputs, -1)
    return largest_row_sum(rows) * largest_row_sum(columns) * copies


def _affine(place: Place, kernel: Floats, window: Window, shape: Shape, transposed: bool = False) -> Step:
    """A convolution, or its transpose, and a bias.

    A sum of n products and a bias is off by at most γ_{n+1} times the sum of absolute values, plus what underflows; ‖W‖ ≤
    ‖|W|‖.
    """
    groups, outputs, inputs, *taps = kernel.shape
    channels, products = groups * outputs, inputs * prod(taps)
    if transposed:
        channels, products = groups * inputs, outputs * prod(taps)
    bias = place.vector("bias", channels, 0.0)
    norm = root_up(sum_of_squares(bias) * (prod(shape) // channels))
    square = _absolute_square(kernel, window.copies)
    rounding = Rounding(products + 1, root_up(square), norm, products + 1)

    def apply(x: Floats) -> Floats:
        y = (_convolve_back if transposed else _convolve)(x, kernel, window)
        return (y + bias[:, None]).reshape(len(x), *shape)

    prove = partial(convolution_norm, kernel, window, place.node.lipschitz, place.budget, place.node)
    work = products * prod(shape) + prod(taps) * (100_000 + 20 * groups * inputs * window.outputs)
    padded = _excess(window, groups * inputs, shape)
    return Step(shape, square, apply, rounding, norm, work, padded, prove)


def _linear(place: Place) -> Step:
    """y = Wx + b along the last axis."""
    shape, weight = place.shape, place.tensor("weight")
    place.require(weight.ndim == 2, "a weight (outputs, inputs)", weight.shape)
    place.require(shape[-1] == weight.shape[1], f"an input of {weight.shape[1]} features", shape)
    place.spend(weight.size * PER_WEIGHT)
    outputs, inputs = weight.shape
    result = place.give((*shape[:-1], outputs))
    step, bias = _affine(place, weight[None, :, :, None, None], POINT, result), place.vector("bias", outputs, 0.0)
    return replace(step, apply=lambda x: x @ weight.T + bias, work=inputs * prod(result), matrix=weight)


def _convolution(place: Place) -> Step:
    groups, mode = place["groups"], place["padding_mode"]
    kernel = _kernel(place, groups)
    inputs = groups * kernel.shape[2]
    if mode != "circular" and not np.any(place["padding"]):
        mode = "zeros"
    window, shape = _window(place, groups * kernel.shape[1], kernel.shape[3:], mode)
    place.require(place.shape[0] == inputs, f"{inputs} channels in {groups} groups", place.shape)
    return _affine(place, kernel, window, shape)


def _transposed(place: Place) -> Step:
    """The transpose of a convolution with zero padding, from the image that is given to the one that is taken.

    Of the windows of that convolution there are as many as the image that is taken has pixels. Pixels that none of them
    sees hold the bias alone: `output_padding` adds some at the end.
    """
    shape, groups, d = place.shape, place["groups"], place.dimensions
    place.require(len(shape) == d + 1, f"an input of {d + 1} axes", shape)
    kernel = _kernel(place, groups)
    inputs = groups * kernel.shape[1]
    place.require(shape[0] == inputs, f"{inputs} channels in {groups} groups", shape)
    axes, names = [], ("stride", "dilation", "padding", "output_padding")
    numbers = zip((1,) * (2 - d) + shape[1:], kernel.shape[3:], *(place[name] for name in names), strict=True)
    for size, k, stride, dilation, (before, after), extra in numbers:
        reached = (size - 1) * stride + (k - 1) * dilation + 1
        place.give((reached,))
        place.spend(_PER_POSITION * reached)
        axes.append(Axis(reached - before - after + extra, k, stride, dilation, before, after - extra))
    result = place.give((groups * kernel.shape[2], *(axis.size for axis in axes[2 - d :])))
    return _affine(place, kernel, Window((axes[0], axes[1])), result, transposed=True)


def _convex_potential(place: Place) -> Step:
    """A residual layer, see Note [Convex potential]."""
    shape, kernel = place.shape, _kernel(place)
    _, outputs, inputs, *taps = kernel.shape
    window, hidden = _window(place, outputs, taps, place["padding_mode"])
    place.require(shape[0] == inputs, f"{inputs} channels", shape)
    place.require(shape[1:] == hidden[1:] and window.copies == 1, "padding that keeps the size", hidden)
    bias = place.vector("bias", outputs, 0.0)
    norm, square = root_up(sum_of_squares(bias) * prod(shape[1:])), _absolute_square(kernel, 1)
    absolute, n, m = max(ONE, root_up(square)), inputs * prod(taps), outputs * prod(taps)
    vanished = absolute * root_up(Fraction(outputs, inputs)) * 2 * (n + 1) + 2 * (m + 1)
    rounding = Rounding(n + m + 2, 1 + absolute**2, absolute * norm, vanished)

    def prove() -> Estimate:
        claim = place.node.lipschitz
        if claim < 1:
            return 1.0
        estimate = convolution_norm(kernel, window, root_down(1 + claim), place.budget, place.node)
        return None if estimate is None else max(1.0, estimate**2 - 1)

    def apply(x: Floats) -> Floats:
        units = np.maximum(_convolve(x, kernel, window) + bias[:, None], 0.0)
        return x - _convolve_back(units, kernel, window).reshape(x.shape)

    work = 2 * prod(taps) * (100_000 + 20 * max(inputs, outputs) * window.outputs) + 2 * n * prod(hidden)
    padded = _excess(window, inputs, hidden)
    return Step(shape, max(ONE, square - 1) ** 2, apply, rounding, absolute * norm, work, padded, prove)


# The table -----------------------------------------------------------------------------------------------------------


def _per_axis(dimensions: int, read: Reader[Any], missing: Any) -> Reader[Any]:
    """Read one value per axis: a one-dimensional module is a two-dimensional one whose first axis does nothing."""
    read_all = each(read, dimensions)
    return lambda value, where: (missing,) * (2 - dimensions) + read_all(value, where)


def _pads(dimensions: int, least: int = 0) -> Reader[Any]:
    return _per_axis(dimensions, each(whole(least, LARGEST_SETTING), 2), (0, 0))


def _both_sides(value: Any, where: str) -> tuple[int, int]:
    return (whole(0, LARGEST_SETTING)(value, where),) * 2


WINDOWS: dict[str, Kind] = {
    "Linear": Kind(_linear),
    "ConvexPotential2d": Kind(_convex_potential, {"padding": _pads(2), "padding_mode": choice("zeros", "circular")}),
}
_whole = dict.fromkeys(("kernel_size", "stride"))
WINDOWS["L2NormPool2d"] = Kind(_norm_pool, dict.fromkeys(_whole, optional(each(SIZE, 2))), defaults=_whole)
_resizing = ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")
WINDOWS |= dict.fromkeys(_resizing, Kind(_upsample, {"factors": anything}))
for _d in (1, 2):
    _sizes, _zeros, _outside = _per_axis(_d, SIZE, 1), _per_axis(_d, whole(0, LARGEST_SETTING), 0), _pads(_d)
    _cut = {"padding": _pads(_d, least=-LARGEST_SETTING)}
    _sliding: dict[str, Reader[Any]] = {"stride": _sizes, "padding": _outside, "dilation": _sizes, "groups": SIZE}
    _modes = {"padding_mode": choice("zeros", "circular", "reflect", "replicate")}
    _pooling: dict[str, Reader[Any]] = {"kernel_size": _sizes, "stride": _sizes, "ceil_mode": flag}
    _pooling["padding"] = _per_axis(_d, _both_sides, (0, 0))
    _counting = {"count_include_pad": flag, "divisor_override": optional(whole(-(1 << 53), 1 << 53))}
    WINDOWS |= {
        f"Conv{_d}d": Kind(_convolution, _sliding | _modes),
        f"ConvTranspose{_d}d": Kind(_transposed, _sliding | {"output_padding": _zeros}),
        f"AdaptiveAvgPool{_d}d": Kind(_adaptive_pool, {"output_size": each(SIZE, _d)}),
        f"MaxPool{_d}d": Kind(_max_pool, _pooling | {"dilation": _sizes}),
        f"AvgPool{_d}d": Kind(_average_pool, _pooling | _counting),
        f"ZeroPad{_d}d": Kind(partial(_pad, mode="zeros"), _cut),
        f"ConstantPad{_d}d": Kind(partial(_pad, mode="zeros"), _cut | {"value": real}),
    }
    for _name, _mode in {"Circular": "circular", "Reflection": "reflect", "Replication": "replicate"}.items():
        WINDOWS[f"{_name}Pad{_d}d"] = Kind(partial(_pad, mode=_mode), {"padding": _outside})
