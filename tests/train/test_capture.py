"""How steps run: weights built ahead, in stacks, near the manifold or compiled are the same training as each alone.

What needs a GPU is in test_gpu_engine.py; here the same functions run in a row.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.models import FC3, Large, ShiftNet, Small
from isoconv.nn import BCOPConv1d, BCOPConv2d, MaxMin, OrthogonalLinear, RKOConv2d, svcm
from isoconv.train.capture import SharedUpdate, SideStreams, Stepper, are_alike, prepare_weights, stack_layers
from isoconv.train.config import make_model
from isoconv.train.engine import Learner
from isoconv.train.passes import run_in_pieces
from train.toys import SHAPE, Idle, batch, loss, make, save_and_load, toy_config

IN_A_ROW = SideStreams(torch.device("cpu"))

# Weights built ahead --------------------------------------------------------------------------------------------------


def test_one_build_serves_all_passes_and_nothing_is_left_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
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
    model = nn.Sequential(OrthogonalLinear(3, 3), OrthogonalLinear(3, 3))
    with torch.no_grad():
        model[1].matrix.fill_(torch.nan)
    with pytest.raises(IsoconvError, match="finite"), prepare_weights(stack_layers([model]), IN_A_ROW):
        pass
    assert torch.isfinite(model[0](torch.rand(2, 3))).all() and all(layer.weight_source is None for layer in model)


# Stacks ---------------------------------------------------------------------------------------------------------------

LAYERS = [
    (BCOPConv2d, (3, 8, 3), {}, "manifold"),
    (BCOPConv2d, (1, 1, 3), {}, "manifold"),
    (BCOPConv2d, (4, 20, 3), {"stride": 2, "groups": 2}, "manifold"),
    (BCOPConv2d, (2, 3, (3, 2)), {"stride": (2, 1)}, "bjorck"),
    (BCOPConv1d, (4, 4, 5), {"ranks": (0, 1, 4, 2)}, "bjorck"),
    (RKOConv2d, (4, 6, 3), {"stride": 2, "groups": 2}, "manifold"),
    (OrthogonalLinear, (9, 4), {}, "manifold"),
]


@pytest.mark.parametrize(("kind", "shape", "options", "orthogonalisation"), LAYERS)
def test_layers_in_a_stack_are_as_each_alone(kind, shape, options, orthogonalisation: str) -> None:
    """The weights, the settled parameters, which the models see, and the gradients."""
    layers = [kind(*shape, **options, orthogonalisation=orthogonalisation, dtype=torch.float64) for _ in range(3)]
    for layer in layers:
        layer.weight.sum().backward()
        for p in layer.parameters():  # off the manifold by a little, each differently, as a step leaves them
            p.data.add_(torch.randn_like(p) * 0.003)
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
            torch.testing.assert_close(whole.grad.view(3, *alone.shape)[k], alone.grad, rtol=0, atol=1e-12)
    with torch.no_grad():
        next(iter(stack.wholes)).mul_(-1)
    torch.testing.assert_close(layers[0]._sources()[0], -apart[0]._sources()[0])


def test_what_is_stacked() -> None:
    def stacked(*models: nn.Module) -> list[list[nn.Module]]:
        return [stack.layers for stack in stack_layers(models) if len(stack.layers) > 1]

    def tied() -> nn.Module:
        layer = BCOPConv2d(4, 4, 3)
        first, second = OrthogonalLinear(5, 5), OrthogonalLinear(5, 5)
        second.matrix = first.matrix
        return nn.ModuleList([layer, layer.transposed(), first, second, OrthogonalLinear(5, 5)])

    # Of OSSN the linear layers; fixed convolutions are not trained; two layers of FC-3 are alike.
    cases = (Large, "bcop", 7), (Large, "ossn", 3), (Small, "bcop-fixed", 2), (FC3, "bcop", 3), (Small, "standard", 0)
    for model, conv, count in cases:
        assert len(stacked(*(model(SHAPE, conv=conv) for _ in range(2)))) == count
    models = tied(), tied()
    assert stacked(*models) == [[models[0][4], models[1][4]]]  # a parameter of two layers cannot lie in two stacks
    assert [len(layers) for layers in stacked(shift_net())] == [4, 4]  # the blocks of each stage
    assert stacked(OrthogonalLinear(5, 5), OrthogonalLinear(5, 5, orthogonalisation="bjorck")) == []
    assert stacked(BCOPConv1d(4, 4, 3, ranks=(1, 2)), BCOPConv1d(4, 4, 3, ranks=(2, 1))) == []


# Shared updates -------------------------------------------------------------------------------------------------------


def shift_net() -> nn.Module:
    torch.manual_seed(0)
    return ShiftNet(SHAPE, 4, channels=32, blocks=(2, 2), patch=4)


def advance(group: list[Learner], steps: range, update: SharedUpdate | None = None, exact: bool = False) -> list[int]:
    """Step each alone, or all as a captured step would; return how matrices were settled."""
    settled = []
    for step in steps:
        batches = [batch(step + 100 * k) for k in range(len(group))]
        if update is None:
            Stepper(group).step(batches)
            continue
        rate = group[0].scheduled_rate()
        group[0].rate.fill_(rate)
        settled.append(3 if exact else update.choose_settling(rate))
        update(batches, settled[-1])
        for one in group:
            one.done += 1
    return settled


def assert_same(one: Learner, other: Learner, tolerance: float) -> None:
    assert one.done == other.done and float(one.sums["loss"]) == pytest.approx(float(other.sums["loss"]), rel=1e-5)
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=tolerance)
    ours, theirs = (each.optimiser.state_dict()["state"] for each in (one, other))
    assert ours.keys() >= theirs.keys()  # a layer that is not used has no state of its own
    for index, state in theirs.items():
        for key, value in state.items():
            torch.testing.assert_close(ours[index][key], value, rtol=0, atol=tolerance * float(value.abs().max()))


def small(conv: str, orthogonalisation: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Small(SHAPE, 4, conv=conv, orthogonalisation=orthogonalisation)


GROUPS: dict[str, tuple[list[Callable[[], nn.Module]], str]] = {
    f"{conv} {optimiser}": ([functools.partial(small, conv, orthogonalisation, k) for k in range(3)], optimiser)
    for conv, optimiser, orthogonalisation in (
        ("bcop", "steepest", "manifold"),
        ("bcop", "rmsprop", "bjorck"),
        ("ossn", "adam", "manifold"),
        ("bcop-fixed", "steepest", "manifold"),
        ("standard", "adam", "manifold"),
    )
}
GROUPS |= {f"{kind.__name__} {name}": ([kind], name) for kind in (shift_net, Idle) for name in ("steepest", "adam")}


@pytest.mark.parametrize("name", GROUPS)
def test_networks_and_layers_that_share_an_update_step_as_each_alone(name: str, tmp_path: Path) -> None:
    """Also after they were saved in between, each on its own, and loaded into others, which step together again."""
    models, optimiser = GROUPS[name]
    lr = 1e-2 if optimiser == "steepest" else 1e-3
    joined, apart, resumed = ([make(model(), optimiser, lr) for model in models] for _ in range(3))
    for group in (joined, apart):
        advance(group, range(4))
    update = SharedUpdate(joined)
    advance(joined, range(4, 8), update, exact=True)
    advance(apart, range(4, 8))
    for k, (one, other, third) in enumerate(zip(joined, apart, resumed, strict=True)):
        assert_same(one, other, 2e-5)
        x = torch.rand(2, *SHAPE)  # and what is evaluated is what was trained
        fresh = copy.deepcopy(other.model)
        fresh.load_state_dict(one.model.state_dict())
        torch.testing.assert_close(one.model.eval()(x), fresh.eval()(x), rtol=0, atol=1e-5)
        one.model.train()
        save_and_load(one, third, tmp_path / str(k))
        assert_same(one, third, 0)
    advance(joined, range(8, 10), update, exact=True)
    advance(resumed, range(8, 10), SharedUpdate(resumed), exact=True)
    for one, third in zip(joined, resumed, strict=True):
        assert_same(one, third, 1e-4)


def test_an_optimiser_of_the_users_own_gets_each_parameter_as_it_is() -> None:
    shapes: list[torch.Size] = []

    def own(parameters: object, rate: Tensor) -> torch.optim.Optimizer:
        kept = list(parameters)
        shapes.extend(p.shape for p in kept)
        return torch.optim.SGD(kept, lr=rate)

    learners = [make(shift_net(), own) for _ in range(2)]
    expected = sorted(p.shape for one in learners for p in one.model.parameters() if p.requires_grad)
    shapes.clear()
    assert all(not stack.wholes for group in (learners[:1], learners) for stack in SharedUpdate(group).stacks)
    assert sorted(shapes) == expected


def test_who_is_alike() -> None:
    def one(conv: str = "bcop", optimiser: str = "steepest", model: nn.Module | None = None) -> Learner:
        return make(model or small(conv, "manifold"), optimiser)

    assert are_alike([one(), one()])
    assert not any(are_alike([one(), other]) for other in (one(optimiser="adam"), one("rko"), one(model=FC3(SHAPE, 4))))


# Back to the manifold -------------------------------------------------------------------------------------------------


def defect(update: SharedUpdate) -> float:
    """The largest ‖UᵀU − I‖₂ of the parameters as they are."""
    matrices = [source for stack in update.stacks for source in stack.wholes or stack.layers[0]._sources()]
    return max(float((torch.linalg.svdvals(matrix.detach().double()) ** 2 - 1).abs().max()) for matrix in matrices)


@pytest.mark.parametrize(
    ("model", "lr", "precision", "most", "kinds"),
    [
        (shift_net, 0.003, "bf16", 2.1e-2, {0, 1}),
        (lambda: Small(SHAPE, 4), 0.008, "bf16", 2.1e-2, {0, 1}),
        (shift_net, 0.004, "float32", 1.1e-3, {0, 1}),
        (lambda: Small(SHAPE, 4), 0.05, "float32", 1.1e-3, {1, 3}),
        (shift_net, None, "float32", 1.1e-3, {3}),  # of steps of Adam nobody knows how long they are
    ],
)
def test_matrices_that_are_used_are_as_near_the_manifold_as_promised(model, lr, precision, most, kinds) -> None:
    """What a step is computed with: the parameters as they are after it was decided how to settle them."""
    one = make(model(), "adam" if lr is None else "steepest", lr or 1e-4, precision=precision)
    advance([one], range(3))
    update, used = SharedUpdate([one]), []
    build = update.stacks[-1].build

    def watch(*arguments: object) -> object:
        built = build(*arguments)
        used.append(defect(update))
        return built

    update.stacks[-1].build = watch  # the last one: all have been settled by then
    settled = set(advance([one], range(3, 80), update)[1:])  # the first comes back from anywhere
    assert settled == kinds and max(used) <= most and len(used) == 77
    matrix = one.model.eval()[-1].weight.double()  # and it is evaluated exactly
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_what_comes_back_seldom_learns_as_well(precision: str) -> None:
    ones = [make(shift_net(), precision=precision) for _ in range(2)]
    for one in ones:
        advance([one], range(3))
        advance([one], range(3, 40), SharedUpdate([one]) if one is ones[0] else None)
    losses = [float(one.sums["loss"]) / 40 for one in ones]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    with torch.no_grad():
        assert float(loss(ones[0].model, *batch(0))) < losses[0] - 0.2


# Compiled passes ------------------------------------------------------------------------------------------------------


def compile_by(backend: object, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))


def test_a_compiled_network_learns_the_same_and_like_blocks_share_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Sequential in pieces, any other module as a whole."""
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(len(inputs))
        return module

    compile_by(backend, monkeypatch)
    blocks = functools.partial(ShiftNet, SHAPE, 4, channels=16, blocks=(9,), patch=4)
    for model, most in ((blocks(), 7), (Idle(), 1)):  # of 20 pieces, and of one
        ones = [make(copy.deepcopy(model), precision="bf16") for _ in range(2)]
        updates = [SharedUpdate(ones[:1], compiled=True), SharedUpdate(ones[1:])]
        graphs.clear()
        for one, update in zip(ones, updates, strict=True):
            advance([one], range(4), update)
        assert 0 < len(graphs) <= most
        for p, q in zip(ones[0].model.parameters(), ones[1].model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
        assert float(ones[0].sums["loss"]) == pytest.approx(float(ones[1].sums["loss"]), rel=1e-6)
        updates[0].end()
        assert ones[0].called is ones[0].model


def test_without_a_compiler_one_warning_is_given_and_the_network_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        raise RuntimeError("no compiler here")

    compile_by(missing, monkeypatch)
    model, x = nn.Sequential(nn.Flatten(), OrthogonalLinear(64, 8), MaxMin()), batch(0)[0]
    network = run_in_pieces(model, compiled=True)
    with pytest.warns(UserWarning, match="no compiler here"):
        first = network(x)
    assert torch.equal(first, model(x)) and torch.equal(network(x), model(x))


# Projections ----------------------------------------------------------------------------------------------------------

SVCM = toy_config(conv="svcm", optimiser="adam", lr=1e-2, project_every=2, project_iterations=20, epochs=1)


def kernels(one: Learner) -> list[Tensor]:
    return [layer.kernel.detach().clone() for layer in one.projected_rarely]


def test_each_network_is_projected_by_its_own_settings() -> None:
    """Others of a method without projections, or with more iterations, are no obstacle."""
    options = [{}, {"conv": "bcop", "optimiser": "steepest"}, {"project_iterations": 2}, {"seed": 1}]
    configs = [replace(SVCM, **each) for each in options]
    mixed = [Learner.from_config(config, make_model(config), loss, 4) for config in configs]
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
