"""Every kind of module: its constants against dense Jacobians, its rounding against exact arithmetic, its certificate."""

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

import isoconv.nn as ours
from certify.certificates import check, read, write, write_all
from certify.exact_network import AFFINE, error_bound, exact_logits, images, logit_error, summed_in_order
from certify.kinds import CASES, CURVES, Case, around, find_norms, find_slope, randomise
from check.certificate_maker import make_step
from isoconv import IsoconvError, plain
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound
from isoconv.certify.composition import constant_in_norm
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.certify.rules import RULES

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
cases = pytest.mark.parametrize(("module", "shape", "slack"), CASES, ids=lambda value: str(value)[:60])
curves = pytest.mark.parametrize("curve", CURVES, ids=str)
SIZES = {
    "ordinary": lambda x: x,
    "alike": lambda x: torch.full_like(x, 0.9565422534942627),
    "large": lambda x: x * 2.0**20,
    "squares vanish": lambda x: x * 2.0**-70,
    "subnormal": lambda x: x * 2.0**-140,
    "mixed": lambda x: x * 2.0 ** -(torch.arange(x.numel()) % 40).reshape(x.shape),
    "zero": lambda x: x * 0,
}


def test_all_kinds_are_in_the_table() -> None:
    """Those of graphs have tests of their own."""
    modules = [*CURVES, *(module for module, _, _ in CASES)]
    kinds = {type(inner) for module in modules for inner in plain(module).modules()}
    others = {"Add", "Concat", "Slice", "Flip", "Reshape", "Permute", "Translate", "Dropout1d"}
    assert {kind.__name__ for kind, rule in RULES.items() if rule.settings and kind not in kinds} == others


@cases
def test_constants_in_all_norms(module: nn.Module, shape: tuple[int, ...], slack: float) -> None:
    """With random weights, and with constant ones, whose norm the border decides."""
    weighted = any(p.dim() > 1 for p in module.parameters())
    for flat in (True, False) if weighted else (False,):
        randomise(module)
        for p in module.parameters() if flat else ():
            nn.init.ones_(p)
        truth, bound = find_norms(module, shape), lipschitz_bound(module, shape).value
        assert truth[2] * (1 - 1e-12) <= bound <= truth[2] * (1 + (5 if flat else slack))
        nodes = nodes_of(plain_network(module, shape), shape)
        for p in (1, math.inf):
            own = constant_in_norm(nodes, p)
            assert own is None or truth[p] <= own * (1 + 1e-12) <= 20 * (bound + 1)


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@cases
def test_rounding(module: nn.Module, shape: tuple[int, ...], slack: float, arithmetic: str) -> None:
    """For numbers and weights of every size, and sums in orders of our own; the bound is of the right order."""
    model, dtype = nn.Sequential(module, nn.Flatten()), getattr(torch, arithmetic)
    affine = any(isinstance(m, AFFINE) for m in model.modules())
    for seed, (size, change) in enumerate(SIZES.items()):
        if affine and seed % 3:
            continue
        randomise(model, seed, gain=(1.0, 2.0**-12, 2.0**12)[seed % 3])
        certifier = Certifier(model, shape, arithmetic=arithmetic)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x = change(x).to(dtype)
        computed = [certifier.network(x[None].clone())[0]]
        computed += [summed_in_order(model, x, order, dtype) for order in ("falling", "random") if affine]
        truth, allowed = exact_logits(model, x), error_bound(certifier, x)
        assert max(logit_error(logits, truth) for logits in computed) <= allowed, size
        at_zero = float(certifier.network(torch.zeros_like(x)[None]).norm())
        largest = certifier.lipschitz.value * float(x.double().norm()) + at_zero
        assert size != "ordinary" or allowed <= 4000 * torch.finfo(dtype).eps * max(1, largest)


CERTIFIED = [(case, ("float64", "float32")[number % 2]) for number, case in enumerate(CASES)]
CERTIFIED += [((curve, (9,), 0.0), arithmetic) for curve in CURVES for arithmetic in ("float64", "float32")]


