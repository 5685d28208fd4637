"""Measure what is missing, cell by cell; stop and go on at any time. All calls into isoconv's training are here."""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from benchmarks import distances, speed
from isoconv.cli.output import DifferenceProgress, TrainingProgress
from isoconv.data import EpochBatches, Splits, hold_out, load_splits
from isoconv.errors import IsoconvError
from isoconv.linalg import circular_singular_values, fold_stride
from isoconv.models import FC3, DCGANCritic, Large, Small
from isoconv.nn import plain
from isoconv.train.classifier import TrainResult, device_name, search_learning_rate, train_classifiers
from isoconv.train.config import PAPERS_PROJECTIONS, TrainConfig, default_epsilons, make_model, recipe_settings
from isoconv.train.distributed import Processes
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.train.runs import AttackRecord, open_run
from isoconv.wasserstein.critic import critic_config, train_critics
from isoconv.wasserstein.gan import GanConfig, load_generator, train_gan
from isoconv.wasserstein.samples import FiniteSamples, GeneratedSamples
from reproduction import cells
from reproduction.cells import DECISION, AttackCell, Cell, ClassifierCell, CriticCell, FigureCell, Outcome, Settings

# What a measurement may come to. Any other exception is a mistake in the code, and no result.
_FAILURES = (IsoconvError, MemoryError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_SHAPES = {"digits": (1, 28), "mnist": (1, 28), "cifar10": (3, 32), "stl10": (3, 64)}
_ATTACKS: dict[str, dict[str, Any]] = {  # the paper's settings, as far as it says; foolbox's number of boundary steps
    "pgd": {"steps": 200, "step_size": 0.01, "restarts": 1, "seed": 0},
    "apgd": {"steps": 100},
    "boundary": {"steps": 25_000, "seed": 0},
    "pointwise": {"queries": 10_000, "seed": 0},
}
_QUICK_ATTACKS = {"pgd": {"steps": 5}, "apgd": {"steps": 5}, "boundary": {"steps": 20}, "pointwise": {"queries": 50}}
_R = TypeVar("_R", cells.ClassifierSeed, cells.AttackSeed, cells.CriticSeed)
_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)


class InTheWayError(IsoconvError):
    """A run or a result with other settings is in the way: the user must move it."""


@dataclass
class Session:
    """Where to read and write, what to run on, how much of it.

    seeds, epochs : None for each cell's own
    quick : a few images, one epoch, two seeds: to see that everything works; the figures mean nothing
    renew : measure networks again that were trained with other settings than now; their results stand until then
    time_limit : seconds after which everything is saved and left; a later call resumes
    """

    results: Path
    runs: Path
    data: Path | None = None
    download: bool = False
    device: str = "cpu"
    seeds: tuple[int, ...] | None = None
    epochs: int | None = None
    quick: bool = False
    retry: bool = False
    renew: bool = False
    time_limit: float = float("inf")
    interrupted: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)
    splits: dict[str, Splits] = field(default_factory=dict)

    def choose_seeds(self, recipe: str = "default") -> tuple[int, ...]:
        """Return five seeds, as the paper has; its own recipe takes so long that one network must do."""
        return self.seeds or ((0, 1) if self.quick else (0,) if recipe == "paper" else (0, 1, 2, 3, 4))

    def choose_epochs(self, epochs: int) -> int:
        return self.epochs or (1 if self.quick else epochs)

    def should_stop(self) -> bool:
        """Return True if the user wants it to stop, or only enough time is left to save and to leave."""
        return self.interrupted() or time.monotonic() - self.began >= max(self.time_limit - 15, 0.95 * self.time_limit)

    def load(self, name: str) -> Splits:
        """Return a data set, read once; for a quick look a few images of it, or of digits in its place."""
        if name not in self.splits:
            channels, size = _SHAPES[name]
            size = 16 if self.quick and name == "stl10" else size
            if self.quick and self.data is None:
                splits = load_splits("digits", size=size)
                splits = splits.map(lambda p: replace(p, images=p.images.expand(-1, channels, -1, -1).contiguous()))
            else:
                splits = load_splits(name, self.data, size=size if name == "stl10" else None, download=self.download)
            if self.quick:
                splits = Splits(splits.train.take(128), splits.test.take(64) if splits.has_test else None)
            self.splits[name] = splits
        return self.splits[name]

    def open_run(self, name: str, config: Any) -> RunFolder:
        """Return the folder of a run, started if it is new; raise if it holds a run with other settings."""
        folder = RunFolder(self.runs / name)
        if not folder.exists:
            folder.start(config, overwrite=False)
        elif type(config).read(folder.config) != config:
            raise InTheWayError(
                f"Expected a run with the same settings in {folder.path}. Got another: remove it, or name other --runs."
            )
        return folder

    @contextmanager
    def show_training(
        self, steps: int, folder: RunFolder, progress: type[TrainingProgress] = TrainingProgress
    ) -> Iterator[dict[str, Any]]:
        """Show the progress of a training, and yield what every training is told."""
        with progress(steps, folder.updates_done()) as observer:
            options = {"observer": observer, "device": self.device, "resume": True}
            yield options | {"should_stop": self.should_stop, "save_every": 60.0}

    def environment(self) -> dict[str, Any]:
        return cells.describe_environment(device_name(torch.device(self.device)))


