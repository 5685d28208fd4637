"""Activations that preserve the norm of the gradient (they only reorder their inputs), and maps torch has no module for.

`max_min` and `group_sort` are leaves to `torch.fx`, and TorchScript compiles what is left of them without the checks.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.records import require


class MaxMin(nn.Module):
    """Channel i and channel i + C/2 become their maximum and their minimum: GroupSort with groups of two.

    Works on (N, C, …). The Jacobian is a permutation everywhere, ties included.
    """

    def forward(self, x: Tensor) -> Tensor:
        return max_min(x)


class GroupSort(nn.Module):
    """Sorts the channels within groups of `group_size`, largest first. Works on (N, C, …).

    With g groups, group j holds the channels j, j + g, j + 2g, …, so that `GroupSort(2)` is `MaxMin`; `group_size=None`
    sorts all channels (full sort).
    """

    def __init__(self, group_size: int | None = 2) -> None:
        super().__init__()
        fits = group_size is None or (isinstance(group_size, int) and group_size >= 1)
        require(fits, "a group size of at least 1, or None for all channels", repr(group_size))
        self.group_size = group_size

    def forward(self, x: Tensor) -> Tensor:
        return group_sort(x, self.group_size)

    def extra_repr(self) -> str:
        return str(self.group_size)


class Abs(nn.Module):
    """|x|, entry by entry: 1-Lipschitz, and preserves the norm of the gradient wherever no entry is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(x)


class Scale(nn.Module):
    """Multiplication by a fixed number, whose absolute value is its Lipschitz constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        finite = isinstance(factor, (int, float)) and not isinstance(factor, bool) and math.isfinite(factor)
        require(finite, "a finite number to scale by", repr(factor))
        self.factor = float(factor)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


class Normalize(nn.Module):
    """(x − mean)/std for each channel of (N, C, …): the normalisation of inputs, made part of the network.

    Its Lipschitz constant is 1/(the least std). Perturbations and radii are then those of the image before it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        listed = isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple)) and len(mean) == len(std) > 0
        listed = listed and all(isinstance(value, (int, float)) and abs(value) < 1e38 for value in (*mean, *std))
        expected = "lists of a finite mean and an std above 0 for each channel"
        require(listed and min(std) >= 1e-37, expected, f"{mean} and {std}")  # as float32 can hold them
        self.register_buffer("mean", torch.tensor([float(value) for value in mean]))
        self.register_buffer("std", torch.tensor([float(value) for value in std]))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.mean, self.std)

    def extra_repr(self) -> str:
        return f"{self.mean.tolist()}, {self.std.tolist()}"


@torch.fx.wrap
def normalize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return what `Normalize` does to `x`."""
    channels = [-1] + [1] * (x.dim() - 2)
    return (x - mean.view(channels)) / std.view(channels)


@torch.fx.wrap
def max_min(x: Tensor) -> Tensor:
    """Return what `MaxMin` does to `x`."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_channels(x, 2, "MaxMin")
        if x.requires_grad and torch.is_grad_enabled() and not _is_traced():
            return _max_min_with_one_bit(x)
    first, second = x.chunk(2, dim=1)
    return _select(first, second, second > first)


def _max_min_with_one_bit(x: Tensor) -> Tensor:
    return _MaxMin.apply(x)  # type: ignore[no-any-return,no-untyped-call]


@torch.fx.wrap
def group_sort(x: Tensor, group_size: int | None) -> Tensor:
    """Return what `GroupSort(group_size)` does to `x`."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_channels(x, group_size or 1, "GroupSort")
    size = x.shape[1] if group_size is None else group_size
    groups = x.unflatten(1, [max(size, 1), x.shape[1] // max(size, 1)])
    return groups.sort(stable=True, dim=1, descending=True)[0].reshape(x.shape)


class _MaxMin(torch.autograd.Function):
    """Saves one bit per pair, and its backward pass is the same selection again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        swap = second > first
        ctx.save_for_backward(swap)
        return _select(first, second, swap) if _is_watched(x) else _select_in_place(x, swap)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (swap,) = ctx.saved_tensors
        if torch.is_grad_enabled() or _is_watched(gradient):  # with a gradient of its own, or many at once
            first, second = gradient.chunk(2, dim=1)
            return _select(first, second, swap)
        return _select_in_place(gradient, swap)


def _select(first: Tensor, second: Tensor, swap: Tensor) -> Tensor:
    return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=1)


def _is_jit_traced() -> bool:
    return torch._C._get_tracing_state() is not None


def _is_traced() -> bool:
    """Return True where a compiler, a tracer or a transform wants to see ordinary operations."""
    return torch.compiler.is_compiling() or _is_jit_traced() or torch._C._are_functorch_transforms_active()


def _is_watched(x: Tensor) -> bool:
    """Whether a tracer or a transform looks on, which writing in place would escape."""
    functorch = torch._C._functorch
    batched = functorch.is_legacy_batchedtensor(x) or functorch.is_functorch_wrapped_tensor(x)
    return batched or torch._C._len_torch_dispatch_stack() > 0


def _select_in_place(x: Tensor, swap: Tensor) -> Tensor:
    """The same of the halves of `x`, where no gradient is recorded: written once instead of twice."""
    result = torch.empty_like(x)
    first, second = x.chunk(2, dim=1)
    upper, lower = result.chunk(2, dim=1)
    torch.where(swap, second, first, out=upper)
    torch.where(swap, first, second, out=lower)
    return result


def _check_channels(x: Tensor, group: int, name: str) -> None:
    if _is_jit_traced():  # where sizes are not numbers
        return
    if x.dim() < 2:
        raise IsoconvError(f"{name}: Expected a batch (N, C, …). Got shape {tuple(x.shape)}.")
    if x.shape[1] % group:
        raise IsoconvError(f"{name}: Expected a number of channels that {group} divides. Got {x.shape[1]}.")
