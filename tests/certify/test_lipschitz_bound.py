"""The bound against the truth: the norm of the dense Jacobian, module by module and composed."""

import math

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import images
from isoconv import IsoconvError
from isoconv.certify import certify, lipschitz_bound
from isoconv.models import CONVOLUTIONS, Small

circular = {"padding_mode": "circular"}


def jacobian(model: nn.Module, at: Tensor) -> Tensor:
    """The Jacobian (outputs, inputs) of a piecewise linear model at a point, in float64."""
    network = isoconv.plain(model).double().eval()
    found = torch.autograd.functional.jacobian(lambda x: network(x[None])[0].flatten(), at.double())
    assert isinstance(found, Tensor)
    return found.flatten(1)


def jacobian_norm(model: nn.Module, at: Tensor) -> float:
    return float(torch.linalg.matrix_norm(jacobian(model, at), 2))


# What is linear, the input's shape, and how far above the truth the bound may be with random kernels (as a share of it).
LINEAR: list[tuple[nn.Module, tuple[int, ...], float]] = [
    (nn.Conv2d(3, 4, 3, padding=1, **circular), (3, 8, 8), 1e-3),
    (nn.Conv2d(3, 4, 4, stride=2, padding=1, **circular), (3, 8, 8), 1e-3),
    (nn.Conv2d(2, 3, (4, 3), (2, 1), 1, **circular), (2, 6, 5), 5),
    (nn.Conv2d(6, 3, 3, padding=1, groups=3, **circular), (6, 5, 4), 1e-3),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2, **circular), (2, 9, 9), 1e-3),
    (nn.Conv2d(1, 2, 3, padding=3, dilation=3, **circular), (1, 3, 3), 5),  # around the image
    (nn.Conv2d(1, 2, 5, padding=2, **circular), (1, 2, 3), 1e-3),  # a kernel larger than the image
    (nn.Conv2d(2, 3, 3, padding=1, **circular), (2, 1, 6), 1e-3),
    (nn.Conv2d(1, 2, 3, padding=3, **circular), (1, 4, 4), 1.5),  # more padding than keeps the size
    (nn.Conv2d(1, 2, 3, padding=(1, 3), **circular), (1, 4, 4), 1.5),
    (nn.Conv2d(2, 3, 3, 2, 1, **circular), (2, 7, 5), 1.0),  # the stride does not divide
    (nn.Conv2d(2, 3, 2, 3, **circular), (2, 7, 7), 5),  # nor is it smaller than the kernel
    (nn.Conv2d(1, 2, 4, padding="same", **circular), (1, 5, 5), 5),
    (nn.Conv2d(3, 4, 3, padding=1), (3, 8, 8), 0.1),
    (nn.Conv2d(3, 4, 3), (3, 8, 8), 0.2),
    (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 9, 8), 0.4),
    (nn.Conv2d(1, 2, 3, 2, 2, dilation=2), (1, 7, 7), 5),
    (nn.Conv2d(3, 4, 2, padding="same", dilation=2), (3, 6, 6), 0.3),
    (nn.Conv2d(1, 2, 3, 2, 2, padding_mode="reflect"), (1, 5, 5), 5),
    (nn.Conv2d(1, 2, 3, padding=4, padding_mode="reflect"), (1, 5, 5), 5),
    (nn.Conv2d(1, 2, 2, 2, 3, padding_mode="replicate"), (1, 4, 4), 5),
    (nn.Conv1d(3, 4, 3, padding=1, **circular), (3, 9), 1e-3),
    (nn.Conv1d(2, 3, 4, 3, 2, **circular), (2, 7), 5),
    (nn.Conv1d(3, 4, 3, stride=3, padding=2), (3, 10), 0.7),
    (nn.Sequential(nn.CircularPad2d((1, 0, 0, 1)), nn.Conv2d(3, 4, 2)), (3, 6, 5), 1e-3),
    (nn.Sequential(nn.CircularPad2d((2, 0, 2, 0)), nn.Conv2d(3, 4, 4, stride=2)), (3, 6, 8), 1e-3),
    (nn.Sequential(nn.CircularPad2d(3), nn.Conv2d(1, 2, 7)), (1, 3, 3), 5),
    (nn.Sequential(nn.CircularPad2d(1), nn.Identity(), nn.Conv2d(2, 2, 3)), (2, 4, 4), 2.0),
    (nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1, **circular)), (1, 4, 4), 5),
    (nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1)), (1, 4, 4), 5),
    (nn.Sequential(nn.ZeroPad2d((-1, -1, 2, -1)), nn.Conv2d(1, 2, 2)), (1, 4, 4), 5),
    (nn.Linear(7, 5), (7,), 1e-6),
    (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(4, 6)), (1, 3, 4), 5),
    (nn.ReflectionPad2d((2, 1, 1, 0)), (2, 4, 5), 1e-12),
    (nn.ReplicationPad2d(2), (1, 3, 3), 1e-12),
    (nn.ZeroPad2d(1), (1, 3, 3), 1e-12),
    (nn.CircularPad2d((3, 3, 0, 0)), (1, 3, 3), 1e-12),
    (nn.AvgPool2d(2), (2, 6, 6), 1e-6),
    (nn.AvgPool2d(3, stride=1, padding=1), (1, 6, 6), 0.2),
    (nn.AvgPool1d(3, 1, 1), (2, 5), 5),
    (nn.Upsample(size=(6, 9)), (1, 3, 3), 1e-12),
    *((nn.Upsample(scale_factor=factor), (1, 4, 5), 1e-12) for factor in (1, (2.0, 3.0), 5, 11)),
    (nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten()), (1, 4, 4), 1e-12),
    (nn.PixelShuffle(2), (4, 3, 3), 1e-12),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("model", "shape", "slack"), LINEAR, ids=lambda value: str(value)[:60])
