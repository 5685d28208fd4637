"""A proved upper bound of a network's L2 Lipschitz constant, composed from the modules that it actually consists of.

Note [Composition]
The constant of a composition is at most the product of its parts'. Each part is bounded from the weights that it holds,
at the size of the image that reaches it, in float64 and outwards (`isoconv.linalg.bounds`). A module of which nothing is
known is an error that names it, never a silent 1. What padding, pooling and nearest-neighbour upsampling do to the norm
is a matter of counting: a map that copies every pixel at most m times multiplies it by at most √m, and by exactly that if
it copies one pixel m times and no output mixes two.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from isoconv.certify.convolutions import convolution_bound
from isoconv.certify.copies import copying_bound
from isoconv.certify.layers import Layer, layers_of
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import conv_norm_bound, matrix_norm_bound
from isoconv.linalg.rounding import div_up, mul_up, sqrt_up, up
from isoconv.nn import Abs, GroupSort, MaxMin, Scale


@dataclass(frozen=True)
class LayerBound:
    """One module's share: its name in the plain model, its kind, and the bound of its own Lipschitz constant."""

    name: str
    kind: str
    bound: float


@dataclass(frozen=True)
class LipschitzBound:
    """The product of all layers' bounds, rounded up, and what it consists of."""

    value: float
    layers: tuple[LayerBound, ...]


def lipschitz_bound(model: nn.Module, input_shape: Sequence[int]) -> LipschitzBound:
    """A rigorous upper bound of the L2 Lipschitz constant of `plain(model)` in evaluation, on inputs of `input_shape`.

    It is that of the function which the numbers in the model define; what rounding adds when it is run is accounted for
    where something is certified, see `Certifier`.

    `input_shape` is without the batch: (C, H, W), (C, L) or (features,). Works on any `nn.Sequential`, nested as you like,
    of convolutions, linear layers, MaxMin, GroupSort, ReLU and other activations, fixed scaling, padding, pooling, flatten,
    (un)shuffle, nearest-neighbour upsampling and batch normalisation, whoever built it. Anything else is refused by name.
    """
    with torch.no_grad():
        layers = tuple(
            LayerBound(layer.name, layer.kind, layer_bound(layer)) for layer in layers_of(model, input_shape)
        )
    return LipschitzBound(mul_up(1.0, *(layer.bound for layer in layers)), layers)


def layer_bound(layer: Layer) -> float:
    """The L2 bound of one layer. Of circular padding and convolution bounded as one, the convolution carries it."""
    module, shape = layer.module, layer.input_shape
    if layer.merged:
        return 1.0
    kind = type(module)
    if kind in (nn.Conv1d, nn.Conv2d):
        assert isinstance(module, (nn.Conv1d, nn.Conv2d))
        return convolution_bound(module, shape, layer.circular)
    if kind is nn.Linear:
        assert isinstance(module, nn.Linear)
        return matrix_norm_bound(module.weight)
    for kinds, rule in _RULES:
        if kind in kinds:
            return rule(module, shape)
    raise IsoconvError(
        f"Expected modules with a known Lipschitz constant. Got {layer.kind} at {layer.name}: "
        f"its constant is unknown, so nothing can be certified."
    )


# Modules without weights ----------------------------------------------------------------------------------------


def _one(module: nn.Module, shape: torch.Size) -> float:
    return 1.0


def _copies(module: nn.Module, shape: torch.Size) -> float:
    """Padding and nearest-neighbour upsampling: every output is one pixel or a constant."""
    if isinstance(module, nn.Upsample):
        _check_upsampling(module, shape)
    return copying_bound(module, shape)


def _check_upsampling(module: nn.Upsample, shape: torch.Size) -> None:
    """Whole multiples: of others it is a matter of rounding, and so of the device, which pixels are taken."""
    if module.mode != "nearest":
        raise IsoconvError(
            f"Expected an nn.Upsample with mode 'nearest'. Got {module.mode!r}, of which no bound is known."
        )
    dimensions = len(shape) - 1
    if module.size is not None:
        factors = [n / own for n, own in zip(_per_axis(module.size, dimensions), shape[1:], strict=True)]
    else:
        scale = module.scale_factor
        factors = list(scale) if isinstance(scale, (tuple, list)) else [float(scale or 0)] * dimensions
    if not all(factor == int(factor) >= 1 for factor in factors):
        shown = ", ".join(f"{factor:g}" for factor in factors)
        raise IsoconvError(f"Expected an nn.Upsample by whole numbers. Got {shown}, of which no bound is known.")


