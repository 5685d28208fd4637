"""Measures lower bounds of W1 between a data set and a generator: three methods, two activations, five seeds.

Claim: the paper's ranking, BCOP with MaxMin above BCOP with ReLU, and BCOP above RKO above OSSN, each estimate divided by
its network's proved Lipschitz bound. The generator is a WGAN-GP, trained here or taken from `--generator`. The data set's
training images are the whole of one distribution; the generator is judged by fresh batches, one observation each.

    python benchmarks/wasserstein_images.py --data DIR [--dataset stl10] [--recipe default] [--epochs N] [--out runs/w]
        [--generator RUN] [--seeds 0,1,2,3,4] [--json FILE] [--quick]
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from isoconv.cli.options import parse_seeds
from isoconv.data import ImageSet, load_splits
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport
from isoconv.train.run_folder import RunFolder, seed_folders
from isoconv.wasserstein.critic import critic_config, train_critics
from isoconv.wasserstein.gan import GanConfig, load_generator, train_gan
from isoconv.wasserstein.samples import FiniteSamples, GeneratedSamples

SIZES = {"stl10": 64, "cifar10": 32, "digits": 16}
PAPER = {
    ("stl10", "maxmin"): {"bcop": 9.91, "rko": 8.95, "ossn": 7.39},
    ("stl10", "relu"): {"bcop": 8.28, "rko": 7.82, "ossn": 7.06},
    ("cifar10", "maxmin"): {"bcop": 5.34, "rko": 4.95, "ossn": 3.29},
    ("cifar10", "relu"): {"bcop": 4.39, "rko": 4.20, "ossn": 3.07},
}


class Quiet:
    """A line every tenth of the way."""

    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None:
        if report.epoch % max(1, report.epochs // 10) == 0:
            print(
                f"  epoch {report.epoch}: difference {-report.loss:.3f}, {report.seconds_left:.0f} s left", flush=True
            )


def generator_run(images: ImageSet, arguments: argparse.Namespace, device: str, scratch: Path) -> Path:
    """The folder of the generator: the one that was named, or one trained now."""
    if arguments.generator:
        return Path(arguments.generator)
    folder = RunFolder(Path(arguments.out) / "gan" if arguments.out else scratch / "gan")
    batch = 8 if arguments.quick else 64
    config = GanConfig(arguments.dataset, images.shape, epochs=arguments.gan_epochs, batch_size=batch)
    if folder.exists and folder.model.exists():
        print(f"the generator in {folder.path} is taken", flush=True)
        return folder.path
    folder.start(config, overwrite=True)
    began = time.perf_counter()
    train_gan(config, folder, images, Quiet(), device=device, save_every=60.0)
    print(
        f"generator: {arguments.gan_epochs} epochs in {time.perf_counter() - began:.0f} s; see {folder.path}/samples.png"
    )
    return folder.path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=None, help="where the data set's files are")
    parser.add_argument("--dataset", default="stl10", choices=list(SIZES))
    parser.add_argument("--recipe", default="default", choices=["default", "paper"])
    parser.add_argument("--epochs", type=int, default=None, help="100 updates each; the recipe's own by default")
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--upsample", type=int, default=1, help="2 on CIFAR-10 is what the paper did")
    parser.add_argument("--gan-epochs", type=int, default=128)
    parser.add_argument("--generator", default=None, help="the run folder of a trained generator")
    parser.add_argument("--methods", default="bcop,rko,ossn")
    parser.add_argument("--activations", default="maxmin,relu")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--samples", type=int, default=64_000, help="images that the generator is judged by")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default=None, help="keep the runs in this folder")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    parser.add_argument("--quick", action="store_true", help="a few steps on the embedded digits at 16×16")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.dataset, arguments.epochs, arguments.gan_epochs = "digits", 1, 1
        arguments.seeds, arguments.samples = "0,1", 64
    device = choose_device(arguments.device)
    images = load_splits(arguments.dataset, arguments.data, size=SIZES[arguments.dataset]).train
    if arguments.quick:
        images = images.take(64)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        path = generator_run(images, arguments, device, Path(scratch))
        generator, gan_config = load_generator(path)
        fake = GeneratedSamples("generator", generator, count=arguments.samples, batch=gan_config.batch_size)
        real = FiniteSamples(arguments.dataset, images.images, whole=True)
        seeds = parse_seeds(arguments.seeds)
        for activation in arguments.activations.split(","):
            for conv in arguments.methods.split(","):
                settings = {name: getattr(arguments, name) for name in ("epochs", "lr") if getattr(arguments, name)}
                settings |= {"steps_per_epoch": 2, "batch_size": 8} if arguments.quick else {}
                first = critic_config(
                    "generator",
                    arguments.dataset,
                    images.shape,
                    conv=conv,
                    activation=activation,
                    recipe=arguments.recipe,
                    upsample=arguments.upsample,
                    pixel_range=(-1.0, 1.0),
                    whole=(False, True),
                    **settings,
                )
                configs = [replace(first, seed=seed) for seed in seeds]
                folders = seed_folders(Path(arguments.out or scratch) / f"{conv}-{activation}", seeds)
                for folder, config in zip(folders, configs, strict=True):
                    folder.start(config, overwrite=True)
                print(f"{conv}, {activation}", flush=True)
                trained = train_critics(configs, folders, fake, real, observer=Quiet(), device=device, save_every=1e9)
                rows += [critic.bound.to_fields() for critic in trained]
                if arguments.json:  # what is there so far, should the machine be taken away
                    write(Path(arguments.json), arguments, gan_config, rows)
    print(f"{rows[0]['device']}, torch {rows[0]['torch']}, {arguments.recipe} recipe, {rows[0]['updates']} updates")
    print(f"{rows[0]['units']}; estimate (mean ± population standard deviation over seeds), lower bound at 0.95, paper")
    for row in summary(rows, arguments.dataset):
        print(
            f"{row['conv']:>6} {row['activation']:>7} {row['mean']:8.3f} ± {row['deviation']:.3f}   ≥ {row['lower']:.3f}"
            f"   {row['paper'] or '–'}   L ≤ {row['lipschitz_bound']:.6f}   {row['seconds']:.0f} s"
        )


def summary(rows: list[dict[str, Any]], dataset: str) -> list[dict[str, Any]]:
    """One line per method and activation."""
    lines = []
    for conv, activation in dict.fromkeys((row["conv"], row["activation"]) for row in rows):
        own = [row for row in rows if (row["conv"], row["activation"]) == (conv, activation)]
        estimates = [row["estimate"] for row in own]
        lines.append(
            {
                "conv": conv,
                "activation": activation,
                "mean": fmean(estimates),
                "deviation": pstdev(estimates),
                "lower": fmean(row["lower"] for row in own),
                "paper": PAPER.get((dataset, activation), {}).get(conv),
                "lipschitz_bound": max(row["lipschitz_bound"] for row in own),
                "seconds": own[0]["train_seconds"],
            }
        )
    return lines


def write(path: Path, arguments: argparse.Namespace, generator: GanConfig, rows: list[dict[str, Any]]) -> None:
    asked = {
        name: getattr(arguments, name) for name in ("dataset", "recipe", "epochs", "lr", "upsample", "seeds", "samples")
    }
    asked["generator"] = {"epochs": generator.epochs, "seed": generator.seed, "batch_size": generator.batch_size}
    content = {"arguments": asked, "summary": summary(rows, arguments.dataset), "critics": rows}
    path.write_text(json.dumps(content | {"torch": torch.__version__}, indent=2) + "\n")


if __name__ == "__main__":
    main()
