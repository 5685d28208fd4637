"""Commands on pictures that stay in their files: the memory that they take does not depend on how many there are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import isoconv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SIDE, FEW, MANY = 320, 200, 800  # an attack takes 100 of them at a time
MODEL = """
from torch import nn
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear

def build(input_shape, classes):
    return nn.Sequential(BCOPConv2d(3, 4, 32, stride=32), MaxMin(), nn.Flatten(), OrthogonalLinear(400, classes))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs of a network with one convolution, `few` and `many`, named for how many test pictures they have."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "model.py").write_text(MODEL)
    for name, count in (("few", FEW), ("many", MANY)):
        for part, pictures in (("train", 16), ("test", count)):
            for k in range(pictures):
                path = folder / f"{name}-pictures" / part / "ab"[k % 2] / f"{k:04}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (k % 251, 3 * k % 256, 200 * (k % 2))).save(path)
        options = ["--model", "model.py:build", "--size", str(SIDE), "--epochs", "1", "--batch-size", "8", "--stream"]
        peak_memory(folder, "train", f"{name}-pictures", *options, "--workers", "0", "--out", name, "--device", "cpu")
    return folder


MEASURED = """
import runpy, sys
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
finally:
    with open("/proc/self/status") as status, open("peak.txt", "w") as file:
        file.writelines(line.split()[1] for line in status if line.startswith("VmHWM"))
"""


def peak_memory(folder: Path, *words: str) -> float:
    """Run a command; return the most resident memory that it had, in MiB, as it says itself when it ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(isoconv.__file__).parents[1])}
    # Freed blocks of a MiB go back at once, so that the peak is of what is held and not of what the allocator keeps.
    environment |= {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-c", MEASURED, *(words if words[0] == "isoconv.check" else ("isoconv", *words))]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return int((folder / "peak.txt").read_text()) / 1024


@pytest.mark.parametrize("command", ["certify", "attack", "predict", "report"])
def test_memory_of_a_command_does_not_grow_with_the_pictures(runs, command):
    """The pictures that there are more of would take this much as bytes, and eight times as much as numbers."""
    more = (MANY - FEW) * 3 * SIDE**2 / 2**20
    peaks = {"few": 0.0, "many": float("inf")}
    for name in ("few", "many", "many", "many"):  # again where the allocator kept more than was held
        if peaks["many"] - peaks["few"] < more / 2:
            break
        words = {
            "certify": ["certify", name, "--certificate", f"{name}.jsonl"],
            "attack": ["attack", name, "--attack", "fgsm", "--epsilon", "0.5"],
            "predict": ["predict", name, *map(str, sorted((runs / f"{name}-pictures" / "test").rglob("*.png")))],
            "report": ["report", name, "--out", f"{name}.html"],
        }[command]
        (runs / name / "certified.json").unlink(missing_ok=True)  # so that a report certifies too
        peaks[name] = peak_memory(runs, *words, "--device", "cpu")
    assert peaks["many"] - peaks["few"] < more / 2, peaks


def test_a_certificate_is_checked_as_it_is_read(runs):
    """Lines of as many images as there may be, of which one at a time is held."""
    peak_memory(runs, "certify", "few", "--certificate", "short.jsonl", "--images", "20", "--device", "cpu")
    header, *lines = map(json.loads, (runs / "short.jsonl").read_text().splitlines())
    count = 12_000
    with (runs / "long.jsonl").open("w") as file:
        for line in (header | {"images": count}, *(lines[k % 20] | {"index": k} for k in range(count))):
            file.write(json.dumps(line) + "\n")
    peaks = [peak_memory(runs, "isoconv.check", f"{name}.jsonl", "few") for name in ("short", "long")]
    # As Python's objects, an image takes more than its line.
    assert peaks[1] - peaks[0] < max(1, (runs / "long.jsonl").stat().st_size / 2**20)
