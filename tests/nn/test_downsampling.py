"""Invertible downsampling is a permutation, in torch's channel order."""

import pytest
import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from helpers import unshuffled
from isoconv.nn import InvertibleDownsampling, InvertibleUpsampling

SHAPES = [(2, 1, 6, 6), (1, 3, 12, 18), (0, 3, 6, 12), (2, 1, 6), (3, 4, 12), (0, 3, 6)]


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(shape, factor):
    N, C, *size = shape
    x = torch.randn(shape)
    y = InvertibleDownsampling(factor)(x)
    assert y.shape == (N, C * factor ** len(size), *[n // factor for n in size])
    assert torch.equal(InvertibleUpsampling(factor)(y), x)
    assert torch.equal(y.flatten().sort().values, x.flatten().sort().values)
    if N:  # torch leaves an empty batch as it is
        assert torch.equal(y, unshuffled(x, factor))
    if factor == 2:  # the default
        assert torch.equal(InvertibleUpsampling()(InvertibleDownsampling()(x)), x)


def test_one_dimension_by_hand():
    x = torch.arange(8.0).reshape(1, 2, 4)  # channels 0123 and 4567
    assert InvertibleDownsampling(2)(x).tolist() == [[[0, 2], [1, 3], [4, 6], [5, 7]]]


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (2, 1, 4, 4), (1, 4, 2, 2)], ids=str)
def test_channels_last_stays_channels_last(shape):
    """The same numbers as in the usual layout, in the layout that they came in; one channel included."""
    x = torch.randn(shape)
    given = x.clone(memory_format=torch.channels_last).requires_grad_()
    usual, last = InvertibleDownsampling(2)(x), InvertibleDownsampling(2)(given)
    assert torch.equal(last, usual)
    assert last.stride(1) == 1 and last.is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn(usual.shape)
    (gradient,) = torch.autograd.grad((last * weights).sum(), given)
    assert torch.equal(gradient, pixel_shuffle(weights, 2))


def test_channels_of_a_larger_image_keep_their_layout():
    """Channels that lie side by side stay so, also where some of them were taken from more."""
    image = torch.randn(2, 8, 4, 6).contiguous(memory_format=torch.channels_last)
    for part in (image, image[:, :4], image[:, ::2]):
        result = InvertibleDownsampling(2)(part)
        assert torch.equal(result, pixel_unshuffle(part, 2))
        assert result.is_contiguous(memory_format=torch.channels_last)
