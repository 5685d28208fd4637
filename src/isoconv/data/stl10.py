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
from isoconv.data.resize import Size, resize
from isoconv.errors import IsoconvError

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")

_TRAIN = ("train_X.bin", "train_y.bin")
_TEST = ("test_X.bin", "test_y.bin")
_PLACES = ("stl10_binary", "")
_ARCHIVE = "stl10_binary.tar.gz"
_PIXELS = 3 * 96 * 96


def find_stl10(folder: Path) -> list[Finding]:
    """The unpacked training files, then the archive."""
    return [find_together(folder, _PLACES, _TRAIN), find_together(folder, ("",), (_ARCHIVE,))]


def read_stl10(folder: str | PathLike[str], size: Size | None = None) -> Splits:
    """The 5,000 training and 8,000 test images, (N, 3, 96, 96), from `folder`, its stl10_binary or stl10_binary.tar.gz.

    The test files may be missing; then only asking for the test set is an error. `size` resizes, see `resize`. The
    100,000 unlabelled images are not read.
    """
    folder = Path(folder)
    unpacked, packed = find_stl10(folder)
    if not unpacked.missing:
        place = unpacked.place
        test_files = find_together(place, ("",), _TEST)
        names = _TRAIN if test_files.missing else _TRAIN + _TEST
        if len(test_files.missing) == 1:
            raise IsoconvError(
                f"STL-10's test set is not complete in {place}: {test_files.missing[0]} is missing. "
                f"Add it, or remove {next(iter(test_files.found))} to do without the test set."
            )
        contents = {name: read_bytes(place / name) for name in names}
        sources = {name: str(place / name) for name in names}
        missing = f"{_TEST[0]} and {_TEST[1]} in {place}"
    elif not packed.missing:
        archive = packed.found[_ARCHIVE]
        inside = {f"stl10_binary/{name}": name for name in _TRAIN + _TEST}
        members = read_members(archive, list(inside))
        contents = {inside[member]: data for member, data in members.items()}
        sources = {name: f"{archive}:{member}" for member, name in inside.items()}
        missing = ""
    else:
        files = f"{', '.join(_TRAIN)} and {_ARCHIVE}"
        raise not_found("STL-10", folder, [unpacked, packed], _PLACES, files)
    train, test = (
        _decoded(*((contents[name], sources[name]) for name in part)) if part[0] in contents else None
        for part in (_TRAIN, _TEST)
    )
    assert train is not None
    why_no_test = f"STL-10's test set was not found: looked for {missing}. Add them, or use --download."
    splits = Splits(train, test, why_no_test)
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
