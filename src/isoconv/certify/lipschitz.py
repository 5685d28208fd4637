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
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import conv_norm_bound, matrix_norm_bound
from isoconv.linalg.rounding import div_up, mul_up, sqrt_up, up
from isoconv.nn import GroupSort, MaxMin, plain


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

    `input_shape` is without the batch: (C, H, W), (C, L) or (features,). Works on any `nn.Sequential`, nested as you like,
    of convolutions, linear layers, MaxMin, GroupSort, ReLU and other activations, padding, pooling, flatten, (un)shuffle,
    nearest-neighbour upsampling and batch normalisation, whoever built it. Anything else is refused by name.
    """
    layers: list[LayerBound] = []
    shape = torch.Size(input_shape)
    if not shape or any(n < 1 for n in shape):
        raise IsoconvError(f"Expected input_shape without the batch, such as (3, 32, 32). Got {tuple(input_shape)}.")
    with torch.no_grad():
        modules = _flattened(plain(model).eval())
        position = 0
        while position < len(modules):
            name, module = modules[position]
            following = modules[position + 1][1] if position + 1 < len(modules) else None
            together = isinstance(module, (nn.CircularPad1d, nn.CircularPad2d)) and _pads_nothing(following)
            bound = _bound(name, module, shape, following if together else None)
            # Padding and convolution bounded as one: the convolution carries the bound of both.
            layers.append(LayerBound(name, type(module).__name__, 1.0 if together else bound))
            shape = _output_shape(name, module, shape)
            if together and following is not None:
                layers.append(LayerBound(modules[position + 1][0], type(following).__name__, bound))
                shape = _output_shape(modules[position + 1][0], following, shape)
            position += 2 if together else 1
    return LipschitzBound(mul_up(1.0, *(layer.bound for layer in layers)), tuple(layers))


def _flattened(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The leaf modules of nested Sequentials in the order in which they are applied."""
    if not isinstance(model, nn.Sequential):
        return [(prefix or "model", model)]
    found = []
    for name, child in model.named_children():
        found += _flattened(child, f"{prefix}.{name}" if prefix else name)
    return found


def _pads_nothing(module: nn.Module | None) -> bool:
    return isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.padding in ("valid", 0, (0,), (0, 0))


def _bound(name: str, module: nn.Module, shape: torch.Size, convolution: nn.Module | None) -> float:
    """The bound of one module; of circular padding and the convolution behind it as one, where that is given."""
    if isinstance(convolution, (nn.Conv1d, nn.Conv2d)):
        assert isinstance(module, (nn.CircularPad1d, nn.CircularPad2d))
        pads = list(module.padding)
        return convolution_bound(convolution, shape, list(zip(pads[-2::-2], pads[-1::-2], strict=True)))
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return convolution_bound(module, shape)
    if isinstance(module, nn.Linear):
        return matrix_norm_bound(module.weight)
    for kinds, rule in _RULES:
        if isinstance(module, kinds):
            return rule(module, shape)
    raise IsoconvError(
        f"Expected modules with a known Lipschitz constant. Got {type(module).__name__} at {name}: "
        f"its constant is unknown, so nothing can be certified."
    )


def _output_shape(name: str, module: nn.Module, shape: torch.Size) -> torch.Size:
    probe = next((p for p in module.parameters()), torch.zeros(()))
    try:
        return module(torch.zeros(1, *shape, dtype=probe.dtype, device=probe.device)).shape[1:]
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected an input that {type(module).__name__} at {name} can take. {reason}") from None


# Modules without weights ----------------------------------------------------------------------------------------


def _one(module: nn.Module, shape: torch.Size) -> float:
    return 1.0


def _copies(module: nn.Module, shape: torch.Size) -> float:
    """Padding and nearest-neighbour upsampling: every output is one pixel or a constant, so count the copies of each."""
    if isinstance(module, nn.Upsample) and module.mode != "nearest":
        raise IsoconvError(
            f"Expected an nn.Upsample with mode 'nearest'. Got {module.mode!r}, of which no bound is known."
        )
    pixels = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (counts,) = torch.autograd.grad(module(pixels).sum(), pixels)
    return sqrt_up(float(counts.max())) if float(counts.max()) != 1 else 1.0


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
        if not total > 0:
            raise IsoconvError(f"Expected positive running variances. Got {variance}.")
        gains.append(div_up(abs(gamma), math.nextafter(math.sqrt(total), 0.0)))
    return up(max(gains, default=1.0))


def _leaky(module: nn.Module, shape: torch.Size) -> float:
    assert isinstance(module, nn.LeakyReLU)
    return max(1.0, abs(module.negative_slope))


def _per_axis(value: int | Sequence[int], dimensions: int) -> list[int]:
    return [value] * dimensions if isinstance(value, int) else list(value)


_Rule = Callable[[nn.Module, torch.Size], float]
_RULES: tuple[tuple[tuple[type[nn.Module], ...], _Rule], ...] = (
    ((MaxMin, GroupSort, nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle), _one),
    ((nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Dropout), _one),
    ((nn.LeakyReLU,), _leaky),
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
