"""What there is to measure, and what each measurement leaves: one cell is one JSON file, `results/KIND/NAME.json`."""

import dataclasses
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

import torch

from isoconv import __version__
from isoconv.errors import IsoconvError
from isoconv.files import read_json, write_json
from isoconv.records import Record
from isoconv.train.config import RECIPES, default_epsilons

ROOT = Path(__file__).resolve().parents[1]
RESULTS, RUNS = ROOT / "results", ROOT / "runs" / "reproduction"

Value = str | int | float | bool | None
Settings = dict[str, Value | tuple[Value, ...] | dict[str, float]]
Rows = dict[str, dict[str, float]]
Outcome = tuple[Settings, Rows]  # of what `Figures` hold

# Records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measurement(Record):
    """What every file says of how it came about. Older files say less."""

    status: str = "ok"
    hardware: str | None = None
    torch: str | None = None
    isoconv: str | None = None
    python: str | None = None
    commit: str | None = None
    finished: str | None = None
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure(Measurement):
    """A measurement that failed, and why: a failure is a result too."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Figures(Measurement):
    """Named rows of named figures, for all that is neither a classifier, an attack nor a critic."""

    name: str
    settings: Settings
    rows: Rows
    note: str | None = None


@dataclass(frozen=True)
class ClassifierSeed(Record):
    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound",)

    seed: int
    clean: float
    robust: dict[str, float]
    lipschitz_bound: float


@dataclass(frozen=True)
class Histogram(Record):
    """Singular values: counts between the edges, and the quantiles 0, 5, 25, 50, 75, 95, 100 %."""

    counts: tuple[int, ...]
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class SecondLayer(Record):
    """The singular values of Large's second convolution before and after training."""

    seed: int
    count: int
    edges: tuple[float, ...]
    before: Histogram
    after: Histogram


@dataclass(frozen=True, kw_only=True)
class Classifiers(Measurement):
    """Networks of one kind, one per seed, trained side by side. Accuracies are in percent, of the last epoch."""

    dataset: str
    model: str
    conv: str | None
    recipe: str
    seeds: tuple[int, ...]
    epochs: int
    images: int
    results: tuple[ClassifierSeed, ...]
    train_seconds: float
    peak_memory_mib: float | None
    config: Settings
    second_layer: SecondLayer | None = None


@dataclass(frozen=True)
class AttackSeed(Record):
    seed: int
    clean: float
    certified: float
    accuracy: float
    violations: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Attacks(Measurement):
    """One attack on the networks of a classifier cell. `accuracy` counts images right both before and after it."""

    dataset: str
    model: str
    conv: str | None
    recipe: str
    attack: str
    seeds: tuple[int, ...]
    epochs: int
    epsilon: float
    images: int
    settings: Settings
    results: tuple[AttackSeed, ...]
    violations: int


@dataclass(frozen=True)
class CriticSeed(Record):
    seed: int
    estimate: float
    lower: float
    interval: tuple[float, float]
    confidence: float
    method: str
    lipschitz_bound: float
    updates: int
    observations: tuple[int, int] | None = None
    rounding: float | None = None


@dataclass(frozen=True, kw_only=True)
class Critics(Measurement):
    """Critics between a data set and one generator, one per seed. Only critics of one generator can be compared."""

    dataset: str
    model: str
    conv: str
    activation: str
    recipe: str
    seeds: tuple[int, ...]
    epochs: int
    updates: int
    samples: tuple[int, int]
    units: str
    generator: str
    results: tuple[CriticSeed, ...]
    train_seconds: float
    config: Settings


# Cells ------------------------------------------------------------------------------------------------------------


# In the default recipe, where 30 are too few; the target "epochs" measures how many others want.
_EPOCHS = {"cifar10-small": 60}


@dataclass(frozen=True)
class ClassifierCell:
    """One network on one data set by one recipe, over seeds that train side by side."""

    dataset: str
    model: str
    conv: str | None
    recipe: str = "default"

    kind, record = "classifiers", Classifiers

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.dataset, self.model, self.conv, self.recipe) if part)

    @property
    def epochs(self) -> int:
        if self.recipe == "paper":
            return 200
        return next((number for name, number in _EPOCHS.items() if self.name.startswith(name)), 30)


