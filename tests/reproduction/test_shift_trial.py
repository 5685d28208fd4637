"""Weights of results/shift/trial.py, made a run: the same function as the trial's own."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.models import MODELS
from isoconv.models.catalogue import Model
from isoconv.train.config import CLASSIFIERS
from isoconv.train.run_folder import load_run

FOLDER = Path(__file__).resolve().parents[2] / "results" / "shift"


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Train a tiny network by the trial's script, and return what the script has defined."""
    draw = np.random.default_rng(0)
    pictures, labels = draw.integers(0, 256, (192, 3, 32, 32), np.uint8), draw.integers(0, 10, 192)
    np.savez(tmp_path / "data.npz", a=pictures[:128], b=labels[:128], c=pictures[128:], d=labels[128:])
    options = ["--stages", "16x16x2,8x64x1", "--epochs", "2", "--batch", "32", "--lr", "0.02", "--evals", "1"]
    options += ["--data", str(tmp_path / "data.npz"), "--save", str(tmp_path / "weights" / "w")]
    (tmp_path / "weights").mkdir()
    monkeypatch.setattr(sys, "argv", ["trial.py", *options])
    return runpy.run_path(str(FOLDER / "trial.py"))


def run_script(*arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["from_trial.py", *map(str, arguments)])
    return runpy.run_path(str(FOLDER / "from_trial.py"), run_name="__main__")


def test_the_run_computes_what_the_trial_computed(trial, tmp_path, monkeypatch):
    sizes = {"channels": 64, "blocks": (2, 1)}
    tiny = Model("tiny", "", "isoconv.models.shift:ShiftNet", "", has_methods=False, options=sizes)
    for records in (MODELS, CLASSIFIERS):
        monkeypatch.setitem(records, "tiny", tiny)
    (file,) = (tmp_path / "weights").iterdir()
    weights, parts = torch.load(file, weights_only=True), tmp_path / "parts"
    parts.mkdir()
    first, *others = weights.pop("R0.0").split(1)
    torch.save(weights | {f"R0.{k}": part for k, part in enumerate(others, 1)}, parts / "a.pt")
    np.savez(parts / "b.npz", **{"R0.0": first.numpy()})
    x = torch.rand(4, 3, 32, 32)
    _, retracted = trial["evaluate"](True)
    with torch.no_grad():
        expected = trial["net"](retracted, x.permute(0, 2, 3, 1), False)
    for k, source in enumerate((file, tmp_path / "weights", parts)):
        run_script(source, tmp_path / f"run{k}", monkeypatch=monkeypatch)
        model, config = load_run(tmp_path / f"run{k}")
        assert config.model == "tiny" and config.data == "cifar10"
        with torch.no_grad():
            assert torch.allclose(model(x), expected, atol=1e-4)  # with 1e-6 more under the trial's roots
        assert lipschitz_bound(model, (3, 32, 32)).value <= 1.001
    (parts / "b.npz").unlink()
    with pytest.raises(IsoconvError, match="all parts of R0"):
        run_script(parts, tmp_path / "none", monkeypatch=monkeypatch)
