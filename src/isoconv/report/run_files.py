"""The files of a finished run as typed records: whatever is wrong with one becomes a line that names it."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from isoconv.errors import IsoconvError
from isoconv.records import SLACK, Record, require
from isoconv.train.classifier import TrainResult
from isoconv.train.config import TrainConfig
from isoconv.train.diagnostics import Diagnostics, Gallery
from isoconv.train.runs import AttackRecord, CertifiedRecord

T = TypeVar("T")


@dataclass(frozen=True)
class Epoch(Record):
    """What the page needs of a line of metrics.jsonl."""

    ignores_unknown: ClassVar[bool] = True

    epoch: float
    loss: float
    accuracy: float


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
        raise IsoconvError(
            f"The run in {path} is not finished: it has no result.json. Resume it: isoconv train --resume --out {quoted}."
        )
    remake, certify = "Delete it and make the report again", f"Make it again: isoconv certify {quoted}"
    result = _read(path / "result.json", TrainResult.from_fields, "Train again")
    certified = _read_if_there(path / "certified.json", CertifiedRecord.from_fields, certify)
    if certified is not None and not _same_network(result, certified):
        raise IsoconvError(
            f"{path / 'certified.json'}: Expected the radii of this run's network. Got those of another, with a clean "
            f"accuracy of {certified.clean:g} instead of {result.clean:g}. {certify}."
        )

    def make_gallery(fields: object) -> Gallery:
        gallery = Gallery.from_fields(fields)
        gallery.check_classes(len(config.classes))
        return gallery

    return RunFiles(
        path,
        config,
        result,
        _read(path / "metrics.jsonl", lambda rows: tuple(map(Epoch.from_fields, rows)), "Train again"),
        certified,
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
        text = path.read_text(encoding="utf-8")
        return make([json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text))
    except IsoconvError as error:
        reason = str(error)
    except OSError as error:
        reason = f"Expected a readable file. Got: {error.strerror}."
    except (ValueError, RecursionError, OverflowError):
        reason = "Expected JSON. Got other text."
    raise IsoconvError(f"{path}: {reason} {remedy}.")
