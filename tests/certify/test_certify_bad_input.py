"""What must not be certified says so in one line: what was expected, what came."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, lipschitz_bound, robust_accuracy, write_certificate
from isoconv.nn import MaxMin, Scale

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def after(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), *layers)


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and str(error.value).startswith("Expected")


@pytest.mark.parametrize(
    "options",
    [
        *({"p": p} for p in (0.5, 0, math.nan, -math.inf, "2", None)),
        *({"arithmetic": a} for a in ("float16", torch.float64)),
        *({"criterion": c} for c in ("pair", None)),
        *({"input_range": r} for r in ((1, 0), (0, 0), (0, math.inf), (math.nan, 1), (0,), (0, 1, 2), None, 255, "ab")),
        *({"batch_size": b} for b in (0, -1, 2.5, None)),
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    words = {"p": "norm", "input_range": "input range", "batch_size": "batch"}
    (name,) = options
    refused(lambda: certified_radius(model(), X, **options), words.get(name, name))


INPUTS: dict[str, tuple[Any, str]] = {
    "int32": (X.int(), "floating-point tensor .* Got torch.int32"),
    "uint8": (X.to(torch.uint8), "floating-point tensor .* Got torch.uint8"),
    "complex": (X.to(torch.complex64), "floating-point tensor .* Got torch.complex64"),
    "numpy": (X.numpy(), "batch of inputs"),
    "none": (None, "batch of inputs .*None"),
    "no batch": (X[0], r"batch of inputs .*\(4,\)"),
    "too wide": (torch.rand(2, 5), "Linear at model can take"),
    "too deep": (torch.rand(2, 1, 4), r"at least two logits. Got outputs of shape \(1, 3\)"),
    "pixels to 255": (X * 255, "pixels from 0 to 1"),
    "negative pixels": (-X, "pixels from 0 to 1. Got values from -"),
    "just above": (torch.full((1, 4), math.nextafter(1, 2), dtype=torch.float64), "pixels from 0 to 1"),
    "nan beside a large one": (torch.tensor([[math.nan, 3, 0, 0]]), "Got values from 0 to 3"),
    "meta": (X.to("meta"), "a value for each pixel"),
    "sparse": (X.to_sparse(), "a value for each pixel"),
}


def test_a_certificate_of_something_else(tmp_path: Path) -> None:
    refused(lambda: write_certificate(tmp_path / "c", model(), X), "Got Linear and Tensor")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str) -> None:
    x, message = INPUTS[name]
    refused(lambda: certified_radius(model(), x), message)


SHAPED: list[tuple[nn.Module, tuple[int, ...], str]] = [
    (after(MaxMin()), (4,), "2 divides"),
    *((after(module), (4,), f"Got {type(module).__name__} at 1") for module in (nn.LogSoftmax(1), nn.Softmin(1))),
    (nn.LayerNorm(4), (4,), "Got LayerNorm at model"),
    (nn.LazyConv2d(4, 1), (4, 2, 2), "LazyConv2d at model, a subclass of Conv2d"),
    (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 1, enable_nested_tensor=False), (3, 4), "multiplies"),
    (nn.Softplus(threshold=0), (4,), "Softplus"),  # which jumps at 0
    *((kind, (4, 2), f"Got {type(kind).__name__}") for kind in (nn.InstanceNorm1d(4), nn.AdaptiveMaxPool1d(1))),
    (after(nn.BatchNorm1d(3, track_running_stats=False)), (4,), "running statistics.*BatchNorm1d at 1"),
    (nn.MaxPool1d(2, 1, 1, dilation=2), (4, 1), "reach the image"),
    (nn.MaxPool1d(1, return_indices=True), (4, 4), "MaxPool1d at model"),
    (after(nn.LeakyReLU(math.nan)), (4,), "LeakyReLU at 1"),
    (after(nn.Hardtanh(0, math.inf)), (4,), "Hardtanh at 1"),
    (nn.ConstantPad1d(1, math.nan), (1, 4), "ConstantPad1d"),
    (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 4, 4), "mode 'nearest'"),
    # Which pixels are taken is a matter of rounding, and torch's gradient counts others than its forward takes.
    *((nn.Upsample(scale_factor=scale), (1, 2), "whole numbers") for scale in (1.1, 1.5, 0.5)),
    (nn.Upsample(size=3), (1, 2), "whole numbers.* 1.5"),
    # torch takes (N, L) and (N, H, W) as well, but for one image of N channels: the axes are others than they seem.
    (nn.MaxPool1d(3, 1), (8,), r"\(channels, length\)"),
    *((module, (7, 7), r"\(channels, ") for module in (nn.AvgPool2d(3, 1), nn.Conv2d(2, 2, 3), nn.CircularPad2d(1))),
    # torch wraps around what is left, and on small images reads memory that nobody wrote.
    *((nn.CircularPad2d(pads), (2, 5, 5), "at least 0") for pads in ((1, 1, 2, -1), (2, -1, 0, 1))),
    (nn.ReflectionPad2d((1, -1, 0, 0)), (2, 5, 5), "at least 0"),
    (nn.Conv2d(2, 2, 2, padding=-1, padding_mode="circular"), (2, 5, 5), "at least 0"),
    # Channels and the batch are no part of the image, and the rows of the logits must be the images.
    (nn.ZeroPad2d((0, 0, 0, 0, 1, -1)), (1, 2, 2), "the image alone"),
    (nn.ConstantPad2d((0, 0, 0, 0, 0, 0, 1, -1), 0.5), (1, 2, 2), "the image alone"),
    (after(nn.Flatten(0)), (4,), "batch axis"),
    (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3)), (5, 4), "batch axis"),
    (nn.Sequential(nn.Unflatten(0, (1, 2)), nn.Flatten(), nn.Linear(8, 3)), (4,), "Expected"),
    (nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(4, 3)), (4, 4), r"\(channels, "),
]


@pytest.mark.parametrize(("made", "shape", "message"), SHAPED, ids=lambda value: str(value)[:40])
def test_modules(made: nn.Module, shape: tuple[int, ...], message: str) -> None:
    """Refused as soon as a bound or a radius is asked for, and not only when a file is written."""
    refused(lambda: lipschitz_bound(made, shape), message)
    refused(lambda: certified_radius(made, torch.rand(2, *shape)), message)


def test_no_classifiers() -> None:
    refused(lambda: certified_radius(None, X), "Got NoneType")
    refused(lambda: certified_radius(torch.relu, X), "torch.nn.Module")
    refused(lambda: certified_radius(nn.Sequential(), X), "at least one module")
    refused(lambda: certified_radius(nn.Linear(4, 1), X), r"at least two logits. Got outputs of shape \(1,\)")
    refused(lambda: certified_radius(nn.Unflatten(1, (1, 2, 2)), X), "two logits")


@pytest.mark.parametrize(
    "layers",
    [
        [Scale(0.1)],
        [nn.Hardtanh(0.1, 1.0)],
        [nn.Hardtanh(0.0, 0.1)],
        [nn.Unflatten(1, (1, 3)), nn.ConstantPad1d(1, 0.1), nn.Flatten()],
        [nn.BatchNorm1d(3, eps=1e-40)],
    ],
    ids=str,
)
def test_numbers_that_float32_cannot_hold(layers: list[nn.Module]) -> None:
    """Another function would be computed."""
    for norm in (layer for layer in layers if isinstance(layer, nn.BatchNorm1d)):
        norm.running_var.zero_()  # type: ignore[union-attr]
    assert (certified_radius(after(*layers), X) >= 0).all()
    refused(lambda: certified_radius(after(*layers), X, arithmetic="float32"), "that float32 can hold")


def test_float64_numbers_for_a_float32_certificate() -> None:
    refused(lambda: certified_radius(model().double(), X, arithmetic="float32"), "float32 weights")
    refused(lambda: certified_radius(model(), X.double() / 3, arithmetic="float32"), "inputs that float32 can hold")


@pytest.mark.parametrize("shape", [(), (0,), (-4,), (5,), (4.0,), 4, None, "4"], ids=str)
def test_shapes(shape: Any) -> None:
    message = "Linear at model" if shape == (5,) else "input_shape"
    refused(lambda: Certifier(model(), shape), message)
    refused(lambda: lipschitz_bound(model(), shape), message)


def test_certifier_of_another_shape() -> None:
    refused(lambda: Certifier(model(), (4,))(torch.rand(2, 5)), r"shape \(N, 4\). Got \(2, 5\)")


DATA: dict[str, tuple[Any, str]] = {
    "label too large": ((X, torch.tensor([0, 3])), "labels from 0 to 2.* Got 0 to 3"),
    "negative label": ((X, torch.tensor([-1, 0])), "labels from 0 to 2.* Got -1 to 0"),
    "labels of no whole numbers": ((X, Y.double()), "whole number"),
    "too few labels": ((X, Y[:1]), "each of 2 images"),
    "no images": ((X[:0], Y[:0]), "at least one image"),
    "no labels": ((X, None), "images and labels"),
    "labels as a list": ((X, [0, 1]), "Expected"),
    **{f"no data {n}": (data, "images and labels") for n, data in enumerate(("images", 3, None, X, [X[0]], {"a": 1}))},
    "empty list": ([], "at least one image"),
    "two shapes": ([(X[0], 0), (X[0, :3], 1)], "one shape"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    data, message = DATA[name]
    refused(lambda: robust_accuracy(model(), data, [0.1]), message)


@pytest.mark.parametrize("epsilons", [[-1.0], [0.1, math.nan], ["a"], [None], 0.1, None], ids=str)
def test_epsilons(epsilons: Any) -> None:
    refused(lambda: robust_accuracy(model(), (X, Y), epsilons), "radii")
    if isinstance(epsilons, list):
        refused(lambda: robust_accuracy(model(), (X, Y)).at(epsilons[-1]), "radii of at least 0")


@pytest.mark.parametrize("options", [{"p": math.inf}, {"arithmetic": "float32"}, {"criterion": "per-class"}], ids=str)
def test_options_beside_a_certifier_are_not_ignored(options: dict[str, Any]) -> None:
    """The certifier has its own: a user who asks for another norm must not get L2 radii."""
    refused(lambda: robust_accuracy(Certifier(model(), (4,)), (X, Y), [0.1], **options), "no options")
