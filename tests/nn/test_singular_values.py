"""The claim of the library: all singular values of the dense Jacobian, over a table of shapes, and after training.

The field's layers are compared with dense matrices: each is what its paper writes down, and keeps that paper's promise.
"""

import math
import runpy
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

import isoconv
import isoconv.nn as ours
from helpers import (
    SHAPES_2D,
    convolution,
    is_manifold,
    jacobian,
    made,
    named,
    padding_modes,
    polar_by_svd,
    randomised,
    singular_values,
    train,
    winding_number,
)
from isoconv.certify import lipschitz_bound
from isoconv.linalg.clipping import clip_and_mask
from isoconv.nn import (
    METHODS,
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    OrthogonalLinear,
    RKOConv2d,
    SVCMConv2d,
    svcm,
)
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


def test_rkl2ne_attains_its_bound_where_the_norms_agree_and_takes_kernels_of_any_size():
    """With one output channel and one tap; elsewhere it is a bound, but not an absurd one."""
    layer = convolution("rkl2ne", 5, 1, 1, 1, 2, 2)
    assert float(singular_values(layer, 5, 2, 2)[0]) == pytest.approx(1, abs=1e-6)
    layer = convolution("rkl2ne", 3, 4, 3, 1, 5, 5)
    expected = layer.weight.detach().clone()
    assert 0.05 < singular_values(layer, 3, 5, 5)[0] <= 1 + 1e-5
    for scale in (1e-12, 1e24):
        layer.kernel.data.mul_(scale)
        assert torch.allclose(layer.weight, expected, rtol=1e-5)


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
@pytest.mark.parametrize("row", SHAPES_2D[::3], ids=named(SHAPES_2D[::3]))
def test_ossn_after_1000_power_iterations(row, padding_mode):
    """Norms above 1 become 1, in the forward pass or after the update; smaller kernels are left alone."""
    for kind, gain in (("ossn", 3.0), ("ossn-after-update", 3.0), ("ossn", 1e-2)):
        layer = randomised(convolution(kind, *row, padding_mode=padding_mode), gain).eval()
        layer.power_iterate(1000)
        expected = min(1, layer.norm_estimate())
        if kind == "ossn-after-update":
            layer.project()
        assert singular_values(layer, row[0], *row[4:])[0] == pytest.approx(expected, abs=1e-4)
        assert expected == 1 or torch.equal(layer.weight, layer.kernel)


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


# Every method ---------------------------------------------------------------------------------------------------------

NEARLY = ("ossn", "svcm", "standard")  # about 1, or unconstrained
POINTS = {
    "as made": lambda p: p,
    "random": lambda p: torch.randn_like(p) * 10,
    "ones": torch.ones_like,
    "tiny": lambda p: torch.randn_like(p) * 1e-30,
    "huge": lambda p: torch.randn_like(p) * 2.0**60,
}


@pytest.mark.parametrize("parameters", POINTS)
@pytest.mark.parametrize("kind", [name for name in METHODS if name not in NEARLY])
def test_every_method_is_1_lipschitz_whatever_its_parameters(kind, parameters):
    """By its dense Jacobians: strided, with a kernel that is not square, from and to more channels, padded by zeros."""
    for c_in, c_out, k, stride, *size in [
        (2, 4, 3, 1, 5, 4),
        (5, 3, (3, 5), 1, 4, 5),
        (2, 6, 4, 2, 6, 4),
        (3, 3, 1, 1, 3, 2),
    ]:
        for mode in padding_modes(kind):
            layer = convolution(kind, c_in, c_out, k, stride, *size, padding_mode=mode, dtype=torch.float64)
            with torch.no_grad():
                for p in layer.parameters():
                    p.copy_(POINTS[parameters](p))
            layer.eval()
            for x in torch.randn(2, c_in, *size, dtype=torch.float64):
                dense = torch.func.jacrev(lambda x, layer=layer: layer(x[None])[0])(x).reshape(-1, x.numel())
                assert torch.linalg.matrix_norm(dense.detach(), 2) <= 1 + 1e-5


# The field's layers ---------------------------------------------------------------------------------------------------

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


# After training -------------------------------------------------------------------------------------------------------

