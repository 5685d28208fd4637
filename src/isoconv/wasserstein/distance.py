"""From two samples to a lower bound of their Wasserstein-1 distance, in one call."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoconv.data import NAMES, ImageSet, Progress
from isoconv.errors import IsoconvError
from isoconv.models.generator import Generator
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Observer, Silent
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.bound import Interval, check_confidence, check_range, choose_method
from isoconv.wasserstein.critic import (
    CRITICS,
    CriticConfig,
    CriticFigures,
    DistanceBound,
    critic_config,
    make_critic,
    train_critics,
    typical_scale,
)
from isoconv.wasserstein.gan import load_generator
from isoconv.wasserstein.samples import (
    FiniteSamples,
    GeneratedSamples,
    PairBatches,
    Samples,
    check_vectors,
    read_array,
    read_images,
    repeat_notes,
    require_one_shape,
)

#: A data set's name, a folder of images, a .npy file, a generator's run folder; or what is in memory.
Source = str | Path | Tensor | NDArray[Any] | ImageSet | Generator | Samples
Watch = Callable[[CriticConfig, int], AbstractContextManager[Observer]]

_PASSES = 40  # over the smaller set of vectors, at most
_LEAST_EPOCHS = 3  # of 100 updates: with fewer a critic has not learnt


def distance_bound(
    a: Source,
    b: Source,
    *,
    confidence: float = 0.95,
    critic: str | None = None,
    conv: str = "bcop",
    activation: str | None = None,
    recipe: str = "default",
    whole: tuple[bool, bool] = (False, False),
    held_out: float = 0.25,
    repeats: str = "either",
    value_range: Interval | None = None,
    pixels: Interval = (-1.0, 1.0),
    method: str = "auto",
    count: int = 6400,
    data: Path | None = None,
    download: bool = False,
    size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    device: str = "auto",
    folder: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch = lambda config, done: nullcontext(Silent()),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> DistanceBound:
    """Train critics to tell a from b, and return a lower bound of W1 between their distributions.

    a, b : samples: vectors (N, D), images (N, C, H, W) as bytes or as numbers in `pixels`, a data set or its name
        (digits; digits:test for its test images), a folder of images, a .npy file, a generator or its run folder
    confidence : of the bound and of the interval
    critic, conv, activation, recipe, **settings : fields of `CriticConfig`. By default the network follows from the samples;
        for vectors two critics are trained, of which either may be much the better one, each at half the risk
    whole : whether a, and whether b, is all of its distribution, and not a sample of it
    held_out : the part of each sample that the critic is not trained on, but judged by
    repeats : what equal rows in a sample are: "copies" of one draw, independent "draws", or "either": valid for both
    value_range : an interval known to hold all coordinates of vectors. With it, and for images, the result is a bound for
        every sample size; without it an asymptotic estimate
    method : "auto", "betting" or "asymptotic"; see `wasserstein_lower_bound`
    count : images that a generator is judged by
    data, download, size, channels : how data sets and folders of images are read
    folder : keep the run there, so that it can be resumed; by default nothing is kept
    watch : is called with each critic's configuration and the updates already done, and returns what shows its progress

    The bound holds if the samples are independent draws of their distributions.
    """
    check_confidence(confidence)
    device = choose_device(device)
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    open_side = partial(open_samples, held_out=held_out, seed=seed, repeats=repeats, count=count, pixels=pixels)
    open_side = partial(open_side, folder=data, download=download, size=size, channels=channels, progress=progress)
    pair = open_side(a, "a", whole=whole[0], side="first"), open_side(b, "b", whole=whole[1], side="second")
    require_one_shape(*pair)
    contents = tuple(samples.fingerprint() if isinstance(samples, FiniteSamples) else "" for samples in pair)
    pair, value_range, units = _centre(pair, value_range)
    critics = [critic] if critic else _choose_critics(pair[0].shape, recipe, activation, settings)
    changes = settings | {"whole": whole, "held_out": held_out, "seed": seed, "contents": contents, "repeats": repeats}
    configs, networks = [], []
    for name in critics:
        config = _configure(pair, name, conv, activation, recipe, pixels, changes)
        _check_observations(pair, method, bounded=value_range is not None or config.pixel_range is not None)
        next(PairBatches(*pair, config.batch_size, config.steps_per_epoch, seed=seed).epoch(0))
        configs.append(config)
        networks.append(make_critic(config, *pair))
    runs = [] if folder is None else _open_runs(folder, configs, resume, overwrite)
    share = 1 - (1 - confidence) / len(configs) if len(configs) > 1 else confidence  # so that all hold at once
    judge = partial(train_critics, confidence=share, value_range=value_range, method=method, units=units)
    results = []
    for k, config in enumerate(configs):
        done = runs[k].updates_done() if runs else 0
        with watch(config, done) as observer:
            (trained,) = judge(
                [config],
                [runs[k]] if runs else None,
                *pair,
                critics=[networks[k]],
                device=device,
                resume=bool(runs),  # a run that has just been started has nothing to resume
                observer=observer,
                should_stop=should_stop,
            )
        results.append(trained.bound)
        if runs:
            plot_training(runs[k], trained.bound)
    result = _choose_best(results, confidence)
    if folder is not None and len(runs) > 1:
        result.write(folder / "result.json")
    return result


def open_samples(
    source: Source,
    name: str = "a",
    *,
    whole: bool = False,
    held_out: float = 0.25,
    seed: int = 0,
    repeats: str = "either",
    side: str = "first",
    count: int = 6400,
    pixels: Interval = (-1.0, 1.0),
    **reading: Any,
) -> Samples:
    """Return the distribution that a source stands for; `reading` is for `read_images`.

    Of a finite set that is a sample (not the `whole` distribution) a part is held out by the seed.
    """
    if isinstance(source, (str, Path)):
        name, path = str(source), Path(source)
        if path.suffix.lower() == ".npy":
            source = read_array(path)
        elif name.partition(":")[0] not in NAMES and path.is_dir() and RunFolder(path).exists:
            source, config = load_generator(path)
            if reading.get("size") not in (None, config.image_shape[1]):
                raise IsoconvError(
                    f"Expected the size of the generator's images, {config.image_shape[1]}, or none. "
                    f"Got --size {reading['size']}."
                )
            if whole:
                raise IsoconvError(f"Expected a finite set as a whole distribution. Got the generator in {name}.")
            return GeneratedSamples(name, source, count=count, batch=config.batch_size, pixel_range=pixels)
        else:
            source = read_images(name, **reading)
    if isinstance(source, Generator):
        return GeneratedSamples(name, source, count=count, pixel_range=pixels)
    if isinstance(source, ImageSet):
        source = source.images
    if isinstance(source, np.ndarray):
        source = torch.from_numpy(source) if source.ndim == 4 else check_vectors(source, name)
    if not isinstance(source, Tensor):
        if not hasattr(source, "judged"):
            raise IsoconvError(f"Expected samples, or the name of a data set or a file. Got {type(source).__name__}.")
        return source
    if source.dim() == 4:
        check_range(source, pixels, name)
    else:
        source = check_vectors(source.detach().cpu().numpy(), name)
    return FiniteSamples(name, source, whole=whole, held_out=held_out, seed=seed, side=side, repeats=repeats)


def _centre(
    pair: tuple[Samples, Samples], box: Interval | None
) -> tuple[tuple[Samples, Samples], Interval | None, str | None]:
    """Return vectors moved to where they are centred, which W1 does not notice, their range there, and the units."""
    first, second = pair
    if not isinstance(first, FiniteSamples) or not isinstance(second, FiniteSamples) or len(first.shape) != 1:
        if box is not None and len(first.shape) == 3:
            raise IsoconvError("Expected --range for vectors. Images have --pixels.")
        return pair, box, None
    units = f"L2 distance between vectors of dimension {first.shape[0]}"
    centre = torch.cat([first.train, second.train]).mean(dim=0)
    if box is not None:
        for samples in (first, second):
            for part in (samples.train, samples.rest, samples.distinct):
                check_range(samples.rest if part is None else part, box, f"{samples.name} (--range)")
        centre = torch.full_like(centre, (box[0] + box[1]) / 2)
        units += f", coordinates from {box[0]:g} to {box[1]:g}"
        half = math.nextafter(max(box[1] - float(centre[0]), float(centre[0]) - box[0]), math.inf)
        box = (-half, half)
    return (first.moved(-centre), second.moved(-centre)), box, units


def _choose_critics(
    shape: tuple[int, ...], recipe: str, activation: str | None, settings: dict[str, object]
) -> list[str]:
    """Return the paper's critic for images that it can take, a smaller one for others; for vectors two.

    Options that only one of the two has ask for that one.
    """
    if len(shape) == 3:
        if shape[1] % 16 == 0 and shape[2] % 16 == 0:
            return ["dcgan"]
        return ["large"] if shape[1] % 4 == 0 and shape[2] % 4 == 0 else ["fc"]
    if "anchors" in settings:
        return ["anchors"]
    about_layers = activation is not None or recipe == "paper"
    return ["fc"] if about_layers or settings.keys() & {"width", "depth", "lr", "optimiser"} else ["fc", "anchors"]


def _configure(
    pair: tuple[Samples, Samples],
    critic: str,
    conv: str,
    activation: str | None,
    recipe: str,
    pixels: Interval,
    changes: dict[str, Any],
) -> CriticConfig:
    """Return the configuration of a critic, fitted to the samples where nothing else is asked for."""
    shape, finite = pair[0].shape, [samples for samples in pair if isinstance(samples, FiniteSamples)]
    config = critic_config(
        pair[0].name, pair[1].name, shape, critic, conv=conv, activation=activation, recipe=recipe, **changes
    )
    options = changes.keys() | ({"activation"} if activation is not None else set())
    options = options | ({"conv"} if conv != "bcop" else set())
    own_options = set[str]().union(*CRITICS.values())
    if unused := sorted(options & own_options - CRITICS[critic]):
        raise IsoconvError(f"Expected options of the critic {critic}. Got --{unused[0]}, which it has no use for.")
    if "batch_size" not in changes:
        config = replace(config, batch_size=min([config.batch_size, *(len(samples.train) for samples in finite)]))
    if len(shape) == 3:
        return replace(config, pixel_range=pixels)
    parts = [len(samples.train) for samples in finite if not samples.whole]
    if "epochs" not in changes and parts:
        # A critic that sees few vectors too often learns them by heart, and its value on others falls.
        passes = -(-_PASSES * min(parts) // (config.batch_size * config.steps_per_epoch))
        config = replace(config, epochs=min(config.epochs, max(_LEAST_EPOCHS, passes)))
    return replace(config, scale=typical_scale(*pair, config))


def _check_observations(pair: tuple[Samples, Samples], method: str, bounded: bool) -> None:
    try:
        choose_method(method, bounded, [samples.observations for samples in pair])
    except IsoconvError as error:
        raise IsoconvError(" ".join([str(error), *repeat_notes(*pair)])) from None


def _open_runs(folder: Path, configs: list[CriticConfig], resume: bool, overwrite: bool) -> list[RunFolder]:
    """Return the folder of each critic, started if it is new: `folder` itself for one, a sub-folder each for several."""
    several = len(configs) > 1
    runs = [RunFolder(folder / config.model) for config in configs] if several else [RunFolder(folder)]
    if several and RunFolder(folder).exists:
        raise IsoconvError(
            f"{folder} already holds a run of one critic: name it (--critic), or another folder (--out)."
        )
    if resume and not any(run.exists for run in runs):
        raise IsoconvError(f"Expected a run to resume in {folder}. There is none.")
    new = [run for run in runs if not (resume and run.exists)]
    for run, config in zip(runs, configs, strict=True):
        if run in new:
            run.check_free(overwrite)
        else:
            config.require_same(run)
    for run, config in zip(runs, configs, strict=True):
        if run in new:
            run.start(config, overwrite)
            (run.path / "estimate.png").unlink(missing_ok=True)
    if several and not resume:
        (folder / "result.json").unlink(missing_ok=True)
    return runs


def _choose_best(results: list[DistanceBound], confidence: float) -> DistanceBound:
    """Return the result with the highest lower bound, at the confidence with which all of them hold at once."""
    best = max(results, key=lambda result: result.lower)
    if len(results) == 1:
        return best
    figures = {result.model: CriticFigures(result.estimate, result.lower) for result in results}
    seconds = sum(result.train_seconds for result in results)
    return replace(best, confidence=confidence, train_seconds=seconds, critics=figures)


def plot_training(run: RunFolder, result: DistanceBound) -> None:
    """Draw `estimate.png` beside the figures, if matplotlib is installed: the training differences, the final interval."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    lines, per_epoch = run.read_metrics(), CriticConfig.read(run.config).steps_per_epoch
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    updates = [line["epoch"] * per_epoch for line in lines]
    axes.plot(updates, [-line["loss"] / result.lipschitz_bound for line in lines], label="training")
    axes.axhline(result.estimate, color="C1", label="held-out estimate")
    axes.axhspan(*result.interval, color="C1", alpha=0.2)
    label = "lower bound of W1" if result.proved else "asymptotic lower estimate of W1"
    axes.axhline(result.lower, color="C2", linestyle="--", label=label)
    axes.set_xlabel("updates")
    axes.set_ylabel("mean difference / Lipschitz bound")
    axes.legend()
    figure.savefig(run.path / "estimate.png", dpi=120, bbox_inches="tight")
