"""Activations that are computed again: the same gradients, fewer tensors kept, and what runs once only."""

import copy
import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isoconv.models import ShiftNet, Small
from isoconv.nn import BatchCentering, BCOPConv2d, MaxMin, OrthogonalLinear, OSSNConv2d
from isoconv.train import fit, train
from isoconv.train.capture import SharedUpdate, Stepper
from isoconv.train.engine import Learner
from isoconv.train.passes import run_in_pieces
from train.toys import SHAPE, Idle, batch, loss, make, refused, stopped, write_pictures


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def shift() -> nn.Module:
    return ShiftNet(SHAPE, 4, channels=16, blocks=(2, 5))


def with_middle(middle: nn.Module) -> nn.Module:
    """A network with a module that remembers what it has seen, or draws random numbers."""
    layers = [BCOPConv2d(1, 4, 3), middle, MaxMin(), *(BCOPConv2d(4, 4, 3) for _ in range(6)), nn.Flatten()]
    return nn.Sequential(*layers, OrthogonalLinear(256, 4))


def patches() -> nn.Module:
    return Small((1, 16, 16), 4, patch=2)


MIDDLES = [BatchCentering(4), OSSNConv2d(4, 4, 3, input_size=(8, 8)), nn.Dropout(0.5), Noise()]
CASES: list[tuple[Any, dict[str, Any]]] = [
    (shift, {}),
    (shift, {"precision": "bf16"}),
    (patches, {"accumulate": 2}),
    (patches, {"precision": "bf16", "optimiser": "adam"}),
    (partial(Small, SHAPE, 4, conv="ossn", orthogonalisation="bjorck"), {"optimiser": "adam"}),
    *((partial(with_middle, middle), {}) for middle in MIDDLES),
]


def learners(model: nn.Module, **options: Any) -> list[Learner]:
    """The same network twice: as it is, and with activations computed again."""
    return [make(copy.deepcopy(model), checkpoint_activations=again, **options) for again in (False, True)]


@pytest.mark.parametrize(("model", "options"), CASES)
def test_the_same_steps_bit_for_bit(model: Any, options: dict[str, Any]) -> None:
    ones, side = learners(model(), **options), 16 if model is patches else 8
    for one in ones:
        torch.manual_seed(1)
        for step in range(3):
            batches = [batch(step + k, side) for k in range(one.accumulate)]
            Stepper([one]).step([batches if one.accumulate > 1 else batches[0]])
    states = (one.model.state_dict() | {"loss": one.sums["loss"]} for one in ones)
    for (name, p), q in zip(next(states).items(), next(states).values(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_with_weights_that_are_built_ahead(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a captured step has them; with a backend that saves tensors as a compiled network does."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    torch.manual_seed(0)
    pairs = zip(*(learners(shift(), precision="bf16") for _ in range(1 if compiled else 2)), strict=True)
    weights = []
    for ones in pairs:  # as they are, and with activations computed again; one network, or two side by side
        update = SharedUpdate(ones, compiled=compiled)
        for step in range(3):
            rate = ones[0].scheduled_rate()
            for one in ones:
                one.rate.fill_(rate)
                one.done += 1
            update([batch(step + 10 * k) for k in range(len(ones))], update.choose_settling(rate))
        weights.append([p for one in ones for p in one.model.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))


def test_fewer_activations_are_kept() -> None:
    """Of 40 layers those of the last segment, and the inputs of the others."""
    model, kept = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(40))), []
    for k, layer in enumerate(model):
        layer.register_forward_hook(lambda module, inputs, output, k=k: kept.append((k, weakref.ref(output))))
    for again, fewest, most in ((False, 40, 40), (True, 6, 13)):
        kept.clear()
        result = run_in_pieces(model, checkpointed=again)(torch.rand(2, 4))
        assert fewest <= sum(output() is not None for _, output in kept) <= most and len(kept) == 40
        result.sum().backward()
    assert 20 < max(k for k, _ in kept[40:]) < 35  # the last segment is not computed twice


class Attention(nn.MultiheadAttention):
    """Drops attention weights without a module that says so. A subclass in the library's own name, so that it is known."""

    __module__ = "torch.nn.modules.activation"

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(
    "layer", [nn.RReLU(), Attention(4, 2, dropout=0.5), nn.RNN(4, 4, 2, dropout=0.5)], ids=lambda x: type(x).__name__
)
def test_random_numbers_that_are_drawn_last_or_within_a_layer(layer: nn.Module) -> None:
    class First(nn.Sequential):
        __module__ = "torch.nn.modules.container"

        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            return result[0] if isinstance(result, tuple) else result

    model = nn.Sequential(*(First(nn.Linear(4, 4), copy.deepcopy(layer)) for _ in range(6)))
    gradients = []
    for again in (False, True):
        torch.manual_seed(1)
        result = run_in_pieces(model, checkpointed=again)(torch.ones(2, 3, 4))
        gradients.append(torch.autograd.grad(result.square().sum(), list(model.parameters())))
    assert all(map(torch.equal, *gradients))


def test_only_a_sequential_can_be_cut(tmp_path: Path) -> None:
    words, pictures = r"Sequential.*Got Idle", str(write_pictures(tmp_path / "pictures"))
    refused(words, fit, Idle(), [batch(0)], loss, epochs=1, checkpoint_activations=True, folder=tmp_path / "run")
    refused(words, train, pictures, tmp_path / "run", model=Idle, device="cpu", checkpoint_activations=True)
    assert not (tmp_path / "run").exists()


def test_a_run_says_so_and_goes_on_with_or_without(tmp_path: Path) -> None:
    """The same weights as of a run that kept all activations."""
    pictures = str(write_pictures(tmp_path / "pictures"))
    options: dict[str, Any] = {"model": "small", "epochs": 2, "batch_size": 16, "device": "cpu"}
    train(pictures, tmp_path / "all", **options)
    stopped(3, train, pictures, tmp_path / "run", **options, checkpoint_activations=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["checkpoint_activations"] is True
    train(out=tmp_path / "run", resume=True, checkpoint_activations=False, device="cpu")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("all", "run")]
    assert files[0] == files[1]
