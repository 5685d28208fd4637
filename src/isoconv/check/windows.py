"""Layers that look through windows and have no weights: padding and pooling."""

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np
import numpy.typing as npt

from .certificate import Layer
from .fields import wholes
from .geometry import Pads, Window, both_ends, window
from .layers import Maker, Rounding, Shape, Step, at_least, checked, require, settings
from .norms import convolution_norm
from .verdict import Malformed

Floats = npt.NDArray[np.float64]

_LARGEST_SETTING = 1 << 20  # far beyond any network, and small enough for positions to be computed with


def two_axes(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    """One-dimensional layers are two-dimensional ones whose first axis does nothing."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


def image_sizes(layer: Layer, shape: Shape, dimensions: int) -> tuple[int, int]:
    axes = "(channels, length)" if dimensions == 1 else "(channels, height, width)"
    require(len(shape) == dimensions + 1, layer, f"an input {axes}", shape)
    return two_axes(shape[1:], 1)


def output_shape(layer: Layer, channels: int, view: Window, dimensions: int) -> Shape:
    return checked((channels, *(axis.outputs for axis in view.axes[2 - dimensions :])), layer)


def of_each_axis(layer: Layer, name: str, dimensions: int, least: int) -> tuple[int, int]:
    """A setting that has one number per axis. Where there is one axis, the other gets the number that does nothing."""
    values = wholes(layer.settings[name], f"the {name} of {layer}", dimensions, least, _LARGEST_SETTING)
    return two_axes(values, least)


def pads_of(layer: Layer, dimensions: int) -> Pads:
    """torch's order: the last axis comes first."""
    values = wholes(
        settings(layer, "padding")["padding"], f"the padding of {layer}", 2 * dimensions, most=_LARGEST_SETTING
    )
    last = (values[0], values[1])
    return ((0, 0), last) if dimensions == 1 else ((values[2], values[3]), last)


def gathered(x: Floats, view: Window, fill: float = 0.0) -> Floats:
    """(batch, channels, height, width) → (batch, channels, outputs, taps, outputs, taps): what each window sees."""
    rows, columns = view.positions(0), view.positions(1)
    if not view.circular:
        margins = [
            (max(0, -int(seen.min())), max(0, int(seen.max()) - size + 1))
            for seen, size in zip((rows, columns), x.shape[2:], strict=True)
        ]
        x = np.pad(x, [(0, 0), (0, 0), *margins], constant_values=fill)
        rows, columns = rows + margins[0][0], columns + margins[1][0]
    return x[:, :, rows[:, :, None, None], columns]


def as_image(x: Floats) -> Floats:
    return x[:, :, None] if x.ndim == 3 else x


def _pad(dimensions: int, circular: bool) -> Maker:
    def make(layer: Layer, shape: Shape) -> Step:
        sizes = image_sizes(layer, shape, dimensions)
        view = window(sizes, (1, 1), pads=pads_of(layer, dimensions), circular=circular)
        result = output_shape(layer, shape[0], view, dimensions)

        def apply(x: Floats) -> Floats:
            return gathered(as_image(x), view).reshape(len(x), *result)

        return Step(layer, result, at_least(layer, view.copies), apply)

    return make


def _pool_window(layer: Layer, shape: Shape, dimensions: int, dilated: bool) -> tuple[Window, Shape]:
    names = ["kernel_size", "stride", "padding", *(["dilation"] if dilated else [])]
    settings(layer, *names)
    sizes = image_sizes(layer, shape, dimensions)
    taps, strides = (of_each_axis(layer, name, dimensions, least=1) for name in names[:2])
    pads = of_each_axis(layer, "padding", dimensions, least=0)
    dilations = of_each_axis(layer, "dilation", dimensions, least=1) if dilated else (1, 1)
    view = window(sizes, taps, strides, dilations, both_ends(pads))
    result = output_shape(layer, shape[0], view, dimensions)
    for axis in view.axes:
        seen = axis.positions()
        if not ((seen >= 0) & (seen < axis.size)).any(axis=1).all():
            raise Malformed(f"{layer}: Expected every window to reach the image. Got padding {max(pads)}.")
    return view, result


def _max_pool(dimensions: int) -> Maker:
    """A change of one pixel reaches at most the windows that it lies in."""

    def make(layer: Layer, shape: Shape) -> Step:
        view, result = _pool_window(layer, shape, dimensions, dilated=True)

        def apply(x: Floats) -> Floats:
            return gathered(as_image(x), view, fill=-np.inf).max(axis=(3, 5)).reshape(len(x), *result)

        return Step(layer, result, at_least(layer, prod(axis.windows() for axis in view.axes)), apply)

    return make


def _average_pool(dimensions: int) -> Maker:
    """A convolution of each channel with ones, divided by their number; padding counts as zeros, as torch's default is."""

    def make(layer: Layer, shape: Shape) -> Step:
        view, result = _pool_window(layer, shape, dimensions, dilated=False)
        taps = view.axes[0].taps * view.axes[1].taps

        def apply(x: Floats) -> Floats:
            return (gathered(as_image(x), view).sum(axis=(3, 5)) / taps).reshape(len(x), *result)

        rounding = Rounding(products=taps, outputs=prod(result))
        return Step(layer, result, _average_refuted(layer, view, taps), apply, rounding)

    return make


def _average_refuted(layer: Layer, view: Window, taps: int) -> Callable[[], str | None]:
    def refute() -> str | None:
        # Row sums of the operator are at most 1, column sums at most windows/taps: the root of their product is a bound.
        if layer.claim**2 >= Fraction(prod(axis.windows() for axis in view.axes), taps):
            return None
        ones = np.ones((1, 1, view.axes[0].taps, view.axes[1].taps))
        estimate = convolution_norm(ones, 1, view, layer.claim * taps)
        return None if estimate is None else f"no bound below about {estimate / taps!r} could be proved"

    return refute


KINDS: dict[str, Maker] = {
    **{f"CircularPad{d}d": _pad(d, circular=True) for d in (1, 2)},
    **{f"ZeroPad{d}d": _pad(d, circular=False) for d in (1, 2)},
    **{f"MaxPool{d}d": _max_pool(d) for d in (1, 2)},
    **{f"AvgPool{d}d": _average_pool(d) for d in (1, 2)},
}
