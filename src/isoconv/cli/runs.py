"""Trained runs as the commands take them: one folder, with one network or one per seed."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isoconv.data import NAMES, ImageSet, Splits, load_splits
from isoconv.errors import IsoconvError
from isoconv.files import write_text
from isoconv.pretrained import is_pretrained, pretrained_folder, pretrained_names
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


def splits_of(config: TrainConfig, folder: Path | None, download: bool = False) -> Splits:
    """The data of a run, cut as it was when it was trained; of one's own pictures `folder` is where they are now."""
    own = config.data not in NAMES
    place = Path(config.data if folder is None or not own else folder)
    if own and not place.exists():
        raise IsoconvError(
            f"Expected the pictures of the run in {place}, which does not exist: say where they are (--data)."
        )
    channels, *sides = config.input_shape
    size = (sides[0], sides[1])
    where = (place.absolute(), None) if own else (config.data, folder)
    splits = load_splits(*where, size=size, channels=channels, download=download, lazy=True)
    part = splits.test if splits.has_test else splits.train  # to certify, no training image is read
    if part.shape != config.input_shape or part.classes != config.classes:
        raise IsoconvError(f"Expected the data that the run was trained on. {place} has changed since.")
    if config.listing and splits.listing != config.listing:
        raise IsoconvError(
            f"Expected the pictures that the run was trained on. {place} has others since, and which of them were held "
            "out is not known: bring the old ones back, or train again."
        )
    return splits


def test_images(config: TrainConfig, folder: Path | None, download: bool, count: int | None) -> ImageSet:
    """The test set that belongs to a run, or the first `count` images of it."""
    test = splits_of(config, folder, download).test
    if count is not None and not 1 <= count <= len(test):
        raise IsoconvError(f"Expected from 1 to {len(test)} images, as many as the test set has. Got {count}.")
    return test if count is None else test.take(count)
