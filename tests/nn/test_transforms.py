"""torch.func: Jacobians with respect to the input, gradients of single examples and of the parameters."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, vmap

from helpers import LAYERS, jacobian, made

NAMES = ["bcop", "bcop s2", "bcop-bjorck", "rko", "rkl2ne", "1d", "transposed", "linear", "linear-bjorck", "standard"]


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_the_jacobian_with_respect_to_the_input(name, mode):
    layer, x = made(name, dtype=torch.float64)
    layer.train(mode)
    J = jacrev(layer)(x[:1])
    expected = jacobian(layer.eval(), *x.shape[1:])
    assert torch.allclose(J.reshape(expected.shape), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_per_example(name):
    layer, x = made(name)
    layer.eval()
    found = vmap(grad(lambda one: layer(one[None]).square().sum()))(x)
    for one, gradient in zip(x, found, strict=True):
        one = one.clone().requires_grad_()
        layer(one[None]).square().sum().backward()
        assert torch.allclose(one.grad, gradient, atol=1e-5)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_with_respect_to_the_parameters(name, mode):
    layer, x = made(name, dtype=torch.float64)
    layer.train(mode)
    target = torch.randn_like(layer(x))
    (layer(x) * target).sum().backward()
    parameters = {k: p.detach().clone() for k, p in layer.named_parameters()}
    found = grad(lambda values: (functional_call(layer, values, (x,)) * target).sum())(parameters)
    for k, p in layer.named_parameters():
        assert torch.allclose(found[k], p.grad, rtol=0, atol=1e-10), k


@pytest.mark.parametrize("name", LAYERS)
def test_other_parameters_for_one_call(name):
    """functional_call leaves nothing behind."""
    layer, other = (made(name)[0].eval() for _ in range(2))
    x = made(name)[1]
    own = layer(x).detach()
    assert torch.equal(functional_call(layer, other.state_dict(), (x,)), other(x))
    assert torch.equal(layer(x), own)
