"""Smooth activations, softmax, pooling with every option, interpolation, transposed convolutions, normalised inputs:
their constants against dense searches and dense Jacobians, their rounding against exact arithmetic, their certificates."""

import math
import random
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from certify.certificates import check, write_all
from certify.exact_network import error_bound, exact_logits, images, logit_error
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, lipschitz_bound
from isoconv.certify.composition import constant_in_norm
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.nn import Normalize, Scale

TENTH = float(torch.tensor(0.1))
CURVES = [
    *(nn.ELU(), nn.ELU(0.3), nn.ELU(2.5), nn.ELU(-0.4), nn.ELU(-1.7), nn.CELU(), nn.CELU(0.25), nn.SELU(), nn.SiLU()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.Softplus(3.0, 15), nn.Softplus(TENTH, 30.5)),
    *(nn.LogSigmoid(), nn.Hardswish(), nn.Hardsigmoid()),
]


def bound_of(module: nn.Module, shape: tuple[int, ...]) -> float:
    return lipschitz_bound(module, shape).layers[-1].bound


# Constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", CURVES, ids=str)
def test_slopes_found_by_a_dense_search(module: nn.Module) -> None:
    """Secants over a fine grid, far out too, except over the jump of Softplus; the constant is hardly above the largest."""
    grid = torch.from_numpy(np.unique(np.append(np.linspace(-30, 30, 600_001), np.linspace(-1e4, 1e4, 2001))))
    jump = torch.tensor(getattr(module, "threshold", math.inf) / getattr(module, "beta", 1.0), dtype=torch.float64)
    values = module(grid)
    slopes = (values.diff() / grid.diff()).abs()[(grid[1:] < jump) | (grid[:-1] > jump)]
    bound = bound_of(module, (1,))
    assert float(slopes.max()) <= bound * (1 + 1e-9) and bound <= float(slopes.max()) * (1 + 1e-4)


def test_the_slopes_of_silu_and_gelu_are_proved() -> None:
    """The statements of Note [Slopes], in rational and in interval arithmetic."""
    x = Fraction("2.39935729")
    assert sum(x**k / math.factorial(k) for k in range(40)) > (x + 2) / (x - 2)  # so x is right of the maximum
    assert Fraction(bound_of(nn.SiLU(), (1,))) >= Fraction(1, 2) + x / 4
    iv = mpmath.iv
    erf = (
        2 / iv.sqrt(iv.pi) * sum((iv.mpf((-1) ** k) / (math.factorial(k) * (2 * k + 1)) for k in range(30)), iv.mpf(0))
    )
    rest = 1 / iv.mpf(math.factorial(30))  # the series alternates
    assert ((1 + erf) / 2 + rest + 1 / (iv.e * iv.sqrt(iv.pi))).b < bound_of(nn.GELU(), (1,))


def test_the_slopes_of_gelu_by_tanh_and_mish_are_proved() -> None:
    """By the cells of Note [Slopes]; numpy's functions are off by far less than the room of 1e-7 that is left."""
    x = np.arange(8 * 2**18 + 1) / 2**18
    root = math.sqrt(2 / math.pi)
    u, slope = root * (x + 0.044715 * x**3), root * (1 + 3 * 0.044715 * x**2)
    cells = (1 + np.tanh(u[1:])) / 2 + x[1:] * slope[1:] / (2 * np.cosh(u[:-1]) ** 2)
    assert cells.max() < bound_of(nn.GELU("tanh"), (1,)) - 1e-7
    x = np.arange(20 * 2**18 + 1) / 2**18
    e = np.exp(x)
    d = e * e + 2 * e + 2
    cells = 1 - 2 / d[1:] + x[1:] * 4 * e[1:] * (e[1:] + 1) / d[:-1] ** 2
    assert cells.max() < bound_of(nn.Mish(), (1,)) - 1e-7


def jacobian(module: nn.Module, at: Tensor) -> Tensor:
    rows = torch.autograd.functional.jacobian(lambda x: module.double()(x[None])[0].flatten(), at)
    return rows.reshape(-1, at.numel())  # type: ignore[union-attr]


@pytest.mark.parametrize(("shape", "dim"), [((5,), 1), ((5,), -1), ((2, 3, 2), 1), ((2, 3, 2), 2), ((2, 3, 2), -1)])
def test_softmax(shape: tuple[int, ...], dim: int) -> None:
    """Two equal numbers far above the others attain ½."""
    module, worst = nn.Softmax(dim), 0.0
    for seed in range(200):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * (seed % 40)
        two = x.movedim((dim - 1) % len(shape) if dim > 0 else dim, 0)
        two[:2] = 50.0 if seed % 2 else two[:2]
        worst = max(worst, float(torch.linalg.matrix_norm(jacobian(module, x), 2)))
    assert worst * (1 - 1e-13) <= bound_of(module, shape) == 0.5 <= worst * (1 + 1e-9)


