"""The claim of the library: all singular values of the dense Jacobian, over a table of shapes."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from helpers import (
    CONVOLUTIONS,
    SHAPES_1D,
    SHAPES_2D,
    SHAPES_LINEAR,
    convolution,
    named,
    padding_modes,
    randomised,
    singular_values,
)
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, OrthogonalLinear

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # the requirement
WAYS = ("manifold", "bjorck")
shapes_2d = pytest.mark.parametrize("row", SHAPES_2D, ids=named(SHAPES_2D))


def assert_bounded(make: Callable[..., nn.Module], *shape: int, isometric: bool = True) -> None:
    """No singular value is above 1, nor below it where the layer is an isometry. `make` takes a dtype."""
    for dtype, tolerance in TOLERANCE.items():
        values = singular_values(make(dtype=dtype).eval(), *shape)
        assert values.max() <= 1 + tolerance, dtype
        assert not isometric or values.min() >= 1 - tolerance, dtype


@shapes_2d
def test_bcop_2d(row):
    """With circular padding an isometry, and so is its adjoint; zeros do not make either of them expand."""
    c_in, c_out, k, s, H, W = row
    layer, adjoint = (BCOPConv2d, c_in, c_out, (H, W)), (BCOPConvTranspose2d, c_out, c_in, (H // s, W // s))
    for way, (kind, a, b, size) in product(WAYS, (layer, adjoint)):
        make = partial(kind, a, b, k, s, orthogonalisation=way)
        assert_bounded(make, a, *size)
        assert_bounded(partial(make, padding_mode="zeros"), a, *size, isometric=False)


@pytest.mark.parametrize("row", SHAPES_1D, ids=named(SHAPES_1D))
def test_bcop_1d(row):
    for way in WAYS:
        make = partial(BCOPConv1d, *row[:4], orthogonalisation=way)
        assert_bounded(make, row[0], row[4])
        assert_bounded(partial(make, padding_mode="zeros"), row[0], row[4], isometric=False)


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ((3, 3, 3), 0),
        ((3, 3, 3), 3),
        ((3, 3, 4), [3, 0, 2]),
        ((2, 5, 3), (5, 1)),
        ((5, 2, 3), [0, 4]),
        ((2, 3, 6, 2), [4, 1]),
        ((1, 1, 3), [1, 0]),
        ((4, 4, 1), []),
    ],
)
def test_bcop_1d_of_any_ranks(sizes, ranks):
    assert_bounded(partial(BCOPConv1d, *sizes, ranks=ranks), sizes[0], 6)


@pytest.mark.parametrize(("m", "n"), SHAPES_LINEAR)
def test_orthogonal_linear(m, n):
    for way in WAYS:
        assert_bounded(partial(OrthogonalLinear, m, n, orthogonalisation=way), m)


@pytest.mark.parametrize("gain", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (partial(BCOPConv2d, 3, 4, 3), (3, 5, 4)),
        (partial(BCOPConv2d, 2, 7, 4, 2), (2, 4, 6)),
        (partial(BCOPConv1d, 4, 3, 3), (4, 5)),
        (partial(BCOPConvTranspose2d, 4, 3, 3), (4, 5, 4)),
        (partial(OrthogonalLinear, 9, 4), (9,)),
    ],
    ids=["2d", "2d s2", "1d", "transposed", "linear"],
)
def test_any_parameters_stand_for_an_isometry(make, shape, gain):
    assert_bounded(lambda dtype: randomised(make(dtype=dtype), gain), *shape)


@pytest.mark.parametrize("kind", [k for k in CONVOLUTIONS if k.startswith(("rk", "aol", "cayley", "soc", "bro"))])
@shapes_2d
def test_other_methods_do_not_expand(row, kind):
    for mode in padding_modes(kind):
        make = partial(convolution, kind, *row, padding_mode=mode)
        assert_bounded(lambda dtype, make=make: randomised(make(dtype=dtype)), row[0], *row[4:], isometric=False)
    if kind == "rko" and row[2] == row[3]:  # no overlap, so dividing by k/s = 1 leaves the orthonormal matrix itself
        assert_bounded(partial(convolution, kind, *row), row[0], *row[4:])


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e3, 1e12])
def test_rkl2ne_does_not_depend_on_the_scale_of_its_kernel(scale):
    layer = convolution("rkl2ne", 3, 4, 3, 1, 5, 5)
    expected = layer.weight.detach().clone()
    assert singular_values(layer, 3, 5, 5)[0] > 0.05  # a bound, but not an absurd one
    with torch.no_grad():
        layer.kernel.mul_(scale)
    assert torch.allclose(layer.weight, expected, rtol=1e-5)
    assert singular_values(layer, 3, 5, 5)[0] <= 1 + 1e-5


def test_rkl2ne_attains_its_bound_where_the_norms_agree():
    """One output channel and one tap: ‖WWᵀ‖_∞ is the square of the norm itself."""
    layer = convolution("rkl2ne", 5, 1, 1, 1, 2, 2)
    assert float(singular_values(layer, 5, 2, 2)[0]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
@pytest.mark.parametrize("row", SHAPES_2D[::2], ids=named(SHAPES_2D[::2]))
def test_ossn_after_1000_power_iterations(row, padding_mode):
    """Norms above 1 become 1, in the forward pass or after the update."""
    for kind in ("ossn", "ossn-after-update"):
        layer = randomised(convolution(kind, *row, padding_mode=padding_mode)).eval()
        layer.power_iterate(1000)
        expected = min(1, layer.norm_estimate())
        if kind == "ossn-after-update":
            layer.project()
        assert singular_values(layer, row[0], *row[4:])[0] == pytest.approx(expected, abs=1e-4)


def test_ossn_leaves_small_kernels_alone():
    layer = randomised(convolution("ossn", 2, 3, 3, 1, 5, 5), gain=1e-2)
    assert torch.equal(layer.weight, layer.kernel)


@pytest.mark.parametrize("row", (SVCM := [*SHAPES_2D, (1, 1, 3, 1, 20, 20), (3, 4, 3, 1, 10, 12)]), ids=named(SVCM))
def test_svcm_after_project(row):
    """How far above 1 the norm stays: most on large images, of which the kernel covers little."""
    layer = randomised(convolution("svcm", *row)).eval()
    before = float(singular_values(layer, row[0], *row[4:])[0])
    layer.project()
    assert float(singular_values(layer, row[0], *row[4:])[0]) <= min(before + 1e-5, 1.05)


@pytest.mark.parametrize("ranks", [[0, 0], [1, 2], [3, 0], [3, 3], None])
def test_the_ranks_choose_the_component_and_training_stays_in_it(ranks):
    """det Σ_t W_t zᵗ of an orthogonal kernel is ±zᵐ, and m names its component, with the sign."""
    layer = BCOPConv1d(3, 3, 3, ranks=ranks, dtype=torch.float64)
    before = winding_number(layer.weight.detach())
    total = sum(ranks) if ranks is not None else 2  # half of 3 rounded down, twice
    assert before in (total, 2 * 3 - total)
    optimiser = torch.optim.SGD(layer.parameters(), lr=3.0)
    for _ in range(20):
        optimiser.zero_grad()
        (layer(torch.randn(2, 3, 5, dtype=torch.float64)) - torch.randn(2, 3, 5)).square().sum().backward()
        optimiser.step()
    assert winding_number(layer.weight.detach()) == before


def test_ranks_count_from_the_same_end_for_every_rank():
    windings = [winding_number(BCOPConv1d(4, 4, 2, ranks=r, dtype=torch.float64).weight.detach()) for r in range(5)]
    assert windings in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])


def winding_number(kernel: torch.Tensor) -> int:
    """How often det Σ_t W_t zᵗ runs around 0 as z runs around the unit circle."""
    samples = torch.exp(2j * torch.pi * torch.arange(64, dtype=torch.float64) / 64)
    powers = samples[:, None] ** torch.arange(kernel.shape[-1])
    determinants = torch.linalg.det(torch.einsum("oit,zt->zoi", kernel.to(powers.dtype), powers))
    assert (determinants.abs() - 1).abs().max() < 1e-9
    return round(float((determinants.roll(-1) / determinants).angle().sum() / (2 * torch.pi)))
