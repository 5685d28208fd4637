"""One table of all kinds of module: the shape that each gives, what its constant is, what it computes, how that rounds.

A kind that is not listed in `KINDS` is refused by name, and so is a setting that its kind does not have: what is not
understood is never taken for 1-Lipschitz. The rules are this checker's own; each says why it holds.

Note [Sizes]. Where h is the exact input of a node, ĥ the computed one, ‖h‖ ≤ S and ‖ĥ − h‖ ≤ E, a node f of constant L gives
‖f(h)‖ ≤ L·S + ‖f(0)‖, and what is computed for f(ĥ) is within L·E + (its own rounding) of f(h). The own rounding is at most
relative·(amplification·(S + E) + offset) + underflow, all of it summed over the node's outputs in the L2 norm.

Note [Any intermediate]. A proof for the computed network may go by any network near it. In float32, a constant that float32
does not hold (a limit of Hardtanh, the value of a pad) is taken for the one that it is rounded to.

Note [Normalisation]. y = (x − μ)·α + β with α = γ/√(v + ε). Computed: ε is rounded and added to v (two roundings, of which
the root leaves half), root, reciprocal and the product with γ: α̂ = α(1 + θ₄), where θ_n stands for a number of at most
γ_n. Then either (x − μ)·α̂ + β, with three roundings more on x and μ, or x·α̂ + (β − μ·α̂), with two more on x, three on μ and
two on β: all within γ_8·(|α|(|x| + |μ|) + |β|), also where a library's reciprocal root is off by one unit more. Products may
underflow twice, each time by at most half the smallest subnormal number, u times the smallest normal one. Where the product
with γ underflows, α̂ is off by as much; adding the smallest normal number to |α| covers it. ‖f(0)‖ ≤ ‖|α||μ| + |β|‖.

Note [Norm of a channel]. y = √s, s the sum of n squares. Each square is rounded, and then takes part in at most n − 1
additions, whatever their order; a fused multiply-add rounds less often. All terms have one sign: ŝ = s(1 + θ_n) + e.
Where a square or a partial sum is subnormal, or is set to zero because of that, it changes by at most the smallest normal
number t: 2n − 1 results, |e| ≤ 2nt. Then |√ŝ − √s| ≤ |√(s(1 + θ_n)) − √s| + √|e| ≤ γ_n√s + √(2nt), and rounding the root,
which is far from underflow, gives γ_{n+1}√s + √(3nt). Over all channels √s has the input's norm. As a function of a
channel, √s is a norm, so 1-Lipschitz. A partial sum is at most the square of the input's norm, up to rounding: none
overflows while that is below the root of the largest number.

Note [Softsign]. 1 + |h| and the quotient are rounded: (1 + δ)/(1 + δ′) = 1 + θ₂ times the exact value. Nothing underflows:
either 1 + |h| rounds to 1 and the quotient is h, or |h| > u/2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from . import Budget, Invalid, Malformed
from .certificate import LARGEST_FINITE, LARGEST_SETTING, SMALLEST_NORMAL, Node
from .exact import Floats, Integers, largest_row_sum, root_up, show, sum_of_squares
from .files import Tensor, as_float64, entries, whole
from .norms import Axis, Estimate, Window, convolution_norm, matrix_norm

Shape = tuple[int, ...]
Refutation = Callable[
    [Budget], str | None
]  # why the claim does not hold or could not be proved; None once it is proved
Apply = Callable[..., Floats]  # to a batch (or several), in float64

LARGEST_ACTIVATION = 1 << 25  # numbers in one activation
_PER_WEIGHT = 5_000  # multiplications that the exact sums cost per weight
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Rounding:
    """Of a node that rounds, see Note [Sizes]: terms n of the relative error γ_n = nu/(1 − nu), and the rest.

    underflow : in smallest normal numbers, all outputs together
    largest : (factor, offset) where a number on the way may be larger than the sums: factor·(S + E) + offset
    """

    terms: int
    amplification: Fraction
    offset: Fraction = ZERO
    underflow: Fraction = ZERO
    largest: tuple[Fraction, Fraction] | None = None


@dataclass(frozen=True)
class Step:
    """A node in its place: what it gives for the shapes that reach it.

    at_zero : ‖f(0)‖
    work : multiplications per input
    """

    node: Node
    shape: Shape
    refute: Refutation
    apply: Apply
    rounding: Rounding | None = None
    at_zero: Fraction = ZERO
    work: int = 0
    part_of_next: bool = False  # a circular pad that is bounded, and rounds, together with the convolution after it


@dataclass(frozen=True)
class Place:
    """What is known where a node stands: the shapes that reach it, the model's tensors, the arithmetic.

    `wrapped` is the circular padding of the node before, if the two are bounded as one.
    """

    shapes: tuple[Shape, ...]
    tensors: dict[str, Tensor]
    used: set[str]
    arithmetic: str
    budget: Budget
    wrapped: list[tuple[int, int]] | None = None

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    def tensor(self, node: Node, part: str) -> Floats | None:
        """Return a tensor of the node's module, if the model has it."""
        name = f"{node.module}.{part}" if node.module else part
        if node.module is None or name not in self.tensors:
            return None
        self.used.add(name)
        if self.arithmetic == "float32" and self.tensors[name].dtype.itemsize > 4 and part != "num_batches_tracked":
            raise Malformed(f"Expected float32 weights for float32 arithmetic. Got float64 for {name}.")
        return None if part == "num_batches_tracked" else as_float64(self.tensors[name], name)

    def needed(self, node: Node, part: str) -> Floats:
        tensor = self.tensor(node, part)
        if tensor is None:
            raise Invalid(f"{node}: the model holds no {node.module}.{part}.")
        return tensor

    def held(self, value: float) -> float:
        """Return the number as the arithmetic holds it, see Note [Any intermediate]."""
        return float(np.float32(value)) if self.arithmetic == "float32" else value