LINEAR: list[tuple[nn.Module, tuple[int, ...], float]] = [
    *((nn.AdaptiveAvgPool2d(size), (2, 7, 5), 1e-3) for size in (1, 2, (3, 4), (7, 5), (9, 3), (None, 2))),
    *((nn.AdaptiveAvgPool1d(size), (2, 11), 1e-3) for size in (1, 3, 4, 11, 30)),
    (nn.AvgPool2d(2, ceil_mode=True), (2, 5, 7), 1e-9),
    (nn.AvgPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), (1, 6, 5), 1e-2),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 6, 5), 1e-2),
    (nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=False), (1, 6, 4), 1e-2),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=-2), (1, 6, 5), 0.2),
    (nn.AvgPool2d(2, 2, divisor_override=3), (1, 5, 4), 1e-6),
    (nn.AvgPool1d(4, 3, 2, ceil_mode=True, count_include_pad=False), (2, 9), 1e-2),
    *((nn.Upsample(scale_factor=f, mode="bilinear"), (2, 4, 3), 1e-3) for f in (2, 1.7, (3, 0.6))),
    *((nn.Upsample(scale_factor=f, mode="bilinear", align_corners=True), (2, 4, 3), 1e-3) for f in (2, 1.7, (3, 0.6))),
    *((nn.Upsample((9, 1), mode="bilinear", align_corners=a), (1, 4, 5), 1e-3) for a in (True, False)),
    (nn.Upsample(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True), (1, 6, 5), 1e-3),
    (nn.Upsample(scale_factor=2.5, mode="linear"), (2, 5), 1e-3),
    (nn.Upsample(7, mode="linear", align_corners=True), (2, 1), 1e-3),
    (nn.UpsamplingBilinear2d(scale_factor=3), (1, 3, 4), 1e-3),
    (nn.UpsamplingNearest2d(scale_factor=3), (1, 3, 4), 1e-9),
    (nn.ConvTranspose2d(3, 2, 3), (3, 4, 5), 0.3),
    (nn.ConvTranspose2d(3, 2, 4, 2, 1), (3, 4, 4), 0.3),
    (nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), (0, 2), (1, 0), groups=2), (4, 3, 4), 0.7),
    (nn.ConvTranspose2d(2, 2, 3, 2, 1, 1, dilation=2), (2, 4, 3), 1.0),
    (nn.ConvTranspose2d(2, 1, 2, 1, 0, 2, dilation=3), (2, 3, 3), 2.0),  # more output padding than the stride
    (nn.ConvTranspose2d(2, 3, 2, 3), (2, 3, 3), 0.3),  # with gaps
    (nn.ConvTranspose1d(3, 2, 5, 2, 2, 1), (3, 7), 0.3),
    (nn.ConvTranspose1d(2, 2, 3, 4, dilation=3, output_padding=3, groups=2), (2, 4), 1.5),
    (Normalize([0.4, 0.5], [0.25, 0.2]), (2, 3, 2), 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("module", "shape", "slack"), LINEAR, ids=lambda value: str(value)[:70])
def test_dense_jacobians(module: nn.Module, shape: tuple[int, ...], slack: float) -> None:
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p)
    truth = float(torch.linalg.matrix_norm(jacobian(module, torch.zeros(shape, dtype=torch.float64)), 2))
    assert truth * (1 - 1e-13) <= bound_of(module, shape) <= truth * (1 + slack)


def test_other_norms() -> None:
    """p = 1 and ∞ of a transposed convolution are the largest sums of its Jacobian's columns and rows."""
    torch.manual_seed(0)
    layer, shape = nn.ConvTranspose2d(2, 3, 3, 1, 1), (2, 5, 5)
    model = nn.Sequential(layer, nn.SiLU(), nn.Flatten(), nn.Softmax(1), nn.ELU(-3.0))
    rows = jacobian(layer, torch.zeros(shape, dtype=torch.float64)).abs()
    for p, truth in ((1, rows.sum(0).max()), (math.inf, rows.sum(1).max())):
        found = constant_in_norm(nodes_of(plain_network(model, shape), shape), p)
        assert found == pytest.approx(float(truth) * bound_of(nn.SiLU(), (1,)) * 0.5 * 3, rel=1e-9)


# Rounding ---------------------------------------------------------------------------------------------------------


def network(*modules: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(1)
    features = nn.Sequential(*modules)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(features, 3)).eval()


