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
from isoconv.nn import BatchCentering, GroupSort, Householder, L2NormPool2d, LayerCentering, MaxMin, Normalize, Scale

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1])
NAN = math.nan


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def after(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), *layers)


def change(module: nn.Module, **values: Any) -> nn.Module:
    for name, value in values.items():
        setattr(module, name, value)
    return module


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and str(error.value).startswith("Expected")


OPTIONS: list[tuple[str, list[Any], str]] = [
    ("p", [0.5, NAN, -math.inf, "2", None], "norm"),
    ("arithmetic", ["float16", torch.float64], "arithmetic"),
    ("criterion", ["pair", None], "criterion"),
    ("input_range", [(1, 0), (0, 0), (0, math.inf), (NAN, 1), (0,), (0, 1, 2), None, 255, "ab"], "input range"),
    ("batch_size", [0, -1, 2.5, None], "batch"),
]
INPUTS: list[tuple[Any, str]] = [
    *((X.to(dtype), f"floating-point tensor .* Got {dtype}") for dtype in (torch.int32, torch.uint8, torch.complex64)),
    (X.numpy(), "batch of inputs"),
    (None, "batch of inputs .*None"),
    (X[0], r"batch of inputs .*\(4,\)"),
    (torch.rand(2, 5), "Linear at model can take"),
    (torch.rand(2, 1, 4), r"at least two logits. Got outputs of shape \(1, 3\)"),
    (X * 255, "pixels from 0 to 1"),
    (-X, "pixels from 0 to 1. Got values from -"),
    (torch.full((1, 4), math.nextafter(1, 2), dtype=torch.float64), "pixels from 0 to 1"),
    (torch.tensor([[NAN, 3, 0, 0]]), "Got values from 0 to 3"),
    (X.to("meta"), "a value for each pixel"),
    (X.to_sparse(), "a value for each pixel"),
]
NETWORKS: list[tuple[Any, str]] = [
    (None, "Got NoneType"),
    (torch.relu, "torch.nn.Module"),
    (nn.Sequential(), "at least one module"),
    (nn.Linear(4, 1), r"at least two logits. Got outputs of shape \(1,\)"),
    (nn.Unflatten(1, (1, 2, 2)), "two logits"),
]
DATA: list[tuple[Any, str]] = [
    ((X, torch.tensor([0, 3])), "labels from 0 to 2.* Got 0 to 3"),
    ((X, torch.tensor([-1, 0])), "labels from 0 to 2.* Got -1 to 0"),
    ((X, Y.double()), "whole number"),
    ((X, Y[:1]), "each of 2 images"),
    ((X[:0], Y[:0]), "at least one image"),
    ((X, [0, 1]), "Expected"),
    *((data, "images and labels") for data in ((X, None), "images", 3, None, X, [X[0]], {"a": 1})),
    ([], "at least one image"),
    ([(X[0], 0), (X[0, :3], 1)], "one shape"),
]
EPSILONS: list[Any] = [[-1.0], [0.1, NAN], ["a"], [None], 0.1, None]


def test_arguments(tmp_path: Path) -> None:
    for name, values, words in OPTIONS:
        for value in values:
            refused(lambda name=name, value=value: certified_radius(model(), X, **{name: value}), words)  # type: ignore[misc]
    for x, words in INPUTS:
        refused(lambda x=x: certified_radius(model(), x), words)  # type: ignore[misc]
    for network, words in NETWORKS:
        refused(lambda network=network: certified_radius(network, X), words)  # type: ignore[misc]
    for shape in ((), (0,), (-4,), (5,), (4.0,), 4, None, "4"):
        words = "Linear at model" if shape == (5,) else "input_shape"
        refused(lambda shape=shape: Certifier(model(), shape), words)  # type: ignore[misc]
        refused(lambda shape=shape: lipschitz_bound(model(), shape), words)  # type: ignore[misc]
    refused(lambda: Certifier(model(), (4,))(torch.rand(2, 5)), r"shape \(N, 4\). Got \(2, 5\)")
    refused(lambda: certified_radius(model().double(), X, arithmetic="float32"), "float32 weights")
    refused(lambda: certified_radius(model(), X.double() / 3, arithmetic="float32"), "inputs that float32 can hold")
    refused(lambda: write_certificate(tmp_path / "c", model(), X), "Got Linear and Tensor")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_data_and_radii() -> None:
    for data, words in DATA:
        refused(lambda data=data: robust_accuracy(model(), data, [0.1]), words)  # type: ignore[misc]
    for epsilons in EPSILONS:
        refused(lambda epsilons=epsilons: robust_accuracy(model(), (X, Y), epsilons), "radii")  # type: ignore[misc]
        if isinstance(epsilons, list):
            refused(lambda e=epsilons: robust_accuracy(model(), (X, Y)).at(e[-1]), "numbers of at least 0")  # type: ignore[misc]
    # A certifier has its own options: a user who asks for another norm must not get L2 radii.
    for options in ({"p": math.inf}, {"arithmetic": "float32"}, {"criterion": "per-class"}):
        certifier = Certifier(model(), (4,))
        refused(lambda o=options, c=certifier: robust_accuracy(c, (X, Y), [0.1], **o), "no options")  # type: ignore[misc]


