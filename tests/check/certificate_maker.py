"""Honest certificates for the tests of the checker, whose every number comes from dense singular values and mpmath.

The certifier says which nodes there are, with their settings. What is proved of them shares no code with it, nor with the
checker.
"""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from isoconv.certify import Certifier, Node
from isoconv.certify.certificate_file import _header
from isoconv.check import Budget, files
from isoconv.check.__main__ import main
from isoconv.check.exact import ARITHMETICS
from isoconv.check.kinds import Place, Step
from isoconv.check.proof import KINDS
from isoconv.nn import Add, Concat, Graph, Scale, Translate

mpmath.mp.dps = 60
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
GENEROUS = 1 + 1e-6
CLAIM = (
    "For every image listed and every input within its radius (L2) of it, this network, run in the arithmetic stated "
    "with sums in any order, predicts the class stated. A radius of 0 claims nothing."
)


def make_graph(*nodes: tuple[str, nn.Module, Sequence[str]]) -> Graph:
    """A network of nodes (name, module, inputs); the path of a module is the name of the first node that has it."""
    paths: dict[nn.Module, str] = {}
    for name, module, _ in nodes:
        paths.setdefault(module, name)
    return Graph({path: module for module, path in paths.items()}, [(name, paths[m], ins) for name, m, ins in nodes])


class Outcome(NamedTuple):
    """What the checker left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def check(*arguments: Any) -> Outcome:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's way out
            code = int(stop.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def make_step(kind: str, shape: tuple[int, ...] = (1,), budget: float = math.inf, **settings: Any) -> Step:
    """What the checker says about a kind without weights."""
    node, limited = files.Node("0", kind, None, ("input",), {}, Fraction(1)), Budget(1000)
    limited.left = budget
    return KINDS[kind].make(Place(node, settings, (shape,), {}, set(), ARITHMETICS["float64"], limited))


DROP = object()


def put(*changes: Any) -> Callable[[dict[str, Any]], None]:
    """A change of a table: (path, value, path, value, …). A value may be a function of what is there, or DROP."""

    def change(table: dict[str, Any]) -> None:
        for path, value in zip(changes[::2], changes[1::2], strict=True):
            target: Any = table
            *steps, last = (int(step) if step.lstrip("-").isdigit() else step for step in path.split("."))
            for step in steps:
                target = target[step]
            if value is DROP:
                del target[last]
            else:
                target[last] = value(target[last]) if callable(value) else value

    return change


def claim_only(table: dict[str, Any], lipschitz: float, pairs: float = 1e9) -> None:
    """Claim this constant, and of everything else so much that only it can be wrong."""
    count = range(table["classes"])
    table["lipschitz"], table["images"] = lipschitz.hex(), []
    table["pair_constants"] = [[(0.0 if i == j else pairs).hex() for j in count] for i in count]


def up(value: Any) -> float:
    """The smallest float that is not below a number (of mpmath, a fraction or a float)."""
    nearest = float(value)
    below = Fraction(nearest) < value if isinstance(value, Fraction) else mpmath.mpf(nearest) < value
    return math.nextafter(nearest, math.inf) if below else nearest


def settings_1(kind: str, new: dict[str, Any]) -> dict[str, Any]:
    """The settings of version 1, which had fewer: padding is a list of numbers, and nothing is said that was fixed."""
    old = {name: v for name, v in new.items() if name not in ("ceil_mode", "count_include_pad", "divisor_override")}
    if kind.startswith("Conv"):
        old["padding"] = [before for before, _ in new["padding"]]
    elif "Pad" in kind:
        old["padding"] = [number for pair in new["padding"][::-1] for number in pair]
    elif kind.startswith("Pixel"):
        old = {"upscale_factor" if kind == "PixelShuffle" else "downscale_factor": new["factor"]}
    return old


def hexadecimal(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: hexadecimal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [hexadecimal(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def dense(module: nn.Module, shape: Sequence[int]) -> np.ndarray:
    """The matrix (outputs, inputs) of a module that is linear but for its bias."""
    twin = copy.deepcopy(module).double()
    for inner in twin.modules():
        inner.bias = None
    unit_images = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return twin(unit_images).detach().flatten(1).T.numpy()


def spectral_norm(matrix: np.ndarray) -> float:
    """numpy's largest singular value; of the matrix divided by its largest entry, whose squares cannot vanish."""
    largest = np.abs(matrix).max()
    return float(largest * np.linalg.svd(matrix / largest, compute_uv=False)[0]) if largest else 0.0