ROUNDED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    **{
        f"{curve}, scale {scale:g}": (network(nn.Linear(6, 6), Scale(scale), curve, shape=(6,)), (6,))
        for curve in CURVES
        for scale in (1.0, -64.0, 4096.0)
    },
    **{f"{str(module)[:70]} on {shape}": (network(module, shape=shape), shape) for module, shape, _ in LINEAR},
    "softmax of vectors": (network(nn.Linear(6, 6), Scale(64.0), nn.Softmax(1), shape=(6,)), (6,)),
    "softmax of channels": (network(nn.Conv2d(2, 4, 2), nn.Softmax(1), nn.Softmax(-1), shape=(2, 4, 3)), (2, 4, 3)),
    "dropout": (network(nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout(), shape=(2, 3, 3)), (2, 3, 3)),
}


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@pytest.mark.parametrize("name", ROUNDED)
def test_forward_errors(name: str, arithmetic: str) -> None:
    model, shape = ROUNDED[name]
    x, dtype = images(3, *shape, seed=5), getattr(torch, arithmetic)
    certifier, deployed = Certifier(model, shape, arithmetic=arithmetic), model.to(dtype)
    for n, logits in enumerate(deployed(x.to(dtype))):
        truth = exact_logits(model, x[n])
        assert 0 <= logit_error(logits, truth) <= error_bound(certifier, x[n])
    model.float()
    room = 4e-3 * max(1.0, certifier.lipschitz.value) if arithmetic == "float32" else 1e-6
    assert error_bound(certifier, x[0]) <= room * (1 + float(x[0].norm()))


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_curves_from_far_left_to_far_right(curve: nn.Module) -> None:
    """Entry by entry: where exp overflows, where 1 + erf cancels, where results are subnormal, at the threshold."""
    edges = [
        0.0,
        1e-45,
        -1e-40,
        1e-30,
        -1e-8,
        1e-4,
        -3.0,
        3.0,
        -5.5,
        -9.0,
        -13.7,
        20.0,
        -88.8,
        88.8,
        -104.0,
        709.9,
        -745.3,
        -1e4,
        1e6,
    ]
    edges += [t * (1 + e) for t in (20.0, 5.0, 305.0) for e in (-1e-7, 1e-7)] + np.linspace(-12, 12, 97).tolist()
    for arithmetic in ("float64", "float32"):
        dtype = getattr(torch, arithmetic)
        certifier = Certifier(
            nn.Sequential(curve, nn.Linear(1, 2, bias=False)), (1,), input_range=(-1e7, 1e7), arithmetic=arithmetic
        )
        head = float(torch.linalg.matrix_norm(certifier.deployed[1].weight.double(), 2))
        for value in torch.tensor(edges, dtype=dtype):
            truth = exact_logits(curve, value[None].double())
            allowed = (certifier.error.offset + certifier.error.slope * abs(float(value))) / head
            assert logit_error(curve(value[None]), truth) <= allowed, float(value)


# Certificates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@pytest.mark.parametrize("name", ROUNDED)
def test_the_checker_accepts_them(name: str, arithmetic: str, tmp_path: Path) -> None:
    model, shape = ROUNDED[name]
    assert check(write_all(model, images(3, *shape), tmp_path, arithmetic=arithmetic)) == 0


def random_module(draw: random.Random, axes: int) -> nn.Module:
    """Any of the kinds with a size, with options that need not fit the image."""

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(axes))

    kind = draw.choice(["adaptive", "average", "average", "linear", "transposed", "transposed"])
    if kind == "adaptive":
        return (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[axes - 1](sizes(1, 9))
    if kind == "average":
        options = {"ceil_mode": draw.random() < 0.6, "count_include_pad": draw.random() < 0.5}
        if axes == 2 and draw.random() < 0.3:
            options["divisor_override"] = draw.choice([1, 3, -7, 40])
        return (nn.AvgPool1d, nn.AvgPool2d)[axes - 1](sizes(1, 5), sizes(1, 6), sizes(0, 2), **options)
    if kind == "linear":
        mode, corners = ("linear", "bilinear")[axes - 1], draw.random() < 0.5
        factor = (
            {"size": sizes(1, 12)}
            if draw.random() < 0.5
            else {"scale_factor": tuple(draw.uniform(0.3, 4) for _ in range(axes))}
        )
        return nn.Upsample(**factor, mode=mode, align_corners=corners)
    groups = draw.choice([1, 1, 2])
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1]
    return kind(
        2, 2 * draw.randint(1, 2), sizes(1, 4), sizes(1, 3), sizes(0, 2), sizes(0, 2), groups, True, sizes(1, 3)
    )


