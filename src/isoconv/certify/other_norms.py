"""Lipschitz constants for p = 1 and p = ∞, where they are sums of absolute values."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from isoconv.certify.convolutions import absolute_sums
from isoconv.certify.layers import Layer
from isoconv.certify.lipschitz import layer_bound
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import largest_absolute_sums
from isoconv.linalg.rounding import mul_up
from isoconv.nn import Abs, GroupSort, MaxMin, Scale

# Each output is one input, or 0: 1-Lipschitz for p = ∞ however often an input is copied, and for p = 1 if it is not.
_SELECT = (
    *(Abs, MaxMin, GroupSort, nn.ReLU, nn.ReLU6, nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten),
    *(nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad1d, nn.ZeroPad2d),
)


def lipschitz_bound_in_norm(layers: Sequence[Layer], p: float) -> float:
    """An upper bound of the network's constant from the p-norm to the p-norm, p = 1 or ∞."""
    if p not in (1, math.inf):
        raise IsoconvError(f"Expected p to be 1 or infinity. Got {p}: no bound of a network is known in that norm.")
    with torch.no_grad():
        return mul_up(1.0, *(_bound(layer, p) for layer in layers))


def _bound(layer: Layer, p: float) -> float:
    module = layer.module
    if layer.merged:
        return 1.0
    if type(module) in (nn.Conv1d, nn.Conv2d):
        assert isinstance(module, (nn.Conv1d, nn.Conv2d))
        rows, columns = absolute_sums(module, layer.input_shape, layer.circular)
        return columns if p == 1 else rows
    if type(module) is nn.Linear:
        assert isinstance(module, nn.Linear)
        rows, columns = largest_absolute_sums(module.weight)
        return columns if p == 1 else rows
    if type(module) in _SELECT:
        return 1.0
    if type(module) is Scale:
        return layer_bound(layer)
    raise IsoconvError(f"Expected modules with a known constant for p = {p:g}. Got {layer.kind} at {layer.name}.")
