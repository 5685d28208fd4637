"""What a node is and does where it stands; and the kinds that move numbers or join values.

Each kind says which shape it gives, what its constant is, what it computes, and how that rounds. The others are functions of
each number and of each channel (`pointwise`), and what looks through windows (`windows`). A kind in none of the tables is
refused by name, and so is a setting that its kind does not have: what is not understood is never taken for 1-Lipschitz. The
rules are this checker's own; each says why it holds.

Note [Sizes]. Where h is the exact input of a node, ĥ the computed one, ‖h‖ ≤ S and ‖ĥ − h‖ ≤ E, a node f of constant L gives
‖f(h)‖ ≤ L·S + ‖f(0)‖, and what is computed for f(ĥ) is within L·E + (its own rounding) of f(h). The own rounding is at most
relative·(amplification·(S + E) + offset) + underflow, all of it summed over the node's outputs in the L2 norm.

Note [Any intermediate]. A proof for the computed network may go by any network near it. In float32, a constant that float32
does not hold (a limit of Hardtanh, the value of a pad) is taken for the one that it is rounded to.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import isfinite, prod
from typing import Any

import numpy as np

from . import Budget, Invalid, Malformed
from .exact import ONE, ZERO, Arithmetic, Floats
from .files import AXES, Json, Node, Reader, Tensor, anything, as_float64, each, optional, whole
from .norms import Estimate

Shape = tuple[int, ...]
Apply = Callable[..., Floats]  # to a batch (or several), in float64

LARGEST_ACTIVATION = 1 << 25  # numbers in one activation
LARGEST_SETTING = 1 << 20  # far beyond any network, and small enough for positions to be computed with
PER_WEIGHT = 5_000  # multiplications that the exact sums cost per weight
SIZE = whole(1, LARGEST_SETTING)
_AXIS = whole(0, AXES)


@dataclass(frozen=True)
class Rounding:
    """Of a node that rounds, see Note [Sizes]: terms n of the relative error γ_n = nu/(1 − nu), and the rest.

    underflow : of each output, in smallest normal numbers
    largest : (factor, offset) where a number on the way may be larger than the sums: factor·(S + E) + offset
    """

    terms: int
    amplification: Fraction
    offset: Fraction = ZERO
    underflow: Fraction | int = 0
    largest: tuple[Fraction, Fraction] | None = None


@dataclass(frozen=True)
class Step:
    """What a node does where it stands.

    square : the square of its constant is at most this
    prove : if `square` need not be the least: prove that the constant is at most the claim
    at_zero : ‖f(0)‖
    work : multiplications per input
    padded : numbers of a padded input, beyond those of what it takes and gives, that computing it keeps
    matrix : of a linear layer
    joins : "sum" or "concatenation" of all its inputs; `square` is then with respect to each of them
    selects : what it gives are numbers of its input, each at most once, wherever they stood
    """

    shape: Shape
    square: Fraction | int
    apply: Apply
    rounding: Rounding | None = None
    at_zero: Fraction = ZERO
    work: int = 0
    padded: int = 0
    prove: Callable[[], Estimate] | None = None
    matrix: Floats | None = None
    joins: str | None = None
    selects: bool = False


@dataclass(frozen=True)
class Place:
    """What is known where a node stands: its settings, the shapes that reach it, the model's tensors, the arithmetic."""

    node: Node
    settings: Json
    shapes: tuple[Shape, ...]
    tensors: dict[str, Tensor]
    used: set[str]
    arithmetic: Arithmetic
    budget: Budget

    def __getitem__(self, setting: str) -> Any:
        return self.settings[setting]

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def image(self) -> Shape:
        self.require(len(self.shape) == 3, "an input (channels, height, width)", self.shape)
        return self.shape

    @property
    def dimensions(self) -> int:
        """Of a kind whose name ends in 1d or 2d."""
        return int(self.node.kind[-2])

    def require(self, condition: bool, expected: str, got: Shape | str) -> None:
        got = got if isinstance(got, str) else f"shape {list(got)}"
        Malformed.unless(condition, f"{self.node}: Expected {expected}. Got {got}.")

    def spend(self, work: int) -> None:
        self.budget.spend(work, self.node)

    def hold(self, setting: str) -> float:
        """Return a number as the arithmetic holds it, see Note [Any intermediate]."""
        number, name = float(self.arithmetic.hold(self[setting])), self.arithmetic.name
        self.require(isfinite(number), f"a {setting} that {name} can hold", "a larger one")
        return number

    def give(self, shape: Shape) -> Shape:
        """Return the shape that the node gives, unless something about it is absurd."""
        self.require(all(size >= 1 for size in shape), "an input large enough for one output", shape)
        self.require(prod(shape) <= LARGEST_ACTIVATION, f"at most {LARGEST_ACTIVATION} numbers, the limit", shape)
        return shape

    def axis(self, name: str) -> int:
        """Return an axis as torch counts them: the batch is 0, and −1 the last."""
        axes = len(self.shape) + 1
        return whole(-axes, axes - 1)(self[name], f"the {name} of {self.node}") % axes

    def name(self, part: str) -> str:
        return part if self.node.module == "" else f"{self.node.module}.{part}"

    def tensor(self, part: str) -> Floats:
        """Return a tensor of the node's module."""
        name = self.name(part)
        Invalid.unless(self.holds(part), f"{self.node}: the model holds no {name}.")
        self.used.add(name)
        held = self.arithmetic.name == "float64" or self.tensors[name].dtype.itemsize <= 4
        Malformed.unless(held, f"Expected float32 weights for float32 arithmetic. Got float64 for {name}.")
        return as_float64(self.tensors[name], name)

    def holds(self, part: str) -> bool:
        return self.node.module is not None and self.name(part) in self.tensors

    def vector(self, part: str, size: int, default: float | None = None) -> Floats:
        """Return a tensor of so many numbers, all of them the default where the model has none."""
        vector = self.tensor(part) if default is None or self.holds(part) else np.full(size, default)
        self.require(vector.shape == (size,), f"a {part} of {size} numbers", vector.shape)
        return vector


