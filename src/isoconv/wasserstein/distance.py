"""From two samples to a lower bound of their Wasserstein-1 distance, in one call."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
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
from isoconv.train.run_folder import RunFolder, open_runs
from isoconv.wasserstein.bound import BYTES_RANGE, Interval, check_confidence, check_range, choose_method
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
    require_one_shape,
)

#: A data set's name, a folder of images, a .npy file, a generator's run folder; or what is in memory.
Source = str | Path | Tensor | NDArray[Any] | ImageSet | Generator | Samples
Watch = Callable[[CriticConfig, int], AbstractContextManager[Observer]]

_NO_CONV = ("conv", "bcop")  # the default: not every critic has convolutions
_PASSES = 40  # over the smaller set of vectors, at most
_LEAST_EPOCHS = 3  # of 100 updates: with fewer a critic has not learnt


def distance_bound(
    a: Source,
    b: Source,
    *,
    confidence: float = 0.95,
    critic: str | None = None,
    value_range: Interval | None = None,
    pixels: Interval = BYTES_RANGE,
    method: str = "auto",
    count: int = 6400,
    data: Path | None = None,
    download: bool = False,
    size: int | None = None,
    channels: int | None = None,
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
    critic : the network. By default it follows from the samples; for vectors two critics are trained, of which either may
        be much the better one, each at half the risk
    value_range : an interval known to hold all coordinates of vectors. With it, and for images, the result is a bound for
        every sample size; without it an asymptotic estimate
    method : "auto", "betting" or "asymptotic"; see `wasserstein_lower_bound`
    count : images that a generator is judged by
    data, download, size, channels : how data sets and folders of images are read
    folder : keep the run there, so that it can be resumed; by default nothing is kept
    watch : is called with each critic's configuration and the updates already done, and returns what shows its progress
    settings : fields of `CriticConfig`: conv, activation, recipe, epochs, …, and those that say what the samples are:
        whole : whether a, and whether b, is all of its distribution, and not a sample of it
        held_out : the part of each sample that the critic is not trained on, but judged by; `seed` chooses it
        repeats : what equal rows in a sample are: "copies" of one draw, independent "draws", or "either": valid for both

    The bound holds if the samples are independent draws of their distributions.
    """
    check_confidence(confidence)
    device = choose_device(device)
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    # What says nothing is left out: the rest are options that were asked for.
    settings = {name: value for name, value in settings.items() if value is not None and (name, value) != _NO_CONV}
    reading = {"folder": data, "download": download, "size": size, "channels": channels, "progress": progress}
    whole = settings.get("whole", (False, False))
    options = {name: value for name, value in settings.items() if name in ("held_out", "seed", "repeats")}
    options |= {"count": count, "pixels": pixels, "reading": reading}
    first = open_samples(a, "a", whole=whole[0], side="first", **options)
    pair = first, open_samples(b, "b", whole=whole[1], side="second", **options)
    require_one_shape(*pair)
    settings["contents"] = tuple(samples.fingerprint() for samples in pair)
    pair, value_range, units = _centre(pair, value_range)
    critics = [critic] if critic else _choose_critics(pair[0].shape, settings)
    configs = [_configure(pair, name, pixels, settings) for name in critics]
    try:
        bounded = value_range is not None or len(pair[0].shape) == 3
        choose_method(method, bounded, [samples.observations for samples in pair])
    except IsoconvError as error:
        notes = [samples.repeated for samples in pair if samples.repeated]
        raise IsoconvError(" ".join([str(error), *notes])) from None
    for config in configs:  # a batch that cannot be drawn is refused before anything is written
        next(PairBatches(*pair, config.batch_size, config.steps_per_epoch, seed=config.seed).epoch(0))
    networks = [make_critic(config, *pair) for config in configs]
    several, runs = len(configs) > 1, list[RunFolder]()
    if folder is not None:  # one critic's run is there, several have a sub-folder each
        runs = [RunFolder(folder / config.model if several else folder) for config in configs]
        if several and RunFolder(folder).exists:
            raise IsoconvError(f"{folder} already holds a run of one critic: name it (--critic), or another --out.")
        open_runs(runs, configs, resume, overwrite)
        if several and not resume:
            (folder / "result.json").unlink(missing_ok=True)
    share = 1 - (1 - confidence) / len(configs) if several else confidence  # so that all hold at once
    judging: dict[str, Any] = {"confidence": share, "value_range": value_range, "method": method, "units": units}
    results = []
    for k, config in enumerate(configs):
        with watch(config, runs[k].updates_done() if runs else 0) as observer:
            (trained,) = train_critics(
                [config],
                runs[k : k + 1] or None,
                *pair,
                **judging,
                critics=[networks[k]],
                device=device,
                resume=bool(runs),  # a run that has just been started has nothing to resume
                observer=observer,
                should_stop=should_stop,
            )
        results.append(trained.bound)
        if runs:
            plot_training(runs[k], trained.bound)
    best = max(results, key=lambda result: result.lower)
    if several:
        figures = {result.model: CriticFigures(result.estimate, result.lower) for result in results}
        seconds = sum(result.train_seconds for result in results)
        best = replace(best, confidence=confidence, train_seconds=seconds, critics=figures)
        if folder is not None:
            best.write(folder / "result.json")
    return best


