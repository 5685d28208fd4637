"""The rounding error of whole networks against exact rational arithmetic, in several orders of summation."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import (
    METHODS,
    error_bound,
    exact_logits,
    images,
    linear_classifier,
    logit_error,
    summed_in_order,
    trained_small,
)
from certify.kinds import find_norms
from isoconv.certify import Certifier, lipschitz_bound
from isoconv.nn import Abs, MaxMin, Scale

ORDERS = ("forward", "backward", "random", "rising", "falling")
SHAPE = (1, 8, 8)
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def measure(
    model: nn.Module, x: Tensor, arithmetic: str, orders: tuple[str, ...] = ORDERS
) -> tuple[Fraction, Fraction]:
    """The largest error of the logits of the first image, and what is claimed of it.

    As torch computes them in batches of several sizes, and in orders of our own.
    """
    dtype = DTYPES[arithmetic]
    network = isoconv.plain(model).eval().to(dtype)
    with torch.no_grad():
        logits = [network(x[:n].to(dtype))[0] for n in (1, 2, 17) if n <= len(x) and orders is ORDERS]
    logits += [summed_in_order(model, x[0], order, dtype) for order in orders]
    truth, certifier = exact_logits(model, x[0]), Certifier(model, tuple(x.shape[1:]), arithmetic=arithmetic)
    return max(logit_error(found, truth) for found in logits), error_bound(certifier, x[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: str) -> None:
    """Trained networks: the error is below its bound, and at most 100,000 times below (10,000 is usual, CPL has 57,000)."""
    model, arithmetic = trained_small(method, SHAPE), "float32" if METHODS.index(method) % 2 else "float64"
    error, allowed = measure(model, images(17, *SHAPE, seed=1), arithmetic)
    assert 0 < error <= allowed <= 1e5 * error
    bound = lipschitz_bound(model, SHAPE)
    per_layer = math.prod(layer.bound for layer in bound.layers)
    assert per_layer * (1 - 1e-15) <= bound.value <= per_layer * (1 + 1e-12)
    assert find_norms(model, SHAPE)[2] <= bound.value
    assert not method.startswith(("bcop", "shift")) or 1 - 1e-6 <= bound.value <= 1.001


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
    error, allowed = measure(linear_classifier(weights.expand(2, -1), None), x, "float32", ("forward",))
    assert least <= error <= allowed <= most * error


@pytest.mark.parametrize("arithmetic", DTYPES)
def test_cancellation(arithmetic: str) -> None:
    """Large terms that cancel: the error is of the size of the terms, whatever is left of their sum."""
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 3)
    with torch.no_grad():
        first.weight.mul_(1e6)
        second.weight[:, 32:] = -second.weight[:, :32]
        first.weight[32:] = first.weight[:32]
    model = nn.Sequential(first, second)
    x = (images(1, 64) / 3).to(DTYPES[arithmetic]).double()
    error, allowed = measure(model, x, arithmetic)
    assert error <= allowed
    assert error > 1e5 * torch.finfo(DTYPES[arithmetic]).eps * max(abs(t) for t in exact_logits(model, x[0]))


def test_float64_weights_in_float64() -> None:
    """Weights with all 53 bits: products are rounded too."""
    model = nn.Sequential(nn.Linear(30, 20), MaxMin(), nn.Linear(20, 3)).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    error, allowed = measure(model, images(1, 30) / 3, "float64")
    assert 0 < error <= allowed <= 3e4 * error


def test_bounds_of_the_right_order() -> None:
    """One product per logit errs by at most u·|product|; what only moves numbers is exact."""
    certifier = Certifier(Scale(0.1), (3,))
    assert 0 <= certifier.error.slope <= 4 * 2.0**-53 * 0.1 and certifier.error.offset <= 1e-300
    certifier = Certifier(nn.Sequential(nn.PixelUnshuffle(2), MaxMin(), Abs(), nn.Flatten(), nn.ReLU()), (1, 4, 4))
    assert 0 <= certifier.error.offset <= 1e-320 and 0 <= certifier.error.slope <= 1e-320
