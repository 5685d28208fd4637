"""Exact types: what may compute something else than its class is known for is refused, and so are odd tensors."""

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization
from torch.overrides import TorchFunctionMode

import isoconv
from certify.certificates import check, write_all
from certify.test_certify_bad_input import refused
from isoconv import IsoconvError
from isoconv.certify import Certifier, Rounding, Rule, certified_radius, lipschitz_bound, register, write_certificate
from isoconv.models import Small
from isoconv.nn import Add, Graph, GroupSort, MaxMin, OrthogonalLinear, Scale, Slice, fixed_weights


class Loud(Tensor):
    """A tensor whose products are too large, for some numbers."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        x = arguments[0]
        if type(x) is Tensor and not x.is_meta:
            return torch.where(x > 9, 100 * x, x)
        return super().__torch_function__(function, types, arguments, keywords or {})


class Everywhere:
    def __getattribute__(self, name):  # type: ignore[no-untyped-def]
        return super().__getattribute__(name)


class Mixed(nn.Sequential, Everywhere):
    pass


class Spoofed(OrthogonalLinear):
    """`plain` would make an ordinary layer of it."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


Spoofed.__module__ = "isoconv.nn.linear"
Spoofed.__qualname__ = Spoofed.__name__ = "OrthogonalLinear"


def subclass(kind: type[nn.Module], **attributes: Any) -> Callable[..., nn.Module]:
    return type("Mine", (kind,), attributes)


def altered(change: Callable[[nn.Module], object], layer: nn.Module | None = None) -> nn.Module:
    """A network of one layer that was changed after it was made."""
    layer = nn.Linear(2, 2) if layer is None else layer
    change(layer)
    return nn.Sequential(layer)


def patched(name: str, layer: nn.Module | None = None) -> nn.Module:
    """A layer of which this one instance has a method of its own."""
    return altered(lambda layer: setattr(layer, name, lambda x, *_: 10 * x), layer or nn.Conv2d(1, 1, 1))


def with_weight(make: Callable[[Tensor], Tensor], grad: bool = True) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of formats that are new or go away
        weight = nn.Parameter(make(torch.eye(2)), requires_grad=grad)
    return altered(lambda layer: setattr(layer, "weight", weight))


def hook(layer: nn.Module, kind: str = "register_forward_hook") -> None:
    getattr(layer, kind)(lambda module, *tensors: 2 * tensors[-1])


class Number(float):
    """Says that it is smaller than it is."""

    def __float__(self) -> float:
        return 0.1


class Others(dict):
    def values(self):  # type: ignore[no-untyped-def]
        return [nn.Linear(2, 2).double()]


def set_to(layer: nn.Module, **attributes: Any) -> nn.Module:
    return altered(lambda layer: vars(layer).update(attributes), layer)


