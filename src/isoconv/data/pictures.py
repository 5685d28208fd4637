"""Picture files as bytes of one size and one number of channels.

How a picture becomes (C, H, W): the first frame of it, turned as its EXIF orientation says; what is transparent lies on
black; sixteen bits are rounded to eight; colours become grey (ITU-R 601) if one channel is asked for; then it is scaled
to the size that is asked for, not keeping its proportions, by Pillow's BICUBIC, whose filter widens when it shrinks
(antialiasing). Training and prediction share this code.
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from isoconv.data.files import Bytes
from isoconv.data.progress import Progress
from isoconv.data.resizing import NO_PILLOW, Size, height_and_width
from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


def is_picture(path: PathLike[str]) -> bool:
    """By its name alone: not hidden, and with the ending of a picture."""
    name = Path(path).name
    return not name.startswith(".") and name.lower().endswith(ENDINGS)


def load_image(path: str | PathLike[str], shape: tuple[int, int, int]) -> Tensor:
    """One picture as a uint8 tensor of this shape (C, H, W), prepared as the pictures of a folder are."""
    channels, *size = shape
    return read_pictures([Path(path)], (size[0], size[1]), channels)[0]


def read_pictures(
    paths: Sequence[Path], size: Size | None = None, channels: int | None = None, progress: Progress | None = None
) -> Tensor:
    """All the pictures, uint8 (N, C, H, W).

    Without a size they must all have the same. Without `channels`, one if all pictures are grey, else three.
    """
    if channels not in (None, 1, 3):
        raise IsoconvError(f"Expected 1 channel (grey) or 3 (colour). Got {channels}.")
    shape = None if size is None else height_and_width(size)
    arrays: list[Bytes] = []
    # Pillow works outside of Python's lock, so threads help. It warns of odd metadata, which changes no pixel.
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")
        for path, array in zip(paths, pool.map(lambda path: _read(path, shape, channels), paths), strict=True):
            if arrays and array.shape[:2] != arrays[0].shape[:2]:
                raise IsoconvError(
                    f"Expected pictures of one size, or a size to bring them to (--size). "
                    f"Got {_measure(arrays[0])} in {paths[0]} and {_measure(array)} in {path}."
                )
            arrays.append(array)
            if progress is not None:
                progress("reading pictures", len(arrays), len(paths))
    return _stacked(arrays)


def _stacked(arrays: Sequence[Bytes]) -> Tensor:
    channels = max(1 if array.ndim == 2 else 3 for array in arrays)
    result = torch.empty(len(arrays), channels, *arrays[0].shape[:2], dtype=torch.uint8)
    for image, array in zip(result, arrays, strict=True):
        pixels = torch.from_numpy(array)
        image.copy_(pixels if array.ndim == 2 else pixels.permute(2, 0, 1))
    return result


def _read(path: Path, shape: tuple[int, int] | None, channels: int | None) -> Bytes:
    """(H, W) for a grey picture, (H, W, 3) for a coloured one, or as `channels` says."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise IsoconvError(NO_PILLOW) from error
    try:
        with Image.open(path, formats=_FORMATS) as file:
            picture = _flat(file)
        if channels == 1:
            picture = picture.convert("L")
        if shape is not None and picture.size != shape[::-1]:
            picture = picture.resize(shape[::-1], Image.Resampling.BICUBIC)
        array = np.array(picture)
    except MemoryError:
        raise
    except IsADirectoryError as error:
        raise IsoconvError(f"Expected a picture. Got {path}, which is a folder.") from error
    except FileNotFoundError as error:
        raise IsoconvError(f"Expected a picture. Got {path}, which does not exist.") from error
    except UnidentifiedImageError as error:
        raise IsoconvError(f"{path} is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it.") from error
    except Exception as error:  # a damaged file makes Pillow's readers fail in any way: SyntaxError, struct.error, …
        reason = " ".join(str(error).split()) or type(error).__name__
        raise IsoconvError(f"{path} cannot be read as a picture ({reason}). Repair or remove it.") from error
    if channels is None and array.ndim == 3 and bool((array == array[..., :1]).all()):
        return array[..., 0]
    return array if channels != 3 or array.ndim == 3 else np.repeat(array[..., None], 3, axis=2)


def _flat(file: "Image") -> "Image":
    """Upright, opaque, eight bits: in Pillow's mode L or RGB."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I"):  # grey with 16 bits, which convert("L") would cut off at 255
        wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, (0, 0, 0, 255)), picture).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _measure(array: Bytes) -> str:
    return f"{array.shape[1]}×{array.shape[0]}"


def pictures_in(folder: Path) -> Iterable[Path]:
    """Every picture in a folder and its sub-folders, in the order of their names; hidden ones are left out."""
    return filter(is_picture, files_in(folder))


def files_in(folder: Path) -> Iterable[Path]:
    """Every file in a folder and its sub-folders, in the order of their names; hidden ones are left out."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))
