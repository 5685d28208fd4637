"""Measure what is missing, cell by cell; stop and go on at any time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isoconv.errors import IsoconvError
from isoconv.train.engine import Stopped
from isoconv.train.reproduction.attacks import attack_record
from isoconv.train.reproduction.cells import (
    AttackCell,
    Cell,
    ClassifierCell,
    CriticCell,
    MeasuredCell,
    default_epochs,
    default_seeds,
)
from isoconv.train.reproduction.classifiers import classifier_record, trained_networks
from isoconv.train.reproduction.complexity import complexity_record
from isoconv.train.reproduction.critics import critic_record
from isoconv.train.reproduction.data import DataSets
from isoconv.train.reproduction.instant import instant_record
from isoconv.train.reproduction.results import environment, read_result, result_path, write_result
from isoconv.train.reproduction.settings import CannotGoOnError, Settings
from isoconv.train.reproduction.timing import time_record

# What a measurement may come to. Any other exception is a mistake in isoconv, and no result.
_FAILURES = (IsoconvError, MemoryError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Outcome:
    """What a call to `measure` came to. `left` are the cells that there was no time for."""

    done: list[Cell]
    failed: list[Cell]
    left: list[Cell]

    @property
    def complete(self) -> bool:
        return not self.left


def measure(cells: Sequence[Cell], settings: Settings) -> Outcome:
    """Measure the cells that have no result yet, in order; a finished one is never measured again.

    A cell that fails (training diverges, memory does not suffice) is recorded as such, with the reason, and the others go
    on; `settings.retry` tries those again. Data that cannot be read is an error, before anything is trained.
    """
    data = DataSets(settings)
    for cell in cells:
        _check_existing(cell, settings)
    waiting = [cell for cell in cells if not _is_settled(cell, settings)]
    for dataset in dict.fromkeys(_dataset(cell) for cell in waiting):
        if dataset is not None:
            data.splits(dataset, 64 if dataset == "stl10" else None)
    done: list[Cell] = []
    failed: list[Cell] = []
    for k, cell in enumerate(waiting):
        if settings.should_stop():
            return Outcome(done, failed, waiting[k:])
        settings.watcher.say(f"{cell.kind}: {cell.name} ({k + 1} of {len(waiting)})")
        try:
            record = _measured(cell, settings, data)
        except Stopped:
            return Outcome(done, failed, waiting[k:])
        except CannotGoOnError:
            raise
        except _FAILURES as error:
            record = _failure(cell, settings, error)
            settings.watcher.say(f"{cell.name} failed: {record['reason']}")
        record |= {"quick": True} if settings.quick else {}
        write_result(settings.results, cell, json.loads(json.dumps(record)))
        (done if record["status"] == "ok" else failed).append(cell)
    return Outcome(done, failed, [])


def _measured(cell: Cell, settings: Settings, data: DataSets) -> dict[str, Any]:
    match cell:
        case ClassifierCell():
            return classifier_record(cell, trained_networks(cell, settings, data))
        case AttackCell():
            return attack_record(cell, settings, data)
        case CriticCell():
            return critic_record(cell, settings, data)
        case MeasuredCell(name="time"):
            return time_record(cell, settings)
        case MeasuredCell(name="complexity"):
            return complexity_record(cell, settings)
    return instant_record(cell)


def _failure(cell: Cell, settings: Settings, error: Exception) -> dict[str, Any]:
    reason = " ".join(str(error).split()) or type(error).__name__
    asked = {} if isinstance(cell, MeasuredCell) else {"seeds": list(settings.seeds_or(default_seeds(cell)))}
    if isinstance(cell, (ClassifierCell, CriticCell)):
        asked["epochs"] = settings.epochs_or(default_epochs(cell))  # type: ignore[assignment]
    return {**cell.identity(), "status": "failed", "reason": reason[:500], **asked, **environment()}


def _is_settled(cell: Cell, settings: Settings) -> bool:
    record = read_result(settings.results, cell)
    return record is not None and not (record["status"] == "failed" and settings.retry)


def _check_existing(cell: Cell, settings: Settings) -> None:
    """A result that is there was measured as asked for now, or else that is said; nothing is ever replaced silently."""
    record = read_result(settings.results, cell)
    if record is None or isinstance(cell, MeasuredCell) or (record["status"] == "failed" and settings.retry):
        return
    asked: dict[str, Any] = {"quick": settings.quick}
    if settings.seeds is not None:
        asked["seeds"] = list(settings.seeds)
    if settings.epochs is not None and not isinstance(cell, AttackCell):
        asked["epochs"] = settings.epochs
    for name, value in asked.items():
        has = record.get(name, False if name == "quick" else None)
        if has != value:
            path = result_path(settings.results, cell)
            raise IsoconvError(
                f"Expected results with {name} {value} in {path}. Got {has}: remove it, or name another --results folder."
            )


def _dataset(cell: Cell) -> str | None:
    match cell:
        case ClassifierCell() | CriticCell():
            return cell.dataset
        case AttackCell():
            return cell.network.dataset
    return None
