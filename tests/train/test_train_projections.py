"""What training projects now and then: when, and that replicas side by side are projected as each alone."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isoconv.files import read_tensors
from isoconv.nn import svcm
from isoconv.train import projections
from isoconv.train.projections import project, project_where_due
from isoconv.train.replica import Replica
from isoconv.train.classifier import Classification
from isoconv.train.config import make_model
from train.toys import toy, toy_config, train_toy

SEEDS = (3, 0, 5)
SVCM = {"conv": "svcm", "optimiser": "adam", "lr": 1e-2, "project_every": 5, "project_iterations": 20}


def weights(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder / "model.safetensors")


def replica(steps: int = 3, **options: object) -> Replica:
    config = toy_config(epochs=1, **(SVCM | options))
    return Replica(config, make_model(config), Classification(config), steps, torch.device("cpu"))


def kernels(one: Replica) -> list[Tensor]:
    return [layer.kernel.detach().clone() for layer in one.projected_rarely]


def test_on_a_cpu_seeds_side_by_side_are_bit_for_bit_each_alone(tmp_path):
    train_toy(tmp_path / "together", toy_config(**SVCM), seeds=SEEDS)
    for seed in SEEDS:
        train_toy(tmp_path / f"alone-{seed}", toy_config(**SVCM, seed=seed))
        alone, beside = weights(tmp_path / f"alone-{seed}"), weights(tmp_path / "together" / f"seed-{seed}")
        assert alone.keys() == beside.keys() and all(torch.equal(alone[name], beside[name]) for name in alone)


def test_projected_together_they_are_so_too_but_for_rounding(tmp_path, monkeypatch):
    clip, batches = svcm.clip_and_mask, []
    monkeypatch.setattr(svcm, "clip_and_mask", lambda *given: batches.append(len(given[0])) or clip(*given))
    train_toy(tmp_path / "one by one", toy_config(**SVCM), seeds=SEEDS)
    one_by_one = batches.copy()
    batches.clear()
    monkeypatch.setattr(projections, "project", partial(project, together=True))
    train_toy(tmp_path / "together", toy_config(**SVCM), seeds=SEEDS)
    # Twelve steps: due after the fifth, the tenth and the last; two layers of different shapes.
    assert (one_by_one, batches) == ([1] * 3 * 2 * len(SEEDS), [len(SEEDS)] * 3 * 2)
    for seed in SEEDS:
        expected, found = (weights(tmp_path / kind / f"seed-{seed}") for kind in ("one by one", "together"))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_a_step_does_not_project_but_what_follows_it_does():
    one, images = replica(steps=3, project_every=2), toy(64)
    for done, due in ((1, False), (2, True), (3, True)):  # the third is the last
        one.step(images.images, images.labels)
        after_step = kernels(one)
        project_where_due([one])
        assert one.done == done
        changed = [not torch.equal(a, b) for a, b in zip(kernels(one), after_step, strict=True)]
        assert all(changed) if due else not any(changed)


@pytest.mark.parametrize("together", [False, True])
def test_each_replica_by_its_own_settings(together):
    """Others of a method without projections, or with more iterations, are no obstacle."""
    mixed = [replica(), replica(conv="bcop", optimiser="steepest"), replica(project_iterations=2), replica(seed=1)]
    for one in mixed:
        for layer in one.projected_rarely:
            layer.kernel.data.mul_(3)
    before = [kernels(one) for one in mixed]
    project(mixed, together)
    for one, old in zip(mixed, before, strict=True):
        for layer, kernel in zip(one.projected_rarely, old, strict=True):
            expected = svcm.clip_and_mask(kernel, layer.convolved_size, one.config.project_iterations)
            assert (layer.kernel - expected).abs().max() <= 1e-5 < (expected - kernel).abs().max()
    few, many = (kernels(mixed[k])[0] for k in (2, 0))
    assert (few - many).abs().max() > 1e-3  # so that a mix-up of the iterations would show
