"""A user's own images: a folder with one sub-folder per class, a CSV file of paths and labels, or single files.

Those in tar files are read by `isoconv.data.shards`, and prepared here.

How an image becomes (C, H, W): the first frame of it, turned as its EXIF orientation says; what is transparent lies on
black; sixteen bits are rounded to eight; colours become grey (ITU-R 601) if one channel is asked for; then it is scaled
to the size that is asked for by Pillow's BICUBIC, whose filter widens when it shrinks (antialiasing): squashed, not keeping
its proportions, or cropped, losing what lies outside of the largest rectangle of the right proportions in its middle.
Training and prediction share this code. `resize` brings the images of a named set to another size.
"""

import csv
import hashlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from isoconv.data.datasets import RESIZES
from isoconv.data.fetch import Progress
from isoconv.data.image_set import Array, ImageSet, Splits, hold_out_indices, shuffle_indices
from isoconv.data.streamed import (
    Member,
    PictureFiles,
    Source,
    SourceTable,
    StreamedSet,
    default_workers,
    fit_in_memory,
    map_by_threads,
    require_one_size,
)
from isoconv.errors import IsoconvError, require
from isoconv.files import read_bytes, require_ordinary

if TYPE_CHECKING:
    from PIL.Image import Image

Size = int | tuple[int, int]
LARGEST_SIZE = 4096  # a mistyped size would otherwise fill the memory
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
#: What files of other formats have at their beginning, each at its place.
_OTHERS = {
    (0, b"II*\0"): "TIFF",
    (0, b"MM\0*"): "TIFF",
    (4, b"ftyphei"): "HEIC",
    (4, b"ftypavif"): "AVIF",
    (0, b"%PDF"): "PDF",
}
_MOST_NAMED = 50  # unreadable files in one line


class Picture(NamedTuple):
    """An image file with its class; `name` is its path as seen from the folder, CSV file or shard, which may move."""

    name: str
    path: Source
    label: str


class UnreadablePictures(IsoconvError):  # noqa: N818  (what the files are)
    """Files that cannot be read as images. The arguments are pairs: a file, and what is wrong with it."""

    def __str__(self) -> str:
        count, files = len(self.args), [f"{path} ({reason})" for path, reason in self.args[:_MOST_NAMED]]
        if count == 1:
            path, reason = self.args[0]
            return f"{path} cannot be read as an image ({reason})."
        more = f"; and {count - _MOST_NAMED:,} more" if count > _MOST_NAMED else ""
        return f"{count:,} files cannot be read as images: {'; '.join(files)}{more}."


class PictureOptions(TypedDict, total=False):
    """How images are read and split.

    size          : to bring them to; without it they must all have the same
    channels      : 1 (grey) or 3 (colour); without it 1 if all images are grey, else 3
    test_fraction : of each class, held out if there is no test folder (default: 0.2)
    seed          : of the choice of these, and of the order of the images (default: 0)
    progress      : is told how many images were read
    lazy          : read a part when it is first asked for, if `size` and `channels` are known
    resize        : "squash" (default) or "crop"; see the head of this module
    stream        : leave the images in their files, and decode a batch when it is needed: True, False (default), or None
                    to stream those that do not fit in memory
    workers       : processes that decode what is streamed, by default one per core, at most 8; 0 for threads instead
    skip_broken   : leave out files that cannot be read as images, which are an error otherwise. What is held out is
                    decided before
    """

    size: Size | None
    channels: int | None
    test_fraction: float
    seed: int
    progress: Progress | None
    lazy: bool
    resize: str
    stream: bool | None
    workers: int | None
    skip_broken: bool


