"""CIFAR-10, from its binary or its python version, unpacked or in the archive as it was downloaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from isoconv.data.cifar10_python import unpickle_batch
from isoconv.data.files import (
    DOWNLOAD_AGAIN,
    Bytes,
    Finding,
    find_together,
    md5,
    md5_of_file,
    not_found,
    read_bytes,
    read_members,
    require_labels,
)
from isoconv.data.image_set import ImageSet, Splits
from isoconv.errors import IsoconvError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar10Release:
    """What the files of a release must be. There is one; tests make small ones."""

    images_per_batch: int
    python_md5: Mapping[str, str]
    archive_md5: Mapping[str, str]


OFFICIAL = Cifar10Release(
    images_per_batch=10_000,
    python_md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    archive_md5={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    },
)


@dataclass(frozen=True)
class _Version:
    places: tuple[str, ...]
    names: tuple[str, ...]
    archive: str
    folder_in_archive: str
    decode: Callable[[bytes, str, str, Cifar10Release], tuple[Bytes, Bytes]]


def find_cifar10(folder: Path) -> list[Finding]:
    """One finding for each way in which the set may lie there, in the order of preference."""
    findings = [find_together(folder, version.places, version.names) for version in _VERSIONS]
    return findings + [find_together(folder, ("",), (version.archive,)) for version in _VERSIONS]


def read_cifar10(folder: str | PathLike[str], release: Cifar10Release = OFFICIAL) -> Splits:
    """The training and the test images, (N, 3, 32, 32), from `folder` or its cifar-10-batches-bin or -py.

    Also from cifar-10-binary.tar.gz or cifar-10-python.tar.gz, which are read as they are. The python version is
    pickles, and is only read if each file's md5 is the official one.
    """
    folder = Path(folder)
    findings = find_cifar10(folder)
    for version, finding in zip(_VERSIONS * 2, findings, strict=True):
        if finding.missing:
            continue
        if version.archive in finding.found:
            batches = _read_archive(finding.found[version.archive], version, release)
        else:
            batches = [(read_bytes(path), str(path)) for path in finding.found.values()]
        parts = [
            version.decode(data, name, source, release)
            for (data, source), name in zip(batches, version.names, strict=True)
        ]
        return Splits(_joined(parts[:-1]), _joined(parts[-1:]))
    places = [place for version in _VERSIONS for place in version.places]
    files = f"{', '.join(version.names[0] + ' …' for version in _VERSIONS)} and {', '.join(release.archive_md5)}"
    raise not_found("CIFAR-10", folder, findings, places, files)


def _read_archive(archive: Path, version: _Version, release: Cifar10Release) -> list[tuple[bytes, str]]:
    """The contents of each batch, and how to name it in an error."""
    if (found := md5_of_file(archive)) != release.archive_md5[version.archive]:
        raise IsoconvError(
            f"{archive} is truncated or corrupt: its md5 is {found}, the official one is "
            f"{release.archive_md5[version.archive]}. {DOWNLOAD_AGAIN}"
        )
    names = [f"{version.folder_in_archive}/{name}" for name in version.names]
    members = read_members(archive, names)
    return [(members[name], f"{archive}:{name}") for name in names]


def _decode_binary(data: bytes, name: str, source: str, release: Cifar10Release) -> tuple[Bytes, Bytes]:
    size = release.images_per_batch * (1 + _PIXELS)
    if len(data) != size:
        raise IsoconvError(
            f"Expected {size} bytes in {source}, {release.images_per_batch} images. "
            f"Got {len(data)}: the file is truncated or corrupt. {DOWNLOAD_AGAIN}"
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    require_labels(rows[:, 0], 0, 9, source)
    return rows[:, 1:], rows[:, 0]


def _decode_python(data: bytes, name: str, source: str, release: Cifar10Release) -> tuple[Bytes, Bytes]:
    if (found := md5(data)) != release.python_md5[name]:  # see Note [Pickle]
        raise IsoconvError(
            f"{source} is a pickle and not the official one, so it is not opened: its md5 is {found}, the official one "
            f"is {release.python_md5[name]}. {DOWNLOAD_AGAIN}"
        )
    return unpickle_batch(data)


def _joined(parts: list[tuple[Bytes, Bytes]]) -> ImageSet:
    images = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), CLASSES, "cifar10")


_VERSIONS = (
    _Version(
        ("cifar-10-batches-bin", ""),
        tuple(f"{name}.bin" for name in _BATCHES),
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        _decode_binary,
    ),
    _Version(("cifar-10-batches-py", ""), _BATCHES, "cifar-10-python.tar.gz", "cifar-10-batches-py", _decode_python),
)
