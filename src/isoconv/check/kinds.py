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

Note [Softmax]. p = exp(x − m)/Σ over N numbers, m the largest. The Jacobian diag(p) − ppᵀ is symmetric, and its rows
have absolute sums of 2pᵢ(1 − pᵢ) ≤ ½: so is its norm. With t = m − x, rounding t changes a term by a relative ut, exp
by at most 40u (some libraries have a fast one, of 20 units in the last place), a sum of positive terms by (N − 1)u and
the mean of those, in which Σpᵢtᵢ ≤ log N, as it is an entropy less a logarithm of at least 0. Summed up over i, with
the quotient (or two roundings for it), that is (82 + N + 2·log N)u ≤ (2N + 84)u, and what is not linear in u has room
in γ of 4 more. Terms that vanish cost a smallest normal number each, and N of them in Σ.

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
from .curves import CURVES
from .exact import Arithmetic, Floats, Integers, Ints, largest_row_sum, root_down, root_up, sum_of_squares
from .files import Json, Reader, Tensor, anything, as_float64, bound, choice, each, flag, optional, real, record, whole
from .norms import POINT, Axis, Estimate, Window, convolution_norm

Shape = tuple[int, ...]
Apply = Callable[..., Floats]  # to a batch (or several), in float64

LARGEST_ACTIVATION = 1 << 25  # numbers in one activation
_LARGEST_SETTING = 1 << 20  # far beyond any network, and small enough for positions to be computed with
_PER_WEIGHT = 5_000  # multiplications that the exact sums cost per weight
_PER_TAP = 20_000  # that the norm of an axis costs per weight
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


def _curve(place: Place) -> Step:
    """A smooth function, see `curves`."""
    for name in place.settings.keys() & {"alpha", "beta", "threshold"}:
        place.held(name)
    smallest, largest, kind = place.arithmetic.smallest, place.arithmetic.largest, place.node.kind
    if kind in ("CELU", "Softplus"):
        scale = place["alpha" if kind == "CELU" else "beta"]
        Malformed.unless(scale >= smallest, f"{place.node}: Expected a normal number above 0. Got {scale!r}.")
    limit = largest.numerator.bit_length() * 0.69  # log 2 is above that: exp does not overflow
    fits = 0 <= place.settings.get("threshold", 0.0) <= limit
    Malformed.unless(fits, f"{place.node}: Expected a threshold from 0 to {limit}. Got another.")
    place.spend(15_000_000)
    curve, entries = CURVES[kind](place.settings), root_up(prod(place.shape))
    underflow = curve.jump / smallest + 8
    numbers = (curve.growth * max(ONE, curve.amplification), curve.offset * entries)
    rounding = Rounding(curve.terms, curve.amplification, curve.offset * entries, underflow, numbers)
    work = 1_000 * prod(place.shape)
    return Step(place.shape, curve.slope**2, curve.apply, rounding, curve.at_zero * entries, work)


def _softmax(place: Place) -> Step:
    """See Note [Softmax]."""
    shape, axis = place.shape, _axis(place, "dim")
    place.require(axis >= 1, "a dim other than the batch", shape)
    terms, sums = shape[axis - 1], prod(shape) // shape[axis - 1]

    def apply(x: Floats) -> Floats:
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    rounding = Rounding(2 * terms + 88, ZERO, root_up(sums), terms + 4)
    return Step(shape, Fraction(1, 4), apply, rounding, root_up(Fraction(sums, terms)), 1_000 * prod(shape))


