"""isoconv certify, attack, predict and export, on trained runs of every kind of network."""

import csv
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from certify.certificates import check
from helpers import imported
from isoconv.certify import Certifier, weights_sha256
from isoconv.data import as_float, load_image
from isoconv.models import MODELS
from isoconv.train import attack_run
from isoconv.train.config import CLASSIFIERS
from isoconv.train.run_folder import load_run


def read(path: str | Path) -> dict:
    return json.loads(Path(path).read_text())


LARGE = ["--size 64", "--model shift-s --size 64 --checkpoint-activations"]


@pytest.mark.parametrize("words", ["--conv soc", "--conv sll", "--conv cpl", "--model shift-s", *LARGE])
def test_every_command(words, isoconv, pictures, monkeypatch):
    """Trained, certified, checked, attacked, exported, shown, resumed; also on images that the network sees in patches."""
    small = replace(MODELS["shift-s"], options={"channels": 32, "blocks": (1, 1)})
    for records in (MODELS, CLASSIFIERS):
        monkeypatch.setitem(records, "shift-s", small)
    model = [] if "shift" in words else ["--model", "small"]
    train = isoconv("train", pictures, *model, *words.split(), "--epochs", 1, "--out", "run", "--device", "cpu")
    assert train.code == 0 and (words in LARGE or words.split()[1] in train.out), train
    patch = {"--size 64": 2}.get(words, 8) if words in LARGE else None
    assert read("run/config.json").get("patch") == patch
    assert "shift" not in words or read("run/config.json")["lr"] == 0.003  # the network's own recipe
    assert isoconv("certify", "run", "--certificate", "c.jsonl", "--device", "cpu").code == 0
    certified = read("run/certified.json")
    assert certified["lipschitz_bound"] <= 1.001 and certified["images"] == 16 and check(["c.jsonl", "run"]) == 0
    rows = isoconv(
        "attack", "run", "--steps", 3, "--images", 4, "--attack", "pgd", "--attack", "rounding", "--json"
    ).json
    assert [(row["attack"], row["violations"]) for row in rows] == [("pgd", 0), ("rounding", 0)]
    assert isoconv("export", "run", "--format", "torch", "--out", "net.safetensors").code == 0
    assert check(["c.jsonl", "net.safetensors"]) == 0
    header = json.loads(Path("c.jsonl").read_text().splitlines()[0])
    assert header["weights_sha256"] == imported("net.py").WEIGHTS_SHA256
    if "shift" in words:
        assert isoconv("report", "run").code == 0
        shutil.move("run/result.json", "result.json")
        (again,) = isoconv("train", "--resume", "--out", "run", "--device", "cpu", "--json").json
        assert again["clean"] == read("result.json")["clean"]
        return
    onnxruntime = pytest.importorskip("onnxruntime")
    assert isoconv("export", "run", "--format", "onnx", "--out", "net.onnx").code == 0
    x = torch.rand(3, *read("run/config.json")["input_shape"])
    (output,) = onnxruntime.InferenceSession("net.onnx").run(None, {"images": x.numpy()})
    assert np.abs(output - load_run("run")[0](x).detach().numpy()).max() <= 1e-5


def test_certify_prints_a_table_and_keeps_the_figures(isoconv, run, tmp_path, monkeypatch):
    opened, read_image = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *words, **options: opened.append(1) or read_image(*words, **options))
    words = ["--epsilon", "36/255", "--epsilon", "0.1", "--certificate", "c.json", "--device", "cpu"]
    outcome = isoconv("certify", run, *words)
    assert len(opened) == 16  # the test images alone
    assert outcome.code == 0 and "certified % at 36/255" in outcome.out and "Rounding changes the logits" in outcome.out
    assert "python -m isoconv.check c.json" in outcome.err and check([str(tmp_path / "c.json"), str(run)]) == 0
    kept = read(run / "certified.json")
    assert kept["images"] == 16 and set(kept["robust"]) == {str(36 / 255), "0.1"}
    assert kept["robust"][str(36 / 255)] <= kept["robust"]["0.1"] <= kept["clean"]
    assert sum(radius >= 0.1 for radius in kept["radii"]) * 100 / 16 == kept["robust"]["0.1"]
    assert math.prod(layer["bound"] for layer in kept["layers"]) == pytest.approx(kept["lipschitz_bound"])
    assert kept["clean"] == read(run / "result.json")["clean"] > 50
    (single,) = isoconv("certify", run, "--json", "--arithmetic", "float32").json
    assert (kept["arithmetic"], single["arithmetic"]) == ("float64", "float32")
    assert single["error_slope"] > 1e8 * kept["error_slope"]  # float32 costs something
    assert all(a <= b + 1e-6 for a, b in zip(single["radii"], kept["radii"], strict=True))


