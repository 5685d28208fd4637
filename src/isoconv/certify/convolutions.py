"""The bound of a torch convolution as it stands: strides, groups, dilation, and whatever it pads with."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums
from isoconv.linalg.rounding import mul_up, sqrt_up

Convolution = nn.Conv1d | nn.Conv2d
Pads = Sequence[Sequence[int]]  # (before, after) per axis


def convolution_bound(
    module: Convolution, settings: Mapping[str, Any], shape: torch.Size, circular: Pads | None = None
) -> float:
    """Return an upper bound of the module's norm on inputs (C, …) of `shape`; `settings` are spelt out for each axis.

    `circular`: (before, after) per axis of circular padding in front of it, bounded as one with the convolution.
    """
    size, stride, mode = tuple(shape[1:]), settings["stride"], module.padding_mode
    parts = _spread(module.weight, settings["dilation"]).chunk(module.groups)
    pads = settings["padding"] if circular is None else circular
    if circular is not None or mode == "circular":
        return max(_circular_bound(part, stride, size, pads) for part in parts)
    # Groups work on different channels side by side: the largest of their norms, not the product.
    if mode == "zeros" or not any(map(any, pads)):
        return max(conv_norm_bound(part, stride, size, "zeros") for part in parts)
    # Reflect and replicate copy pixels; what follows is a convolution of the padded image with no padding of its own.
    padded = tuple(n + before + after for n, (before, after) in zip(size, pads, strict=True))
    bound = max(conv_norm_bound(part, stride, padded, "zeros") for part in parts)
    return mul_up(bound, _copies_of_padding(size, pads, mode))


def _circular_bound(kernel: Tensor, stride: Sequence[int], size: tuple[int, ...], pads: Pads) -> float:
    """Bound a convolution without padding of an image that was padded circularly.

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
    module: Convolution, settings: Mapping[str, Any], shape: torch.Size, circular: Pads | None = None
) -> tuple[float, float]:
    """Return upper bounds of the largest row sum and the largest column sum of |A|, A the module's matrix.

    These are the norms of |A| for p = ∞ and p = 1 (so of A too), and the root of their product bounds it for p = 2.
    """
    size, mode = tuple(shape[1:]), module.padding_mode
    kernel = _spread(module.weight, settings["dilation"])
    pads = settings["padding"] if circular is None else circular
    copies = 1.0
    if circular is not None or mode == "circular":
        copies = float(_turns(kernel.shape[2:], settings["stride"], size, pads))
    elif mode != "zeros" and any(map(any, pads)):
        copies = mul_up(*(_copies_of_padding(size, pads, mode) for _ in range(2)))
    sums = [largest_absolute_sums(part) for part in kernel.chunk(module.groups)]
    return max(rows for rows, _ in sums), mul_up(max(columns for _, columns in sums), copies)


def _spread(kernel: Tensor, dilation: Sequence[int]) -> Tensor:
    """Return the kernel with zeros between its taps."""
    for axis, d in enumerate(dilation, start=2):
        if d > 1:
            taps = kernel.shape[axis]
            spread = kernel.new_zeros(*kernel.shape[:axis], (taps - 1) * d + 1, *kernel.shape[axis + 1 :])
            spread.index_copy_(axis, torch.arange(0, (taps - 1) * d + 1, d, device=kernel.device), kernel.detach())
            kernel = spread
    return kernel


def padding_of(module: Convolution) -> list[tuple[int, int]]:
    """Return (before, after) per axis of what the module pads by itself."""
    if module.padding_mode != "zeros":  # torch goes by this list, made when the module was
        flat = list(module._reversed_padding_repeated_twice)
        return list(zip(flat[-2::-2], flat[-1::-2], strict=True))
    taps = module.weight.shape[2:]
    if module.padding == "valid":
        return [(0, 0)] * len(taps)
    if module.padding == "same":  # torch puts the odd one behind
        dilation = [module.dilation] * len(taps) if isinstance(module.dilation, int) else module.dilation
        reach = [(k - 1) * d for k, d in zip(taps, dilation, strict=True)]
        return [(r // 2, r - r // 2) for r in reach]
    padding = [module.padding] * len(taps) if isinstance(module.padding, int) else module.padding
    return [(int(p), int(p)) for p in padding]


def _copies_of_padding(size: tuple[int, ...], pads: Pads, mode: str) -> float:
    flat = [pad for pair in reversed(pads) for pad in pair]
    return copying_bound(lambda pixels: F.pad(pixels, flat, mode=mode), (1, *size))


def copying_bound(copy: Callable[[Tensor], Tensor], shape: Sequence[int]) -> float:
    """Return √m for a map that copies a pixel of its input (1, *shape) m times at the most; see Note [Kinds].

    Counted by what comes out, not by a gradient: of some modules torch's gradient counts other pixels than they take.
    """
    pixels = torch.arange(math.prod(shape), dtype=torch.float64)
    found, moved = (copy(values.reshape(1, *shape)).flatten() for values in (pixels, pixels + len(pixels)))
    taken = found[moved - found == len(pixels)].long()  # the others are constants
    most = float(torch.bincount(taken, minlength=1).max())
    return sqrt_up(most) if most != 1 else 1.0
