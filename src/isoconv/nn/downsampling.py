"""Invertible downsampling (the paper's appendix D.3): pixels of a block become channels. A permutation, so orthogonal."""

import math
from collections.abc import Sequence
from operator import mul

from torch import Tensor
from torch.nn import functional as F

from isoconv.errors import IsoconvError, is_whole, require
from isoconv.nn.graph import Described


class InvertibleDownsampling(Described):
    """(N, C, H, W) → (N, C·s², H/s, W/s), in torch's channel order (`pixel_unshuffle`)."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        require(is_whole(factor, 1), "a whole factor of at least 1", repr(factor))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return downsample(_check_images(x), self.factor)


class InvertibleUpsampling(InvertibleDownsampling):
    """The inverse of `InvertibleDownsampling` with the same factor."""

    def forward(self, x: Tensor) -> Tensor:
        return upsample(_check_images(x), self.factor)


def _check_images(x: Tensor) -> Tensor:
    require(x.dim() == 4, "(N, C, H, W)", f"shape {tuple(x.shape)}")
    return x


def downsample(x: Tensor, factor: int) -> Tensor:
    """The function behind `InvertibleDownsampling`, also for (N, C, L)."""
    if factor == 1:
        return x
    size = _image_size(x)
    if any(length % factor for length in size):
        got = "×".join(map(str, size))
        raise IsoconvError(f"Expected an image size that the stride {factor} divides. Got {got}.")
    if len(size) == 1:
        return x.unflatten(2, (size[0] // factor, factor)).transpose(2, 3).flatten(1, 2)
    if x.numel() and not _is_channels_last(x):
        return F.pixel_unshuffle(x, factor)
    # torch's function would give the usual layout to its result, and so to all that follows; and it refuses empty batches.
    pixels = x.movedim(1, -1).unflatten(2, (size[1] // factor, factor)).unflatten(1, (size[0] // factor, factor))
    return pixels.permute(0, 1, 3, 5, 2, 4).flatten(3).movedim(-1, 1)


def upsample(x: Tensor, factor: int | tuple[int, ...]) -> Tensor:
    """The function behind `InvertibleUpsampling`, also for (N, C, L); with a factor for each axis, if they differ."""
    if factor == 1:
        return x
    size = _image_size(x)
    factors = (factor,) * len(size) if isinstance(factor, int) else factor
    block = math.prod(factors)
    if x.shape[1] % block:
        raise IsoconvError(f"Expected a number of channels that {block} divides. Got {x.shape[1]}.")
    if x.numel() and len(size) == 2 and factors[0] == factors[1]:
        return F.pixel_shuffle(x, factors[0])
    return unfold_stride(x, factors)


def unfold_stride(weight: Tensor, factors: Sequence[int]) -> Tensor:
    """The kernel (…, c_out, c_in, k…) of one strided convolution that equals downsampling by factors and then `weight`.

    Upsampling an image (N, C, size…) is the same rearrangement.
    """
    d = len(factors)
    *outer, channels = weight.shape[:-d]
    taps = weight.shape[-d:]
    split = weight.reshape(*outer, channels // math.prod(factors), *factors, *taps)
    first = split.dim() - 2 * d
    pairs = [first + axis for k in range(d) for axis in (k + d, k)]  # each axis of taps before its pixels of a block
    return split.permute(*range(first), *pairs).reshape(*split.shape[:first], *map(mul, taps, factors))


def _image_size(x: Tensor) -> tuple[int, ...]:
    if x.dim() not in (3, 4):
        raise IsoconvError(f"Expected (N, C, L) or (N, C, H, W). Got shape {tuple(x.shape)}.")
    return tuple(x.shape[2:])


def _is_channels_last(x: Tensor) -> bool:
    """Whether an image's channels, or those that were taken from a larger one, lie within its pixels in memory.

    (torch's own question has two answers for one channel.)
    """
    return x.stride(3) >= x.shape[1] * x.stride(1)
