"""What all convolutions share: arguments, stride by invertible downsampling, padding, plain form; and the ordinary one."""

import math
from collections.abc import Sequence
from operator import floordiv, ge, gt, le, mod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError, is_whole, require
from isoconv.linalg.matrices import is_traced
from isoconv.linalg.spectrum import fold_kernel, spread_kernel
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, check_dtype, with_parameters
from isoconv.nn.downsampling import downsample, unfold_stride

Pads = Sequence[tuple[int, int]]  # pixels before and after, for each axis
#: From these follows what a layer is built for: they cannot be changed afterwards.
_ARGUMENTS = frozenset(
    ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
)


class LipschitzConvolution(BuiltWeight):
    """The part of a convolution that does not depend on how its weight is made, in one or two dimensions.

    Arguments as for `torch.nn.Conv2d`, in its order; see Note [Geometry]. `weight` is the kernel that is convolved with,
    (c_out, c_in/groups, k…), or (c_out, c_in/groups·sᵈ, k/s, …) where the layer is `folded`: there the image is
    downsampled first. A method is a subclass with `_make_parameters`, `reset_parameters`, `_sources` and `_build`;
    `options` go to the class after this one.

    Note [Geometry]
    Output i is Σ_t W_t x[i·s + t·d − p] along each axis, the image being zero outside, or periodic under circular padding.
    Three things keep the norm of W's convolution:

    * A periodic image must have a size that the stride divides, or wrapping would count pixels more often than others.
      So it is first extended by zeros. Padding "same" does so too; it gives ⌈n/s⌉ outputs, by R − s pixels of padding in
      all, R = (k − 1)d + 1 being the reach of the kernel.
    * A periodic image has at most n/s different outputs: 2p ≤ R − 1. More would be copies.
    * With e = gcd(s, d), s = e·s′ and d = e·d′, only every e-th pixel is ever touched, and on those the convolution has
      stride s′ and dilation d′. They have no common factor. Then i·s′ + t·d′ = j·s′ + u·d′ means that s′ divides t − u:
      the products of taps that must add up to the identity, or to zero, are those of stride s′ without dilation. So W is
      built for the stride s′, and any dilation of it has the same norm, and is orthogonal if W is.
    """

    dimensions = 2
    _is_adjoint = False  # whether the kernel is that of the convolution from outputs to inputs
    padding: str | tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = "same",
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        frozen: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_dtype(dtype)
        for name, number in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            require(is_whole(number, 1), f"{name} to be a whole number of at least 1", repr(number))
        self.in_channels, self.out_channels, self.groups, d = in_channels, out_channels, groups, self.dimensions
        divided = not (in_channels % groups or out_channels % groups)
        require(divided, f"channels that groups={groups} divides", f"{in_channels} and {out_channels}")
        self.kernel_size = k = per_axis(kernel_size, "kernel_size", d)
        self.stride = s = per_axis(stride, "stride", d)
        self.dilation = per_axis(dilation, "dilation", d)
        self.padding_mode, self.frozen = _checked_mode(padding_mode), frozen
        fits = all(map(le, s, k))
        require(fits, "a stride of at most the kernel size", f"kernel_size={kernel_size} and stride={stride}")
        self.reaches = reaches = tuple(map(_reach, k, self.dilation))
        amounts = [((r - n + 1) // 2, (r - n) // 2) for r, n in zip(reaches, s, strict=True)]
        #: The stride that the kernel is built for, and its part on each axis that is downsampling.
        self._own_stride = tuple(n // math.gcd(n, spread) for n, spread in zip(s, self.dilation, strict=True))
        self._factors = tuple(n if taps % n == 0 else 1 for n, taps in zip(self._own_stride, k, strict=True))
        #: In how many patches a pixel can occur.
        self.overlap = math.prod(-(-taps // n) for taps, n in zip(k, self._own_stride, strict=True))
        self.padding, self._same = "same", True
        if padding != "same":
            self.padding = per_axis(0 if padding == "valid" else padding, "padding", d, least=0)
            most = [(r - 1) // 2 for r in reaches]
            single = self.padding_mode == "zeros" or all(map(le, self.padding, most))
            require(single, f"padding 'same' or at most {most}, else outputs would repeat", f"padding={padding}")
            same, amounts = amounts, [(p, p) for p in self.padding]
            self._same = set(s) == {1} and amounts == same
        self.folded = len(set(s)) == 1 and self._factors == s and set(self.dilation) == {1}
        if self.folded and self._same:  # of the downsampled image
            amounts = [same_padding(taps // s[0]) for taps in k]
        self._pads, self._extension, self.fits_always = tuple(amounts), [0] * d, self._same and set(s) == {1}
        c_out, c_in = (in_channels, out_channels) if self._is_adjoint else (out_channels, in_channels)
        self._built_shape = (c_out, c_in // groups * math.prod(self._factors), *map(floordiv, k, self._factors))
        #: The shape of `weight`.
        self.kernel_shape = self._built_shape if self.folded else (c_out, c_in // groups, *k)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make_parameters(factory)
        self.bias = nn.Parameter(torch.empty(out_channels, **factory)) if bias else None
        self.reset_parameters()
        if frozen:
            self.requires_grad_(False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ARGUMENTS and hasattr(self, "fits_always"):
            raise IsoconvError(f"Expected a new {type(self).__name__} for another {name}. Got one that is changed.")
        super().__setattr__(name, value)

    def _require_usual_geometry(self) -> None:
        usual = "one group, no dilation, padding 'same' and one stride for all axes that divides the kernel size"
        fits = self.folded and self._same and self.groups == 1
        got = (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}"
        )
        require(fits, f"{type(self).__name__} with {usual}", f"{got}, groups={self.groups}")

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        """Make the parameters that the weight is built from, empty."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self._check_input(x)
        return self._apply_to(x) if x.dim() == self.dimensions + 2 else self._apply_to(x[None])[0]

    def _apply_to(self, batch: Tensor) -> Tensor:
        """Return what the layer does to a batch."""
        batch = batch if self.fits_always else self._extend(batch)
        if self.folded and self._same:
            batch = downsample(batch, self.stride[0]) if self.stride[0] > 1 else batch
            return convolve_same(batch, self.weight, self.bias, self.padding_mode, self._pads, groups=self.groups)
        weight = unfold_stride(self.weight, self.stride) if self.folded else self.weight
        geometry = self.stride, self.dilation, self.groups
        y = convolve_same(batch, weight, self.bias, self.padding_mode, self._pads, *geometry)
        return F.pad(y, flatten_pads(self._surplus())) if any(self._extension) else y

    def _finish(self, kernel: Tensor) -> Tensor:
        """Return the weight, given the kernel that was built for the downsampled image, (…, *_built_shape)."""
        return kernel if self.folded else unfold_stride(kernel, self._factors)

    def _check_input(self, x: Tensor) -> None:
        """Raise if an image or a batch of images does not fit; methods for one image size refuse others."""
        channels = self.in_channels
        if x.dim() not in (self.dimensions + 1, self.dimensions + 2) or x.shape[-self.dimensions - 1] != channels:
            axes = "L" if self.dimensions == 1 else "H, W"
            expected = f"Expected input (N, {channels}, {axes}) or ({channels}, {axes})"
            raise IsoconvError(f"{type(self).__name__}: {expected}. Got shape {tuple(x.shape)}.")

    def _extend(self, batch: Tensor) -> Tensor:
        """Return a batch extended by zeros, where its size needs it. Remember by how many, for `plain`."""
        sizes = tuple(batch.shape[2:])
        if self._same and not any(map(mod, sizes, self.stride)):
            if any(self._extension):
                self._extension = [0] * self.dimensions
            return batch
        padded = [n + sum(amounts) for n, amounts in zip(sizes, self._pads, strict=True)]
        covered = self._same or all(map(ge, padded, self.reaches))
        require(covered, f"{type(self).__name__}: padded images of at least {self.reaches}", f"images of {sizes}")
        unwrapped = not self._same and (self.padding_mode == "zeros" or not any(self.padding))
        self._extension = [0 if unwrapped else -n % s for n, s in zip(sizes, self.stride, strict=True)]
        return F.pad(batch, flatten_pads([(0, more) for more in self._extension])) if any(self._extension) else batch

    def _surplus(self) -> Pads:
        """Return minus the outputs that an image has more when it is extended: torch's layer has as many without them."""
        axes = zip(self._extension, self._pads, self.reaches, self.stride, strict=True)
        rests = [(more, p + q - reach, s) for more, (p, q), reach, s in axes]
        return [(0, 0 if self._same else (rest - more) // s - rest // s) for more, rest, s in rests]

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        usual: dict[str, Any] = {"padding": "same", "dilation": (1,) * self.dimensions, "groups": 1, "bias": True}
        usual |= {"padding_mode": "circular", "orthogonalisation": "manifold", "frozen": False}
        own = {**vars(self), "bias": self.bias is not None}
        return text + "".join(f", {name}={own[name]!r}" for name in usual if own.get(name, usual[name]) != usual[name])

    def plain(self) -> nn.Module:
        """The same function as ordinary torch modules: padding and one strided convolution (see `isoconv.plain`).

        If the stride did not divide the last image that the layer saw, zeros that extend such an image come first.
        """
        kernel, pads = self.evaluation_weight(), self._pads
        kernel = unfold_stride(kernel, self.stride) if self.folded else kernel
        if self.folded and self._same:
            pads = tuple((s * before, s * after) for (before, after), s in zip(pads, self.stride, strict=True))
        geometry = self.stride, self.dilation, self.groups
        convolution = plain_convolution(kernel, self.bias, pads, self.padding_mode, *geometry)
        zeros = pad_module([(0, more) for more in self._extension], "zeros")
        return chain(zeros, convolution, pad_module(self._surplus(), "zeros"))


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
    """An unconstrained convolution: not 1-Lipschitz. Arguments as for `torch.nn.Conv2d`, with "same" padding.

    Its parameter is its weight.
    """

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
        self._require_usual_geometry()
        size = per_axis(input_size, "input_size", 2)
        divided = not any(map(mod, size, self.stride))
        require(divided, f"an input_size that the stride {self.stride[0]} divides", f"{size[0]}×{size[1]}")
        self.input_size = size

    @property
    def convolved_size(self) -> tuple[int, int]:
        """The size of the image that is convolved, after downsampling."""
        return self.input_size[0] // self.stride[0], self.input_size[1] // self.stride[1]

    def _check_input(self, x: Tensor) -> None:
        super()._check_input(x)
        if tuple(x.shape[-2:]) != self.input_size:
            own, got = ("×".join(map(str, size)) for size in (self.input_size, x.shape[-2:]))
            expected = f"Expected images of size {own}, for which its norm is constrained"
            raise IsoconvError(f"{type(self).__name__}: {expected}. Got {got}.")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_size={self.input_size}"


def per_axis(value: Any, name: str, axes: int, least: int = 1) -> tuple[int, ...]:
    """Return a number for each axis, given one for all or a tuple. Raise unless they are whole and not below `least`."""
    sides = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    fits = len(sides) in (1, axes) and all(is_whole(side, least) for side in sides)
    require(fits, f"{name} to be a whole number of at least {least}, or a tuple of {axes}", repr(value))
    return sides * axes if len(sides) == 1 else sides


def _checked_mode(padding_mode: str) -> str:
    lipschitz = padding_mode in ("circular", "zeros")
    require(lipschitz, "padding_mode 'circular' or 'zeros' (others are not 1-Lipschitz)", repr(padding_mode))
    return padding_mode


# Functions of a kernel --------------------------------------------------------------------------------------------------


def same_padding(taps: int) -> tuple[int, int]:
    """Pixels before and after: symmetric for odd kernels, k/2 before and k/2 − 1 after for even ones."""
    return taps // 2, (taps - 1) // 2


def convolve_same(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding_mode: str,
    padding: Pads | None = None,
    stride: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Tensor:
    """conv1d or conv2d of a batch with (before, after) pixels of circular or zero padding per axis (default: same)."""
    pads: Pads = list(map(same_padding, weight.shape[2:])) if padding is None else padding
    if padding_mode == "circular":
        reaches = weight.shape[2:] if dilation is None else map(_reach, weight.shape[2:], dilation)
        if any(map(gt, reaches, x.shape[2:])):
            weight, pads = _wrap_kernel(weight, pads, x.shape[2:], stride or (1,) * len(pads), dilation)
            dilation = None
        x = circular_pad(x, pads)
    else:
        _checked_mode(padding_mode)
        x = F.pad(x, flatten_pads(pads))
    strided = any(step != 1 for step in stride or ())
    if weight.shape[2:].numel() == 1 and not strided and groups == 1 and x.stride(1) == 1 and not x.is_contiguous():
        # Channels that lie side by side: a product of matrices, which takes less time than a convolution.
        return F.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)
    convolve: Any = F.conv1d if weight.dim() == 3 else F.conv2d
    return convolve(x, weight, bias, stride or 1, 0, dilation or 1, groups)  # type: ignore[no-any-return]


def _reach(taps: int, dilation: int) -> int:
    return (taps - 1) * dilation + 1


def flatten_pads(pads: Pads) -> list[int]:
    """Return (before, after) per axis as torch's functions take them: the last axis first."""
    return [amount for pair in reversed(pads) for amount in pair]


def _wrap_kernel(
    weight: Tensor, pads: Pads, sizes: Sequence[int], stride: tuple[int, ...], dilation: tuple[int, ...] | None
) -> tuple[Tensor, Pads]:
    """Return kernel and padding for a small image: taps on the same pixel are added up; PyTorch pads only once around."""
    spread = weight if dilation is None else spread_kernel(weight, dilation)
    wrapped, wrapped_pads = fold_kernel(spread, sizes), []
    for axis, ((before, after), n, s) in enumerate(zip(pads, sizes, stride, strict=True), start=2):
        start, outputs = before % n, (n + before + after - spread.shape[axis]) // s + 1
        wrapped_pads.append((start, (outputs - 1) * s + wrapped.shape[axis] - start - n))
    return wrapped, wrapped_pads


def circular_pad(x: Tensor, pads: Pads) -> Tensor:
    """`F.pad(..., mode="circular")` with (before, after) per axis, in fewer kernels, forward and backward."""
    if not any(map(any, pads)):
        return x
    if min(map(min, pads)) < 0:  # pixels behind are cut off
        x = circular_pad(x, [(before, max(after, 0)) for before, after in pads])
        return F.pad(x, flatten_pads([(0, min(after, 0)) for _, after in pads]))
    if x.requires_grad and torch.is_grad_enabled() and not is_traced():
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


def plain_convolution(
    weight: Tensor,
    bias: Tensor | None,
    pads: Pads,
    padding_mode: str,
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> nn.Module:
    """nn.Conv1d or nn.Conv2d with this weight, after a padding module where the convolution's own would not do."""
    kind: Any = nn.Conv1d if weight.dim() == 3 else nn.Conv2d
    padding_mode, even = _checked_mode(padding_mode), all(before == after >= 0 for before, after in pads)
    sizes = (weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), stride)
    options: dict[str, Any] = {"dilation": dilation, "groups": groups, "bias": False, "device": "meta"}
    if even and any(map(any, pads)):
        options |= {"padding": tuple(before for before, _ in pads), "padding_mode": padding_mode}
    convolution = with_parameters(kind(*sizes, **options), weight, bias)
    return chain(None if even else pad_module(pads, padding_mode), convolution)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """nn.Linear with this weight."""
    features, inputs = weight.shape
    return with_parameters(nn.Linear(inputs, features, bias=False, device="meta"), weight, bias)


def pad_module(pads: Pads, padding_mode: str) -> nn.Module | None:
    """nn.CircularPad2d or nn.ZeroPad2d, or those of one axis; None where nothing is padded."""
    kind = getattr(nn, f"{'Circular' if padding_mode == 'circular' else 'Zero'}Pad{len(pads)}d")
    return kind(tuple(flatten_pads(pads))) if any(map(any, pads)) else None


def chain(*modules: nn.Module | None) -> nn.Module:
    """Return modules one after the other, without those that are None."""
    parts = [part for module in modules for part in (module if isinstance(module, nn.Sequential) else [module])]
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else nn.Sequential(*present)
