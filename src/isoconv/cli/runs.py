"""Trained runs as the commands take them: one folder, with one network or one per seed."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isoconv.data import ImageSet, load_splits
from isoconv.errors import IsoconvError
from isoconv.train.config import TrainConfig
from isoconv.train.run_folder import RunFolder, load_run


@dataclass(frozen=True)
class TrainedRun:
    """One seed's network, what it was trained with, and where it is."""

    folder: Path
    model: nn.Module
    config: TrainConfig


def open_runs(path: Path) -> list[TrainedRun]:
    """The network in a run's folder, or all of them, by seed, in one of several seeds."""
    folders = [path]
    if not RunFolder(path).exists:
        inside = [part for part in path.glob("seed-*") if part.name.removeprefix("seed-").isdecimal()]
        folders = sorted(inside, key=lambda part: int(part.name.removeprefix("seed-"))) or [path]
    return [TrainedRun(folder, *load_run(folder)) for folder in folders]


def test_images(config: TrainConfig, folder: Path | None, download: bool, count: int | None) -> ImageSet:
    """The test set that belongs to a run, or the first `count` images of it."""
    size = (config.input_shape[1], config.input_shape[2])
    test = load_splits(config.data, folder, size=size, channels=config.input_shape[0], download=download).test
    if test.shape != config.input_shape or test.classes != config.classes:
        raise IsoconvError(f"Expected the data that the run was trained on. {config.data} has changed since.")
    if count is not None and not 1 <= count <= len(test):
        raise IsoconvError(f"Expected from 1 to {len(test)} images, as many as the test set has. Got {count}.")
    return test if count is None else test.take(count)
