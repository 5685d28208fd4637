"""Compares recipes on a validation split of the training set: how the default one was chosen. Never looks at the test set.

Each recipe is written as settings of `isoconv.train.config.TrainConfig` that differ from the default one's:

    python benchmarks/recipes.py --data DIR --dataset cifar10 --model large --epochs 30 \\
        "" "temperature=0.0625" "loss=hinge lr=0.02" [--images 10000] [--json FILE]
"""

import argparse
import json
import time
from pathlib import Path

import torch

from accuracy import settings_of
from isoconv.data import EpochBatches, hold_out, load_splits
from isoconv.train.capture import make_stepper
from isoconv.train.classifier import Classification, device_name, evaluate
from isoconv.train.config import TrainConfig, default_epsilons, make_model, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data", default=None)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="large")
    parser.add_argument("--conv", default="bcop")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--held-out", type=int, default=5000)
    parser.add_argument("--images", type=int, default=None, help="train on this many only, where time is short")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    device = torch.device(choose_device(arguments.device))
    data = load_splits(arguments.dataset, arguments.data)
    train, validation = hold_out(data.train, arguments.held_out)
    train = train.take(arguments.images or len(train))
    radii = default_epsilons(arguments.dataset)
    runs = []
    for text in arguments.recipes:
        settings = recipe_settings("default", arguments.dataset, arguments.conv) | {"epochs": arguments.epochs}
        settings |= {"model": arguments.model, "conv": arguments.conv} | settings_of(text)
        config = TrainConfig(data=arguments.dataset, input_shape=train.shape, classes=train.classes, **settings)
        batches = EpochBatches(
            train,
            config.batch_size,
            seed=config.seed,
            device=device,
            padding=config.crop_padding,
            flip=config.flip,
        )
        learner = Learner.from_config(config, make_model(config), Classification(config), len(batches), device=device)
        runs.append((text, config.epochs, learner, batches))
    stepper = make_stepper([learner for _, _, learner, _ in runs])
    start = time.perf_counter()
    for epoch in range(max(epochs for _, epochs, _, _ in runs)):
        streams = [iter(b.epoch(epoch) if epoch < epochs else ()) for _, epochs, _, b in runs]
        while any(drawn := [next(stream, None) for stream in streams]):
            stepper.step(drawn)
            moved = [run[2] for run, batch in zip(runs, drawn, strict=True) if batch is not None]
            stepper.project([one for one in moved if one.done % one.project_every == 0 or one.done == one.steps])
    rows = []
    stepper.wait()
    for text, epochs, learner, _ in runs:
        result = evaluate(learner.model.eval(), validation, radii, device)
        made = {"conv": arguments.conv, "recipe": text, "epochs": epochs, "images": len(train)}
        place = device_name(device)
        rows.append(made | {"clean": result["clean"], "robust": result["robust"], "hardware": place})
        figures = "  ".join(f"{value:.2f}" for value in (result["clean"], *result["robust"].values()))
        print(f"{figures}  {text or 'as it is'}", flush=True)
    print(f"{time.perf_counter() - start:.1f} s for {len(runs)} side by side, {arguments.dataset} {arguments.model}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