def measure(wanted: Sequence[Cell], session: Session) -> tuple[list[Cell], list[Cell], list[Cell]]:
    """Measure the cells that have no result yet, in order. Return those done, failed and left for want of time.

    A finished cell is never measured again. A cell that fails (training diverges, memory does not suffice) is recorded
    with the reason, and the others go on. Data that cannot be read is an error before anything is trained.
    """
    missing = [cell for cell in wanted if not _is_settled(cell, session)]
    for dataset in {name for cell in missing for name in _SHAPES if name in cell.name and cell.kind != "exact"}:
        session.load(dataset)
    done, failed = list[Cell](), list[Cell]()
    for k, cell in enumerate(missing):
        print(f"{cell.kind}: {cell.name} ({k + 1} of {len(missing)})", file=sys.stderr, flush=True)
        try:
            if session.should_stop():
                raise Stopped
            record: cells.Measurement = measure_cell(cell, session)
        except Stopped:
            return done, failed, missing[k:]
        except InTheWayError:
            raise
        except _FAILURES as error:
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            print(f"{cell.name} failed: {reason}", file=sys.stderr, flush=True)
            record = cells.Failure(name=cell.name, reason=reason, status="failed", **session.environment())
        cells.write_result(session.results, cell, replace(record, quick=session.quick))
        (failed if isinstance(record, cells.Failure) else done).append(cell)
    return done, failed, []


def measure_cell(cell: Cell, session: Session) -> cells.Result:
    """Measure one cell; raise `Stopped` if there is no time left for it."""
    match cell:
        case ClassifierCell():
            return _measure_classifiers(cell, session)
        case AttackCell():
            return _measure_attack(cell, session)
        case CriticCell():
            return _measure_critics(cell, session)
    settings, rows = _measure_figures(cell, session)
    return cells.Figures(name=cell.name, settings=settings, rows=rows, **session.environment())


def _is_settled(cell: Cell, session: Session) -> bool:
    """Return True if the cell is measured; raise if it was measured with other settings than those asked for."""
    record = cells.read_result(session.results, cell)
    if record is None or (isinstance(record, cells.Failure) and session.retry):
        return False
    if session.renew and is_outdated(cell, record, session):
        return False
    for name in ("quick", "seeds", *(() if cell.kind == "attacks" else ("epochs",))):
        asked = getattr(session, name)
        if asked is not None and getattr(record, name, asked) != asked:
            path, stored = cells.result_path(session.results, cell), getattr(record, name)
            raise InTheWayError(f"Expected {name} {asked} in {path}. Got {stored}: remove it, or name other --results.")
    return True


