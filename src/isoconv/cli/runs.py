"""Trained runs as the commands take them: one folder, with one network or one per seed."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isoconv.data import ImageSet, load_splits
from isoconv.errors import IsoconvError
from isoconv.pretrained import is_pretrained, pretrained_folder, pretrained_names
from isoconv.train.checkpoint import write_text
from isoconv.train.config import TrainConfig
from isoconv.train.run_folder import RunFolder, load_run


@dataclass(frozen=True)
class TrainedRun:
    """One seed's network, what it was trained with, and where it is."""

    folder: Path
    model: nn.Module
    config: TrainConfig

    def keep(self, name: str, text: str) -> None:
        """Write a file beside the run's own; nothing is written beside the networks that come with isoconv."""
        if not is_pretrained(self.folder):
            write_text(self.folder / name, text)


def open_runs(path: Path) -> list[TrainedRun]:
    """The network in a run's folder, or all of them, by seed, in one of several seeds; or a pretrained one by its name."""
    if not path.exists() and str(path) in pretrained_names():
        path = pretrained_folder(str(path))
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
