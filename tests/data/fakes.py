"""Small data sets in the form of the official files."""

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from isoconv.data import DATASETS, DataSet, ImageSet

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def random_bytes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def image_set(n: int = 20, shape: tuple[int, int, int] = (3, 8, 6), classes: int = 4, seed: int = 0) -> ImageSet:
    labels = torch.arange(n) % classes
    return ImageSet(torch.from_numpy(random_bytes(n, *shape, seed=seed)), labels, tuple("abcdefghij"[:classes]), "fake")


def save_picture(path: Path, array: np.ndarray | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5), 9, dtype=np.uint8) if array is None else array).save(path, **options)
    return path


def write(path: Path, data: bytes, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return True if two lists of batches hold the same tensors."""
    return len(a) == len(b) and all(map(torch.equal, chain(*a), chain(*b)))


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool = True, train: int = 12, test: int = 7) -> dict[str, np.ndarray]:
    """Write the four files into `folder`; return what is in them."""
    contents = {}
    for part, n in (("train", train), ("t10k", test)):
        contents[f"{part}-images-idx3-ubyte"] = random_bytes(n, 28, 28, seed=n)
        contents[f"{part}-labels-idx1-ubyte"] = (np.arange(n) % 10).astype(np.uint8)
    for name, array in contents.items():
        write(folder / (name + ".gz" * packed), idx(array), packed)
    return contents


def cifar_parts(name: str) -> dict[str, tuple[np.ndarray, ...]]:
    """Return pixels, labels and, of CIFAR-100, coarse labels, by the file that they are in."""
    if name == "cifar10":
        labels = [((np.arange(4) + k) % 10).astype(np.uint8) for k in range(6)]
        return {file: (random_bytes(4, 3072, seed=k), labels[k]) for k, file in enumerate(BATCHES)}
    counts = {"train": np.arange(6, dtype=np.uint8), "test": np.arange(3, dtype=np.uint8)}
    return {part: (random_bytes(len(n), 3072, seed=len(n)), n * 16 + 3, n) for part, n in counts.items()}


def cifar_pickle(pixels: np.ndarray, labels: np.ndarray, *coarse: np.ndarray, fortran: bool = False) -> bytes:
    """As Python 2 and its numpy wrote it, in protocol 2, where strings are bytes."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = pixels.tobytes("F" if fortran else "C")
    names = (b"fine_labels", b"coarse_labels") if coarse else (b"labels",)
    listed = b"".join(
        text(name) + b"](" + b"".join(b"K" + bytes([int(n)]) for n in values) + b"e"
        for name, values in zip(names, (labels, *coarse), strict=True)
    )
    shape = b"".join(b"M" + struct.pack("<H", n) for n in pixels.shape) + b"\x86"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R("
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    order = b"\x88" if fortran else b"\x89"
    array = made + b"K\x01" + shape + dtype + order + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    label = text(b"batch_label") + text(b"training batch 1 of 5")
    return b"\x80\x02}(" + label + listed + text(b"data") + array + b"u."


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write_tar(path: Path, members: dict[str, bytes], form: str = "pax") -> Path:
    """Write a tar file, compressed if its name says so, with times that are fractions: pax has attributes for these."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=FORMATS[form]) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.7e9 + (0.5 if form == "pax" else 0)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_cifar(folder: Path, name: str, form: str) -> tuple[Path, DataSet]:
    """Write one of the forms bin, py, bin.tar.gz, py.tar.gz; return where, and the record of these files."""
    files = {}
    for file, (pixels, *labels) in cifar_parts(name).items():
        rows = np.concatenate([*(column[:, None] for column in labels[::-1]), pixels], axis=1)
        files |= {f"{file}.bin": rows.tobytes()} if form.startswith("bin") else {file: cifar_pickle(pixels, *labels)}
    record, sums = DATASETS[name], {file: md5(data) for file, data in files.items()}
    version = record.versions[form.startswith("py")]
    path, counts = folder / version.folders[0], {f"{file}.bin": len(x[0]) for file, x in cifar_parts(name).items()}
    if form.endswith(".tar.gz"):
        members = {f"{path.name}/{file}": data for file, data in {"readme.html": b"hello", **files}.items()}
        path = write_tar(folder / version.archive, members)
        sums[path.name] = md5(path.read_bytes())
    else:
        for file, data in files.items():
            write(path / file, data)
    return path, replace(record, images_per_file=counts, md5=sums)


WNIDS = ("n01443537", "n01629819", "n02123045")


def write_tiny_imagenet(folder: Path) -> DataSet:
    """Write three classes in the layout of Tiny-ImageNet, each of its own brightness; return the record of these."""
    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            path = folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            save_picture(path, np.full((64, 64, 3), 80 * k, np.uint8))
        write(folder / "train" / wnid / f"{wnid}_boxes.txt", b"")
        save_picture(folder / "val" / "images" / f"val_{k}.JPEG", np.full((64, 64), 80 * k, np.uint8))  # some are grey
    lines = "".join(f"val_{k}.JPEG\t{wnid}\t0\t0\t63\t63\n" for k, wnid in enumerate(WNIDS))
    (folder / "val" / "val_annotations.txt").write_text(lines)
    save_picture(folder / "test" / "images" / "test_0.JPEG", np.full((64, 64, 3), 9, np.uint8))
    return replace(DATASETS["tiny-imagenet"], class_count=3)


def write_imagenet(folder: Path) -> DataSet:
    """Write three classes in the layout of ImageNet, pictures of many sizes; return the record of these."""
    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            array = np.full((30 + 7 * i, 40 - k, 3), 80 * k, np.uint8)
            save_picture(folder / "train" / wnid / f"{wnid}_{i}.JPEG", array)
        save_picture(folder / "val" / wnid / f"ILSVRC2012_val_{k:08}.JPEG", np.full((50, 20, 3), 80 * k, np.uint8))
    return replace(DATASETS["imagenet"], class_count=3)


def stl10_files(*without: str) -> dict[str, bytes]:
    files = {}
    for part, n in (("train", 5), ("test", 3)):
        files[f"{part}_X.bin"] = random_bytes(n, 3, 96, 96, seed=n).tobytes()
        files[f"{part}_y.bin"] = bytes(range(1, n + 1))
    return {name: data for name, data in files.items() if name not in without}


def write_stl10(folder: Path, *without: str) -> None:
    for name, data in stl10_files(*without).items():
        write(folder / name, data)


def write_stl10_archive(folder: Path, prefix: str = "", **more: bytes) -> Path:
    members = {f"{prefix}stl10_binary/{name}": data for name, data in (stl10_files() | more).items()}
    return write_tar(folder / "stl10_binary.tar.gz", members)
