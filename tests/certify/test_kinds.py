"""Every kind of module: its constants against dense Jacobians, its rounding against exact arithmetic, its certificate."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import isoconv
import isoconv.nn as ours
from certify.certificates import check, read, write, write_all
from certify.exact_network import AFFINE, error_bound, exact_logits, images, logit_error, summed_in_order
from isoconv import IsoconvError
from isoconv.certify import Certifier, certify, lipschitz_bound
from isoconv.certify.composition import constant_in_norm
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.certify.rules import RULES

TENTH = float(torch.tensor(0.1))  # as float32 holds it
around = {"padding_mode": "circular"}
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
# A module, the shape of its input, and how far above the largest norm of a Jacobian its bound may be, as a share of it.
CASES: list[tuple[nn.Module, tuple[int, ...], float]] = [
    (nn.Linear(7, 5), (7,), 1e-6),
    (nn.Linear(4, 3, bias=False), (2, 3, 4), 1e-6),
    (nn.Conv2d(3, 4, 3, padding=1, **around), (3, 6, 5), 1e-3),
    (nn.Conv2d(2, 3, (4, 3), (2, 1), 1, **around), (2, 6, 5), 5),
    (nn.Conv2d(6, 3, 3, padding=1, groups=3, **around), (6, 5, 4), 1e-3),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2, **around), (2, 7, 7), 1e-3),
    (nn.Conv2d(1, 2, 5, padding=2, **around), (1, 2, 3), 1e-3),  # a kernel larger than the image
    (nn.Conv2d(1, 2, 3, padding=(1, 3), **around), (1, 4, 4), 1.5),  # more padding than keeps the size
    (nn.Conv2d(2, 3, 3, 2, 1, **around), (2, 7, 5), 1.0),  # the stride does not divide
    (nn.Conv2d(2, 1, 3, padding=4, **around), (2, 4, 4), 5),  # twice around
    (nn.Conv2d(2, 3, 2, 3, **around), (2, 7, 7), 5),  # nor is it smaller than the kernel
    (nn.Conv2d(1, 2, 4, padding="same", **around), (1, 5, 5), 5),
    (nn.Conv2d(3, 4, 3), (3, 6, 6), 0.3),
    (nn.Conv2d(1, 2, 3, 2, 2, dilation=2), (1, 7, 7), 5),
    (nn.Conv2d(3, 4, 2, padding="same", dilation=2), (3, 5, 4), 0.5),
    (nn.Conv2d(1, 2, 3, padding=4, padding_mode="reflect"), (1, 5, 5), 5),
    (nn.Conv2d(1, 2, 2, 2, 3, padding_mode="replicate"), (1, 4, 4), 5),
    (nn.Conv1d(2, 3, 4, 3, 2, **around), (2, 7), 5),
    (nn.Conv1d(3, 4, 3, stride=3, padding=2), (3, 10), 0.7),
    (nn.Sequential(nn.CircularPad2d((1, 0, 0, 1)), nn.Conv2d(3, 4, 2)), (3, 6, 5), 1e-3),
    (nn.Sequential(nn.CircularPad2d((2, 0, 2, 0)), nn.Conv2d(3, 4, 4, stride=2)), (3, 6, 8), 1e-3),
    (nn.Sequential(nn.CircularPad1d((2, 1)), nn.Conv1d(2, 3, 4)), (2, 6), 1e-3),
    (nn.Sequential(nn.CircularPad2d(1), nn.Identity(), nn.Conv2d(2, 2, 3)), (2, 4, 4), 2.0),
    (nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1)), (1, 4, 4), 5),
    (nn.Sequential(nn.ZeroPad2d((-1, -1, 2, -1)), nn.Conv2d(1, 2, 2)), (1, 4, 4), 5),
    (nn.ConvTranspose2d(3, 2, 4, 2, 1), (3, 4, 4), 0.3),
    (nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), (0, 2), (1, 0), groups=2), (4, 3, 4), 0.7),
    (nn.ConvTranspose2d(2, 2, 3, 2, 1, 1, dilation=2), (2, 4, 3), 1.0),
    (nn.ConvTranspose2d(2, 1, 2, 1, 0, 2, dilation=3), (2, 3, 3), 2.0),  # more output padding than the stride
    (nn.ConvTranspose1d(2, 2, 3, 4, dilation=3, output_padding=3, groups=2), (2, 4), 1.5),
    (nn.ReflectionPad2d((2, 1, 1, 0)), (2, 4, 5), 1e-12),
    (nn.ReflectionPad1d(2), (2, 4), 1e-12),
    (nn.ReplicationPad2d(2), (1, 3, 3), 1e-12),
    (nn.ReplicationPad1d((1, 0)), (2, 4), 1e-12),
    (nn.CircularPad2d((3, 3, 0, 0)), (1, 3, 3), 1e-12),
    (nn.CircularPad1d(1), (2, 3), 1e-12),
    (nn.ZeroPad2d(1), (1, 3, 3), 1e-12),
    (nn.ZeroPad1d((1, -1)), (2, 3), 1e-12),
    (nn.ConstantPad2d((1, 0, 3, -1), TENTH), (2, 4, 4), 1e-12),
    (nn.ConstantPad1d(1, 0.5), (2, 3), 1e-12),
    (nn.MaxPool2d(3, 2, 1), (1, 6, 7), 1e-12),
    (nn.MaxPool2d(2, 1, dilation=2), (1, 5, 5), 1e-12),
    (nn.MaxPool1d(2), (2, 5), 1e-12),
    (nn.AvgPool2d(3, stride=1, padding=1), (1, 6, 6), 0.2),
    (nn.AvgPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), (1, 6, 5), 1e-2),
    (nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=False), (1, 6, 4), 1e-2),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=-2), (1, 6, 5), 0.2),
    (nn.AvgPool2d(2, 2, divisor_override=3), (1, 5, 4), 1e-6),
    (nn.AvgPool1d(3, 1, 1), (2, 5), 0.2),
    (nn.AvgPool1d(4, 3, 2, ceil_mode=True, count_include_pad=False), (2, 9), 1e-2),
    (nn.AdaptiveAvgPool2d((3, 4)), (2, 7, 5), 1e-3),
    (nn.AdaptiveAvgPool2d((None, 2)), (2, 7, 5), 1e-3),
    (nn.AdaptiveAvgPool1d(30), (2, 11), 1e-3),
    (ours.ScaledAvgPool2d((2, 3)), (2, 4, 7), 1e-6),
    (ours.L2NormPool2d((2, 3), (2, 4)), (3, 5, 8), 1e-12),
    (ours.L2NormPool2d(), (2, 3, 4), 1e-12),
    (nn.Upsample(scale_factor=(2.0, 3.0)), (1, 4, 5), 1e-12),
    (nn.Upsample(scale_factor=11), (1, 2, 3), 1e-12),
    (nn.Upsample(size=(6, 9)), (1, 3, 3), 1e-12),
    (nn.Upsample(scale_factor=(3, 0.6), mode="bilinear"), (2, 4, 3), 1e-3),
    (nn.Upsample(scale_factor=1.7, mode="bilinear", align_corners=True), (2, 4, 3), 1e-3),
    (nn.Upsample((9, 1), mode="bilinear", align_corners=True), (1, 4, 5), 1e-3),
    (nn.Upsample(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True), (1, 6, 5), 1e-3),
    (nn.Upsample(scale_factor=2.5, mode="linear"), (2, 5), 1e-3),
    (nn.Upsample(7, mode="linear", align_corners=True), (2, 1), 1e-3),
    (nn.UpsamplingBilinear2d(scale_factor=3), (1, 3, 4), 1e-3),
    (nn.UpsamplingNearest2d(scale_factor=3), (1, 3, 4), 1e-9),
    (
        nn.Sequential(nn.PixelUnshuffle(2), nn.PixelShuffle(2), nn.Unflatten(1, (1, -1)), nn.Flatten(2)),
        (1, 4, 4),
        1e-12,
    ),
    (nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()), (2, 3, 3), 1e-12),
    (nn.BatchNorm2d(3), (3, 2, 2), 1e-6),
    (nn.BatchNorm1d(3, 0.3, affine=False), (3,), 1e-6),
    (ours.Normalize([0.4, 0.5], [0.25, 0.2]), (2, 3, 2), 1e-6),
    (ours.LayerCentering(), (3, 4, 5), 1e-12),
    (ours.LayerCentering((2, 3)), (2, 9, 7), 1e-12),
    (ours.LayerCentering(1), (50,), 1e-12),
    (ours.BatchCentering(3), (3, 4, 2), 1e-12),
    (ours.BatchCentering(6, bias=False), (6,), 1e-12),
    (ours.Householder(4), (4, 3, 2), 1e-12),
    (ours.ConvexPotential2d(2, 3, 3), (2, 4, 5), 5),
    (ours.ConvexPotential2d(2, 4, (4, 1), padding_mode="zeros"), (2, 4, 3), 5),
    (ours.PositionBias(2, 3), (3, 2, 3), 1e-12),
    (ours.ChannelShift(0.25), (9, 2, 3), 1e-12),
    (ours.HalfAbs(), (3, 2, 2), 1e-12),
    (ours.MaxMin(2), (3, 4, 2), 1e-12),
    (ours.GroupSort(None), (4, 2), 1e-12),
    (ours.GroupSort(2, dim=2), (3, 4), 1e-12),
    (nn.Sequential(nn.ReLU(), ours.Abs()), (5,), 1e-12),
    (nn.LeakyReLU(TENTH), (6,), 1e-12),
    (nn.LeakyReLU(-1.5), (6,), 1e-12),
    (ours.Scale(-4 * TENTH), (6,), 1e-12),
    (nn.ReLU6(), (6,), 1e-12),
    (nn.Hardtanh(-TENTH, 0.25), (6,), 1e-12),
    (nn.Tanh(), (6,), 1e-12),
    (nn.Softsign(), (6,), 1e-12),
    (nn.Sigmoid(), (6,), 3 + 1e-12),
    (nn.Softmax(1), (2, 3, 2), 1e-9),
    (nn.Softmax(-1), (3, 2), 1e-9),
]
cases = pytest.mark.parametrize(("module", "shape", "slack"), CASES, ids=lambda value: str(value)[:60])
SIZES = {
    "ordinary": lambda x: x,
    "alike": lambda x: torch.full_like(x, 0.9565422534942627),
    "large": lambda x: x * 2.0**20,
    "squares vanish": lambda x: x * 2.0**-70,
    "subnormal": lambda x: x * 2.0**-140,
    "mixed": lambda x: x * 2.0 ** -(torch.arange(x.numel()) % 40).reshape(x.shape),
    "zero": lambda x: x * 0,
}


def randomise(model: nn.Module, seed: int = 0, gain: float = 1.0) -> nn.Module:
    """Draw all parameters, and statistics that were not measured anywhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.3)
            elif not name.endswith(("num_batches_tracked", "mean", "std")) or name.endswith("running_mean"):
                scale = gain / max(1, tensor[0].numel()) ** 0.5
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return model.eval()


