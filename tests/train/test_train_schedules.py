"""Schedules against their formulas."""

import itertools
import math

import pytest

from isoconv.train.config import SCHEDULES


@pytest.mark.parametrize(("step", "exponent"), [(0, 1), (9, 1), (10, 2), (599, 60), (600, 61), (1999, 200)])
def test_exponential_is_a_tenth_every_sixty_epochs_counted_from_one(step, exponent):
    assert SCHEDULES["exponential"](step, 2000, 10) == pytest.approx(0.1 ** (exponent / 60), rel=1e-12)


@pytest.mark.parametrize(
    ("step", "linear", "cosine"), [(0, 1.0, 1.0), (25, 0.75, (1 + math.sqrt(0.5)) / 2), (50, 0.5, 0.5), (100, 0.0, 0.0)]
)
def test_linear_cosine_and_constant(step, linear, cosine):
    for name, factor in (("linear", linear), ("cosine", cosine), ("constant", 1.0)):
        assert SCHEDULES[name](step, 100, 10) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize("kind", sorted(SCHEDULES.keys() - {"one-cycle"}))
def test_every_schedule_is_positive_and_never_rises(kind):
    factors = [SCHEDULES[kind](step, 240, 12) for step in range(240)]
    assert all(0 < later <= earlier <= 1 for earlier, later in itertools.pairwise(factors))


def test_one_cycle_rises_for_a_tenth_of_the_steps_and_falls_to_zero():
    factors = [SCHEDULES["one-cycle"](step, 1000, 10) for step in range(1000)]
    assert max(factors) == pytest.approx(1, abs=0.006) and factors.index(max(factors)) in (99, 100)
    assert factors[:100] == sorted(factors[:100]) and factors[100:] == sorted(factors[100:], reverse=True)
    assert factors[0] == pytest.approx(0.005) and factors[-1] == pytest.approx(0.0005 / 0.9)
