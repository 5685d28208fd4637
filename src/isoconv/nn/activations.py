"""Activations that preserve the norm of the gradient: they only reorder their inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError


class MaxMin(nn.Module):
    """Channel i and channel i + C/2 become their maximum and their minimum: GroupSort with groups of two.

    Works on (N, C, …). The Jacobian is a permutation everywhere, ties included.
    """

    def forward(self, x: Tensor) -> Tensor:
        _check_channels(x, 2, "MaxMin")
        plain_autograd = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if x.requires_grad and torch.is_grad_enabled() and not plain_autograd:
            return _MaxMin.apply(x)  # type: ignore[no-any-return,no-untyped-call]
        return _max_min(x)


class GroupSort(nn.Module):
    """Sorts the channels within groups of `group_size`, largest first. Works on (N, C, …).

    With g groups, group j holds the channels j, j + g, j + 2g, …, so that `GroupSort(2)` is `MaxMin`; `group_size=None`
    sorts all channels (full sort).
    """

    def __init__(self, group_size: int | None = 2) -> None:
        super().__init__()
        if group_size is not None and (not isinstance(group_size, int) or group_size < 1):
            raise IsoconvError(f"Expected a group size of at least 1, or None for all channels. Got {group_size!r}.")
        self.group_size = group_size

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1] if self.group_size is None and x.dim() > 1 else self.group_size or 1
        _check_channels(x, size, "GroupSort")
        groups = x.reshape(x.shape[0], size, x.shape[1] // size, *x.shape[2:])
        return groups.sort(dim=1, descending=True, stable=True).values.reshape(x.shape)

    def extra_repr(self) -> str:
        return str(self.group_size)


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


def _max_min(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=1)
    return _select(first, second, second > first)


def _select(first: Tensor, second: Tensor, swap: Tensor) -> Tensor:
    return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=1)


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
    if x.dim() < 2:
        raise IsoconvError(f"{name}: Expected a batch (N, C, …). Got shape {tuple(x.shape)}.")
    if x.shape[1] % group:
        raise IsoconvError(f"{name}: Expected a number of channels that {group} divides. Got {x.shape[1]}.")
