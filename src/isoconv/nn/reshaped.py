"""The reshaped-kernel methods: bound the (c_out, c_in·k²) matrix, divide by k, and the convolution is 1-Lipschitz.

Every pixel occurs in k² patches (k the kernel size after downsampling), so ‖conv‖ ≤ k·‖reshaped kernel‖. The bound is seldom
attained, so these layers shrink gradients.
"""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.nn.convolution import Conv2dWithKernel, OrthogonalisedConvolution


class RKOConv2d(OrthogonalisedConvolution):
    """Reshaped kernel orthogonalisation: an orthonormal (c_out, c_in·k²) matrix, divided by k and reshaped to a kernel.

    Arguments as for `torch.nn.Conv2d`, with "same" padding; stride by invertible downsampling. 1-Lipschitz for every image
    size. `orthogonalisation` is "manifold" (the default) or "bjorck", see `isoconv.nn.built_weight`.
    """

    _matrix_names = ("matrix",)

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        c_out, c_in, taps, _ = self.kernel_shape
        self.matrix = nn.Parameter(torch.empty(c_out, c_in * taps**2, **factory))

    def _build(self, matrix: Tensor) -> Tensor:
        return self._orthonormal(matrix).reshape(*matrix.shape[:-2], *self.kernel_shape) / self.kernel_shape[-1]


class RKL2NEConv2d(Conv2dWithKernel):
    """RK-L2NE: the reshaped kernel W divided by √min(‖WWᵀ‖_∞, ‖WᵀW‖_∞), an upper bound of its norm, and by k.

    Arguments as for `torch.nn.Conv2d`, with "same" padding; stride by invertible downsampling. 1-Lipschitz for every image
    size. (The paper prints the bound without the root and with max; so it would not be one.)
    """

    def _build(self, kernel: Tensor) -> Tensor:
        matrix = kernel.flatten(1)
        rows = (matrix @ matrix.mT).abs().sum(dim=1).amax()
        columns = (matrix.mT @ matrix).abs().sum(dim=1).amax()
        bound = torch.minimum(rows, columns).clamp_min(torch.finfo(kernel.dtype).tiny).sqrt()
        return kernel / (bound * kernel.shape[-1])