def is_outdated(cell: Cell, record: object, session: Session) -> bool:
    """Return True if a cell's networks were trained with other settings than a run now would have."""
    network = cell.network if isinstance(cell, AttackCell) else cell
    if not isinstance(network, ClassifierCell) or not isinstance(record, cells.Classifiers | cells.Attacks):
        return False
    epochs = session.choose_epochs(network.epochs)
    if isinstance(record, cells.Attacks):
        return record.epochs != epochs  # all that it says of the training
    settings = recipe_settings(network.recipe, network.dataset, network.conv or "bcop", network.model)
    settings = {name: getattr(TrainConfig, name) for name in PAPERS_PROJECTIONS} | settings | {"epochs": epochs}
    left_out = () if network.conv == "svcm" else PAPERS_PROJECTIONS  # which concern one method only
    return any(record.config.get(name) != value for name, value in settings.items() if name not in left_out)


def _pick(kind: type[_R], source: object) -> _R:
    """Return a record whose fields are the attributes of another object."""
    return kind(**{field.name: getattr(source, field.name) for field in dataclasses.fields(kind)})


# Classifiers ------------------------------------------------------------------------------------------------------


def train_networks(
    name: str,
    dataset: str,
    changes: Settings,
    seeds: Sequence[int],
    session: Session,
    splits: Splits | None = None,
    epsilons: Sequence[float] = (),
) -> tuple[list[RunFolder], list[TrainConfig], list[TrainResult]]:
    """Train networks side by side, or go on with them, in NAME/seed-K. `changes` are to the recipe's settings."""
    train, test = splits or session.load(dataset)
    fields: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    choices = (fields.get(name, usual) for name, usual in (("conv", "bcop"), ("model", "large")))
    fields = recipe_settings(fields.get("recipe", "default"), dataset, *choices) | fields
    if session.quick:
        fields |= {"batch_size": 64, "project_iterations": min(5, fields.get("project_iterations", 1))}
    fields["epochs"] = session.choose_epochs(fields["epochs"])
    config = TrainConfig(data=dataset, input_shape=train.shape, classes=train.classes, **fields)
    if changes.get("lr", 0) is None:
        config = replace(config, lr=search_learning_rate(config, train, _RATES, session.device, Processes())[0])
    configs = [replace(config, seed=seed) for seed in seeds]
    folders = [session.open_run(f"{name}/seed-{one.seed}", one) for one in configs]
    epsilons = epsilons or default_epsilons(dataset)
    with session.show_training(len(train) // config.batch_size * config.epochs, folders[0]) as options:
        return folders, configs, train_classifiers(configs, folders, train, test, epsilons, **options)


def _train_cell(cell: ClassifierCell, session: Session) -> tuple[list[RunFolder], list[TrainConfig], list[TrainResult]]:
    settings: Settings = {"model": cell.model, "conv": cell.conv, "recipe": cell.recipe, "epochs": cell.epochs}
    return train_networks(cell.name, cell.dataset, settings, session.choose_seeds(cell.recipe), session)


def _measure_classifiers(cell: ClassifierCell, session: Session) -> cells.Classifiers:
    folders, configs, results = _train_cell(cell, session)
    config = {name: value for name, value in configs[0].to_fields().items() if name != "seed"}
    return cells.Classifiers(
        **vars(cell),
        **{name: getattr(results[0], name) for name in ("epochs", "images", "train_seconds", "peak_memory_mib")},
        seeds=tuple(result.seed for result in results),
        results=tuple(_pick(cells.ClassifierSeed, result) for result in results),
        config=config | {"classes": len(configs[0].classes)},
        second_layer=_measure_second_layer(folders[0]) if cell.model == "large" else None,
        **session.environment(),
    )


@torch.no_grad()
def _measure_second_layer(folder: RunFolder) -> cells.SecondLayer:
    """Return the singular values of the second convolution before and after training.

    Large's first convolution keeps the image's size, so that the second one's is the image's.
    """
    run, values, histograms = open_run(folder.path), [], []
    for network in (plain(make_model(run.config)).eval(), run.model):
        layer = [module for module in network.modules() if isinstance(module, nn.Conv2d)][1]
        size = [n // s for n, s in zip(run.config.input_shape[1:], layer.stride, strict=True)]
        values.append(circular_singular_values(fold_stride(layer.weight.double().cpu(), layer.stride), size))
    edges = torch.linspace(0, max(1.25, *(float(v.max()) for v in values)) * (1 + 1e-9), 51, dtype=torch.float64)
    levels = torch.tensor([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1], dtype=torch.float64)
    for part in values:
        counts = torch.histogram(part, edges).hist.int().tolist()
        histograms.append(cells.Histogram(tuple(counts), tuple(part.quantile(levels).tolist())))
    return cells.SecondLayer(run.config.seed, len(values[0]), tuple(edges.tolist()), *histograms)


# Attacks ----------------------------------------------------------------------------------------------------------


def _attack_settings(attack: str, session: Session) -> dict[str, Any]:
    return _ATTACKS.get(attack, {}) | (_QUICK_ATTACKS.get(attack, {}) if session.quick else {})


def _measure_attack(cell: AttackCell, session: Session) -> cells.Attacks:
    """Attack the networks of a cell, training those that are missing. Each attack is kept beside the weights."""
    folders, configs, _ = _train_cell(cell.network, session)
    test, settings, records = session.load(cell.network.dataset).test, _attack_settings(cell.attack, session), []
    test = test.take(min(100, len(test))) if cell.attack in DECISION else test
    for folder in folders:
        if session.should_stop():
            raise Stopped
        kept, asked = folder.path / "attacks.json", (cell.attack, cell.epsilon, len(test), settings)
        stored = [AttackRecord.from_fields(row) for row in json.loads(kept.read_text())] if kept.exists() else []
        known = [r for r in stored if (r.attack, r.epsilon, r.images, r.settings) == asked]
        if not known:
            run = open_run(folder.path)
            certified, _ = run.certify(test, [cell.epsilon], device=session.device)
            known = [run.attack(test, cell.attack, cell.epsilon, certified, **settings)]
            run.keep_attacks(known)
        records += known
    if violations := sum(record.violations for record in records):
        raise IsoconvError(f"Expected no attack to succeed where the network is certified. Got {violations} that did.")
    return cells.Attacks(
        **vars(cell.network),
        attack=cell.attack,
        seeds=tuple(config.seed for config in configs),
        epochs=configs[0].epochs,
        epsilon=cell.epsilon,
        images=len(test),
        settings=settings,
        results=tuple(_pick(cells.AttackSeed, record) for record in records),
        violations=0,
        **session.environment(),
    )


def _measure_certificates(session: Session, network: str | Path, attacks: Sequence[str]) -> Outcome:
    """Certify and attack a network that comes with isoconv, or of a run; also count by the usual test, margin > √2·ε."""
    run = open_run(network)
    data, epsilons = session.load(run.config.data).test, default_epsilons(run.config.data)
    accuracy, record = run.certify(data, epsilons, device=session.device)
    logits, labels = accuracy.certificates.logits, accuracy.labels
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    usual = (logits.gather(1, labels[:, None])[:, 0] - others > 2**0.5 * epsilons[0]).double().mean()
    figures = {"images": len(data), "seconds": record.seconds, "clean": record.clean, "usual test": 100 * float(usual)}
    figures |= {f"certified at {radius}": value for radius, value in record.robust.items()}
    rows = {"certify": figures | {"lipschitz_bound": record.lipschitz_bound}}
    for attack in attacks:
        part = data.take(min(100, len(data))) if attack in DECISION else data
        epsilon = None if attack == "rounding" else epsilons[0]
        outcome = run.attack(part, attack, epsilon, accuracy, **_attack_settings(attack, session))
        names = ("images", "seconds", "clean", "certified", "accuracy", "violations")
        rows[attack] = {name: value for name in names if (value := getattr(outcome, name)) is not None}
    return {"data": run.config.data, "model": run.config.model, "conv": run.config.conv, "epsilon": epsilons[0]}, rows


# Changes to a recipe ----------------------------------------------------------------------------------------------


def _measure_changes(
    session: Session,
    name: str,
    dataset: str,
    runs: dict[str, tuple[int, ...]],
    trials: int = 0,
    epsilons: Sequence[float] = (),
    **changes: Any,
) -> Outcome:
    """Train with a changed recipe, and judge the last epoch on the test set.

    runs : the seeds of each run, which train side by side
    trials : if not 0, the name of a run is a further change, such as "lr=0.02"; runs train on so many images and are judged
        by 5,000 others of the training set, or a quarter of it
    epsilons : radii, instead of the data set's
    """
    splits, rows = session.load(dataset), {}
    if trials:
        train, validation = hold_out(splits.train, 32 if session.quick else min(5000, len(splits.train) // 4))
        splits = Splits(train.take(min(trials, len(train))), validation)
    for label, seeds in runs.items():
        words = dict(word.split("=") for word in label.split()) if trials else {}
        options = {key: _parse(text) for key, text in words.items()}
        _, _, results = train_networks(f"{name}/{label}", dataset, changes | options, seeds, session, splits, epsilons)
        for result in results:
            names = ("clean", "lipschitz_bound", "images", "train_seconds", "peak_memory_mib")
            figures = {name: value for name in names if (value := getattr(result, name)) is not None}
            figures |= {f"certified at {radius}": value for radius, value in (result.robust or {}).items()}
            rows[label if trials else f"{label}, seed {result.seed}"] = figures
    return {"dataset": dataset, "train_images": len(splits.train), **changes}, rows


def _parse(text: str) -> Any:
    """Return a number, or several behind each other as a tuple, or the text as it is."""
    numbers = [json.loads(part) for part in text.split(",")] if text[0].isdigit() else []
    return text if not numbers else numbers[0] if len(numbers) == 1 else tuple(numbers)


_SVCM = ["", *(f"project_every={n}" for n in (5, 20)), "loss=hinge", "loss=hinge project_every=20"]
_SVCM += [f"project_every={every} project_iterations={count}" for every, count in ((20, 10), (5, 5), (1, 1))]
_EPOCHS = [f"epochs={number}" for number in (30, 60, 100, 200)]


def _changes(name: str) -> dict[str, Any]:
    """Return the arguments of `_measure_changes` for a cell, whose name says what is changed."""
    dataset, model, *words = name.split("-")
    shared: dict[str, Any] = {"name": name, "dataset": dataset, "model": model}
    shared |= {} if words == ["epochs"] else {"conv": words.pop(0)}  # a network without convolutions has none
    match words:
        case []:
            changes = {"epochs": 8, **PAPERS_PROJECTIONS}
            return shared | changes | {"trials": 10_240, "runs": dict.fromkeys(_SVCM, (0,))}
        case ["epochs"]:
            return shared | {"trials": 45_000, "runs": dict.fromkeys(_EPOCHS, (0,))}
        case ["every", "update"]:
            return shared | {"runs": {"alone": (0,)}, "project_every": 1, "project_iterations": 1, "epochs": 30}
        case ["200", "epochs"]:
            return shared | {"runs": {"alone": (0,)}, "epochs": 200}
        case [("manifold" | "paper") as path, epochs, "epochs"]:
            lr = {"manifold": 0.003, "paper": 0.001}[path] if epochs == "15" else None  # None: searched for
            way = "manifold" if path == "manifold" else "bjorck"
            options = {"recipe": "paper", "schedule": "linear", "orthogonalisation": way, "epochs": int(epochs)}
            return shared | options | {"lr": lr, "runs": {"side by side": (0, 1, 2, 3, 4)}}
    alone: dict[str, tuple[int, ...]] = {"alone": (0,)} if (dataset, model) == ("cifar10", "large") else {}
    runs = alone | {"side by side": (0, 1, 2, 3, 4)}
    return shared | {"runs": runs, "epochs": ClassifierCell(dataset, model, shared["conv"]).epochs}


_RADII = tuple(number / 255 for number in (36, 72, 108))
_SHIFT: dict[str, Any] = {"dataset": "cifar10", "precision": "bf16", "augment": (0.5, 0.5), "epsilons": _RADII}
_SHIFT_M, _MNIST = _SHIFT | {"model": "shift-m"}, {"dataset": "mnist", "model": "large"}
_TEN_MINUTES = {"epochs": 420, "augment_epochs": 315}
_WIDE_MARGINS = {"offset": 2.4, "temperature": 0.35, "augment": (0.5, 0.3)}
_MNIST_TRIALS = ["offset=2.12 temperature=0.25", "offset=2.12 temperature=0.5", "offset=2.4 temperature=0.35"]
_MNIST_TRIALS += ["offset=2.12 temperature=0.35 augment=0.5,0.3"]
_WIDER = product((2.12, 2.4), (0.18, 0.25, 0.35), (0.02, 0.03, 0.04))
_DIGITS_TRIALS = ["", *(f"offset={o} temperature={t} lr={lr} augment=0.5,0.3" for o, t, lr in _WIDER), "conv=rko"]
_DIGITS_TRIALS += ["conv=rko offset=2.12 temperature=0.25 lr=0.04 augment=0.5,0.3"]
#: The networks that certify most, as arguments of `_measure_changes`: as many epochs as 10 and 25 minutes of an H200 buy,
#: each seed alone on it. The trials, those in results/shift too, choose on held-out images: for MNIST, and for the demo.
RECORD: dict[str, dict[str, Any]] = {
    **{f"cifar10-shift-m-{seed}": _SHIFT_M | _TEN_MINUTES | {"runs": {"alone": (seed,)}} for seed in range(3)},
    "cifar10-shift-l": _SHIFT | {"model": "shift-l", "epochs": 320, "augment_epochs": 240, "runs": {"alone": (0,)}},
    "mnist-large": _MNIST | _WIDE_MARGINS | {"epochs": 60, "runs": {"side by side": (0, 1, 2, 3, 4)}},
    "mnist-large-trials": _MNIST | {"epochs": 30, "trials": 55_000, "runs": dict.fromkeys(_MNIST_TRIALS, (1,))},
    "digits-small-trials": {"dataset": "digits", "model": "small", "epochs": 15, "trials": 3000}
    | {"runs": dict.fromkeys(_DIGITS_TRIALS, (0,))},
}


# Critics ----------------------------------------------------------------------------------------------------------


def _measure_critics(cell: CriticCell, session: Session) -> cells.Critics:
    """Train critics between a data set's training images, taken as the whole distribution, and its generator."""
    images, folder = session.load(cell.dataset).train, _train_generator(cell.dataset, session)
    generator, gan = load_generator(folder.path)
    fingerprint = hashlib.sha256(folder.model.read_bytes()).hexdigest()[:16]
    count = 64 if session.quick else {"stl10": 6400, "cifar10": 64_000}[cell.dataset]
    real = FiniteSamples(cell.dataset, images.images, whole=True)
    fake = GeneratedSamples("generator", generator, count=count, batch=gan.batch_size)
    changes: dict[str, Any] = {"epochs": session.choose_epochs(cell.epochs), "pixel_range": (-1.0, 1.0)}
    changes |= {"whole": (True, False), "activation": cell.activation} | ({} if cell.lr is None else {"lr": cell.lr})
    changes |= {"steps_per_epoch": 1, "batch_size": 16} if session.quick else {}
    config = critic_config(real.name, fingerprint, real.shape, conv=cell.conv, recipe=cell.recipe, **changes)
    configs = [replace(config, seed=seed) for seed in session.choose_seeds(cell.recipe)]
    folders = [session.open_run(f"{cell.name}/seed-{one.seed}", one) for one in configs]
    with session.show_training(config.epochs * config.steps_per_epoch, folders[0], DifferenceProgress) as options:
        bounds = [trained.bound for trained in train_critics(configs, folders, real, fake, **options)]
    return cells.Critics(
        **{name: getattr(cell, name) for name in ("dataset", "conv", "activation", "recipe")},
        **{name: getattr(bounds[0], name) for name in ("updates", "samples", "units", "train_seconds")},
        model="dcgan",
        seeds=tuple(bound.seed for bound in bounds),
        epochs=config.epochs,
        generator=fingerprint,
        results=tuple(_pick(cells.CriticSeed, bound) for bound in bounds),
        config={name: value for name, value in config.to_fields().items() if name != "seed"},
        **session.environment(),
    )


def _train_generator(dataset: str, session: Session) -> RunFolder:
    """Train the generator that all critics of a data set are shown, unless there is one."""
    images, epochs = session.load(dataset).train, {"stl10": 128, "cifar10": 25}[dataset]
    config = GanConfig(dataset, images.shape, 1 if session.quick else epochs, 16 if session.quick else 64)
    folder = session.open_run(f"{dataset}-generator", config)
    if not folder.model.exists():
        steps = len(EpochBatches(images, config.batch_size)) * config.epochs
        with session.show_training(steps, folder, DifferenceProgress) as options:
            train_gan(config, folder, images, **options)
    return folder


# Everything else --------------------------------------------------------------------------------------------------


def _measure_figures(cell: FigureCell, session: Session) -> Outcome:
    match cell.kind:
        case "exact":
            return count_parameters()
        case "speed":
            return speed.MEASURES[cell.name](session)
        case "distances":
            return distances.measure(cell.name, session)
        case "certificates":
            network, kind = cell.name.rsplit("-", cell.name.count("-") - 1)[0], cell.name.split("-")[-1]
            attacks = {"rounding": ("rounding",), "decision": DECISION}.get(kind, ("pgd", "fgsm", "apgd"))
            return _measure_certificates(session, network, attacks)
        case "record" if cell.name.endswith("-attacks"):
            run = session.runs / cell.name.removesuffix("-attacks") / "alone" / "seed-0"
            return _measure_certificates(session, run, ("pgd", "apgd", "rounding"))
        case "record":
            return _measure_changes(session, cell.name, **RECORD[cell.name])
    return _measure_changes(session, **_changes(cell.name))


def count_parameters() -> Outcome:
    """Count effective parameters, as the paper does (entries of applied kernels, and biases), and those trained."""
    rows, methods = {}, ("bcop", "rko", "ossn", "svcm", "rkl2ne")
    kinds = [(dataset, kind) for dataset in ("mnist", "cifar10") for kind in (Small, Large, FC3)]
    for dataset, kind in [*kinds, ("stl10", DCGANCritic)]:
        channels, size = _SHAPES[dataset]
        model = {"DCGANCritic": "dcgan"}.get(kind.__name__, kind.__name__.lower())
        for conv in methods[:1] if kind is FC3 else methods:
            network = kind((channels, size, size), conv=conv)
            raw, effective = (sum(p.numel() for p in part.parameters()) for part in (network, plain(network)))
            name = f"{dataset}-{model}" + ("" if kind is FC3 else f"-{conv}")
            rows[name] = {"raw": float(raw), "effective": float(effective)}
    return {}, rows
