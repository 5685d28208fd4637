"""All that is needed to repeat the training of a critic, and the recipes that fill it in."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoconv.errors import IsoconvError
from isoconv.models import CONVOLUTIONS
from isoconv.nn.methods import ORTHOGONALISATIONS
from isoconv.train.config import OPTIMISERS, PRECISIONS, RECIPES
from isoconv.train.schedules import SCHEDULES
from isoconv.wasserstein.vector_critic import FC_ACTIVATIONS

CRITICS = ("dcgan", "small", "large", "fc", "anchors")


@dataclass(frozen=True)
class CriticConfig:
    """One critic between two distributions. Everything in it is plain data, and `config.json` holds it whole.

    model : dcgan, small, large for images; fc (orthogonal layers) or anchors (distances to learned points) for vectors
    contents : hashes of the two sets, where they are finite; with other samples, others would be held out
    upsample : how many times larger images are made (nearest neighbour) in front of the critic; part of its constant
    scale : what vectors are multiplied by in front of the critic; part of its constant
    width, depth, group_size : of fc; anchors : how many points
    An epoch is `steps_per_epoch` updates, whatever the size of the data.
    """

    first: str
    second: str
    input_shape: tuple[int, ...]
    contents: tuple[str, str] = ("", "")
    model: str = "dcgan"
    conv: str = "bcop"
    activation: str = "maxmin"
    upsample: int = 1
    scale: float = 1.0
    width: int = 256
    depth: int = 3
    group_size: int = 8
    anchors: int = 512
    orthogonalisation: str = "manifold"
    optimiser: str = "steepest"
    lr: float = 0.01
    momentum: float = 0.9
    schedule: str = "linear"
    epochs: int = 100
    steps_per_epoch: int = 100
    batch_size: int = 64
    pixel_range: tuple[float, float] | None = None
    whole: tuple[bool, bool] = (False, False)
    held_out: float = 0.25
    project_every: int = 100
    project_iterations: int = 50
    precision: str = "float32"
    seed: int = 0
    recipe: str = "default"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise IsoconvError(f"Expected {name} to be one of {', '.join(allowed)}. Got {getattr(self, name)!r}.")
        counts = ("epochs", "steps_per_epoch", "batch_size", "width", "anchors", "upsample")
        for name in (*counts, "project_every", "project_iterations"):
            if getattr(self, name) < 1:
                raise IsoconvError(f"Expected {name} of at least 1. Got {getattr(self, name)}.")
        for name in ("lr", "scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise IsoconvError(f"Expected {name} to be a positive number. Got {getattr(self, name)}.")
        if not 0 < self.held_out < 1:
            raise IsoconvError(f"Expected a fraction between 0 and 1 to hold out. Got {self.held_out}.")
        if self.model in ("dcgan", "small", "large") and len(self.input_shape) != 3:
            raise IsoconvError(f"Expected images for the critic {self.model}. Got samples of shape {self.input_shape}.")
        if self.upsample != 1 and len(self.input_shape) != 3:
            raise IsoconvError(f"Expected images to upsample. Got samples of shape {self.input_shape}.")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "CriticConfig":
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            for name in ("input_shape", "contents", "whole", "pixel_range"):
                if fields.get(name) is not None:
                    fields[name] = tuple(fields[name])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, IsoconvError):
                raise
            raise IsoconvError(f"Expected a critic's configuration in {path}. Got: {error}.") from None


_CHOICES = {
    "model": CRITICS,
    "conv": CONVOLUTIONS,
    "activation": FC_ACTIVATIONS,
    "orthogonalisation": ORTHOGONALISATIONS,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "recipe": RECIPES,
}


def critic_settings(recipe: str, model: str, conv: str = "bcop", activation: str | None = None) -> dict[str, Any]:
    """The settings of a recipe, as keyword arguments of `CriticConfig`. Without a choice fc sorts groups, others MaxMin.

    paper : RMSprop, 25,600 updates of 64 pairs, a tenth of the rate every 6,000, 1e-4 with MaxMin and 1e-3 with ReLU
    default : steepest descent where the layers live on a manifold, Adam elsewhere, the rate falling linearly to 0
    """
    if recipe not in RECIPES:
        raise IsoconvError(f"Expected recipe to be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    if activation is None:
        activation = "groupsort" if model == "fc" and recipe == "default" else "maxmin"
    chosen: dict[str, Any] = {"recipe": recipe, "model": model, "conv": conv, "activation": activation}
    if recipe == "paper":
        rate = 1e-3 if activation == "relu" else 1e-4
        decay = {"optimiser": "rmsprop", "lr": rate, "schedule": "exponential", "epochs": 256, "batch_size": 64}
        return chosen | decay | {"orthogonalisation": "bjorck"}
    if model == "anchors":
        return chosen | {"optimiser": "adam", "lr": 0.02, "epochs": 10, "batch_size": 1024}
    if model == "fc":
        return chosen | {"optimiser": "steepest", "lr": 0.01, "epochs": 10, "batch_size": 256}
    if conv in ("bcop", "bcop-fixed", "rko"):
        return chosen
    # Methods whose convolutions are not matrices on a manifold: Adam for all of the network. At ten times this rate OSSN's
    # critics run away from their power iteration, to constants of up to 66,000 (results/wasserstein, "fast").
    return chosen | {"optimiser": "adam", "lr": 1e-4}
