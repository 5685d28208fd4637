"""Layers with weights: convolutions and linear layers."""

from fractions import Fraction
from math import prod

import numpy as np
import numpy.typing as npt

from .certificate import Layer
from .exact import largest_row_sum, root_up, sum_of_squares
from .fields import whole
from .geometry import Pads, Window, both_ends, window
from .layers import Rounding, Shape, Step, require, settings
from .norms import Estimate, convolution_norm, matrix_norm
from .verdict import Malformed
from .windows import as_image, gathered, image_sizes, of_each_axis, output_shape, two_axes

Floats = npt.NDArray[np.float64]


def linear(layer: Layer, shape: Shape, weight: Floats, bias: Floats | None) -> Step:
    """y = Wx + b along the last axis."""
    settings(layer)
    require(weight.ndim == 2, layer, "a weight (outputs, inputs)", weight.shape)
    require(shape[-1] == weight.shape[1], layer, f"an input of {weight.shape[1]} features", shape)
    _require_bias(layer, weight, bias)
    result = (*shape[:-1], weight.shape[0])
    amplification = _root_of_product(largest_row_sum(weight), largest_row_sum(weight.T))

    def refute() -> str | None:
        return _refuted(None if layer.claim >= amplification else matrix_norm(weight, layer.claim))

    def apply(x: Floats) -> Floats:
        y = x @ weight.T
        return y if bias is None else y + bias

    rounding = Rounding(weight.shape[1], prod(result), amplification, _bias_norm(bias, prod(shape[:-1])))
    return Step(layer, result, refute, apply, rounding)


def convolution(layer: Layer, shape: Shape, weight: Floats, bias: Floats | None, wrapped: Pads | None) -> Step:
    """Conv1d or Conv2d; `wrapped` is the circular padding that a module in front of it adds."""
    dimensions = int(layer.kind[-2])
    view, groups = _window(layer, shape, weight, wrapped)
    outputs, per_group, *taps = weight.shape
    require(shape[0] == per_group * groups, layer, f"{per_group * groups} channels in {groups} groups", shape)
    require(outputs % groups == 0, layer, f"a number of outputs that {groups} groups divide", weight.shape)
    _require_bias(layer, weight, bias)
    result = output_shape(layer, outputs, view, dimensions)
    kernel = weight.reshape(outputs, per_group, *two_axes(tuple(taps), 1))
    by_group = kernel.reshape(groups, outputs // groups, per_group, -1)
    row_sum = largest_row_sum(by_group.reshape(outputs, -1))
    column_sum = largest_row_sum(by_group.swapaxes(1, 2).reshape(groups * per_group, -1))
    amplification = _root_of_product(row_sum, column_sum * view.copies)

    def refute() -> str | None:
        if layer.claim >= amplification:  # ‖W‖ ≤ ‖|W|‖
            return None
        return _refuted(convolution_norm(kernel, groups, view, layer.claim))

    def apply(x: Floats) -> Floats:
        seen = gathered(as_image(x), view)  # (batch, channels, outputs, taps, outputs, taps)
        columns = seen.reshape(len(x), groups, per_group, *seen.shape[2:]).transpose(0, 1, 2, 4, 6, 3, 5)
        columns = columns.reshape(len(x), groups, -1, view.outputs)
        y = by_group.reshape(groups, outputs // groups, -1) @ columns
        y = y.reshape(len(x), outputs, -1)
        return (y if bias is None else y + bias[:, None]).reshape(len(x), *result)

    rounding = Rounding(weight[0].size, prod(result), amplification, _bias_norm(bias, view.outputs))
    return Step(layer, result, refute, apply, rounding)


def unpadded(layer: Layer) -> bool:
    """Whether a convolution pads nothing itself; a circular pad directly in front of it is then part of it."""
    padding = layer.settings.get("padding")
    return layer.kind in ("Conv1d", "Conv2d") and isinstance(padding, list) and not any(padding)


def _window(layer: Layer, shape: Shape, weight: Floats, wrapped: Pads | None) -> tuple[Window, int]:
    dimensions = int(layer.kind[-2])
    values = settings(layer, "stride", "padding", "dilation", "groups", "padding_mode")
    strides, dilations = (of_each_axis(layer, name, dimensions, least=1) for name in ("stride", "dilation"))
    padding = of_each_axis(layer, "padding", dimensions, least=0)
    groups = whole(values["groups"], f"the groups of {layer}", least=1)
    mode = values["padding_mode"]
    if mode not in ("zeros", "circular"):
        raise Malformed(f"{layer}: Expected padding_mode 'zeros' or 'circular'. Got {mode!r:.60}.")
    require(weight.ndim == dimensions + 2, layer, f"a kernel of {dimensions} axes", weight.shape)
    sizes = image_sizes(layer, shape, dimensions)
    taps = two_axes(weight.shape[2:], 1)
    pads = both_ends(padding) if wrapped is None else wrapped
    circular = wrapped is not None or (mode == "circular" and any(padding))
    return window(sizes, taps, strides, dilations, pads, circular), groups


def _require_bias(layer: Layer, weight: Floats, bias: Floats | None) -> None:
    if bias is not None:
        require(bias.shape == weight.shape[:1], layer, f"a bias of {weight.shape[0]} numbers", bias.shape)


def _root_of_product(rows: Fraction, columns: Fraction) -> Fraction:
    """‖A‖ ≤ √(largest row sum × largest column sum) of the absolute values."""
    return root_up(rows * columns)


def _bias_norm(bias: Floats | None, positions: int) -> Fraction:
    return Fraction(0) if bias is None else root_up(sum_of_squares(bias) * positions)


def _refuted(estimate: Estimate) -> str | None:
    return None if estimate is None else f"no bound below about {estimate!r} could be proved"
