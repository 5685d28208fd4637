"""Networks that are no chains, exported: the same function, the same weights."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isoconv
from isoconv.certify import weights_sha256
from isoconv.export import export_onnx, export_torch

SHAPE = (2, 8, 8)


class Net(nn.Module):
    """With every module of graphs, and layers that are used twice, for images of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.norm = (
            nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
            nn.AvgPool2d(2),
            nn.BatchNorm2d(2),
        )
        self.offset, self.head = nn.Parameter(torch.randn(2, 1, 8)), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.conv(x + self.offset).chunk(2, dim=1)
        x = torch.cat([F.leaky_relu(second, 0.1), first.abs()], 1) - 0.5 * x
        x = self.pool(self.norm(self.conv(self.pool(x))))
        x = torch.cat([x, x.mT], 1)
        return self.head(x.flatten(1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_function(dtype: str, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, precision = Net().eval(), getattr(torch, dtype)
    graph, images = isoconv.plain(model, SHAPE), torch.rand(5, *SHAPE).to(precision)
    export_torch(model, SHAPE, tmp_path / "net.safetensors", dtype=dtype)
    export_onnx(model, SHAPE, tmp_path / "net.onnx", dtype=dtype)
    spec = importlib.util.spec_from_file_location("net", tmp_path / "net.py")
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    assert code.WEIGHTS_SHA256 == weights_sha256(graph) == weights_sha256(code.load(torch.float32))
    expected = graph.to(precision)(images)
    assert torch.equal(code.load()(images), expected)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (found,) = session.run(None, {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(found), expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