@pytest.mark.parametrize(("case", "arithmetic"), CERTIFIED, ids=lambda value: str(value)[:60])
def test_certificates(case: Case, arithmetic: str, tmp_path: Path, capsys: Any) -> None:
    """The checker accepts them, and finds out a constant and error terms that are too small."""
    module, shape, _ = case
    module = randomise(module, 1).float()
    features = module(torch.zeros(2, *shape))[0].numel()
    head = [randomise(nn.Linear(features, 3))] if features > 60 else []
    model = nn.Sequential(module, nn.Flatten(), *head)
    arguments = write_all(model, images(2, *shape), tmp_path, arithmetic=arithmetic)
    assert check(arguments) == 0, capsys.readouterr()
    header, lines = read(Path(arguments[0]))
    little = 0.05 if isinstance(module, (nn.LeakyReLU, nn.BatchNorm1d)) else 0.5
    for term in ("error_offset", "error_slope"):
        if float.fromhex(header[term]) > 1e-25:  # more than what underflows
            write(Path(arguments[0]), header | {term: (float.fromhex(header[term]) * little).hex()}, lines)
            assert check(arguments) == 1 and term in capsys.readouterr().out
    nodes = [node for node in header["nodes"] if node["module"] == "0"]
    if nodes:  # a single module
        truth = find_slope(module) if module in CURVES else find_norms(module, shape)[2]
        nodes[0]["lipschitz"] = (truth * (1 - 1e-6)).hex()
        write(Path(arguments[0]), header, lines)
        assert check(arguments) == 1 and type(module).__name__ in capsys.readouterr().out


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
        mode, corners, sized = ("linear", "bilinear")[axes - 1], draw.random() < 0.5, draw.random() < 0.5
        factors = tuple(draw.uniform(0.3, 4) for _ in range(axes))
        factor = {"size": sizes(1, 12)} if sized else {"scale_factor": factors}
        return nn.Upsample(**factor, mode=mode, align_corners=corners)
    channels, groups = 2 * draw.randint(1, 2), draw.choice([1, 1, 2])
    shape = (sizes(1, 4), sizes(1, 3), sizes(0, 2), sizes(0, 2), groups, True, sizes(1, 3))
    return (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1](2, channels, *shape)


@pytest.mark.parametrize("block", range(2))
def test_random_options(block: int, tmp_path: Path) -> None:
    """Whatever torch can run is bounded by at least the norm of its Jacobian, and the checker accepts the certificate."""
    accepted = 0
    for seed in range(100 * block, 100 * block + 30):
        draw = random.Random(seed)
        axes = draw.choice([1, 2])
        module, shape = random_module(draw, axes), (2, *(draw.randint(1, 9) for _ in range(axes)))
        try:
            outputs = module(torch.zeros(1, *shape)).shape
        except RuntimeError:
            with pytest.raises(IsoconvError):
                lipschitz_bound(module, shape)
            continue
        kept = [a == b > 1 for a, b in zip(outputs[2:], shape[1:], strict=True)]
        if isinstance(module, nn.Upsample) and not module.align_corners and module.scale_factor and any(kept):
            continue
        accepted += 1
        assert find_norms(module, shape)[2] * (1 - 1e-13) <= lipschitz_bound(module, shape).value, (seed, module, shape)
        model = nn.Sequential(module, nn.Flatten(), nn.Linear(outputs.numel(), 3))
        assert check(write_all(model, images(2, *shape), tmp_path)) == 0, (seed, module, shape)
    assert accepted >= 15


# Smooth functions of each number -----------------------------------------------------------------------------------


def slope_of(curve: nn.Module) -> float:
    return lipschitz_bound(curve, (1,)).layers[-1].bound


@curves
def test_slopes_found_by_a_dense_search(curve: nn.Module) -> None:
    assert find_slope(curve) <= slope_of(curve) * (1 + 1e-9) <= find_slope(curve) * (1 + 1e-4)


