"""A shift network through all commands: trained, certified, checked, attacked, exported, shown, resumed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from certify.certificates import check
from isoconv.models import MODELS
from isoconv.train.config import CLASSIFIERS


@pytest.fixture
def small(monkeypatch):
    """Make the preset smaller, so that the tests are fast."""
    record = replace(MODELS["shift-s"], options={"channels": 32, "blocks": (1, 1)})
    for records in (MODELS, CLASSIFIERS):
        monkeypatch.setitem(records, "shift-s", record)


def test_every_command(isoconv, pictures, small):
    train = isoconv("train", pictures, "--model", "shift-s", "--epochs", 1, "--out", "run", "--device", "cpu")
    assert train.code == 0 and "shift-s" in train.out, train
    config = json.loads(Path("run/config.json").read_text())
    assert (config["lr"], config["batch_size"] < 64) == (0.003, True)  # the recipe's, for a small data set
    assert isoconv("certify", "run", "--certificate", "c.jsonl", "--device", "cpu").code == 0
    certified = json.loads(Path("run/certified.json").read_text())
    assert certified["lipschitz_bound"] <= 1.001 and certified["images"] == 16
    assert check(["c.jsonl", "run"]) == 0
    attack = isoconv("attack", "run", "--steps", 3, "--images", 4, "--attack", "pgd", "--attack", "rounding", "--json")
    assert attack.code == 0 and {row["attack"]: row["violations"] for row in json.loads(attack.out)} == {
        "pgd": 0,
        "rounding": 0,
    }
    assert isoconv("export", "run", "--format", "torch", "--out", "net.safetensors").code == 0
    assert check(["c.jsonl", "net.safetensors"]) == 0
    assert isoconv("report", "run").code == 0
    shutil.move("run/result.json", "result.json")
    again = isoconv("train", "--resume", "--out", "run", "--device", "cpu", "--json")
    assert again.code == 0 and json.loads(again.out)[0]["clean"] == json.loads(Path("result.json").read_text())["clean"]


@pytest.mark.parametrize("option", [("--conv", "rko"), ("--activation", "relu")])
def test_methods_do_not_concern_it(option, isoconv, pictures):
    assert isoconv("train", pictures, "--model", "shift-m", *option, "--out", "run").is_refused("shift-m", option[1])
    assert not Path("run").exists()
