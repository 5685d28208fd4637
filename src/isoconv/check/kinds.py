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

Note [Norm of a channel]. y = √s, s the sum of the n squares of a channel, or of a window where windows do not overlap.
Each square is rounded, and then takes part in at most n − 1 additions, whatever their order; a fused multiply-add rounds
less often. All terms have one sign: ŝ = s(1 + θ_n) + e. Where a square or a partial sum is subnormal, or is set to zero
because of that, it changes by at most the smallest normal number t: 2n − 1 results, |e| ≤ 2nt. Then |√ŝ − √s| ≤
|√(s(1 + θ_n)) − √s| + √|e| ≤ γ_n√s + √(2nt), and rounding the root, which is far from underflow, gives γ_{n+1}√s + √(3nt).
Over all channels √s has at most the input's norm. As a function of a channel, √s is a norm, so 1-Lipschitz. A partial sum is
at most the square of the input's norm, up to rounding: none overflows while that is below the root of the largest number.

Note [Reflection]. y = z − 2·min(vᵀz, 0)·v/vᵀv for each pair z of channels is z or its mirror image, the same where vᵀz = 0:
an isometry on either side of a line, so 1-Lipschitz. Computed, with d = vᵀv: vᵀz and d round twice each, then 2/d, the
product with it, that with v and the difference once each. Where squares underflow, d changes by at most three times the
smallest normal number t, less than a unit of a d above 2⁻⁶⁴: nine roundings of |z| and of 2|v||v|ᵀ|z|/d, whose norms are
together at most 3‖z‖. What vanishes of vᵀz, at most 3t, is multiplied by 2|v|/d ≤ 2/√d; what vanishes of the product, t, by
√d; the last two results may lose t each. Numbers on the way are at most √d·‖z‖, 2‖z‖/√d and 3‖z‖.

Note [Softsign]. 1 + |h| and the quotient are rounded: (1 + δ)/(1 + δ′) = 1 + θ₂ times the exact value. Nothing underflows:
either 1 + |h| rounds to 1 and the quotient is h, or |h| > u/2.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from . import Budget, Invalid, Malformed
from .certificate import AXES, Node
from .exact import Arithmetic, Floats, Integers, Ints, largest_row_sum, root_up, sum_of_squares
from .files import Json, Reader, Tensor, anything, as_float64, bound, choice, each, flag, optional, real, whole
from .norms import POINT, Axis, Estimate, Window, convolution_norm

Shape = tuple[int, ...]
Apply = Callable[..., Floats]  # to a batch (or several), in float64

LARGEST_ACTIVATION = 1 << 25  # numbers in one activation
_LARGEST_SETTING = 1 << 20  # far beyond any network, and small enough for positions to be computed with
_PER_WEIGHT = 5_000  # multiplications that the exact sums cost per weight
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Rounding:
    """Of a node that rounds, see Note [Sizes]: terms n of the relative error γ_n = nu/(1 − nu), and the rest.

    underflow : of each output, in smallest normal numbers
    largest : (factor, offset) where a number on the way may be larger than the sums: factor·(S + E) + offset
    """

    terms: int
    amplification: Fraction
    offset: Fraction = ZERO
    underflow: Fraction | int = 0
    largest: tuple[Fraction, Fraction] | None = None


@dataclass(frozen=True)
class Step:
    """What a node does where it stands.

    square : the square of its constant is at most this
    prove : if `square` need not be the least: prove that the constant is at most the claim
    at_zero : ‖f(0)‖
    work : multiplications per input
    matrix : of a linear layer
    joins : "sum" or "concatenation" of all its inputs; `square` is then with respect to each of them
    selects : what it gives are numbers of its input, each at most once, wherever they stood
    """

    shape: Shape
    square: Fraction | int
    apply: Apply
    rounding: Rounding | None = None
    at_zero: Fraction = ZERO
    work: int = 0
    prove: Callable[[], Estimate] | None = None
    matrix: Floats | None = None
    joins: str | None = None
    selects: bool = False