def test_the_largest_slopes_are_proved() -> None:
    """What both Notes on slopes state, in rational arithmetic, in intervals and in cells with room for numpy's rounding."""
    x = Fraction("2.3993572808")
    assert sum(x**k / math.factorial(k) for k in range(40)) > (x + 2) / (x - 2)  # so x is right of the maximum
    iv = mpmath.iv
    terms = (iv.mpf((-1) ** k) / (math.factorial(k) * (2 * k + 1)) for k in range(30))
    erf = 2 / iv.sqrt(iv.pi) * (sum(terms, iv.mpf(0)) + iv.mpf([-1, 1]) / math.factorial(30))  # the series alternates
    gelu = Fraction(float(((1 + erf) / 2 + 1 / (iv.e * iv.sqrt(iv.pi))).b))
    edges = np.unique(np.concatenate([np.arange(20 * 2**12 + 1) / 2**12, np.arange(2**19, 2**20) / 2**19]))
    a, b = edges[:-1], edges[1:]  # small cells where the slopes are largest
    u, v = (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) for x in (a, b))
    rise = math.sqrt(2 / math.pi) * b * (1 + 3 * 0.044715 * b**2)
    by_tanh = (0.5 * (1 + np.tanh(v) + rise * (1 - np.tanh(u) ** 2))).max() + 1e-9
    low, high = np.exp(a), np.exp(b)
    mish = (1 - 2 / (high**2 + 2 * high + 2) + 4 * b * high * (high + 1) / (low**2 + 2 * low + 2) ** 2).max() + 1e-9
    selu = Fraction("1.05070098735548049") * Fraction("1.67326324235437728")
    for curve, least, settings in (
        *((nn.SiLU(), Fraction(1, 2) + x / 4, {}), (nn.GELU(), gelu, {"approximate": "none"})),
        *((nn.GELU("tanh"), by_tanh, {"approximate": "tanh"}), (nn.Mish(), mish, {}), (nn.SELU(), selu, {})),
    ):
        assert Fraction(slope_of(curve)) >= least
        assert make_step(type(curve).__name__, **settings).square >= Fraction(least) ** 2


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@curves
def test_rounding_from_far_left_to_far_right(curve: nn.Module, arithmetic: str) -> None:
    """Entry by entry: where exp overflows, where 1 + erf cancels, where results are subnormal, at the threshold."""
    edges = [0.0, 1e-45, -1e-40, 1e-30, -1e-8, 1e-4, -9.0, -13.7, 20.0, -88.8, 88.8, -104.0, 709.9, -745.3, -1e4, 1e6]
    edges += [t * (1 + e) for t in (20.0, 5.0, 305.0) for e in (-1e-7, 1e-7)] + np.linspace(-7, 7, 29).tolist()
    model = nn.Sequential(curve, nn.Linear(1, 2, bias=False))
    certifier = Certifier(model, (1,), input_range=(-1e7, 1e7), arithmetic=arithmetic)
    head = float(torch.linalg.matrix_norm(certifier.deployed[1].weight.double(), 2))
    for value in torch.tensor(edges, dtype=getattr(torch, arithmetic)):
        truth = exact_logits(curve, value[None].double())
        allowed = (certifier.error.offset + certifier.error.slope * abs(float(value))) / head
        assert logit_error(curve(value[None]), truth) <= allowed, float(value)
    assert certifier.error.offset + certifier.error.slope <= (4e-3 if arithmetic == "float32" else 1e-6) * head


def test_what_an_arithmetic_cannot_compute() -> None:
    """exp would overflow below the threshold; 1/alpha would be infinite."""
    x, steep = torch.rand(1, 2), nn.Softplus(threshold=90)
    for module, arithmetic in (
        *((steep, "float32"), (nn.Softplus(threshold=800), "float64"), (nn.CELU(1e-310), "float64")),
    ):
        with pytest.raises(IsoconvError, match="can hold"):
            certified_radius(nn.Sequential(module, nn.Linear(2, 2)), x, arithmetic=arithmetic)
    assert float(certified_radius(nn.Sequential(steep, nn.Linear(2, 2)), x)) > 0


def test_a_window_far_smaller_than_the_others() -> None:
    """The vector of Collatz and Wielandt stays positive: one window of 1 pixel beside some of 100,000."""
    pool = nn.AvgPool1d(100_000, 100_000, ceil_mode=True)
    assert 1 <= lipschitz_bound(pool, (1, 200_001)).value <= 1 + 1e-6


def test_padding_that_was_changed_afterwards() -> None:
    """torch goes on padding by what the constructor was given."""
    conv = nn.Conv2d(1, 1, 3, padding=3, bias=False, **around)
    conv.padding = (0, 0)
    assert lipschitz_bound(conv, (1, 4, 4)).value >= find_norms(conv, (1, 4, 4))[2] * (1 - 1e-12)