def largest_count(module: nn.Module, shape: Sequence[int]) -> int:
    """How often one number of the input occurs in what a pad or a pool's windows see: by trying each."""
    size = math.prod(shape)
    images = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return int(module(images).flatten(1).sum(1).max())


class Layer(NamedTuple):
    """A node, the circular pad in front of it that is bounded with it, and its constant."""

    node: Node
    pad: nn.Module | None
    norm: float

    @property
    def module(self) -> nn.Module:
        return self.node.module

    @property
    def shape(self) -> torch.Size:
        return self.node.input_shape

    @property
    def result(self) -> torch.Size:
        return self.node.output_shape


def bounded(nodes: Sequence[Node]) -> list[Layer]:
    known, layers = {node.name: node for node in nodes}, list[Layer]()
    for node in nodes:
        before = known.get(node.inputs[0])
        pad = before.module if before is not None and before.merged else None
        whole = node.module if pad is None else nn.Sequential(pad, node.module)
        layers.append(Layer(node, pad, 1.0 if node.merged else constant(whole, node.module, node.input_shape)))
    return layers


def constants(layers: Sequence[Layer]) -> dict[str, Any]:
    """Of every value as a function of the input: sums add, values side by side add in squares."""
    result = {"input": mpmath.mpf(1)}
    for layer in layers:
        result[layer.node.name] = layer.norm * joined(layer, [result[before] for before in layer.node.inputs])
    return result


def joined(layer: Layer, numbers: Sequence[Any]) -> Any:
    if isinstance(layer.module, Concat):  # the checker rounds each root up, by a relative 2⁻⁹⁹ at most
        return mpmath.sqrt(mpmath.fsum(number**2 for number in numbers)) * (1 + mpmath.mpf(2) ** -90)
    return mpmath.fsum(numbers)


def constant(bounded: nn.Module, module: nn.Module, shape: Sequence[int]) -> float:
    match module:
        case nn.Conv1d() | nn.Conv2d() | nn.Linear() | nn.AvgPool1d() | nn.AvgPool2d():
            return spectral_norm(dense(bounded, shape)) * GENEROUS
        case _ if type(module).__name__.startswith(("CircularPad", "MaxPool")):
            return up(mpmath.sqrt(largest_count(module, shape)))
        case Scale():
            return abs(module.factor)
    return 1.0


def copies(layer: Layer) -> int:
    """The largest number of outputs that are the same because a circular padding has gone around: by comparing windows."""
    module = layer.module
    if layer.pad is None and (module.padding_mode != "circular" or not any(module.padding)):
        return 1
    total = 1
    sizes, outputs = layer.shape[1:], layer.result[1:]
    for size, count, stride in zip(sizes, outputs, module.stride, strict=True):
        starts = [j * stride % size for j in range(count)]
        total *= max(starts.count(start) for start in starts)
    return total


def error_terms(layers: Sequence[Layer], arithmetic: str) -> tuple[Any, Any]:
    """α and β of the format's recursion, in 60 decimal digits."""
    unit, tiny = (mpmath.mpf(2) ** -53, mpmath.mpf(2) ** -1022) if arithmetic == "float64" else (
        mpmath.mpf(2) ** -24, mpmath.mpf(2) ** -126)  # fmt: skip
    sizes, errors = {"input": (mpmath.mpf(0), mpmath.mpf(1))}, {"input": (mpmath.mpf(0), mpmath.mpf(0))}
    for layer in layers:
        size, error = (
            tuple(joined(layer, [norms[before][k] for before in layer.node.inputs]) for k in (0, 1))
            for norms in (sizes, errors)
        )
        L = mpmath.mpf(layer.norm)
        n, A, B = (None, None, None) if layer.node.merged else products_and_norms(layer, L)
        if n is None:
            sizes[layer.node.name], errors[layer.node.name] = (tuple(L * n for n in norms) for norms in (size, error))
            continue
        gamma = (n + 1) * unit / (1 - (n + 1) * unit)
        outputs = mpmath.sqrt(math.prod(layer.result))
        fixed = gamma * B + outputs * (n + 1) * tiny
        errors[layer.node.name] = tuple(
            L * e + gamma * A * (s + e) + (fixed if k == 0 else 0)
            for k, (s, e) in enumerate(zip(size, error, strict=True))
        )
        sizes[layer.node.name] = (L * size[0] + B, L * size[1])
    return errors[layer.node.name]


