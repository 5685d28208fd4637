"""Layers of several models that are built in one batch are each what it is alone, in value and in gradient."""

import copy

import pytest
import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.linalg.manifold import is_orthonormal
from isoconv.models import FC3, Large, Small
from isoconv.nn import BCOPConv1d, BCOPConv2d, OrthogonalLinear, RKOConv2d
from isoconv.nn.prepare import PreparedWeights
from isoconv.nn.stacks import ParameterStack, stack_layers

LAYERS = [
    lambda **options: BCOPConv2d(3, 8, 3, **options),
    lambda **options: BCOPConv2d(8, 3, 3, **options),
    lambda **options: BCOPConv2d(4, 6, 4, stride=2, **options),
    lambda **options: BCOPConv2d(5, 5, 1, **options),
    lambda **options: BCOPConv2d(1, 1, 3, **options),
    lambda **options: BCOPConv1d(3, 5, 3, **options),
    lambda **options: BCOPConv1d(5, 3, 4, stride=2, **options),
    lambda **options: BCOPConv1d(4, 4, 5, ranks=(0, 1, 4, 2), **options),
    lambda **options: RKOConv2d(3, 7, 3, **options),
    lambda **options: RKOConv2d(7, 2, 2, stride=2, **options),
    lambda **options: OrthogonalLinear(9, 4, **options),
    lambda **options: OrthogonalLinear(4, 9, **options),
]


def moved(layers: list[nn.Module]) -> None:
    """Off the manifold by a little, each differently, as a step leaves them."""
    with torch.no_grad():
        for layer in layers:
            for p in layer.parameters():
                p.add_(torch.randn_like(p) * 0.003)


@pytest.mark.parametrize("orthogonalisation", ["manifold", "bjorck"])
@pytest.mark.parametrize("make", LAYERS)
def test_as_each_alone(make, orthogonalisation: str) -> None:
    torch.manual_seed(0)
    layers = [make(orthogonalisation=orthogonalisation, dtype=torch.float64) for _ in range(3)]
    moved(layers)
    apart = copy.deepcopy(layers)
    (stack,) = stack_layers(layers)
    weights = stack.build()
    cotangents = [torch.randn_like(weight) for weight in weights]
    sum((w * c).sum() for w, c in zip(weights, cotangents, strict=True)).backward()
    for k, (layer, weight, cotangent) in enumerate(zip(apart, weights, cotangents, strict=True)):
        assert weight.shape == layer.weight.shape
        torch.testing.assert_close(weight, layer.weight, rtol=0, atol=1e-13)
        (layer.weight * cotangent).sum().backward()
        for one, parameter in zip(stack.parameters, layer._matrices(), strict=True):
            torch.testing.assert_close(
                one.split(one.whole)[k], parameter.detach(), rtol=0, atol=1e-13
            )  # retracted alike
            torch.testing.assert_close(one.split(one.whole.grad)[k], parameter.grad, rtol=0, atol=1e-12)


def test_the_models_see_what_happens_to_the_stack() -> None:
    layers = [OrthogonalLinear(6, 3), OrthogonalLinear(6, 3)]
    before = [layer.matrix.clone() for layer in layers]
    moved(layers)
    (stack,) = stack_layers(layers)
    stack.build()
    for layer, was in zip(layers, before, strict=True):
        assert is_orthonormal(layer.matrix)
        assert not torch.equal(layer.matrix, was)
    with torch.no_grad():
        stack.parameters[0].whole.mul_(-1)
        held = [layer.matrix.clone() for layer in layers]
        stack.parameters[0].whole.mul_(-1)
    for layer, negative in zip(layers, held, strict=True):
        torch.testing.assert_close(layer.matrix, -negative, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 4, 3), (1, 5, 5)], ids=str)
