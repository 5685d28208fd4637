"""Everything that a layer must refuse, and with which words."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from isoconv import IsoconvError
from isoconv.nn import (
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    GroupSort,
    InvertibleDownsampling,
    InvertibleUpsampling,
    MaxMin,
    OrthogonalLinear,
    OSSNConv2d,
    RKL2NEConv2d,
    RKOConv2d,
    StandardConv2d,
    SVCMConv2d,
)

IMAGE_LAYERS: list[Callable[..., nn.Module]] = [
    BCOPConv2d,
    BCOPConvTranspose2d,
    RKOConv2d,
    partial(OSSNConv2d, input_size=6),
    partial(SVCMConv2d, input_size=6),
    RKL2NEConv2d,
    StandardConv2d,
]
NAMES = ["bcop", "transposed", "rko", "ossn", "svcm", "rkl2ne", "standard"]
image_layers = pytest.mark.parametrize("kind", IMAGE_LAYERS, ids=NAMES)
conv_layers = pytest.mark.parametrize("kind", [*IMAGE_LAYERS, BCOPConv1d], ids=[*NAMES, "1d"])


@image_layers
@pytest.mark.parametrize("shape", [(1, 2, 6, 6), (2, 6, 6), (6, 6), (6,), (), (1, 1, 3, 6, 6)])
def test_wrong_channels_or_dimensions(kind, shape):
    layer = kind(3, 4, 3)
    got = str(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(IsoconvError, match=rf"{type(layer).__name__}: Expected input \(N, 3, H, W\).*Got shape {got}"):
        layer(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(1, 2, 6), (2, 6), (6,), (1, 3, 6, 6)])
def test_wrong_channels_or_dimensions_in_one_dimension(shape):
    with pytest.raises(IsoconvError, match=r"BCOPConv1d: Expected input \(N, 3, L\).*Got shape"):
        BCOPConv1d(3, 4, 3)(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 4), (3, 2), (), (1, 3, 1)])
def test_wrong_features(shape):
    with pytest.raises(IsoconvError, match=r"OrthogonalLinear: Expected input \(…, 3\)\. Got shape"):
        OrthogonalLinear(3, 4)(torch.zeros(shape))


@pytest.mark.parametrize("kind", [BCOPConv2d, RKOConv2d, RKL2NEConv2d, StandardConv2d])
@pytest.mark.parametrize(("size", "got"), [((5, 6), "5×6"), ((6, 7), "6×7"), ((1, 1), "1×1")])
def test_image_sizes_that_the_stride_does_not_divide(kind, size, got):
    with pytest.raises(IsoconvError, match=f"image size that the stride 2 divides. Got {got}"):
        kind(3, 4, 4, 2)(torch.zeros(1, 3, *size))


def test_lengths_that_the_stride_does_not_divide():
    with pytest.raises(IsoconvError, match=r"size that the stride 3 divides. Got 7"):
        BCOPConv1d(3, 4, 6, 3)(torch.zeros(1, 3, 7))


@conv_layers
@pytest.mark.parametrize(("k", "stride"), [(3, 2), (1, 2), (4, 3), (2, 4)])
def test_kernel_sizes_that_the_stride_does_not_divide(kind, k, stride):
    with pytest.raises(IsoconvError, match=f"kernel size that the stride divides .*Got kernel_size={k}"):
        kind(3, 4, k, stride)


@image_layers
@pytest.mark.parametrize("k", [(3, 2), (1, 3), (3, 3, 3), ()])
def test_kernels_that_are_not_square(kind, k):
    with pytest.raises(IsoconvError, match=r"kernel_size to be a number or a tuple of 2 equal ones\. Got \("):
        kind(3, 4, k)


@image_layers
def test_strides_that_are_not_square(kind):
    with pytest.raises(IsoconvError, match=r"stride to be a number or a tuple of 2 equal ones\. Got \(2, 1\)"):
        kind(3, 4, 4, (2, 1))


@conv_layers
@pytest.mark.parametrize("name", ["in_channels", "out_channels", "kernel_size", "stride"])
def test_sizes_that_are_not_positive_whole_numbers(kind, name):
    for value in (0, -1, 1.5, "3", None):
        arguments = {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": 1, name: value}
        with pytest.raises(IsoconvError, match=f"Expected {name} to be a whole number of at least 1. Got {value!r}"):
            kind(**arguments)


@conv_layers
def test_padding_is_taken_only_if_torch_keeps_the_size_with_it(kind):
    for k, stride in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (4, 2), (6, 2), (3, 3), (6, 3)]:
        assert kind(2, 2, k, stride, padding="same").kernel_size == k
        for padding in range(6):
            images = [torch.zeros(1, 1, n) for n in range(12, 31) if n % stride == 0]
            torchs = nn.Conv1d(1, 1, k, stride, padding)
            if all(torchs(x).shape[2] * stride == x.shape[2] for x in images):
                kind(2, 2, k, stride, padding=padding)
                kind(2, 2, k, stride, padding=(padding,))
            else:
                with pytest.raises(
                    IsoconvError, match=rf"^Expected padding 'same'.*size.*by the stride\. Got {padding}\.$"
                ):
                    kind(2, 2, k, stride, padding=padding)
    with pytest.raises(IsoconvError, match=r"^Expected padding 'same' or 1: .*Got 'valid'\.$"):
        kind(2, 2, 3, padding="valid")
    with pytest.raises(IsoconvError, match=r"^Expected padding 'same' or 1: .*Got \(1, 2\)\.$"):
        kind(2, 2, 3, padding=(1, 2))


@conv_layers
@pytest.mark.parametrize("mode", ["reflect", "replicate", "same", "", None])
def test_padding_modes_that_are_not_1_lipschitz_or_unknown(kind, mode):
    with pytest.raises(IsoconvError, match=f"padding_mode 'circular' or 'zeros' .*Got {mode!r}"):
        kind(3, 4, 3, padding_mode=mode)


@pytest.mark.parametrize(
    "make",
    [
        partial(BCOPConv2d, 3, 4, 3),
        partial(BCOPConv1d, 3, 4, 3),
        partial(BCOPConvTranspose2d, 3, 4, 3),
        partial(RKOConv2d, 3, 4, 3),
        partial(OrthogonalLinear, 3, 4),
    ],
    ids=["2d", "1d", "transposed", "rko", "linear"],
)
@pytest.mark.parametrize("value", ["qr", "Manifold", None])
def test_unknown_orthogonalisations(make, value):
    with pytest.raises(IsoconvError, match=f"orthogonalisation to be one of .*manifold.*bjorck.* Got {value!r}"):
        make(orthogonalisation=value)


@pytest.mark.parametrize("orthogonalisation", ["manifold", "bjorck"])
@pytest.mark.parametrize("ranks", [-1, 6, 2.5, [1], [1, 2, 3], [], [1, 6], [-1, 2], [1, 2.5], "ab", [None, 1]])
def test_ranks_out_of_range_or_of_the_wrong_number(ranks, orthogonalisation):
    with pytest.raises(IsoconvError, match=r"Expected ranks: 2 numbers between 0 and 5, or one for all. Got "):
        BCOPConv1d(3, 5, 3, ranks=ranks, orthogonalisation=orthogonalisation)


@pytest.mark.parametrize("kind", [OSSNConv2d, SVCMConv2d])
@pytest.mark.parametrize("size", [(5, 6), (6, 5), (7, 6), (12, 12), (3, 3)])
def test_images_of_another_size_than_the_constraint_is_for(kind, size):
    with pytest.raises(IsoconvError, match=f"{kind.__name__}: Expected images of size 6×6.*Got {size[0]}×{size[1]}"):
        kind(3, 4, 3, input_size=6)(torch.zeros(1, 3, *size))


@pytest.mark.parametrize("kind", [OSSNConv2d, SVCMConv2d])
@pytest.mark.parametrize("size", [5, (6, 5), (5, 6)])
def test_input_sizes_that_the_stride_does_not_divide(kind, size):
    with pytest.raises(IsoconvError, match=r"input_size that the stride 2 divides. Got "):
        kind(3, 4, 4, 2, input_size=size)


@pytest.mark.parametrize("kind", [OSSNConv2d, SVCMConv2d])
@pytest.mark.parametrize("size", [0, -4, (0, 6), (6, 6, 6), (6,), 6.5, "66", None])
def test_input_sizes_that_are_none(kind, size):
    with pytest.raises(IsoconvError, match=r"input_size to be a number or \(height, width\)\. Got "):
        kind(3, 4, 3, input_size=size)


def test_ossn_options():
    with pytest.raises(IsoconvError, match=r"projection to be one of .*forward.*after_update.* Got 'never'"):
        OSSNConv2d(3, 4, 3, input_size=6, projection="never")
    with pytest.raises(IsoconvError, match=r"at least one power iteration. Got 0"):
        OSSNConv2d(3, 4, 3, input_size=6, power_iterations=0)


MANIFOLD_LAYERS: list[Callable[[], nn.Module]] = [
    partial(BCOPConv2d, 3, 4, 3),
    partial(BCOPConv2d, 1, 4, 2, 2),
    partial(BCOPConv1d, 3, 4, 3),
    partial(BCOPConvTranspose2d, 3, 4, 3),
    partial(RKOConv2d, 3, 4, 3),
    partial(OrthogonalLinear, 3, 4),
]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("make", MANIFOLD_LAYERS, ids=["2d", "2d s2", "1d", "transposed", "rko", "linear"])
def test_parameters_that_are_not_finite(make, value, training):
    for name in [name for name, _ in make().named_parameters() if name != "bias"]:
        layer = make().train(training)
        p = layer.get_parameter(name)
        with torch.no_grad():
            p.view(-1)[-1] = value
        for _ in range(2):  # and nothing half-done is kept
            with pytest.raises(IsoconvError, match=r"Expected finite parameters. Got NaN or infinity"):
                _ = layer.weight
        layer.reset_parameters()
        assert layer.weight.isfinite().all()


@pytest.mark.parametrize("channels", [1, 3, 5, 101])
def test_odd_channels_to_maxmin(channels):
    for shape in [(2, channels), (2, channels, 4, 4)]:
        with pytest.raises(IsoconvError, match=f"MaxMin: Expected a number of channels that 2 divides. Got {channels}"):
            MaxMin()(torch.zeros(shape))


@pytest.mark.parametrize(("size", "channels"), [(2, 3), (3, 4), (4, 6), (5, 1)])
def test_channels_that_the_group_size_does_not_divide(size, channels):
    with pytest.raises(IsoconvError, match=f"GroupSort: .*channels that {size} divides. Got {channels}"):
        GroupSort(size)(torch.zeros(2, channels, 3))


@pytest.mark.parametrize("size", [0, -2, 2.5, "2"])
def test_group_sizes(size):
    with pytest.raises(IsoconvError, match=f"group size of at least 1, or None for all channels. Got {size!r}"):
        GroupSort(size)


@pytest.mark.parametrize("activation", [MaxMin(), GroupSort(2), GroupSort(None)], ids=["maxmin", "2", "all"])
@pytest.mark.parametrize("shape", [(4,), ()])
def test_activations_without_a_batch(activation, shape):
    with pytest.raises(IsoconvError, match=r"Expected a batch \(N, C, …\)\. Got shape"):
        activation(torch.zeros(shape))


@pytest.mark.parametrize("kind", [InvertibleDownsampling, InvertibleUpsampling])
@pytest.mark.parametrize("factor", [0, -1, 1.5, "2"])
def test_factors(kind, factor):
    with pytest.raises(IsoconvError, match=f"whole factor of at least 1. Got {factor!r}"):
        kind(factor)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (InvertibleDownsampling(2), (1, 3, 5, 6), "size that the stride 2 divides. Got 5×6"),
        (InvertibleDownsampling(3), (1, 3, 7), "size that the stride 3 divides. Got 7"),
        (InvertibleDownsampling(2), (4, 4), r"Expected \(N, C, L\) or \(N, C, H, W\). Got shape \(4, 4\)"),
        (InvertibleDownsampling(2), (1, 1, 2, 2, 2), r"Expected \(N, C, L\) or \(N, C, H, W\)"),
        (InvertibleUpsampling(2), (1, 6, 5, 6), "number of channels that 4 divides. Got 6"),
        (InvertibleUpsampling(2), (1, 3, 5), "number of channels that 2 divides. Got 3"),
        (InvertibleUpsampling(2), (4, 4), r"Expected \(N, C, L\) or \(N, C, H, W\). Got shape \(4, 4\)"),
    ],
)
def test_downsampling(module, shape, message):
    with pytest.raises(IsoconvError, match=message):
        module(torch.zeros(shape))


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (-1, 3)])
def test_features(m, n):
    with pytest.raises(IsoconvError, match=f"at least one feature on each side. Got {m} and {n}"):
        OrthogonalLinear(m, n)


def test_the_error_is_a_value_error():
    """So that code written for torch.nn, which raises ValueError for bad arguments, catches it."""
    with pytest.raises(ValueError, match=r"kernel_size"):
        BCOPConv2d(3, 4, 0)


@pytest.mark.parametrize("iterations", [0, -1])
def test_no_projections_at_all(iterations: int) -> None:
    with pytest.raises(IsoconvError, match=f"Expected at least one projection. Got {iterations}."):
        SVCMConv2d(2, 2, 3, input_size=4).project(iterations)
