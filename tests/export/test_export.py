"""Exported files compute what the network computes and hold its weights bit for bit; what cannot be exported is refused."""

import ast
import copy
import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import isoconv
from certify.exact_network import error_bound, exact_logits, images, logit_error
from certify.kinds import CASES, CURVES, LINEAR, randomise
from helpers import imported
from isoconv.certify import Certifier, weights_sha256
from isoconv.errors import IsoconvError
from isoconv.export import export_onnx, export_torch
from isoconv.export.torch_code import code_path
from isoconv.models import FC3, Large, ShiftNet, Small
from isoconv.nn import (
    Abs,
    BatchCentering,
    BCOPConv1d,
    BCOPConv2d,
    ConvexPotential2d,
    Flip,
    GroupSort,
    Householder,
    InvertibleDownsampling,
    L2NormPool2d,
    LayerCentering,
    MaxMin,
    OrthogonalLinear,
    Permute,
    Reshape,
    Scale,
    ScaledAvgPool2d,
)

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'isoconv[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'isoconv[onnx]'")

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


class Net(nn.Module):
    """With every module of graphs, and layers that are used twice, for images of two sizes."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.AvgPool2d(2)
        self.norm, self.offset, self.head = nn.BatchNorm2d(2), nn.Parameter(torch.randn(2, 1, 8)), nn.Linear(16, 3)

    def forward(self, x):
        first, second = self.conv(x + self.offset).chunk(2, dim=1)
        x = torch.cat([F.leaky_relu(second, 0.1), first.abs()], 1) - 0.5 * x
        x = self.pool(self.norm(self.conv(self.pool(x))))
        return self.head(torch.cat([x, x.mT], 1).flatten(1))


NETWORKS = {
    "small, bcop": ((3, 8, 8), lambda: Small((3, 8, 8), 5)),
    "small, rko, not square": ((1, 8, 12), lambda: Small((1, 8, 12), 5, "rko", "relu")),
    "large": ((3, 8, 8), lambda: Large((3, 8, 8), 10)),
    "shift": ((3, 7, 8), lambda: ShiftNet((3, 7, 8), 5, channels=36, blocks=(1, 1), share=0.2)),
    "fc3": ((1, 4, 6), lambda: FC3((1, 4, 6), 2)),
    "pooling, centring, reflections": ((3, 8, 8), lambda: randomise(nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), BatchCentering(8), Householder(8), ScaledAvgPool2d(2), LayerCentering((2, 3)),
        MaxMin(dim=3), ScaledAvgPool2d((2, 1)), GroupSort(2, dim=2), BatchCentering(8), L2NormPool2d((1, 3)),
        nn.Flatten(2), LayerCentering(1), GroupSort(None, dim=-1), nn.Flatten(), LayerCentering(),
        BatchCentering(16, bias=False), Householder(16), nn.Linear(16, 5),
    ))),
    "one matrix": ((6,), lambda: OrthogonalLinear(6, 4)),
    "one matrix without bias": ((6,), lambda: nn.Sequential(nn.Linear(6, 4, bias=False))),
    "one-dimensional": ((2, 12), lambda: nn.Sequential(
        BCOPConv1d(2, 6, 4, stride=2), GroupSort(3), BCOPConv1d(6, 6, 2), nn.Flatten(),
    )),
    "zero padding": ((2, 5, 6), lambda: nn.Sequential(
        BCOPConv2d(2, 4, 3, padding_mode="zeros"), BCOPConv2d(4, 4, 2, padding_mode="zeros"),
    )),
    "groups, dilation, same": ((4, 5, 7), lambda: nn.Sequential(
        nn.Conv2d(4, 6, (2, 3), groups=2, dilation=(2, 1), padding="same"),
        nn.Conv2d(6, 6, (3, 2), stride=(1, 2), padding=(2, 1), padding_mode="circular", bias=False),
        nn.Conv2d(6, 4, 1, padding="valid"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    )),
    "without weights": ((2, 4, 4), lambda: nn.Sequential(
        InvertibleDownsampling(2), Scale(0.3), GroupSort(None), nn.Identity(), nn.Dropout(0.5), nn.PixelShuffle(2),
        nn.CircularPad2d((1, 2, 3, 0)), Abs(), nn.ZeroPad2d((0, 1, 2, -1)), nn.Conv2d(2, 2, 2), MaxMin(),
    )),
    "pools, pads and norms": ((2, 8, 8), lambda: randomise(nn.Sequential(
        nn.ConstantPad2d((1, 0, 2, 1), 0.1), nn.ReflectionPad2d(1), nn.ReplicationPad2d((1, 0, 0, 2)),
        nn.BatchNorm2d(2, eps=0.1), nn.LeakyReLU(-0.3), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.Upsample(scale_factor=(2, 1)), nn.AvgPool2d((2, 3), 2, 1, divisor_override=5), nn.Flatten(2),
        nn.BatchNorm1d(2, affine=False), nn.Unflatten(2, (2, -1)), nn.Flatten(),
    ))),
    "shapes": ((6, 4), lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Tanh(), nn.Flatten(1, 2), Reshape((3, 8)), Permute((1, 0)), Flip(1), nn.Linear(3, 2),
        Flip(2), nn.Flatten(),
    )),
    "factors beside products": ((2, 5, 5), lambda: nn.Sequential(
        nn.MaxPool2d(2, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 1), nn.Upsample(5, mode="bilinear"), Scale(0.3),
        nn.Linear(5, 3), nn.SELU(), nn.Linear(3, 3, bias=False), Scale(0.7), nn.Flatten(2),
        nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), nn.AdaptiveAvgPool1d(3), Scale(1.3),
        nn.Flatten(), nn.Linear(6, 3, bias=False), Scale(0.9),
    )),
    "functions": ((4,), lambda: nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.Hardtanh(0.1, 0.3), nn.ReLU6(),
    )),
    "named, nested, twice": ((4,), lambda: (lambda layer: nn.Sequential(OrderedDict(
        [("first", layer), ("sort", MaxMin()), ("again", nn.Sequential(layer))],
    )))(nn.Linear(4, 4))),
    "graph": ((2, 8, 8), Net),
}  # fmt: skip


def make(name):
    """Return a network by its name, always the same, in evaluation mode, and the shape of its inputs."""
    torch.manual_seed(0)
    shape, build = NETWORKS[name]
    return build().eval(), shape


def network(*modules, shape):
    """Return a classifier that ends in these modules and a linear layer."""
    torch.manual_seed(1)
    features = nn.Sequential(*modules)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(features, 3)).eval()


def sha256_of(weights):
    """Hash as the certificate's format defines it: name, type, shape and bytes of each, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.asarray(weights[name])
        shape = ",".join(str(n) for n in array.shape)
        digest.update("\0".join([name, array.dtype.name, shape, ""]).encode() + array.tobytes(order="C"))
    return digest.hexdigest()


