"""The engine on a GPU: a captured step is the same step, networks do not disturb each other, nothing goes stale."""

import gc
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isoconv.data import Augmentation, EpochBatches, ImageSet
from isoconv.nn import plain
from isoconv.train.capture import Stepper
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.engine import Learner, Stopped, fit
from train.toys import save_and_load, stop_after

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

CASES = [("bcop", "steepest"), ("bcop", "adam"), ("rko", "steepest"), ("ossn", "adam"), ("standard", "adam")]
CASES += [("bcop-fixed", "steepest")]
CASES += [(conv, "adam") for conv in ("rkl2ne", "aol", "cayley", "soc", "bro", "sll", "cpl")]
STEPS = 40


@pytest.fixture(autouse=True)
def full_precision_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


Run = tuple[Learner, EpochBatches, TrainConfig]


def images(count: int = 2048) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (count,), generator=generator)
    pixels = torch.rand(count, 3, 32, 32, generator=generator) * 100 + labels[:, None, None, None] * 15
    return ImageSet(pixels.to(torch.uint8), labels, tuple("0123456789"), "fake")


def learner(conv: str, optimiser: str, seed: int = 0, model: str = "small", **options: object) -> Run:
    data, augment = images(), (0.5, 0.5) if model == "shift-s" else (0.0, 1.0)
    rate = 1e-4 if optimiser != "steepest" else 1e-2 if model == "small" else 3e-3
    settings = recipe_settings("default", "cifar10", conv, model) | {"optimiser": optimiser, "lr": rate, "epochs": 4}
    settings |= {"project_every": 5, "project_iterations": 20, "conv": conv, "model": model, "seed": seed, **options}
    config = TrainConfig(data="cifar10", input_shape=data.shape, classes=data.classes, **settings)
    batches = EpochBatches(data, 128, seed=seed, device="cuda", augment=augment)
    made = Learner.from_config(config, make_model(config), Classification(config), len(batches), device="cuda")
    return made, batches, config