def read_folder(folder: str | PathLike[str], **options: Unpack[PictureOptions]) -> Splits:
    """Return the images of `folder`/<class>/…, or of its train/<class>/… and test/<class>/… (or val/<class>/…).

    Classes are the names of the sub-folders, sorted. If there is no test folder, a fraction of each class is held out.
    The images are shuffled, so that the first n are of all classes. See `PictureOptions`; the head of this module says
    how an image is prepared.
    """
    folder = Path(folder)
    problem = "is a file" if folder.exists() else "does not exist"
    require(folder.is_dir(), "a folder of images", f"{folder}, which {problem}")
    known = {path.name: path for path in list_folder(folder) if path.is_dir()}
    train, test = known.get("train", folder), known.get("test", known.get("val"))
    roots = [train, test] if train != folder and test else [train if len(known) == 1 else folder]
    parts = [list_classes(folder, root) for root in roots]
    pictures = (picture.path for part in parts for picture in part)
    return split_folders(folder.resolve().name, roots, parts, count_ignored(folder, pictures), options)


def read_csv(path: str | PathLike[str], **options: Unpack[PictureOptions]) -> Splits:
    """Return the images that a CSV file lists as `path,label`, one per line, with or without a header.

    Paths are relative to the folder of the file. Classes are the labels, sorted, as numbers if all are whole numbers.
    For everything else see `read_folder`.
    """
    path, pictures = Path(path), []
    try:
        lines = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), skipinitialspace=True)
        for fields in lines:
            line, row = f"line {lines.line_num} of {path}", [field.strip() for field in fields]
            header = lines.line_num == 1 and len(row) == 2 and not Path(row[0]).suffix
            if header or not any(row):
                continue
            require(len(row) == 2 and all(row), f"path,label in {line}", repr(",".join(fields)))
            file = path.parent / row[0]
            require(file.is_file(), f"an image for {line}", f"{file}, which does not exist")
            pictures.append(Picture(row[0], file, row[1]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise IsoconvError(f"Expected a CSV file of path,label, in UTF-8. Got {path} ({error}).") from error
    labels = {picture.label for picture in pictures}
    problem = f"only {min(labels)!r}" if labels else "none"
    require(len(labels) > 1, f"lines of path,label with at least two classes in {path}", problem)
    return make_splits(path.stem, sort_classes(labels), [pictures], Counter(), options)


def sort_classes(labels: Iterable[str]) -> list[str]:
    """Return labels in order, as numbers if all are whole numbers."""
    labels = list(labels)
    whole_numbers = all(label.isascii() and label.isdigit() for label in labels)
    return sorted(labels, key=lambda label: (int(label) if whole_numbers else 0, label))


def load_image(path: str | PathLike[str], shape: tuple[int, int, int], resize: str = "squash") -> Tensor:
    """Return one image as a uint8 tensor of this shape (C, H, W), prepared as the images of a folder are."""
    return read_pictures([Path(path)], shape[1:], shape[0], resize=resize)[0]


def read_pictures(
    paths: Sequence[Source],
    size: Size | None = None,
    channels: int | None = None,
    progress: Progress | None = None,
    resize: str = "squash",
    broken: dict[int, UnreadablePictures] | None = None,
) -> Tensor:
    """Return all the images, uint8 (N, C, H, W).

    Without a size they must all have the same. Without `channels`, C is 1 if all images are grey, else 3.

    broken : receives the error of each file that cannot be read, by its index; such files are left out. Without it, one
        error names them all
    """
    arrays, readable, errors = list[Array](), list[Source](), dict[int, UnreadablePictures]()
    reader = PictureReader(size, channels, resize)
    for index, array in enumerate(reader.attempt_all(paths, "reading images", progress)):
        if isinstance(array, UnreadablePictures):
            errors[index] = array
        else:
            arrays.append(array)
            readable.append(paths[index])
            require_one_size(arrays[0].shape[:2], readable[0], array, paths[index])
    if errors and (broken is None or not (arrays or (size and channels))):
        raise UnreadablePictures(*(pair for error in errors.values() for pair in error.args))
    if broken is not None:
        broken |= errors
    height, width = arrays[0].shape[:2] if arrays else height_and_width(size or 1)
    depth = channels or max(array.shape[2] for array in arrays)
    images = np.empty((len(arrays), depth, height, width), dtype=np.uint8)
    for image, array in zip(images, arrays, strict=True):
        image[:] = array.transpose(2, 0, 1)  # one channel of grey becomes as many as the others have
    return torch.from_numpy(images)


def height_and_width(size: Size) -> tuple[int, int]:
    """Return (height, width); one number stands for a square."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    is_size = len(pair) == 2 and all(type(n) is int and n >= 1 for n in pair)
    require(is_size, "a size as one positive whole number or as (height, width)", repr(size))
    require(max(pair) <= LARGEST_SIZE, f"a size of at most {LARGEST_SIZE:,} pixels", repr(size))
    return pair[0], pair[1]


def resize(images: ImageSet, size: Size) -> ImageSet:
    """Return the images at another size, by Pillow's BILINEAR, whose filter widens when it shrinks (antialiasing).

    This is bit for bit what torchvision's Resize does to PIL images, and so what published results on STL-10 at 64×64
    were trained on. (torch's own antialiased interpolation of bytes is faster, is off by one step of 255 here and
    there, and fails at small sizes.) STL-10's 5,000 training images take about a second.
    """
    height, width = height_and_width(size)
    if images.shape[1:] == (height, width):
        return images
    from PIL import Image

    # Pillow works on each channel by itself, so each can go through as a grey picture.
    planes = images.images.cpu().flatten(0, 1).contiguous().numpy()
    resized = np.empty((len(planes), height, width), dtype=np.uint8)
    for source, target in zip(planes, resized, strict=True):
        target[:] = np.asarray(Image.fromarray(source).resize((width, height), Image.Resampling.BILINEAR))
    pixels = torch.from_numpy(resized).reshape(len(images), images.shape[0], height, width)
    return ImageSet(pixels, images.labels.cpu(), images.classes, images.name)


def _ending(path: Source) -> str:
    return Path(str(path)).suffix.lower()


def count_ignored(folder: Path, pictures: Iterable[Source]) -> Counter[str]:
    """Return by their ending how many files in a folder and its sub-folders are none of these pictures."""
    return Counter(map(_ending, files_in(folder))) - Counter(map(_ending, pictures))


def describe_ignored(ignored: Mapping[str, int]) -> str:
    """Say how many files were ignored, and with which endings."""
    count, endings = sum(ignored.values()), ", ".join(sorted(ignored.keys() - {""})[:5])
    return f"{count:,} other file{'s' * (count != 1)} ignored{f' ({endings})' * bool(endings)}"


def pictures_in(folder: Path) -> list[Path]:
    """Return every image file in a folder and its sub-folders, in the order of their names, without hidden ones."""
    return [path for path in files_in(folder) if path.name.lower().endswith(ENDINGS)]


def files_in(folder: Path) -> Iterable[Path]:
    """Yield every file in a folder and its sub-folders, in the order of their names, without hidden ones.

    Links are followed, but not back to a folder that they are in.
    """
    for path, folders, files in os.walk(folder, followlinks=True):
        real = {name: os.path.join(os.path.realpath(os.path.join(path, name)), "") for name in ["", *folders]}
        folders[:] = sorted(n for n in folders if not n.startswith(".") and not real[""].startswith(real[n]))
        yield from (Path(path, name) for name in sorted(files) if not name.startswith("."))


class PictureReader:
    """Reads a picture as (H, W, 1) if it is grey, as (H, W, 3) if it has colours. Worker processes can be sent one."""

    def __init__(self, size: Size | None, channels: int | None, resize: str) -> None:
        require(channels in (None, 1, 3), "1 channel (grey) or 3 (colour)", channels)
        require(resize in RESIZES, f"resize to be one of {', '.join(RESIZES)}", repr(resize))
        self.size, self.channels, self.resize = None if size is None else height_and_width(size), channels, resize

    def __call__(self, source: Source) -> Array:
        from PIL import Image, ImageOps, UnidentifiedImageError

        try:
            if isinstance(source, Path):
                require_ordinary(source)
            data = source.read_bytes()
        except IsoconvError as error:
            raise UnreadablePictures((str(source), "a pipe or a device")) from error
        except OSError as error:
            raise UnreadablePictures((str(source), error.strerror or str(error))) from error
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
                picture = _flatten(file)
                if self.channels == 1:
                    picture = picture.convert("L")
                if self.size is not None and picture.size != self.size[::-1]:
                    change = ImageOps.fit if self.resize == "crop" else Image.Image.resize
                    picture = change(picture, self.size[::-1], Image.Resampling.BICUBIC)
                array = np.asarray(picture).reshape(*picture.size[::-1], -1)
        except MemoryError:
            raise
        except UnidentifiedImageError as error:
            raise UnreadablePictures((str(source), _name_format(data))) from error
        except Exception as error:  # Pillow's readers of a damaged file fail in any way: SyntaxError, struct.error, …
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise UnreadablePictures((str(source), reason)) from error
        return array[..., :1] if self.channels is None and bool((array == array[..., :1]).all()) else array

    def attempt(self, source: Source) -> Array | UnreadablePictures:
        """Return the picture, or the error of one that cannot be read."""
        try:
            return self(source)
        except UnreadablePictures as error:
            return error

    def attempt_all(
        self, sources: Sequence[Source], title: str, progress: Progress | None
    ) -> Iterator[Array | UnreadablePictures]:
        """Yield what becomes of each, in order."""
        for done, result in enumerate(map_by_threads(self.attempt, sources), start=1):
            yield result
            if progress is not None:
                progress(title, done, len(sources))

    def find_shape(self, sources: Iterable[Source]) -> tuple[int, int, int]:
        """Return (C, H, W) of all that can be read, as if they had been: reads on to the first one that has colours."""
        if self.size and self.channels:
            return self.channels, *self.size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays = (array for array in map(self.attempt, sources) if not isinstance(array, UnreadablePictures))
            first = next(arrays, None)
            if first is None:
                first = self(next(iter(sources)))  # none can be read: this raises what is wrong with the first
            coloured = (array.shape[2] == 3 for array in chain([first], arrays))
            return self.channels or (3 if any(coloured) else 1), *first.shape[:2]


def _name_format(data: bytes) -> str:
    """Say what a file is that is no picture of a known format."""
    for (place, mark), name in _OTHERS.items():
        if data[place:].startswith(mark):
            return f"it is a {name} file: convert it, to PNG for instance"
    return "it is not a PNG, JPEG, BMP, WebP or GIF" if data else "it is empty"


def _flatten(file: "Image") -> "Image":
    """Return the picture upright, opaque and in eight bits: in Pillow's mode L or RGB. It may be the file, turned."""
    from PIL import Image, ImageOps

    ImageOps.exif_transpose(file, in_place=True)  # otherwise it makes a copy, of any picture
    picture = file
    if picture.mode.startswith("I"):  # grey with 16 bits, which convert("L") would cut off at 255
        wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, (0, 0, 0, 255)), picture).convert("RGB")
    wanted = "L" if picture.mode in ("1", "L") else "RGB"
    return picture if picture.mode == wanted else picture.convert(wanted)