MODULES: list[tuple[nn.Module, tuple[int, ...], str]] = [
    (after(MaxMin()), (4,), "2 divides"),
    *((after(module), (4,), f"Got {type(module).__name__} at 1") for module in (nn.LogSoftmax(1), nn.Softmin(1))),
    (nn.LayerNorm(4), (4,), "Got LayerNorm at model.* spread"),
    *((module, (2, 3, 3), "spread") for module in (nn.GroupNorm(1, 2), nn.InstanceNorm2d(2))),
    (nn.MultiheadAttention(2, 1), (2,), "multiplies"),
    (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 1, enable_nested_tensor=False), (3, 4), "multiplies"),
    (nn.LazyConv2d(4, 1), (4, 2, 2), "LazyConv2d at model, a subclass of Conv2d"),
    *((kind, (4, 2), f"Got {type(kind).__name__}") for kind in (nn.InstanceNorm1d(4), nn.AdaptiveMaxPool1d(1))),
    (after(nn.BatchNorm1d(3, track_running_stats=False)), (4,), "running statistics.*BatchNorm1d at 1"),
    *(
        (change(nn.BatchNorm1d(2), **{name: kind(torch.tensor([1.0, value]))}), (2,), "positive running variances")
        for kind, name, value in (
            *((nn.Parameter, "weight", NAN), (nn.Parameter, "weight", math.inf)),
            (torch.Tensor, "running_var", -9.99e-6),
        )
    ),
    *(
        (change(nn.Linear(2, 2), weight=nn.Parameter(torch.tensor([[v, 0], [0, 1]]))), (2,), "finite")
        for v in (NAN, -math.inf)
    ),
    (nn.MaxPool1d(2, 1, 1, dilation=2), (4, 1), "reach the image"),
    (nn.MaxPool1d(1, return_indices=True), (4, 4), "MaxPool1d at model"),
    (after(nn.LeakyReLU(NAN)), (4,), "LeakyReLU at 1"),
    (after(nn.Hardtanh(0, math.inf)), (4,), "Hardtanh at 1"),
    (nn.ConstantPad1d(1, NAN), (1, 4), "ConstantPad1d"),
    (nn.CELU(-1.0), (2,), "alpha above 0"),
    (nn.ELU(math.inf), (2,), "finite alpha"),
    (nn.Softplus(-1.0), (2,), "beta above 0"),
    (nn.Softplus(threshold=5), (2,), "threshold of at least 15"),  # it jumps there
    (change(nn.GELU(), approximate="erf"), (2,), "GELU"),
    *((nn.Softmax(dim), (2,), "other than the batch") for dim in (0, -2)),
    (nn.Softmax(2), (2,), "Softmax at model"),
    (Normalize([0.5] * 3, [0.5] * 3), (1, 4, 4), "for each channel"),
    (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 4, 4), "mode 'nearest'.* 'bicubic' on 2"),
    (nn.Upsample(scale_factor=(2, 1.1), mode="bilinear"), (1, 4, 4), "libraries differ"),
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
    (change(nn.ZeroPad1d(1), value=1e9), (1, 4), "ZeroPad1d to pad with 0"),
    (after(nn.Flatten(0)), (4,), "batch axis"),
    (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3)), (5, 4), "batch axis"),
    (nn.Sequential(nn.Unflatten(0, (1, 2)), nn.Flatten(), nn.Linear(8, 3)), (4,), "Expected"),
    (nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(4, 3)), (4, 4), r"\(channels, "),
    # Modules of ours that were changed.
    (change(GroupSort(None), dim=0), (2, 3), "behind the batch"),
    (change(LayerCentering(1), dim=[]), (2, 3), "at least one axis"),
    (change(L2NormPool2d(2), stride=(1, 1)), (1, 4, 4), "overlap"),
    *(
        (change(Householder(2), vectors=nn.Parameter(vectors)), (2, 3), "Householder")
        for vectors in (torch.tensor([2.0**-30, 0.0]), torch.tensor([NAN, 0.0]), torch.ones(2, 3))
    ),
    (change(BatchCentering(1), running_mean=torch.zeros(1, 4)), (1, 3), "for each channel"),  # which enlarges
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("made", "shape", "message"), MODULES, ids=lambda value: str(value)[:40])
def test_modules(made: nn.Module, shape: tuple[int, ...], message: str) -> None:
    """Refused as soon as a bound or a radius is asked for, and not only when a file is written."""
    refused(lambda: lipschitz_bound(made, shape), message)
    refused(lambda: certified_radius(made, torch.rand(2, *shape)), message)


@pytest.mark.parametrize(
    "layers",
    [
        *([Scale(0.1)], [nn.Hardtanh(0.1, 1.0)], [nn.Hardtanh(0.0, 0.1)]),
        [nn.Unflatten(1, (1, 3)), nn.ConstantPad1d(1, 0.1), nn.Flatten()],
        [change(nn.BatchNorm1d(3, eps=1e-40), running_var=torch.zeros(3))],
        [change(Normalize([0.5] * 3, [0.5] * 3), std=torch.full((3,), 1e-40))],
    ],
    ids=str,
)
def test_numbers_that_float32_cannot_hold(layers: list[nn.Module]) -> None:
    """Another function would be computed."""
    assert (certified_radius(after(*layers), X) >= 0).all()
    refused(lambda: certified_radius(after(*layers), X, arithmetic="float32"), "that float32 can hold")


def test_infinite_shifts_have_no_certificate() -> None:
    refused(lambda: Certifier(change(BatchCentering(2), running_mean=torch.tensor([math.inf, 0.0])), (2,)), "finite")
    refused(lambda: Certifier(change(nn.Linear(2, 2), bias=nn.Parameter(torch.tensor([math.inf, 0]))), (2,)), "finite")
