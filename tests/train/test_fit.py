"""`fit` trains what a user brings: any network, batches, loss and optimiser, and goes on where it was stopped."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from isoconv.data import ImageSet
from isoconv.files import read_tensors
from isoconv.models import Small
from isoconv.nn import MaxMin, SVCMConv2d
from isoconv.train import fit
from isoconv.train.engine import FitResult
from train.toys import Watcher, losses, refused, stopped


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


class Noisy(TensorDataset):
    """Augments what it gives, by random numbers of torch."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(8), y


class Rows(IterableDataset):
    """Gives the rows of a data set in their order; knows its length if it is told."""

    def __init__(self, data: Dataset):
        self.data = data

    def __iter__(self):
        return (self.data[k] for k in range(len(self.data)))


class Counted(Rows):
    def __len__(self):
        return len(self.data)


X = torch.randn(70, 8, generator=torch.Generator().manual_seed(1))
DATA = Noisy(X, (X.sum(dim=1) > 0).long())


def loader(seed: int | None = None, workers: int = 0) -> DataLoader:
    """Shuffles the data, by a generator of its own if it has a seed; the last of five batches is smaller."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(DATA, batch_size=16, shuffle=True, generator=generator, num_workers=workers)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(x)
    return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).sum(), "size": logits.abs().mean()}


def sgd(parameters: Any, rate: Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_three_lines_train_an_own_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, before = network(), torch.get_rng_state()
    (result,) = fit(model, loader(), cross_entropy, "adam", epochs=30, lr=1e-2)
    assert isinstance(result, FitResult) and result.updates == 150 and result.seconds > 0
    assert result.metrics["accuracy"] > 85 and 0 < result.metrics["size"] < 100
    assert list(tmp_path.iterdir()) == []  # without a folder nothing is written
    assert torch.equal(torch.get_rng_state(), before)


# Batches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "size", "expected"),
    [
        (DATA, 16, DataLoader(DATA, 16, shuffle=True, drop_last=True)),
        (DATA, 100, DataLoader(DATA, 70, shuffle=True)),  # the whole set is one batch
        (Counted(DATA), 10, DataLoader(DATA, 10)),  # keeps its order
        (DataLoader(Counted(DATA), 10), None, DataLoader(DATA, 10)),
    ],
)
def test_a_data_set_gives_the_batches_of_its_loader(source, size, expected):
    models = network(), network()
    (one,) = fit(models[0], source, cross_entropy, "adam", epochs=2, batch_size=size)
    (other,) = fit(models[1], expected, cross_entropy, "adam", epochs=2)
    assert same(*models) and one.updates == other.updates == 2 * len(expected)
    assert one.metrics["accuracy"] == other.metrics["accuracy"]


def test_the_seed_or_a_loaders_own_generator_decides_the_order():
    """And the generator stays as it was."""
    own = loader(5)
    for pairs in (((own, 0), (loader(6), 0)), ((loader(), 0), (loader(), 1))):
        models = network(), network()
        for model, (batches, seed) in zip(models, pairs, strict=True):
            fit(model, batches, cross_entropy, "adam", epochs=1, seed=seed)
        assert not same(*models)
    assert torch.equal(own.generator.get_state(), torch.Generator().manual_seed(5).get_state())


# Going on -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "size", "optimiser", "stop"),
    [
        (loader, None, "rmsprop", 5),
        (loader, None, sgd, 13),
        (loader, None, "steepest", 1),
        (lambda: loader(5, workers=1), None, "adam", 7),
        (lambda: DATA, 16, "adam", 6),
    ],
)
def test_shuffled_augmented_and_with_dropout_it_goes_on_bit_for_bit(source, size, optimiser, stop, tmp_path):
    """Also where the last batch is smaller, and whatever torch's generator did in between."""

    def train(model: nn.Module, folder: str, **options: Any) -> FitResult:
        settings = {"epochs": 4, "lr": 1e-2, "schedule": "cosine", "seed": 3, "batch_size": size} | options
        return fit(model, source(), cross_entropy, optimiser, folder=tmp_path / folder, **settings)[0]

    whole, first, second, again = (network() for _ in range(4))
    expected = train(whole, "whole")
    stopped(stop, train, first, "parts")
    torch.manual_seed(99)
    result = train(second, "parts", resume=True)
    assert same(whole, second) and not same(whole, first) and result.updates == expected.updates
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts") and len(losses(tmp_path / "parts")) == 4
    files = {file.name for file in (tmp_path / "parts").iterdir()}
    assert files == {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}
    train(again, "parts", resume=True)  # a finished run is loaded and left as it is
    assert same(again, whole)


