"""Convolution at stride 1 that keeps the image's size: the padding of the paper, for images of any size."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg.spectrum import fold_kernel


def same_padding(taps: int) -> tuple[int, int]:
    """Pixels before and after: symmetric for odd kernels, k/2 before and k/2 − 1 after for even ones."""
    return taps // 2, (taps - 1) // 2


def convolve_same(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str, padding: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """conv1d or conv2d of a batch with (before, after) pixels of circular or zero padding per axis (default: same)."""
    sizes = x.shape[2:]
    pads = [same_padding(k) for k in weight.shape[2:]] if padding is None else list(padding)
    if padding_mode == "circular" and any(k > n for k, n in zip(weight.shape[2:], sizes, strict=True)):
        # Taps that fall on the same pixel of a small image are added up; PyTorch pads only once around.
        weight = fold_kernel(weight, sizes)
        starts = [before % n for (before, _), n in zip(pads, sizes, strict=True)]
        pads = [(start, k - 1 - start) for start, k in zip(starts, weight.shape[2:], strict=True)]
    flat = [pad for pair in reversed(pads) for pad in pair]
    if any(flat):
        x = F.pad(x, flat) if padding_mode == "zeros" else circular_pad(x, pads)
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
