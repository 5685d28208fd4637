"""Where the windows of a convolution or a pooling lie, axis by axis. One-dimensional ones have a first axis of size 1."""

from dataclasses import dataclass
from math import gcd, prod

import numpy as np
import numpy.typing as npt

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]  # (before, after) of each of two axes
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """Output j looks at the input positions j·stride + t·dilation − before, t = 0 … taps − 1."""

    size: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        """From the first tap to the last."""
        return (self.taps - 1) * self.dilation

    @property
    def outputs(self) -> int:
        """How many windows there are; less than 1 where the padded input is too small for one."""
        return (self.size + self.before + self.after - self.reach - 1) // self.stride + 1

    @property
    def fold(self) -> int:
        """On a circle the outputs lie at the multiples of this: of the stride, if it divides the size."""
        return gcd(self.stride, self.size)

    @property
    def copies(self) -> int:
        """On a circle, how many outputs at most are the same one, seen again after a walk around it."""
        return -(-self.outputs // (self.size // self.fold))

    @property
    def whole_circle(self) -> bool:
        """On a circle, whether every multiple of `fold` is an output, and each equally often."""
        return self.outputs % (self.size // self.fold) == 0

    def positions(self) -> Positions:
        """(outputs, taps): the input position of each tap, which may lie outside of the input."""
        starts = np.arange(self.outputs)[:, None] * self.stride - self.before
        return starts + np.arange(self.taps) * self.dilation

    def windows(self) -> int:
        """How many windows, at most, look at the same input position, without wrapping around."""
        seen = self.positions()
        inside = seen[(seen >= 0) & (seen < self.size)]
        return int(np.bincount(inside, minlength=1).max())

    def circles(self) -> list[int]:
        """Sizes of a circle, in strides, on which windows over a zero-padded input see the same as without wrapping.

        Counted from the first window, the input lies at before … before + size − 1, and the windows see 0 … last. On the
        circle nothing that they see beside the input may be the input again, neither below it nor above. Every larger
        circle does as well, and as the bounds that they give differ a little, several are offered.
        """
        last = (self.outputs - 1) * self.stride + self.reach
        least = -(-max(self.size + self.before, last - self.before + 1, self.size) // self.stride)
        most = -(-(self.size + self.before + self.after + self.reach) // self.stride) + 1
        power_of_two = 1 << (most - 1).bit_length()
        return [*range(least, max(least, most) + 1), power_of_two]


@dataclass(frozen=True)
class Window:
    """The two axes of a window, and whether the input is a torus or is surrounded by zeros."""

    axes: tuple[Axis, Axis]
    circular: bool = False

    @property
    def outputs(self) -> int:
        return prod(axis.outputs for axis in self.axes)

    @property
    def copies(self) -> int:
        """How often one output may occur; 1 without wrapping."""
        return prod(axis.copies for axis in self.axes) if self.circular else 1

    def positions(self, axis: int) -> Positions:
        """As `Axis.positions`, on the torus if it is one."""
        seen = self.axes[axis].positions()
        return seen % self.axes[axis].size if self.circular else seen


def window(
    sizes: Pair,
    taps: Pair,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
    pads: Pads = ((0, 0), (0, 0)),
    circular: bool = False,
) -> Window:
    first, second = (
        Axis(size, count, stride, dilation, before, after)
        for size, count, stride, dilation, (before, after) in zip(sizes, taps, strides, dilations, pads, strict=True)
    )
    return Window((first, second), circular)


def both_ends(padding: Pair) -> Pads:
    return (padding[0], padding[0]), (padding[1], padding[1])
