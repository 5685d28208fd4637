"""`fit` trains what a user brings: any network, batches, loss and optimiser, and goes on where it was stopped."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from isoconv.data import ImageSet
from isoconv.errors import IsoconvError
from isoconv.files import read_tensors
from isoconv.models import Small
from isoconv.nn import MaxMin, SVCMConv2d
from isoconv.train import fit
from isoconv.train.engine import FitResult, Stopped
from train.toys import Watcher, losses, stop_after


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


class Noisy(TensorDataset):
    """Augments what it gives, by random numbers of torch."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(8), y


def loader(n: int = 70) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator)
    return DataLoader(Noisy(x, (x.sum(dim=1) > 0).long()), batch_size=16, shuffle=True)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(x)
    return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).sum(), "size": logits.abs().mean()}


def sgd(parameters: Any, rate: Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_a_data_set_is_shuffled_into_batches(tmp_path):
    """As its loader gives them; stopped in the middle of an epoch it goes on as if it had not been."""
    data, models = loader().dataset, [network() for _ in range(3)]
    (expected,) = fit(models[0], DataLoader(data, 16, shuffle=True, drop_last=True), cross_entropy, "adam", epochs=3)
    (result,) = fit(models[1], data, cross_entropy, "adam", epochs=3, batch_size=16)
    assert result.updates == 12 and result.metrics["accuracy"] == expected.metrics["accuracy"]
    assert same(models[0], models[1])
    options = {"epochs": 3, "batch_size": 16, "folder": tmp_path, "resume": True}
    with pytest.raises(Stopped):
        fit(models[2], data, cross_entropy, "adam", should_stop=stop_after(6), **options)
    fit(models[2], data, cross_entropy, "adam", **options)
    assert same(models[0], models[2])
    (result,) = fit(network(), data, cross_entropy, "adam", epochs=1, batch_size=100)  # the whole set is one batch
    assert result.updates == 1
    for source, size in ((data, None), (data, 0), (loader(), 16)):
        with pytest.raises(IsoconvError, match="batch_size"):
            fit(network(), source, cross_entropy, "adam", epochs=1, batch_size=size)


def test_a_loader_with_a_generator_of_its_own_goes_on_bit_for_bit(tmp_path):
    """Its seed decides the order, another one for each epoch, and `fit` leaves the generator as it was."""

    def make(seed: int, workers: int = 0) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(loader().dataset, 16, shuffle=True, num_workers=workers, generator=generator)

    whole, other, parts = network(), network(), network()
    fit(whole, make(5, workers=1), cross_entropy, "adam", epochs=3)
    fit(other, make(6), cross_entropy, "adam", epochs=3)
    assert not same(whole, other)
    shuffled = make(5, workers=1)
    with pytest.raises(Stopped):
        fit(parts, shuffled, cross_entropy, "adam", epochs=3, folder=tmp_path, should_stop=stop_after(7))
    assert torch.equal(shuffled.generator.get_state(), torch.Generator().manual_seed(5).get_state())
    fit(parts, shuffled, cross_entropy, "adam", epochs=3, folder=tmp_path, resume=True)
    assert same(whole, parts)


class Rows(IterableDataset):
    """Gives the rows of a data set in their order; knows its length if it is told."""

    def __init__(self, data: TensorDataset):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Counted(Rows):
    def __len__(self):
        return len(self.data)


def test_an_iterable_data_set_keeps_its_order():
    data, models = TensorDataset(*loader().dataset.tensors), [network() for _ in range(3)]
    fit(models[0], DataLoader(data, 10), cross_entropy, "adam", epochs=2)
    fit(models[1], Counted(data), cross_entropy, "adam", epochs=2, batch_size=10)
    fit(models[2], DataLoader(Counted(data), 10), cross_entropy, "adam", epochs=2)
    assert same(models[0], models[1]) and same(models[0], models[2])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda data: (Rows(data), 10), "a length.*Rows"),
        (lambda data: (DataLoader(Rows(data), 10), None), "a length.*DataLoader"),
        (lambda data: ((batch for batch in [data[:10]]), None), "a length"),
        (lambda data: (Subset(data, []), 10), "Subset of 0"),
        (lambda data: (ImageSet(torch.zeros(8, 1, 2, 2).byte(), torch.zeros(8).long(), ["a"], "x"), None), "ImageSet"),
    ],
)
def test_what_gives_no_batches_is_refused(make, words):
    source, size = make(loader().dataset)
    with pytest.raises(IsoconvError, match=words):
        fit(network(), source, cross_entropy, "adam", epochs=1, batch_size=size)


def test_three_lines_train_an_own_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, before = network(), torch.get_rng_state()
    (result,) = fit(model, loader(), cross_entropy, "adam", epochs=30, lr=1e-2)
    assert isinstance(result, FitResult) and result.updates == 150 and result.seconds > 0
    assert result.metrics["accuracy"] > 85 and 0 < result.metrics["size"] < 100
    assert list(tmp_path.iterdir()) == []  # without a folder nothing is written
    assert torch.equal(torch.get_rng_state(), before)


