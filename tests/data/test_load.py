import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from data.fakes import random_bytes, write, write_mnist
from isoconv.data import DATASETS, NAMES, OWN_IMAGES, DataSet, load_splits
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
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            image.fromarray(random_bytes(9, 9, seed=i)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "list.CSV").write_text("\n".join(f"a/{i}.png,{i % 2}" for i in range(4)))
    options = {"size": 5, "channels": 3, "test_fraction": 0.5, "seed": 1}
    splits, lazy = load_splits(tmp_path, **options), load_splits(tmp_path, **options, lazy=True)
    assert (splits.train.shape, len(splits.test)) == ((3, 5, 5), 4)
    assert torch.equal(lazy.test.images, splits.test.images)
    assert torch.equal(lazy.train.images, splits.train.images)
    assert lazy.listing == splits.listing
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


def test_what_the_records_say():
    assert NAMES == tuple(DATASETS) == ("digits", "mnist", "cifar10", "stl10")
    assert [DATASETS[name].epsilons for name in NAMES] == [(1.58, 0.3)] * 2 + [(36 / 255, 0.1)] * 2
    assert [DATASETS[name].margin for name in NAMES] == [1.5 * math.sqrt(2)] * 2 + [0.5 * math.sqrt(2)] * 2
    assert [(DATASETS[name].crop_padding, DATASETS[name].flip) for name in NAMES] == [(0, False)] * 2 + [(4, True)] * 2
    own = OWN_IMAGES.epsilons, OWN_IMAGES.margin, OWN_IMAGES.crop_padding, OWN_IMAGES.flip
    assert own == ((36 / 255, 0.1), 0.5 * math.sqrt(2), 0, True)
    cifar10 = DATASETS["cifar10"]
    assert cifar10.images_per_file * 3073 == 30_730_000
    assert set(cifar10.md5) >= {*cifar10.versions[1].names, *(version.archive for version in cifar10.versions)}
    assert all(len(md5) == 32 for md5 in cifar10.md5.values())


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("from isoconv.data import DATASETS, NAMES, ProgressLine", ("torch", "numpy")),
        ("from isoconv.data import load_splits, EpochBatches", ("PIL", "pooch", "requests", "mlxtend")),
    ],
)
def test_importing_needs_little(statement, unwanted):
    code = f"import sys; {statement}; print([m for m in {unwanted} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
