"""isoconv reproduce, on a few images: what it measures, what it shows, in every format, and what it refuses."""

import json
from pathlib import Path

import pytest

from isoconv.train.reproduction import RESULTS, ClassifierCell, find_results
from isoconv.train.reproduction import data as data_module
from report.reproduction_records import classifier

FEW = ["--quick", "--seeds", "0", "--device", "cpu"]
FIELDS = {"dataset", "model", "conv", "recipe", "epsilon", "seeds", "epochs", "clean", "robust", "paper"}


@pytest.fixture(autouse=True)
def very_few_images(monkeypatch):
    monkeypatch.setattr(data_module, "QUICK_TRAIN", 64)
    monkeypatch.setattr(data_module, "QUICK_TEST", 20)


@pytest.fixture
def measured(tmp_path):
    """A folder of results with two cells of table 1."""
    for conv in ("bcop", "rko"):
        cell = ClassifierCell("mnist", "small", conv)
        path = tmp_path / "measured" / "classifiers" / f"{cell.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(classifier(cell, 98.0 if conv == "bcop" else 97.0, 49.0)))
    return tmp_path / "measured"


# Measuring ------------------------------------------------------------------------------------------------------------


def test_a_quick_look_from_training_to_rows(isoconv, tmp_path):
    """All four methods on digits in the place of MNIST: no data is needed, and nothing is left behind."""
    outcome = isoconv("reproduce", "table1", *FEW, "--only", "mnist-small", "--json")
    rows = json.loads(outcome.out)
    assert outcome.code == 0 and [row["conv"] for row in rows] == ["ossn", "rko", "svcm", "bcop"]
    for row in rows:
        assert row.keys() >= FIELDS and row["status"] == "ok" and row["quick"] and row["seeds"] == [0]
        assert row["epochs"] == 1 and row["epsilon"] == 1.58 and row["recipe"] == "default"
        assert 0 <= row["robust"]["mean"] <= row["clean"]["mean"] <= 100 and row["clean"]["std"] is None
        assert row["paper"]["printed"]["clean"]["mean"] > 90
    assert "a quick look at digits in its place" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_measured_is_kept_and_not_measured_again(isoconv, tmp_path):
    words = ("reproduce", "attacks", *FEW, "--only", "small-bcop-default-fgsm", "--results", "kept", "--runs", "runs")
    first = isoconv(*words, "--json")
    path = tmp_path / "kept" / "attacks" / "cifar10-small-bcop-default-fgsm.json"
    record = json.loads(path.read_text())
    assert first.code == 0 and record["violations"] == 0 and (tmp_path / "runs").is_dir()
    row = json.loads(first.out)[0]
    assert row["model"] == "small" and row["fgsm"]["mean"] == record["results"][0]["accuracy"] and row["ordered"]
    assert isoconv(*words).code == 0 and json.loads(path.read_text()) == record


def test_a_time_limit_stops_cleanly_and_the_same_command_goes_on(isoconv, tmp_path):
    words = ("reproduce", "table1", *FEW, "--only", "mnist-small-bcop", "--results", "kept", "--runs", "runs")
    stopped = isoconv(*words, "--time-limit", "1e-6")
    assert stopped.code == 3 and "Stopped, and saved: 1 to do. The same command goes on." in stopped.err
    assert "missing" in stopped.out and not (tmp_path / "kept").exists()
    assert isoconv(*words).code == 0
    assert (tmp_path / "kept" / "classifiers" / "mnist-small-bcop-default.json").exists()


def test_real_results_and_quick_ones_are_not_mixed(isoconv, measured):
    outcome = isoconv("reproduce", "table1", *FEW, "--only", "mnist-small-bcop", "--results", measured)
    assert outcome.code == 2 and "Expected results with quick True in" in outcome.err


def test_without_data_nothing_is_trained(isoconv, tmp_path):
    outcome = isoconv("reproduce", "table1", "--run", "--data", tmp_path / "nowhere", "--device", "cpu")
    assert outcome.code == 2 and outcome.err.startswith("isoconv: MNIST was not found") and not list(tmp_path.iterdir())
    outcome = isoconv("reproduce", "table1", *FEW, "--data", tmp_path / "nowhere")
    assert outcome.code == 2 and outcome.err.startswith(
        "isoconv: MNIST was not found"
    )  # asked for, so no digits instead


# Showing --------------------------------------------------------------------------------------------------------------


def test_what_exists_is_shown_and_the_rest_is_marked(isoconv, measured):
    outcome = isoconv("reproduce", "table1", "--results", measured)
    assert outcome.code == 0 and "98.00 ± 0.14" in outcome.out and "97.54 ± 0.06 / 45.84 ± 0.90" in outcome.out
    assert "15 of 17 lines are not measured yet" in outcome.out
    rows = json.loads(isoconv("reproduce", "table1", "--results", measured, "--json").out)
    assert len(rows) == 17 and [row["recipe"] for row in rows] == ["default"] * 16 + ["paper"]
    assert [row["status"] for row in rows].count("ok") == 2
    assert rows[3]["verdict"] == {"clean": "better", "robust": "better"}


