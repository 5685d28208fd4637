"""Any floating-point type, and constraints that are computed in float32 or better whatever autocast says."""

import pytest
import torch

from helpers import LAYERS, is_built, is_manifold, made, singular_values

layers = pytest.mark.parametrize("name", LAYERS)
modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def is_isometry(name: str) -> bool:
    return is_manifold(name) and not name.startswith("rko")


@modes
@layers
def test_double_and_half_precision(name, training):
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        layer, x = made(name)
        single = layer.eval()(x)
        layer.to(dtype)
        if dtype == torch.float64 and is_isometry(name):  # its parameters are orthonormal only to single precision now
            assert (singular_values(layer, *x.shape[1:]) - 1).abs().max() <= 1e-12
        y = layer.train(training)(x.to(dtype))
        assert y.dtype == layer.weight.dtype == dtype and y.isfinite().all()
        # Parameters, kernel and output are each rounded; errors add up over a few hundred terms like a random walk.
        # OSSN's further power iterations in training sharpen the estimate.
        if not name.startswith("ossn"):
            assert (y.float() - single).abs().max() <= max(30 * torch.finfo(dtype).eps, 1e-5)
        if "fixed" not in name:
            y.float().square().sum().backward()
            assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", [name for name in LAYERS if "fixed" not in name])
def test_training_in_half_precision(name):
    for dtype in (torch.bfloat16, torch.float16):
        layer, x = made(name, dtype=dtype)
        descent = torch.optim.SGD(layer.parameters(), lr=0.1)
        target = torch.randn_like(layer(x))
        for _ in range(3):
            descent.zero_grad()
            (layer(x) * target).mean().backward()
            descent.step()
            if name.startswith(("svcm", "ossn-after")):
                layer.project()
        assert layer.eval()(x).isfinite().all()
        if is_isometry(name):
            assert (singular_values(layer, *x.shape[1:]) - 1).abs().max() <= 10 * torch.finfo(dtype).eps


@modes
@layers
def test_autocast(name, training):
    layer, x = made(name)
    layer.train(training)
    if name.startswith("ossn"):
        layer.power_iterate(1000)
    expected = layer.weight.detach().clone()
    if is_built(name):
        layer.refresh()
    with torch.autocast("cpu", torch.bfloat16):
        weight, y = layer.weight, layer(x)
    assert weight.dtype == torch.float32
    assert torch.allclose(weight, expected, rtol=0, atol=1e-6)
    assert y.isfinite().all()
    if "fixed" not in name:
        y.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    assert torch.allclose(layer.eval().weight, expected, rtol=0, atol=1e-6)  # nothing in bfloat16 was kept
