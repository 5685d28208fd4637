"""Which cells each table and figure of the paper needs."""

from itertools import product

from isoconv.errors import IsoconvError
from isoconv.train.config import RECIPES
from isoconv.train.reproduction.cells import AttackCell, Cell, ClassifierCell, CriticCell, MeasuredCell

DATASETS = ("mnist", "cifar10")
NETWORKS = ("small", "large")
METHODS = ("ossn", "rko", "svcm", "bcop")
ABLATIONS = ("bcop-fixed", "rkl2ne", "bcop")
CRITICS = ("ossn", "rko", "bcop")
GRADIENT_ATTACKS = ("pgd", "fgsm")
DECISION_ATTACKS = ("boundary", "pointwise")

# In the order in which they matter where time is short.
TARGETS = (
    "table1",
    "sota",
    "ablation",
    "attacks",
    "wasserstein",
    "time",
    "complexity",
    "parameters",
    "figure-bconv",
    "figure-downsampling",
    "figure-sv",
)
# The paper's own recipe takes hours where ours takes minutes. Once is enough to see that it gives the paper's figures.
_ONCE_IN_THE_PAPERS_RECIPE = ClassifierCell("cifar10", "large", "bcop", "paper")


def cells_of(target: str, recipe: str | None = None) -> list[Cell]:
    """The cells of a target (or of "all"), the default recipe's first; with `recipe`, those of that recipe alone."""
    if target == "all":
        every = [cell for name in TARGETS for cell in cells_of(name, recipe)]
        return list(dict.fromkeys(every))
    if target not in TARGETS:
        raise IsoconvError(f"Expected one of {', '.join((*TARGETS, 'all'))}. Got {target!r}.")
    if recipe not in (None, *RECIPES):
        raise IsoconvError(f"Expected recipe to be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    if recipe is not None:
        return _cells(target, recipe)
    once = [_ONCE_IN_THE_PAPERS_RECIPE] if target == "table1" else []
    return [*_cells(target, "default"), *once]


def _cells(target: str, recipe: str) -> list[Cell]:
    match target:
        case "table1":
            return [ClassifierCell(d, m, c, recipe) for d, m, c in product(DATASETS, NETWORKS, METHODS)]
        case "ablation":
            return [ClassifierCell(d, m, c, recipe) for d, m, c in product(DATASETS, NETWORKS, ABLATIONS)]
        case "sota":
            networks = [ClassifierCell(d, m, "bcop", recipe) for d, m in product(DATASETS, ("large", "fc3"))]
            return _with_attacks(networks, GRADIENT_ATTACKS)
        case "attacks":
            networks = [ClassifierCell("cifar10", m, "bcop", recipe) for m in NETWORKS]
            return _with_attacks(networks, (*GRADIENT_ATTACKS, *DECISION_ATTACKS))
        case "wasserstein":
            return [CriticCell(c, a, recipe) for a, c in product(("maxmin", "relu"), CRITICS)]
        case "figure-sv":
            return [ClassifierCell("cifar10", "large", c, recipe) for c in METHODS]
    return [MeasuredCell(target, instant=target not in ("time", "complexity"))]


def _with_attacks(networks: list[ClassifierCell], attacks: tuple[str, ...]) -> list[Cell]:
    """Each network and the attacks on it, together: its weights are then still at hand."""
    cells: list[Cell] = []
    for network in networks:
        cells += [network, *(AttackCell(network, attack) for attack in attacks)]
    return cells
