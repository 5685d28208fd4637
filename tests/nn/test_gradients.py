"""Gradients: their norm is preserved, and they are the derivatives of what the layer computes."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers import LAYERS, convolution, is_built, is_manifold, made, padding_modes, polar_by_svd, randomised
from isoconv.nn import BCOPConv1d, BCOPConv2d, MaxMin, OrthogonalLinear

TRAINABLE = [name for name in LAYERS if "fixed" not in name]
trainable = pytest.mark.parametrize("name", TRAINABLE)
modes = pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        *[(kind, 1 - 1e-4, 1 + 1e-4) for kind in ("bcop", "bcop-bjorck")],
        ("rko", 1e-10, 1e-9),  # an orthonormal 8×72 matrix over 3: a factor of √(8/8)/3 a layer, 3⁻²⁰ = 2.9e-10
        ("ossn", 1e-7, 1e-5),
        ("rkl2ne", 1e-14, 1e-11),
    ],
)
def test_20_layers_of_bcop_preserve_the_norm_of_the_gradient_and_other_methods_shrink_it(kind, low, high, mode):
    layers = [convolution(kind, 8, 8, 3, 1, 8, 8) for _ in range(20)]
    for layer in layers if kind == "ossn" else ():
        layer.power_iterate(300)
    network = nn.Sequential(*[module for layer in layers for module in (layer, MaxMin())]).train(mode)
    x = torch.randn(2, 8, 8, 8, requires_grad=True)
    y = network(x)
    v = torch.randn_like(y)
    y.backward(v)
    assert low < float(x.grad.norm() / v.norm()) < high


def tangent(U: Tensor) -> Tensor:
    """A random direction that keeps U orthonormal to first order."""
    if U.shape[-2] < U.shape[-1]:
        return tangent(U.mT).mT
    Z = torch.randn_like(U)
    return Z - U @ (U.mT @ Z + Z.mT @ U) / 2


def loss_of(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (layer(x) - y).tanh().mul(y).sum()


def gradients(layer: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    layer.zero_grad()
    loss_of(layer, x, y).backward()
    return {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}


def derivative_along(value: Callable[[], Tensor], p: Tensor, direction: Tensor, retract: bool) -> float:
    """d/dt of a value as a parameter moves in `direction`: central differences of fourth order."""
    origin, h, values = p.detach().clone(), 1e-3, {}  # truncation h⁴ = 1e-12, rounding eps / h = 2e-13
    for n in (-2, -1, 1, 2):
        moved = origin + n * h * direction
        p.data.copy_(polar_by_svd(moved) if retract else moved)
        values[n] = float(value().detach())
    p.data.copy_(origin)
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)


@modes
@trainable
def test_the_gradient_is_the_derivative(name, mode):
    """Along tangent directions and through the retraction where the parameter lives on the manifold, else along any."""
    layer, x = made(name, dtype=torch.float64)
    if name.startswith(("ossn", "rkl2ne", "svcm", "aol", "standard")):
        randomised(layer, gain=1.0)
    y = torch.randn_like(layer(x))
    if name.startswith("ossn"):
        layer.power_iterate(1500)  # where the vector no longer moves, neither does the gradient
    found = gradients(layer.train(mode), x, y)
    layer.eval()
    for parameter, gradient in found.items():
        U = layer.get_parameter(parameter).detach()
        on_manifold = is_manifold(name) and parameter != "bias"
        for _ in range(2):
            direction = tangent(U) if on_manifold else torch.randn_like(U)
            direction *= U.norm() / direction.norm()
            value = partial(loss_of, layer, x, y)
            expected = derivative_along(value, layer.get_parameter(parameter), direction, on_manifold)
            assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        if on_manifold:  # nothing of it points away
            G = U.mT @ gradient if U.shape[-2] >= U.shape[-1] else gradient @ U.mT
            assert (G + G.mT).abs().max() <= 1e-12 * max(1, float(gradient.norm()))


@modes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 4, 20])
@pytest.mark.parametrize("features", [(9, 5), (5, 9), (6, 6), (1, 7)], ids=str)
def test_the_gradient_of_a_linear_layer_is_the_same_from_its_batch_and_from_its_weight(features, rows, bias, mode):
    """Few rows (the gradient of the weight has a low rank) and many; off the manifold too, where evaluation leaves it."""
    layer = OrthogonalLinear(*features, bias, dtype=torch.float64).train(mode)
    with torch.no_grad():
        layer.matrix += 0.1 * torch.randn_like(layer.matrix)
    x = torch.randn(rows, features[0], dtype=torch.float64, requires_grad=True)
    v, wanted = torch.randn(rows, features[1], dtype=torch.float64), (x, *layer.parameters())
    outputs = layer(x), F.linear(x, layer.weight, layer.bias)
    assert torch.equal(*outputs)
    for gradient, expected in zip(*(torch.autograd.grad(output, wanted, v) for output in outputs), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-13)
    twice = []
    for output in (
        layer(x),
        F.linear(x, layer.weight, layer.bias),
    ):  # the penalty of a gradient, differentiated once more
        (first,) = torch.autograd.grad((output + output.sin()).sum(), x, create_graph=True)
        twice.append(torch.autograd.grad(first.square().sum(), wanted))
    for gradient, expected in zip(*twice, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-13)


@trainable
def test_several_backward_passes_over_one_build_reach_every_parameter(name):
    """Both passes of a critic and then each loss on its own, or one after the other: the gradient of the sum."""
    paddings = ["circular"] if name.startswith("ossn") else padding_modes(name)  # with zeros its vector settles slowly
    for mode, padding_mode in product((True, False), paddings):
        options = {} if name.startswith("linear") else {"padding_mode": padding_mode}
        layer, x = made(name, dtype=torch.float64, **options)
        if name.startswith("ossn"):
            layer.power_iterate(1500)
        inputs, y = (x, torch.randn_like(x), 3 * x), torch.randn_like(layer(x))
        layer.train(mode)
        parts = [gradients(layer, each, y) for each in inputs]
        layer.zero_grad()
        for loss in [loss_of(layer, each, y) for each in inputs[:2]]:
            loss.backward()
        loss_of(layer, inputs[2], y).backward()
        for k, p in layer.named_parameters():
            assert torch.allclose(p.grad, sum(part[k] for part in parts), rtol=1e-9, atol=1e-10), k
            assert p.grad.isfinite().all() and parts[0][k].abs().max() > 1e-4, k


@pytest.mark.parametrize("name", ["bcop", "bcop-bjorck", "1d", "transposed s2", "linear", "rko"])
def test_a_gradient_penalty(name):
    """Differentiating the gradient with respect to the input once more, down to the parameters."""
    layer, x = made(name, dtype=torch.float64)
    x.requires_grad_()
    y = torch.randn_like(layer(x)).detach()

    def penalty() -> Tensor:
        (g,) = torch.autograd.grad((layer(x) * y).tanh().sum(), x, create_graph=True)
        return g.square().sum()

    penalty().backward()
    p = next(layer.parameters())
    gradient, direction = p.grad.clone(), tangent(p.detach())
    expected = derivative_along(penalty, p, direction, True)
    assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["bcop", "bcop groups", "1d", "transposed groups", "linear tall"])
def test_first_and_second_derivatives_with_respect_to_the_input(name):
    layer, x = made(name, dtype=torch.float64)
    x = x[:1]
    x.requires_grad_()
    torch.autograd.gradcheck(layer, x)
    torch.autograd.gradgradcheck(lambda z: layer(z).square(), x)


@pytest.mark.parametrize("kind", [BCOPConv1d, BCOPConv2d])
def test_frozen_parameters_get_none_but_the_input_does(kind):
    layer = kind(3, 4, 3, frozen=True)
    x = torch.randn(2, 3, *[5] * (layer.weight.ndim - 2), requires_grad=True)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer(x).square().sum().backward()
    assert all(p.grad is None and not p.requires_grad for p in layer.parameters())
    assert x.grad.abs().max() > 0
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


@pytest.mark.parametrize("name", list(filter(is_built, TRAINABLE)))
def test_parameters_as_large_as_floats_can_be(name):
    """The weight depends on the direction of large parameters alone, and the gradients stay finite in float32."""
    weights = []
    for exponent in (40, 66, 100, 124):
        torch.manual_seed(0)
        layer, x = made(name)
        for parameter in (p for key, p in layer.named_parameters() if key != "bias" and p.requires_grad):
            parameter.data = torch.randn_like(parameter) * 2.0**exponent
        weights.append(layer.eval().weight.detach())
        layer(x).square().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    for weight in weights[1:]:
        torch.testing.assert_close(weight, weights[0], rtol=0, atol=1e-6)