@dataclass(frozen=True)
class Kind:
    make: Callable[[Node, Place], Step]
    settings: tuple[str, ...] = ()
    inputs: int = 1
    assumes: bool = False  # that elementary functions are computed accurately


def require(condition: bool, node: Node, expected: str, shape: Shape) -> None:
    if not condition:
        raise Malformed(f"{node}: Expected {expected}. Got shape {list(shape)}.")


def require_shape(node: Node, shape: Shape) -> Shape:
    """Return the shape, unless something about it is absurd."""
    require(all(size >= 1 for size in shape), node, "an input large enough for one output", shape)
    require(prod(shape) <= LARGEST_ACTIVATION, node, f"at most {LARGEST_ACTIVATION} numbers, the limit", shape)
    return shape


def at_least(node: Node, square: Fraction | int) -> Refutation:
    """Compare the claim with a constant whose square is known."""

    def refute(budget: Budget) -> str | None:
        return None if node.claim**2 >= square else f"its constant is {show(root_up(square))}"

    return refute


def _describe(estimate: Estimate) -> str | None:
    return None if estimate is None else f"no bound below about {estimate!r} could be proved"


# Functions of each number --------------------------------------------------------------------------------------------


def _exact(apply: Apply) -> Kind:
    """A 1-Lipschitz function of each number, 0 at 0, that does not round."""
    return Kind(lambda node, place: Step(node, place.shape, at_least(node, 1), apply))


def _hardtanh(node: Node, place: Place) -> Step:
    low, high = place.held(node.real("min_val")), place.held(node.real("max_val"))
    if low > high:
        raise Malformed(f"{node}: Expected min_val not above max_val. Got {low!r} and {high!r}.")
    at_zero = abs(Fraction(min(max(0.0, low), high))) * root_up(prod(place.shape))
    return Step(node, place.shape, at_least(node, 1), lambda x: np.clip(x, low, high), at_zero=at_zero)


def _leaky_relu(node: Node, place: Place) -> Step:
    """Only negative numbers round: the slope may, and its product."""
    slope = node.real("negative_slope")
    rounding = Rounding(2, abs(Fraction(slope)), underflow=2 * root_up(prod(place.shape)))
    square = max(ONE, Fraction(slope) ** 2)
    return Step(node, place.shape, at_least(node, square), lambda x: np.where(x > 0, x, x * slope), rounding)


def _scale(node: Node, place: Place) -> Step:
    factor = node.real("factor")

    def refute(budget: Budget) -> str | None:
        if place.held(factor) != factor:
            return f"{place.arithmetic} cannot hold the factor {factor!r}"
        return at_least(node, Fraction(factor) ** 2)(budget)

    rounding = Rounding(1, node.claim, underflow=root_up(prod(place.shape)))
    return Step(node, place.shape, refute, lambda x: x * factor, rounding)