def test_attack_keeps_the_order_and_breaks_nothing(isoconv, run):
    names = [word for name in ("pgd", "fgsm", "apgd") for word in ("--attack", name)]
    words = ["--epsilon", "0.1", "--epsilon", "1", "--steps", "20", "--step-size", "0.1"]
    rows = isoconv("attack", run, *names, *words, "--json").json
    assert len(rows) == 6 and read(run / "attacks.json") == rows
    for row in rows:
        assert row["certified"] <= row["accuracy"] <= row["clean"] and row["violations"] == 0
    assert min(row["accuracy"] for row in rows if row["epsilon"] == 1) < rows[0]["clean"]  # it does attack
    outcome = isoconv("attack", run, "--attack", "rounding", "--images", "2")
    assert outcome.code == 0 and "rounding" in outcome.out and "each image's" in outcome.out
    titles = set()
    attack_run(run, ["fgsm"], [36 / 255], device="cpu", progress=lambda title, done, total: titles.add(title))
    assert "fgsm at 36/255" in titles


def test_a_false_certificate_is_an_error(isoconv, run, monkeypatch):
    """With radii that claim too much the attack finds violations, shows them and fails."""
    honest = Certifier.__call__

    def boastful(self, x):
        answer = honest(self, x)
        return type(answer)(answer.prediction, answer.radius + 3, answer.logits, answer.input_norm)

    monkeypatch.setattr(Certifier, "__call__", boastful)
    outcome = isoconv("attack", run, "--attack", "pgd", "--epsilon", "2", "--steps", "20", "--step-size", "0.2")
    assert outcome.code == 2 and "a certificate is false" in outcome.err and "pgd" in outcome.out


def test_predict_agrees_with_the_network(isoconv, run, pictures):
    paths = [sorted((pictures / name).iterdir())[0] for name in "ad"]
    outcome = isoconv("predict", run, *paths)
    assert outcome.code == 0 and "radius (pixels 0–1)" in outcome.out and "resized" not in outcome.err
    with Image.open(paths[0]) as picture:
        picture.resize((9, 8)).save("large.png")
    assert "1 of the images is for the resized" in isoconv("predict", run, *paths, "large.png").err
    (*answers, large), (model, config) = isoconv("predict", run, *paths, "large.png", "--json").json, load_run(run)
    assert [answer["resized"] for answer in (*answers, large)] == [False, False, True]
    for answer, path, name in zip(answers, paths, "ad", strict=True):
        with torch.no_grad():
            logits = model.double()(as_float(load_image(path, config.input_shape), torch.float64)[None])
        top, second = logits[0].topk(2).values.tolist()
        assert answer["class"] == name == config.classes[int(logits.argmax())] and answer["certified"]
        assert answer["image"] == str(path) and answer["radius_255"] == 255 * answer["radius"]
        assert 0 < answer["radius"] <= (top - second) / 1.3
        assert answer["margin"] == pytest.approx(top - second, rel=1e-9)
        assert answer["runner_up"] == config.classes[int(logits[0].topk(2).indices[1])]