def logits_of(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_onnxruntime_computes_the_same_with_the_same_weights(name, dtype, tmp_path):
    model, shape = make(name)
    deployed = export_onnx(model, shape, tmp_path / "model.onnx", dtype=dtype)
    plain = isoconv.plain(model, shape)
    written, state = onnx.load(tmp_path / "model.onnx"), plain.state_dict()
    weights = {key: tensor.numpy().tobytes() for key, tensor in state.items() if tensor.is_floating_point()}
    arrays = {x.name: onnx.numpy_helper.to_array(x).tobytes() for x in written.graph.initializer if x.name in state}
    assert arrays.items() <= weights.items()
    assert set(arrays.values()) == set(weights.values())  # equal tensors are stored once
    props = {x.key: x.value for x in written.metadata_props}
    assert props["isoconv.weights_sha256"] == sha256_of(state) == weights_sha256(plain)
    assert props["isoconv.claim"] == written.doc_string == deployed.claim and "apply to it" in deployed.claim
    sizes = written.graph.input[0].type.tensor_type.shape.dim
    assert [size.dim_param or size.dim_value for size in sizes] == ["batch", *shape]
    for batch in (1, 7):
        x = torch.rand(batch, *shape, dtype=getattr(torch, dtype)) - 0.2
        logits = logits_of(tmp_path / "model.onnx", x)
        torch.testing.assert_close(logits, plain.to(x.dtype)(x), atol=TOLERANCE[dtype], rtol=0)


@torch.no_grad()
def assert_same_code(model, shape, folder):
    export_torch(model, shape, folder / "net.safetensors")
    # torch multiplies in another order where a weight requires a gradient, also under no_grad; the code's do not.
    plain = isoconv.plain(model, shape).requires_grad_(False)
    code, x = imported(folder / "net.py"), torch.rand(3, *shape) - 0.4
    assert code.WEIGHTS_SHA256 == weights_sha256(plain) == weights_sha256(code.load())
    assert torch.equal(code.load()(x), plain(x)) and shape == code.INPUT_SHAPE and not code.load().training
    assert torch.equal(code.load(torch.float64)(x.double()), plain.double()(x.double()))
    text = (folder / "net.py").read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {x.name for node in found if isinstance(node, ast.Import) for x in node.names}
    names |= {node.module for node in found if isinstance(node, ast.ImportFrom)}
    assert names - {"collections", "collections.abc"} == {"hashlib", "pathlib", "torch", "safetensors.torch"}
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", NETWORKS)
def test_the_code_computes_the_same_and_is_as_people_write_it(name, tmp_path):
    assert_same_code(*make(name), tmp_path)


MODULES = [(curve, (9,)) for curve in [*CURVES, nn.Softmax(1)]] + LINEAR[1::2]
MODULES += [(module, shape) for module, shape, _ in CASES if isinstance(module, ConvexPotential2d)]


@pytest.mark.parametrize(("module", "shape"), [*MODULES, (nn.AlphaDropout(), (4,))], ids=lambda value: str(value)[:70])
def test_other_kinds_are_the_same_and_round_no_more_than_is_certified(module, shape, tmp_path):
    """From far left, where exponentials overflow, to far right; against exact arithmetic."""
    model = network(randomise(module.float()), shape=shape)
    assert_same_code(model, shape, tmp_path)
    x = torch.cat([(images(2, *shape) - 0.5) * scale for scale in (1.0, 40.0, 2e3)]).float()
    exact = [exact_logits(model, image) for image in x.double()]
    for arithmetic in TOLERANCE:
        export_onnx(model, shape, tmp_path / "net.onnx", dtype=arithmetic, overwrite=True)
        certifier = Certifier(model, shape, arithmetic=arithmetic, input_range=(-1e4, 1e4))
        logits = logits_of(tmp_path / "net.onnx", x.to(getattr(torch, arithmetic)))
        for image, computed, truth in zip(x.double(), logits, exact, strict=True):
            assert logit_error(computed, truth) <= error_bound(certifier, image)


def test_gelu_in_float64_has_room(tmp_path):
    """Its erf is a series of our own: everywhere within half of what is certified."""
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU()).double()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    export_onnx(model, (1,), tmp_path / "net.onnx", dtype="float64")
    x = torch.linspace(-10, 10, 401, dtype=torch.float64)[:, None]
    for value, computed in zip(x, logits_of(tmp_path / "net.onnx", x), strict=True):
        assert logit_error(computed, exact_logits(nn.GELU(), value)) <= 10 * 2.0**-53 * abs(float(value))


