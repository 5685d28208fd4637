"""Finished runs: open them, certify them, attack them, ask them. Each is one call."""

import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from isoconv import attacks
from isoconv.certify import Certifier, RobustAccuracy, robust_accuracy, write_certificate
from isoconv.certify.accuracy import default_batch_size
from isoconv.certify.certificate_file import open_certificate
from isoconv.certify.certifier import join
from isoconv.certify.graph import plain_network
from isoconv.data import NAMES, ImageSet, Splits, as_float, load_splits
from isoconv.data.datasets import is_pictures
from isoconv.data.pictures import (
    ENDINGS,
    UnreadablePictures,
    count_ignored,
    describe_ignored,
    pictures_in,
    read_pictures,
)
from isoconv.data.pictures import Size as Sides
from isoconv.data.shards import is_there
from isoconv.errors import IsoconvError, require
from isoconv.files import check_writable, read_tensors, write_json, write_tensors
from isoconv.pretrained import is_pretrained, pretrained_folder, pretrained_names
from isoconv.records import SLACK, Count, Pattern, Percent, Record, Size
from isoconv.train.config import TrainConfig, default_epsilons, is_own, make_model
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.own_model import Build, check_classifier, find_function, load_weights
from isoconv.train.run_folder import Finding, RunFolder, load_run, seeds_in

#: The options of each attack that `attack_run` has.
ATTACKS = {
    "pgd": ("epsilon", "steps", "step_size", "restarts", "seed"),
    "fgsm": ("epsilon",),
    "apgd": ("epsilon", "steps", "restarts", "seed"),
    "boundary": ("epsilon", "seed"),
    "pointwise": ("epsilon", "seed"),
    "rounding": ("seed",),  # within each image's own radius
}
_USUAL = {"steps": 200, "step_size": 0.01, "restarts": 1, "seed": 0}
_ATTACKED_PIXELS = 10_000 * 3 * 32 * 32  # an attack holds several numbers for each
_FEW = 100  # the paper's number of images for attacks that ask thousands of questions per image

#: What accuracies go by in a file: a finite number, at least 0, as Python prints it.
Radius = Annotated[str, Pattern("of radii as text", r"\d{1,17}(\.\d+)?|\d(\.\d+)?e(-\d{2,3}|\+[12]?\d\d|\+30[0-7])")]
Progress = Callable[[str, int, int], None]  # what is being done, how many images are done, of how many


def format_radius(radius: float) -> str:
    """Return a radius as people write it: 0.2, but 36/255, which has no short decimal."""
    steps = round(radius * 255)
    is_fraction = abs(radius * 255 - steps) < 1e-9 and abs(float(f"{radius:.3g}") - radius) > 1e-9
    return f"{steps}/255" if is_fraction else f"{radius:g}"


def be_silent(title: str, done: int, total: int) -> None:
    """Show no progress."""


# What is known of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRecord(Finding):
    """The Lipschitz bound of one layer: proved, or claimed by a rule that the user has registered."""

    may_be_infinite: ClassVar[tuple[str, ...]] = ("bound",)

    name: str
    kind: str
    bound: Size
    claimed: bool = False


@dataclass(frozen=True)
class CertifiedRecord(Finding):
    """What is proved of a run, as certified.json holds it. Accuracies are in percent, `robust` by radius."""

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound", "error_offset", "error_slope")

    seed: int
    images: Count
    clean: Percent
    robust: dict[Radius, Percent]
    lipschitz_bound: Size
    layers: tuple[LayerRecord, ...]
    arithmetic: str
    criterion: str
    error_offset: float
    error_slope: float
    radii: tuple[Size, ...]
    seconds: float

    def __post_init__(self) -> None:
        require(len(self.radii) == self.images, f"radii of {self.images} images", len(self.radii))
        certified = 100 * sum(radius > 0 for radius in self.radii) / self.images
        require(certified <= self.clean + 100 * SLACK, f"radii of at most {self.clean:g} % of the images", certified)


