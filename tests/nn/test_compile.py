"""A training step, forward and backward, compiles without a graph break and does what eager does."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from helpers import singular_values
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear, OSSNConv2d, RKL2NEConv2d, RKOConv2d

TOLERANCE = 1e-4  # the requirement

# torch's compiler still uses parts of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def three_steps(model: nn.Module, x: Tensor, y: Tensor, wrap: Callable[..., Callable[..., Tensor]]) -> list[float]:
    """The losses of three steps of SGD; `wrap` may compile the loss."""

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean()

    compute = wrap(loss_of)
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        descent.zero_grad()
        loss = compute(x, y)
        loss.backward()
        descent.step()
        losses.append(float(loss.detach()))
    return losses


def assert_compiled_equals_eager(model: nn.Module, x: Tensor, **options: str) -> nn.Module:
    compiled, eager = model, copy.deepcopy(model)
    y = torch.randn_like(copy.deepcopy(model)(x)).detach()
    expected = three_steps(eager, x, y, lambda function: function)
    found = three_steps(compiled, x, y, lambda function: torch.compile(function, fullgraph=True, **options))
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert expected[-1] < expected[0]
    for name, p in compiled.named_parameters():
        assert torch.allclose(p, eager.get_parameter(name), rtol=0, atol=TOLERANCE), name
    for name, b in compiled.named_buffers():
        assert torch.allclose(b, eager.get_buffer(name), rtol=0, atol=TOLERANCE), name
    assert torch.allclose(compiled.eval()(x), eager.eval()(x), rtol=0, atol=TOLERANCE)
    return compiled


LAYERS = {
    "bcop": (lambda: BCOPConv2d(2, 4, 2), (2, 3, 4)),
    "bcop-bjorck": (lambda: BCOPConv2d(2, 3, 2, orthogonalisation="bjorck"), (2, 3, 4)),
    "rko": (lambda: RKOConv2d(2, 3, 3), (2, 3, 4)),
    "rko-bjorck": (lambda: RKOConv2d(2, 3, 2, orthogonalisation="bjorck"), (2, 3, 4)),
    "ossn": (lambda: OSSNConv2d(2, 4, 3, input_size=(3, 4), power_iterations=2), (2, 3, 4)),
    "rkl2ne": (lambda: RKL2NEConv2d(2, 4, 3), (2, 3, 4)),
    "linear": (lambda: OrthogonalLinear(7, 5), (7,)),
    "linear-bjorck": (lambda: OrthogonalLinear(5, 7, orthogonalisation="bjorck"), (5,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_same_three_steps_as_eager(name):
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(2, *shape)
    layer = assert_compiled_equals_eager(layer, x, backend="aot_eager")
    if name.startswith(("bcop", "linear")):
        values = singular_values(layer, *shape)  # in eager evaluation
        assert (values - 1).abs().max() <= 1e-5


def test_a_network():
    network = nn.Sequential(BCOPConv2d(2, 4, 2, 2), MaxMin(), nn.Flatten(), OrthogonalLinear(16, 4), MaxMin())
    assert_compiled_equals_eager(network, torch.randn(3, 2, 4, 4), backend="aot_eager")


def test_inductor():
    assert_compiled_equals_eager(BCOPConv2d(2, 3, 2), torch.randn(2, 2, 3, 3))


@pytest.mark.parametrize("name", ["bcop", "linear"])
def test_compiled_training_retracts(name):
    """Steps that are far too long: the next compiled pass must bring the parameters back."""
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(2, *shape)
    compute = torch.compile(lambda x: (layer(x) - 1).abs().sum(), fullgraph=True, backend="aot_eager")
    descent = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(5):
        descent.zero_grad()
        compute(x).backward()
        descent.step()
    assert singular_values(layer.eval(), *shape)[0] <= 1 + 1e-5
