"""isoconv certify, attack and predict, on a small trained run."""

import json
import math

import pytest
import torch
from PIL import Image

from certify.certificates import check
from isoconv.certify import Certifier
from isoconv.data import as_float, load_image
from isoconv.train.run_folder import load_run


def test_certify_prints_a_table_and_keeps_the_figures(isoconv, run):
    outcome = isoconv("certify", run, "--epsilon", "36/255", "--epsilon", "0.1", "--device", "cpu")
    assert outcome.code == 0 and "certified % at 36/255" in outcome.out and "rounding changes the logits" in outcome.out
    kept = json.loads((run / "certified.json").read_text())
    assert kept["images"] == 16 and set(kept["robust"]) == {str(36 / 255), "0.1"}
    assert kept["robust"][str(36 / 255)] <= kept["robust"]["0.1"] <= kept["clean"]
    assert sum(radius >= 0.1 for radius in kept["radii"]) * 100 / 16 == kept["robust"]["0.1"]
    assert math.prod(layer["bound"] for layer in kept["layers"]) == pytest.approx(kept["lipschitz_bound"])
    assert kept["clean"] == json.loads((run / "result.json").read_text())["clean"] > 50


def test_float32_costs_something(isoconv, run):
    (exact,) = json.loads(isoconv("certify", run, "--json").out)
    (single,) = json.loads(isoconv("certify", run, "--json", "--arithmetic", "float32").out)
    assert (exact["arithmetic"], single["arithmetic"]) == ("float64", "float32")
    assert single["error_slope"] > 1e8 * exact["error_slope"]
    assert all(a <= b + 1e-6 for a, b in zip(single["radii"], exact["radii"], strict=True))


def test_the_certificate_file_is_valid(isoconv, run, tmp_path):
    outcome = isoconv("certify", run, "--certificate", "c.json")
    assert outcome.code == 0 and "python -m isoconv.check c.json" in outcome.err
    assert check([str(tmp_path / "c.json"), str(run)]) == 0


def test_certifying_reads_test_images_only(isoconv, run, monkeypatch):
    opened, read = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *arguments, **options: opened.append(1) or read(*arguments, **options))
    assert isoconv("certify", run).code == 0 and len(opened) == 16


def test_attack_keeps_the_order_and_breaks_nothing(isoconv, run):
    outcome = isoconv(
        "attack", run, "--attack", "pgd", "--attack", "fgsm", "--attack", "apgd", "--epsilon", "0.1", "--epsilon", "1",
        "--steps", "20", "--step-size", "0.1", "--json",
    )  # fmt: skip
    rows = json.loads(outcome.out)
    assert outcome.code == 0 and len(rows) == 6
    for row in rows:
        assert row["certified"] <= row["accuracy"] <= row["clean"] and row["violations"] == 0
    assert min(row["accuracy"] for row in rows if row["epsilon"] == 1) < rows[0]["clean"]  # it does attack
    assert json.loads((run / "attacks.json").read_text()) == rows


def test_attack_prints_a_table_and_searches_for_rounding(isoconv, run):
    outcome = isoconv("attack", run, "--attack", "rounding", "--images", "2")
    assert outcome.code == 0 and "rounding" in outcome.out and "each radius" in outcome.out


def test_a_false_certificate_is_an_error(isoconv, run, monkeypatch):
    """With radii that claim too much the attack finds violations, shows them and fails."""
    honest = Certifier.__call__

    def boastful(self, x):
        answer = honest(self, x)
        return type(answer)(answer.prediction, answer.radius + 3, answer.logits, answer.input_norm)

    monkeypatch.setattr(Certifier, "__call__", boastful)
    outcome = isoconv("attack", run, "--attack", "pgd", "--epsilon", "2", "--steps", "20", "--step-size", "0.2")
    assert outcome.code == 2 and "a certificate is false" in outcome.err and "pgd" in outcome.out


def test_predict_names_the_class_and_the_radius(isoconv, run, pictures):
    paths = [sorted((pictures / name).iterdir())[0] for name in "ad"]
    outcome = isoconv("predict", run, *paths)
    assert outcome.code == 0 and "certified radius" in outcome.out and "resized" in outcome.err
    answers = json.loads(isoconv("predict", run, *paths, "--json").out)
    assert [answer["class"] for answer in answers] == ["a", "d"]
    for answer, path in zip(answers, paths, strict=True):
        assert answer["image"] == str(path) and answer["certified"]
        assert answer["radius_255"] == 255 * answer["radius"] > 0


def test_predict_agrees_with_the_network(isoconv, run, pictures):
    path = sorted((pictures / "b").iterdir())[0]
    model, config = load_run(run)
    with torch.no_grad():
        logits = model.double()(as_float(load_image(path, config.input_shape), torch.float64)[None])
    (answer,) = json.loads(isoconv("predict", run, path, "--json").out)
    assert answer["class"] == config.classes[int(logits.argmax())]
    top, second = logits[0].topk(2).values.tolist()
    assert 0 < answer["radius"] <= (top - second) / 1.3
