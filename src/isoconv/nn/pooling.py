"""Pooling of norm one, where an average loses a factor k, and a maximum all but one gradient."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.nn.activations import Scale
from isoconv.nn.convolution import per_axis
from isoconv.nn.graph import Described
from isoconv.nn.shift import check_image

torch.fx.wrap("check_image")
Size = int | tuple[int, int]


class ScaledAvgPool2d(Described):
    """The sum over each window divided by √(k·⌈k/s⌉) along each axis, k the kernel size and s the stride.

    A window has k pixels and a pixel lies in at most ⌈k/s⌉ windows, so it is 1-Lipschitz for every stride. Windows that do
    not overlap have norm one: an average times k. With stride 1 it is the average. Arguments as for `nn.AvgPool2d`.
    """

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = per_axis(kernel_size, "kernel_size", 2)
        self.stride = self.kernel_size if stride is None else per_axis(stride, "stride", 2)
        self.padding = per_axis(padding, "padding", 2, least=0)
        half = all(2 * p <= k for p, k in zip(self.padding, self.kernel_size, strict=True))
        require(half, "padding of at most half the kernel size", repr(padding))
        square = math.prod(k * -(-k // s) for k, s in zip(self.kernel_size, self.stride, strict=True))
        root = math.isqrt(square)
        # torch divides by whole numbers alone. Another factor is a float32 number below the root, so that any arithmetic
        # holds it and the norm stays at most 1.
        self.divisor, self.factor = (root, 1.0) if root**2 == square else (1, _float32_below(1 / math.sqrt(square)))

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, "ScaledAvgPool2d")
        y = F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, divisor_override=self.divisor)
        return y if self.factor == 1.0 else y * self.factor

    def plain(self) -> nn.Module:
        """The same function as `nn.AvgPool2d`, and a `Scale` where the root is no whole number."""
        make: Any = nn.AvgPool2d
        pool = make(self.kernel_size, self.stride, self.padding, divisor_override=self.divisor)
        return pool if self.factor == 1.0 else nn.Sequential(pool, Scale(self.factor))


class L2NormPool2d(Described):
    """The L2 norm over all positions of each channel, (N, C, H, W) → (N, C), or over windows of `kernel_size`.

    1-Lipschitz; the norm of the gradient is preserved wherever no channel (or window) is 0, where the gradient is 0. Windows
    must not overlap: a pixel in m of them would count √m times.
    """

    def __init__(self, kernel_size: Size | None = None, stride: Size | None = None) -> None:
        super().__init__()
        require(kernel_size is not None or stride is None, "a kernel_size with the stride", "none")
        self.kernel_size = None if kernel_size is None else per_axis(kernel_size, "kernel_size", 2)
        self.stride = self.kernel_size if stride is None else per_axis(stride, "stride", 2)
        apart = all(k <= s for k, s in zip(self.kernel_size or (), self.stride or (), strict=True))
        require(apart, "windows that do not overlap: a stride of at least the kernel size", repr(stride))

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, "L2NormPool2d")
        if self.kernel_size is None or self.stride is None:
            return torch.linalg.vector_norm(x, dim=(2, 3))
        columns = F.unfold(x, self.kernel_size, stride=self.stride).unflatten(1, [x.shape[1], -1])
        rows = (x.shape[2] - self.kernel_size[0]) // self.stride[0] + 1
        return torch.linalg.vector_norm(columns, dim=2).unflatten(2, [rows, -1])


def _float32_below(value: float) -> float:
    """Return the float32 number next below a positive one, so that no product with it exceeds the true one."""
    return float(torch.nextafter(torch.tensor(value, dtype=torch.float32), torch.zeros(())))
