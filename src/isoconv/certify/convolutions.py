"""The bound of a torch convolution as it stands: strides, groups, dilation, and whatever it pads with.

A transposed convolution is the transpose of the convolution, with the same kernel, stride and zero padding, of an image
of the size that it gives, or of a part of it: `output_padding` of a stride or more leaves outputs of that convolution
out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums
from isoconv.linalg.rounding import mul_up, sqrt_up

if TYPE_CHECKING:
    from isoconv.certify.rules import Node

Pads = Sequence[Sequence[int]]  # (before, after) per axis


def convolution_bound(node: "Node") -> float:
    """Return an upper bound of the norm of a convolution, as one with the circular padding in front of it, if any.

    Under circular padding its outputs are those of the circular convolution at stride s, or a part of them. Reflect and
    replicate copy pixels; what follows is a convolution of the padded image with no padding of its own.
    """
    if is_transposed(node):
        node = replace(node, input_shape=node.output_shape)
    stride, size, (pads, mode) = node.settings["stride"], tuple(node.input_shape[1:]), _padding(node)
    if mode == "circular":
        # Where the stride does not divide the size, take it for a part of the convolution at stride 1.
        stride = [s if n % s == 0 else 1 for n, s in zip(size, stride, strict=True)]
    elif mode != "zeros":
        size, mode = tuple(n + sum(pair) for n, pair in zip(size, pads, strict=True)), "zeros"
    # Groups work on different channels side by side: the largest of their norms, not the product.
    bound = max(conv_norm_bound(kernel, stride, size, mode) for kernel in _kernels(node))
    copies = _copies(node)
    return mul_up(bound, sqrt_up(float(copies))) if copies > 1 else bound


def absolute_sums(node: "Node") -> tuple[float, float]:
    """Return upper bounds of the largest column sum and the largest row sum of |A|, A the matrix of a convolution.

    These are the norms of |A| for p = 1 and p = ∞ (so of A too), and the root of their product bounds it for p = 2.
    """
    sums, copies = [largest_absolute_sums(kernel) for kernel in _kernels(node)], float(_copies(node))
    if copies > 1 and _padding(node)[1] != "circular":
        copies = mul_up(sqrt_up(copies), sqrt_up(copies))
    columns, rows = mul_up(max(columns for _, columns in sums), copies), max(rows for rows, _ in sums)
    return (rows, columns) if is_transposed(node) else (columns, rows)


def is_transposed(node: "Node") -> bool:
    return "output_padding" in node.settings


def _padding(node: "Node") -> tuple[Pads, str]:
    """Return what the image is padded by, in front of the convolution or by itself, and how."""
    if node.circular is not None:
        return node.circular, "circular"
    pads, mode = node.settings["padding"], node.module.padding_mode
    return pads, mode if mode == "circular" or any(map(any, pads)) else "zeros"


def _copies(node: "Node") -> int:
    """Return how often padding lets the same pixel occur, or for circular padding the same output."""
    size, (pads, mode), copies = node.input_shape[1:], _padding(node), 1
    if mode == "zeros":
        return 1
    if mode != "circular":
        flat = [amount for pair in reversed(pads) for amount in pair]
        return most_copies(lambda pixels: F.pad(pixels, flat, mode=mode), (1, *size))
    spread = _kernels(node)[0].shape[2:]
    for n, s, taps, (before, after) in zip(size, node.settings["stride"], spread, pads, strict=True):
        outputs = (n + before + after - taps) // s + 1
        reached, around = (outputs, n // s) if n % s == 0 else ((outputs - 1) * s + 1, n)
        copies *= max(1, -(-reached // around))
    return copies


def _kernels(node: "Node") -> tuple[Tensor, ...]:
    """Return the kernel of each group, with zeros between its taps where it is dilated."""
    kernel = node.module.weight.detach()
    for axis, d in enumerate(node.settings["dilation"], start=2):
        if d > 1:
            places = torch.arange(0, (kernel.shape[axis] - 1) * d + 1, d, device=kernel.device)
            spread = kernel.new_zeros(*kernel.shape[:axis], int(places[-1]) + 1, *kernel.shape[axis + 1 :])
            kernel = spread.index_copy_(axis, places, kernel)
    return kernel.chunk(node.module.groups)


def most_copies(copy: Callable[[Tensor], Tensor], shape: Sequence[int]) -> int:
    """Return how often a map copies a pixel of its input (1, *shape) at the most; see Note [Kinds].

    Counted by what comes out, not by a gradient: of some modules torch's gradient counts other pixels than they take.
    """
    pixels = torch.arange(math.prod(shape), dtype=torch.float64)
    found, moved = (copy(values.reshape(1, *shape)).flatten() for values in (pixels, pixels + len(pixels)))
    taken = found[moved - found == len(pixels)].long()  # the others are constants
    return int(torch.bincount(taken, minlength=1).max())