def _normalize(place: Place) -> Step:
    """(x − μ)/σ of each channel: a difference and a quotient, or a product with 1/σ, also of μ: at most 4 roundings."""
    shape, mean, std = place.shape, place.tensor("mean"), place.tensor("std")
    place.spend(100 * shape[0] * _PER_WEIGHT)
    for tensor in (mean, std):
        place.require(tensor.shape == shape[:1], f"{shape[0]} numbers", tensor.shape)
    normal = place.arithmetic.smallest <= std.min()
    Malformed.unless(bool(normal), f"{place.node}: Expected stds that are normal numbers above 0. Got others.")
    gain, positions = 1 / Fraction(float(std.min())), prod(shape[1:])
    shifts = [Fraction(m) / Fraction(s) for m, s in zip(mean.tolist(), std.tolist(), strict=True)]
    offset = root_up(sum(shift**2 for shift in shifts) * positions)
    largest = (max(ONE, gain), root_up(sum_of_squares(mean) * positions) + offset)
    rounding = Rounding(4, gain, offset, gain + 4, largest)
    column = (-1, *(1 for _ in shape[1:]))
    return Step(shape, gain**2, lambda x: (x - mean.reshape(column)) / std.reshape(column), rounding, offset)


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
    """Each pixel Π factors times, nearest neighbours; or linear interpolation, where an axis says at which positions."""
    place.require(len(place.shape) >= 2, "an input (channels, …)", place.shape)
    linear = isinstance(place["factors"], list) and isinstance((place["factors"] or [0])[0], dict)
    read = each(_POSITIONS if linear else whole(1, _LARGEST_SETTING), len(place.shape) - 1)
    factors: Any = read(place["factors"], f"the factors of {place.node}")
    if linear:
        return _interpolate(place, factors)
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
            taps = ((_intervals(*seen(axis), axis.size), axis.size) for axis in window.axes)
            if claim**2 >= prod(_axis_square(*tap, size) for tap, size in taps):
                return None
        ones = np.ones((1, 1, 1, *(axis.taps for axis in window.axes)))
        estimate = convolution_norm(ones, window, claim * least, place.budget, place.node)
        return None if estimate is None else estimate / float(least)

    def apply(x: Floats) -> Floats:
        return (_combine(x, window, np.add, 0.0) / divisors()).reshape(len(x), *shape)

    largest = (claim * max(ONE, most), ZERO)  # sums are divided at the end
    rounding = Rounding(taps + 1, claim, underflow=taps + 1, largest=largest)
    work = 10 * sum(place["kernel_size"]) * prod(place.shape)
    return Step(shape, rows * window.overlap / least, apply, rounding, work=work, prove=prove)


_POSITIONS: Reader[Json] = record(dict, {"outputs": whole(1, _LARGEST_SETTING), "first": real, "step": bound})


def _interpolate(place: Place, axes: Sequence[Json]) -> Step:
    """See Note [Interpolation]."""
    shape, taps = place.give((place.shape[0], *(axis["outputs"] for axis in axes))), []
    place.spend(sum(shape) * 300_000)
    for size, axis in zip(place.shape[1:], axes, strict=True):
        outputs, first, step = axis["outputs"], Fraction(axis["first"]), axis["step"]
        usual = step >= Fraction(size, 2 * outputs) and first + (outputs - 1) * step <= size - Fraction(1, 2)
        usual = usual and Fraction(-1, 2) <= first <= step / 2 and (outputs != size or step == 1)
        usual = usual or size == 1 or (outputs == 1 and 0 <= first < size)
        Malformed.unless(usual, f"{place.node}: Expected the positions of a resized axis of {size} pixels. Got others.")
        positions = [min(max(first + i * step, ZERO), Fraction(size - 1)) for i in range(outputs)]
        lower = [min(int(position), max(size - 2, 0)) for position in positions]
        shares = [position - low for position, low in zip(positions, lower, strict=True)]
        weights = np.array([[float(1 - share), float(share)] for share in shares])
        taps.append((np.minimum(np.array(lower)[:, None] + [0, 1], size - 1), weights))
    terms = 76 * sum(size + 1 for size in place.shape[1:]) + 10
    return _separable(place, shape, taps, Rounding(terms, place.node.lipschitz, underflow=10))


Taps = tuple[Ints, Floats]  # (outputs, k): output i is the sum of weights[i, k]·x[places[i, k]]


def _separable(place: Place, shape: Shape, taps: Sequence[Taps], rounding: Rounding) -> Step:
    """One matrix of weights ≥ 0 per axis, see Note [Averages]."""

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
    """Return at least ‖A‖², see Note [Averages]."""
    vector, flat = np.ones(len(places)), places.ravel()
    for _ in range(65):
        before = vector
        seen = np.bincount(flat, (weights * before[:, None]).ravel(), size)
        vector = (weights * seen[places]).sum(axis=1)
        ratio, vector = float((vector / before).max()), np.maximum(vector / vector.max(), 1e-200)
    terms = places.shape[1] + int(np.bincount(flat).max()) + 9
    return Fraction(ratio) * (1 + Fraction(terms, 2**53 - terms))


def _adaptive_pool(place: Place) -> Step:
    """Output i of o is the mean of the pixels from ⌊in/o⌋ up to ⌈(i + 1)n/o⌉. The sum may be divided once for each axis."""
    place.require(len(place.shape) == place.dimensions + 1, f"{place.dimensions + 1} axes", place.shape)
    shape, taps = place.give((place.shape[0], *place["output_size"])), []
    for size, outputs in zip(place.shape[1:], place["output_size"], strict=True):
        place.spend(_PER_TAP * (size + 2 * outputs))
        number = np.arange(outputs)
        start, end = number * size // outputs, -(-(number + 1) * size // outputs)
        taps.append(_intervals(start, end, end - start, size))
    count = prod(places.shape[1] for places, _ in taps)
    largest = (place.node.lipschitz * count, ZERO)
    return _separable(
        place, shape, taps, Rounding(count + 2, place.node.lipschitz, underflow=count + 2, largest=largest)
    )


