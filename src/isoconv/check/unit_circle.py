"""cos and sin of the angles 2πj/n as whole numbers, from integer arithmetic alone."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SCALE_BITS = 53
_BITS = 128  # of the fixed-point numbers in between


@lru_cache(maxsize=8)
def circle(parts: int) -> tuple[Ints, Ints]:
    """2⁵³·cos(2πj/parts) and 2⁵³·sin(2πj/parts) for j = 0 … parts − 1, each off by less than 1.

    In fixed point with 128 bits, π is off by less than 2¹¹ units (fewer than 64 terms of arctan(1/5), each off by less
    than 2, times 16, and less for the other), so the angle is; a term of the series for cos or sin is off by less than 16
    units (x·e/n + 2 never exceeds that, for x < 2), and fewer than 64 of them are not zero. Together that is less than
    2⁻¹¹⁵, to which the rounding to 53 bits adds half a unit of 2⁻⁵³.
    """
    half_pi = _pi() // 2
    drop = _BITS - SCALE_BITS
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
    """Taylor's series for 0 ≤ x ≤ π/2."""
    sums = [0, 0]
    term, n = 1 << _BITS, 0
    while term:
        sums[n % 2] += -term if n % 4 >= 2 else term
        n += 1
        term = (term * x >> _BITS) // n
    return sums[0], sums[1]


def _pi() -> int:
    """Machin: π = 16·arctan(1/5) − 4·arctan(1/239)."""
    return 16 * _arctan_of_inverse(5) - 4 * _arctan_of_inverse(239)


def _arctan_of_inverse(q: int) -> int:
    total, power, n = 0, (1 << _BITS) // q, 0
    while power:
        total += (-power if n % 2 else power) // (2 * n + 1)
        power //= q * q
        n += 1
    return total
