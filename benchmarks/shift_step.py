"""One training step of the shift network against its own products and the same network unconstrained; and Large's ratios.

python -m benchmarks.shift_step --out FILE          # on a GPU, under two minutes
python -m benchmarks.shift_step --small             # on a CPU, seconds: that everything runs

All figures are of one run: medians over
rounds in which the cases take turns. A step is the engine's own: data on the device, one CUDA graph.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.measuring import Report, Step, race
from isoconv.data import distort
from isoconv.models import ShiftNet
from isoconv.nn import BCOPConv2d, InvertibleDownsampling, OrthogonalLinear
from isoconv.nn.convolution import StandardConv2d
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner

Call = Callable[[], object]


class Bench:
    """The device, the size of a batch, and how long to measure."""

    def __init__(self, small: bool) -> None:
        self.device, self.small = torch.device(choose_device("cpu" if small else "auto")), small
        self.batch = 8 if small else 256
        self.rounds, self.calls = (2, 2) if small else (7, 60)
        self.built: dict[str, Any] = {}  # what became of the last step that was made

    def race(self, cases: dict[str, Call], calls: int | None = None) -> dict[str, list[float]]:
        """Return the milliseconds of one call of each case, round by round."""
        times = race(cases, self.device, self.rounds, calls or self.calls)
        return {name: [1e3 * seconds for seconds in each] for name, each in times.items()}

    def make_step(
        self,
        model: str,
        network: nn.Module | None = None,
        side: int = 32,
        classes: int = 10,
        warm: int = 40,
        **own: Any,
    ) -> Step:
        """Return the step of a network in the engine, captured and warm, on images of side×side; `own` are settings."""
        batch = 128 if model == "large" and not self.small else self.batch
        fields = recipe_settings("default", "cifar10", "bcop", model) | own | {"batch_size": batch}
        names = tuple(map(str, range(classes)))
        config = TrainConfig(data="cifar10", input_shape=(3, side, side), classes=names, model=model, **fields)
        network = make_model(config) if network is None else network
        learner = Learner.from_config(config, network, Classification(config), 10**6, device=self.device)
        images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=self.device)
        labels = torch.randint(0, classes, (batch,), device=self.device)
        step = Step([learner], (images, labels), warm_up=2 if self.small else warm)
        groups = step.stepper.groups
        compiled = any(group.update is not None and group.update.compiled for group in groups)
        self.built = {"compiled": compiled and learner.called.forward != network.forward}
        self.built["graphs"] = [len(group.graphs) for group in groups]
        return step


def make_shift_net(small: bool) -> nn.Sequential:
    """Return shift-m, or a tiny one."""
    torch.manual_seed(0)
    return ShiftNet((3, 32, 32), 10, channels=32 if small else 1024, blocks=(1, 1) if small else (3, 8))


def unconstrain(model: nn.Sequential) -> nn.Sequential:
    """Return the same network with ordinary convolutions and linear layers, which begin with the same weights."""
    for k, layer in enumerate(model.children()):
        if isinstance(layer, BCOPConv2d):
            bias = layer.bias is not None
            free = StandardConv2d(layer.in_channels, layer.out_channels, 1, bias=bias, frozen=layer.frozen)
            free.kernel.data.copy_(layer.weight)
            if layer.bias is not None and free.bias is not None:
                free.bias.data.copy_(layer.bias)
            model[k] = free
        elif isinstance(layer, OrthogonalLinear):
            model[k] = layer.plain()
    return model


def count_work(model: nn.Sequential, batch: int, side: int = 32) -> dict[tuple[int, int], float]:
    """Return the operations of the products of one step, 6 · weights · positions · batch, by positions and channels."""
    work: Counter[tuple[int, int]] = Counter()
    positions = side**2
    for layer in model.children():
        if isinstance(layer, InvertibleDownsampling):
            positions //= layer.factor**2
        elif isinstance(layer, BCOPConv2d) and not layer.frozen:
            work[positions, layer.out_channels] += 6 * layer.in_channels * layer.out_channels * positions * batch
    return dict(work)


def measure_product(bench: Bench) -> dict[str, Any]:
    """Time a bare bfloat16 product of the shape of the last stage's: (batch · positions, c) times (c, c)."""
    return time_product(bench, bench.batch * 64, 32 if bench.small else 1024)