@dataclass(frozen=True)
class AttackCell:
    """One attack on the networks of a classifier cell, at that data set's main radius."""

    network: ClassifierCell
    attack: str

    kind, record = "attacks", Attacks

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.attack}"

    @property
    def epsilon(self) -> float:
        return default_epsilons(self.network.dataset)[0]


@dataclass(frozen=True)
class CriticCell:
    """A critic between a data set and a generator that was trained on it. `lr` is the recipe's own if it is None."""

    dataset: str
    conv: str
    activation: str
    recipe: str = "default"
    lr: float | None = None

    kind, record = "critics", Critics

    @property
    def name(self) -> str:
        rate = "" if self.lr is None else f"-lr{self.lr:g}"
        return f"{self.dataset}-dcgan-{self.conv}-{self.activation}-{self.recipe}{rate}"

    @property
    def epochs(self) -> int:
        return 256 if self.recipe == "paper" else {"stl10": 50, "cifar10": 40}[self.dataset]


@dataclass(frozen=True)
class FigureCell:
    """Anything else that is measured; `measure.MEASURES` says how."""

    kind: str
    name: str

    record = Figures


Cell = ClassifierCell | AttackCell | CriticCell | FigureCell
Result = Classifiers | Attacks | Critics | Figures
Results = dict[Cell, Result | Failure]

DATA, NETWORKS = ("mnist", "cifar10"), ("small", "large")
METHODS, ABLATIONS, CRITICS = ("ossn", "rko", "svcm", "bcop"), ("bcop-fixed", "rkl2ne", "bcop"), ("ossn", "rko", "bcop")
GRADIENT, DECISION = ("pgd", "fgsm"), ("boundary", "pointwise")
# The paper's own recipe takes hours where ours takes minutes: once is enough to see that it gives the paper's figures.
_PAPERS_RECIPE = ClassifierCell("cifar10", "large", "bcop", "paper")
_FIGURES = {
    "time": ("speed", "time"),
    "complexity": ("speed", "complexity"),
    "parameters": ("exact", "parameters"),
    "training-time": ("variants", *(f"{d}-{m}-bcop-training-time" for d, m in product(DATA, NETWORKS))),
    "longer": ("variants", "cifar10-large-bcop-200-epochs"),
    "record": ("record", *(f"cifar10-shift-m-{seed}" for seed in range(3))),
    "record-mnist": ("record", "mnist-large"),
    "record-large": ("record", "cifar10-shift-l"),
    "record-attacks": ("record", "cifar10-shift-l-attacks"),
    "record-trials": ("record", "mnist-large-trials", "digits-small-trials"),
    "paths": ("variants", *(f"cifar10-small-bcop-{p}-{n}-epochs" for n in (6, 15) for p in ("manifold", "paper"))),
    "svcm": ("recipes", "mnist-large-svcm", "cifar10-large-svcm"),
    "epochs": ("recipes", "cifar10-fc3-epochs", "cifar10-large-rkl2ne-epochs"),
    "svcm-full": ("variants", "mnist-large-svcm-every-update"),
    "certificates": ("certificates", "cifar10-large", "cifar10-large-rounding", "cifar10-large-decision"),
    "certificates-mnist": ("certificates", "mnist-large", "mnist-large-rounding"),
    "steps": ("speed", "steps"),
    "critic-steps": ("speed", "critic-steps"),
    "replicas": ("speed", "replicas"),
    "kernels": ("speed", "kernels"),
    "svcm-projection": ("speed", "svcm-projection"),
    "weight-comparison": ("speed", "weight-comparison"),
    "eager-cpu": ("speed", "eager-cpu"),
    "imports": ("speed", "imports"),
    "distances": ("distances", "known", *(f"funnels-{d}" for d in (8, 16, 32, 64, 128)), "same-samples", "budget"),
    "figure-bconv": ("exact",),
    "figure-downsampling": ("exact",),
}
_TABLES = ("results", "table1", "sota", "ablation", "attacks", "wasserstein", "wasserstein-cifar10")
TARGETS = (*_TABLES, "figure-sv", "figure-record", *_FIGURES)


