"""Two processes under torchrun, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isoconv.cli import main
from isoconv.errors import IsoconvError
from isoconv.files import read_tensors
from isoconv.train.distributed import Processes, choose_device
from train.toys import toy_config, train_toy, write_pictures

OPTIONS = ["--model", "small", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]


def launch(*command: str, cwd: Path) -> str:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*torchrun, *command], cwd=cwd, env=environment, **pipes) as run:
        try:
            output, errors = run.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            run.terminate()  # torchrun ends its processes
            pytest.fail("The processes wait for each other for ever.")
    assert run.returncode == 0, errors
    return output


def test_two_processes_train_the_same_network_as_one(tmp_path, monkeypatch, capsys):
    data = str(write_pictures(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["isoconv", "train", data, "--out", "alone", "--json", *OPTIONS])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    both = launch("-m", "isoconv", "train", data, "--out", "both", "--json", *OPTIONS, cwd=tmp_path)
    first, second = (read_tensors(tmp_path / name / "model.safetensors") for name in ("alone", "both"))
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=1e-5, msg=name)
    results = [json.loads(text) for text in (capsys.readouterr().out, both)]  # one process talks, not both
    assert results[0][0]["clean"] == results[1][0]["clean"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("alone", "both")]
    assert len(metrics[0]) == len(metrics[1]) == 2
    for a, b in zip(*(map(json.loads, lines) for lines in metrics), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["accuracy"] == pytest.approx(b["accuracy"])


STOP_AT_DIFFERENT_STEPS = """
from pathlib import Path
from isoconv.train.distributed import Processes
from isoconv.train.engine import Stopped
from train.toys import stop_after, toy, toy_config, Watcher
from isoconv.train.classifier import train_classifiers
from isoconv.train.run_folder import RunFolder

processes = Processes.join("cpu")
config, folder = toy_config(), RunFolder(Path("run"))
if processes.first:
    folder.start(config, overwrite=False)
processes.wait()
try:
    train_classifiers([config], [folder], toy(), None, [0.1], Watcher(), processes=processes,
                      should_stop=stop_after(3 + processes.rank))
except Stopped:
    Path(f"stopped-{processes.rank}").touch()
processes.leave()
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
    assert Processes().first and Processes().total([1.5, 3]) == [1.5, 3] and not Processes().any(False)
    assert Processes().device("cpu") == Processes(3, 4, 1).device("cpu") == torch.device("cpu")
    assert Processes(3, 4, 1).device("cuda") == torch.device("cuda", 1)
    for options, words in (({"seeds": [0, 1]}, "one seed"), ({}, "multiple of 3")):
        with pytest.raises(IsoconvError, match=words):
            train_toy(tmp_path / words, toy_config(), processes=Processes(0, 3, 0), **options)


def test_devices(monkeypatch):
    for there, auto in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == auto and choose_device("cpu") == "cpu" and (not there or choose_device("cuda"))
        for name, word in (("tpu", "'tpu'"),) if there else (("cuda", "CUDA device"), ("tpu", "'tpu'")):
            with pytest.raises(IsoconvError, match=word):
                choose_device(name)