def test_counting_copies_in_inference_mode() -> None:
    for layer in (nn.Upsample(scale_factor=2), nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")):
        with torch.inference_mode():
            inside = lipschitz_bound(layer, (1, 4, 4)).value
        assert inside == lipschitz_bound(layer, (1, 4, 4)).value


# Norms over positions, centring, heads ----------------------------------------------------------------------------


def norms_in_order(x: np.ndarray, order: str) -> np.ndarray:
    """Return the norm of each row computed one term after the other, or by halves, in the dtype of the input."""
    squares = np.square(x.reshape(len(x), -1))
    squares = {"rising": np.sort(squares, axis=1), "falling": -np.sort(-squares, axis=1)}.get(order, squares)
    while order == "halves" and squares.shape[1] > 1:
        half = squares.shape[1] // 2
        squares = np.concatenate([squares[:, :half] + squares[:, half : 2 * half], squares[:, 2 * half :]], axis=1)
    return np.sqrt(np.cumsum(squares, axis=1)[:, -1])


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
def test_norms_and_means_may_be_summed_in_any_order(arithmetic: str) -> None:
    dtype = getattr(torch, arithmetic)
    for seed, change in enumerate(SIZES.values()):
        x = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x = change(x).to(dtype)
        module = ours.L2NormPool2d()
        certifier, truth = Certifier(module, x.shape, arithmetic=arithmetic), exact_logits(module, x)
        computed = [module(x[None].to(memory_format=torch.channels_last))[0]]
        with np.errstate(under="ignore"):
            orders = ("forward", "rising", "falling", "halves")
            computed += [torch.from_numpy(norms_in_order(x.numpy(), order)) for order in orders]
        assert max(logit_error(norms, truth) for norms in computed) <= error_bound(certifier, x)
    x = SIZES["mixed"](torch.randn(400, dtype=torch.float64)).to(dtype) + 1
    centring = ours.LayerCentering()
    certifier, truth = Certifier(centring, (400,), arithmetic=arithmetic), exact_logits(centring, x)
    numbers = x.numpy()
    for order in (numbers, np.sort(numbers), -np.sort(-numbers)):
        total, count = np.cumsum(order)[-1], numbers.dtype.type(400)
        for mean in (total / count, total * (numbers.dtype.type(1) / count)):
            assert logit_error(torch.from_numpy(numbers - mean), truth) <= error_bound(certifier, x)


def test_where_all_squares_vanish_the_bound_is_as_large_as_it_must_be() -> None:
    """The norm is 0 then, and 2⁻⁷³ in truth: what a relative error would not allow."""
    x = torch.full((2, 4, 4), 2.0**-75)
    assert ours.L2NormPool2d()(x[None]).max() == 0
    error = Certifier(ours.L2NormPool2d(), x.shape, arithmetic="float32").error
    missing = logit_error(torch.zeros(2), exact_logits(ours.L2NormPool2d(), x))
    assert error.slope * float(x.norm()) < missing <= error.offset <= 2.0**14 * float(missing)


def test_where_something_may_overflow_nothing_is_certified() -> None:
    for module in (ours.L2NormPool2d(1), ours.LayerCentering(), ours.Householder(2)):
        network = nn.Sequential(ours.Scale(2.0**80), module, nn.Flatten())
        errors = [Certifier(network, (2, 1, 1), arithmetic=a).error.offset for a in ("float64", "float32")]
        assert errors[0] < 1e-100
        assert errors[1] == math.inf or not isinstance(module, ours.L2NormPool2d)


@pytest.mark.parametrize(("p", "pixels", "constant"), [(1, 1, 1.0), (2, 12, 2**0.5), (math.inf, 12, 2 * 12**0.5)])
def test_the_constants_of_a_norm_in_other_norms_are_attained(p: float, pixels: int, constant: float) -> None:
    """Two channels, alike in some pixels and 0 elsewhere: what the margin loses to the best perturbation is known."""
    x = torch.zeros(1, 2, 12, dtype=torch.float64)
    x[0, 0, :pixels], x[0, 1, :pixels] = 0.75, 0.25
    margin, x = 0.5 * pixels**0.5, x.reshape(1, 2, 3, 4)
    radius = float(certify(ours.L2NormPool2d(), x, p=p).radius)
    assert radius == pytest.approx(margin / constant, rel=1e-9) and radius * constant < margin


def test_other_norms_of_a_chain() -> None:
    """p = 1 and ∞ of a transposed convolution are the largest sums of its Jacobian's columns and rows."""
    layer, shape = randomise(nn.ConvTranspose2d(2, 3, 3, 1, 1)), (2, 5, 5)
    model = nn.Sequential(layer, nn.SiLU(), nn.Flatten(), nn.Softmax(1), nn.ELU(-3.0))
    for p in (1, math.inf):
        truth = find_norms(layer, shape)[p] * lipschitz_bound(nn.SiLU(), (1,)).value * 0.5 * 3
        assert constant_in_norm(nodes_of(plain_network(model, shape), shape), p) == pytest.approx(truth, rel=1e-9)


def test_residuals_of_layers_that_do_not_expand(tmp_path: Path, capsys: Any) -> None:
    blocks = [ours.Residual(nn.Sequential(ours.BCOPConv2d(4, 4, 3), ours.MaxMin()), a) for a in (None, 0.1, 0.9)]
    model = nn.Sequential(ours.BCOPConv2d(3, 4, 1), *blocks, ours.L2NormPool2d(), ours.NormalisedLinear(4, 3)).eval()
    nn.init.constant_(model[1].logit, -1.3)
    assert 1 <= lipschitz_bound(model[:-1], (3, 5, 5)).value <= 1 + 1e-4
    branches = nn.Sequential(*(ours.Residual(ours.MaxMin(), a) for a in (0.0, 0.1, 1 / 3, 0.7, 1.0)))
    assert lipschitz_bound(branches, (4, 3)).value <= 1 + 2**-48
    assert check(write_all(model, images(4, 3, 5, 5), tmp_path)) == 0, capsys.readouterr()