def test_on_a_cpu_nothing_is_captured():
    models = network(), network()
    models[1].load_state_dict(models[0].state_dict())
    for model, captured in zip(models, (True, False), strict=True):
        fit(model, loader(), cross_entropy, epochs=2, captured=captured)
    assert all(map(torch.equal, *(model.state_dict().values() for model in models)))


@pytest.mark.parametrize(("optimiser", "stop"), [("rmsprop", 5), (sgd, 13), ("steepest", 1)])
def test_shuffled_augmented_and_with_dropout_it_goes_on_bit_for_bit(optimiser, stop, tmp_path):
    """Also where the last batch is smaller, and whatever torch's generator did in between."""
    settings: dict[str, Any] = {"epochs": 4, "lr": 1e-2, "schedule": "cosine", "seed": 3}
    whole, first, second = network(), network(), network()
    fit(whole, loader(), cross_entropy, optimiser, **settings, folder=tmp_path / "whole")
    folder = tmp_path / "parts"
    with pytest.raises(Stopped):
        fit(first, loader(), cross_entropy, optimiser, **settings, folder=folder, should_stop=stop_after(stop))
    torch.manual_seed(99)
    (result,) = fit(second, loader(), cross_entropy, optimiser, **settings, folder=folder, resume=True)
    assert same(whole, second) and not same(whole, first) and result.updates == 20
    assert losses(tmp_path / "whole") == losses(folder) and len(losses(folder)) == 4
    files = {file.name for file in folder.iterdir()}
    assert files == {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}
    again = network()  # a finished run is loaded and left as it is
    fit(again, loader(), cross_entropy, optimiser, **settings, folder=folder, resume=True)
    assert same(again, whole)


def test_our_layers_learn_and_what_is_kept_is_the_plain_network(tmp_path):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(64) % 2
    x = torch.rand(64, 1, 8, 8, generator=generator) + y[:, None, None, None]
    model = Small((1, 8, 8), classes=2)
    (result,) = fit(model, [(x, y)], lambda m, x, y: F.cross_entropy(m(x), y), epochs=20, folder=str(tmp_path / "run"))
    assert result.metrics["loss"] < 0.5
    kept = read_tensors(tmp_path / "run" / "model.safetensors")
    assert len(kept) == 8 and all(name.endswith(("weight", "bias")) for name in kept)


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
    results += fit(models[1], small, cross_entropy, optimiser, accumulate=3, **settings)
    settings |= {"accumulate": 3, "folder": tmp_path / "run"}
    with pytest.raises(Stopped):
        fit(models[2], small, cross_entropy, optimiser, **settings, should_stop=stop_after(6))
    results += fit(models[2], small, cross_entropy, optimiser, **settings, resume=True)
    assert not same(start, models[0])
    for model, result in zip(models[1:], results[1:], strict=True):
        assert result.updates == results[0].updates == 12
        assert result.metrics["accuracy"] == results[0].metrics["accuracy"]
        assert result.metrics["loss"] == pytest.approx(results[0].metrics["loss"], rel=1e-6)
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


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 1), nn.Linear(8, 1)


