"""Exact numbers: square roots rounded to a stated side, and floating-point arrays as Python integers."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[Any]  # Python integers, in an array of objects

_ROOT_BITS = 100  # roots are off by a relative 2^-99 at most
_BLOCK = 1 << 18  # Python integers are large: only so many at a time


def root_up(square: Fraction | int) -> Fraction:
    """At least the square root, equal to it where the root is rational."""
    scaled, divisor = _scaled(Fraction(square))
    root = isqrt(scaled)
    return Fraction(root + (root * root < scaled), divisor)


def root_down(square: Fraction | int) -> Fraction:
    """At most the square root, equal to it where the root is rational."""
    scaled, divisor = _scaled(Fraction(square))
    return Fraction(isqrt(scaled), divisor)


def _scaled(square: Fraction) -> tuple[int, int]:
    """(s, d) with √square = √s / d, and s large enough for its integer root to be precise."""
    product = square.numerator * square.denominator  # √(a/b) = √(ab) / b
    shift = max(0, _ROOT_BITS - product.bit_length() // 2)
    return product << 2 * shift, square.denominator << shift


def as_integers(values: Floats) -> tuple[Integers, int]:
    """(m, e) with values = m·2ᵉ exactly, m whole numbers of any length."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64).astype(object)
    nonzero = values != 0
    lowest = int(exponents[nonzero].min()) if nonzero.any() else 0
    shifts = np.where(nonzero, exponents - lowest, 0).astype(object)
    return whole << shifts, lowest - 53


def shown(value: Fraction) -> str:
    """For messages: a float has fewer digits, but also less range."""
    try:
        return repr(float(value))
    except OverflowError:
        return "more than 1e308"


def power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def sum_of_squares(values: Floats) -> Fraction:
    integers, exponent = as_integers(values.ravel())
    return int(integers.dot(integers)) * power_of_two(2 * exponent)


def largest_row_sum(matrix: Floats) -> Fraction:
    """Of the absolute values."""
    step = max(1, _BLOCK // matrix.shape[1])
    largest = Fraction(0)
    for start in range(0, len(matrix), step):
        integers, exponent = as_integers(np.abs(matrix[start : start + step]))
        largest = max(largest, int(integers.sum(axis=1).max()) * power_of_two(exponent))
    return largest
