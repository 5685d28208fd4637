"""How the command behaves in a shell: help, exit codes, where it writes, colours, Ctrl-C, closed pipes, full disks."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from isoconv.cli.app import app
from isoconv.cli.output import CountingProgress
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.run_folder import RunFolder
from isoconv.version import __version__

COMMANDS = get_command(app).commands
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
TRAIN = ["--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "run"
    config = TrainConfig(data=str(pictures), input_shape=(1, 8, 8), classes=tuple("abcd"), model="small")
    run = RunFolder(place)
    run.start(config, overwrite=False)
    run.finish(make_model(config), {"seed": 0})
    return place


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def files_in(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


# Help ---------------------------------------------------------------------------------------------------------------


def test_help_fits_a_screen(isoconv, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = isoconv("--help")
    lines = outcome.out.rstrip().splitlines()
    assert outcome.code == 0 and outcome.err == ""
    assert len(lines) <= 23 and max(map(len, lines)) <= 80  # and one line for the prompt
    for name in COMMANDS:
        assert re.search(rf"^\W*{name} +\w", outcome.out, re.MULTILINE), name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example_with_options_that_it_has(name, isoconv):
    outcome = isoconv(name, "--help")
    assert outcome.code == 0 and outcome.err == ""
    text = " ".join(outcome.out.split())
    found = re.search(rf"Example: isoconv {name}( [^╭┌+]*)?", text)
    assert found is not None
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    used = re.findall(r"--[a-z-]+", found.group())
    assert set(used) <= known
    assert len(outcome.out) > 100 and "\x1b" not in outcome.out


def test_the_version_comes_before_torch():
    code = "import sys; from isoconv.cli import main; main(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


# What goes where ----------------------------------------------------------------------------------------------------


def commands_with_json(run, pictures):
    picture = pictures / "a" / "000.png"
    return {
        "train": ["train", pictures, "--out", "new", *TRAIN],
        "certify": ["certify", run, "--device", "cpu"],
        "attack": ["attack", run, "--attack", "fgsm", "--device", "cpu"],
        "predict": ["predict", run, picture, "--device", "cpu"],
        "export": ["export", run, "--format", "torch"],
    }


@pytest.mark.parametrize("name", ["train", "certify", "attack", "predict", "export"])
def test_json_alone_is_on_stdout_and_nothing_is_coloured(name, isoconv, run, pictures):
    outcome = isoconv(*commands_with_json(run, pictures)[name], "--json")
    assert outcome.code == 0 and outcome.out.count("\n") == 1
    assert json.loads(outcome.out)
    plain = isoconv(*commands_with_json(run, pictures)[name], *(["--overwrite"] if name in ("train", "export") else []))
    assert plain.code == 0 and "\x1b" not in plain.out + plain.err
    for said in ("Written to", "The run is in", "The radius is for", "epoch 1/1"):
        assert said not in plain.out


@pytest.mark.parametrize("colours", [True, False])
def test_no_colour_on_a_terminal_that_asks_for_none(colours, tmp_path):
    pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "isoconv", "--help"]
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "NO_COLOR": "" if colours else "1"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=tmp_path)
    os.close(terminal)
    seen = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(controller)
    assert process.wait(timeout=180) == 0
    text = seen.decode()
    assert "Prove how far images can be changed" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    codes = {int(code or 0) for codes in re.findall(r"\x1b\[([0-9;]*)m", text) for code in codes.split(";")}
    assert any(30 <= code <= 49 or 90 <= code <= 107 for code in codes) == colours


def test_what_a_terminal_cannot_write_is_no_failure(start, made, pictures, tmp_path, monkeypatch):
    """A file name that is not UTF-8, and a terminal that only knows ASCII."""
    odd = tmp_path / os.fsdecode(b"\xff.png")
    try:
        shutil.copy(pictures / "a" / "000.png", odd)
    except OSError:
        pytest.skip("file names are Unicode here")
    command = [sys.executable, "-m", "isoconv", "predict", str(made), odd.name]
    done = subprocess.run(
        command, cwd=tmp_path, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60
    )
    assert done.returncode == 0 and b"?.png" in done.stdout
    assert done.stderr == b"The radius is for the picture as it was resized, not for the file.\n"


# Ctrl-C -------------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_torch_is_loading(tmp_path):
    code = "import sys; print('ready', flush=True); from isoconv.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "certify", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (130, "", "isoconv: Interrupted.\n")


@pytest.mark.parametrize("name", ["certify", "attack"])
def test_ctrl_c_leaves_the_files_of_before(name, isoconv, run, monkeypatch):
    words = [
        name,
        run,
        "--device",
        "cpu",
        *(["--certificate", "c.json"] if name == "certify" else ["--attack", "fgsm"]),
    ]
    assert isoconv(*words).code == 0
    before = files_in(run)
    assert {"certify": "certified.json", "attack": "attacks.json"}[name] in before
    monkeypatch.setattr(CountingProgress, "show", lambda *figures: signal.raise_signal(signal.SIGINT))
    assert isoconv(*words) == (130, "", "isoconv: Interrupted.\n")
    assert files_in(run) == before


def test_ctrl_c_while_a_file_is_being_written_leaves_the_old_one(isoconv, run, monkeypatch):
    assert isoconv("certify", run, "--device", "cpu").code == 0
    before = files_in(run)
    monkeypatch.setattr(os, "fsync", lambda handle: signal.raise_signal(signal.SIGINT))
    assert isoconv("certify", run, "--device", "cpu", "--epsilon", "0.3").code == 130
    assert files_in(run) == before


def test_a_second_ctrl_c_in_training_is_the_ordinary_one(isoconv, pictures, monkeypatch):
    """The first one lets the step finish and saves; while it saves, the second."""
    from isoconv.cli.output import TrainingProgress

    monkeypatch.setattr(TrainingProgress, "step", lambda self, steps: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(RunFolder, "save", lambda self, replica: signal.raise_signal(signal.SIGINT))
    outcome = isoconv("train", pictures, "--out", "new", *TRAIN)
    assert outcome.code == 130 and outcome.err.splitlines()[-1] == "isoconv: Interrupted."


# Pipes and disks ----------------------------------------------------------------------------------------------------


def test_a_reader_that_went_away_is_no_failure(start):
    process = start("--help")
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=180) == 141
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_standard_output_on_a_full_disk():
    code = "from isoconv.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (2, "isoconv: Cannot go on: No space left on device.\n")


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["certify", "attack"])
def test_a_full_disk_after_the_work_is_one_line(name, isoconv, run, monkeypatch):
    before = files_in(run)
    monkeypatch.setattr(os, "fsync", full)
    outcome = isoconv(*{"certify": ["certify", run], "attack": ["attack", run, "--attack", "fgsm"]}[name])
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert re.search(r"^isoconv: Cannot [^:]+: No space left on device\.$", outcome.err)
    assert files_in(run) == before


def test_a_full_disk_in_the_middle_of_training_can_be_resumed(isoconv, pictures, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("isoconv.train.run_folder.write_tensors", full)
        outcome = isoconv("train", pictures, "--out", "new", *TRAIN)
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert re.search(r"^isoconv: Cannot [^:]+: No space left on device\.$", outcome.err.splitlines()[-1])
    assert isoconv("train", "--resume", "--out", "new").code == 0


def test_a_write_protected_place_is_named(isoconv, run, monkeypatch):
    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(run / "certified.json"))

    monkeypatch.setattr("tempfile.mkstemp", denied)
    outcome = isoconv("certify", run)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("isoconv: Cannot ") and f"{run}/certified.json" in outcome.err
    assert outcome.err.endswith(": Permission denied.\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
    ids=["Python", "CPU", "GPU"],
)
def test_too_little_memory_is_one_line(error, isoconv, run, monkeypatch):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(CountingProgress, "show", fail)
    line = "isoconv: Not enough memory. Smaller images, batches or networks need less.\n"
    assert isoconv("certify", run) == (2, "", line)


def test_a_mistake_of_ours_is_not_hidden(isoconv, run, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(CountingProgress, "show", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        isoconv("certify", run)


def test_an_exit_code_of_a_command_is_kept(isoconv, run, monkeypatch):
    def stop(*arguments, **options):
        raise typer.Exit(3)

    monkeypatch.setattr(CountingProgress, "show", stop)
    assert isoconv("certify", run).code == 3
