"""Every argument of torch's convolutions: what the layer computes, when it is orthogonal, and what `plain` makes of it.

A table of arguments is sampled. What a layer must compute is written down again here, by indices; and so is when it must be
orthogonal, as in the table of the page "Put orthogonal layers into your own model".
"""

import inspect
import math
import random
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isoconv
from helpers import jacobian, randomised, singular_values
from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.nn import AOLConv2d, BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, RKL2NEConv2d, RKOConv2d, StandardConv2d
from isoconv.nn.downsampling import unfold_stride

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


class Case(NamedTuple):
    """Arguments of a convolution in torch's order, and the size of its image."""

    c_in: int
    c_out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    size: tuple[int, ...]

    def make(self, kind: Any, **options: Any) -> Any:
        arguments = self.c_in, self.c_out, self.kernel, self.stride, self.padding, self.dilation, self.groups, True
        return kind(*arguments, self.padding_mode, **options)

    @property
    def reaches(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    @property
    def outputs(self) -> list[int]:
        """Sizes of the output: ⌈n/s⌉ for "same", torch's for numbers."""
        if self.padding == "same":
            return [-(-n // s) for n, s in zip(self.size, self.stride, strict=True)]
        axes = zip(self.size, self.padding, self.reaches, self.stride, strict=True)
        return [(n + 2 * p - r) // s + 1 for n, p, r, s in axes]

    @property
    def wraps_once(self) -> bool:
        """Whether torch's own layers, which wrap around only once, can do the same."""
        return self.padding_mode == "zeros" or all(r <= n for r, n in zip(self.reaches, self.size, strict=True))

    @property
    def is_orthogonal(self) -> bool:
        """What the documentation promises of BCOP."""
        o, i = self.c_out // self.groups, self.c_in // self.groups
        shared = [math.gcd(s, d) for s, d in zip(self.stride, self.dilation, strict=True)]
        pixels = i * math.prod(s // e for s, e in zip(self.stride, shared, strict=True))
        circular = self.padding_mode == "circular"
        pads = self.padding if self.padding != "same" else (None,) * len(self.size)
        axes = list(zip(self.size, self.stride, self.outputs, self.reaches, pads, strict=True))
        rows = all(p == 0 or ((circular or (p is None and r == s)) and n % s == 0) for n, s, _, r, p in axes)
        columns = all(m * s >= n if circular else (p or 0) >= r - 1 for n, s, m, r, p in axes) and set(shared) == {1}
        return (o <= pixels and rows) or (o >= pixels and columns)


def sample(count: int, axes: int, seed: int) -> list[Case]:
    """Cases drawn at random: all that a layer takes, with images of a few pixels."""
    draw, cases = random.Random(seed), []
    while len(cases) < count:
        kernel = tuple(draw.choice((1, 2, 3, 3, 4, 5)) for _ in range(axes))
        stride = tuple(draw.randint(1, min(k, 3)) for k in kernel)
        dilation = tuple(draw.choice((1, 1, 2, 3)) for _ in range(axes))
        groups, mode = draw.choice((1, 1, 2, 3)), draw.choice(("circular", "circular", "zeros"))
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        padding: Any = tuple(draw.randint(0, (r - 1) // (2 if mode == "circular" else 1)) for r in reaches)
        padding = draw.choice(("same", "same", padding))
        least, pixel = draw.choice((reaches, (1,) * axes)), draw.choice((stride, (1,) * axes))
        size = tuple((draw.randint(0, 3) + -(-n // s)) * s for n, s in zip(least, pixel, strict=True))
        c_in, c_out = groups * draw.randint(1, 3), groups * draw.choice((1, 2, 3, 5, 9, 13))
        case = Case(c_in, c_out, kernel, stride, padding, dilation, groups, mode, size)
        if min(case.outputs) >= 1 and c_in * math.prod(size) <= 400:
            cases.append(case)
    return cases


CASES_2D, CASES_1D = sample(64, 2, seed=1), sample(20, 1, seed=2)
KINDS = {"bcop": BCOPConv2d, "bcop-bjorck": partial(BCOPConv2d, orthogonalisation="bjorck")}
KINDS |= {"rko": RKOConv2d, "rkl2ne": RKL2NEConv2d, "aol": AOLConv2d, "standard": StandardConv2d}


def named(case: Case) -> str:
    return "-".join(map(str, case)).replace(" ", "")


cases = pytest.mark.parametrize("case", [*CASES_2D, *CASES_1D], ids=named)


def kernel_of(layer: Any) -> Tensor:
    """The kernel as torch's layer would have it, from the layer's `weight`."""
    return unfold_stride(layer.weight, layer.stride) if layer.weight.shape[2:] != layer.kernel_size else layer.weight


def convolve_by_index(x: Tensor, layer: Any, case: Case) -> Tensor:
    """Σ_t W_t x[i·s + t·d − p], the image extended by zeros to a multiple of the stride, and periodic or zero beyond."""
    weight = kernel_of(layer).detach()
    for axis, (s, d, r, m) in enumerate(zip(case.stride, case.dilation, case.reaches, case.outputs, strict=True)):
        n, axis_of_x = case.size[axis], 2 + 2 * axis
        period = -(-n // s) * s
        if case.padding == "same":  # half of what is missing; where a kernel is k/s blocks of s pixels, whole blocks
            whole = layer.weight.shape[2:] != layer.kernel_size or s == 1 == d
            p = s * (case.kernel[axis] // s // 2) if whole else (r - s + 1) // 2
        else:
            p = case.padding[axis]
        index = torch.arange(m)[:, None] * s + torch.arange(case.kernel[axis]) * d - p
        index = index % period if case.padding_mode == "circular" else index
        inside = ((index >= 0) & (index < n)).to(x.dtype)
        taken = x.index_select(axis_of_x, index.clamp(0, n - 1).flatten())
        x = taken.unflatten(axis_of_x, index.shape) * inside.reshape(*index.shape, *[1] * (taken.dim() - axis_of_x - 1))
    g = case.groups
    if len(case.size) == 1:
        y = torch.einsum("ngimk,goik->ngom", x.unflatten(1, (g, -1)), weight.unflatten(0, (g, -1)))
    else:
        y = torch.einsum("ngimkwl,goikl->ngomw", x.unflatten(1, (g, -1)), weight.unflatten(0, (g, -1)))
    return y.flatten(1, 2) + layer.bias.detach().reshape(-1, *[1] * len(case.size))


@cases
@torch.no_grad()
def test_what_is_computed_and_its_plain_form(case):
    """By indices, and by torch's own layers."""
    kinds = KINDS if len(case.size) == 2 else {"1d": BCOPConv1d}
    x = torch.randn(2, case.c_in, *case.size, dtype=torch.float64)
    for kind in kinds.values():
        layer = case.make(kind, dtype=torch.float64).eval()
        y = layer(x)
        assert list(y.shape[2:]) == case.outputs
        assert (y - convolve_by_index(x, layer, case)).abs().max() <= 1e-11
        assert torch.equal(layer(x[0]), y[0]) or (layer(x[0]) - y[0]).abs().max() <= 1e-12
        if case.wraps_once:
            assert (isoconv.plain(layer)(x) - y).abs().max() <= 1e-11


@cases
def test_bcop_is_orthogonal_where_that_is_promised_and_never_expands(case):
    """The bound that is proved of the plain form lies just above its norm."""
    kind = BCOPConv2d if len(case.size) == 2 else BCOPConv1d
    for dtype, tolerance in TOLERANCE.items():
        layer = case.make(kind, dtype=dtype).eval()
        values = singular_values(layer, case.c_in, *case.size)
        assert values.max() <= 1 + tolerance, dtype
        assert not case.is_orthogonal or values.min() >= 1 - tolerance, dtype
    if len(case.size) == 2 and case.wraps_once:
        bound = lipschitz_bound(layer, (case.c_in, *case.size)).value
        assert values.max() - 1e-6 <= bound <= 1 + (1e-5 if case.is_orthogonal else 1e-4)


def test_the_promise_is_kept_to_and_not_empty():
    """Most samples of circular padding are orthogonal; and of those that are not promised to be hardly one is."""
    circular = [case for case in CASES_2D if case.padding_mode == "circular"]
    assert sum(case.is_orthogonal for case in circular) >= len(circular) / 2 >= 15
    others = [case for case in CASES_2D if not case.is_orthogonal]
    smallest = [float(singular_values(case.make(BCOPConv2d), case.c_in, *case.size).min()) for case in others]
    assert sum(value < 0.999 for value in smallest) >= 0.9 * len(others) >= 10


@pytest.mark.parametrize("name", ["bcop-bjorck", "rko", "rkl2ne", "aol"])
def test_no_other_method_expands(name):
    for case, (dtype, tolerance) in product(CASES_2D[::3], TOLERANCE.items()):
        layer = randomised(case.make(KINDS[name], dtype=dtype)).eval()
        assert singular_values(layer, case.c_in, *case.size).max() <= 1 + tolerance, (case, dtype)


@pytest.mark.parametrize("case", CASES_2D, ids=named)
@torch.no_grad()
def test_the_transposed_layer_is_the_adjoint(case):
    """As dense matrices; the plain form and, with zeros, torch's own layer compute the same."""
    extra = (0, 0)
    if case.padding == "same":
        size = tuple(-(-n // s) * s for n, s in zip(case.size, case.stride, strict=True))
    else:
        size, axes = case.size, zip(case.size, case.padding, case.reaches, case.stride, strict=True)
        extra = tuple((n + 2 * p - r) % s for n, p, r, s in axes)
    layer = case.make(BCOPConv2d, dtype=torch.float64).eval()
    adjoint = layer.transposed(extra)
    forward, backward = jacobian(layer, case.c_in, *size), jacobian(adjoint, case.c_out, *case.outputs)
    assert forward.shape == backward.mT.shape
    assert (forward - backward.mT).abs().max() <= 1e-12
    own = BCOPConvTranspose2d(
        case.c_out, case.c_in, case.kernel, case.stride, case.padding, extra, case.groups, True, case.dilation,
        case.padding_mode, dtype=torch.float64,
    ).eval()  # fmt: skip
    y = torch.randn(2, case.c_out, *case.outputs, dtype=torch.float64)
    assert list(own(y).shape) == [2, case.c_in, *size]
    if case.padding_mode == "zeros" and case.padding != "same":
        geometry = case.stride, case.padding, extra, case.groups, case.dilation
        expected = F.conv_transpose2d(y, kernel_of(own), own.bias, *geometry)
        assert (own(y) - expected).abs().max() <= 1e-11
    if case.padding_mode == "zeros" or all(r <= n for r, n in zip(case.reaches, case.outputs, strict=True)):
        assert (isoconv.plain(own)(y) - own(y)).abs().max() <= 1e-11


def test_arguments_have_the_order_and_the_names_of_torchs():
    for kind, torchs in [(BCOPConv2d, nn.Conv2d), (BCOPConvTranspose2d, nn.ConvTranspose2d)]:
        ours, theirs = (list(inspect.signature(k.__init__).parameters) for k in (kind, torchs))
        assert ours[: len(theirs)] == theirs
    for kind in (BCOPConv2d, RKOConv2d, RKL2NEConv2d, AOLConv2d, StandardConv2d):
        arguments = (4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False, "zeros")
        layer, torchs = kind(*arguments), nn.Conv2d(*arguments)
        for name in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "bias"):
            assert getattr(layer, name) == getattr(torchs, name), name
        assert layer.weight.shape == torchs.weight.shape
    assert BCOPConv1d(2, 4, 3, 2, 1, 1, 2, False, "zeros", "cpu", torch.float64).weight.dtype == torch.float64


# The traps: what looks right and is not 1-Lipschitz, or not orthogonal --------------------------------------------------


def norm_of(module: nn.Module, *shape: int) -> float:
    return float(singular_values(module, *shape).max())


def test_wrapping_an_image_that_the_stride_does_not_divide_would_expand():
    layer = BCOPConv2d(3, 12, 3, 2, 1, bias=False).eval()
    assert norm_of(isoconv.plain(layer), 3, 5, 5) > 1.1  # torch's own circular padding
    assert (singular_values(layer, 3, 5, 5) - 1).abs().max() <= 1e-5
    assert norm_of(isoconv.plain(layer), 3, 5, 5) <= 1 + 1e-5  # it has seen what it is for
    for size, ways in [((6, 6), 0), ((5, 6), 1)]:
        plain = isoconv.plain(layer.train(), (3, *size))
        assert layer.training and sum(isinstance(module, nn.ZeroPad2d) for module in plain.modules()) == ways
        x = torch.randn(2, 3, *size)
        assert (plain(x) - layer(x)).abs().max() <= 1e-5


def test_a_strided_layer_for_images_of_two_kinds_has_no_plain_form():
    """7 becomes 4, of which half is 2: zeros are needed the first time alone."""
    layer = BCOPConv2d(4, 4, 3, 2)
    with pytest.raises(IsoconvError, match=r"Expected one number of zeros.*BCOPConv2d"):
        isoconv.plain(nn.Sequential(layer, layer), (4, 7, 7))
    plain, x = isoconv.plain(nn.Sequential(layer, layer), (4, 8, 8)), torch.randn(1, 4, 8, 8)
    assert (plain(x) - layer(layer(x))).abs().max() <= 1e-5
    assert not layer._forward_hooks


@pytest.mark.parametrize("c_out", [1, 11, 12, 13, 24, 31])
def test_strides_that_do_not_divide_the_kernel_are_orthogonal_whatever_the_channels(c_out):
    geometries = [((3, 5), (2, 3)), ((4, 3), 2)]
    for (kernel, stride), way in product(geometries, ("manifold", "bjorck")):
        layer = BCOPConv2d(3, c_out, kernel, stride, orthogonalisation=way).eval()
        assert (singular_values(layer, 3, 6, 6) - 1).abs().max() <= 1e-5


# Parameters ---------------------------------------------------------------------------------------------------------


def test_groups_are_convolutions_of_their_own():
    """Each group has the parameters of a layer for its channels."""
    for kernel, stride, c_out in [(3, 1, 6), (4, 2, 6), (3, 2, 20)]:
        grouped = BCOPConv2d(4, c_out, kernel, stride, groups=2, bias=False, dtype=torch.float64).eval()
        x, parts = torch.randn(2, 4, 6, 6, dtype=torch.float64), []
        for group, half in enumerate(x.chunk(2, 1)):
            alone = BCOPConv2d(2, c_out // 2, kernel, stride, bias=False, dtype=torch.float64).eval()
            halves = {name: p.detach().chunk(2)[group] for name, p in grouped.named_parameters()}
            alone.load_state_dict({name: p.reshape(halves[name].shape[-alone.get_parameter(name).dim():]) for name, p in halves.items()})  # fmt: skip  # noqa: E501
            parts.append(alone(half))
        assert (grouped(x) - torch.cat(parts, 1)).abs().max() <= 1e-12


def test_parameters_have_the_names_and_shapes_that_earlier_versions_wrote():
    shapes = {name: tuple(p.shape) for name, p in BCOPConv2d(3, 16, 4, 2).state_dict().items()}
    assert shapes == {"O": (12, 16), "MN": (2, 16, 8), "bias": (16,)}
    shapes = {name: tuple(p.shape) for name, p in BCOPConv2d(8, 5, 3, padding=1).state_dict().items()}
    assert shapes == {"O": (5, 8), "MN": (4, 8, 4), "bias": (5,)}
    assert tuple(RKOConv2d(3, 8, 4, 2).matrix.shape) == (8, 48)
    assert tuple(BCOPConv1d(3, 4, 3).M0.shape) == (4, 2)


def test_a_layer_that_is_not_downsampled_has_the_same_parameters_and_kernel():
    """Whether padding is "same" or a number of pixels, and with a dilation."""
    layer = BCOPConv2d(3, 5, 4, 2, dtype=torch.float64)
    for options in ({"padding": 1}, {"padding": 0, "padding_mode": "zeros"}, {"dilation": 3}):
        other = BCOPConv2d(3, 5, 4, 2, dtype=torch.float64, **options)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(kernel_of(other), kernel_of(layer))
