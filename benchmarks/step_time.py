"""Measures a training step of BCOP networks against one of an ordinary network of the same shape.

Same engine, same batch, same run: an ordinary network (circular padding, MaxMin, Adam), BCOP with Adam and with steepest
descent, and the paper's own way (20 Björck steps, differentiated through), by our engine and eagerly. On a GPU the engine
replays CUDA graphs; on a CPU the two are the same. Where orthogonium is installed, its network of the same shape runs
beside them, eagerly, the way its users run it.

    python benchmarks/step_time.py [--model large] [--data cifar10] [--device auto] [--batch 128] [--steps 100] [--json FILE]
"""

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from torch import nn

from isoconv.train.capture import make_stepper
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner

ROUNDS = {"cuda": 9, "cpu": 25}  # a CPU is shared with others
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}
CASES = {
    "ordinary, Adam": {"conv": "standard", "optimiser": "adam", "lr": 1e-3},
    "BCOP, Adam": {"conv": "bcop", "optimiser": "adam", "lr": 1e-3},
    "BCOP, steepest descent": {"conv": "bcop", "optimiser": "steepest", "lr": 1e-2},
    "RKO, steepest descent": {"conv": "rko", "optimiser": "steepest", "lr": 1e-2},
    "OSSN, Adam": {"conv": "ossn", "optimiser": "adam", "lr": 1e-3},
    "the paper's way, captured": {"conv": "bcop", "optimiser": "adam", "lr": 1e-3, "orthogonalisation": "bjorck"},
    "the paper's way, eager": {"conv": "bcop", "optimiser": "adam", "lr": 1e-3, "orthogonalisation": "bjorck"},
}


SHARED_WITH_PEERS = {"optimiser": "adam", "lr": 1e-3}


def orthogonium_network(model: str, shape: tuple[int, int, int]) -> nn.Module | None:
    """Small or Large made of orthogonium's layers; None where it is not installed."""
    try:
        from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
    except ImportError:
        return None
    convolutions = {"small": [(16, 4, 2), (32, 4, 2)], "large": [(32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)]}[model]
    layers: list[nn.Module] = []
    channels, height, width = shape
    for out, kernel_size, stride in convolutions:
        padding = (kernel_size - 1) // 2
        layers += [AdaptiveOrthoConv2d(channels, out, kernel_size, stride=stride, padding=padding), MaxMin()]
        channels, height, width = out, height // stride, width // stride
    layers.append(nn.Flatten())
    features = channels * height * width
    for out in {"small": [100], "large": [512, 512]}[model]:
        layers += [OrthoLinear(features, out), MaxMin()]
        features = out
    return nn.Sequential(*layers, OrthoLinear(features, 10))


class Case:
    """One way to train, ready to be timed."""

    def __init__(
        self,
        name: str,
        settings: dict[str, object],
        arguments: argparse.Namespace,
        device: torch.device,
        model: nn.Module | None = None,
    ) -> None:
        shape = SHAPES[arguments.data]
        values = recipe_settings("default", arguments.data, "bcop") | {"batch_size": arguments.batch} | settings
        config = TrainConfig(
            data=arguments.data, input_shape=shape, classes=tuple("0123456789"), model=arguments.model, **values
        )
        self.device, self.rounds = device, list[float]()
        eager = "eager" in name or model is not None  # as its users run it
        learner = Learner.from_config(config, model or make_model(config), Classification(config), 10**6, device=device)
        self.stepper = make_stepper([learner], captured=not eager)
        self.images = torch.randint(0, 256, (arguments.batch, *shape), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, 10, (arguments.batch,), device=device)
        self.steps = max(1, arguments.steps // 10) if eager else arguments.steps
        for _ in range(30 if device.type == "cuda" else 3):
            self.stepper.step([(self.images, self.labels)])

    def run(self) -> None:
        _wait(self.device)
        start = time.perf_counter()
        for _ in range(self.steps):
            self.stepper.step([(self.images, self.labels)])
        _wait(self.device)
        self.rounds.append((time.perf_counter() - start) / self.steps * 1e3)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="large", choices=["small", "large"])
    parser.add_argument("--data", default="cifar10", choices=list(SHAPES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    device = torch.device(choose_device(arguments.device))
    arguments.steps = arguments.steps or (200 if device.type == "cuda" else 20)
    rounds = ROUNDS[device.type]
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{hardware}, torch {torch.__version__}, Python {platform.python_version()}")
    print(
        f"{arguments.model}, {arguments.data}, batch {arguments.batch}, median of {rounds} rounds of {arguments.steps} steps"
    )
    torch.manual_seed(0)
    cases = {name: Case(name, settings, arguments, device) for name, settings in CASES.items()}
    peer = orthogonium_network(arguments.model, SHAPES[arguments.data])
    if peer is not None:
        cases["orthogonium, eager"] = Case("orthogonium, eager", SHARED_WITH_PEERS, arguments, device, peer)
    for _ in range(rounds):  # in turn, so that a slower moment of the machine hits all of them
        for case in cases.values():
            case.run()
    figures = {name: median(case.rounds) for name, case in cases.items()}
    ordinary = cases["ordinary, Adam"].rounds
    ratios = {
        name: median(mine / theirs for mine, theirs in zip(case.rounds, ordinary, strict=True))
        for name, case in cases.items()
    }
    for name, ratio in ratios.items():
        print(f"{name:>26} {figures[name]:9.3f} ms {ratio:7.2f}× the ordinary network's", flush=True)
    for ours in ("BCOP, Adam", "BCOP, steepest descent"):
        for theirs in figures.keys() & {"the paper's way, eager", "orthogonium, eager"}:
            print(f"{ours}: {figures[theirs] / figures[ours]:.1f}× faster than {theirs}")
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name != "json"}
        record = {
            "hardware": hardware,
            "torch": torch.__version__,
            **settings,
            "rounds": rounds,
            "ms": figures,
            "times_ordinary": ratios,
        }
        if peer is not None:
            record["orthogonium"] = version("orthogonium")
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
