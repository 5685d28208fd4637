"""Weights that were built ahead are the same weights, built once, and gone after the context."""

import pytest
import torch

from isoconv.models import CONVOLUTIONS, Small
from isoconv.nn import BCOPConv2d
from isoconv.nn.prepare import PreparedWeights


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("conv", [name for name in CONVOLUTIONS if name != "ossn"])  # whose vector moves at each pass
def test_the_same_gradients(conv: str) -> None:
    model, x = Small((1, 8, 8), conv=conv), torch.rand(4, 1, 8, 8)
    model(x).square().sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with PreparedWeights([model]):
        model(x).square().sum().backward()
    found = gradients(model)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_one_build_for_all_passes_and_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = BCOPConv2d(2, 2, 3), torch.rand(1, 2, 4, 4)
    builds = []
    build = layer._build
    monkeypatch.setattr(layer, "_build", lambda *sources: builds.append(1) or build(*sources))
    with PreparedWeights([layer]):
        (layer(x) + layer(2 * x)).sum().backward()
    assert len(builds) == 1
    with torch.no_grad():
        layer.O.mul_(-1)
    before = layer(x)
    with pytest.raises(RuntimeError, match="on purpose"), PreparedWeights([layer]):
        raise RuntimeError("on purpose")
    assert layer.weight_source is None
    assert torch.equal(layer(x), before)
