"""A run that was stopped and goes on is the run that was never stopped: the same weights, bit for bit, the same losses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.train.classifier import TrainResult
from isoconv.train.engine import Stopped
from train.toys import Watcher, losses, same_run, stop_after, toy_config, train_toy

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
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    assert [epoch for epoch, _, _ in losses(tmp_path / "parts")] == [1, 2, 3]


@pytest.mark.parametrize("stops", [[1], [4], [12], [3, 2, 4], [11]], ids=str)
def test_stopped_anywhere_and_more_than_once(stops, tmp_path):
    """Four steps an epoch: 4 and 12 are the ends of epochs. The steps of a part are counted from its epoch's start."""
    config = toy_config(schedule="constant")
    train_toy(tmp_path / "whole", config)
    stop_and_go_on(tmp_path / "parts", config, stops)
    assert same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_observer_counts_each_step_once(tmp_path):
    config, first, second = toy_config(), Watcher(), Watcher()
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", config, should_stop=stop_after(6), observer=first)
    train_toy(tmp_path / "run", config, resume=True, observer=second)
    assert (first.steps, second.steps) == (6, 6)
    assert [report.epoch for report in first.reports + second.reports] == [1, 2, 3]
    assert all(report.epochs == 3 for report in first.reports + second.reports)


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
        assert same_run(tmp_path / "whole" / seed, tmp_path / "parts" / seed)


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


def test_a_broken_state_or_that_of_another_network_is_named(tmp_path):
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(conv="standard"), should_stop=stop_after(2))
    with pytest.raises(IsoconvError, match=r"^Expected a saved state of this network[^\n]*$"):
        train_toy(tmp_path / "run", toy_config(), resume=True)
    for content in (b"", b"not tensors at all"):
        (tmp_path / "run" / "state.safetensors").write_bytes(content)
        with pytest.raises(IsoconvError, match=r"state\.safetensors"):
            train_toy(tmp_path / "run", toy_config(conv="standard"), resume=True)


@pytest.mark.parametrize("method", ["augmented", "svcm"])
def test_seeds_side_by_side_are_each_seed_alone_whatever_the_global_generator_did(method, tmp_path):
    results = train_toy(tmp_path / "together", toy_config(**METHODS[method]), seeds=[3, 0, 5])
    assert [result.seed for result in results] == [3, 0, 5]
    for seed in (0, 3, 5):
        torch.manual_seed(seed)
        train_toy(tmp_path / f"alone-{seed}", toy_config(**METHODS[method], seed=seed))
        assert same_run(tmp_path / f"alone-{seed}", tmp_path / "together" / f"seed-{seed}")
    assert not same_run(tmp_path / "alone-0", tmp_path / "alone-3")
