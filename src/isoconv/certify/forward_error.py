"""How far the logits that a computer finds can lie from the network's exact ones.

Note [Forward error]
Let h be the exact input of a layer, ĥ what was computed for it, and ‖ĥ − h‖ ≤ E, ‖h‖ ≤ H. A layer with matrix A, bias b
(norm B over all positions), Lipschitz bound L and sums of n products gives, whatever the order of summation and with or
without fused multiply-add, |computed − exact| ≤ γ_{n+1}(|A||ĥ| + |b|) in every entry, plus what underflows, so

    E' = L·E + γ_{n+1}(‖|A|‖(H + E) + B) + √outputs·2(n + 1)·tiny,        H' = L·H + B,

with ‖|A|‖ ≤ √(largest row sum · largest column sum of |A|). Activations that choose among their inputs, padding,
reordering and max-pooling do not round: E' = L·E, H' = L·H. Beginning with H = ‖x‖, E = 0, both stay affine functions of
‖x‖. So the logits err by at most α + β‖x‖, for every input x.

This takes a convolution for sums of products, the weights and the inputs as they are: no Winograd, no FFT, no TF32;
`isoconv.certify` switches the libraries off that may choose them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from isoconv.certify.convolutions import absolute_sums
from isoconv.certify.layers import Layer
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import largest_absolute_sums
from isoconv.linalg.rounding import add_up, div_up, mul_up, sqrt_up, up
from isoconv.nn import Abs, GroupSort, MaxMin, Scale

#: unit roundoff, smallest normal number, and a size far below the largest, of the arithmetics a network can be run in
ARITHMETICS = {"float64": (2.0**-53, 2.0**-1022, 2.0**1000), "float32": (2.0**-24, 2.0**-126, 2.0**120)}
#: The error bound is for inputs up to this norm: beyond it something might overflow.
LARGEST_NORM = 2.0**30


@dataclass(frozen=True)
class ForwardError:
    """‖computed logits − exact logits‖₂ ≤ offset + slope·‖x‖₂ for every input x of norm at most LARGEST_NORM."""

    offset: float
    slope: float


@dataclass(frozen=True)
class _Affine:
    """offset + slope·‖x‖, both non-negative, rounded up."""

    offset: float
    slope: float

    def times(self, factor: float) -> "_Affine":
        return _Affine(mul_up(self.offset, factor), mul_up(self.slope, factor))

    def plus(self, other: "_Affine") -> "_Affine":
        return _Affine(add_up(self.offset, other.offset), add_up(self.slope, other.slope))

    def shifted(self, offset: float) -> "_Affine":
        return _Affine(add_up(self.offset, offset), self.slope)


def forward_error(layers: Sequence[Layer], bounds: Sequence[float], arithmetic: str = "float64") -> ForwardError:
    """The error of the network of `layers`, whose Lipschitz constants are at most `bounds`, run in `arithmetic`.

    Infinite where a number on the way might overflow.
    """
    unit, tiny, huge = ARITHMETICS[arithmetic]
    size, error = _Affine(0.0, 1.0), _Affine(0.0, 0.0)
    for layer, bound in zip(layers, bounds, strict=True):
        if layer.merged or type(layer.module) in _EXACT:
            size, error = size.times(bound), error.times(bound)
            continue
        terms, absolute, constant, divisor = _sums(layer, bound, arithmetic)
        relative = up((terms + 1) * unit)
        relative = div_up(relative, math.nextafter(1 - relative, 0.0))
        if not 0 < relative < 1:
            raise IsoconvError(f"Expected sums short enough for {arithmetic}. Got {terms} terms at {layer.name}.")
        underflow = mul_up(sqrt_up(float(math.prod(layer.output_shape))), float(2 * (terms + 1)), tiny)
        sums = size.plus(error).times(absolute).shifted(constant)
        if not (sums.offset + sums.slope * LARGEST_NORM) * divisor < huge:  # above all partial sums
            return ForwardError(math.inf, math.inf)
        rounding = sums.times(relative).shifted(underflow)
        size, error = size.times(bound).shifted(constant), error.times(bound).plus(rounding)
    return ForwardError(error.offset, error.slope)


def _sums(layer: Layer, bound: float, arithmetic: str) -> tuple[int, float, float, float]:
    """(products in a sum, bound of ‖|A|‖, norm of what is added, what the sum is divided by) of a layer that rounds."""
    module = layer.module
    if type(module) in (nn.Conv1d, nn.Conv2d):
        assert isinstance(module, (nn.Conv1d, nn.Conv2d))
        rows, columns = absolute_sums(module, layer.input_shape, layer.circular)
        return (
            module.weight[0].numel(),
            sqrt_up(mul_up(rows, columns)),
            _bias_norm(module.bias, layer.output_shape),
            1.0,
        )
    if type(module) is nn.Linear:
        assert isinstance(module, nn.Linear)
        rows, columns = largest_absolute_sums(module.weight)
        return module.weight.shape[1], sqrt_up(mul_up(rows, columns)), _bias_norm(module.bias, layer.output_shape), 1.0
    if type(module) in (nn.AvgPool1d, nn.AvgPool2d):
        assert isinstance(module, (nn.AvgPool1d, nn.AvgPool2d))
        sizes = module.kernel_size
        count = math.prod(sizes) if isinstance(sizes, tuple) else sizes ** (len(layer.input_shape) - 1)
        divisor = max(1.0, abs(float(getattr(module, "divisor_override", None) or count)))
        return count, bound, 0.0, divisor  # the weights have one sign, so ‖|A|‖ = ‖A‖
    if type(module) is Scale:
        assert isinstance(module, Scale)
        if arithmetic == "float32" and float(torch.tensor(module.factor, dtype=torch.float32)) != module.factor:
            raise IsoconvError(f"Expected a factor that float32 can hold. Got {module.factor} at {layer.name}.")
        return 0, bound, 0.0, 1.0
    if type(module) is nn.LeakyReLU:
        return 1, bound, 0.0, 1.0
    raise IsoconvError(
        f"Expected modules whose rounding is known. Got {layer.kind} at {layer.name}: "
        f"fold it into a convolution or a linear layer, or leave it out."
    )


def _bias_norm(bias: torch.Tensor | None, output_shape: torch.Size) -> float:
    if bias is None:
        return 0.0
    (largest, _), positions = largest_absolute_sums(bias[:, None]), math.prod(output_shape) // bias.numel()
    if largest == 0:
        return 0.0
    # Scaled, so that neither the squares of tiny biases vanish nor those of huge ones overflow.
    scaled = (bias.detach().double() / largest).square().sum()
    return mul_up(largest, sqrt_up(up(float(scaled) * (1 + (bias.numel() + 4) * 2.0**-52))), sqrt_up(float(positions)))


_EXACT: tuple[type[nn.Module], ...] = (
    *(Abs, MaxMin, GroupSort, nn.ReLU, nn.ReLU6, nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten),
    *(nn.PixelShuffle, nn.PixelUnshuffle, nn.MaxPool1d, nn.MaxPool2d, nn.Upsample),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.CircularPad1d, nn.CircularPad2d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d),
)
