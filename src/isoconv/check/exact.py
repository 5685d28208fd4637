"""Exact numbers: roots rounded to a stated side, floats as integers, products of integers, points of the unit circle.

Note [Exact products]. A floating-point library multiplies matrices of whole numbers exactly, if they are small enough. Each
number up to 2⁵³ is cut into three balanced digits of 18 bits, |digit| ≤ 2¹⁷ + 1. A product of two digit matrices may add up
2¹⁸ terms of at most (2¹⁷ + 1)²: every partial sum, in whatever order, is a whole number below 2⁵³ and therefore exact in
float64, with fused multiply-add or without. Products of digits with the same weight are added in int64.
The result stays a list of "limbs": value = Σ limbs[k]·2^(18k).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from . import Invalid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Integers = npt.NDArray[Any]  # Python integers or fractions, in an array of objects

ZERO, ONE = Fraction(0), Fraction(1)
BITS = 18
LARGEST = 1 << 53  # of the numbers that are multiplied
_DIGITS = 3
_TERMS = 1 << 12  # multiplied at once: digits are three times as large as the numbers
_ROOT_BITS = 100  # roots are off by a relative 2⁻⁹⁹ at most
_BLOCK = 1 << 16  # Python integers are large: only so many at a time
_CIRCLE_BITS = 128  # of the fixed-point numbers on the way to a cosine
_LONGEST = 1 << 10  # bits of a numerator or denominator before `trim` rounds it
_LEAST_BITS, _MOST_BITS = 1 << 12, 1 << 16  # digits after the point, and before it, that a bound can have


@dataclass(frozen=True)
class Arithmetic:
    """A floating-point arithmetic: its name, unit roundoff, smallest normal and largest finite number."""

    name: str
    unit: Fraction
    smallest: Fraction
    largest: Fraction

    def hold(self, values: Any) -> Floats:
        """Return the numbers as this arithmetic holds them; what is too large for it becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(self.name).astype(np.float64)


ARITHMETICS = {
    "float64": Arithmetic("float64", Fraction(1, 2**53), Fraction(1, 2**1022), Fraction(2**1024 - 2**971)),
    "float32": Arithmetic("float32", Fraction(1, 2**24), Fraction(1, 2**126), Fraction(2**128 - 2**104)),
}


# Fractions -----------------------------------------------------------------------------------------------------------


def root_up(square: Fraction | int) -> Fraction:
    """Return at least the square root, and the root itself where it is rational."""
    scaled, divisor = _scaled(Fraction(square))
    root = isqrt(scaled)
    return Fraction(root + (root * root < scaled), divisor)


def root_down(square: Fraction | int) -> Fraction:
    """Return at most the square root, and the root itself where it is rational."""
    scaled, divisor = _scaled(Fraction(square))
    return Fraction(isqrt(scaled), divisor)


