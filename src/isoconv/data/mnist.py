"""MNIST, from its four idx files: the official download or torchvision's folder, gzipped or not.

An idx file starts with a magic number (two zero bytes, 8 for bytes, the number of dimensions) and each dimension as a
big-endian 32-bit number; then come the bytes. Sizes are taken from there, so other sets in this form (Fashion-MNIST,
KMNIST) can be read too, if their pictures are of ten classes.
"""

import gzip
import zlib
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from isoconv.data.files import DOWNLOAD_AGAIN, Bytes, Finding, find_together, not_found, require_labels
from isoconv.data.image_set import ImageSet, Splits
from isoconv.errors import IsoconvError

CLASSES = tuple("0123456789")

_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_PLACES = ("MNIST/raw", "raw", "", "MNIST")


def find_mnist(folder: Path) -> list[Finding]:
    return [find_together(folder, _PLACES, _NAMES, endings=("", ".gz"))]


def read_mnist(folder: str | PathLike[str]) -> Splits:
    """The training and the test digits, (N, 1, 28, 28), from `folder` or its MNIST/raw, raw or MNIST."""
    (finding,) = find_mnist(Path(folder))
    if finding.missing:
        raise not_found("MNIST", Path(folder), [finding], _PLACES, f"{_NAMES[0]}[.gz] and the three like it")
    train, test = (
        _read_part(finding.found[f"{part}-images-idx3-ubyte"], finding.found[f"{part}-labels-idx1-ubyte"])
        for part in ("train", "t10k")
    )
    if train.shape != test.shape:
        raise IsoconvError(
            f"Expected training and test images of one size in {finding.place}. Got {train.shape} and {test.shape}."
        )
    return Splits(train, test)


def _read_part(image_path: Path, label_path: Path) -> ImageSet:
    images, labels = _read_idx(image_path, dimensions=3), _read_idx(label_path, dimensions=1)
    if len(images) != len(labels):
        raise IsoconvError(
            f"Expected as many labels in {label_path} as images in {image_path}. "
            f"Got {len(labels)} labels and {len(images)} images."
        )
    require_labels(labels, 0, 9, str(label_path))
    return ImageSet(torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)), CLASSES, "mnist")


def _read_idx(path: Path, dimensions: int) -> Bytes:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 * (1 + dimensions))
            numbers = [int.from_bytes(head[at : at + 4], "big") for at in range(0, len(head), 4)]
            if len(head) < 4 * (1 + dimensions) or numbers[0] != 0x800 + dimensions:
                raise IsoconvError(
                    f"Expected an idx file of bytes in {dimensions} dimension{'s' if dimensions > 1 else ''} "
                    f"(it starts with 0x{0x800 + dimensions:08x}). Got {path}, which starts with "
                    f"0x{head[:4].hex()}. {DOWNLOAD_AGAIN}"
                )
            # All of it, though the header says how much: only the end of a gzip file holds its checksum.
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise IsoconvError(f"{path} is truncated or corrupt ({error}). {DOWNLOAD_AGAIN}") from error
    shape = tuple(numbers[1:])
    size = prod(shape)
    if len(data) != size or size == 0:
        raise IsoconvError(
            f"Expected {size} bytes after the header of {path}, for {' × '.join(map(str, shape))}. "
            f"Got {len(data)}: the file is truncated or corrupt. {DOWNLOAD_AGAIN}"
        )
    return np.frombuffer(bytearray(data), dtype=np.uint8).reshape(shape)
