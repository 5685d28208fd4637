"""Files of a run that are missing or damaged: one line that names the file, what is wrong, and what to do."""

import functools
import json
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from isoconv.errors import IsoconvError
from isoconv.report import read_run_files
from report.report_runs import PIXEL, certified, fake_run


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


CASES: list[tuple[str, Any, str]] = [
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


@pytest.mark.parametrize(("name", "change", "got"), CASES, ids=[f"{name}: {got}" for name, _, got in CASES])
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
    refuse(run, "not finished" if name == "result.json" else rf"{name}: .* directory.* {REMEDIES[name]}")


def test_other_radii_of_this_network_are_taken_and_those_of_another_are_not(tmp_path):
    run = fake_run(tmp_path / "run")
    for changes in ({"invented_later": [1]}, {"images": 2, "clean": 50.0, "radii": [0.0, 0.1]}):
        (run / "certified.json").write_text(json.dumps(certified(**changes)))
        assert read_run_files(run).certified.images == changes.get("images", 8)
    (run / "certified.json").write_text(json.dumps(certified(clean=62.5, radii=[0.0] * 3 + [0.1] * 5)))
    refuse(run, r"certified\.json: .*another, .*62.5 instead of 100.* isoconv certify")


def test_a_folder_that_is_not_a_run_of_this_kind_or_not_finished(tmp_path):
    refuse(tmp_path, r"Expected a run in .* no config.json")
    refuse(tmp_path / "nowhere", r"nowhere.* no config.json")
    run = fake_run(tmp_path / "a run", without=("result.json",))
    refuse(run, r"not finished: .* isoconv train --resume --out '.*/a run'\.$")
    (run / "config.json").write_text('{"first": "digits", "second": "mnist"}')
    refuse(run, r"config.json")


def test_damaged_metrics(tmp_path):
    run = fake_run(tmp_path / "run")
    not_a_number = '{"epoch": 1, "loss": NaN, "accuracy": 1, "seconds": 1}'
    for line, got in (('{"epoch": 1', "JSON"), ('{"epoch": 1}', "loss"), (not_a_number, "loss")):
        (run / "metrics.jsonl").write_text(line + "\n")
        refuse(run, rf"metrics\.jsonl: .*{got}.* Train again")
