"""The radius against the truth, where the truth can be computed: distances to decision boundaries, exactly."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import (
    exact,
    exact_logits,
    images,
    input_norm,
    labelled_images,
    linear_classifier,
    root_down,
    trained_small,
)
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound
from isoconv.nn import Abs

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
