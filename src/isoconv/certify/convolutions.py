"""The bound of a torch convolution as it stands: strides, groups, dilation, and whatever it pads with."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.certify.copies import copying_bound
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums
from isoconv.linalg.rounding import mul_up, sqrt_up

Pads = Sequence[tuple[int, int]]


def convolution_bound(module: nn.Conv1d | nn.Conv2d, shape: torch.Size, circular: Pads | None = None) -> float:
    """An upper bound of the module's norm on inputs (C, …) of `shape`.

    `circular`: (before, after) per axis of circular padding in front of it, bounded as one with the convolution.
    """
    size = tuple(shape[1:])
    kernel = _dilated(module.weight, module.dilation)
    mode = module.padding_mode
    pads = pads_of(module) if circular is None else list(circular)
    if circular is not None or mode == "circular":
        return _per_group(kernel, module, lambda part: _circular_bound(part, module.stride, size, pads))
    if mode == "zeros" or not any(any(pad) for pad in pads):
        return _per_group(kernel, module, lambda part: conv_norm_bound(part, module.stride, size, "zeros"))
    if mode in ("reflect", "replicate"):
        # The padding copies pixels; what follows is a convolution of the padded image with no padding of its own.
        padded = tuple(n + before + after for n, (before, after) in zip(size, pads, strict=True))
        bound = _per_group(kernel, module, lambda part: conv_norm_bound(part, module.stride, padded, "zeros"))
        return mul_up(bound, _copies_of_padding(size, pads, mode))
    raise IsoconvError(f"Expected padding with zeros, circular, reflect or replicate. Got {mode!r}.")


def _per_group(kernel: Tensor, module: nn.Conv1d | nn.Conv2d, bound) -> float:  # type: ignore[no-untyped-def]
    """Groups work on different channels side by side: the largest of their norms, not the product."""
    return max(bound(part) for part in kernel.chunk(module.groups))


def _circular_bound(kernel: Tensor, stride: Sequence[int], size: tuple[int, ...], pads: Pads) -> float:
    """Of a convolution without padding of an image that was padded circularly.

    Its outputs are those of the circular convolution at stride s, or a part of them; where the padding reaches further
    around than the image, each of them occurs up to `turns` times.
    """
    # Where the stride does not divide the size, take it for a part of the convolution at stride 1.
    steps = tuple(s if n % s == 0 else 1 for n, s in zip(size, stride, strict=True))
    bound = conv_norm_bound(kernel, steps, size, "circular")
    turns = _turns(kernel.shape[2:], stride, size, pads)
    return mul_up(bound, sqrt_up(float(turns))) if turns > 1 else bound


def _turns(taps: Sequence[int], stride: Sequence[int], size: tuple[int, ...], pads: Pads) -> int:
    turns = 1
    for n, s, k, (before, after) in zip(size, stride, taps, pads, strict=True):
        outputs = (n + before + after - k) // s + 1
        around = n // s if n % s == 0 else n
        reached = outputs if n % s == 0 else (outputs - 1) * s + 1
        turns *= max(1, -(-reached // around))
    return turns


def absolute_sums(
    module: nn.Conv1d | nn.Conv2d, shape: torch.Size, circular: Pads | None = None
) -> tuple[float, float]:
    """Upper bounds of the largest row sum and the largest column sum of |A|, A the module's matrix.

    These are the norms of |A| for p = ∞ and p = 1 (so of A too), and the root of their product bounds it for p = 2.
    """
    size = tuple(shape[1:])
    kernel = _dilated(module.weight, module.dilation)
    pads = pads_of(module) if circular is None else list(circular)
    copies = 1.0
    if circular is not None or module.padding_mode == "circular":
        copies = float(_turns(kernel.shape[2:], module.stride, size, pads))
    elif module.padding_mode in ("reflect", "replicate") and any(any(pad) for pad in pads):
        copies = mul_up(*(_copies_of_padding(size, pads, module.padding_mode) for _ in range(2)))
    rows = max(largest_absolute_sums(part)[0] for part in kernel.chunk(module.groups))
    columns = max(largest_absolute_sums(part)[1] for part in kernel.chunk(module.groups))
    return rows, mul_up(columns, copies)


def _dilated(kernel: Tensor, dilation: Sequence[int]) -> Tensor:
    """The kernel with zeros between its taps."""
    for axis, d in enumerate(dilation, start=2):
        if d > 1:
            taps = kernel.shape[axis]
            spread = kernel.new_zeros(*kernel.shape[:axis], (taps - 1) * d + 1, *kernel.shape[axis + 1 :])
            spread.index_copy_(axis, torch.arange(0, (taps - 1) * d + 1, d, device=kernel.device), kernel.detach())
            kernel = spread
    return kernel


def pads_of(module: nn.Conv1d | nn.Conv2d) -> list[tuple[int, int]]:
    """(before, after) per axis of what the module pads by itself."""
    if module.padding_mode != "zeros":  # torch goes by this list, made when the module was
        flat = list(module._reversed_padding_repeated_twice)
        return list(zip(flat[-2::-2], flat[-1::-2], strict=True))
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":  # torch puts the odd one behind
        reach = [(k - 1) * d for k, d in zip(module.weight.shape[2:], module.dilation, strict=True)]
        return [(r // 2, r - r // 2) for r in reach]
    return [(int(p), int(p)) for p in module.padding]


def _copies_of_padding(size: tuple[int, ...], pads: Pads, mode: str) -> float:
    flat = [pad for pair in reversed(list(pads)) for pad in pair]
    return copying_bound(lambda pixels: F.pad(pixels, flat, mode=mode), (1, *size))
