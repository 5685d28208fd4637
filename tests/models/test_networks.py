"""The paper's networks: sizes, Lipschitz constants, plain forms, what trains and what does not, what they refuse."""

import pytest
import torch
from torch import Tensor, nn

import isoconv
from isoconv.certify import lipschitz_bound
from isoconv.models import ACTIVATIONS, CONVOLUTIONS, FC3, MODELS, ConvNet, DCGANCritic, Large, ShiftNet, Small
from isoconv.nn import METHODS, BCOPConv2d, ConvexPotential2d, GroupSort, Householder, MaxMin, OrthogonalLinear, Slice
from isoconv.nn.convolution import Conv2dWithKernel
from isoconv.nn.methods import Method, load
from train.toys import refused

LIPSCHITZ = [conv for conv in CONVOLUTIONS if conv not in ("standard", "svcm")]  # svcm only after a projection
MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (1, 8, 8)


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
    refused("standard, toy", Small, TINY, conv="other")


def test_every_record_names_a_class():
    with torch.device("meta"):
        kinds = {type(model.make((1, 16, 16))) for model in MODELS.values()}
    assert kinds == {Small, Large, FC3, DCGANCritic, ShiftNet}
    for method in METHODS.values():
        assert issubclass(load(method.layer), nn.Module) and method.title and method.summary


# The size that the paper prints, and (in, out, kernel size, stride) of each convolution, (in, out) of each linear layer
LARGE = [(32, 32, 4, 2), (32, 64, 3, 1), (64, 64, 4, 2)]
PRINTED = [
    (Small, MNIST, 166_406, [(1, 16, 4, 2), (16, 32, 4, 2), (1568, 100), (100, 10)]),
    (Small, CIFAR, 214_918, [(3, 16, 4, 2), (16, 32, 4, 2), (2048, 100), (100, 10)]),
    (Large, MNIST, 1_974_762, [(1, 32, 3, 1), *LARGE, (3136, 512), (512, 512), (512, 10)]),
    (Large, CIFAR, 2_466_858, [(3, 32, 3, 1), *LARGE, (4096, 512), (512, 512), (512, 10)]),
    (FC3, MNIST, 2_913_290, [(784, 1024), (1024, 1024), (1024, 1024), (1024, 10)]),
    (FC3, CIFAR, 5_256_202, [(3072, 1024), (1024, 1024), (1024, 1024), (1024, 10)]),
    (DCGANCritic, (3, 64, 64), 2_764_737, [(3, 64, 4, 2), (64, 128, 4, 2), (128, 256, 4, 2), (256, 512, 4, 2), (8192, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "size", "layers"), PRINTED)
def test_the_plain_form_has_the_layers_and_the_size_in_the_paper(model, shape, size, layers):
    convs = ["bcop", "bcop-fixed", "rko", "ossn", "svcm", "rkl2ne", "standard"] if model is Small else ["standard"]
    for conv in convs:
        modules = list(assert_plain(model(shape, conv=conv), torch.rand(1, *shape)).modules())
        assert sum(p.numel() for p in modules[0].parameters()) == size, conv
        convolutions = [m for m in modules if type(m) is nn.Conv2d]
        kinds = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in convolutions]
        assert kinds + [(m.in_features, m.out_features) for m in modules if type(m) is nn.Linear] == layers


SIZES = [(Small, (1, 8, 12)), (Large, (3, 4, 4))]


@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_any_convolution_activation_and_size(number):
    conv, activation, (model, shape) = CONVOLUTIONS[number], list(ACTIVATIONS)[number // 2 % 3], SIZES[number % 2]
    if conv == "rko":
        model, shape = DCGANCritic, (1, 16, 32)
    if conv == "bcop":
        model, shape = FC3, (2, 4, 5)
    options = {"conv": conv, "activation": activation, **({} if model is DCGANCritic else {"classes": 4})}
    network, x = model(shape, **options).eval(), torch.rand(3, *shape)
    assert network(x).shape == (3, options.get("classes", 1))
    found = {type(module) for module in network.modules()}
    assert (MaxMin in found, nn.ReLU in found) == (activation == "maxmin", activation == "relu")
    assert (OrthogonalLinear in found, nn.Linear in found) == (conv != "standard", conv == "standard")
    assert_plain(network, x)


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
    refused("square", ConvNet, (3, 12, 12), 5, conv)


def test_the_network_of_the_comparison_keeps_both_of_a_pair():
    """What is kept of a block whose convolutions are the identity is a permutation of half of its pairs."""
    model = ConvNet((8, 4, 4), 8, "bcop", width=8, depth=1).eval()
    halves = model[4](torch.arange(8.0)[None, :, None, None])
    assert sorted(halves.flatten().tolist()) == [0, 2, 4, 6]  # channels i and i + 4 are a pair


def test_bcop_fixed_trains_its_linear_layers_only():
    for module in Large(TINY, classes=4, conv="bcop-fixed"):
        assert all(p.requires_grad != isinstance(module, BCOPConv2d) for p in module.parameters())


@pytest.mark.parametrize(("model", "conv"), [(Small, "bcop"), (Large, "rko")])
def test_both_orthogonalisations(model, conv):
    first, second = (model(TINY, classes=4, conv=conv, orthogonalisation=o).eval() for o in ("manifold", "bjorck"))
    second.load_state_dict(first.state_dict())
    x = torch.rand(2, *TINY)
    assert torch.allclose(first(x), second(x), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Small(TINY, conv="BCOP"), "conv to be one of bcop, bcop-fixed, rko, .*standard. Got 'BCOP'"),
        (lambda: DCGANCritic((1, 16, 16), conv=None), "conv to be one of .* Got None"),
        (lambda: FC3(TINY, activation="tanh"), "activation to be one of maxmin, householder, relu. Got 'tanh'"),
        (lambda: Large(TINY, orthogonalisation="qr"), "orthogonalisation .*manifold.*bjorck.* Got 'qr'"),
        (lambda: Small((1, 30, 28)), "by 4, such as 28×28 or 32×28. Got 30×28"),
        (lambda: Small((1, 28, 27), conv="ossn"), "by 4, such as 28×24 or 28×28. Got 28×27"),
        (lambda: Large((1, 1, 1)), "by 4, such as 4×4. Got 1×1"),
        (lambda: DCGANCritic((3, 40, 64), conv="ossn"), "by 16, such as 32×64 or 48×64. Got 40×64"),
        (lambda: Large((3, 96, 100), patch=4), "by 16, such as 96×96 or 96×112. Got 96×100"),
        (lambda: Large(TINY, patch=0), "patch .*Got 0"),
        (lambda: Small(TINY, classes=0), "class.* Got 0"),
        (lambda: FC3(TINY, classes=2.5), "class.* Got 2.5"),
        (lambda: Small(TINY)(torch.zeros(2, 3, 8, 8)), r"Expected input .*Got shape"),
        (lambda: Small(TINY)(torch.zeros(2, 1, 16, 16)), r"Expected input .*Got shape"),
        *(
            (lambda shape=shape: FC3(shape), "input_shape")
            for shape in [(16, 16), (1, 1, 16, 16), (), (0, 16, 16), (1, -16, 16), (1, 16.0, 16)]
        ),
    ],
)
def test_what_is_refused(call, words):
    refused(words, call)


