"""The files of a finished run as typed records, and the command that makes it again.

Whatever is wrong with a file becomes a line that names it.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from isoconv.data.datasets import DATASETS, FROM_FILES
from isoconv.errors import IsoconvError, require
from isoconv.files import read_bytes
from isoconv.records import SLACK, Percent, Record
from isoconv.train.classifier import TrainResult
from isoconv.train.config import TrainConfig, default_epsilons, default_patch, recipe_settings
from isoconv.train.diagnostics import Diagnostics, Gallery
from isoconv.train.run_folder import seeds_in
from isoconv.train.runs import AttackRecord, CertifiedRecord

T = TypeVar("T")


@dataclass(frozen=True)
class Epoch(Record):
    """What the page needs of a line of metrics.jsonl."""

    ignores_unknown: ClassVar[bool] = True

    epoch: float
    loss: float
    accuracy: float
    validation: Percent | None = None


@dataclass(frozen=True)
class RunFiles:
    """What the folder of one seed holds; None or nothing for what has not been made yet."""

    path: Path
    config: TrainConfig
    result: TrainResult
    epochs: tuple[Epoch, ...]
    certified: CertifiedRecord | None
    attacks: tuple[AttackRecord, ...]
    diagnostics: Diagnostics | None
    gallery: Gallery | None


def read_run_files(path: Path) -> RunFiles:
    """Read the folder of one seed of a finished run. Raise one line that names the file if something is wrong."""
    if not (path / "config.json").is_file():
        raise IsoconvError(f"Expected a run in {path}. There is no config.json in it.")
    config, quoted = TrainConfig.read(path / "config.json"), shlex.quote(str(path))
    if not (path / "result.json").is_file():
        advice = f"Resume it: isoconv train --resume --out {quoted}."
        raise IsoconvError(f"The run in {path} is not finished: it has no result.json. {advice}")
    remake, certify = "Delete it and make the report again", f"Make it again: isoconv certify {quoted}"

    def make_certified(fields: object) -> CertifiedRecord:
        certified = CertifiedRecord.from_fields(fields)
        problem = f"those of another, with a clean accuracy of {certified.clean:g} instead of {result.clean or 0:g}"
        require(_same_network(result, certified), "the radii of this run's network", problem)
        return certified

    def make_gallery(fields: object) -> Gallery:
        gallery = Gallery.from_fields(fields)
        gallery.check_classes(len(config.classes))
        return gallery

    result = _read(path / "result.json", TrainResult.from_fields, "Train again")
    return RunFiles(
        path,
        config,
        result,
        _read(path / "metrics.jsonl", lambda rows: tuple(map(Epoch.from_fields, rows)), "Train again"),
        _read_if_there(path / "certified.json", make_certified, certify),
        _read_if_there(path / "attacks.json", _make_attacks, f"Make it again: isoconv attack {quoted}") or (),
        _read_if_there(path / "diagnostics.json", Diagnostics.from_fields, remake),
        _read_if_there(path / "gallery.json", make_gallery, remake),
    )


def _same_network(result: TrainResult, certified: CertifiedRecord) -> bool:
    """Return whether both can be of one network; one image may tip over on another device."""
    if result.clean is None or result.images != certified.images:
        return True
    return abs(result.clean - certified.clean) <= 100 / certified.images + SLACK


def _make_attacks(rows: list[object]) -> tuple[AttackRecord, ...]:
    require(isinstance(rows, list), "a list of attacks", type(rows).__name__)
    # A search within each image's own certified radius has no budget to draw it at.
    return tuple(row for row in map(AttackRecord.from_fields, rows) if row.epsilon is not None)


def _read_if_there(path: Path, make: Callable[[Any], T], remedy: str) -> T | None:
    return _read(path, make, remedy) if path.exists() else None


def _read(path: Path, make: Callable[[Any], T], remedy: str) -> T:
    """Return what `make` makes of the JSON in a file, or of that in its lines."""
    try:
        content = read_bytes(path)
        return make(
            [json.loads(line) for line in content.splitlines()] if path.suffix == ".jsonl" else json.loads(content)
        )
    except IsoconvError as error:
        reason = str(error)
    except (ValueError, RecursionError, OverflowError):
        reason = "Expected JSON. Got other text."
    raise IsoconvError(f"{'' if str(path) in reason else f'{path}: '}{reason} {remedy}.")


# What the command line can set; everything else follows from the data, the recipe and the method.
_OPTIONS = (
    *("model", "conv", "activation", "orthogonalisation", "loss", "margin", "temperature", "offset", "loss_options"),
    *("optimiser", "lr", "schedule", "epochs", "batch_size", "accumulate", "crop_padding", "flip", "augment", "resize"),
    *("resized_crop", "rand_augment", "colour_jitter", "augment_epochs", "precision", "patch"),
    *("checkpoint_activations", "validation", "patience", "skip_broken"),
)
_APART = ("data", "input_shape", "classes", "listing", "graph", "seed", "recipe")


def command_of(run: RunFiles) -> str | None:
    """Return the command that makes a run again, with all seeds that were trained side by side; None if there is none."""
    seeds, out = [run.config.seed], run.path
    if run.result.replicas > 1 and run.path.name == f"seed-{run.config.seed}":
        together = seeds_in(run.path.parent)
        if len(together) == run.result.replicas:
            seeds, out = together, run.path.parent
    return train_command(run.config, out, seeds, list(run.result.certified_accuracy))


def train_command(
    config: TrainConfig, out: Path, seeds: Sequence[int] = (), epsilons: Sequence[float] = ()
) -> str | None:
    """Return `isoconv train …` with every option that differs from its default; None if no options make this run.

    The folder of a downloaded data set is not part of a run: the command has --data DIR for it.
    """
    settings = recipe_settings(config.recipe, config.data, config.conv, config.model)
    settings |= {"model": config.model, "patch": default_patch(config.model, config.input_shape)}
    usual = TrainConfig(config.data, config.input_shape, config.classes, **settings)
    changed = {field.name for field in fields(config) if getattr(config, field.name) != getattr(usual, field.name)}
    changed |= {"model"} if config.model != TrainConfig.model else set()
    if changed - {*_APART, *_OPTIONS}:
        return None
    words = ["isoconv", "train", config.data]
    if config.data in FROM_FILES:
        words += ["--data", "DIR"]
    height, width = config.input_shape[1:]
    if config.data not in DATASETS or DATASETS[config.data].shape[1:] != (height, width):
        words += ["--size", str(height) if height == width else f"{height}x{width}"]
    if config.recipe != "default":
        words += ["--recipe", config.recipe]
    for name in (name for name in _OPTIONS if name in changed):
        value, option = getattr(config, name), name.replace("_", "-")
        if name == "loss_options":
            words += [word for pair in value.items() for word in ("--loss-option", f"{pair[0]}={pair[1]}")]
            continue
        words.append(f"--no-{option}" if value is False else f"--{option}")
        values = value if isinstance(value, tuple) else (value,)
        words += [] if isinstance(value, bool) else [",".join(map(str, values))]
    wanted = list(seeds) or [config.seed]
    if wanted != [0]:
        words += ["--seeds", ",".join(map(str, wanted))]
    if epsilons and list(epsilons) != list(default_epsilons(config.data)):
        words += [word for epsilon in epsilons for word in ("--epsilon", repr(epsilon))]
    return shlex.join([*words, "--out", str(out)])