def alternate(model: Pair, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Two updates that take turns, as of a generator and its discriminator."""
    for chosen, other in ((model.first, model.second), (model.second, model.first)):
        optimiser.zero_grad(set_to_none=True)
        loss = (chosen(x) - other(x).detach() - 1).square().mean()
        loss.backward()
        optimiser.step()
    return loss


def test_an_update_of_ones_own(tmp_path):
    model, expected = Pair(), Pair()
    fit(model, loader(), None, "adam", update=alternate, epochs=2, schedule="constant", folder=tmp_path / "run")
    optimiser = torch.optim.Adam(expected.parameters(), lr=torch.tensor(0.01))
    drawn: list[Any] = []
    fit(Pair(), loader(), lambda m, x, y: drawn.append((x, y)) or m.first(x).sum(), epochs=2)
    for x, y in drawn:
        alternate(expected, optimiser, x, y)
    assert same(model, expected)


def test_other_settings_than_those_of_the_run_are_refused(tmp_path):
    options: dict[str, Any] = {"epochs": 2, "folder": tmp_path / "run"}
    fit(network(), loader(), cross_entropy, "adam", **options)
    with pytest.raises(IsoconvError, match="already holds a run"):
        fit(network(), loader(), cross_entropy, "adam", **options)
    for other in ({"epochs": 3}, {"lr": 0.5}, {"seed": 1}, {"optimiser": "rmsprop"}, {"schedule": "cosine"}):
        changed = {"optimiser": "adam"} | options | other
        with pytest.raises(IsoconvError, match=next(iter(other))):
            fit(network(), loader(), cross_entropy, resume=True, **changed)


TWO = [network(), network()]
REFUSED = [
    (network(), iter([]), {}, "length"),
    (network(), [], {}, "at least one"),
    (network(), [("a", "b")], {}, "tensors"),
    (network(), [3.0], {}, "tensors"),
    (network(), loader(), {"optimiser": "newton"}, "newton"),
    (network(), loader(), {"schedule": "step"}, "step"),
    (network(), loader(), {"optimiser": sgd, "lr": 1e30}, "diverged"),
    (network(), loader(), {"accumulate": 0}, "from 1 to 5 batches"),
    (network(), loader(), {"accumulate": 6}, "as an epoch has"),
    (network(), loader(), {"accumulate": 2, "update": cross_entropy}, "update of your own"),
    (TWO, [loader()], {}, "each of 2 networks"),
    (TWO, [loader(), loader(16)], {}, "as many batches"),
]


@pytest.mark.parametrize(("models", "batches", "options", "word"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_cannot_be_trained_is_refused(models, batches, options, word):
    with pytest.raises(IsoconvError, match=word):
        fit(models, batches, cross_entropy, epochs=2, **options)


# Projections ----------------------------------------------------------------------------------------------------------


def svcm_network() -> nn.Module:
    torch.manual_seed(0)
    convolutions = [SVCMConv2d(1, 4, 3, input_size=8), MaxMin(), SVCMConv2d(4, 6, 4, stride=2, input_size=8)]
    return nn.Sequential(*convolutions, MaxMin(), nn.Flatten(), nn.Linear(6 * 4 * 4, 2))


def svcm_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(16, 1, 8, 8, generator=generator), torch.arange(16) % 2) for _ in range(5)]


def adam(parameters: Any, rate: Tensor | None = None) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def norms(model: nn.Module) -> list[float]:
    """The norm of each convolution on its circular image, from its dense Jacobian."""
    values = []
    for layer in [module for module in model.modules() if isinstance(module, SVCMConv2d)]:
        x = torch.zeros(1, layer.in_channels, 8, 8)
        jacobian = torch.autograd.functional.jacobian(layer, x).flatten(4).flatten(0, 3)
        values.append(float(torch.linalg.matrix_norm(jacobian, 2)))
    return values


def test_svcm_is_projected_once_after_every_update():
    """And 50 times after the last: bit for bit as a loop by hand. So the norms are 1 at the end, whatever the rate."""
    model, by_hand, seen = svcm_network(), svcm_network(), []
    fit(model, svcm_batches(), cross_entropy, adam, epochs=3, should_stop=lambda: bool(seen.append(norms(model))))
    optimiser = adam(by_hand.parameters())
    for step, (x, y) in enumerate(svcm_batches() * 3):
        optimiser.zero_grad()
        cross_entropy(by_hand.train(), x, y)[0].backward()
        optimiser.step()
        for layer in [module for module in by_hand.modules() if isinstance(module, SVCMConv2d)]:
            layer.project(1 if step < 14 else 50)
    assert same(model, by_hand)
    assert len(seen) == 15 and max(map(max, seen)) < 1.3 and max(norms(model)) < 1.0005
    free = svcm_network()
    fit(free, svcm_batches(), cross_entropy, adam, epochs=3, project_every=15)
    assert not same(model, free)


def test_a_folder_keeps_how_often_layers_are_projected(tmp_path):
    """One that does not say so is older than that, and was projected as in the paper."""
    settings: dict[str, Any] = {"optimiser": "adam", "epochs": 2, "lr": 0.02}
    batches, stop = svcm_batches(), {"should_stop": stop_after(3)}
    with pytest.raises(Stopped):
        fit(svcm_network(), batches, cross_entropy, **settings, folder=tmp_path / "new", **stop)
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (written["project_every"], written["project_iterations"]) == (1, 1)
    with pytest.raises(IsoconvError, match="project_every 7"):
        fit(svcm_network(), batches, cross_entropy, **settings, folder=tmp_path / "new", resume=True, project_every=7)
    paper = {"project_every": 100, "project_iterations": 50}
    whole, resumed = svcm_network(), svcm_network()
    fit(whole, batches, cross_entropy, **settings, **paper)
    old: dict[str, Any] = {"folder": tmp_path / "old", "should_stop": stop_after(3)}
    with pytest.raises(Stopped):
        fit(svcm_network(), batches, cross_entropy, **settings, **paper, **old)
    assert "project_every" not in json.loads((tmp_path / "old" / "config.json").read_text())
    with pytest.raises(IsoconvError, match="project_every 1, where it has 100"):
        fit(svcm_network(), batches, cross_entropy, **settings, folder=tmp_path / "old", resume=True)
    fit(resumed, batches, cross_entropy, **settings, **paper, folder=tmp_path / "old", resume=True)
    assert same(whole, resumed)


def test_networks_without_such_layers_do_not_mention_projections(tmp_path):
    fit(network(), loader(), cross_entropy, "adam", epochs=1, lr=1e-3, folder=tmp_path / "run")
    assert "project_every" not in json.loads((tmp_path / "run" / "config.json").read_text())
