"""Commands on pictures that stay in their files: the same networks and figures as from memory, killed or not."""

import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

from data.fakes import save_picture, write_tar
from isoconv.certify import robust_accuracy
from isoconv.data import load_splits
from isoconv.files import read_tensors
from isoconv.train import load_run, open_run, runs
from train.toys import same_weights

TINY = ["--model", "small", "--batch-size", "8", "--device", "cpu", "--size", "12", "--augment", "0.5"]
TINY += ["--resized-crop", "0.4", "--rand-augment", "2", "--colour-jitter", "0.4"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 coloured pictures of two classes and two sizes, 48 of them to train on."""
    folder, random = tmp_path_factory.mktemp("photos") / "photos", np.random.RandomState(0)
    for k in range(60):
        pixels = random.randint(0, 120, ((16, 20), (24, 18))[k % 4 // 2] + (3,)) + 120 * (k % 2)
        save_picture(folder / ("dark", "bright")[k % 2] / f"{k}.{('png', 'jpg')[k % 3 // 2]}", pixels.astype(np.uint8))
    return folder


def workers_of(process) -> list[Path]:
    """Return the folders in /proc of a process's children."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [Path("/proc", number) for number in children.split()]


def are_gone(processes: list[Path], seconds: float = 30) -> bool:
    """Return True if processes end within so many seconds: torch's workers look for their parent every five."""
    end = time.monotonic() + seconds
    while any(path.exists() for path in processes) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(path.exists() for path in processes)


def test_streamed_and_in_memory_are_one(isoconv, photos, tmp_path):
    """Trained, certified, attacked and asked."""
    how = {"memory": "--no-stream", "threads": "--stream --workers 0", "workers": "--stream --workers 2"}
    for name, options in how.items():
        assert isoconv("train", photos, *TINY, "--epochs", "2", "--out", name, *options.split()).code == 0
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in how]
    for name, result in zip(how, results, strict=True):
        assert same_weights(tmp_path / "memory", tmp_path / name)
        assert (result["clean"], result["robust"]) == (results[0]["clean"], results[0]["robust"])
    (certified,) = isoconv("certify", "workers", "--certificate", "c.jsonl", "--json").json
    expected = robust_accuracy(open_run("workers").model, load_splits(photos, size=12).test)
    assert certified["radii"] == expected.radii.tolist()
    lines = (tmp_path / "c.jsonl").read_text().splitlines()
    assert len(lines) == 13 and [json.loads(line)["label"] for line in lines[1:]] == expected.labels.tolist()
    pictures = sorted(photos.rglob("*.png"))[:4]
    for path, answer in zip(pictures, isoconv("predict", "workers", *pictures, "--json").json, strict=True):
        (alone,) = isoconv("predict", "workers", path, "--json").json
        assert (answer["class"], answer["radius"]) == (alone["class"], pytest.approx(alone["radius"], rel=1e-9))


def write_shards(photos: Path, folder: Path, count: int) -> None:
    """Write the pictures of a folder to so many shards, each with its class."""
    paths = sorted(photos.rglob("*.*"), key=lambda path: (path.stat().st_size, path.name))
    for n in range(count):
        members = {path.name: path.read_bytes() for path in paths[n::count]}
        members |= {f"{path.stem}.cls": path.parent.name.encode() for path in paths[n::count]}
        write_tar(folder / f"photos-{n:03}.tar", members)


def test_shards_are_the_folder(isoconv, photos, tmp_path):
    """Every command, from a folder of shards, from braces, and after they have moved."""
    write_shards(photos, tmp_path / "shards", 3)
    short = [*TINY, "--epochs", "1"]
    assert isoconv("train", photos, *short, "--out", "folder").code == 0
    for name, data in (("a", "shards"), ("b", "shards/photos-{000..002}.tar")):
        assert isoconv("train", data, *short, "--out", name, "--stream", "--workers", "2").code == 0
        assert same_weights(tmp_path / "folder", tmp_path / name)
    attack = ["--attack", "fgsm", "--epsilon", "0.5", "--json"]
    expected = isoconv("certify", "folder", "--json").json + isoconv("attack", "folder", *attack).json
    (tmp_path / "shards").rename(tmp_path / "moved")
    assert isoconv("certify", "b").is_refused("photos-{000..002}.tar")
    for name, data in (("a", "moved"), ("b", "moved/photos-{000..002}.tar"), ("b", "moved")):
        certified = isoconv("certify", name, "--data", data, "--json").json
        attacked = isoconv("attack", name, "--data", data, *attack).json
        for a, b in zip(expected, certified + attacked, strict=True):
            assert {**a, "seconds": 0} == {**b, "seconds": 0} and b["images"] == 12
        assert isoconv("report", name, "--data", data, "--out", f"{name}.html").code == 0
        assert json.loads((tmp_path / name / "gallery.json").read_text())["images"]
    with tarfile.open(tmp_path / "moved" / "photos-003.tar", "w"):
        pass  # nothing in it: the pictures are the same
    assert isoconv("certify", "a", "--data", "moved").code == 0
    (tmp_path / "moved" / "photos-001.tar").unlink()
    assert isoconv("certify", "a", "--data", "moved").is_refused("has changed since")
    (tmp_path / "moved" / "photos-002.tar").write_bytes((tmp_path / "moved" / "photos-002.tar").read_bytes()[:5000])
    outcome = isoconv("train", "moved", *short, "--out", "c")
    assert outcome.is_refused("photos-002.tar", "truncated") and not (tmp_path / "c").exists()