def find_norms(model: nn.Module, shape: tuple[int, ...]) -> dict[float, float]:
    """Return the largest norms, p = 1, 2, ∞, of dense Jacobians at some points: zero, random ones, one bright pixel."""
    network, size = isoconv.plain(model).double(), math.prod(shape)
    points = torch.randn(4, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bright = torch.eye(size)[: 50 if "MaxPool" in str(model) else 0]
    points = torch.cat([points[:1] * 0, points[1:] / 10, points, bright])
    jacobians = [
        torch.autograd.functional.jacobian(lambda x: network(x[None])[0].flatten(), point.reshape(shape)).flatten(1)  # type: ignore[union-attr]
        for point in (points if "Conv" not in str(model) else points[:1])
    ]
    return {p: max(float(torch.linalg.matrix_norm(jacobian, p)) for jacobian in jacobians) for p in (1, 2, math.inf)}


def test_all_kinds_are_in_the_table() -> None:
    """Those of graphs and of smooth functions have tests of their own."""
    kinds = {type(m) for module, _, _ in CASES for m in isoconv.plain(module).modules()}
    others = {"Add", "Concat", "Slice", "Reshape", "Permute", "Translate", "Dropout1d"}
    others |= {"ELU", "CELU", "SELU", "SiLU", "GELU", "Mish", "Softplus", "LogSigmoid", "Hardswish", "Hardsigmoid"}
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


@cases
def test_certificates(module: nn.Module, shape: tuple[int, ...], slack: float, tmp_path: Path, capsys: Any) -> None:
    """The checker accepts them, and finds out a constant that is below the truth; the arithmetics take turns."""
    arithmetic = ("float64", "float32")[[case[0] for case in CASES].index(module) % 2]
    randomise(module, 1)
    features = module(torch.zeros(2, *shape))[0].numel()
    model = nn.Sequential(module, nn.Flatten(), randomise(nn.Linear(features, 3)))
    arguments = write_all(model, images(2, *shape), tmp_path, arithmetic=arithmetic)
    assert check(arguments) == 0, capsys.readouterr()
    header, lines = read(Path(arguments[0]))
    nodes = [node for node in header["nodes"] if node["module"] == "0"]
    if nodes:  # a single module
        nodes[0]["lipschitz"] = (find_norms(module, shape)[2] * (1 - 1e-6)).hex()
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


def test_a_window_far_smaller_than_the_others() -> None:
    """The vector of Collatz and Wielandt stays positive: one window of 1 pixel beside some of 100,000."""
    pool = nn.AvgPool1d(100_000, 100_000, ceil_mode=True)
    assert 1 <= lipschitz_bound(pool, (1, 200_001)).value <= 1 + 1e-6


def test_padding_and_convolution_have_an_entry_each() -> None:
    model = nn.Sequential(nn.CircularPad2d((1, 0, 1, 0)), nn.Conv2d(3, 4, 2))
    layers = lipschitz_bound(model, (3, 6, 5)).layers
    assert [(layer.name, layer.kind) for layer in layers] == [("0", "CircularPad2d"), ("1", "Conv2d")]
    assert layers[0].bound == 1 != layers[1].bound


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
        certifier, truth = (
            Certifier(ours.L2NormPool2d(), x.shape, arithmetic=arithmetic),
            exact_logits(ours.L2NormPool2d(), x),
        )
        computed = [ours.L2NormPool2d()(x[None].to(memory_format=torch.channels_last))[0]]
        with np.errstate(under="ignore"):
            orders = ("forward", "rising", "falling", "halves")
            computed += [torch.from_numpy(norms_in_order(x.numpy(), order)) for order in orders]
        assert max(logit_error(norms, truth) for norms in computed) <= error_bound(certifier, x)
    x = SIZES["mixed"](torch.randn(400, dtype=torch.float64)).to(dtype) + 1
    certifier, truth = (
        Certifier(ours.LayerCentering(), (400,), arithmetic=arithmetic),
        exact_logits(ours.LayerCentering(), x),
    )
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


def test_normalised_heads_use_the_distance_of_rows() -> None:
    """A hundred classes: each pair's constant is below 2, that of all logits together is not."""
    head, x = ours.NormalisedLinear(16, 100).double().eval(), torch.rand(5, 16, dtype=torch.float64)
    logits, rows = head(x), head.weight
    best = logits.argmax(1)
    distances, margins = (rows[best][:, None] - rows[None]).norm(dim=2), logits.gather(1, best[:, None]) - logits
    true: Tensor = torch.where(distances > 0, margins / distances, torch.inf).min(1).values
    assert torch.allclose(certify(head, x).radius, true.detach(), rtol=1e-9)
    assert lipschitz_bound(head, (16,)).value > 2