@dataclass(frozen=True)
class AttackRecord(Finding):
    """One attack with one budget, as a row of attacks.json. Accuracies are in percent.

    epsilon : None for the rounding search, whose budget is each image's own certified radius
    violations : how often the attack succeeded within an image's certified radius; anything but 0 disproves a certificate
    """

    seed: int
    attack: str
    epsilon: Size | None
    images: Count
    settings: dict[str, Any]
    seconds: float
    clean: Percent
    certified: Percent | None
    accuracy: Percent | None
    violations: int

    def __post_init__(self) -> None:
        require((self.epsilon is None) == (self.accuracy is None), "an accuracy for a budget", self.accuracy)


@dataclass(frozen=True)
class Prediction(Record):
    """What a network says of one image, and the proved radius: of pixels from 0 to 1, and from 0 to 255.

    resized : whether the file has another size; the radius is for what the network sees
    runner_up, margin : the class with the second largest logit, and how much smaller that is
    error : why the file cannot be read as an image; then there is no class
    """

    image: str
    prediction: str = ""
    radius: float = 0.0
    resized: bool = False
    runner_up: str = ""
    margin: float = 0.0
    error: str = ""

    @property
    def radius_255(self) -> float:
        return 255 * self.radius

    def to_fields(self) -> dict[str, Any]:
        if self.error:
            return {"image": self.image, "error": self.error}
        fields = {"image": self.image, "class": self.prediction, "radius": self.radius}
        fields |= {"radius_255": self.radius_255, "certified": self.radius > 0, "resized": self.resized}
        return fields | {"runner_up": self.runner_up, "margin": self.margin}


