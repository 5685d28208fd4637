"""Learning rates over time, as factors of the initial one."""

import math

from isoconv.errors import IsoconvError

SCHEDULES = ("exponential", "linear", "cosine", "constant")


def schedule_factor(kind: str, step: int, steps: int, steps_per_epoch: int) -> float:
    """What the learning rate is multiplied by in step `step` of `steps`.

    exponential : the paper's, a tenth every 60 epochs: γ^e with γ = 0.1^(1/60), e the epoch counted from 1
    linear, cosine : from 1 in the first step towards 0 after the last
    """
    progress = step / steps
    if kind == "exponential":
        return float(0.1 ** ((step // steps_per_epoch + 1) / 60))
    if kind == "linear":
        return 1 - progress
    if kind == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if kind == "constant":
        return 1.0
    raise IsoconvError(f"Expected a schedule out of {', '.join(SCHEDULES)}. Got {kind!r}.")
