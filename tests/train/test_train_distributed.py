"""Two and more processes under torchrun, on the CPU."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import isoconv
from isoconv.cli import main
from isoconv.files import read_tensors
from isoconv.train import train
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.run_folder import RunFolder
from train.toys import losses, refused, same_weights, stopped, toy_config, train_toy, write_pictures

OPTIONS = ["--model", "small", "--epochs", "2", "--device", "cpu", "--resized-crop", "0.6", "--rand-augment", "1"]


def launch(*command: str, cwd: Path, count: int = 2, fails: bool = False) -> tuple[str, str]:
    ours = [str(Path(isoconv.__file__).parents[1]), str(Path(__file__).parents[1])]
    path = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*torchrun, *command], cwd=cwd, env=environment, **pipes) as run:
        try:
            output, errors = run.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            run.terminate()  # torchrun ends its processes
            pytest.fail("The processes wait for each other for ever.")
    assert (run.returncode != 0) == fails, errors
    return output, errors


def run_alone(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["isoconv", *words])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()


def same_network(first: Path, second: Path) -> bool:
    """Return True if two runs have the same weights, up to the rounding of sums over processes."""
    return same_weights(first, second, tolerance=1e-5)


def write_split(folder: Path, train: int, test: int) -> Path:
    write_pictures(folder / "train", train)
    write_pictures(folder / "test", test)
    return folder


def test_two_processes_train_and_certify_like_one(tmp_path, monkeypatch, capsys):
    """Two batches that they accumulate give the step that one batch, twice as large, gives one process."""
    data = str(write_split(tmp_path / "data", 72, 600))
    monkeypatch.chdir(tmp_path)
    run_alone(monkeypatch, "train", data, "--out", "alone", "--json", "--batch-size", "16", *OPTIONS)
    small = "--batch-size", "8", "--accumulate", "2"
    both, _ = launch("-m", "isoconv", "train", data, "--out", "both", "--json", *small, *OPTIONS, cwd=tmp_path)
    assert same_network(tmp_path / "alone", tmp_path / "both")
    results = [json.loads(text) for text in (capsys.readouterr().out, both)]  # one process talks, not both
    assert results[0][0]["clean"] == results[1][0]["clean"] and results[1][0]["images"] == 600
    metrics = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("alone", "both")]
    assert len(metrics[0]) == len(metrics[1]) == 2
    for a, b in zip(*(map(json.loads, lines) for lines in metrics), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["accuracy"] == pytest.approx(b["accuracy"])
    # Three processes: the images are two batches, so that one of them has nothing to do.
    words = "certify", "alone", "--json", "--device", "cpu", "--certificate"
    run_alone(monkeypatch, *words, "one.jsonl")
    alone, (shared, _) = capsys.readouterr().out, launch("-m", "isoconv", *words, "three.jsonl", cwd=tmp_path, count=3)
    (one,), (three,) = json.loads(alone), json.loads(shared)
    assert {**one, "seconds": 0} == {**three, "seconds": 0} and len(one["radii"]) == 600
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "three.jsonl").read_bytes()


DOOMED = """
import os, signal, sys
from isoconv.cli import main
from isoconv.train import engine

rank, update = sys.argv[1:3]
sys.argv[1:3] = []
engine._FIRST_SAVE = 0.0  # it is saved after every step
step = engine.Learner.step

def die_or_step(self, *batches):
    if (os.environ["RANK"], str(self.done)) == (rank, update):
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, *batches)

