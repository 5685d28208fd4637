"""isoconv report: the page about trained runs, what it makes for it, and what it refuses."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from isoconv.cli import main

TINY = ["--model", "small", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    with patch.object(sys, "argv", ["isoconv", "train", str(pictures), "--out", str(out), "--epochs", "4", *TINY]):
        run_main()
    return out


@pytest.fixture(scope="module")
def complete(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that a report makes for itself."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("complete") / "run"))
    with patch.object(sys, "argv", ["isoconv", "report", str(run), "--out", str(run.parent / "page.html")]):
        run_main()
    return run


def run_main() -> None:
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise


def copy(run: Path, place: Path) -> Path:
    return Path(shutil.copytree(run, place))


def data_of(page: Path) -> list[dict]:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S).group(1))["runs"]


def test_it_makes_what_is_missing_and_says_where_the_page_is(isoconv, trained, tmp_path):
    run = copy(trained, tmp_path / "run")
    outcome = isoconv("report", "run", "--device", "cpu")
    assert (outcome.code, outcome.out) == (0, "")
    # On a slow machine there is a line of progress every few seconds before it.
    assert outcome.err.splitlines()[-1] == "The page is in report.html: open it in a browser."
    assert {"certified.json", "diagnostics.json", "gallery.json"} <= {path.name for path in run.iterdir()}
    (shown,) = data_of(tmp_path / "report.html")
    result = json.loads((run / "result.json").read_text())
    assert shown["clean"] == result["clean"] and shown["images"] == 16
    for epsilon, percent in shown["robust"]:
        assert sum(radius >= epsilon for radius in shown["radii"]) * 100 / 16 == percent
    assert len(shown["gallery"]) == 12 and len(shown["spectra"]) == 4
    assert shown["gradients"]["places"][0] == "image" and len(shown["gradients"]["after"]["mean"]) > 2
    assert "No attacks yet: isoconv attack run" in (tmp_path / "report.html").read_text()


def test_what_was_made_is_kept(isoconv, complete, tmp_path):
    run = copy(complete, tmp_path / "run")
    outcome = isoconv("report", run, "--json")
    answer = json.loads(outcome.out)
    assert outcome.code == 0 and outcome.err == "" and answer["made"] == {str(run): []}
    assert answer["page"] == "report.html" and answer["bytes"] == (tmp_path / "report.html").stat().st_size < 3_000_000


def test_attacks_are_drawn_once_there_are_some(isoconv, complete, tmp_path):
    run = copy(complete, tmp_path / "run")
    assert isoconv("attack", run, "--attack", "fgsm", "--epsilon", "0.1", "--epsilon", "0.5").code == 0
    assert isoconv("report", run).code == 0
    (shown,) = data_of(tmp_path / "report.html")
    assert [row["epsilon"] for row in shown["attacks"]] == [0.1, 0.5]
    for row in shown["attacks"]:
        assert (
            sum(radius >= row["epsilon"] for radius in shown["radii"]) * 100 / 16 <= row["accuracy"] <= shown["clean"]
        )


def test_as_is_computes_nothing(isoconv, trained, tmp_path):
    run = copy(trained, tmp_path / "run")
    before = {path.name for path in run.iterdir()}
    outcome = isoconv("report", run, "--as-is", "--out", "page.html")
    assert outcome.code == 0 and {path.name for path in run.iterdir()} == before
    (shown,) = data_of(tmp_path / "page.html")
    assert shown["radii"] is shown["gallery"] is shown["spectra"] is None and shown["metrics"]["epoch"] == [1, 2, 3, 4]


def test_without_the_images_some_parts_are_left_out_and_it_says_why(isoconv, trained, tmp_path):
    run = copy(trained, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": "/gone/pictures"}))
    outcome = isoconv("report", "run")
    assert outcome.code == 0
    reason = "Expected the pictures of the run in /gone/pictures, which does not exist: say where they are (--data)."
    sentence = f"Some parts are left out, for want of the test images. {reason}"
    assert outcome.err.startswith(f"run: {sentence}") and sentence in (tmp_path / "report.html").read_text()
    (shown,) = data_of(tmp_path / "report.html")
    assert (
        shown["gallery"] is None and shown["gradients"] is None and len(shown["spectra"]) == 4
    )  # these need no images


def test_a_data_set_that_is_not_there(isoconv, trained, tmp_path):
    """Without --data that is no failure; what --data points at must be there."""
    run = copy(trained, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": "cifar10"}))
    outcome = isoconv("report", "run", "--data", "nowhere")
    assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1 and "nowhere" in outcome.err
    assert not (tmp_path / "report.html").exists()
    outcome = isoconv("report", "run")
    assert outcome.code == 0 and "Some parts are left out" in outcome.err


def test_several_runs_and_seeds_on_one_page(isoconv, complete, pictures, tmp_path):
    run = copy(complete, tmp_path / "run")
    assert isoconv("train", pictures, "--out", "two", "--seeds", "0,1", "--epochs", "1", *TINY).code == 0
    assert isoconv("report", "run", "two", run).code == 0  # one of them twice
    names = [shown["name"] for shown in data_of(tmp_path / "report.html")]
    assert names == [f"{tmp_path.name}/run", "two/seed-0", "two/seed-1"]
    assert "--seeds 0,1 --out two" in (tmp_path / "report.html").read_text()


COMMANDS = [
    [],
    ["--conv", "rko", "--seeds", "3", "--lr", "0.003"],
    ["--conv", "standard", "--activation", "relu", "--offset", "0", "--temperature", "1"],
    ["--recipe", "paper", "--epochs", "7", "--epsilon", "0.25"],
    ["--size", "8x12", "--loss", "hinge", "--margin", "0.4", "--schedule", "cosine"],
]


@pytest.mark.parametrize("options", COMMANDS, ids=str)
def test_the_command_on_the_page_makes_the_run_again(isoconv, pictures, tmp_path, monkeypatch, options):
    """Trained by nobody here: it is the configuration and the radii that must come out the same."""
    asked = []

    def no_training(configs, folders, train, test, epsilons, observer, **rest):
        asked.append(list(epsilons))
        robust = {str(epsilon): 0.0 for epsilon in epsilons}
        result = {"train_seconds": 0.0, "clean": 0.0, "images": 16, "robust": robust, "lipschitz_bound": 1.0}
        for folder in folders:
            (folder.path / "result.json").write_text(json.dumps(result))
            (folder.path / "metrics.jsonl").write_text("")
            (folder.path / "model.safetensors").write_text("")
        return [result | {"seed": config.seed} for config in configs]

    monkeypatch.setattr("isoconv.cli.train.train_classifiers", no_training)
    monkeypatch.setattr("isoconv.cli.report.open_runs", lambda path: [type("Run", (), {"folder": path})])
    assert isoconv("train", pictures, "--out", "first", *TINY, *options).code == 0
    assert isoconv("report", "first", "--as-is").code == 0
    page = (tmp_path / "report.html").read_text()
    words = shlex.split(re.search(r"<code>(.*?)</code>", page).group(1).replace("&#x27;", "'"))
    assert words[:2] == ["isoconv", "train"] and words[-2:] == ["--out", "first"]
    assert isoconv(*words[1:-1], "again").code == 0
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "first" / "config.json").read_text()
    assert asked[0] == asked[1]


# What it refuses ----------------------------------------------------------------------------------------------------

REFUSED = {
    "not a run": (["report", "missing"], "Expected a run in missing. It does not exist."),
    "no folder": (["report", "run", "--out", "no/page.html"],
                  "Expected a folder to write the report to. There is no no."),
    "a folder for the page": (["report", "run", "--out", "run"],
                              "Expected a file for the report, such as run/report.html. Got run, a folder."),
    "a file of one's own": (["report", "run", "--out", "thesis.html"],
                            "Expected a new file, or an isoconv report to replace. thesis.html is something else: "
                            "name another (--out)."),
    "a device": (["report", "run", "--device", "tpu"], "Expected device to be auto, cpu or cuda. Got 'tpu'."),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(isoconv, complete, tmp_path, words, message):
    copy(complete, tmp_path / "run")
    (tmp_path / "thesis.html").write_text("years of work")
    assert isoconv(*words) == (2, "", f"isoconv: {message}\n")
    assert (tmp_path / "thesis.html").read_text() == "years of work"


def test_an_unfinished_run(isoconv, trained, tmp_path):
    run = copy(trained, tmp_path / "run")
    (run / "model.safetensors").unlink()
    outcome = isoconv("report", "run")
    assert outcome.code == 2 and outcome.err.startswith("isoconv: The run in run is not finished")
    assert outcome.err.count("\n") == 1 and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["certified.json", "attacks.json", "diagnostics.json", "gallery.json"])
def test_a_corrupt_file(isoconv, complete, tmp_path, name):
    run = copy(complete, tmp_path / "run")
    (run / name).write_text('{"images": ')
    outcome = isoconv("report", "run")
    assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1
    assert f"run/{name}: Expected JSON." in outcome.err and not (tmp_path / "report.html").exists()


def test_a_run_of_another_network_is_not_certified_by_an_old_file(isoconv, trained, complete, tmp_path):
    """Radii of a network that was better than this one are noticed, and not shown."""
    run = copy(trained, tmp_path / "run")
    old = json.loads((complete / "certified.json").read_text())
    clean = json.loads((run / "result.json").read_text())["clean"]
    radii = [1.0] * 16 if clean < 50 else [0.0] * 16
    (run / "certified.json").write_text(json.dumps(old | {"clean": 100 - clean, "radii": radii}))
    outcome = isoconv("report", "run")
    assert outcome.code == 2 and "Got those of another" in outcome.err