def _softsign(node: Node, place: Place) -> Step:
    return Step(node, place.shape, at_least(node, 1), lambda x: x / (1 + np.abs(x)), Rounding(2, ONE))


def _tanh(node: Node, place: Place) -> Step:
    """|tanh h| ≤ |h|."""
    rounding = Rounding(16, ONE, underflow=root_up(prod(place.shape)))
    return Step(node, place.shape, at_least(node, 1), np.tanh, rounding)


def _sigmoid(node: Node, place: Place) -> Step:
    """Of constant ¼, ½ at 0, and below 1."""
    root = root_up(prod(place.shape))

    def apply(x: Floats) -> Floats:
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, 1.0, small) / (1 + small)

    return Step(node, place.shape, at_least(node, Fraction(1, 16)), apply, Rounding(16, ZERO, root, root), root / 2)


def _batch_norm(node: Node, place: Place) -> Step:
    """In evaluation a fixed affine map of each channel, see Note [Normalisation]."""
    shape, axes = place.shape, (1, 2) if node.kind == "BatchNorm1d" else (3,)
    require(len(shape) in axes, node, f"an input of {' or '.join(map(str, axes))} axes", shape)
    mean, variance = (place.needed(node, part) for part in ("running_mean", "running_var"))
    weight, bias = (place.tensor(node, part) for part in ("weight", "bias"))
    place.tensor(node, "num_batches_tracked")
    weight, bias = np.ones(shape[0]) if weight is None else weight, np.zeros(shape[0]) if bias is None else bias
    for tensor in (weight, bias, mean, variance):
        require(tensor.shape == shape[:1], node, f"tensors of {shape[0]} numbers", tensor.shape)
    place.budget.spend(100 * shape[0] * _PER_WEIGHT, node)
    epsilon, smallest = Fraction(node.real("eps")), SMALLEST_NORMAL[place.arithmetic]
    gamma, spread, mu, beta = (
        np.array([Fraction(value) for value in tensor.tolist()], object) for tensor in (weight, variance, mean, bias)
    )
    if min(spread) < 0 or min(spread) + epsilon < smallest or max(spread) + epsilon > LARGEST_FINITE[place.arithmetic]:
        raise Malformed(f"{node}: Expected variances of at least 0, and with eps normal numbers. Got others.")
    squares = gamma**2 / (spread + epsilon)
    gains = np.array([root_up(square) for square in squares], object) + smallest

    def norm(values: Integers) -> Fraction:
        return root_up((values**2).sum() * prod(shape[1:]))

    offset = norm(gains * abs(mu) + abs(beta))
    largest = (max(ONE, *gains), norm(mu) + offset)
    rounding = Rounding(8, max(gains), offset, root_up(prod(shape)) / 2**22, largest)
    column = (-1, *(1 for _ in shape[1:]))

    def apply(x: Floats) -> Floats:
        factor = weight / np.sqrt(variance + float(epsilon))
        return (x - mean.reshape(column)) * factor.reshape(column) + bias.reshape(column)

    return Step(node, shape, at_least(node, max(squares)), apply, rounding, offset)


def _half_abs(node: Node, place: Place) -> Step:
    """The first half of the channels (the smaller one) without their signs."""
    half = place.shape[0] // 2
    return Step(node, place.shape, at_least(node, 1), lambda x: np.concatenate([np.abs(x[:, :half]), x[:, half:]], 1))


def _position_bias(node: Node, place: Place) -> Step:
    """x + p, p the same for all channels. A sum rounds once; a subnormal one may be set to zero."""
    shape, bias = place.shape, place.needed(node, "bias")
    require(len(shape) == 3, node, "an input (channels, height, width)", shape)
    require(bias.shape == (shape[1] * shape[2],), node, f"a bias of {shape[1] * shape[2]} numbers", bias.shape)
    place.budget.spend(bias.size * _PER_WEIGHT, node)
    norm = root_up(sum_of_squares(bias) * shape[0])
    rounding = Rounding(1, ONE, norm, root_up(prod(shape)))
    return Step(node, shape, at_least(node, 1), lambda x: x + bias.reshape(shape[1:]), rounding, norm)


