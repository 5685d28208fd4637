"""Train classifiers: seeds side by side, from a data set or a folder of images to run folders, in one call."""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isoconv.certify.accuracy import default_batch_size
from isoconv.data import NAMES, EpochBatches, ImageSet, Splits, StreamedSet, hold_out, load_splits
from isoconv.data.pictures import Size as Sides
from isoconv.data.pictures import UnreadablePictures, describe_ignored, height_and_width
from isoconv.errors import IsoconvError, require
from isoconv.losses import LOSSES
from isoconv.records import Count, Percent, Size
from isoconv.train.capture import STREAMS_IN_POOL, lay_out
from isoconv.train.config import (
    TrainConfig,
    default_epsilons,
    default_patch,
    is_own,
    make_model,
    recipe_settings,
    refuse_other_options,
)
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.engine import Diverged, EpochReport, Observer, Silent, fit
from isoconv.train.own_model import Build, find_function, hash_graph
from isoconv.train.passes import check_checkpointing, is_repeatable
from isoconv.train.run_folder import Finding, RunFolder, locked, open_runs, seed_folders, seeds_in
from isoconv.train.runs import Radius, figures_of, share_certifying, splits_of

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainResult(Finding):
    """The final figures of one seed, as result.json holds them. Accuracies are in percent, None without test images.

    robust : certified accuracy of the plain network, run in float64, by the radius as text
    peak_memory_mib : the most that the process held, of the GPU's memory or of the machine's
    best_epoch, validation : with validation, the epoch that was kept, and its score: see `measure_margins`
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound",)

    seed: int
    epochs: int
    train_seconds: Size
    replicas: Count
    device: str
    torch: str
    peak_memory_mib: float | None = None
    images: Count | None = None
    clean: Percent | None = None
    robust: dict[Radius, Percent] | None = None
    lipschitz_bound: Size | None = None
    best_epoch: Count | None = None
    validation: Percent | None = None
    finished: str = ""

    def __post_init__(self) -> None:
        missing = {value is None for value in (self.clean, self.images, self.lipschitz_bound)}
        require(len(missing) == 1, "clean, images and lipschitz_bound together", "a part of them")

    @property
    def certified_accuracy(self) -> dict[float, float]:
        """Return the percentage of images certified at each radius."""
        return {float(radius): percent for radius, percent in (self.robust or {}).items()}

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain data, without those of an evaluation that did not take place."""
        return {name: value for name, value in super().to_fields().items() if value not in (None, "")}


class Classification:
    """The loss of a configuration on images of pixels 0 … 255 and labels; counts how many are classified correctly."""

    def __init__(self, config: TrainConfig) -> None:
        self.function, self.options = LOSSES[config.loss].function, config.options_of_loss()

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        logits = model(lay_out(images) / 255).float()
        loss = self.function(logits, labels, **self.options)
        return loss, {"accuracy": (logits.argmax(dim=1) == labels).sum()}


