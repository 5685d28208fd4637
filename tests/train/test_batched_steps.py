"""One network's like layers in one batch, retractions as short as the way back, compiled passes: the same training."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.linalg.orthogonalisation import descend
from isoconv.models import ShiftNet, Small
from isoconv.nn import MaxMin, OrthogonalLinear
from isoconv.train.capture import SharedUpdate, Stepper, compile_network
from isoconv.train.engine import Learner
from isoconv.train.run_folder import RunFolder

SHAPE = (1, 8, 8)


def shift_net() -> nn.Module:
    torch.manual_seed(0)
    return ShiftNet(SHAPE, 4, channels=32, blocks=(2, 2), patch=4)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float() / 0.2, y)


def make(
    model: nn.Module | None = None, optimiser: object = "steepest", lr: float = 0.01, **options: object
) -> Learner:
    return Learner(model or shift_net(), loss, optimiser, lr, steps_per_epoch=80, **options)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(0, 4, (32,), generator=generator)
    return torch.rand(32, *SHAPE, generator=generator) * (1 + y[:, None, None, None]) / 4, y


def advance(one: Learner, steps: range, update: SharedUpdate | None = None) -> list[int]:
    """Step alone, or as a captured step would; return how matrices were settled."""
    settled = []
    for step in steps:
        if update is None:
            Stepper([one]).step([batch(step)])
            continue
        one.rate.fill_(one.scheduled_rate())
        settled.append(update.choose_settling(one.scheduled_rate()))
        update([batch(step)], settled[-1])
        one.done += 1
    return settled


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


# Stacks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimiser", "lr"), [("steepest", 0.01), ("adam", 1e-3), ("rmsprop", 1e-4)])
def test_a_network_whose_like_layers_step_in_one_batch_steps_as_ever(optimiser: str, lr: float, tmp_path) -> None:
    """Also after it was saved in between, and loaded into another."""
    joined, alone, resumed = (make(optimiser=optimiser, lr=lr) for _ in range(3))
    advance(joined, range(3))
    update = SharedUpdate([joined])
    assert sorted(len(stack.layers) for stack in update.stacks) == [1, 1, 4, 4]  # embedding, head, two stages
    # Settled exactly, the difference is rounding alone.
    for step in range(3, 10):
        joined.rate.fill_(joined.scheduled_rate())
        update([batch(step)])
        joined.done += 1
    advance(alone, range(10))
    assert largest_difference(joined.model, alone.model) < (3e-4 if optimiser == "rmsprop" else 2e-5)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.save(joined)
    folder.load(resumed)
    assert largest_difference(joined.model, resumed.model) == 0 and resumed.done == 10
    advance(resumed, range(10, 12))
    advance(alone, range(10, 12))
    assert largest_difference(resumed.model, alone.model) < (1e-3 if optimiser == "rmsprop" else 1e-4)


class Idle(nn.Module):
    """Has a layer that it does not use, like one that it uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.idle, self.head = OrthogonalLinear(64, 64), OrthogonalLinear(64, 64), OrthogonalLinear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.used(x.flatten(1))))


@pytest.mark.parametrize("optimiser", ["steepest", "adam"])
def test_a_layer_that_is_not_used_stays_where_it_is(optimiser: str) -> None:
    one, alone = make(Idle(), optimiser, 1e-3), make(Idle(), optimiser, 1e-3)
    before = copy.deepcopy(one.model.idle)
    advance(one, range(2))
    advance(one, range(2, 6), SharedUpdate([one]))
    advance(alone, range(6))
    torch.testing.assert_close(one.model.idle.matrix, before.matrix, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.model.used.matrix, alone.model.used.matrix, rtol=0, atol=1e-4)


def test_an_optimiser_of_the_users_own_gets_each_parameter_as_it_is() -> None:
    shapes: list[torch.Size] = []

    def own(parameters: object, rate: Tensor) -> torch.optim.Optimizer:
        kept = list(parameters)
        shapes.extend(p.shape for p in kept)
        return torch.optim.SGD(kept, lr=rate)

    learners = [make(optimiser=own) for _ in range(2)]
    expected = [p.shape for p in learners[0].model.parameters() if p.requires_grad]
    for group in (learners[:1], learners):
        shapes.clear()
        update = SharedUpdate(group)
        assert all(not stack.wholes for stack in update.stacks)
        assert sorted(shapes) == sorted(expected * len(group) if len(group) > 1 else [])


# Back to the manifold -------------------------------------------------------------------------------------------------


def defect(update: SharedUpdate) -> float:
    """The largest ‖UᵀU − I‖₂ of the parameters as they are."""
    found = 0.0
    for stack in update.stacks:
        for source in stack.wholes or stack.layers[0]._sources():
            matrix = source.detach().double()
            tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
            error = tall.mT @ tall - torch.eye(tall.shape[-1], dtype=torch.float64)
            found = max(found, float(torch.linalg.matrix_norm(error, 2).max()))
    return found


