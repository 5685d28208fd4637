"""Measures what several networks cost that train side by side on one GPU, against one alone.

A round is one step of each, and its share of what is projected between steps. Also says the peak memory of the process.

    python benchmarks/replicas.py [--model large] [--conv bcop] [--counts 1,2,5] [--json FILE]
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from isoconv.train.capture import make_stepper
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner

SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}
ROUNDS, STEPS = 7, 100


def round_time(count: int, arguments: argparse.Namespace) -> float:
    """Milliseconds of one step of each of `count` replicas."""
    device, shape = torch.device(choose_device("cuda")), SHAPES[arguments.data]
    settings = recipe_settings("default", arguments.data, arguments.conv)
    config = TrainConfig(
        data=arguments.data,
        input_shape=shape,
        classes=tuple("0123456789"),
        model=arguments.model,
        conv=arguments.conv,
        **settings,
    )
    learners = [
        Learner.from_config(c, make_model(c), Classification(c), 10**6, device=device)
        for c in (replace(config, seed=seed) for seed in range(count))
    ]
    images = torch.randint(0, 256, (config.batch_size, *shape), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 10, (config.batch_size,), device=device)
    stepper = make_stepper(learners)
    times = []
    for turn in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            stepper.step([(images, labels)] * count)
            stepper.project_where_due()
        torch.cuda.synchronize()
        if turn:  # the first warms up and captures
            times.append((time.perf_counter() - start) / STEPS * 1e3)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="large", choices=["small", "large"])
    parser.add_argument("--data", default="cifar10", choices=list(SHAPES))
    parser.add_argument("--conv", default="bcop")
    parser.add_argument("--counts", default="1,2,5")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.counts.split(",")]
    figures = {count: round_time(count, arguments) for count in counts}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.model}, {arguments.conv}")
    for count, milliseconds in figures.items():
        print(
            f"{count} side by side: {milliseconds:.3f} ms a round, {milliseconds / figures[counts[0]]:.2f}× {counts[0]}"
        )
    print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    if arguments.json:
        settings = {name: getattr(arguments, name) for name in ("model", "data", "conv")}
        record = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, **settings}
        Path(arguments.json).write_text(json.dumps(record | {"ms_a_round": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