def cells_of(target: str, recipe: str | None = None) -> list[Cell]:
    """Return the cells of a target, or of "all"; with a recipe, those of that recipe alone."""
    if target not in (*TARGETS, "all"):
        raise IsoconvError(f"Expected one of {', '.join((*TARGETS, 'all'))}. Got {target!r}.")
    if recipe not in (None, *RECIPES):
        raise IsoconvError(f"Expected recipe to be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    if target == "all":
        return list(dict.fromkeys(cell for name in TARGETS for cell in cells_of(name, recipe)))
    cells = _cells(target, recipe or "default")
    return [*cells, _PAPERS_RECIPE] if target in ("table1", "sota") and recipe is None else cells


def _cells(target: str, recipe: str) -> list[Cell]:
    match target:
        case "table1":
            return [ClassifierCell(d, m, c, recipe) for d, m, c in product(DATA, NETWORKS, METHODS)]
        case "results":
            return [ClassifierCell(d, m, "bcop", recipe) for d, m in product(DATA[::-1], NETWORKS[::-1])]
        case "ablation":
            return [ClassifierCell(d, m, c, recipe) for d, m, c in product(DATA, NETWORKS, ABLATIONS)]
        case "figure-sv":
            return [ClassifierCell("cifar10", "large", c, recipe) for c in METHODS]
        case "figure-record":
            return [*_cells("training-time", recipe)[-1:], *_cells("record", recipe)]
        case "sota":
            kinds = (("large", "bcop"), ("fc3", None))
            return _attacked([ClassifierCell(d, m, c, recipe) for d in DATA for m, c in kinds], GRADIENT)
        case "attacks":
            return _attacked([ClassifierCell("cifar10", m, "bcop", recipe) for m in NETWORKS], GRADIENT + DECISION)
        case "wasserstein":
            return [CriticCell("stl10", c, a, recipe) for a, c in product(("maxmin", "relu"), CRITICS)]
        case "wasserstein-cifar10":
            fast = [("stl10", "maxmin"), ("cifar10", "relu")] if recipe == "default" else []
            critics: list[Cell] = [CriticCell("cifar10", c, a, recipe) for c, a in product(CRITICS, ("maxmin", "relu"))]
            return critics + [CriticCell(d, "ossn", a, recipe, lr=0.001) for d, a in fast]
    kind, *names = _FIGURES[target]
    return [FigureCell(kind, name) for name in names]


def _attacked(networks: list[ClassifierCell], attacks: tuple[str, ...]) -> list[Cell]:
    """Return each network with the attacks on it: its weights are then still at hand."""
    cells: list[Cell] = []
    for network in networks:
        cells += [network, *(AttackCell(network, attack) for attack in attacks)]
    return cells


# Files ------------------------------------------------------------------------------------------------------------


def result_path(folder: Path, cell: Cell) -> Path:
    return folder / cell.kind / f"{cell.name}.json"


def read_result(folder: Path, cell: Cell) -> Result | Failure | None:
    """Return what is known of a cell, or None; raise if the file is of another cell."""
    path = result_path(folder, cell)
    if not path.exists():
        return None
    fields = read_json(path)
    record = (Failure if fields.get("status") == "failed" else cell.record).from_fields(fields, str(path))
    expected = vars(cell.network) | {"attack": cell.attack} if isinstance(cell, AttackCell) else vars(cell)
    for field, value in expected.items():
        if field not in ("lr", "kind") and getattr(record, field, value) != value:
            raise IsoconvError(f"Expected the result of {cell.name} in {path}. Got {field} {getattr(record, field)!r}.")
    return record


def read_results(folder: Path, cells: Iterable[Cell]) -> Results:
    """Return the results that there are."""
    records = {cell: read_result(folder, cell) for cell in cells}
    return {cell: record for cell, record in records.items() if record is not None}


def write_result(folder: Path, cell: Cell, record: Measurement) -> None:
    path = result_path(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    optional = {field.name for field in dataclasses.fields(record) if field.default is not dataclasses.MISSING}
    fields = record.to_fields().items()
    write_json(path, {name: value for name, value in fields if value not in (None, False) or name not in optional})


def describe_environment(hardware: str | None) -> dict[str, str | None]:
    """Return hardware, software, commit and time of a measurement. A + behind the commit: files had been changed."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        commit = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        commit = None
    software = {"torch": torch.__version__, "isoconv": __version__, "python": platform.python_version()}
    return {"hardware": hardware, **software, "commit": commit, "finished": time.strftime("%Y-%m-%dT%H:%M:%S")}
