"""Finished runs: open them, certify them, attack them, ask them. Each is one call."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from isoconv import attacks
from isoconv.certify import Certifier, RobustAccuracy, robust_accuracy
from isoconv.data import NAMES, ImageSet, Splits, as_float, load_image, load_splits
from isoconv.errors import IsoconvError
from isoconv.files import write_json
from isoconv.pretrained import is_pretrained, pretrained_folder, pretrained_names
from isoconv.records import Record
from isoconv.train.config import TrainConfig
from isoconv.train.run_folder import RunFolder, load_run

ATTACKS = ("pgd", "fgsm", "apgd", "boundary", "pointwise", "rounding")
_FEW = 100  # the paper's number of images for attacks that ask thousands of questions per image

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LayerRecord(Record):
    """The proved Lipschitz bound of one layer."""

    may_be_infinite: ClassVar[tuple[str, ...]] = ("bound",)

    name: str
    kind: str
    bound: float


@dataclass(frozen=True)
class CertifiedRecord(Record):
    """What `certify_run` proves of a run, as certified.json holds it. Accuracies are in percent, `robust` by radius."""

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound", "error_offset", "error_slope")

    seed: int
    images: int
    clean: float
    robust: dict[str, float]
    lipschitz_bound: float
    layers: tuple[LayerRecord, ...]
    arithmetic: str
    criterion: str
    error_offset: float
    error_slope: float
    radii: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class AttackRecord(Record):
    """One attack with one budget, as a row of attacks.json. Accuracies are in percent.

    epsilon : None for the rounding search, whose budget is each image's own certified radius
    violations : how often the attack succeeded within an image's certified radius; anything but 0 disproves a certificate
    """

    seed: int
    attack: str
    epsilon: float | None
    images: int
    settings: dict[str, Any]
    seconds: float
    clean: float
    certified: float | None
    accuracy: float | None
    violations: int


@dataclass(frozen=True)
class Prediction(Record):
    """What a network says of one picture, and the proved radius: of pixels from 0 to 1, and from 0 to 255."""

    image: str
    label: str
    radius: float

    @property
    def radius_255(self) -> float:
        return 255 * self.radius

    def to_fields(self) -> dict[str, Any]:
        fields = {"image": self.image, "class": self.label, "radius": self.radius}
        return fields | {"radius_255": self.radius_255, "certified": self.radius > 0}


@dataclass(frozen=True)
class TrainedRun:
    """One seed's network, what it was trained with, and where it is."""

    folder: Path
    model: nn.Module
    config: TrainConfig

    def keep(self, name: str, value: object) -> None:
        """Write a JSON file beside the run's own; nothing is written beside the networks that come with isoconv."""
        if not is_pretrained(self.folder):
            write_json(self.folder / name, value)


def open_runs(path: Path | str) -> list[TrainedRun]:
    """Open the network in a run's folder, all of them (by seed) in one of several seeds, or a pretrained one by its name."""
    path = Path(path)
    if not path.exists() and str(path) in pretrained_names():
        path = pretrained_folder(str(path))
    folders = [path]
    if not RunFolder(path).exists:
        inside = [part for part in path.glob("seed-*") if part.name.removeprefix("seed-").isdecimal()]
        folders = sorted(inside, key=lambda part: int(part.name.removeprefix("seed-"))) or [path]
    return [TrainedRun(folder, *load_run(folder)) for folder in folders]


def open_run(path: Path | str) -> TrainedRun:
    """Open a run of one seed."""
    runs = open_runs(path)
    if len(runs) > 1:
        raise IsoconvError(f"Expected a run of one seed. Got {len(runs)}: name one, {runs[0].folder}.")
    return runs[0]


def splits_of(config: TrainConfig, folder: Path | None = None, download: bool = False) -> Splits:
    """Return the data of a run, split as in its training. A user's own pictures may have moved to `folder`."""
    own = config.data not in NAMES
    source = Path(config.data if folder is None or not own else folder)
    if own and not source.exists():
        raise IsoconvError(
            f"Expected the pictures of the run in {source}, which does not exist: say where they are (--data)."
        )
    channels, height, width = config.input_shape
    where = (source.absolute(), None) if own else (config.data, folder)
    splits = load_splits(*where, size=(height, width), channels=channels, download=download, lazy=True)
    part = splits.test if splits.has_test else splits.train  # to certify, no training image is read
    if part.shape != config.input_shape or part.classes != config.classes:
        raise IsoconvError(f"Expected the data that the run was trained on. {source} has changed since.")
    if config.listing and splits.listing != config.listing:
        raise IsoconvError(
            f"Expected the pictures that the run was trained on. {source} has others since, and which of them were held "
            "out is not known: bring the old ones back, or train again."
        )
    return splits


