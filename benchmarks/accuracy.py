"""Measures clean and certified accuracy at the last epoch over seeds, and the time that training takes.

With --alone one seed is trained by itself first: that is the time stated for a model. All seeds then train side by side:
their mean and population standard deviation are the accuracy stated. Settings are those of the default recipe unless --set
changes them ("recipe=paper" first takes all of the paper's).

    python benchmarks/accuracy.py --data DIR --dataset cifar10 --model large --alone [--set "epochs=30"] [--json FILE]
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from isoconv.data import load_splits
from isoconv.train.classifier import train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport
from isoconv.train.run_folder import seed_folders


class Quiet:
    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None:
        if report.epoch % 10 == 0:
            print(f"epoch {report.epoch}: {report.images_per_second:,.0f} images/s", flush=True)


def settings_of(text: str) -> dict[str, Any]:
    """ "lr=0.02 loss=hinge" as a dictionary; what reads as a number is one."""
    found: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def train_seeds(
    dataset: str, data: str | None, seeds: list[int], settings: dict[str, Any], device: str, keep: Path | None = None
) -> list[dict[str, Any]]:
    """The results of seeds trained side by side; their run folders stay under `keep` if that is given."""
    train, test = load_splits(dataset, data)
    recipe = recipe_settings(settings.get("recipe", "default"), dataset, settings.get("conv", "bcop")) | settings
    first = TrainConfig(data=dataset, input_shape=train.shape, classes=train.classes, **recipe)
    configs = [replace(first, seed=seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as scratch:
        folders = seed_folders((keep or Path(scratch)) / "run", seeds)
        for folder, config in zip(folders, configs, strict=True):
            folder.start(config, overwrite=False)
        radii = default_epsilons(dataset)
        place = choose_device(device)
        return train_classifiers(configs, folders, train, test, radii, Quiet(), device=place, save_every=1e9)


def print_summary(results: list[dict[str, Any]]) -> None:
    """Mean and population standard deviation of every accuracy."""
    columns = {"clean": [r["clean"] for r in results]} | {
        f"certified at {float(e):.4g}": [r["robust"][e] for r in results] for e in results[0]["robust"]
    }
    for name, values in columns.items():
        print(f"{name:>24}: {fmean(values):.2f} ± {pstdev(values):.2f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=None, help="where the data set's files are")
    parser.add_argument("--dataset", default="cifar10", choices=["cifar10", "mnist", "digits"])
    parser.add_argument("--model", default="large", choices=["small", "large", "fc3"])
    parser.add_argument("--conv", default="bcop")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", default="", dest="settings")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, default=None, help="keep the run folders here")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    settings = {"model": arguments.model, "conv": arguments.conv, **settings_of(arguments.settings)}
    shared = (settings, arguments.device)
    alone = train_seeds(arguments.dataset, arguments.data, [0], *shared) if arguments.alone else []
    seeds = list(range(arguments.seeds))
    together = train_seeds(arguments.dataset, arguments.data, seeds, *shared, arguments.keep) if seeds else []
    some = (together or alone)[0]
    print(
        f"{arguments.dataset} {settings} {some['device']}, torch {some['torch']}, {some['epochs']} epochs, last epoch"
    )
    for results in filter(None, (alone, together)):
        memory = results[0]["peak_memory_mib"]
        print(f"{len(results)} side by side: {results[0]['train_seconds']:.1f} s, peak memory {memory:.0f} MiB")
        print_summary(results)
    if arguments.json:
        path = Path(arguments.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"dataset": arguments.dataset, "settings": settings, "alone": alone, "side_by_side": together}
        path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
