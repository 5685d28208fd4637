"""Functions of each number, and of each channel: the largest slope of each, what it computes, how that rounds.

Note [Largest slopes]. The constants are upper bounds of |f′|; the tests evaluate what is said here, with intervals.
SiLU x·σ(x): f′ = σ + xσ(1 − σ) and f″ = σ(1 − σ)(2 + x(1 − 2σ)), so |f′| is largest where x(2σ − 1) = 2, and there f′ =
½ + x/4. As x(2σ − 1) grows with x > 0, any x with x(2σ(x) − 1) > 2, that is (x − 2)eˣ > x + 2, gives a bound:
2.3993572808. GELU xΦ(x): f′ = Φ + xφ, f″ = (2 − x²)φ, largest at √2: (1 + erf 1)/2 + exp(−1)/√π = 1.12890414518… Both
satisfy f′(−x) = 1 − f′(x), and so does the GELU by tanh, whose f′ is (1 + tanh u)/2 + xu′(1 − tanh²u)/2 with u growing
in x: over a ≤ x ≤ b, b in the place of a growing factor and a in that of the falling one bound it. Mish likewise: f =
xτ(eˣ), τ(E) = 1 − 2/(E² + 2E + 2), f′ = τ + 4xE(E + 1)/(E² + 2E + 2)²; for x < 0 both terms are below 1 and of opposite
sign. The others are exponentials or lines with f′ at the ends of where they hold: ELU max(1, |α|), CELU 1, SELU λα,
Softplus and LogSigmoid 1, Hardswish 3/2 (at 3), Hardsigmoid 1/6, sigmoid 1/4.

Note [Curves round]. Per entry: γ_terms·(amplification·|h| + offset) + jump, where exp, expm1, log1p, log, erf and tanh
are within 16u of their values, which is the assumption. SiLU: exp, sum and quotient 18u of a value below |h|, and where
exp overflows the value itself, below u|h|. GELU: the inner argument is off by at most 10u of itself, which moves erf or
tanh by at most 5u; 16u and a sum of at most 2 make 23u, halved 12u, and two products 14u, times |h|. Mish: 16u of exp
and 16u of log1p move tanh by at most 24u, and 16u + 1u follow. Softplus: 2u of βh and 17u of log1p and the quotient,
times |h|; 16u of exp, and 17u of log 2, divided by β. Where torch returns h, beyond the threshold t, that is off by
log(1 + e^(−t))/β < e^(−t)/β (and 1u/β as the comparison may round); 1/Σtᵏ/k! is above e^(−t). LogSigmoid: 9u of exp and
a sum, 12u of the logarithm, and the difference. ELU: expm1, or exp − 1, is off by 17u, and two products follow, of
values below |α|; CELU: two more for the argument, |z|e^z < ½; SELU: two constants more. Hardswish: 4 roundings. Tanh is at
most |h|, sigmoid below 1. LeakyReLU: only negative numbers round, the slope and its product. Softsign: 1 + |h| and the
quotient, (1 + δ)/(1 + δ′) = 1 + θ₂ times the exact value; nothing underflows: either 1 + |h| rounds to 1 and the quotient
is h, or |h| > u/2.

Note [Softmax]. p = exp(x − m)/Σ over N numbers, m the largest. The Jacobian diag(p) − ppᵀ is symmetric, and its rows
have absolute sums of 2pᵢ(1 − pᵢ) ≤ ½: so is its norm. With t = m − x, rounding t changes a term by a relative ut, exp
by at most 40u (some libraries have a fast one, of 20 units in the last place), a sum of positive terms by (N − 1)u and
the mean of those, in which Σpᵢtᵢ ≤ log N, as it is an entropy less a logarithm of at least 0. Summed up over i, with
the quotient (or two roundings for it), that is (82 + N + 2·log N)u ≤ (2N + 84)u, and what is not linear in u has room
in γ of 4 more. Terms that vanish cost a smallest normal number each, and N of them in Σ.

Note [Normalisation]. y = (x − μ)·α + β with α = γ/√(v + ε). Computed: ε is rounded and added to v (two roundings, of which
the root leaves half), root, reciprocal and the product with γ: α̂ = α(1 + θ₄), where θ_n stands for a number of at most
γ_n. Then either (x − μ)·α̂ + β, with three roundings more on x and μ, or x·α̂ + (β − μ·α̂), with two more on x, three on μ and
two on β: all within γ_8·(|α|(|x| + |μ|) + |β|), also where a library's reciprocal root is off by one unit more. Products may
underflow twice, each time by at most half the smallest subnormal number, u times the smallest normal one. Where the product
with γ underflows, α̂ is off by as much; adding the smallest normal number to |α| covers it. ‖f(0)‖ ≤ ‖|α||μ| + |β|‖.

Note [Reflection]. y = z − 2·min(vᵀz, 0)·v/vᵀv for each pair z of channels is z or its mirror image, the same where vᵀz = 0:
an isometry on either side of a line, so 1-Lipschitz. Computed, with d = vᵀv: vᵀz and d round twice each, then 2/d, the
product with it, that with v and the difference once each. Where squares underflow, d changes by at most three times the
smallest normal number t, less than a unit of a d above 2⁻⁶⁴: nine roundings of |z| and of 2|v||v|ᵀ|z|/d, whose norms are
together at most 3‖z‖. What vanishes of vᵀz, at most 3t, is multiplied by 2|v|/d ≤ 2/√d; what vanishes of the product, t, by
√d; the last two results may lose t each. Numbers on the way are at most √d·‖z‖, 2‖z‖/√d and 3‖z‖.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import erf, factorial, prod
from typing import Any

import numpy as np

from . import Invalid
from .exact import ONE, ZERO, Floats, Integers, as_fractions, root_up, sum_of_squares
from .files import AXES, Reader, anything, bound, choice, each, real, whole
from .kinds import PER_WEIGHT, Kind, Place, Rounding, Step

_SCALE, _ALPHA = 1.0507009873554805, 1.6732632423543772  # of SELU, off by less than one unit in the last place
_SELU = Fraction(_SCALE) * Fraction(_ALPHA) * (1 + Fraction(1, 2**51))
_ROOT = (2 / np.pi) ** 0.5
_erf = np.vectorize(erf, otypes=[np.float64])


# Functions of each number --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A function of each number, see the Notes; without terms, it does not round.

    at_zero : at least |f(0)|
    underflow : in smallest normal numbers
    growth : how many times larger a number may get on the way
    """

    apply: Callable[[Floats], Floats]
    slope: Fraction = ONE
    terms: int = 0
    amplification: Fraction = ONE
    offset: Fraction = ZERO
    at_zero: Fraction = ZERO
    underflow: Fraction | int = 8
    growth: Fraction = ONE


