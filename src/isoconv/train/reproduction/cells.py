"""What there is to measure. A cell is named for what it is, and its result file for the cell."""

from dataclasses import dataclass
from typing import Any

from isoconv.train.config import default_epsilons

# Passes over the training set in the default recipe; the paper's recipe has 200 everywhere.
_EPOCHS = {
    ("mnist", "small"): 30,
    ("mnist", "large"): 30,
    ("mnist", "fc3"): 30,
    ("cifar10", "small"): 60,
    ("cifar10", "large"): 30,
    ("cifar10", "fc3"): 30,
}
_PAPER_EPOCHS = 200
_CRITIC_EPOCHS = {"default": 50, "paper": 256}  # of 100 updates


@dataclass(frozen=True)
class ClassifierCell:
    """One network on one data set by one recipe, over seeds that train side by side."""

    dataset: str
    model: str
    conv: str
    recipe: str = "default"
    activation: str = "maxmin"

    kind = "classifiers"

    @property
    def name(self) -> str:
        method = [] if self.model == "fc3" else [self.conv]  # it has no convolutions
        return "-".join([self.dataset, self.model, *method, self.recipe])

    @property
    def epsilon(self) -> float:
        """The radius of the paper's main tables."""
        return default_epsilons(self.dataset)[0]

    def identity(self) -> dict[str, Any]:
        """The fields that say which cell a result file is of."""
        conv = None if self.model == "fc3" else self.conv
        return {"dataset": self.dataset, "model": self.model, "conv": conv, "recipe": self.recipe}


@dataclass(frozen=True)
class AttackCell:
    """One attack on the networks of a classifier's cell, at that data set's main radius."""

    network: ClassifierCell
    attack: str

    kind = "attacks"

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.attack}"

    def identity(self) -> dict[str, Any]:
        return {**self.network.identity(), "attack": self.attack}


@dataclass(frozen=True)
class CriticCell:
    """A critic between STL-10 and the images of a generator that was trained on it, over seeds."""

    conv: str
    activation: str
    recipe: str = "default"
    dataset: str = "stl10"
    model: str = "dcgan"

    kind = "critics"

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.model}-{self.conv}-{self.activation}-{self.recipe}"

    def identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("dataset", "model", "conv", "activation", "recipe")}


@dataclass(frozen=True)
class MeasuredCell:
    """Something that is measured without training. What is `instant` takes no time worth saving."""

    name: str
    instant: bool = False

    kind = "measured"

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}


Cell = ClassifierCell | AttackCell | CriticCell | MeasuredCell


def default_seeds(cell: Cell) -> tuple[int, ...]:
    """The paper has five of everything. Its own recipe takes so long that one network must do, unless more are asked for."""
    return (0,) if cell.identity().get("recipe") == "paper" else (0, 1, 2, 3, 4)


def default_epochs(cell: ClassifierCell | CriticCell) -> int:
    """How long a cell is trained if nothing else is asked for."""
    if isinstance(cell, CriticCell):
        return _CRITIC_EPOCHS[cell.recipe]
    return _PAPER_EPOCHS if cell.recipe == "paper" else _EPOCHS[cell.dataset, cell.model]
