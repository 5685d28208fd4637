"""Layers of deel-torchlip and orthogonium as the modules of torch and isoconv that compute the same.

Neither package is imported here: a class is known by its full name, and is that class only if its own module says so.
"""

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from isoconv.errors import require
from isoconv.nn.activations import Abs, GroupSort, Householder, MaxMin, Scale
from isoconv.nn.built_weight import with_parameters
from isoconv.nn.centring import BatchCentering, LayerCentering
from isoconv.nn.convolution import chain, plain_convolution, plain_linear
from isoconv.nn.pooling import L2NormPool2d
from isoconv.nn.trace import OPAQUE

Convert = Callable[[Any], nn.Module]


def find_converter(module: nn.Module) -> Convert | None:
    """Return the function that makes a layer of another library an ordinary module, or None if it is no such layer."""
    kind = type(module)
    kind = kind.__bases__[0] if parametrize.is_parametrized(module) else kind  # torch makes a subclass for each layer
    known = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    known = known and all(getattr(type(module), way) is getattr(kind, way) for way in ("forward", "__call__"))
    return CONVERTERS.get(f"{kind.__module__}.{kind.__name__}") if known and kind not in OPAQUE else None


class CutSort(nn.Module):
    """Sort consecutive channels within groups, smallest first: deel-torchlip's GroupSort."""

    def __init__(self, group_size: int | None, factor: float) -> None:
        super().__init__()
        self.group_size, self.factor, self.sort = group_size, factor, GroupSort(None, dim=2)

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        size = min(self.group_size or channels, channels)
        groups = (-1.0 * x).unflatten(1, (channels // size, size))
        return self.sort(groups).flatten(1, 2) * -self.factor  # type: ignore[no-any-return]


class TwoSidedReLU(nn.Module):
    """Return max(x, 0) and max(−x, 0): deel-torchlip's MaxMin. Written as |MaxMin(x, 0)| it is seen to be 1-Lipschitz."""

    def __init__(self, dim: int, factor: float) -> None:
        super().__init__()
        self.dim, self.factor, self.max_min, self.abs = dim, factor, MaxMin(dim), Abs()

    def forward(self, x: Tensor) -> Tensor:
        both = self.abs(self.max_min(torch.cat([x, 0.0 * x], dim=self.dim)))
        return both if self.factor == 1.0 else both * self.factor  # type: ignore[no-any-return]


class ScaledMean(nn.Module):
    """Average over all positions, times the root of their number and a factor: deel-torchlip's ScaledAdaptiveAvgPool2d."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, 1) * (math.sqrt(x.shape[-2] * x.shape[-1]) * self.factor)


def _convolution(layer: Any) -> nn.Module:
    symmetric = str(getattr(layer, "old_padding_mode", "")).lower() == "symmetric"
    require(not symmetric, "padding that torch has", "symmetric padding of more than one pixel")
    kinds: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    kind = next(kind for kind in kinds if isinstance(layer, kind))
    weight, options = layer.weight, {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}
    padding = {"padding": layer.padding, "padding_mode": layer.padding_mode}
    padding |= {"output_padding": layer.output_padding} if kind is nn.ConvTranspose2d else {}
    sizes = (layer.in_channels, layer.out_channels, tuple(weight.shape[2:]))
    plain = with_parameters(kind(*sizes, **options, **padding, bias=False, device="meta"), weight, layer.bias)
    flat = list(getattr(layer, "_reversed_padding_repeated_twice", []))
    if layer.padding_mode == "zeros" or flat == list(plain._reversed_padding_repeated_twice):  # type: ignore[arg-type]
        return plain
    # A kernel that is larger than the kernel_size that the padding was made for (orthogonium's SOC).
    pads = tuple(zip(flat[-2::-2], flat[-1::-2], strict=True))
    return plain_convolution(weight, layer.bias, pads, layer.padding_mode, **options)


def _linear(layer: Any) -> nn.Module:
    return plain_linear(layer.weight, layer.bias)


def _translate(mean: Tensor | None, bias: Tensor | None, factor: Any = 1.0) -> nn.Module:
    """Return factor·(x − mean) + bias, one number of each for each channel."""
    some = bias if bias is not None else mean
    if some is None:
        return nn.Identity()
    factor, channels = float(factor), max(t.numel() for t in (mean, bias) if t is not None)
    shift = BatchCentering(channels, bias=bias is not None, device=some.device, dtype=some.dtype)
    if mean is not None:
        shift.running_mean.copy_(factor * mean.flatten())
    if bias is not None:
        shift.bias.copy_(bias.flatten())  # type: ignore[union-attr]
    return chain(_scale(factor), shift)


def _centre_batch(layer: Any) -> nn.Module:
    return _translate(layer._get_mean_and_update(), layer.bias, layer.get_scaling())


def _centre_layer(axes: Any, bias: Tensor | None) -> nn.Module:
    return chain(LayerCentering(axes), _translate(None, bias))


def _scale(factor: float) -> nn.Module | None:
    return None if factor == 1.0 else Scale(factor)


def _reflection(layer: Any, factor: float = 1.0) -> nn.Module:
    """Turn angles into vectors. A pair is reflected where x·sin(θ/2) > y·cos(θ/2)."""
    axis = getattr(layer, "axis", 1)
    require(axis == 1, "a HouseHolder along the channels, axis 1", axis)
    half = layer.theta.flatten().double() / 2
    plain = Householder(2 * half.numel(), device=half.device, dtype=layer.theta.dtype)
    plain.vectors.copy_(torch.cat([-half.sin(), half.cos()]))
    return chain(plain, _scale(factor))


def _leaky(layer: Any) -> nn.Module:
    require(layer.num_parameters == 1, "an LPReLU with one slope", layer.num_parameters)
    return nn.LeakyReLU(float(layer.weight.clamp(-layer._coefficient_lip, layer._coefficient_lip)))


def _average(layer: Any) -> nn.Module:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    pool = nn.AvgPool2d(*(getattr(layer, name) for name in names))
    return chain(pool, _scale(float(layer._coefficient_lip * layer.scalingFactor)))


def _norm_pool(layer: Any) -> nn.Module:
    got = f"norm_type={layer.norm_type}, ceil_mode={layer.ceil_mode}"
    require(layer.norm_type == 2 and not layer.ceil_mode, "pooling by the L2 norm without ceil_mode", got)
    return chain(L2NormPool2d(layer.kernel_size, layer.stride), _scale(getattr(layer, "_coefficient_lip", 1.0)))


def _norm_of_all(layer: Any) -> nn.Module:
    return chain(L2NormPool2d(), _scale(layer._coefficient_lip), nn.Unflatten(1, (-1, 1, 1)))


def _tabulate(*rows: tuple[str, str, Convert]) -> dict[str, Convert]:
    return {f"{place}.{name}": convert for place, names, convert in rows for name in names.split()}


_LIP, _ORTHO = "deel.torchlip.modules", "orthogonium.layers"
CONVERTERS = _tabulate(
    (f"{_LIP}.module", "Sequential", lambda m: nn.Sequential(OrderedDict(m._modules))),
    (f"{_LIP}.conv", "SpectralConv1d SpectralConv2d FrobeniusConv2d SpectralConvTranspose2d", _convolution),
    (f"{_LIP}.unconstrained", "PadConv1d PadConv2d", _convolution),
    (f"{_LIP}.linear", "SpectralLinear FrobeniusLinear", _linear),
    (f"{_LIP}.activation", "GroupSort GroupSort2 FullSort", lambda m: CutSort(m.group_size, m._coefficient_lip)),
    (f"{_LIP}.activation", "MaxMin", lambda m: TwoSidedReLU(1 if m._dim is None else m._dim, m._coefficient_lip)),
    (f"{_LIP}.activation", "LPReLU", _leaky),
    (f"{_LIP}.activation", "HouseHolder", _reflection),
    (f"{_LIP}.pooling", "ScaledAvgPool2d", _average),
    (f"{_LIP}.pooling", "ScaledAdaptiveAvgPool2d", lambda m: ScaledMean(m._coefficient_lip)),
    (f"{_LIP}.pooling", "ScaledL2NormPool2d", _norm_pool),
    (f"{_LIP}.pooling", "ScaledAdaptativeL2NormPool2d", _norm_of_all),
    (f"{_LIP}.downsampling", "InvertibleDownSampling", lambda m: nn.PixelUnshuffle(m.downscale_factor)),
    (f"{_LIP}.upsampling", "InvertibleUpSampling", lambda m: nn.PixelShuffle(m.upscale_factor)),
    (f"{_LIP}.normalization", "BatchLipNorm BatchCentering", _centre_batch),
    (f"{_LIP}.normalization", "LayerCentering", lambda m: _centre_layer(m.dim, m.bias)),
    (f"{_LIP}.normalization", "ScaleBiasLayer", lambda m: chain(_scale(float(m.scalar)), _translate(None, m.bias))),
    (f"{_ORTHO}.conv.AOC.fast_block_ortho_conv", "FastBlockConv2d FastBlockConvTranspose2D", _convolution),
    (f"{_ORTHO}.conv.AOC.rko_conv", "RKOConv2d RkoConvTranspose2d", _convolution),
    (f"{_ORTHO}.conv.AOC.bcop_x_rko_conv", "BcopRkoConv2d BcopRkoConvTranspose2d", _convolution),
    (f"{_ORTHO}.conv.adaptiveSOC.fast_skew_ortho_conv", "FastSOC SOCTranspose", _convolution),
    (f"{_ORTHO}.conv.adaptiveSOC.soc_x_rko_conv", "SOCRkoConv2d SOCRkoConvTranspose2d", _convolution),
    (f"{_ORTHO}.conv.AOL.aol", "AOLConv2D AOLConvTranspose2D", _convolution),
    (f"{_ORTHO}.linear.ortho_linear", "OrthoLinear UnitNormLinear", _linear),
    (f"{_ORTHO}.custom_activations", "Abs", lambda _: Abs()),
    (f"{_ORTHO}.custom_activations", "MaxMin", lambda m: MaxMin(m.axis)),
    (f"{_ORTHO}.custom_activations", "HouseHolder", lambda m: _reflection(m, 1 / math.sqrt(2))),
    (f"{_ORTHO}.normalization", "BatchCentering2D", lambda m: _translate(m.running_mean, m.bias)),
    (f"{_ORTHO}.normalization", "LayerCentering2D", lambda m: _centre_layer((-2, -1), m.bias)),
    ("torch.nn.modules.pooling", "LPPool2d", _norm_pool),  # the pooling of orthogonium's networks
)