Rule = Curve | Callable[[Place], Curve]


def _follow(place: Place, rule: Rule, slow: bool = False) -> Step:
    """Apply a curve to each number."""
    place.spend(15_000_000 if slow else 0)
    curve, entries = rule if isinstance(rule, Curve) else rule(place), root_up(prod(place.shape))
    offset, largest = curve.offset * entries, curve.growth * max(ONE, curve.amplification)
    rounding = Rounding(curve.terms, curve.amplification, offset, curve.underflow, (largest, offset))
    work = 1_000 * prod(place.shape) if slow else 0
    at_zero = curve.at_zero * entries
    return Step(place.shape, curve.slope**2, curve.apply, rounding if curve.terms else None, at_zero, work)


def _hardtanh(place: Place) -> Curve:
    low, high = place.hold("min_val"), place.hold("max_val")
    place.require(low <= high, "min_val not above max_val", f"{low!r} and {high!r}")
    return Curve(lambda x: np.clip(x, low, high), at_zero=abs(Fraction(min(max(0.0, low), high))))


def _leaky_relu(place: Place) -> Curve:
    slope = place["negative_slope"]
    place.hold("negative_slope")  # an infinite one makes 0 no number
    size = abs(Fraction(slope))
    return Curve(lambda x: np.where(x > 0, x, x * slope), max(ONE, size), 2, size, underflow=2)


