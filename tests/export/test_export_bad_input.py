"""What cannot be exported is refused in one line, and nothing is written."""

import errno
import os
import sys

import pytest
import torch
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.export import export_onnx, export_torch
from isoconv.models import Small
from isoconv.nn import BCOPConv2d, OrthogonalLinear


def with_a_hook():
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    return model


def with_nan():
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].bias[1] = torch.nan
    return model


BOTH = {
    "unknown dtype": (lambda: nn.Linear(4, 3), (4,), {"dtype": "float16"},
                      "Expected dtype to be one of float32, float64. Got 'float16'."),
    "half": (lambda: nn.Linear(4, 3).half(), (4,), {}, "Expected weights in float32, or all in float64. Got float16."),
    "mixed": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double()), (4,), {},
              "Expected weights in float32, or all in float64. Got float32, float64."),
    "no weights": (lambda: nn.Sequential(nn.ReLU()), (4,), {},
                   "Expected weights in float32, or all in float64. Got none."),
    "float64 weights in float32": (lambda: nn.Linear(4, 3).double(), (4,), {},
                                   "Expected dtype float64 for float64 weights. Got float32, which would round them."),
    "NaN": (with_nan, (4,), {}, "Expected finite weights. Got infinities or NaN in 0.bias."),
    "unknown module": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (4,), {},
                       "Expected modules that can be exported. Got Softmax at 1."),
    "transposed convolution": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 2, 2)), (3, 4, 4), {},
                               "Expected modules that can be exported. Got ConvTranspose2d at 0."),
    "a module of one's own": (lambda: type("Mine", (nn.Linear,), {})(4, 3), (4,), {},
                              "Expected modules with a known Lipschitz constant. Got Mine at model: "
                              "its constant is unknown, so nothing can be certified."),
    "hooks": (with_a_hook, (4,), {}, "Expected modules without forward hooks. Got some at 0: remove them first."),
    "number of classes": (lambda: nn.Linear(4, 3), (4,), {"classes": ["a", "b"]},
                          "Expected 2 logits, one per class. Got outputs of shape (3,)."),
    "shape that does not fit": (lambda: nn.Sequential(nn.Linear(4, 3)), (5,), {}, None),
    "empty shape": (lambda: nn.Linear(4, 3), (), {},
                    "Expected input_shape without the batch, such as (3, 32, 32). Got ()."),
}  # fmt: skip
ONNX_ONLY = {
    "negative padding": (lambda: nn.Sequential(nn.ZeroPad2d(-1), nn.Conv2d(1, 2, 1)), (1, 4, 4), {},
                         "Expected modules that can be exported. Got ZeroPad2d with padding (-1, -1, -1, -1) at 0."),
    "reflect": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")), (1, 4, 4), {},
                "Expected modules that can be exported. Got Conv2d with padding_mode 'reflect' at 0."),
    "flatten in part": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(2)), (1, 4, 4), {},
                        "Expected modules that can be exported. Got Flatten with start_dim 2 and end_dim -1 at 1."),
}  # fmt: skip


def refused(write, path, case):
    build, shape, options, message = case
    with pytest.raises(IsoconvError) as caught:
        write(build(), shape, path, **options)
    text = str(caught.value)
    assert "\n" not in text and text.startswith("Expected ")
    assert message is None or text == message
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("name", [*BOTH, *ONNX_ONLY])
def test_onnx_refuses(name, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'isoconv[onnx]'")
    refused(export_onnx, tmp_path / "net.onnx", (BOTH | ONNX_ONLY)[name])


@pytest.mark.parametrize("name", BOTH)
def test_torch_refuses(name, tmp_path):
    refused(export_torch, tmp_path / "net.safetensors", BOTH[name])


def test_the_size_must_fit(tmp_path):
    model = nn.Sequential(BCOPConv2d(3, 4, 3), nn.Flatten(), OrthogonalLinear(64, 2))
    with pytest.raises(IsoconvError, match=r"^Expected an input that Linear at 2 can take\."):
        export_torch(model, (3, 8, 8), tmp_path / "n.safetensors")


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(IsoconvError, match=r"^Export to ONNX needs a package: pip install 'isoconv\[onnx\]'\.$"):
        export_onnx(nn.Linear(4, 3), (4,), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_existing_files_stay(tmp_path):
    model = Small((1, 8, 8), 3).eval()
    for name in ("net.safetensors", "net.py"):
        (tmp_path / name).write_text("years of work")
        with pytest.raises(IsoconvError, match=rf"{name} already exists: replace it \(--overwrite\) or name another"):
            export_torch(model, (1, 8, 8), tmp_path / "net.safetensors")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["years of work"]
        (tmp_path / name).unlink()
    (tmp_path / "net.py").write_text("old")
    export_torch(model, (1, 8, 8), tmp_path / "net.safetensors", overwrite=True)
    assert "def load" in (tmp_path / "net.py").read_text()


def test_places_that_are_none(tmp_path):
    model = nn.Linear(4, 3)
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(IsoconvError, match=r"^Expected a file to write to\. Got .*, which is a folder\.$"):
        export_torch(model, (4,), tmp_path / "folder.safetensors", overwrite=True)
    with pytest.raises(IsoconvError, match=r"^Expected a folder to write net\.safetensors to\. There is no folder "):
        export_torch(model, (4,), tmp_path / "nowhere" / "net.safetensors")
    with pytest.raises(IsoconvError, match=r"^Expected a file name that ends in \.safetensors\. Got net\.pt\.$"):
        export_torch(model, (4,), tmp_path / "net.pt")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(number, call, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("old code")
    (tmp_path / "net.safetensors").write_text("old weights")

    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(IsoconvError, match=rf"^Cannot write {tmp_path}/net\.safetensors: {os.strerror(number)}\.$"):
        export_torch(nn.Linear(4, 3), (4,), tmp_path / "net.safetensors", overwrite=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "net.py": "old code", "net.safetensors": "old weights",
    }  # fmt: skip


def test_an_interruption_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "net.safetensors").write_text("old weights")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_torch(nn.Linear(4, 3), (4,), tmp_path / "net.safetensors", overwrite=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"net.safetensors": "old weights"}