def test_linear_modules(model: nn.Module, shape: tuple[int, ...], slack: float) -> None:
    """With random kernels, and with constant ones, whose norm the border decides; and radii below the true distance."""
    for flat in (True, False):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.ones(p.shape) if flat else torch.randn(p.shape, generator=generator))
        truth = jacobian_norm(model, torch.zeros(shape))
        assert truth * (1 - 1e-12) <= lipschitz_bound(model, shape).value <= truth * (1 + (5 if flat else slack))
    torch.manual_seed(1)
    head = nn.Linear(isoconv.plain(model)(torch.zeros(1, *shape)).numel(), 3)
    classifier, x = nn.Sequential(model, nn.Flatten(), head), images(2, *shape)
    found, rows = certify(classifier, x), jacobian(classifier, torch.zeros(shape))
    for logits, t, radius in zip(isoconv.plain(classifier).double()(x), found.prediction, found.radius, strict=True):
        assert t == logits.argmax()
        distance = min((logits[t] - logits[j]) / (rows[t] - rows[j]).norm() for j in range(3) if j != t)
        assert 0 < radius <= distance * (1 + 1e-12)


def test_batch_normalisation_in_evaluation() -> None:
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([0.5, 2.0, 1e-4]))  # type: ignore[union-attr]
        norm.weight.copy_(torch.tensor([1.0, -3.0, 0.01]))
    truth = jacobian_norm(norm, torch.zeros(3, 2, 2))
    assert truth * (1 - 1e-13) <= lipschitz_bound(norm, (3, 2, 2)).value <= truth * (1 + 1e-6)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, 1)])
def test_max_pooling(pool: nn.Module) -> None:
    """At a point with a single bright pixel all windows that see it choose it: the Jacobian's norm is the bound there."""
    best = max(jacobian_norm(pool, image.reshape(1, 7, 7)) for image in torch.eye(49))
    assert best * (1 - 1e-13) <= lipschitz_bound(pool, (1, 7, 7)).value <= best * (1 + 1e-12)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_networks(conv: str) -> None:
    torch.manual_seed(0)
    model = Small((1, 8, 8), conv=conv)
    model(torch.rand(2, 1, 8, 8))
    found = lipschitz_bound(model, (1, 8, 8))
    per_layer = math.prod(layer.bound for layer in found.layers)
    assert per_layer * (1 - 1e-15) <= found.value <= per_layer * (1 + 1e-12)
    assert found.value >= max(jacobian_norm(model, torch.rand(1, 8, 8)) for _ in range(3))
    if conv.startswith("bcop"):
        assert 1 <= found.value <= 1 + 1e-4


def test_padding_and_convolution_have_an_entry_each() -> None:
    model = nn.Sequential(nn.CircularPad2d((1, 0, 1, 0)), nn.Conv2d(3, 4, 2))
    layers = lipschitz_bound(model, (3, 6, 5)).layers
    assert [(layer.name, layer.kind) for layer in layers] == [("0", "CircularPad2d"), ("1", "Conv2d")]
    assert layers[0].bound == 1 != layers[1].bound


def test_padding_that_was_changed_afterwards() -> None:
    """torch goes on padding by what the constructor was given."""
    conv = nn.Conv2d(1, 1, 3, padding=3, bias=False, **circular)
    conv.padding = (0, 0)
    assert lipschitz_bound(conv, (1, 4, 4)).value >= jacobian_norm(conv, torch.zeros(1, 4, 4)) * (1 - 1e-12)


def test_counting_copies_in_inference_mode() -> None:
    for layer in (nn.Upsample(scale_factor=2), nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")):
        with torch.inference_mode():
            inside = lipschitz_bound(layer, (1, 4, 4)).value
        assert inside == lipschitz_bound(layer, (1, 4, 4)).value


@pytest.mark.parametrize(("name", "value"), [("weight", math.nan), ("weight", math.inf), ("running_var", -9.99e-6)])
def test_batch_normalisation_with_other_numbers(name: str, value: float) -> None:
    norm = nn.BatchNorm1d(2)
    getattr(norm, name).data[1] = value
    with pytest.raises(IsoconvError, match="Expected finite weights and positive running variances"):
        lipschitz_bound(norm, (2,))