def _scaled(square: Fraction) -> tuple[int, int]:
    """Return (s, d) with √square = √s / d, and s large enough for its integer root to be precise."""
    product = square.numerator * square.denominator  # √(a/b) = √(ab) / b
    shift = max(0, _ROOT_BITS - product.bit_length() // 2)
    return product << 2 * shift, square.denominator << shift


def trim(value: Fraction) -> Fraction:
    """Return a bound, or a slightly larger one where its digits have become too many: by a relative 2⁻²⁵⁵, or by 2⁻⁴⁰⁹⁶."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= _LONGEST:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    Invalid.unless(exponent < _MOST_BITS, f"a bound that the layers' constants give exceeds 2^{_MOST_BITS}.")
    unit = power_of_two(max(exponent - _LONGEST // 4, -_LEAST_BITS))
    return -(-value // unit) * unit


def add_up(numbers: Iterable[Fraction]) -> Fraction:
    """Return the sum, or a slightly larger one where its digits have become too many."""
    total = ZERO
    for number in numbers:
        total = trim(total + number)
    return total


def power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def show(value: object) -> str:
    """Return the value on one short line, a fraction as a float."""
    try:
        shown = repr(float(value) if isinstance(value, Fraction) else value)
    except (ValueError, OverflowError):  # an integer too long to print, a fraction beyond all floats
        shown = "a very large number"
    return shown if len(shown) <= 60 else shown[:57] + "..."


# Arrays of floats ----------------------------------------------------------------------------------------------------


def as_integers(values: Floats) -> tuple[Integers, int]:
    """Return (m, e) with values = m·2ᵉ exactly, m whole numbers of any length."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64).astype(object)
    nonzero = values != 0
    lowest = int(exponents[nonzero].min()) if nonzero.any() else 0
    shifts = np.where(nonzero, exponents - lowest, 0).astype(object)
    return whole << shifts, lowest - 53


def as_fractions(values: Floats) -> Integers:
    return np.array([Fraction(value) for value in values.tolist()], object)


def sum_of_squares(values: Floats) -> Fraction:
    total = Fraction(0)
    for start in range(0, values.size, _BLOCK):
        integers, exponent = as_integers(values.ravel()[start : start + _BLOCK])
        total += int(integers.dot(integers)) * power_of_two(2 * exponent)
    return total


def squared_distance(a: Floats, b: Floats) -> Fraction:
    integers, exponent = as_integers(np.stack([a, b]))
    difference = integers[0] - integers[1]
    return int(difference.dot(difference)) * power_of_two(2 * exponent)


def largest_row_sum(matrix: Floats) -> Fraction:
    """Return the largest sum of a row's absolute values."""
    step = max(1, _BLOCK // matrix.shape[1])
    largest = Fraction(0)
    for start in range(0, len(matrix), step):
        integers, exponent = as_integers(np.abs(matrix[start : start + step]))
        largest = max(largest, int(integers.sum(axis=1).max()) * power_of_two(exponent))
    return largest


# Products of whole numbers, see Note [Exact products] ----------------------------------------------------------------


def digits(numbers: Ints) -> list[Floats]:
    """Return three digits per number, least significant first: numbers = Σ digits[k]·2^(18k)."""
    if numbers.size and max(int(numbers.max()), -int(numbers.min())) > LARGEST:
        raise ArithmeticError("a number beyond 2^53 cannot be cut into three digits")
    result = []
    rest = numbers
    for _ in range(_DIGITS - 1):
        rest, digit = _split(rest)
        result.append(digit.astype(np.float64))
    return [*result, rest.astype(np.float64)]


def multiply(left: Ints, right: Ints | None = None) -> list[Ints]:
    """Return left @ right (matrices or batches of them) as limbs, for numbers up to 2⁵³ and up to 2²⁵ terms in a sum.

    Without `right`, left @ leftᵀ: there, two different digits are multiplied once, not twice.
    """
    if left.shape[-1] > 1 << 25:
        raise ArithmeticError("too many terms in a sum")
    total: list[Ints] = [np.zeros((), np.int64)] * (2 * _DIGITS - 1)
    for start in range(0, left.shape[-1], _TERMS):
        piece = slice(start, start + _TERMS)
        a = digits(left[..., piece])
        b = [np.swapaxes(digit, -1, -2) for digit in a] if right is None else digits(right[..., piece, :])
        for i, j in np.ndindex(_DIGITS, _DIGITS):
            if right is not None or j <= i:
                limb = (a[i] @ b[j]).astype(np.int64)
                twice = right is None and j < i
                total[i + j] = total[i + j] + (limb + np.swapaxes(limb, -1, -2) if twice else limb)
    return total


def normalise(limbs: list[Ints]) -> list[Ints]:
    """Return the same values in balanced digits, |limb| ≤ 2¹⁷, with one limb more at the top for what is carried over."""
    result = []
    carry = np.zeros((), np.int64)
    for limb in limbs:
        carry, digit = _split(limb + carry)
        result.append(digit)
    return [*result, carry]


def rescale(limbs: list[Ints]) -> Ints:
    """Return value / 2⁵³ rounded to a whole number, off by less than 1. The result has to fit int64."""
    doubled = normalise([2 * limb for limb in limbs])  # value / 2⁵³ = 2·value / 2⁵⁴, and 54 bits are three limbs
    return sum((limb << (BITS * k) for k, limb in enumerate(doubled[3:])), np.zeros((), np.int64))


def _split(numbers: Ints) -> tuple[Ints, Ints]:
    """Return (q, r) with numbers = q·2¹⁸ + r and −2¹⁷ ≤ r < 2¹⁷."""
    half = 1 << (BITS - 1)
    quotient = (numbers + half) >> BITS
    return quotient, numbers - (quotient << BITS)


# The unit circle -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def circle(parts: int) -> tuple[Ints, Ints]:
    """Return 2⁵³·cos(2πj/parts) and 2⁵³·sin(2πj/parts) for j = 0 … parts − 1, each off by less than 1.

    In fixed point with 128 bits, π is off by less than 2¹¹ units (fewer than 64 terms of arctan(1/5), each off by less
    than 2, times 16, and less for the other), so the angle is; a term of the series for cos or sin is off by less than 16
    units (x·e/n + 2 never exceeds that, for x < 2), and fewer than 64 of them are not zero. Together that is less than
    2⁻¹¹⁵, to which the rounding to 53 bits adds half a unit of 2⁻⁵³.
    """
    half_pi = (16 * _arctan_of_inverse(5) - 4 * _arctan_of_inverse(239)) // 2  # Machin's formula
    drop = _CIRCLE_BITS - 53
    points = []
    for j in range(parts):
        quarter, rest = divmod(4 * j, parts)
        cosine, sine = ((value + (1 << (drop - 1))) >> drop for value in _cos_sin(half_pi * rest // parts))
        for _ in range(quarter):
            cosine, sine = -sine, cosine
        points.append((cosine, sine))
    table = np.array(points, np.int64)
    return table[:, 0], table[:, 1]


def _cos_sin(x: int) -> tuple[int, int]:
    """Add up Taylor's series for 0 ≤ x ≤ π/2."""
    sums = [0, 0]
    term, n = 1 << _CIRCLE_BITS, 0
    while term:
        sums[n % 2] += -term if n % 4 >= 2 else term
        n += 1
        term = (term * x >> _CIRCLE_BITS) // n
    return sums[0], sums[1]


def _arctan_of_inverse(q: int) -> int:
    total, power, n = 0, (1 << _CIRCLE_BITS) // q, 0
    while power:
        total += (-power if n % 2 else power) // (2 * n + 1)
        power //= q * q
        n += 1
    return total
