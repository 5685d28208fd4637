"""Modules of networks of rotations and pixel shifts; the rotation itself is `BCOPConv2d` with a kernel of size 1.

All of them are 1-Lipschitz. `ChannelShift` is a permutation, `PositionBias` a translation, `HalfAbs` preserves the norm
of the gradient wherever no entry is 0. The pooling at their end is `L2NormPool2d`.
"""

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, is_number, is_whole, require
from isoconv.nn.graph import Described


class ChannelShift(Described):
    """Move four groups of channels by one pixel, cyclically: down, up, right, left. The other channels stay.

    Each group has `int(share * C)` of the C channels, and the first group the first of them. Works on (N, C, H, W) and
    keeps the memory format.
    """

    def __init__(self, share: float = 1 / 8) -> None:
        super().__init__()
        require(is_number(share) and 0 <= share <= 1 / 4, "a share between 0 and 1/4 of the channels", repr(share))
        self.share = float(share)

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, "ChannelShift")
        count = int(self.share * x.shape[1])
        last = x.stride(1) == 1 and x.shape[1] > 1  # channels side by side in memory, as the result's should be
        images, channel, row, column = (x.movedim(1, 3), 3, 1, 2) if last else (x, 1, 2, 3)
        down, up, right, left, rest = images.split([count, count, count, count, x.shape[1] - 4 * count], channel)
        moved = [down.roll(1, row), up.roll(-1, row), right.roll(1, column), left.roll(-1, column), rest]
        result = torch.cat(moved, channel)
        return result.movedim(3, 1) if last else result


class PositionBias(Described):
    """Add a learned number to every position, the same for all channels: cyclic shifts have no other sense of place.

    `bias` holds height·width numbers, row by row, zeros at the start. It is a vector, so that optimisers that treat
    matrices otherwise treat it as the bias that it is.
    """

    def __init__(
        self, height: int, width: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        whole = is_whole(height, 1) and is_whole(width, 1)
        require(whole, "a height and a width of at least 1", f"{height!r} and {width!r}")
        self.height, self.width = height, width
        self.bias = nn.Parameter(torch.zeros(height * width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, "PositionBias")
        if not torch.jit.is_scripting() and x.shape[2:] != (self.height, self.width):  # type: ignore[attr-defined]
            expected, got = f"{self.height}×{self.width}", f"{x.shape[2]}×{x.shape[3]}"
            raise IsoconvError(f"PositionBias: Expected images of size {expected}. Got {got}.")
        return x + self.bias.view(self.height, self.width).to(x.dtype)


class HalfAbs(nn.Module):
    """|x| of the first ⌊C/2⌋ channels; the others stay as they are. Works on (N, C, …)."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_scripting() and x.dim() < 2:  # type: ignore[attr-defined]
            raise IsoconvError(f"HalfAbs: Expected a batch (N, C, …). Got shape {tuple(x.shape)}.")
        first, second = x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)
        return torch.cat([first.abs(), second], 1)


@torch.fx.wrap
def check_image(x: Tensor, name: str) -> None:
    """Raise unless `x` is a batch of images."""
    if not torch.jit.is_scripting() and x.dim() != 4:  # type: ignore[attr-defined]
        raise IsoconvError(f"{name}: Expected a batch of images (N, C, H, W). Got shape {tuple(x.shape)}.")
