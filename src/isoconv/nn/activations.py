"""Activations that preserve the norm of the gradient (they reorder or reflect), and maps torch has no module for.

`max_min`, `group_sort` and `reflect_pairs` are leaves to `torch.fx`, and TorchScript compiles what is left of them without
the checks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, is_number, is_whole, require
from isoconv.linalg.matrices import is_traced
from isoconv.nn.graph import Described


class MaxMin(Described):
    """Channel i and channel i + C/2 become their maximum and their minimum: GroupSort with groups of two.

    Works on (N, C, …), or along another axis `dim`. The Jacobian is a permutation everywhere, ties included.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = _check_dim(dim)

    def forward(self, x: Tensor) -> Tensor:
        return max_min(x, self.dim)


class GroupSort(Described):
    """Sorts the channels within groups of `group_size`, largest first. Works on (N, C, …), or along another axis `dim`.

    With g groups, group j holds the channels j, j + g, j + 2g, …, so that `GroupSort(2)` is `MaxMin`; `group_size=None`
    sorts all channels (full sort).
    """

    def __init__(self, group_size: int | None = 2, dim: int = 1) -> None:
        super().__init__()
        fits = group_size is None or is_whole(group_size, 1)
        require(fits, "a group size of at least 1, or None for all channels", repr(group_size))
        self.group_size, self.dim = group_size, _check_dim(dim)

    def forward(self, x: Tensor) -> Tensor:
        return group_sort(x, self.group_size, self.dim)


