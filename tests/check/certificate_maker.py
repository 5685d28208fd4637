"""Honest certificates for the tests of the checker, made from torch's own forward pass, dense singular values and mpmath.

It shares no code with the checker, nor with the certifier that users call.
"""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
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

from isoconv.check.__main__ import main
from isoconv.nn import Add, Concat, Graph, Permute, Reshape, Scale, Slice, Translate

mpmath.mp.dps = 60
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
PADS = (nn.CircularPad1d, nn.CircularPad2d)
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


def up(value: Any) -> float:
    """The smallest float that is not below a number (of mpmath, a fraction or a float)."""
    nearest = float(value)
    below = Fraction(nearest) < value if isinstance(value, Fraction) else mpmath.mpf(nearest) < value
    return math.nextafter(nearest, math.inf) if below else nearest


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if isinstance(model, Graph):
        yield from ((node.name, model.get_submodule(node.path)) for node in model.nodes)
        return
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            yield from leaves(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def settings(module: nn.Module, axes: int = 3) -> dict[str, Any]:
    """The settings of version 2, of a module whose input has so many axes."""
    name = type(module).__name__
    dimensions = int(name[-2]) if name[-2:] in ("1d", "2d") else 0

    def take(names: str) -> dict[str, Any]:
        return {name: getattr(module, name, None) for name in names.split()}

    def each(names: str) -> dict[str, list[int]]:
        return {k: list(v) if isinstance(v, (tuple, list)) else [v] * dimensions for k, v in take(names).items()}

    def pairs(flat: Sequence[int]) -> list[list[int]]:
        return [list(flat[n : n + 2]) for n in range(0, len(flat), 2)][::-1]

    match module:
        case nn.Conv1d() | nn.Conv2d():
            padding = {"padding": pairs(module._reversed_padding_repeated_twice)}
            return each("stride dilation") | padding | take("groups padding_mode")
        case nn.MaxPool1d() | nn.MaxPool2d():
            return each("kernel_size stride padding dilation") | take("ceil_mode")
        case nn.AvgPool1d() | nn.AvgPool2d():
            return each("kernel_size stride padding") | take("ceil_mode count_include_pad divisor_override")
        case nn.Flatten():
            return {"start_dim": module.start_dim % (axes + 1), "end_dim": module.end_dim % (axes + 1)}
        case nn.Unflatten():
            return {"dim": module.dim, "unflattened_size": list(module.unflattened_size)}
        case nn.PixelUnshuffle() | nn.PixelShuffle():
            return {"factor": getattr(module, "downscale_factor", 0) or module.upscale_factor}
        case nn.Hardtanh() if name == "Hardtanh":
            return {"min_val": float(module.min_val).hex(), "max_val": float(module.max_val).hex()}
        case nn.Upsample():
            return {"factors": [int(module.scale_factor)] * (axes - 1)}
        case Concat() | Slice():
            return {"axis": module.dim - 1} | (take("start stop step") if isinstance(module, Slice) else {})
        case Reshape() | Permute():
            return {k: list(v) for k, v in take("shape order").items() if v is not None}
        case nn.ConstantPad1d() | nn.ConstantPad2d() if "Constant" in name:
            return {"padding": pairs(module.padding), "value": float(module.value).hex()}
    if "Pad" in name:
        return {"padding": pairs(module.padding)}
    kept = {"Scale": "factor", "LeakyReLU": "negative_slope", "BatchNorm1d": "eps", "BatchNorm2d": "eps"}
    if name in kept:
        return {kept[name]: getattr(module, kept[name]).hex()}
    return take("group_size") if name == "GroupSort" else {}


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


def without_bias(module: nn.Module, *x: Tensor) -> Tensor:
    """The linear part, in float64; of what is not linear, all of it."""
    if not any(True for _ in module.parameters()) or isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return copy.deepcopy(module).double()(*x)
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters() if name.endswith("bias")}
    weights = {name: p.double() for name, p in module.named_parameters()}
    return torch.func.functional_call(module, {**weights, **{n: z.double() for n, z in zeros.items()}}, x)


