"""Residual layers that step down a convex potential, x − Wᵀ·relu(Wx + b): what CPL and SLL have in common.

Note [Convex potential]
Between two inputs relu has slopes in [0, 1], so the outputs differ by (I − WᵀDW)(x − x′), D a diagonal matrix of such
slopes. WᵀDW is symmetric and lies between 0 and ‖W‖²·I. So the layer's constant is at most max(1, ‖W‖² − 1), and 1 for
‖W‖² ≤ 2. The published forms, x − 2VT⁻¹relu(Vᵀx + b) with T ⪰ VᵀV diagonal, are this one: W = √2·T^(−½)Vᵀ, as relu commutes
with positive factors. An activation that mixes its inputs has no such D: with MaxMin the constant reaches 3.
"""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError, is_whole, require
from isoconv.nn.built_weight import with_parameters
from isoconv.nn.convolution import (
    Conv2dWithKernel,
    chain,
    convolve_same,
    pad_module,
    per_axis,
    plain_convolution,
    same_padding,
)
from isoconv.nn.downsampling import downsample
from isoconv.nn.graph import Described, Slice


class ConvexPotential2d(Described):
    """x − Wᵀ·relu(Wx + b), W the convolution with `weight` (hidden, channels, k, k') and "same" padding; its deployed form.

    1-Lipschitz for ‖W‖² ≤ 2, see Note [Convex potential]. `padding_mode` is "circular" or "zeros".
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: int | tuple[int, int],
        bias: bool = True,
        padding_mode: str = "circular",
    ) -> None:
        super().__init__()
        require(padding_mode in ("circular", "zeros"), "padding_mode 'circular' or 'zeros'", repr(padding_mode))
        whole = is_whole(channels, 1) and is_whole(hidden, 1)
        require(whole, "channels and hidden of at least 1", (channels, hidden))
        self.channels, self.hidden, self.padding_mode = channels, hidden, padding_mode
        self.kernel_size = per_axis(kernel_size, "kernel_size", 2)
        self.weight = nn.Parameter(torch.zeros(hidden, channels, *self.kernel_size))
        self.register_parameter("bias", nn.Parameter(torch.zeros(hidden)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return descend(x, self.weight, self.bias, self.padding_mode)

    def __prepare_scriptable__(self) -> NoReturn:
        raise IsoconvError("Expected other layers for torch.jit.script. Got ConvexPotential2d: use torch.jit.trace.")


@torch.fx.wrap
def descend(x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str) -> Tensor:
    """Return x − Wᵀ·relu(Wx + b) of a batch."""
    hidden = F.relu(convolve_same(x, weight, bias, padding_mode))
    mirrored = [same_padding(taps)[::-1] for taps in weight.shape[2:]]
    return x - convolve_same(hidden, weight.transpose(0, 1).flip(2, 3), None, padding_mode, mirrored)


class PotentialConv2d(Conv2dWithKernel):
    """A residual layer x − Wᵀ·relu(Wx + b) in place of a convolution and its activation. Subclasses fill in `_norm_one`.

    Arguments as for `torch.nn.Conv2d`, with "same" padding. The image is downsampled by the stride. Where the layer is to
    give more channels than that has, zeros are appended; where less, the last ones are left out.
    """

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        self._require_usual_geometry()
        self.kernel_shape = self.out_channels, max(self.kernel_shape[:2]), *self.kernel_shape[2:]
        super()._make_parameters(factory)

    def _norm_one(self, kernel: Tensor, *others: Tensor) -> Tensor:
        """Return a multiple, or one for each hidden channel, of a kernel whose convolution has norm at most 1."""
        raise NotImplementedError

    def _build(self, *sources: Tensor) -> Tensor:
        return math.sqrt(2) * self._norm_one(*sources)

    def _apply_to(self, batch: Tensor) -> Tensor:
        batch = downsample(batch if self.fits_always else self._extend(batch), self.stride[0])
        more = self.kernel_shape[1] - batch.shape[1]
        wide = F.pad(batch, (0, 0, 0, 0, 0, more)) if more else batch
        return descend(wide, self.weight, self.bias, self.padding_mode)[:, : self.out_channels]

    def plain(self) -> nn.Module:
        """The same function as one `ConvexPotential2d`, between torch's modules for stride and channels."""
        weight, channels, s = self.evaluation_weight(), self.in_channels * self.stride[0] ** 2, self.stride[0]
        hidden, width, *taps = weight.shape
        identity = torch.eye(width, channels, dtype=weight.dtype, device=weight.device)[..., None, None]
        potential = ConvexPotential2d(width, hidden, (taps[0], taps[1]), False, self.padding_mode)
        return chain(
            pad_module([(0, more) for more in self._extension], "zeros"),
            nn.PixelUnshuffle(s) if s > 1 else None,
            plain_convolution(identity, None, [(0, 0), (0, 0)], "zeros") if width > channels else None,
            with_parameters(potential, weight, self.bias),
            Slice(1, 0, self.out_channels) if width > self.out_channels else None,
        )
