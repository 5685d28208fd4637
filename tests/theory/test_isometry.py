"""Dynamical isometry: a BCOP network with MaxMin maps the input's neighbourhood isometrically; no other method does."""

import pytest
import torch
from torch import nn

from isoconv.models import Small
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear
from isoconv.theory import jacobian_spectrum

SHAPE = (4, 8, 8)  # Small leads from 256 numbers to 256, 128, 100 and 10: no layer enlarges


def network_and_input(conv, activation="maxmin", shape=SHAPE):
    torch.manual_seed(0)
    return Small(shape, conv=conv, activation=activation).eval(), torch.rand(1, *shape)


def test_spectrum_of_known_jacobians(draw):
    matrix = draw.normal(3, 5)
    spectrum = jacobian_spectrum(lambda x: x @ matrix.mT, draw.normal(1, 5))
    assert (spectrum - torch.linalg.svdvals(matrix)).abs().max() < 1e-13
    with torch.no_grad():  # gradients are enabled inside
        spectrum = jacobian_spectrum(lambda x: x.square() / 2, torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    assert spectrum.tolist() == pytest.approx([4, 3])


def test_bcop_in_double_precision(draw):
    """Ones to float64's rounding, through every kind of layer."""
    double = {"dtype": torch.float64}
    convolutions = BCOPConv2d(4, 16, 4, stride=2, **double), MaxMin(), BCOPConv2d(16, 8, 3, **double), MaxMin()
    head = OrthogonalLinear(128, 20, **double), MaxMin(), OrthogonalLinear(20, 20, **double)
    model = nn.Sequential(*convolutions, nn.Flatten(), *head).eval()
    assert (jacobian_spectrum(model, draw.normal(1, *SHAPE)) - 1).abs().max() < 1e-12


def test_bcop_in_single_precision():
    spectrum = jacobian_spectrum(*network_and_input("bcop"))
    assert spectrum.shape == (10,)
    assert (spectrum - 1).abs().max() < 1e-5


@pytest.mark.parametrize("conv", ["rko", "ossn", "svcm", "rkl2ne", "standard"])
def test_the_other_methods_shrink_and_spread(conv):
    spectrum = jacobian_spectrum(*network_and_input(conv))
    assert spectrum.max() < 0.9
    assert spectrum.max() > 1.2 * spectrum.min()


def test_relu_loses_what_maxmin_keeps():
    spectrum = jacobian_spectrum(*network_and_input("bcop", activation="relu"))
    assert spectrum.max() <= 1 + 1e-5
    assert spectrum.min() < 0.9


def test_layers_that_enlarge_the_dimension():
    """What follows may drop directions that carry the input: values up to 1, not all 1."""
    spectrum = jacobian_spectrum(*network_and_input("bcop", shape=(1, 8, 8)))
    assert spectrum.max() <= 1 + 1e-5
    assert spectrum.min() < 0.9
