"""How steps run: weights built ahead or in stacks are the same, and networks that share an update step as each alone.

What needs a GPU is in test_gpu_engine.py; here the same functions run in a row.
"""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.models import FC3, Large, Small
from isoconv.nn import BCOPConv1d, BCOPConv2d, OrthogonalLinear, RKOConv2d, svcm
from isoconv.train.capture import SharedUpdate, SideStreams, Stepper, are_alike, prepare_weights, stack_layers
from isoconv.train.engine import Learner
from isoconv.train.run_folder import RunFolder
from train.toys import learner, toy, toy_config

IN_A_ROW = SideStreams(torch.device("cpu"))

# Weights built ahead --------------------------------------------------------------------------------------------------


def test_one_build_serves_all_passes_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = BCOPConv2d(2, 2, 3), torch.rand(1, 2, 4, 4)
    builds, build, stacks = [], layer._build, stack_layers([layer])
    monkeypatch.setattr(layer, "_build", lambda *points: builds.append(1) or build(*points))
    with prepare_weights(stacks, IN_A_ROW):
        (layer(x) + layer(2 * x)).sum().backward()
    assert len(builds) == 1
    with torch.no_grad():
        layer.O.mul_(-1)
    before = layer(x)
    with pytest.raises(RuntimeError, match="on purpose"), prepare_weights(stacks, IN_A_ROW):
        raise RuntimeError("on purpose")
    assert torch.equal(layer(x), before)


def test_a_build_that_fails_leaves_nothing_prepared() -> None:
    model = nn.Sequential(OrthogonalLinear(3, 3), OrthogonalLinear(3, 3))
    with torch.no_grad():
        model[1].matrix.fill_(torch.nan)
    with pytest.raises(IsoconvError, match="finite"), prepare_weights(stack_layers([model]), IN_A_ROW):
        pass
    assert torch.isfinite(model[0](torch.rand(2, 3))).all()
    assert all(layer.weight_source is None for layer in model)


# Stacks ---------------------------------------------------------------------------------------------------------------

LAYERS = [
    (BCOPConv2d, (3, 8, 3), {}, "manifold"),
    (BCOPConv2d, (4, 6, 4), {"stride": 2}, "bjorck"),
    (BCOPConv2d, (1, 1, 3), {}, "manifold"),
    (BCOPConv2d, (4, 6, 3), {"groups": 2, "dilation": 2}, "manifold"),
    (BCOPConv2d, (4, 20, 3), {"stride": 2, "groups": 2}, "manifold"),
    (BCOPConv2d, (2, 3, (3, 2)), {"stride": (2, 1)}, "bjorck"),
    (BCOPConv1d, (5, 3, 4), {"stride": 2}, "manifold"),
    (BCOPConv1d, (2, 12, 3), {"stride": 2, "groups": 2}, "manifold"),
    (BCOPConv1d, (4, 4, 5), {"ranks": (0, 1, 4, 2)}, "bjorck"),
    (RKOConv2d, (7, 2, 2), {"stride": 2}, "manifold"),
    (RKOConv2d, (2, 7, 3), {}, "bjorck"),
    (RKOConv2d, (4, 6, 3), {"stride": 2, "groups": 2}, "manifold"),
    (OrthogonalLinear, (9, 4), {}, "manifold"),
]


def move(layers: list[nn.Module]) -> None:
    """Off the manifold by a little, each differently, as a step leaves them."""
    with torch.no_grad():
        for layer in layers:
            for p in layer.parameters():
                p.add_(torch.randn_like(p) * 0.003)


