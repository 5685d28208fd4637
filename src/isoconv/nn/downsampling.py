"""Invertible downsampling (the paper's appendix D.3): pixels of a block become channels. A permutation, so orthogonal."""

from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import IsoconvError


class InvertibleDownsampling(nn.Module):
    """(N, C, H, W) → (N, C·s², H/s, W/s), torch's channel order (`pixel_unshuffle`); (N, C, L) → (N, C·s, L/s)."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        if not isinstance(factor, int) or factor < 1:
            raise IsoconvError(f"Expected a whole factor of at least 1. Got {factor!r}.")
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return downsample(x, self.factor)

    def extra_repr(self) -> str:
        return str(self.factor)


class InvertibleUpsampling(InvertibleDownsampling):
    """The inverse of `InvertibleDownsampling` with the same factor."""

    def forward(self, x: Tensor) -> Tensor:
        return upsample(x, self.factor)


def downsample(x: Tensor, factor: int) -> Tensor:
    """The function behind `InvertibleDownsampling`."""
    if factor == 1:
        return x
    if x.dim() not in (3, 4):
        raise IsoconvError(f"Expected (N, C, L) or (N, C, H, W). Got shape {tuple(x.shape)}.")
    if any(size % factor for size in x.shape[2:]):
        raise IsoconvError(f"Expected an image size that the stride {factor} divides. Got {_size(x)}.")
    if x.dim() == 4 and x.numel():
        return _downsample_channels_last(x, factor) if _channels_last(x) else F.pixel_unshuffle(x, factor)
    if x.dim() == 4:  # which torch refuses for an empty batch
        n, channels, height, width = x.shape
        return x.reshape(n, channels * factor**2, height // factor, width // factor)
    n, channels, length = x.shape
    split = x.reshape(n, channels, length // factor, factor)
    return split.transpose(2, 3).reshape(n, channels * factor, length // factor)


def upsample(x: Tensor, factor: int) -> Tensor:
    """The function behind `InvertibleUpsampling`."""
    if factor == 1:
        return x
    if x.dim() not in (3, 4):
        raise IsoconvError(f"Expected (N, C, L) or (N, C, H, W). Got shape {tuple(x.shape)}.")
    block = factor ** (x.dim() - 2)
    if x.shape[1] % block:
        raise IsoconvError(f"Expected a number of channels that {block} divides. Got {x.shape[1]}.")
    if x.dim() == 4 and x.numel():
        return F.pixel_shuffle(x, factor)
    if x.dim() == 4:
        n, channels, height, width = x.shape
        return x.reshape(n, channels // block, height * factor, width * factor)
    n, channels, length = x.shape
    split = x.reshape(n, channels // factor, factor, length)
    return split.transpose(2, 3).reshape(n, channels // factor, length * factor)


def _channels_last(x: Tensor) -> bool:
    """Whether an image's channels lie side by side in memory. (torch's own question has two answers for one channel.)"""
    return x.stride(1) == 1 and x.stride(3) == x.shape[1]


def _downsample_channels_last(x: Tensor, factor: int) -> Tensor:
    """`pixel_unshuffle`, which would give its result the usual layout, and so to all that follows."""
    n, channels, height, width = x.shape
    blocks = x.movedim(1, -1).reshape(n, height // factor, factor, width // factor, factor, channels)
    pixels = blocks.permute(0, 1, 3, 5, 2, 4).reshape(n, height // factor, width // factor, channels * factor**2)
    return pixels.movedim(-1, 1)


def _size(x: Tensor) -> str:
    return "×".join(str(size) for size in x.shape[2:])