# Layers, and the shapes of their inputs. Those that are no isometries must not expand: 20 Björck steps leave very small
# singular values below 1, as in the paper; of BRO the projector is regularised.
ISOMETRIES = {
    "2d": (partial(BCOPConv2d, 5, 3, 5), (5, 3, 3)),
    "2d 1-1": (partial(BCOPConv2d, 1, 1, 3), (1, 4, 4)),
    "2d s2": (partial(BCOPConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "1d ranks": (partial(BCOPConv1d, 4, 4, 3, ranks=[1, 3]), (4, 6)),
    "transposed s2": (partial(BCOPConvTranspose2d, 4, 1, 4, 2), (4, 3, 3)),
    "linear 24-24": (partial(OrthogonalLinear, 24, 24), (24,)),
    "linear 8-64": (partial(OrthogonalLinear, 8, 64), (8,)),
    "cayley": (partial(convolution, "cayley", 2, 7, 4, 2, 6, 4), (2, 6, 4)),
    "soc": (partial(convolution, "soc", 5, 3, 3, 1, 5, 4), (5, 5, 4)),
}
CONTRACTIONS = {
    "rko": (partial(RKOConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "aol": (partial(convolution, "aol", 5, 3, 3, 1, 5, 4), (5, 5, 4)),
    "bro": (partial(convolution, "bro", 2, 7, 4, 2, 6, 4), (2, 6, 4)),
    "2d bjorck": (partial(BCOPConv2d, 2, 7, 4, 2, orthogonalisation="bjorck"), (2, 6, 4)),
    "1d bjorck": (partial(BCOPConv1d, 3, 5, 4, orthogonalisation="bjorck"), (3, 7)),
    "linear bjorck": (partial(OrthogonalLinear, 8, 64, orthogonalisation="bjorck"), (8,)),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("optimiser", "options"),
    [(torch.optim.SGD, {"lr": 1e6, "momentum": 0.9}), (torch.optim.Adam, {"lr": 1.0})],
    ids=["SGD 1e6", "Adam 1"],
)
@pytest.mark.parametrize("name", [*ISOMETRIES, *CONTRACTIONS])
def test_after_25_steps_that_are_far_too_long(name, optimiser, options, dtype):
    make, shape = (ISOMETRIES | CONTRACTIONS)[name]
    layer = make(dtype=dtype)
    before = jacobian(layer, *shape)
    train(layer, shape, 25, optimiser, **options)
    for mode in (False, True):  # evaluation first: it must not rely on training to have retracted
        values = singular_values(layer.train(mode), *shape)
        assert values.max() <= 1 + TOLERANCE[dtype], f"training={mode}"
        least = 1 - (1e-5 if name == "soc" else TOLERANCE[dtype])  # the exponential is truncated
        assert name in CONTRACTIONS or values.min() >= least, f"training={mode}"
    if name not in ("2d 1-1", "linear 24-24"):  # O(1) is two points; the others must have moved
        assert (jacobian(layer, *shape) - before).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["bcop", "bcop s2", "rko", "1d", "transposed", "linear", "linear tall"])
def test_training_writes_the_retracted_parameter_back_and_evaluation_does_not(name):
    layer, x = made(name, dtype=torch.float64)
    assert is_manifold(name)
    matrices = {k: p for k, p in layer.named_parameters() if k != "bias"}
    for p in matrices.values():
        p.data.add_(0.2 * torch.randn_like(p))
    moved = {k: p.detach().clone() for k, p in matrices.items()}
    evaluated = layer.eval()(x)
    assert all(torch.equal(p, moved[k]) for k, p in matrices.items())
    with torch.no_grad():  # nor does a look in training mode
        assert torch.equal(layer.train()(x), evaluated)
    assert all(torch.equal(p, moved[k]) for k, p in matrices.items())
    trained = layer.train()(x)  # the kernel is already built; the parameters must be brought back nevertheless
    for k, p in matrices.items():
        assert torch.allclose(p, polar_by_svd(moved[k]), rtol=0, atol=1e-12)
    assert torch.allclose(trained, evaluated, rtol=0, atol=1e-12)


def test_a_step_walks_through_few_frames_in_few_files():
    calls = runpy.run_path(str(Path(__file__).parents[2] / "tools/walk.py"))["walk"]()
    assert 0 < sum(calls.values()) <= 80
    assert len({file for file, _ in calls}) <= 6
