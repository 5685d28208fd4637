"""Claim: on an H200, a step of the BCOP critic at 64×64, batch 64, costs at most twice that of the same one unconstrained.

A step is an update on 64 images of each of two distributions. Same engine, same images, same run; the unconstrained
critic has the same layers, circular padding and MaxMin, and Adam. On a GPU the engine replays CUDA graphs.

    python benchmarks/critic_step.py [--size 64] [--batch 64] [--steps 200] [--device auto] [--json FILE] [--quick]
"""

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from isoconv.train.capture import make_stepper
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner
from isoconv.wasserstein.critic import CriticConfig, CriticTask, make_critic
from isoconv.wasserstein.samples import FiniteSamples

ROUNDS = 9
CASES: dict[str, dict[str, Any]] = {
    "unconstrained, Adam": {"conv": "standard", "optimiser": "adam", "lr": 1e-4},
    "unconstrained, RMSprop": {"conv": "standard", "optimiser": "rmsprop", "lr": 1e-4},
    "BCOP, steepest descent": {"conv": "bcop", "optimiser": "steepest", "lr": 1e-2},
    "BCOP, RMSprop": {"conv": "bcop", "optimiser": "rmsprop", "lr": 1e-4},
    "RKO, steepest descent": {"conv": "rko", "optimiser": "steepest", "lr": 1e-2},
    "OSSN, Adam": {"conv": "ossn", "optimiser": "adam", "lr": 1e-4},
}


class Case:
    """One critic in training, ready to be timed."""

    def __init__(self, settings: dict[str, Any], arguments: argparse.Namespace, device: torch.device) -> None:
        shape = (3, arguments.size, arguments.size)
        pixels = {"pixel_range": (-1.0, 1.0), "batch_size": arguments.batch, "epochs": 10**6}
        config = CriticConfig("a", "b", shape, **(settings | pixels))
        self.xs, self.ys = (
            torch.randint(0, 256, (arguments.batch, *shape), dtype=torch.uint8, device=device) for _ in range(2)
        )
        samples = FiniteSamples("a", self.xs, whole=True)
        critic = make_critic(config, samples, samples)
        self.device, self.steps, self.rounds = device, arguments.steps, list[float]()
        self.stepper = make_stepper([Learner.from_config(config, critic, CriticTask(config), 10**6, device=device)])
        for _ in range(30 if device.type == "cuda" else 2):
            self.stepper.step([(self.xs, self.ys)])

    def run(self) -> None:
        _wait(self.device)
        start = time.perf_counter()
        for _ in range(self.steps):
            self.stepper.step([(self.xs, self.ys)])
        _wait(self.device)
        self.rounds.append((time.perf_counter() - start) / self.steps * 1e3)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    parser.add_argument("--quick", action="store_true", help="16×16, batch 4, one step a round")
    arguments = parser.parse_args()
    device = torch.device(choose_device(arguments.device))
    arguments.steps = arguments.steps or (200 if device.type == "cuda" else 2)
    if arguments.quick:
        arguments.size, arguments.batch, arguments.steps = 16, 4, 1
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{hardware}, torch {torch.__version__}, Python {platform.python_version()}")
    print(
        f"DCGAN critic, 3×{arguments.size}×{arguments.size}, {arguments.batch} images of each distribution, "
        f"median of {ROUNDS} rounds of {arguments.steps} steps"
    )
    torch.manual_seed(0)
    cases = {name: Case(settings, arguments, device) for name, settings in CASES.items()}
    for _ in range(
        2 if arguments.quick else ROUNDS
    ):  # in turn, so that a slower moment of the machine hits all of them
        for case in cases.values():
            case.run()
    ordinary = cases["unconstrained, Adam"].rounds
    figures = {}
    for name, case in cases.items():
        ratio = median(mine / theirs for mine, theirs in zip(case.rounds, ordinary, strict=True))
        figures[name] = {"ms": median(case.rounds), "ratio": ratio}
        print(f"{name:>24} {figures[name]['ms']:9.3f} ms {ratio:7.2f}× the unconstrained critic's", flush=True)
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name != "json"}
        record = {"hardware": hardware, "torch": torch.__version__, **settings, "cases": figures}
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
