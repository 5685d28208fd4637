"""A user's own pictures: a folder with one sub-folder per class, a CSV file of paths and labels, or single files.

How a picture becomes (C, H, W): the first frame of it, turned as its EXIF orientation says; what is transparent lies on
black; sixteen bits are rounded to eight; colours become grey (ITU-R 601) if one channel is asked for; then it is scaled
to the size that is asked for, not keeping its proportions, by Pillow's BICUBIC, whose filter widens when it shrinks
(antialiasing). Training and prediction share this code.
"""

import csv
import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from isoconv.data.fetch import Progress
from isoconv.data.image_set import Array, ImageSet, Splits, hold_out_indices, shuffle_indices
from isoconv.data.resizing import Size, height_and_width, import_pillow
from isoconv.errors import IsoconvError
from isoconv.files import read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


class Picture(NamedTuple):
    """A file with its class; `name` is its path as seen from the folder or CSV file, which may move."""

    name: str
    path: Path
    label: str


class PictureOptions(TypedDict, total=False):
    """How pictures are read and split.

    size          : to bring them to; without it they must all have the same
    channels      : 1 (grey) or 3 (colour); without it 1 if all pictures are grey, else 3
    test_fraction : of each class, held out if there is no test folder (default: 0.2)
    seed          : of the choice of these, and of the order of the images (default: 0)
    progress      : is told how many pictures were read
    lazy          : read a part when it is first asked for, if `size` and `channels` are known
    """

    size: Size | None
    channels: int | None
    test_fraction: float
    seed: int
    progress: Progress | None
    lazy: bool


def read_folder(folder: str | PathLike[str], **options: Unpack[PictureOptions]) -> Splits:
    """Return the pictures of `folder`/<class>/…, or of its train/<class>/… and test/<class>/… (or val/<class>/…).

    Classes are the names of the sub-folders, sorted. If there is no test folder, a fraction of each class is held out.
    The images are shuffled, so that the first n are of all classes. See `PictureOptions`; the head of this module says
    how a picture is prepared.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IsoconvError(
            f"Expected a folder of images. Got {folder}, which {'is a file' if folder.exists() else 'does not exist'}."
        )
    sub_folders = {path.name: path for path in _list_sub_folders(folder)}
    train, test = sub_folders.get("train"), sub_folders.get("test", sub_folders.get("val"))
    if train is None or test is None:
        parts = [_list_classes(folder, train if train is not None and len(sub_folders) == 1 else folder)]
    else:
        parts = [_list_classes(folder, train), _list_classes(folder, test)]
        train_classes, test_classes = ({picture.label for picture in part} for part in parts)
        if train_classes != test_classes:
            different = ", ".join(repr(label) for label in sorted(train_classes ^ test_classes))
            raise IsoconvError(f"Expected the same classes in {train} and {test}. Got {different} in only one of them.")
    ignored = sum(1 for _ in files_in(folder)) - sum(map(len, parts))
    classes = tuple(sorted({picture.label for picture in parts[0]}))
    return _make_splits(folder.resolve().name, classes, parts, ignored, options)


def read_csv(path: str | PathLike[str], **options: Unpack[PictureOptions]) -> Splits:
    """Return the pictures that a CSV file lists as `path,label`, one per line, with or without a header.

    Paths are relative to the folder of the file. Classes are the labels, sorted, as numbers if all are whole numbers.
    For everything else see `read_folder`.
    """
    path = Path(path)
    pictures = _list_csv(path)
    labels = {picture.label for picture in pictures}
    whole_numbers = all(label.isascii() and label.isdigit() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label) if whole_numbers else 0, label))
    return _make_splits(path.stem, tuple(classes), [pictures], 0, options)


def load_image(path: str | PathLike[str], shape: tuple[int, int, int]) -> Tensor:
    """Return one picture as a uint8 tensor of this shape (C, H, W), prepared as the pictures of a folder are."""
    channels, *size = shape
    return read_pictures([Path(path)], (size[0], size[1]), channels)[0]


def read_pictures(
    paths: Sequence[Path], size: Size | None = None, channels: int | None = None, progress: Progress | None = None
) -> Tensor:
    """Return all the pictures, uint8 (N, C, H, W).

    Without a size they must all have the same. Without `channels`, C is 1 if all pictures are grey, else 3.
    """
    if channels not in (None, 1, 3):
        raise IsoconvError(f"Expected 1 channel (grey) or 3 (colour). Got {channels}.")
    shape = None if size is None else height_and_width(size)
    arrays: list[Array] = []
    # Pillow works outside of Python's lock, so threads help. It warns of odd metadata, which changes no pixel.
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")
        for path, array in zip(paths, pool.map(lambda path: _read_picture(path, shape, channels), paths), strict=True):
            if arrays and array.shape[:2] != arrays[0].shape[:2]:
                raise IsoconvError(
                    f"Expected pictures of one size, or a size to bring them to (--size). Got {arrays[0].shape[1]}×"
                    f"{arrays[0].shape[0]} in {paths[0]} and {array.shape[1]}×{array.shape[0]} in {path}."
                )
            arrays.append(array)
            if progress is not None:
                progress("reading pictures", len(arrays), len(paths))
    depth = max(1 if array.ndim == 2 else 3 for array in arrays)
    images = torch.empty(len(arrays), depth, *arrays[0].shape[:2], dtype=torch.uint8)
    for image, array in zip(images, arrays, strict=True):
        pixels = torch.from_numpy(array)
        image.copy_(pixels if array.ndim == 2 else pixels.permute(2, 0, 1))
    return images


def is_picture(path: PathLike[str]) -> bool:
    """Return True if the name is not hidden and has the ending of a picture."""
    name = Path(path).name
    return not name.startswith(".") and name.lower().endswith(ENDINGS)


def pictures_in(folder: Path) -> Iterable[Path]:
    """Return every picture in a folder and its sub-folders, in the order of their names, without hidden ones."""
    return filter(is_picture, files_in(folder))


def files_in(folder: Path) -> Iterable[Path]:
    """Yield every file in a folder and its sub-folders, in the order of their names, without hidden ones."""
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(path, name) for name in sorted(files) if not name.startswith("."))


def _read_picture(path: Path, shape: tuple[int, int] | None, channels: int | None) -> Array:
    """Return (H, W) for a grey picture, (H, W, 3) for a coloured one, or as `channels` says."""
    Image = import_pillow()
    data = io.BytesIO(read_bytes(path))
    try:
        with Image.open(data, formats=_FORMATS) as file:
            picture = _flatten(file)
        if channels == 1:
            picture = picture.convert("L")
        if shape is not None and picture.size != shape[::-1]:
            picture = picture.resize(shape[::-1], Image.Resampling.BICUBIC)
        array = np.array(picture)
    except MemoryError:
        raise
    except Image.UnidentifiedImageError as error:
        raise IsoconvError(f"{path} is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it.") from error
    except Exception as error:  # a damaged file makes Pillow's readers fail in any way: SyntaxError, struct.error, …
        reason = " ".join(str(error).split()) or type(error).__name__
        raise IsoconvError(f"{path} cannot be read as a picture ({reason}). Repair or remove it.") from error
    if channels is None and array.ndim == 3 and bool((array == array[..., :1]).all()):
        return array[..., 0]
    return array if channels != 3 or array.ndim == 3 else np.repeat(array[..., None], 3, axis=2)


def _flatten(file: "Image") -> "Image":
    """Return the picture upright, opaque and in eight bits: in Pillow's mode L or RGB."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I"):  # grey with 16 bits, which convert("L") would cut off at 255
        wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, (0, 0, 0, 255)), picture).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _make_splits(
    name: str, classes: tuple[str, ...], parts: Sequence[Sequence[Picture]], ignored: int, options: PictureOptions
) -> Splits:
    """Shuffle the pictures of each part, hold some out if there is only one, and read them."""
    size, channels, seed = options.get("size"), options.get("channels"), options.get("seed", 0)
    pictures = [picture for part in parts for picture in part]
    number = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([number[picture.label] for picture in pictures])

    def read(indices: Tensor) -> ImageSet:
        paths = [pictures[index].path for index in indices.tolist()]
        return ImageSet(read_pictures(paths, size, channels, options.get("progress")), labels[indices], classes, name)

    train, *rest = (shuffle_indices(len(part), seed) for part in parts)
    if rest:
        test = len(train) + rest[0]
    else:
        fraction = options.get("test_fraction", 0.2)
        train, test = (train[index] for index in hold_out_indices(labels[train], len(classes), fraction, seed))
    lines = (f"{picture.name}\n{picture.path.stat().st_size}\n{picture.label}\n" for picture in pictures)
    listing = hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
    if options.get("lazy") and size is not None and channels is not None:
        return Splits(lambda: read(train), lambda: read(test), listing=listing, ignored=ignored)
    whole = read(torch.arange(len(pictures)))  # together, so that both get the same size and the same channels
    return Splits(whole.subset(train), whole.subset(test), listing=listing, ignored=ignored)