class Householder(Described):
    """Reflect the pair z of channels i and i + C/2 where vᵀz < 0, v a learned vector for each pair: z − 2·min(vᵀz, 0)·v/vᵀv.

    On either side the map is orthogonal, and both sides agree where vᵀz = 0: 1-Lipschitz, and the norm of the gradient is
    preserved everywhere. Works on (N, C, …). `vectors` holds all first entries, then all second ones. Only their
    directions matter; they begin as (1, −1), which is `MaxMin`.
    """

    def __init__(
        self, channels: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        require(is_whole(channels, 2) and channels % 2 == 0, "an even number of channels", repr(channels))
        self.channels = channels
        self.vectors = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin as MaxMin."""
        self.vectors.fill_(1.0)
        self.vectors[self.channels // 2 :] = -1.0

    def forward(self, x: Tensor) -> Tensor:
        return reflect_pairs(x, self.vectors)


class Abs(nn.Module):
    """|x|, entry by entry: 1-Lipschitz, and preserves the norm of the gradient wherever no entry is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(x)


class Scale(Described):
    """Multiplication by a fixed number, whose absolute value is its Lipschitz constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        require(is_number(factor), "a finite number to scale by", repr(factor))
        self.factor = float(factor)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Normalize(Described):
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
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.get_default_dtype()))
        self.register_buffer("std", torch.tensor(std, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.mean, self.std)


@torch.fx.wrap
def normalize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return what `Normalize` does to `x`."""
    channels = [-1] + [1] * (x.dim() - 2)
    return (x - mean.view(channels)) / std.view(channels)


@torch.fx.wrap
def max_min(x: Tensor, dim: int = 1) -> Tensor:
    """Return what `MaxMin(dim)` does to `x`."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_channels(x, 2, "MaxMin", dim)
        if x.requires_grad and torch.is_grad_enabled() and not is_traced():
            return _max_min_with_one_bit(x, dim)
    first, second = x.chunk(2, dim=dim)
    return _select(first, second, second > first, dim)


def _max_min_with_one_bit(x: Tensor, dim: int) -> Tensor:  # a function of its own, which TorchScript does not look into
    return _MaxMin.apply(x, dim)  # type: ignore[no-any-return,no-untyped-call]


@torch.fx.wrap
def group_sort(x: Tensor, group_size: int | None, dim: int = 1) -> Tensor:
    """Return what `GroupSort(group_size, dim)` does to `x`."""
    _check_channels(x, 1 if group_size is None else max(group_size, 1), "GroupSort", dim)
    dim = dim if dim >= 0 else dim + x.dim()
    size = x.shape[dim] if group_size is None else group_size
    groups = x.unflatten(dim, [max(size, 1), x.shape[dim] // max(size, 1)])
    return groups.sort(stable=True, dim=dim, descending=True)[0].reshape(x.shape)


@torch.fx.wrap
def reflect_pairs(x: Tensor, vectors: Tensor) -> Tensor:
    """Return what `Householder` does to `x`."""
    check_batch(x, vectors.shape[0], "Householder")
    first, second = x.chunk(2, dim=1)
    v, w = vectors.to(x.dtype).view([2, -1] + [1] * (x.dim() - 2)).unbind(0)
    along = (v * first + w * second).clamp(max=0.0) * (2 / (v * v + w * w))
    return torch.cat([first - along * v, second - along * w], dim=1)


class _MaxMin(torch.autograd.Function):
    """Saves one bit per pair, and its backward pass is the same selection again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        first, second = x.chunk(2, dim=dim)
        swap, ctx.dim = second > first, dim
        ctx.save_for_backward(swap)
        return _select(first, second, swap, dim) if _is_watched(x) else _select_in_place(x, swap, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (swap,) = ctx.saved_tensors
        if torch.is_grad_enabled() or _is_watched(gradient):  # with a gradient of its own, or many at once
            first, second = gradient.chunk(2, dim=ctx.dim)
            return _select(first, second, swap, ctx.dim), None
        return _select_in_place(gradient, swap, ctx.dim), None


def _select(first: Tensor, second: Tensor, swap: Tensor, dim: int) -> Tensor:
    return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=dim)


def _is_jit_traced() -> bool:
    return torch._C._get_tracing_state() is not None


def _is_watched(x: Tensor) -> bool:
    """Whether a tracer or a transform looks on, which writing in place would escape."""
    functorch = torch._C._functorch
    batched = functorch.is_legacy_batchedtensor(x) or functorch.is_functorch_wrapped_tensor(x)
    return batched or torch._C._len_torch_dispatch_stack() > 0


def _select_in_place(x: Tensor, swap: Tensor, dim: int) -> Tensor:
    """The same of the halves of `x`, where no gradient is recorded: written once instead of twice."""
    result = torch.empty_like(x)
    first, second = x.chunk(2, dim=dim)
    upper, lower = result.chunk(2, dim=dim)
    torch.where(swap, second, first, out=upper)
    torch.where(swap, first, second, out=lower)
    return result


def is_axis(dim: object) -> bool:
    """Return whether a value counts an axis that is not the batch's."""
    return isinstance(dim, int) and not isinstance(dim, bool) and dim != 0


def _check_dim(dim: int) -> int:
    require(is_axis(dim), "a dim that is not the batch's, which is 0", repr(dim))
    return dim


def check_batch(x: Tensor, channels: int, name: str) -> None:
    """Raise unless `x` is a batch with so many channels."""
    if not torch.jit.is_scripting() and not (_is_jit_traced() or x.shape[1:2] == (channels,)):  # type: ignore[attr-defined]
        raise IsoconvError(f"{name}: Expected a batch (N, {channels}, …). Got shape {tuple(x.shape)}.")


def _check_channels(x: Tensor, group: int, name: str, dim: int) -> None:
    if not torch.jit.is_scripting() and not _is_jit_traced():  # type: ignore[attr-defined]
        if not (-x.dim() < dim < x.dim()):
            expected = "a batch (N, C, …)" if dim == 1 else f"a batch with an axis {dim} behind the first"
            raise IsoconvError(f"{name}: Expected {expected}. Got shape {tuple(x.shape)}.")
        if x.shape[dim] % group:
            raise IsoconvError(f"{name}: Expected a number of channels that {group} divides. Got {x.shape[dim]}.")