# Large images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_patches_in_front_are_a_permutation_of_the_pixels(dtype):
    """The same layers applied to pixels that numpy has put among the channels; the Jacobian's norm."""
    model = Large((2, 24, 12), 3, patch=3).to(dtype).eval()
    inner = Large((18, 8, 4), 3).to(dtype).eval()
    state = {tuple(name.split(".", 1)): value for name, value in model.state_dict().items()}
    inner.load_state_dict({f"{int(number) - 1}.{name}": value for (number, name), value in state.items()})
    x = torch.rand(2, 2, 24, 12, dtype=dtype)
    patches = x.numpy().reshape(2, 2, 8, 3, 4, 3).transpose(0, 1, 3, 5, 2, 4).reshape(2, 18, 8, 4)
    assert torch.equal(model(x), inner(torch.from_numpy(patches.copy())))
    J = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[0]).reshape(3, -1)
    values = torch.linalg.svdvals(J)
    assert 0.1 < values[0] <= 1 + 1e-5


def test_the_usual_patches():
    """As ever up to 56 pixels; then so large that as many positions are left, if the sides allow it."""
    sides = (28, 32, 56, 64, 96, 128, 224)
    assert [MODELS["large"].choose_patch(side, side) for side in sides] == [1, 1, 1, 2, 2, 4, 4]
    assert [MODELS["shift-m"].choose_patch(side, side) for side in sides] == [4, 4, 4, 8, 8, 16, 16]
    assert MODELS["small"].choose_patch(100, 100) == 1 and MODELS["small"].choose_patch(32, 96) == 2
    assert MODELS["shift-s"].choose_patch(100, 30) == 8 and MODELS["fc3"].choose_patch(224, 224) == 0


@pytest.mark.parametrize("side", [64, 96, 128, 224])
@pytest.mark.parametrize(
    ("name", "weights"), [("small", 0.7e6), ("large", 6.9e6), ("shift-s", 0.6e6), ("shift-m", 17.7e6)]
)
def test_networks_for_large_images_stay_small(name, weights, side):
    """Also their logits, their slope along a segment, and the gradient of every weight that is trained."""
    small = weights < 1e6
    with torch.device("cpu" if small else "meta"):
        model = MODELS[name].make((3, side, side), 5, patch=MODELS[name].choose_patch(side, side))
    assert sum(p.numel() for p in model.parameters()) <= weights
    if small:
        x, y = torch.rand(2, 1, 3, side, side)
        logits = model(x)
        logits.logsumexp(1).sum().backward()
        slope = (logits - model(y)).detach().norm() / (x - y).norm()
        assert logits.shape == (1, 5) and float(slope) <= 1 + 1e-5
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters() if p.requires_grad)