@pytest.mark.parametrize("model", [shift_net, lambda: Small(SHAPE, 4)], ids=["shift", "small"])
@pytest.mark.parametrize(
    ("lr", "precision", "most", "kinds"),
    [
        (0.003, "bf16", 2.1e-2, {0, 1}),
        (0.008, "bf16", 2.1e-2, {0, 1}),
        (0.004, "float32", 1.1e-3, {0, 1}),
        (0.05, "float32", 1.1e-3, {1, 3}),
    ],
)
def test_matrices_that_are_used_are_as_near_the_manifold_as_promised(model, lr, precision, most, kinds) -> None:
    """What a step is computed with: the parameters as they are after it was decided how to settle them."""
    one = make(model(), lr=lr, precision=precision)
    advance(one, range(3))
    update, used = SharedUpdate([one]), []
    build = update.stacks[-1].build

    def watch(*arguments: object) -> object:
        built = build(*arguments)
        used.append(defect(update))
        return built

    update.stacks[-1].build = watch  # the last one: all have been settled by then
    settled = set(advance(one, range(3, 80), update)[1:])  # the first comes back from anywhere
    assert settled == kinds
    assert max(used) <= most and len(used) == 77


def test_steps_of_unknown_length_always_come_back_from_anywhere() -> None:
    one = make(optimiser="adam", lr=1e-4)
    advance(one, range(2))
    assert set(advance(one, range(2, 8), SharedUpdate([one]))) == {3}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_what_comes_back_seldom_learns_as_well_and_is_evaluated_exactly(precision: str) -> None:
    seldom, always = (make(lr=0.01, precision=precision) for _ in range(2))
    for one in (seldom, always):
        advance(one, range(3))
    advance(seldom, range(3, 80), SharedUpdate([seldom]))
    advance(always, range(3, 80))
    losses = [float(one.sums["loss"]) / 80 for one in (seldom, always)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    with torch.no_grad():
        assert float(loss(seldom.model, *batch(0))) < losses[0] - 0.3
    weight = seldom.model.eval()[-1].weight.double()
    torch.testing.assert_close(weight @ weight.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-6)


# Directions in bfloat16 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(48, 48), (40, 60), (60, 40), (3, 32, 32), (64, 24), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_direction_in_bfloat16_is_about_the_polar_factor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    U, _, V = torch.linalg.svd(torch.randn(shape, dtype=torch.float64, generator=generator), full_matrices=False)
    values = torch.logspace(0, -1.5, U.shape[-1], dtype=torch.float64)
    for scale in (1.0, 1e-9, 1e9):
        point = torch.zeros(shape, dtype=dtype)
        descend(point, (scale * U * values @ V).to(dtype), torch.tensor(0.5), half=True)
        assert float(torch.linalg.matrix_norm(point.double() + 0.5 * U @ V, 2).max()) < 0.5 * 0.07
    still = torch.ones(shape, dtype=dtype)
    descend(still, torch.zeros(shape, dtype=dtype), 0.5, half=True)
    assert torch.equal(still, torch.ones(shape, dtype=dtype))


# Compiled passes ------------------------------------------------------------------------------------------------------


def compiled_by(backend: object, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_compiled_network_learns_the_same_and_like_blocks_share_their_code(precision: str, monkeypatch) -> None:
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(len(inputs))
        return module

    compiled_by(backend, monkeypatch)
    ones = [make(ShiftNet(SHAPE, 4, channels=16, blocks=(9,), patch=4), lr=0.01, precision=precision) for _ in range(2)]
    ones[1].model.load_state_dict(ones[0].model.state_dict())
    updates = [SharedUpdate(ones[:1], compiled=True), SharedUpdate(ones[1:])]
    for one, update in zip(ones, updates, strict=True):
        advance(one, range(4), update)
    assert largest_difference(ones[0].model, ones[1].model) < 1e-6
    assert float(ones[0].sums["loss"]) == pytest.approx(float(ones[1].sums["loss"]), rel=1e-6)
    assert 0 < len(graphs) <= 7  # of 20 pieces
    updates[0].end()
    assert ones[0].called is ones[0].model


def test_any_other_module_is_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by("eager", monkeypatch)
    ones = [make(Idle(), lr=0.01) for _ in range(2)]
    for one, compiled in zip(ones, (True, False), strict=True):
        advance(one, range(3), SharedUpdate([one], compiled=compiled))
    assert largest_difference(ones[0].model, ones[1].model) < 1e-6


def test_without_a_compiler_one_warning_is_given_and_the_network_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        raise RuntimeError("no compiler here")

    compiled_by(missing, monkeypatch)
    model, x = nn.Sequential(nn.Flatten(), OrthogonalLinear(64, 8), MaxMin()), batch(0)[0]
    network = compile_network(model)
    with pytest.warns(UserWarning, match="no compiler here"):
        first = network(x)
    assert torch.equal(first, model(x)) and torch.equal(network(x), model(x))
