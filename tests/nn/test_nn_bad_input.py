"""Everything that a layer or module must refuse; each message names what was expected and what was given."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import isoconv.nn as ours
from helpers import CONVOLUTIONS
from isoconv import IsoconvError, plain
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, MaxMin, OrthogonalLinear, OSSNConv2d, RKOConv2d
from isoconv.nn.convolution import SizedConv2d

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
    assert "\n" not in str(caught.value) and " Got" in str(caught.value) and isinstance(caught.value, ValueError)


# A module, shapes of inputs that do not fit, and words of the message.
INPUTS: list[tuple[nn.Module, list[tuple[int, ...]], str]] = [
    (BCOPConv1d(3, 4, 3), [(1, 2, 6), (2, 6), (6,), (1, 3, 6, 6)], r"\(N, 3, L\)"),
    (OrthogonalLinear(3, 4), [(2, 4), (3, 2), (), (1, 3, 1)], r"\(…, 3\)"),
    (ours.AOLLinear(4, 2), [(3, 5)], r"input \(…, 4\)"),
    (ours.NormalisedLinear(4, 2), [(2, 3)], "input"),
    (BCOPConv2d(3, 4, 4, 2, 0), [(1, 3, 3, 6), (1, 3, 6, 2), (1, 3, 1, 1)], r"at least \(4, 4\)"),
    (ours.StandardConv2d(3, 4, 4, 2, 1), [(1, 3, 1, 1)], r"at least \(4, 4\)"),
    (BCOPConv1d(3, 4, 6, 3, 0), [(1, 3, 5)], r"at least \(6,\)"),
    (BCOPConv2d(2, 2, 3, dilation=2, padding=0), [(1, 2, 4, 6)], r"images of at least \(5, 5\)"),
    (BCOPConvTranspose2d(2, 2, 3, 1, 2, padding_mode="zeros"), [(1, 2, 1, 1)], "inputs that give an image"),
    (OSSNConv2d(3, 4, 3, input_size=6), [(1, 3, 5, 6), (1, 3, 6, 5), (1, 3, 12, 12)], "6×6"),
    (MaxMin(), [(2, 1), (2, 101)], "2 divides"),
    (MaxMin(), [(4,), ()], "batch"),
    (MaxMin(2), [(2, 3)], "axis 2"),
    (MaxMin(-2), [(2, 3)], "axis -2"),
    (MaxMin(2), [(2, 4, 3)], "2 divides"),
    *[(ours.GroupSort(size), [(2, c, 3)], f"{size} divides") for size, c in [(2, 3), (4, 6), (5, 1)]],
    *[(ours.GroupSort(size), [(4,), ()], "batch") for size in (2, None)],
    (ours.GroupSort(None, dim=-3), [(2, 4, 3)], "batch"),
    (ours.LayerCentering(2), [(2, 3)], "axes"),
    (ours.LayerCentering(), [(3,)], "batch"),
    (ours.Householder(4), [(2, 6)], "batch"),
    *[(ours.BatchCentering(4).train(mode), [(2, 6, 4)], "batch") for mode in (True, False)],
    *[(m, [(3, 4, 4)], "image") for m in (ours.ScaledAvgPool2d(2), ours.L2NormPool2d(2), ours.ChannelShift())],
    (ours.InvertibleDownsampling(2), [(1, 3, 5, 6)], "stride 2 divides"),
    (ours.InvertibleDownsampling(2), [(1, 1, 2, 2, 2), (4, 4), (2, 4, 8)], r"\(N, C, H, W\)"),
    (ours.InvertibleUpsampling(2), [(4, 4), (2, 4, 8)], r"\(N, C, H, W\)"),
    (ours.InvertibleUpsampling(2), [(1, 6, 5, 6)], "4 divides"),
    (ours.Residual(nn.Linear(4, 1)), [(2, 4)], "one shape"),  # which would broadcast
    (ours.PositionBias(2, 3), [(1, 4, 1, 3)], "2×3"),  # which would, too
    (ours.HalfAbs(), [(3,)], "batch"),
]


def test_inputs_of_the_wrong_shape():
    for module, shapes, match in INPUTS:
        for shape in shapes:
            assert_refused(module, torch.zeros(shape), match=match)
    for kind in IMAGE_LAYERS.values():
        for shape in [(1, 2, 6, 6), (2, 6, 6), (6, 6), (), (1, 1, 3, 6, 6)]:
            assert_refused(kind(3, 4, 3), torch.zeros(shape), match=r"input \(N, 3, H, W\)")


# What makes a layer of a value, values that it must refuse, and words of the message.
sized, four = partial(OSSNConv2d, 3, 4, 3), {"in_channels": 4, "out_channels": 4, "kernel_size": 4}
transposed, cayley = partial(BCOPConvTranspose2d, 2, 2, 3, 2), partial(ours.CayleyConv2d, 2, 4, 3, input_size=5)
SIZED = [{"groups": 2}, {"dilation": 2}, {"padding": 0}, {"kernel_size": 3, "stride": 2}, {"stride": (1, 2)}]
relu = {"relu": nn.ReLU()}
once = ("a", "relu", ["input"])
ARGUMENTS: list[tuple[Callable[..., Any], list[Any], str]] = [
    (partial(BCOPConv2d, 3, 4), [(3, 0), (3, 3, 3), ()], "kernel_size"),
    (partial(OrthogonalLinear, 3), [0, -1], "at least one feature"),
    (partial(ours.NormalisedLinear, 3), [0], "feature"),
    (ours.GroupSort, [0, -2, 2.5, "2"], "group size"),
    (MaxMin, [0, True], "batch"),
    (lambda dim: ours.GroupSort(2, dim=dim), [1.5], "batch"),
    (ours.LayerCentering, [(1, 0), ()], "batch"),
    (ours.Householder, [5], "even"),
    (ours.BatchCentering, [0], "feature"),
    (partial(ours.BatchCentering, 3), [2.0], "momentum"),
    (ours.ScaledAvgPool2d, [0, (2, 2, 2)], "kernel_size"),
    (lambda padding: ours.ScaledAvgPool2d(2, padding=padding), [2], "padding"),
    (partial(ours.L2NormPool2d, 3), [2], "overlap"),
    (lambda stride: ours.L2NormPool2d(stride=stride), [2], "kernel_size"),
    (ours.Residual, [lambda x: x], "module"),
    (partial(ours.Residual, nn.ReLU()), [1.5, math.nan, True], "weight"),
    (ours.orthogonal_conv_, [torch.empty(3, 3)], "kernel"),
    (partial(ours.orthogonal_conv_, torch.empty(3, 3, 1, 1)), [2], "groups"),
    (ours.ChannelShift, [-0.1, 0.3, math.nan, "1/8", None, True], "share"),
    (lambda size: ours.PositionBias(*size), [(0, 3), (3, -1), (2.0, 3), (True, 2)], "height"),
    (ours.InvertibleDownsampling, [0, -1, 1.5, "2"], "factor"),
    (ours.SVCMConv2d(2, 2, 3, input_size=4).project, [0, -1], "at least one projection"),
    (lambda n: sized(input_size=6, power_iterations=n), [0], "power iteration"),
    (lambda name: sized(input_size=6, projection=name), ["never"], "projection .*after_update"),
    (lambda size: sized(input_size=size), [0, -4, (0, 6), (6, 6, 6), 6.5, "66", None], "input_size"),
    (lambda size: OSSNConv2d(3, 4, 4, 2, input_size=size), [5, (6, 5), (5, 6)], "input_size that the stride 2 divides"),
    (lambda r: BCOPConv1d(3, 5, 3, ranks=r), [-1, 6, 2.5, [1], [], [1, 6], "ab", [None, 1]], "ranks: 2 numbers"),
    (lambda groups: BCOPConv2d(**four, groups=groups), [3, 0], "groups"),
    (lambda dilation: RKOConv2d(**four, dilation=dilation), [0, (1, 2, 3)], "dilation"),
    (lambda padding: BCOPConvTranspose2d(**four, padding=padding), [-1, "full", None], "padding"),
    (lambda extra: transposed(1, extra), [2, (0, 2), -1], "output_padding"),
    (lambda extra: transposed("same", extra), [1], "output_padding"),
    (lambda terms: ours.SOCConv2d(2, 4, 3, input_size=5, terms=terms), [0], "one term"),
    (lambda rank: ours.BROConv2d(2, 4, 3, input_size=5, rank=rank), [0, 5], "rank"),
    (lambda mode: cayley(padding_mode=mode), ["zeros"], "circular padding"),
    *[
        (
            lambda options, kind=kind: kind(**four | {"input_size": 6} | options),
            SIZED,
            f"{kind.__name__} with one group",
        )
        for kind in (OSSNConv2d, ours.SVCMConv2d, ours.CayleyConv2d)
    ],
    # What the layer was built for follows from its arguments: its forward and its plain form would no longer agree.
    (partial(setattr, BCOPConv2d(2, 4, 3), "padding_mode"), ["reflect"], "padding_mode"),
    (partial(setattr, BCOPConv2d(2, 4, 3), "dilation"), [(2, 2)], "dilation"),
    (partial(setattr, ours.CayleyConv2d(2, 4, 3, input_size=5), "padding_mode"), ["zeros"], "padding_mode"),
    (partial(setattr, BCOPConv1d(2, 4, 3), "groups"), [2], "groups"),
    # Parts of graphs.
    (partial(ours.Graph, relu), [[("a", "none", ["input"])], [("a", "relu", ["b"])], [("a", "relu", [])]], "nodes"),
    (partial(ours.Graph, relu), [[once, once]], "names of their own"),
    (partial(ours.Graph, relu), [[]], "at least one module"),
    (ours.Concat, [0], "behind the batch"),
    (partial(ours.Slice, 1, 2), [2], "start < stop"),
    (ours.Permute, [(0, 2)], "order of the axes"),
    (ours.Flip, [0, -1, True, (1, 2)], "behind the batch"),
    (ours.Reshape, [(0,)], "at least 1"),
    (ours.Translate, [1], "tensor"),
    (lambda y: ours.Add()(torch.zeros(1, 2), y), [torch.zeros(1, 1)], "one shape"),
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
    assert_refused(kind, 3, 4, (3, 2, 2), match="kernel_size")
    assert_refused(kind, 3, 4, 4, (2, 1, 1), match="stride")
    for k in (1, 2, 3, 7):
        assert set(kind(2, 2, k, padding="same").kernel_size) == {k}
        for padding in (k // 2, k):
            if 2 * padding >= k:
                assert_refused(kind, 2, 2, k, padding=padding, match=f"padding .*repeat. Got padding={padding}")
            elif 2 * padding == k - 1:  # "same", which every method takes
                assert kind(2, 2, k, padding=padding).padding == kind(2, 2, k, padding=(padding,)).padding
    assert_refused(kind, 2, 2, 3, padding="reflect", match="padding")
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        for make in (partial(kind, 2, 2, 3), partial(OrthogonalLinear, 2, 2)):
            assert_refused(make, dtype=dtype, match=f"Got {dtype}")


@manifold_layers
def test_parameters_without_numbers_and_unknown_orthogonalisations(make):
    layer, fake = make(), FakeTensorMode()
    assert_refused(lambda: layer.to("meta").weight, match="numbers")
    assert_refused(lambda: plain(layer), match="numbers")
    with fake:
        assert_refused(lambda: make().weight, match="FakeTensorMode")
        without = make()
    assert_refused(lambda: without.weight, match="numbers")
    for value in ("qr", "Manifold", None):
        assert_refused(make, orthogonalisation=value, match=f"orthogonalisation .*manifold.*bjorck.* Got {value!r}")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@manifold_layers
def test_parameters_that_are_not_finite(make, training):
    for name in [name for name, _ in make().named_parameters() if name != "bias"]:
        layer = make().train(training)
        for value in (math.nan, math.inf, -math.inf):
            with torch.no_grad():
                layer.get_parameter(name).view(-1)[-1] = value
            for _ in range(2):  # and nothing half-done is kept
                assert_refused(getattr, layer, "weight", match="finite parameters")
        layer.reset_parameters()
        assert layer.weight.isfinite().all()