def test_certificates_hold_for_the_exported_network(tmp_path):
    """onnxruntime's logits differ from the certified ones by no more than the certificate allows for, and its
    predictions stay within each radius, in the direction that changes them fastest."""
    torch.manual_seed(1)
    model, images = Small((1, 8, 8), 4).eval(), torch.rand(16, 1, 8, 8, dtype=torch.float64)
    certifier = Certifier(model, (1, 8, 8))
    certified = certifier(images)
    export_onnx(model, (1, 8, 8), tmp_path / "model.onnx", dtype="float64")
    logits = logits_of(tmp_path / "model.onnx", images)
    allowed = 2 * (certifier.error.offset + certifier.error.slope * certified.input_norm)
    assert bool(((logits - certified.logits).norm(dim=1) <= allowed).all()) and bool((certified.radius > 1e-4).all())
    nearby = images.clone().requires_grad_(True)
    two = isoconv.plain(model).double()(nearby).topk(2, dim=1).values
    (uphill,) = torch.autograd.grad((two[:, 1] - two[:, 0]).sum(), nearby)
    step = 0.999 * certified.radius / uphill.flatten(1).norm(dim=1)
    moved = logits_of(tmp_path / "model.onnx", images + step[:, None, None, None] * uphill)
    assert torch.equal(moved.argmax(dim=1), certified.prediction)
    margins = [part.topk(2, dim=1).values for part in (logits, moved)]
    lost = (margins[1][:, 0] - margins[1][:, 1]) / (margins[0][:, 0] - margins[0][:, 1])
    assert float(lost.min()) < 0.7  # it did attack