def _scale(place: Place) -> Curve:
    factor, name = place["factor"], place.arithmetic.name
    Invalid.unless(place.hold("factor") == factor, f"{place.node}: {name} cannot hold the factor {factor!r}.")
    return Curve(lambda x: x * factor, Fraction(factor), 1, place.node.lipschitz, underflow=1)


def _sigmoid(x: Floats) -> Floats:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1 + small)


def _require_normal(place: Place, setting: str) -> Fraction:
    place.hold(setting)
    place.require(place[setting] >= place.arithmetic.smallest, "a normal number above 0", repr(place[setting]))
    return Fraction(place[setting])


def _elu(place: Place) -> Curve:
    alpha = place["alpha"]
    place.hold("alpha")
    size = abs(Fraction(alpha))
    return Curve(lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), max(ONE, size), 19, ZERO, size)


def _celu(place: Place) -> Curve:
    size, alpha = _require_normal(place, "alpha"), place["alpha"]
    return Curve(lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)), ONE, 22, ZERO, size)


def _selu(x: Floats) -> Floats:
    return _SCALE * np.where(x > 0, x, _ALPHA * np.expm1(np.minimum(x, 0)))


def _softplus(place: Place) -> Curve:
    """Torch's jump at the threshold is left out of what is computed here, and counts as underflow."""
    scale, beta, threshold = _require_normal(place, "beta"), place["beta"], place["threshold"]
    place.hold("threshold")
    limit = place.arithmetic.largest.numerator.bit_length() * 0.69  # log 2 is above that: exp does not overflow
    place.require(0 <= threshold <= limit, f"a threshold from 0 to {limit}", "another")
    jump = 1 / (scale * sum(Fraction(threshold) ** k / factorial(k) for k in range(80)))

    def apply(x: Floats) -> Floats:
        return (np.maximum(x * beta, 0) + np.log1p(np.exp(-np.abs(x * beta)))) / beta

    underflow = jump / place.arithmetic.smallest + 8
    return Curve(apply, ONE, 30, ONE, 1 / scale, Fraction(7, 10) / scale, underflow, max(ONE, scale))


def _log_sigmoid(x: Floats) -> Floats:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def _gelu(place: Place) -> Curve:
    if place["approximate"] == "none":
        return Curve(lambda x: x * 0.5 * (1 + _erf(x * 0.5**0.5)), Fraction("1.1289041452"), 14)
    return Curve(lambda x: x * 0.5 * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3))), Fraction("1.128994"), 14)


def _gate(x: Floats) -> Floats:
    return np.clip(x + 3, 0, 6)


# Functions of channels and of groups of numbers ----------------------------------------------------------------------


def _softmax(place: Place) -> Step:
    """See Note [Softmax]."""
    shape, axis = place.shape, place.axis("dim")
    place.require(axis >= 1, "a dim other than the batch", shape)
    terms, sums = shape[axis - 1], prod(shape) // shape[axis - 1]

    def apply(x: Floats) -> Floats:
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    rounding = Rounding(2 * terms + 88, ZERO, root_up(sums), terms + 4)
    return Step(shape, Fraction(1, 4), apply, rounding, root_up(Fraction(sums, terms)), 1_000 * prod(shape))


def _half_abs(place: Place) -> Step:
    """The first half of the channels (the smaller one) without their signs."""
    half = place.shape[0] // 2
    return Step(place.shape, 1, lambda x: np.concatenate([np.abs(x[:, :half]), x[:, half:]], axis=1))


def _translate(place: Place, bias: Floats) -> Step:
    """x + b, b repeated along the axes that it does not have. A sum rounds once; a subnormal one may be set to zero."""
    place.spend(bias.size * PER_WEIGHT)
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
    size = place.image[1:]
    return _translate(place, place.vector("bias", prod(size)).reshape(size))


