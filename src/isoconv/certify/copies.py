"""What a map does to the norm that only copies: every output is one pixel of the input, or a constant."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isoconv.linalg.rounding import sqrt_up


def copying_bound(copy: Callable[[Tensor], Tensor], shape: Sequence[int]) -> float:
    """√m, if it copies a pixel of its input (1, *shape) m times at the most.

    Counted by what comes out, not by a gradient: of some modules torch's gradient counts other pixels than they take.
    """
    pixels = torch.arange(math.prod(shape), dtype=torch.float64)
    found, moved = (copy(values.reshape(1, *shape)).flatten() for values in (pixels, pixels + len(pixels)))
    taken = found[moved - found == len(pixels)].long()  # the others are constants
    most = float(torch.bincount(taken, minlength=1).max())
    return sqrt_up(most) if most != 1 else 1.0
