"""Measures clean and certified accuracy of BCOP Large on CIFAR-10, and the time that it takes to get there.

Trains one seed alone (that is the time stated), then all five side by side (their mean and population standard deviation
are the accuracy stated), last epoch, with the default recipe.

    python benchmarks/headline.py --data DIR [--epochs 30] [--json FILE]
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from isoconv.data import load_splits
from isoconv.train.classifier import seed_folders, train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport


class Quiet:
    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None:
        if report.epoch % 10 == 0:
            print(f"epoch {report.epoch}: {report.images_per_second:,.0f} images/s", flush=True)


def results_of(seeds: list[int], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    train, test = load_splits(arguments.dataset, arguments.data)
    settings = recipe_settings("default", arguments.dataset, "bcop") | {"epochs": arguments.epochs}
    first = TrainConfig(
        data=arguments.dataset, input_shape=train.shape, classes=train.classes, model=arguments.model, **settings
    )
    configs = [replace(first, seed=seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as scratch:
        folders = seed_folders(Path(scratch) / "run", seeds)
        for folder, config in zip(folders, configs, strict=True):
            folder.start(config, overwrite=False)
        radii = default_epsilons(arguments.dataset)
        return train_classifiers(
            configs, folders, train, test, radii, Quiet(), device=choose_device(arguments.device), save_every=1e9
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="where the data set's files are")
    parser.add_argument("--dataset", default="cifar10", choices=["cifar10", "mnist", "digits"])
    parser.add_argument("--model", default="large", choices=["small", "large", "fc3"])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    (alone,) = results_of([0], arguments)
    five = results_of([0, 1, 2, 3, 4], arguments)
    columns = {"clean": [r["clean"] for r in five]} | {
        f"certified at {float(e):.4g}": [r["robust"][e] for r in five] for e in alone["robust"]
    }
    print(f"{alone['device']}, torch {alone['torch']}, {arguments.epochs} epochs, last epoch, seeds 0–4")
    print(f"one seed alone: {alone['train_seconds']:.1f} s; five side by side: {five[0]['train_seconds']:.1f} s")
    for name, values in columns.items():
        print(f"{name:>24}: {fmean(values):.2f} ± {pstdev(values):.2f} %")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"alone": alone, "five": five}, indent=2) + "\n")


if __name__ == "__main__":
    main()
