"""A run that was stopped and goes on is the run that was never stopped: the same weights, bit for bit, the same losses."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.files import read_tensors
from isoconv.train.classifier import TrainResult
from isoconv.train.engine import Stopped
from train.toys import Watcher, stop_after, toy_config, train_toy

METHODS: dict[str, dict[str, Any]] = {
    "bcop steepest": {},
    "bcop bjorck": {"optimiser": "adam", "orthogonalisation": "bjorck", "schedule": "exponential"},
    "bcop bf16": {"precision": "bf16"},
    "bcop-fixed": {"conv": "bcop-fixed"},
    "rko rmsprop": {"conv": "rko", "optimiser": "rmsprop"},
    "ossn": {"conv": "ossn", "optimiser": "adam"},
    "svcm": {"conv": "svcm", "optimiser": "adam", "project_every": 5, "project_iterations": 3},
    "rkl2ne": {"conv": "rkl2ne", "optimiser": "adam"},
    "augmented": {"flip": True, "crop_padding": 1, "loss": "cross-entropy", "schedule": "cosine"},
}


def same_weights(first: Path, second: Path) -> None:
    a, b = (read_tensors(folder / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), f"{name}: off by {(value - b[name]).abs().max()}"


def losses(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["loss"], line["accuracy"]) for line in lines]


def stop_and_go_on(path: Path, config: Any, stops: Sequence[int], **options: Any) -> None:
    """Stop after each of these numbers of further steps, then let it finish."""
    for k, steps in enumerate(stops):
        with pytest.raises(Stopped):
            train_toy(path, config, resume=k > 0, should_stop=stop_after(steps), **options)
        assert not (path / "model.safetensors").exists()
    train_toy(path, config, resume=True, **options)


@pytest.mark.parametrize("method", METHODS)
def test_stopped_in_the_middle_of_an_epoch(method, tmp_path):
    config = toy_config(**METHODS[method])
    train_toy(tmp_path / "whole", config)
    stop_and_go_on(tmp_path / "parts", config, [6])
    same_weights(tmp_path / "whole", tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert [epoch for epoch, _, _ in losses(tmp_path / "parts")] == [1, 2, 3]


@pytest.mark.parametrize("stops", [[1], [4], [12], [3, 2, 4], [11]], ids=str)
def test_stopped_anywhere_and_more_than_once(stops, tmp_path):
    """Four steps an epoch: 4 and 12 are the ends of epochs. The steps of a part are counted from its epoch's start."""
    config = toy_config(schedule="constant")
    train_toy(tmp_path / "whole", config)
    stop_and_go_on(tmp_path / "parts", config, stops)
    same_weights(tmp_path / "whole", tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_the_observer_counts_each_step_once(tmp_path):
    config, first, second = toy_config(), Watcher(), Watcher()
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", config, should_stop=stop_after(6), observer=first)
    train_toy(tmp_path / "run", config, resume=True, observer=second)
    assert (first.steps, second.steps) == (6, 6)
    assert [report.epoch for report in first.reports + second.reports] == [1, 2, 3]
    assert all(report.epochs == 3 for report in first.reports + second.reports)


def test_several_seeds_side_by_side_are_each_seed_alone(tmp_path):
    config = toy_config(flip=True)
    results = train_toy(tmp_path / "together", config, seeds=[3, 0, 5])
    assert [result.seed for result in results] == [3, 0, 5]
    for seed in (0, 3, 5):
        train_toy(tmp_path / f"alone-{seed}", toy_config(flip=True, seed=seed))
        same_weights(tmp_path / f"alone-{seed}", tmp_path / "together" / f"seed-{seed}")
        assert losses(tmp_path / f"alone-{seed}") == losses(tmp_path / "together" / f"seed-{seed}")


def test_seeds_that_were_saved_at_different_steps_draw_level(tmp_path):
    """As a kill between two files leaves them; one here is even an epoch ahead."""
    config = toy_config()
    train_toy(tmp_path / "whole", config, seeds=[0, 1])
    for seed, steps in ((0, 2), (1, 6)):
        with pytest.raises(Stopped):
            train_toy(tmp_path / f"alone-{seed}", replace(config, seed=seed), should_stop=stop_after(steps))
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / f"alone-{seed}").rename(tmp_path / "parts" / f"seed-{seed}")
    train_toy(tmp_path / "parts", config, seeds=[0, 1], resume=True)
    for seed in ("seed-0", "seed-1"):
        same_weights(tmp_path / "whole" / seed, tmp_path / "parts" / seed)
        assert losses(tmp_path / "whole" / seed) == losses(tmp_path / "parts" / seed)


def test_another_seed_gives_other_weights(tmp_path):
    for seed in (0, 1):
        train_toy(tmp_path / str(seed), toy_config(seed=seed, epochs=1))
    with pytest.raises(AssertionError):
        same_weights(tmp_path / "0", tmp_path / "1")


def test_the_same_seed_gives_the_same_weights_whatever_the_global_generator_did(tmp_path):
    for name in ("first", "second"):
        torch.manual_seed(len(name))
        train_toy(tmp_path / name, toy_config(epochs=1))
    same_weights(tmp_path / "first", tmp_path / "second")


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path):
    config = toy_config()
    (before,) = train_toy(tmp_path / "run", config)
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    (after,) = train_toy(tmp_path / "run", config, resume=True)
    assert {path.name for path in (tmp_path / "run").iterdir()} == files.keys()
    for name in ("config.json", "metrics.jsonl", "model.safetensors", "state.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == files[name], name
    assert (
        replace(after, finished="")
        == before
        == replace(TrainResult.read(tmp_path / "run" / "result.json"), finished="")
    )


@pytest.mark.parametrize("content", [b"", b"not tensors at all"])
def test_a_broken_state_is_named_in_one_line(content, tmp_path):
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(), should_stop=stop_after(2))
    (tmp_path / "run" / "state.safetensors").write_bytes(content)
    with pytest.raises(IsoconvError, match=r"state\.safetensors"):
        train_toy(tmp_path / "run", toy_config(), resume=True)


def test_the_state_of_another_network_is_refused_by_a_run(tmp_path):
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(conv="standard"), should_stop=stop_after(2))
    with pytest.raises(IsoconvError, match="state of this network"):
        train_toy(tmp_path / "run", toy_config(), resume=True)
