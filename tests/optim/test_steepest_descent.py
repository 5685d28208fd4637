"""SteepestDescent: where each kind of parameter goes, in what state it can be saved, and that it trains layers."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from helpers import LAYERS, is_manifold, made, polar_by_svd, singular_values
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear
from isoconv.optim import SteepestDescent
from train.toys import refused


def conditioned(*shape: int, lowest: float = 0.1, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random matrices with singular values from `lowest` to 1: the range in which a direction is promised to 4 %."""
    generator = torch.Generator().manual_seed(seed)
    U, _, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    return (U * torch.linspace(1, lowest, U.shape[-1], dtype=torch.float64) @ Vh).to(dtype)


def moved(start: Tensor, gradient: Tensor, steps: int = 1, **options: object) -> Tensor:
    """How far `steps` steps with this gradient take a parameter, in float64."""
    p = nn.Parameter(start.clone())
    optimiser = SteepestDescent([p], **options)
    for _ in range(steps):
        p.grad = gradient.clone()
        optimiser.step()
    return p.detach().double() - start.double()


MATRICES = [(1, 1), (1, 5), (5, 1), (3, 7), (40, 16), (3, 6, 4), (2, 4, 6)]
KERNELS = [(6, 2, 3, 3), (20, 2, 3, 2), (4, 3, 1, 2, 2)]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", MATRICES + KERNELS, ids=str)
def test_a_matrix_moves_by_lr_times_the_polar_factor_of_its_gradient(shape, half):
    """Three dimensions are a batch of matrices, each by its own scale; a kernel is the matrix of c_out and the rest."""
    as_matrix = shape if len(shape) < 4 else (shape[0], math.prod(shape[1:]))
    gradient = conditioned(*as_matrix, dtype=torch.float64)
    if len(shape) == 3:
        gradient = gradient * torch.logspace(-1, 1, shape[0]).reshape(-1, 1, 1)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        start, own = torch.zeros(shape, dtype=dtype), gradient.to(dtype).reshape(shape)
        step = moved(start, own, lr=0.25, momentum=0.0, half=half)
        error = torch.linalg.matrix_norm(step.reshape(as_matrix) + 0.25 * polar_by_svd(gradient), 2)
        assert float(error.max()) < 0.25 * (0.05 + 4 * torch.finfo(torch.bfloat16 if half else dtype).eps)


@pytest.mark.parametrize("shape", [(5,), (8, 3), (3, 8), (2, 6, 4), (2, 4, 6), (4, 6, 3, 3)], ids=str)
def test_the_layout_in_memory_autocast_and_rates_of_other_kinds_change_nothing(shape):
    start, gradient = torch.randn(2, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    turned = start.mT.contiguous().mT if start.dim() > 1 else start.clone()
    assert start.dim() == 1 or not turned.is_contiguous()
    p, expected = nn.Parameter(turned), moved(start, gradient, lr=0.1)
    p.grad = gradient.clone()
    SteepestDescent([p], lr=0.1).step()
    torch.testing.assert_close(p.detach() - start, expected, atol=1e-14, rtol=1e-12)
    single = moved(start.float(), gradient.float(), lr=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(moved(start.float(), gradient.float(), lr=0.1), single)
    for rate in (torch.tensor(0.1), torch.tensor([0.1], dtype=torch.float64)):
        # The parameter is in float32, and of size 1 to 4.
        torch.testing.assert_close(moved(start.float(), gradient.float(), lr=rate), single, atol=4 * 2.0**-23, rtol=0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_gradient_of_any_scale_and_rank_moves_only_its_own_directions_by_lr(scale):
    for rank in (1, 2, 5):
        U, V = (torch.linalg.qr(torch.randn(n, rank, generator=torch.Generator().manual_seed(n))).Q for n in (9, 6))
        step = moved(torch.zeros(9, 6), scale * U @ V.T, lr=0.02, momentum=0.0)
        assert float(torch.linalg.matrix_norm(step / 0.02 + (U @ V.T).double(), 2)) < 0.05


@pytest.mark.parametrize(("shape", "rounded"), [((6, 6), True), ((6, 11), True), ((12, 6), False), ((6, 12), False)])
def test_half_computes_in_bfloat16_what_is_not_long(shape, rounded):
    for scale in (1e-12, 1.0, 1e12):
        start, gradient = torch.zeros(shape), scale * conditioned(*shape)
        precise, step = (moved(start, gradient, lr=1.0, half=half) for half in (False, True))
        assert torch.equal(step, step.bfloat16().double()) == rounded and torch.equal(step, precise) != rounded
        assert float(torch.linalg.matrix_norm(step - precise, 2)) < 0.08


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 4, 3), (4, 2, 3, 3), (0,), (2, 0, 3)], ids=str)
def test_without_a_gradient_or_with_one_of_zero_nothing_moves(shape, dtype):
    start = torch.randn(shape).to(dtype)
    assert torch.equal(moved(start, torch.zeros_like(start), steps=3, lr=0.5), torch.zeros(shape, dtype=torch.float64))
    p = nn.Parameter(start.clone())
    SteepestDescent([p], lr=1.0).step()
    assert torch.equal(p, start)


ADAMS = [((), (0.9, 0.999), 1e-8), ((7,), (0.5, 0.9), 0.1), ((7,), (0.0, 0.99), 1e-3)]