@pytest.mark.parametrize(("kind", "shape", "options", "orthogonalisation"), LAYERS)
def test_layers_in_a_stack_are_as_each_alone(kind, shape, options, orthogonalisation: str) -> None:
    """The weights, the settled parameters, which the models see, and the gradients."""
    torch.manual_seed(0)
    options = options | {"orthogonalisation": orthogonalisation, "dtype": torch.float64}
    layers = [kind(*shape, **options) for _ in range(3)]
    for layer in layers:
        layer.weight.sum().backward()
    move(layers)
    apart = copy.deepcopy(layers)
    (stack,) = stack_layers(layers)
    assert all(parameter.grad is None for layer in layers for parameter in layer._sources())
    weights = stack.build(IN_A_ROW)
    cotangents = [torch.randn_like(weight) for weight in weights]
    sum((w * c).sum() for w, c in zip(weights, cotangents, strict=True)).backward()
    for k, (layer, weight, cotangent) in enumerate(zip(apart, weights, cotangents, strict=True)):
        layer.zero_grad()
        torch.testing.assert_close(weight, layer.weight, rtol=0, atol=1e-13)
        (layer.weight * cotangent).sum().backward()
        for whole, mine, alone in zip(stack.wholes, layers[k]._sources(), layer._sources(), strict=True):
            torch.testing.assert_close(mine.detach(), alone.detach(), rtol=0, atol=1e-13)
            gradient = whole.grad.view(3, *alone.shape)[k]
            torch.testing.assert_close(gradient, alone.grad, rtol=0, atol=1e-12)
    with torch.no_grad():
        next(iter(stack.wholes)).mul_(-1)
    torch.testing.assert_close(layers[0]._sources()[0], -apart[0]._sources()[0])


def stacked(*models: nn.Module) -> list[list[nn.Module]]:
    return [stack.layers for stack in stack_layers(models) if len(stack.layers) > 1]


@pytest.mark.parametrize(
    ("model", "conv", "count"),
    [
        (Large, "bcop", 7),
        (Large, "ossn", 3),  # the linear layers
        (Small, "rkl2ne", 2),
        (Small, "bcop-fixed", 2),  # its convolutions are not trained
        (FC3, "bcop", 3),  # two of its layers are alike
        (Small, "standard", 0),
    ],
)
def test_what_is_stacked(model, conv: str, count: int) -> None:
    assert len(stacked(*(model((1, 8, 8), conv=conv) for _ in range(2)))) == count


def test_what_is_shared_or_not_alike_is_not_stacked() -> None:
    def tied() -> nn.Module:
        layer = BCOPConv2d(4, 4, 3)
        first, second = OrthogonalLinear(5, 5), OrthogonalLinear(5, 5)
        second.matrix = first.matrix
        return nn.ModuleList([layer, layer.transposed(), first, second, OrthogonalLinear(5, 5)])

    models = tied(), tied()
    assert stacked(*models) == [[models[0][4], models[1][4]]]  # a parameter of two layers cannot lie in two stacks
    assert stacked(OrthogonalLinear(5, 5), OrthogonalLinear(5, 5, orthogonalisation="bjorck")) == []
    assert stacked(BCOPConv1d(4, 4, 3, ranks=(1, 2)), BCOPConv1d(4, 4, 3, ranks=(2, 1))) == []


# Shared updates -------------------------------------------------------------------------------------------------------

CASES = [
    ("bcop", "steepest", "manifold"),
    ("bcop", "rmsprop", "bjorck"),
    ("rko", "adam", "manifold"),
    ("ossn", "adam", "manifold"),
    ("bcop-fixed", "steepest", "manifold"),
    ("svcm", "adam", "manifold"),
    ("rkl2ne", "adam", "manifold"),
    ("standard", "adam", "manifold"),
]


def learners(conv: str, optimiser: str, orthogonalisation: str = "manifold", count: int = 3) -> list[Learner]:
    rate = 1e-2 if optimiser == "steepest" else 1e-3
    options = {"conv": conv, "optimiser": optimiser, "orthogonalisation": orthogonalisation, "lr": rate}
    config = toy_config(loss="cross-entropy", temperature=0.18, offset=1.7, epochs=1, **options)
    return [learner(replace(config, seed=seed), 100) for seed in range(count)]


def batches(step: int, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(step))
    return [(draw(0, 256, (16, 1, 8, 8), dtype=torch.uint8), draw(0, 4, (16,))) for _ in range(count)]


def advance(group: list[Learner], steps: range, together: SharedUpdate | None = None) -> None:
    """Step by step, each alone, or all by an update that they share."""
    for step in steps:
        if together is None:
            Stepper(group).step(batches(step))
            continue
        group[0].rate.fill_(group[0].scheduled_rate())
        together(batches(step))
        for one in group:
            one.done += 1