def test_it_runs_where_there_is_no_isoconv_and_guards_its_weights(tmp_path):
    model, shape = make("small, bcop")
    classes, weights = ["a", "b'", 'c"', "d\\", "é\n"], tmp_path / "my-net.safetensors"
    deployed = export_torch(model, shape, weights, classes=classes)
    script = (
        "import sys; sys.modules['isoconv'] = None\n"
        "import torch, my_net\n"
        "print(my_net.load(torch.float64)(torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)).argmax().item())\n"
        f"print(my_net.CLASSES == {tuple(classes)!a}, my_net.WEIGHTS_SHA256)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    plain, written = isoconv.plain(model), load_file(weights)
    with torch.no_grad():
        expected = int(plain.double()(torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)).argmax())
    state = plain.float().state_dict()
    assert (done.stdout.split(), done.stderr) == ([str(expected), "True", sha256_of(state)], "")
    bits = [{name: tensor.numpy().tobytes() for name, tensor in each.items()} for each in (written, state)]
    assert bits[0] == bits[1]
    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
    assert metadata["isoconv.weights_sha256"] == deployed.sha256 and json.loads(metadata["isoconv.classes"]) == classes
    assert " ".join(deployed.claim.split()) in " ".join((tmp_path / "my_net.py").read_text().split())
    written["5.bias"][0] = written["5.bias"][0].nextafter(torch.tensor(1.0))
    save_file(written, weights)
    with pytest.raises(ValueError, match=r"my-net\.safetensors"):
        imported(tmp_path / "my_net.py").load()


def test_training_goes_on_after_an_export(tmp_path):
    model, shape = make("small, bcop")
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    export_onnx(model, shape, tmp_path / "model.onnx")
    export_torch(model, shape, tmp_path / "model.safetensors")
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    for weights, code in (
        ("seed-0", "seed_0"),
        ("3 nets", "_3_nets"),
        ("größe", "gr__e"),
    ):  # names that can be imported
        assert code_path(tmp_path / f"{weights}.safetensors") == tmp_path / f"{code}.py"


# What is refused --------------------------------------------------------------------------------------------------


def changed(layer, **attributes):
    for name, value in attributes.items():
        setattr(layer, name, value)
    return nn.Sequential(layer)


REFUSED = {
    "unknown dtype": (lambda: nn.Linear(4, 3), (4,), {"dtype": "float16"}, "dtype"),
    "half": (lambda: nn.Linear(4, 3).half(), (4,), {}, "float16"),
    "mixed": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double()), (4,), {}, "float32, float64"),
    "no weights": (lambda: nn.Sequential(nn.ReLU()), (4,), {}, "Got none"),
    "rounded": (lambda: nn.Linear(4, 3).double(), (4,), {}, "would round"),
    "NaN": (lambda: changed(nn.Linear(4, 3), bias=nn.Parameter(torch.full((3,), torch.nan))), (4,), {}, "NaN in 0.bias"),
    "unknown module": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), (4,), {}, "LogSoftmax at 1"),
    "a module of one's own": (lambda: type("Mine", (nn.Linear,), {})(4, 3), (4,), {}, "Mine at model"),
    "number of classes": (lambda: nn.Linear(4, 3), (4,), {"classes": ["a", "b"]}, "2 logits"),
    "shape that does not fit": (lambda: nn.Sequential(nn.Linear(4, 3)), (5,), {}, "Linear at 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_refused(name, tmp_path):
    build, shape, options, message = REFUSED[name]
    for write in (export_onnx, export_torch):
        with pytest.raises(IsoconvError, match=message) as caught:
            write(build(), shape, tmp_path / "net.safetensors", **options)
        assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_what_else_is_refused(tmp_path, monkeypatch):
    """Existing files stay. torch pads by what the constructor was given, whatever the attribute says now."""
    model = nn.Linear(4, 3)
    for name in ("net.safetensors", "net.py"):
        (tmp_path / name).write_text("years of work")
        with pytest.raises(IsoconvError, match=f"{name} already exists"):
            export_torch(model, (4,), tmp_path / "net.safetensors")
        with pytest.raises(IsoconvError, match=f"{name} already exists"):
            export_onnx(model, (4,), tmp_path / name)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["years of work"]
        (tmp_path / name).unlink()
    other = changed(nn.Conv2d(1, 1, 3, padding=2, padding_mode="circular"), padding=(0, 0))
    for refused, shape, name, words in (
        (model, (4,), "nowhere/net.safetensors", "no folder"),
        (model, (4,), "net.pt", r"\.safetensors\. Got net\.pt"),
        (other, (1, 4, 4), "net.safetensors", r"constructors.*Conv2d at 0"),
    ):
        with pytest.raises(IsoconvError, match=words):
            export_torch(refused, shape, tmp_path / name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(IsoconvError, match="pip install"):
        export_onnx(model, (4,), tmp_path / "net.onnx")
