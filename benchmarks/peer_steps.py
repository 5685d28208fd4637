"""Time and memory of one training step of our layers beside orthogonium's: forward, backward, Adam. One file in `results/`.

python -m benchmarks.peer_steps      # writes results/peers/steps.json; orthogonium must be installed; --small: on a CPU

All figures are of one run, in which the layers take turns: medians over rounds. "compiled" is the layer in
`torch.compile`. Memory is the most that one step needs above what is there before it.
"""

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from orthogonium.layers import AdaptiveOrthoConv2d
from orthogonium.layers.conv.adaptiveSOC import AdaptiveSOCConv2d
from orthogonium.layers.conv.AOL import AOLConv2D
from orthogonium.layers.conv.SLL import SDPBasedLipschitzResBlock
from torch import nn

from benchmarks.measuring import Report, race
from isoconv.nn import AOLConv2d, BCOPConv2d, SLLConv2d, SOCConv2d
from reproduction.cells import RESULTS

Step = Callable[[], None]


def make_pairs(c: int, n: int) -> dict[str, tuple[int, Callable[[], nn.Module], Callable[[], nn.Module]]]:
    """Return (channels of the input, our layer, orthogonium's) by name, for `c` channels and images of n×n."""
    same: dict[str, Any] = {"padding": 1, "padding_mode": "circular"}
    return {
        "BCOP, 3×3, stride 2": (
            c,
            lambda: BCOPConv2d(c, 2 * c, 3, 2, **same),
            lambda: AdaptiveOrthoConv2d(c, 2 * c, 3, 2, **same),
        ),
        "BCOP, 4×4, stride 2": (
            c,
            lambda: BCOPConv2d(c, 2 * c, 4, 2, **same),
            lambda: AdaptiveOrthoConv2d(c, 2 * c, 4, 2, **same),
        ),
        "AOL, 3×3": (c, lambda: AOLConv2d(c, c, 3, **same), lambda: AOLConv2D(c, c, 3, **same)),
        "SOC, 3×3": (c, lambda: SOCConv2d(c, c, 3, input_size=(n, n)), lambda: AdaptiveSOCConv2d(c, c, 3)),
        "SLL, 3×3": (c, lambda: SLLConv2d(c, c, 3, padding_mode="zeros"), lambda: SDPBasedLipschitzResBlock(c, 1, 3)),
    }


def make_step(layer: nn.Module, shape: tuple[int, ...], device: torch.device, compiled: bool) -> Step:
    """Return a function that takes one step of a layer at random images."""
    layer = layer.to(device).train()
    optimiser = torch.optim.Adam(layer.parameters(), 1e-3)
    images = torch.randn(shape, device=device, requires_grad=True)
    call = torch.compile(layer) if compiled else layer

    def step() -> None:
        optimiser.zero_grad()
        call(images).square().mean().backward()
        optimiser.step()

    return step


def measure(steps: dict[str, Step], device: torch.device, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Return milliseconds and, on a GPU, megabytes of each step."""
    race(steps, device, 1, calls)  # warms up
    times = race(steps, device, rounds, calls)
    figures = {name: {"milliseconds": round(1e3 * median(values), 4)} for name, values in times.items()}
    for name, step in steps.items() if device.type == "cuda" else ():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        figures[name]["megabytes"] = round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few channels, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "peers" / "steps.json")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    channels, size, batch = (8, 8, 4) if asked.small else (128, 16, 128)
    rounds, calls = (2, 2) if asked.small else (9, 30)
    sizes: dict[str, Any] = {"channels": channels, "size": size, "batch": batch}
    report = Report(asked.out, device, orthogonium=version("orthogonium"), **sizes, layers={})
    for name, (c, ours, theirs) in make_pairs(channels, size).items():
        for compiled in (False, True):
            torch.manual_seed(0)
            torch._dynamo.reset()
            steps: dict[str, Step] = {}
            failures: dict[str, Any] = {}
            for owner, make in (("isoconv", ours), ("orthogonium", theirs)):
                try:
                    steps[owner] = make_step(make(), (batch, c, size, size), device, compiled)
                    steps[owner]()
                except Exception as error:  # a layer that fails is a result too
                    steps.pop(owner, None)
                    failures[owner] = f"{type(error).__name__}: {error}".splitlines()[0]
            row = name + (", compiled" if compiled else "")
            report.figures["layers"][row] = measure(steps, device, rounds, calls) | failures
            print(row, json.dumps(report.figures["layers"][row]), flush=True)
            report.write()


if __name__ == "__main__":
    main()