def products_and_norms(layer: Layer, L: Any) -> tuple[int | None, Any, Any]:
    module = layer.module
    if isinstance(module, Add):
        return len(layer.node.inputs) - 2, 1, mpmath.mpf(0)
    if isinstance(module, Translate):
        repeated = module.bias.detach().double().expand(layer.result).flatten().tolist()
        return 0, 1, mpmath.sqrt(mpmath.fsum(mpmath.mpf(b) ** 2 for b in repeated))
    if isinstance(module, Scale):
        return 0, L, mpmath.mpf(0)
    if isinstance(module, (nn.AvgPool1d, nn.AvgPool2d)):
        return math.prod(layer.node.settings["kernel_size"]), L, mpmath.mpf(0)
    if isinstance(module, nn.Tanh):
        return 15, 1, mpmath.mpf(0)
    if not isinstance(module, (*CONVOLUTIONS, nn.Linear)):
        return None, None, None
    weight = module.weight.detach().double().abs()
    groups = getattr(module, "groups", 1)
    blocks = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    row = largest_sum(blocks.flatten(0, 1).flatten(1))
    column = largest_sum(blocks.transpose(1, 2).flatten(0, 1).flatten(1))
    if not isinstance(module, nn.Linear):
        column *= copies(layer)
    B = mpmath.mpf(0)
    if module.bias is not None:
        positions = math.prod(layer.result) // len(module.bias)
        B = mpmath.sqrt(positions * mpmath.fsum(mpmath.mpf(b) ** 2 for b in module.bias.tolist()))
    return weight[0].numel(), mpmath.sqrt(row * column), B


def largest_sum(rows: Tensor) -> Any:
    """Exactly, of those rows that may have the largest sum."""
    sums = rows.sum(1)
    largest = max(sum(map(Fraction, values)) for values in rows[sums >= sums.max() * (1 - 1e-9)].tolist())
    return mpmath.mpf(largest.numerator) / largest.denominator


def pair_constants(layers: Sequence[Layer], classes: int) -> list[list[float]]:
    last, known = layers[-1], constants(layers)
    rows = last.module.weight.detach().double().tolist() if isinstance(last.module, nn.Linear) else None

    def constant(i: int, j: int) -> float:
        value = mpmath.sqrt(2) * known[last.node.name]
        if rows is not None:
            squares = mpmath.fsum((mpmath.mpf(a) - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))
            value = min(value, mpmath.sqrt(squares) * known[last.node.inputs[0]])
        return up(value)

    return [[0.0 if i == j else constant(i, j) for j in range(classes)] for i in range(classes)]


def largest_radius(
    logits: Sequence[float], norm: float, pairs: Sequence[Sequence[float]], a: float, b: float, at_the_centre: float = 1
) -> float:
    """The largest float that the certificate's inequality allows, or 0, with so many errors at the centre."""
    p = int(np.argmax(logits))
    root = Fraction(str(mpmath.sqrt(2) * (1 + mpmath.mpf(10) ** -40)))
    top = Fraction(logits[p]) - root * (1 + Fraction(at_the_centre)) * (Fraction(a) + Fraction(b) * Fraction(norm))
    others = [(Fraction(logit), Fraction(pairs[p][j])) for j, logit in enumerate(logits) if j != p]
    best = min((top - logit) / (pair + root * Fraction(b)) for logit, pair in others)
    radius = math.nextafter(float(best), math.inf)
    while Fraction(radius) >= best:
        radius = math.nextafter(radius, -math.inf)
    return max(radius, 0.0)


