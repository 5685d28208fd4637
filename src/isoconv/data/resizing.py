"""Bring a whole set of images to another size."""

from dataclasses import replace

import torch
from torch.nn.functional import interpolate

from isoconv.data.image_set import ImageSet
from isoconv.errors import IsoconvError

Size = int | tuple[int, int]


def height_and_width(size: Size) -> tuple[int, int]:
    """(h, w), where one number stands for a square."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair):
        raise IsoconvError(f"Expected a size as one positive whole number or as (height, width). Got {size!r}.")
    return pair


def resize(images: ImageSet, size: Size) -> ImageSet:
    """The same images at another size: bilinear, with a filter that widens when it shrinks (antialiasing).

    On bytes torch does this in fixed point as Pillow does, and gives Pillow's BILINEAR bit for bit. That is what
    torchvision's Resize did to PIL images, and so what published results on resized STL-10 were trained on.
    """
    height, width = height_and_width(size)
    if images.shape[1:] == (height, width):
        return images
    resized = torch.empty(len(images), images.shape[0], height, width, dtype=torch.uint8)
    for start in range(0, len(images), 1024):  # in pieces: the intermediate results need not all be there at once
        part = images.images[start : start + 1024].cpu()
        resized[start : start + 1024] = interpolate(part, (height, width), mode="bilinear", antialias=True)
    return replace(images, images=resized)
