"""How cells are measured, and when to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from isoconv.errors import IsoconvError
from isoconv.train.engine import EpochReport, Observer

_QUICK_SEEDS = (0, 1)


class CannotGoOnError(IsoconvError):
    """What is in the way is not a result of the cell: the user must move it."""


class Silent:
    """Shows nothing."""

    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None: ...


class Watcher(Protocol):
    """Whoever shows what is going on: a line of text now and then, and an observer for each training run."""

    def say(self, line: str) -> None: ...

    def training(self, title: str, steps: int, done: int) -> Observer: ...

    def finished(self) -> None:
        """The training run shown last is over."""
        ...


class NoWatcher:
    def say(self, line: str) -> None: ...

    def training(self, title: str, steps: int, done: int) -> Observer:
        return Silent()

    def finished(self) -> None: ...


@dataclass
class Settings:
    """Where to read and write, what to run on, how much of it.

    seeds, epochs : None for each cell's own, `default_seeds` and `default_epochs`
    quick : a small part of the data, one epoch, two seeds: to see that everything works; the figures mean nothing
    time_limit : seconds after which everything is saved and left; a later call goes on
    """

    results: Path
    runs: Path
    data: Path | None = None
    download: bool = False
    device: str = "cpu"
    seeds: tuple[int, ...] | None = None
    epochs: int | None = None
    quick: bool = False
    retry: bool = False
    time_limit: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    watcher: Watcher = field(default_factory=NoWatcher)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise IsoconvError(f"Expected epochs of at least 1. Got {self.epochs}.")
        if self.time_limit is not None and not self.time_limit > 0:
            raise IsoconvError(f"Expected a time limit of more than 0 seconds. Got {self.time_limit:g}.")
        if self.seeds is not None and not self.seeds:
            raise IsoconvError("Expected at least one seed. Got none.")

    def seeds_or(self, default: tuple[int, ...]) -> tuple[int, ...]:
        return self.seeds or (_QUICK_SEEDS if self.quick else default)

    def epochs_or(self, default: int) -> int:
        return self.epochs or (1 if self.quick else default)

    def seconds_left(self) -> float:
        return float("inf") if self.time_limit is None else self.began + self.time_limit - time.monotonic()

    def should_stop(self) -> bool:
        """Whether somebody wants it to stop, or only enough time is left to save and to leave."""
        reserve = 0.0 if self.time_limit is None else min(15.0, 0.05 * self.time_limit)
        return self.interrupted() or self.seconds_left() <= reserve
