"""The claim of the library: all singular values of the dense Jacobian, over a table of shapes."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from helpers import SHAPES_2D, convolution, named, randomised, singular_values, winding_number
from isoconv.linalg.clipping import clip_and_mask
from isoconv.nn import BCOPConv1d, OrthogonalLinear, SVCMConv2d, svcm
from isoconv.nn.svcm import project_together
from linalg.test_clipping import by_svd

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # the requirement
WAYS = ("manifold", "bjorck")


def assert_bounded(make: Callable[..., nn.Module], *shape: int, isometric: bool = True) -> None:
    """No singular value is above 1, nor below it where the layer is an isometry. `make` takes a dtype."""
    for dtype, tolerance in TOLERANCE.items():
        values = singular_values(make(dtype=dtype).eval(), *shape)
        assert values.max() <= 1 + tolerance, dtype
        assert not isometric or values.min() >= 1 - tolerance, dtype


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [((3, 3, 3), 0), ((3, 3, 4), [3, 0, 2]), ((2, 5, 3), (5, 1)), ((2, 3, 6, 2), [4, 1]), ((4, 4, 1), [])],
)
def test_bcop_1d_of_any_ranks(sizes, ranks):
    assert_bounded(partial(BCOPConv1d, *sizes, ranks=ranks), sizes[0], 6)


def test_orthogonal_linear():
    for m, n, way in product((1, 5, 24), (1, 4, 24, 65), WAYS):
        assert_bounded(partial(OrthogonalLinear, m, n, orthogonalisation=way), m)


def test_rko_is_an_isometry_where_patches_do_not_overlap():
    """Dividing by √overlap = 1 leaves the orthonormal matrix itself."""
    for row in [(1, 4, 1, 1, 3, 2), (1, 4, 2, 2, 6, 4), (2, 3, 3, 3, 6, 9)]:
        assert_bounded(partial(convolution, "rko", *row), row[0], *row[4:])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_rkl2ne_does_not_depend_on_the_scale_of_its_kernel(scale):
    """It attains its bound where the norms agree: with one output channel and one tap."""
    layer = convolution("rkl2ne", 5, 1, 1, 1, 2, 2)
    assert float(singular_values(layer, 5, 2, 2)[0]) == pytest.approx(1, abs=1e-6)
    layer = convolution("rkl2ne", 3, 4, 3, 1, 5, 5)
    expected = layer.weight.detach().clone()
    assert singular_values(layer, 3, 5, 5)[0] > 0.05  # a bound, but not an absurd one
    layer.kernel.data.mul_(scale)
    assert torch.allclose(layer.weight, expected, rtol=1e-5)
    assert singular_values(layer, 3, 5, 5)[0] <= 1 + 1e-5


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
@pytest.mark.parametrize("row", SHAPES_2D[::3], ids=named(SHAPES_2D[::3]))
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


@pytest.mark.parametrize(
    "row", (SVCM := [*SHAPES_2D[::2], (1, 1, 3, 1, 20, 20), (3, 4, 3, 1, 10, 12)]), ids=named(SVCM)
)
def test_svcm_after_project(row):
    """How far above 1 the norm stays: most on large images, of which the kernel covers little."""
    layer = randomised(convolution("svcm", *row)).eval()
    before = float(singular_values(layer, row[0], *row[4:])[0])
    layer.project()
    assert float(singular_values(layer, row[0], *row[4:])[0]) <= min(before + 1e-5, 1.05)


def test_svcm_projects_at_the_size_that_it_convolves_and_layers_that_are_alike_together(monkeypatch):
    """In single precision at least."""
    make, calls = partial(SVCMConv2d, 3, 5, 4, 2, input_size=(12, 8)), []
    cases = [
        (make(), (6, 4)),
        (make(padding_mode="zeros"), (7, 5)),
        (make(input_size=(8, 8)), (4, 4)),
        (make(), (6, 4)),
    ]
    cases += [(make(), (6, 4)), *((make(dtype=dtype), (6, 4)) for dtype in (torch.float64, torch.bfloat16))]
    for layer, _ in cases:
        layer.kernel.data.mul_(3)
    before = [layer.kernel.detach().clone() for layer, _ in cases]
    monkeypatch.setattr(svcm, "clip_and_mask", lambda *given: calls.append(len(given[0])) or clip_and_mask(*given))
    project_together([], 20)
    project_together([layer for layer, _ in cases], 20)
    assert calls == [3, 1, 1, 1, 1]
    for (layer, grid), old in zip(cases, before, strict=True):
        expected = by_svd(old.double(), grid, 20).to(old.dtype)
        assert layer.kernel.dtype == old.dtype and layer.kernel.requires_grad
        assert (layer.kernel - expected).abs().max() <= (0 if old.dtype == torch.bfloat16 else 1e-5)
        assert (layer.kernel - old).abs().max() > 1e-2
        layer.project(1)


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
