"""Train classifiers by name: from a data set or a folder of pictures to run folders, in one call."""

from collections.abc import Callable, Sequence
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
from isoconv.train.engine import Observer
from isoconv.train.run_folder import RunFolder, seed_folders
from isoconv.train.runs import splits_of
from isoconv.train.search import search_learning_rate


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
    observer: Observer | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    begin: Callable[[int, int], None] = lambda steps, done: None,
    say: Callable[[str], None] = lambda line: None,
    processes: Processes | None = None,
    **settings: Any,
) -> tuple[list[TrainResult], TrainConfig]:
    """Train one network per seed and evaluate the last epoch of each. Return the results and the first configuration.

    data : the name of a data set, a folder of pictures with one sub-folder per class, or a CSV file; None to resume
    out : the run's folder; several seeds live in seed-0, seed-1, … inside it
    folder : where the data set is, or where a user's pictures have moved to
    search : learning rates to try on a validation split first
    begin, say : called with (steps, steps done before) when training begins, and with lines worth showing
    settings : fields of `TrainConfig` that differ from the recipe's
    """
    device = choose_device(device)
    processes = processes or Processes.join(device)
    say = say if processes.first else lambda line: None
    out, models = Path(out), None
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    if resume and search is not None:
        raise IsoconvError("Expected --search for a new run only. Got it with --resume.")
    if resume:
        numbers = _seeds_in(out) if seeds is None else list(seeds)
        folders = seed_folders(out, numbers)
        configs, splits = _resume(folders, data, folder, download, size, numbers, settings)
    else:
        numbers = [0] if seeds is None else list(seeds)
        folders = seed_folders(out, numbers)
        configs, splits = _begin(data, folder, download, size, numbers, settings, processes.count)
        models = build_networks(configs, splits.train, device, processes)
        if processes.first:
            _check_free(out, folders, overwrite)
        say(describe_data(configs[0], splits))
        if search is not None:
            configs = _search(configs, splits, search, device, processes, say)
        if processes.first:
            for run, config in zip(folders, configs, strict=True):
                run.start(config, overwrite)
            if device == "cpu" and "model" not in settings:
                say("The network is large, the default, which is slow on a CPU: --model small is faster.")
        processes.wait()
    total = len(splits.train) // configs[0].batch_size * configs[0].epochs
    done = folders[0].updates_done() if resume else 0
    if resume:
        say(
            f"Resuming after {done:,} of {total:,} steps." if done < total else f"All {total:,} steps were done before."
        )
    begin(total, done)
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
    train = splits.train
    channels, height, width = train.shape
    colours = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    held_out = f"{len(splits.test):,} held out to test on" if splits.has_test else "none to test on"
    counts = torch.bincount(train.labels, minlength=len(train.classes))
    fewest, most = int(counts.argmin()), int(counts.argmax())
    uneven = counts[most] >= 2 * counts[fewest]
    sizes = f" (from {counts[fewest]:,} of {train.classes[fewest]} to {counts[most]:,} of {train.classes[most]})"
    untested = sorted(set(train.labels.tolist()) - set(splits.test.labels.tolist())) if splits.has_test else []
    held_out += "".join(f", none of {train.classes[k]}" for k in untested[:3])
    ignored = f"; {splits.ignored:,} other file{'s' * (splits.ignored != 1)} ignored" if splits.ignored else ""
    return (
        f"{config.data}: {len(train):,} images to train on{sizes if uneven else ''}, {held_out}, "
        f"{len(train.classes)} classes, {height}×{width} in {colours}{ignored}"
    )


def _begin(
    data: str | None,
    folder: Path | None,
    download: bool,
    size: Size | None,
    seeds: Sequence[int],
    settings: dict[str, Any],
    processes: int,
) -> tuple[list[TrainConfig], Splits]:
    if data is None:
        raise IsoconvError(f"Expected data to train on: {', '.join(NAMES)}, a folder of images or a CSV file.")
    if data not in NAMES and folder is not None:
        raise IsoconvError(f"Expected --data for {', '.join(FROM_FILES)}. Got it with {data}, which is a path itself.")
    splits = load_splits(data, folder, size=size, download=download)
    fields = recipe_settings(settings.get("recipe", "default"), data, settings.get("conv", "bcop")) | settings
    fields.setdefault("batch_size", choose_batch_size(len(splits.train), processes))
    source = data if data in NAMES else str(Path(data).resolve())  # to be found again from another folder
    shape, classes = splits.train.shape, splits.train.classes
    first = TrainConfig(data=source, input_shape=shape, classes=classes, listing=splits.listing, **fields)
    return [replace(first, seed=seed) for seed in seeds], splits


def _resume(
    folders: Sequence[RunFolder],
    data: str | None,
    folder: Path | None,
    download: bool,
    size: Size | None,
    seeds: Sequence[int],
    settings: dict[str, Any],
) -> tuple[list[TrainConfig], Splits]:
    if missing := [run for run in folders if not run.exists]:
        raise IsoconvError(f"Expected a run to resume in {missing[0].path}. There is none.")
    configs = [TrainConfig.read(run.config) for run in folders]
    _, height, width = configs[0].input_shape
    asked = settings | ({} if size is None else {"size": height_and_width(size)}) | {"seeds": list(seeds)}
    stored = vars(configs[0]) | {"size": (height, width), "seeds": [config.seed for config in configs]}
    for name, value in asked.items():
        if stored[name] != value:
            raise IsoconvError(
                f"Expected the options of the run that is resumed. Got {_option(name, value)}, "
                f"where it has {_option(name, stored[name]) if name == 'flip' else _format(stored[name])}."
            )
    if data is not None and configs[0].data not in (data, str(Path(data).resolve())):
        raise IsoconvError(f"Expected the data that the run was started with, {configs[0].data}. Got {data}.")
    return configs, splits_of(configs[0], folder, download)


def _seeds_in(out: Path) -> list[int]:
    if RunFolder(out).exists:
        return [TrainConfig.read(RunFolder(out).config).seed]
    inside = [path.name.removeprefix("seed-") for path in out.glob("seed-*")]
    if not inside or not all(seed.isdecimal() for seed in inside):
        raise IsoconvError(f"Expected a run to resume in {out}. There is none.")
    return sorted(int(seed) for seed in inside)


def _search(
    configs: list[TrainConfig],
    splits: Splits,
    rates: Sequence[float],
    device: str,
    processes: Processes,
    say: Callable[[str], None],
) -> list[TrainConfig]:
    for rate in rates:
        replace(configs[0], lr=rate)  # refuses what is no rate
    best, scores = search_learning_rate(configs[0], splits.train, rates, device, processes)
    for rate, (clean, robust) in scores.items():
        mark = "  ← chosen" if rate == best else ""
        say(f"validation at lr {rate:g}: clean {clean:.2f} %, robust {robust:.2f} %{mark}")
    return [replace(config, lr=best) for config in configs]


def _check_free(out: Path, folders: Sequence[RunFolder], overwrite: bool) -> None:
    """Raise if one of the folders may not be written to, before any is touched."""
    if len(folders) > 1 and RunFolder(out).exists:
        raise IsoconvError(f"{out} already holds a run of one seed: name another folder for several (--out).")
    for run in folders:
        run.check_free(overwrite)


def _option(name: str, value: Any) -> str:
    """Return an option as it is written on the command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name.replace('_', '-')} {_format(value)}"


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return str(value[0]) if len(set(value)) == 1 else "×".join(str(part) for part in value)
    return ",".join(str(part) for part in value) if isinstance(value, list) else str(value)
