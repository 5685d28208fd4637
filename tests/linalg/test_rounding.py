"""Each *_up function is above the exact result, as rational arithmetic finds it, and by a unit or two only."""

import math
import random
import struct
import sys
from fractions import Fraction

import mpmath
import pytest

from isoconv.linalg.rounding import (
    UNIT_ROUNDOFF,
    add_up,
    div_up,
    gamma,
    mul_up,
    root_up,
    show_down,
    show_up,
    sqrt_up,
    up,
)

TINY, HUGE, STEP = sys.float_info.min, sys.float_info.max, math.ulp(0.0)
EDGES = [
    *(STEP, 3 * STEP, math.nextafter(TINY, 0), TINY, math.nextafter(2.0**-537, 0), 2.0**-511, 1e-160),
    *(math.nextafter(1.0, 0), 1.0, math.nextafter(1.0, 2), 1 / 3, 0.1, 3.0, 2.0**52 + 1, 2.0**53 - 1),
    *(2.0**511, math.sqrt(HUGE), HUGE / 2, math.nextafter(HUGE, 0), HUGE),
]


def some_floats(count: int, seed: int) -> list[float]:
    """Positive finite floats: half of them with uniformly random bits, half within a factor of four of one."""
    source = random.Random(seed)
    found: list[float] = []
    while len(found) < count:
        wild = abs(struct.unpack("<d", source.randbytes(8))[0])
        if 0 < wild < math.inf:
            found += [wild, 4 ** source.uniform(-1, 1)]
    return found


def at_least(result: float, exact: Fraction, units: float = math.inf) -> bool:
    """Whether the result is above, and by at most so many units of the last place of the exact value."""
    if result == math.inf or exact > Fraction(HUGE):
        return result == math.inf
    above = Fraction(result) - exact
    return above >= 0 and float(above / Fraction(math.ulp(max(float(exact), STEP)))) <= units


def test_one_operation():
    pairs = [(a, b) for a in EDGES for b in EDGES] + list(zip(some_floats(1500, 1), some_floats(1500, 2), strict=True))
    for a, b in pairs:
        assert at_least(add_up(a, b), Fraction(a) + Fraction(b), 3)
        assert at_least(div_up(a, b), Fraction(a) / Fraction(b), 3)
        # The first factor is rounded up by a unit too, which the second multiplies: 2·1 + 1½, and then halves are lost.
        exact = Fraction(a) * Fraction(b)
        assert at_least(mul_up(a, b), exact, 4 if exact > Fraction(TINY) and a >= TINY else math.inf)
        assert Fraction(a) <= Fraction(sqrt_up(a)) ** 2
        assert Fraction(sqrt_up(a)) <= Fraction(math.sqrt(a)) * (1 + Fraction(1, 2**51))


def test_many_terms_and_factors():
    source = random.Random(3)
    for _ in range(300):
        terms = [x for x in some_floats(source.randrange(1, 12), source.randrange(10**6)) if x < 1e300]
        assert at_least(add_up(*terms), sum(map(Fraction, terms), Fraction(0)))
        assert at_least(mul_up(*terms), math.prod(map(Fraction, terms), start=Fraction(1)))
    # Each of many small terms is lost in the sum: only rounding upwards notices.
    assert Fraction(add_up(1.0, *[2.0**-54] * 1000)) >= 1 + 1000 * Fraction(1, 2**54)


def test_edges():
    assert add_up() == 0 and mul_up() == 1 and add_up(0.0) >= 0
    assert 0 <= sqrt_up(0.0) <= 2.0**-537
    assert all(up(x) == math.nextafter(x, math.inf) > x for x in EDGES[:-1]) and up(HUGE) == math.inf
    assert root_up(1.0, 5000, 1) == root_up(math.inf, -10, 3) == math.inf
    assert root_up(1.0, -5000, 1) == STEP and 0 <= root_up(0.0, 0, 1) <= 2.0**-537
    assert root_up(HUGE, 1, 1) >= math.sqrt(HUGE)


@pytest.mark.parametrize("terms", [0, 1, 2, 7, 4097, 2**20 + 1, 2**40, 2**51 - 3, 2**52])
def test_gamma(terms):
    u = Fraction(1, 2**53)
    exact = terms * u / (1 - terms * u)
    assert u == Fraction(UNIT_ROUNDOFF)
    assert exact <= Fraction(gamma(terms)) <= exact * (1 + 16 * u) + Fraction(STEP) * 4


@pytest.mark.parametrize("halvings", [0, 1, 2, 5, 13, 14])
def test_root_up(halvings):
    """Exactly: result^(2^h) ≥ mantissa·2^exponent. And close, as mpmath finds it with 60 digits."""
    source = random.Random(halvings)
    mantissas = [1.0, 0.5, math.nextafter(1.0, 0), math.nextafter(1.0, 2), 2.0**-900, 3e-17, 1e300]
    for mantissa in mantissas + some_floats(30 if halvings < 10 else 8, halvings):
        for exponent in (0, 1, -1, 7, -8, source.randrange(-2000, 2000), source.randrange(-(2**14), 2**14)):
            result = root_up(mantissa, exponent, halvings)
            with mpmath.workdps(60):
                root = mpmath.power(mpmath.mpf(mantissa) * mpmath.mpf(2) ** exponent, mpmath.mpf(2) ** -halvings)
                assert result >= root
                if mpmath.mpf(TINY) < root < mpmath.mpf(HUGE):
                    assert result <= root * (1 + mpmath.mpf(8) / 2**53) or result == math.inf
            if halvings <= 5 and 0 < result < math.inf:
                assert Fraction(result) ** (2**halvings) >= Fraction(mantissa) * Fraction(2) ** exponent


def test_what_is_shown_lies_on_the_safe_side():
    for value in (value for value in (*EDGES, *some_floats(2000, seed=5)) if 1e-300 < value < HUGE / 2):
        low, high = Fraction(show_down(value)), Fraction(show_up(value))
        assert low <= value <= high and value - low <= 1e-5 * Fraction(value)
        assert high - Fraction(value) <= 1e-6 * Fraction(value)
    assert (show_down(0.0), show_up(1.0), show_up(math.inf), show_down(1.99999999)) == ("0", "1", "inf", "1.99999")
