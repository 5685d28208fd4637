"""Networks whose forward does something else than it seems to: bounded as they are, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isoconv import plain
from isoconv.certify import lipschitz_bound
from isoconv.errors import IsoconvError
from isoconv.nn import Add, Graph, Scale, Slice


@pytest.mark.parametrize("start", ["input", "piece"], ids=["whole", "part"])
def test_a_graph_with_a_module_in_place_is_no_graph_of_its_nodes(start: str) -> None:
    """The leaky ReLU changes the value that the sum takes, too: its slope is 4.04, not 1.04."""
    modules = {"piece": Slice(1, 0, 4), "leaky": nn.LeakyReLU(4.0, inplace=True), "scale": Scale(0.01), "add": Add()}
    nodes = [("piece", "piece", ("input",)), ("leaky", "leaky", (start,)), ("scale", "scale", ("leaky",))]
    graph = Graph(modules, [*nodes, ("add", "add", ("input", "scale"))])
    with pytest.raises(IsoconvError, match="Expected"):
        lipschitz_bound(graph, (4,))
    if start == "input":  # what it computes can be said
        assert lipschitz_bound(plain(graph, (4,)), (4,)).value == pytest.approx(4.04)


@torch.library.custom_op("isoconv_tests::relu", mutates_args=())
def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 100 * x)


relu.register_fake(torch.empty_like)


class Network(nn.Module):
    def __init__(self, run: Callable[["Network", Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.kept = run, list[Tensor]()
        self.leaky, self.norm, self.linear = nn.LeakyReLU(0.5), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def add_the_last(net: Network, x: Tensor) -> Tensor:
    net.kept.append(x)
    alike = len(net.kept) > 1 and net.kept[-2].shape == x.shape
    return x + 100 * net.kept[-2] if alike else x


def change_and_restore(net: Network, x: Tensor) -> Tensor:
    net.leaky.negative_slope = 100.0
    y = net.leaky(x)
    net.leaky.negative_slope = 0.5
    return y


def change_alias(net: Network, x: Tensor) -> Tensor:
    y = x * 1
    y.detach()[:, :2].mul_(100)
    return y


REFUSED: dict[str, Callable[[Network, Tensor], Tensor]] = {
    "a custom operation with the name of torch's": lambda _, x: torch.ops.isoconv_tests.relu(x),
    "a tensor kept from the last call": add_the_last,
    "a setting that is restored": change_and_restore,
    "a part changed behind a value's back": change_alias,
    "a leaf set to training": lambda net, x: net.norm.train()(x),
    "gradients wanted or not": lambda _, x: x * (100 if torch.is_grad_enabled() else 1),
    "a mode that hides what is done": lambda _, x: hide(x),
    "a product with a tensor subclass": lambda _, x: x * ONE,
    "many at once": lambda _, x: torch.vmap(lambda row: 100 * row)(x),
    "other weights for a call": lambda net, x: torch.func.functional_call(net.linear, {"weight": torch.eye(4)}, (x,)),
}


class Large(Tensor):
    """Works on numbers, and only on some of them, in another way than a tensor."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        x = arguments[0]
        if type(x) is Tensor and not x.is_meta:
            return torch.where(x > 9, 100 * x, x)
        return super().__torch_function__(function, types, arguments, keywords or {})


ONE = torch.ones(()).as_subclass(Large)


def hide(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x * 100


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_what_was_traced_is_refused(name: str) -> None:
    with pytest.raises(IsoconvError, match=r"^Expected .* Got "):
        lipschitz_bound(Network(REFUSED[name]).eval(), (4,))


def test_modules_that_are_no_children_are_bounded() -> None:
    stranger = nn.Linear(4, 4)
    bound = lipschitz_bound(Network(lambda _, x: stranger(x)), (4,)).value
    assert torch.linalg.matrix_norm(stranger.weight.double(), 2) <= bound * (1 + 1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_modules_are_refused_or_seen_through() -> None:
    linear, x = nn.Linear(4, 4), torch.rand(1, 4)
    for compiled in (torch.jit.script(linear), torch.jit.trace(linear, x), torch.compile(linear, backend="eager")):
        with pytest.raises(IsoconvError, match=r"^Expected modules .* Got "):
            lipschitz_bound(nn.Sequential(compiled, nn.ReLU()), (4,))
    network = Network(lambda net, x: net.linear(x))
    network.compile(backend="eager")
    assert torch.linalg.matrix_norm(network.linear.weight.double(), 2) <= lipschitz_bound(network, (4,)).value * 1.001
