"""Files of a run that are missing or damaged: one line that names the file, what is wrong, and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from isoconv.errors import IsoconvError
from isoconv.report import read_run_files
from report.report_runs import PIXEL, attacks, certified, diagnostics, fake_run, gallery


def refused(path: Path, message: str) -> None:
    with pytest.raises(IsoconvError, match=message) as caught:
        read_run_files(path)
    assert "\n" not in str(caught.value)


def changed(value: Any, *keys: Any) -> Any:
    """A function that puts `value` where the keys lead to; without a value it is taken away."""

    def change(record: Any) -> Any:
        at = record
        for key in keys[:-1]:
            at = at[key]
        if value is GONE:
            del at[keys[-1]]
        else:
            at[keys[-1]] = value
        return record

    return change


GONE = object()
CASES: list[tuple[str, Any, str]] = [
    ("certified.json", changed(GONE, "radii"), "an object without 'radii'"),
    ("certified.json", changed("x", "radii", 1), "'x' for 'radii', which is a number"),
    ("certified.json", changed(float("nan"), "radii", 1), "nan for 'radii', which is a number"),
    ("certified.json", changed(-0.1, "radii", 1), "-0.1 for 'radii', which is from 0 to inf"),
    ("certified.json", changed([0.1], "radii"), "1 radii of 8 images"),
    ("certified.json", changed(True, "images"), "True for 'images', which is a number"),
    ("certified.json", changed(7.5, "images"), "7.5 for 'images', which is a whole number"),
    ("certified.json", changed(101, "clean"), "101 for 'clean', which is from -1e-09 to 100"),
    ("certified.json", changed(50.0, "clean"), "more images with a radius than the 50 % that are right"),
    ("certified.json", changed(3, "layers"), "3 for 'layers', which is a list"),
    ("certified.json", changed(None, "layers", 0, "bound"), "None for 'bound', which is a number"),
    ("certified.json", changed(1, "layers", 0), "1 where an object belongs"),
    ("attacks.json", lambda rows: {}, "{} for 'attacks', which is a list"),
    ("attacks.json", changed(GONE, 0, "accuracy"), "an object without 'accuracy'"),
    ("attacks.json", changed(None, 0, "accuracy"), "None for 'accuracy', which is a number"),
    ("attacks.json", changed(5, 0, "attack"), "5 for 'attack', which is a text"),
    ("attacks.json", changed(-1, 0, "epsilon"), "-1 for 'epsilon', which is from 0 to inf"),
    ("diagnostics.json", changed(GONE, "layers"), "an object without 'layers'"),
    ("diagnostics.json", changed(0, "layers", 0, "width"), "0 for 'width', which is from 1e-12 to inf"),
    ("diagnostics.json", changed([1], "layers", 0, "after", "counts"), "other bins before than after training"),
    ("diagnostics.json", changed([1.5], "layers", 0, "after", "counts"), "1.5 for 'counts', which is a whole number"),
    ("diagnostics.json", changed([1], "gradient_norms", "after", "mean"), "another number of norms than the 2 places"),
    ("gallery.json", changed(2, "images", 0, "label"), "2 for 'label', which is from 0 to 1"),
    ("gallery.json", changed("http://x/y.png", "images", 0, "image"), "'http://x/y.png' for a picture"),
    ("gallery.json", changed(PIXEL + '" onload="', "images", 0, "image"), "for a picture, which is a PNG as a data URI"),
    ("gallery.json", changed(GONE, "images", 0, "adversarial", "norm"), "an object without 'norm'"),
    ("gallery.json", lambda found: [], "[] where an object belongs"),
]  # fmt: skip
CONTENT = {
    "certified.json": certified,
    "attacks.json": attacks,
    "diagnostics.json": diagnostics,
    "gallery.json": gallery,
}
REMEDIES = {
    "certified.json": "Make it again: isoconv certify ",
    "attacks.json": "Make it again: isoconv attack ",
    "diagnostics.json": "Delete it and make the report again.",
    "gallery.json": "Delete it and make the report again.",
}


@pytest.mark.parametrize(("name", "change", "got"), CASES, ids=[f"{name}: {got}" for name, _, got in CASES])
def test_a_damaged_file(tmp_path, name, change, got):
    run = fake_run(tmp_path / "run")
    read_run_files(run)  # whole, it is taken
    (run / name).write_text(json.dumps(change(json.loads(json.dumps(CONTENT[name]())))))
    expected = rf"^Expected .* in {re.escape(str(run / name))}\. Got .*{re.escape(got)}.*\. {re.escape(REMEDIES[name])}"
    refused(run, expected)


@pytest.mark.parametrize("name", ["certified.json", "attacks.json", "diagnostics.json", "gallery.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b'{"images": 8', b"\xff\xfe\x00", b"[" * 100_000], ids=str)
def test_a_file_that_is_not_json(tmp_path, name, content):
    run = fake_run(tmp_path / "run")
    (run / name).write_bytes(content)
    refused(run, rf"^Expected .* in .*{name}\. Got a file that is not JSON\. ")


def test_a_file_that_cannot_be_read(tmp_path):
    run = fake_run(tmp_path / "run", without=("attacks.json",))
    (run / "attacks.json").mkdir()
    refused(
        run, r"^Expected the results of attacks in .*attacks.json\. Got a file that cannot be read \(Is a directory\)"
    )


def test_the_radii_of_another_network(tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "certified.json").write_text(json.dumps(certified(clean=62.5, radii=[0.0] * 3 + [0.1] * 5)))
    refused(
        run,
        r"^Expected the certified radii of this run's network in .* Got those of another, 62.5 % right instead of 100",
    )


def test_radii_of_a_part_of_the_images_are_taken(tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "certified.json").write_text(json.dumps(certified(images=2, clean=50.0, radii=[0.0, 0.1])))
    found = read_run_files(run).certified
    assert found is not None and found["images"] == 2


def test_a_folder_that_is_not_a_run(tmp_path):
    refused(tmp_path, r"^Expected a run in .*\. There is no config.json in it\.$")
    refused(tmp_path / "nowhere", r"^Expected a run in .*nowhere\. There is no config.json in it\.$")


def test_an_unfinished_run(tmp_path):
    run = fake_run(tmp_path / "a run", without=("result.json",))
    refused(run, r"is not finished: it has no result.json\. Go on: isoconv train --resume --out '.*/a run'\.$")


def test_another_kind_of_run(tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "config.json").write_text('{"first": "digits", "second": "mnist"}')
    refused(run, "config.json")


@pytest.mark.parametrize(
    ("line", "got"),
    [('{"epoch": 1', "a file that is not JSON"), ('{"epoch": 1}', "an object without 'loss'"),
     ('{"epoch": 1, "loss": NaN, "accuracy": 1, "seconds": 1}', "nan for 'loss', which is a number")],
)  # fmt: skip
def test_damaged_metrics(tmp_path, line, got):
    run = fake_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text(line + "\n")
    refused(run, rf"^Expected a line of figures per epoch in .*metrics.jsonl\. Got {got}\. Train again\.$")


@pytest.mark.parametrize(
    ("key", "value", "got"),
    [("train_seconds", "long", "'long' for 'train_seconds'"), ("robust", {"x": 1}, "'x' for a radius"),
     ("robust", 3, "3 for 'robust'"), ("clean", -3, "-3 for 'clean'")],
)  # fmt: skip
def test_a_damaged_result(tmp_path, key, value, got):
    run = fake_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {key: value}))
    refused(run, rf"^Expected a run's result in .*result.json\. Got {got}.*\. Train again\.$")
