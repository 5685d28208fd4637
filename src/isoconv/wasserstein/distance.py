"""From two samples to a lower bound of their Wasserstein-1 distance, in one call."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from isoconv.data import NAMES, ImageSet, Progress
from isoconv.data.pictures import height_and_width
from isoconv.errors import IsoconvError, require
from isoconv.models.networks import Generator
from isoconv.train.config import refuse_other_options
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Observer, Silent
from isoconv.train.run_folder import RunFolder, open_runs
from isoconv.wasserstein.bound import BYTES_RANGE, Interval, check_range, choose_method
from isoconv.wasserstein.critic import (
    VECTOR_CRITICS,
    CriticConfig,
    DistanceBound,
    choose_configs,
    make_critic,
    train_critics,
)
from isoconv.wasserstein.gan import load_generator
from isoconv.wasserstein.samples import (
    FiniteSamples,
    GeneratedSamples,
    Samples,
    keep_shape,
    read_samples,
    require_effect,
    require_one_shape,
    require_one_unit,
)

#: A data set's name, a folder of images, a .npy file, a generator's run folder; or what is in memory.
Source = str | Path | Tensor | NDArray[Any] | ImageSet | Generator | Samples
_SAMPLING = ("whole", "held_out", "seed", "repeats")
_JUDGING = {"confidence": 0.95, "value_range": None, "method": "auto", "count": 6400}  # with their usual values


def distance_bound(
    a: Source,
    b: Source,
    *,
    confidence: float | None = None,
    critic: str | None = None,
    value_range: Interval | None = None,
    method: str | None = None,
    count: int | None = None,
    data: Path | None = None,
    download: bool = False,
    size: int | None = None,
    channels: int | None = None,
    device: str = "auto",
    folder: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[CriticConfig, int], Observer] = lambda config, done: Silent(),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> DistanceBound:
    """Train critics to tell a from b, and return a lower bound of W1 between their distributions.

    a, b : samples: vectors (N, D), images (N, C, H, W) as bytes or as numbers in `value_range`, a data set or its name
        (digits; digits:test for its test images), a folder of images, a .npy file, a generator or its run folder
    confidence : of the bound and of the interval, by default 0.95
    critic : the network. By default it follows from the samples; for vectors two critics are trained, of which either may
        be much the better one, each at half the risk
    value_range : an interval known to hold all values: the coordinates of vectors, or black and white of images, by default
        from −1 to 1. Bytes and a generator's images are spread over it, so against floating-point images it must be given.
        With it, and for images, the result is a bound for every sample size; for vectors without it, an asymptotic estimate
    method : "auto" (the default), "betting" or "asymptotic"; see `wasserstein_lower_bound`
    count : images that a generator is judged by, by default 6400
    data, download, size, channels : how data sets and folders of images are read
    folder : keep the run there, so that it can be resumed; by default nothing is kept
    resume : resume the run in the folder. It keeps all settings but those of how data sets are found, and refuses others
    watch : is called with each critic's configuration and the updates already done, and returns what shows its progress
    settings : fields of `CriticConfig`: conv, activation, recipe, epochs, …, and those that say what the samples are:
        whole : whether a, and whether b, is all of its distribution, and not a sample of it
        held_out : the part of each sample that the critic is not trained on, but judged by; `seed` chooses it
        repeats : what equal rows in a sample are: "copies" of one draw, independent "draws", or "either": valid for both

    The bound holds if the samples are independent draws of their distributions.
    """
    device = choose_device(device)
    require(not (resume and overwrite), "--resume or --overwrite", "both")
    value_range = None if value_range is None else (float(value_range[0]), float(value_range[1]))
    settings |= {"confidence": confidence, "value_range": value_range, "method": method, "count": count}
    settings = {name: value for name, value in settings.items() if value is not None}
    reading = {"folder": data, "download": download, "size": size, "channels": channels, "progress": progress}
    given = {"--data": data, "--download": download, "--size": size, "--channels": channels, "--samples": count}
    require_effect((a, b), given)
    runs, configs = list[RunFolder](), list[CriticConfig]()
    usual: CriticConfig | type[CriticConfig] = CriticConfig
    if resume:
        if folder is None:
            raise IsoconvError("Expected the folder of the run to resume. Got none.")
        runs = _find_runs(folder)
        configs = _read_configs(runs, settings | ({} if critic is None else {"critic": critic}))
        usual, shape = configs[0], configs[0].input_shape
        reading = keep_shape(reading, shape) if len(shape) == 3 else reading
    known = {name: getattr(usual, name) for name in (*_SAMPLING, *_JUDGING)}
    chosen = _JUDGING | {name: value for name, value in known.items() if value is not None} | settings
    confidence, method, value_range = chosen["confidence"], chosen["method"], chosen["value_range"] or usual.pixel_range
    pixels = value_range or BYTES_RANGE
    options = {name: chosen[name] for name in ("held_out", "seed", "repeats", "count")}
    options |= {"pixels": pixels, "reading": reading}
    first = open_samples(a, "a", whole=chosen["whole"][0], side="first", **options)
    second = open_samples(b, "b", whole=chosen["whole"][1], side="second", **options)
    require_one_shape(first, second)
    if value_range is None and len(first.shape) == 3:
        require_one_unit(first, second)
    contents = first.fingerprint(), second.fingerprint()
    first, second, value_range, units = _centre(first, second, value_range)
    if resume:
        now: dict[str, Any] = {"first": first.name, "second": second.name, "input_shape": first.shape}
        now |= {"contents": contents} | ({"pixel_range": pixels} if len(first.shape) == 3 else {})
        configs = [replace(config, **now) for config in configs]
    else:
        settings |= {name: chosen[name] for name in _JUDGING} | {"contents": contents}
        configs = choose_configs(first, second, critic, pixels, settings)
    try:
        bounded = value_range is not None or len(first.shape) == 3
        choose_method(method, confidence, bounded, [first.observations, second.observations])
    except IsoconvError as error:
        raise IsoconvError(" ".join(filter(None, [str(error), first.repeated, second.repeated]))) from None
    networks = [make_critic(config, first, second) for config in configs]
    several = len(configs) > 1
    if folder is not None:
        if not resume:  # one critic's run is there, several have a sub-folder each
            runs = [RunFolder(folder / config.model if several else folder) for config in configs]
        if several and RunFolder(folder).exists:
            raise IsoconvError(f"{folder} already holds a run of one critic: name it (--critic), or another --out.")
        open_runs(runs, configs, resume, overwrite)
        if several and not resume:
            (folder / "result.json").unlink(missing_ok=True)
    share = 1 - (1 - confidence) / len(configs) if several else confidence  # so that all hold at once
    judging: dict[str, Any] = {"confidence": share, "value_range": value_range, "method": method, "units": units}
    # A run that has just been started has nothing to resume.
    training: dict[str, Any] = {"device": device, "resume": bool(runs), "should_stop": should_stop}
    results = []
    for k, config in enumerate(configs):
        observer = watch(config, runs[k].updates_done() if runs else 0)
        own: dict[str, Any] = {"critics": [networks[k]], "observer": observer}
        (trained,) = train_critics([config], runs[k : k + 1] or None, first, second, **own, **judging, **training)
        results.append(trained.bound)
        if runs:
            plot_training(runs[k], trained.bound)
    if not several:
        return results[0]
    best = DistanceBound.best_of(results, confidence)
    if folder is not None:
        best.write(folder / "result.json")
    return best


def _find_runs(folder: Path) -> list[RunFolder]:
    """Return the run to resume in a folder: of one critic, or of several, which have a sub-folder each."""
    run, several = RunFolder(folder), [RunFolder(folder / name) for name in VECTOR_CRITICS]
    return several if not run.exists and any(part.exists for part in several) else [run]


def _read_configs(runs: Sequence[RunFolder], asked: dict[str, Any]) -> list[CriticConfig]:
    """Return the configurations of runs. Raise if other settings are asked for."""
    configs = [CriticConfig.read_resumed(run) for run in runs]
    names = " and ".join(config.model for config in configs)
    for config in configs:
        stored = vars(config) | {"critic": names}
        if config.confidence is None:  # earlier versions did not store how a critic is judged
            stored |= {name: asked[name] for name in _JUDGING if name in asked}
        refuse_other_options(stored, asked)
    return configs


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
        name = str(source)
        if name.partition(":")[0] not in NAMES and RunFolder(Path(source)).exists:
            source, config = load_generator(Path(source))
            batch, side, size = config.batch_size, config.image_shape[1:], reading.get("size")
            fits = size is None or height_and_width(size) == side
            require(fits, f"the size of the generator's images, {side[0]}×{side[1]}, or none", f"--size {size}")
    if isinstance(source, Generator):
        require(not split.get("whole"), f"a finite set as a whole distribution for {name}", "a generator")
        return GeneratedSamples(name, source, count, batch, pixels)
    return source if isinstance(source, Samples) else read_samples(source, name, pixels, reading, **split)


def _centre(
    first: Samples, second: Samples, box: Interval | None
) -> tuple[Samples, Samples, Interval | None, str | None]:
    """Return vectors moved to where they are centred, which W1 does not notice, their range there, and the units."""
    if not isinstance(first, FiniteSamples) or not isinstance(second, FiniteSamples) or len(first.shape) != 1:
        return first, second, box, None
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
    return first.moved(-centre), second.moved(-centre), box, units


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