def read_test_images(
    config: TrainConfig, folder: Path | None = None, download: bool = False, count: int | None = None
) -> ImageSet:
    """Return the test set that belongs to a run, or the first `count` images of it."""
    test = splits_of(config, folder, download).test
    if count is not None and not 1 <= count <= len(test):
        raise IsoconvError(f"Expected from 1 to {len(test)} images, as many as the test set has. Got {count}.")
    return test if count is None else test.take(count)


def certify_run(
    run: TrainedRun,
    data: ImageSet,
    epsilons: Sequence[float],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: str,
) -> tuple[RobustAccuracy, CertifiedRecord]:
    """Certify a run's network on images. `options` are those of `Certifier`: arithmetic, criterion."""
    began = time.perf_counter()
    accuracy = robust_accuracy(run.model.to(device), data, epsilons, progress=progress, **options)  # type: ignore[arg-type]
    certifier = accuracy.certifier
    record = CertifiedRecord(
        seed=run.config.seed,
        images=len(accuracy.labels),
        clean=accuracy.clean,
        robust={str(radius): percent for radius, percent in accuracy.certified.items()},
        lipschitz_bound=accuracy.lipschitz_bound,
        layers=tuple(LayerRecord(layer.name, layer.kind, layer.bound) for layer in certifier.lipschitz.layers),
        arithmetic=certifier.arithmetic,
        criterion=certifier.criterion,
        error_offset=certifier.error.offset,
        error_slope=certifier.error.slope,
        radii=tuple(accuracy.radii.tolist()),
        seconds=time.perf_counter() - began,
    )
    return accuracy, record


def attack_run(
    run: TrainedRun,
    data: ImageSet,
    attack: str,
    epsilon: float | None,
    certified: RobustAccuracy,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> AttackRecord:
    """Attack a run's network on the first images of `data`, which `certified` is about.

    `epsilon` is None for the rounding search, which stays within each image's own certified radius. `settings` are those
    of the attack's function in `isoconv.attacks`.
    """
    if attack not in ATTACKS:
        raise IsoconvError(f"Expected an attack out of {', '.join(ATTACKS)}. Got {attack!r}.")
    pixels, radii = as_float(data.images, torch.float64), certified.certificates.radius[: len(data)]
    began = time.perf_counter()
    if attack == "rounding":
        prediction = certified.certificates.prediction[: len(data)]
        result = attacks.rounding_search(run.model, pixels, prediction, radii, progress=progress, **settings)
        # Here a success is a changed prediction within the radius.
        violations = int((result.success.cpu() & (radii > 0)).sum())
        figures: dict[str, Any] = {"clean": certified.clean, "certified": None, "accuracy": None}
        figures["violations"] = violations
    else:
        search = getattr(attacks, attack)
        result = search(run.model, pixels, data.labels, epsilon, progress=progress, **settings)
        assert epsilon is not None
        figures = attacks.against_certificates(result, certified, epsilon)
    seconds = time.perf_counter() - began
    return AttackRecord(run.config.seed, attack, epsilon, len(data), settings, seconds, **figures)


def images_for(attack: str, data: ImageSet, count: int | None) -> ImageSet:
    """Return the images that an attack takes by default: attacks that only see decisions take the first 100."""
    slow = attack in ("boundary", "pointwise") and count is None
    return data.take(min(_FEW, len(data))) if slow else data


def keep_attacks(run: TrainedRun, records: Sequence[AttackRecord]) -> None:
    """Write records to attacks.json; those of other attacks and budgets stay there."""
    path = run.folder / "attacks.json"
    new = {(record.attack, record.epsilon) for record in records}
    try:
        known = json.loads(path.read_text()) if path.exists() else []
        others = [row for row in known if (row["attack"], row["epsilon"]) not in new]
    except (OSError, ValueError, TypeError, KeyError):  # a file that holds something else is replaced
        others = []
    run.keep("attacks.json", [*others, *(record.to_fields() for record in records)])


def refuse_violations(records: Sequence[AttackRecord]) -> None:
    """Raise if an attack succeeded where the network is certified."""
    if violations := sum(record.violations for record in records):
        raise IsoconvError(
            f"Expected no attack to succeed where the network is certified. Got {violations}: a certificate is false."
        )


def predict(run: TrainedRun, images: Sequence[Path], device: str = "cpu") -> list[Prediction]:
    """Classify picture files, resized to the network's input, each with its certified radius."""
    shape = run.config.input_shape
    pixels = as_float(torch.stack([load_image(path, shape) for path in images]), torch.float64)
    certified = Certifier(run.model.to(device), shape)(pixels).cpu()
    answers = zip(images, certified.prediction.tolist(), certified.radius.tolist(), strict=True)
    return [Prediction(str(path), run.config.classes[label], radius) for path, label, radius in answers]
