"""MaxMin, GroupSort and invertible downsampling only reorder their inputs."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from helpers import unshuffled
from isoconv.nn import GroupSort, InvertibleDownsampling, InvertibleUpsampling, MaxMin

ACTIVATIONS = [(MaxMin(), 6), (GroupSort(2), 6), (GroupSort(3), 6), (GroupSort(1), 3), (GroupSort(None), 5)]
activations = pytest.mark.parametrize(("activation", "channels"), ACTIVATIONS)


@pytest.mark.parametrize("shape", [(1, 2), (2, 6, 5), (2, 12, 3, 4), (1, 2, 2, 2, 2), (0, 4, 3)])
def test_maxmin_pairs_channel_i_with_i_plus_half(shape):
    x = torch.randn(shape)
    first, second = x.chunk(2, dim=1)
    expected = torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)
    for activation in (MaxMin(), GroupSort(2), GroupSort()):
        assert torch.equal(activation(x), expected)
    assert MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 2.0]])).tolist() == [[3, 5, 1, 2]]  # pairs (1, 3) and (5, 2)


def test_groupsort_sorts_each_group_largest_first():
    for channels, size in [(6, 1), (6, 2), (6, 3), (6, 6), (12, 4), (5, None)]:
        x, groups = torch.randn(2, channels, 3, 2), channels // (size or channels)
        for j in range(groups):
            assert torch.equal(GroupSort(size)(x)[:, j::groups], x[:, j::groups].sort(dim=1, descending=True).values)


@activations
def test_the_jacobian_is_a_permutation_even_at_ties(activation, channels):
    pairs, zeros = torch.randint(0, 2, (channels,)).float(), torch.zeros(channels) * torch.randn(channels).sign()
    for x in (torch.randn(channels), torch.ones(channels), pairs, zeros):
        J = torch.autograd.functional.jacobian(lambda z: activation(z[None])[0], x)
        assert torch.equal(J * J, J)  # zeros and ones
        assert torch.equal(J.sum(0), torch.ones(channels)) and torch.equal(J.sum(1), torch.ones(channels))
        assert torch.equal(J @ x, activation(x[None])[0])


@activations
def test_any_floating_point_type_and_no_nan_is_lost(activation, channels):
    """A network that has produced a NaN must not look healthy further on."""
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        x = torch.randn(2, channels, 3).to(dtype)
        assert activation(x).dtype == dtype
        assert torch.equal(activation(x).float(), activation(x.float()))
        x[0, -1, 0] = torch.nan
        assert activation(x).isnan().any()


@activations
def test_second_derivatives(activation, channels):
    """For gradient penalties: the derivative of a permutation is zero, that of its square is not."""
    x = torch.randn(2, channels, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(activation, x)
    torch.autograd.gradgradcheck(lambda z: activation(z).pow(3), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (1, 2, 1, 1)], ids=str)
def test_maxmin_keeps_the_layout_and_recording_changes_nothing(shape, layout):
    x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    recorded, weights = MaxMin()(x), torch.randn(shape)
    assert torch.equal(recorded, MaxMin()(x.detach()))
    assert recorded.is_contiguous(memory_format=layout)
    (once,) = torch.autograd.grad((recorded * weights).sum(), x, retain_graph=True)
    (twice,) = torch.autograd.grad((recorded * weights).sum(), x, create_graph=True)
    assert torch.equal(once, twice)
    first, second = x.detach().chunk(2, dim=1)
    upper, lower = weights.chunk(2, dim=1)
    expected = [torch.where(second > first, lower, upper), torch.where(second > first, upper, lower)]
    assert torch.equal(once, torch.cat(expected, dim=1))
    (expanded,) = torch.autograd.grad(MaxMin()(x).sum(), x)  # a gradient that is one number, seen everywhere
    assert torch.equal(expanded, torch.ones(shape))


def test_maxmin_under_transforms_and_tracers():
    x = torch.randn(3, 4)
    one_by_one = torch.autograd.functional.jacobian(MaxMin(), x)
    assert torch.equal(torch.autograd.functional.jacobian(MaxMin(), x, vectorize=True), one_by_one)
    given = x.clone().requires_grad_()
    output = MaxMin()(given)
    (many,) = torch.autograd.grad(output, given, torch.eye(12).reshape(12, 3, 4), is_grads_batched=True)
    assert torch.equal(many, one_by_one.reshape(12, 3, 4))
    traced = make_fx(lambda y: MaxMin()(y))(given)
    assert torch.equal(traced(given), output)
    assert torch.equal(torch.autograd.grad(traced(given).sum(), given)[0], torch.ones(3, 4))


# Invertible downsampling


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (1, 3, 12, 18), (0, 3, 6, 12), (3, 4, 12), (0, 3, 6)])
def test_there_and_back(shape, factor):
    N, C, *size = shape
    x = torch.randn(shape)
    y = InvertibleDownsampling(factor)(x)
    assert y.shape == (N, C * factor ** len(size), *[n // factor for n in size])
    assert torch.equal(InvertibleUpsampling(factor)(y), x)
    if N:  # torch leaves an empty batch as it is
        assert torch.equal(y, unshuffled(x, factor))
    if factor == 2:  # the default
        assert torch.equal(InvertibleDownsampling()(x), y) and torch.equal(InvertibleUpsampling()(y), x)


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
    assert torch.equal(gradient, torch.nn.functional.pixel_shuffle(weights, 2))


def test_channels_of_a_larger_image_keep_their_layout():
    """Channels that lie side by side stay so, also where some of them were taken from more."""
    image = torch.randn(2, 8, 4, 6).contiguous(memory_format=torch.channels_last)
    for part in (image, image[:, :4], image[:, ::2]):
        result = InvertibleDownsampling(2)(part)
        assert torch.equal(result, torch.nn.functional.pixel_unshuffle(part, 2))
        assert result.is_contiguous(memory_format=torch.channels_last)
