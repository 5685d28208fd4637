"""Compares the fast path with the paper's: parameters kept on the manifold against 20 differentiated Björck steps.

Same start (the same orthonormal matrices), same optimiser (Adam), same data, several seeds of each. The paper's parameters
are smaller than orthonormal ones by a factor √c, so that one rate means steps of different length: each path takes, out
of one grid, the rate that is best on a validation split.

    python benchmarks/paths.py --data DIR --dataset mnist --epochs 10 --seeds 5 [--json FILE]
"""

import argparse
import json
from pathlib import Path

from accuracy import print_summary, train_seeds
from isoconv.data import load_splits
from isoconv.train.config import TrainConfig, recipe_settings
from isoconv.train.distributed import Processes, choose_device
from isoconv.train.job import search_learning_rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=None)
    parser.add_argument("--dataset", default="digits", choices=["cifar10", "mnist", "digits"])
    parser.add_argument("--model", default="small", choices=["small", "large", "fc3"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", default="0.0005,0.001,0.002,0.004,0.008")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    record = {}
    train = load_splits(arguments.dataset, arguments.data).train
    rates = [float(rate) for rate in arguments.rates.split(",")]
    device = choose_device(arguments.device)
    for name, orthogonalisation in (("fast path", "manifold"), ("the paper's path", "bjorck")):
        settings = {"recipe": "paper", "model": arguments.model, "orthogonalisation": orthogonalisation}
        settings |= {"epochs": arguments.epochs, "schedule": "linear"}
        recipe = recipe_settings("paper", arguments.dataset, "bcop") | settings
        config = TrainConfig(data=arguments.dataset, input_shape=train.shape, classes=train.classes, **recipe)
        best, scores = search_learning_rate(config, train, rates, device, Processes())
        print(f"{name}: validation (clean, robust) by rate: {scores}")
        settings["lr"] = best
        seeds = list(range(arguments.seeds))
        record[name] = train_seeds(arguments.dataset, arguments.data, seeds, settings, arguments.device)
        print(f"{name}: {arguments.dataset} {settings}, {record[name][0]['train_seconds']:.1f} s")
        print_summary(record[name])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
