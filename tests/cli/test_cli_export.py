"""isoconv export: what it writes, what it says, and that the certificate goes with it."""

import json
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from certify.certificates import check
from isoconv.certify import weights_sha256
from isoconv.train.run_folder import load_run


@pytest.fixture
def run(world: Path) -> Path:
    return world / "run-7"


def imported(path: Path):
    spec = spec_from_file_location("exported_by_the_command", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch(isoconv, run):
    outcome = isoconv("export", run, "--format", "torch")
    model, config = load_run(run)
    assert outcome.code == 0 and outcome.out == ""
    for part in ("run-7.safetensors", "run_7.py", weights_sha256(model), "certificates"):
        assert part in outcome.err
    written, kept = load_file("run-7.safetensors"), load_file(run / "model.safetensors")
    assert written.keys() == kept.keys()
    assert all(written[name].numpy().tobytes() == kept[name].numpy().tobytes() for name in kept)
    code, images = imported(Path("run_7.py")), torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(code.load()(images), model(images))
    assert (config.classes, config.input_shape) == (code.CLASSES, code.INPUT_SHAPE)


def test_the_runs_certificate_is_valid_for_the_exported_weights(isoconv, run):
    assert isoconv("certify", run, "--certificate", "c.json", "--device", "cpu").code == 0
    assert isoconv("export", run, "--format", "torch", "--out", "net.safetensors").code == 0
    assert check(["c.json", "net.safetensors"]) == 0
    certified = json.loads(Path("c.json").read_text().splitlines()[0])["weights_sha256"]
    assert certified == imported(Path("net.py")).WEIGHTS_SHA256


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_onnx(dtype, isoconv, run):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'isoconv[onnx]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'isoconv[onnx]'")
    outcome = isoconv("export", run, "--dtype", dtype)
    assert outcome.code == 0 and "run-7.onnx" in outcome.err
    kept, model = load_file(run / "model.safetensors"), load_run(run)[0].to(getattr(torch, dtype))
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load("run-7.onnx").graph.initializer}
    assert all(arrays[name].tobytes() == kept[name].numpy().tobytes() for name in kept)
    session = onnxruntime.InferenceSession("run-7.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        images = torch.rand(batch, 1, 8, 8, dtype=getattr(torch, dtype))
        with torch.no_grad():
            expected = model(images)
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        torch.testing.assert_close(found, expected, atol=1e-5 if dtype == "float32" else 1e-12, rtol=0)


def test_json(isoconv, run):
    outcome = isoconv("export", run, "--format", "torch", "--out", "net.safetensors", "--dtype", "float64", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {
        "format": "torch",
        "files": ["net.safetensors", "net.py"],
        "dtype": "float64",
        "weights_sha256": weights_sha256(load_run(run)[0]),
        "input_shape": [1, 8, 8],
        "classes": list("abcd"),
    }
    assert imported(Path("net.py")).load()[5].weight.dtype == torch.float64


def test_one_seed_of_several(isoconv, run):
    shutil.copytree(run, "both/seed-1")
    assert isoconv("export", "both/seed-1", "--format", "torch").code == 0
    assert Path("seed-1.safetensors").exists() and Path("seed_1.py").exists()


def test_torch_needs_no_onnx(isoconv, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert isoconv("export", run, "--format", "torch").code == 0