def losses(runs: list[Run], stepper: Stepper, look: bool) -> list[list[float]]:
    """The summed loss of each epoch (with `look`, after waiting for every single step) of each network."""
    found: list[list[float]] = [[] for _ in runs]
    for epoch in range(STEPS // len(runs[0][1])):
        for drawn in zip(*(batches.epoch(epoch) for _, batches, _ in runs), strict=True):
            stepper.step(drawn)
            if look:
                torch.cuda.synchronize()
            stepper.project_where_due()
        stepper.wait()
        for (one, _, _), line in zip(runs, found, strict=True):
            line.append(float(one.take_sums()["loss"]))
    return found


@pytest.mark.parametrize(("conv", "optimiser"), CASES)
def test_a_captured_step_is_the_eager_step(conv: str, optimiser: str) -> None:
    captured, eager = learner(conv, optimiser), learner(conv, optimiser)
    stepper = Stepper([captured[0]])
    (one,), (other,) = losses([captured], stepper, False), losses([eager], Stepper([eager[0]], captured=False), True)
    assert [len(group.graphs) for group in stepper.groups] == ([] if conv == "cayley" else [1])
    assert one == pytest.approx(other, rel=2e-2)


@pytest.mark.parametrize(("half", "optimiser"), [(True, "steepest"), (False, "steepest"), (True, "adam")])
def test_a_compiled_captured_step_in_batches_is_the_eager_step(half: bool, optimiser: str) -> None:
    precision = "bf16" if half else "float32"
    captured, eager = (learner("bcop", optimiser, model="shift-s", precision=precision) for _ in range(2))
    stepper = Stepper([captured[0]])
    (one,), (other,) = losses([captured], stepper, False), losses([eager], Stepper([eager[0]], captured=False), True)
    group = stepper.groups[0]
    # Steepest descent in bfloat16 comes back to the manifold in some steps and not in others: a graph for each.
    assert len(group.graphs) == (2 if half and optimiser == "steepest" else 1)
    assert group.update is not None and any(stack.wholes for stack in group.update.stacks)
    assert group.update.compiled == half and (captured[0].called is not captured[0].model) == half
    assert one == pytest.approx(other, rel=2e-2) and one[-1] < one[0]
    stepper.wait()
    stepper.end()
    plains = [plain(each[0].model.eval()) for each in (captured, eager)]
    x = images(64).images.cuda() / 255
    with torch.no_grad():
        difference = (plains[0](x) - plains[1](x)).norm() / plains[1](x).norm()
    assert float(difference) < 0.1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_step_that_computes_activations_again_is_the_same_and_needs_less_memory(precision: str) -> None:
    found, peaks = [], []
    for again in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run = learner("bcop", "steepest", model="shift-s", precision=precision, checkpoint_activations=again)
        stepper = Stepper([run[0]])
        found.append(losses([run], stepper, False)[0])
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert stepper.groups[0].graphs
        stepper.wait()
        stepper.end()
        del run, stepper
        gc.collect()
    assert found[0] == pytest.approx(found[1], rel=2e-2) and peaks[1] < peaks[0]


@pytest.mark.parametrize(
    "options",
    [{"augment": (0.5, 1.0)}, {"resized_crop": (0.2, 1.0), "flip": True}, {"colour_jitter": (0.4, 0.4, 0.4)}],
    ids=str,
)
def test_augmented_images_are_those_of_the_cpu_but_for_rounding(options: dict[str, Any]) -> None:
    data = images(300)
    there, here = (EpochBatches(data, 100, device=device, **options).epoch(1) for device in ("cuda", "cpu"))
    for (a, _), (b, _) in zip(there, here, strict=True):
        assert (a.cpu().int() - b.int()).abs().max() <= 1


def test_operations_are_those_of_the_cpu_but_for_few_pixels() -> None:
    """A level that rounding changed may be on the other side of a threshold, or another place in a histogram."""
    data, augmentation = images(300), Augmentation(rand_augment=(2, 9.0))
    drawn = augmentation.draw(300)
    there = augmentation(data.images.cuda(), {name: numbers.cuda() for name, numbers in drawn.items()}).cpu()
    differences = (there.int() - augmentation(data.images, drawn).int()).abs()
    assert (differences > 1).float().mean() < 1e-3


def test_augmentation_does_not_wait_for_the_gpu() -> None:
    options: dict[str, Any] = {"rand_augment": (2, 9.0), "colour_jitter": (0.4, 0.4, 0.4), "augment": (0.5, 0.5)}
    data, mode = images(300).images.cuda(), torch.cuda.get_sync_debug_mode()
    for crop in ({"resized_crop": (0.2, 1.0)}, {"padding": 4}):
        augmentation = Augmentation(flip=True, **crop, **options)
        drawn, index = augmentation.draw(300, device="cuda"), torch.arange(0, 300, 3, device="cuda")
        try:
            torch.cuda.set_sync_debug_mode("error")
            augmentation(data[index], drawn, index)
        finally:
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize(
    ("conv", "optimiser", "count"),
    [("bcop", "steepest", 8), ("bcop", "adam", 2), ("rko", "rmsprop", 3), ("ossn", "adam", 5), ("svcm", "adam", 5)],
)
def test_networks_side_by_side_are_as_each_alone(conv: str, optimiser: str, count: int) -> None:
    """Also where the host runs ahead: a batch's memory must not hold a later batch before the step has copied it."""
    runs = [learner(conv, optimiser, seed) for seed in range(count)]
    together = losses(runs, Stepper([one for one, _, _ in runs]), look=False)
    for seed, (one, _, _) in enumerate(runs):
        other = learner(conv, optimiser, seed)
        (alone,) = losses([other], Stepper([other[0]]), look=True)
        assert together[seed] == pytest.approx(alone, rel=2e-2)
        for layer, same in zip(one.projected_rarely, other[0].projected_rarely, strict=True):
            torch.testing.assert_close(layer.kernel, same.kernel, rtol=0, atol=2e-3)
        for name, value in one.model.state_dict().items():
            if not name.endswith("vector"):  # the power iteration's may turn
                torch.testing.assert_close(value, other[0].model.state_dict()[name], rtol=0, atol=2e-2)


def test_networks_of_different_methods_side_by_side_are_as_each_alone() -> None:
    runs = [learner(*case) for case in CASES[:4]]
    stepper = Stepper([one for one, _, _ in runs])
    assert len(stepper.groups) == 4
    together = losses(runs, stepper, look=False)
    for case, found in zip(CASES, together, strict=False):
        other = learner(*case)
        assert found == pytest.approx(losses([other], Stepper([other[0]]), look=True)[0], rel=2e-2)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_evaluated_is_what_was_trained(count: int) -> None:
    """After replays, which PyTorch does not see, the plain model holds the current parameters' kernels."""
    runs = [learner("bcop", "steepest", seed) for seed in range(count)]
    stepper = Stepper([one for one, _, _ in runs])
    one, _, config = runs[-1]
    plains = []
    for epoch in (0, 9):
        one.model.train()
        for drawn in zip(*(batches.epoch(epoch) for _, batches, _ in runs), strict=True):
            stepper.step(drawn)
        stepper.wait()
        plains.append({name: value.clone() for name, value in plain(one.model.eval()).state_dict().items()})
    fresh = make_model(config).cuda()
    fresh.load_state_dict(one.model.state_dict())
    expected = plain(fresh.eval()).state_dict()
    for name, value in plains[1].items():
        assert not torch.equal(value, plains[0][name])
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["steepest", "adam"])
def test_together_after_a_resume(optimiser: str, tmp_path: Path) -> None:
    """What was saved of networks that step together goes on as if nothing had happened."""
    on, off = ([learner("bcop", optimiser, seed) for seed in range(2)] for _ in range(2))
    steppers = [Stepper([one for one, _, _ in group]) for group in (on, off)]

    def run(epochs: range, chosen: list[Stepper]) -> None:
        for epoch in epochs:
            for drawn in zip(*(batches.epoch(epoch) for _, batches, _ in on), strict=True):
                for stepper in chosen:
                    stepper.step(drawn)
        for stepper in chosen:
            stepper.wait()

    run(range(2), steppers[:1])
    for k, ((one, _, _), (other, _, _)) in enumerate(zip(on, off, strict=True)):
        save_and_load(one, other, tmp_path / str(k))
        assert other.done == one.done
    run(range(2, 4), steppers)
    for (one, _, _), (other, _, _) in zip(on, off, strict=True):
        assert float(other.sums["loss"]) == pytest.approx(float(one.sums["loss"]), rel=2e-2)
        for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=2e-2)
        for state in other.optimiser.state.values():
            assert {value.device.type for value in state.values()} == {"cuda"}


