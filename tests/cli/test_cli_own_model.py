"""isoconv train and certify with FILE.py:FUNCTION, and every command on the run that it leaves."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from certify.certificates import check
from isoconv.certify import robust_accuracy
from isoconv.data import load_splits
from isoconv.train import certify_run, train
from report.report_runs import data_of

NETWORK = """
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear
from torch import nn
from beside import Block

class Net(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.block, self.head = Block(channels), nn.Linear(channels * 64, classes)

    def forward(self, x):
        return self.head(self.block(x).flatten(1))

def build(input_shape, classes):
    return Net(input_shape[0], classes)

def circular():
    return nn.Sequential(BCOPConv2d(1, 4, 3), MaxMin(), nn.Flatten(), OrthogonalLinear(256, 4))

def chain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
"""
BESIDE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.offset = nn.Conv2d(channels, channels, 3, padding=1), nn.Parameter(torch.zeros(8, 8))

    def forward(self, x):
        return 0.5 * x + 0.5 * torch.relu(self.conv(x)) + self.offset
"""
BAD = """
import sys
from torch import nn

number = 3
leaves = lambda: sys.exit(1)
needs = lambda width: nn.Linear(width, 4)
nothing = lambda: None
three = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
other_size = lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 4))
unknown = lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 4))

def fails():
    raise RuntimeError("first line\\nsecond line")

class Branches(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :4] if bool(x[0, 0, 0, 0] > 0) else x.flatten(1)[:, 4:8]
"""


@pytest.fixture
def files(tmp_path, pictures):
    """Functions and pictures, in the folder that commands are run in."""
    for name, text in (("net.py", NETWORK), ("beside.py", BESIDE), ("bad.py", BAD), ("broken.py", "def f(:")):
        (tmp_path / name).write_text(text)
    shutil.copytree(pictures, tmp_path / "pics")
    return tmp_path


def weights_of(files, function="build"):
    """Return weights for a function's network, as a user's own training might leave them, and the network."""
    namespace = {}
    exec((files / "beside.py").read_text(), namespace)
    exec((files / "net.py").read_text().replace("from beside import Block", ""), namespace)
    torch.manual_seed(5)
    network = namespace["build"]((1, 8, 8), 4) if function == "build" else namespace[function]()
    save_file(network.state_dict(), files / "w.safetensors")
    return network


@pytest.mark.parametrize("function", ["build", "chain"])
def test_certify_with_weights_is_the_library_s_answer_and_has_a_valid_certificate(function, isoconv, files):
    network, before = weights_of(files, function), set(files.iterdir())
    words = ["--data", "pics", "--epsilon", "0.01", "--certificate", "c.jsonl", "--device", "cpu", "--json"]
    (record,) = isoconv("certify", f"net.py:{function}", "--weights", "w.safetensors", *words).json
    expected = robust_accuracy(network, load_splits(files / "pics").test, [0.01])
    assert record["radii"] == expected.radii.tolist() and record["clean"] == expected.clean
    assert record["robust"] == {"0.01": expected.certified[0.01]}
    assert {path.name for path in set(files.iterdir()) - before} == {"c.jsonl", "c.plain.safetensors"}
    assert check([str(files / "c.jsonl"), str(files / "c.plain.safetensors")]) == 0
    (again,) = certify_run(lambda: network, [0.01], folder=files / "pics", device="cpu")
    assert again.radii == tuple(record["radii"])


def test_data_by_name_and_resized(isoconv, files):
    outcome = isoconv("certify", "net.py:build", "digits", "--size", "8", "--images", "5", "--json")
    assert outcome.json[0]["images"] == 5 and "--weights" in outcome.err


def test_every_command_reads_the_run_and_never_the_function(isoconv, files):
    outcome = isoconv("train", "pics", "--model", "net.py:build", "--epochs", "2", "--device", "cpu", "--out", "run")
    assert outcome.code == 0 and "net.py:build" in outcome.out and "bcop" not in outcome.out
    (files / "net.py").write_text("raise SystemExit('ran')")
    assert json.loads((files / "run" / "config.json").read_text())["model"] == "net.py:build"
    (record,) = isoconv("certify", "run", "--certificate", "c.jsonl", "--device", "cpu", "--json").json
    assert record["clean"] == json.loads((files / "run" / "result.json").read_text())["clean"]
    assert check([str(files / "c.jsonl"), str(files / "run")]) == 0
    (row,) = isoconv("attack", "run", "--attack", "fgsm", "--epsilon", "0.1", "--json").json
    assert row["certified"] <= row["accuracy"] <= row["clean"] and row["violations"] == 0
    (said,) = isoconv("predict", "run", "pics/a/000.png", "--json").json
    assert said["class"] in "abcd" and said["radius"] >= 0
    assert isoconv("export", "run", "--format", "torch", "--out", "x.safetensors").code == 0
    outcome = isoconv("report", "run", "--device", "cpu")
    page = (files / "report.html").read_text()
    assert outcome.code == 0 and "net.py:build · seed 0" in page and "--model net.py:build" in page
    for setting in ("conv", "activation", "orthogonalisation", "margin"):  # which the run does not use
        assert f'<th scope="row">{setting}</th>' not in page and '<th scope="row">temperature</th>' in page
    assert isoconv("train", "--resume", "--out", "run").is_refused("--model", "net.py:build")
    assert isoconv("train", "--resume", "--out", "run", "--model", "net.py:build").is_refused("net.py", "ran")


@pytest.mark.parametrize(("function", "titles"), [("build", ["linear 1"]), ("circular", ["convolution 1", "linear 1"])])
def test_the_page_shows_what_is_known_of_the_layers_and_says_what_is_not(function, titles, isoconv, files):
    train("pics", "run", model=files / f"net.py:{function}", epochs=1, device="cpu")
    first = isoconv("report", "run", "--json").json
    assert "diagnostics.json" in first["made"]["run"]
    assert isoconv("report", "run", "--json").json["notes"] == first["notes"]  # and nothing is made again
    assert isoconv("report", "run", "--json").json["made"] == {"run": []}
    note, (shown,) = first["notes"]["run"], data_of(files / "report.html")
    assert ("1 of 2 layers" in note) == (function == "build") and note in (files / "report.html").read_text()
    assert [layer["title"] for layer in shown["spectra"]] == titles
    assert shown["gradients"]["before"] is None and len(shown["gradients"]["after"]["mean"]) == 3
    for layer in shown["spectra"]:
        assert layer["before"] is None
        assert function == "build" or (layer["after"]["min"], layer["after"]["max"]) == pytest.approx((1, 1), abs=1e-5)


REFUSED = {
    "net.py": "FILE.py:FUNCTION",
    "nowhere.py:build": "nowhere.py",
    "net.py:nowhere": "nowhere",
    "bad.py:number": "number",
    "broken.py:f": "SyntaxError",
    "bad.py:fails": "first line (bad.py:",
    "bad.py:leaves": "SystemExit",
    "bad.py:needs": "width",
    "bad.py:nothing": "NoneType",
    "bad.py:three": "4 outputs",
    "bad.py:other_size": "Linear",
    "bad.py:unknown": "LayerNorm",
    "bad.py:Branches": "bad.py:",
}


def test_what_is_no_network_is_refused_before_anything_is_written(isoconv, files):
    before = sorted(files.rglob("*"))
    for function, named in REFUSED.items():
        assert isoconv("train", "pics", "--model", function, "--out", "run").is_refused(named)
        assert isoconv("certify", function, "--data", "pics", "--certificate", "c.jsonl").is_refused(named)
    own = "train", "pics", "--model", "net.py:build", "--out", "run"
    assert isoconv(*own, "--conv", "rko").is_refused("conv", "net.py:build")
    assert isoconv("certify", "net.py:build").is_refused("--data")
    assert isoconv("certify", "mnist-small", "--weights", "w.safetensors").is_refused("weights")
    assert isoconv(*own[:-1], "pics/run").is_refused("pics/run", "--out")  # its files would be among the images
    assert sorted(files.rglob("*")) == before
    (files / "c.plain.safetensors").write_text("somebody else's")
    weights_of(files)
    words = "--data", "pics", "--weights", "w.safetensors", "--certificate", "c.jsonl"
    assert isoconv("certify", "net.py:build", *words).is_refused("c.plain.safetensors")
    assert (files / "c.plain.safetensors").read_text() == "somebody else's" and not (files / "c.jsonl").exists()


def test_weights_that_do_not_fit_are_refused(isoconv, files):
    state = dict(weights_of(files).state_dict())
    cases = {
        "head.bias": {name: tensor for name, tensor in state.items() if name != "head.bias"},
        "more": state | {"more": torch.zeros(1)},
        "(4, 64)": state | {"head.weight": torch.zeros(4, 63)},
        "float64": state | {"head.bias": torch.full((4,), 0.1, dtype=torch.float64)},
        "float8": state | {"head.bias": torch.zeros(4).to(torch.float8_e4m3fn)},
        "int64": state | {"head.bias": torch.zeros(4, dtype=torch.int64)},
    }
    for named, tensors in cases.items():
        save_file(tensors, files / "w.safetensors")
        assert isoconv("certify", "net.py:build", "--weights", "w.safetensors", "--data", "pics").is_refused(named)
    torch.save(state, files / "w.pt")
    assert isoconv("certify", "net.py:build", "--weights", "w.pt", "--data", "pics").is_refused("w.pt")
    half = nn.Linear(64, 4).half()  # numbers that float32 holds are no other numbers
    save_file({f"1.{name}": tensor for name, tensor in half.state_dict().items()}, files / "w.safetensors")
    (record,) = isoconv("certify", "net.py:chain", "--weights", "w.safetensors", "--data", "pics", "--json").json
    expected = robust_accuracy(nn.Sequential(nn.Flatten(), half.float()), load_splits(files / "pics").test)
    assert record["radii"] == expected.radii.tolist()
