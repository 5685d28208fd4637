"""Replicas that step together are each what it is alone, and stay replicas that can be saved and resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isoconv.train.config import TrainConfig, recipe_settings
from isoconv.train.replica import Replica
from isoconv.train.run_folder import RunFolder
from isoconv.train.classifier import Classification
from isoconv.train.config import make_model
from isoconv.train.together import Together

CASES = [
    ("bcop", "steepest", "manifold"),
    ("bcop", "adam", "manifold"),
    ("bcop", "rmsprop", "bjorck"),
    ("rko", "steepest", "manifold"),
    ("ossn", "adam", "manifold"),
    ("bcop-fixed", "steepest", "manifold"),
    ("svcm", "adam", "manifold"),
    ("rkl2ne", "rmsprop", "manifold"),
    ("standard", "adam", "manifold"),
]


def replicas(conv: str, optimiser: str, orthogonalisation: str = "manifold", count: int = 3) -> list[Replica]:
    settings = recipe_settings("default", "mnist", conv)
    settings |= {"optimiser": optimiser, "lr": 1e-2 if optimiser == "steepest" else 1e-3, "epochs": 1}
    config = TrainConfig(
        data="mnist",
        input_shape=(1, 8, 8),
        classes=tuple("0123456789"),
        model="small",
        conv=conv,
        orthogonalisation=orthogonalisation,
        **settings,
    )
    configs = [replace(config, seed=seed) for seed in range(count)]
    return [Replica(c, make_model(c), Classification(c), 100, torch.device("cpu")) for c in configs]


def batches(step: int, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    return [
        (
            torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8, generator=generator),
            torch.randint(0, 10, (16,), generator=generator),
        )
        for _ in range(count)
    ]


def assert_same(one: Replica, other: Replica, tolerance: float) -> None:
    assert one.done == other.done
    assert int(one.right) == int(other.right)
    assert float(one.loss_sum) == pytest.approx(float(other.loss_sum), rel=1e-5)
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=tolerance)
    ours, theirs = (replica.optimiser.state_dict()["state"] for replica in (one, other))
    assert ours.keys() == theirs.keys()
    for index, state in theirs.items():
        assert ours[index].keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(ours[index][key], value, rtol=0, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize(("conv", "optimiser", "orthogonalisation"), CASES)
def test_as_each_alone(conv: str, optimiser: str, orthogonalisation: str) -> None:
    joined, apart = (replicas(conv, optimiser, orthogonalisation) for _ in range(2))
    together = Together(joined)
    for step in range(24):  # the first 20 of Adam are the replicas' own
        drawn = batches(step)
        together.step(drawn)
        for one, batch in zip(apart, drawn, strict=True):
            one.step(*batch)
    assert together.optimiser is not None
    for one, other in zip(joined, apart, strict=True):
        assert_same(one, other, 1e-5)


@pytest.mark.parametrize("optimiser", ["steepest", "adam"])
def test_a_replica_is_saved_and_resumed_on_its_own(optimiser: str, tmp_path: Path) -> None:
    joined = replicas("bcop", optimiser)
    together = Together(joined)
    for step in range(25):
        together.step(batches(step))
    for one in joined:
        folder = RunFolder(tmp_path / str(one.config.seed))  # type: ignore[attr-defined]
        folder.path.mkdir()
        folder.save(one)
    resumed = replicas("bcop", optimiser)
    for one, other in zip(resumed, joined, strict=True):
        RunFolder(tmp_path / str(one.config.seed)).load(one)  # type: ignore[attr-defined]
        assert_same(one, other, 0)
    # And on they go, together again or not.
    again = Together(resumed)
    for step in range(25, 50):
        together.step(batches(step))
        again.step(batches(step))
    for one, other in zip(resumed, joined, strict=True):
        assert_same(one, other, 1e-4)


def test_what_is_evaluated_is_what_was_trained() -> None:
    joined = replicas("bcop", "steepest")
    together, x = Together(joined), torch.rand(2, 1, 8, 8)
    for step in range(8):
        for one in joined:  # so that there is something to go stale
            one.model.eval()(x)
            one.model.train()
        together.step(batches(step))
    for one in joined:
        fresh = make_model(one.config)  # type: ignore[arg-type]
        fresh.load_state_dict(one.model.state_dict())
        torch.testing.assert_close(one.model.eval()(x), fresh.eval()(x), rtol=0, atol=1e-6)


def test_whom_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    same = replicas("bcop", "steepest")
    assert not Together.suits(same)  # on a CPU, bit for bit what each is alone comes first
    for one in same:
        monkeypatch.setattr(one, "graphed", True)
    assert Together.suits(same)
    assert not Together.suits(same[:1])
    monkeypatch.setattr(same[1], "config", replace(same[1].config, lr=0.5))  # type: ignore[type-var]
    assert not Together.suits(same)
