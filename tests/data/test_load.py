import numpy as np
import pytest
import torch

from data.fakes import random_bytes, save_picture, write, write_mnist
from isoconv.data import DATASETS, OWN_IMAGES, DataSet, load_splits
from isoconv.data.datasets import Version
from isoconv.errors import IsoconvError


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


def test_a_new_data_set_is_one_record_and_its_decoder(tmp_path, monkeypatch):
    version = Version((("some.raw",), ("more.raw",)), (("test.raw",),), ("toys", ""), f"{__name__}:decode_toy")
    record = DataSet(name="toy", title="Toy", shape=(1, 2, 2), classes=("a", "b"), versions=(version,))
    monkeypatch.setitem(DATASETS, "toy", record)
    for name, count in (("some", 3), ("more", 2), ("test", 4)):
        write(tmp_path / "toys" / f"{name}.raw", bytes(range(4 * count)))
    train, test = load_splits("toy", tmp_path)
    assert train.images.flatten().tolist() == [*range(12), *range(8)]
    assert (len(test), test.labels.tolist()) == (4, [0, 1, 0, 1])
    assert DATASETS["toy"].margin == OWN_IMAGES.margin


def decode_toy(record, files):
    images = files[0].to_array(-1, *record.shape)
    return images, np.arange(len(images)) % 2
