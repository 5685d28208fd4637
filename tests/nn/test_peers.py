"""Networks of deel-torchlip's and orthogonium's layers, and how such layers are recognised."""

import copy
import sys
import types
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import isoconv
from certify.certificates import check, write_all
from isoconv import IsoconvError
from isoconv.certify import Rule, certified_radius, lipschitz_bound, register
from isoconv.nn.peers import CONVERTERS, CutSort, ScaledMean, TwoSidedReLU

SHAPE = (4, 8, 8)
pytestmark = pytest.mark.filterwarnings("ignore:Sequential model contains", "ignore:kernel size changed")


def dense_norm(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the largest norm of the Jacobian at a few points."""
    points = 3 * torch.randn(2, *shape, dtype=torch.float64)
    jacobians = [torch.func.jacrev(lambda v: model(v[None])[0])(x).reshape(-1, x.numel()).detach() for x in points]
    return max(float(torch.linalg.matrix_norm(jacobian, 2)) for jacobian in jacobians)


def check_layer(layer: nn.Module, shape: tuple[int, ...] = SHAPE) -> float:
    """Compare a layer, with other parameters than those it is made with, to its plain form; return the proved bound."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() <= 1 or "theta" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    for _ in range(3):  # as in training: statistics, power iterations
        layer.train()(3 * torch.randn(5, *shape) + 1).sum()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    bound, plain = lipschitz_bound(layer, shape).value, isoconv.plain(layer, shape)
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    x = torch.randn(3, *shape)
    torch.testing.assert_close(plain.eval()(x), layer.eval()(x), rtol=1e-5, atol=1e-5)
    assert dense_norm(copy.deepcopy(plain).double(), shape) <= bound * (1 + 1e-12)
    return bound


# The mechanism, with a package of our own ----------------------------------------------------------------------------


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def make_package(monkeypatch: pytest.MonkeyPatch, **members: Any) -> Any:
    """Make a package with a class of linear layers, of which it is known that they are linear."""

    class Linear(nn.Linear):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            parametrize.register_parametrization(self, "weight", Halved())

    package = types.ModuleType("toy")
    package.Linear = type("Linear", (Linear,), {"__module__": "toy", **members})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy", package)
    monkeypatch.setitem(CONVERTERS, "toy.Linear", CONVERTERS["deel.torchlip.modules.linear.SpectralLinear"])
    return package


def test_layer_of_known_name_becomes_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_package(monkeypatch).Linear(6, 6)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    plain = isoconv.plain(model)
    assert type(plain[0]) is nn.Linear and plain[0] is plain[2] and plain.training
    assert torch.equal(plain[0].weight, layer.weight)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
    assert lipschitz_bound(model, (6,)).value == pytest.approx(norm**2, rel=1e-6)


def double(self: Any, x: Tensor) -> Tensor:
    return 2 * nn.Linear.forward(self, x)


def double_large(self: Any, x: Tensor) -> Tensor:
    """What running it on ordinary images does not show."""
    y = nn.Linear.forward(self, x)
    return 2 * y if x.abs().max() > 100 else y


def kind_of(package: Any, **members: Any) -> Any:
    """Another class of the same name."""
    return type("Linear", (package.Linear,), {"__module__": "toy", **members})


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "subclass": lambda package, layer: kind_of(package)(6, 4),
    "disguise": lambda package, layer: setattr(layer, "__class__", kind_of(package, forward=double_large)),
    # torch makes a class for each layer that has parametrisations
    "class's forward": lambda package, layer: setattr(type(layer), "forward", double_large),
    "class's call": lambda package, layer: setattr(type(layer), "__call__", double_large),
    "hook": lambda package, layer: layer.register_forward_hook(lambda *_: None),
    "hook before": lambda package, layer: layer.register_forward_pre_hook(lambda *_: None),
    "patch": lambda package, layer: setattr(layer, "forward", types.MethodType(double_large, layer)),
    "broken weight": lambda package, layer: setattr(layer.parametrizations.weight[0], "forward", None),
}


