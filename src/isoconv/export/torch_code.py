"""A plain network as a safetensors file with a small Python file beside it, which needs torch and safetensors alone."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from isoconv.certify.rules import Node as Layer
from isoconv.errors import IsoconvError
from isoconv.export.deployed import Deployed, deploy, not_exportable
from isoconv.files import check_writable, write_files
from isoconv.nn import Abs, GroupSort, MaxMin, Scale
from isoconv.version import __version__


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

    The code's name is `code_path(path)`. `dtype` is what its `load()` runs the network in if nothing else is said.
    Returns what was exported.
    """
    weights = Path(path)
    code = code_path(weights)
    check_writable([weights, code], overwrite)
    deployed = deploy(model, input_shape, dtype, classes)
    # Copies: a module that occurs twice has its weights under two names, which safetensors would refuse.
    tensors = {name: tensor.clone() for name, tensor in deployed.network.state_dict().items()}
    metadata = {"format": "pt", **deployed.metadata()}
    write_files({weights: save(tensors, metadata), code: torch_code(deployed, weights.name).encode()})
    return deployed


def code_path(weights: Path) -> Path:
    """Beside the weights and named like them, with underscores where Python's `import` would stumble."""
    if weights.suffix != ".safetensors":
        raise IsoconvError(f"Expected a file name that ends in .safetensors. Got {weights.name}.")
    name = re.sub(r"\W", "_", weights.stem, flags=re.ASCII)
    return weights.with_name(f"_{name}.py" if name[0].isdigit() else f"{name}.py")


def torch_code(deployed: Deployed, weights_name: str) -> str:
    """The Python file that builds the network and loads its weights."""
    classes = [_CLASSES[kind] for kind in _CLASSES if any(type(x.module) is kind for x in deployed.layers)]
    layers = {layer.name: layer for layer in deployed.layers}
    network = _expression(deployed.network, "", layers, indent=1)
    return _TEMPLATE.format(
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
        dtype=deployed.dtype,
    )


def _expression(module: nn.Module, name: str, layers: dict[str, Layer], indent: int) -> str:
    """The Python expression that makes a module: a Sequential line by line, anything else on one."""
    if type(module) is not nn.Sequential:
        layer = layers[name or "model"]
        for kind, settings in _SETTINGS.items():
            if type(module) is kind:
                prefix = "" if kind in _CLASSES else "nn."
                return f"{prefix}{kind.__name__}({_arguments(module, *settings)})"
        raise not_exportable(layer)
    children = {key: f"{name}.{key}" if name else key for key in module._modules}
    made = {key: _expression(module._modules[key], path, layers, indent + 1) for key, path in children.items()}  # type: ignore[arg-type]
    space, end = "    " * (indent + 1), "    " * indent
    if list(made) == [str(k) for k in range(len(made))]:
        return "nn.Sequential(\n" + "".join(f"{space}{text},\n" for text in made.values()) + f"{end})"
    pairs = "".join(f"{space}({key!a}, {text}),\n" for key, text in made.items())
    return f"nn.Sequential(OrderedDict([\n{pairs}{end}]))"


def _arguments(module: nn.Module, positional: tuple[str, ...], named: dict[str, Any]) -> str:
    """Constructor arguments: those without a default, and the others where they differ from it."""
    texts = [_literal(getattr(module, name)) for name in positional]
    for name, default in named.items():
        value = getattr(module, name)
        value = value is not None if name == "bias" else value
        if _literal(value) != _literal(default):
            texts.append(f"{name}={_literal(value)}")
    return ", ".join(texts)


def _literal(value: Any) -> str:
    """(3, 3) as 3, everything else as Python writes it."""
    if isinstance(value, tuple) and len(set(value)) == 1:
        value = value[0]
    return repr(value)


_CONVOLUTION: tuple[tuple[str, ...], dict[str, Any]] = (
    ("in_channels", "out_channels", "kernel_size"),
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True, "padding_mode": "zeros"},
)
_SETTINGS: dict[type[nn.Module], tuple[tuple[str, ...], dict[str, Any]]] = {
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Linear: (("in_features", "out_features"), {"bias": True}),
    nn.CircularPad1d: (("padding",), {}),
    nn.CircularPad2d: (("padding",), {}),
    nn.ZeroPad1d: (("padding",), {}),
    nn.ZeroPad2d: (("padding",), {}),
    nn.ReLU: ((), {}),
    nn.Flatten: ((), {"start_dim": 1, "end_dim": -1}),
    nn.PixelShuffle: (("upscale_factor",), {}),
    nn.PixelUnshuffle: (("downscale_factor",), {}),
    nn.Identity: ((), {}),
    nn.Dropout: (("p",), {}),
    MaxMin: ((), {}),
    GroupSort: (("group_size",), {}),
    Abs: ((), {}),
    Scale: (("factor",), {}),
}
_CLASSES: dict[type[nn.Module], str] = {
    MaxMin: '''class MaxMin(nn.Module):
    """Channel i and channel i + C/2 become their maximum and their minimum."""

    def forward(self, x):
        first, second = x.chunk(2, dim=1)
        swap = second > first
        return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=1)''',
    GroupSort: '''class GroupSort(nn.Module):
    """Sorts channels within groups, largest first; with g groups, group j holds the channels j, j + g, j + 2g, …"""

    def __init__(self, group_size):
        super().__init__()
        self.group_size = group_size

    def forward(self, x):
        size = self.group_size or x.shape[1]
        groups = x.reshape(x.shape[0], size, x.shape[1] // size, *x.shape[2:])
        return groups.sort(dim=1, descending=True, stable=True).values.reshape(x.shape)''',
    Abs: """class Abs(nn.Module):
    def forward(self, x):
        return torch.abs(x)""",
    Scale: """class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor""",
}
_TEMPLATE = '''"""A network, exported by isoconv {version}. Needs torch and safetensors, not isoconv.

    model = load()                    # in evaluation mode; load(torch.float64) for another arithmetic
    logits = model(images)            # images: ({shape}), pixels from 0 to 1

{claim}
"""

import hashlib
{ordered}from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_name({weights})
WEIGHTS_SHA256 = "{sha256}"
INPUT_SHAPE = {input_shape}
CLASSES = {class_names}
{modules}

def build():
    """The network, with weights that mean nothing yet."""
    return {network}


def weights_sha256(model):
    """The hash that certificates name: names, types, shapes and bytes of the weights, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        digest.update(name.encode() + b"\\0" + kind.encode() + b"\\0" + shape.encode() + b"\\0")
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load(dtype=torch.{dtype}):
    """The network with the exported weights; others than those are refused."""
    weights = load_file(WEIGHTS)
    model = build().to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    if weights_sha256(model) != WEIGHTS_SHA256:
        raise ValueError(f"{{WEIGHTS}} does not hold the weights that were exported.")
    return model.to(dtype).eval().requires_grad_(False)


if __name__ == "__main__":
    print(load())
'''
