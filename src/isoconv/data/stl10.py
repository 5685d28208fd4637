"""STL-10's labelled images, from its binary files, unpacked or in the archive as it was downloaded."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch

from isoconv.data.files import (
    DOWNLOAD_AGAIN,
    Finding,
    find_together,
    not_found,
    read_bytes,
    read_members,
    require_labels,
)
from isoconv.data.image_set import ImageSet, Splits
from isoconv.data.resizing import Size, resize
from isoconv.errors import IsoconvError

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")

_TRAIN = ("train_X.bin", "train_y.bin")
_TEST = ("test_X.bin", "test_y.bin")
_PLACES = ("stl10_binary", "")
_ARCHIVE = "stl10_binary.tar.gz"
_PIXELS = 3 * 96 * 96


def find_stl10(folder: Path) -> list[Finding]:
    """The whole labelled set, unpacked or in the archive."""
    return [find_together(folder, _PLACES, _TRAIN + _TEST), find_together(folder, ("",), (_ARCHIVE,))]


def read_stl10(folder: str | PathLike[str], size: Size | None = None) -> Splits:
    """The 5,000 training and 8,000 test images, (N, 3, 96, 96), from `folder`, its stl10_binary or stl10_binary.tar.gz.

    The test files may be missing; then only asking for the test set is an error. `size` resizes, see `resize`. The
    100,000 unlabelled images are not read.
    """
    folder = Path(folder)
    unpacked, packed = find_stl10(folder)
    if unpacked.missing and not packed.missing:
        archive = packed.found[_ARCHIVE]
        members = read_members(archive, [f"stl10_binary/{name}" for name in _TRAIN + _TEST])
        files = {Path(name).name: (data, f"{archive}:{name}") for name, data in members.items()}
    elif unpacked.missing in ((), _TEST):
        files = {name: (read_bytes(path), str(path)) for name, path in unpacked.found.items()}
    else:
        raise not_found("STL-10", folder, [unpacked], _PLACES, f"{', '.join(_TRAIN)} and {_ARCHIVE}")
    splits = Splits(
        _decoded(*(files[name] for name in _TRAIN)),
        _decoded(*(files[name] for name in _TEST)) if _TEST[0] in files else None,
        f"STL-10's test set was not found: looked for {' and '.join(_TEST)} in {unpacked.place}. "
        f"Add them, or use --download.",
    )
    return splits if size is None else splits.map(lambda part: resize(part, size))


def _decoded(pixels: tuple[bytes, str], answers: tuple[bytes, str]) -> ImageSet:
    (image_data, image_source), (label_data, label_source) = pixels, answers
    if not image_data or len(image_data) % _PIXELS:
        raise IsoconvError(
            f"Expected a multiple of {_PIXELS} bytes in {image_source}, images of 3 × 96 × 96. "
            f"Got {len(image_data)}: the file is truncated or corrupt. {DOWNLOAD_AGAIN}"
        )
    if len(label_data) != len(image_data) // _PIXELS:
        raise IsoconvError(
            f"Expected as many labels in {label_source} as images in {image_source}. "
            f"Got {len(label_data)} labels and {len(image_data) // _PIXELS} images."
        )
    labels = np.frombuffer(label_data, dtype=np.uint8)
    require_labels(labels, 1, 10, label_source)
    # Each channel lies there column by column.
    images = np.frombuffer(image_data, dtype=np.uint8).reshape(-1, 3, 96, 96).swapaxes(2, 3)
    return ImageSet(
        torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64) - 1), CLASSES, "stl10"
    )