def open_samples(
    source: Source,
    name: str = "a",
    *,
    count: int = 6400,
    pixels: Interval = BYTES_RANGE,
    reading: dict[str, Any] | None = None,
    **split: Any,
) -> Samples:
    """Return the distribution that a source stands for.

    reading : for `read_images`
    split : for `FiniteSamples`: of a finite set that is a sample (not the `whole` distribution) a part is held out
    """
    batch, reading = 64, reading or {}
    if isinstance(source, (str, Path)):
        name, path = str(source), Path(source)
        if path.suffix.lower() == ".npy":
            source = read_array(path)
        elif name.partition(":")[0] not in NAMES and path.is_dir() and RunFolder(path).exists:
            source, config = load_generator(path)
            batch, size = config.batch_size, config.image_shape[1]
            if reading.get("size") not in (None, size):
                raise IsoconvError(
                    f"Expected the size of the generator's images, {size}, or none. Got --size {reading['size']}."
                )
            if split.get("whole"):
                raise IsoconvError(f"Expected a finite set as a whole distribution. Got the generator in {name}.")
        else:
            source = read_images(name, **reading)
    if isinstance(source, Generator):
        return GeneratedSamples(name, source, count=count, batch=batch, pixel_range=pixels)
    if isinstance(source, ImageSet):
        source = source.images
    if isinstance(source, np.ndarray) and source.ndim == 4:
        source = torch.from_numpy(source)
    if isinstance(source, Tensor) and source.dim() == 4:
        check_range(source, pixels, name)
    elif isinstance(source, (Tensor, np.ndarray)):
        source = check_vectors(source.detach().cpu().numpy() if isinstance(source, Tensor) else source, name)
    elif hasattr(source, "judged"):
        return source
    else:
        raise IsoconvError(f"Expected samples, or the name of a data set or a file. Got {type(source).__name__}.")
    return FiniteSamples(name, source, **split)


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
            for part in (samples.train, *samples.readings):
                check_range(part, box, f"{samples.name} (--range)")
        centre = torch.full_like(centre, (box[0] + box[1]) / 2)
        units += f", coordinates from {box[0]:g} to {box[1]:g}"
        half = math.nextafter(max(box[1] - float(centre[0]), float(centre[0]) - box[0]), math.inf)
        box = (-half, half)
    return (first.moved(-centre), second.moved(-centre)), box, units


def _choose_critics(shape: tuple[int, ...], settings: dict[str, Any]) -> list[str]:
    """Return the paper's critic for images that it can take, a smaller one for others; for vectors two.

    Options that only one of the two has ask for that one.
    """
    if len(shape) == 3:
        if shape[1] % 16 == 0 and shape[2] % 16 == 0:
            return ["dcgan"]
        return ["large"] if shape[1] % 4 == 0 and shape[2] % 4 == 0 else ["fc"]
    if "anchors" in settings:
        return ["anchors"]
    about_layers = settings.keys() & {"activation", "width", "depth", "lr", "optimiser"}
    return ["fc"] if about_layers or settings.get("recipe") == "paper" else ["fc", "anchors"]


def _configure(pair: tuple[Samples, Samples], critic: str, pixels: Interval, settings: dict[str, Any]) -> CriticConfig:
    """Return the configuration of a critic, fitted to the samples where nothing else is asked for."""
    shape, finite = pair[0].shape, [samples for samples in pair if isinstance(samples, FiniteSamples)]
    config = critic_config(pair[0].name, pair[1].name, shape, critic, **settings)
    if unused := sorted(settings.keys() & set[str]().union(*CRITICS.values()) - CRITICS[critic]):
        raise IsoconvError(f"Expected options of the critic {critic}. Got --{unused[0]}, which it has no use for.")
    if "batch_size" not in settings:
        config = replace(config, batch_size=min([config.batch_size, *(len(samples.train) for samples in finite)]))
    if len(shape) == 3:
        return replace(config, pixel_range=pixels)
    parts = [len(samples.train) for samples in finite if not samples.whole]
    if "epochs" not in settings and parts:
        # A critic that sees few vectors too often learns them by heart, and its value on others falls.
        passes = -(-_PASSES * min(parts) // (config.batch_size * config.steps_per_epoch))
        config = replace(config, epochs=min(config.epochs, max(_LEAST_EPOCHS, passes)))
    return replace(config, scale=typical_scale(*pair, config))


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
    axes.set(xlabel="updates", ylabel="mean difference / Lipschitz bound")
    axes.legend()
    figure.savefig(run.path / "estimate.png", dpi=120, bbox_inches="tight")
