"""What all 2-D convolutions of the paper share: arguments, stride by invertible downsampling, padding, plain form."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from isoconv.errors import IsoconvError
from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.circular import convolve_same, same_padding
from isoconv.nn.downsampling import downsample


class LipschitzConvolution(BuiltWeight):
    """The part of a convolution that does not depend on how its weight is made, in one or two dimensions.

    Stride s is invertible downsampling followed by a stride-1 convolution of size k/s, and the image keeps its size
    otherwise. `weight` is (c_out, c_in·sᵈ, k/s, …): the kernel that is convolved with after downsampling.
    """

    dimensions = 2
    bias: nn.Parameter | None

    def _set_shape(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...],
        padding: int | tuple[int, ...] | str,
        padding_mode: str,
    ) -> None:
        self.in_channels = _positive(in_channels, "in_channels")
        self.out_channels = _positive(out_channels, "out_channels")
        self.kernel_size = self._equal_sides(kernel_size, "kernel_size")
        self.stride = self._equal_sides(stride, "stride")
        if self.kernel_size % self.stride:
            raise IsoconvError(
                f"Expected a kernel size that the stride divides (stride {self.stride} is downsampling by {self.stride} and "
                f"a kernel of size kernel_size/{self.stride}). Got kernel_size={self.kernel_size}."
            )
        self._check_padding(padding)
        if padding_mode not in ("circular", "zeros"):
            raise IsoconvError(
                f"Expected padding_mode 'circular' or 'zeros' (others are not 1-Lipschitz). Got {padding_mode!r}."
            )
        self.padding_mode = padding_mode

    def _check_padding(self, padding: int | tuple[int, ...] | str) -> None:
        """Whether it is the padding that these layers have: the one with which images keep their size, or divide it by s.

        torch's layer does that for images whose size s divides if k − s ≤ 2·padding < k.
        """
        k, s = self.kernel_size, self.stride
        fitting = [p for p in range(k) if k - s <= 2 * p < k]
        sides = set(padding) if isinstance(padding, (tuple, list)) else {padding}
        if padding != "same" and not (len(sides) == 1 and sides <= set(fitting)):
            numbers = "".join(f" or {p}" for p in fitting)
            raise IsoconvError(
                f"Expected padding 'same'{numbers}: images keep their size, or divide it by the stride. Got {padding!r}."
            )

    def _equal_sides(self, value: int | tuple[int, ...], name: str) -> int:
        sides = value if isinstance(value, (tuple, list)) else (value,)
        if len(set(sides)) != 1 or len(sides) not in (1, self.dimensions):
            raise IsoconvError(
                f"Expected {name} to be a number or a tuple of {self.dimensions} equal ones. Got {value!r}."
            )
        return _positive(sides[0], name)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of `weight`."""
        taps = (self.kernel_size // self.stride,) * self.dimensions
        return (self.out_channels, self.in_channels * self.stride**self.dimensions, *taps)

    def _set_bias(self, bias: bool, size: int, factory: dict[str, Any]) -> None:
        self.bias = nn.Parameter(torch.empty(size, **factory)) if bias else None

    def _reset_bias(self, bound: float) -> None:
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        batch = self._as_batch(x, self.in_channels)
        self._check_input_size(batch)
        y = convolve_same(downsample(batch, self.stride), self.weight, self.bias, self.padding_mode)
        return y if x.dim() == batch.dim() else y[0]

    def _check_input_size(self, batch: Tensor) -> None:
        """For the methods whose constraint depends on the image size."""

    def _as_batch(self, x: Tensor, channels: int) -> Tensor:
        if x.dim() not in (self.dimensions + 1, self.dimensions + 2) or x.shape[-self.dimensions - 1] != channels:
            axes = "L" if self.dimensions == 1 else "H, W"
            raise IsoconvError(
                f"{type(self).__name__}: Expected input (N, {channels}, {axes}) or ({channels}, {axes}). "
                f"Got shape {tuple(x.shape)}."
            )
        return x if x.dim() == self.dimensions + 2 else x[None]

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += "" if self.bias is not None else ", bias=False"
        return text + ("" if self.padding_mode == "circular" else f", padding_mode={self.padding_mode!r}")

    def plain(self) -> nn.Module:
        """The same function as ordinary torch modules: padding and one strided convolution (see `isoconv.plain`)."""
        with torch.no_grad():
            weight = unfold_stride(evaluation_weight(self), self.stride, self.dimensions)
        before, after = (self.stride * pad for pad in same_padding(self.kernel_size // self.stride))
        return plain_convolution(weight, self.bias, self.stride, (before, after), self.padding_mode)


class Conv2dWithKernel(LipschitzConvolution):
    """A 2-D convolution whose parameter is a kernel in the shape of `weight`, initialised as torch initialises one."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        *,
        padding: int | tuple[int, int] | str = "same",
        bias: bool = True,
        padding_mode: str = "circular",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._set_shape(in_channels, out_channels, kernel_size, stride, padding, padding_mode)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.kernel = nn.Parameter(torch.empty(self.kernel_shape, **factory))
        self._set_bias(bias, out_channels, factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """torch's own initialisation of a convolution: uniform within ±1/√fan_in."""
        nn.init.kaiming_uniform_(self.kernel, a=math.sqrt(5))
        self._reset_bias(1 / math.sqrt(self.kernel[0].numel()))

    def _sources(self) -> tuple[Tensor, ...]:
        return (self.kernel,)


def unfold_stride(weight: Tensor, stride: int, dimensions: int) -> Tensor:
    """The kernel (c_out, c_in, k…) of one strided convolution that equals downsampling and then `weight`."""
    if stride == 1:
        return weight.clone()
    c_out, channels, *taps = weight.shape
    if dimensions == 1:
        split = weight.reshape(c_out, channels // stride, stride, taps[0])
        return split.transpose(2, 3).reshape(c_out, channels // stride, taps[0] * stride)
    split = weight.reshape(c_out, channels // stride**2, stride, stride, *taps)
    return split.permute(0, 1, 4, 2, 5, 3).reshape(c_out, -1, taps[0] * stride, taps[1] * stride)


def evaluation_weight(layer: BuiltWeight) -> Tensor:
    """The weight that the layer applies in evaluation, whatever mode it is in; its state is left alone."""
    training = layer.training
    layer.training = False
    try:
        return layer.weight.detach()
    finally:
        layer.training = training


def plain_convolution(
    weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], padding_mode: str
) -> nn.Module:
    """nn.Conv1d or nn.Conv2d with this weight, after a padding module where the convolution's own would not do."""
    before, after = padding
    symmetric = before == after
    one_dimensional = weight.dim() == 3
    kind = nn.Conv1d if one_dimensional else nn.Conv2d
    convolution = skip_init(  # not to draw random numbers for weights that are given
        kind,
        weight.shape[1],
        weight.shape[0],
        tuple(weight.shape[2:]),
        stride=stride,
        padding=before if symmetric else 0,
        padding_mode=padding_mode if symmetric and before else "zeros",
        bias=bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    assert isinstance(convolution, (nn.Conv1d, nn.Conv2d))
    with torch.no_grad():
        convolution.weight.copy_(weight)
        if bias is not None and convolution.bias is not None:
            convolution.bias.copy_(bias)
    if symmetric:
        return convolution
    pads: dict[tuple[bool, str], Any] = {
        (True, "circular"): nn.CircularPad1d,
        (True, "zeros"): nn.ZeroPad1d,
        (False, "circular"): nn.CircularPad2d,
        (False, "zeros"): nn.ZeroPad2d,
    }
    pad = pads[one_dimensional, padding_mode]
    return nn.Sequential(pad(padding if one_dimensional else (before, after, before, after)), convolution)


def _positive(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise IsoconvError(f"Expected {name} to be a whole number of at least 1. Got {value!r}.")
    return value
