"""For the tests of the command: a folder of tiny pictures, and the command itself in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image

from isoconv.cli import main


class Outcome(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 pictures of 8×8 in four classes of brightness: 64 to train and 16 to test."""
    folder = tmp_path_factory.mktemp("pictures") / "data"
    generator = torch.Generator().manual_seed(0)
    for k in range(80):
        pixels = torch.randint(0, 60, (8, 8), generator=generator) + 60 * (k % 4)
        path = folder / "abcd"[k % 4] / f"{k:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    return folder


@pytest.fixture
def isoconv(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`isoconv("train", …)` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isoconv", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
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
