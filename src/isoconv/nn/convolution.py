"""What all convolutions share: arguments, stride by invertible downsampling, padding, plain form; and the ordinary one."""

import math
from collections.abc import Sequence
from operator import gt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from isoconv.errors import IsoconvError
from isoconv.linalg.spectrum import fold_kernel
from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.downsampling import downsample


class LipschitzConvolution(BuiltWeight):
    """The part of a convolution that does not depend on how its weight is made, in one or two dimensions.

    Stride s is invertible downsampling followed by a stride-1 convolution of size k/s, and the image keeps its size
    otherwise. `weight` is (c_out, c_in·sᵈ, k/s, …): the kernel that is convolved with after downsampling. A method is a
    subclass with `_make_parameters`, `reset_parameters`, `_sources` and `_build`; `options` go to the class after this one.
    """

    dimensions = 2
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        *,
        padding: int | tuple[int, ...] | str = "same",
        bias: bool = True,
        padding_mode: str = "circular",
        frozen: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
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
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make_parameters(factory)
        self.bias = nn.Parameter(torch.empty(out_channels, **factory)) if bias else None
        self.reset_parameters()
        self.frozen = frozen
        if frozen:
            self.requires_grad_(False)

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        """Make the parameters that the weight is built from, empty."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        raise NotImplementedError

    def _check_padding(self, padding: int | tuple[int, ...] | str) -> None:
        """Raise unless it is the padding that these layers have: images keep their size, or divide it by s.

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

    def _reset_bias(self, bound: float) -> None:
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        batch = self._as_batch(x)
        if self.stride > 1:
            batch = downsample(batch, self.stride)
        y = convolve_same(batch, self.weight, self.bias, self.padding_mode)
        return y if x.dim() == self.dimensions + 2 else y[0]

    def _as_batch(self, x: Tensor) -> Tensor:
        """Return the input as a batch. Raise if it does not fit; methods for one image size refuse others."""
        channels = self.in_channels
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
        text += "" if self.padding_mode == "circular" else f", padding_mode={self.padding_mode!r}"
        text += "" if getattr(self, "orthogonalisation", "manifold") == "manifold" else ", orthogonalisation='bjorck'"
        return text + (", frozen=True" if self.frozen else "")

    def plain(self) -> nn.Module:
        """The same function as ordinary torch modules: padding and one strided convolution (see `isoconv.plain`)."""
        with torch.no_grad():
            weight = unfold_stride(evaluation_weight(self), self.stride, self.dimensions)
        before, after = (self.stride * pad for pad in same_padding(self.kernel_size // self.stride))
        return plain_convolution(weight, self.bias, self.stride, (before, after), self.padding_mode)


class Conv2dWithKernel(LipschitzConvolution):
    """A 2-D convolution whose parameter is a kernel in the shape of `weight`, initialised as torch initialises one."""

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        self.kernel = nn.Parameter(torch.empty(self.kernel_shape, **factory))

    def reset_parameters(self) -> None:
        """torch's own initialisation of a convolution: uniform within ±1/√fan_in."""
        nn.init.kaiming_uniform_(self.kernel, a=math.sqrt(5))
        self._reset_bias(1 / math.sqrt(self.kernel[0].numel()))

    def _sources(self) -> tuple[Tensor, ...]:
        return (self.kernel,)


class StandardConv2d(Conv2dWithKernel):
    """An unconstrained convolution: not 1-Lipschitz. Arguments as for `torch.nn.Conv2d`, with "same" padding."""

    @property
    def weight(self) -> Tensor:
        return self.kernel

    def _sources(self) -> tuple[Tensor, ...]:
        return ()  # nothing is built


class SizedConv2d(Conv2dWithKernel):
    """A convolution that is told the spatial size of its input, and refuses another: its norm there is not known.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and `input_size`, the height and width of the layer's input.
    """

    def __init__(self, *arguments: Any, input_size: int | tuple[int, int], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        size = tuple(input_size) if isinstance(input_size, (tuple, list)) else (input_size, input_size)
        if len(size) != 2 or any(not isinstance(n, int) or n < 1 for n in size):
            raise IsoconvError(f"Expected input_size to be a number or (height, width). Got {input_size!r}.")
        if any(n % self.stride for n in size):
            raise IsoconvError(
                f"Expected an input_size that the stride {self.stride} divides. Got {size[0]}×{size[1]}."
            )
        self.input_size = size

    @property
    def convolved_size(self) -> tuple[int, int]:
        """The size of the image that is convolved, after downsampling."""
        return self.input_size[0] // self.stride, self.input_size[1] // self.stride

    def _as_batch(self, x: Tensor) -> Tensor:
        batch = super()._as_batch(x)
        if tuple(batch.shape[2:]) != self.input_size:
            got = "×".join(str(n) for n in batch.shape[2:])
            raise IsoconvError(
                f"{type(self).__name__}: Expected images of size {self.input_size[0]}×{self.input_size[1]}, "
                f"for which its norm is constrained. Got {got}."
            )
        return batch

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_size={self.input_size}"


def same_padding(taps: int) -> tuple[int, int]:
    """Pixels before and after: symmetric for odd kernels, k/2 before and k/2 − 1 after for even ones."""
    return taps // 2, (taps - 1) // 2


def convolve_same(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str, padding: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """conv1d or conv2d of a batch with (before, after) pixels of circular or zero padding per axis (default: same)."""
    sizes = x.shape[2:]
    pads = [(k // 2, (k - 1) // 2) for k in weight.shape[2:]] if padding is None else list(padding)
    if padding_mode == "circular" and any(map(gt, weight.shape[2:], sizes)):
        # Taps that fall on the same pixel of a small image are added up; PyTorch pads only once around.
        weight = fold_kernel(weight, sizes)
        starts = [before % n for (before, _), n in zip(pads, sizes, strict=True)]
        pads = [(start, k - 1 - start) for start, k in zip(starts, weight.shape[2:], strict=True)]
    zeros = padding_mode == "zeros"
    x = F.pad(x, [pad for pair in reversed(pads) for pad in pair]) if zeros else circular_pad(x, pads)
    return F.conv1d(x, weight, bias) if weight.dim() == 3 else F.conv2d(x, weight, bias)


def circular_pad(x: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """`F.pad(..., mode="circular")` with (before, after) per axis, in fewer kernels, forward and backward."""
    plain_autograd = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if x.requires_grad and torch.is_grad_enabled() and not plain_autograd:
        return _CircularPad.apply(x, tuple(pads))  # type: ignore[no-any-return,no-untyped-call]
    return _wrapped(x, pads)


class _CircularPad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pads: tuple[tuple[int, int], ...]) -> Tensor:
        ctx.pads = pads
        return _wrapped(x, pads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _unwrapped(gradient, ctx.pads), None


def _wrapped(x: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    for axis, (before, after) in enumerate(pads, start=2):
        size = x.shape[axis]
        pieces = [x.narrow(axis, size - before, before)] if before else []
        pieces.append(x)
        pieces += [x.narrow(axis, 0, after)] if after else []
        x = torch.cat(pieces, axis) if len(pieces) > 1 else x
    return x


def _unwrapped(gradient: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """The adjoint: what was copied into the border is added back to where it came from."""
    for axis, (before, after) in reversed(list(enumerate(pads, start=2))):
        size = gradient.shape[axis] - before - after
        inner = gradient.narrow(axis, before, size)
        if before or after:
            inner = inner.clone()
        if before:
            inner.narrow(axis, size - before, before).add_(gradient.narrow(axis, 0, before))
        if after:
            inner.narrow(axis, 0, after).add_(gradient.narrow(axis, before + size, after))
        gradient = inner
    return gradient


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
    kind = nn.Conv1d if weight.dim() == 3 else nn.Conv2d
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
    pad = getattr(nn, f"{'Circular' if padding_mode == 'circular' else 'Zero'}Pad{weight.dim() - 2}d")
    return nn.Sequential(pad(padding * (weight.dim() - 2)), convolution)


def _positive(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise IsoconvError(f"Expected {name} to be a whole number of at least 1. Got {value!r}.")
    return value