def test_an_attack_in_parts_is_the_attack_on_all(isoconv, photos, tmp_path, monkeypatch):
    assert isoconv("train", photos, *TINY, "--epochs", "1", "--out", "run").code == 0
    attack = ["attack", "run", "--attack", "fgsm", "--attack", "rounding", "--epsilon", "0.5", "--json"]
    whole = isoconv(*attack).json
    monkeypatch.setattr(runs, "_ATTACKED_PIXELS", 5 * 3 * 12 * 12)
    for a, b in zip(whole, isoconv(*attack).json, strict=True):
        assert a.pop("seconds") > 0 < b.pop("seconds")
        assert a == b and a["images"] == 12


def test_a_crop_is_remembered(isoconv, photos, tmp_path):
    for name, form in (("squashed", "squash"), ("cropped", "crop")):
        assert isoconv("train", photos, *TINY, "--epochs", "1", "--out", name, "--resize", form).code == 0
    assert not same_weights(tmp_path / "squashed", tmp_path / "cropped")
    assert load_run(tmp_path / "cropped")[1].resize == "crop"
    assert '"resize"' not in (tmp_path / "squashed" / "config.json").read_text()
    run = open_run("cropped")
    expected = robust_accuracy(run.model, load_splits(photos, size=12, resize="crop").test)
    assert isoconv("certify", "cropped", "--json").json[0]["radii"] == expected.radii.tolist()
    pictures = [run.test_images().files.sources[int(k)] for k in run.test_images().index]
    answers = isoconv("predict", "cropped", *pictures, "--json").json
    pairs = zip(answers, expected.labels.tolist(), strict=True)
    radii = [answer["radius"] * (answer["class"] == ("bright", "dark")[label]) for answer, label in pairs]
    assert radii == pytest.approx(expected.radii.tolist())
    assert isoconv("report", "cropped").code == 0
    assert "--resize crop" in (tmp_path / "report.html").read_text()


def test_what_cannot_be_streamed_is_refused(isoconv, photos, world):
    assert isoconv("train", "digits", "--stream").is_refused("digits")
    assert isoconv("train", "digits", "--resize", "crop").is_refused("digits")
    assert isoconv("train", photos, "--size", "12", "--resize", "stretch").is_refused("squash, crop", "stretch")
    assert isoconv("train", photos, "--size", "12", "--stream", "--workers", "-1").is_refused("workers", "-1")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_in_the_middle_of_a_streamed_epoch_it_ends_as_if_never_killed(start, isoconv, photos, tmp_path):
    """Also with another number of workers, or from memory. The workers of a process that was killed end by themselves."""
    long = [*TINY, "--batch-size", "1", "--epochs", "40"]
    assert isoconv("train", photos, *long, "--out", "whole", "--no-stream").code == 0
    process = start("train", photos, *long, "--out", "killed", "--stream", "--workers", "2")
    state, done = tmp_path / "killed" / "state.safetensors", 0
    while process.poll() is None and (done == 0 or done % 48 == 0):
        done = int(read_tensors(state)["progress/done"]) if state.exists() else 0
        time.sleep(0.01)
    assert process.poll() is None  # it was saved within an epoch
    workers = workers_of(process)
    process.kill()
    process.communicate(timeout=60)
    assert 0 < done < 40 * 48
    assert isoconv("train", "--resume", "--out", "killed", "--device", "cpu", "--stream", "--workers", "1").code == 0
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert are_gone(workers)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_workers_get_too_stops_the_run_in_order(start, photos, tmp_path, number):
    process = start("train", photos, *TINY, "--epochs", "500", "--out", "run", "--stream", "--workers", "2")
    for line in process.stderr:
        if line.startswith("epoch 2/"):
            break
    workers = []
    while not workers and process.poll() is None:
        workers = workers_of(process)
    assert workers
    for worker in workers:  # a terminal sends it to all, and so do torchrun and schedulers
        os.kill(int(worker.name), number)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    assert are_gone(workers)
