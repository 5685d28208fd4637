"""The safetensors file with its code: the same function, the same bits, and no isoconv."""

import ast
import json
import os
import subprocess
import sys
from collections import OrderedDict
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import isoconv
from export.export_networks import NETWORKS, make, sha256_of
from isoconv.export import export_torch
from isoconv.export.torch_code import code_path
from isoconv.nn import MaxMin


def imported(path):
    spec = spec_from_file_location("exported_network", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_the_code_computes_the_same(name, tmp_path):
    model, shape = make(name)
    export_torch(model, shape, tmp_path / "net.safetensors")
    code = imported(tmp_path / "net.py")
    images = torch.rand(3, *shape)
    with torch.no_grad():
        assert torch.equal(code.load()(images), isoconv.plain(model)(images))
        assert torch.equal(code.load(torch.float64)(images.double()), isoconv.plain(model).double()(images.double()))
    assert shape == code.INPUT_SHAPE and not code.load().training


@pytest.mark.parametrize("name", ["small, bcop", "large", "one-dimensional", "without weights"])
def test_the_code_is_as_people_write_it(name, tmp_path):
    """It imports what it says, and holds no line that is too long to read."""
    model, shape = make(name)
    export_torch(model, shape, tmp_path / "net.safetensors")
    text = (tmp_path / "net.py").read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {x.name for node in found if isinstance(node, ast.Import) for x in node.names}
    names |= {node.module for node in found if isinstance(node, ast.ImportFrom)}
    assert names == {"hashlib", "pathlib", "torch", "safetensors.torch"}
    assert max(map(len, text.splitlines())) <= 120


def test_it_runs_where_there_is_no_isoconv(tmp_path):
    model, shape = make("small, bcop")
    export_torch(model, shape, tmp_path / "my-net.safetensors", classes=["a", "b'", 'c"', "d\\", "é\n"])
    script = (
        "import sys; sys.modules['isoconv'] = None\n"
        "import torch, my_net\n"
        "print(my_net.load(torch.float64)(torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)).argmax().item())\n"
        "print(my_net.CLASSES == ('a', \"b'\", 'c\"', 'd\\\\', 'é\\n'), my_net.WEIGHTS_SHA256)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    with torch.no_grad():
        expected = int(isoconv.plain(model).double()(torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)).argmax())
    sha256 = sha256_of(isoconv.plain(model).state_dict())
    assert (done.stdout.split(), done.stderr) == ([str(expected), "True", sha256], "")


def test_the_weights_are_bit_for_bit_and_named(tmp_path):
    model, shape = make("large")
    deployed = export_torch(model, shape, tmp_path / "net.safetensors", classes=[str(k) for k in range(10)])
    state, written = isoconv.plain(model).state_dict(), load_file(tmp_path / "net.safetensors")
    assert written.keys() == state.keys()
    assert all(written[name].numpy().tobytes() == tensor.numpy().tobytes() for name, tensor in state.items())
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["isoconv.weights_sha256"] == sha256_of(written) == deployed.sha256
    assert metadata["isoconv.claim"] == deployed.claim and "certificates still apply" in deployed.claim
    assert json.loads(metadata["isoconv.classes"]) == [str(k) for k in range(10)]
    text = (tmp_path / "net.py").read_text()
    assert f'WEIGHTS_SHA256 = "{deployed.sha256}"' in text
    assert " ".join(deployed.claim.split()) in " ".join(text.split())


def test_other_weights_are_refused(tmp_path):
    model, shape = make("small, bcop")
    export_torch(model, shape, tmp_path / "net.safetensors")
    weights = load_file(tmp_path / "net.safetensors")
    weights["5.bias"][0] = weights["5.bias"][0].nextafter(torch.tensor(1.0))
    save_file(weights, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net\.safetensors does not hold the weights that were exported\.$"):
        imported(tmp_path / "net.py").load()


def test_names_and_repeated_modules(tmp_path):
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(OrderedDict([("first", shared), ("sort", MaxMin()), ("again", nn.Sequential(shared))])).eval()
    export_torch(model, (4,), tmp_path / "net.safetensors")
    images = torch.rand(3, 4)
    with torch.no_grad():
        assert torch.equal(imported(tmp_path / "net.py").load()(images), model(images))


@pytest.mark.parametrize(
    ("weights", "code"),
    [("net", "net"), ("seed-0", "seed_0"), ("3 nets", "_3_nets"), ("größe", "gr__e"), ("a.b", "a_b")],
)
def test_the_code_can_be_imported_by_name(weights, code, tmp_path):
    assert code_path(tmp_path / f"{weights}.safetensors") == tmp_path / f"{code}.py"
    assert code.isidentifier()
