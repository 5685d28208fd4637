"""isoconv report: the page about trained runs, what it makes for it, and what it refuses."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from isoconv.report import write_report
from isoconv.train import TrainResult, complete_run, open_run

TINY = ["--model", "small", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def finished(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that a report makes for itself."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("complete") / "run"))
    run = open_run(folder)
    complete_run(run, run.test_images())
    return folder


@pytest.fixture
def complete(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def data_of(page: Path) -> list[dict]:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S).group(1))["runs"]


def test_it_makes_what_is_missing_and_says_where_the_page_is(isoconv, run, tmp_path):
    outcome = isoconv("report", "run", "--device", "cpu")
    assert (outcome.code, outcome.out) == (0, "") and "report.html" in outcome.err.splitlines()[-1]
    assert {"certified.json", "diagnostics.json", "gallery.json"} <= {path.name for path in run.iterdir()}
    (shown,) = data_of(tmp_path / "report.html")
    result = json.loads((run / "result.json").read_text())
    assert shown["clean"] == result["clean"] and shown["images"] == 16
    for epsilon, percent in shown["robust"]:
        assert sum(radius >= epsilon for radius in shown["radii"]) * 100 / 16 == percent
    assert len(shown["gallery"]) == 12 and len(shown["spectra"]) == 4
    assert shown["gradients"]["places"][0] == "image" and len(shown["gradients"]["after"]["mean"]) > 2
    assert "isoconv attack run" in (tmp_path / "report.html").read_text()  # which makes what is not there yet


def test_what_was_made_is_kept(isoconv, complete, tmp_path):
    outcome = isoconv("report", complete, "--json")
    answer = json.loads(outcome.out)
    assert outcome.code == 0 and outcome.err == "" and answer["made"] == {str(complete): []}
    assert answer["page"] == "report.html" and answer["bytes"] == (tmp_path / "report.html").stat().st_size < 3_000_000


def test_attacks_are_drawn_once_there_are_some(isoconv, complete, tmp_path):
    assert isoconv("attack", "run", "--attack", "fgsm", "--epsilon", "0.1", "--epsilon", "0.5").code == 0
    assert isoconv("report", "run").code == 0
    (shown,) = data_of(tmp_path / "report.html")
    assert [row["epsilon"] for row in shown["attacks"]] == [0.1, 0.5]
    for row in shown["attacks"]:
        certified = sum(radius >= row["epsilon"] for radius in shown["radii"]) * 100 / 16
        assert certified <= row["accuracy"] <= shown["clean"]


def test_as_is_computes_nothing(isoconv, run, tmp_path):
    before = {path.name for path in run.iterdir()}
    outcome = isoconv("report", run, "--as-is", "--out", "page.html")
    assert outcome.code == 0 and {path.name for path in run.iterdir()} == before
    (shown,) = data_of(tmp_path / "page.html")
    assert shown["radii"] is shown["gallery"] is shown["spectra"] is None
    assert shown["metrics"]["epoch"] == list(range(1, 9))


def change_data(run: Path, data: str) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": data}))


def test_without_the_images_some_parts_are_left_out_and_it_says_why(isoconv, run, tmp_path):
    change_data(run, "/gone/pictures")
    outcome = isoconv("report", "run")
    assert outcome.code == 0 and outcome.err.startswith("run: Some parts are left out") and "/gone/" in outcome.err
    assert "/gone/pictures" in (tmp_path / "report.html").read_text()
    (shown,) = data_of(tmp_path / "report.html")
    assert shown["gallery"] is shown["gradients"] is None
    assert len(shown["spectra"]) == 4  # these need no images


def test_a_data_set_that_is_not_there(isoconv, run, tmp_path):
    """Without --data that is no failure; what --data points at must be there."""
    change_data(run, "mnist")
    (tmp_path / "empty").mkdir()
    assert isoconv("report", "run", "--data", "empty").is_refused("empty")
    assert not (tmp_path / "report.html").exists()
    outcome = isoconv("report", "run")
    assert outcome.code == 0 and "Some parts are left out" in outcome.err


def test_several_runs_and_seeds_on_one_page(isoconv, complete, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "two", "--seeds", "0,1", "--epochs", "1", *TINY).code == 0
    assert isoconv("report", "run", "two", complete).code == 0  # one of them twice
    names = [shown["name"] for shown in data_of(tmp_path / "report.html")]
    assert len(names) == 3 and names[0].endswith("run") and names[1:] == ["two/seed-0", "two/seed-1"]
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

    def do_not_train(configs, folders, train, test, epsilons, *rest, models, **options):
        asked.append(list(epsilons))
        robust = {str(epsilon): 0.0 for epsilon in epsilons}
        figures = {"images": 16, "clean": 0.0, "robust": robust, "lipschitz_bound": 1.0}
        results = [TrainResult(config.seed, config.epochs, 0.0, 1, "CPU", "2", **figures) for config in configs]
        for folder, model, result in zip(folders, models, results, strict=True):
            folder.metrics.write_text("")
            folder.finish(model, result.to_fields())
        return results

    monkeypatch.setattr("isoconv.train.job.train_classifiers", do_not_train)
    assert isoconv("train", pictures, "--out", "first", *TINY, *options).code == 0
    write_report([Path("first")], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    words = shlex.split(re.search(r"<code>(.*?)</code>", page).group(1).replace("&#x27;", "'").replace("&#39;", "'"))
    assert words[:2] == ["isoconv", "train"] and words[-2:] == ["--out", "first"]
    assert isoconv(*words[1:-1], "again").code == 0
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "first" / "config.json").read_text()
    assert asked[0] == asked[1]


def test_a_corrupt_file(isoconv, complete, tmp_path):
    (complete / "gallery.json").write_text('{"images": ')
    assert isoconv("report", "run").is_refused("run/gallery.json", "JSON") and not (tmp_path / "report.html").exists()