@pytest.mark.parametrize("optimiser", ["steepest", "adam", sgd])
def test_batches_that_are_accumulated_are_one_large_batch(optimiser, tmp_path):
    """Also after a stop between two updates; what is left over at the end of an epoch is not used by either."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 4, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = (x.mean(dim=(2, 3, 4)) > 0).long()
    small = list(zip(x, y, strict=True))
    large = [(x[k : k + 3].flatten(0, 1), y[k : k + 3].flatten()) for k in range(0, 12, 3)]
    start = Small((1, 8, 8), classes=2).double()
    models = [copy.deepcopy(start) for _ in range(3)]
    settings: dict[str, Any] = {"epochs": 3, "schedule": "cosine"}
    results = [fit(models[0], large, cross_entropy, optimiser, **settings)[0]]
    settings["accumulate"] = 3
    results += fit(models[1], small, cross_entropy, optimiser, **settings)
    settings["folder"] = tmp_path / "run"
    stopped(6, fit, models[2], small, cross_entropy, optimiser, **settings)
    results += fit(models[2], small, cross_entropy, optimiser, **settings, resume=True)
    assert not same(start, models[0])
    for model, result in zip(models[1:], results[1:], strict=True):
        assert result.updates == results[0].updates == 12
        assert result.metrics == pytest.approx(results[0].metrics | {"seconds": result.metrics["seconds"]}, rel=1e-6)
        for one, other in zip(models[0].parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=1e-6)


def test_several_networks_side_by_side_are_each_alone(tmp_path):
    class Pairs:
        """Batches by the number of the epoch."""

        def __len__(self) -> int:
            return 3

        def epoch(self, epoch: int):
            return iter([(torch.randn(4, 8, generator=torch.Generator().manual_seed(epoch)),)] * 3)

    goals = [lambda m, x: m(x).square().mean(), lambda m, x: (m(x) - 1).square().mean()]
    optimisers, rates, folders = ["adam", sgd], [1e-3, 1e-2], [tmp_path / "a", tmp_path / "b"]
    start = nn.Linear(8, 2)
    together, watcher = [copy.deepcopy(start), copy.deepcopy(start)], Watcher()
    fit(together, [Pairs(), Pairs()], goals, optimisers, lr=rates, epochs=5, folder=folders, observer=watcher)
    for model, goal, optimiser, rate in zip(together, goals, optimisers, rates, strict=True):
        alone = copy.deepcopy(start)
        fit(alone, Pairs(), goal, optimiser, lr=rate, epochs=5)
        assert same(alone, model)
    assert watcher.steps == 15 and [report.epoch for report in watcher.reports] == [1, 2, 3, 4, 5]


# Projections, updates of one's own, and what is kept ------------------------------------------------------------------


def svcm_network() -> nn.Module:
    torch.manual_seed(0)
    convolutions = [SVCMConv2d(1, 4, 3, input_size=8), MaxMin(), SVCMConv2d(4, 6, 4, stride=2, input_size=8)]
    return nn.Sequential(*convolutions, MaxMin(), nn.Flatten(), nn.Linear(6 * 4 * 4, 2))


def svcm_layers(model: nn.Module) -> list[SVCMConv2d]:
    return [layer for layer in model.modules() if isinstance(layer, SVCMConv2d)]


GENERATOR = torch.Generator().manual_seed(1)
BATCHES = [(torch.rand(16, 1, 8, 8, generator=GENERATOR), torch.arange(16) % 2) for _ in range(5)]


def adam(parameters: Any, rate: Tensor | None = None) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def largest_norm(model: nn.Module) -> float:
    """The largest norm of a convolution on its circular image, from its dense Jacobian."""
    norms = []
    for layer in svcm_layers(model):
        jacobian = torch.autograd.functional.jacobian(layer, torch.zeros(1, layer.in_channels, 8, 8))
        norms.append(float(torch.linalg.matrix_norm(jacobian.flatten(4).flatten(0, 3), 2)))
    return max(norms)


@pytest.mark.parametrize(("every", "iterations"), [(1, 1), (4, 2), (7, 60)])
def test_svcm_is_projected_as_often_as_it_is_asked_for(every, iterations):
    """And at least 50 times after the last update: as a loop by hand. So the norms are 1 at the end, whatever the rate."""
    model, by_hand, seen = svcm_network(), svcm_network(), []
    options: dict[str, Any] = {"project_every": every, "project_iterations": iterations} if every > 1 else {}
    stop = {"should_stop": lambda: bool(seen.append(largest_norm(model)))}
    fit(model, BATCHES, cross_entropy, adam, epochs=3, **stop, **options)
    optimiser = adam(by_hand.parameters())
    for done, (x, y) in enumerate(BATCHES * 3, start=1):
        optimiser.zero_grad()
        cross_entropy(by_hand.train(), x, y)[0].backward()
        optimiser.step()
        for layer in svcm_layers(by_hand) if done % every == 0 or done == 15 else ():
            layer.project(iterations if done < 15 else max(50, iterations))
    assert same(model, by_hand)
    assert len(seen) == 15 and (max(seen) < 1.3) == (every == 1) and largest_norm(model) < 1.0005


def test_an_update_of_ones_own(tmp_path):
    """Of two networks that take turns, as a generator and its discriminator."""

    def alternate(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        for k in range(2):
            optimiser.zero_grad(set_to_none=True)
            loss = (model[k](x.flatten(1)) - model[1 - k](x.flatten(1)).detach() - 1).square().mean()
            loss.backward()
            optimiser.step()
        return loss

    model = nn.ModuleList([nn.Linear(64, 1), nn.Linear(64, 1)])
    expected = copy.deepcopy(model)
    fit(model, BATCHES, None, "adam", update=alternate, epochs=2, folder=tmp_path / "run")
    rate = torch.tensor(0.0)
    optimiser = torch.optim.Adam(expected.parameters(), lr=rate)
    for step, (x, y) in enumerate(BATCHES * 2):
        rate.fill_(0.01 * (1 - step / 10))
        alternate(expected, optimiser, x, y)
    assert same(model, expected)


def test_our_layers_learn_and_what_is_kept_is_the_plain_network(tmp_path):
    y = torch.arange(64) % 2
    x, model = torch.rand(64, 1, 8, 8) + y[:, None, None, None], Small((1, 8, 8), classes=2)
    (result,) = fit(model, [(x, y)], cross_entropy, epochs=20, folder=str(tmp_path / "run"))
    assert result.metrics["loss"] < 0.5 and result.metrics["accuracy"] == 100
    kept = read_tensors(tmp_path / "run" / "model.safetensors")
    assert len(kept) == 8 and all(name.endswith(("weight", "bias")) for name in kept)


def test_of_epochs_with_equal_scores_the_last_is_kept_and_none_is_a_gain():
    models = network(), network()
    settings: dict[str, Any] = {"optimiser": "adam", "schedule": "constant"}
    (result,) = fit(models[0], loader(), cross_entropy, epochs=9, validate=lambda model: 1.0, patience=2, **settings)
    fit(models[1], loader(), cross_entropy, epochs=3, **settings)
    assert same(*models) and (result.best_epoch, result.best_score) == (3, 1.0)
    assert result.updates == 3 * len(loader())


def test_a_score_that_is_no_number_is_worse_than_any():
    scores = iter([float("nan"), 1.0, float("nan"), 0.5])
    (result,) = fit(network(), loader(), cross_entropy, "adam", epochs=4, validate=lambda model: next(scores))
    assert (result.best_epoch, result.best_score) == (2, 1.0)


# Refused --------------------------------------------------------------------------------------------------------------


def test_other_settings_than_those_of_the_run_are_refused(tmp_path):
    """Networks without layers that are projected do not mention projections."""
    options: dict[str, Any] = {"optimiser": "adam", "epochs": 2, "folder": tmp_path / "run"}
    fit(network(), loader(), cross_entropy, **options)
    assert "project_every" not in json.loads((tmp_path / "run" / "config.json").read_text())
    refused("already holds a run", fit, network(), loader(), cross_entropy, **options)
    for other in ({"epochs": 3}, {"lr": 0.5}, {"seed": 1}, {"optimiser": "rmsprop"}, {"schedule": "cosine"}):
        refused(next(iter(other)), fit, network(), loader(), cross_entropy, resume=True, **options | other)


@pytest.mark.parametrize(("every", "iterations", "other"), [(1, 1, 7), (100, 50, 1)])
def test_a_folder_keeps_how_often_layers_are_projected(every, iterations, other, tmp_path):
    """One that does not say so is older than that, and was projected as in the paper."""

    def train(model: nn.Module, project_every: int = every, **options: Any) -> None:
        how = {"project_every": project_every, "project_iterations": iterations, "lr": 0.02, "epochs": 2}
        fit(model, BATCHES, cross_entropy, "adam", **how, **options)

    whole, resumed, folder = svcm_network(), svcm_network(), tmp_path / "run"
    train(whole)
    stopped(3, train, svcm_network(), folder=folder)
    assert json.loads((folder / "config.json").read_text()).get("project_every") == {1: 1}.get(every)
    words = f"project_every {other}, where it has {every}"
    refused(words, train, svcm_network(), other, folder=folder, resume=True)
    train(resumed, folder=folder, resume=True)
    assert same(whole, resumed)


TWO = [network(), network()]
IMAGES = ImageSet(torch.zeros(8, 1, 2, 2).byte(), torch.zeros(8).long(), ["a"], "x")
REFUSED = [
    (network(), iter([]), {}, "length"),
    (network(), Rows(DATA), {"batch_size": 10}, "a length.*Rows"),
    (network(), DataLoader(Rows(DATA), 10), {}, "a length.*DataLoader"),
    (network(), IMAGES, {}, "ImageSet"),
    (network(), [], {}, "at least one"),
    (network(), [("a", "b")], {}, "tensors"),
    (network(), [3.0], {}, "tensors"),
    (network(), DATA, {}, "batch_size"),
    (network(), DATA, {"batch_size": 0}, "batch_size"),
    (network(), loader(), {"batch_size": 16}, "batch_size"),
    (network(), Subset(DATA, []), {"batch_size": 10}, "Subset of 0"),
    (network(), loader(), {"optimiser": "newton"}, "newton"),
    (network(), loader(), {"schedule": "step"}, "step"),
    (network(), loader(), {"optimiser": sgd, "lr": 1e30}, "diverged"),
    (network(), loader(), {"accumulate": 0}, "from 1 to 5 batches"),
    (network(), loader(), {"accumulate": 6}, "as an epoch has"),
    (network(), loader(), {"accumulate": 2, "update": cross_entropy}, "update of your own"),
    (network(), loader(), {"resume": True}, "a folder to resume from"),
    (TWO, [loader()], {}, "each of 2 networks"),
    (TWO, [loader(), DataLoader(DATA, 8)], {}, "as many batches"),
]


@pytest.mark.parametrize(("models", "batches", "options", "words"), REFUSED)
def test_what_cannot_be_trained_is_refused(models, batches, options, words):
    refused(words, fit, models, batches, cross_entropy, epochs=2, **options)