def _max_pool(module: nn.Module, shape: torch.Size) -> float:
    """A maximum is 1-Lipschitz in what it looks at; a pixel is looked at by at most Π⌈k/s⌉ windows."""
    assert isinstance(module, (nn.MaxPool1d, nn.MaxPool2d))
    dimensions = len(shape) - 1
    sizes, strides = _per_axis(module.kernel_size, dimensions), _per_axis(module.stride, dimensions)
    windows = math.prod(
        min(k, -(-((k - 1) * d + 1) // s))
        for k, s, d in zip(sizes, strides, _per_axis(module.dilation, dimensions), strict=True)
    )
    return sqrt_up(float(windows)) if windows > 1 else 1.0


def _average_pool(module: nn.Module, shape: torch.Size) -> float:
    """A convolution of each channel with equal weights."""
    assert isinstance(module, (nn.AvgPool1d, nn.AvgPool2d))
    dimensions = len(shape) - 1
    padded = any(_per_axis(module.padding, dimensions))
    if module.ceil_mode or (padded and not module.count_include_pad):
        raise IsoconvError(
            "Expected average pooling that divides by the same number everywhere. Got ceil_mode or "
            "count_include_pad=False with padding."
        )
    sizes = _per_axis(module.kernel_size, dimensions)
    divisor = getattr(module, "divisor_override", None) or math.prod(sizes)
    ones = torch.ones(1, 1, *sizes, dtype=torch.float64)
    return div_up(conv_norm_bound(ones, _per_axis(module.stride, dimensions), shape[1:], "zeros"), abs(float(divisor)))


def _batch_norm(module: nn.Module, shape: torch.Size) -> float:
    """In evaluation, a fixed affine map of each channel: the largest |γ|/√(variance + ε)."""
    assert isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))
    if module.running_var is None:
        raise IsoconvError("Expected batch normalisation with running statistics. Got one that uses the batch's own.")
    weight = torch.ones_like(module.running_var) if module.weight is None else module.weight
    gains = []
    for gamma, variance in zip(weight.double().tolist(), module.running_var.double().tolist(), strict=True):
        total = math.nextafter(variance + module.eps, 0.0)
        if not variance >= 0 or not 0 < total < math.inf or not math.isfinite(gamma):
            raise IsoconvError(f"Expected finite weights and positive running variances. Got {gamma} and {variance}.")
        gains.append(div_up(abs(gamma), math.nextafter(math.sqrt(total), 0.0)))
    return up(max(gains, default=1.0))


def _leaky(module: nn.Module, shape: torch.Size) -> float:
    assert isinstance(module, nn.LeakyReLU)
    return max(1.0, _finite(abs(module.negative_slope)))


def _scale(module: nn.Module, shape: torch.Size) -> float:
    assert isinstance(module, Scale)
    return _finite(abs(module.factor))


def _finite(value: float) -> float:
    if not value < math.inf:
        raise IsoconvError(f"Expected a finite slope. Got {value}.")
    return value


def _per_axis(value: int | Sequence[int], dimensions: int) -> list[int]:
    return [value] * dimensions if isinstance(value, int) else list(value)


_Rule = Callable[[nn.Module, torch.Size], float]
_RULES: tuple[tuple[tuple[type[nn.Module], ...], _Rule], ...] = (
    ((Abs, MaxMin, GroupSort, nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle), _one),
    ((nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.Softsign, nn.Dropout), _one),
    ((nn.LeakyReLU,), _leaky),
    ((Scale,), _scale),
    ((nn.MaxPool1d, nn.MaxPool2d), _max_pool),
    ((nn.AvgPool1d, nn.AvgPool2d), _average_pool),
    ((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    (
        (
            *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.CircularPad1d, nn.CircularPad2d),
            *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.Upsample),
        ),
        _copies,
    ),
)