def _affine(
    place: Place, mean: Floats, factor: Floats, bias: Floats, gains: Integers, terms: int, underflow: Fraction
) -> Step:
    """(x − mean)·factor + bias of each channel, |factor| ≤ gains; so many roundings, see Note [Normalisation]."""
    mu, beta = as_fractions(mean), as_fractions(bias)

    def norm(values: Integers) -> Fraction:
        return root_up((values**2).sum() * prod(place.shape[1:]))

    offset, gain = norm(gains * abs(mu) + abs(beta)), max(gains)
    rounding = Rounding(terms, gain, offset, underflow, (max(ONE, gain), norm(mu) + offset))
    mean, factor, bias = (values.reshape(-1, *(1 for _ in place.shape[1:])) for values in (mean, factor, bias))
    return Step(place.shape, gain**2, lambda x: (x - mean) * factor + bias, rounding, offset)


def _normalize(place: Place) -> Step:
    """(x − μ)/σ of each channel: a difference and a quotient, or a product with 1/σ, also of μ: at most 4 roundings."""
    channels = place.shape[0]
    mean, std = place.vector("mean", channels), place.vector("std", channels)
    place.spend(100 * channels * PER_WEIGHT)
    normal = bool(place.arithmetic.smallest <= std.min())
    place.require(normal, "stds that are normal numbers above 0", "others")
    gains = 1 / as_fractions(std)
    return _affine(place, mean, 1 / std, np.zeros(channels), gains, 4, max(gains) + 4)


def _batch_norm(place: Place) -> Step:
    """In evaluation a fixed affine map of each channel, see Note [Normalisation]."""
    (channels, *_), axes = place.shape, (1, 2) if place.dimensions == 1 else (3,)
    place.require(len(place.shape) in axes, f"an input of {' or '.join(map(str, axes))} axes", place.shape)
    mean, variance = place.vector("running_mean", channels), place.vector("running_var", channels)
    weight, bias = place.vector("weight", channels, 1.0), place.vector("bias", channels, 0.0)
    place.used.add(place.name("num_batches_tracked"))
    place.spend(100 * channels * PER_WEIGHT)
    spread, smallest = as_fractions(variance) + place["eps"], place.arithmetic.smallest
    normal = smallest <= min(spread) and max(spread) <= place.arithmetic.largest and variance.min() >= 0
    place.require(normal, "variances of at least 0, and with eps normal numbers", "others")
    squares = as_fractions(weight) ** 2 / spread
    gains = np.array([root_up(square) for square in squares], object) + smallest
    factor = weight / np.sqrt(variance + float(place["eps"]))
    step = _affine(place, mean, factor, bias, gains, 8, Fraction(1, 2**22))
    return replace(step, square=max(squares))


def _batch_centring(place: Place) -> Step:
    """In evaluation x − (mean − bias), the same for all positions of a channel: two roundings, of |mean| + |bias| and x."""
    channels = place.shape[0]
    mean, bias = place.vector("running_mean", channels), place.vector("bias", channels, 0.0)
    place.spend(10 * channels * PER_WEIGHT)
    ones = np.ones(channels)
    return _affine(place, mean, ones, bias, as_fractions(ones), 2, Fraction(2))


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


