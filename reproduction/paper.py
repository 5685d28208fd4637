"""The paper's figures, as printed and as the authors corrected them, and those that it quotes from others.

Accuracies are in percent, mean ± population standard deviation over five seeds, at the best test epoch of 200.
"""

from dataclasses import dataclass
from typing import NamedTuple

# Data set, network, method; clean; certified at 1.58 (MNIST) or 36/255 (CIFAR-10): tables 1, 2 and "additional ablation".
# Then, where the paper has it, certified at 0.3 or 0.1 (table "MMR").
_ACCURACIES = """
mnist   small ossn       96.86±0.13 42.95±1.09
mnist   small rko        97.28±0.08 43.58±0.44
mnist   small svcm       97.24±0.09 28.94±1.58
mnist   small bcop       97.54±0.06 45.84±0.90
mnist   large ossn       98.31±0.03 53.77±1.02
mnist   large rko        98.44±0.05 55.18±0.46
mnist   large svcm       97.93±0.05 38.00±1.82
mnist   large bcop       98.69±0.01 56.37±0.33 97.04±0.03
cifar10 small ossn       62.18±0.66 48.03±0.54
cifar10 small rko        61.77±0.63 47.46±0.53
cifar10 small svcm       62.39±0.46 47.59±0.56
cifar10 small bcop       64.53±0.30 50.01±0.21
cifar10 large ossn       67.51±0.47 53.64±0.49
cifar10 large rko        70.01±0.26 55.76±0.16
cifar10 large svcm       69.65±0.38 53.61±0.51
cifar10 large bcop       72.16±0.23 58.26±0.17 62.53±0.21
mnist   small bcop-fixed 93.57±0.17  7.51±1.18
mnist   small rkl2ne     95.85±0.12 39.77±0.73
mnist   large bcop-fixed 69.12±5.61  0.00±0.00
mnist   large rkl2ne     96.76±0.11 37.79±1.21
cifar10 small bcop-fixed 50.61±0.65 36.44±0.70
cifar10 small rkl2ne     58.82±0.67 44.65±0.61
cifar10 large bcop-fixed 47.70±0.92 27.47±1.37
cifar10 large rkl2ne     56.75±0.68 43.40±0.46
mnist   fc3   None       98.71±0.02 54.46±0.30 97.06±0.02
cifar10 fc3   None       62.60±0.39 49.97±0.35 53.67±0.29
"""
# PGD, FGSM on the whole test set (tables 3 and "QW"); on its first 100 images clean, boundary, pointwise.
_ATTACKED = """
cifar10 small bcop 51.26±0.17 51.57±0.18 74.20±2.23 61.20±2.99 74.00±2.28
cifar10 large bcop 64.12±0.13 64.24±0.12 78.40±1.96 71.00±2.28 78.40±1.96
mnist   large bcop 86.38±0.16 86.49±0.16
mnist   fc3   None 81.96±0.16 83.64±0.10
cifar10 fc3   None 50.05±0.36 50.21±0.34
"""
_WASSERSTEIN = """
stl10   maxmin ossn 7.39±0.31
stl10   maxmin rko  8.95±0.12
stl10   maxmin bcop 9.91±0.11
stl10   relu   ossn 7.06±0.72
stl10   relu   rko  7.82±0.21
stl10   relu   bcop 8.28±0.19
cifar10 maxmin ossn 3.29
cifar10 maxmin rko  4.95
cifar10 maxmin bcop 5.34
cifar10 relu   ossn 3.07
cifar10 relu   rko  4.20
cifar10 relu   bcop 4.39
"""
# The released code used the first 2×2 block of a larger kernel twice and the last never: only the Large networks changed.
_CORRECTED = """
clean  cifar10 large bcop 72.41
robust cifar10 large bcop 58.72
close  cifar10 large bcop 62.97
pgd    cifar10 large bcop 64.39
clean  mnist   large bcop 98.77
robust mnist   large bcop 56.66
close  mnist   large bcop 97.11
clean  mnist   large bcop-fixed 65.20
"""
STEP_SECONDS = {"standard": 0.041, "bcop": 0.138, "rko": 0.120, "ossn": 0.113}  # on one NVIDIA P100
PARAMETERS = {"mnist-small": 166_406, "mnist-large": 1_974_762, "mnist-fc3": 2_913_290, "cifar10-small": 214_918}
PARAMETERS |= {"cifar10-large": 2_466_858, "cifar10-fc3": 5_256_202, "stl10-dcgan": 2_764_737}
# Exponents of c and s in the appendix on cost: O(c³) and O(c³s²).
COMPLEXITY = {"bcop": (3, 0), "rko": (3, 0), "ossn": (3, 2), "svcm": (3, 2)}


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


