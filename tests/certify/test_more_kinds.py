"""Smooth functions of each number: their slopes against proofs and dense searches, their rounding entry by entry."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from certify.exact_network import exact_logits, logit_error
from certify.test_kinds import CASES
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, lipschitz_bound
from isoconv.nn import Normalize

TENTH = float(torch.tensor(0.1))
CURVES = [
    *(nn.ELU(), nn.ELU(2.5), nn.ELU(-0.4), nn.ELU(-1.7), nn.CELU(), nn.CELU(0.25), nn.SELU(), nn.SiLU()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.Softplus(3.0, 15), nn.Softplus(TENTH, 30.5)),
    *(nn.LogSigmoid(), nn.Hardswish(), nn.Hardsigmoid()),
]
curves = pytest.mark.parametrize("curve", CURVES, ids=str)
# Pooling, interpolation and transposed convolutions: the tests of exports and of the checker take them too.
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_OTHERS = (nn.Upsample, nn.UpsamplingNearest2d, nn.ConvTranspose1d, nn.ConvTranspose2d, Normalize)
LINEAR = [
    case for case in CASES if isinstance(case[0], (*_POOLS, *_OTHERS)) and getattr(case[0], "mode", "") != "nearest"
]


def slope_of(curve: nn.Module) -> float:
    return lipschitz_bound(curve, (1,)).layers[-1].bound


@curves
def test_slopes_found_by_a_dense_search(curve: nn.Module) -> None:
    """Secants over a fine grid, far out too, except over the jump of Softplus; the constant is hardly above the largest."""
    grid = torch.from_numpy(np.unique(np.append(np.linspace(-30, 30, 600_001), np.linspace(-1e4, 1e4, 2001))))
    jump = torch.tensor(getattr(curve, "threshold", math.inf) / getattr(curve, "beta", 1.0), dtype=torch.float64)
    slopes = (curve(grid).diff() / grid.diff()).abs()[(grid[1:] < jump) | (grid[:-1] > jump)]
    assert float(slopes.max()) <= slope_of(curve) * (1 + 1e-9) and slope_of(curve) <= float(slopes.max()) * (1 + 1e-4)


def test_the_slopes_of_silu_and_gelu_are_proved() -> None:
    """The statements of Note [Slopes], in rational and in interval arithmetic."""
    x = Fraction("2.39935729")
    assert sum(x**k / math.factorial(k) for k in range(40)) > (x + 2) / (x - 2)  # so x is right of the maximum
    assert Fraction(slope_of(nn.SiLU())) >= Fraction(1, 2) + x / 4
    iv = mpmath.iv
    terms = (iv.mpf((-1) ** k) / (math.factorial(k) * (2 * k + 1)) for k in range(30))
    erf, rest = 2 / iv.sqrt(iv.pi) * sum(terms, iv.mpf(0)), 1 / iv.mpf(math.factorial(30))  # the series alternates
    assert ((1 + erf) / 2 + rest + 1 / (iv.e * iv.sqrt(iv.pi))).b < slope_of(nn.GELU())


def test_the_slopes_of_gelu_by_tanh_and_mish_are_proved() -> None:
    """By the cells of Note [Slopes]; numpy's functions are off by far less than the room of 1e-7 that is left."""
    x, root = np.arange(8 * 2**18 + 1) / 2**18, math.sqrt(2 / math.pi)
    u, slope = root * (x + 0.044715 * x**3), root * (1 + 3 * 0.044715 * x**2)
    cells = (1 + np.tanh(u[1:])) / 2 + x[1:] * slope[1:] / (2 * np.cosh(u[:-1]) ** 2)
    assert cells.max() < slope_of(nn.GELU("tanh")) - 1e-7
    x = np.arange(20 * 2**18 + 1) / 2**18
    e = np.exp(x)
    d = e * e + 2 * e + 2
    cells = 1 - 2 / d[1:] + x[1:] * 4 * e[1:] * (e[1:] + 1) / d[:-1] ** 2
    assert cells.max() < slope_of(nn.Mish()) - 1e-7


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