def _householder(place: Place) -> Step:
    """Pairs of channels, reflected on one side of a line, see Note [Reflection]."""
    shape, half = place.shape, place.shape[0] // 2
    place.require(shape[0] == 2 * half, "an even number of channels", shape)
    vectors = place.vector("vectors", 2 * half)
    place.spend(10 * shape[0] * PER_WEIGHT)
    v, w = vectors.reshape(2, half, *(1 for _ in shape[1:]))
    squares = (as_fractions(vectors) ** 2).reshape(2, half).sum(axis=0)
    ordinary = min(squares) >= Fraction(1, 1 << 64) and max(squares) <= 1 << 64
    place.require(ordinary, "vectors of ordinary length", "one near 0 or very long")
    inverse, longest = root_up(1 / min(squares)), root_up(max(squares))
    largest = (longest + 2 * inverse + 3, ZERO)
    rounding = Rounding(9, Fraction(3), underflow=6 * inverse + longest + 2, largest=largest)

    def apply(x: Floats) -> Floats:
        along = np.minimum(v * x[:, :half] + w * x[:, half:], 0.0) * (2 / (v * v + w * w))
        return np.concatenate([x[:, :half] - along * v, x[:, half:] - along * w], axis=1)

    return Step(shape, 1, apply, rounding)


def _curve(rule: Rule, slow: bool = False, assumes: bool = False, **settings: Reader[Any]) -> Kind:
    return Kind(partial(_follow, rule=rule, slow=slow), settings, assumes=assumes)


_slow = partial(_curve, slow=True, assumes=True)


POINTWISE: dict[str, Kind] = {
    "ReLU": _curve(Curve(lambda x: np.maximum(x, 0.0))),
    "ReLU6": _curve(Curve(lambda x: np.clip(x, 0.0, 6.0))),
    "Abs": _curve(Curve(np.abs)),
    "Identity": _curve(Curve(lambda x: x)),
    "Hardtanh": _curve(_hardtanh, min_val=real, max_val=real),
    "LeakyReLU": _curve(_leaky_relu, negative_slope=real),
    "Scale": _curve(_scale, factor=real),
    "Softsign": _curve(Curve(lambda x: x / (1 + np.abs(x)), ONE, 2, underflow=0)),
    "Tanh": _curve(Curve(np.tanh, ONE, 16, underflow=1), assumes=True),
    "Sigmoid": _curve(Curve(_sigmoid, Fraction(1, 4), 16, ZERO, ONE, Fraction(1, 2), 1), assumes=True),
    "ELU": _slow(_elu, alpha=real),
    "CELU": _slow(_celu, alpha=real),
    "SELU": _slow(Curve(_selu, _SELU, 22, Fraction(_SCALE), _SELU)),
    "SiLU": _slow(Curve(lambda x: x / (1 + np.exp(-x)), Fraction("1.0998393202"), 19)),
    "GELU": _slow(_gelu, approximate=choice("none", "tanh")),
    "Mish": _slow(Curve(lambda x: x * np.tanh(np.log1p(np.exp(x))), Fraction("1.0885003"), 42)),
    "Softplus": _slow(_softplus, beta=real, threshold=real),
    "LogSigmoid": _slow(Curve(_log_sigmoid, ONE, 23, ONE, ONE, Fraction(7, 10))),
    "Hardswish": _curve(Curve(lambda x: x * _gate(x) / 6, Fraction(3, 2), 4, growth=Fraction(6)), slow=True),
    "Hardsigmoid": _slow(Curve(lambda x: _gate(x) / 6, Fraction(1, 6), 4, ZERO, ONE, Fraction(1, 2)), assumes=False),
    "Softmax": Kind(_softmax, {"dim": anything}, assumes=True),
    "HalfAbs": Kind(_half_abs),
    "Translate": Kind(_any_bias),
    "PositionBias": Kind(_position_bias),
    "Normalize": Kind(_normalize),
    "BatchNorm1d": Kind(_batch_norm, {"eps": bound}),
    "BatchNorm2d": Kind(_batch_norm, {"eps": bound}),
    "BatchCentering": Kind(_batch_centring),
    "LayerCentering": Kind(_layer_centring, {"axes": each(whole(0, AXES), 1, AXES)}),
    "Householder": Kind(_householder),
}
_DROPOUTS = ("Dropout", "AlphaDropout", "FeatureAlphaDropout", "Dropout1d", "Dropout2d")
POINTWISE |= dict.fromkeys(_DROPOUTS, POINTWISE["Identity"])  # in evaluation