def dense(module: nn.Module, shape: Sequence[int]) -> np.ndarray:
    """The matrix (outputs, inputs) of a linear module."""
    size = math.prod(shape)
    images = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return without_bias(module, images).detach().reshape(size, -1).T.numpy()


def spectral_norm(matrix: np.ndarray) -> float:
    """numpy's largest singular value; of the matrix divided by its largest entry, whose squares cannot vanish."""
    largest = np.abs(matrix).max()
    return float(largest * np.linalg.svd(matrix / largest, compute_uv=False)[0]) if largest else 0.0


def norm_on_torus(weight: Tensor, stride: int, size: Sequence[int]) -> float:
    """Of a circular convolution, from the frequencies that a stride makes aliases of each other: no folding."""
    symbols = torch.fft.fft2(weight.double(), s=tuple(size)).permute(2, 3, 0, 1)
    rows = [torch.cat(part.chunk(stride, 1), -1) for part in symbols.chunk(stride, 0)]
    return float(torch.linalg.svdvals(torch.cat(rows, -1)).max()) / stride


def linear_norm(module: nn.Module, shape: Sequence[int]) -> float:
    if math.prod(shape) <= 1100:
        return spectral_norm(dense(module, shape))
    last = list(module)[-1] if isinstance(module, nn.Sequential) else module
    if isinstance(last, nn.Linear):
        weight = last.weight.detach().double()
        return float(torch.linalg.eigvalsh(weight @ weight.T)[-1]) ** 0.5  # quicker than singular values
    return norm_on_torus(last.weight.detach(), last.stride[0], shape[1:])


def largest_count(module: nn.Module, shape: Sequence[int]) -> int:
    """How often one number of the input occurs in what a pad or a pool's windows see: by trying each."""
    size = math.prod(shape)
    images = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return int(module(images).flatten(1).sum(1).max())


class Layer(NamedTuple):
    """A leaf with the shape that reaches it, the shape it gives, and its constant."""

    name: str
    module: nn.Module
    shape: torch.Size
    result: torch.Size
    norm: float
    fused: nn.Module | None  # the circular pad in front that is bounded with it
    skipped: bool  # is such a pad
    inputs: tuple[str, ...]


def traced(model: nn.Module, input_shape: Sequence[int]) -> list[Layer]:
    values = {"input": torch.zeros(1, *input_shape, dtype=torch.float64)}
    result: dict[str, Layer] = {}
    found = dict(leaves(model))
    chain = {name: (before,) for before, name in zip(["input", *found], found, strict=False)}
    inputs = {node.name: node.inputs for node in model.nodes} if isinstance(model, Graph) else chain
    for name, module in found.items():
        following = [found[user] for user, sources in inputs.items() for source in sources if source == name]
        unpadded = len(following) == 1 and isinstance(following[0], CONVOLUTIONS) and not any(following[0].padding)
        skipped = isinstance(module, PADS) and unpadded
        values[name] = without_bias(module, *(values[before] for before in inputs[name]))
        before = result.get(inputs[name][0])
        pad = before if before is not None and before.skipped else None
        start = pad.shape if pad is not None else values[inputs[name][0]].shape[1:]
        bounded = module if pad is None else nn.Sequential(pad.module, module)
        norm = 1.0 if skipped else constant(bounded, module, start)
        fused = None if pad is None else pad.module
        result[name] = Layer(name, module, start, values[name].shape[1:], norm, fused, skipped, inputs[name])
    return list(result.values())


def constants(layers: Sequence[Layer]) -> dict[str, Any]:
    """Of every value as a function of the input: sums add, values side by side add in squares."""
    result = {"input": mpmath.mpf(1)}
    for layer in layers:
        result[layer.name] = layer.norm * joined(layer, [result[before] for before in layer.inputs])
    return result


def joined(layer: Layer, numbers: Sequence[Any]) -> Any:
    if isinstance(layer.module, Concat):  # the checker rounds each root up, by a relative 2⁻⁹⁹ at most
        return mpmath.sqrt(mpmath.fsum(number**2 for number in numbers)) * (1 + mpmath.mpf(2) ** -90)
    return mpmath.fsum(numbers)


