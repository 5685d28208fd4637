"""All that is needed to repeat a run, and the recipes that fill it in."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isoconv.data.datasets import DATASETS, OWN_IMAGES
from isoconv.errors import IsoconvError
from isoconv.models.catalogue import MODELS
from isoconv.nn.methods import ACTIVATIONS, METHODS, ORTHOGONALISATIONS
from isoconv.records import Record
from isoconv.train.losses import LOSSES
from isoconv.train.schedules import SCHEDULES

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

PRECISIONS = ("float32", "bf16")
CLASSIFIERS = {name: model for name, model in MODELS.items() if not model.is_critic}
RECIPES = {"default": "the best settings found on validation splits", "paper": "exactly the paper's"}


@dataclass(frozen=True)
class Optimiser:
    """What is known of an optimiser: `make(parameters, rate, momentum)`, with the learning rate in a tensor.

    warm_up : eager steps before a step is captured as a CUDA graph. PyTorch asks for a few. The first steps of Adam are
        so long (every entry of a matrix moves by the full rate, all in step) that the captured retraction, which cannot
        look at the matrix, would not quite make up for them. A steepest-descent step is never longer than its rate.
    """

    name: str
    title: str
    make: "Callable[[Iterable[Tensor], Tensor, float], Optimizer]"
    warm_up: int = 20


def _steepest(parameters: "Iterable[Tensor]", rate: "Tensor", momentum: float) -> "Optimizer":
    from isoconv.optim import SteepestDescent

    return SteepestDescent(parameters, lr=rate, momentum=momentum)


def _adam(parameters: "Iterable[Tensor]", rate: "Tensor", momentum: float) -> "Optimizer":
    from torch.optim import Adam

    return Adam(parameters, lr=rate, fused=rate.is_cuda, capturable=rate.is_cuda)


def _rmsprop(parameters: "Iterable[Tensor]", rate: "Tensor", momentum: float) -> "Optimizer":
    from torch.optim import RMSprop

    return RMSprop(parameters, lr=rate, capturable=rate.is_cuda)


OPTIMISERS = {
    "steepest": Optimiser("steepest", "steepest descent under the operator norm", _steepest, warm_up=3),
    "adam": Optimiser("adam", "Adam", _adam),
    "rmsprop": Optimiser("rmsprop", "RMSprop", _rmsprop),
}


@dataclass(frozen=True)
class TrainConfig(Record):
    """One seed of one run. `config.json` holds it whole.

    listing : for a user's own images, a hash of which ones there were: with others, others would be held out
    margin, temperature, offset : options of the losses; `loss_options` holds those of losses that have others
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
    loss_options: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise IsoconvError(f"Expected {name} to be one of {', '.join(allowed)}. Got {getattr(self, name)!r}.")
        for name in ("epochs", "batch_size", "project_every", "project_iterations"):
            if getattr(self, name) < 1:
                raise IsoconvError(f"Expected {name} of at least 1. Got {getattr(self, name)}.")
        if not MODELS[self.model].has_methods and (self.conv, self.activation) != ("bcop", "maxmin"):
            got = f"{self.conv} and {self.activation}"
            raise IsoconvError(f"Expected no conv and no activation for {self.model}, which has its own. Got {got}.")
        if self.crop_padding < 0:
            raise IsoconvError(f"Expected crop_padding of at least 0. Got {self.crop_padding}.")
        if not math.isfinite(self.offset):
            raise IsoconvError(f"Expected offset to be a number. Got {self.offset}.")
        for name in ("lr", "margin", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise IsoconvError(f"Expected {name} to be a positive number. Got {getattr(self, name)}.")
        if not all(1 <= size <= 2**16 for size in self.input_shape):
            raise IsoconvError(f"Expected input_shape (channels, height, width). Got {self.input_shape}.")
        if unknown := self.loss_options.keys() - LOSSES[self.loss].options.keys():
            raise IsoconvError(f"Expected the options of the loss {self.loss}. Got {min(unknown)!r}.")

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain data; `loss_options` only where there are any."""
        return {name: value for name, value in super().to_fields().items() if name != "loss_options" or value}

    def options_of_loss(self) -> dict[str, float]:
        """Return the options that the loss is called with."""
        options = LOSSES[self.loss].options
        own = {name: getattr(self, name, option.default) for name, option in options.items()}
        return own | self.loss_options


def make_model(config: TrainConfig) -> "nn.Module":
    """Return the network of a configuration, initialised from its seed, on the CPU so that every device starts alike."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return MODELS[config.model].make(  # type: ignore[no-any-return]
            config.input_shape,
            classes=len(config.classes),
            conv=config.conv,
            activation=config.activation,
            orthogonalisation=config.orthogonalisation,
        )


_CHOICES: dict[str, Iterable[str]] = {
    "model": CLASSIFIERS,
    "conv": METHODS,
    "activation": ACTIVATIONS,
    "orthogonalisation": ORTHOGONALISATIONS,
    "loss": LOSSES,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "recipe": RECIPES,
}


def default_epsilons(data: str) -> tuple[float, ...]:
    """Return the radii at which robust accuracy is stated for a data set, or for a user's own images."""
    return DATASETS.get(data, OWN_IMAGES).epsilons


def recipe_settings(recipe: str, data: str, conv: str, model: str = "large") -> dict[str, Any]:
    """Return the settings of a recipe for a data set, a method and a network, as keyword arguments of `TrainConfig`."""
    if recipe not in RECIPES:
        raise IsoconvError(f"Expected recipe to be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    if conv not in METHODS:
        raise IsoconvError(f"Expected conv to be one of {', '.join(METHODS)}. Got {conv!r}.")
    defaults = DATASETS.get(data, OWN_IMAGES)
    settings = {name: getattr(defaults, name) for name in ("margin", "crop_padding", "flip")} | {"recipe": recipe}
    if recipe == "paper":
        adam = {"optimiser": "adam", "lr": 1e-3, "schedule": "exponential", "epochs": 200, "batch_size": 128}
        return settings | adam | {"orthogonalisation": "bjorck"}
    # The best of those tried on a validation split of the training set (results/recipes).
    settings |= {"loss": "cross-entropy", "temperature": 0.18, "offset": defaults.offset}
    if METHODS[conv].on_manifold:
        own = MODELS[model].recipe if model in MODELS else {}
        return {**settings, "optimiser": "steepest", "lr": defaults.lr, **own}
    # Methods whose convolutions are not matrices on a manifold: Adam for all of the network.
    return settings | {"optimiser": "adam", "lr": 1e-3}
