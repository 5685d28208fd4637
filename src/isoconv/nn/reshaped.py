"""The reshaped-kernel methods: bound the (c_out, c_in·k²) matrix, divide by √overlap, and the convolution is 1-Lipschitz.

Every pixel occurs in at most `overlap` patches, ⌈k/s⌉ along each axis (with a dilation d, s over its common factor with d),
so ‖conv‖ ≤ √overlap·‖reshaped kernel‖. The bound is seldom attained, so these layers shrink gradients; with s = k it is.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.linalg.matrices import without_overflow
from isoconv.nn.convolution import Conv2dWithKernel, OrthogonalisedConvolution


class RKOConv2d(OrthogonalisedConvolution):
    """Reshaped kernel orthogonalisation: an orthonormal (c_out, c_in·k²) matrix over √overlap, reshaped to a kernel.

    Arguments as for `torch.nn.Conv2d`; each group has a matrix of its own. 1-Lipschitz for every image size.
    `orthogonalisation` is "manifold" (the default) or "bjorck", see `isoconv.nn.built_weight`.
    """

    _matrix_names = ("matrix",)

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        c_out, *inputs = self._built_shape
        groups = (self.groups,) if self.groups > 1 else ()
        self.matrix = nn.Parameter(torch.empty(*groups, c_out // self.groups, math.prod(inputs), **factory))

    def _build(self, matrix: Tensor) -> Tensor:
        batch = matrix.shape[: -3 if self.groups > 1 else -2]
        kernel = self._orthonormal(matrix).reshape(*batch, *self._built_shape)
        return self._finish(kernel / math.sqrt(self.overlap))


class RKL2NEConv2d(Conv2dWithKernel):
    """RK-L2NE: the reshaped kernel W divided by √min(‖WWᵀ‖_∞, ‖WᵀW‖_∞), an upper bound of its norm, and by √overlap.

    Arguments as for `torch.nn.Conv2d`; the rows of W are those of all groups. 1-Lipschitz for every image size.
    (The paper prints the bound without the root and with max; so it would not be one.)
    """

    def _build(self, kernel: Tensor) -> Tensor:
        kernel = without_overflow(kernel)
        matrix = kernel.flatten(1)
        rows = (matrix @ matrix.mT).abs().sum(dim=1).amax()
        columns = (matrix.mT @ matrix).abs().sum(dim=1).amax()
        bound = torch.minimum(rows, columns).clamp_min(torch.finfo(kernel.dtype).tiny).sqrt()
        return kernel / (bound * math.sqrt(self.overlap))
