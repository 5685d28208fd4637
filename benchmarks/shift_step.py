"""One training step of the shift network against its own products and the same network unconstrained; and Large's ratios.

python -m benchmarks.shift_step --out FILE          # on a GPU, under two minutes
python -m benchmarks.shift_step --small             # on a CPU, seconds: that everything runs

Each part stands for itself: what fails is written down beside what does not. All figures are of one run: medians over
rounds in which the cases take turns. A step is the engine's own: data on the device, one CUDA graph.
"""

import argparse
import json
import platform
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from isoconv.data import distort
from isoconv.models import ShiftNet
from isoconv.nn import BCOPConv2d, InvertibleDownsampling, OrthogonalLinear
from isoconv.nn.convolution import StandardConv2d
from isoconv.train.capture import Stepper
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Learner

Step = Callable[[], None]


class Bench:
    """The device, how long to measure, and what has been found."""

    def __init__(self, small: bool, out: Path | None) -> None:
        self.device, self.small, self.out = torch.device(choose_device("cpu" if small else "auto")), small, out
        self.batch = 8 if small else 256
        self.rounds, self.calls = (2, 2) if small else (7, 60)
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor()
        self.built: dict[str, Any] = {}  # what became of the last step that was made
        self.found: dict[str, Any] = {"device": name, "torch": torch.__version__, "batch": self.batch}

    def run(self, name: str, part: "Callable[[Bench], dict[str, Any]]") -> None:
        """Measure one part, keep its figures or its error, and write all that is known so far."""
        began = time.perf_counter()
        try:
            figures = part(self)
        except Exception:  # a figure that is missing must not cost the others
            figures = {"error": traceback.format_exc(limit=-4)}
        self.found[name] = figures | {"took_seconds": round(time.perf_counter() - began, 1)}
        print(json.dumps({name: self.found[name]}), flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.found, indent=2) + "\n")

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def race(self, cases: dict[str, Step]) -> dict[str, list[float]]:
        """Return the milliseconds of one call of each case, round by round."""
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(self.rounds):
            for name, call in cases.items():
                self.wait()
                began = time.perf_counter()
                for _ in range(self.calls):
                    call()
                self.wait()
                times[name].append(1e3 * (time.perf_counter() - began) / self.calls)
        return times

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
        stepper = Stepper([learner])
        images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=self.device)
        labels = torch.randint(0, classes, (batch,), device=self.device)

        def step() -> None:
            stepper.step([(images, labels)])

        for _ in range(2 if self.small else warm):  # warm-up, compilation, capture of every kind of step
            step()
        self.wait()
        graphs = [len(group.graphs) for group in stepper.groups]
        compiled = any(group.update is not None and group.update.compiled for group in stepper.groups)
        self.built = {"compiled": compiled and learner.called.forward != network.forward, "graphs": graphs}
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
    step: Step = lambda: torch.mm(x, w, out=out)  # type: ignore[assignment]  # noqa: E731
    for _ in range(20):
        step()
    usual, bench.calls = bench.calls, calls or bench.calls * 10
    ms = median(bench.race({"": step})[""])
    bench.calls = usual
    return {"shape": [rows, width, width], "ms": ms, "tflops": 2e-9 * rows * width**2 / ms}


def measure_shift(bench: Bench) -> dict[str, Any]:
    """Time the shift network in bfloat16, constrained and not."""
    figures: dict[str, Any] = {}
    cases: dict[str, Step] = {}
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
    bare = bench.found.get("product", {}).get("tflops")
    figures |= {"of_bare_product": figures["tflops"] / bare if bare else None, "of_bare_product_wanted": 0.45}
    if bench.device.type == "cuda":
        figures["kernels"] = _profile(cases["constrained"])
    return figures


def _profile(step: Step, steps: int = 8, most: int = 25) -> list[list[Any]]:
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
    cases = {
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
    calls, bench.calls = bench.calls, 2
    ms = median(bench.race({"": lambda: distort(images, numbers, 0.5, 0.5)})[""])  # type: ignore[dict-item]
    bench.calls = calls
    return {"images": count, "ms_an_epoch": ms}


PARTS = {
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
    bench = Bench(options.small, options.out)
    for name in options.parts:
        bench.run(name, PARTS[name])
