"""Every method by its name, from training to a certificate that the checker accepts and an exported file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from certify.certificates import check
from isoconv.train.run_folder import load_run

TINY = ["--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu", "--lr", "0.001"]


@pytest.mark.parametrize("conv", ["aol", "cayley", "soc", "bro", "sll", "cpl"])
def test_train_certify_check_and_export(isoconv, pictures, conv):
    assert isoconv("train", pictures, "--out", "run", "--conv", conv, *TINY).code == 0
    assert isoconv("certify", "run", "--certificate", "c.json", "--device", "cpu").code == 0
    assert check(["c.json", "run"]) == 0
    assert json.loads(Path("run/certified.json").read_text())["lipschitz_bound"] <= 1 + 1e-3
    onnxruntime = pytest.importorskip("onnxruntime")
    assert isoconv("export", "run", "--format", "onnx", "--out", "net.onnx").code == 0
    (model, _), x = load_run("run"), torch.rand(3, 1, 8, 8)
    (found,) = onnxruntime.InferenceSession("net.onnx").run(None, {"images": x.numpy()})
    assert np.abs(found - model(x).detach().numpy()).max() <= 1e-5
