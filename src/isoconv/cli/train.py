"""isoconv train"""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from isoconv.cli.interruption import interruptible
from isoconv.cli.progress import TensorBoardToo, TrainingProgress
from isoconv.cli.runs import splits_of
from isoconv.cli.tables import print_results
from isoconv.cli.values import parse_number, parse_numbers, parse_seeds, parse_size
from isoconv.data import NAMES, Splits, load_splits
from isoconv.data.load import FROM_FILES
from isoconv.data.resizing import Size, height_and_width
from isoconv.errors import IsoconvError
from isoconv.train.classifier import build_networks, train_classifiers
from isoconv.train.run_folder import seed_folders
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.train.search import search_learning_rate


def train(
    data: Annotated[
        str | None,
        typer.Argument(help="digits, mnist, cifar10, stl10, a folder of images (a sub-folder a class), or a CSV file"),
    ] = None,
    out: Annotated[Path, typer.Option(help="the run's folder")] = Path("runs/run"),
    folder: Annotated[
        Path | None, typer.Option("--data", help="where the data set is, or pictures that have moved")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    size: Annotated[str | None, typer.Option(help="resize images: 32, or 32x48 (height x width)")] = None,
    model: Annotated[str | None, typer.Option(help="small, large (the default) or fc3")] = None,
    conv: Annotated[
        str | None, typer.Option(help="bcop (default), bcop-fixed, rko, ossn, svcm, rkl2ne, standard")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="maxmin (the default) or relu")] = None,
    recipe: Annotated[str | None, typer.Option(help="default, or paper for exactly the paper's")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="passes over the training set; 60, in the paper's recipe 200")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="images per step, over all processes; 128, fewer of few")
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="steepest (of bcop and rko), adam (of others) or rmsprop")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate; the recipe's, unless said")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear (the default), exponential, cosine or constant")] = None,
    loss: Annotated[str | None, typer.Option(help="cross-entropy (the default) or hinge")] = None,
    margin: Annotated[float | None, typer.Option(help="the hinge loss's margin")] = None,
    temperature: Annotated[float | None, typer.Option(help="the cross-entropy's temperature")] = None,
    offset: Annotated[float | None, typer.Option(help="the cross-entropy's offset")] = None,
    orthogonalisation: Annotated[str | None, typer.Option(help="manifold (the default) or bjorck")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (the default), or bf16 for the convolutions")] = None,
    crop_padding: Annotated[int | None, typer.Option(help="train on random crops from so many zeros around")] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help="mirror images at random (the default, but for digits and mnist)"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="0, or several, trained side by side: 0,1,2,3,4")] = None,
    epsilon: Annotated[list[str] | None, typer.Option(help="radii to certify at, such as 36/255")] = None,
    search: Annotated[str | None, typer.Option(help="learning rates to try on a validation split first")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard events too")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")] = False,
) -> None:
    """Train a classifier and say how accurate and how robust it is.

    Example: isoconv train cifar10 --data DIR --model large --out runs/large --seeds 0,1,2,3,4
    """
    given = {
        "model": model,
        "conv": conv,
        "activation": activation,
        "recipe": recipe,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimiser": optimiser,
        "lr": lr,
        "schedule": schedule,
        "loss": loss,
        "margin": margin,
        "temperature": temperature,
        "offset": offset,
        "orthogonalisation": orthogonalisation,
        "precision": precision,
        "crop_padding": crop_padding,
        "flip": flip,
    }
    explicit = {name: value for name, value in given.items() if value is not None}
    chosen_device = choose_device(device)
    processes = Processes.join(chosen_device)
    radii = [parse_number(text, "--epsilon") for text in epsilon or []]
    sides = None if size is None else parse_size(size)
    rates = None if search is None else parse_numbers(search, "--search")
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    if resume and search is not None:
        raise IsoconvError("Expected --search for a new run only. Got it with --resume.")
    models = None
    if resume:
        numbers = _seeds_of(out) if seeds is None else parse_seeds(seeds)
        folders = seed_folders(out, numbers)
        configs, splits = _resumed(folders, data, folder, download, sides, numbers, explicit)
        for run in folders if processes.first else ():
            run.lock()
    else:
        numbers = parse_seeds("0" if seeds is None else seeds)
        folders = seed_folders(out, numbers)
        configs, splits = _new(data, folder, download, sides, numbers, explicit, processes.count)
        models = build_networks(configs, splits.train, chosen_device, processes)
        if processes.first:
            _check_free(out, folders, overwrite)
        if rates is not None:
            configs = _searched(configs, splits, rates, chosen_device, processes)
        if processes.first:
            for run, config in zip(folders, configs, strict=True):
                run.start(config, overwrite)
            if rates is None:
                _say_what_was_read(configs[0], splits)
            if chosen_device == "cpu" and model is None:
                print(
                    "The network is large, the default, which is slow on a CPU: --model small is not.", file=sys.stderr
                )
        processes.wait()
    radii = radii or list(default_epsilons(configs[0].data))
    test = splits.test if splits.has_test else None
    total = len(splits.train) // configs[0].batch_size * configs[0].epochs
    done = folders[0].updates_done() if resume else 0
    if resume and processes.first:
        where = (
            f"Going on after {done:,} of {total:,} steps."
            if done < total
            else f"All {total:,} steps were done already."
        )
        print(where, file=sys.stderr)
    with interruptible() as should_stop, TrainingProgress(total, done, quiet=not processes.first) as shown:
        observer = TensorBoardToo(shown, str(out)) if tensorboard and processes.first else shown
        try:
            results = train_classifiers(
                configs,
                folders,
                splits.train,
                test,
                radii,
                observer,
                device=chosen_device,
                processes=processes,
                resume=resume,
                should_stop=should_stop,
                models=models,
            )
        except Stopped:
            if processes.first:
                shown.close()
                again = ["isoconv", "train", "--resume", "--out", str(out)]
                again += ["--data", str(folder)] if folder is not None else []
                again += ["--device", device] if device != "auto" else []
                again += [part for text in epsilon or [] for part in ("--epsilon", text)]
                again += [flag for flag, on in (("--tensorboard", tensorboard), ("--json", as_json)) if on]
                print(f"Stopped, and saved in {out}. To go on: {shlex.join(again)}", file=sys.stderr)
            raise SystemExit(130) from None
        finally:
            processes.leave()
    if processes.first:
        if as_json:
            print(json.dumps([result.to_fields() for result in results]))
        else:
            print_results(
                [result.to_fields() for result in results],
                f"{configs[0].model}, {configs[0].conv}, {splits.train.name}, {_counted(configs[0].epochs, 'epoch')}",
            )
            named = shlex.join([str(out), *(["--data", str(folder)] if folder is not None else [])])
            print(f"The run is in {out}. To see it: isoconv report {named}", file=sys.stderr)