def weights_hash(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted((name, tensor.detach().numpy()) for name, tensor in state.items()):
        digest.update(f"{name}\0{array.dtype}\0{','.join(map(str, array.shape))}\0".encode() + array.tobytes())
    return digest.hexdigest()


class Certificate:
    """A model, its certificate as a JSON table that a test may change, and the files of both."""

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        input_shape: Sequence[int],
        images: int = 3,
        arithmetic: str = "float64",
        at_the_centre: float | None = None,
        version: int = 2,
    ) -> None:
        # With room for logits that are computed again, in float64; 1 is the most that can be claimed of those in the file.
        self.at_the_centre = at_the_centre or {"float64": 3.0, "float32": 1 + 2.0**-20}[arithmetic]
        self.folder, self.model, self.arithmetic = folder, model.eval(), arithmetic
        self.input_shape = tuple(input_shape)
        certifier = Certifier(model, input_shape, arithmetic=arithmetic)
        self.layers = bounded(certifier.nodes)
        pairs = pair_constants(self.layers, len(certifier.pair_constants))
        alpha, beta = (up(term) for term in error_terms(self.layers, arithmetic))
        generator = torch.Generator().manual_seed(7)
        self.pixels = torch.rand(images, *input_shape, generator=generator, dtype=torch.float64)
        if arithmetic == "float32":
            self.pixels = self.pixels.float().double()
        self.table: dict[str, Any] = hexadecimal(_header(certifier, images)) | {
            "weights_sha256": weights_hash(model.state_dict()),
            "lipschitz": up(constants(self.layers)[self.layers[-1].node.name]).hex(),
            "pair_constants": hexadecimal(pairs),
            "error_offset": alpha.hex(),
            "error_slope": beta.hex(),
            "images": [self._image(k, pairs, alpha, beta) for k in range(images)],
        }
        for layer, node in zip(self.layers, self.table["nodes"], strict=True):
            node["lipschitz"] = layer.norm.hex()
        self.model_file = folder / "model.safetensors"
        self.save_model()
        self.version = version
        if version == 1:
            new = ("isoconv", "assumptions", "nodes", "output")
            layers = [
                {"name": node["module"], "kind": node["kind"], "lipschitz": node["lipschitz"],
                 "settings": settings_1(node["kind"], node["settings"])}
                for node in self.table["nodes"]
            ]  # fmt: skip
            self.table = {name: value for name, value in self.table.items() if name not in new}
            self.table |= {"version": 1, "claim": CLAIM, "layers": layers}

    def text(self, table: dict[str, Any]) -> str:
        """The file: of version 2 a line for the network, one for each image."""
        if self.version == 1 or not isinstance(table.get("images"), list):
            return json.dumps(table)
        lines = [{**table, "images": len(table["images"])}, *table["images"]]
        return "".join(json.dumps(line) + "\n" for line in lines)

    def _image(self, k: int, pairs: list[list[float]], alpha: float, beta: float) -> dict[str, Any]:
        x = self.pixels[k]
        norm = up(mpmath.sqrt(mpmath.fsum(mpmath.mpf(v) ** 2 for v in x.flatten().tolist())))
        logits = self.logits(x[None])[0].tolist()
        radius = largest_radius(logits, norm, pairs, alpha, beta, self.at_the_centre)
        prediction = int(np.argmax(logits))
        return {"index": k, "label": 0, "prediction": prediction, "input_norm": norm.hex(),
                "logits": [value.hex() for value in logits], "radius": radius.hex()}  # fmt: skip

    def logits(self, x: Tensor) -> Tensor:
        dtype = getattr(torch, self.arithmetic)
        weights = {name: p.to(dtype) if p.is_floating_point() else p for name, p in self.model.state_dict().items()}
        return torch.func.functional_call(self.model, weights, (x.to(dtype),)).detach().double()

    def save_model(self) -> None:
        save_file({name: p.contiguous() for name, p in self.model.state_dict().items()}, self.model_file)

    def check(self, change: Callable[[dict[str, Any]], Any] | None = None, images: Any = None) -> Outcome:
        """The checker's verdict on the certificate after a change to it, which is not kept."""
        table = json.loads(json.dumps(self.table))
        if change is not None:
            change(table)
        file = self.folder / "certificate.json"
        file.write_text(self.text(table))
        if images is None:
            return check(file, self.model_file)
        np.save(self.folder / "images.npy", images)
        return check(file, self.model_file, "--images", self.folder / "images.npy")

    @property
    def entries(self) -> list[dict[str, Any]]:
        return self.table["layers" if self.version == 1 else "nodes"]

    def layer(self, kind: str, number: int = 0) -> int:
        """The position of the number-th layer of a kind."""
        return [i for i, entry in enumerate(self.entries) if entry["kind"] == kind][number]
