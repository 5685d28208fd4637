"""The paper's experiments as cells: units of work that can be stopped, gone on with, and are measured once.

A cell says what is trained or measured, not for which table: tables share cells. Each leaves one small JSON file.
"""

from isoconv.train.reproduction.cells import (
    AttackCell,
    Cell,
    ClassifierCell,
    CriticCell,
    MeasuredCell,
    default_epochs,
    default_seeds,
)
from isoconv.train.reproduction.instant import with_instant
from isoconv.train.reproduction.plan import PlannedCell, plan_cells
from isoconv.train.reproduction.results import RESULTS, RUNS, find_results, read_result, read_results
from isoconv.train.reproduction.runner import Outcome, measure
from isoconv.train.reproduction.settings import Settings
from isoconv.train.reproduction.targets import TARGETS, cells_of

__all__ = [
    "RESULTS",
    "RUNS",
    "TARGETS",
    "AttackCell",
    "Cell",
    "ClassifierCell",
    "CriticCell",
    "MeasuredCell",
    "Outcome",
    "PlannedCell",
    "Settings",
    "cells_of",
    "default_epochs",
    "default_seeds",
    "find_results",
    "measure",
    "plan_cells",
    "read_result",
    "read_results",
    "with_instant",
]
