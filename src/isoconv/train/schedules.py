"""Learning rates over time, as factors of the initial one."""

import math
from collections.abc import Callable

#: The factor in step `step` of `steps`, counted from 0, as a function of (step, steps, steps_per_epoch).
Schedule = Callable[[int, int, int], float]

SCHEDULES: dict[str, Schedule] = {
    # The paper's: a tenth every 60 epochs, γ^e with γ = 0.1^(1/60) and e the epoch counted from 1.
    "exponential": lambda step, steps, steps_per_epoch: float(0.1 ** ((step // steps_per_epoch + 1) / 60)),
    # From 1 in the first step towards 0 after the last.
    "linear": lambda step, steps, steps_per_epoch: 1 - step / steps,
    "cosine": lambda step, steps, steps_per_epoch: (1 + math.cos(math.pi * (step / steps))) / 2,
    "constant": lambda step, steps, steps_per_epoch: 1.0,
}
