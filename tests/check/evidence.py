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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from check.certificate_maker import Certificate, Layer, Outcome, check, largest_radius, make_graph
from isoconv.nn import Abs, Add, Concat, Graph, GroupSort, MaxMin, Permute, Reshape, Scale, Slice, Translate

ODD = (None, True, 0, -1, 2, 1.5, "", "0x1.0p+0", "0x1.8p-3", "nan", "inf", "-0x1.0p+0", [], {}, 2**31, 10**400, "é\n")


def layer_makers(draw: random.Random, shape: Sequence[int]) -> dict[str, Callable[[], nn.Module]]:
    """Layers of every kind with any settings, by name; they need not fit."""
    d, channels = len(shape) - 1, shape[0]

    def some(low: int, high: int) -> Any:
        values = tuple(draw.randint(low, high) for _ in range(d))
        return values if d == 2 else values[0]

    def pads(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(2 * d))

    def convolution(mode: str) -> nn.Module:
        kind, groups = maker("Conv"), draw.choice([g for g in (1, 1, 1, 2, 3) if channels % g == 0])
        outputs, bias = groups * draw.randint(1, 3), draw.random() < 0.7
        return kind(channels, outputs, some(1, 4), some(1, 3), some(0, 2), some(1, 2), groups, bias, mode)

    def maker(name: str) -> Callable[..., nn.Module]:
        return getattr(nn, f"{name}{d}d" if d < 3 else "no certificate is of three-dimensional kinds")

    def wrapped() -> nn.Module:
        """A circular pad that is part of the convolution behind it."""
        return nn.Sequential(maker("CircularPad")(pads(0, 3)), maker("Conv")(channels, 3, some(1, 3), some(1, 2)))

    makers = {
        **{mode: partial(convolution, mode) for mode in ("zeros", "circular", "reflect", "replicate")},
        "AvgPool": lambda: maker("AvgPool")(some(1, 4), some(1, 3), some(0, 1)),
        "MaxPool": lambda: maker("MaxPool")(some(1, 4), some(1, 3), some(0, 1), some(1, 2), ceil_mode=draw.random() < 0.5),
        "MaxPool far apart": lambda: maker("MaxPool")(some(1, 2), some(4, 6), ceil_mode=True),  # some begin outside
        "ZeroPad": lambda: maker("ZeroPad")(pads(-1, 2)),
        "ConstantPad": lambda: maker("ConstantPad")(pads(-1, 2), draw.choice((0.5, -2.0))),
        **{name: lambda name=name: maker(name)(pads(0, 4)) for name in ("CircularPad", "ReflectionPad", "ReplicationPad")},
        "wrapped": wrapped,
        "BatchNorm": lambda: maker("BatchNorm")(channels, affine=draw.random() < 0.7),
        "GroupSort": lambda: GroupSort(draw.choice((1, 2, 3, None))),
        "Hardtanh": lambda: nn.Hardtanh(draw.choice((-0.5, 0.25)), draw.choice((0.5, 0.75))),
        "LeakyReLU": lambda: nn.LeakyReLU(draw.choice((0.01, -2.0))),
        "Scale": lambda: Scale(draw.choice((-0.75, 1.5))),
        "PixelShuffle": lambda: nn.PixelShuffle(2 if d == 2 else 0),
        "PixelUnshuffle": lambda: nn.PixelUnshuffle(2 if d == 2 else 0),  # of other shapes it would mix a batch
        "Upsample": lambda: nn.Upsample(scale_factor=2),
        "Flatten": lambda: nn.Flatten(draw.choice((-1, d, 1)), d),
        "Unflatten": lambda: nn.Unflatten(d + 1, (shape[-1], 1)),
        "Linear": lambda: nn.Linear(shape[-1], draw.randint(1, 4)),
    }  # fmt: skip
    exact = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.Softsign, nn.Identity, nn.Dropout, Abs, MaxMin)
    return makers | {kind.__name__: kind for kind in exact}


def draw_layer(draw: random.Random, x: Tensor, name: str | None = None) -> nn.Module:
    """A layer for these values, of a kind if it is named, that has seen them; one that does not fit is drawn again."""
    for _ in range(1000):
        makers = layer_makers(draw, x.shape[1:])
        try:
            layer = makers[name or draw.choice((*makers, *["zeros", "circular"] * 3))]().train()
            for _ in range(2):  # batch normalisation sees something
                layer(x)
            y = layer.eval()(x)
        except Exception:  # it does not fit
            continue
        if y.isfinite().all() and 0 < y[0].numel() <= 600:
            return layer
    raise ValueError(f"no layer {name} fits {tuple(x.shape)}")


