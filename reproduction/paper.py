"""The paper's figures, as printed and as the authors corrected them, and those that it quotes from others: `paper.txt`."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

STEP_SECONDS = {"standard": 0.041, "bcop": 0.138, "rko": 0.120, "ossn": 0.113}  # on one NVIDIA P100
PARAMETERS = {"mnist-small": 166_406, "mnist-large": 1_974_762, "mnist-fc3": 2_913_290, "cifar10-small": 214_918}
PARAMETERS |= {"cifar10-large": 2_466_858, "cifar10-fc3": 5_256_202, "stl10-dcgan": 2_764_737}
# Exponents of c and s in the appendix on cost: O(c³) and O(c³s²).
COMPLEXITY = {"bcop": (3, 0), "rko": (3, 0), "ossn": (3, 2), "svcm": (3, 2)}
# Hours of an NVIDIA A100 and what they certify of CIFAR-10 at 36/255, in "1-Lipschitz Layers Compared" (CVPR 2024).
BUDGETS = {("AOL, BCOP", 2): 57.9, ("SLL", 2): 59.8, ("SOC", 2): 60.3, ("CPL", 2): 61.6}
BUDGETS |= {("SOC", 10): 66.0, ("BCOP", 24): 61.5, ("SOC", 24): 66.3}


class Figure(NamedTuple):
    """A mean and its standard deviation, which is None where there is none."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class Printed:
    """One figure of the paper: as printed, and as corrected where that is known."""

    printed: Figure
    corrected: float | None = None

    @property
    def bar(self) -> Figure:
        """The higher of the two, with the printed deviation: what ours is compared with."""
        mean, std = self.printed
        return Figure(mean if self.corrected is None else max(mean, self.corrected), std)


def _read(section: str) -> list[list[str]]:
    """Return the words of each line of a section of `paper.txt`."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split(f"[{section}]\n")[1].split("\n\n")[0]
    return [line.split() for line in text.splitlines()]


def _read_figures(section: str, keys: int) -> dict[tuple[str, ...], tuple[Figure, ...]]:
    return {
        tuple(words[:keys]): tuple(Figure(*map(float, word.split("±"))) for word in words[keys:])
        for words in _read(section)
    }


_TABLES = {
    ("clean", "robust", "close"): _read_figures("accuracies", 3),
    ("pgd", "fgsm", "clean of 100", "boundary", "pointwise"): _read_figures("attacked", 3),
}
_CORRECTIONS = {key: figures[0].mean for key, figures in _read_figures("corrected", 4).items()}
WASSERSTEIN = {key: figures[0] for key, figures in _read_figures("wasserstein", 3).items()}


def paper_figure(quantity: str, dataset: str, model: str, conv: str | None) -> Printed | None:
    """Return one figure of the paper, or None if it has none.

    quantity : clean, robust (at the main radius), close (at the smaller one), clean of 100 (images), or an attack
    """
    key = (dataset, model, str(conv))
    for quantities, table in _TABLES.items():
        if quantity in quantities and quantities.index(quantity) < len(row := table.get(key, ())):
            return Printed(row[quantities.index(quantity)], _CORRECTIONS.get((quantity, *key)))
    return None


class Quoted(NamedTuple):
    """Figures of other people's networks as the paper quotes them."""

    name: str
    source: str
    figures: dict[str, float]


_SOURCES = {
    "KW": "Wong et al. 2018, table 4 of its appendix",
    "KW-models": "the networks of Wong et al. 2018 from their repository, measured by the paper",
    "QW": "the networks of Qian and Wegman 2018 from their website, measured by the paper",
    "MMR": "Croce et al. 2019, table 1",
}


def _read_quoted(section: str) -> list[tuple[tuple[str, str], Quoted]]:
    """Return (the two words that say what a network is compared with, the network) of each line."""
    rows = []
    for first, second, name, source, *words in _read(section):
        figures = {quantity: float(number) for quantity, number in (word.split("=") for word in words)}
        rows.append(((first, second), Quoted(name, _SOURCES[source], figures)))
    return rows


QUOTED_SOTA = _read_quoted("quoted")  # by data set and radius
QUOTED_ATTACKS = dict(_read_quoted("quoted attacks"))  # by network and number of images