def _norm_pool(node: Node, place: Place) -> Step:
    """The L2 norm of each channel, see Note [Norm of a channel]."""
    shape = place.shape
    require(len(shape) == 3, node, "an input (channels, height, width)", shape)
    positions = shape[1] * shape[2]
    underflow = root_up(3 * positions * shape[0] / SMALLEST_NORMAL[place.arithmetic])
    largest = (root_up(LARGEST_FINITE[place.arithmetic]), ZERO)
    rounding = Rounding(positions + 1, ONE, underflow=underflow, largest=largest)
    return Step(node, shape[:1], at_least(node, 1), lambda x: np.sqrt((x * x).sum(axis=(2, 3))), rounding)


# Numbers put elsewhere -----------------------------------------------------------------------------------------------


def _max_min(node: Node, place: Place) -> Step:
    require(place.shape[0] % 2 == 0, node, "an even number of channels", place.shape)
    return Step(node, place.shape, at_least(node, 1), _sort(2))


def _group_sort(node: Node, place: Place) -> Step:
    size = place.shape[0] if node.settings["group_size"] is None else node.whole("group_size")
    require(place.shape[0] % size == 0, node, f"a number of channels that {size} divides", place.shape)
    return Step(node, place.shape, at_least(node, 1), _sort(size))


def _sort(size: int) -> Apply:
    """Sort, largest first, among the channels j, j + g, j + 2g, …, with g the number of groups."""

    def apply(x: Floats) -> Floats:
        groups = x.reshape(len(x), size, -1, *x.shape[2:])
        return -np.sort(-groups, axis=1).reshape(x.shape)

    return apply


def _channel_shift(node: Node, place: Place) -> Step:
    """Groups of so many channels each, moved by one pixel, cyclically: down, up, right, left; the others stay."""
    shape, count = place.shape, node.whole("channels", least=0)
    require(len(shape) == 3 and 4 * count <= shape[0], node, f"an image of at least {4 * count} channels", shape)

    def apply(x: Floats) -> Floats:
        result = x.copy()
        for group, (by, axis) in enumerate(((1, 2), (-1, 2), (1, 3), (-1, 3))):
            part = slice(group * count, (group + 1) * count)
            result[:, part] = np.roll(x[:, part], by, axis)
        return result

    return Step(node, shape, at_least(node, 1), apply)


def _reshape(node: Node, place: Place, shape: Shape) -> Step:
    require_shape(node, shape)
    return Step(node, shape, at_least(node, 1), lambda x: x.reshape(len(x), *shape))


def _flatten(node: Node, place: Place) -> Step:
    shape, axes = place.shape, len(place.shape) + 1  # with the batch, as torch counts
    start, end = (
        whole(node.settings[name], f"the {name} of {node}", -axes, axes - 1) % axes for name in ("start_dim", "end_dim")
    )
    require(1 <= start <= end, node, "start_dim after the batch and not after end_dim", shape)
    return _reshape(node, place, (*shape[: start - 1], prod(shape[start - 1 : end]), *shape[end:]))


def _unflatten(node: Node, place: Place) -> Step:
    shape, axes = place.shape, len(place.shape) + 1
    dim = whole(node.settings["dim"], f"the dim of {node}", -axes, axes - 1) % axes
    value = node.settings["unflattened_size"]
    sizes = node.wholes("unflattened_size", len(value) if isinstance(value, list) else 1)
    require(
        dim >= 1 and len(sizes) <= 8 and prod(sizes) == shape[dim - 1],
        node,
        f"{prod(sizes)} numbers along axis {dim}",
        shape,
    )
    return _reshape(node, place, (*shape[: dim - 1], *sizes, *shape[dim:]))