@dataclass(frozen=True)
class Kind:
    make: Callable[[Place], Step]
    settings: dict[str, Reader[Any]] = field(default_factory=dict)
    inputs: range = range(1, 2)  # how many it may have
    assumes: bool = False  # that elementary functions are computed accurately
    defaults: Json = field(default_factory=dict)  # of settings that a certificate may leave out


# Numbers put elsewhere -----------------------------------------------------------------------------------------------


def _sort(place: Place) -> Step:
    """Sort, largest first, among the channels j, j + g, j + 2g, …, with g the number of groups; or along another axis."""
    axis = place["axis"]
    place.require(axis < len(place.shape), f"an axis {axis}", place.shape)
    length = place.settings.get("group_size", 2) or place.shape[axis]
    place.require(place.shape[axis] % length == 0, f"a number of channels that {length} divides", place.shape)

    def apply(x: Floats) -> Floats:
        groups = x.reshape(*x.shape[: axis + 1], length, -1, *x.shape[axis + 2 :])
        return -np.sort(-groups, axis=axis + 1).reshape(x.shape)

    return Step(place.shape, 1, apply)


def _channel_shift(place: Place) -> Step:
    """Groups of so many channels each, moved by one pixel, cyclically: down, up, right, left; the others stay."""
    shape, count = place.image, place["channels"]
    place.require(4 * count <= shape[0], f"at least {4 * count} channels", shape)

    def apply(x: Floats) -> Floats:
        moves = enumerate(((1, 2), (-1, 2), (1, 3), (-1, 3)))
        moved = [np.roll(x[:, n * count : (n + 1) * count], by, axis) for n, (by, axis) in moves]
        return np.concatenate([*moved, x[:, 4 * count :]], axis=1)

    return Step(shape, 1, apply)


def _rearrange(place: Place, shape: Shape, split: Shape = (), order: Shape = ()) -> Step:
    """Give every number once: split into axes, which are put in another order, and joined."""

    def apply(x: Floats) -> Floats:
        axes = x.reshape(len(x), *split).transpose(order) if split else x
        return axes.reshape(len(x), *shape)

    return Step(place.give(shape), 1, apply, selects=True)


def _flatten(place: Place) -> Step:
    shape, start, end = place.shape, place.axis("start_dim"), place.axis("end_dim")
    place.require(1 <= start <= end, "start_dim after the batch and not after end_dim", shape)
    return _rearrange(place, (*shape[: start - 1], prod(shape[start - 1 : end]), *shape[end:]))


def _unflatten(place: Place) -> Step:
    shape, dim, sizes = place.shape, place.axis("dim"), place["unflattened_size"]
    place.require(dim >= 1 and prod(sizes) == shape[dim - 1], f"{prod(sizes)} numbers along axis {dim}", shape)
    return _rearrange(place, (*shape[: dim - 1], *sizes, *shape[dim:]))


def _reshape(place: Place) -> Step:
    numbers = prod(place.shape)
    place.require(prod(place["shape"]) == numbers, f"a shape of {numbers} numbers", "another")
    return _rearrange(place, place["shape"])


def _permute(place: Place) -> Step:
    """Axis k of the result is axis order[k], the batch not counted."""
    shape, order = place.shape, place["order"]
    place.require(sorted(order) == list(range(len(shape))), f"an input whose axes are {sorted(order)}", shape)
    return _rearrange(place, tuple(shape[axis] for axis in order), shape, (0, *(axis + 1 for axis in order)))