def test_a_network_that_is_behind_draws_level_and_then_they_step_together() -> None:
    runs = [learner("bcop", "steepest", seed) for seed in range(2)]
    stepper = Stepper([one for one, _, _ in runs])
    streams = [itertools.chain(*(batches.epoch(epoch) for epoch in range(2))) for _, batches, _ in runs]
    for k in range(20):
        stepper.step([next(streams[0]), next(streams[1]) if k >= 5 else None])
    stepper.wait()
    assert len(stepper.groups[0].graphs) == 1
    assert [one.done for one, _, _ in runs] == [20, 15]


def test_fit_of_an_own_network_with_a_smaller_last_batch_and_a_resume(tmp_path: Path) -> None:
    """Dropout, a batch of another shape, batches from the CPU, a factory of optimisers: what a user would bring."""

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def train(folder: str, **options: object) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
        data = torch.utils.data.TensorDataset(torch.randn(70, 8), torch.arange(70) % 2)
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        optimiser = partial(torch.optim.AdamW, betas=(0.9, 0.99))
        fit(model, loader, loss, optimiser, epochs=12, folder=tmp_path / folder, device="cuda", **options)
        return model

    whole = train("whole")
    with pytest.raises(Stopped):
        train("parts", should_stop=stop_after(33))
    resumed = train("parts", resume=True)
    for p, q in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=5e-2)
