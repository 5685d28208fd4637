"""Radii and rounding errors against the truth: distances to decision boundaries and logits in exact rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import (
    METHODS,
    error_bound,
    exact,
    exact_logits,
    images,
    input_norm,
    labelled_images,
    linear_classifier,
    logit_error,
    root_down,
    summed_in_order,
    trained_small,
)
from certify.kinds import find_norms
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound
from isoconv.nn import Abs, MaxMin, Scale

ORDERS = ("forward", "backward", "random", "rising", "falling")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SHAPE = (1, 8, 8)
SIZES = [(1, 2), (7, 3), (3, 12), (64, 10)]  # (inputs, classes)


def random_classifier(inputs: int, classes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, inputs, generator=generator, dtype=torch.float64)
    return linear_classifier(weight.to(dtype), torch.randn(classes, generator=generator).to(dtype))


def rows_and_margins(model: nn.Linear, x: Tensor) -> tuple[int, list[list[Fraction]], list[Fraction]]:
    """The true prediction, w_t − w_j and y_t − y_j for every other class j, all exact."""
    logits = exact_logits(model, x)
    t = max(range(len(logits)), key=lambda j: logits[j])
    rows = [list(exact(row)) for row in model.weight]
    others = [j for j in range(len(logits)) if j != t]
    differences = [[a - b for a, b in zip(rows[t], rows[j], strict=True)] for j in others]
    return t, differences, [logits[t] - logits[j] for j in others]


def dual_norm(row: list[Fraction], p: float) -> Fraction:
    """A lower bound of ‖row‖_q, q dual to p: exact for p = 1 and ∞, by 2⁻¹⁹⁰ for 2, by a relative 1e-12 for others."""
    if p == 1:
        return max(abs(v) for v in row)
    if p == math.inf:
        return sum((abs(v) for v in row), Fraction(0))
    if p == 2:
        return root_down(sum((v * v for v in row), Fraction(0)))
    q = p / (p - 1)
    return Fraction(sum(abs(float(v)) ** q for v in row) ** (1 / q) * (1 - 1e-12))


@pytest.mark.parametrize("p", [1, 1.5, 2, 2.5, 17.0, math.inf])
@pytest.mark.parametrize(("inputs", "classes"), SIZES)
def test_linear_classifiers_exactly(inputs: int, classes: int, p: float) -> None:
    """Below the distance to the nearest boundary in that norm, and no more than a millionth below for p = 2.

    In other norms at least what the L2 ball inside or around gives; per class never more than per pair of classes, up to
    the rounding of opposite rows, where ‖w_i‖ + ‖w_j‖ = ‖w_i − w_j‖.
    """
    for dtype in (torch.float32, torch.float64):
        model, x = random_classifier(inputs, classes, dtype), images(4, inputs)
        found, euclidean = certify(model, x, p=p), certified_radius(model, x)
        assert found.radius.dtype == torch.float64 and found.radius.shape == (4,)
        for n, radius in enumerate(found.radius.tolist()):
            t, rows, margins = rows_and_margins(model, x[n])
            distance = min(margin / dual_norm(row, p) for row, margin in zip(rows, margins, strict=True))
            assert found.prediction[n] == t and 0 < Fraction(radius) <= distance
            inside = 1.0 if p <= 2 else inputs ** (1 / p - 1 / 2) if p < math.inf else inputs**-0.5
            assert radius >= (inside * euclidean[n].item() * (1 - 1e-9) if p != 2 else (1 - 1e-6) * distance)
        per_class = certified_radius(model, x, p=p, criterion="per-class")
        assert (per_class > 0).all() and (per_class <= found.radius * (1 + 1e-14)).all()


def test_folded_plane_with_a_known_boundary() -> None:
    """y = (|a|, 3/8) for a = x₁ − x₂ after a rotation: both sides of the fold count, and the constants are exact."""
    s = math.sqrt(0.5)
    model = nn.Sequential(linear_classifier([[s, -s]], [0.0]), Abs(), linear_classifier([[1.0], [0.0]], [0.0, 0.375]))
    x = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5], [0.6, 0.4]], dtype=torch.float64)
    found = certify(model, x)
    a = ((x[:, 0] - x[:, 1]).abs() * s).tolist()
    assert found.prediction.tolist() == [0, 0, 1, 1]
    for n in range(4):
        truth = abs(a[n] - 0.375)
        assert truth * (1 - 1e-6) <= found.radius[n] <= truth


def test_what_a_certificate_holds() -> None:
    model, (x, _) = trained_small("bcop", SHAPE), labelled_images(5, SHAPE, seed=3)
    found = certify(model, x)
    network = isoconv.plain(model).double()
    assert torch.allclose(found.logits, network(x), rtol=0, atol=1e-12) and found.logits.dtype == torch.float64
    assert (found.prediction == network(x).argmax(dim=1)).all()
    for n in range(5):
        square = sum((v * v for v in exact(x[n]).ravel()), Fraction(0))
        assert square <= Fraction(found.input_norm[n].item()) ** 2 <= square * (1 + Fraction(1, 10**12))
    certifier = Certifier(model, SHAPE)
    bound = lipschitz_bound(model, SHAPE).value
    assert bound <= certifier.lipschitz.value <= bound * (1 + 1e-6)
    constants = torch.as_tensor(certifier.pair_constants)
    assert (constants == constants.T).all() and (constants.diagonal() == 0).all()
    assert (constants <= math.sqrt(2) * certifier.lipschitz.value * (1 + 1e-9)).all()


@pytest.mark.parametrize(("arithmetic", "errors"), [("float64", 4), ("float32", 2)])
def test_an_inequality_that_every_certificate_meets(arithmetic: str, errors: int) -> None:
    """margin > L·r + the rounding of both ends: with what the certifier says of itself, in exact arithmetic.

    In float64 with three errors at the centre: then it holds for any float64 logits of the image, not only for its own.
    """
    certifier = Certifier(trained_small("bcop", (3, 8, 8)), (3, 8, 8), arithmetic=arithmetic)
    x, _ = labelled_images(8, (3, 8, 8), seed=5)
    found, a, b = certifier(x), Fraction(certifier.error.offset), Fraction(certifier.error.slope)
    for n, t in enumerate(found.prediction.tolist()):
        logits, r = [Fraction(v) for v in found.logits[n].tolist()], Fraction(found.radius[n].item())
        norm = input_norm(x[n])
        rounding = root_down(Fraction(2)) * (errors * a + b * (errors * norm + r))
        assert r > 0
        for j in range(len(logits)):
            if j != t:
                assert logits[t] - logits[j] > Fraction(certifier.pair_constants[t, j].item()) * r + rounding


# The rounding error of whole networks, in several orders of summation -------------------------------------------


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