def test_predict_takes_folders_and_goes_on_after_a_bad_file(isoconv, run, pictures, tmp_path):
    """Each file is answered as it would be alone, and a spreadsheet gets the same."""
    folder = tmp_path / "my photos"
    for name in ("a", "b/deeper"):
        (folder / name).mkdir(parents=True)
        shutil.copy(sorted((pictures / name[0]).iterdir())[0], folder / name / f"{name[0]}, 1.png")
    (folder / "a" / "bad.png").write_bytes(b"II*\0")
    (folder / "notes.txt").write_text("no picture")
    outcome = isoconv("predict", run, folder, "missing.png", "--json")
    assert outcome.code == 2 and outcome.err.count("\n") == 2
    assert outcome.err.startswith("1 other file ignored (.txt)")
    assert "bad.png" in outcome.err and "TIFF" in outcome.err and "missing.png" in outcome.err
    rows, names = json.loads(outcome.out), ("a/a, 1.png", "a/bad.png", "b/deeper/b, 1.png")
    assert [row["image"] for row in rows] == [*(str(folder / name) for name in names), "missing.png"]
    assert [row.get("class") for row in rows] == ["a", None, "b", None]
    (alone,) = isoconv("predict", run, folder / "a" / "a, 1.png", "--json").json
    numbers = {name: pytest.approx(alone[name], rel=1e-9) for name in ("radius", "radius_255", "margin")}
    assert rows[0] == alone | numbers  # sums round in an order that depends on the batch
    table = list(csv.DictReader(isoconv("predict", run, folder, "missing.png", "--csv").out.splitlines()))
    filled = [{name: value for name, value in row.items() if value} for row in table]
    assert filled == [{name: str(value) for name, value in row.items()} for row in rows]
    outcome = isoconv("predict", run, folder / "a" / "bad.png", "--csv")
    assert outcome.code == 2 and outcome.out.startswith("image,error")
    outcome = isoconv("predict", run, "missing.png")
    assert outcome.code == 2 and "missing.png" in outcome.err and outcome.err.endswith("(No such file or directory).\n")
    (tmp_path / "empty").mkdir()
    assert "Got none" in isoconv("predict", run, tmp_path / "empty").err


def test_a_large_picture_is_read_and_a_bomb_is_refused(isoconv, run, pictures, monkeypatch):
    """Pillow warns of pictures above its limit, and raises above twice that."""
    path = sorted((pictures / "a").iterdir())[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 63)
    outcome = isoconv("predict", run, path)
    assert outcome.code == 0 and outcome.err == ""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 31)
    assert isoconv("predict", run, path).is_refused("64 pixels")


def test_export(isoconv, world, monkeypatch):
    """That what is written computes the same is tested with `isoconv.export`."""
    shutil.copytree("run-7", "both/seed-7")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)  # which torch code does not need
        outcome = isoconv("export", "both/seed-7", "--format", "torch")
    model, config = load_run(world / "run-7")
    assert outcome.code == 0 and outcome.out == ""
    for part in ("seed-7.safetensors", "seed_7.py", weights_sha256(model), "Certificates"):
        assert part in outcome.err
    code, images = imported("seed_7.py"), torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(code.load()(images), model(images))
    assert (config.classes, config.input_shape) == (code.CLASSES, code.INPUT_SHAPE)
    words = ["--format", "torch", "--out", "net.safetensors", "--dtype", "float64", "--json"]
    outcome = isoconv("export", "run-7", *words)
    sizes = {"input_shape": [1, 8, 8], "classes": list("abcd"), "weights_sha256": weights_sha256(model)}
    files = {"format": "torch", "files": ["net.safetensors", "net.py"], "dtype": "float64"}
    assert outcome.json == files | sizes and outcome.err == ""
    assert imported("net.py").load()[5].weight.dtype == torch.float64
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'isoconv[onnx]'")
    for dtype, kind in (("float32", onnx.TensorProto.FLOAT), ("float64", onnx.TensorProto.DOUBLE)):
        outcome = isoconv("export", "run-7", "--dtype", dtype, "--overwrite")
        assert outcome.code == 0 and "run-7.onnx" in outcome.err
        assert onnx.load("run-7.onnx").graph.input[0].type.tensor_type.elem_type == kind
