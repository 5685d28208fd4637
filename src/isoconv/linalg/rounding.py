"""Scalars rounded to the safe side, to print too, and the error constants of floating-point sums. float64 throughout.

All error terms here hold for every order of summation and with or without fused multiply-add:
|fl(Σ xᵢyᵢ) − Σ xᵢyᵢ| ≤ γ_n Σ |xᵢyᵢ| with γ_n = n·u / (1 − n·u), u = 2⁻⁵³ (Higham, Accuracy and Stability, ch. 3).
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

UNIT_ROUNDOFF = 2.0**-53


def up(value: float) -> float:
    """The next float above: correct after one rounded operation, whichever way that rounded."""
    return math.nextafter(value, math.inf)


def add_up(*terms: float) -> float:
    """An upper bound of a sum of non-negative numbers."""
    total = 0.0
    for term in terms:
        total = up(total + term)
    return total


def mul_up(*factors: float) -> float:
    """An upper bound of a product of non-negative numbers."""
    total = 1.0
    for factor in factors:
        total = up(total * factor)
    return total


def div_up(numerator: float, denominator: float) -> float:
    """An upper bound of a quotient of positive numbers."""
    return up(numerator / denominator)


def sqrt_up(value: float) -> float:
    """An upper bound of a square root."""
    return up(math.sqrt(value))


def gamma(terms: int) -> float:
    """γ_n, rounded up."""
    product = up(terms * UNIT_ROUNDOFF)
    return div_up(product, math.nextafter(1 - product, 0.0))


def root_up(mantissa: float, exponent: int, halvings: int) -> float:
    """An upper bound of (mantissa · 2^exponent)^(1/2^halvings), with no overflow on the way."""
    for _ in range(halvings):
        if exponent % 2:
            mantissa, exponent = mantissa * 2, exponent - 1
        mantissa, exponent = sqrt_up(mantissa), exponent // 2
    try:
        return up(math.ldexp(mantissa, exponent))
    except OverflowError:
        return math.inf


def show_down(value: float, digits: int = 6) -> str:
    """Return so many significant digits of a lower bound, never rounded up."""
    return f"{float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(value)):.{digits}g}"


def show_up(value: float, digits: int = 7) -> str:
    """Return so many significant digits of an upper bound, never rounded down."""
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)):.{digits}g}"
