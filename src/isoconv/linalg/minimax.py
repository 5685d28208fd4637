"""The odd quintic polynomials that push all singular values in [l, 1] to 1 fastest.

Newton–Schulz multiplies a small singular value by at most 1.5 (cubic) or 1.875 (quintic) a step. The odd quintic
p(x) = ax + bx³ + cx⁵ that minimises max |1 − p| over [l, u] does far better (a ≈ 8 for small l); applying the best one
for the interval that is left, again and again, is the best composition of them.
"""

from functools import lru_cache

import numpy as np

from isoconv.errors import IsoconvError

Quintic = tuple[float, float, float]


@lru_cache(maxsize=64)
def minimax_schedule(lowest: float, target: float = 1e-4, steps: int | None = None) -> tuple[Quintic, ...]:
    """Quintics to apply in turn so that every x in [lowest, 1] ends within `target` of 1 (up to rounding).

    With `steps`, exactly that many, whatever they reach.
    """
    if not 0 < lowest <= 1:
        raise IsoconvError(f"Expected the lowest singular value to be in (0, 1]. Got {lowest}.")
    low, high = lowest, 1.0
    schedule: list[Quintic] = []
    while len(schedule) < steps if steps is not None else max(high - 1, 1 - low) > target:
        quintic, error = best_quintic(low, high)
        schedule.append(quintic)
        low, high = 1 - error, 1 + error
    return tuple(schedule)


def best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """The coefficients (a, b, c) of the odd quintic closest to 1 on [low, high], and its largest error there.

    Remez' exchange with four alternation points: the ends are two of them, the other two are the local extrema.
    """
    if low >= 0.99 * high:  # alternation points nearly coincide: use the Taylor polynomial about the middle
        middle = (low + high) / 2
        quintic = (15 / 8 / middle, -10 / 8 / middle**3, 3 / 8 / middle**5)
        return quintic, max(abs(1 - _evaluate(quintic, x)) for x in (low, high))
    inner = [0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high]
    error, a, b, c = 1.0, 0.0, 0.0, 0.0
    for _ in range(100):
        points = np.array([low, *inner, high])
        system = np.stack([points, points**3, points**5, np.array([1.0, -1.0, 1.0, -1.0])], axis=1)
        a, b, c, signed = (float(v) for v in np.linalg.solve(system, np.ones(4)))
        # Extrema: p'(x) = a + 3b x² + 5c x⁴ = 0.
        root = max(9 * b * b - 20 * a * c, 0.0) ** 0.5
        inner = [((-3 * b - root) / (10 * c)) ** 0.5, ((-3 * b + root) / (10 * c)) ** 0.5]
        if abs(abs(signed) - error) <= 1e-13 * abs(signed):
            break
        error = abs(signed)
    # The largest error over the alternation points bounds it over the interval, whether or not Remez stopped early.
    quintic = (a, b, c)
    return quintic, max(abs(1 - _evaluate(quintic, x)) for x in (low, *inner, high))


def _evaluate(quintic: Quintic, x: float) -> float:
    a, b, c = quintic
    return x * (a + x * x * (b + x * x * c))
