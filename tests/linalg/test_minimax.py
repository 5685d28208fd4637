"""The minimax quintics equioscillate, so they are the best; their errors are what they say; they beat Newton–Schulz."""

import numpy as np
import pytest

from isoconv.linalg.orthogonalisation import best_quintic, minimax_schedule

INTERVALS = [(1e-3, 1.0), (0.05, 1.0), (0.5, 1.0), (0.3, 1.7), (0.9, 1.1), (0.1, 3.0)]


def values(quintic, x):
    a, b, c = quintic
    return a * x + b * x**3 + c * x**5


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_equioscillation(low, high):
    """Chebyshev: an odd quintic (three coefficients) whose error alternates at four points is the only best one."""
    quintic, error = best_quintic(low, high)
    x = np.linspace(low, high, 200_001)
    deviation = 1 - values(quintic, x)
    extrema = [0, *(np.flatnonzero(np.diff(np.sign(np.diff(deviation)))) + 1), len(x) - 1]
    assert len(extrema) == 4
    at = deviation[extrema]
    assert list(np.sign(at)) == [1, -1, 1, -1]
    # The grid misses an extremum by at most half a step, and the error by the curvature times its square.
    np.testing.assert_allclose(np.abs(at), error, rtol=0, atol=1e-7 * error + 1e-13)


@pytest.mark.parametrize(("low", "high"), [*INTERVALS, (0.999, 1.001), (0.9999, 1.0), (1.0, 1.0), (1.98, 2.0)])
def test_the_error_is_the_largest_on_the_interval(low, high):
    quintic, error = best_quintic(low, high)
    deviation = np.abs(1 - values(quintic, np.linspace(low, high, 100_001)))
    assert deviation.max() <= error + 1e-15
    assert deviation.max() >= error * (1 - 1e-6) - 1e-15


@pytest.mark.parametrize("low", [1e-3, 0.05, 0.7])
def test_beats_newton_schulz(low):
    """… of order 5, 15/8, −10/8, 3/8, with the interval as it is or scaled to its best advantage; also in steps."""
    _, error = best_quintic(low, 1.0)
    x = np.linspace(low, 1.0, 20_001)
    for stretch in np.linspace(0.8, 1.5, 71):
        assert error < np.abs(1 - values((15 / 8, -10 / 8, 3 / 8), stretch * x)).max()
    steps, x = 0, low
    while 1 - x > 1e-4:
        x, steps = values((15 / 8, -10 / 8, 3 / 8), x), steps + 1
    assert len(minimax_schedule(low)) < steps


@pytest.mark.parametrize("target", [1e-1, 1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("lowest", [1e-6, 1e-3, 0.05 / 1.01, 0.5, 0.99])
def test_every_value_ends_within_the_target(lowest, target):
    schedule = minimax_schedule(lowest, target)
    x = np.concatenate([np.geomspace(lowest, 1.0, 50_001), np.linspace(lowest, 1.0, 50_001)])
    for quintic in schedule:
        x = values(quintic, x)
    # The coefficients add up to about 15, so each evaluation rounds by that many units at most.
    assert np.abs(1 - x).max() <= target + 20 * len(schedule) * np.finfo(float).eps


def test_a_number_of_steps_is_a_number_of_steps():
    for steps in (0, 1, 3, 6):
        schedule = minimax_schedule(0.01, steps=steps)
        assert len(schedule) == steps
        assert schedule == minimax_schedule(0.01, 1e-9)[:steps]
    assert minimax_schedule(1.0) == minimax_schedule(0.95, 0.1) == ()