def constant(bounded: nn.Module, module: nn.Module, shape: Sequence[int]) -> float:
    match module:
        case nn.Conv1d() | nn.Conv2d() | nn.Linear():
            return linear_norm(bounded, shape) * GENEROUS
        case nn.AvgPool1d() | nn.AvgPool2d():
            return spectral_norm(dense(module, shape)) * GENEROUS
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return up(max(gains(module)))
        case nn.LeakyReLU():
            return max(1.0, abs(module.negative_slope))
        case nn.Sigmoid():
            return 0.25
        case _ if type(module).__name__.startswith(("Circular", "Reflection", "Replication", "Upsample", "MaxPool")):
            return up(mpmath.sqrt(largest_count(module, shape)))
        case Scale():
            return abs(module.factor)
    return 1.0


def gains(module: nn.Module) -> list[Any]:
    """|γ|/√(v + ε) of each channel of a batch normalisation."""
    weight = torch.ones_like(module.running_var) if module.weight is None else module.weight
    pairs = zip(weight.tolist(), module.running_var.tolist(), strict=True)
    return [abs(g) / mpmath.sqrt(mpmath.mpf(v) + mpmath.mpf(module.eps)) for g, v in pairs]


def at_zero(layer: Layer) -> Any:
    """‖f(0)‖ of what does not round and is not 0 there."""
    x = torch.zeros(1, *layer.shape, dtype=torch.float64)
    return mpmath.sqrt(mpmath.fsum(mpmath.mpf(v) ** 2 for v in layer.module(x).flatten().tolist()))


def copies(layer: Layer) -> int:
    """The largest number of outputs that are the same because a circular padding has gone around: by comparing windows."""
    module = layer.module
    pads = list(module._reversed_padding_repeated_twice)
    if module.padding_mode in ("reflect", "replicate") and any(pads):
        image = torch.arange(math.prod(layer.shape[1:]), dtype=torch.float64).reshape(1, 1, *layer.shape[1:])
        return int(torch.bincount(nn.functional.pad(image, pads, mode=module.padding_mode).flatten().long()).max())
    wraps = layer.fused is not None or (module.padding_mode == "circular" and any(module.padding))
    if not wraps:
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
            tuple(joined(layer, [norms[before][k] for before in layer.inputs]) for k in (0, 1))
            for norms in (sizes, errors)
        )
        L = mpmath.mpf(layer.norm)
        n, A, B = (None, None, None) if layer.skipped else products_and_norms(layer, L)
        if n is None:
            constant = at_zero(layer) if type(layer.module).__name__.startswith(("Hard", "Constant")) else 0
            sizes[layer.name], errors[layer.name] = (L * size[0] + constant, L * size[1]), tuple(L * e for e in error)
            continue
        gamma = (n + 1) * unit / (1 - (n + 1) * unit)
        outputs = mpmath.sqrt(math.prod(layer.result))
        fixed = gamma * B + outputs * (n + 1) * tiny
        errors[layer.name] = tuple(
            L * e + gamma * A * (s + e) + (fixed if k == 0 else 0)
            for k, (s, e) in enumerate(zip(size, error, strict=True))
        )
        sizes[layer.name] = (L * size[0] + B, L * size[1])
    return errors[layer.name]