def _slice(place: Place) -> Step:
    shape, axis, (start, stop, step) = place.shape, place["axis"], (place[name] for name in ("start", "stop", "step"))
    fits = axis < len(shape) and start < stop <= shape[axis]
    place.require(fits, f"an axis {axis} that has the entries from {start} up to {stop}", shape)
    chosen = (slice(None),) * (axis + 1) + (slice(start, stop, step),)
    result = (*shape[:axis], len(range(start, stop, step)), *shape[axis + 1 :])
    return Step(result, 1, lambda x: x[chosen].copy(), selects=True)  # a view would keep all of x in memory


def _flip(place: Place) -> Step:
    """The numbers along one axis, the last one first."""
    shape, axis = place.shape, place["axis"]
    place.require(axis < len(shape), f"an axis {axis}", shape)
    return Step(shape, 1, lambda x: np.flip(x, axis + 1).copy(), selects=True)


def _pixel_unshuffle(place: Place) -> Step:
    shape, f = place.shape, place["factor"]
    fits = len(shape) == 3 and shape[1] % f == 0 and shape[2] % f == 0
    place.require(fits, f"an image (channels, height, width) whose size {f} divides", shape)
    c, h, w = shape[0], shape[1] // f, shape[2] // f
    return _rearrange(place, (c * f**2, h, w), (c, h, f, w, f), (0, 1, 3, 5, 2, 4))


def _pixel_shuffle(place: Place) -> Step:
    shape, f = place.shape, place["factor"]
    place.require(len(shape) == 3 and shape[0] % f**2 == 0, f"an image whose channels {f**2} divides", shape)
    c, h, w = shape[0] // f**2, shape[1], shape[2]
    return _rearrange(place, (c, h * f, w * f), (c, f, f, h, w), (0, 1, 4, 2, 5, 3))


# Several inputs ------------------------------------------------------------------------------------------------------


def _join(place: Place, joins: str, shape: Shape, apply: Apply, rounding: Rounding | None = None) -> Step:
    work = 100 * sum(map(prod, place.shapes)) + 10_000 * len(place.shapes)
    return Step(place.give(shape), 1, apply, rounding, work=work, joins=joins)


def _add(place: Place) -> Step:
    """A sum of n terms rounds n − 1 times, in any order; a subnormal one may be set to zero."""
    for other in place.shapes:
        place.require(other == place.shape, f"inputs of one shape, {list(place.shape)}", other)
    sums = len(place.shapes) - 1
    rounding = Rounding(sums, ONE, underflow=sums)
    return _join(place, "sum", place.shape, lambda *values: reduce(np.add, values), rounding)


def _concat(place: Place) -> Step:
    shape, axis = place.shape, place["axis"]
    place.require(axis < len(shape), f"an axis {axis}", shape)
    for other in place.shapes:
        fits = len(other) == len(shape) and other[:axis] == shape[:axis] and other[axis + 1 :] == shape[axis + 1 :]
        place.require(fits, f"inputs of shape {list(shape)}, but for axis {axis}", other)
    result = (*shape[:axis], sum(other[axis] for other in place.shapes), *shape[axis + 1 :])
    return _join(place, "concatenation", result, lambda *values: np.concatenate(values, axis + 1))


MOVES: dict[str, Kind] = {
    "MaxMin": Kind(_sort, {"axis": _AXIS}, defaults={"axis": 0}),
    "GroupSort": Kind(_sort, {"group_size": optional(SIZE), "axis": _AXIS}, defaults={"axis": 0}),
    "ChannelShift": Kind(_channel_shift, {"channels": whole(0, LARGEST_SETTING)}),
    "Flatten": Kind(_flatten, {"start_dim": anything, "end_dim": anything}),
    "Unflatten": Kind(_unflatten, {"dim": anything, "unflattened_size": each(SIZE, 1, AXES)}),
    "Reshape": Kind(_reshape, {"shape": each(whole(1, LARGEST_ACTIVATION), 1, AXES)}),
    "Permute": Kind(_permute, {"order": each(_AXIS, 1, AXES)}),
    "Flip": Kind(_flip, {"axis": _AXIS}),
    "Slice": Kind(_slice, {"axis": _AXIS, "start": whole(), "stop": whole(), "step": whole(1)}),
    "PixelUnshuffle": Kind(_pixel_unshuffle, {"factor": SIZE}),
    "PixelShuffle": Kind(_pixel_shuffle, {"factor": SIZE}),
    "Concat": Kind(_concat, {"axis": _AXIS}, inputs=range(1, sys.maxsize)),
    "Add": Kind(_add, inputs=range(2, sys.maxsize)),
}