def test_a_stack_is_a_batch_of_matrices(shape: tuple[int, ...]) -> None:
    parameters = [nn.Parameter(torch.randn(shape)) for _ in range(3)]
    values = [p.detach().clone() for p in parameters]
    stack = ParameterStack(parameters)
    assert stack.whole.shape == (3 * (shape[0] if len(shape) == 3 else 1), *shape[-2:])
    assert stack.whole.is_leaf
    assert stack.whole.requires_grad
    for p, value, part in zip(parameters, values, stack.split(stack.whole), strict=True):
        assert torch.equal(p, value)
        assert torch.equal(part, value)
        assert p.untyped_storage().data_ptr() == stack.whole.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("model", "conv", "count"),
    [
        (Small, "bcop", 4),
        (Large, "bcop", 7),
        (Large, "rko", 7),
        (Large, "ossn", 3),  # the linear layers
        (Large, "svcm", 3),
        (Small, "rkl2ne", 2),
        (Small, "bcop-fixed", 2),  # its convolutions are not trained
        (FC3, "bcop", 4),
        (Small, "standard", 0),
    ],
)
def test_what_is_stacked(model, conv: str, count: int) -> None:
    assert len(stack_layers([model((1, 8, 8), conv=conv) for _ in range(2)])) == count


@pytest.mark.parametrize("conv", ["bcop", "rko", "svcm", "rkl2ne", "bcop-fixed"])
def test_whole_models(conv: str) -> None:
    """Prepared in stacks, each model has the outputs and the gradients that it has alone."""
    models = [Small((1, 8, 8), conv=conv) for _ in range(3)]
    x = torch.rand(3, 4, 1, 8, 8)
    apart = copy.deepcopy(models)
    layers = stack_layers(models)
    outputs: list[Tensor] = []
    with PreparedWeights(models, stacks=layers):
        outputs = [model(batch) for model, batch in zip(models, x, strict=True)]
        torch.stack([output.square().sum() for output in outputs]).sum().backward()
    stacked = {
        p: gradient
        for layer in layers
        for stack in layer.parameters
        for p, gradient in zip(stack.parameters, stack.split(stack.whole.grad), strict=True)
    }
    for model, other, batch, output in zip(models, apart, x, outputs, strict=True):
        expected = other(batch)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
        expected.square().sum().backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            if q.grad is not None:
                torch.testing.assert_close(stacked.get(p, p.grad), q.grad, rtol=0, atol=1e-4)


def test_what_is_shared_is_not_stacked() -> None:
    """A parameter of two layers cannot lie in two stacks."""

    def tied() -> nn.Module:
        layer = BCOPConv2d(4, 4, 3)
        first, second = OrthogonalLinear(5, 5), OrthogonalLinear(5, 5)
        second.matrix = first.matrix
        return nn.ModuleList([layer, layer.transposed(), first, second, OrthogonalLinear(5, 5)])

    (stack,) = stack_layers([tied(), tied()])
    assert len(stack.parameters) == 1

    def used_twice() -> nn.Module:
        layer = OrthogonalLinear(5, 5)
        return nn.Sequential(layer, nn.ReLU(), layer)

    assert len(stack_layers([used_twice(), used_twice()])) == 1


def test_nothing_is_left_of_what_was_before() -> None:
    layers = [BCOPConv2d(2, 4, 3), BCOPConv2d(2, 4, 3)]
    for layer in layers:
        layer(torch.rand(1, 2, 4, 4)).sum().backward()
    (stack,) = stack_layers(layers)
    assert all(p.grad is None for one in stack.parameters for p in one.parameters)
    moved(layers)
    x = torch.rand(1, 2, 4, 4)
    with torch.no_grad():
        before = [layer.eval()(x) for layer in layers]
    for layer in layers:
        layer.train()
    with torch.no_grad():
        for one in stack.parameters:
            one.whole.mul_(-1)
    stack.build()  # says that the parameters are other ones
    for layer, was in zip(layers, before, strict=True):
        now = layer.eval()(x)
        assert not torch.allclose(now, was, atol=1e-3)
        torch.testing.assert_close(now, copy.deepcopy(layer)(x), rtol=0, atol=1e-6)


def test_a_build_that_fails_leaves_nothing_prepared() -> None:
    models = [nn.Sequential(OrthogonalLinear(3, 3), OrthogonalLinear(3, 3)) for _ in range(2)]
    with torch.no_grad():
        models[1][1].matrix.fill_(torch.nan)
    with pytest.raises(IsoconvError, match="finite parameters"), PreparedWeights(models):
        pass
    assert all(layer.weight_source is None for model in models for layer in model)