def products_and_norms(layer: Layer, L: Any) -> tuple[int | None, Any, Any]:
    module = layer.module
    if isinstance(module, Add):
        return len(layer.inputs) - 2, 1, mpmath.mpf(0)
    if isinstance(module, Translate):
        repeated = module.bias.detach().double().expand(layer.result).flatten().tolist()
        return 0, 1, mpmath.sqrt(mpmath.fsum(mpmath.mpf(b) ** 2 for b in repeated))
    if isinstance(module, Scale):
        return 0, L, mpmath.mpf(0)
    if isinstance(module, (nn.AvgPool1d, nn.AvgPool2d)):
        return math.prod(settings(module)["kernel_size"]), L, mpmath.mpf(0)
    if isinstance(module, (nn.Softsign, nn.Tanh)):
        return 2 if isinstance(module, nn.Softsign) else 15, 1, mpmath.mpf(0)
    if isinstance(module, nn.Sigmoid):
        return 15, 0, mpmath.sqrt(math.prod(layer.result))
    if isinstance(module, nn.LeakyReLU):
        return 1, L, mpmath.mpf(0)
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        bias = torch.zeros(len(module.running_var)) if module.bias is None else module.bias
        parts = zip(gains(module), module.running_mean.tolist(), bias.tolist(), strict=True)
        positions = math.prod(layer.result[1:])
        squares = mpmath.fsum((2 * (g + 1e-30) * abs(m) + abs(b)) ** 2 for g, m, b in parts)
        return 7, max(gains(module)) * (1 + mpmath.mpf(10) ** -30), mpmath.sqrt(positions * squares)
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
    """To twice a double's digits, of those rows that may have the largest sum."""
    sums = rows.sum(1)
    result = mpmath.mpf(0)
    for values in rows[sums >= sums.max() * (1 - 1e-9)].tolist():
        total = math.fsum(values)
        result = max(result, mpmath.mpf(total) + mpmath.mpf(math.fsum([*values, -total])))
    return result


def pair_constants(layers: Sequence[Layer], classes: int) -> list[list[float]]:
    last, known = layers[-1], constants(layers)
    rows = last.module.weight.detach().double().tolist() if isinstance(last.module, nn.Linear) else None

    def constant(i: int, j: int) -> float:
        value = mpmath.sqrt(2) * known[last.name]
        if rows is not None:
            squares = mpmath.fsum((mpmath.mpf(a) - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))
            value = min(value, mpmath.sqrt(squares) * known[last.inputs[0]])
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
    for name in sorted(state):
        array = state[name].detach().numpy()
        shape = ",".join(map(str, array.shape))
        digest.update(name.encode() + b"\0" + str(array.dtype).encode() + b"\0" + shape.encode() + b"\0")
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
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
        self.layers = traced(model, input_shape)
        assert len(self.layers[-1].result) == 1
        classes = self.layers[-1].result[0]
        pairs = pair_constants(self.layers, classes)
        alpha, beta = (up(term) for term in error_terms(self.layers, arithmetic))
        generator = torch.Generator().manual_seed(7)
        self.pixels = torch.rand(images, *input_shape, generator=generator, dtype=torch.float64)
        if arithmetic == "float32":
            self.pixels = self.pixels.float().double()
        self.table: dict[str, Any] = {
            "format": "isoconv certificate",
            "version": 1,
            "claim": CLAIM,
            "arithmetic": arithmetic,
            "norm": "2",
            "input_shape": list(input_shape),
            "input_range": [0.0.hex(), 1.0.hex()],
            "classes": classes,
            "weights_sha256": weights_hash(model.state_dict()),
            "layers": [
                {"name": layer.name, "kind": type(layer.module).__name__,
                 "settings": settings(layer.module, len(layer.shape)), "lipschitz": layer.norm.hex()}
                for layer in self.layers
            ],
            "lipschitz": up(constants(self.layers)[self.layers[-1].name]).hex(),
            "pair_constants": [[value.hex() for value in row] for row in pairs],
            "error_offset": alpha.hex(),
            "error_slope": beta.hex(),
            "images": [self._image(k, pairs, alpha, beta) for k in range(images)],
        }  # fmt: skip
        self.model_file = folder / "model.safetensors"
        self.save_model()
        self.version = version
        if version == 1:
            for layer in self.table["layers"]:
                layer["settings"] = settings_1(layer["kind"], layer["settings"])
            return
        del self.table["claim"]
        nodes = self.table.pop("layers")
        paths = {node["name"]: node["name"] for node in nodes}
        paths |= {node.name: node.path for node in model.nodes} if isinstance(model, Graph) else {}
        for layer, node in zip(self.layers, nodes, strict=True):
            node |= {"module": paths[layer.name], "inputs": list(layer.inputs)}
        needs = any(isinstance(layer.module, (nn.Tanh, nn.Sigmoid)) for layer in self.layers)
        self.table |= {"version": 2, "isoconv": "test", "nodes": nodes, "output": nodes[-1]["name"],
                       "assumptions": ["elementary functions err by at most 8 units in the last place"] * needs}  # fmt: skip

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
