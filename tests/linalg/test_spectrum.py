"""The singular values of a circular convolution against those of its dense matrix."""

import numpy as np
import pytest
import torch

from isoconv.linalg import circular_singular_values, circular_symbol
from isoconv.linalg.spectrum import fold_kernel
from linalg.linalg_reference import DEVICES, PRECISIONS, dense_convolution, normal

# The shapes of kernel and image.
CASES = [((1, 1, 1), (1,)), ((2, 3, 3), (5,)), ((3, 2, 4), (8,)), ((2, 2, 7), (3,)), ((2, 1, 6), (1,))]
CASES += [((2, 3, 3, 3), (4, 4)), ((2, 2, 2, 4), (6, 5)), ((2, 2, 5, 5), (3, 3)), ((1, 2, 6, 4), (2, 3))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("shape", "size"), CASES, ids=str)
def test_equal_the_dense_operators(shape, size, dtype, device):
    kernel = normal(*shape, seed=1, dtype=dtype)
    expected = np.linalg.svd(dense_convolution(kernel.double().numpy(), size), compute_uv=False)
    values = circular_singular_values(kernel.to(device), size)
    assert values.dtype == dtype
    tolerance = 10 * sum(shape) * torch.finfo(dtype).eps * expected[0]
    np.testing.assert_allclose(values.cpu().double().numpy(), expected, rtol=0, atol=tolerance)
    if len(set(size)) == 1:
        assert torch.equal(circular_singular_values(kernel.to(device), size[0]), values)


@pytest.mark.parametrize(("shape", "size"), CASES, ids=str)
def test_the_symbol_is_its_definition(shape, size):
    kernel = normal(*shape, seed=2)
    symbol = circular_symbol(kernel, size).numpy()
    assert symbol.shape == (*size, *shape[:2])
    for frequency in np.ndindex(*size):
        expected = np.zeros(shape[:2], dtype=complex)
        for tap in np.ndindex(*shape[2:]):
            turns = sum(w * t / n for w, t, n in zip(frequency, tap, size, strict=True))
            expected += kernel.numpy()[(slice(None), slice(None), *tap)] * np.exp(-2j * np.pi * turns)
        np.testing.assert_allclose(symbol[frequency], expected, rtol=0, atol=1e-13)


def test_an_average_has_the_spectrum_of_an_average():
    """[½ ½] on a circle of n pixels: |cos(πω/n)|."""
    values = circular_singular_values(torch.full((1, 1, 2), 0.5, dtype=torch.float64), 7)
    expected = np.sort(np.abs(np.cos(np.pi * np.arange(7) / 7)))[::-1]
    np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("taps", "size"), [((5,), (2,)), ((3,), (3,)), ((2,), (5,)), ((7, 4), (3, 2)), ((1, 9), (4, 4))], ids=str
)
def test_fold_kernel_adds_up_taps_modulo_the_size(taps, size):
    kernel = normal(2, 3, *taps, seed=5)
    expected = np.zeros((2, 3, *np.minimum(taps, size)))
    for tap in np.ndindex(*taps):
        at = tuple(t % n for t, n in zip(tap, size, strict=True))
        expected[(slice(None), slice(None), *at)] += kernel.numpy()[(slice(None), slice(None), *tap)]
    np.testing.assert_allclose(fold_kernel(kernel, size).numpy(), expected, rtol=0, atol=1e-14)


def test_singular_values_are_differentiable():
    kernel = normal(2, 2, 3, seed=6).requires_grad_()
    circular_singular_values(kernel, 4).sum().backward()
    assert bool(torch.isfinite(kernel.grad).all())
