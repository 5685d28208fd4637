"""Each kind of layer: the shape it gives, what its constant is, what it computes, and how that rounds.

A kind that is not listed in `KINDS` is refused by name, and so is a setting that its kind does not have: what is not
understood is never taken for 1-Lipschitz.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .certificate import Layer
from .fields import entry, real, whole
from .verdict import Malformed

Floats = npt.NDArray[np.float64]
Shape = tuple[int, ...]

_LARGEST = 1 << 31  # numbers in one activation: more is a mistake in the file, and not to be tried


@dataclass(frozen=True)
class Rounding:
    """Of a layer that rounds: how many products are added up per output, how many outputs there are, and two norms.

    `amplification` bounds ‖|W|‖, the norm of the layer with absolute values for weights (None: its own constant does);
    `bias` bounds the norm of the bias over all outputs.
    """

    products: int
    outputs: int
    amplification: Fraction | None = None
    bias: Fraction = Fraction(0)


@dataclass(frozen=True)
class Step:
    """A layer in its place: what it gives for the shape that reaches it."""

    layer: Layer
    shape: Shape
    refute: Callable[[], str | None]  # why the claim does not hold or could not be proved; None once it is proved
    apply: Callable[[Floats], Floats]  # to a batch, in float64
    rounding: Rounding | None = None
    part_of_next: bool = False  # a circular pad that is bounded, and rounds, together with the convolution after it


Maker = Callable[[Layer, Shape], Step]


def settings(layer: Layer, *names: str) -> dict[str, Any]:
    """The layer's settings: these and no others."""
    for name in names:
        entry(layer.settings, name, f"the settings of {layer}")
    if unknown := [name for name in layer.settings if name not in names]:
        raise Malformed(f"Expected {layer} without a setting {unknown[0]!r:.60}. Got one.")
    return layer.settings


def require(condition: bool, layer: Layer, expected: str, shape: Shape) -> None:
    if not condition:
        raise Malformed(f"{layer}: Expected {expected}. Got shape {list(shape)}.")


def checked(shape: Shape, layer: Layer) -> Shape:
    """The shape, unless something about it is absurd."""
    require(all(size >= 1 for size in shape), layer, "an input large enough for one output", shape)
    require(prod(shape) <= _LARGEST, layer, f"at most {_LARGEST} numbers", shape)
    return shape


def at_least(layer: Layer, square: Fraction | int) -> Callable[[], str | None]:
    """The claim against a constant whose square is known."""

    def refute() -> str | None:
        return None if layer.claim**2 >= square else f"its constant is {float(square) ** 0.5!r}"

    return refute


def _elementwise(apply: Callable[[Floats], Floats]) -> Maker:
    """A 1-Lipschitz function of each number."""

    def make(layer: Layer, shape: Shape) -> Step:
        settings(layer)
        return Step(layer, shape, at_least(layer, 1), apply)

    return make


def _max_min(layer: Layer, shape: Shape) -> Step:
    settings(layer)
    require(shape[0] % 2 == 0, layer, "an even number of channels", shape)
    return Step(layer, shape, at_least(layer, 1), _sorted(2))


def _group_sort(layer: Layer, shape: Shape) -> Step:
    size = settings(layer, "group_size")["group_size"]
    size = shape[0] if size is None else whole(size, f"the group_size of {layer}", least=1)
    require(shape[0] % size == 0, layer, f"a number of channels that {size} divides", shape)
    return Step(layer, shape, at_least(layer, 1), _sorted(size))


def _sorted(size: int) -> Callable[[Floats], Floats]:
    """Largest first among the channels j, j + g, j + 2g, …, with g the number of groups."""

    def apply(x: Floats) -> Floats:
        groups = x.reshape(len(x), size, -1, *x.shape[2:])
        return -np.sort(-groups, axis=1).reshape(x.shape)

    return apply


def _flatten(layer: Layer, shape: Shape) -> Step:
    values = settings(layer, "start_dim", "end_dim")
    dims = len(shape) + 1
    start = whole(values["start_dim"], f"the start_dim of {layer}", least=1, most=dims - 1)
    end = whole(values["end_dim"], f"the end_dim of {layer}", least=-dims, most=dims - 1) % dims
    require(start <= end, layer, "start_dim not after end_dim", shape)
    flat = (*shape[: start - 1], prod(shape[start - 1 : end]), *shape[end:])
    return Step(layer, flat, at_least(layer, 1), lambda x: x.reshape(len(x), *flat))


def _pixel_unshuffle(layer: Layer, shape: Shape) -> Step:
    factor = whole(settings(layer, "downscale_factor")["downscale_factor"], f"the downscale_factor of {layer}", least=1)
    fits = len(shape) == 3 and shape[1] % factor == 0 and shape[2] % factor == 0
    require(fits, layer, f"an image (channels, height, width) whose size {factor} divides", shape)
    channels, height, width = shape[0] * factor**2, shape[1] // factor, shape[2] // factor

    def apply(x: Floats) -> Floats:
        blocks = x.reshape(len(x), shape[0], height, factor, width, factor)
        return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(len(x), channels, height, width)

    return Step(layer, (channels, height, width), at_least(layer, 1), apply)


def _pixel_shuffle(layer: Layer, shape: Shape) -> Step:
    factor = whole(settings(layer, "upscale_factor")["upscale_factor"], f"the upscale_factor of {layer}", least=1)
    fits = len(shape) == 3 and shape[0] % factor**2 == 0
    require(fits, layer, f"an image whose number of channels {factor**2} divides", shape)
    channels, height, width = shape[0] // factor**2, shape[1] * factor, shape[2] * factor

    def apply(x: Floats) -> Floats:
        blocks = x.reshape(len(x), channels, factor, factor, shape[1], shape[2])
        return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(len(x), channels, height, width)

    return Step(layer, checked((channels, height, width), layer), at_least(layer, 1), apply)


def _scale(layer: Layer, shape: Shape) -> Step:
    factor = real(settings(layer, "factor")["factor"], f"the factor of {layer}")
    rounding = Rounding(products=0, outputs=prod(shape))
    return Step(layer, shape, at_least(layer, Fraction(factor) ** 2), lambda x: x * factor, rounding)


KINDS: dict[str, Maker] = {
    "MaxMin": _max_min,
    "GroupSort": _group_sort,
    "ReLU": _elementwise(lambda x: np.maximum(x, 0.0)),
    "Abs": _elementwise(np.abs),
    "Identity": _elementwise(lambda x: x),
    "Dropout": _elementwise(lambda x: x),  # in evaluation
    "Flatten": _flatten,
    "PixelUnshuffle": _pixel_unshuffle,
    "PixelShuffle": _pixel_shuffle,
    "Scale": _scale,
}
