"""Smooth functions of each number: the largest slope of each, what it computes, how that rounds.

Note [Largest slopes]. The constants are upper bounds of |f′|; the tests evaluate what is said here, with intervals.
SiLU x·σ(x): f′ = σ + xσ(1 − σ) and f″ = σ(1 − σ)(2 + x(1 − 2σ)), so |f′| is largest where x(2σ − 1) = 2, and there f′ =
½ + x/4. As x(2σ − 1) grows with x > 0, any x with x(2σ(x) − 1) > 2, that is (x − 2)eˣ > x + 2, gives a bound:
2.3993572808. GELU xΦ(x): f′ = Φ + xφ, f″ = (2 − x²)φ, largest at √2: (1 + erf 1)/2 + exp(−1)/√π = 1.12890414518… Both
satisfy f′(−x) = 1 − f′(x), and so does the GELU by tanh, whose f′ is (1 + tanh u)/2 + xu′(1 − tanh²u)/2 with u growing
in x: over a ≤ x ≤ b, b in the place of a growing factor and a in that of the falling one bound it. Mish likewise: f =
xτ(eˣ), τ(E) = 1 − 2/(E² + 2E + 2), f′ = τ + 4xE(E + 1)/(E² + 2E + 2)²; for x < 0 both terms are below 1 and of opposite
sign. The others are exponentials or lines with f′ at the ends of where they hold: ELU max(1, |α|), CELU 1, SELU λα,
Softplus and LogSigmoid 1, Hardswish 3/2 (at 3), Hardsigmoid 1/6.

Note [Curves round]. Per entry: γ_terms·(amplification·|h| + offset) + jump, where exp, expm1, log1p, log, erf and tanh
are within 16u of their values, which is the assumption. SiLU: exp, sum and quotient 18u of a value below |h|, and where
exp overflows the value itself, below u|h|. GELU: the inner argument is off by at most 10u of itself, which moves erf or
tanh by at most 5u; 16u and a sum of at most 2 make 23u, halved 12u, and two products 14u, times |h|. Mish: 16u of exp
and 16u of log1p move tanh by at most 24u, and 16u + 1u follow. Softplus: 2u of βh and 17u of log1p and the quotient,
times |h|; 16u of exp, and 17u of log 2, divided by β. Where torch returns h, beyond the threshold t, that is off by
log(1 + e^(−t))/β < e^(−t)/β (and 1u/β as the comparison may round); 1/Σtᵏ/k! is above e^(−t). LogSigmoid: 9u of exp and
a sum, 12u of the logarithm, and the difference. ELU: expm1, or exp − 1, is off by 17u, and two products follow, of
values below |α|; CELU: two more for the argument, |z|e^z < ½; SELU: two constants more. Hardswish: 4 roundings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import erf, factorial
from typing import Any

import numpy as np

from .exact import Floats

ONE = Fraction(1)
_SCALE, _ALPHA = 1.0507009873554805, 1.6732632423543772  # of SELU, off by less than one unit in the last place
_SELU = Fraction(_SCALE) * Fraction(_ALPHA) * (1 + Fraction(1, 2**51))
_ROOT = (2 / np.pi) ** 0.5
_erf = np.vectorize(erf, otypes=[np.float64])


@dataclass(frozen=True)
class Curve:
    """See the Notes. `at_zero` is at least |f(0)|, `growth` how many times larger a number may get on the way."""

    apply: Callable[[Floats], Floats]
    slope: Fraction
    terms: int
    amplification: Fraction = ONE
    offset: Fraction = Fraction(0)
    at_zero: Fraction = Fraction(0)
    jump: Fraction = Fraction(0)
    growth: Fraction = ONE


def _elu(settings: Mapping[str, Any], celu: bool = False) -> Curve:
    alpha = settings["alpha"]
    size, divisor = abs(Fraction(alpha)), alpha if celu else 1.0

    def apply(x: Floats) -> Floats:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / divisor))

    return Curve(apply, ONE if celu else max(ONE, size), 22 if celu else 19, Fraction(0), size)


def _softplus(settings: Mapping[str, Any]) -> Curve:
    beta, threshold = settings["beta"], settings["threshold"]
    jump = 1 / (Fraction(beta) * sum(Fraction(threshold) ** k / factorial(k) for k in range(80)))

    def apply(x: Floats) -> Floats:  # without the jump
        return (np.maximum(x * beta, 0) + np.log1p(np.exp(-np.abs(x * beta)))) / beta

    offset = 1 / Fraction(beta)
    return Curve(apply, ONE, 30, ONE, offset, offset * Fraction(7, 10), jump, max(ONE, Fraction(beta)))


def _gelu(settings: Mapping[str, Any]) -> Curve:
    if settings["approximate"] == "none":
        return Curve(lambda x: x * 0.5 * (1 + _erf(x * 0.5**0.5)), Fraction("1.1289041452"), 14)
    return Curve(lambda x: x * 0.5 * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3))), Fraction("1.128994"), 14)


def _selu(settings: Mapping[str, Any]) -> Curve:
    def apply(x: Floats) -> Floats:
        return _SCALE * np.where(x > 0, x, _ALPHA * np.expm1(np.minimum(x, 0)))

    return Curve(apply, _SELU, 22, Fraction(_SCALE), _SELU)


def _gate(x: Floats) -> Floats:
    return np.clip(x + 3, 0, 6)


CURVES: dict[str, Callable[[Mapping[str, Any]], Curve]] = {
    "ELU": _elu,
    "CELU": lambda settings: _elu(settings, celu=True),
    "SELU": _selu,
    "SiLU": lambda _: Curve(lambda x: x / (1 + np.exp(-x)), Fraction("1.0998393202"), 19),
    "GELU": _gelu,
    "Mish": lambda _: Curve(lambda x: x * np.tanh(np.log1p(np.exp(x))), Fraction("1.0885003"), 42),
    "Softplus": _softplus,
    "LogSigmoid": lambda _: Curve(
        lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), ONE, 23, ONE, ONE, Fraction(7, 10)
    ),
    "Hardswish": lambda _: Curve(lambda x: x * _gate(x) / 6, Fraction(3, 2), 4, growth=Fraction(6)),
    "Hardsigmoid": lambda _: Curve(lambda x: _gate(x) / 6, Fraction(1, 6), 4, Fraction(0), ONE, Fraction(1, 2)),
}
