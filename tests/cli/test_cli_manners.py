"""How the command behaves in a shell: help, exit codes, where it writes, colours, Ctrl-C, closed pipes, full disks."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import typer

from cli.conftest import files_in
from isoconv import __version__
from isoconv.certify import Certifier
from isoconv.cli.app import COMMANDS, load_command
from isoconv.cli.output import TrainingProgress
from isoconv.data import ProgressLine
from isoconv.export import export_onnx
from isoconv.report import write_demo, write_report
from isoconv.train import TrainConfig, TrainedRun, attack_run, certify_run, train
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein import CriticConfig, FiniteSamples, distance_bound, train_generator
from isoconv.wasserstein.gan import GanConfig

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
TRAIN = ["train", "pics", "--out", "new", "--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]
COMMAND = [sys.executable, "-m", "isoconv"]


def fail_with(error: BaseException):
    def fail(*arguments, **options):
        raise error

    return fail


# Help ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], []], ids=str)
def test_help_fits_a_screen(words, isoconv, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = isoconv(*words)
    text, other = (outcome.out, outcome.err) if words else (outcome.err, outcome.out)
    lines = text.rstrip().splitlines()
    assert outcome.code == (0 if words else 2) and other == ""
    assert len(lines) <= 23 and max(map(len, lines)) <= 80  # and one line for the prompt
    for name in COMMANDS:
        assert re.search(rf"^\W*{name} +\w", text, re.MULTILINE), name
    assert isoconv("--version") == (0, __version__ + "\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example_with_options_that_it_has(name, isoconv):
    outcome = isoconv(name, "--help")
    assert outcome.code == 0 and outcome.err == "" and "\x1b" not in outcome.out
    text = re.split(r"\n(?:Arguments|Options):\n", outcome.out)[0]
    example = re.search(rf"Example: isoconv {name}.*", " ".join(text.split()))
    known = {option for parameter in load_command(name).params for option in parameter.opts}
    assert example is not None and set(re.findall(r"--[a-z-]+", example.group())) <= known


def test_help_is_plain_and_does_not_import_torch():
    """Nor what else takes long: the first screen must be there at once. Plain even where colours are asked for."""
    code = """if True:
        import sys
        from isoconv.cli import main
        for name in sys.argv[1:]:
            sys.argv = ["isoconv", *([name] if name else []), "--help"]
            try:
                main()
            except SystemExit as end:
                assert end.code == 0
        print({"torch", "numpy", "pydantic", "pandas"} & set(sys.modules), file=sys.stderr)
    """
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    words = [sys.executable, "-c", code, "", *COMMANDS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert COMMANDS["certify"] in done.stdout and "\x1b" not in done.stdout


#: The call behind each command, and what takes its `**options`.
CALLS = {
    "demo": [write_demo],
    "train": [train, TrainConfig],
    "certify": [certify_run, Certifier],
    "attack": [attack_run],
    "predict": [TrainedRun.predict],
    "report": [write_report],
    "export": [export_onnx],
    "wasserstein": [distance_bound, CriticConfig, FiniteSamples],
    "gan": [train_generator, GanConfig],
}
#: What has another name in the call, or none: `open_run(run)` comes before it, a format is a function of its own.
OTHERWISE = {"predict": {"run", "as_csv"}, "export": {"run", "kind", "out"}}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_an_argument_of_its_call(name):
    arguments = {argument for call in CALLS[name] for argument in inspect.signature(call).parameters}
    options = {parameter.name for parameter in load_command(name).params} - {"as_json"}
    assert options - arguments == OTHERWISE.get(name, set())


# What goes where ----------------------------------------------------------------------------------------------------


RUN, TORCH = ["run-7", "--device", "cpu"], ["export", "run-7"]
PRINTING = [TRAIN, ["certify", *RUN], ["attack", *RUN], ["predict", *RUN, "photo.png"], [*TORCH, "--format", "torch"]]


@pytest.mark.parametrize("words", PRINTING, ids=lambda words: words[0])
def test_json_alone_is_on_stdout_and_nothing_is_coloured(words, isoconv, world):
    assert isoconv(*words, "--json").json
    plain = isoconv(*words, *(["--overwrite"] if words[0] in ("train", "export") else []))
    assert plain.code == 0 and "\x1b" not in plain.out + plain.err
    for message in ("Written to", "The run is in", "The radius is for", "epoch 1/1"):
        assert message not in plain.out


def test_what_a_terminal_cannot_write_is_no_failure(world):
    """A file name that is not UTF-8, and a terminal that only knows ASCII."""
    odd = world / os.fsdecode(b"\xff.png")
    try:
        shutil.copy(world / "photo.png", odd)
    except OSError:
        pytest.skip("file names are Unicode here")
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    words = [*COMMAND, "predict", "run-7", odd.name]
    done = subprocess.run(words, cwd=world, env=environment, capture_output=True, timeout=180)
    assert done.returncode == 0 and b"?.png" in done.stdout and not done.stderr


# Ctrl-C -------------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_torch_is_loading(tmp_path):
    words = [sys.executable, "-c", "from isoconv.cli import main; print('ready', flush=True); main()", "certify", "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, env=ENVIRONMENT, cwd=tmp_path, **pipes)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (130, "", "isoconv: Interrupted.\n")


@pytest.mark.parametrize(
    ("words", "kept"),
    [(["certify", "--certificate", "c.json"], "certified.json"), (["attack", "--attack", "fgsm"], "attacks.json")],
)
def test_ctrl_c_leaves_the_files_of_before(words, kept, isoconv, world, monkeypatch):
    """In the middle of the work, and while a file is being written."""
    assert isoconv(*words, "run-7").code == 0
    before = files_in(world / "run-7")
    assert str(world / "run-7" / kept) in before
    for owner, name in ((ProgressLine, "__call__"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *anything: signal.raise_signal(signal.SIGINT))
            assert isoconv(*words, "run-7", "--epsilon", "0.3").is_refused("Interrupted", code=130)
        assert files_in(world / "run-7") == before


def test_a_second_ctrl_c_in_training_is_the_ordinary_one(isoconv, world, monkeypatch):
    """The first one lets the step finish and saves; while it saves, the second."""
    monkeypatch.setattr(TrainingProgress, "step", lambda self, steps: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(RunFolder, "save", lambda *_: signal.raise_signal(signal.SIGINT))
    outcome = isoconv(*TRAIN)
    assert outcome.code == 130 and outcome.err.splitlines()[-1] == "isoconv: Interrupted."


# Pipes, disks, memory, mistakes -------------------------------------------------------------------------------------


def test_a_reader_that_went_away_is_no_failure(start):
    process = start("--help")
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=180) == 141
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_standard_output_on_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


def test_too_little_memory_is_one_line(isoconv, world, monkeypatch):
    cpu = RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to …")
    gpu = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 GiB")
    for error in (MemoryError(), cpu, gpu):
        monkeypatch.setattr(ProgressLine, "__call__", fail_with(error))
        assert isoconv("certify", "run-7").is_refused("memory")


def test_an_exit_code_is_kept_and_a_mistake_of_ours_is_not_hidden(isoconv, world, monkeypatch):
    monkeypatch.setattr(ProgressLine, "__call__", fail_with(typer.Exit(3)))
    assert isoconv("certify", "run-7").code == 3
    monkeypatch.setattr(ProgressLine, "__call__", fail_with(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        isoconv("certify", "run-7")
    monkeypatch.setattr(ProgressLine, "__call__", fail_with(BrokenPipeError()))  # whoever read the output went away
    assert isoconv("certify", "run-7") == (141, "", "")