METHODS = ("forward", "_conv_forward", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")
TRAINING = property(lambda self: True, lambda self, value: None)
COPY = {"__deepcopy__": lambda memo: nn.Linear(2, 2)}
META = type("Meta", (type,), {})
STRANGERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tensor subclass": (lambda: with_weight(lambda w: w.as_subclass(Loud)), "0.weight: a tensor subclass, Loud"),
    "sparse": (lambda: with_weight(lambda w: w.to_sparse()), "sparse"),
    "nested": (lambda: with_weight(lambda w: torch.nested.nested_tensor([w[0], w[1]])), "nested"),
    "quantised": (lambda: with_weight(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), False), "quantised"),
    "float8": (lambda: with_weight(lambda w: w.to(torch.float8_e4m3fn), False), "float8"),
    "integers": (lambda: with_weight(lambda w: w.long(), False), "int64"),
    "complex": (lambda: with_weight(lambda w: w.to(torch.complex64)), "complex"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "meta"),
    "lazy": (lambda: nn.LazyLinear(2), "LazyLinear"),
    "shadowed weight": (lambda: set_to(nn.Linear(2, 2), weight=torch.eye(2)), "hidden by another"),
    "a bias that is no parameter": (
        lambda: altered(lambda m: vars(m).update(bias=m._parameters.pop("bias").data)), "bias as a parameter of Linear"),
    "other buffers": (lambda: altered(lambda m: m.register_buffer("mask", torch.ones(2))), "'mask' in Linear at 0"),
    **{name: (lambda name=name: patched(name), "Got Conv2d at 0") for name in METHODS},
    "limits of ReLU6": (lambda: set_to(nn.ReLU6(), min_val=1e9, max_val=2e9), "ReLU6 between 0 and 6"),
    "a number of one's own": (lambda: set_to(Scale(1.0), factor=Number(5)), "plain numbers.* factor of 0"),
    "a tensor for a number": (lambda: set_to(Scale(1.0), factor=torch.ones(2)), "plain numbers.* factor of 0"),
    "no number": (lambda: set_to(Scale(1.0), factor=None), "Scale at 0"),
    "no group": (lambda: set_to(GroupSort(2), group_size=0), "group size"),
    "a copy of one's own": (lambda: set_to(nn.Linear(2, 2), **COPY), "Linear at 0"),
    "a weight's copy of its own": (lambda: altered(lambda m: vars(m.weight).update(COPY)), "a method of its own"),
    "other children": (lambda: set_to(nn.Sequential(), _modules=Others({"0": nn.Linear(2, 2)})), "Sequential at 0"),
    "no child": (lambda: set_to(nn.Sequential(), _modules={"0": None}), "None among those at 0"),
    "one name for two": (lambda: nn.Sequential(OrderedDict({"input": nn.ReLU(), "'input'": nn.ReLU()})), "name of its own"),
    "state_dict hook": (
        lambda: altered(lambda m: m.register_state_dict_pre_hook(lambda *_: m.weight.data.zero_())), "state_dict hooks.* 0"),
    "class attribute": (lambda: subclass(nn.Sequential, _compiled_call_impl=None)(), "Mine at model, .*_compiled_call"),
    "named_modules": (lambda: subclass(nn.Sequential, named_modules=None)(nn.Linear(2, 2)), "named_modules"),
    "__getattr__": (lambda: subclass(nn.Sequential, __getattr__=nn.Module.__getattr__)(), "__getattr__"),
    "__getattribute__": (lambda: Mixed(nn.Linear(2, 2)), "__getattribute__"),
    "property": (lambda: nn.Sequential(subclass(nn.Sequential, training=TRAINING)()), "Mine at 0, .* training"),
    **{
        f"Sequential with {name}": (lambda name=name: subclass(nn.Sequential, **{name: None})(nn.Linear(2, 2)), name)  # type: ignore[misc]
        for name in ("forward", "__call__", "__iter__")
    },
    "subclass of Small": (lambda: subclass(Small, forward=None)((1, 8, 8)), "Mine at model, .* forward"),
    "forward of the outer instance": (lambda: patched("forward", nn.Sequential(nn.ReLU())), "Got Sequential at 0"),
    "forward of ours": (lambda: patched("forward", OrthogonalLinear(2, 2)), "Got OrthogonalLinear at 0"),
    "a weight from elsewhere": (
        lambda: altered(lambda m: setattr(m, "weight_source", lambda: torch.eye(2)), OrthogonalLinear(2, 2)),
        "weight_source of 0"),
    "forward hook": (lambda: altered(hook), "forward hooks.* 0"),
    "forward hook on ours": (lambda: altered(hook, OrthogonalLinear(2, 2)), "forward hooks.* 0"),
    "forward hook outside": (lambda: altered(hook, nn.Sequential(nn.Linear(2, 2))), "forward hooks.* 0"),
    "forward pre-hook": (lambda: altered(lambda layer: hook(layer, "register_forward_pre_hook")), "forward hooks.* 0"),
    "parametrisation": (lambda: altered(lambda m: register_parametrization(m, "weight", nn.ReLU())), "parametrised"),
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(2, 2))), "parametrised"),
    "module list": (lambda: nn.ModuleList([nn.Linear(2, 2)]), "Got ModuleList at model"),
    "spoofed module": (lambda: nn.Sequential(Spoofed(2, 2)), "Got OrthogonalLinear at 0"),
    **{
        f"subclass of {kind.__name__}": (lambda kind=kind, sizes=sizes: nn.Sequential(subclass(kind)(*sizes)), "Mine at 0")  # type: ignore[misc]
        for kind, sizes in ((MaxMin, ()), (nn.Module, ()), (OrthogonalLinear, (2, 2)), (nn.Linear, (2, 2)))
    },
    "metaclass": (lambda: META("Net", (nn.Sequential,), {})(nn.Linear(2, 2)), "Got Net at model"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_refused(name: str) -> None:
    make, message = STRANGERS[name]
    model = make()
    for call in (lambda: lipschitz_bound(model, (2,)), lambda: certified_radius(model, torch.rand(1, 2))):
        refused(call, message)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_what_is_no_stranger() -> None:
    class Net(nn.Sequential):
        """A docstring, a constant, a constructor, a method of its own: nothing that torch calls."""

        width: int = 3

        def __init__(self) -> None:
            super().__init__(nn.Linear(2, self.width), nn.Identity())

        def describe(self) -> str:
            return "net"

    compiled = Net()
    compiled.compile()
    for model in (Net(), nn.Sequential(Net()), compiled):
        assert lipschitz_bound(model, (2,)).value > 0
    layer = nn.Sequential(OrthogonalLinear(2, 2))
    expected = lipschitz_bound(layer, (2,))
    with fixed_weights(layer):
        assert lipschitz_bound(layer, (2,)) == expected


@pytest.mark.parametrize(
    ("kind", "name"),
    [(nn.Linear, "forward"), (OrthogonalLinear, "forward"), (MaxMin, "__call__"), (nn.Module, "_call_impl")],
)
def test_methods_of_classes_that_were_replaced(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some tools replace nn.Linear.forward for every model."""
    original, model = getattr(kind, name), nn.Sequential(nn.Linear(2, 2), MaxMin(), OrthogonalLinear(2, 2))
    monkeypatch.setattr(kind, name, functools.wraps(original)(lambda *inputs: 10 * original(*inputs)))
    refused(lambda: lipschitz_bound(model, (2,)), "Expected")


def test_hooks_on_all_modules_that_come_later() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    certifier = Certifier(model, (2,))
    handle = register_module_forward_hook(lambda module, given, output: 10 * output)
    try:
        for call in (lambda: certifier(torch.rand(1, 2)), lambda: lipschitz_bound(model, (2,))):
            refused(call, "global forward hooks")
    finally:
        handle.remove()
    assert len(certifier(torch.rand(1, 2)).radius) == 1


class Tenfold(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
        result = function(*arguments, **(keywords or {}))
        return 10 * result if function is nn.functional.linear else result


def test_modes_of_torch() -> None:
    with torch.device("cpu"):
        certifier = Certifier(nn.Sequential(nn.Linear(2, 2)), (2,))
        assert len(certifier(torch.rand(1, 2)).radius) == 1
    with Tenfold(), pytest.raises(IsoconvError, match="Tenfold"):
        certifier(torch.rand(1, 2))


def test_attributes_that_torch_does_not_read(tmp_path) -> None:
    """AvgPool1d has no divisor but its kernel size.  Sizes of numpy are sizes."""
    pool = nn.AvgPool1d(np.int64(2))
    expected = lipschitz_bound(pool, (1, 4))
    pool.divisor_override = 1000
    assert lipschitz_bound(pool, (1, 4)) == expected
    assert check(write_all(nn.Sequential(pool, nn.Flatten()), torch.rand(1, 1, 4), tmp_path)) == 0


# Networks that are traced ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["input", "piece"], ids=["whole", "part"])
def test_a_graph_with_a_module_in_place_is_no_graph_of_its_nodes(start: str) -> None:
    """The leaky ReLU changes the value that the sum takes, too: its slope is 4.04, not 1.04."""
    modules = {"piece": Slice(1, 0, 4), "leaky": nn.LeakyReLU(4.0, inplace=True), "scale": Scale(0.01), "add": Add()}
    nodes = [("piece", "piece", ("input",)), ("leaky", "leaky", (start,)), ("scale", "scale", ("leaky",))]
    graph = Graph(modules, [*nodes, ("add", "add", ("input", "scale"))])
    with pytest.raises(IsoconvError, match="Expected"):
        lipschitz_bound(graph, (4,))
    if start == "input":  # what it computes can be said
        assert lipschitz_bound(isoconv.plain(graph, (4,)), (4,)).value == pytest.approx(4.04)


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


ONE = torch.ones(()).as_subclass(Loud)


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


# Rules of users ---------------------------------------------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Halved(nn.Module):
    """With a layer of isoconv inside, which `plain` replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OrthogonalLinear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / 2


def test_a_registered_rule_is_a_claim(tmp_path) -> None:
    register(Doubled, Rule(lambda node: 2.0, lambda node, bound, arithmetic: Rounding(0, bound)))
    register(Halved, Rule(lambda node: 0.5000001))
    torch.manual_seed(0)
    model = nn.Sequential(Halved(), nn.Linear(4, 4), Doubled())
    bound = lipschitz_bound(model, (4,))
    assert [layer.claimed for layer in bound.layers] == [True, False, True] and bound.claimed == ("0", "2")
    assert lipschitz_bound(nn.Sequential(nn.Linear(4, 4)), (4,)).claimed == ()
    with pytest.raises(IsoconvError, match=r"rounding .*Halved at 0"):
        certified_radius(model, torch.rand(1, 4))
    certifier = Certifier(nn.Sequential(nn.Linear(4, 3), Doubled()), (4,))
    found = certifier(torch.rand(3, 4, generator=torch.Generator().manual_seed(0)))
    assert (found.radius > 0).any()
    with pytest.raises(IsoconvError, match="Doubled at 1, a kind that was registered"):
        write_certificate(tmp_path / "c", certifier, found)
    with pytest.raises(IsoconvError, match="Got Mine at 0"):  # a subclass is another kind
        lipschitz_bound(nn.Sequential(subclass(Doubled)()), (4,))


class Averaged(nn.Sequential):
    """A sequence with a forward and a parameter of its own: nothing but its rule is known of it."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(2))
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.share * x


def test_a_registered_sequence() -> None:
    with pytest.raises(IsoconvError, match="LayerNorm at 0"):
        lipschitz_bound(Averaged(), (2,))
    register(Averaged, Rule(lambda node: abs(float(node.module.share))))
    assert lipschitz_bound(nn.Sequential(Averaged()), (2,)).layers[0].bound == 0.5


def test_rules_that_cannot_be_registered() -> None:
    """For a kind that is known, for what is no module, with settings that the checker does not know, with no number."""
    stating = Rule(lambda node: 1.1, settings=lambda node: {})
    for kind, rule in ((nn.Linear, Rule(lambda node: 0.0)), (Tensor, Rule(lambda node: 1.0)), (nn.Tanhshrink, stating)):
        with pytest.raises(IsoconvError, match="Expected"):
            register(kind, rule)
    assert lipschitz_bound(nn.Linear(2, 2), (2,)).value > 0
    register(nn.Tanhshrink, Rule(lambda node: float("nan")))
    with pytest.raises(IsoconvError, match="Tanhshrink at 0"):
        lipschitz_bound(nn.Sequential(nn.Tanhshrink()), (2,))
