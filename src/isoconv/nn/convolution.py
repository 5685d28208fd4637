"""What all convolutions share: arguments, stride by invertible downsampling, padding, plain form; and the ordinary one."""

import math
from collections.abc import Sequence
from operator import gt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError
from isoconv.linalg.spectrum import fold_kernel
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, with_parameters
from isoconv.nn.downsampling import downsample
from isoconv.records import require

Pads = Sequence[tuple[int, int]]  # pixels before and after, for each axis


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
        self.in_channels = _whole(in_channels, "in_channels")
        self.out_channels = _whole(out_channels, "out_channels")
        self.kernel_size = _whole(self._one_side(kernel_size, "kernel_size"), "kernel_size")
        self.stride = s = _whole(self._one_side(stride, "stride"), "stride")
        meaning = f"stride {s} is downsampling by {s} and a kernel of size kernel_size/{s}"
        divides = self.kernel_size % s == 0
        require(divides, f"a kernel size that the stride divides ({meaning})", f"kernel_size={self.kernel_size}")
        # torch's layer keeps the size of images (divides it by s) if k − s ≤ 2·padding < k.
        fitting = [p for p in range(self.kernel_size) if self.kernel_size - s <= 2 * p < self.kernel_size]
        choices = " or ".join(["'same'", *map(str, fitting)])
        sides = set(padding) if isinstance(padding, (tuple, list)) else {padding}
        fits = padding == "same" or (len(sides) == 1 and sides <= set(fitting))
        require(fits, f"padding {choices}: images keep their size, or divide it by the stride", repr(padding))
        self.padding_mode, self.frozen = _checked_mode(padding_mode), frozen
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make_parameters(factory)
        self.bias = nn.Parameter(torch.empty(out_channels, **factory)) if bias else None
        self.reset_parameters()
        if frozen:
            self.requires_grad_(False)

    def _one_side(self, value: Any, name: str) -> Any:
        sides = value if isinstance(value, (tuple, list)) else (value,)
        equal = len(set(sides)) == 1 and len(sides) in (1, self.dimensions)
        require(equal, f"{name} to be a number or a tuple of {self.dimensions} equal ones", repr(value))
        return sides[0]

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        """Make the parameters that the weight is built from, empty."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        raise NotImplementedError

    def _reset_bias(self, fan: int) -> None:
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(fan), 1 / math.sqrt(fan))

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of `weight`."""
        taps = (self.kernel_size // self.stride,) * self.dimensions
        return (self.out_channels, self.in_channels * self.stride**self.dimensions, *taps)

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
        usual = {"bias": True, "padding_mode": "circular", "orthogonalisation": "manifold", "frozen": False}
        own = {**vars(self), "bias": self.bias is not None}
        return text + "".join(f", {name}={own[name]!r}" for name in usual if own.get(name, usual[name]) != usual[name])

    def plain(self) -> nn.Module:
        """The same function as ordinary torch modules: padding and one strided convolution (see `isoconv.plain`)."""
        before, after = same_padding(self.kernel_size // self.stride)
        kernel, pads = unfold_stride(self.evaluation_weight(), self.stride), (self.stride * before, self.stride * after)
        return plain_convolution(kernel, self.bias, self.stride, pads, self.padding_mode)


class OrthogonalisedConvolution(LipschitzConvolution, OrthogonalisedLayer):
    """A convolution whose parameters stand for orthonormal matrices.

    Frozen, it is random and stays so, as the paper's BCOP-Fixed.
    """

    def reset_parameters(self) -> None:
        """Random orthonormal matrices; the bias uniform within ±1/√c_out."""
        self._reset_matrices()
        self._reset_bias(self.out_channels)


class Conv2dWithKernel(LipschitzConvolution):
    """A 2-D convolution whose parameter is a kernel in the shape of `weight`, initialised as torch initialises one."""

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        self.kernel = nn.Parameter(torch.empty(self.kernel_shape, **factory))

    def reset_parameters(self) -> None:
        """torch's own initialisation of a convolution: uniform within ±1/√fan_in."""
        nn.init.kaiming_uniform_(self.kernel, a=math.sqrt(5))
        self._reset_bias(self.kernel[0].numel())

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
        fits = len(size) == 2 and all(isinstance(n, int) and n >= 1 for n in size)
        require(fits, "input_size to be a number or (height, width)", repr(input_size))
        divided = not any(n % self.stride for n in size)
        require(divided, f"an input_size that the stride {self.stride} divides", f"{size[0]}×{size[1]}")
        self.input_size = size

    @property
    def convolved_size(self) -> tuple[int, int]:
        """The size of the image that is convolved, after downsampling."""
        return self.input_size[0] // self.stride, self.input_size[1] // self.stride

    def _as_batch(self, x: Tensor) -> Tensor:
        batch = super()._as_batch(x)
        if tuple(batch.shape[2:]) != self.input_size:
            own, got = ("×".join(map(str, size)) for size in (self.input_size, batch.shape[2:]))
            raise IsoconvError(
                f"{type(self).__name__}: Expected images of size {own}, for which its norm is constrained. Got {got}."
            )
        return batch

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_size={self.input_size}"


def _whole(value: Any, name: str) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(whole, f"{name} to be a whole number of at least 1", repr(value))
    return int(value)


def _checked_mode(padding_mode: str) -> str:
    lipschitz = padding_mode in ("circular", "zeros")
    require(lipschitz, "padding_mode 'circular' or 'zeros' (others are not 1-Lipschitz)", repr(padding_mode))
    return padding_mode


# Functions of a kernel --------------------------------------------------------------------------------------------------


def same_padding(taps: int) -> tuple[int, int]:
    """Pixels before and after: symmetric for odd kernels, k/2 before and k/2 − 1 after for even ones."""
    return taps // 2, (taps - 1) // 2


def convolve_same(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str, padding: Pads | None = None
) -> Tensor:
    """conv1d or conv2d of a batch with (before, after) pixels of circular or zero padding per axis (default: same)."""
    sizes = x.shape[2:]
    pads = list(map(same_padding, weight.shape[2:])) if padding is None else list(padding)
    if padding_mode == "circular" and any(map(gt, weight.shape[2:], sizes)):
        # Taps that fall on the same pixel of a small image are added up; PyTorch pads only once around.
        weight = fold_kernel(weight, sizes)
        starts = [before % n for (before, _), n in zip(pads, sizes, strict=True)]
        pads = [(start, k - 1 - start) for start, k in zip(starts, weight.shape[2:], strict=True)]
    if padding_mode == "circular":
        x = circular_pad(x, pads)
    else:
        _checked_mode(padding_mode)
        x = F.pad(x, [pad for pair in reversed(pads) for pad in pair])
    if weight.shape[2:].numel() == 1 and x.stride(1) == 1 and not x.is_contiguous():
        # Channels that lie side by side: a product of matrices, which takes less time than a convolution.
        return F.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)
    return F.conv1d(x, weight, bias) if weight.dim() == 3 else F.conv2d(x, weight, bias)


def circular_pad(x: Tensor, pads: Pads) -> Tensor:
    """`F.pad(..., mode="circular")` with (before, after) per axis, in fewer kernels, forward and backward."""
    if not any(map(any, pads)):
        return x
    plain_autograd = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if x.requires_grad and torch.is_grad_enabled() and not plain_autograd:
        return _CircularPad.apply(x, pads)  # type: ignore[no-any-return,no-untyped-call]
    return _wrap(x, pads)


class _CircularPad(torch.autograd.Function):
    """Backward is the adjoint: what was copied into the border is added back to where it came from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pads: Pads) -> Tensor:
        ctx.pads = pads
        return _wrap(x, pads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        for axis, (before, after) in reversed(list(enumerate(ctx.pads, start=2))):
            size = gradient.shape[axis] - before - after
            inner = gradient.narrow(axis, before, size)
            if before or after:
                inner = inner.clone()
                inner.narrow(axis, size - before, before).add_(gradient.narrow(axis, 0, before))
                inner.narrow(axis, 0, after).add_(gradient.narrow(axis, before + size, after))
            gradient = inner
        return gradient, None


def _wrap(x: Tensor, pads: Pads) -> Tensor:
    for axis, (before, after) in enumerate(pads, start=2):
        # Without empty pieces, which would cost the result its channels-last layout.
        pieces = [x.narrow(axis, x.shape[axis] - before, before), x] if before else [x]
        pieces += [x.narrow(axis, 0, after)] if after else []
        x = torch.cat(pieces, axis) if len(pieces) > 1 else x
    return x


def unfold_stride(weight: Tensor, stride: int) -> Tensor:
    """The kernel (c_out, c_in, k…) of one strided convolution that equals downsampling and then `weight`."""
    c_out, channels, *taps = weight.shape
    d = len(taps)
    split = weight.reshape(c_out, channels // stride**d, *[stride] * d, *taps)
    pairs = [axis for k in range(2, 2 + d) for axis in (k + d, k)]  # each axis of taps before its pixels of a block
    return split.permute(0, 1, *pairs).reshape(*split.shape[:2], *[k * stride for k in taps])


def plain_convolution(
    weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], padding_mode: str
) -> nn.Module:
    """nn.Conv1d or nn.Conv2d with this weight, after a padding module where the convolution's own would not do."""
    (before, after), padding_mode = padding, _checked_mode(padding_mode)
    axes = weight.dim() - 2
    kind: Any = nn.Conv1d if axes == 1 else nn.Conv2d
    own: dict[str, Any] = {"padding": before, "padding_mode": padding_mode} if before == after > 0 else {}
    sizes = (weight.shape[1], weight.shape[0], tuple(weight.shape[2:]), stride)
    convolution = with_parameters(kind(*sizes, bias=False, device="meta", **own), weight, bias)
    if before == after:
        return convolution
    pad = getattr(nn, f"{'Circular' if padding_mode == 'circular' else 'Zero'}Pad{axes}d")
    return nn.Sequential(pad(padding * axes), convolution)
