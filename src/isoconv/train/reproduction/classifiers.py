"""Training the networks of a cell, or going on with them, and what is known of them afterwards."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from isoconv.data import ImageSet
from isoconv.linalg import circular_singular_values, fold_stride
from isoconv.nn import plain
from isoconv.train.classifier import train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, make_model, recipe_settings
from isoconv.train.engine import Stopped
from isoconv.train.reproduction.cells import ClassifierCell, default_epochs, default_seeds
from isoconv.train.reproduction.data import QUICK_BATCH, DataSets
from isoconv.train.reproduction.results import environment
from isoconv.train.reproduction.settings import CannotGoOnError, Settings, Silent
from isoconv.train.run_folder import RunFolder, load_run

_SAVE_EVERY = 60.0  # seconds; stopping saves too
_BINS = 50


def cell_configs(cell: ClassifierCell, train: ImageSet, settings: Settings) -> list[TrainConfig]:
    """One configuration per seed."""
    chosen = recipe_settings(cell.recipe, cell.dataset, cell.conv)
    chosen |= {"model": cell.model, "conv": cell.conv, "activation": cell.activation}
    chosen["epochs"] = settings.epochs_or(default_epochs(cell))
    if settings.quick:
        chosen |= {"batch_size": QUICK_BATCH, "project_iterations": 5}
    first = TrainConfig(data=cell.dataset, input_shape=train.shape, classes=train.classes, **chosen)
    return [replace(first, seed=seed) for seed in settings.seeds_or(default_seeds(cell))]


def cell_folders(cell: ClassifierCell, settings: Settings) -> list[RunFolder]:
    return [RunFolder(settings.runs / cell.name / f"seed-{seed}") for seed in settings.seeds_or(default_seeds(cell))]


def trained_networks(cell: ClassifierCell, settings: Settings, data: DataSets) -> list[RunFolder]:
    """The folders of a cell's networks, all trained to the end; raises `Stopped` if there was no time for that."""
    train, test = data.splits(cell.dataset)
    configs, folders = cell_configs(cell, train, settings), cell_folders(cell, settings)
    for config, folder in zip(configs, folders, strict=True):
        if not folder.exists:
            folder.start(config, overwrite=False)
        elif asdict(TrainConfig.read(folder.config)) != asdict(config):
            raise CannotGoOnError(
                f"Expected a run with the same settings to go on with in {folder.path}. Got another: "
                f"remove it, or name another folder (--runs)."
            )
    if all(folder.model.exists() and folder.result.exists() for folder in folders):
        return folders
    _draw_level(configs, folders, train, settings)
    steps = len(train) // configs[0].batch_size * configs[0].epochs
    observer = settings.watcher.training(cell.name, steps, folders[0].updates_done())
    try:
        train_classifiers(
            configs,
            folders,
            train,
            test,
            default_epsilons(cell.dataset),
            observer,
            device=settings.device,
            resume=True,
            should_stop=settings.should_stop,
            save_every=_SAVE_EVERY,
        )
    finally:
        settings.watcher.finished()
    return folders


def _draw_level(configs: list[TrainConfig], folders: list[RunFolder], train: ImageSet, settings: Settings) -> None:
    """Seeds advance together. If they were killed while they were saved, those behind catch up with the others first."""
    done = [folder.updates_done() for folder in folders]
    furthest = max(done)
    for count in sorted(Counter(done)):
        if count == furthest:
            return
        behind = [k for k, n in enumerate(done) if n == count]
        try:
            train_classifiers(
                [configs[k] for k in behind],
                [folders[k] for k in behind],
                train,
                None,
                (),
                Silent(),
                device=settings.device,
                resume=True,
                should_stop=_after(furthest - count),
                save_every=_SAVE_EVERY,
            )
        except Stopped:
            continue


def _after(steps: int) -> Callable[[], bool]:
    asked = 0

    def reached() -> bool:
        nonlocal asked
        asked += 1
        return asked >= steps

    return reached


def classifier_record(cell: ClassifierCell, folders: list[RunFolder]) -> dict[str, Any]:
    """The result of a cell whose networks are trained."""
    results = [folder.read_result() for folder in folders]
    config = TrainConfig.read(folders[0].config).to_fields()
    classes = config.pop("classes")
    config.pop("seed")
    first = results[0]
    record: dict[str, Any] = {
        **cell.identity(),
        "status": "ok",
        "seeds": [result["seed"] for result in results],
        "epochs": first["epochs"],
        "images": first["images"],
        "results": [
            {name: result[name] for name in ("seed", "clean", "robust", "lipschitz_bound")} for result in results
        ],
        "train_seconds": first["train_seconds"],
        "peak_memory_mib": first["peak_memory_mib"],
        "hardware": first["device"],
        **environment(),
        "torch": first["torch"],
        "config": {**config, "classes": len(classes)},
    }
    if cell.model == "large":
        record["second_layer"] = second_layer_values(folders[0])
    return json.loads(json.dumps(record))  # as it will be read


def second_layer_values(folder: RunFolder) -> dict[str, Any]:
    """The singular values of the second convolution before and after training, as a histogram and as quantiles."""
    model, config = load_run(folder.path)
    before, after = (
        _second_layer(network, config.input_shape[1:]) for network in (plain(make_model(config)).eval(), model)
    )
    top = max(1.25, float(before.max()), float(after.max())) * (1 + 1e-9)
    edges = torch.linspace(0, top, _BINS + 1, dtype=torch.float64)
    found: dict[str, Any] = {"seed": config.seed, "count": len(after), "edges": edges.tolist()}
    for name, values in (("before", before), ("after", after)):
        counts = torch.histogram(values, edges).hist
        quantiles = torch.quantile(values, torch.tensor([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1], dtype=values.dtype))
        found[name] = {"counts": [int(n) for n in counts], "quantiles": quantiles.tolist()}
    return found


@torch.no_grad()
def _second_layer(network: nn.Module, size: tuple[int, ...]) -> torch.Tensor:
    """Large's first convolution keeps the image's size, so that `size` is the second one's too."""
    convolution = [module for module in network.modules() if isinstance(module, nn.Conv2d)][1]
    stride = convolution.stride
    kernel = fold_stride(convolution.weight.double().cpu(), stride)
    return circular_singular_values(kernel, [n // s for n, s in zip(size, stride, strict=True)])
