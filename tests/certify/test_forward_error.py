"""The bound of the logits' rounding error against networks in exact rational arithmetic, in several orders of summation."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import (
    error_bound,
    exact_logits,
    images,
    linear_classifier,
    logit_error,
    summed_in_order,
    trained_small,
)
from isoconv.certify import Certifier
from isoconv.models import CONVOLUTIONS
from isoconv.nn import Abs, MaxMin, Scale

ORDERS = ("forward", "backward", "random", "rising", "falling")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def seeded(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(1, p[0].numel()) ** 0.5)
    return model.eval()


def normalised(model: nn.Module, mean: float = 0.5, variance: float = 0.3) -> nn.Module:
    """With statistics that were not measured anywhere."""
    for norm in (m for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))):
        generator = torch.Generator().manual_seed(7)
        norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator) * mean)
        norm.running_var.copy_(torch.rand(norm.num_features, generator=generator) * variance)
    return seeded(model)


def head(features: int, *before: nn.Module) -> nn.Module:
    return seeded(nn.Sequential(*before, nn.Flatten(), nn.Linear(features, 3)))


TENTH = float(torch.tensor(0.1))  # as float32 holds it
circular = {"padding_mode": "circular"}

# The network, and the shape of its input without the batch.
NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (seeded(nn.Linear(9, 3)), (9,)),
    "conv same": (head(60, nn.Conv2d(2, 3, 2, padding="same", dilation=2)), (2, 5, 4)),
    "conv circular, stride does not divide": (head(27, nn.Conv2d(2, 3, 3, 2, 1, **circular)), (2, 5, 5)),
    "conv circular, twice around": (head(100, nn.Conv2d(2, 1, 3, padding=4, **circular)), (2, 4, 4)),
    "conv reflect": (head(60, nn.Conv2d(2, 3, 5, padding=2, padding_mode="reflect")), (2, 5, 4)),
    "conv replicate": (head(60, nn.Conv2d(2, 3, 5, padding=2, padding_mode="replicate")), (2, 5, 4)),
    "conv groups": (head(100, nn.Conv2d(4, 4, 3, padding=1, groups=2)), (4, 5, 5)),
    "wide pad and conv": (head(147, nn.CircularPad2d(2), nn.Conv2d(2, 3, 2)), (2, 4, 4)),
    "pad and conv 1d": (head(18, nn.CircularPad1d((2, 1)), nn.Conv1d(2, 3, 4, stride=1)), (2, 6)),
    "maxmin": (head(36, nn.Conv2d(2, 4, 3), MaxMin()), (2, 5, 5)),
    "leaky relu": (head(36, nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.1)), (2, 5, 5)),
    "negative leaky relu": (head(36, nn.Conv2d(2, 4, 3), nn.LeakyReLU(-0.9)), (2, 5, 5)),
    "scale": (seeded(nn.Sequential(nn.Linear(9, 4), Scale(TENTH), Abs(), nn.Linear(4, 3), Scale(-4 * TENTH))), (9,)),
    "relu6": (head(36, nn.Conv2d(2, 4, 3), Scale(16.0), nn.ReLU6()), (2, 5, 5)),
    "hardtanh": (head(36, nn.Conv2d(2, 4, 3), nn.Hardtanh(TENTH, 0.25)), (2, 5, 5)),
    "tanh": (head(36, nn.Conv2d(2, 4, 3), nn.Tanh()), (2, 5, 5)),
    "sigmoid": (head(36, nn.Conv2d(2, 4, 3), Scale(-64.0), nn.Sigmoid()), (2, 5, 5)),
    "softsign": (head(36, nn.Conv2d(2, 4, 3), nn.Softsign()), (2, 5, 5)),
    "constant pad": (head(60, nn.ConstantPad2d((1, 0, 3, -1), TENTH)), (2, 4, 4)),
    "batch norm": (normalised(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten())), (2, 5, 5)),
    "batch norm, far off": (normalised(nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4, 0.3)), 4.0, 1e-9), (9,)),
    "batch norm alone": (normalised(nn.BatchNorm1d(3, affine=False)), (3,)),
    "average pooling": (head(18, nn.AvgPool2d(3, stride=2, padding=1)), (2, 5, 6)),
    "shuffles": (head(32, nn.PixelUnshuffle(2), nn.Conv2d(8, 8, 1), nn.PixelShuffle(2)), (2, 4, 4)),
    "pads": (head(98, nn.ReflectionPad2d(1), nn.ReplicationPad2d((0, 1, 1, 0))), (2, 4, 4)),
    "upsample": (head(128, nn.Upsample(scale_factor=2)), (2, 4, 4)),
    "deep": (seeded(nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(6, 6), MaxMin())], nn.Linear(6, 3))), (6,)),
}


def measure(
    model: nn.Module, x: Tensor, arithmetic: str, orders: tuple[str, ...] = ORDERS
) -> tuple[Fraction, Fraction, Certifier]:
    """The largest error of the logits of the first image, what is claimed of it, and the certifier.

    As torch computes them in batches of several sizes, and in orders of our own.
    """
    dtype = DTYPES[arithmetic]
    network = isoconv.plain(model).eval().to(dtype)
    with torch.no_grad():
        logits = [network(x[:n].to(dtype))[0] for n in (1, 2, 17) if n <= len(x) and orders is ORDERS]
    logits += [summed_in_order(model, x[0], order, dtype) for order in orders]
    truth, certifier = exact_logits(model, x[0]), Certifier(model, tuple(x.shape[1:]), arithmetic=arithmetic)
    return max(logit_error(found, truth) for found in logits), error_bound(certifier, x[0]), certifier


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_module(name: str, arithmetic: str) -> None:
    model, shape = NETWORKS[name]
    x = images(17, *shape)
    error, allowed, certifier = measure(model, x, arithmetic)
    largest = max(1, certifier.lipschitz.value * float(x[0].norm()))  # what a logit may be, roughly
    assert error <= allowed <= 500 * torch.finfo(DTYPES[arithmetic]).eps * largest


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_every_method(conv: str, arithmetic: str) -> None:
    """Trained networks: the error is below its bound, and at most 100,000 times below (10,000 is usual, CPL has 57,000)."""
    error, allowed, _ = measure(trained_small(conv, (3, 8, 8)), images(17, 3, 8, 8, seed=1), arithmetic)
    assert 0 < error <= allowed <= 1e5 * error


@pytest.mark.parametrize(
    ("weights", "value", "least", "most"),
    [
        # 1 + u + u + …: each addition loses all of its u. The bound is √n times the error, not more.
        (torch.tensor([1.0] + [2.0**-24] * 1024), 1.0, 1.4 * 1024 * 2.0**-24, 1.5 * 1025**0.5),
        # Equal terms of which float32 loses nearly half a last place each time.
        (torch.ones(2**14), 0.9565422534942627, 1.0, 5.0),
    ],
    ids=["worst order", "nearly attained"],
)
def test_sums_that_round_badly(weights: Tensor, value: float, least: float, most: float) -> None:
    x = torch.full((1, len(weights)), value, dtype=torch.float64)
    error, allowed, _ = measure(linear_classifier(weights.expand(2, -1), None), x, "float32", ("forward",))
    assert least <= error <= allowed <= most * error


@pytest.mark.parametrize("arithmetic", DTYPES)
def test_cancellation(arithmetic: str) -> None:
    """Large terms that cancel: the error is of the size of the terms, whatever is left of their sum."""
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 3)
    with torch.no_grad():
        first.weight.mul_(1e6)
        second.weight[:, 32:] = -second.weight[:, :32]
        first.weight[32:] = first.weight[:32]
    model = nn.Sequential(first, second)
    x = (images(1, 64) / 3).to(DTYPES[arithmetic]).double()
    error, allowed, _ = measure(model, x, arithmetic)
    assert error <= allowed
    assert error > 1e5 * torch.finfo(DTYPES[arithmetic]).eps * max(abs(t) for t in exact_logits(model, x[0]))


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("exponent", [-60, -120, -140])
def test_products_that_underflow(arithmetic: str, exponent: int) -> None:
    """Weights of 2^e twice over (float32's smallest number is 2⁻¹⁴⁹), then scaled back to the order of one."""
    torch.manual_seed(0)
    back = [Scale(2.0**60) for _ in range(-2 * exponent // 60)]
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), *back, nn.Linear(8, 3))
    with torch.no_grad():
        for layer in (model[0], model[1]):
            layer.weight.mul_(2.0**exponent)  # type: ignore[union-attr]
            layer.bias.mul_(2.0 ** (2 * exponent))  # type: ignore[union-attr]
    error, allowed, _ = measure(model, images(1, 8), arithmetic)
    assert error <= allowed


def test_float64_weights_in_float64() -> None:
    """Weights with all 53 bits: products are rounded too."""
    model = seeded(nn.Sequential(nn.Linear(30, 20), MaxMin(), nn.Linear(20, 3)).double())
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p / 3)
    error, allowed, _ = measure(model, images(1, 30) / 3, "float64")
    assert 0 < error <= allowed <= 3e4 * error


def test_bounds_of_the_right_order() -> None:
    """One product per logit errs by at most u·|product|; what only moves numbers is exact."""
    certifier = Certifier(Scale(0.1), (3,))
    assert 0 <= certifier.error.slope <= 4 * 2.0**-53 * 0.1 and certifier.error.offset <= 1e-300
    certifier = Certifier(nn.Sequential(nn.PixelUnshuffle(2), MaxMin(), Abs(), nn.Flatten(), nn.ReLU()), (1, 4, 4))
    assert 0 <= certifier.error.offset <= 1e-320 and 0 <= certifier.error.slope <= 1e-320