def _pixel_unshuffle(node: Node, place: Place) -> Step:
    shape, factor = place.shape, node.whole("factor")
    fits = len(shape) == 3 and shape[1] % factor == 0 and shape[2] % factor == 0
    require(fits, node, f"an image (channels, height, width) whose size {factor} divides", shape)
    result = (shape[0] * factor**2, shape[1] // factor, shape[2] // factor)

    def apply(x: Floats) -> Floats:
        blocks = x.reshape(len(x), shape[0], result[1], factor, result[2], factor)
        return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(len(x), *result)

    return Step(node, result, at_least(node, 1), apply)


def _pixel_shuffle(node: Node, place: Place) -> Step:
    shape, factor = place.shape, node.whole("factor")
    fits = len(shape) == 3 and shape[0] % factor**2 == 0
    require(fits, node, f"an image whose number of channels {factor**2} divides", shape)
    result = (shape[0] // factor**2, shape[1] * factor, shape[2] * factor)

    def apply(x: Floats) -> Floats:
        blocks = x.reshape(len(x), result[0], factor, factor, shape[1], shape[2])
        return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(len(x), *result)

    return Step(node, result, at_least(node, 1), apply)


def _upsample(node: Node, place: Place) -> Step:
    """Each pixel Π factors times, nearest neighbours."""
    shape = place.shape
    require(len(shape) >= 2, node, "an input (channels, …)", shape)
    factors = node.wholes("factors", len(shape) - 1)
    result = require_shape(node, (shape[0], *(n * factor for n, factor in zip(shape[1:], factors, strict=True))))

    def apply(x: Floats) -> Floats:
        for axis, factor in enumerate(factors, start=2):
            x = np.repeat(x, factor, axis)
        return x

    return Step(node, result, at_least(node, prod(factors)), apply)


# Windows -------------------------------------------------------------------------------------------------------------


def _dimensions(node: Node) -> int:
    return int(node.kind[-2])


def _both(values: tuple[int, ...] | list[Any], missing: Any) -> tuple[Any, Any]:
    """Return the values of two axes: a one-dimensional module is a two-dimensional one whose first axis does nothing."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


def _image_sizes(node: Node, shape: Shape) -> tuple[int, int]:
    axes = "(channels, length)" if _dimensions(node) == 1 else "(channels, height, width)"
    require(len(shape) == _dimensions(node) + 1, node, f"an input {axes}", shape)
    return _both(shape[1:], 1)


def _result(node: Node, channels: int, window: Window) -> Shape:
    return require_shape(node, (channels, *(axis.outputs for axis in window.axes[2 - _dimensions(node) :])))


def _padded(x: Floats, window: Window, fill: float = 0.0) -> Floats:
    """Return the padded images (batch, channels, height, width)."""
    x = x[:, :, None] if x.ndim == 3 else x
    for number, axis in enumerate(window.axes, start=2):
        source = axis.source()
        x = np.take(x, source, axis=number, mode="clip")
        if (source < 0).any():
            x[(slice(None),) * number + (source < 0,)] = fill
    return x


def _pad(mode: str) -> Callable[[Node, Place], Step]:
    """Padding copies pixels, or adds a constant; zeros and constants may also cut off."""

    def make(node: Node, place: Place) -> Step:
        sizes = _image_sizes(node, place.shape)
        pads = _both(node.pads(_dimensions(node), least=-LARGEST_SETTING if mode == "zeros" else 0), (0, 0))
        if mode == "reflect" and any(max(pad) >= size for pad, size in zip(pads, sizes, strict=True) if any(pad)):
            raise Malformed(f"{node}: Expected reflection by less than the size. Got {pads}.")
        first, second = (Axis(size, 1, 1, 1, pad[0], pad[1], mode) for size, pad in zip(sizes, pads, strict=True))
        window, fill = Window((first, second)), 0.0
        result = _result(node, place.shape[0], window)
        at_zero = ZERO
        if "value" in node.settings:
            fill = place.held(node.real("value"))
            inside = prod(int((axis.source() >= 0).sum()) for axis in window.axes)
            at_zero = abs(Fraction(fill)) * root_up(place.shape[0] * (window.outputs - inside))

        def apply(x: Floats) -> Floats:
            return _padded(x, window, fill).reshape(len(x), *result)

        copies = prod(axis.copies() for axis in window.axes)  # 0 where nothing of the image is left
        return Step(node, result, at_least(node, copies), apply, at_zero=at_zero)

    return make


def _pool_window(node: Node, place: Place) -> tuple[Window, Shape]:
    """Return the windows; with ceil_mode one more, if it begins inside of the image or before it."""
    d = _dimensions(node)
    sizes = _image_sizes(node, place.shape)
    taps, strides = (_both(node.wholes(name, d), 1) for name in ("kernel_size", "stride"))
    pads = _both(node.wholes("padding", d, least=0), 0)
    dilations = _both(node.wholes("dilation", d), 1) if "dilation" in node.settings else (1, 1)
    ceil, axes = node.flag("ceil_mode"), []
    for size, k, s, pad, dilation in zip(sizes, taps, strides, pads, dilations, strict=True):
        axis = Axis(size, k, s, dilation, pad, pad)
        if ceil:
            outputs = -(-(axis.padded - axis.reach - 1) // s) + 1
            outputs -= (outputs - 1) * s >= size + pad
            axis = Axis(size, k, s, dilation, pad, (outputs - 1) * s + axis.reach + 1 - size - pad)
        axes.append(axis)
    window = Window((axes[0], axes[1]))
    result = _result(node, place.shape[0], window)
    for axis in axes:
        first = np.arange(axis.outputs) * axis.stride - axis.before
        outside = -(np.minimum(first, 0) // axis.dilation)  # taps before the image
        sees = (outside < axis.taps) & (first + outside * axis.dilation < axis.size)
        if not sees.all():
            raise Malformed(f"{node}: Expected every window to reach the image. Got padding {max(pads)}.")
        place.budget.spend(axis.taps * (axis.outputs + 1000) * 15, node)
    return window, result


def _each_tap(x: Floats, axis: Axis, number: int, combine: Apply) -> Floats:
    """Combine what the taps of an axis see."""
    result: Floats | None = None
    for t in range(axis.taps):
        seen = x[(slice(None),) * number + (axis.seen(t),)]
        result = seen if result is None else combine(result, seen)
    assert result is not None
    return result


def _max_pool(node: Node, place: Place) -> Step:
    """A change of one pixel reaches at most the windows that it lies in."""
    window, result = _pool_window(node, place)

    def apply(x: Floats) -> Floats:
        x = _padded(x, window, -np.inf)
        for number, axis in enumerate(window.axes, start=2):
            x = _each_tap(x, axis, number, np.maximum)
        return x.reshape(len(x), *result)

    work = 10 * sum(axis.taps for axis in window.axes) * prod(place.shape)
    return Step(node, result, at_least(node, prod(axis.overlap() for axis in window.axes)), apply, work=work)


def _average_pool(node: Node, place: Place) -> Step:
    """The sum over each window, divided: by one number, or by the number of pixels (and padding) that it sees.

    The operator has entries of one sign, so its norm is ‖|A|‖. Row sums are at most 1 where the divisor counts what is seen,
    column sums at most the windows over a pixel by the least divisor: the root of their product is a bound. So is the norm
    of the sums by the least divisor.
    """
    window, result = _pool_window(node, place)
    taps, override = prod(axis.taps for axis in window.axes), node.settings["divisor_override"]
    include = node.flag("count_include_pad")
    counts = []
    for axis, pad in zip(window.axes, _both(node.wholes("padding", _dimensions(node), least=0), 0), strict=True):
        start = np.arange(axis.outputs) * axis.stride - pad
        end = np.minimum(start + axis.taps, axis.size + pad)
        counts.append(end - start if include else np.minimum(end, axis.size) - np.maximum(start, 0))
    divisors = counts[0][:, None] * counts[1].astype(np.float64)
    rows = ONE
    if override is not None:
        divisor = whole(override, f"the divisor_override of {node}", least=-(1 << 40), most=1 << 40)
        if divisor == 0:
            raise Malformed(f"{node}: Expected a divisor_override other than 0. Got 0.")
        divisors = np.full(divisors.shape, float(divisor))
        rows = Fraction(taps, abs(divisor))
    least = Fraction(float(np.abs(divisors).min()))

    def refute(budget: Budget) -> str | None:
        if node.claim**2 >= rows * prod(axis.overlap() for axis in window.axes) / least:
            return None
        ones = np.ones((1, 1, window.axes[0].taps, window.axes[1].taps))
        estimate = convolution_norm(ones, 1, window, node.claim * least, budget, node)
        return _describe(None if estimate is None else estimate / float(least))

    def apply(x: Floats) -> Floats:
        x = _padded(x, window)
        for number, axis in enumerate(window.axes, start=2):
            x = _each_tap(x, axis, number, np.add)
        return (x / divisors).reshape(len(x), *result)

    largest = (node.claim * max(ONE, Fraction(float(np.abs(divisors).max()))), ZERO)  # sums are divided at the end
    rounding = Rounding(taps + 1, node.claim, underflow=root_up(prod(result)) * (taps + 1), largest=largest)
    work = 10 * sum(axis.taps for axis in window.axes) * prod(place.shape)
    return Step(node, result, refute, apply, rounding, work=work)


# Weights -------------------------------------------------------------------------------------------------------------


def _bias(node: Node, place: Place, weight: Floats, positions: int) -> tuple[Floats, Fraction]:
    """Return the bias (zeros where there is none), and its norm over all positions."""
    bias = place.tensor(node, "bias")
    if bias is None:
        return np.zeros(len(weight)), ZERO
    require(bias.shape == weight.shape[:1], node, f"a bias of {weight.shape[0]} numbers", bias.shape)
    return bias, root_up(sum_of_squares(bias) * positions)


def _affine(outputs: Shape, products: int, amplification: Fraction, bias: Fraction) -> dict[str, Any]:
    """A sum of n products and a bias is off by at most γ_{n+1} times the sum of absolute values, plus what underflows."""
    rounding = Rounding(products + 1, amplification, bias, root_up(prod(outputs)) * (products + 1))
    return {"rounding": rounding, "at_zero": bias, "work": products * prod(outputs)}


def _linear(node: Node, place: Place) -> Step:
    """y = Wx + b along the last axis."""
    shape, weight = place.shape, place.needed(node, "weight")
    require(weight.ndim == 2, node, "a weight (outputs, inputs)", weight.shape)
    require(shape[-1] == weight.shape[1], node, f"an input of {weight.shape[1]} features", shape)
    bias, bias_norm = _bias(node, place, weight, prod(shape[:-1]))
    result = require_shape(node, (*shape[:-1], weight.shape[0]))
    place.budget.spend(weight.size * _PER_WEIGHT, node)
    amplification = root_up(largest_row_sum(weight) * largest_row_sum(weight.T))  # of |W|, so that of W too

    def refute(budget: Budget) -> str | None:
        return None if node.claim >= amplification else _describe(matrix_norm(weight, node.claim, budget, node))

    known = _affine(result, weight.shape[1], amplification, bias_norm)
    return Step(node, result, refute, lambda x: x @ weight.T + bias, **known)


def _convolution(node: Node, place: Place) -> Step:
    shape, weight = place.shape, place.needed(node, "weight")
    window, groups = _convolution_window(node, place, weight)
    outputs, per_group, *taps = weight.shape
    require(shape[0] == per_group * groups, node, f"{per_group * groups} channels in {groups} groups", shape)
    require(outputs % groups == 0, node, f"a number of outputs that {groups} groups divide", weight.shape)
    result = _result(node, outputs, window)
    bias, bias_norm = _bias(node, place, weight, window.outputs)
    place.budget.spend(weight.size * _PER_WEIGHT, node)
    kernel = weight.reshape(outputs, per_group, *_both(tuple(taps), 1))
    by_group = kernel.reshape(groups, outputs // groups, per_group, -1)
    row_sum = largest_row_sum(by_group.reshape(outputs, -1))
    column_sum = largest_row_sum(by_group.swapaxes(1, 2).reshape(groups * per_group, -1))
    amplification = root_up(row_sum * column_sum * window.copies)

    def refute(budget: Budget) -> str | None:
        if node.claim >= amplification:  # ‖W‖ ≤ ‖|W|‖
            return None
        return _describe(convolution_norm(kernel, groups, window, node.claim, budget, node))

    def apply(x: Floats) -> Floats:
        x = _padded(x, window)
        total = np.zeros((len(x), groups, outputs // groups, window.outputs))
        for t, u in np.ndindex(*kernel.shape[2:]):
            seen = x[:, :, window.axes[0].seen(t), window.axes[1].seen(u)]
            taps = kernel[:, :, t, u].reshape(groups, -1, per_group)
            total += taps @ seen.reshape(len(x), groups, per_group, -1)
        return (total.reshape(len(x), outputs, -1) + bias[:, None]).reshape(len(x), *result)

    known = _affine(result, weight[0].size, amplification, bias_norm)
    known["work"] += prod(kernel.shape[2:]) * (100_000 + 20 * shape[0] * window.outputs)
    return Step(node, result, refute, apply, **known)


def _convolution_window(node: Node, place: Place, weight: Floats) -> tuple[Window, int]:
    d = _dimensions(node)
    strides, dilations = (_both(node.wholes(name, d), 1) for name in ("stride", "dilation"))
    pads, groups, mode = _both(node.pads(d), (0, 0)), node.whole("groups"), node.settings["padding_mode"]
    if mode not in ("zeros", "circular", "reflect", "replicate"):
        raise Malformed(
            f"{node}: Expected padding_mode 'zeros', 'circular', 'reflect' or 'replicate'. Got {mode!s:.60}."
        )
    require(weight.ndim == d + 2, node, f"a kernel of {d} axes", weight.shape)
    sizes = _image_sizes(node, place.shape)
    if place.wrapped is not None:
        pads, mode = _both(place.wrapped, (0, 0)), "circular"
    elif not any(any(pad) for pad in pads) and mode != "circular":
        mode = "zeros"
    if mode == "reflect" and any(max(pad) >= size for pad, size in zip(pads, sizes, strict=True) if any(pad)):
        raise Malformed(f"{node}: Expected reflection by less than the size. Got {pads}.")
    taps = _both(weight.shape[2:], 1)
    first, second = (
        Axis(size, k, s, dilation, pad[0], pad[1], mode)
        for size, k, s, dilation, pad in zip(sizes, taps, strides, dilations, pads, strict=True)
    )
    return Window((first, second)), groups


def pads_circularly(node: Node, following: Node) -> bool:
    """Whether a node is a circular pad directly in front of a convolution without padding: the two are bounded as one."""
    padding = following.settings.get("padding")
    return (
        node.kind.startswith("CircularPad")
        and following.kind == f"Conv{node.kind[-2:]}"
        and isinstance(padding, list)
        and all(pair == [0, 0] for pair in padding)
    )


_POOL = ("kernel_size", "stride", "padding", "ceil_mode")
KINDS: dict[str, Kind] = {
    "ReLU": _exact(lambda x: np.maximum(x, 0.0)),
    "ReLU6": _exact(lambda x: np.clip(x, 0.0, 6.0)),
    "Abs": _exact(np.abs),
    "Identity": _exact(lambda x: x),
    "Dropout": _exact(lambda x: x),  # in evaluation
    "Hardtanh": Kind(_hardtanh, ("min_val", "max_val")),
    "LeakyReLU": Kind(_leaky_relu, ("negative_slope",)),
    "Scale": Kind(_scale, ("factor",)),
    "Softsign": Kind(_softsign),
    "Tanh": Kind(_tanh, assumes=True),
    "Sigmoid": Kind(_sigmoid, assumes=True),
    "MaxMin": Kind(_max_min),
    "GroupSort": Kind(_group_sort, ("group_size",)),
    "ChannelShift": Kind(_channel_shift, ("channels",)),
    "PositionBias": Kind(_position_bias),
    "HalfAbs": Kind(_half_abs),
    "L2NormPool2d": Kind(_norm_pool),
    "Flatten": Kind(_flatten, ("start_dim", "end_dim")),
    "Unflatten": Kind(_unflatten, ("dim", "unflattened_size")),
    "PixelUnshuffle": Kind(_pixel_unshuffle, ("factor",)),
    "PixelShuffle": Kind(_pixel_shuffle, ("factor",)),
    "Upsample": Kind(_upsample, ("factors",)),
    "Linear": Kind(_linear),
}
for _d in ("1d", "2d"):
    KINDS |= {
        f"Conv{_d}": Kind(_convolution, ("stride", "padding", "dilation", "groups", "padding_mode")),
        f"BatchNorm{_d}": Kind(_batch_norm, ("eps",)),
        f"MaxPool{_d}": Kind(_max_pool, (*_POOL, "dilation")),
        f"AvgPool{_d}": Kind(_average_pool, (*_POOL, "count_include_pad", "divisor_override")),
        f"ZeroPad{_d}": Kind(_pad("zeros"), ("padding",)),
        f"ConstantPad{_d}": Kind(_pad("zeros"), ("padding", "value")),
        f"CircularPad{_d}": Kind(_pad("circular"), ("padding",)),
        f"ReflectionPad{_d}": Kind(_pad("reflect"), ("padding",)),
        f"ReplicationPad{_d}": Kind(_pad("replicate"), ("padding",)),
    }


def make_step(node: Node, place: Place, following: Node | None) -> Step:
    """Put a node in its place; `following` is the only node that takes its value, if there is one."""
    kind = KINDS.get(node.kind)
    if kind is None:
        raise Malformed(
            f"Expected a kind of layer that has a known bound. Got {node.kind!r:.60} (layer {node.name:.60})."
        )
    if len(node.inputs) != kind.inputs:
        raise Malformed(f"Expected {node} to have {kind.inputs} inputs. Got {len(node.inputs)}.")
    entries(node.settings, kind.settings, f"the settings of {node}")
    if following is not None and pads_circularly(node, following):
        _image_sizes(node, place.shape)
        node.pads(_dimensions(node))
        return Step(node, place.shape, at_least(node, 1), lambda x: x, part_of_next=True)
    step = kind.make(node, place)
    place.budget.spend(100 * (prod(place.shape) + prod(step.shape)), node)
    return step
