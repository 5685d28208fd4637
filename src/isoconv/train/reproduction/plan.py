"""What is still to be measured, and about how long that takes."""

from collections.abc import Iterable
from dataclasses import dataclass

from isoconv.train.reproduction.cells import (
    AttackCell,
    Cell,
    ClassifierCell,
    CriticCell,
    MeasuredCell,
    default_epochs,
    default_seeds,
)
from isoconv.train.reproduction.results import read_result
from isoconv.train.reproduction.settings import Settings

# Milliseconds of one step of one network, batch 128: five side by side on an H200, one after the other on two CPU cores.
_STEP = {"cuda": {"small": 0.25, "large": 1.1, "fc3": 1.5}, "cpu": {"small": 45.0, "large": 370.0, "fc3": 150.0}}
_ALONE = {"cuda": 1.7, "cpu": 1.0}  # times that, where there is only one
_SLOWER = {"svcm": 1.6}
_PAPER_SLOWER = {"cuda": 3.5, "cpu": 5.5}  # twenty Björck steps, differentiated through
_STEPS_PER_EPOCH = {"mnist": 468, "cifar10": 390}
_CRITIC_STEP = {"cuda": 2.0, "cpu": 900.0}
_ATTACK = {"pgd": 10.0, "fgsm": 1.0, "boundary": 120.0, "pointwise": 27.0}  # seconds per network of Large on an H200
_CPU_ATTACK = 40.0
_MEASURED = {"cuda": {"time": 60.0, "complexity": 120.0}, "cpu": {"time": 300.0, "complexity": 100.0}}
_OVERHEAD = 5.0  # seconds: reading data, capturing, certifying


@dataclass(frozen=True)
class PlannedCell:
    """A cell, how things stand with it (done, failed, to do), and a rough guess of the seconds that it still takes."""

    cell: Cell
    state: str
    seconds: float


def plan_cells(cells: Iterable[Cell], settings: Settings) -> list[PlannedCell]:
    """What there is to do for these cells, in order."""
    planned = []
    for cell in cells:
        record = read_result(settings.results, cell)
        state = "to do" if record is None else "done" if record["status"] == "ok" else "failed"
        left = state == "to do" or (state == "failed" and settings.retry)
        planned.append(PlannedCell(cell, state, estimated_seconds(cell, settings) if left else 0.0))
    return planned


def estimated_seconds(cell: Cell, settings: Settings) -> float:
    """A rough guess: other hardware than the H200 and the two CPU cores that it was measured on will differ."""
    place, seeds = settings.device, len(settings.seeds_or(default_seeds(cell)))
    if settings.quick:
        return 3.0
    match cell:
        case ClassifierCell():
            steps = settings.epochs_or(default_epochs(cell)) * _STEPS_PER_EPOCH[cell.dataset]
            slower = _SLOWER.get(cell.conv, 1.0) * (_PAPER_SLOWER[place] if cell.recipe == "paper" else 1.0)
            alone = _ALONE[place] if seeds == 1 else 1.0
            return _OVERHEAD + seeds * steps * _STEP[place][cell.model] * slower * alone / 1e3
        case AttackCell():
            return seeds * _ATTACK[cell.attack] * (_CPU_ATTACK if place == "cpu" else 1.0)
        case CriticCell():
            steps = settings.epochs_or(default_epochs(cell)) * 100
            slower = _PAPER_SLOWER[place] if cell.recipe == "paper" else 1.0
            return _OVERHEAD + seeds * steps * _CRITIC_STEP[place] * slower / 1e3
        case MeasuredCell():
            return _MEASURED[place].get(cell.name, 0.0)