@pytest.mark.parametrize(("shape", "betas", "eps"), ADAMS, ids=str)
def test_vectors_move_as_adam_moves_them(shape, betas, eps):
    generator = torch.Generator().manual_seed(4)
    ours, theirs = (nn.Parameter(torch.ones(shape, dtype=torch.float64)) for _ in range(2))
    descent = SteepestDescent([ours], lr=5.0, vector_lr=0.02, betas=betas, eps=eps)
    adam = torch.optim.Adam([theirs], lr=0.02, betas=betas, eps=eps)
    for _ in range(10):
        ours.grad = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e-2
        theirs.grad = ours.grad.clone()
        descent.step()
        adam.step()
    # The step count and with it the bias correction are float32 numbers.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * 10 * 1e-4)
    for dtype in (torch.float16, torch.bfloat16):
        step = moved(torch.zeros(5, dtype=dtype), torch.ones(5, dtype=dtype), steps=2, vector_lr=0.01)
        torch.testing.assert_close(step, torch.full((5,), -0.02, dtype=torch.float64), rtol=0.02, atol=0)


def test_momentum_keeps_its_share_of_the_old_gradients():
    first, second, third = (conditioned(5, 4, seed=seed) for seed in range(3))
    p = nn.Parameter(torch.zeros(5, 4))
    optimiser = SteepestDescent([p], lr=0.1, momentum=0.6)
    for gradient in (first, second, third):
        before, p.grad = p.detach().clone(), gradient
        optimiser.step()
    direction = polar_by_svd((0.36 * first + 0.6 * second + third).double())
    assert float(torch.linalg.matrix_norm((p.detach() - before).double() + 0.1 * direction, 2)) < 0.05 * 0.1


def test_rates_are_read_at_every_step_from_each_group_and_vectors_follow_them():
    first, second = (moved(torch.zeros(3), torch.ones(3), lr=lr) for lr in (0.1, 0.2))
    torch.testing.assert_close(second, 2 * first)
    torch.testing.assert_close(first, moved(torch.zeros(3), torch.ones(3), lr=0.1, vector_lr=0.01))
    rate, p, q = torch.tensor(0.5), nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(3, 3))
    optimiser = SteepestDescent([{"params": [p], "lr": rate}, {"params": [q]}], lr=0.1, momentum=0.0)
    p.grad = q.grad = torch.eye(3)
    optimiser.step()
    before = p.detach().clone()
    torch.testing.assert_close(before, 5 * q.detach())
    rate.fill_(0.25)
    optimiser.step()
    torch.testing.assert_close(p.detach() - before, before / 2)


def advance(model: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for k in steps:
        x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(k))
        optimiser.zero_grad()
        model(x)[:, 0].sum().backward()
        optimiser.step()


@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)], ids=["number", "tensor"])
def test_a_saved_state_continues_identically(lr, tmp_path):
    layers = [BCOPConv2d(2, 4, 3), MaxMin(), nn.Flatten(), OrthogonalLinear(4 * 16, 5), nn.LayerNorm(5)]
    model, again = nn.Sequential(*layers), copy.deepcopy(nn.Sequential(*layers))
    optimiser, resumed = (SteepestDescent(one.parameters(), lr=copy.deepcopy(lr)) for one in (model, again))
    advance(model, optimiser, range(3))
    torch.save((model.state_dict(), optimiser.state_dict()), tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt")
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    for one, descent in ((model, optimiser), (again, resumed)):
        advance(one, descent, range(3, 6))
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("name", [name for name in LAYERS if "fixed" not in name][::3])
def test_every_layer_learns_in_a_loop_of_the_users_own(name):
    (layer, x), (other, _) = made(name), made(name)  # a target of the same kind: the loss can go down
    goal, losses = other.eval()(x).detach(), []
    optimiser = SteepestDescent([p for p in layer.parameters() if p.requires_grad], lr=0.02)
    for _ in range(12):
        optimiser.zero_grad()
        loss = (layer.train()(x) - goal).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.98 * losses[0]
    if is_manifold(name) and not name.startswith("rko"):
        assert (singular_values(layer.eval(), *x.shape[1:]) - 1).abs().max() <= 1e-5


WRONG = [("lr", -0.1, "learning rate"), ("lr", math.nan, "learning rate"), ("vector_lr", -1.0, "learning rate")]
WRONG += [("momentum", 1.0, "momentum"), ("momentum", -0.5, "momentum"), ("steps", 0, "step"), ("eps", -1, "eps")]


def test_arguments_that_make_no_sense_are_refused():
    for name, value, word in WRONG:
        parameters = [nn.Parameter(torch.zeros(2, 2))]
        refused(f"Expected .*{word}.*Got .*{value}", SteepestDescent, parameters, **{name: value})


def test_a_loaded_count_follows_its_parameter():
    """`load_state_dict` leaves counts on the device that they were read to, here the CPU."""
    p, rate = nn.Parameter(torch.zeros(4, device="meta")), torch.full((), 0.01, device="meta")
    optimiser = SteepestDescent([p], lr=rate)
    p.grad = torch.ones_like(p)
    read = {"step": torch.tensor(5.0, dtype=torch.float64), "first": torch.zeros(4), "second": torch.zeros(4)}
    optimiser.load_state_dict({"state": {0: read}, "param_groups": optimiser.state_dict()["param_groups"]})
    optimiser.step()
    assert {value.device.type for value in optimiser.state[p].values()} == {"meta"}


def test_the_closure_is_evaluated_with_gradients_its_loss_returned_and_a_copy_steps_too():
    optimiser = copy.deepcopy(SteepestDescent([nn.Parameter(torch.eye(2))], lr=0.1))
    (p,) = optimiser.param_groups[0]["params"]

    def closure() -> Tensor:
        loss = p.square().sum()
        loss.backward()
        return loss.detach()

    assert float(optimiser.step(closure)) == 2.0
    assert float(closure()) < 2.0
