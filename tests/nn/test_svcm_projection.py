"""SVCM's layers: each is projected at its own size, and those that are alike together."""

import copy

import pytest
import torch

from isoconv.linalg.clipping import clip_and_mask
from isoconv.nn import SVCMConv2d, svcm
from isoconv.nn.svcm import project_together
from linalg.test_clipping import by_svd


def test_layers_project_together_as_each_alone(monkeypatch):
    alike = [SVCMConv2d(3, 5, 4, 2, input_size=(12, 8)) for _ in range(3)]
    others = [
        SVCMConv2d(3, 5, 4, 2, input_size=(12, 8), padding_mode="zeros"),
        SVCMConv2d(3, 5, 4, 2, input_size=(8, 8)),
        SVCMConv2d(3, 5, 2, input_size=(12, 8)),
        SVCMConv2d(3, 5, 4, 2, input_size=(12, 8), dtype=torch.float64),
    ]
    layers = [alike[0], *others[:2], *alike[1:], *others[2:]]
    with torch.no_grad():
        for layer in layers:
            layer.kernel.mul_(3)
    alone, before = copy.deepcopy(layers), copy.deepcopy(layers)
    calls = []
    monkeypatch.setattr(svcm, "clip_and_mask", lambda *given: calls.append(len(given[0])) or clip_and_mask(*given))
    project_together([], 20)
    project_together(layers, 20)
    assert calls == [3, 1, 1, 1, 1]
    for layer, one, old in zip(layers, alone, before, strict=True):
        one.project(20)
        assert layer.kernel.dtype == one.kernel.dtype and layer.kernel.requires_grad
        assert (layer.kernel - one.kernel).abs().max() <= 1e-5
        assert (layer.kernel - old.kernel).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
def test_the_layer_projects_at_the_size_that_it_convolves_and_in_single_precision_at_least(padding_mode, dtype):
    layer = SVCMConv2d(3, 5, 4, 2, input_size=(12, 8), padding_mode=padding_mode, dtype=dtype)
    with torch.no_grad():
        layer.kernel.mul_(3)
    before = layer.kernel.detach().clone()
    layer.project(20)
    expected = by_svd(before.double(), (6, 4) if padding_mode == "circular" else (7, 5), 20).to(dtype)
    assert layer.kernel.dtype == dtype
    assert (layer.kernel - expected).abs().max() <= (1e-5 if dtype == torch.float32 else 0)
    assert (layer.kernel - before).abs().max() > 1e-2