@pytest.mark.parametrize(
    ("form", "begins", "has"),
    [
        ("markdown", "| data, ε |", "| MNIST, 1.58 | Small | BCOP | 30 | **98.00 ± 0.14** |"),
        ("latex", r"\begin{table}", r"\textbf{98.00 $\pm$ 0.14}"),
        ("html", "<!doctype html>", "<b>98.00 ± 0.14</b>"),
        ("json", "[", '"dataset": "mnist"'),
        ("table", "Clean and certified accuracy", "98.00 ± 0.14"),
    ],
)
def test_every_format_on_stdout_and_in_a_file(isoconv, measured, tmp_path, form, begins, has):
    printed = isoconv("reproduce", "table1", "--results", measured, "--format", form)
    assert printed.code == 0 and printed.out.startswith(begins) and has in printed.out
    written = isoconv("reproduce", "table1", "--results", measured, "--format", form, "--out", "new/file.txt")
    assert written.code == 0 and written.out == "" and "Written to new/file.txt" in written.err
    assert (tmp_path / "new" / "file.txt").read_text() == printed.out


def test_figures_are_drawn(isoconv, tmp_path):
    outcome = isoconv("reproduce", "figure-bconv")
    assert outcome.code == 0 and "Drawn in figure-bconv.svg" in outcome.err and "[P  I−P] ∗ v" in outcome.out
    assert (tmp_path / "figure-bconv.svg").read_text().startswith("<?xml")
    outcome = isoconv("reproduce", "figure-downsampling", "--out", "d.png")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG") and "Drawn in d.png" in outcome.err
    outcome = isoconv("reproduce", "figure-sv", "--results", "nowhere")
    assert outcome.code == 0 and "There is nothing to draw for figure-sv yet." in outcome.err
    assert not (tmp_path / "figure-sv.svg").exists() and "missing" in outcome.out


def test_a_table_as_a_picture(isoconv, measured, tmp_path):
    outcome = isoconv("reproduce", "table1", "--results", measured, "--out", "table1.png")
    assert outcome.code == 0 and outcome.out == "" and (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")


def test_everything_with_its_plan(isoconv, measured):
    outcome = isoconv("reproduce", "all", "--results", measured, "--only", "mnist-small", "--json")
    rows = json.loads(outcome.out)
    assert {row["target"] for row in rows} == {"table1", "ablation"}
    assert "What there is to measure" in outcome.err and "mnist-small-ossn-default" in outcome.err
    assert "In all about" in outcome.err and "to do" in outcome.err and "done" in outcome.err


def test_results_are_found_here_or_beside_the_sources(isoconv, measured, tmp_path):
    """In an empty folder the committed results are shown; in one with results of its own, those."""
    committed = Path(__file__).resolve().parents[2] / RESULTS
    assert find_results() == (committed if committed.exists() else RESULTS)
    measured.rename((tmp_path / RESULTS.parent).mkdir() or tmp_path / RESULTS)
    assert find_results() == RESULTS
    assert "98.00 ± 0.14" in isoconv("reproduce", "table1").out


# Refusing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table2"], "Expected one of table1, sota, ablation, "),
        (
            ["table1", "--format", "word"],
            "Expected --format to be one of table, markdown, latex, html, json. Got 'word'.",
        ),
        (["table1", "--recipe", "best"], "Expected recipe to be one of default, paper. Got 'best'."),
        (
            ["table1", "--only", "vgg"],
            "Expected --only to be a part of a name such as mnist-small-ossn-default. Got vgg,",
        ),
        (["table1", "--seeds", "one"], "Expected seeds such as 0 or 0,1,2. Got 'one'."),
        (["table1", "--epochs", "0"], "Expected epochs of at least 1. Got 0."),
        (["table1", "--time-limit", "0"], "Expected a time limit of more than 0 seconds. Got 0."),
        (["table1", "--device", "tpu"], "Expected device to be auto, cpu or cuda. Got 'tpu'."),
        (["table1", "--out", "."], "Expected a file to write to. . is a folder."),
        (["all", "--out", "all.png"], "Expected one target to draw. Got all: --format html has every drawing."),
        (["figure-sv", "--out", "a.gif"], "Expected a file for the figure that ends in .svg, .png, .pdf. Got a.gif."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(isoconv, words, message):
    outcome = isoconv("reproduce", *words)
    assert outcome.code == 2 and outcome.err.startswith(f"isoconv: {message}") and outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_results_that_are_no_json(isoconv, measured):
    (measured / "classifiers" / "mnist-small-bcop-default.json").write_text("{")
    outcome = isoconv("reproduce", "table1", "--results", measured)
    assert outcome.code == 2 and outcome.err.startswith("isoconv: Expected JSON in ")
