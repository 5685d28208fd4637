"""Random crops and mirror images of a whole epoch at once, on the device that holds the images."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from isoconv.errors import IsoconvError

# Bytes of padded images that are worked on at a time. A core works fastest in its cache; a GPU wants few launches, but
# the index of a piece takes eight bytes for each pixel.
_PIECE = {"cpu": 1 << 21, "other": 1 << 27}


class Draws(NamedTuple):
    """What chance decides for N images: where the crop starts, int64 (N, 2), and which are mirrored, bool (N,)."""

    offsets: Tensor
    flips: Tensor


def draw(count: int, padding: int, flip: bool, generator: torch.Generator) -> Draws:
    """Offsets (row, column) from 0 to 2·padding, and fair coins if `flip`, on the generator's device."""
    require_padding(padding)
    device = generator.device
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator, device=device)
    if not flip:
        return Draws(offsets, torch.zeros(count, dtype=torch.bool, device=device))
    return Draws(offsets, torch.randint(0, 2, (count,), generator=generator, device=device).bool())


def augment_epoch(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Each image surrounded by `padding` zeros and cropped to its size at random, then mirrored or not if `flip`.

    Of images (N, C, H, W), bytes or floats, on the device of the generator; exact, nothing is interpolated.
    """
    if torch.device(generator.device).type != images.device.type:
        raise IsoconvError(
            f"Expected a generator on the device of the images, {images.device}. Got one on {generator.device}."
        )
    return crop_and_flip(images, *draw(len(images), padding, flip, generator), padding)


@torch.no_grad()
def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """The crop of image n that starts at row offsets[n, 0] and column offsets[n, 1] of the image padded with zeros.

    It has the image's size, and is mirrored left to right if flips[n]. Works through the images in pieces, so that it
    needs little memory beyond its result. Offsets are trusted to lie in 0..2·padding: to look would make a GPU wait.
    """
    require_padding(padding)
    if images.ndim != 4 or offsets.shape != (len(images), 2) or flips.shape != (len(images),):
        raise IsoconvError(
            f"Expected images (N, C, H, W), offsets (N, 2) and flips (N,). "
            f"Got {tuple(images.shape)}, {tuple(offsets.shape)} and {tuple(flips.shape)}."
        )
    N, C, H, W = images.shape
    padded_height, padded_width = H + 2 * padding, W + 2 * padding
    row, column = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    result = torch.empty(N, C, H, W, dtype=images.dtype, device=images.device)
    padded_bytes = C * padded_height * padded_width * images.element_size()
    piece = max(1, _PIECE.get(images.device.type, _PIECE["other"]) // padded_bytes)
    for start in range(0, N, piece):
        at = slice(start, start + piece)
        source = pad(images[at], [padding] * 4).reshape(-1, C, padded_height * padded_width)
        rows = offsets[at, :1] + row
        columns = offsets[at, 1:] + torch.where(flips[at, None], W - 1 - column, column)
        # One index for all channels of an image: expanded, not copied.
        index = (padded_width * rows[:, :, None] + columns[:, None, :]).reshape(-1, 1, H * W).expand(-1, C, -1)
        torch.gather(source, 2, index, out=result[at].view(-1, C, H * W))
    return result


def require_padding(padding: int) -> None:
    if padding < 0:
        raise IsoconvError(f"Expected a padding of 0 or more pixels. Got {padding}.")