def _list_sub_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise IsoconvError(f"{folder} cannot be read: {error.strerror}.") from error


def _list_classes(root: Path, folder: Path) -> list[Picture]:
    """Return the pictures in the sub-folders of `folder`, each with the sub-folder's name as its class."""
    pictures: list[Picture] = []
    classes = _list_sub_folders(folder)
    for path in classes:
        count = len(pictures)
        pictures += [Picture(x.relative_to(root).as_posix(), x, path.name) for x in pictures_in(path)]
        if len(pictures) == count:
            raise IsoconvError(f"Expected images ({', '.join(ENDINGS)}) in every class folder. Got none in {path}.")
    if len(classes) < 2:
        loose = sum(1 for path in folder.iterdir() if is_picture(path))
        problem = f"only {classes[0].name!r}" if classes else f"no sub-folder and {loose} pictures"
        raise IsoconvError(f"Expected one sub-folder of images per class, at least two, in {folder}. Got {problem}.")
    return pictures


def _list_csv(path: Path) -> list[Picture]:
    pictures = []
    try:
        lines = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), skipinitialspace=True)
        for fields in lines:
            line, row = f"line {lines.line_num} of {path}", [field.strip() for field in fields]
            header = lines.line_num == 1 and len(row) == 2 and not Path(row[0]).suffix
            if header or not any(row):
                continue
            if len(row) != 2 or not all(row):
                raise IsoconvError(f"Expected path,label in {line}. Got {','.join(fields)!r}.")
            picture = Picture(row[0], path.parent / row[0], row[1])
            if not picture.path.is_file():
                raise IsoconvError(f"Expected a picture for {line}. Got {picture.path}, which does not exist.")
            pictures.append(picture)
    except (UnicodeDecodeError, csv.Error) as error:
        raise IsoconvError(f"Expected a CSV file of path,label, in UTF-8. Got {path} ({error}).") from error
    if len(classes := {picture.label for picture in pictures}) < 2:
        problem = f"only {classes.pop()!r}" if classes else "none"
        raise IsoconvError(f"Expected lines of path,label with at least two classes in {path}. Got {problem}.")
    return pictures