def split_folders(
    name: str, roots: Sequence[Path], parts: Sequence[Sequence[Picture]], ignored: Counter[str], options: PictureOptions
) -> Splits:
    """Do as `make_splits` with the classes that are the names of folders: sorted, and the same in both roots."""
    classes = [{picture.label for picture in part} for part in parts]
    different = ", ".join(repr(label) for label in sorted(classes[0] ^ classes[-1]))
    require(not different, f"the same classes in {roots[0]} and {roots[-1]}", f"{different} in only one of them")
    return make_splits(name, sorted(classes[0]), parts, ignored, options)


def make_splits(
    name: str,
    classes: Sequence[str],
    parts: Sequence[Sequence[Picture]],
    ignored: Counter[str],
    options: PictureOptions,
) -> Splits:
    """Shuffle the images of each part, hold some out if there is only one, and read them, or say how to stream them."""
    reader = PictureReader(options.get("size"), options.get("channels"), options.get("resize", "squash"))
    progress, skip, seed = options.get("progress"), options.get("skip_broken", False), options.get("seed", 0)
    pictures, left_out = [*chain(*parts)], list[str]()
    number = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([number[picture.label] for picture in pictures])

    def leave_out(indices: Tensor, broken: Mapping[int, UnreadablePictures]) -> Tensor:
        """Return the indices without those of the files, counted among them, that cannot be read."""
        left_out.extend(error.args[0][0] for error in broken.values())
        return indices[[k for k in range(len(indices)) if k not in broken]] if broken else indices

    def read(*wanted: Tensor) -> list[ImageSet]:
        """Read parts together, in the order of their files, so that they get the same size and the same channels."""
        indices, broken = torch.cat(wanted).sort().values, dict[int, UnreadablePictures]()
        paths = [pictures[index].path for index in indices.tolist()]
        images = read_pictures(paths, reader.size, reader.channels, progress, reader.resize, broken if skip else None)
        indices = leave_out(indices, broken)
        whole = ImageSet(images, labels[indices], tuple(classes), name)
        return [whole.subset(torch.searchsorted(indices, part[torch.isin(part, indices)])) for part in wanted]

    train, *rest = (shuffle_indices(len(part), seed) for part in parts)
    if rest:
        test = len(train) + rest[0]
    else:
        fraction = options.get("test_fraction", 0.2)
        train, test = (train[index] for index in hold_out_indices(labels[train], len(classes), fraction, seed))
    found: dict[str, Any] = {"listing": _hash_listing(pictures), "ignored": ignored, "left_out": left_out}
    if options.get("stream", False) is not False:
        sources = SourceTable(picture.path for picture in pictures)
        shape = reader.find_shape(sources)
        if options.get("stream") or not fit_in_memory(len(sources), shape):
            workers = default_workers() if (asked := options.get("workers")) is None else asked
            require(workers >= 0, "a number of workers of at least 0", workers)
            files = PictureFiles(sources, shape, PictureReader(reader.size, shape[0], reader.resize), workers)

            def stream(part: Tensor) -> StreamedSet:
                if skip:
                    results = reader.attempt_all([sources[k] for k in part.tolist()], "checking images", progress)
                    broken = {k: x for k, x in enumerate(results) if isinstance(x, UnreadablePictures)}
                    part = leave_out(part, broken)
                return StreamedSet(files, part, labels[part], classes, name)

            return Splits(lambda: stream(train), lambda: stream(test), **found)
    if options.get("lazy") and reader.size and reader.channels:
        return Splits(lambda: read(train)[0], lambda: read(test)[0], **found)
    kept, held = read(train, test)
    return Splits(kept, held, **found)


