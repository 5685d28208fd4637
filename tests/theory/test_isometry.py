"""Dynamical isometry."""

import pytest
import torch
from torch import nn

from isoconv.theory import jacobian_spectrum


def test_spectrum_of_a_matrix(draw):
    matrix = draw.normal(3, 5)
    spectrum = jacobian_spectrum(lambda x: x @ matrix.mT, draw.normal(1, 5))
    assert (spectrum - torch.linalg.svdvals(matrix)).abs().max() < 1e-13


def test_spectrum_is_taken_at_the_point():
    spectrum = jacobian_spectrum(lambda x: x.square() / 2, torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    assert spectrum.tolist() == pytest.approx([4, 3])


def test_gradients_are_enabled_inside(draw):
    with torch.no_grad():
        assert jacobian_spectrum(nn.Identity(), draw.normal(1, 2, 2)).tolist() == [1.0] * 4
