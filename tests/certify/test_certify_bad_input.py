"""What must not be certified says so in one line: what was expected, what came."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, lipschitz_bound, robust_accuracy
from isoconv.nn import BCOPConv2d, MaxMin

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"p": 0.5}, "Expected a norm with p of at least 1. Got 0.5."),
    ({"p": 0}, "Expected a norm with p of at least 1. Got 0."),
    ({"p": math.nan}, "Expected a norm with p of at least 1. Got nan."),
    ({"p": -math.inf}, "Expected a norm with p of at least 1. Got -inf."),
    ({"p": "2"}, "Expected a norm"),
    ({"p": None}, "Expected a norm"),
    ({"arithmetic": "float16"}, "Expected arithmetic to be one of float64, float32. Got 'float16'."),
    ({"arithmetic": torch.float64}, "Expected arithmetic to be one of float64, float32. Got torch.float64."),
    ({"criterion": "pair"}, "Expected criterion to be one of pairs, per-class. Got 'pair'."),
    ({"criterion": None}, "Expected criterion to be one of pairs, per-class. Got None."),
    ({"input_range": (1, 0)}, r"Expected an input range such as \(0, 1\). Got \(1, 0\)."),
    ({"input_range": (0, 0)}, r"Expected an input range such as \(0, 1\). Got \(0, 0\)."),
    ({"input_range": (0, math.inf)}, r"Expected an input range such as \(0, 1\). Got \(0, inf\)."),
    ({"input_range": (math.nan, 1)}, r"Expected an input range such as \(0, 1\). Got \(nan, 1\)."),
    ({"input_range": (0,)}, "Expected an input range"),
    ({"input_range": (0, 1, 2)}, "Expected an input range"),
    ({"input_range": None}, "Expected an input range"),
    ({"input_range": 255}, "Expected an input range"),
    ({"input_range": ("a", "b")}, "Expected an input range"),
    ({"batch_size": 0}, "Expected .*batch"),
    ({"batch_size": -1}, "Expected .*batch"),
    ({"batch_size": 2.5}, "Expected .*batch"),
    ({"batch_size": None}, "Expected .*batch"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=lambda value: str(value)[:50])
def test_options(options: dict[str, Any], message: str) -> None:
    refused(lambda: certified_radius(model(), X, **options), message)


INPUTS: dict[str, tuple[Any, str]] = {
    "int32": (X.int(), "Expected inputs as a floating-point tensor .* Got torch.int32."),
    "uint8": (X.to(torch.uint8), "Expected inputs as a floating-point tensor .* Got torch.uint8."),
    "bool": (X.bool(), "Expected inputs as a floating-point tensor .* Got torch.bool."),
    "complex": (X.to(torch.complex64), "Expected inputs as a floating-point tensor .* Got torch.complex64."),
    "numpy": (X.numpy(), r"Expected a batch of inputs \(N, …\). Got"),
    "list": (X.tolist(), r"Expected a batch of inputs \(N, …\). Got"),
    "none": (None, r"Expected a batch of inputs \(N, …\). Got None."),
    "no batch": (X[0], r"Expected a batch of inputs \(N, …\). Got \(4,\)."),
    "a number": (X[0, 0], r"Expected a batch of inputs \(N, …\). Got \(\)."),
    "too wide": (torch.rand(2, 5), "Expected an input that Linear at model can take"),
    "too deep": (
        torch.rand(2, 1, 4),
        r"Expected a classifier with at least two logits. Got outputs of shape \(1, 3\).",
    ),
    "pixels to 255": (X * 255, "Expected pixels from 0 to 1. Got values from .* to "),
    "negative pixels": (-X, "Expected pixels from 0 to 1. Got values from -"),
    "just above": (torch.full((1, 4), math.nextafter(1, 2), dtype=torch.float64), "Expected pixels from 0 to 1. Got"),
    "nan beside a large one": (
        torch.tensor([[math.nan, 3, 0, 0]]),
        "Expected pixels from 0 to 1. Got values from 0 to 3.",
    ),
    "meta": (X.to("meta"), "Expected"),
    "sparse": (X.to_sparse(), "Expected"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str) -> None:
    x, message = INPUTS[name]
    refused(lambda: certified_radius(model(), x), message)


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, "Expected"),
    "a function": (lambda: torch.relu, "Expected"),
    "empty": (lambda: nn.Sequential(), "Expected"),
    "one logit": (
        lambda: nn.Linear(4, 1),
        r"Expected a classifier with at least two logits. Got outputs of shape \(1,\).",
    ),
    "images as outputs": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1)),
        "Expected",
    ),
    "convolution of vectors": (
        lambda: nn.Conv2d(1, 2, 3),
        r"Expected an input \(channels, height, width\) for Conv2d at model. Got \(4,\).",
    ),
    "odd channels": (lambda: nn.Sequential(nn.Linear(4, 3), MaxMin()), "Expected a number of channels that 2 divides"),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "Got Softmax at 1"),
    "dropped features": (lambda: nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout()), "Got AlphaDropout at 1"),
    "instance norm": (lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2)), "Got InstanceNorm1d at 1"),
    "batch norm of the batch": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        "running statistics.*BatchNorm1d at 1",
    ),
    "a window beside the image": (
        lambda: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.MaxPool1d(2, 1, 1, dilation=2), nn.Flatten()),
        "reach the image.*MaxPool1d at 1",
    ),
    "clipped to infinity": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Hardtanh(0, math.inf)), "Hardtanh at 1"),
    "adaptive pooling": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.AdaptiveAvgPool1d(3), nn.Flatten()),
        "Got AdaptiveAvgPool1d at 1",
    ),
    "max pooling with ceil": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.AvgPool1d(3, ceil_mode=True), nn.Flatten()),
        "divides by the same number everywhere",
    ),
    "constant padding with NaN": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.ConstantPad1d(1, math.nan), nn.Flatten()),
        "ConstantPad1d at 1",
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.ConvTranspose1d(1, 1, 2), nn.Flatten()),
        "Got ConvTranspose1d at 1",
    ),
    "flattened batch": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), "Expected"),
    "pooling with indices": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.MaxPool1d(1, return_indices=True)),
        "Expected",
    ),
    "silu": (lambda: nn.Sequential(nn.Linear(4, 3), nn.SiLU()), "Got SiLU at 1"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, message = MODELS[name]
    refused(lambda: certified_radius(make(), X), message)


def test_float64_weights_for_a_float32_certificate() -> None:
    refused(
        lambda: certified_radius(model().double(), X, arithmetic="float32"),
        "Expected float32 weights for a float32 certificate. Got float64 ones.",
    )


@pytest.mark.parametrize(
    "layer",
    [nn.Hardtanh(0.1, 1.0), nn.Hardtanh(0.0, 0.1), nn.Sequential(nn.Unflatten(1, (1, 3)), nn.ConstantPad1d(1, 0.1))],
)
def test_constants_that_float32_cannot_hold(layer: nn.Module) -> None:
    """Another function would be computed."""
    network = nn.Sequential(nn.Linear(4, 3), layer, nn.Flatten())
    assert (certified_radius(network, X) >= 0).all()
    refused(lambda: certified_radius(network, X, arithmetic="float32"), "that float32 can hold")


def test_variances_that_float32_cannot_hold() -> None:
    norm = nn.BatchNorm1d(3, eps=1e-40)
    norm.running_var.zero_()  # type: ignore[union-attr]
    network = nn.Sequential(nn.Linear(4, 3), norm)
    assert (certified_radius(network, X) >= 0).all()
    refused(lambda: certified_radius(network, X, arithmetic="float32"), "variances that float32 can hold")


def test_a_float64_image_for_a_float32_certificate() -> None:
    refused(
        lambda: certified_radius(model(), X.double() / 3, arithmetic="float32"),
        "Expected inputs that float32 can hold, for a float32 certificate. Round them first.",
    )


SHAPES: list[tuple[Any, str]] = [
    ((), r"Expected input_shape without the batch, such as \(3, 32, 32\). Got \(\)."),
    ((0,), r"Expected input_shape without the batch, such as \(3, 32, 32\). Got \(0,\)."),
    ((-4,), r"Expected input_shape without the batch, such as \(3, 32, 32\). Got \(-4,\)."),
    ((5,), "Expected an input that Linear at model can take"),
    ((4.0,), "Expected input_shape"),
    (4, "Expected input_shape"),
    (None, "Expected input_shape"),
    ("4", "Expected input_shape"),
]


@pytest.mark.parametrize(("shape", "message"), SHAPES, ids=lambda value: str(value)[:30])
def test_shapes(shape: Any, message: str) -> None:
    refused(lambda: Certifier(model(), shape), message)
    refused(lambda: lipschitz_bound(model(), shape), message)


def test_certifier_of_another_shape() -> None:
    certifier = Certifier(model(), (4,))
    refused(lambda: certifier(torch.rand(2, 5)), r"Expected inputs of shape \(N, 4\). Got \(2, 5\).")
    strided = Certifier(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(4), nn.Flatten()), (1, 4, 4))
    refused(lambda: strided(torch.rand(2, 1, 5, 5)), r"Expected inputs of shape \(N, 1, 4, 4\). Got \(2, 1, 5, 5\).")


DATA: dict[str, tuple[Any, str]] = {
    "label too large": ((X, torch.tensor([0, 3])), "Expected labels from 0 to 2, for 3 logits. Got 0 to 3."),
    "negative label": ((X, torch.tensor([-1, 0])), "Expected labels from 0 to 2, for 3 logits. Got -1 to 0."),
    "labels of no whole numbers": ((X, Y.double()), "Expected a whole number as label of each of 2 images"),
    "too few labels": ((X, Y[:1]), r"Expected a whole number as label of each of 2 images. Got \(1,\)."),
    "labels in a row": ((X, Y[None]), r"Expected a whole number as label of each of 2 images. Got \(1, 2\)."),
    "no images": ((X[:0], Y[:0]), "Expected at least one image. Got none."),
    "pixels to 255": ((255 * X, Y), "Expected pixels from 0 to 1. Got values from .* to"),
    "no labels": ((X, None), "Expected"),
    "labels as a list": ((X, [0, 1]), "Expected"),
    "images alone": (X, "Expected"),
    "a single": ((X,), "Expected"),
    "none": (None, "Expected"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    data, message = DATA[name]
    refused(lambda: robust_accuracy(model(), data, [0.1]), message)


EPSILONS: list[tuple[Any, str]] = [
    ([-1.0], "Expected radii of at least 0. Got -1"),
    ([0.1, math.nan], "Expected radii of at least 0. Got nan"),
    (["a"], "Expected radii"),
    ([None], "Expected radii"),
    (0.1, "Expected"),
    (None, "Expected"),
]


@pytest.mark.parametrize(("epsilons", "message"), EPSILONS, ids=lambda value: str(value)[:30])
def test_epsilons(epsilons: Any, message: str) -> None:
    refused(lambda: robust_accuracy(model(), (X, Y), epsilons), message)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, None, "a"])
def test_epsilons_asked_for_later(epsilon: Any) -> None:
    found = robust_accuracy(model(), (X, Y))
    refused(lambda: found.at(epsilon), "Expected radii of at least 0")


@pytest.mark.parametrize("options", [{"p": math.inf}, {"arithmetic": "float32"}, {"criterion": "per-class"}], ids=str)
def test_options_beside_a_certifier_are_not_ignored(options: dict[str, Any]) -> None:
    """The certifier has its own: a user who asks for another norm must not get L2 radii."""
    certifier = Certifier(model(), (4,))
    refused(lambda: robust_accuracy(certifier, (X, Y), [0.1], **options), "Expected")


def test_a_layer_that_was_never_fed() -> None:
    """A kernel of isoconv is built on demand; nothing has to be run before it is certified."""
    torch.manual_seed(0)
    layers = nn.Sequential(BCOPConv2d(1, 4, 3), MaxMin(), nn.Flatten(), nn.Linear(4 * 16, 3))
    radius = certified_radius(layers, torch.rand(2, 1, 4, 4))
    assert radius.shape == (2,) and (radius >= 0).all()
