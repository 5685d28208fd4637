"""The paper's networks: sizes, Lipschitz constants, plain forms, what trains and what does not, what they refuse."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isoconv
from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.models import ACTIVATIONS, CONVOLUTIONS, FC3, MODELS, ConvNet, DCGANCritic, Large, ShiftNet, Small
from isoconv.nn import (
    METHODS,
    BCOPConv2d,
    ConvexPotential2d,
    GroupSort,
    Householder,
    MaxMin,
    OrthogonalLinear,
    Slice,
)
from isoconv.nn.convolution import Conv2dWithKernel
from isoconv.nn.methods import Method, load

LIPSCHITZ = [conv for conv in CONVOLUTIONS if conv not in ("standard", "svcm")]  # svcm only after a projection
ALL = [Small, Large, FC3, DCGANCritic]
MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (1, 8, 8)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def assert_plain(model: nn.Module, x: Tensor) -> nn.Module:
    model.eval()
    plain = isoconv.plain(model)
    with torch.no_grad():
        assert (plain(x) - model(x)).abs().max() <= 1e-5
    own = (MaxMin, GroupSort, Householder, ConvexPotential2d, Slice)
    for module in plain.modules():
        assert type(module).__module__.startswith("torch.nn.") or type(module) in own
    return plain


class ToyConv2d(Conv2dWithKernel):
    def _build(self, kernel: Tensor) -> Tensor:
        return kernel / (kernel.norm() * kernel.shape[-1])


def test_a_method_that_is_added_in_one_place_is_a_choice_everywhere(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", Method("toy", "Toy", f"{__name__}:ToyConv2d", "a toy"))
    model = Small(TINY, conv="toy")
    assert [type(m) for m in model.modules()].count(ToyConv2d) == 2
    assert lipschitz_bound(model, TINY).value < 1
    with pytest.raises(IsoconvError, match="standard, toy"):
        Small(TINY, conv="other")


def test_the_records_are_read_without_torch():
    code = "import sys; from isoconv.nn import METHODS; from isoconv.models import MODELS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with torch.device("meta"):
        kinds = {type(model.make((1, 16, 16))) for model in MODELS.values()}
    assert kinds == {Small, Large, FC3, DCGANCritic, ShiftNet}
    for method in METHODS.values():
        assert issubclass(load(method.layer), nn.Module) and method.title and method.summary


OF_THE_PAPER = ["bcop", "bcop-fixed", "rko", "ossn", "svcm", "rkl2ne", "standard"]


@pytest.mark.parametrize(
    ("model", "shape", "convs", "expected"),
    [
        (Small, MNIST, OF_THE_PAPER, 166_406),
        (Small, CIFAR, OF_THE_PAPER, 214_918),
        (Large, MNIST, ["bcop", "rko"], 1_974_762),
        (Large, CIFAR, ["bcop", "ossn", "standard"], 2_466_858),
        (FC3, MNIST, ["bcop", "standard"], 2_913_290),
        (FC3, CIFAR, ["standard"], 5_256_202),
        (DCGANCritic, (3, 64, 64), ["bcop", "svcm", "rkl2ne", "rko", "ossn", "standard"], 2_764_737),
    ],
)
def test_the_plain_form_has_the_size_in_the_paper(model, shape, convs, expected):
    for conv in convs:
        plain = assert_plain(model(shape, conv=conv), torch.rand(1, *shape))
        assert sum(p.numel() for p in plain.parameters()) == expected, conv


SIZES = [(Small, (1, 8, 12)), (Large, (3, 4, 4)), (FC3, (2, 4, 5)), (DCGANCritic, (1, 16, 32))]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_any_convolution_activation_and_size(conv, activation):
    """And it can be saved: another network that loads it is the same function."""
    model, shape = SIZES[(CONVOLUTIONS.index(conv) + (activation == "relu")) % 4]
    options = {"conv": conv, "activation": activation, **({} if model is DCGANCritic else {"classes": 4})}
    network, other = (model(shape, **options).eval() for _ in range(2))
    x = torch.rand(3, *shape)
    assert network(x).shape == (3, options.get("classes", 1))
    found = {type(module) for module in network.modules()}
    assert (MaxMin in found, nn.ReLU in found) == (activation == "maxmin", activation == "relu")
    assert (OrthogonalLinear in found, nn.Linear in found) == (conv != "standard", conv == "standard")
    assert not torch.equal(network(x), other(x))
    other.load_state_dict(network.state_dict())
    assert torch.equal(network(x), other(x))
    assert_plain(network, x)


def test_the_shapes_of_the_paper():
    """Kernel sizes, strides and channels as printed; linear layers of 100 and 10, or 512, 512 and 10."""

    def summary(model: nn.Module) -> list[tuple[Any, ...]]:
        modules = list(isoconv.plain(model).modules())
        convs = [
            (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in modules if type(m) is nn.Conv2d
        ]
        return convs + [(m.in_features, m.out_features) for m in modules if type(m) is nn.Linear]

    large = [(3, 32, 3, 1), (32, 32, 4, 2), (32, 64, 3, 1), (64, 64, 4, 2), (4096, 512), (512, 512), (512, 10)]
    critic = [(3, 64, 4, 2), (64, 128, 4, 2), (128, 256, 4, 2), (256, 512, 4, 2), (8192, 1)]
    assert summary(Small(MNIST)) == [(1, 16, 4, 2), (16, 32, 4, 2), (1568, 100), (100, 10)]
    assert summary(Large(CIFAR, conv="standard")) == large
    assert summary(FC3(MNIST, conv="standard")) == [(784, 1024), (1024, 1024), (1024, 1024), (1024, 10)]
    assert summary(DCGANCritic((3, 64, 64), conv="standard")) == critic


@pytest.mark.parametrize(
    ("conv", "activation"), [*zip(LIPSCHITZ, ["maxmin", "relu"] * 3, strict=False), ("bcop", "relu")]
)
def test_one_lipschitz(conv, activation):
    """Along random segments and, by the Jacobian, in every direction at one point; after some training."""
    model = Small((1, 8, 8), classes=4, conv=conv, activation=activation).double()
    descent = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    x = torch.rand(6, 1, 8, 8, dtype=torch.float64)
    for _ in range(3):
        descent.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(6) % 4).backward()
        descent.step()
    for module in model.eval().modules():
        if conv == "ossn" and hasattr(module, "power_iterate"):
            module.power_iterate(500)
    y = x + torch.randn_like(x)
    assert ((model(x) - model(y)).norm(dim=1) <= (x - y).flatten(1).norm(dim=1) * (1 + 1e-6)).all()
    J = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[0]).reshape(4, -1)
    assert torch.linalg.svdvals(J)[0] <= 1 + (1e-4 if conv == "ossn" else 1e-10)


def test_the_gradient_keeps_its_norm_through_a_network_that_never_enlarges():
    """Every layer has orthonormal rows here, 32 → 16 and 64 → 32 channels, 128 → 100 and 100 → 6 features."""
    model = Small((8, 8, 8), classes=6).double().eval()
    x = torch.rand(2, 8, 8, 8, dtype=torch.float64, requires_grad=True)
    y = model(x)
    v = torch.randn_like(y)
    y.backward(v)
    assert torch.allclose(x.grad.flatten(1).norm(dim=1), v.norm(dim=1), rtol=1e-9)


@pytest.mark.parametrize("conv", [conv for conv in LIPSCHITZ if conv != "ossn"])  # an estimate from below
def test_the_network_of_the_comparison(conv):
    """For 8×8 images: a 1×1 convolution, three blocks of `depth` and halved sides, an orthonormal head."""
    model = ConvNet((3, 8, 8), 5, conv, width=8, depth=2, centre=(0.5, 0.4, 0.3)).eval()
    x = torch.rand(2, 3, 8, 8)
    sizes = [tuple(nn.Sequential(*list(model)[:end])(x).shape[1:]) for end in (3, 9, 15, 21)]
    assert sizes == [(8, 8, 8), (16, 4, 4), (32, 2, 2), (64, 1, 1)]
    assert model(x).shape == (2, 5)
    assert (isoconv.plain(model)(x) - model(x)).abs().max() <= 1e-5
    assert lipschitz_bound(model, (3, 8, 8)).value <= 1 + 1e-3
    with pytest.raises(IsoconvError, match="square"):
        ConvNet((3, 12, 12), 5, conv)


def test_the_network_of_the_comparison_keeps_both_of_a_pair():
    """What is kept of a block whose convolutions are the identity is a permutation of half of its pairs."""
    model = ConvNet((8, 4, 4), 8, "bcop", width=8, depth=1).eval()
    halves = model[4](torch.arange(8.0)[None, :, None, None])
    assert sorted(halves.flatten().tolist()) == [0, 2, 4, 6]  # channels i and i + 4 are a pair


def test_bcop_fixed_trains_its_linear_layers_only():
    network = Large(TINY, classes=4, conv="bcop-fixed")
    before = {k: p.detach().clone() for k, p in network.named_parameters()}
    fixed = {id(p) for m in network.modules() if isinstance(m, BCOPConv2d) for p in m.parameters()}
    descent = torch.optim.Adam(network.parameters(), lr=0.1)
    for _ in range(3):
        descent.zero_grad()
        nn.functional.cross_entropy(network(torch.rand(8, *TINY)), torch.arange(8) % 4).backward()
        descent.step()
    for name, p in network.named_parameters():
        if id(p) in fixed:
            assert p.grad is None and not p.requires_grad and torch.equal(p, before[name]), name
        else:
            assert p.grad is not None and not torch.allclose(p, before[name], atol=1e-3), name
    assert 0 < len(fixed) < len(before)


@pytest.mark.parametrize(("model", "conv"), [(Small, "bcop"), (Small, "bcop-fixed"), (Large, "rko")])
def test_both_orthogonalisations(model, conv):
    networks = [model(TINY, classes=4, conv=conv, orthogonalisation=o).eval() for o in ("manifold", "bjorck")]
    networks[1].load_state_dict(networks[0].state_dict())
    x = torch.rand(2, *TINY)
    assert torch.allclose(networks[0](x), networks[1](x), atol=1e-5)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({"conv": conv}, f"bcop, bcop-fixed, rko, .*standard. Got {conv!r}") for conv in ("BCOP", "", None)],
        *[({"activation": name}, f"maxmin, householder, relu. Got {name!r}") for name in ("tanh", None)],
        ({"orthogonalisation": "qr"}, "manifold.*bjorck.* Got 'qr'"),
    ],
    ids=str,
)
def test_unknown_options(model, options, match):
    with pytest.raises(IsoconvError, match=f"Expected {next(iter(options))} to be one of .*{match}"):
        model((1, 16, 16), **options)


@pytest.mark.parametrize(
    ("model", "shape", "conv", "got"),
    [
        (Small, (1, 30, 28), "bcop", "15×14"),
        (Small, (1, 28, 27), "ossn", "28×27"),
        (Large, (1, 32, 34), "standard", "16×17"),
        (Large, (1, 1, 1), "bcop", "1×1"),
        (DCGANCritic, (3, 40, 64), "ossn", "5×8"),
    ],
)
def test_image_sizes_that_cannot_be_halved(model, shape, conv, got):
    with pytest.raises(IsoconvError, match=f"multiples of 4 .*Got {got}"):
        model(shape, conv=conv)


@pytest.mark.parametrize("model", ALL)
def test_shapes_and_classes(model):
    for shape in [(16, 16), (1, 1, 16, 16), (), (0, 16, 16), (1, 0, 16), (1, -16, 16), (1, 16.0, 16)]:
        with pytest.raises(IsoconvError, match="input_shape"):
            model(shape)
    for classes in (0, -1, 2.5) if model is not DCGANCritic else ():
        with pytest.raises(IsoconvError, match=f"class.* Got {classes}"):
            model((1, 16, 16), classes=classes)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16)], ids=["channels", "size"])
def test_images_of_another_shape(shape):
    with pytest.raises(IsoconvError, match=r"Expected input .*Got shape"):
        Small((1, 8, 8))(torch.zeros(shape))
