"""The engine on a GPU: a captured step is the same step, replicas do not disturb each other, nothing goes stale."""

from pathlib import Path

import pytest
import torch
from isoconv.train.projections import project_where_due
from isoconv.train.replica import Replica
from isoconv.train.together import Together

from isoconv.data import EpochBatches, ImageSet
from isoconv.nn import plain
from isoconv.optim import SteepestDescent
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.run_folder import RunFolder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES = [("bcop", "steepest"), ("bcop", "adam"), ("rko", "steepest"), ("ossn", "adam"), ("standard", "adam")]
STEPS = 40


@pytest.fixture(autouse=True)
def full_precision_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def images(count: int = 2048) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.rand(count, 3, 32, 32, generator=generator)
    return ImageSet(
        (noise * 100 + labels[:, None, None, None] * 15).to(torch.uint8), labels, tuple("0123456789"), "fake"
    )


def replica(conv: str, optimiser: str, seed: int = 0, side_by_side: int = 1) -> tuple[Replica, EpochBatches]:
    data = images()
    rate = 1e-2 if optimiser == "steepest" else 1e-4
    settings = recipe_settings("default", "cifar10", conv) | {"optimiser": optimiser, "lr": rate, "epochs": 4}
    settings |= {"project_every": 5, "project_iterations": 20}
    config = TrainConfig(
        data="cifar10", input_shape=data.shape, classes=data.classes, model="small", conv=conv, seed=seed, **settings
    )
    batches = EpochBatches(data, 128, seed=seed, device="cuda")
    device = torch.device("cuda")
    made = Replica(config, make_model(config), Classification(config), len(batches), device, None, side_by_side)
    return made, batches


def losses(runs: list[tuple[Replica, EpochBatches]], look: bool) -> list[list[float]]:
    """The mean loss of each epoch (with `look`, after waiting for every single step) of replicas, several together."""
    found: list[list[float]] = [[] for _ in runs]
    together = Together([one for one, _ in runs]) if len(runs) > 1 else None
    for epoch in range(STEPS // len(runs[0][1])):
        streams = [batches.epoch(epoch) for _, batches in runs]
        for _ in range(len(runs[0][1])):
            if together is not None:
                together.step([next(stream) for stream in streams])
            else:
                runs[0][0].step(*next(streams[0]))
            if look:
                torch.cuda.synchronize()
            project_where_due([one for one, _ in runs])
        for (one, _), line in zip(runs, found, strict=True):
            line.append(one.take_sums()[0])
    return found


@pytest.mark.parametrize(("conv", "optimiser"), CASES)
def test_a_captured_step_is_the_eager_step(conv: str, optimiser: str) -> None:
    captured = replica(conv, optimiser)
    eager = replica(conv, optimiser)
    eager[0].stream = eager[0].prepared = None
    if isinstance(eager[0].optimiser, SteepestDescent):
        eager[0].optimiser.run_beside(None)
    (one,), (other,) = losses([captured], look=False), losses([eager], look=True)
    assert captured[0].graph is not None
    assert eager[0].graph is None
    assert one == pytest.approx(other, rel=2e-2)


def test_the_host_may_run_ahead_of_the_device() -> None:
    """A batch's memory must not be given to a later batch before the replica has copied it."""
    (ahead,), (slow,) = (
        losses([replica("bcop", "steepest")], look=False),
        losses([replica("bcop", "steepest")], look=True),
    )
    assert ahead == pytest.approx(slow, rel=2e-2)


@pytest.mark.parametrize(
    ("conv", "optimiser", "count"),
    [("bcop", "steepest", 8), ("bcop", "adam", 2), ("rko", "rmsprop", 3), ("ossn", "adam", 5), ("svcm", "adam", 5)],
)
def test_replicas_side_by_side_are_as_each_alone(conv: str, optimiser: str, count: int) -> None:
    runs = [replica(conv, optimiser, seed, side_by_side=count) for seed in range(count)]
    together = losses(runs, look=False)
    for seed, (one, _) in enumerate(runs):
        other = replica(conv, optimiser, seed)
        (alone,) = losses([other], look=True)
        assert together[seed] == pytest.approx(alone, rel=2e-2)
        for layer, same in zip(one.projected_rarely, other[0].projected_rarely, strict=True):
            torch.testing.assert_close(layer.kernel, same.kernel, rtol=0, atol=2e-3)
        for name, value in one.model.state_dict().items():
            if not name.endswith(("u", "v")):  # the power iteration's vectors may turn
                torch.testing.assert_close(value, other[0].model.state_dict()[name], rtol=0, atol=2e-2)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_evaluated_is_what_was_trained(count: int) -> None:
    """After replays, which PyTorch does not see, the plain model holds the current parameters' kernels."""
    runs = [replica("bcop", "steepest", seed, side_by_side=count) for seed in range(count)]
    one, together = runs[-1][0], Together([each for each, _ in runs])

    def train(epoch: int) -> None:
        for batch in zip(*(batches.epoch(epoch) for _, batches in runs), strict=True):
            if count == 1:  # as the engine does: a replica alone has a graph of its own
                one.step(*batch[0])
            else:
                together.step(batch)

    train(0)
    one.wait()
    before = {name: value.clone() for name, value in plain(one.model.eval()).state_dict().items()}
    one.model.train()
    train(9)
    one.wait()
    after = plain(one.model.eval()).state_dict()
    fresh = make_model(one.config).cuda()
    fresh.load_state_dict(one.model.state_dict())
    expected = plain(fresh.eval()).state_dict()
    for name, value in after.items():
        assert not torch.equal(value, before[name])
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["steepest", "adam"])
def test_together_after_a_resume(optimiser: str, tmp_path: Path) -> None:
    """What was saved of replicas that step together goes on as if nothing had happened."""
    on, off = ([replica("bcop", optimiser, seed, side_by_side=2) for seed in range(2)] for _ in range(2))
    joined, resumed = Together([one for one, _ in on]), Together([one for one, _ in off])
    for batch in zip(*(batches.epoch(0) for _, batches in on), *(batches.epoch(1) for _, batches in on), strict=True):
        joined.step(batch[:2])
        joined.step(batch[2:])
    for (one, _), (other, _) in zip(on, off, strict=True):
        folder = RunFolder(tmp_path / str(one.config.seed))
        folder.path.mkdir()
        folder.save(one)
        folder.load(other)
        assert other.done == one.done
    for batch in zip(*(batches.epoch(2) for _, batches in on), *(batches.epoch(3) for _, batches in on), strict=True):
        for together in (joined, resumed):
            together.step(batch[:2])
            together.step(batch[2:])
    for (one, _), (other, _) in zip(on, off, strict=True):
        assert other.take_sums()[0] == pytest.approx(one.take_sums()[0], rel=2e-2)
        for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=2e-2)
        for state in other.optimiser.state.values():
            assert {value.device.type for value in state.values()} == {"cuda"}