def time_product(bench: Bench, rows: int, width: int, calls: int | None = None) -> dict[str, Any]:
    """Time a bare bfloat16 product (rows, width) times (width, width)."""
    x = torch.randn(rows, width, device=bench.device, dtype=torch.bfloat16)
    w = torch.randn(width, width, device=bench.device, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    call = partial(torch.mm, x, w, out=out)
    for _ in range(20):
        call()
    ms = median(bench.race({"": call}, calls or bench.calls * 10)[""])
    return {"shape": [rows, width, width], "ms": ms, "tflops": 2e-9 * rows * width**2 / ms}


def measure_shift(bench: Bench, bare: float | None = None) -> dict[str, Any]:
    """Time the shift network in bfloat16, constrained and not, and beside the speed of a bare product, in TFLOP/s."""
    figures: dict[str, Any] = {}
    cases: dict[str, Call] = {}
    settings = {"precision": "bf16"}
    for name, kind in (("constrained", settings), ("unconstrained", settings | {"optimiser": "adam", "lr": 1e-4})):
        if bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        network, began = make_shift_net(bench.small), time.perf_counter()
        network = unconstrain(network) if name == "unconstrained" else network
        cases[name] = bench.make_step("shift-m", network, **kind)
        figures[name] = bench.built | {"setup_seconds": round(time.perf_counter() - began, 1)}
        if bench.device.type == "cuda":
            figures[name]["memory_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    times = bench.race(cases)
    for name, each in times.items():
        figures[f"{name}_ms"] = median(each)
    figures["ratio"] = median(a / b for a, b in zip(times["constrained"], times["unconstrained"], strict=True))
    figures["ratio_wanted"] = 1.45
    work = sum(count_work(make_shift_net(bench.small), bench.batch).values())
    figures["tflops"] = 1e-9 * work / figures["constrained_ms"]
    figures |= {"of_bare_product": figures["tflops"] / bare if bare else None, "of_bare_product_wanted": 0.45}
    if bench.device.type == "cuda":
        figures["kernels"] = _profile(cases["constrained"])
    return figures


def _profile(step: Call, steps: int = 8, most: int = 25) -> list[list[Any]]:
    """Return the kernels that take longest: name, microseconds and calls a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    rows = [
        [event.key[:90], round(event.device_time_total / steps, 1), event.count / steps]
        for event in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[1])[:most]


def measure_large(bench: Bench) -> dict[str, Any]:
    """Time Large in float32: BCOP with both optimisers against the ordinary network."""
    adam: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3}
    steepest: dict[str, Any] = {"optimiser": "steepest", "lr": 1e-2}
    cases: dict[str, Call] = {
        "ordinary": bench.make_step("large", conv="standard", **adam),
        "bcop_adam": bench.make_step("large", **adam),
        "bcop_steepest": bench.make_step("large", **steepest),
    }
    times = bench.race(cases)
    figures: dict[str, Any] = {f"{name}_ms": median(each) for name, each in times.items()}
    for name, wanted in (("bcop_adam", 1.2), ("bcop_steepest", 1.35)):
        figures[f"{name}_ratio"] = median(a / b for a, b in zip(times[name], times["ordinary"], strict=True))
        figures[f"{name}_ratio_wanted"] = wanted
    if bench.device.type == "cuda":
        figures |= {f"{name}_kernels": _profile(step, most=15) for name, step in cases.items()}
    return figures


def measure_augmentation(bench: Bench) -> dict[str, Any]:
    """Time the distortion of an epoch of CIFAR-10 on the device."""
    count = 64 if bench.small else 50_000
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, device=bench.device)
    numbers = torch.rand(count, 11, device=bench.device)
    ms = median(bench.race({"": partial(distort, images, numbers, 0.5, 0.5)}, calls=2)[""])
    return {"images": count, "ms_an_epoch": ms}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "product": measure_product,
    "shift": measure_shift,
    "large": measure_large,
    "augmentation": measure_augmentation,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--small", action="store_true", help="tiny networks on the CPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    bench = Bench(options.small)
    report = Report(options.out, bench.device, batch=bench.batch)
    for name in options.parts:
        with report.part(name) as figures:
            bare = {"bare": report.figures.get("product", {}).get("tflops")} if name == "shift" else {}
            figures |= PARTS[name](bench, **bare)
