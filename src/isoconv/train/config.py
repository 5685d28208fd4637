"""All that is needed to repeat a run, and the recipes that fill it in."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoconv.errors import IsoconvError
from isoconv.models import ACTIVATIONS, CONVOLUTIONS
from isoconv.nn.orthogonalised import ORTHOGONALISATIONS
from isoconv.train.schedules import SCHEDULES

MODELS = ("small", "large", "fc3")
LOSSES = ("hinge", "cross-entropy")
OPTIMISERS = ("steepest", "adam", "rmsprop")
PRECISIONS = ("float32", "bf16")
RECIPES = ("default", "paper")


@dataclass(frozen=True)
class TrainConfig:
    """One seed of one run. Everything in it is plain data, and `config.json` holds it whole.

    listing : of one's own pictures, a hash of which there were: with others, others would be held out
    """

    data: str
    input_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    listing: str = ""
    model: str = "large"
    conv: str = "bcop"
    activation: str = "maxmin"
    orthogonalisation: str = "manifold"
    loss: str = "hinge"
    margin: float = 0.7071
    temperature: float = 0.125
    offset: float = 0.7071
    optimiser: str = "steepest"
    lr: float = 0.01
    momentum: float = 0.9
    schedule: str = "linear"
    epochs: int = 60
    batch_size: int = 128
    crop_padding: int = 0
    flip: bool = False
    project_every: int = 100
    project_iterations: int = 50
    precision: str = "float32"
    seed: int = 0
    recipe: str = "default"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise IsoconvError(f"Expected {name} to be one of {', '.join(allowed)}. Got {getattr(self, name)!r}.")
        for name in ("epochs", "batch_size", "project_every", "project_iterations"):
            if getattr(self, name) < 1:
                raise IsoconvError(f"Expected {name} of at least 1. Got {getattr(self, name)}.")
        if self.crop_padding < 0:
            raise IsoconvError(f"Expected crop_padding of at least 0. Got {self.crop_padding}.")
        if not math.isfinite(self.offset):
            raise IsoconvError(f"Expected offset to be a number. Got {self.offset}.")
        for name in ("lr", "margin", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise IsoconvError(f"Expected {name} to be a positive number. Got {getattr(self, name)}.")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "TrainConfig":
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            fields["input_shape"], fields["classes"] = tuple(fields["input_shape"]), tuple(fields["classes"])
            if wrong := [name for name, value in fields.items() if not _has_its_type(name, value)]:
                raise ValueError(f"{wrong[0]} is {fields[wrong[0]]!r}")
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, IsoconvError):
                raise
            raise IsoconvError(f"Expected a run's configuration in {path}. Got: {error}.") from None


def _has_its_type(name: str, value: Any) -> bool:
    """Whether a value read from a file can be what the field is declared to be."""
    declared = TrainConfig.__annotations__.get(name)
    if name == "input_shape":
        return len(value) == 3 and all(type(n) is int and 1 <= n <= 2**16 for n in value)
    if name == "classes":
        return all(isinstance(label, str) for label in value)
    if declared is float:
        return type(value) in (int, float)
    return declared is None or type(value) is declared


_CHOICES = {
    "model": MODELS,
    "conv": CONVOLUTIONS,
    "activation": ACTIVATIONS,
    "orthogonalisation": ORTHOGONALISATIONS,
    "loss": LOSSES,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "recipe": RECIPES,
}

# What depends on the data set: the paper's margins (√2·1.5 and √2·0.5), radii and augmentation.
_PER_DATA: dict[str, dict[str, Any]] = {
    "mnist": {"margin": 1.5 * math.sqrt(2)},
    "digits": {"margin": 1.5 * math.sqrt(2)},
    "cifar10": {"margin": 0.5 * math.sqrt(2), "crop_padding": 4, "flip": True},
    "stl10": {"margin": 0.5 * math.sqrt(2), "crop_padding": 4, "flip": True},
}
_EPSILONS = {"mnist": (1.58, 0.3), "digits": (1.58, 0.3), "cifar10": (36 / 255, 0.1), "stl10": (36 / 255, 0.1)}


def default_epsilons(data: str) -> tuple[float, ...]:
    """The radii at which the paper states robust accuracy; CIFAR-10's for other data."""
    return _EPSILONS.get(data, (36 / 255, 0.1))


def recipe_settings(recipe: str, data: str, conv: str) -> dict[str, Any]:
    """The settings of a recipe for a data set and a method, as keyword arguments of `TrainConfig`."""
    if recipe not in RECIPES:
        raise IsoconvError(f"Expected recipe to be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    settings = {"recipe": recipe, **_PER_DATA.get(data, {"margin": 0.5 * math.sqrt(2), "flip": True})}
    if recipe == "paper":
        adam = {"optimiser": "adam", "lr": 1e-3, "schedule": "exponential", "epochs": 200, "batch_size": 128}
        return settings | adam | {"orthogonalisation": "bjorck"}
    # The best of those tried on a validation split of the training set (benchmarks/recipes.py).
    if data in ("mnist", "digits"):
        settings |= {"loss": "cross-entropy", "temperature": 0.18, "offset": 1.7, "lr": 0.02}
    else:
        settings |= {"loss": "cross-entropy", "temperature": 0.18, "offset": 0.6}
    if conv in ("bcop", "bcop-fixed", "rko"):
        return settings
    # Methods whose convolutions are not matrices on a manifold: Adam for all of the network.
    return settings | {"optimiser": "adam", "lr": 1e-3}
