"""Seconds per training step: the paper's table for a P100, on the hardware at hand."""

import time
from statistics import fmean, median, pstdev
from typing import Any

import torch

from isoconv.train.capture import make_stepper
from isoconv.train.classifier import Classification, device_name
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.engine import Learner, Stopped
from isoconv.train.reproduction.cells import MeasuredCell
from isoconv.train.reproduction.results import environment
from isoconv.train.reproduction.settings import Settings

_METHODS = ("standard", "bcop", "rko", "ossn", "svcm")
_RECIPES = ("default", "paper")
_SHAPE, _CLASSES = (3, 32, 32), tuple("0123456789")
_ROUNDS, _WARM_UP = 9, 30


def time_record(cell: MeasuredCell, settings: Settings) -> dict[str, Any]:
    """A step of each method of Large on CIFAR-10, batch 128, in the default recipe and in the paper's, in turn.

    SVCM's step includes its share of the projections: a hundredth of one, which is timed apart.
    """
    device = torch.device(settings.device)
    on_gpu = device.type == "cuda"
    batch, rounds = (16, 1) if settings.quick else (128, _ROUNDS if on_gpu else 3)
    warm_up, steps = (_WARM_UP, 100) if on_gpu else (1, 1 if settings.quick else 3)
    cases = []
    for recipe in _RECIPES:
        for conv in _METHODS:
            if settings.should_stop():
                raise Stopped
            settings.watcher.say(f"time: warming up {conv}, {recipe} recipe")
            cases.append(_Case(conv, recipe, batch, steps, warm_up, device))
    for _ in range(rounds):  # in turn, so that a slower moment of the machine hits all of them
        for case in cases:
            if settings.should_stop():
                raise Stopped
            case.run()
    return {
        **cell.identity(),
        "status": "ok",
        "dataset": "cifar10",
        "model": "large",
        "batch_size": batch,
        "rounds": rounds,
        "steps_per_round": steps,
        "results": [case.result() for case in cases],
        "hardware": device_name(device),
        **environment(),
    }


class _Case:
    """One method in training, ready to be timed."""

    def __init__(self, conv: str, recipe: str, batch: int, steps: int, warm_up: int, device: torch.device) -> None:
        self.conv, self.recipe, self.steps, self.device = conv, recipe, steps, device
        chosen = recipe_settings(recipe, "cifar10", conv) | {"model": "large", "conv": conv, "batch_size": batch}
        config = TrainConfig(data="cifar10", input_shape=_SHAPE, classes=_CLASSES, **chosen)
        # So many steps per epoch that the schedule does not get in the way.
        self.learner = Learner.from_config(config, make_model(config), Classification(config), 10**6, device=device)
        self.stepper = make_stepper([self.learner])
        self.projected, self.every = bool(self.learner.projected_rarely), config.project_every
        random = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (batch, *_SHAPE), dtype=torch.uint8, generator=random).to(device)
        self.labels = torch.randint(0, 10, (batch,), generator=random).to(device)
        self.seconds: list[float] = []
        self.projections: list[float] = []
        for _ in range(warm_up):
            self.stepper.step([(self.images, self.labels)])
        self.stepper.project([self.learner])  # the first one finds kernels that nobody has projected yet

    def run(self) -> None:
        start = self._now()
        for _ in range(self.steps):
            self.stepper.step([(self.images, self.labels)])
        middle = self._now()
        self.stepper.project([self.learner])
        self.seconds.append((middle - start) / self.steps)
        self.projections.append(self._now() - middle)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def result(self) -> dict[str, Any]:
        each = self.seconds
        if self.projected:
            each = [step + whole / self.every for step, whole in zip(self.seconds, self.projections, strict=True)]
        figures = {"median": median(each), "mean": fmean(each), "std": pstdev(each)}
        found: dict[str, Any] = {"conv": self.conv, "recipe": self.recipe, "seconds": figures}
        return found | ({"projection_seconds": median(self.projections)} if self.projected else {})
