"""Bugs that other libraries of this field have today, each ruled out by a test named for it."""

import copy

import pytest
import torch
from torch import nn

from helpers import LAYERS, made, singular_values
from isoconv.nn import (
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    MaxMin,
    OrthogonalLinear,
    OSSNConv2d,
    RKL2NEConv2d,
    RKOConv2d,
    StandardConv2d,
    SVCMConv2d,
)

layers = pytest.mark.parametrize("name", LAYERS)


def network() -> nn.Sequential:
    return nn.Sequential(
        BCOPConv2d(1, 4, 2, 2),
        MaxMin(),
        RKOConv2d(4, 4, 3),
        OSSNConv2d(4, 4, 3, input_size=3),
        MaxMin(),
        nn.Flatten(),
        OrthogonalLinear(36, 6),
    )


def test_stale_kernel_after_load_state_dict():
    first, second = network().eval(), network().eval()
    x = torch.randn(2, 1, 6, 6)
    with torch.no_grad():
        assert not torch.allclose(first(x), second(x), atol=1e-2)
        first.load_state_dict(second.state_dict())
        assert torch.equal(first(x), second(x))


def test_stale_kernel_after_a_step_in_eval():
    model = network().eval()
    x = torch.randn(2, 1, 6, 6)
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        descent.zero_grad()
        before = model(x)
        before.square().sum().backward()
        descent.step()
        after = model(x)
        assert not torch.allclose(before, after, atol=1e-4)
        assert torch.allclose(after, copy.deepcopy(model)(x), atol=1e-6)


@layers
def test_evaluation_that_changes_state(name):
    layer, x = made(name)
    layer(x)
    layer.eval()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    for _ in range(3):
        layer(x)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


@layers
def test_evaluation_that_differs_between_calls(name):
    layer, x = made(name)
    layer.eval()
    first = layer(x)
    assert all(torch.equal(layer(x), first) for _ in range(3))
    assert torch.allclose(layer(x[:1]), first[:1], atol=1e-6)  # nor does it depend on the rest of the batch


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@layers
def test_an_option_that_gives_weights_no_gradient(name, training):
    layer, x = made(name)
    layer.train(training)
    x.requires_grad_()
    (layer(x) * torch.randn_like(layer(x))).sum().backward()
    assert x.grad.abs().max() > 1e-4
    for k, p in layer.named_parameters():
        if "frozen" in name:
            assert p.grad is None, k
        else:
            assert p.grad is not None, k
            assert p.grad.isfinite().all(), k
            assert p.grad.abs().max() > 1e-4, k


@pytest.mark.parametrize("k", range(1, 10))
def test_conv1d_scaled_by_one_over_k_instead_of_its_root(k):
    values = singular_values(BCOPConv1d(3, 3, k).eval(), 3, 11)
    assert (values - 1).abs().max() <= 1e-5


@layers
def test_double_that_crashes(name):
    layer, x = made(name)
    layer(x)
    assert layer.double()(x.double()).dtype == torch.float64


@layers
def test_bfloat16_that_crashes(name):
    layer, x = made(name)
    layer(x)
    y = layer.bfloat16()(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [(5, 5), (7, 4), (1, 9), (3, 11)])
def test_wrong_output_width_for_odd_images(k, size):
    x = torch.randn(1, 2, *size)
    for layer in [
        BCOPConv2d(2, 3, k),
        RKOConv2d(2, 3, k),
        RKL2NEConv2d(2, 3, k),
        StandardConv2d(2, 3, k),
        OSSNConv2d(2, 3, k, input_size=size),
        SVCMConv2d(2, 3, k, input_size=size),
        BCOPConvTranspose2d(2, 3, k),
    ]:
        assert layer(x).shape == (1, 3, *size), type(layer)
    assert BCOPConv1d(2, 3, k)(x[:, :, 0]).shape == (1, 3, size[1])


def test_wrong_output_width_for_odd_multiples_of_the_stride():
    assert BCOPConv2d(2, 3, 6, 3)(torch.randn(1, 2, 9, 15)).shape == (1, 3, 3, 5)
    assert BCOPConv2d(2, 3, 4, 2)(torch.randn(1, 2, 6, 10)).shape == (1, 3, 3, 5)
    assert BCOPConvTranspose2d(2, 3, 4, 2)(torch.randn(1, 2, 3, 5)).shape == (1, 3, 6, 10)


@pytest.mark.parametrize("kind", [BCOPConv2d, BCOPConvTranspose2d, RKOConv2d, RKL2NEConv2d, StandardConv2d])
def test_a_kernel_size_given_as_a_tuple_that_crashes(kind):
    torch.manual_seed(0)
    number = kind(2, 3, 4, 2)
    torch.manual_seed(0)
    pair = kind(2, 3, (4, 4), (2, 2))
    x = torch.randn(1, 2, 6, 4)
    assert torch.equal(pair(x), number(x))


def test_a_kernel_size_given_as_a_tuple_that_crashes_elsewhere():
    for kind in (OSSNConv2d, SVCMConv2d):
        assert kind(2, 3, (4, 4), (2, 2), input_size=(6, 4))(torch.randn(1, 2, 6, 4)).shape == (1, 3, 3, 2)
    assert BCOPConv1d(2, 3, (4,), (2,))(torch.randn(1, 2, 6)).shape == (1, 3, 3)
