"""Everything that a layer must refuse; each message names what was expected and what was given."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import CONVOLUTIONS
from isoconv import IsoconvError
from isoconv.nn import (
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    BROConv2d,
    CayleyConv2d,
    GroupSort,
    InvertibleDownsampling,
    InvertibleUpsampling,
    MaxMin,
    OrthogonalLinear,
    OSSNConv2d,
    RKOConv2d,
    SOCConv2d,
    StandardConv2d,
    SVCMConv2d,
    plain,
)
from isoconv.nn.convolution import SizedConv2d

SIZED = [{"groups": 2}, {"dilation": 2}, {"padding": 0}, {"kernel_size": 3, "stride": 2}, {"stride": (1, 2)}]
IMAGE_LAYERS: dict[str, Callable[..., nn.Module]] = {
    kind: partial(make, input_size=6) if issubclass(make.func, SizedConv2d) else make
    for kind, make in CONVOLUTIONS.items()
    if "-" not in kind
} | {"transposed": BCOPConvTranspose2d}
convolutions = pytest.mark.parametrize("kind", [*IMAGE_LAYERS.values(), BCOPConv1d], ids=[*IMAGE_LAYERS, "1d"])
MANIFOLD_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "2d s2": partial(BCOPConv2d, 1, 4, 2, 2),
    "1d": partial(BCOPConv1d, 3, 4, 3),
    "transposed": partial(BCOPConvTranspose2d, 3, 4, 3),
    "rko": partial(RKOConv2d, 3, 4, 3),
    "linear": partial(OrthogonalLinear, 3, 4),
}
manifold_layers = pytest.mark.parametrize("make", MANIFOLD_LAYERS.values(), ids=MANIFOLD_LAYERS)


def assert_refused(function: Callable[..., Any], *arguments: Any, match: str, **options: Any) -> None:
    """In one line, and as a ValueError, which code written for torch.nn catches."""
    with pytest.raises(IsoconvError, match=f"(?s)Expected.*{match}") as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value) and isinstance(caught.value, ValueError)


INPUTS: list[tuple[nn.Module, tuple[int, ...], str]] = [
    *[(BCOPConv1d(3, 4, 3), shape, r"\(N, 3, L\)") for shape in [(1, 2, 6), (2, 6), (6,), (1, 3, 6, 6)]],
    *[(OrthogonalLinear(3, 4), shape, r"\(…, 3\)") for shape in [(2, 4), (3, 2), (), (1, 3, 1)]],
    *[(BCOPConv2d(3, 4, 4, 2, 0), (1, 3, *size), r"at least \(4, 4\)") for size in [(3, 6), (6, 2), (1, 1)]],
    (StandardConv2d(3, 4, 4, 2, 1), (1, 3, 1, 1), r"at least \(4, 4\). Got images of \(1, 1\)"),
    (BCOPConv1d(3, 4, 6, 3, 0), (1, 3, 5), r"at least \(6,\). Got images of \(5,\)"),
    *[(OSSNConv2d(3, 4, 3, input_size=6), (1, 3, *size), "6×6") for size in [(5, 6), (6, 5), (12, 12)]],
    *[(MaxMin(), (2, channels), f"2 divides. Got {channels}") for channels in (1, 101)],
    *[(GroupSort(size), (2, c, 3), f"{size} divides. Got {c}") for size, c in [(2, 3), (4, 6), (5, 1)]],
    *[(module, shape, "batch") for module in (MaxMin(), GroupSort(2), GroupSort(None)) for shape in [(4,), ()]],
    (BCOPConv2d(2, 2, 3, dilation=2, padding=0), (1, 2, 4, 6), r"images of at least \(5, 5\).*Got images of \(4, 6\)"),
    (BCOPConvTranspose2d(2, 2, 3, 1, 2, padding_mode="zeros"), (1, 2, 1, 1), "inputs that give an image"),
    (InvertibleDownsampling(2), (1, 3, 5, 6), "stride 2 divides. Got 5×6"),
    (InvertibleDownsampling(2), (1, 1, 2, 2, 2), r"\(N, C, H, W\)"),
    (InvertibleUpsampling(2), (1, 6, 5, 6), "4 divides. Got 6"),
    (InvertibleUpsampling(2), (1, 3, 5), "2 divides. Got 3"),
    *[(module(2), (4, 4), r"Got shape \(4, 4\)") for module in (InvertibleDownsampling, InvertibleUpsampling)],
]


def test_inputs_of_the_wrong_shape():
    for module, shape, match in INPUTS:
        assert_refused(module, torch.zeros(shape), match=match)
    for kind in IMAGE_LAYERS.values():
        layer = kind(3, 4, 3)
        for shape in [(1, 2, 6, 6), (2, 6, 6), (6, 6), (), (1, 1, 3, 6, 6)]:
            assert_refused(layer, torch.zeros(shape), match=r"input \(N, 3, H, W\).*Got shape")


# What makes a layer of a value, values that it must refuse, and words of the message.
sized, four = partial(OSSNConv2d, 3, 4, 3), {"in_channels": 4, "out_channels": 4, "kernel_size": 4}
transposed, cayley = partial(BCOPConvTranspose2d, 2, 2, 3, 2), partial(CayleyConv2d, 2, 4, 3, input_size=5)
ARGUMENTS: list[tuple[Callable[..., Any], list[Any], str]] = [
    (partial(BCOPConv2d, 3, 4), [(3, 0), (3, 3, 3), ()], "kernel_size"),
    (partial(OrthogonalLinear, 3), [0, -1], "at least one feature"),
    (GroupSort, [0, -2, 2.5, "2"], "group size"),
    (InvertibleDownsampling, [0, -1, 1.5, "2"], "factor"),
    (SVCMConv2d(2, 2, 3, input_size=4).project, [0, -1], "at least one projection"),
    (lambda n: sized(input_size=6, power_iterations=n), [0], "power iteration. Got 0"),
    (lambda name: sized(input_size=6, projection=name), ["never"], "projection .*after_update"),
    (lambda size: sized(input_size=size), [0, -4, (0, 6), (6, 6, 6), (6,), 6.5, "66", None], "input_size"),
    (lambda size: OSSNConv2d(3, 4, 4, 2, input_size=size), [5, (6, 5), (5, 6)], "input_size that the stride 2 divides"),
    (
        lambda ranks: BCOPConv1d(3, 5, 3, ranks=ranks),
        [-1, 6, 2.5, [1], [], [1, 6], "ab", [None, 1]],
        "ranks: 2 numbers",
    ),
    (lambda groups: BCOPConv2d(**four, groups=groups), [3, 0], "groups"),
    (lambda dilation: RKOConv2d(**four, dilation=dilation), [0, (1, 2, 3)], "dilation"),
    (lambda padding: BCOPConvTranspose2d(**four, padding=padding), [-1, "full", None], "padding"),
    (lambda extra: transposed(1, extra), [2, (0, 2), -1], "output_padding"),
    (lambda extra: transposed("same", extra), [1], "output_padding"),
    (lambda terms: SOCConv2d(2, 4, 3, input_size=5, terms=terms), [0], "one term"),
    (lambda rank: BROConv2d(2, 4, 3, input_size=5, rank=rank), [0, 5], "rank"),
    (lambda mode: cayley(padding_mode=mode), ["zeros"], "circular padding"),
    *[
        (
            lambda options, kind=kind: kind(**four | {"input_size": 6} | options),
            SIZED,
            f"{kind.__name__} with one group",
        )
        for kind in (OSSNConv2d, SVCMConv2d, CayleyConv2d)
    ],
]


def test_arguments():
    for make, values, match in ARGUMENTS:
        for value in values:
            assert_refused(make, value, match=match)


@convolutions
def test_geometries(kind):
    for k, stride in [(1, 2), (2, 4)]:
        assert_refused(kind, 3, 4, k, stride, match=f"stride of at most the kernel size.*Got kernel_size={k}")
    for name, value in product(("in_channels", "out_channels", "kernel_size", "stride"), (0, -1, 1.5, "3", None, True)):
        arguments = {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": 1, name: value}
        assert_refused(kind, **arguments, match=f"{name} .*Got {value!r}")
    for value in ("reflect", "replicate", "same", "", None):
        assert_refused(kind, 3, 4, 3, padding_mode=value, match=f"padding_mode .*Got {value!r}")
    assert_refused(kind, 3, 4, (3, 2, 2), match=r"kernel_size .*Got \(3, 2, 2\)")
    assert_refused(kind, 3, 4, 4, (2, 1, 1), match=r"stride .*Got \(2, 1, 1\)")
    for k in (1, 2, 3, 7):
        assert set(kind(2, 2, k, padding="same").kernel_size) == {k}
        for padding in (k // 2, k):
            if 2 * padding >= k:
                assert_refused(kind, 2, 2, k, padding=padding, match=f"padding .*repeat. Got padding={padding}")
            elif 2 * padding == k - 1:  # "same", which every method takes
                assert kind(2, 2, k, padding=padding).padding == kind(2, 2, k, padding=(padding,)).padding
    assert_refused(kind, 2, 2, 3, padding="reflect", match="padding .*Got 'reflect'")


@convolutions
def test_numbers_that_parameters_cannot_be(kind):
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        for make in (partial(kind, 2, 2, 3), partial(OrthogonalLinear, 2, 2)):
            assert_refused(make, dtype=dtype, match=f"Got {dtype}")


@manifold_layers
def test_parameters_without_numbers(make):
    layer, fake = make(), FakeTensorMode()
    assert_refused(lambda: layer.to("meta").weight, match="meta")
    assert_refused(lambda: plain(layer), match="meta")
    with fake:
        assert_refused(lambda: make().weight, match="FakeTensorMode")
        without = make()
    assert_refused(lambda: without.weight, match="numbers")


@manifold_layers
def test_unknown_orthogonalisations(make):
    for value in ("qr", "Manifold", None):
        assert_refused(make, orthogonalisation=value, match=f"orthogonalisation .*manifold.*bjorck.* Got {value!r}")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@manifold_layers
def test_parameters_that_are_not_finite(make, training):
    for name in [name for name, _ in make().named_parameters() if name != "bias"]:
        layer = make().train(training)
        for value in (float("nan"), float("inf"), -float("inf")):
            with torch.no_grad():
                layer.get_parameter(name).view(-1)[-1] = value
            for _ in range(2):  # and nothing half-done is kept
                assert_refused(getattr, layer, "weight", match="finite parameters")
        layer.reset_parameters()
        assert layer.weight.isfinite().all()
