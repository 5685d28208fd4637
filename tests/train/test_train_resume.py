"""A run that was stopped and goes on is the run that was never stopped: the same weights, bit for bit, the same losses."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.train import train
from isoconv.train.classifier import TrainResult
from isoconv.train.config import TrainConfig
from isoconv.train.engine import Stopped
from train.toys import Watcher, losses, same_run, stop_after, toy_config, train_toy

SVCM: dict[str, Any] = {"conv": "svcm", "optimiser": "adam", "project_every": 5, "project_iterations": 3}
AUGMENTED: dict[str, Any] = {"flip": True, "crop_padding": 1, "loss": "cross-entropy", "schedule": "cosine"}
BJORCK: dict[str, Any] = {"optimiser": "adam", "orthogonalisation": "bjorck", "schedule": "exponential"}
# Four steps an epoch: 4 and 12 are the ends of epochs. The steps of a part are counted from where it begins.
CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [6]),
    ({"schedule": "constant"}, [3, 2, 4]),
    (BJORCK, [12]),
    ({"precision": "bf16"}, [1]),
    ({"conv": "bcop-fixed"}, [11]),
    ({"conv": "rko", "optimiser": "rmsprop"}, [6]),
    ({"conv": "ossn", "optimiser": "adam"}, [4]),
    (SVCM, [6]),
    (AUGMENTED, [6, 1]),
]


@pytest.mark.parametrize(("options", "stops"), CASES, ids=str)
def test_stopped_anywhere_and_more_than_once(options, stops, tmp_path):
    config, watchers = toy_config(**options), [Watcher() for _ in (*stops, 0)]
    train_toy(tmp_path / "whole", config)
    for k, steps in enumerate(stops):
        with pytest.raises(Stopped):
            train_toy(tmp_path / "parts", config, resume=k > 0, should_stop=stop_after(steps), observer=watchers[k])
        assert not (tmp_path / "parts" / "model.safetensors").exists()
    train_toy(tmp_path / "parts", config, resume=True, observer=watchers[-1])
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    assert [epoch for epoch, _, _ in losses(tmp_path / "parts")] == [1, 2, 3]
    assert [watcher.steps for watcher in watchers] == [*stops, 12 - sum(stops)]  # each step is counted once
    reports = [report for watcher in watchers for report in watcher.reports]
    assert [(report.epoch, report.epochs) for report in reports] == [(1, 3), (2, 3), (3, 3)]


def test_svcm_trained_by_the_default_is_about_1_lipschitz(tmp_path):
    (result,) = train_toy(tmp_path, toy_config(conv="svcm", optimiser="adam"))
    assert result.lipschitz_bound is not None and 0.5 < result.lipschitz_bound < 1.002


def test_a_run_that_was_started_with_other_projections_is_resumed_with_them(tmp_path):
    """By the command's function, which is told nothing but the folder."""
    settings: dict[str, Any] = {
        "model": "small",
        "conv": "svcm",
        "size": 8,
        "epochs": 1,
        "batch_size": 512,
        "device": "cpu",
    }
    for recipe, projections in (("default", (1, 1)), ("paper", (100, 50))):
        whole, parts = tmp_path / recipe / "whole", tmp_path / recipe / "parts"
        train("digits", whole, recipe=recipe, **settings)
        with pytest.raises(Stopped):
            train("digits", parts, recipe=recipe, **settings, should_stop=stop_after(3))
        _, config = train(out=parts, device="cpu", resume=True)
        assert (config.project_every, config.project_iterations) == projections
        assert TrainConfig.read(parts / "config.json") == config and same_run(whole, parts)


def test_seeds_that_were_saved_at_different_steps_draw_level(tmp_path):
    """As a kill between two files leaves them; one here is even an epoch ahead."""
    config = toy_config()
    train_toy(tmp_path / "whole", config, seeds=[0, 1])
    (tmp_path / "parts").mkdir()
    for seed, steps in ((0, 2), (1, 6)):
        with pytest.raises(Stopped):
            train_toy(tmp_path / "parts" / f"seed-{seed}", replace(config, seed=seed), should_stop=stop_after(steps))
    train_toy(tmp_path / "parts", config, seeds=[0, 1], resume=True)
    for seed in ("seed-0", "seed-1"):
        assert same_run(tmp_path / "whole" / seed, tmp_path / "parts" / seed)


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path):
    (before,) = train_toy(tmp_path / "run", toy_config())
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    (after,) = train_toy(tmp_path / "run", toy_config(), resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files
    assert after == TrainResult.read(tmp_path / "run" / "result.json") and replace(after, finished="") == before


def test_a_broken_state_or_that_of_another_network_is_named(tmp_path):
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(conv="standard"), should_stop=stop_after(2))
    with pytest.raises(IsoconvError, match=r"^Expected a saved state of this network[^\n]*$"):
        train_toy(tmp_path / "run", toy_config(), resume=True)
    for content in (b"", b"not tensors at all"):
        (tmp_path / "run" / "state.safetensors").write_bytes(content)
        with pytest.raises(IsoconvError, match=r"state\.safetensors"):
            train_toy(tmp_path / "run", toy_config(conv="standard"), resume=True)


@pytest.mark.parametrize("options", [AUGMENTED, SVCM], ids=["augmented", "svcm"])
def test_seeds_side_by_side_are_each_seed_alone_whatever_the_global_generator_did(options, tmp_path):
    results = train_toy(tmp_path / "together", toy_config(**options), seeds=[3, 0, 5])
    assert [result.seed for result in results] == [3, 0, 5]
    for seed in (0, 3, 5):
        torch.manual_seed(seed)
        train_toy(tmp_path / f"alone-{seed}", toy_config(**options, seed=seed))
        assert same_run(tmp_path / f"alone-{seed}", tmp_path / "together" / f"seed-{seed}")
    assert not same_run(tmp_path / "alone-0", tmp_path / "alone-3")
