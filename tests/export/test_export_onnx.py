"""ONNX files compute what the network computes, in onnxruntime, and hold its weights bit for bit."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import isoconv
from export.export_networks import NETWORKS, make, sha256_of
from isoconv.certify import Certifier, weights_sha256
from isoconv.export import export_onnx
from isoconv.models import Small
from isoconv.nn import MaxMin

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'isoconv[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'isoconv[onnx]'")

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def logits_of(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_the_same(name, dtype, tmp_path):
    model, shape = make(name)
    export_onnx(model, shape, tmp_path / "model.onnx", dtype=dtype)
    plain = isoconv.plain(model).to(getattr(torch, dtype))
    for batch in (1, 7):
        images = torch.rand(batch, *shape, dtype=getattr(torch, dtype))
        with torch.no_grad():
            expected = plain(images)
        found = logits_of(tmp_path / "model.onnx", images)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["small, bcop", "one-dimensional", "one matrix"])
def test_the_initialisers_are_the_weights_bit_for_bit(name, dtype, tmp_path):
    model, shape = make(name)
    export_onnx(model, shape, tmp_path / "model.onnx", dtype=dtype)
    state = isoconv.plain(model).state_dict()
    written = onnx.load(tmp_path / "model.onnx")
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in written.graph.initializer if x.name in state}
    assert arrays.keys() == state.keys()
    for key, tensor in state.items():
        assert arrays[key].dtype == np.float32 and arrays[key].tobytes() == tensor.numpy().tobytes()
    props = {x.key: x.value for x in written.metadata_props}
    assert props["isoconv.weights_sha256"] == sha256_of(arrays) == weights_sha256(isoconv.plain(model))


def test_what_the_file_says_of_itself(tmp_path):
    model, shape = make("small, bcop")
    for dtype, own in (("float32", "isoconv certify --arithmetic float32"), ("float64", "float64 (isoconv certify)")):
        deployed = export_onnx(model, shape, tmp_path / f"{dtype}.onnx", dtype=dtype, classes=list("äbcde"))
        written = onnx.load(tmp_path / f"{dtype}.onnx")
        props = {x.key: x.value for x in written.metadata_props}
        assert props["isoconv.claim"] == written.doc_string == deployed.claim
        assert deployed.sha256 in deployed.claim and "its certificates still apply" in deployed.claim
        assert f"those for {own}" in deployed.claim.replace("for float32 (isoconv", "for isoconv")
        assert json.loads(props["isoconv.classes"]) == list("äbcde")
        assert json.loads(props["isoconv.input_shape"]) == [3, 8, 8]
        sizes = written.graph.input[0].type.tensor_type.shape.dim
        assert [size.dim_param or size.dim_value for size in sizes] == ["batch", 3, 8, 8]


def test_certificates_hold_for_the_exported_network(tmp_path):
    """onnxruntime's logits differ from the certified ones by no more than the certificate allows for, and its
    predictions stay within each radius, in the direction that changes them fastest."""
    torch.manual_seed(1)
    model = Small((1, 8, 8), 4).eval()
    images = torch.rand(16, 1, 8, 8, dtype=torch.float64)
    certifier = Certifier(model, (1, 8, 8))
    certified = certifier(images)
    export_onnx(model, (1, 8, 8), tmp_path / "model.onnx", dtype="float64")
    logits = logits_of(tmp_path / "model.onnx", images)
    allowed = 2 * (certifier.error.offset + certifier.error.slope * certified.input_norm)
    assert bool(((logits - certified.logits).norm(dim=1) <= allowed).all())
    assert bool((certified.radius > 1e-4).all())
    plain = isoconv.plain(model).double()
    nearby = images.clone().requires_grad_(True)
    two = plain(nearby).topk(2, dim=1).values
    (uphill,) = torch.autograd.grad((two[:, 1] - two[:, 0]).sum(), nearby)
    step = 0.999 * certified.radius / uphill.flatten(1).norm(dim=1)
    moved = images + step[:, None, None, None] * uphill
    after = logits_of(tmp_path / "model.onnx", moved)
    assert torch.equal(after.argmax(dim=1), certified.prediction)
    margins = [x.topk(2, dim=1).values for x in (logits, after)]
    assert (
        float(((margins[1][:, 0] - margins[1][:, 1]) / (margins[0][:, 0] - margins[0][:, 1])).min()) < 0.7
    )  # it did attack


def test_float64_weights_stay(tmp_path):
    model = Small((1, 8, 8), 4).double().eval()
    export_onnx(model, (1, 8, 8), tmp_path / "model.onnx", dtype="float64")
    (weight,) = (x for x in onnx.load(tmp_path / "model.onnx").graph.initializer if x.name == "0.1.weight")
    assert onnx.numpy_helper.to_array(weight).tobytes() == isoconv.plain(model)[0][1].weight.detach().numpy().tobytes()


def test_a_module_that_occurs_twice_is_applied_twice(tmp_path):
    torch.manual_seed(0)
    shared, sort = nn.Linear(4, 4), MaxMin()
    model = nn.Sequential(shared, sort, shared, sort).eval()
    export_onnx(model, (4,), tmp_path / "model.onnx", dtype="float64")
    images = torch.rand(3, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(logits_of(tmp_path / "model.onnx", images), model.double()(images))


def test_training_goes_on_after_an_export(tmp_path):
    model, shape = make("small, bcop")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_onnx(model, shape, tmp_path / "model.onnx")
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
