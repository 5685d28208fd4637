"""Exact types: what may compute something else than its class is known for is refused, and so are odd tensors."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import isoconv
from isoconv import IsoconvError
from isoconv.certify import Certifier, Rounding, Rule, certified_radius, lipschitz_bound, register, write_certificate
from isoconv.models import Small
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear


class Loud(Tensor):
    """A tensor whose products are ten times too large."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
        result = super().__torch_function__(function, types, arguments, keywords or {})
        return result * 10 if function is nn.functional.linear else result


class Hidden(nn.Sequential):
    def named_modules(self, *arguments, **options):  # type: ignore[no-untyped-def]
        return iter(())


class Elsewhere(nn.Sequential):
    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return super().__getattr__(name)


class Everywhere:
    def __getattribute__(self, name):  # type: ignore[no-untyped-def]
        return super().__getattribute__(name)


class Mixed(nn.Sequential, Everywhere):
    pass


class Modules(nn.Sequential):
    @property
    def training(self):  # type: ignore[no-untyped-def]
        return True

    @training.setter
    def training(self, value):  # type: ignore[no-untyped-def]
        pass


class Spoofed(OrthogonalLinear):
    """`plain` would make an ordinary layer of it."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


Spoofed.__module__ = "isoconv.nn.linear"
Spoofed.__qualname__ = Spoofed.__name__ = "OrthogonalLinear"


class Subclass(OrthogonalLinear):
    pass


def with_weight(make: Callable[[Tensor], Tensor], grad: bool = True) -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(make(torch.eye(2)), requires_grad=grad)
    return nn.Sequential(layer)


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a format that goes away
        return with_weight(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), False)


def sparse() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about beta state
        return with_weight(lambda w: w.to_sparse())


def nested() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return with_weight(lambda w: torch.nested.nested_tensor([w[0], w[1]]))


def shadowed() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.__dict__["weight"] = torch.eye(2) * 10
    return nn.Sequential(layer)


def with_buffer() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[1].register_buffer("mask", torch.ones(2))
    return model


def complex_weights() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about complex modules
        return nn.Linear(2, 2).to(torch.complex64)


STRANGERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tensor subclass": (lambda: with_weight(lambda w: w.as_subclass(Loud)), "0.weight: a tensor subclass, Loud"),
    "sparse": (sparse, "sparse"),
    "nested": (nested, "nested"),
    "quantised": (quantised, "quantised"),
    "float8": (lambda: with_weight(lambda w: w.to(torch.float8_e4m3fn), False), "float8"),
    "integers": (lambda: with_weight(lambda w: w.long(), False), "int64"),
    "complex": (complex_weights, "complex"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "meta"),
    "lazy": (lambda: nn.LazyLinear(2), "LazyLinear"),
    "shadowed weight": (shadowed, "hidden by another attribute"),
    "other buffers": (with_buffer, "'mask' in ReLU at 1"),
    "named_modules": (lambda: Hidden(nn.Linear(2, 2)), "Hidden at model, which has a named_modules"),
    "__getattr__": (lambda: Elsewhere(nn.Linear(2, 2)), "__getattr__"),
    "__getattribute__": (lambda: Mixed(nn.Linear(2, 2)), "__getattribute__"),
    "property": (lambda: nn.Sequential(Modules(nn.Linear(2, 2))), "Modules at 0, which has a training"),
    "spoofed module": (lambda: nn.Sequential(Spoofed(2, 2)), "Got OrthogonalLinear at 0"),
    "subclass of ours": (lambda: nn.Sequential(Subclass(2, 2)), "Got Subclass at 0"),
    "subclass of torch's": (lambda: nn.Sequential(type("Mine", (nn.Linear,), {})(2, 2)), "Got Mine at 0"),
    "metaclass": (lambda: type("Meta", (type,), {})("Net", (nn.Sequential,), {})(nn.Linear(2, 2)), "Got Net at model"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_refused(name: str) -> None:
    make, message = STRANGERS[name]
    model = make()
    for call in (lambda: lipschitz_bound(model, (2,)), lambda: certified_radius(model, torch.rand(1, 2))):
        with pytest.raises(IsoconvError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_sequences_that_only_say_which_layers_they_have() -> None:
    class Net(nn.Sequential):
        """A docstring, a constant, a constructor, a method of its own: nothing that torch calls."""

        width: int = 3

        def __init__(self) -> None:
            super().__init__(nn.Linear(2, self.width), nn.Identity())

        def describe(self) -> str:
            return "net"

    assert lipschitz_bound(Net(), (2,)).value > 0
    assert lipschitz_bound(nn.Sequential(Net(), MaxMin()) if Net.width % 2 == 0 else Net(), (2,)).value > 0
    assert lipschitz_bound(Small((1, 8, 8)), (1, 8, 8)).value > 0
    assert lipschitz_bound(nn.Sequential(BCOPConv2d(1, 2, 3)), (1, 4, 4)).value > 0


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
    doubled = nn.Sequential(nn.Linear(4, 3), Doubled())
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    alone = certified_radius(nn.Sequential(nn.Linear(4, 3), nn.Identity()), x)
    assert (certified_radius(doubled, x) > 0).any() and len(alone) == 3
    certifier = Certifier(doubled, (4,))
    with pytest.raises(IsoconvError, match="Doubled at 1, a kind that was registered"):
        write_certificate(tmp_path / "c", certifier, certifier(x))
    with pytest.raises(IsoconvError, match="Got Louder at 0"):  # a subclass is another kind
        lipschitz_bound(nn.Sequential(type("Louder", (Doubled,), {})()), (4,))


class Averaged(nn.Sequential):
    """A sequence with a forward and a parameter of its own: nothing but its rule is known of it."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(2))
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.share * x


def test_a_registered_sequence() -> None:
    with pytest.raises(IsoconvError, match="Averaged at model, which has a forward"):
        lipschitz_bound(Averaged(), (2,))
    register(Averaged, Rule(lambda node: abs(float(node.module.share))))
    assert lipschitz_bound(nn.Sequential(Averaged()), (2,)).layers[0].bound == 0.5


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (nn.Linear, Rule(lambda node: 0.0)),
        (Tensor, Rule(lambda node: 1.0)),
        (nn.SiLU, Rule(lambda node: 1.1, settings=lambda module, shape, output: {})),
    ],
    ids=str,
)
def test_rules_that_cannot_be_registered(kind: type, rule: Rule) -> None:
    with pytest.raises(IsoconvError, match="Expected"):
        register(kind, rule)
    assert lipschitz_bound(nn.Linear(2, 2), (2,)).value > 0


def test_a_claim_must_be_a_number() -> None:
    register(nn.GELU, Rule(lambda node: float("nan")))
    with pytest.raises(IsoconvError, match="GELU at 0"):
        lipschitz_bound(nn.Sequential(nn.GELU()), (2,))


def test_plain_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("isoconv.certify.certifier.plain", lambda model: calls.append(1) or isoconv.plain(model))
    model = copy.deepcopy(Small((1, 8, 8)))
    certifier = Certifier(model, (1, 8, 8))
    certifier(torch.rand(2, 1, 8, 8))
    assert calls == [1]