def train_classifiers(
    configs: Sequence[TrainConfig],
    folders: Sequence[RunFolder] | None,
    train: ImageSet,
    test: ImageSet | None,
    epsilons: Sequence[float],
    observer: Observer | None = None,
    *,
    device: str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    models: Sequence[nn.Module] | None = None,
    validation: ImageSet | None = None,
    **options: Any,
) -> list[TrainResult]:
    """Train one network per configuration (they differ in the seed only) and evaluate the last epoch of each.

    With `validation`, images that are not trained on, evaluate the epoch of each with most of them right by the margin of
    the data set's first radius.

    The folders must have been started; without any, nothing is written. Return each seed's result, which is also in its
    folder. The test set is looked at once, after the last update.

    models : the networks, where `build_networks` has built them already
    options : other arguments of `fit`, such as `should_stop` and `save_every`
    """
    processes, first = processes or Processes(), configs[0]
    models = build_networks(configs, train, device, processes) if models is None else models
    target = processes.device(device)
    part = train.share_workers(len(configs)) if isinstance(train, StreamedSet) else train
    batches = [_batches(config, part, target, processes) for config in configs]
    with locked(folders if folders and processes.first else ()):
        steps = len(batches[0]) // first.accumulate * first.epochs
        if resume and folders and all(folder.finished and folder.updates_done() == steps for folder in folders):
            results = [TrainResult.read(folder.result) for folder in folders]
            if all(result.epochs == first.epochs for result in results):  # and not of a shorter run
                return results
        training = first.training | {"resume": resume, "observer": observer, "processes": processes} | options
        if validation is not None:
            judge = partial(measure_margins, data=validation, radius=default_epsilons(first.data)[0], device=target)
            training |= {"validate": judge, "patience": first.patience}
        fits = fit(models, batches, Classification(first), folder=folders, device=target, **training)
        results = []
        for k, (config, model, fitted) in enumerate(zip(configs, models, fits, strict=True)):
            figures = {} if test is None else figures_of(share_certifying(model.eval(), test, epsilons, processes))
            figures |= {"device": device_name(target), "torch": torch.__version__, "replicas": len(configs)}
            if fitted.best_epoch:
                figures |= {"best_epoch": fitted.best_epoch, "validation": fitted.best_score}
            epochs = fitted.updates * first.epochs // steps  # fewer than planned where patience has ended
            figures["peak_memory_mib"] = _peak_memory(target)
            result = TrainResult(config.seed, epochs, fitted.seconds, **figures)
            if folders and processes.first:
                folders[k].finish(model.eval(), result.to_fields(), config)
            results.append(result)
        processes.wait()
    return results


def build_networks(
    configs: Sequence[TrainConfig], train: ImageSet, device: str, processes: Processes, build: Build | None = None
) -> list[nn.Module]:
    """Build the network of each configuration; raise if they cannot be trained, before anything is written.

    build : the function of a network that is the user's own
    """
    count = len(configs)
    require(processes.count == 1 or count == 1, "one seed at a time under torchrun", count)
    most = STREAMS_IN_POOL if device == "cuda" else count
    require(count <= most, f"at most {most} seeds side by side on a GPU", count)
    batches, accumulate = len(_batches(configs[0], train, torch.device("cpu"), processes)), configs[0].accumulate
    require(accumulate <= batches, f"at most {batches} batches to accumulate, as many as an epoch has", accumulate)
    models = [make_model(config, build) for config in configs]
    check_checkpointing(models[0], configs[0].checkpoint_activations)
    return models


def measure_margins(model: nn.Module, data: ImageSet, radius: float, device: torch.device) -> float:
    """Return the percentage of images that are right by the margin √2·radius.

    A Lipschitz constant of 1 would certify them. None is proved here: it is a score to choose an epoch by.
    """
    right = 0
    for images, labels in data.batches(default_batch_size(data.shape)):
        logits, order = model(lay_out(images.to(device)) / 255).topk(2, dim=1)
        enough = logits[:, 0] - logits[:, 1] > math.sqrt(2) * radius
        right += int((enough & (order[:, 0] == labels.to(device))).sum())
    return 100 * right / len(data)


def _batches(config: TrainConfig, train: ImageSet, device: torch.device, processes: Processes) -> EpochBatches:
    options: dict[str, Any] = {"device": device, "rank": processes.rank, "world_size": processes.count}
    return EpochBatches(train, config.batch_size, seed=config.seed, **options, **vars(config.augmentation))


def device_name(device: torch.device) -> str:
    """Return what the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def _peak_memory(device: torch.device) -> float | None:
    """Return the most that the process has held so far, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# From data to run folders ---------------------------------------------------------------------------------------------


