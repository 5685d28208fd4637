"""The command that makes a run again, from the configuration in its folder."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from isoconv.data.datasets import DATASETS, FROM_FILES
from isoconv.report.run_files import RunFiles
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.run_folder import seeds_in

# What the command line can set; everything else follows from the data, the recipe and the method.
_OPTIONS = (
    *("model", "conv", "activation", "orthogonalisation", "loss", "margin", "temperature", "offset", "loss_options"),
    *("optimiser", "lr", "schedule", "epochs", "batch_size", "crop_padding", "flip", "augment", "precision"),
)
_APART = ("data", "input_shape", "classes", "listing", "graph", "seed", "recipe")


def command_of(run: RunFiles) -> str | None:
    """Return the command that makes a run again, with all seeds that were trained side by side; None if there is none."""
    seeds, out = [run.config.seed], run.path
    if run.result.replicas > 1 and run.path.name == f"seed-{run.config.seed}":
        together = seeds_in(run.path.parent)
        if len(together) == run.result.replicas:
            seeds, out = together, run.path.parent
    return train_command(run.config, out, seeds, list(run.result.certified_accuracy))


def train_command(
    config: TrainConfig, out: Path, seeds: Sequence[int] = (), epsilons: Sequence[float] = ()
) -> str | None:
    """Return `isoconv train …` with every option that differs from its default; None if no options make this run.

    The folder of a downloaded data set is not part of a run: the command has --data DIR for it.
    """
    settings = recipe_settings(config.recipe, config.data, config.conv, config.model)
    usual = TrainConfig(config.data, config.input_shape, config.classes, **settings)
    changed = {field.name for field in fields(config) if getattr(config, field.name) != getattr(usual, field.name)}
    if changed - {*_APART, *_OPTIONS}:
        return None
    words = ["isoconv", "train", config.data]
    if config.data in FROM_FILES:
        words += ["--data", "DIR"]
    height, width = config.input_shape[1:]
    if config.data not in DATASETS or DATASETS[config.data].shape[1:] != (height, width):
        words += ["--size", str(height) if height == width else f"{height}x{width}"]
    if config.recipe != "default":
        words += ["--recipe", config.recipe]
    for name in (name for name in _OPTIONS if name in changed):
        value, option = getattr(config, name), name.replace("_", "-")
        if name == "loss_options":
            words += [word for pair in value.items() for word in ("--loss-option", f"{pair[0]}={pair[1]}")]
            continue
        words.append(f"--no-{option}" if value is False else f"--{option}")
        words += [] if isinstance(value, bool) else [",".join(map(str, value)) if name == "augment" else str(value)]
    wanted = list(seeds) or [config.seed]
    if wanted != [0]:
        words += ["--seeds", ",".join(map(str, wanted))]
    if epsilons and list(epsilons) != list(default_epsilons(config.data)):
        words += [word for epsilon in epsilons for word in ("--epsilon", repr(epsilon))]
    return shlex.join([*words, "--out", str(out)])
