"""isoconv train: what it prints and where, what it leaves, how it stops and goes on."""

import json
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from data.fakes import write_mnist
from isoconv.cli.output import TrainingProgress
from isoconv.files import read_json, read_tensors
from isoconv.nn.methods import METHODS
from isoconv.train.engine import EpochReport
from isoconv.train.run_folder import load_run

TINY = ["--model", "small", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]


def test_progress_on_stderr_and_a_table_on_stdout(isoconv, pictures):
    pytest.importorskip("tensorboard")
    outcome = isoconv("train", pictures, "--out", "run", "--tensorboard", *TINY)
    (events,) = Path("run").glob("events.out.tfevents.*")
    assert outcome.code == 0 and events.stat().st_size > 100
    read, *lines = outcome.err.splitlines()
    for part in (str(pictures), "64 images", "16 held out", "4 classes", "8×8 in grey"):
        assert part in read
    assert [line.split("  ")[0] for line in lines[:2]] == ["epoch 1/2", "epoch 2/2"]
    assert all("loss" in line and "images/s" in line and "s left" in line for line in lines[:2])
    assert lines[2].endswith("isoconv report run") and len(lines) == 3
    for heading in ("clean %", "36/255", "0.1", "Lipschitz bound"):
        assert heading in outcome.out
    assert "epoch 1/2" not in outcome.out
    assert {path.name for path in Path("run").iterdir()} == {
        "config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json", events.name,
    }  # fmt: skip


def test_progress_on_a_terminal_is_one_line_that_ends_with_the_last_epoch(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with TrainingProgress(4) as progress:
        for epoch in (1, 2):
            progress.step(1)
            progress.step(1)
            progress.epoch(EpochReport(epoch, 2, {"loss": 0.5 / epoch, "accuracy": 90.0}, 1e4, 3.0))
    *_, before, last = capsys.readouterr().err.split("\r")
    assert before.startswith("[############    ] training: epoch 1/2  loss 0.5000")
    assert before.rstrip().endswith("s left")
    assert last.startswith("[################] training: epoch 2/2  loss 0.2500") and last.endswith("\n")


def test_several_seeds_have_a_folder_each_and_a_mean(isoconv, pictures):
    outcome = isoconv("train", pictures, "--out", "run", "--seeds", "0,3", "--epsilon", "36/255", *TINY)
    assert outcome.code == 0 and all(word in outcome.out for word in ("seed", "mean", "±", "36/255"))
    assert sorted(path.name for path in Path("run").iterdir()) == ["seed-0", "seed-3"]
    assert read_json(Path("run/seed-3/config.json"))["seed"] == 3
    assert [row["seed"] for row in isoconv("certify", "run", "--json").json] == [0, 3]
    assert all(Path(f"run/seed-{seed}/certified.json").exists() for seed in (0, 3))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"activation": "relu", "optimiser": "rmsprop", "lr": 0.002, "schedule": "cosine", "loss": "cross-entropy",
          "temperature": 0.5, "offset": 0.3, "orthogonalisation": "bjorck", "precision": "bf16",
          "conv": "rko"}, {"epochs": 2, "batch_size": 16, "model": "small"}),
        ({"augment": "0.5,0.25", "resized-crop": "0.3", "rand-augment": "2,12", "colour-jitter": "0.4"},
         {"augment": [0.5, 0.25], "resized_crop": [0.3, 1.0], "rand_augment": [2, 12.0], "colour_jitter": [0.4] * 3,
          "crop_padding": 0}),
        ({"recipe": "paper", "loss-option": "margin=0.7"},
         {"optimiser": "adam", "orthogonalisation": "bjorck", "loss_options": {"margin": 0.7}}),
        ({"loss": "hinge", "margin": 0.9}, {}),
    ],
    ids=["each", "augmented", "recipe", "hinge"],
)  # fmt: skip
def test_options_reach_the_configuration(isoconv, pictures, options, expected):
    words = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert isoconv("train", pictures, "--out", "run", *words, *TINY).code == 0
    config = read_json(Path("run/config.json"))
    options = {name: value for name, value in options.items() if "-" not in name and name not in expected}
    assert {name: config[name] for name in (*options, *expected)} == options | expected


