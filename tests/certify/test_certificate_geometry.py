"""Odd sizes, groups, single pixels, kernels larger than the image: bounds against dense matrices."""

import math

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import images
from isoconv import IsoconvError
from isoconv.certify import certified_radius, certify, lipschitz_bound

GEOMETRY: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "odd image": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 7, 5)),
    "stride does not divide": (nn.Conv2d(2, 3, 3, 2, 1, padding_mode="circular"), (2, 7, 5)),
    "stride larger than the kernel": (nn.Conv2d(2, 3, 2, 3, padding_mode="circular"), (2, 7, 7)),
    "stride larger than the image": (nn.Conv2d(2, 3, 3, 8, 1, padding_mode="circular"), (2, 5, 5)),
    "strides of two sizes": (nn.Conv2d(2, 3, (4, 3), (2, 1), 1, padding_mode="circular"), (2, 6, 5)),
    "padding larger than same": (nn.Conv2d(1, 2, 3, padding=3, padding_mode="circular"), (1, 4, 4)),
    "padding as large as the image": (nn.Conv2d(1, 2, 3, padding=3, padding_mode="circular"), (1, 3, 3)),
    "one pixel": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 1, 1)),
    "one row": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 1, 6)),
    "kernel larger than the image": (nn.Conv2d(1, 2, 5, padding=2, padding_mode="circular"), (1, 2, 3)),
    "kernel larger, padded before": (nn.Sequential(nn.CircularPad2d(3), nn.Conv2d(1, 2, 7)), (1, 3, 3)),
    "kernel larger, strided": (nn.Sequential(nn.CircularPad2d(2), nn.Conv2d(1, 2, 4, 2)), (1, 2, 2)),
    "groups": (nn.Conv2d(6, 4, 3, padding=1, groups=2, padding_mode="circular"), (6, 5, 5)),
    "groups, stride": (nn.Conv2d(4, 4, 4, 2, 1, groups=4, padding_mode="circular"), (4, 6, 6)),
    "groups, zeros": (nn.Conv2d(4, 2, 3, padding=1, groups=2), (4, 4, 4)),
    "dilation around the image": (nn.Conv2d(1, 2, 3, padding=3, dilation=3, padding_mode="circular"), (1, 3, 3)),
    "dilation and stride": (nn.Conv2d(1, 2, 3, 2, 2, dilation=2, padding_mode="circular"), (1, 8, 8)),
    "dilation and stride, zeros": (nn.Conv2d(1, 2, 3, 2, 2, dilation=2), (1, 7, 7)),
    "zeros, stride does not divide": (nn.Conv2d(2, 3, 3, 2, 1), (2, 6, 7)),
    "zeros, wide": (nn.Conv2d(2, 3, 3, padding=5), (2, 3, 3)),
    "reflect, strided": (nn.Conv2d(1, 2, 3, 2, 2, padding_mode="reflect"), (1, 5, 5)),
    "reflect, far": (nn.Conv2d(1, 2, 3, padding=4, padding_mode="reflect"), (1, 5, 5)),
    "replicate, far": (nn.Conv2d(1, 2, 3, padding=6, padding_mode="replicate"), (1, 3, 3)),
    "replicate, strided": (nn.Conv2d(1, 2, 2, 2, 3, padding_mode="replicate"), (1, 4, 4)),
    "same, even": (nn.Conv2d(1, 2, 4, padding="same", padding_mode="circular"), (1, 5, 5)),
    "same, even, reflect": (nn.Conv2d(1, 2, 4, padding="same", padding_mode="reflect"), (1, 5, 5)),
    "two pads": (nn.Sequential(nn.CircularPad2d(1), nn.CircularPad2d(1), nn.Conv2d(1, 2, 3)), (1, 4, 4)),
    "pad and padded conv": (
        nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
        (1, 4, 4),
    ),
    "pad and zero-padded conv": (nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1)), (1, 4, 4)),
    "zero pad and conv": (nn.Sequential(nn.ZeroPad2d((2, 0, 0, 1)), nn.Conv2d(1, 2, 3)), (1, 4, 4)),
    "cropping zero pad": (nn.Sequential(nn.ZeroPad2d((-1, -1, 2, -1)), nn.Conv2d(1, 2, 2)), (1, 4, 4)),
    "pad in an inner sequence": (nn.Sequential(nn.Sequential(nn.CircularPad2d(2)), nn.Conv2d(1, 2, 3)), (1, 4, 4)),
    "one dimension": (nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular"), (2, 3)),
    "one dimension, strided": (nn.Conv1d(2, 3, 4, 3, 2, padding_mode="circular"), (2, 7)),
    "linear over images": (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(4, 6)), (1, 3, 4)),
    "pooling": (nn.Sequential(nn.AvgPool2d(2, 1, 1), nn.Conv2d(1, 2, 2)), (1, 4, 4)),
    "pooling, stride": (nn.AvgPool2d(3, (1, 2)), (2, 5, 7)),
    "pooling, one dimension": (nn.AvgPool1d(3, 1, 1), (2, 5)),
    "upsample to a size": (nn.Upsample(size=(6, 9)), (1, 3, 3)),
    "upsample, whole and float": (nn.Upsample(scale_factor=(2.0, 3.0)), (1, 4, 5)),
}


