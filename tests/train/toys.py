"""A tiny problem for the tests of training: four brightnesses to tell apart, and runs of it in a folder."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.data import ImageSet
from isoconv.errors import IsoconvError
from isoconv.files import read_tensors
from isoconv.nn import OrthogonalLinear
from isoconv.train.classifier import TrainResult, train_classifiers
from isoconv.train.config import TrainConfig
from isoconv.train.engine import EpochReport, Learner, Stopped
from isoconv.train.run_folder import RunFolder

SHAPE = (1, 8, 8)


def toy(n: int = 256, seed: int = 0, channels: int = 1) -> ImageSet:
    """Images of 8×8 whose brightness is their label's, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    noise = torch.randint(0, 60, (n, channels, 8, 8), generator=generator)
    return ImageSet((noise + 60 * labels[:, None, None, None]).to(torch.uint8), labels, tuple("abcd"), "toy")


def toy_config(**options: Any) -> TrainConfig:
    """A small network, three epochs of four steps."""
    chosen: dict[str, Any] = {"model": "small", "epochs": 3, "batch_size": 64, "lr": 0.01, **options}
    return TrainConfig(data="toy", input_shape=(1, 8, 8), classes=tuple("abcd"), **chosen)


def write_pictures(folder: Path, count: int = 80) -> Path:
    """Write the images as picture files, in a sub-folder per class."""
    images = toy(count)
    for k, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        path = folder / images.classes[label] / f"{k:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(path)
    return folder


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float() / 0.2, y)


def batch(step: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """Images of a step, as floats, which are the brighter the higher their label."""
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(0, 4, (16,), generator=generator)
    return torch.rand(16, 1, side, side, generator=generator) * (1 + y[:, None, None, None]) / 4, y


class Idle(nn.Module):
    """Has a layer that it does not use, like one that it uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.idle, self.head = OrthogonalLinear(64, 64), OrthogonalLinear(64, 64), OrthogonalLinear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.used(x.flatten(1))))


def make(model: nn.Module, optimiser: Any = "steepest", lr: float = 0.01, **options: Any) -> Learner:
    """Any network, ready to learn from `batch`."""
    return Learner(model, loss, optimiser, lr, steps_per_epoch=80, **options)


def save_and_load(one: Learner, other: Learner, path: Path) -> None:
    """Bring another to where one is, by a file."""
    folder = RunFolder(path)
    folder.path.mkdir()
    folder.save(one)
    folder.load(other)


class Watcher:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps = 0
        self.reports: list[EpochReport] = []

    def step(self, steps: int) -> None:
        self.steps += steps

    def epoch(self, report: EpochReport) -> None:
        self.reports.append(report)


def stop_after(steps: int) -> Callable[[], bool]:
    """True from the `steps`-th time that it is asked."""
    asked = itertools.count(1)
    return lambda: next(asked) >= steps


def stopped(steps: int, train: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Train until so many steps are done."""
    with pytest.raises(Stopped):
        train(*arguments, should_stop=stop_after(steps), **options)


def refused(words: str, function: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Require an error of one line with these words."""
    with pytest.raises(IsoconvError, match=words) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)


def train_toy(
    path: Path, config: TrainConfig, *, resume: bool = False, seeds: Sequence[int] | None = None, **options: Any
) -> list[TrainResult]:
    """Train (or go on) in `path`, one seed or, in seed-0, seed-1, …, several."""
    configs = [config] if seeds is None else [replace(config, seed=seed) for seed in seeds]
    folders = [RunFolder(path if seeds is None else path / f"seed-{c.seed}") for c in configs]
    if not resume:
        for folder, each in zip(folders, configs, strict=True):
            folder.start(each, overwrite=False)
    options.setdefault("test", toy(64, seed=1))
    test, observer = options.pop("test"), options.pop("observer", Watcher())
    return train_classifiers(configs, folders, toy(), test, [0.1, 0.5], observer, resume=resume, **options)


def losses(folder: Path) -> list[tuple[int, float, float]]:
    """What a run's metrics say of each epoch, without the time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["loss"], line["accuracy"]) for line in lines]


def same_run(first: Path, second: Path) -> bool:
    """True if two runs have the same weights, bit for bit, and the same metrics."""
    return same_weights(first, second) and losses(first) == losses(second)


def same_weights(first: Path, second: Path, tolerance: float = 0.0) -> bool:
    """True if no weight of two runs differs by more."""
    a, b = (read_tensors(folder / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    return all(torch.allclose(value, b[name], rtol=0, atol=tolerance) for name, value in a.items())