def _parse(text: str, keys: int) -> dict[tuple[str, ...], tuple[Figure, ...]]:
    table = {}
    for line in text.strip().splitlines():
        words = line.split()
        parts = (word.split("±") for word in words[keys:])
        table[tuple(words[:keys])] = tuple(Figure(float(p[0]), float(p[1]) if p[1:] else None) for p in parts)
    return table


_TABLES: list[tuple[tuple[str, ...], dict[tuple[str, ...], tuple[Figure, ...]]]] = [
    (("clean", "robust", "close"), _parse(_ACCURACIES, 3)),
    (("pgd", "fgsm", "clean of 100", "boundary", "pointwise"), _parse(_ATTACKED, 3)),
]
_CORRECTIONS = {key: figures[0].mean for key, figures in _parse(_CORRECTED, 4).items()}
WASSERSTEIN = {key: figures[0] for key, figures in _parse(_WASSERSTEIN, 3).items()}


def paper_figure(quantity: str, dataset: str, model: str, conv: str | None) -> Printed | None:
    """Return one figure of the paper, or None if it has none.

    quantity : clean, robust (at the main radius), close (at the smaller one), clean of 100 (images), or an attack
    """
    key = (dataset, model, str(conv))
    for quantities, table in _TABLES:
        if quantity in quantities and quantities.index(quantity) < len(row := table.get(key, ())):
            return Printed(row[quantities.index(quantity)], _CORRECTIONS.get((quantity, *key)))
    return None


class Quoted(NamedTuple):
    """Figures of other people's networks as the paper quotes them."""

    dataset: str
    radius: str
    name: str
    source: str
    figures: dict[str, float]


_KW, _MMR = "Wong et al. 2018, table 4 of its appendix", "Croce et al. 2019, table 1"
_KW_MODELS = "the networks of Wong et al. 2018 from their repository, measured by the paper"
_QW = "the networks of Qian and Wegman 2018 from their website, measured by the paper"

QUOTED_SOTA = (
    Quoted("mnist", "1.58", "KW-Large", _KW, {"clean": 88.12, "robust": 44.53}),
    Quoted("mnist", "1.58", "QW-3", _QW, {"clean": 98.65, "robust": 42.13, "pgd": 86.86, "fgsm": 85.83}),
    Quoted("mnist", "1.58", "QW-4", _QW, {"clean": 98.23, "robust": 27.59, "pgd": 86.25, "fgsm": 84.17}),
    Quoted("mnist", "0.3", "MMR-Universal", _MMR, {"clean": 96.96, "robust": 89.60}),
    Quoted("cifar10", "36/255", "KW-Large", _KW, {"clean": 59.76, "robust": 50.60}),
    Quoted("cifar10", "36/255", "KW-Resnet", _KW, {"clean": 61.20, "robust": 51.96}),
    Quoted("cifar10", "36/255", "QW-3", _QW, {"clean": 79.15, "robust": 44.46, "pgd": 72.07, "fgsm": 72.11}),
    Quoted("cifar10", "36/255", "QW-4", _QW, {"clean": 77.15, "robust": 31.41, "pgd": 71.89, "fgsm": 71.92}),
    Quoted("cifar10", "0.1", "MMR-Universal", _MMR, {"clean": 53.04, "robust": 46.40}),
)
QUOTED_ATTACKS = {  # by network and number of images
    ("small", 10_000): Quoted(
        "cifar10", "36/255", "KW-Small", _KW_MODELS, {"clean": 54.39, "pgd": 49.94, "fgsm": 49.98}
    ),
    ("large", 10_000): Quoted(
        "cifar10", "36/255", "KW-Large", _KW_MODELS, {"clean": 60.14, "pgd": 55.53, "fgsm": 55.55}
    ),
    ("small", 100): Quoted("cifar10", "36/255", "KW-Small", _KW_MODELS, {"clean": 63, "boundary": 60, "pointwise": 63}),
    ("large", 100): Quoted("cifar10", "36/255", "KW-Large", _KW_MODELS, {"clean": 68, "boundary": 64, "pointwise": 68}),
}