@dataclass(frozen=True)
class Place:
    """What is known where a node stands: its settings, the shapes that reach it, the model's tensors, the arithmetic."""

    node: Node
    settings: Json
    shapes: tuple[Shape, ...]
    tensors: dict[str, Tensor]
    used: set[str]
    arithmetic: Arithmetic
    budget: Budget

    def __getitem__(self, setting: str) -> Any:
        return self.settings[setting]

    def held(self, setting: str) -> float:
        """Return a number as the arithmetic holds it, see Note [Any intermediate]."""
        number, name = float(self.arithmetic.hold(self[setting])), self.arithmetic.name
        Malformed.unless(isfinite(number), f"{self.node}: Expected a {setting} that {name} can hold. Got a larger one.")
        return number

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def dimensions(self) -> int:
        """Of a kind whose name ends in 1d or 2d."""
        return int(self.node.kind[-2])

    def require(self, condition: bool, expected: str, got: Shape) -> None:
        Malformed.unless(condition, f"{self.node}: Expected {expected}. Got shape {list(got)}.")

    def give(self, shape: Shape) -> Shape:
        """Return the shape that the node gives, unless something about it is absurd."""
        self.require(all(size >= 1 for size in shape), "an input large enough for one output", shape)
        self.require(prod(shape) <= LARGEST_ACTIVATION, f"at most {LARGEST_ACTIVATION} numbers, the limit", shape)
        return shape

    def spend(self, work: int) -> None:
        self.budget.spend(work, self.node)

    def name(self, part: str) -> str:
        return part if self.node.module == "" else f"{self.node.module}.{part}"

    def tensor(self, part: str, default: Floats | None = None) -> Floats:
        """Return a tensor of the node's module, or the default where the model has none."""
        name = self.name(part)
        if self.node.module is None or name not in self.tensors:
            if default is None:
                raise Invalid(f"{self.node}: the model holds no {name}.")
            return default
        self.used.add(name)
        held = self.arithmetic.name == "float64" or self.tensors[name].dtype.itemsize <= 4
        Malformed.unless(held, f"Expected float32 weights for float32 arithmetic. Got float64 for {name}.")
        return as_float64(self.tensors[name], name)


@dataclass(frozen=True)
class Kind:
    make: Callable[[Place], Step]
    settings: dict[str, Reader[Any]] = field(default_factory=dict)
    inputs: range = range(1, 2)  # how many it may have
    assumes: bool = False  # that elementary functions are computed accurately
    defaults: Json = field(default_factory=dict)  # of settings that a certificate may leave out


# Functions of each number --------------------------------------------------------------------------------------------


def _pointwise(
    place: Place, apply: Apply, slope: float = 1.0, rounding: Rounding | None = None, at_zero: float = 0.0
) -> Step:
    """A function of each number, of constant |slope|."""
    norm = abs(Fraction(at_zero)) * root_up(prod(place.shape))
    return Step(place.shape, Fraction(slope) ** 2, apply, rounding, norm)


def _hardtanh(place: Place) -> Step:
    low, high = place.held("min_val"), place.held("max_val")
    Malformed.unless(low <= high, f"{place.node}: Expected min_val not above max_val. Got {low!r} and {high!r}.")
    return _pointwise(place, lambda x: np.clip(x, low, high), at_zero=min(max(0.0, low), high))


def _leaky_relu(place: Place) -> Step:
    """Only negative numbers round: the slope may, and its product."""
    slope = place["negative_slope"]
    place.held("negative_slope")  # an infinite one makes 0 no number
    rounding = Rounding(2, abs(Fraction(slope)), underflow=2)
    return _pointwise(place, lambda x: np.where(x > 0, x, x * slope), max(1.0, abs(slope)), rounding)


def _scale(place: Place) -> Step:
    factor = place["factor"]
    Invalid.unless(
        place.held("factor") == factor, f"{place.node}: {place.arithmetic.name} cannot hold the factor {factor!r}."
    )
    return _pointwise(place, lambda x: x * factor, factor, Rounding(1, place.node.lipschitz, underflow=1))


def _softsign(place: Place) -> Step:
    return _pointwise(place, lambda x: x / (1 + np.abs(x)), rounding=Rounding(2, ONE))


def _tanh(place: Place) -> Step:
    """|tanh h| ≤ |h|."""
    return _pointwise(place, np.tanh, rounding=Rounding(16, ONE, underflow=1))


def _sigmoid(place: Place) -> Step:
    """Of constant ¼, ½ at 0, and below 1."""

    def apply(x: Floats) -> Floats:
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, 1.0, small) / (1 + small)

    return _pointwise(place, apply, 0.25, Rounding(16, ZERO, root_up(prod(place.shape)), underflow=1), at_zero=0.5)


