"""The field's layers against dense matrices: each is what its paper writes down, and keeps that paper's promise."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

import isoconv
import isoconv.nn as ours
from helpers import SHAPES_2D, convolution, jacobian, named, randomised, singular_values
from isoconv.certify import lipschitz_bound

ORTHOGONAL = {"cayley": {torch.float32: 1e-5, torch.float64: 1e-12}, "bro": {torch.float32: 1e-5, torch.float64: 1e-12}}
ORTHOGONAL["soc"] = {torch.float32: 1e-5, torch.float64: 1e-5}  # the exponential is truncated
ROWS = [row for row in SHAPES_2D if row[0] * row[4] * row[5] <= 120]


def dense(kernel: Tensor, *size: int) -> Tensor:
    """The dense matrix of a circular convolution of images of this size, taps centred: (outputs, inputs)."""
    count = kernel.shape[1] * math.prod(size)
    images = torch.eye(count, dtype=kernel.dtype).reshape(count, kernel.shape[1], *size)
    for axis, k in enumerate(kernel.shape[2:], start=2):
        index = torch.arange(-(k // 2), images.shape[axis] + (k - 1) // 2) % images.shape[axis]
        images = images.index_select(axis, index)
    return conv2d(images, kernel).reshape(count, -1).T


@pytest.mark.parametrize("kind", ORTHOGONAL)
@pytest.mark.parametrize("row", SHAPES_2D, ids=named(SHAPES_2D))
def test_orthogonal_for_every_shape(row, kind):
    for dtype, tolerance in ORTHOGONAL[kind].items():
        for layer in (convolution(kind, *row, dtype=dtype), randomised(convolution(kind, *row, dtype=dtype))):
            values = singular_values(layer.eval(), row[0], *row[4:])
            assert values.max() <= 1 + min(tolerance, 1e-5 if dtype == torch.float32 else 1e-12)
            assert values.min() >= 1 - tolerance


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] == 1 and row[2] <= min(row[4:]) // 2], ids=str)
def test_aol_is_the_dense_rescaling(row):
    """On an image that is large enough for taps of AᵀA not to meet."""
    layer = randomised(convolution("aol", *row, dtype=torch.float64))
    matrix = dense(layer.kernel.detach(), *row[4:])
    expected = matrix / (matrix.T @ matrix).abs().sum(1).sqrt()
    assert (jacobian(layer, row[0], *row[4:]) - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("row", ROWS, ids=named(ROWS))
def test_cayley_is_the_dense_transform(row):
    layer = convolution("cayley", *row, dtype=torch.float64)
    matrix = dense(layer.kernel.detach(), *layer.convolved_size)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    square, rest, identity = tall[: tall.shape[1]], tall[tall.shape[1] :], torch.eye(tall.shape[1])
    A = square - square.T + rest.T @ rest
    inverse = torch.linalg.inv(identity + A)
    expected = torch.cat([(identity - A) @ inverse, -2 * rest @ inverse])
    found = dense(layer.weight.detach(), *layer.convolved_size)
    assert (found - (expected if tall is matrix else expected.T)).abs().max() <= 1e-11


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] == row[1] and row[3] == 1], ids=str)
def test_soc_is_the_exponential_and_bro_the_reflection(row):
    c, size = row[0], row[4:]
    soc = randomised(convolution("soc", *row, dtype=torch.float64), gain=0.03)  # small enough not to be scaled down
    matrix = dense(soc.kernel.detach(), *size)
    assert torch.linalg.matrix_norm(matrix - matrix.T, 2) <= 1.2
    assert (jacobian(soc, c, *size) - torch.matrix_exp(matrix - matrix.T)).abs().max() <= 3e-6
    exact = randomised(ours.SOCConv2d(*row[:4], input_size=size, terms=25, dtype=torch.float64), gain=0.03)
    assert (jacobian(exact, c, *size) - torch.matrix_exp(matrix - matrix.T)).abs().max() <= 1e-13
    bro = ours.BROConv2d(*row[:4], input_size=size, rank=max(1, c // 2), dtype=torch.float64)
    basis = dense(bro.kernel.detach(), *size)
    expected = torch.eye(len(basis)) - 2 * basis @ torch.linalg.pinv(basis)
    assert (jacobian(bro, c, *size) - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("kind", [ours.CayleyConv2d, ours.SOCConv2d, ours.BROConv2d])
@pytest.mark.parametrize("channels", [(4, 4), (3, 8), (8, 3)])
def test_one_tap_is_one_matrix_for_all_pixels(kind, channels):
    """The same as three taps, two of which are zero; `weight` has one tap."""
    narrow, wide = (kind(*channels, taps, input_size=(4, 6), dtype=torch.float64) for taps in (1, 3))
    with torch.no_grad():
        wide.kernel.zero_()
        wide.kernel[:, :, 1:2, 1:2] = narrow.kernel
        wide.bias.copy_(narrow.bias)
    assert narrow.weight.shape == (channels[1], channels[0], 1, 1)
    x = torch.randn(2, channels[0], 4, 6, dtype=torch.float64)
    assert (narrow(x) - wide(x)).abs().max() <= 1e-12


def test_aol_begins_as_an_isometry():
    for layer in (ours.AOLConv2d(3, 4, 3), ours.AOLConv2d(4, 8, 3, groups=2), ours.AOLConv2d(2, 9, 4, 2)):
        assert (singular_values(layer, layer.in_channels, 6, 6) - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("terms", [1, 2, 3, 5, 8])
def test_a_truncated_exponential_does_not_expand(terms):
    """Without the division a polynomial of few terms would: 1 + iφ has the modulus √(1 + φ²)."""
    layer = randomised(ours.SOCConv2d(3, 3, 3, input_size=5, terms=terms))
    assert singular_values(layer, 3, 5, 5).max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", ["aol", *ORTHOGONAL])
@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("scale", [0.0, 1e-34, 1e-30, 1e-27, 1e-24, 1e-20, 1e-12, 1e12, 1e18])
def test_parameters_of_any_size_give_finite_weights_and_gradients(kind, taps, scale):
    layer = convolution(kind, 3, 4, taps, 1, 5, 4)
    with torch.no_grad():
        layer.kernel.mul_(scale)
    layer(torch.randn(2, 3, 5, 4)).square().sum().backward()
    assert layer.kernel.grad.isfinite().all()
    values = singular_values(layer, 3, 5, 4)
    assert values.max() <= 1 + 1e-5 and (kind == "aol" or values.min() >= 1 - 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(6, 6), (5, 9), (9, 4), (1, 3), (3, 1)])
@pytest.mark.parametrize("kind", [ours.AOLLinear, ours.CayleyLinear, ours.BROLinear, ours.SLLLinear, ours.CPLLinear])
def test_linear_twins(kind, sizes, dtype):
    """Norm at most 1 (orthogonal ones: all singular values 1) after rough training too, and the same when plain."""
    exact = 1e-5 if dtype == torch.float32 else 1e-12
    for layer in (kind(*sizes, dtype=dtype), randomised(kind(*sizes, dtype=dtype))):
        x = torch.randn(3, 2, sizes[0], dtype=dtype)
        slopes = [torch.autograd.functional.jacobian(layer.eval(), one) for one in x[:, 0]]
        values = torch.stack([torch.linalg.svdvals(slope) for slope in slopes])
        assert layer(x).shape == (3, 2, sizes[1]) and values.max() <= 1 + exact
        if kind in (ours.CayleyLinear, ours.BROLinear):
            assert values.min() >= 1 - exact
        plain = isoconv.plain(layer, (sizes[0],))
        assert (plain(x[:, 0]) - layer(x[:, 0])).abs().max() <= exact
        assert not any(isinstance(module, kind) for module in plain.modules())
        assert values.max() <= lipschitz_bound(layer, (sizes[0],)).value + exact <= 1 + 2 * exact + 1e-5


def test_sll_is_what_its_paper_writes():
    sll, x = ours.SLLLinear(5, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    matrix = sll.kernel[..., 0, 0]
    T = (matrix @ matrix.T).abs().sum(1)
    relu = torch.relu(x @ matrix.T / T.sqrt() + sll.bias / math.sqrt(2))
    assert (sll(x) - (x - 2 * relu / T.sqrt() @ matrix)).abs().max() <= 1e-12
