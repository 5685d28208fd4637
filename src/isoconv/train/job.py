"""Train classifiers by name: from a data set or a folder of pictures to run folders, in one call."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isoconv.data import NAMES, Splits, load_splits
from isoconv.data.load import FROM_FILES
from isoconv.data.resizing import Size, height_and_width
from isoconv.errors import IsoconvError
from isoconv.train.classifier import TrainResult, build_networks, train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.engine import Observer, Silent
from isoconv.train.run_folder import RunFolder, seed_folders
from isoconv.train.runs import splits_of
from isoconv.train.search import search_learning_rate

Say = Callable[[str], None]


def train(
    data: str | None = None,
    out: Path | str = "runs/run",
    *,
    folder: Path | None = None,
    download: bool = False,
    size: Size | None = None,
    seeds: Sequence[int] | None = None,
    epsilons: Sequence[float] = (),
    search: Sequence[float] | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[int, int], AbstractContextManager[Observer]] = lambda steps, done: nullcontext(Silent()),
    should_stop: Callable[[], bool] = lambda: False,
    say: Say = lambda line: None,
    processes: Processes | None = None,
    **settings: Any,
) -> tuple[list[TrainResult], TrainConfig]:
    """Train one network per seed and evaluate the last epoch of each. Return the results and the first configuration.

    data : the name of a data set, a folder of pictures with one sub-folder per class, or a CSV file; None to resume
    out : the run's folder; several seeds live in seed-0, seed-1, … inside it
    folder : where the data set is, or where a user's pictures have moved to
    search : learning rates to try on a validation split first
    watch : called with the number of steps, and of those done before, when training begins; returns who observes it
    say : called with lines worth showing
    settings : fields of `TrainConfig` that differ from the recipe's
    """
    device, out, models = choose_device(device), Path(out), None
    processes = processes or Processes.join(device)
    say = say if processes.first else lambda line: None
    if resume and (overwrite or search is not None):
        raise IsoconvError("Expected --overwrite and --search for a new run. Got --resume, and one of both.")
    numbers = list(seeds) if seeds is not None else _seeds_in(out) if resume else [0]
    folders = seed_folders(out, numbers)
    if resume:
        asked = settings | {"seeds": numbers} | ({} if size is None else {"size": height_and_width(size)})
        configs = _read_configs(folders, data, asked)
        splits = splits_of(configs[0], folder, download)
    else:
        if data is None:
            raise IsoconvError(f"Expected data to train on: {', '.join(NAMES)}, a folder of images or a CSV file.")
        if data not in NAMES and folder is not None:
            raise IsoconvError(f"Expected --data for {', '.join(FROM_FILES)}. Got it with {data}, a path itself.")
        splits = load_splits(data, folder, size=size, download=download)
        config = _make_config(data, splits, processes.count, settings)
        configs = [replace(config, seed=seed) for seed in numbers]
        models = build_networks(configs, splits.train, device, processes)
        if processes.first:
            _check_free(out, folders, overwrite)
        if search is not None:
            configs = _search(configs, splits, search, device, processes, say)
        if processes.first:
            for run, config in zip(folders, configs, strict=True):
                run.start(config, overwrite)
            say(describe_data(config, splits))
            if device == "cpu" and "model" not in settings:
                say("The network is large, the default, which is slow on a CPU: --model small is faster.")
        processes.wait()
    steps = len(splits.train) // configs[0].batch_size * configs[0].epochs
    done = folders[0].updates_done() if resume else 0
    if resume:
        say(f"Resuming after {done:,} of {steps:,} steps.")
    with watch(steps, done) as observer:
        results = train_classifiers(
            configs,
            folders,
            splits.train,
            splits.test if splits.has_test else None,
            epsilons or default_epsilons(configs[0].data),
            observer,
            device=device,
            processes=processes,
            resume=resume,
            should_stop=should_stop,
            models=models,
        )
    return results, configs[0]


def choose_batch_size(images: int, processes: int = 1) -> int:
    """Return 128, or less for small data sets: an epoch should have several batches and leave few pictures over.

    With several processes the size is a multiple of their number.
    """
    usual = min(128, max(8, images // 16))
    size = usual if usual == 128 or images < 8 else images // max(2, round(images / usual))
    return max(1, min(size, images) // processes) * processes


def describe_data(config: TrainConfig, splits: Splits) -> str:
    """Return one line that says what was read: images, classes, sizes, and what may surprise."""
    train, test = splits.train, splits.test if splits.has_test else None
    channels, height, width = train.shape
    counts = torch.bincount(train.labels, minlength=len(train.classes)).tolist()
    (fewest, least), *_, (most, largest) = sorted(zip(counts, train.classes, strict=True))
    line = f"{config.data}: {len(train):,} images to train on"
    if most >= 2 * fewest:
        line += f" (from {fewest:,} of {least} to {most:,} of {largest})"
    line += ", none to test on" if test is None else f", {len(test):,} held out to test on"
    untested = [] if test is None else sorted(set(train.labels.tolist()) - set(test.labels.tolist()))
    line += "".join(f", none of {train.classes[k]}" for k in untested[:3])
    colours = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    line += f", {len(train.classes)} classes, {height}×{width} in {colours}"
    return line + (f"; {splits.ignored:,} other file{'s' * (splits.ignored != 1)} ignored" if splits.ignored else "")


def _make_config(data: str, splits: Splits, processes: int, settings: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a new run: the recipe's, except for `settings`."""
    fields = recipe_settings(settings.get("recipe", "default"), data, settings.get("conv", "bcop")) | settings
    fields.setdefault("batch_size", choose_batch_size(len(splits.train), processes))
    source = data if data in NAMES else str(Path(data).resolve())  # to be found again from another folder
    shape, classes = splits.train.shape, splits.train.classes
    return TrainConfig(data=source, input_shape=shape, classes=classes, listing=splits.listing, **fields)