def _batch_norm(place: Place) -> Step:
    """In evaluation a fixed affine map of each channel, see Note [Normalisation]."""
    shape, axes = place.shape, (1, 2) if place.dimensions == 1 else (3,)
    place.require(len(shape) in axes, f"an input of {' or '.join(map(str, axes))} axes", shape)
    mean, variance = place.tensor("running_mean"), place.tensor("running_var")
    weight, bias = place.tensor("weight", np.ones(shape[0])), place.tensor("bias", np.zeros(shape[0]))
    place.used.add(place.name("num_batches_tracked"))
    for tensor in (weight, bias, mean, variance):
        place.require(tensor.shape == shape[:1], f"tensors of {shape[0]} numbers", tensor.shape)
    place.spend(100 * shape[0] * _PER_WEIGHT)
    epsilon, smallest = place["eps"], place.arithmetic.smallest
    gamma, spread, mu, beta = (
        np.array([Fraction(value) for value in tensor.tolist()], object) for tensor in (weight, variance, mean, bias)
    )
    normal = smallest <= min(spread) + epsilon and max(spread) + epsilon <= place.arithmetic.largest
    expected = "variances of at least 0, and with eps normal numbers"
    Malformed.unless(normal and min(spread) >= 0, f"{place.node}: Expected {expected}. Got others.")
    squares = gamma**2 / (spread + epsilon)
    gains = np.array([root_up(square) for square in squares], object) + smallest

    def norm(values: Integers) -> Fraction:
        return root_up((values**2).sum() * prod(shape[1:]))

    offset = norm(gains * abs(mu) + abs(beta))
    largest = (max(ONE, *gains), norm(mu) + offset)
    rounding = Rounding(8, max(gains), offset, Fraction(1, 2**22), largest)

    def apply(x: Floats) -> Floats:
        factor = weight / np.sqrt(variance + float(epsilon))
        column = (-1, *(1 for _ in shape[1:]))
        return (x - mean.reshape(column)) * factor.reshape(column) + bias.reshape(column)

    return Step(shape, max(squares), apply, rounding, offset)


def _half_abs(place: Place) -> Step:
    """The first half of the channels (the smaller one) without their signs."""
    half = place.shape[0] // 2
    return _pointwise(place, lambda x: np.concatenate([np.abs(x[:, :half]), x[:, half:]], axis=1))


