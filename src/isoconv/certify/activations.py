"""Smooth functions of each number: the largest slope of each, proved, and how it rounds.

Note [Slopes]
Every constant here is an upper bound of |f′| over all real numbers, rounded up in its last decimal. σ is the logistic
function, Φ and φ the normal distribution and its density.

* SiLU x·σ(x). f″ = σ′·(2 − x·tanh(x/2)), and x·tanh(x/2) grows with |x|: on the right f′ has its one maximum at the x*
  with x*·tanh(x*/2) = 2. There σ = ½ + 1/x*, which makes f′(x*) = ½ + x*/4. f′ − ½ is odd, so f′ ≥ ½ − x*/4. For x =
  2.39935729 the series of eˣ exceeds (x + 2)/(x − 2), that is x·tanh(x/2) > 2: so x* is smaller, and |f′| <
  1.0998393225.
* GELU x·Φ(x). f″ = φ·(2 − x²): the maximum is at √2, f′ = (1 + erf 1)/2 + 1/(e√π) = 1.128904145…; f′ − ½ is odd.
* GELU by tanh, x/2·(1 + tanh u), u = √(2/π)(x + 0.044715x³). f′ − ½ is odd, and f′ = (1 + tanh u)/2 + x·u′/(2cosh²u).
  On a cell a ≤ x ≤ b of the right half that is at most (1 + tanh u(b))/2 + b·u′(b)/(2cosh²u(a)). Cells of 2⁻¹⁹ between 1
  and 2 and of 2⁻¹² elsewhere up to 20 stay below 1.128995 (the maximum is 1.1289931 at 1.4185); beyond, it is 1 up to 10⁻¹⁸.
* Mish x·τ, τ = tanh log(1 + E) = 1 − 2/d, E = eˣ, d = E² + 2E + 2: f′ = τ + x·τ′, τ′ = 4E(E + 1)/d². Left of 0, 0 ≤ τ ≤
  3/5 and |x|τ′ ≤ 2|x|eˣ ≤ 2/e. On a cell of the right half, f′ ≤ τ(b) + b·4E(b)(E(b) + 1)/d(a)²: the same cells stay below
  1.088501 (the maximum is 1.0884982 at 1.4906), and beyond 20 it is 1 up to 10⁻¹². The tests evaluate these cells.
* ELU: 1 on the right, α·eˣ on the left, and f is continuous: max(1, |α|), of either sign. SELU is λ·ELU with α = 1.67…:
  λα.
* CELU: 1 on the right, e^(x/α) on the left: 1 for α > 0. (For α < 0 it is unbounded.)
* Softplus log(1 + e^(βx))/β: σ(βx) < 1. LogSigmoid x ↦ −log(1 + e^(−x)): the same with β = 1, reflected.
* Hardswish: (2x + 3)/6 between −3 and 3, which is largest at 3: 3/2. Hardsigmoid: 1/6.

Note [Rounding of curves]
Here |computed f(h) − f(h)| ≤ γ_{n+1}(A|h| + c) + jump in every entry, beside what underflows. exp, expm1, log1p, log,
erf and tanh are taken to be within 8 units in the last place, 16u relative to their values; that is the assumption
which certificates state. Where a relative bound would depend on how a library computes, the absolute one holds for all
ways.

* SiLU: h/(1 + exp(−h)) has 16u from exp, 1u from the sum, 1u from the quotient; h·σ(h) less; h·(1 + tanh(h/2))/2 errs
  by 10u|h|. Where exp(−h) overflows, 0 is computed, and |f(h)| ≤ |h|e^(−83) < u|h|. |f| ≤ |h|: n = 19, A = 1.
* GELU: h/2·(1 + erf(h/√2)). The argument t is off by 3u of itself, erf by 3u·|t|·2/√π·e^(−t²) < 2u for that, by 16u
  itself; the sum, at most 2, rounds by 2u; half of it all is 10u, and two products make it 12u|h|, also where 1 + erf
  cancels: n = 19, A = 1. By tanh: the argument z has at most 10 roundings of terms of one sign, so 10u·|z|/cosh²z < 5u,
  and 16u and 2u as before. Where the cube overflows, tanh is ±1. The same n and A.
* Mish: exp is off by 16u, log1p by 16u·E/(1 + E) for that and by 16u of itself, s; tanh by 16u(1 + s/cosh²s) < 24u for
  both, and by 16u itself: with the product 41u|h|. n = 43, A = 1. Where exp overflows tanh is 1.
* Softplus: βh is off by 2u (β may have been rounded), which moves f by at most 2u|h|; exp by 16u, f by 16u/β; log1p by
  16u of a value of at most β|h| + log 2; the quotient by 1u: n = 31, A = 1, c = 1/β. Beyond its threshold t torch
  returns h itself: the jump is log(1 + e^(−t))/β ≤ e^(−t)/β, and a comparison that is off by 2u·t adds less than 1u/β
  to it. e^(−t) is at most 1 over 64 terms of the series of eᵗ. Up to the threshold exp must not overflow.
* LogSigmoid min(h, 0) − log(1 + exp(−|h|)): 8u for exp, 12u for log1p, or 1u more for log(1 + ·); the difference: n =
  23, A = c = 1.
* ELU: left of 0, exp − 1 errs by 17u and expm1 by 16u, as values are below 1; α and the product round: n = 19, A = 0, c
  = |α|. CELU: its argument z has 3 roundings and |z|e^z < ½: n = 22, c = α. SELU: the same as ELU with two constants
  more, and the product with λ right of 0: n = 22, A = λ, c = λα.
* Hardswish h·min(max(h + 3, 0), 6)/6: a sum, a product, a quotient or a product with 1/6: n = 4, A = 1, 6 times larger
  on the way. Hardsigmoid: n = 4, A = 0, c = 1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import nn

from isoconv.linalg.rounding import div_up, up

_SELU_SCALE, _SELU_PRODUCT = 1.0507009873554807, 1.75809934084738  # λ and λα, rounded up


@dataclass(frozen=True)
class Curve:
    """What is known of a function of each number; see Note [Slopes] and Note [Rounding of curves].

    slope : the largest |f′|
    terms, absolute, constant, jump : n, A, c and what is added in Note [Rounding of curves], per entry
    growth : how many times larger numbers get on the way
    """

    slope: float
    terms: int
    absolute: float = 1.0
    constant: float = 0.0
    jump: float = 0.0
    growth: float = 1.0


def _elu(settings: Mapping[str, Any]) -> Curve:
    alpha = abs(settings["alpha"])
    return Curve(max(1.0, alpha), 19, 0.0, alpha)


def _softplus(settings: Mapping[str, Any]) -> Curve:
    threshold, beta = Fraction(settings["threshold"]), settings["beta"]
    series = sum(threshold**k / math.factorial(k) for k in range(64))
    jump = div_up(up(float(1 / series)), beta)
    return Curve(1.0, 31, 1.0, div_up(1.0, beta), jump, max(1.0, beta))


CURVES: dict[type[nn.Module], Callable[[Mapping[str, Any]], Curve]] = {
    nn.ELU: _elu,
    nn.CELU: lambda settings: Curve(1.0, 22, 0.0, settings["alpha"]),
    nn.SELU: lambda _: Curve(_SELU_PRODUCT, 22, _SELU_SCALE, _SELU_PRODUCT),
    nn.SiLU: lambda _: Curve(1.0998393225, 19),
    nn.GELU: lambda settings: Curve({"none": 1.12890415, "tanh": 1.128995}[settings["approximate"]], 19),
    nn.Mish: lambda _: Curve(1.088501, 43),
    nn.Softplus: _softplus,
    nn.LogSigmoid: lambda _: Curve(1.0, 23, 1.0, 1.0),
    nn.Hardswish: lambda _: Curve(1.5, 4, growth=6.0),
    nn.Hardsigmoid: lambda _: Curve(up(1 / 6), 4, 0.0, 1.0),
}