def _read_configs(folders: Sequence[RunFolder], data: str | None, asked: dict[str, Any]) -> list[TrainConfig]:
    """Return the configurations of runs; raise if other data or settings are asked for."""
    if missing := [run for run in folders if not run.exists]:
        raise IsoconvError(f"Expected a run to resume in {missing[0].path}. There is none.")
    configs = [TrainConfig.read(run.config) for run in folders]
    first = configs[0]
    stored = vars(first) | {"size": first.input_shape[1:], "seeds": [config.seed for config in configs]}
    for name, value in asked.items():
        if stored[name] != value:
            raise IsoconvError(
                f"Expected the options of the run that is resumed. Got {name} {value}, where it has {stored[name]}."
            )
    if data is not None and first.data not in (data, str(Path(data).resolve())):
        raise IsoconvError(f"Expected the data that the run was started with, {first.data}. Got {data}.")
    return configs


def _seeds_in(out: Path) -> list[int]:
    if RunFolder(out).exists:
        return [TrainConfig.read(RunFolder(out).config).seed]
    inside = [path.name.removeprefix("seed-") for path in out.glob("seed-*")]
    if not inside or not all(seed.isdecimal() for seed in inside):
        raise IsoconvError(f"Expected a run to resume in {out}. There is none.")
    return sorted(int(seed) for seed in inside)


def _check_free(out: Path, folders: Sequence[RunFolder], overwrite: bool) -> None:
    """Raise if one of the folders may not be written to, before any is touched."""
    if len(folders) > 1 and RunFolder(out).exists:
        raise IsoconvError(f"{out} already holds a run of one seed: name another folder for several (--out).")
    for run in folders:
        run.check_free(overwrite)


def _search(
    configs: list[TrainConfig], splits: Splits, rates: Sequence[float], device: str, processes: Processes, say: Say
) -> list[TrainConfig]:
    """Return the configurations with the best of the learning rates."""
    for rate in rates:
        replace(configs[0], lr=rate)  # refuses what is no rate
    best, scores = search_learning_rate(configs[0], splits.train, rates, device, processes)
    for rate, (clean, robust) in scores.items():
        mark = "  ← chosen" if rate == best else ""
        say(f"validation at lr {rate:g}: clean {clean:.2f} %, robust {robust:.2f} %{mark}")
    return [replace(config, lr=best) for config in configs]
