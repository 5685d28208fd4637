"""A plain network as a safetensors file with a small Python file beside it, which needs torch and safetensors alone."""

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

import isoconv.nn
from isoconv import __version__
from isoconv.certify import Node
from isoconv.errors import require
from isoconv.export.deployed import Deployed, deploy
from isoconv.files import check_writable, write_files
from isoconv.nn import graph as nn_graph


def export_torch(
    model: nn.Module,
    input_shape: Sequence[int],
    path: Path | str,
    *,
    dtype: str = "float32",
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Deployed:
    """Write the weights of `plain(model)` to `path`, a .safetensors file, and the code to load them beside it.

    The code's name is `code_path(path)`. `dtype` is what its `load()` runs the network in by default.
    Returns what was exported.
    """
    weights = Path(path)
    code = code_path(weights)
    deployed = deploy(model, input_shape, dtype, classes)
    check_writable([weights, code], overwrite)
    # Copies: a module that occurs twice has its weights under two names, which safetensors would refuse.
    tensors = {name: tensor.clone() for name, tensor in deployed.network.state_dict().items()}
    metadata = {"format": "pt", **deployed.metadata()}
    write_files({weights: save(tensors, metadata), code: torch_code(deployed, weights.name).encode()})
    return deployed


def code_path(weights: Path) -> Path:
    """Return the name of the code beside the weights, with underscores where Python's `import` would stumble."""
    require(weights.suffix == ".safetensors", "a file name that ends in .safetensors", weights.name)
    name = re.sub(r"\W", "_", weights.stem, flags=re.ASCII)
    return weights.with_name(f"_{name}.py" if name[0].isdigit() else f"{name}.py")


def torch_code(deployed: Deployed, weights_name: str) -> str:
    """Return the Python file that builds the network and loads its weights."""
    used = {node.kind for node in deployed.nodes} | {type(deployed.network).__name__}
    classes = [inspect.getsource(kind).rstrip() for name, kind in _OURS.items() if name in used]
    expressions = {node.path: _expression(node) for node in deployed.nodes}
    network = _sequence(deployed.network, "", expressions, indent="    ")
    template = Path(__file__).with_name("exported.txt").read_text(encoding="utf-8")
    return template.format(
        version=__version__,
        claim="\n".join(textwrap.wrap(deployed.claim, 110)),
        shape=", ".join(["N", *map(str, deployed.input_shape)]),
        weights=ascii(weights_name),
        sha256=deployed.sha256,
        input_shape=deployed.input_shape,
        class_names=ascii(deployed.classes),
        modules="".join(f"\n\n{text}\n" for text in classes),
        network=network,
        ordered="from collections import OrderedDict\n" if "OrderedDict" in network else "",
        sequences="from collections.abc import Sequence\n" if "Sequence[" in "".join(classes) else "",
        dtype=deployed.dtype,
    )


def _sequence(module: nn.Module, path: str, expressions: dict[str, str], indent: str) -> str:
    """Return the Python expression that makes a module: a Sequential or Graph line by line, anything else on one."""
    if type(module) is nn_graph.Graph:
        modules = "".join(f"{indent}        {path!a}: {text},\n" for path, text in expressions.items())
        steps = "".join(f"{indent}        {tuple(node)!a},\n" for node in module.nodes)
        steps = f"{indent}    [  # name, module, inputs\n{steps}{indent}    ],\n"
        return f"Graph(\n{indent}    {{\n{modules}{indent}    }},\n{steps}{indent})"
    if type(module) is not nn.Sequential:
        return expressions[path.removesuffix(".")]
    inner = indent + "    "
    children = {key: child for key, child in module._modules.items() if child is not None}
    texts = {key: _sequence(child, f"{path}{key}.", expressions, inner) for key, child in children.items()}
    if list(texts) == [str(k) for k in range(len(texts))]:
        return "nn.Sequential(\n" + "".join(f"{inner}{text},\n" for text in texts.values()) + f"{indent})"
    pairs = "".join(f"{inner}({key!a}, {text}),\n" for key, text in texts.items())
    return f"nn.Sequential(OrderedDict([\n{pairs}{indent}]))"


def _expression(node: Node) -> str:
    """Return the call that makes a module; refuse one that was changed afterwards, as its constructor would make another."""
    module, kind = node.module, type(node.module)
    if kind is isoconv.nn.Normalize:
        numbers = ([float(str(value)) for value in tensor.numpy()] for tensor in (module.mean, module.std))
        return f"Normalize({', '.join(map(str, numbers))})"
    if kind is nn_graph.Translate:
        return f"Translate(torch.zeros({tuple(module.bias.shape)}))"
    with torch.device("meta"):
        twin = kind(**nn_graph.arguments_of(module))
    shape = node.input_shape
    if node.circular is not None:  # counted before its padding
        shape = torch.Size([shape[0], *(n + sum(pad) for n, pad in zip(shape[1:], node.circular, strict=True))])
    same = [t.shape for t in twin.parameters()] == [t.shape for t in module.parameters()]
    assert node.rule.settings is not None
    same = same and node.rule.settings(replace(node, module=twin, input_shape=shape)) == node.settings
    require(same, "modules that their constructors would make", f"{node.place}, which was changed afterwards")
    return f"{'' if kind.__name__ in _OURS else 'nn.'}{kind.__name__}({nn_graph.show_arguments(module)})"


# The modules of isoconv that a plain network may hold, as an exported file defines them, with torch alone and in this
# order. Each class of this file is one of them.


class MaxMin(nn.Module):
    """Channel i and channel i + C/2 become their maximum and their minimum."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=self.dim)
        swap = second > first
        return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=self.dim)


class GroupSort(nn.Module):
    """Sorts channels within groups, largest first; with g groups, group j holds the channels j, j + g, j + 2g, …"""

    def __init__(self, group_size: int | None = 2, dim: int = 1) -> None:
        super().__init__()
        self.group_size, self.dim = group_size, dim

    def forward(self, x: Tensor) -> Tensor:
        dim = self.dim % x.dim()
        size = self.group_size or x.shape[dim]
        groups = x.unflatten(dim, (size, x.shape[dim] // size))
        return groups.sort(dim=dim, descending=True, stable=True).values.reshape(x.shape)


class Householder(nn.Module):
    """Reflects the pair of channels i and i + C/2 where its product with their vector is negative."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.vectors = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        v, w = self.vectors.view(2, -1, *[1] * (x.dim() - 2))
        along = (v * first + w * second).clamp(max=0.0) * (2 / (v * v + w * w))
        return torch.cat([first - along * v, second - along * w], dim=1)


Abs = isoconv.nn.Abs


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Normalize(nn.Module):
    """(x − mean)/std for each channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        channels = (-1, *[1] * (x.dim() - 2))
        return (x - self.mean.view(channels)) / self.std.view(channels)


class ChannelShift(nn.Module):
    """Moves four groups of channels by one pixel, cyclically: down, up, right, left; the others stay."""

    def __init__(self, share: float = 1 / 8) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        count = int(self.share * x.shape[1])
        down, up, right, left, rest = x.split([count] * 4 + [x.shape[1] - 4 * count], 1)
        return torch.cat([down.roll(1, 2), up.roll(-1, 2), right.roll(1, 3), left.roll(-1, 3), rest], 1)


class PositionBias(nn.Module):
    """Adds a number to every position, the same for all channels."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width
        self.bias = nn.Parameter(torch.zeros(height * width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.view(self.height, self.width)


class HalfAbs(nn.Module):
    """The absolute value of the first half of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        return torch.cat([x[:, :half].abs(), x[:, half:]], 1)


class L2NormPool2d(nn.Module):
    """The L2 norm over the positions of each channel, or over windows."""

    def __init__(
        self, kernel_size: int | tuple[int, int] | None = None, stride: int | tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel_size is None or self.stride is None:
            return torch.linalg.vector_norm(x, dim=(2, 3))
        sizes = (self.kernel_size, self.stride)
        (height, _), (down, _) = ((size, size) if isinstance(size, int) else size for size in sizes)
        columns = nn.functional.unfold(x, self.kernel_size, stride=self.stride).unflatten(1, (x.shape[1], -1))
        norms = torch.linalg.vector_norm(columns, dim=2)
        return norms.unflatten(2, ((x.shape[2] - height) // down + 1, -1))


class BatchCentering(nn.Module):
    """Subtracts a number from each channel, and adds one."""

    running_mean: Tensor

    def __init__(self, num_features: int, momentum: float = 0.1, bias: bool = True) -> None:
        super().__init__()
        self.num_features, self.momentum = num_features, momentum
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        shift = self.running_mean if self.bias is None else self.running_mean - self.bias
        return x - shift.view(-1, *[1] * (x.dim() - 2))


class LayerCentering(nn.Module):
    """Subtracts the mean over the axes `dim` of each sample, or over all."""

    def __init__(self, dim: list[int] | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(self.dim or list(range(1, x.dim())), keepdim=True)


class ConvexPotential2d(nn.Module):
    """x − Wᵀ·relu(Wx + b), W a convolution with "same" padding."""

    bias: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: int | tuple[int, int],
        bias: bool = True,
        padding_mode: str = "circular",
    ) -> None:
        super().__init__()
        height, width = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        self.pads = (width // 2, (width - 1) // 2, height // 2, (height - 1) // 2)
        self.mode = "constant" if padding_mode == "zeros" else padding_mode
        self.weight = nn.Parameter(torch.zeros(hidden, channels, height, width))
        self.register_parameter("bias", nn.Parameter(torch.zeros(hidden)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        pad, (left, right, top, bottom) = nn.functional.pad, self.pads
        hidden = nn.functional.conv2d(pad(x, self.pads, self.mode), self.weight, self.bias).relu()
        mirrored = pad(hidden, (right, left, bottom, top), self.mode)
        return x - nn.functional.conv2d(mirrored, self.weight.transpose(0, 1).flip(2, 3))


class Add(nn.Module):
    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = first + other
        return first


class Concat(nn.Module):
    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)


class Slice(nn.Module):
    """Takes the entries start:stop:step of one axis."""

    def __init__(self, dim: int, start: int, stop: int, step: int = 1) -> None:
        super().__init__()
        self.index = (slice(None),) * dim + (slice(start, stop, step),)

    def forward(self, x: Tensor) -> Tensor:
        return x[self.index]


class Flip(nn.Module):
    """Puts the entries of one axis in reverse order."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(self.dim)


class Reshape(nn.Module):
    """Gives another shape, without the batch, to every sample."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(nn.Module):
    """Puts the axes in another order, the batch not counted."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = [0, *(axis + 1 for axis in order)]

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Translate(nn.Module):
    """Adds a tensor."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Graph(nn.Module):
    """Modules by their paths, and the order in which values pass through them; the last value is the output."""

    def __init__(self, modules: dict[str, nn.Module], nodes: list[tuple[str, str, Sequence[str]]]) -> None:
        super().__init__()
        self.nodes = nodes
        for path, module in modules.items():
            parent: nn.Module = self
            *parents, name = path.split(".")
            for part in parents:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        values = {"input": x}
        for name, path, inputs in self.nodes:
            x = values[name] = self.get_submodule(path)(*[values[source] for source in inputs])
        return x


_OURS = {name: kind for name, kind in tuple(vars().items()) if isinstance(kind, type) and issubclass(kind, nn.Module)}
