"""Whichever way a layer is run, it is one function of its parameters; what cannot be run says so."""

import copy
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, stack_module_state, vjp, vmap
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from helpers import LAYERS, made, singular_values
from isoconv import IsoconvError, plain
from isoconv.nn import BCOPConv2d, GroupSort, MaxMin, OrthogonalLinear

# torch's compiler still uses parts of torch that torch has deprecated, and TorchScript is deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)

ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}
NAMES = ["bcop s2", "bcop-bjorck", "rkl2ne", "1d", "transposed", "linear", "standard", "aol", "cayley", "sll", "cpl s2"]
COMPILED = ["bcop", "ossn", "transposed s2", "linear-bjorck", "bcop-fixed", "cayley", "sll"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def step_far(model: nn.Module, seed: int = 0) -> nn.Module:
    """Take a step so long that one Newton–Schulz step does not bring the matrices back."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype))
    return model


def compiled(model: nn.Module, **options: object) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, fullgraph=True, backend="aot_eager", **options)


def through_func(model: nn.Module) -> Callable[[Tensor], Tensor]:
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    return lambda x: vjp(lambda v: functional_call(model, v, (x,)), values)[0]


WAYS: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "eager": lambda model: model,
    "func": through_func,
    "checkpoint": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "compiled": compiled,
}


def assert_close(found: Tensor, expected: Tensor, factor: float = 1) -> None:
    assert (found - expected).abs().max() <= factor * ROUNDING[expected.dtype] * expected.abs().max()


def check_after_a_long_step(ways: Sequence[str], name: str, dtype: torch.dtype) -> None:
    layer, x = made(name, dtype=dtype)
    step_far(layer)
    expected = copy.deepcopy(layer).eval()(x).detach()
    for way, mode in product(ways, (True, False)):
        run = WAYS[way](copy.deepcopy(layer).train(mode))
        for _ in range(1 if name.startswith("ossn") else 2):
            assert_close(run(x).detach(), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_after_a_long_step(name: str) -> None:
    check_after_a_long_step(["eager", "func", "checkpoint"], name, torch.float64)
    check_after_a_long_step(["eager"], name, torch.float32)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_after_a_long_step(name: str) -> None:
    check_after_a_long_step(["compiled"], name, torch.float32 if name == "bcop" else torch.float64)


@pytest.mark.parametrize("way", ["checkpoint", "compiled"])
def test_the_same_gradients_and_the_same_matrices_written_back(way: str) -> None:
    model = nn.Sequential(BCOPConv2d(2, 4, 2, 2), MaxMin(), nn.Flatten(), OrthogonalLinear(16, 4), MaxMin()).double()
    other, x = copy.deepcopy(step_far(model)), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    descents = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (model, other)]
    run = WAYS[way](other)
    for _ in range(3):
        for function, descent in zip((model, run), descents, strict=True):
            descent.zero_grad()
            function(x).square().sum().backward()
            descent.step()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert_close(q.grad, p.grad, 100)
            assert_close(q.detach(), p.detach(), 100)


def test_a_checkpoint_iterates_no_further() -> None:
    layer, x = made("ossn s2", dtype=torch.float64)
    other = copy.deepcopy(step_far(layer))
    for run in (layer, WAYS["checkpoint"](other)):
        run(x).square().sum().backward()
    assert torch.equal(layer.vector, other.vector)
    assert_close(other.kernel.grad, layer.kernel.grad)


def test_inductor() -> None:
    layer, x = step_far(BCOPConv2d(2, 3, 2)), torch.randn(2, 2, 3, 3)
    other = copy.deepcopy(layer)
    found, expected = torch.compile(other, fullgraph=True)(x), layer(x)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(found.detach(), expected.detach())
    assert_close(other.O.grad, layer.O.grad, 10)
    assert (singular_values(other.eval(), 2, 3, 3) - 1).abs().max() <= 1e-5


def test_one_step_of_adam_on_a_wide_matrix() -> None:
    """Every entry moves by the rate, which one blind retraction does not bring back."""
    layer, x = OrthogonalLinear(3072, 10), torch.rand(4, 3072)
    layer(x).square().sum().backward()
    torch.optim.Adam(layer.parameters(), lr=1e-2).step()
    layer.eval()
    assert_close(compiled(layer)(x).detach(), layer(x).detach())


# torch.func -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_gradients_per_example(name: str) -> None:
    layer, x = made(name, dtype=torch.float64)
    step_far(layer).eval()
    values = {name: p.detach().clone() for name, p in layer.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(layer, values, (one[None],)).sigmoid().sum()

    of_parameters = vmap(grad(loss), in_dims=(None, 0))(values, x)
    of_inputs = vmap(grad(lambda one: layer(one[None]).sigmoid().sum()))(x)
    for k, one in enumerate(x):
        layer.zero_grad()
        one = one.clone().requires_grad_()
        layer(one[None]).sigmoid().sum().backward()
        assert_close(of_inputs[k], one.grad, 10)
        for name, p in layer.named_parameters():
            assert_close(of_parameters[name][k], p.grad, 100)


@pytest.mark.parametrize("name", [*NAMES, "ossn"])
def test_an_ensemble(name: str) -> None:
    for mode in (True, False):
        models = [step_far(made(name, dtype=torch.float64)[0], seed).train(mode) for seed in range(3)]
        base, x = copy.deepcopy(models[0]), made(name, dtype=torch.float64)[1]
        found = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(*stack_module_state(models))  # noqa: B023
        for model, output in zip(models, found, strict=True):
            assert_close(output.detach(), model(x).detach(), 10)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("name", ["bcop", "sll", "cpl s2"])
def test_dual_inputs_of_layers_work_and_dual_parameters_are_refused(name: str, context: Callable[[], Any]) -> None:
    layer, x = made(name, dtype=torch.float64)
    second = BCOPConv2d(layer.out_channels, 3, 3, dtype=torch.float64)
    head = OrthogonalLinear(second(layer(x)).flatten(1).shape[1], 4, dtype=torch.float64)
    network = nn.Sequential(layer, second, nn.Flatten(), head).eval()
    values = {key: p.detach() for key, p in network.named_parameters()}
    expected = torch.func.jvp(network, (x,), (x,))[1]
    with context(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(network(forward_ad.make_dual(x, x))).tangent
        assert_close(found.detach(), expected.detach(), 10)
        dual = {key: forward_ad.make_dual(value, torch.ones_like(value)) for key, value in values.items()}
        with pytest.raises(NotImplementedError, match="forward mode"):
            functional_call(network, dual, (x,))


# The table in the documentation -------------------------------------------------------------------------------------------


def network() -> nn.Module:
    head = [nn.Flatten(), OrthogonalLinear(16, 6), GroupSort(3), OrthogonalLinear(6, 3)]
    return nn.Sequential(BCOPConv2d(1, 4, 2, 2), MaxMin(), *head)


IMAGES = torch.rand(2, 1, 4, 4)


def same(run: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> Callable[[nn.Module], bool]:
    return lambda model: torch.allclose(run(model)(IMAGES), model.eval()(IMAGES), atol=1e-5)


def check_gradient(model: nn.Module) -> bool:
    names, values = zip(*model.double().eval().named_parameters(), strict=True)
    run = lambda *v: functional_call(model, dict(zip(names, v, strict=True)), (IMAGES.double(),))  # noqa: E731
    return torch.autograd.gradcheck(run, values)


def prune_all(model: nn.Module) -> bool:
    for module in model.modules():
        if hasattr(module, "weight"):
            prune.l1_unstructured(module, "weight", 0.5)
    return model(IMAGES).isfinite().all().item()


def ensemble(model: nn.Module) -> bool:
    x = vmap(lambda p, b: functional_call(model, (p, b), (IMAGES,)))(*stack_module_state([model.eval()] * 2))
    return torch.allclose(x[1], model(IMAGES), atol=1e-5)


CHECKS: dict[str, Callable[[nn.Module], bool]] = {
    "torch.compile": same(compiled),
    "torch.export": same(lambda model: torch.export.export(model.eval(), (IMAGES,)).module()),
    "torch.func": same(through_func),
    "vmap over parameters": ensemble,
    "torch.utils.checkpoint": same(WAYS["checkpoint"]),
    "gradcheck": check_gradient,
    "torch.jit.trace": same(lambda model: torch.jit.trace(model.eval(), IMAGES)),
    "torch.jit.script": same(lambda model: torch.jit.script(model.eval())),
    "torch.fx.symbolic_trace": same(lambda model: torch.fx.symbolic_trace(model.eval())),
    "torch.nn.utils.prune": prune_all,
}


@pytest.mark.parametrize("name", [*NAMES, "bcop 1x1"])
def test_what_is_traced_and_exported_of_each_layer(name: str) -> None:
    """The plain form as TorchScript and fx see it; the layer itself as it is exported, for any batch, and read back."""
    layer, x = made(name, dtype=torch.float64)
    expected, network = step_far(layer).eval()(x), plain(layer, x.shape[1:])
    assert_close(torch.jit.trace(network, x)(x), expected)
    assert_close(torch.fx.symbolic_trace(network)(x), expected)
    if name in ("sll", "cpl s2"):
        with pytest.raises(IsoconvError, match="ConvexPotential2d"):
            torch.jit.script(network)
    else:
        assert_close(torch.jit.script(network)(x), expected)
    file = io.BytesIO()
    torch.export.save(torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)), file)
    file.seek(0)
    assert_close(torch.export.load(file).module()(torch.cat([x, x])), torch.cat([expected, expected]))


def table() -> dict[str, tuple[str, str]]:
    page = (Path(__file__).parents[2] / "docs/how-to/own-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `?([^|`]+)`? \| (works|refused)[^|]* \| (works|refused)[^|]* \|$", page, re.M)
    return {name: (model, ordinary) for name, model, ordinary in rows}


@pytest.mark.parametrize("name", CHECKS)
def test_the_table_of_the_documentation(name: str) -> None:
    assert table().keys() == CHECKS.keys()
    for promise, model in zip(table()[name], (network(), plain(network())), strict=True):
        if promise == "works":
            assert CHECKS[name](model)
        else:
            with pytest.raises((IsoconvError, torch.fx.proxy.TraceError)):
                CHECKS[name](model)