def _hash_listing(pictures: Iterable[Picture]) -> str:
    """Return a hash of names, sizes in bytes and classes."""
    digest = hashlib.sha256()
    for name, path, label in pictures:
        size = path.size if isinstance(path, Member) else path.stat().st_size
        digest.update(f"{name}\n{size}\n{label}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def list_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted, without what is hidden."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise IsoconvError(f"{folder} cannot be read: {error.strerror}.") from error


def list_classes(root: Path, folder: Path) -> list[Picture]:
    """Return the images in the sub-folders of `folder`, each with the sub-folder's name as its class."""
    classes = {path: pictures_in(path) for path in list_folder(folder) if path.is_dir()}
    empty = [f"{path}{_list_endings(path)}" for path, files in classes.items() if not files]
    require(not empty, f"images ({', '.join(ENDINGS)}) in every class folder", f"none in {', '.join(empty)}")
    problem = f"only {min(classes).name!r}" if classes else f"no sub-folder and {len(pictures_in(folder))} images"
    require(len(classes) > 1, f"one sub-folder of images per class, at least two, in {folder}", problem)
    return [Picture(x.relative_to(root).as_posix(), x, path.name) for path, files in classes.items() for x in files]


def _list_endings(folder: Path) -> str:
    """Say which kinds of files a folder holds."""
    endings = sorted({path.suffix.lower() for path in files_in(folder)} - {""})
    return f" (only {', '.join(endings)})" if endings else ""
