"""Networks of rotations and pixel shifts: BCOP left in factors, which are matrix products and scale as those do."""

from collections.abc import Sequence

import torch
from torch import nn

from isoconv.errors import require
from isoconv.models.networks import check_shape
from isoconv.nn import (
    BCOPConv2d,
    ChannelShift,
    HalfAbs,
    InvertibleDownsampling,
    L2NormPool2d,
    OrthogonalLinear,
    PositionBias,
)


class ShiftNet(nn.Sequential):
    """A classifier made of blocks σ(M·S(R(x + p)) + b), in stages, with a norm over positions and an orthonormal head.

    R and M are orthogonal matrices that act on the channels, S moves some channels by one pixel (`ChannelShift`), p is a
    number per position, b one per channel, and σ takes the absolute value of half the channels. A fresh block rotates,
    shifts and rotates back: M is the inverse of R. Where the first stage has channels for it, each pixel comes there with
    its four neighbours, all divided by √5.

    input_shape : (channels, height, width); images whose size `patch` does not divide are padded with zeros
    channels : of the last stage; each stage before has a quarter of the next one's
    blocks : how many blocks each stage has
    patch : the last stage sees patches of patch×patch pixels as one position; each stage before, of half the side
    share : of the channels that move in each of the four directions
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        channels: int = 1024,
        blocks: Sequence[int] = (3, 8),
        patch: int = 4,
        share: float = 1 / 8,
        orthogonalisation: str = "manifold",
    ) -> None:
        width, *size = check_shape(input_shape)
        require(isinstance(classes, int) and classes >= 1, "at least one class", repr(classes))
        full = bool(blocks) and all(isinstance(count, int) and count >= 1 for count in blocks)
        require(full, "at least one block in every stage", f"blocks={blocks!r}")
        halvings = len(blocks) - 1
        for name, value, unit in (("patch", patch, 2**halvings), ("channels", channels, 4**halvings)):
            divides = isinstance(value, int) and value >= 1 and value % unit == 0
            require(divides, f"{name} that {unit} divides, for {len(blocks)} stages", repr(value))
        layers: list[nn.Module] = []
        if any(side % patch for side in size):
            missing = [-side % patch for side in size]
            layers.append(nn.ZeroPad2d((0, missing[1], 0, missing[0])))
            size = [side + more for side, more in zip(size, missing, strict=True)]
        factor = patch >> halvings  # of the pixels that become channels in front of a stage
        for stage, count in enumerate(blocks):
            wide = channels >> 2 * (halvings - stage)
            if stage == 0 and factor > 1 and 5 * width * factor**2 <= wide:
                layers += _neighbours(width, orthogonalisation)
                width *= 5
            layers += [InvertibleDownsampling(factor)] if factor > 1 else []
            width, size, factor = width * factor**2, [side // factor for side in size], 2
            layers += [_embedding(width, wide, orthogonalisation)] if width != wide else []
            width = wide
            for _ in range(count):
                layers += _block(wide, size, share, orthogonalisation)
        head = OrthogonalLinear(channels, classes, orthogonalisation=orthogonalisation)
        super().__init__(*layers, L2NormPool2d(), head)


def _neighbours(width: int, orthogonalisation: str) -> list[nn.Module]:
    """Return an isometry that puts a pixel's neighbours below, above, to the right and to the left beside it."""
    copies = BCOPConv2d(width, 5 * width, 1, bias=False, orthogonalisation=orthogonalisation, frozen=True)
    with torch.no_grad():
        copies.O.copy_(torch.eye(width).repeat(1, 5) / 5**0.5)
    return [copies, ChannelShift(1 / 5)]


def _embedding(width: int, channels: int, orthogonalisation: str) -> nn.Module:
    """Return the map from the channels of a patch to those of the first stage.

    Where a patch has fewer, it adds zeros and is not trained: the first rotation is. The position bias of the first
    block fills them, which is how that block learns where it is.
    """
    layer = BCOPConv2d(width, channels, 1, bias=False, orthogonalisation=orthogonalisation, frozen=width < channels)
    if layer.frozen:
        nn.init.eye_(layer.O)
    return layer


def _block(channels: int, size: Sequence[int], share: float, orthogonalisation: str) -> list[nn.Module]:
    first = BCOPConv2d(channels, channels, 1, bias=False, orthogonalisation=orthogonalisation)
    second = BCOPConv2d(channels, channels, 1, orthogonalisation=orthogonalisation)
    assert second.bias is not None
    with torch.no_grad():
        nn.init.zeros_(second.bias)
        second.O.copy_(first.O.mT)
    return [PositionBias(size[0], size[1]), first, ChannelShift(share), second, HalfAbs()]