def _intervals(start: Ints, end: Ints, divisor: Ints, size: int) -> Taps:
    places = start[:, None] + np.arange(int((end - start).max()))
    return np.minimum(places, size - 1), (places < end[:, None]) / divisor[:, None]


# Weights -------------------------------------------------------------------------------------------------------------


def _affine(
    place: Place, kernel: Floats, window: Window, shape: Shape, apply: Apply, work: int = 0, transposed: bool = False
) -> Step:
    """A convolution with kernel (groups, outputs, inputs, taps, taps), or its transpose, or a matrix, and a bias.

    A sum of n products and a bias is off by at most γ_{n+1} times the sum of absolute values, plus what underflows.
    ‖W‖ ≤ ‖|W|‖, of which the square is at most the largest row sum times the largest column sum times the copies.
    """
    groups, outputs, inputs, *_ = kernel.shape
    channels, products = (
        groups * (inputs if transposed else outputs),
        kernel[0, :, 0].size if transposed else kernel[0, 0].size,
    )
    bias = place.tensor("bias", np.zeros(channels))
    place.require(bias.shape == (channels,), f"a bias of {channels} numbers", bias.shape)
    norm = root_up(sum_of_squares(bias) * (prod(shape) // channels))
    place.spend(kernel.size * _PER_WEIGHT)
    row_sum = largest_row_sum(kernel.reshape(groups * outputs, -1))
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


def _transposed(place: Place) -> Step:
    """The transpose of a convolution with zero padding, from the image that is given to the one that is taken.

    Of the windows of that convolution there are as many as the image that is taken has pixels. Pixels that none of them
    sees hold the bias alone: `output_padding` adds some at the end.
    """
    shape, weight, groups, d = place.shape, place.tensor("weight"), place["groups"], place.dimensions
    place.require(len(shape) == d + 1, f"an input of {d + 1} axes", shape)
    place.require(weight.ndim == d + 2, f"a kernel of {d} axes", weight.shape)
    inputs, per_group, *taps = weight.shape
    taps = [1] * (2 - d) + taps
    place.require(shape[0] == inputs and inputs % groups == 0, f"{inputs} channels in {groups} groups", shape)
    axes, names = [], ("stride", "dilation", "padding", "output_padding")
    numbers = zip((1,) * (2 - d) + shape[1:], taps, *(place[name] for name in names), strict=True)
    for size, k, stride, dilation, (before, after), extra in numbers:
        reached = (size - 1) * stride + (k - 1) * dilation + 1
        place.give((reached,))
        axes.append(Axis(reached - before - after + extra, k, stride, dilation, before, after - extra))
    window, channels = Window((axes[0], axes[1])), groups * per_group
    result = place.give((channels, *(axis.size for axis in axes[2 - d :])))
    kernel = weight.reshape(groups, -1, per_group, *taps)

    def apply(x: Floats, bias: Floats) -> Floats:
        padded = (max(axis.padded, axis.before + axis.size) for axis in axes)
        total = np.zeros((len(x), groups, per_group, *padded))
        x = x.reshape(len(x), groups, inputs // groups, -1)
        for t, u in np.ndindex(*taps):
            part = (kernel[..., t, u].swapaxes(1, 2) @ x).reshape(*total.shape[:3], *(axis.outputs for axis in axes))
            total[..., axes[0].seen(t), axes[1].seen(u)] += part
        rows, columns = (slice(axis.before, axis.before + axis.size) for axis in axes)
        inside = total[..., rows, columns].reshape(len(x), channels, -1)
        return (inside + bias[:, None]).reshape(len(x), *result)

    work = prod(taps) * (100_000 + 20 * channels * prod(shape[1:]))
    return _affine(place, kernel, window, result, apply, work, transposed=True)


def _convex_potential(place: Place) -> Step:
    """A residual layer, see Note [Convex potential]."""
    shape, weight = place.shape, place.tensor("weight")
    place.require(weight.ndim == 4, "a kernel of 2 axes", weight.shape)
    window, hidden = _window(place, len(weight), weight.shape[2:], place["padding_mode"])
    place.require(shape[0] == weight.shape[1], f"{weight.shape[1]} channels", shape)
    place.require(shape[1:] == hidden[1:] and window.copies == 1, "padding that keeps the size", hidden)
    bias = place.tensor("bias", np.zeros(len(weight)))
    place.require(bias.shape == (len(weight),), f"a bias of {len(weight)} numbers", bias.shape)
    place.spend(weight.size * _PER_WEIGHT)
    norm = root_up(sum_of_squares(bias) * prod(shape[1:]))
    square = largest_row_sum(weight.reshape(len(weight), -1))
    square *= largest_row_sum(weight.swapaxes(0, 1).reshape(shape[0], -1))
    absolute, n, m = max(ONE, root_up(square)), weight[0].size, weight[:, 0].size
    vanished = absolute * root_up(Fraction(prod(hidden), prod(shape))) * 2 * (n + 1) + 2 * (m + 1)
    rounding = Rounding(n + m + 2, 1 + absolute**2, absolute * norm, vanished)
    axes, (height, width) = window.axes, weight.shape[2:]

    def prove() -> Estimate:
        claim = place.node.lipschitz
        if claim < 1:
            return 1.0
        estimate = convolution_norm(weight[None], window, root_down(1 + claim), place.budget, place.node)
        return None if estimate is None else max(1.0, estimate**2 - 1)

    def apply(x: Floats) -> Floats:
        images = _pad_images(x, window)
        total = np.zeros((len(x), len(weight), window.outputs)) + bias[:, None]
        for t, u in np.ndindex(height, width):
            total += weight[..., t, u] @ images[:, :, axes[0].seen(t), axes[1].seen(u)].reshape(len(x), shape[0], -1)
        units, back = np.maximum(total, 0.0), np.zeros_like(images)
        for t, u in np.ndindex(height, width):
            part = (weight[..., t, u].T @ units).reshape(x.shape)
            back[:, :, axes[0].seen(t), axes[1].seen(u)] += part
        for number, axis in enumerate(axes, start=2):  # what lies outside is given back to the pixel that it shows
            source, moved = axis.source(), np.moveaxis(back, number, 0)
            pixels = np.zeros((axis.size, *moved.shape[1:]))
            np.add.at(pixels, source[source >= 0], moved[source >= 0])
            back = np.moveaxis(pixels, 0, number)
        return x - back

    work = 2 * height * width * (100_000 + 20 * max(shape[0], len(weight)) * window.outputs)
    work += 2 * n * prod(hidden)
    return Step(shape, max(ONE, square - 1) ** 2, apply, rounding, absolute * norm, work, prove)


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
    "Linear": Kind(_linear),
    "ConvexPotential2d": Kind(
        _convex_potential,
        {"padding": each(each(whole(0, _LARGEST_SETTING), 2), 2), "padding_mode": choice("zeros", "circular")},
    ),
    "Normalize": Kind(_normalize),
    "Softmax": Kind(_softmax, {"dim": anything}, assumes=True),
}
KINDS |= dict.fromkeys(
    ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), Kind(_upsample, {"factors": anything})
)
KINDS |= dict.fromkeys(("AlphaDropout", "FeatureAlphaDropout", "Dropout1d", "Dropout2d"), KINDS["Dropout"])
_shapes: dict[str, dict[str, Reader[Any]]] = {
    "ELU": {"alpha": real},
    "CELU": {"alpha": real},
    "GELU": {"approximate": choice("none", "tanh")},
    "Softplus": {"beta": real, "threshold": real},
}
KINDS |= {
    name: Kind(_curve, _shapes.get(name, {}), assumes=name not in ("Hardswish", "Hardsigmoid")) for name in CURVES
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
        f"ConvTranspose{_d}d": Kind(
            _transposed,
            {
                **dict.fromkeys(("stride", "dilation"), _ones),
                "padding": _pads(_d),
                "output_padding": _per_axis(_d, whole(0, _LARGEST_SETTING), 0),
                "groups": _SIZE,
            },
        ),
        f"AdaptiveAvgPool{_d}d": Kind(_adaptive_pool, {"output_size": each(_SIZE, _d)}),
        f"BatchNorm{_d}d": Kind(_batch_norm, {"eps": bound}),
        f"MaxPool{_d}d": Kind(_max_pool, {**_pooling, "dilation": _ones}),
        f"AvgPool{_d}d": Kind(_average_pool, {**_pooling, **_counting}),
        f"ZeroPad{_d}d": Kind(partial(_pad, mode="zeros"), _cut),
        f"ConstantPad{_d}d": Kind(partial(_pad, mode="zeros"), {**_cut, "value": real}),
        f"CircularPad{_d}d": Kind(partial(_pad, mode="circular"), {"padding": _pads(_d)}),
        f"ReflectionPad{_d}d": Kind(partial(_pad, mode="reflect"), {"padding": _pads(_d)}),
        f"ReplicationPad{_d}d": Kind(partial(_pad, mode="replicate"), {"padding": _pads(_d)}),
    }