def train(
    data: str | None = None,
    out: Path | str = "runs/run",
    *,
    folder: Path | None = None,
    download: bool = False,
    size: Sides | None = None,
    stream: bool | None = None,
    workers: int | None = None,
    seeds: Sequence[int] | None = None,
    epsilons: Sequence[float] = (),
    search: Sequence[float] | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    watch: Callable[[int, int], Observer] = lambda steps, done: Silent(),
    should_stop: Callable[[], bool] = lambda: False,
    say: Say = lambda line: None,
    processes: Processes | None = None,
    **settings: Any,
) -> tuple[list[TrainResult], TrainConfig]:
    """Train one network per seed and evaluate the last epoch of each. Return the results and the first configuration.

    data : the name of a data set, a folder of images with one sub-folder per class, a CSV file, or shards
        (`isoconv.data.read_shards`); None to resume
    out : the run's folder; several seeds live in seed-0, seed-1, … inside it
    folder : where the data set is, or where a user's images have moved to
    stream, workers : whether a user's images stay in their files (by default if they do not fit in memory), and how many
        processes decode them; see `isoconv.data.pictures.PictureOptions`. The networks are the same either way
    search : learning rates to try on a validation split first
    tensorboard : write events of the same figures as the metrics into `out`, too
    watch : called with the number of steps, and of those done before, when training begins; returns who observes it
    say : called with lines worth showing
    settings : fields of `TrainConfig` that differ from the recipe's. `model` may be a network of your own: a function
        without arguments, or with `input_shape` and `classes`, or its name, FILE.py:FUNCTION, which is run
    """
    if tensorboard and find_spec("tensorboard") is None:
        raise IsoconvError("--tensorboard needs the package tensorboard: pip install 'isoconv[tensorboard]'.")
    device, out, build = choose_device(device), Path(out), None
    if not isinstance(named := settings.get("model", ""), str) or is_own(named):
        settings["model"], build = find_function(named)
    processes = processes or Processes.join(device)
    say = say if processes.first else lambda line: None
    new = not resume or not (overwrite or search is not None)
    require(new, "--overwrite and --search only for a new run", "one of them with --resume")
    require(search is None or "lr" not in settings, "learning rates to try (--search) or one (--lr)", "both")
    require(seeds is None or (isinstance(seeds, Collection) and len(seeds) > 0), "seeds, one or several", repr(seeds))
    epsilons = [*map(float, epsilons)]
    started = seeds_in(out) if resume and not RunFolder(out).exists else []
    numbers = list(seeds) if seeds is not None else started or [0]
    folders = seed_folders(out, numbers)
    if resume:
        asked = settings | ({} if size is None else {"size": height_and_width(size)})
        asked |= {} if seeds is None else {"seeds": numbers}
        again = {name: asked.pop(name) for name in TrainConfig.not_compared if name in asked}
        epochs = asked.pop("epochs", None)
        configs = _read_configs(folders, data, asked)
        apart = [{name: getattr(config, name) for name in ("seed", "epochs", "prolonged")} for config in configs]
        configs = [replace(configs[0], **again | own) for own in apart]  # seeds differ otherwise if a kill came between
        epochs = configs[0].epochs if epochs is None else epochs
        if is_own(configs[0].model) and build is None:
            raise IsoconvError(f"Expected --model again, to resume a network of your own, {configs[0].model}.")
        splits = splits_of(configs[0], folder, download, stream=stream, workers=workers)
    else:
        if data is None:
            raise IsoconvError(f"Expected data to train on: {', '.join(NAMES)}, a folder, a CSV file or shards.")
        inside = Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve())
        require(not inside, "a folder for the run outside of the images (--out)", f"{out}, inside of {data}")
        reading: dict[str, Any] = {name: settings[name] for name in ("resize", "skip_broken") if name in settings}
        reading |= {"stream": stream, "workers": workers}
        try:
            splits = load_splits(data, folder, size=size, download=download, **reading)
        except UnreadablePictures as error:
            raise IsoconvError(f"{error} To leave out what cannot be read: --skip-broken.") from error
        config = _make_config(data, splits, processes.count, settings)
        configs = [replace(config, seed=seed) for seed in numbers]
    share = configs[0].validation
    trained_on, held_out = hold_out(splits.train, share) if share else (splits.train, None)
    models = build_networks(configs, trained_on, device, processes, build)
    if build is not None:
        first = configs[0]
        graph = hash_graph(models[0], first)
        same = not resume or graph == first.graph
        require(same, "the network that the run was started with", f"another from {first.model}")
        configs = [replace(config, graph=graph) for config in configs]
    if not resume:
        if len(folders) > 1 and RunFolder(out).exists:
            raise IsoconvError(f"{out} already holds a run of one seed: name another folder for several (--out).")
        for run in folders if processes.first else ():
            run.check_free(overwrite)  # before the search, which takes its time
        if search is not None:
            best, scores = search_learning_rate(configs[0], trained_on, search, device, processes, build)
            configs = [replace(config, lr=best) for config in configs]
            for rate, (clean, robust) in scores.items():
                mark = "  ← chosen" if rate == best else ""
                say(f"validation at lr {rate:g}: clean {clean:.2f} %, certified {robust:.2f} %{mark}")
    done = [run.updates_done() if resume else 0 for run in folders]
    steps = len(trained_on) // configs[0].batch_size // configs[0].accumulate  # of an epoch
    if resume:
        least = max(1, -(-max(done) // steps))
        fits = epochs == configs[0].epochs or epochs >= least
        require(fits, f"at least {least} epochs, as many as the run has begun", epochs)
    if processes.first:
        open_runs(folders, configs, resume, overwrite)
    processes.wait()
    if resume:
        for k, config in enumerate(configs):
            if config.epochs != epochs:
                configs[k] = replace(config, epochs=epochs, prolonged=(*config.prolonged, (config.epochs, done[k])))
        for run, config in zip(folders, configs, strict=True) if processes.first else ():
            run.revise(config)
        processes.wait()
    first = configs[0]
    steps *= first.epochs
    say(f"Resuming after {done[0]:,} of {steps:,} steps." if resume else describe_data(first, splits, held_out))
    if not resume and device == "cpu" and "model" not in settings:
        say("The network is large, the default, which is slow on a CPU: --model small is faster.")
    if device == "cuda" and (first.accumulate > 1 or processes.count > 1):
        say("Steps run eagerly, slower for small networks: only those of one batch in one process are captured.")
    if device == "cuda" and first.checkpoint_activations and not is_repeatable(models[0]):
        say("Steps run eagerly: modules of your own may draw random numbers, and activations are computed twice.")
    test, radii = splits.test if splits.has_test else None, epsilons or default_epsilons(first.data)
    options: dict[str, Any] = {"device": device, "processes": processes, "models": models, "should_stop": should_stop}
    options |= {"validation": held_out, "resume": resume}
    observer = watch(steps, done[0])
    observer = _Events(out, observer) if tensorboard and processes.first else observer
    results = train_classifiers(configs, folders, trained_on, test, radii, observer, **options)
    tested = results[0].certified_accuracy
    known = test is None or all(radius in tested for radius in epsilons)
    require(known, f"the radii of the finished run, {[*tested]} (others: isoconv certify)", [*epsilons])
    for result in results if results[0].best_epoch is not None else ():
        say(f"Seed {result.seed}: epoch {result.best_epoch} is kept: {result.validation:.2f} % have the margin.")
    return results, first


class _Events:
    """Writes TensorBoard events of each epoch's figures, and passes everything on to another observer."""

    def __init__(self, folder: Path, observer: Observer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.observer = SummaryWriter(str(folder)), observer  # type: ignore[no-untyped-call]
        self.step = observer.step

    def epoch(self, report: EpochReport) -> None:
        self.observer.epoch(report)
        for name in ("loss", "accuracy", "images_per_second"):
            self.writer.add_scalar(f"train/{name}", getattr(report, name), report.epoch)
        self.writer.flush()


def choose_batch_size(images: int, processes: int = 1, most: int = 128) -> int:
    """Return `most`, or less for small data sets: an epoch should have several batches and leave few images over.

    With several processes the size is a multiple of their number.
    """
    usual = min(most, max(8, images // 16))
    size = usual if usual == most or images < 8 else images // max(2, round(images / usual))
    return max(1, min(size, images) // processes) * processes


def describe_data(config: TrainConfig, splits: Splits, held_out: ImageSet | None = None) -> str:
    """Return one line that says what was read: images, classes, sizes, and what may surprise."""
    train, test = splits.train, splits.test if splits.has_test else None
    channels, height, width = train.shape
    counts = torch.bincount(train.labels, minlength=len(train.classes)).tolist()
    none = ", ".join(name for name, count in zip(train.classes, counts, strict=True) if count == 0)
    require(not none, "an image that can be read in every class", f"none of {none}")
    (fewest, least), *_, (most, largest) = sorted(zip(counts, train.classes, strict=True))
    line = f"{config.data}: {len(train):,} images to train on"
    if most >= 2 * fewest:
        line += f" (from {fewest:,} of {least} to {most:,} of {largest})"
    line += "" if held_out is None else f", {len(held_out):,} of them for validation"
    line += ", none to test on" if test is None else f", {len(test):,} held out to test on"
    untested = [] if test is None else sorted(set(train.labels.tolist()) - set(test.labels.tolist()))
    line += "".join(f", none of {train.classes[k]}" for k in untested[:3])
    colours = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    line += f", {len(train.classes)} classes, {height}×{width} in {colours}"
    if splits.ignored:
        line += f"; {describe_ignored(splits.ignored)}"
    if splits.left_out:
        line += f"; {len(splits.left_out):,} cannot be read: {', '.join(splits.left_out)}"
    return line


def _make_config(data: str, splits: Splits, processes: int, settings: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a new run: the recipe's, except for `settings`."""
    choices = (settings.get(name, usual) for name, usual in (("conv", "bcop"), ("model", "large")))
    fields = recipe_settings(settings.get("recipe", "default"), data, *choices)
    if fields["recipe"] == "default":
        fields["batch_size"] = choose_batch_size(len(splits.train), processes, fields.get("batch_size", 128))
    fields |= settings | ({"crop_padding": 0} if "resized_crop" in settings and "crop_padding" not in settings else {})
    if fields.setdefault("loss", "hinge") in LOSSES:
        options = LOSSES[fields["loss"]].options
        wrong = [name for name in ("margin", "temperature", "offset") if name in settings and name not in options]
        require(not wrong, f"options of the loss {fields['loss']}: {', '.join(options)}", ", ".join(wrong))
    source = data if data in NAMES else str(Path(data).resolve())  # to be found again from another folder
    shape, classes = splits.train.shape, splits.train.classes
    fields.setdefault("patch", default_patch(fields.get("model", "large"), shape))
    require("patch" not in settings or settings["patch"] >= 1, "a patch of at least 1 pixel", settings.get("patch"))
    return TrainConfig(data=source, input_shape=shape, classes=classes, listing=splits.listing, **fields)


def _read_configs(folders: Sequence[RunFolder], data: str | None, asked: dict[str, Any]) -> list[TrainConfig]:
    """Return the configurations of runs; raise if other data or settings are asked for."""
    if missing := [run.path for run in folders if not run.exists]:
        alone = (
            f", but of one seed in {missing[0].parent}: leave out --seeds"
            if RunFolder(missing[0].parent).exists
            else ""
        )
        raise IsoconvError(f"Expected a run to resume in {missing[0]}. There is none{alone}.")
    configs = [TrainConfig.read(run.config) for run in folders]
    first = configs[0]
    others = {"size": first.input_shape[1:], "seeds": [config.seed for config in configs]}
    refuse_other_options(vars(first) | others, asked)
    if data is not None and first.data not in (data, str(Path(data).resolve())):
        raise IsoconvError(f"Expected the data that the run was started with, {first.data}. Got {data}.")
    return configs


def search_learning_rate(
    config: TrainConfig,
    train: ImageSet,
    rates: Sequence[float],
    device: str,
    processes: Processes,
    build: Build | None = None,
) -> tuple[float, dict[float, tuple[float, float]]]:
    """Choose the learning rate on a validation split of the training set, as the paper did; the test set plays no part.

    Return the rate whose network is most robust on the held-out part, and (clean, robust) accuracy for every rate.

    Robust accuracy at the data set's first radius decides, clean accuracy where it is tied. A rate that diverges scores
    nothing; if all do, that is an error.
    """
    kept, held_out = hold_out(train, 0.1, seed=config.seed)
    radius = default_epsilons(config.data)[0]
    scores: dict[float, tuple[float, float]] = {}
    for trial in [replace(config, lr=rate) for rate in rates]:  # refuses what is no rate, before any is tried
        with suppress(Diverged):
            models = build_networks([trial], kept, device, processes, build)
            options: dict[str, Any] = {"device": device, "processes": processes, "models": models}
            (result,) = train_classifiers([trial], None, kept, held_out, [radius], **options)
            assert result.clean is not None and result.robust is not None
            scores[trial.lr] = result.clean, result.robust[str(radius)]
    if not scores:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        raise IsoconvError(f"Expected a learning rate that trains. All of {tried} diverged.")
    return max(scores, key=lambda rate: (scores[rate][1], scores[rate][0])), scores