@pytest.mark.parametrize("block", range(4))
def test_random_options(block: int, tmp_path: Path) -> None:
    """Whatever torch can run is bounded by at least the norm of its Jacobian, and the checker accepts the certificate."""
    accepted = 0
    for seed in range(100 * block, 100 * block + 30):
        draw = random.Random(seed)
        axes = draw.choice([1, 2])
        module, shape = random_module(draw, axes), (2, *(draw.randint(1, 9) for _ in range(axes)))
        torch.manual_seed(seed)
        try:
            at_zero = jacobian(module, torch.zeros(shape, dtype=torch.float64))
        except RuntimeError:
            with pytest.raises(IsoconvError):
                lipschitz_bound(module, shape)
            continue
        kept = [a == b > 1 for a, b in zip(module(torch.zeros(1, *shape).double()).shape[2:], shape[1:], strict=True)]
        if isinstance(module, nn.Upsample) and not module.align_corners and module.scale_factor and any(kept):
            continue
        accepted += 1
        truth = float(torch.linalg.matrix_norm(at_zero, 2))
        assert truth * (1 - 1e-13) <= bound_of(module.float(), shape), (seed, module, shape)
        model = nn.Sequential(module, nn.Flatten(), nn.Linear(len(at_zero), 3))
        assert check(write_all(model, images(2, *shape), tmp_path)) == 0, (seed, module, shape)
    assert accepted >= 15


# What is refused --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[nn.Module, tuple[int, ...], str]] = [
    (nn.CELU(-1.0), (2,), "alpha above 0"),
    (nn.ELU(math.inf), (2,), "finite alpha"),
    (nn.Softplus(-1.0), (2,), "beta above 0"),
    (nn.Softplus(threshold=5), (2,), "threshold of at least 15"),
    (nn.Softmax(0), (2,), "other than the batch"),
    (nn.Softmax(-2), (2,), "other than the batch"),
    (nn.Softmax(2), (2,), "Softmax at 0"),
    (Normalize([0.5] * 3, [0.5] * 3), (1, 4, 4), "for each channel"),
    (nn.Upsample(scale_factor=1.5), (1, 4, 4), "whole numbers"),
    (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 4, 4), "bicubic"),
    (nn.Upsample(scale_factor=(2, 1.1), mode="bilinear"), (1, 4, 4), "libraries differ"),
    (nn.LayerNorm(2), (2,), "spread"),
    (nn.GroupNorm(1, 2), (2,), "spread"),
    (nn.InstanceNorm2d(2), (2, 3, 3), "spread"),
    (nn.MultiheadAttention(2, 1), (2,), "multiplies"),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("module", "shape", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as error:
        lipschitz_bound(nn.Sequential(module), shape)
    assert "\n" not in str(error.value)


def test_what_an_arithmetic_cannot_compute() -> None:
    """exp would overflow below the threshold; 1/alpha would be infinite."""
    x = torch.rand(1, 2)
    for module, arithmetic in (
        (nn.Softplus(threshold=90), "float32"),
        (nn.Softplus(threshold=800), "float64"),
        (nn.CELU(1e-310), "float64"),
    ):
        with pytest.raises(IsoconvError, match="can hold"):
            certified_radius(nn.Sequential(module, nn.Linear(2, 2)), x, arithmetic=arithmetic)
    assert float(certified_radius(nn.Sequential(nn.Softplus(threshold=90), nn.Linear(2, 2)), x)) > 0


@pytest.mark.parametrize(
    "arguments", [([0.5], [0.0]), ([0.5], [0.5, 0.5]), (0.5, 0.5), ([math.nan], [1.0]), ([0.5], [1e-60]), ([], [])]
)
def test_normalize_takes_a_mean_and_an_std_per_channel(arguments) -> None:
    with pytest.raises(IsoconvError, match="for each channel"):
        Normalize(*arguments)


def test_normalize() -> None:
    """As torchvision computes it, in images and in vectors; its numbers are part of the state."""
    x = torch.rand(4, 3, 2, 2)
    module = Normalize([0.485, 0.456, 0.406], (0.229, 0.224, 0.225))
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    assert torch.equal(module(x), (x - mean) / std) and torch.equal(module(x[..., 0, 0]), module(x)[..., 0, 0])
    assert set(module.state_dict()) == {"mean", "std"}
    assert torch.equal(torch.fx.symbolic_trace(nn.Sequential(module))(x), module(x))


def test_a_window_far_smaller_than_the_others() -> None:
    """The vector of Collatz and Wielandt stays positive: one window of 1 pixel beside some of 100,000."""
    pool = nn.AvgPool1d(100_000, 100_000, ceil_mode=True)
    assert 1 <= bound_of(pool, (1, 200_001)) <= 1 + 1e-6
