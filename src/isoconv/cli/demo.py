"""isoconv demo"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.progress import TrainingProgress
from isoconv.cli.tables import print_results
from isoconv.data import load_splits
from isoconv.train.classifier import seed_folders, train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings


def demo(
    epochs: Annotated[int, typer.Option(help="passes over the 4,000 training digits")] = 30,
) -> None:
    """Train a small orthogonal network on real digits, on the CPU, and certify it.

    Example: isoconv demo
    """
    train, test = load_splits("digits")
    settings = recipe_settings("default", "digits", "bcop") | {"model": "small", "epochs": epochs}
    config = TrainConfig(data="digits", input_shape=train.shape, classes=train.classes, **settings)
    with tempfile.TemporaryDirectory() as scratch:
        folders = seed_folders(Path(scratch) / "demo", [config.seed])
        folders[0].start(config, overwrite=False)
        with TrainingProgress(len(train) // config.batch_size * epochs) as shown:
            results = train_classifiers([config], folders, train, test, default_epsilons("digits"), shown)
    print_results(results, f"A 1-Lipschitz network on 1,000 digits that it has not seen, after {epochs} epochs")
