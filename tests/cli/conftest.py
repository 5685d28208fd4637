"""For the tests of the command: tiny pictures, runs on them, and the command itself in this process or one of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isoconv.cli import main
from isoconv.data import load_splits
from isoconv.train import RunFolder, TrainConfig, train
from isoconv.train.config import make_model
from train.toys import write_pictures


class Outcome(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What `--json` has printed, without any failure."""
        assert self.code == 0 and self.out.count("\n") == 1, self
        return json.loads(self.out)

    def is_refused(self, *named: object, code: int = 2) -> bool:
        """Return True if it failed with one line on stderr, which names these things, and nothing on stdout."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("isoconv: ") and self.err.count("\n") == 1, self.err
        return all(str(thing) in self.err for thing in named)


def files_in(place: Path) -> dict[str, bytes]:
    """Read every file, by means that no test breaks."""
    contents = {}
    for path in (os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names):
        with open(path, "rb") as content:
            contents[path] = content.read()
    return contents


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 pictures of 8×8 in four classes of brightness: 64 to train and 16 to test."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "data")


@pytest.fixture(scope="session")
def made(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has not been trained but looks as if, beside its pictures in `pics` and one in `photo.png`."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(pictures, folder / "pics")
    shutil.copy(pictures / "a" / "000.png", folder / "photo.png")
    listing = load_splits(folder / "pics").listing
    fields = {"data": "pics", "input_shape": (1, 8, 8), "classes": tuple("abcd"), "listing": listing}
    config = TrainConfig(**fields, model="small", epochs=1, batch_size=16, seed=7)
    run = RunFolder(folder / "run-7")
    run.start(config, overwrite=False)
    run.finish(make_model(config), {"seed": 7})
    run.unlock()
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    """A copy of what `made` has, in the folder that commands are run in."""
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.fixture(scope="session")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    train(str(pictures), out, model="small", batch_size=16, epochs=8, device="cpu")
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def isoconv(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`isoconv("train", …)` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isoconv", *map(str, arguments)])
        capfd.readouterr()
        code, on_end = 0, signal.getsignal(signal.SIGTERM)
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        signal.signal(signal.SIGTERM, on_end)  # a process that is about to end may ignore it
        return Outcome(code, *capfd.readouterr())

    return command


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """`start("train", …)` in a process of its own, in an empty folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}

    def command(*arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "isoconv", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return command
