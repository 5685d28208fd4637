import numpy as np
import pytest

from data.fakes import idx, random_bytes, write, write_mnist
from isoconv.data import read_mnist


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["MNIST/raw", "raw", "", "MNIST"])
def test_every_layout(tmp_path, place, packed):
    contents = write_mnist(tmp_path / place, packed)
    train, test = read_mnist(str(tmp_path))
    assert train.shape == test.shape == (1, 28, 28)
    assert train.classes == tuple("0123456789")
    assert train.name == "mnist"
    for part, images in (("train", train), ("t10k", test)):
        assert np.array_equal(images.images[:, 0].numpy(), contents[f"{part}-images-idx3-ubyte"])
        assert np.array_equal(images.labels.numpy(), contents[f"{part}-labels-idx1-ubyte"])


def test_packed_and_unpacked_files_together(tmp_path):
    contents = write_mnist(tmp_path, packed=True)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    write(tmp_path / "train-images-idx3-ubyte", idx(contents["train-images-idx3-ubyte"]))
    assert len(read_mnist(tmp_path).train) == 12


def test_two_copies_are_not_mixed(tmp_path):
    """A part of another set lies in the first place that is looked at."""
    contents = write_mnist(tmp_path)
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", idx(random_bytes(12, 28, 28, seed=99)), packed=True)
    assert np.array_equal(read_mnist(tmp_path).train.images[:, 0].numpy(), contents["train-images-idx3-ubyte"])


def test_other_sizes_are_read_from_the_header(tmp_path):
    for part in ("train", "t10k"):
        write(tmp_path / f"{part}-images-idx3-ubyte", idx(random_bytes(3, 20, 16)))
        write(tmp_path / f"{part}-labels-idx1-ubyte", idx(np.array([9, 0, 5], dtype=np.uint8)))
    assert read_mnist(tmp_path).train.shape == (1, 20, 16)
