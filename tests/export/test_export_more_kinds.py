"""Exported smooth activations, uneven pooling, interpolation and transposed convolutions are as exact as certified."""

from pathlib import Path

import pytest
import torch
from torch import nn

import isoconv
from certify.exact_network import error_bound, exact_logits, images, logit_error
from certify.test_more_kinds import CURVES, LINEAR, network
from export.test_export import imported, logits_of
from isoconv.certify import Certifier
from isoconv.export import export_onnx, export_torch

MODULES: list[tuple[nn.Module, tuple[int, ...]]] = [(curve, (9,)) for curve in [*CURVES, nn.Softmax(1)]]
MODULES += [(module, shape) for module, shape, _ in LINEAR]
MODULES += [(nn.Dropout2d(), (2, 3, 3)), (nn.AlphaDropout(), (4,))]


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda value: str(value)[:70])
def test_onnxruntime_rounds_no_more_than_is_certified(
    module: nn.Module, shape: tuple[int, ...], arithmetic: str, tmp_path: Path
) -> None:
    """From far left, where exponentials overflow, to far right; against exact arithmetic."""
    model = network(module.float(), shape=shape)
    export_onnx(model, shape, tmp_path / "net.onnx", dtype=arithmetic)
    x = torch.cat([(images(3, *shape) - 0.5) * scale for scale in (1.0, 8.0, 40.0, 2e3)]).float()
    certifier = Certifier(model, shape, arithmetic=arithmetic, input_range=(-1e4, 1e4))
    for image, logits in zip(
        x.double(), logits_of(tmp_path / "net.onnx", x.to(getattr(torch, arithmetic))), strict=True
    ):
        assert logit_error(logits, exact_logits(model, image)) <= error_bound(certifier, image)


def test_gelu_in_float64_has_room(tmp_path: Path) -> None:
    """Its erf is a series of our own: everywhere within half of what is certified."""
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU()).double()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    export_onnx(model, (1,), tmp_path / "net.onnx", dtype="float64")
    x = torch.linspace(-10, 10, 4001, dtype=torch.float64)[:, None]
    for value, computed in zip(x, logits_of(tmp_path / "net.onnx", x), strict=True):
        assert logit_error(computed, exact_logits(nn.GELU(), value)) <= 10 * 2.0**-53 * abs(float(value))


@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda value: str(value)[:70])
def test_the_code_computes_the_same(module: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    model, x = network(module.float(), shape=shape), torch.rand(3, *shape) - 0.5
    export_torch(model, shape, tmp_path / "net.safetensors")
    with torch.no_grad():
        assert torch.equal(imported(tmp_path / "net.py").load()(x), isoconv.plain(model)(x))
    assert max(map(len, (tmp_path / "net.py").read_text().splitlines())) <= 120