def test_digits_with_a_rate_that_is_searched(isoconv):
    words = ["--size", "8", "--epochs", "1", "--batch-size", "500", "--optimiser", "adam", "--search", "1e-8,1e-2"]
    outcome = isoconv("train", "digits", "--model", "small", *words, "--out", "run", "--json")
    tried = [line for line in outcome.err.splitlines() if "validation" in line]
    assert len(tried) == 2 and "lr 1e-08" in tried[0] and "lr 0.01" in tried[1]
    assert ["chosen" in line for line in tried] == [False, True]
    assert isoconv("train", "digits", "--search", "0.1", "--lr", "0.1").is_refused("--search", "--lr")
    assert isoconv("train", "--resume", "--out", "run", "--epsilon", "0.3").code == 0
    refused = isoconv("train", "--resume", "--out", "run", "--epsilon", "0.5")
    assert refused.code == 2 and "the finished run, [1.58, 0.3]" in refused.err
    (result,), saved, config = outcome.json, read_json(Path("run/result.json")), load_run("run")[1]
    assert result["images"] == 1000 and result["robust"].keys() == {"1.58", "0.3"}
    assert {name: saved[name] for name in result} == result
    assert (config.lr, config.input_shape, config.classes) == (1e-2, (1, 8, 8), tuple("0123456789"))


def test_a_method_that_was_added_is_known_to_the_command(isoconv, pictures, monkeypatch):
    monkeypatch.setitem(METHODS, "toy", replace(METHODS["rko"], name="toy"))
    monkeypatch.delitem(sys.modules, "isoconv.cli.train")
    assert "toy" in isoconv("train", "--help").out
    assert isoconv("train", pictures, "--out", "run", "--conv", "toy", *TINY).code == 0


# Stopping -----------------------------------------------------------------------------------------------------------


def let_it_train(start, pictures, *options):
    """Start a long run and let it get some epochs done."""
    run = start("train", pictures, "--model", "small", "--batch-size", "16", "--device", "cpu", *options)
    for line in run.stderr:
        if line.startswith("epoch 3/"):
            break
    return run


def resume_command(err: str) -> list[str]:
    (line,) = (line for line in err.splitlines() if line.startswith("Stopped"))
    return shlex.split(line[line.index("isoconv train") :])


def epochs_in(run: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_signal_saves_and_says_how_to_go_on(start, isoconv, pictures, tmp_path):
    process = let_it_train(start, pictures, "--epochs", "60", "--out", "run", "--seeds", "4")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130 and out == "" and "Traceback" not in err
    done = int(read_tensors(tmp_path / "run" / "state.safetensors")["progress/done"])
    assert 12 <= done < 240
    again = isoconv(*resume_command(err)[1:])
    assert again.code == 0 and epochs_in(tmp_path / "run") == list(range(1, 61)), again.err


def test_the_command_to_go_on_is_quoted_and_the_radii_are_those_that_are_asked_for(isoconv, tmp_path, monkeypatch):
    write_mnist(tmp_path / "else where", train=32, test=10)
    with monkeypatch.context() as patch:  # like Ctrl-C in the first step
        patch.setattr(TrainingProgress, "step", lambda self, steps: signal.raise_signal(signal.SIGINT))
        outcome = isoconv("train", "mnist", "--data", "else where", "--out", "my run", "--seeds", "1,2", *TINY)
    assert outcome.code == 130
    words = [*resume_command(outcome.err)[1:], "--json"]
    again = isoconv(*words, "--epsilon", "0.2").json
    assert [result["robust"].keys() for result in again] == [{"0.2"}, {"0.2"}]
    second = isoconv(*words)  # finished: its results
    assert "4 of 4 steps" in second.err
    assert [(x["clean"], x["robust"]) for x in again] == [(x["clean"], x["robust"]) for x in second.json]
