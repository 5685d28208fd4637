"""isoconv certify, attack and predict, on a small trained run."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from certify.certificates import check
from isoconv.train.run_folder import load_run

TINY = ["--model", "small", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sys
    from unittest.mock import patch

    from isoconv.cli import main

    out = tmp_path_factory.mktemp("trained") / "run"
    words = ["isoconv", "train", str(pictures), "--out", str(out), "--epochs", "8", *TINY]
    with patch.object(sys, "argv", words):
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_certify_prints_a_table_and_keeps_the_figures(isoconv, run):
    outcome = isoconv("certify", run, "--epsilon", "36/255", "--epsilon", "0.1", "--device", "cpu")
    assert outcome.code == 0 and "certified % at 36/255" in outcome.out and "rounding moves the logits" in outcome.out
    kept = json.loads((run / "certified.json").read_text())
    assert kept["images"] == 16 and set(kept["robust"]) == {str(36 / 255), "0.1"}
    assert kept["robust"][str(36 / 255)] <= kept["robust"]["0.1"] <= kept["clean"]
    assert sum(radius >= 0.1 for radius in kept["radii"]) * 100 / 16 == kept["robust"]["0.1"]
    assert math.prod(layer["bound"] for layer in kept["layers"]) == pytest.approx(kept["lipschitz_bound"])
    assert kept["clean"] == json.loads((run / "result.json").read_text())["clean"] > 50


def test_certify_as_json_has_only_that_on_stdout(isoconv, run):
    outcome = isoconv("certify", run, "--json", "--device", "cpu", "--images", "5")
    (row,) = json.loads(outcome.out)
    assert outcome.code == 0 and row["images"] == 5 and row["arithmetic"] == "float64"


def test_float32_costs_something(isoconv, run):
    (exact,) = json.loads(isoconv("certify", run, "--json").out)
    (single,) = json.loads(isoconv("certify", run, "--json", "--arithmetic", "float32").out)
    assert single["error_slope"] > 1e8 * exact["error_slope"]
    assert all(a <= b + 1e-6 for a, b in zip(single["radii"], exact["radii"], strict=True))


def test_the_certificate_file_is_valid(isoconv, run, tmp_path):
    outcome = isoconv("certify", run, "--certificate", "c.json")
    assert outcome.code == 0 and "python -m isoconv.check c.json" in outcome.err
    assert check([str(tmp_path / "c.json"), str(run)]) == 0


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
    assert outcome.code == 0 and "rounding" in outcome.out


def test_a_false_certificate_is_an_error(isoconv, run, monkeypatch):
    """With radii that claim too much the attack finds violations, says so and fails."""
    from isoconv.certify import Certifier

    honest = Certifier.__call__

    def boastful(self, x):
        found = honest(self, x)
        return type(found)(found.prediction, found.radius + 3, found.logits, found.input_norm)

    monkeypatch.setattr(Certifier, "__call__", boastful)
    outcome = isoconv("attack", run, "--attack", "pgd", "--epsilon", "2", "--steps", "20", "--step-size", "0.2")
    assert outcome.code == 2 and "a certificate is false" in outcome.err


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
    from isoconv.data import as_float, load_image

    path = sorted((pictures / "b").iterdir())[0]
    model, config = load_run(run)
    with torch.no_grad():
        logits = model.double()(as_float(load_image(path, config.input_shape), torch.float64)[None])
    (answer,) = json.loads(isoconv("predict", run, path, "--json").out)
    assert answer["class"] == config.classes[int(logits.argmax())]
    top, second = logits[0].topk(2).values.tolist()
    assert 0 < answer["radius"] <= (top - second) / 1.3


def test_several_seeds(isoconv, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "two", "--seeds", "0,1", "--epochs", "1", *TINY).code == 0
    rows = json.loads(isoconv("certify", "two", "--json").out)
    assert [row["seed"] for row in rows] == [0, 1]
    assert all((tmp_path / "two" / f"seed-{seed}" / "certified.json").exists() for seed in (0, 1))
    outcome = isoconv("certify", "two", "--certificate", "c.json")
    assert outcome.code == 2 and "Expected a run of one seed for --certificate. Got 2" in outcome.err
    outcome = isoconv("predict", "two", sorted((pictures / "a").iterdir())[0])
    assert outcome.code == 2 and "Expected a run of one seed. Got 2" in outcome.err


REFUSED = [
    (["certify", "missing"], "Expected a run in missing. It does not exist."),
    (["attack", "missing"], "Expected a run in missing. It does not exist."),
    (["predict", "missing", "x.png"], "Expected a run in missing. It does not exist."),
    (["certify", "run", "--epsilon", "x"], "Expected a number such as 0.1 or 36/255 for --epsilon. Got 'x'."),
    (["certify", "run", "--images", "17"], "Expected from 1 to 16 images, as many as the test set has. Got 17."),
    (["certify", "run", "--images", "0"], "Expected from 1 to 16 images, as many as the test set has. Got 0."),
    (["certify", "run", "--arithmetic", "bf16"], "Expected arithmetic to be one of float64, float32. Got 'bf16'."),
    (["certify", "run", "--criterion", "x"], "Expected criterion to be one of pairs, per-class. Got 'x'."),
    (["certify", "run", "--certificate", "no/c.json"],
     "Cannot write no/c.json: No such file or directory."),
    (["attack", "run", "--attack", "x"],
     "Expected --attack to be one of pgd, fgsm, apgd, boundary, pointwise, rounding. Got 'x'."),
    (["attack", "run", "--epsilon", "-1"], "Expected a number of at least 0 for --epsilon. Got '-1'."),
    (["predict", "run", "missing.png"], None),
    (["predict", "run", "text.png"], None),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_refused_in_one_line(words, message, isoconv, run, tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    outcome = isoconv(*words)
    assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1
    assert outcome.err == f"isoconv: {message}\n" if message else words[-1] in outcome.err


def test_weights_that_are_not_the_runs_own(isoconv, run):
    (run / "model.safetensors").write_bytes(b"\0" * 64)
    outcome = isoconv("certify", run)
    assert outcome.code == 2 and "model.safetensors" in outcome.err and outcome.err.count("\n") == 1
