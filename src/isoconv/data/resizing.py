"""Bring a whole set of images to another size."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isoconv.data.image_set import ImageSet
from isoconv.errors import require

Size = int | tuple[int, int]
LARGEST_SIZE = 4096  # a mistyped size would otherwise fill the memory


def height_and_width(size: Size) -> tuple[int, int]:
    """Return (height, width); one number stands for a square."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    is_size = len(pair) == 2 and all(type(n) is int and n >= 1 for n in pair)
    require(is_size, "a size as one positive whole number or as (height, width)", repr(size))
    require(max(pair) <= LARGEST_SIZE, f"a size of at most {LARGEST_SIZE:,} pixels", repr(size))
    return pair[0], pair[1]


def import_pillow() -> Any:
    """Return Pillow's module Image: only what needs it loads it."""
    from PIL import Image

    return Image


def resize(images: ImageSet, size: Size) -> ImageSet:
    """Return the images at another size, by Pillow's BILINEAR, whose filter widens when it shrinks (antialiasing).

    This is bit for bit what torchvision's Resize does to PIL images, and so what published results on STL-10 at 64×64
    were trained on. (torch's own antialiased interpolation of bytes is faster, is off by one step of 255 here and
    there, and fails at small sizes.) STL-10's 5,000 training images take about a second.
    """
    height, width = height_and_width(size)
    if images.shape[1:] == (height, width):
        return images
    Image = import_pillow()
    # Pillow works on each channel by itself, so each can go through as a grey picture.
    planes = images.images.cpu().flatten(0, 1).contiguous().numpy()
    resized = np.empty((len(planes), height, width), dtype=np.uint8)
    for source, target in zip(planes, resized, strict=True):
        target[:] = np.asarray(Image.fromarray(source).resize((width, height), Image.Resampling.BILINEAR))
    return replace(images, images=torch.from_numpy(resized).reshape(len(images), images.shape[0], height, width))
