"""Measure the checker on honest certificates of random networks, and on mutated ones: verdicts, time and memory.

    PYTHONPATH=src:tests python tests/check/evidence.py --honest 3000 --mutated 20000 [--seed 0] [--out results/checker]

Every third network is a graph. Every honest certificate must be accepted, with its images. A mutated file must get a
verdict, in one line; one that is found valid must not claim less than the true norm of a layer, less than the norm of a
Jacobian of the nodes as the file connects them, nor a radius that its own numbers do not allow.
"""

import argparse
import copy
import json
import platform
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from check.certificate_maker import Abs, Certificate, Graph, Outcome, Scale, check, largest_radius
from check.random_graphs import draw_graph
from isoconv.nn import GroupSort, MaxMin

ODD = (None, True, 0, -1, 2, 1.5, "", "0x1.0p+0", "0x1.8p-3", "nan", "inf", "-0x1.0p+0", [], {}, 2**31, 10**400, "é\n")


def draw_layer(draw: random.Random, shape: torch.Size) -> nn.Module:
    """A layer of any kind with any settings; it need not fit."""
    d = len(shape) - 1
    two = d == 2

    def some(low: int, high: int) -> Any:
        values = tuple(draw.randint(low, high) for _ in range(d))
        return values if two else values[0]

    def pads(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(2 * d))

    channels, mode = shape[0], draw.choice(("zeros", "zeros", "circular", "circular", "reflect", "replicate"))
    groups = draw.choice([g for g in (1, 1, 1, 2, 3) if channels % g == 0])
    kernel, stride = some(1, 4), some(1, 3)
    suffix = f"{d}d"
    builders = {
        "Conv": lambda kind: kind(channels, groups * draw.randint(1, 3), kernel, stride, some(0, 2), some(1, 2), groups,
                                  draw.random() < 0.7, mode),
        "AvgPool": lambda kind: kind(kernel, stride, some(0, 1)),
        "MaxPool": lambda kind: kind(kernel, stride, some(0, 1), some(1, 2), ceil_mode=draw.random() < 0.5),
        "ZeroPad": lambda kind: kind(pads(-1, 2)),
        "ConstantPad": lambda kind: kind(pads(-1, 2), draw.choice((0.5, -2.0))),
        "CircularPad": lambda kind: kind(pads(0, 2)),
        "ReflectionPad": lambda kind: kind(pads(0, 2)),
        "ReplicationPad": lambda kind: kind(pads(0, 2)),
        "BatchNorm": lambda kind: kind(channels, affine=draw.random() < 0.7),
    }  # fmt: skip
    plain = (
        nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.Softsign, nn.Identity, nn.Dropout, Abs, MaxMin,
        lambda: GroupSort(draw.choice((1, 2, 3))), lambda: nn.Hardtanh(-0.5, draw.choice((-0.25, 0.75))),
        lambda: nn.LeakyReLU(draw.choice((0.01, -2.0))), lambda: Scale(draw.choice((-0.75, 1.5))),
        lambda: nn.PixelShuffle(2) if two else Abs(), lambda: nn.PixelUnshuffle(2) if two else Abs(),
        lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Flatten(draw.choice((-1, d, 1)), d), lambda: nn.Linear(shape[-1], draw.randint(1, 4)),
    )  # fmt: skip
    if draw.random() < 0.65:
        family = draw.choice((*builders, "Conv", "Conv", "CircularPad"))
        return builders[family](getattr(nn, family + suffix))
    return draw.choice(plain)()


def draw_network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    if seed % 3 == 2:
        return draw_graph(seed)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    start = tuple(draw.randint(1, 4 if n == 0 else 9) for n in range(draw.choice((2, 3, 3))))
    model, x = nn.Sequential(), torch.rand(2, *start)
    for _ in range(draw.randint(1, 5)):
        if x.dim() < 3:
            break
        try:
            layer = draw_layer(draw, x.shape[1:]).train()
            for _ in range(2):  # batch normalisation sees something
                layer(x)
            y = layer.eval()(x)
        except Exception:  # it does not fit
            continue
        if y.isfinite().all() and 0 < y[0].numel() <= 300:
            model.append(layer)
            x = y.detach()
    model.append(nn.Flatten()).append(nn.Linear(x[0].numel(), draw.randint(2, 5)))
    return model, start


