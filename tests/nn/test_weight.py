"""`weight` is the kernel that is applied: an independent convolution with it gives what the layer gives."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor

from helpers import (
    LAYERS,
    convolution,
    is_built,
    linear_part,
    made,
)
from isoconv.linalg import bcop_kernel
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d

layers = pytest.mark.parametrize("name", LAYERS)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_a_layer_and_its_adjoint_train_together():
    """An autoencoder of tied weights: both paths reach the shared parameters."""
    layer = BCOPConv2d(4, 2, 3, dtype=torch.float64)
    adjoint = layer.transposed()
    own = dict(layer.named_parameters())
    assert {name for name, p in adjoint.named_parameters() if p is own[name]} == {"O", "MN"} == own.keys() - {"bias"}
    assert adjoint.training and not layer.eval().transposed().training
    x, y = double(3, 4, 4, 4), double(3, 4, 4, 4)
    (adjoint(layer(x)) * y).sum().backward()
    both = layer.O.grad.clone()
    layer.zero_grad()
    with torch.no_grad():
        code = layer(x)
    (adjoint(code) * y).sum().backward()
    (layer(x) * linear_part(layer, y).detach()).sum().backward()
    assert torch.allclose(both, layer.O.grad, rtol=0, atol=1e-11)


@layers
def test_one_image_an_empty_batch_and_no_bias(name):
    layer, x = made(name)
    layer.eval()
    torch.testing.assert_close(layer(x[0]), layer(x)[0], rtol=0, atol=1e-6)
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    layer, _ = made(name, bias=False)
    assert layer.bias is None and "bias" not in layer.state_dict()
    assert torch.equal(layer.eval()(0 * x), torch.zeros_like(layer(x)))


@layers
def test_reset_parameters_and_the_arguments_device_and_dtype(name):
    layer, x = made(name)
    outputs = [layer.eval()(x).detach()]
    for seed in (7, 7):
        torch.manual_seed(seed)
        layer.reset_parameters()
        outputs.append(layer(x).detach())
    assert not torch.allclose(*outputs[:2], atol=1e-2) and torch.equal(*outputs[1:])
    layer, x = made(name, device="cpu", dtype=torch.float64)
    assert {t.dtype for t in (*layer.state_dict().values(), layer(x), layer.weight)} == {torch.float64}
    assert {t.device.type for t in made(name, device="meta")[0].state_dict().values()} == {"meta"}


LAYOUTS = [
    *[
        (kind, (6, 4, 1), size)
        for kind, size in ((BCOPConv2d, (5, 3)), (BCOPConvTranspose2d, (5, 3)), (BCOPConv1d, (5,)))
    ],
    (BCOPConv2d, (3, 16, 2, 2), (4, 6)),  # a kernel of size 1 after downsampling
    (BCOPConv2d, (4, 6, 3), (1, 1)),  # whose taps all fall on one pixel
    *[(partial(convolution, kind), (2, 4, 3, 1, 5, 4), (5, 4)) for kind in ("bcop", "rkl2ne", "ossn")],
]


@pytest.mark.parametrize(("kind", "arguments", "size"), LAYOUTS)
def test_the_layout_in_memory_changes_nothing(kind, arguments, size):
    """Kernels of size 1 on images whose channels lie side by side are products of matrices."""
    layer, x = kind(*arguments, dtype=torch.float64).eval(), double(2, arguments[0], *size)
    results, cotangent = [], torch.randn_like(layer(x))
    for images in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
        layer.zero_grad()
        leaf = images.detach().requires_grad_()
        y = layer(leaf)
        (y * cotangent).sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters())])
        layer.to(memory_format=torch.channels_last)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("c_in", "c_out", "k"), [(4, 4, 2), (5, 3, 3), (3, 5, 3), (6, 6, 4)])
def test_bcop_weight_is_the_papers_equation(c_in: int, c_out: int, k: int) -> None:
    """Rows of taps belong to P, columns to Q; for c_in < c_out the kernel for the swapped channels, transposed."""
    layer = BCOPConv2d(c_in, c_out, k, dtype=torch.float64)
    P, Q = ([basis @ basis.mT for basis in list(layer.MN.detach())[start::2]] for start in (0, 1))
    kernel = bcop_kernel(layer.O.detach(), P, Q)
    expected = kernel if c_in >= c_out else kernel.transpose(0, 1)
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", list(filter(is_built, LAYERS)))
def test_a_weight_source_replaces_what_the_parameters_say(name):
    """In both modes, with its gradient; parameters and buffers are left alone, and copies have none."""
    (layer, x), (other, _) = made(name, dtype=torch.float64), made(name, dtype=torch.float64)
    for parameter in other.parameters():
        parameter.data.add_(0.1)
    layer.bias = other.bias
    own, expected, state = layer.eval()(x), other.eval()(x), copy.deepcopy(layer.state_dict())
    source = other.evaluation_weight().clone().requires_grad_()
    layer.weight_source = lambda: source
    for training in (True, False):
        y = layer.train(training)(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
        y.square().sum().backward()
        assert source.grad.abs().max() > 0
        assert all(p.grad is None for key, p in layer.named_parameters() if key != "bias")
    assert all(torch.equal(value, state[key]) for key, value in layer.state_dict().items())
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(clone(x), own, rtol=0, atol=1e-12)
    layer.weight_source = None
    torch.testing.assert_close(layer(x), own, rtol=0, atol=1e-12)