def dense_norm(model: nn.Module, shape: tuple[int, ...]) -> float:
    network = isoconv.plain(model).double().eval()
    size = math.prod(shape)
    identity = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    with torch.no_grad():
        matrix = (network(identity) - network(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1)
    return float(torch.linalg.matrix_norm(matrix, 2))


@pytest.mark.parametrize("name", GEOMETRY)
@pytest.mark.parametrize("flat", [False, True], ids=["random", "flat"])
def test_geometry(name: str, flat: bool) -> None:
    """The bound is one, with random kernels and with constant ones, whose norm the border decides."""
    model, shape = GEOMETRY[name]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.ones(p.shape) if flat else torch.randn(p.shape, generator=generator))
    truth = dense_norm(model, shape)
    bound = lipschitz_bound(model, shape).value
    assert truth * (1 - 1e-12) <= bound <= 6 * truth


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_in_a_classifier(name: str) -> None:
    """Radii of a linear network are below the true distance, which a dense matrix gives."""
    layers, shape = GEOMETRY[name]
    torch.manual_seed(1)
    outputs = isoconv.plain(layers)(torch.zeros(1, *shape)).numel()
    model = nn.Sequential(layers, nn.Flatten(), nn.Linear(outputs, 3))
    x = images(3, *shape)
    found = certify(model, x)
    network = isoconv.plain(model).double()
    size = math.prod(shape)
    with torch.no_grad():
        zero = network(torch.zeros(1, *shape, dtype=torch.float64))
        matrix = (network(torch.eye(size, dtype=torch.float64).reshape(size, *shape)) - zero).T
        logits = network(x)
    for n in range(3):
        t = int(found.prediction[n])
        assert t == logits[n].argmax()
        others = [j for j in range(3) if j != t]
        distance = min((logits[n, t] - logits[n, j]) / (matrix[t] - matrix[j]).norm() for j in others)
        assert 0 < found.radius[n] <= distance * (1 + 1e-12)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.MaxPool1d(3, 1), (8,)),
        (nn.MaxPool2d(3, 1), (7, 7)),
        (nn.AvgPool1d(3, 1), (8,)),
        (nn.AvgPool2d(3, 1), (7, 7)),
        (nn.Conv2d(2, 2, 3, padding=1), (7, 7)),
        (nn.CircularPad2d(1), (7, 7)),
    ],
    ids=str,
)
def test_images_without_channels_are_refused(module: nn.Module, shape: tuple[int, ...]) -> None:
    """torch takes (N, L) and (N, H, W) as well, but for one image of N channels: the axes are others than they seem."""
    with pytest.raises(IsoconvError, match=r"Expected an input \(channels, "):
        lipschitz_bound(module, shape)


@pytest.mark.parametrize(
    "module",
    [
        nn.CircularPad2d((1, 1, 2, -1)),
        nn.CircularPad2d((2, -1, 0, 1)),
        nn.ReflectionPad2d((1, -1, 0, 0)),
        nn.Conv2d(2, 2, 2, padding=-1, padding_mode="circular"),
    ],
    ids=str,
)
def test_padding_that_copies_and_cuts_off_is_refused(module: nn.Module) -> None:
    """torch then wraps what is left around, and on small images reads memory that nobody wrote: no function at all."""
    with pytest.raises(IsoconvError, match="at least 0"):
        lipschitz_bound(nn.Sequential(module, nn.Conv2d(2, 2, 1)), (2, 5, 5))


def test_padding_that_was_changed_afterwards() -> None:
    """torch goes on padding by what the constructor was given."""
    conv = nn.Conv2d(1, 1, 3, padding=3, padding_mode="circular", bias=False)
    conv.padding = (0, 0)
    assert lipschitz_bound(conv, (1, 4, 4)).value >= dense_norm(conv, (1, 4, 4)) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3)), torch.rand(1, 5, 4)),
        (nn.Sequential(nn.Unflatten(0, (1, 2)), nn.Flatten(), nn.Linear(8, 3)), torch.rand(2, 4)),
        (nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(4, 3)), torch.rand(1, 4, 4)),
    ],
    ids=["flatten", "unflatten", "unshuffle"],
)
def test_modules_that_take_the_batch_apart(model: nn.Module, x: Tensor) -> None:
    """Then the rows of the logits are not the images."""
    with pytest.raises(IsoconvError, match="Expected"):
        certified_radius(model, x)


@pytest.mark.parametrize(
    "layer", [nn.Upsample(scale_factor=2), nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")], ids=str
)
def test_counting_copies_in_inference_mode(layer: nn.Module) -> None:
    with torch.inference_mode():
        inside = lipschitz_bound(layer, (1, 4, 4)).value
    assert inside == lipschitz_bound(layer, (1, 4, 4)).value


def test_softplus_with_a_threshold() -> None:
    model = nn.Softplus(threshold=0)
    a, b = torch.tensor([-1e-6], dtype=torch.float64), torch.tensor([1e-6], dtype=torch.float64)
    slope = ((model(a) - model(b)).abs() / (a - b).abs()).item()
    try:
        assert lipschitz_bound(model, (1,)).value >= slope
    except IsoconvError:
        return


def test_batch_normalisation_with_nan() -> None:
    norm = nn.BatchNorm1d(2)
    with torch.no_grad():
        norm.weight[1] = math.nan
    with pytest.raises(IsoconvError, match="Expected finite"):
        lipschitz_bound(norm, (2,))