engine.Learner.step = die_or_step
main()
"""


def test_a_run_whose_processes_die_goes_on_with_any_number_of_them(tmp_path):
    """Also where each decodes its own part of each batch, with workers of its own, which outlive nobody."""
    data, run = str(write_split(tmp_path / "data", 64, 16)), tmp_path / "run"
    train(data, tmp_path / "alone", model="small", epochs=3, batch_size=16, device="cpu", stream=False)
    streamed = ["--out", "run", "--device", "cpu", "--stream", "--workers", "1"]
    assert_died(run, 0, 3, 2, *f"train {data} --model small --epochs 3 --batch-size 16".split(), *streamed)
    stopped(3, train, out=run, resume=True, device="cpu")
    assert RunFolder(run).updates_done() == 6
    assert_died(run, 2, 9, 4, "train", "--resume", *streamed)
    launch("-m", "isoconv", "train", "--resume", *streamed, cwd=tmp_path)
    assert same_network(tmp_path / "alone", run)
    for one, other in zip(losses(tmp_path / "alone"), losses(run), strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    results = [json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "alone", run)]
    assert results[0]["clean"] == results[1]["clean"]
    end = time.monotonic() + 30
    while processes_in(tmp_path) and time.monotonic() < end:  # torch's workers look for their parent every five seconds
        time.sleep(0.2)
    assert not processes_in(tmp_path)


def assert_died(run: Path, rank: int, update: int, count: int, *words: str) -> None:
    """Kill one of some processes before an update: one sentence and a state are left."""
    script = run.parent / "doomed.py"
    script.write_text(DOOMED)
    output, errors = launch("doomed.py", str(rank), str(update), *words, cwd=run.parent, count=count, fails=True)
    assert time.time() - (run / "state.safetensors").stat().st_mtime < 20
    (line,) = [line for line in errors.splitlines() if line.startswith("isoconv:")]
    assert "process" in line and "--resume" in line and not output
    assert "isoconv/train" not in errors and 'doomed.py", line' not in errors  # as a traceback would have them
    assert RunFolder(run).updates_done() == update


def processes_in(folder: Path) -> list[Path]:
    """Return the processes, as folders in /proc, that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [process] * (os.readlink(process / "cwd") == str(folder))
    return found


STOP_AT_DIFFERENT_STEPS = """
import os
from pathlib import Path
from isoconv.train import RunFolder, Stopped
from isoconv.train.distributed import Processes
from train.toys import stop_after, toy_config, train_toy

processes, run = Processes.join("cpu"), Path("run")
if processes.first:
    RunFolder(run).start(toy_config(), overwrite=False)
processes.wait()
try:
    train_toy(run, toy_config(), resume=True, processes=processes, should_stop=stop_after(3 + processes.rank))
except Stopped:
    Path(f"stopped-{processes.rank}").touch()
processes.leave()
os._exit(0)  # at an interpreter's end, threads of torch that still run may abort
"""


def test_a_signal_that_reaches_the_processes_at_different_steps_stops_them_all(tmp_path):
    (tmp_path / "twice.py").write_text(STOP_AT_DIFFERENT_STEPS)
    launch("twice.py", cwd=tmp_path)
    assert (tmp_path / "stopped-0").exists() and (tmp_path / "stopped-1").exists()
    assert int(read_tensors(tmp_path / "run" / "state.safetensors")["progress/done"]) in (3, 4)


def test_what_each_process_is(tmp_path, monkeypatch):
    """One joins nobody, each of several has its own GPU, and what cannot be shared is refused."""
    for count in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False) if count is None else monkeypatch.setenv("WORLD_SIZE", count)
        assert Processes.join("cpu") == Processes(0, 1, 0)
    assert Processes().first and Processes().gather("a") == ["a"]
    assert Processes().total([1.5, 3]) == [1.5, 3] and Processes().any(False, True) == [False, True]
    for count in (1, 499, 500, 501, 10_000):  # the parts of all make up the whole, in whole pieces
        shares = [Processes(rank, 4).share(count, 500) for rank in range(4)]
        assert [k for share in shares for k in share] == list(range(count))
        assert all(share.start % 500 == 0 for share in shares if share)
    assert Processes().device("cpu") == Processes(3, 4, 1).device("cpu") == torch.device("cpu")
    assert Processes(3, 4, 1).device("cuda") == torch.device("cuda", 1)
    for options, words in (({"seeds": [0, 1]}, "one seed"), ({}, "multiple of 3")):
        refused(words, train_toy, tmp_path / words, toy_config(), processes=Processes(0, 3, 0), **options)


def test_devices(monkeypatch):
    for there, auto in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == auto and choose_device("cpu") == "cpu" and (not there or choose_device("cuda"))
        for name, word in (("tpu", "'tpu'"),) if there else (("cuda", "CUDA device"), ("tpu", "'tpu'")):
            refused(word, choose_device, name)
