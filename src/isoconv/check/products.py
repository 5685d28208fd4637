"""Matrix products of whole numbers, exact although a floating-point library multiplies.

Each number is cut into three balanced digits of 18 bits, |digit| ≤ 2¹⁷ + 1. A product of two digit matrices then adds up at
most 2¹⁸ terms of at most (2¹⁷ + 1)², so that every partial sum, in whatever order, is a whole number below 2⁵³ and
therefore exact in float64, fused multiply-add or not. Products of digits with the same weight are added in int64. The
result stays a list of "limbs": value = Σ limbs[k]·2^(18k).
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BITS = 18
LARGEST = 1 << 53  # of the numbers that are multiplied
_DIGITS = 3
_TERMS = 1 << 18


def digits(numbers: Ints) -> list[Floats]:
    """Three digits per number, least significant first: numbers = Σ digits[k]·2^(18k)."""
    if numbers.size and max(int(numbers.max()), -int(numbers.min())) > LARGEST:
        raise ArithmeticError("a number beyond 2^53 cannot be cut into three digits")
    result = []
    rest = numbers
    for _ in range(_DIGITS - 1):
        rest, digit = _split(rest)
        result.append(digit.astype(np.float64))
    return [*result, rest.astype(np.float64)]


def product(left: Ints, right: Ints) -> list[Ints]:
    """left @ right (matrices or batches of them) as limbs, for numbers up to 2⁵³ and up to 2²⁵ terms in a sum."""
    terms = left.shape[-1]
    if terms > _TERMS << 7:
        raise ArithmeticError("too many terms in a sum")
    total: list[Ints] = [np.zeros((), np.int64)] * (2 * _DIGITS - 1)
    for start in range(0, terms, _TERMS):
        left_digits = digits(left[..., start : start + _TERMS])
        right_digits = digits(right[..., start : start + _TERMS, :])
        for i, a in enumerate(left_digits):
            for j, b in enumerate(right_digits):
                total[i + j] = total[i + j] + (a @ b).astype(np.int64)
    return total


def normalised(limbs: list[Ints]) -> list[Ints]:
    """The same values in balanced digits, |limb| ≤ 2¹⁷, with one limb more at the top for what is carried over."""
    result = []
    carry = np.zeros((), np.int64)
    for limb in limbs:
        carry, digit = _split(limb + carry)
        result.append(digit)
    return [*result, carry]


def rescaled(limbs: list[Ints]) -> Ints:
    """value / 2⁵³ rounded to a whole number, off by less than 1. The result has to fit int64."""
    doubled = normalised([2 * limb for limb in limbs])  # value / 2⁵³ = 2·value / 2⁵⁴, and 54 bits are three limbs
    return sum((limb << (BITS * k) for k, limb in enumerate(doubled[3:])), np.zeros((), np.int64))


def _split(numbers: Ints) -> tuple[Ints, Ints]:
    """(q, r) with numbers = q·2¹⁸ + r and −2¹⁷ ≤ r < 2¹⁷."""
    half = 1 << (BITS - 1)
    quotient = (numbers + half) >> BITS
    return quotient, numbers - (quotient << BITS)