def _new(
    data: str | None,
    folder: Path | None,
    download: bool,
    size: Size | None,
    seeds: Sequence[int],
    explicit: dict[str, Any],
    processes: int,
) -> tuple[list[TrainConfig], Splits]:
    if data is None:
        raise IsoconvError(
            "Expected what to train on: digits, mnist, cifar10, stl10, a folder of images or a CSV file."
        )
    if data not in NAMES and folder is not None:
        raise IsoconvError(
            f"Expected --data for {', '.join(FROM_FILES)}. Got it with {data}, which says itself where it is."
        )
    splits = load_splits(data, folder, size=size, download=download)
    settings = recipe_settings(explicit.get("recipe", "default"), data, explicit.get("conv", "bcop")) | explicit
    settings.setdefault("batch_size", batch_size_for(len(splits.train), processes))
    if data not in NAMES:
        data = str(Path(data).resolve())  # to be found again from another folder
    shape, classes = splits.train.shape, splits.train.classes
    first = TrainConfig(data=data, input_shape=shape, classes=classes, listing=splits.listing, **settings)
    return [replace(first, seed=seed) for seed in seeds], splits


def batch_size_for(images: int, processes: int = 1) -> int:
    """128; of few pictures so few that an epoch has several batches, and of a size that leaves few pictures over.

    With several processes a multiple of their number.
    """
    usual = min(128, max(8, images // 16))
    size = usual if usual == 128 or images < 8 else images // max(2, round(images / usual))
    return max(1, min(size, images) // processes) * processes


def _say_what_was_read(config: TrainConfig, splits: Splits) -> None:
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
    ignored = f"; {_counted(splits.ignored, 'other file')} passed over" if splits.ignored else ""
    print(
        f"{config.data}: {len(train):,} images to train on{sizes if uneven else ''}, {held_out}, "
        f"of {len(train.classes)} classes, {height}×{width} in {colours}{ignored}",
        file=sys.stderr,
    )


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"


def _seeds_of(out: Path) -> list[int]:
    """The seeds of the run in a folder."""
    if RunFolder(out).exists:
        return [TrainConfig.read(RunFolder(out).config).seed]
    inside = [path.name.removeprefix("seed-") for path in out.glob("seed-*")]
    if not inside or not all(seed.isdecimal() for seed in inside):
        raise IsoconvError(f"Expected a run to resume in {out}. There is none.")
    return sorted(int(seed) for seed in inside)


def _resumed(
    folders: Sequence[RunFolder],
    data: str | None,
    folder: Path | None,
    download: bool,
    size: Size | None,
    seeds: Sequence[int],
    explicit: dict[str, Any],
) -> tuple[list[TrainConfig], Splits]:
    for run in folders:
        if not run.exists:
            raise IsoconvError(f"Expected a run to resume in {run.path}. There is none.")
    configs = [TrainConfig.read(run.config) for run in folders]
    _, height, width = configs[0].input_shape
    asked = explicit | ({} if size is None else {"size": height_and_width(size)}) | {"seeds": list(seeds)}
    has = vars(configs[0]) | {"size": (height, width), "seeds": [config.seed for config in configs]}
    for name, value in asked.items():
        if has[name] != value:
            raise IsoconvError(
                f"Expected the options of the run that is resumed. Got {_option(name, value)}, "
                f"where it has {_option(name, has[name]) if name == 'flip' else _shown(has[name])}."
            )
    if data is not None and configs[0].data not in (data, str(Path(data).resolve())):
        raise IsoconvError(f"Expected the data that the run was started with, {configs[0].data}. Got {data}.")
    return configs, splits_of(configs[0], folder, download)


def _searched(
    configs: list[TrainConfig], splits: Splits, rates: list[float], device: str, processes: Processes
) -> list[TrainConfig]:
    for rate in rates:
        replace(configs[0], lr=rate)  # refuses what is no rate
    if processes.first:
        _say_what_was_read(configs[0], splits)
    best, scores = search_learning_rate(configs[0], splits.train, rates, device, processes)
    if processes.first:
        for rate, (clean, robust) in scores.items():
            mark = "  ← chosen" if rate == best else ""
            print(f"validation at lr {rate:g}: clean {clean:.2f} %, robust {robust:.2f} %{mark}", file=sys.stderr)
    return [replace(config, lr=best) for config in configs]


def _check_free(out: Path, folders: Sequence[RunFolder], overwrite: bool) -> None:
    """All folders or none: nothing is touched if one of them may not be."""
    if len(folders) > 1 and RunFolder(out).exists:
        raise IsoconvError(f"{out} already holds a run of one seed: name another folder for several (--out).")
    for run in folders:
        run.check_free(overwrite)


def _option(name: str, value: Any) -> str:
    """An option as it was written on the command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name.replace('_', '-')} {_shown(value)}"


def _shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    if isinstance(value, tuple):
        return str(value[0]) if len(set(value)) == 1 else "×".join(str(part) for part in value)
    return ",".join(str(part) for part in value) if isinstance(value, list) else str(value)