def assert_same(one: Learner, other: Learner, tolerance: float) -> None:
    assert one.done == other.done and int(one.sums["accuracy"]) == int(other.sums["accuracy"])
    assert float(one.sums["loss"]) == pytest.approx(float(other.sums["loss"]), rel=1e-5)
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=tolerance)
    ours, theirs = (each.optimiser.state_dict()["state"] for each in (one, other))
    assert ours.keys() == theirs.keys()
    for index, state in theirs.items():
        for key, value in state.items():
            torch.testing.assert_close(ours[index][key], value, rtol=0, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize(("conv", "optimiser", "orthogonalisation"), CASES)
def test_networks_that_share_an_update_step_as_each_alone(conv: str, optimiser: str, orthogonalisation: str) -> None:
    joined, apart = (learners(conv, optimiser, orthogonalisation) for _ in range(2))
    for group in (joined, apart):
        advance(group, range(4))
    advance(joined, range(4, 9), SharedUpdate(joined))
    advance(apart, range(4, 9))
    for one, other in zip(joined, apart, strict=True):
        assert_same(one, other, 1e-5)
        x = torch.rand(2, 1, 8, 8)  # and what is evaluated is what was trained
        fresh = copy.deepcopy(other.model)
        fresh.load_state_dict(one.model.state_dict())
        torch.testing.assert_close(one.model.eval()(x), fresh.eval()(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimiser", ["steepest", "adam"])
def test_one_of_them_is_saved_and_resumed_on_its_own(optimiser: str, tmp_path) -> None:
    joined, resumed = learners("bcop", optimiser), learners("bcop", optimiser)
    advance(joined, range(3))
    shared = SharedUpdate(joined)
    advance(joined, range(3, 6), shared)
    for k, (one, other) in enumerate(zip(joined, resumed, strict=True)):
        folder = RunFolder(tmp_path / str(k))
        folder.path.mkdir()
        folder.save(one)
        folder.load(other)
        assert_same(one, other, 0)
    advance(joined, range(6, 9), shared)
    advance(resumed, range(6, 9), SharedUpdate(resumed))  # and on they go, together again
    for one, other in zip(joined, resumed, strict=True):
        assert_same(one, other, 1e-4)


def test_who_is_alike() -> None:
    same = learners("bcop", "steepest")
    assert are_alike(same)
    assert not are_alike([*same[:1], *learners("bcop", "adam", count=1)])
    assert not are_alike([*same[:1], *learners("rko", "steepest", count=1)])
    assert not are_alike([same[0], learner(toy_config(model="fc3"), 100)])


# Projections ----------------------------------------------------------------------------------------------------------

SVCM = {"conv": "svcm", "optimiser": "adam", "lr": 1e-2, "project_every": 5, "project_iterations": 20}


def kernels(one: Learner) -> list[Tensor]:
    return [layer.kernel.detach().clone() for layer in one.projected_rarely]


def test_a_step_does_not_project_but_what_follows_it_does():
    one, images = learner(toy_config(**(SVCM | {"project_every": 2, "epochs": 1})), 3), toy(64)
    stepper = Stepper([one])
    for done, due in ((1, False), (2, True), (3, True)):  # the third is the last
        stepper.step([(images.images, images.labels)])
        after_step = kernels(one)
        stepper.project_where_due()
        assert one.done == done
        changed = [not torch.equal(a, b) for a, b in zip(kernels(one), after_step, strict=True)]
        assert all(changed) if due else not any(changed)


def test_each_network_is_projected_by_its_own_settings():
    """Others of a method without projections, or with more iterations, are no obstacle."""
    options = [{}, {"conv": "bcop", "optimiser": "steepest"}, {"project_iterations": 2}, {"seed": 1}]
    mixed = [learner(toy_config(**(SVCM | each))) for each in options]
    for one in mixed:
        for layer in one.projected_rarely:
            layer.kernel.data.mul_(3)
    before = [kernels(one) for one in mixed]
    Stepper(mixed).project(mixed)
    for one, old in zip(mixed, before, strict=True):
        for layer, kernel in zip(one.projected_rarely, old, strict=True):
            expected = svcm.clip_and_mask(kernel, layer.convolved_size, one.project_iterations)
            assert (layer.kernel - expected).abs().max() <= 1e-5 < (expected - kernel).abs().max()
    few, many = (kernels(mixed[k])[0] for k in (2, 0))
    assert (few - many).abs().max() > 1e-3  # so that a mix-up of the iterations would show
