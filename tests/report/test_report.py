"""The page: all in one file, nothing that anybody can inject, numbers that never claim more than the files do.

And files of a run that are missing or damaged: one line that names the file, what is wrong, and what to do.
"""

import base64
import functools
import hashlib
import json
import operator
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from isoconv.errors import IsoconvError
from isoconv.report import page as page_module
from isoconv.report import read_run_files
from isoconv.report.page import name_runs, round_radii_down, show_percent, show_radius, write_page
from isoconv.report.run_files import command_of, train_command
from report.report_runs import PIXEL, RADII, certified, config, data_of, fake_run

HOSTILE = "<script>alert(1)</script>"
QUOTES = "\"><img src=x onerror=alert(1)> ' & {{ data }} {% raw %} </script><!-- \u2028"


class Elements(HTMLParser):
    """Every element's name and attributes, and the text of some."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in set(self.stack):
            self.texts.setdefault(tag, []).append(data)


def made(tmp_path: Path, *runs: Path, **options: object) -> str:
    write_page(list(runs), tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text()


def test_everything_is_in_the_file(tmp_path):
    text = made(tmp_path, fake_run(tmp_path / "a"), fake_run(tmp_path / "b"))
    elements = Elements(text).found
    assert not [tag for tag, _ in elements if tag in ("link", "iframe", "object", "embed", "base")]
    for tag, attributes in elements:
        assert "src" not in attributes and "href" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert "url(" not in text and "@import" not in text
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in elements
    assert "prefers-color-scheme: dark" in text
    # Its policy allows its own script and style, and nothing else.
    (policy,) = (a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules.pop("img-src") == "data:"

    def hashed(content: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    assert rules.pop("script-src") == hashed(re.findall(r"<script>(.*?)</script>", text, re.S)[0])
    assert rules.pop("style-src") == hashed(re.search(r"<style>(.*?)</style>", text, re.S).group(1))
    assert rules == {}


@pytest.mark.parametrize("name", [HOSTILE, QUOTES], ids=["script", "quotes"])
def test_names_of_classes_and_folders_are_text(tmp_path, name):
    run = fake_run(tmp_path / name.replace("/", "∕"), config(classes=(name, "b"), data=f"/pictures/{name}"))
    text = made(tmp_path, run, notes={str(run): name})
    elements = Elements(text)
    scripts = [attributes for tag, attributes in elements.found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]  # the page's own two, and no other
    assert not [tag for tag, _ in elements.found if tag == "img"]
    (run_data,) = data_of(text)
    assert run_data["classes"] == [name, "b"] and run_data["name"] == run.name
    assert any(name in note for note in elements.texts["p"]) or name in "".join(elements.texts["p"])
    assert name in "".join(elements.texts["td"]) and run.name in "".join(elements.texts["summary"])


def test_what_is_drawn_is_what_the_files_hold(tmp_path):
    (run,) = data_of(made(tmp_path, fake_run(tmp_path / b"caf\xe9".decode("utf-8", "surrogateescape"))))
    assert run["name"] == "caf?"  # a path need not be text
    assert run["clean"] == 100 and run["images"] == 8 and run["epsilons"] == [1.58, 0.3]
    assert run["radii"] == [radius for radius in RADII if radius > 0]
    assert [(row["attack"], row["epsilon"]) for row in run["attacks"]] == [("pgd", 0.3), ("pgd", 0.6), ("fgsm", 0.3)]
    assert run["metrics"] == {"epoch": [1, 2, 3], "loss": [1, 0.5, 1 / 3], "accuracy": [91, 92, 93]}
    assert run["spectra"][0]["after"]["counts"] == [0, 0, 8] and run["gradients"]["places"] == ["image", "logits"]
    assert [entry["adversarial"] is None for entry in run["gallery"]] == [False, True]
    assert run["confusion"] == [[5, 2], [0, 1]] and [entry["file"] for entry in run["mistakes"]] == ["a/1.png", ""]


def test_without_a_script_there_are_still_figures_configuration_and_command(tmp_path):
    texts = Elements(made(tmp_path, fake_run(tmp_path / "a"))).texts
    figures = {"100.0 %", "0.0 % at 1.58; 50.0 % at 0.3", "1.000002", "2 s"}
    settings = {"digits", "1 × 28 × 28", "a, b", "steepest", "float64 arithmetic", "CPU, 1 threads"}
    assert figures | settings <= set(texts["td"])
    assert texts["code"] == [f"isoconv train digits --model small --epochs 3 --out {tmp_path / 'a'}"]


def test_accuracy_on_held_out_images_is_shown_with_the_epoch_that_was_kept(tmp_path):
    kept = {"best_epoch": 2, "validation": 84.5}
    stopped = fake_run(tmp_path / "a", config(epochs=9, validation=0.1, patience=1), **kept)
    text = made(tmp_path, stopped, fake_run(tmp_path / "b"))
    with_it, without = data_of(text)
    assert (with_it["validation"], with_it["kept"]) == ([80, 84.5, 83], 2)
    assert without["validation"] is without["kept"] is None
    (sentence,) = re.findall(r"<p[^>]*><b>a</b>: (epoch.*?)</p>", text, re.S)
    assert all(part in sentence for part in ("epoch 2 is kept", "84.5 %", "epoch 3 of 9", "--patience 1"))
    before = made(tmp_path, tmp_path / "b")
    assert "is kept" not in before.split("<script")[0] and "best epoch" not in before and "held-out" in text


MISSING = {
    "certified.json": ("radii", "isoconv certify"), "attacks.json": ("attacks", "isoconv attack"),
    "diagnostics.json": ("spectra", ""), "gallery.json": ("gallery", ""),
}  # fmt: skip


def test_what_is_missing_is_left_out_and_there_is_a_command_for_it(tmp_path):
    for missing, (key, command) in MISSING.items():
        text = made(tmp_path, fake_run(tmp_path / key, without=(missing,)))
        assert not data_of(text)[0][key]
        notes = [a for _, a in Elements(text).found if a.get("class") == "note"]
        assert len(notes) == 1 + bool(command) and f"{command} {tmp_path / key}" * bool(command) in text
    run = fake_run(tmp_path / "never tested", without=tuple(MISSING))
    result = json.loads((run / "result.json").read_text())
    tested = ("clean", "robust", "images", "lipschitz_bound")
    (run / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k not in tested}))
    (data,) = data_of(made(tmp_path, run))
    assert data["clean"] is None and data["epsilons"] == []


def test_a_large_page_goes_without_galleries_and_says_so(tmp_path, monkeypatch):
    runs = [fake_run(tmp_path / name) for name in "abc"]
    whole = len(made(tmp_path, *runs).encode())
    monkeypatch.setattr(page_module, "LARGEST", whole - 200)
    text = made(tmp_path, *runs)
    assert len(text.encode()) <= whole - 200
    assert [len(run["mistakes"]) for run in data_of(text)] == [2, 2, 0] and "<b>c</b>: The misclassified images" in text
    assert [run["mistake_count"] for run in data_of(text)] == [2, 2, 2]  # what was left out is still counted
    monkeypatch.setattr(page_module, "LARGEST", whole - 1200)
    text = made(tmp_path, *runs)
    assert [run["gallery"] is None for run in data_of(text)] == [False, False, True]
    assert "<b>c</b>: The gallery is left out" in text
    monkeypatch.setattr(page_module, "LARGEST", 10_000)
    with pytest.raises(IsoconvError, match=r"Got 3: report on fewer"):
        made(tmp_path, *runs)


def test_a_report_is_replaced_and_anything_else_is_not(tmp_path):
    run = fake_run(tmp_path / "a")
    assert made(tmp_path, run) == made(tmp_path, run)
    for content in (b"", b"<html>my thesis</html>", b"\x89PNG\xff"):
        (tmp_path / "page.html").write_bytes(content)
        with pytest.raises(IsoconvError, match=r"page.html, which is something else"):
            write_page([run], tmp_path / "page.html")
        assert (tmp_path / "page.html").read_bytes() == content
    for out, words in ((tmp_path, "a folder"), (tmp_path / "no" / "page.html", "no, which does not exist")):
        with pytest.raises(IsoconvError, match=words):
            write_page([run], out)
    with pytest.raises(IsoconvError, match=r"at least one run"):
        write_page([], tmp_path / "new.html")


def test_radii_and_shares_are_rounded_down():
    for radius in (0.3, 1.3448956699999999, 2.7269855499999998, 36 / 255, 1.58, 1e-9, 0.123456789, 7.000000009999):
        (shown,) = round_radii_down([radius]) or (0.0,)
        assert shown <= radius < shown + 1.1e-8
        assert float(show_radius(radius, 3)) <= radius < float(show_radius(radius, 3)) + 1.1e-3
    shares = [show_percent(*pair) for pair in ((59.69, 10_000), (37.8, 1000), (43.75, 16), (200 / 3, 3))]
    assert shares == ["59.69 %", "37.8 %", "43.75 %", "66.66 %"]


def test_runs_have_names_that_tell_them_apart():
    known = {"runs/a runs/b": "a b", "one/a two/a": "one/a two/a", "runs/a": "a", "m/seed-0": "m/seed-0"}
    for paths, names in known.items():
        assert name_runs([Path(path) for path in paths.split()]) == names.split()


# The command on the page; that it makes the run again is tested with the command itself

OUT = Path("runs/x")
CASES = [
    ({"model": "large", "epochs": 60}, "isoconv train digits"),
    ({}, "isoconv train digits --model small --epochs 3"),
    ({"conv": "rko", "seed": 4}, "isoconv train digits --model small --conv rko --epochs 3 --seeds 4"),
    ({"recipe": "paper"}, "isoconv train digits --recipe paper --model small --epochs 3"),
    ({"data": "cifar10", "input_shape": (3, 32, 32)}, "isoconv train cifar10 --data DIR --model small --epochs 3"),
    ({"data": "my pics", "input_shape": (3, 32, 48)}, "isoconv train 'my pics' --size 32x48 --model small --epochs 3"),
    ({"flip": True, "crop_padding": 2}, "isoconv train digits --model small --epochs 3 --crop-padding 2 --flip"),
    ({"data": "p", "input_shape": (3, 9, 9), "flip": False}, "isoconv train p --size 9 --model small --epochs 3 --no-flip"),
    ({"resized_crop": (0.25, 1.0), "rand_augment": (2, 9.0)},
     "isoconv train digits --model small --epochs 3 --resized-crop 0.25,1.0 --rand-augment 2,9.0"),
    ({"data": "stl10", "input_shape": (3, 64, 64), "patch": 2},
     "isoconv train stl10 --data DIR --size 64 --model small --epochs 3"),
    ({"data": "p", "input_shape": (3, 64, 64)}, "isoconv train p --size 64 --model small --epochs 3 --patch 1"),
    ({"validation": 0.1, "patience": 3, "skip_broken": True},
     "isoconv train digits --model small --epochs 3 --validation 0.1 --patience 3 --skip-broken"),
    ({"checkpoint_activations": True}, "isoconv train digits --model small --epochs 3 --checkpoint-activations"),
]  # fmt: skip


def test_only_what_is_not_usual_is_said():
    for changes, command in CASES:
        assert train_command(config(**changes), OUT) == f"{command} --out runs/x"
    for changes in ({"momentum": 0.5}, {"project_every": 7}):  # which no option sets
        assert train_command(config(**changes), OUT) is None
    found = train_command(config(), OUT, seeds=[0, 1], epsilons=[36 / 255, 0.5])
    assert found is not None and "--seeds 0,1 --epsilon 0.1411764705882353 --epsilon 0.5 --out" in found
    assert train_command(config(), OUT, epsilons=[1.58, 0.3]) == train_command(config(), OUT)  # the data set's own


def test_the_seeds_of_a_run_share_a_command(tmp_path):
    for seed in (0, 1):
        run = fake_run(tmp_path / f"seed-{seed}", config(seed=seed))
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace('"replicas": 1', '"replicas": 2'))
    command = "isoconv train digits --model small --epochs 3 --seeds 0,1 --out"
    assert command_of(read_run_files(tmp_path / "seed-1")) == f"{command} {tmp_path}"


# Files that are missing or damaged


def refuse(path: Path, message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as caught:
        read_run_files(path)
    assert "\n" not in str(caught.value)


def changed(value: Any, *keys: Any) -> Any:
    """Return a function that puts `value` where the keys lead to."""

    def change(record: Any) -> Any:
        functools.reduce(operator.getitem, keys[:-1], record)[keys[-1]] = value
        return record

    return change


DAMAGE: list[tuple[str, Any, str]] = [
    ("certified.json", lambda fields: {name: fields[name] for name in fields if name != "radii"}, "radii"),
    ("certified.json", changed(float("nan"), "radii", 1), "radii"),
    ("certified.json", changed(-0.1, "radii", 1), "radii .* -0.1"),
    ("certified.json", changed([0.1], "radii"), "8 images. Got 1"),
    ("certified.json", changed(101, "clean"), "clean .* Got 101"),
    ("certified.json", changed(50.0, "clean"), "radii of at most 50 %"),
    ("certified.json", changed(None, "layers", 0, "bound"), "bound .* Got null"),
    ("attacks.json", lambda rows: {}, "list of attacks. Got dict"),
    ("attacks.json", changed(1, 0), "AttackRecord. Got int"),
    ("attacks.json", changed(None, 0, "accuracy"), "accuracy .* Got None"),
    ("attacks.json", changed(-1, 0, "epsilon"), "epsilon .* Got -1"),
    ("diagnostics.json", changed(0, "layers", 0, "width"), "width .* Got 0"),
    ("diagnostics.json", changed([1], "layers", 0, "after", "counts"), "3 bins .* Got 1"),
    ("diagnostics.json", changed([1], "gradient_norms", "after", "mean"), "2 places"),
    ("gallery.json", changed(2, "images", 0, "label"), "classes from 0 to 1. Got 2"),
    ("gallery.json", changed(2, "images", 0, "adversarial", "prediction"), "classes from 0 to 1. Got 2"),
    ("gallery.json", changed(-1, "images", 0, "prediction"), "prediction .* Got -1"),
    ("gallery.json", changed(PIXEL + '" onload="', "images", 0, "image"), "PNG"),
    ("gallery.json", changed("javascript:x", "images", 0, "adversarial", "change"), "PNG"),
    ("gallery.json", lambda found: [], "Gallery. Got list"),
    ("gallery.json", changed(2, "mistakes", 0, "prediction"), "classes from 0 to 1. Got 2"),
    ("gallery.json", changed([[1]], "confusion"), "2 classes"),
    ("result.json", changed("long", "train_seconds"), "train_seconds .* Got \"long\""),
    ("result.json", changed(1, "robust", "x"), "radii .*x"),
    ("result.json", changed(101, "robust", "0.3"), "robust .* 101"),
    ("result.json", changed(None, "images"), "images"),
]  # fmt: skip
REMEDIES = {
    "certified.json": "isoconv certify ",
    "attacks.json": "isoconv attack ",
    "diagnostics.json": "make the report again",
    "gallery.json": "make the report again",
    "result.json": "Train again",
}


@pytest.mark.parametrize(("name", "change", "got"), DAMAGE, ids=[f"{name}: {got}" for name, _, got in DAMAGE])
def test_a_damaged_file(tmp_path, name, change, got):
    run = fake_run(tmp_path / "run")
    read_run_files(run)  # whole, it is taken
    (run / name).write_text(json.dumps(change(json.loads((run / name).read_text()))))
    refuse(run, rf"^{re.escape(str(run / name))}: .*{got}.* .*{REMEDIES[name]}")


@pytest.mark.parametrize("name", REMEDIES)
def test_a_file_that_is_not_json_or_cannot_be_read(tmp_path, name):
    run = fake_run(tmp_path / "run")
    for content in (b"", b'{"images": 8', b"\xff\xfe\x00", b"[" * 100_000):
        (run / name).write_bytes(content)
        refuse(run, rf"{name}: Expected JSON\. .*{REMEDIES[name]}")
    (run / name).unlink()
    (run / name).mkdir()
    refuse(run, "not finished" if name == "result.json" else rf"{name}.* directory.* {REMEDIES[name]}")


def test_other_radii_of_this_network_are_taken_and_those_of_another_are_not(tmp_path):
    run = fake_run(tmp_path / "run")
    for changes in ({"invented_later": [1]}, {"images": 2, "clean": 50.0, "radii": [0.0, 0.1]}):
        (run / "certified.json").write_text(json.dumps(certified(**changes)))
        assert read_run_files(run).certified.images == changes.get("images", 8)
    (run / "certified.json").write_text(json.dumps(certified(clean=62.5, radii=[0.0] * 3 + [0.1] * 5)))
    refuse(run, r"certified\.json.*another, .*62.5 instead of 100.* isoconv certify")


def test_a_folder_that_is_not_a_run_of_this_kind_or_not_finished(tmp_path):
    refuse(tmp_path, r"Expected a run in .* no config.json")
    refuse(tmp_path / "nowhere", r"nowhere.* no config.json")
    run = fake_run(tmp_path / "a run", without=("result.json",))
    refuse(run, r"not finished: .* isoconv train --resume --out '.*/a run'\.$")
    (run / "config.json").write_text('{"first": "digits", "second": "mnist"}')
    refuse(run, r"the run of a classifier in .* Got that of a critic")


def test_damaged_metrics(tmp_path):
    run = fake_run(tmp_path / "run")
    not_a_number = '{"epoch": 1, "loss": NaN, "accuracy": 1, "seconds": 1}'
    for line, got in (('{"epoch": 1', "JSON"), ('{"epoch": 1}', "loss"), (not_a_number, "loss")):
        (run / "metrics.jsonl").write_text(line + "\n")
        refuse(run, rf"metrics\.jsonl: .*{got}.* Train again")