class Record:
    """What was measured."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.slowest, self.problems = 0.0, []

    def add(self, outcome: Outcome, seconds: float) -> None:
        self.counts[str(outcome.code)] += 1
        self.slowest = max(self.slowest, seconds)
        line = outcome.out + outcome.err
        if outcome.code not in (0, 1, 2) or line.count("\n") != 1 or "cannot be checked" in line:
            self.problems.append(line)

    def write(self, path: Path, started: float, kinds: Counter[str] | None = None) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
        result = {
            "verdicts": dict(self.counts),
            "networks with": dict(sorted((kinds or {}).items())),
            "slowest seconds": round(self.slowest, 3),
            "memory MB (with torch)": memory,
            "problems": self.problems[:20],
            "processor": platform.machine(),
            "processor seconds": round(time.process_time() - started),
            "versions": versions,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def timed(*arguments: Any) -> tuple[Outcome, float]:
    start = time.process_time()
    return check(*arguments), time.process_time() - start


def measure_honest(count: int, seed: int, folder: Path, out: Path) -> None:
    record, started = Record(), time.process_time()
    kinds: Counter[str] = Counter()
    for number in range(seed, seed + count):
        model, shape = draw_network(number)
        arithmetic = "float32" if number % 4 == 0 else "float64"
        honest = Certificate(folder, model, shape, images=2, arithmetic=arithmetic, version=2)
        (folder / "certificate.json").write_text(honest.text(honest.table))
        np.save(folder / "images.npy", honest.pixels.numpy())
        outcome, seconds = timed(folder / "certificate.json", honest.model_file, "--images", folder / "images.npy")
        record.add(outcome, seconds)
        kinds.update({type(layer.module).__name__ for layer in honest.layers})
        if outcome.code != 0:
            record.problems.append(f"network {number}: {outcome.out + outcome.err}")
        if (number + 1) % 250 == 0 or number + 1 == seed + count:
            record.write(out / "honest.json", started, kinds)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside of a JSON value."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in keys for place in ((value, key), *places(inner))]


def mutate(table: dict[str, Any], draw: random.Random) -> None:
    container, key = draw.choice(places(table))
    value, what = container[key], draw.randrange(6)
    if isinstance(value, str) and value.lstrip("-").startswith("0x") and what < 4:
        factor = draw.choice((0.5, 2.0, -1.0, *(1 + s * 10.0**-n for s in (1, -1) for n in range(1, 14))))
        container[key] = (float.fromhex(value) * factor).hex()
    elif isinstance(value, int) and what < 3:
        container[key] = value + draw.choice((1, -1, 3, 1000, 10**6))
    elif what == 3:
        del container[key]
    elif what == 4:
        other, name = draw.choice(places(table))
        container[key] = json.loads(json.dumps(other[name]))
    else:
        container[key] = draw.choice(ODD)


def largest_slope(table: dict[str, Any], honest: Certificate) -> float:
    """The largest norm of a Jacobian at a few points, of the nodes as the table connects them."""
    nodes = [
        (node["name"], layer.module, node["inputs"]) for node, layer in zip(table["nodes"], honest.layers, strict=True)
    ]
    points = torch.rand(3, *honest.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = (
        copy.deepcopy(Graph(*nodes)).double()
        if isinstance(honest.model, Graph)
        else copy.deepcopy(honest.model).double()
    )
    found = [torch.autograd.functional.jacobian(lambda x: model(x[None])[0], point).flatten(1) for point in points]
    return float(torch.linalg.matrix_norm(torch.stack(found), 2).max())


def is_true(table: dict[str, Any], honest: Certificate) -> bool:
    """Whether a certificate that was found valid may be: of the same modules, with claims that are large enough."""

    def about(nodes: list[dict[str, Any]], without: tuple[str, ...]) -> list[dict[str, Any]]:
        return [{key: value for key, value in node.items() if key not in without} for node in nodes]

    here, there = table["nodes"], honest.table["nodes"]
    connected = ("lipschitz", "inputs") if isinstance(honest.model, Graph) else ("lipschitz",)
    if about(here, connected) == about(there, connected):
        shapes = table["input_shape"] == list(honest.input_shape)
        if shapes and float.fromhex(table["lipschitz"]) < largest_slope(table, honest) * (1 - 1e-9):
            return False
    same = about(here, ("lipschitz",)) == about(there, ("lipschitz",))
    numbers = [float.fromhex(node["lipschitz"]) for node in table["nodes"]]
    if same and any(n < layer.norm / (1 + 2e-6) for n, layer in zip(numbers, honest.layers, strict=True)):
        return False
    pairs = [[float.fromhex(value) for value in row] for row in table["pair_constants"]]
    terms = [float.fromhex(table[name]) for name in ("error_offset", "error_slope")]
    for image in table["images"] if isinstance(table["images"], list) else ():
        logits = [float.fromhex(value) for value in image["logits"]]
        most = largest_radius(logits, float.fromhex(image["input_norm"]), pairs, *terms)
        if float.fromhex(image["radius"]) > most or int(np.argmax(logits)) != image["prediction"]:
            return float.fromhex(image["radius"]) == 0
    return True


def measure_mutated(count: int, seed: int, folder: Path, out: Path) -> None:
    record, started = Record(), time.process_time()
    honest: Certificate | None = None
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        if number % 100 == 0:
            model, shape = draw_network(1_000_000 + seed + number // 100)
            honest = Certificate(folder, model, shape, images=2, version=2)
            weights = honest.model_file.read_bytes()
        assert honest is not None
        table = json.loads(json.dumps(honest.table))
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            mutate(table, draw)
        text = honest.text(table).encode()
        changed = bytearray(weights)
        if draw.random() < 0.1:
            text = text[: draw.randrange(len(text))] + bytes([draw.randrange(256)]) + text[draw.randrange(len(text)) :]
            table = {}
        if draw.random() < 0.1:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        (folder / "certificate.json").write_bytes(text)
        (folder / "mutated.safetensors").write_bytes(changed)
        outcome, seconds = timed(folder / "certificate.json", folder / "mutated.safetensors")
        record.add(outcome, seconds)
        if outcome.code == 0 and table and not is_true(table, honest):
            record.problems.append(f"mutation {number}: {outcome.out}")
        if (number + 1) % 1000 == 0 or number + 1 == count:
            record.write(out / "mutated.json", started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the checker on honest and on mutated certificates.")
    parser.add_argument("--honest", type=int, default=0)
    parser.add_argument("--mutated", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/checker"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for count, measure in ((options.honest, measure_honest), (options.mutated, measure_mutated)):
            if count:
                measure(count, options.seed, Path(folder), options.out)


if __name__ == "__main__":
    main()