def _translate(place: Place, bias: Floats) -> Step:
    """x + b, b repeated along the axes that it does not have. A sum rounds once; a subnormal one may be set to zero."""
    place.spend(bias.size * _PER_WEIGHT)
    norm = root_up(sum_of_squares(bias) * (prod(place.shape) // bias.size))
    return Step(place.shape, 1, lambda x: x + bias, Rounding(1, ONE, norm, 1), norm)


def _any_bias(place: Place) -> Step:
    shape, bias = place.shape, place.tensor("bias")
    sizes = zip(bias.shape[::-1], shape[::-1], strict=False)  # from the last axis on
    fits = bias.ndim <= len(shape) and all(size in (1, whole) for size, whole in sizes)
    place.require(fits, f"a bias that can be repeated to shape {list(shape)}", bias.shape)
    return _translate(place, bias)


def _position_bias(place: Place) -> Step:
    """The same for all channels."""
    size, bias = _image(place)[1:], place.tensor("bias")
    place.require(bias.shape == (prod(size),), f"a bias of {prod(size)} numbers", bias.shape)
    return _translate(place, bias.reshape(size))


def _norm_pool(place: Place) -> Step:
    """The L2 norm of each channel, or of each window, see Note [Norm of a channel]."""
    channels, *size = _image(place)
    whole_image = place["kernel_size"] is None
    taps, strides = place["kernel_size"] or tuple(size), place["stride"] or tuple(size)
    apart = whole_image == (place["stride"] is None) and all(k <= s for k, s in zip(taps, strides, strict=True))
    Malformed.unless(apart, f"{place.node}: Expected windows that do not overlap. Got {taps} by {strides}.")
    counts = [(n - k) // s + 1 for n, k, s in zip(size, taps, strides, strict=True)]
    shape = place.give((channels,) if whole_image else (channels, *counts))
    underflow, largest = root_up(3 * prod(taps) / place.arithmetic.smallest), root_up(place.arithmetic.largest)
    rounding = Rounding(prod(taps) + 1, ONE, underflow=underflow, largest=(largest, ZERO))

    def apply(x: Floats) -> Floats:
        windows = sliding_window_view(x, taps, (2, 3))[:, :, :: strides[0], :: strides[1]]
        return np.sqrt((windows * windows).sum(axis=(4, 5))).reshape(len(x), *shape)

    return Step(shape, 1, apply, rounding)


def _layer_centring(place: Place) -> Step:
    """x − mean(x) over some axes, an orthogonal projection.

    The mean is a sum of n numbers times 1/n, which is rounded too: with the difference at most n + 2 roundings, of |x| and
    of the mean of |x|, both of which have at most the norm of x. Of the n sums over n, the product and the difference at
    most one smallest normal number each vanishes. The sums are at most n times as large as x.
    """
    shape, axes = place.shape, place["axes"]
    place.require(sorted(set(axes)) == list(axes) and axes[-1] < len(shape), f"axes {list(axes)}, in order", shape)
    count = prod(shape[axis] for axis in axes)
    rounding = Rounding(count + 2, Fraction(2), underflow=4, largest=(Fraction(count + 2), ZERO))
    behind = tuple(axis + 1 for axis in axes)
    return Step(shape, 1, lambda x: x - x.mean(axis=behind, keepdims=True), rounding)


def _batch_centring(place: Place) -> Step:
    """In evaluation x − (mean − bias), the same for all positions of a channel: two roundings, of |mean| + |bias| and x."""
    shape, mean = place.shape, place.tensor("running_mean")
    bias = place.tensor("bias", np.zeros(shape[0]))
    for tensor in (mean, bias):
        place.require(tensor.shape == shape[:1], f"tensors of {shape[0]} numbers", tensor.shape)
    place.spend(10 * shape[0] * _PER_WEIGHT)
    squares = [(abs(Fraction(m)) + abs(Fraction(b))) ** 2 for m, b in zip(mean.tolist(), bias.tolist(), strict=True)]
    norm = root_up(sum(squares, ZERO) * prod(shape[1:]))
    shift = (mean - bias).reshape(-1, *(1 for _ in shape[1:]))
    return Step(shape, 1, lambda x: x - shift, Rounding(2, ONE, norm, 2), norm)


def _householder(place: Place) -> Step:
    """Pairs of channels, reflected on one side of a line, see Note [Reflection]."""
    shape, vectors = place.shape, place.tensor("vectors")
    half = shape[0] // 2
    place.require(
        vectors.shape == shape[:1] and shape[0] == 2 * half, "a number for each of 2n channels", vectors.shape
    )
    place.spend(10 * shape[0] * _PER_WEIGHT)
    v, w = vectors.reshape(2, half, *(1 for _ in shape[1:]))
    squares = [Fraction(a) ** 2 + Fraction(b) ** 2 for a, b in zip(*vectors.reshape(2, half).tolist(), strict=True)]
    ordinary = min(squares) >= Fraction(1, 1 << 64) and max(squares) <= 1 << 64
    Malformed.unless(ordinary, f"{place.node}: Expected vectors of ordinary length. Got one near 0 or very long.")
    inverse, longest = root_up(1 / min(squares)), root_up(max(squares))
    largest = (longest + 2 * inverse + 3, ZERO)
    rounding = Rounding(9, Fraction(3), underflow=6 * inverse + longest + 2, largest=largest)

    def apply(x: Floats) -> Floats:
        along = np.minimum(v * x[:, :half] + w * x[:, half:], 0.0) * (2 / (v * v + w * w))
        return np.concatenate([x[:, :half] - along * v, x[:, half:] - along * w], axis=1)

    return Step(shape, 1, apply, rounding)


# Numbers put elsewhere -----------------------------------------------------------------------------------------------


def _sort(place: Place, size: int | None) -> Step:
    """Sort, largest first, among the channels j, j + g, j + 2g, …, with g the number of groups; or along another axis."""
    axis = place["axis"]
    place.require(axis < len(place.shape), f"an axis {axis}", place.shape)
    length = size or place.shape[axis]
    place.require(place.shape[axis] % length == 0, f"a number of channels that {length} divides", place.shape)

    def apply(x: Floats) -> Floats:
        groups = x.reshape(*x.shape[: axis + 1], length, -1, *x.shape[axis + 2 :])
        return -np.sort(-groups, axis=axis + 1).reshape(x.shape)

    return Step(place.shape, 1, apply)


def _image(place: Place) -> Shape:
    place.require(len(place.shape) == 3, "an input (channels, height, width)", place.shape)
    return place.shape


def _channel_shift(place: Place) -> Step:
    """Groups of so many channels each, moved by one pixel, cyclically: down, up, right, left; the others stay."""
    shape, count = _image(place), place["channels"]
    place.require(4 * count <= shape[0], f"at least {4 * count} channels", shape)

    def apply(x: Floats) -> Floats:
        result = x.copy()
        for group, (by, axis) in enumerate(((1, 2), (-1, 2), (1, 3), (-1, 3))):
            part = slice(group * count, (group + 1) * count)
            result[:, part] = np.roll(x[:, part], by, axis)
        return result

    return Step(shape, 1, apply)


def _rearrange(place: Place, shape: Shape, split: Shape = (), order: Shape = ()) -> Step:
    """Give every number once: split into axes, which are put in another order, and joined."""

    def apply(x: Floats) -> Floats:
        axes = x.reshape(len(x), *split).transpose(order) if split else x
        return axes.reshape(len(x), *shape)

    return Step(place.give(shape), 1, apply, selects=True)


def _axis(place: Place, name: str) -> int:
    """Return an axis as torch counts them: the batch is 0, and −1 the last."""
    axes = len(place.shape) + 1
    return whole(-axes, axes - 1)(place[name], f"the {name} of {place.node}") % axes


def _flatten(place: Place) -> Step:
    shape, start, end = place.shape, _axis(place, "start_dim"), _axis(place, "end_dim")
    place.require(1 <= start <= end, "start_dim after the batch and not after end_dim", shape)
    return _rearrange(place, (*shape[: start - 1], prod(shape[start - 1 : end]), *shape[end:]))


def _unflatten(place: Place) -> Step:
    shape, dim, sizes = place.shape, _axis(place, "dim"), place["unflattened_size"]
    place.require(dim >= 1 and prod(sizes) == shape[dim - 1], f"{prod(sizes)} numbers along axis {dim}", shape)
    return _rearrange(place, (*shape[: dim - 1], *sizes, *shape[dim:]))


def _reshape(place: Place) -> Step:
    numbers = prod(place.shape)
    Malformed.unless(
        prod(place["shape"]) == numbers, f"{place.node}: Expected a shape of {numbers} numbers. Got another."
    )
    return _rearrange(place, place["shape"])


def _permute(place: Place) -> Step:
    """Axis k of the result is axis order[k], the batch not counted."""
    shape, order = place.shape, place["order"]
    place.require(sorted(order) == list(range(len(shape))), f"an input whose axes are {sorted(order)}", shape)
    return _rearrange(place, tuple(shape[axis] for axis in order), shape, (0, *(axis + 1 for axis in order)))


def _slice(place: Place) -> Step:
    shape, axis, (start, stop, step) = place.shape, place["axis"], (place[name] for name in ("start", "stop", "step"))
    fits = axis < len(shape) and start < stop <= shape[axis]
    place.require(fits, f"an axis {axis} that has the entries from {start} up to {stop}", shape)
    chosen = (slice(None),) * (axis + 1) + (slice(start, stop, step),)
    result = (*shape[:axis], len(range(start, stop, step)), *shape[axis + 1 :])
    return Step(result, 1, lambda x: x[chosen].copy(), selects=True)  # a view would keep all of x in memory


def _pixel_unshuffle(place: Place) -> Step:
    shape, f = place.shape, place["factor"]
    fits = len(shape) == 3 and shape[1] % f == 0 and shape[2] % f == 0
    place.require(fits, f"an image (channels, height, width) whose size {f} divides", shape)
    c, h, w = shape[0], shape[1] // f, shape[2] // f
    return _rearrange(place, (c * f**2, h, w), (c, h, f, w, f), (0, 1, 3, 5, 2, 4))


def _pixel_shuffle(place: Place) -> Step:
    shape, f = place.shape, place["factor"]
    place.require(len(shape) == 3 and shape[0] % f**2 == 0, f"an image whose channels {f**2} divides", shape)
    c, h, w = shape[0] // f**2, shape[1], shape[2]
    return _rearrange(place, (c, h * f, w * f), (c, f, f, h, w), (0, 1, 4, 2, 5, 3))


def _copy(x: Floats, sources: Sequence[Ints], fill: float = 0.0) -> Floats:
    """Return images whose pixels along each axis are those that the sources number; −1 is `fill`."""
    for number, source in enumerate(sources, start=2):
        x = np.take(x, source, axis=number, mode="clip")
        if (source < 0).any():
            x[(slice(None),) * number + (source < 0,)] = fill
    return x


def _upsample(place: Place) -> Step:
    """Each pixel Π factors times, nearest neighbours."""
    place.require(len(place.shape) >= 2, "an input (channels, …)", place.shape)
    factors = each(whole(1, _LARGEST_SETTING), len(place.shape) - 1)(place["factors"], f"the factors of {place.node}")
    sizes = [n * factor for n, factor in zip(place.shape[1:], factors, strict=True)]
    shape = place.give((place.shape[0], *sizes))

    def apply(x: Floats) -> Floats:
        return _copy(x, [np.arange(size) // factor for size, factor in zip(sizes, factors, strict=True)])

    return Step(shape, prod(factors), apply)


# Several inputs ------------------------------------------------------------------------------------------------------


def _join(place: Place, joins: str, shape: Shape, apply: Apply, rounding: Rounding | None = None) -> Step:
    work = 100 * sum(map(prod, place.shapes)) + 10_000 * len(place.shapes)
    return Step(place.give(shape), 1, apply, rounding, work=work, joins=joins)


def _add(place: Place) -> Step:
    """A sum of n terms rounds n − 1 times, in any order; a subnormal one may be set to zero."""
    others = [shape for shape in place.shapes if shape != place.shape]
    place.require(not others, f"inputs of one shape, {list(place.shape)}", others[0] if others else ())
    sums = len(place.shapes) - 1
    rounding = Rounding(sums, ONE, underflow=sums)
    return _join(place, "sum", place.shape, lambda *values: reduce(np.add, values), rounding)


def _concat(place: Place) -> Step:
    shape, axis = place.shape, place["axis"]
    place.require(axis < len(shape), f"an axis {axis}", shape)
    for other in place.shapes:
        fits = len(other) == len(shape) and other[:axis] == shape[:axis] and other[axis + 1 :] == shape[axis + 1 :]
        place.require(fits, f"inputs of shape {list(shape)}, but for axis {axis}", other)
    result = (*shape[:axis], sum(other[axis] for other in place.shapes), *shape[axis + 1 :])
    return _join(place, "concatenation", result, lambda *values: np.concatenate(values, axis + 1))


# Windows -------------------------------------------------------------------------------------------------------------


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
        Malformed.unless(fits, f"{place.node}: Expected reflection by less than the size. Got {before} and {after}.")
        axis = Axis(size, k, s, spread, before, after, mode)
        if place.settings.get("ceil_mode", False):
            outputs = -(-(axis.padded - axis.reach - 1) // s) + 1
            outputs -= (outputs - 1) * s >= size + before
            axis = replace(axis, after=(outputs - 1) * s + axis.reach + 1 - size - before)
        axes.append(axis)
    return Window((axes[0], axes[1])), place.give((channels, *(axis.outputs for axis in axes[2 - d :])))


def _pad_images(x: Floats, window: Window, fill: float = 0.0) -> Floats:
    """Return the padded images (batch, channels, height, width)."""
    images = x.reshape(*x.shape[:2], *(axis.size for axis in window.axes))
    return _copy(images, [axis.source() for axis in window.axes], fill)


def _pad(place: Place, mode: str) -> Step:
    """Padding copies pixels, or adds a constant; zeros and constants may also cut off."""
    window, shape = _window(place, place.shape[0], mode=mode)
    fill = place.held("value") if "value" in place.settings else 0.0
    inside = prod(int((axis.source() >= 0).sum()) for axis in window.axes)
    at_zero = abs(Fraction(fill)) * root_up(shape[0] * (window.outputs - inside))
    copies = prod(axis.copies() for axis in window.axes)  # 0 where nothing of the image is left
    return Step(shape, copies, lambda x: _pad_images(x, window, fill).reshape(len(x), *shape), at_zero=at_zero)


def _pool_window(place: Place) -> tuple[Window, Shape]:
    window, shape = _window(place, place.shape[0], place["kernel_size"])
    for axis in window.axes:
        first = np.arange(axis.outputs) * axis.stride - axis.before
        outside = -(np.minimum(first, 0) // axis.dilation)  # taps before the image
        reaches = ((outside < axis.taps) & (first + outside * axis.dilation < axis.size)).all()
        expected = f"Expected every window to reach the image. Got padding {place['padding']}"
        Malformed.unless(bool(reaches), f"{place.node}: {expected}.")
        place.spend((axis.taps + 20) * (axis.outputs + 1000) * 15)
    return window, shape


def _combine(x: Floats, window: Window, combine: Apply, fill: float) -> Floats:
    """Combine what the taps of each window see, along one axis and then along the other."""
    x = _pad_images(x, window, fill)
    for number, axis in enumerate(window.axes, start=2):
        before = (slice(None),) * number
        x = reduce(combine, [x[(*before, axis.seen(t))] for t in range(axis.taps)])
    return x


def _max_pool(place: Place) -> Step:
    """A change of one pixel reaches at most the windows that it lies in."""
    window, shape = _pool_window(place)

    def apply(x: Floats) -> Floats:
        return _combine(x, window, np.maximum, -np.inf).reshape(len(x), *shape)

    return Step(shape, window.overlap, apply, work=10 * sum(place["kernel_size"]) * prod(place.shape))


def _average_pool(place: Place) -> Step:
    """The sum over each window, divided: by one number, or by the number of pixels (and padding) that it sees.

    The operator has entries of one sign, so its norm is ‖|A|‖. Row sums are at most 1 where the divisor counts what is seen,
    column sums at most the windows over a pixel by the least divisor: the root of their product is a bound. So is the norm
    of the sums by the least divisor.
    """
    window, shape = _pool_window(place)
    claim, taps, divisor = place.node.lipschitz, prod(place["kernel_size"]), place["divisor_override"]
    Malformed.unless(divisor != 0, f"{place.node}: Expected a divisor_override other than 0. Got 0.")
    rows = ONE if divisor is None else Fraction(taps, abs(divisor))

    def divisors() -> Floats:
        """Return what outputs are divided by. It is not kept: a small file may have many nodes of many outputs."""
        counts = []
        for axis in window.axes if divisor is None else ():
            start = np.arange(axis.outputs) * axis.stride - axis.before
            end = np.minimum(start + axis.taps, axis.size + axis.before)  # what ceil_mode adds behind is never counted
            inside = np.minimum(end, axis.size) - np.maximum(start, 0)
            counts.append(end - start if place["count_include_pad"] else inside)
        return np.multiply.outer(*counts).astype(np.float64) if counts else np.array([float(divisor)])

    sizes = np.abs(divisors())
    least, most = Fraction(float(sizes.min())), Fraction(float(sizes.max()))

    def prove() -> Estimate:
        ones = np.ones((1, 1, 1, *(axis.taps for axis in window.axes)))
        estimate = convolution_norm(ones, window, claim * least, place.budget, place.node)
        return None if estimate is None else estimate / float(least)

    def apply(x: Floats) -> Floats:
        return (_combine(x, window, np.add, 0.0) / divisors()).reshape(len(x), *shape)

    largest = (claim * max(ONE, most), ZERO)  # sums are divided at the end
    rounding = Rounding(taps + 1, claim, underflow=taps + 1, largest=largest)
    work = 10 * sum(place["kernel_size"]) * prod(place.shape)
    return Step(shape, rows * window.overlap / least, apply, rounding, work=work, prove=prove)


# Weights -------------------------------------------------------------------------------------------------------------


def _affine(place: Place, kernel: Floats, window: Window, shape: Shape, apply: Apply, work: int = 0) -> Step:
    """A convolution with kernel (groups, outputs, inputs, taps, taps), or a matrix, and a bias.

    A sum of n products and a bias is off by at most γ_{n+1} times the sum of absolute values, plus what underflows.
    ‖W‖ ≤ ‖|W|‖, of which the square is at most the largest row sum times the largest column sum times the copies.
    """
    groups, outputs, inputs, *_ = kernel.shape
    channels, products = groups * outputs, kernel[0, 0].size
    bias = place.tensor("bias", np.zeros(channels))
    place.require(bias.shape == (channels,), f"a bias of {channels} numbers", bias.shape)
    norm = root_up(sum_of_squares(bias) * (prod(shape) // channels))
    place.spend(kernel.size * _PER_WEIGHT)
    row_sum = largest_row_sum(kernel.reshape(channels, -1))
    square = row_sum * largest_row_sum(kernel.swapaxes(1, 2).reshape(groups * inputs, -1)) * window.copies
    rounding = Rounding(products + 1, root_up(square), norm, products + 1)
    prove = partial(convolution_norm, kernel, window, place.node.lipschitz, place.budget, place.node)
    work += products * prod(shape)
    return Step(shape, square, partial(apply, bias=bias), rounding, norm, work, prove)


def _linear(place: Place) -> Step:
    """y = Wx + b along the last axis."""
    shape, weight = place.shape, place.tensor("weight")
    place.require(weight.ndim == 2, "a weight (outputs, inputs)", weight.shape)
    place.require(shape[-1] == weight.shape[1], f"an input of {weight.shape[1]} features", shape)
    result = place.give((*shape[:-1], len(weight)))
    kernel = weight[None, :, :, None, None]
    return replace(_affine(place, kernel, POINT, result, lambda x, bias: x @ weight.T + bias), matrix=weight)


def _convolution(place: Place) -> Step:
    shape, weight, groups, mode = place.shape, place.tensor("weight"), place["groups"], place["padding_mode"]
    place.require(weight.ndim == place.dimensions + 2, f"a kernel of {place.dimensions} axes", weight.shape)
    outputs, per_group, *taps = weight.shape
    taps = [1] * (2 - place.dimensions) + taps
    if mode != "circular" and not np.any(place["padding"]):
        mode = "zeros"
    window, result = _window(place, outputs, taps, mode)
    place.require(shape[0] == per_group * groups, f"{per_group * groups} channels in {groups} groups", shape)
    place.require(outputs % groups == 0, f"a number of outputs that {groups} groups divide", weight.shape)
    kernel = weight.reshape(groups, -1, per_group, *taps)

    def apply(x: Floats, bias: Floats) -> Floats:
        x = _pad_images(x, window)
        total = np.zeros((len(x), groups, outputs // groups, window.outputs))
        for t, u in np.ndindex(*taps):
            seen = x[:, :, window.axes[0].seen(t), window.axes[1].seen(u)]
            total += kernel[..., t, u] @ seen.reshape(len(x), groups, per_group, -1)
        return (total.reshape(len(x), outputs, -1) + bias[:, None]).reshape(len(x), *result)

    work = prod(taps) * (100_000 + 20 * shape[0] * window.outputs)
    return _affine(place, kernel, window, result, apply, work=work)


# The table -----------------------------------------------------------------------------------------------------------

_SIZE = whole(1, _LARGEST_SETTING)
_AXIS = whole(0, AXES)


def _per_axis(dimensions: int, read: Reader[Any], missing: Any) -> Reader[Any]:
    """Read one value per axis: a one-dimensional module is a two-dimensional one whose first axis does nothing."""
    read_all = each(read, dimensions)
    return lambda value, where: (missing,) * (2 - dimensions) + read_all(value, where)


def _both_sides(value: Any, where: str) -> tuple[int, int]:
    return (whole(0, _LARGEST_SETTING)(value, where),) * 2


def _pads(dimensions: int, least: int = 0) -> Reader[Any]:
    return _per_axis(dimensions, each(whole(least, _LARGEST_SETTING), 2), (0, 0))


def _exact(apply: Apply) -> Kind:
    """A 1-Lipschitz function of each number, 0 at 0, that does not round."""
    return Kind(partial(_pointwise, apply=apply))


KINDS: dict[str, Kind] = {
    "ReLU": _exact(lambda x: np.maximum(x, 0.0)),
    "ReLU6": _exact(lambda x: np.clip(x, 0.0, 6.0)),
    "Abs": _exact(np.abs),
    "Identity": _exact(lambda x: x),
    "Dropout": _exact(lambda x: x),  # in evaluation
    "Hardtanh": Kind(_hardtanh, {"min_val": real, "max_val": real}),
    "LeakyReLU": Kind(_leaky_relu, {"negative_slope": real}),
    "Scale": Kind(_scale, {"factor": real}),
    "Softsign": Kind(_softsign),
    "Tanh": Kind(_tanh, assumes=True),
    "Sigmoid": Kind(_sigmoid, assumes=True),
    "MaxMin": Kind(partial(_sort, size=2), {"axis": _AXIS}, defaults={"axis": 0}),
    "GroupSort": Kind(
        lambda place: _sort(place, place["group_size"]),
        {"group_size": optional(_SIZE), "axis": _AXIS},
        defaults={"axis": 0},
    ),
    "Householder": Kind(_householder),
    "BatchCentering": Kind(_batch_centring),
    "LayerCentering": Kind(_layer_centring, {"axes": each(_AXIS, 1, AXES)}),
    "ChannelShift": Kind(_channel_shift, {"channels": whole(0, _LARGEST_SETTING)}),
    "PositionBias": Kind(_position_bias),
    "Translate": Kind(_any_bias),
    "HalfAbs": Kind(_half_abs),
    "L2NormPool2d": Kind(
        _norm_pool,
        {"kernel_size": optional(each(_SIZE, 2)), "stride": optional(each(_SIZE, 2))},
        defaults={"kernel_size": None, "stride": None},
    ),
    "Flatten": Kind(_flatten, {"start_dim": anything, "end_dim": anything}),
    "Unflatten": Kind(_unflatten, {"dim": anything, "unflattened_size": each(_SIZE, 1, AXES)}),
    "Reshape": Kind(_reshape, {"shape": each(whole(1, LARGEST_ACTIVATION), 1, AXES)}),
    "Permute": Kind(_permute, {"order": each(_AXIS, 1, AXES)}),
    "Slice": Kind(_slice, {"axis": _AXIS, **dict.fromkeys(("start", "stop"), whole()), "step": whole(1)}),
    "Concat": Kind(_concat, {"axis": _AXIS}, inputs=range(1, sys.maxsize)),
    "Add": Kind(_add, inputs=range(2, sys.maxsize)),
    "PixelUnshuffle": Kind(_pixel_unshuffle, {"factor": _SIZE}),
    "PixelShuffle": Kind(_pixel_shuffle, {"factor": _SIZE}),
    "Upsample": Kind(_upsample, {"factors": anything}),
    "Linear": Kind(_linear),
}
for _d in (1, 2):
    _ones, _cut = _per_axis(_d, _SIZE, 1), {"padding": _pads(_d, least=-_LARGEST_SETTING)}
    _pooling: dict[str, Reader[Any]] = {
        "kernel_size": _ones,
        "stride": _ones,
        "padding": _per_axis(_d, _both_sides, (0, 0)),
        "ceil_mode": flag,
    }
    _counting = {"count_include_pad": flag, "divisor_override": optional(whole(-(1 << 53), 1 << 53))}
    _modes = {"padding_mode": choice("zeros", "circular", "reflect", "replicate")}
    _convolving = {"stride": _ones, "padding": _pads(_d), "dilation": _ones, "groups": _SIZE, **_modes}
    KINDS |= {
        f"Conv{_d}d": Kind(_convolution, _convolving),
        f"BatchNorm{_d}d": Kind(_batch_norm, {"eps": bound}),
        f"MaxPool{_d}d": Kind(_max_pool, {**_pooling, "dilation": _ones}),
        f"AvgPool{_d}d": Kind(_average_pool, {**_pooling, **_counting}),
        f"ZeroPad{_d}d": Kind(partial(_pad, mode="zeros"), _cut),
        f"ConstantPad{_d}d": Kind(partial(_pad, mode="zeros"), {**_cut, "value": real}),
        f"CircularPad{_d}d": Kind(partial(_pad, mode="circular"), {"padding": _pads(_d)}),
        f"ReflectionPad{_d}d": Kind(partial(_pad, mode="reflect"), {"padding": _pads(_d)}),
        f"ReplicationPad{_d}d": Kind(partial(_pad, mode="replicate"), {"padding": _pads(_d)}),
    }