# One network ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedRun:
    """One seed's network, what it was trained with, and where it is."""

    folder: Path
    model: nn.Module
    config: TrainConfig

    def test_images(self, folder: Path | None = None, download: bool = False, count: int | None = None) -> ImageSet:
        """Return the test set that belongs to the run, or the first `count` images of it.

        A user's own images may have moved to `folder`, and `download` fetches a named set that is missing.
        """
        # Pictures are looked at once or twice: they stay in their files, and what is certified needs no memory for them.
        reading: dict[str, Any] = {"stream": True, "workers": 0} if is_pictures(self.config.data) else {}
        return _take(splits_of(self.config, folder, download, **reading).test, count)

    def certify(
        self,
        data: ImageSet,
        epsilons: Sequence[float] = (),
        *,
        certificate: Path | None = None,
        device: str | torch.device = "cpu",
        progress: Progress = be_silent,
        processes: Processes | None = None,
        **options: Any,
    ) -> tuple[RobustAccuracy, CertifiedRecord]:
        """Certify the network on images, at the data set's usual radii by default. `options` are those of `Certifier`.

        certificate : a file for the certificates of all images; one process writes it batch by batch
        processes : those that share the images, each with this call; all return the same
        """
        began, show = time.perf_counter(), partial(progress, f"certifying {self.folder.name}")
        epsilons = epsilons or default_epsilons(self.config.data)
        how: dict[str, Any] = {"certificate": certificate, "progress": show, **options}
        accuracy = share_certifying(self.model.to(device), data, epsilons, processes, **how)
        certifier, radii = accuracy.certifier, tuple(accuracy.radii.tolist())
        layers = tuple(LayerRecord(**vars(layer)) for layer in certifier.lipschitz.layers)
        figures = figures_of(accuracy) | {"layers": layers, "radii": radii, "seconds": time.perf_counter() - began}
        figures |= {"arithmetic": certifier.arithmetic, "criterion": certifier.criterion}
        figures |= {"error_offset": certifier.error.offset, "error_slope": certifier.error.slope}
        return accuracy, CertifiedRecord(self.config.seed, **figures)

    def attack(
        self,
        data: ImageSet,
        attack: str,
        epsilon: float | None,
        certified: RobustAccuracy,
        *,
        progress: Progress = be_silent,
        **settings: Any,
    ) -> AttackRecord:
        """Attack the network on the first images of those that `certified` is about.

        `epsilon` is None for the rounding search, which stays within each image's own certified radius. `settings` are
        those of the attack's function in `isoconv.attacks`.
        """
        title = attack if epsilon is None else f"{attack} at {format_radius(epsilon)}"
        began, show = time.perf_counter(), partial(progress, title)
        show(0, len(data))  # the first image may take long
        results, done, radii = list[attacks.AttackResult](), 0, certified.certificates.radius[: len(data)]
        function = attacks.rounding_search if epsilon is None else getattr(attacks, attack)
        # All of CIFAR-10's test set at a time, of larger images fewer.
        for images, labels in data.batches(max(1, _ATTACKED_PIXELS // math.prod(data.shape))):
            part = slice(done, done + len(images))
            done, how = part.stop, settings | {"progress": lambda n, _, before=done: show(before + n, len(data))}
            known = (certified.certificates.prediction[part], radii[part]) if epsilon is None else (labels, epsilon)
            result = function(self.model, as_float(images, torch.float64), *known, **how)
            # Nothing of a part is left when the next one begins. (A slice alone would keep all of the images.)
            results.append(replace(result, images=result.images[:0].clone()))
        whole = attacks.AttackResult(*map(torch.cat, zip(*(vars(result).values() for result in results), strict=True)))
        if epsilon is None:
            figures: dict[str, Any] = {"clean": certified.clean, "certified": None, "accuracy": None}
            # Here a success is a changed prediction within the radius.
            figures["violations"] = int((whole.success.cpu() & (radii > 0)).sum())
        else:
            figures = attacks.against_certificates(whole, certified, epsilon)
        seconds = time.perf_counter() - began
        return AttackRecord(self.config.seed, attack, epsilon, len(data), settings, seconds, **figures)

    def predict(
        self,
        images: Sequence[Path | str] | Path | str,
        device: str = "auto",
        *,
        progress: Progress = be_silent,
        say: Callable[[str], None] = lambda line: None,
    ) -> list[Prediction]:
        """Classify images, resized to the network's input, each with its certified radius.

        images : a file or several, and folders, which stand for all images in them and in their sub-folders. One that
            cannot be read is answered with its error
        say : called with lines worth showing
        """
        (channels, *sides), classes = self.config.input_shape, self.config.classes
        certifier = Certifier(self.model.to(choose_device(device)), self.config.input_shape)
        size, at_once = (sides[0], sides[1]), default_batch_size(self.config.input_shape)
        predictions = list[Prediction]()
        named = [Path(name) for name in ([images] if isinstance(images, (str, Path)) else images)]
        files = [path for name in named for path in _list_pictures(name)]
        if ignored := sum((count_ignored(name, pictures_in(name)) for name in named), Counter[str]()):
            say(f"{describe_ignored(ignored)}.")
        for start in range(0, len(files), at_once):
            paths, broken = files[start : start + at_once], dict[int, UnreadablePictures]()
            pictures = read_pictures(paths, size, channels, resize=self.config.resize, broken=broken)
            certified = certifier(as_float(pictures, torch.float64)).cpu()
            logits, order = certified.logits.sort(dim=1, descending=True)
            second = order.gather(1, (order[:, :1] == certified.prediction[:, None]).long())  # where logits are tied
            margins = logits[:, 0] - logits[:, 1]
            columns = (certified.prediction, certified.radius, second[:, 0], margins)
            answers = zip(*(column.tolist() for column in columns), strict=True)
            for k, path in enumerate(paths):
                if k in broken:
                    predictions.append(Prediction(str(path), error=broken[k].args[0][1]))
                else:
                    label, radius, other, margin = next(answers)
                    resized = _size_of(path) != size
                    predictions.append(Prediction(str(path), classes[label], radius, resized, classes[other], margin))
            progress("predicting", start + len(paths), len(files))
        return predictions

    def check_keeping(self, name: str) -> None:
        """Raise, before any work is done, if `keep` could not write."""
        if not is_pretrained(self.folder):
            check_writable([self.folder / name], overwrite=True)

    def keep(self, name: str, value: object) -> None:
        """Write a JSON file beside the run's own, or raise if the folder has another network by now.

        Nothing is written beside the networks that come with isoconv.
        """
        if is_pretrained(self.folder):
            return
        now, own = read_tensors(RunFolder(self.folder).model), self.model.state_dict()
        same = now.keys() == own.keys() and all(torch.equal(now[key].to(value), value) for key, value in own.items())
        require(same, f"the network that was opened in {self.folder}, to keep {name} beside it", "another one")
        write_json(self.folder / name, value)

    def keep_attacks(self, records: Sequence[AttackRecord]) -> None:
        """Write records to attacks.json; those of other attacks and budgets stay there."""
        path, rows = self.folder / "attacks.json", [record.to_fields() for record in records]
        new = [(row["attack"], row["epsilon"]) for row in rows]
        with suppress(OSError, ValueError, TypeError, KeyError):  # a file that holds something else is replaced
            known = json.loads(path.read_text())
            rows = [row for row in known if (row["attack"], row["epsilon"]) not in new] + rows
        self.keep(path.name, rows)


def share_certifying(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], processes: Processes | None = None, **options: Any
) -> RobustAccuracy:
    """Return the robust accuracy of a network, each process having certified a part of the images.

    Each takes whole batches of those that one alone would certify, so that the answer is the same bit for bit where the
    arithmetic of one batch is. `options` are those of `robust_accuracy`, and `certificate`, a file for the certificates:
    one process alone writes it batch by batch, the first of several when it has all.
    """
    progress, certificate = options.pop("progress", None), options.pop("certificate", None)
    certifier = Certifier(model, data.shape, **options)
    if processes is None or processes.count == 1:
        with nullcontext() if certificate is None else open_certificate(certificate, certifier, len(data)) as file:
            add = None if file is None else file.add
            return robust_accuracy(certifier, data, epsilons, progress=progress, certified=add)
    size = default_batch_size(data.shape)
    share = processes.share(len(data), size)
    own = []
    if share:
        part = robust_accuracy(certifier, data.subset(share), epsilons, batch_size=size, progress=progress)
        own = [(part.certificates, part.epsilons)]
    parts = [part for others in processes.gather(own) for part in others]
    certificates, labels = join([certificates for certificates, _ in parts]), data.labels.cpu()
    if certificate is not None and processes.first:
        write_certificate(certificate, certifier, certificates, labels)
    return RobustAccuracy(certificates, labels, certifier, parts[0][1])


def figures_of(accuracy: RobustAccuracy) -> dict[str, Any]:
    """Return the accuracy in percent, clean and certified at each radius, as a record of a run names it."""
    robust = {str(radius): percent for radius, percent in accuracy.certified.items()}
    figures = {"clean": accuracy.clean, "robust": robust, "lipschitz_bound": accuracy.lipschitz_bound}
    return {"images": len(accuracy.labels), **figures}


def _list_pictures(path: Path) -> list[Path]:
    """Return the pictures in a folder, or the file."""
    pictures = pictures_in(path) if path.is_dir() else [path]
    require(bool(pictures), f"images ({', '.join(ENDINGS)}) in {path}", "none")
    return pictures


def _size_of(path: Path) -> tuple[int, int]:
    """Return height and width of a picture, upright as its EXIF says."""
    from PIL import Image

    with Image.open(path) as file:
        turned = file.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # the tag of the orientation: a quarter turn
        return file.size if turned else file.size[::-1]


def _take(images: ImageSet, count: int | None) -> ImageSet:
    if count is None:
        return images
    require(1 <= count <= len(images), f"from 1 to {len(images)} images, as many as the test set has", count)
    return images.take(count)


def open_runs(path: Path | str) -> list[TrainedRun]:
    """Open the network in a run's folder, one per seed if there are several, or a pretrained one by its name."""
    path = Path(path)
    if not path.exists() and str(path) in pretrained_names():
        path = pretrained_folder(str(path))
    seeds = [] if RunFolder(path).exists else seeds_in(path)
    folders = [path / f"seed-{seed}" for seed in seeds] or [path]
    return [TrainedRun(folder, *load_run(folder)) for folder in folders]


def open_run(path: Path | str) -> TrainedRun:
    """Open a run of one seed."""
    return _only(open_runs(path))


def open_own(
    model: str | Path | Build,
    weights: Path | None = None,
    data: str | Path | None = None,
    *,
    folder: Path | None = None,
    size: Sides | None = None,
    download: bool = False,
) -> tuple[TrainedRun, ImageSet]:
    """Build a user's own network, load its weights, and return it as if it were a run, with the test images of `data`.

    model : the function that builds it, or its name, FILE.py:FUNCTION, which is run
    weights : a safetensors file; without one the network stays as it is built
    data, folder, size, download : as for `isoconv.train.train`; without `data` the images are those in `folder`
    """
    require(data is not None or folder is not None, "data to certify a network of your own on (--data)", "none")
    name, build = find_function(model)
    where = (str(folder), None) if data is None else (str(data), folder)
    reading: dict[str, Any] = {"stream": True, "workers": 0} if is_pictures(where[0]) else {}
    splits = load_splits(*where, size=size, download=download, lazy=True, **reading)
    images = splits.test
    config = TrainConfig(where[0], images.shape, images.classes, splits.listing, name)
    network = make_model(config, build)
    if weights is not None:
        load_weights(network, weights)
    check_classifier(plain_network(network, config.input_shape), config)
    return TrainedRun(Path(name), network, config), images


def _only(runs: Sequence[TrainedRun], purpose: str = "") -> TrainedRun:
    require(len(runs) == 1, f"a run of one seed{purpose}", f"{len(runs)}: name one, {runs[0].folder}")
    return runs[0]


def splits_of(config: TrainConfig, folder: Path | None = None, download: bool = False, **options: Any) -> Splits:
    """Return the data of a run, split as in its training. A user's own images may have moved to `folder`.

    options : `stream` and `workers`, as for `isoconv.data.load_splits`
    """
    own = config.data not in NAMES
    source = Path(config.data if folder is None or not own else folder)
    require(not own or is_there(source), f"the images of the run in {source}", "none: say where they are (--data)")
    channels, height, width = config.input_shape
    where = (source.absolute(), None) if own else (config.data, folder)
    options |= {"channels": channels, "resize": config.resize, "skip_broken": config.skip_broken, "lazy": True}
    splits = load_splits(*where, size=(height, width), download=download, **options)
    part = splits.test if splits.has_test else splits.train  # to certify, no training image is read
    if part.shape != config.input_shape or part.classes != config.classes:
        raise IsoconvError(f"Expected the data that the run was trained on. {source} has changed since.")
    if config.listing and splits.listing != config.listing:
        problem = "which of its images were held out is unknown: restore the old ones, or train again"
        expected = "Expected the images that the run was trained on."
        raise IsoconvError(f"{expected} {source} has changed since, and {problem}.")
    return splits


# From a folder to an answer ---------------------------------------------------------------------------------------------


def certify_run(
    run: Path | str | Build,
    epsilons: Sequence[float] = (),
    *,
    weights: Path | None = None,
    data: str | Path | None = None,
    size: Sides | None = None,
    certificate: Path | None = None,
    folder: Path | None = None,
    download: bool = False,
    images: int | None = None,
    device: str = "auto",
    progress: Progress = be_silent,
    say: Callable[[str], None] = lambda line: None,
    processes: Processes | None = None,
    **options: str,
) -> list[CertifiedRecord]:
    """Certify each network of a run on its test images, and keep what is proved in its certified.json.

    run : a run's folder; or a network of your own, as for `open_own`, with its `weights`, `data` and `size`. Of that one
        nothing is kept but the certificate, and beside it the plain weights, which it is about
    certificate : a file for the certificates of all images
    folder, download, images : where the data set is, whether to fetch it, and how many of its images to take
    say : called with lines worth showing
    processes : those that share the images, as `Processes.join(device)` returns them; the first one writes
    options : arithmetic and criterion of `Certifier`
    """
    device, records, own, processes = choose_device(device), [], None, processes or Processes()
    say = say if processes.first else lambda line: None
    if callable(run) or (is_own(str(run)) and not Path(run).is_dir()):
        own, test = open_own(run, weights, data, folder=folder, size=size, download=download)
        runs, test = [own], _take(test, images)
        if weights is None:
            say(f"No --weights: the network is certified as {own.config.model} builds it.")
    else:
        given = [name for name, value in (("weights", weights), ("data", data), ("size", size)) if value is not None]
        require(not given, "a run, which has its own weights and data", f"{', '.join(given)} with {run}")
        runs = open_runs(run)
        test = runs[0].test_images(folder, download, images)
    if certificate is not None:
        _only(runs, " for --certificate")
        weights_beside = certificate.with_suffix(".plain.safetensors")
        free = own is None or certificate.exists() or not weights_beside.exists()
        require(free, "no file yet for the plain weights beside a new certificate", weights_beside)
    kept, usual = "certified.json", {"arithmetic": "float64", "criterion": "pairs"}
    whole = images is None and usual | options == usual
    keeping = [one for one in runs if own is None and (whole or not (one.folder / kept).exists())]
    for one in keeping if processes.first else ():
        one.check_keeping(kept)
    for one in runs:
        shared: dict[str, Any] = {"device": processes.device(device), "processes": processes, "progress": progress}
        accuracy, record = one.certify(test, epsilons, certificate=certificate, **shared | options)
        records.append(record)
        if not processes.first:
            continue
        if claimed := [layer.name for layer in record.layers if layer.claimed]:
            say(f"Claimed by registered rules, and not proved: the bounds of {', '.join(claimed)}.")
        if certificate is not None:
            model = one.folder if own is None else weights_beside
            if own is not None:
                write_tensors(model, accuracy.certifier.deployed.state_dict(), {"format": "pt"})
            check = shlex.join(["python", "-m", "isoconv.check", str(certificate), str(model)])
            say(f"Written to {certificate}. To check it: {check}")
        if one in keeping:
            one.keep(kept, record.to_fields())
        elif own is None:
            say(f"Not kept: {one.folder / kept} holds what was certified before.")
    count, most = test.labels.bincount(minlength=len(test.classes)).max(dim=0)
    if count > 1.5 * len(test) / len(test.classes):
        say(f"For comparison: {100 * count / len(test):.1f} % of the images are of one class, {test.classes[most]}.")
    return records


def attack_run(
    run: Path | str,
    names: Sequence[str] = ("pgd", "fgsm"),
    epsilons: Sequence[float] = (),
    *,
    folder: Path | None = None,
    download: bool = False,
    images: int | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    restarts: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: Progress = be_silent,
) -> list[AttackRecord]:
    """Attack each network of a run on its test images, and keep the results in its attacks.json.

    Attacks that only see decisions take the first 100 images unless `images` is given. The results must be given to
    `refuse_violations`: what breaks a certificate is a row like any other.

    steps, step_size, restarts, seed : for those of the attacks that have them; by default 200, 0.01, 1 and 0
    """
    for name in names:
        require(name in ATTACKS, f"--attack to be one of {', '.join(ATTACKS)}", repr(name))
    asked = {"epsilon": epsilons or None, "steps": steps, "step_size": step_size, "restarts": restarts, "seed": seed}
    options = {option: value for option, value in asked.items() if value is not None}
    for option in options:
        known = any(option in ATTACKS[name] for name in names)
        require(known, f"options of {', '.join(names)}", f"--{option.replace('_', '-')}")
    device, runs, records = choose_device(device), open_runs(run), []
    for one in runs:
        one.check_keeping("attacks.json")
    data = runs[0].test_images(folder, download, images)
    few = data.take(min(_FEW, len(data))) if images is None else data
    settings = {name: {key: (_USUAL | options)[key] for key in ATTACKS[name] if key in _USUAL} for name in names}
    for one in runs:
        budgets = epsilons or default_epsilons(one.config.data)[:1]
        accuracy, _ = one.certify(data, budgets, device=device, progress=progress)
        rows = [
            one.attack(part, name, budget, accuracy, progress=progress, **settings[name])
            for name in settings
            for part in [few if name in ("boundary", "pointwise") else data]
            for budget in (budgets if name != "rounding" else [None])
        ]
        one.keep_attacks(rows)
        records += rows
    return records


def refuse_violations(records: Sequence[AttackRecord]) -> None:
    """Raise if an attack succeeded where the network is certified."""
    found = sum(record.violations for record in records)
    require(found == 0, "no attack to succeed where the network is certified", f"{found}: a certificate is false")
