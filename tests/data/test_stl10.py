import numpy as np
import pytest

from data.fakes import stl10_files, write, write_tar
from isoconv.data import read_stl10, resize


@pytest.mark.parametrize("place", ["stl10_binary", "", "archive"])
def test_every_layout(tmp_path, place):
    files = stl10_files()
    if place == "archive":
        write_tar(tmp_path / "stl10_binary.tar.gz", {f"stl10_binary/{name}": data for name, data in files.items()})
    else:
        for name, data in files.items():
            write(tmp_path / place / name, data)
    train, test = read_stl10(tmp_path)
    assert (len(train), len(test), train.shape) == (5, 3, (3, 96, 96))
    assert train.labels.tolist() == [0, 1, 2, 3, 4]
    assert (train.classes[0], train.classes[7]) == ("airplane", "monkey")
    stored = np.frombuffer(files["train_X.bin"], dtype=np.uint8).reshape(5, 3, 96, 96)
    assert int(train.images[2, 1, 30, 7]) == stored[2, 1, 7, 30]  # column by column
    assert np.array_equal(train.images.numpy(), stored.transpose(0, 1, 3, 2))


def test_the_archive_is_read_no_further_than_needed(tmp_path):
    """The 2.6 GB of unlabelled images at its end need not even be there."""
    members = {f"stl10_binary/{name}": data for name, data in stl10_files().items()}
    noise = np.random.RandomState(0).bytes(1 << 22)
    archive = write_tar(tmp_path / "stl10_binary.tar.gz", {**members, "stl10_binary/unlabeled_X.bin": noise})
    archive.write_bytes(archive.read_bytes()[:-100])
    assert len(read_stl10(tmp_path).test) == 3


def test_without_the_test_files(tmp_path):
    for name, data in stl10_files().items():
        if name.startswith("train"):
            write(tmp_path / "stl10_binary" / name, data)
    splits = read_stl10(tmp_path, size=32)
    assert not splits.has_test
    assert splits.train.shape == (3, 32, 32)


def test_a_complete_archive_goes_before_an_unpacked_training_set(tmp_path):
    files = stl10_files()
    for name in ("train_X.bin", "train_y.bin"):
        write(tmp_path / "stl10_binary" / name, files[name])
    write_tar(tmp_path / "stl10_binary.tar.gz", {f"./stl10_binary/{name}": data for name, data in files.items()})
    assert len(read_stl10(tmp_path).test) == 3


def test_resized(tmp_path):
    for name, data in stl10_files().items():
        write(tmp_path / name, data)
    small, whole = read_stl10(tmp_path, size=(64, 48)), read_stl10(tmp_path)
    assert small.train.shape == small.test.shape == (3, 64, 48)
    assert np.array_equal(small.test.images.numpy(), resize(whole.test, (64, 48)).images.numpy())