@pytest.mark.parametrize("name", [*CHANGES, "other version"])
def test_what_only_looks_like_a_known_layer_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In another version of the package the class itself does something else."""
    change = CHANGES.get(name)
    package = make_package(monkeypatch, **({} if change else {"forward": double}))
    layer = package.Linear(6, 4)
    changed = change(package, layer) if change else layer
    layer = changed if isinstance(changed, nn.Module) else layer
    for call in (lipschitz_bound, isoconv.plain) if change is None else (lipschitz_bound,):
        with pytest.raises(IsoconvError, match="Expected" if change else "does not"):
            call(nn.Sequential(layer), (6,))


def test_a_rule_of_the_users_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_package(monkeypatch)
    package.Own = type("Own", (nn.Linear,), {"__module__": "toy"})
    monkeypatch.setitem(CONVERTERS, "toy.Own", CONVERTERS["toy.Linear"])
    register(package.Own, Rule(lambda node: 7.0))
    assert lipschitz_bound(package.Own(6, 4), (6,)).value == pytest.approx(7.0)


def test_functions_that_stand_for_activations() -> None:
    """Their definitions, written once more, so that they are tested without the packages too."""
    x = torch.randn(3, *SHAPE)
    in_pairs = x.unflatten(1, (2, 2)).sort(dim=2)[0].flatten(1, 2)
    torch.testing.assert_close(CutSort(2, 3.0)(x), 3 * in_pairs)
    torch.testing.assert_close(CutSort(None, 1.0)(x), x.sort(dim=1)[0])
    torch.testing.assert_close(TwoSidedReLU(1, 2.0)(x), 2 * torch.cat([x.relu(), (-x).relu()], dim=1))
    torch.testing.assert_close(ScaledMean(2.0)(x), x.sum((2, 3), keepdim=True) / 4)
    for module in (CutSort(2, 1.0), TwoSidedReLU(1, 1.0), ScaledMean(1.0)):
        assert check_layer(module) <= 1 + 1e-12


def test_norm_pool_of_torch_is_ours() -> None:
    assert check_layer(nn.LPPool2d(2, (2, 4))) <= 1 + 1e-12
    with pytest.raises(IsoconvError, match="norm_type"):
        lipschitz_bound(nn.LPPool2d(3, 2), SHAPE)


# With the packages ----------------------------------------------------------------------------------------------------


def package(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.fixture
def torchlip() -> Any:
    return package("deel.torchlip")


@pytest.fixture
def orthogonium() -> Any:
    package("orthogonium.layers.conv.AOL.aol")
    package("orthogonium.layers.conv.adaptiveSOC.ortho_conv")
    package("orthogonium.layers.residual")
    return package("orthogonium.layers")


@pytest.mark.parametrize("name", ["deel.torchlip", "orthogonium.layers"])
def test_known_names_exist(name: str) -> None:
    package(name)
    paths = [path.rpartition(".") for path in CONVERTERS if path.startswith(name)]
    assert len(paths) > 15 and all(isinstance(getattr(import_module(path), kind), type) for path, _, kind in paths)


LIP: dict[str, tuple[Callable[[Any], nn.Module], float]] = {  # the layers, and what their bound must not exceed
    "conv": (lambda t: t.SpectralConv2d(4, 6, 3, padding=1), 1.001),
    "conv circular": (lambda t: t.SpectralConv2d(4, 6, 3, padding=1, padding_mode="circular", k_coef_lip=2.0), 2.001),
    "conv replicate": (lambda t: t.SpectralConv2d(4, 6, 3, padding=1, padding_mode="symmetric"), 2.0),
    "conv one output": (lambda t: t.FrobeniusConv2d(4, 1, 3), 1.0001),
    "conv transposed": (lambda t: t.SpectralConvTranspose2d(4, 6, 3, stride=2), 1.001),
    "group sort 2": (lambda t: t.GroupSort2(), 1),
    "group sort 4": (lambda t: t.GroupSort(4, k_coef_lip=2.0), 2),
    "full sort": (lambda t: t.FullSort(), 1),
    "max min": (lambda t: t.MaxMin(), 1),
    "max min along rows": (lambda t: t.MaxMin(2, k_coef_lip=0.5), 0.5),
    "prelu": (lambda t: t.LPReLU(init=-3.0), 1.0),
    "householder": (lambda t: t.HouseHolder(4), 1),
    "average": (lambda t: t.ScaledAvgPool2d((2, 4), k_coef_lip=3.0), 3),
    "average of all": (lambda t: t.ScaledAdaptiveAvgPool2d((1, 1)), 1),
    "norm": (lambda t: t.ScaledL2NormPool2d((2, 4), k_coef_lip=2.0), 2.0),
    "norm of all": (lambda t: t.ScaledAdaptativeL2NormPool2d(), 1.0),
    "down": (lambda t: t.InvertibleDownSampling(2), 1.0),
    "up": (lambda t: t.InvertibleUpSampling(2), 1.0),
    "batch centring": (lambda t: t.BatchCentering(4), 1),
    "batch norm": (lambda t: t.BatchLipNorm(4, bias=False), 0.5),
    "layer centring": (lambda t: t.LayerCentering(4), 1),
}


def test_vectors_of_torchlip(torchlip: Any) -> None:
    layers = [torchlip.SpectralLinear(6, 8), torchlip.FullSort(), torchlip.MaxMin(), torchlip.FrobeniusLinear(16, 3)]
    assert check_layer(torchlip.Sequential(*layers), (6,)) < 1.8  # each of the three outputs has norm 1
    assert check_layer(torchlip.SpectralConv1d(4, 6, 3, padding=1), (4, 9)) < 1.001


def test_symmetric_padding_and_slopes_by_channel_are_refused(torchlip: Any) -> None:
    for layer in (torchlip.SpectralConv2d(4, 6, 5, padding=2, padding_mode="symmetric"), torchlip.LPReLU(4)):
        with pytest.raises(IsoconvError, match="Expected"):
            lipschitz_bound(layer, SHAPE)


def test_after_a_backward_pass(torchlip: Any) -> None:
    """Batch statistics then have a history, and cannot be copied as they are."""
    model = torchlip.Sequential(torchlip.SpectralConv2d(4, 4, 3), torchlip.BatchLipNorm(4), torchlip.GroupSort2())
    model(torch.randn(4, *SHAPE)).sum().backward()
    assert lipschitz_bound(model, SHAPE).value > 0
    bounds = [lipschitz_bound(layer, SHAPE).value for layer in (model[1], model[1].vanilla_export())]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


ORTHOGONAL: dict[str, tuple[Callable[..., nn.Module], float]] = {
    "conv": (lambda t: t.AdaptiveOrthoConv2d(4, 8, 3), 1.0001),
    "conv even, groups": (lambda t: t.AdaptiveOrthoConv2d(4, 8, 4, groups=2, dilation=2), 1.0001),
    "conv strided": (lambda t: t.AdaptiveOrthoConv2d(4, 8, 3, stride=2, padding=1), 1.0001),
    "conv s2 k2": (lambda t: t.AdaptiveOrthoConv2d(4, 8, 2, stride=2, padding=0, padding_mode="zeros"), 1.0001),
    "transposed": (lambda t: t.AdaptiveOrthoConvTranspose2d(4, 8, 3), 1.0001),
    "transposed strided": (lambda t: t.AdaptiveOrthoConvTranspose2d(4, 8, 3, stride=2, padding=1), 1.0001),
    "transposed s2 k2": (lambda t: t.AdaptiveOrthoConvTranspose2d(4, 8, 2, stride=2), 1.0001),
    "soc": (lambda t: t.conv.adaptiveSOC.ortho_conv.AdaptiveSOCConv2d(4, 8, 3), 1.1),
    "soc strided": (lambda t: t.conv.adaptiveSOC.ortho_conv.AdaptiveSOCConv2d(4, 8, 3, stride=2, padding=1), 1.1),
    "soc transposed": (lambda t: t.conv.adaptiveSOC.ortho_conv.AdaptiveSOCConvTranspose2d(4, 8, 3, stride=2), 1.1),
    "aol": (lambda t: t.conv.AOL.aol.AOLConv2D(4, 8, 3, padding=1), 1.0001),
    "aol transposed": (lambda t: t.conv.AOL.aol.AOLConvTranspose2D(4, 8, 3), 1.0001),
    "abs": (lambda t: t.Abs(), 1.0),
    "max min": (lambda t: t.MaxMin(2), 1.0),
    "householder": (lambda t: t.HouseHolder(4), 0.7072),
    "batch centring": (lambda t: t.BatchCentering2D(4), 1),
    "layer centring": (lambda t: t.LayerCentering2D(4), 1),
    "shuffle": (lambda t: t.ChannelShuffle(2, 2), 1),
    "concatenated": (lambda t: t.residual.ConcatResidual(t.AdaptiveOrthoConv2d(2, 2, 3)), 1.0001),
    "added": (lambda t: t.residual.AdditiveResidual(t.AdaptiveOrthoConv2d(4, 4, 3)), 1.0001),
    "added, scaled": (lambda t: t.residual.PrescaledAdditiveResidual(t.AdaptiveOrthoConv2d(4, 4, 3)), 1.0001),
}


LAYERS = [*((LIP, name) for name in LIP), *((ORTHOGONAL, name) for name in ORTHOGONAL)]


@pytest.mark.parametrize(("table", "name"), LAYERS, ids=[name for _, name in LAYERS])
def test_layers_of_both(table: Any, name: str, request: pytest.FixtureRequest) -> None:
    make, most = table[name]
    package = request.getfixturevalue("torchlip" if table is LIP else "orthogonium")
    assert check_layer(make(package)) <= most * (1 + 1e-12)


def test_certificates_of_both_are_accepted(torchlip: Any, orthogonium: Any, tmp_path: Path) -> None:
    lip = [torchlip.SpectralConv2d(4, 8, 3, padding=1), torchlip.BatchCentering(8), torchlip.GroupSort2()]
    lip = [*lip, torchlip.MaxMin(), torchlip.ScaledL2NormPool2d(2)]
    others = [orthogonium.AdaptiveOrthoConv2d(16, 8, 3), orthogonium.HouseHolder(8), nn.Flatten()]
    model = nn.Sequential(torchlip.Sequential(*lip), *others, orthogonium.OrthoLinear(128, 3))
    x = torch.rand(4, *SHAPE, dtype=torch.float64)
    assert check([*write_all(nn.DataParallel(model), x, tmp_path)]) == 0
    radius = certified_radius(model, x)
    plain = isoconv.plain(model, SHAPE).double()
    direction = torch.randn_like(x)
    direction *= (0.999 * radius / direction.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
    assert bool((radius > 0).all())
    assert torch.equal(plain(x + direction).argmax(1), plain(x).argmax(1))
