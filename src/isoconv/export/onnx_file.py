"""A plain network as an ONNX file.

Note [Which operators]
The graph is written down module by module, with nothing but old operators (opset 13) whose meaning is simple, so
that it can be read beside the network and does not depend on an exporter. Circular padding is slices put together.
In float32 a convolution is `Conv`. In float64 it is a product of matrices: onnxruntime has no `Conv` for float64 on
the CPU, but has `Gather`, which lays the pixels under each tap side by side, and `MatMul`. Both add the same
products, so that a certificate, which allows for every order of summation, holds for either.

The initialisers are the weights of `plain(model)` under their own names, bit for bit, in float64 graphs too: there a
`Cast`, which is exact, stands behind each.
"""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.certify.convolutions import padding_of as pads_of
from isoconv.certify.rules import Node as Layer
from isoconv.errors import IsoconvError
from isoconv.export.deployed import Deployed, deploy, not_exportable
from isoconv.files import check_writable, write_files
from isoconv.nn import Abs, GroupSort, MaxMin, Scale

OPSET, IR_VERSION = 13, 7
INPUT, OUTPUT = "images", "logits"
_LARGEST = 2**31 - 2**20  # what a protocol buffer can hold, less some room for the graph


def export_onnx(
    model: nn.Module,
    input_shape: Sequence[int],
    path: Path | str,
    *,
    dtype: str = "float32",
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Deployed:
    """Write `plain(model)` in evaluation mode to an ONNX file: input `images`, output `logits`, any number in a batch.

    `dtype` is the arithmetic of the graph, float32 or float64; `classes` are named in the file's metadata, beside the
    hash of the weights and what certificates say of them. Returns what was exported. Needs the package onnx.
    """
    path = Path(path)
    check_writable([path], overwrite)
    require_onnx()
    deployed = deploy(model, input_shape, dtype, classes)
    write_files({path: onnx_model(deployed).SerializeToString()})
    return deployed


def require_onnx() -> Any:
    """The package onnx, or one line that says how to get it."""
    try:
        import onnx  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise IsoconvError("Export to ONNX needs a package: pip install 'isoconv[onnx]'.") from None
    return onnx


def onnx_model(deployed: Deployed) -> Any:
    """The `onnx.ModelProto` of a network; see Note [Which operators]."""
    onnx = require_onnx()
    size = sum(tensor.numel() * tensor.element_size() for tensor in deployed.network.state_dict().values())
    if size > _LARGEST:
        raise IsoconvError(f"Expected at most 2 GiB of weights, all that an ONNX file can hold. Got {size:,} bytes.")
    graph = _Graph(onnx, deployed.dtype, nested=type(deployed.network) is nn.Sequential)
    name, shape = INPUT, deployed.layers[0].input_shape
    for layer in deployed.layers:
        name = _applied(graph, name, layer, shape)
        shape = layer.output_shape
    graph.nodes.append(onnx.helper.make_node("Identity", [name], [OUTPUT]))
    kind = onnx.TensorProto.DOUBLE if deployed.dtype == "float64" else onnx.TensorProto.FLOAT
    inputs = [onnx.helper.make_tensor_value_info(INPUT, kind, ["batch", *deployed.input_shape])]
    outputs = [onnx.helper.make_tensor_value_info(OUTPUT, kind, ["batch", *shape])]
    body = onnx.helper.make_graph(graph.nodes, "isoconv", inputs, outputs, graph.initialisers)
    model = onnx.helper.make_model(
        body,
        producer_name="isoconv",
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        doc_string=deployed.claim,
    )
    onnx.helper.set_model_props(model, deployed.metadata())
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """The nodes so far. Every method gives the name of the value that it has added."""

    def __init__(self, onnx: Any, dtype: str, nested: bool) -> None:
        self.onnx, self.dtype, self.nested = onnx, dtype, nested
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"{operator.lower()}_{len(self.nodes)}" + ("" if k == 0 else f"_{k}") for k in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, name=names[0], **attributes))
        return names[0]

    def constant(self, values: Any, dtype: str = "int64") -> str:
        name = f"constant_{len(self.initialisers)}"
        self.initialisers.append(self.onnx.numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def weight(self, layer: Layer, which: str) -> str:
        """A weight or bias under its name in the network, as the graph's arithmetic takes it."""
        name = f"{layer.name}.{which}" if self.nested else which
        tensor: Tensor = getattr(layer.module, which).detach()
        self.initialisers.append(self.onnx.numpy_helper.from_array(tensor.cpu().contiguous().numpy(), name))
        if str(tensor.dtype) == f"torch.{self.dtype}":
            return name
        return self.add("Cast", name, to=self.onnx.TensorProto.DOUBLE)

    def reshape(self, value: str, *sizes: int) -> str:
        """To (N, …) with these sizes; a 0 would copy, and stands for the batch only."""
        return self.add("Reshape", value, self.constant([0, *sizes]))

    def slice(self, value: str, axis: int, start: int, end: int) -> str:
        return self.add(
            "Slice", value, self.constant([start]), self.constant([end]), self.constant([axis]), self.constant([1])
        )

    def pad(self, value: str, shape: Sequence[int], pads: Sequence[tuple[int, int]], circular: bool) -> str:
        """(before, after) pixels on each of the last axes, of zeros or of the other side of the image."""
        first = len(shape) + 1 - len(pads)
        if not circular and any(map(any, pads)):
            amounts = [[0] * first + [pair[side] for pair in pads] for side in (0, 1)]
            return self.add("Pad", value, self.constant(amounts[0] + amounts[1]), self.constant(0, self.dtype))
        for axis, (before, after) in enumerate(pads, start=first):
            size = shape[axis - 1]
            parts = [self.slice(value, axis, size - before, size)] if before else []
            parts += [value, *([self.slice(value, axis, 0, after)] if after else [])]
            value = self.add("Concat", *parts, axis=axis) if len(parts) > 1 else value
        return value


def _applied(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    """The value after one layer, for a value of `shape` (without the batch) before it."""
    for kinds, rule in _RULES:
        if type(layer.module) in kinds:
            return rule(graph, x, layer, shape)
    raise not_exportable(layer)


# Layers with weights ----------------------------------------------------------------------------------------------


def _linear(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    assert isinstance(layer.module, nn.Linear)
    y = graph.add("MatMul", x, graph.add("Transpose", graph.weight(layer, "weight"), perm=[1, 0]))
    return y if layer.module.bias is None else graph.add("Add", y, graph.weight(layer, "bias"))


def _convolution(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    module = layer.module
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    if module.padding_mode not in ("circular", "zeros"):
        raise not_exportable(layer, f"padding_mode {module.padding_mode!r}")
    pads = pads_of(module)
    x = graph.pad(x, shape, pads, circular=module.padding_mode == "circular")
    padded = [size + before + after for size, (before, after) in zip(shape[1:], pads, strict=True)]
    if graph.dtype == "float64":
        return _as_product(graph, x, layer, padded)
    biases = [] if module.bias is None else [graph.weight(layer, "bias")]
    return graph.add(
        "Conv",
        *(x, graph.weight(layer, "weight"), *biases),
        kernel_shape=list(module.kernel_size),
        strides=list(module.stride),
        dilations=list(module.dilation),
        group=module.groups,
    )


def _as_product(graph: _Graph, x: str, layer: Layer, padded: list[int]) -> str:
    """A convolution without padding, for images of size `padded`; see Note [Which operators]."""
    module = layer.module
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    sizes = layer.output_shape[1:]
    groups, taps, places = module.groups, prod(module.kernel_size), prod(sizes)
    inputs, outputs = module.in_channels // groups, module.out_channels // groups
    pixels = np.arange(prod(padded)).reshape(padded)
    axes = zip(module.kernel_size, sizes, module.stride, module.dilation, strict=True)
    offsets = [np.arange(k)[:, None] * d + np.arange(n)[None] * s for k, n, s, d in axes]
    # (taps, places): which pixel lies under a tap at a place.
    under = (pixels[offsets[0][:, None, :, None], offsets[1][None, :, None, :]] if len(sizes) == 2 else
             pixels[offsets[0]]).reshape(taps, places)  # fmt: skip
    spread = graph.add(
        "Gather", graph.reshape(x, module.in_channels, len(pixels.ravel())), graph.constant(under), axis=2
    )
    columns = graph.reshape(spread, groups, inputs * taps, places)
    kernel = graph.add("Reshape", graph.weight(layer, "weight"), graph.constant([groups, outputs, inputs * taps]))
    y = graph.reshape(graph.add("MatMul", kernel, columns), module.out_channels, *sizes)
    if module.bias is None:
        return y
    bias = graph.add("Reshape", graph.weight(layer, "bias"), graph.constant([-1, *[1] * len(sizes)]))
    return graph.add("Add", y, bias)


# Layers without weights -------------------------------------------------------------------------------------------


def _pad_module(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    assert isinstance(layer.module, (nn.CircularPad1d, nn.CircularPad2d, nn.ZeroPad1d, nn.ZeroPad2d))
    amounts = list(layer.module.padding)  # of the last axis first
    if min(amounts) < 0:
        raise not_exportable(layer, f"padding {layer.module.padding}")
    pads = list(zip(amounts[-2::-2], amounts[-1::-2], strict=True))
    return graph.pad(x, shape, pads, circular=isinstance(layer.module, (nn.CircularPad1d, nn.CircularPad2d)))


def _max_min(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    half = shape[0] // 2
    first, second = graph.slice(x, 1, 0, half), graph.slice(x, 1, half, shape[0])
    return graph.add("Concat", graph.add("Max", first, second), graph.add("Min", first, second), axis=1)


def _group_sort(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    assert isinstance(layer.module, GroupSort)
    group = layer.module.group_size or shape[0]
    split = graph.reshape(x, group, shape[0] // group, *shape[1:])
    return graph.reshape(graph.add("TopK", split, graph.constant([group]), outputs=2, axis=1), *shape)


def _flatten(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    assert isinstance(layer.module, nn.Flatten)
    if (layer.module.start_dim, layer.module.end_dim) != (1, -1):
        raise not_exportable(layer, f"start_dim {layer.module.start_dim} and end_dim {layer.module.end_dim}")
    return graph.reshape(x, prod(shape))


def _shuffle(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    """Pixels to channels or back, in torch's order of channels, which ONNX's own operators do not have."""
    module, (channels, height, width) = layer.module, shape
    if isinstance(module, nn.PixelUnshuffle):
        s = module.downscale_factor
        split = graph.reshape(x, channels, height // s, s, width // s, s)
        moved = graph.add("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    else:
        assert isinstance(module, nn.PixelShuffle)
        s = module.upscale_factor
        split = graph.reshape(x, channels // s**2, s, s, height, width)
        moved = graph.add("Transpose", split, perm=[0, 1, 4, 2, 5, 3])
    return graph.reshape(moved, *layer.output_shape)


def _scale(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    assert isinstance(layer.module, Scale)
    return graph.add("Mul", x, graph.constant(layer.module.factor, graph.dtype))


def _nothing(graph: _Graph, x: str, layer: Layer, shape: torch.Size) -> str:
    return x


_Rule = Callable[[_Graph, str, Layer, torch.Size], str]
_RULES: tuple[tuple[tuple[type[nn.Module], ...], _Rule], ...] = (
    ((nn.Conv1d, nn.Conv2d), _convolution),
    ((nn.Linear,), _linear),
    ((nn.CircularPad1d, nn.CircularPad2d, nn.ZeroPad1d, nn.ZeroPad2d), _pad_module),
    ((MaxMin,), _max_min),
    ((GroupSort,), _group_sort),
    ((nn.ReLU,), lambda graph, x, layer, shape: graph.add("Relu", x)),
    ((Abs,), lambda graph, x, layer, shape: graph.add("Abs", x)),
    ((Scale,), _scale),
    ((nn.Flatten,), _flatten),
    ((nn.PixelShuffle, nn.PixelUnshuffle), _shuffle),
    ((nn.Identity, nn.Dropout), _nothing),
)