def draw_graph(seed: int, nodes: int = 12) -> tuple[Graph, tuple[int, ...]]:
    """A graph with sums, concatenations, slices and modules that are used twice; its input has three axes."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    shape = (draw.choice((2, 4)), draw.randint(2, 4), draw.randint(2, 4))
    known: list[tuple[str, nn.Module, Sequence[str]]] = []
    values: dict[str, Tensor] = {"input": torch.rand(2, *shape)}

    def add(module: nn.Module, *inputs: str) -> str:
        name = f"{len(known)} {type(module).__name__}"
        values[name] = module(*(values[before] for before in inputs)).detach()
        known.append((name, module, inputs))
        return name

    while len(known) < nodes:
        recent = draw.choice(list(values)[-4:])
        x = values[recent]
        alike = [name for name, value in values.items() if value.shape == x.shape]
        axis = draw.randrange(x.dim() - 1)
        size = x.shape[axis + 1]
        cut = draw.randint(1, max(1, size - 1))
        match draw.randrange(11):
            case 0:
                add(Add(), *(draw.choice(alike) for _ in range(draw.choice((2, 2, 3)))))
            case 1 if x[0].numel() <= 100:
                add(Concat(axis + 1), *(draw.choice(alike) for _ in range(2)))
            case 2 if size > 1:
                add(Slice(axis + 1, *sorted(draw.sample(range(size + 1), 2)), draw.choice((1, 2))), recent)
            case 3 if size > 1:  # in two, and together again
                parts = (add(Slice(axis + 1, 0, cut), recent), add(Slice(axis + 1, cut, size), recent))
                add(Concat(axis + 1), add(draw_function(draw, values[parts[0]]), parts[0]), parts[1])
            case 4:
                add(Reshape(draw.choice((x.shape[1:], x.shape[:0:-1], (x[0].numel(),)))), recent)
            case 5:
                add(Permute(draw.sample(range(x.dim() - 1), x.dim() - 1)), recent)
            case 6:
                bias = torch.randn(x.shape[1:] if draw.random() < 0.5 else (x.shape[1], *(1,) * (x.dim() - 2)))
                add(Translate(bias), recent)
            case 7 if known:  # once more
                name, module, _ = draw.choice(known)
                inputs = next(inputs for other, _, inputs in known if other == name)
                fits = [v for v, value in values.items() if value.shape == values[inputs[0]].shape]
                add(module, *(draw.choice(fits) if len(inputs) == 1 else before for before in inputs))
            case _:
                add(draw_function(draw, x), recent)
    taken = {before for _, _, inputs in known for before in inputs}
    flat = [add(nn.Flatten(), name) for name in list(values) if name not in taken]
    last = add(Concat(1), *flat)
    add(nn.Linear(values[last].shape[1], 3), last)
    return make_graph(*known), shape


def draw_function(draw: random.Random, x: Tensor) -> nn.Module:
    choices = [Abs(), nn.ReLU(), Scale(draw.choice((-1.0, 0.5, 1.25))), nn.Linear(x.shape[-1], x.shape[-1])]
    choices += [MaxMin()] * (x.shape[1] % 2 == 0) + [nn.Tanh()]
    if x.dim() == 4:
        choices += [nn.Conv2d(x.shape[1], x.shape[1], draw.choice((1, 3)), padding="same", padding_mode="circular")] * 2
        choices += [nn.Conv2d(x.shape[1], x.shape[1], 3, padding=1)]
    return draw.choice(choices)


def draw_network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    if seed % 3 == 2:
        return draw_graph(seed)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    start = tuple(draw.randint(1, 4 if n == 0 else 9) for n in range(draw.choice((2, 3, 3))))
    model, x = nn.Sequential(), torch.rand(2, *start)
    for _ in range(draw.randint(1, 5)):
        if x.dim() >= 3:
            model.append(draw_layer(draw, x))
            x = model[-1](x).detach()
    model.append(nn.Flatten()).append(nn.Linear(x[0].numel(), draw.randint(2, 5)))
    return model, start


class Record:
    """What was measured, written to a file now and then."""

    def __init__(self, path: Path) -> None:
        self.path, self.started = path, time.process_time()
        self.verdicts, self.kinds, self.slowest, self.problems = Counter[str](), Counter[str](), 0.0, list[str]()

    def check(self, *arguments: Any) -> Outcome:
        start = time.process_time()
        outcome = check(*arguments)
        self.slowest = max(self.slowest, time.process_time() - start)
        self.verdicts[str(outcome.code)] += 1
        line = outcome.out + outcome.err
        if outcome.code not in (0, 1, 2) or line.count("\n") != 1 or "cannot be checked" in line:
            self.problems.append(line)
        if self.verdicts.total() % 1000 == 0:
            self.write()
        return outcome

    def write(self) -> None:
        result = {
            "verdicts": dict(self.verdicts),
            "networks with": dict(sorted(self.kinds.items())),
            "slowest seconds": round(self.slowest, 3),
            "memory MB (with torch)": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "problems": self.problems[:20],
            "processor": platform.machine(),
            "processor seconds": round(time.process_time() - self.started),
            "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(result, indent=1) + "\n")


def measure_honest(count: int, seed: int, folder: Path, out: Path) -> None:
    record = Record(out / "honest.json")
    for number in range(seed, seed + count):
        model, shape = draw_network(number)
        honest = Certificate(folder, model, shape, images=2, arithmetic="float64" if number % 4 else "float32")
        (folder / "certificate.json").write_text(honest.text(honest.table))
        np.save(folder / "images.npy", honest.pixels.numpy())
        record.kinds.update({type(layer.module).__name__ for layer in honest.layers})
        outcome = record.check(folder / "certificate.json", honest.model_file, "--images", folder / "images.npy")
        if outcome.code != 0:
            record.problems.append(f"network {number}: {outcome.out + outcome.err}")
    record.write()


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


def find_lie(
    header: dict[str, Any], images: list[dict[str, Any]], honest: dict[str, Any], network: nn.Module
) -> str | None:
    """Return what a certificate that was found valid claims wrongly; `honest` is its header as it was.

    The checker may prove less than the certifier claims. So the claims are compared with the slopes of the nodes as the file
    connects them, if its modules are still the same, and each radius with what the file's own numbers allow.
    """
    same, pairs = (
        ("name", "kind", "module", "settings"),
        [list(map(float.fromhex, r)) for r in header["pair_constants"]],
    )
    here, there = ([{key: node[key] for key in same} for node in table["nodes"]] for table in (header, honest))
    if here == there and header["input_shape"] == honest["input_shape"]:
        modules = {node["module"]: copy.deepcopy(network.get_submodule(node["module"])) for node in header["nodes"]}
        graph = Graph(modules, [(node["name"], node["module"], node["inputs"]) for node in header["nodes"]]).double()
        for point in torch.randn(3, *header["input_shape"], generator=torch.Generator().manual_seed(0)).double():
            jacobian = torch.func.jacrev(lambda x: graph(x[None].clone())[0])(point).flatten(1) * (1 - 1e-7)
            if torch.linalg.matrix_norm(jacobian, 2) > float.fromhex(header["lipschitz"]) + 1e-9:
                return "lipschitz"
            if (torch.cdist(jacobian, jacobian) > torch.tensor(pairs, dtype=torch.float64) + 1e-9).any():
                return "pair_constants"
    terms = [float.fromhex(header[name]) for name in ("error_offset", "error_slope")]
    for image in images:
        logits, radius = list(map(float.fromhex, image["logits"])), float.fromhex(image["radius"])
        most = largest_radius(logits, float.fromhex(image["input_norm"]), pairs, *terms) if max(terms) < np.inf else 0.0
        if logits[image["prediction"]] != max(logits) or radius > most:
            return f"image {image['index']}"
    return None


def understates(table: dict[str, Any], honest: Certificate) -> bool:
    """Return whether the constant of a layer, of the same nodes, is below its norm; a pad may crop all there is."""

    def least_norm(layer: Layer) -> float:
        if isinstance(layer.module, (nn.ConstantPad1d, nn.ConstantPad2d)):
            return float(nn.functional.pad(torch.ones(1, *layer.shape), layer.module.padding).any())
        return layer.norm / (1 + 2e-6)

    here, there = ([node | {"lipschitz": 0} for node in nodes] for nodes in (table["nodes"], honest.table["nodes"]))
    claims = [float.fromhex(node["lipschitz"]) for node in table["nodes"]]
    return here == there and any(n < least_norm(layer) for n, layer in zip(claims, honest.layers, strict=True))


def measure_mutated(count: int, seed: int, folder: Path, out: Path) -> None:
    record = Record(out / "mutated.json")
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        if number % 100 == 0:
            model, shape = draw_network(1_000_000 + seed + number // 100)
            honest = Certificate(folder, model, shape, images=2)
            weights = honest.model_file.read_bytes()
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
        outcome = record.check(folder / "certificate.json", folder / "mutated.safetensors")
        if outcome.code == 0 and table:
            images = table["images"] if isinstance(table["images"], list) else []
            if (lie := find_lie(table, images, honest.table, honest.model)) or understates(table, honest):
                record.problems.append(f"mutation {number}, {lie or 'a layer'}: {outcome.out}")
    record.write()


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
