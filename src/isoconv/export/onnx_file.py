"""A plain network as an ONNX file, by torch's own exporter.

Note [What torch.onnx does not do]
The exporter follows the plain network module by module. A few kinds are first written otherwise (`_FORWARDS`), as the
same function in operators that keep its numbers:

* GroupSort is `TopK`, the exporter having no stable sort.
* Average pooling, upsampling and, in float64, convolution are `Gather`, which lays the pixels under each tap side by side,
  and a sum or `MatMul`: onnxruntime has no `AveragePool`, `Resize` and `Conv` for float64 on the CPU. They add the same
  products, so that a certificate, which allows for every order of summation, holds for either.
* The norm over positions is products, a sum and a root: what a certificate allows for, whatever a library's norm does.
* The ε of batch normalisation and the slope of LeakyReLU become constants: ONNX's attributes would round them to float32.
* A convolution's padding is an operator of its own: "same" with a dilation is something that onnxruntime does not run.

The initialisers are the weights of `plain(model)` under their own names, bit for bit, in float64 graphs too: there a
`Cast`, which is exact, stands behind each.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.certify import Node
from isoconv.errors import IsoconvError
from isoconv.export.deployed import Deployed, deploy
from isoconv.files import check_writable, write_bytes
from isoconv.nn import GroupSort, L2NormPool2d
from isoconv.records import require

OPSET = 13
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
    check_writable([Path(path)], overwrite)
    try:
        import onnx  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise IsoconvError("Export to ONNX needs a package: pip install 'isoconv[onnx]'.") from None
    deployed = deploy(model, input_shape, dtype, classes)
    size = sum(tensor.numel() * tensor.element_size() for tensor in deployed.network.state_dict().values())
    require(size <= _LARGEST, "at most 2 GiB of weights, all that an ONNX file can hold", f"{size:,} bytes")
    written = onnx.load_from_string(_trace(deployed))
    written.producer_name, written.doc_string = "isoconv", deployed.claim
    onnx.helper.set_model_props(written, deployed.metadata())
    onnx.checker.check_model(written, full_check=True)
    write_bytes(Path(path), written.SerializeToString())
    return deployed


def _trace(deployed: Deployed) -> bytes:
    network = copy.deepcopy(deployed.network)
    for path in dict.fromkeys(node.path for node in deployed.nodes):
        nodes = [node for node in deployed.nodes if node.path == path]
        if (forward := _FORWARDS.get(type(nodes[0].module))) is not None:
            module = copy.deepcopy(nodes[0].module)  # one for each place: sizes may differ
            module.forward = partial(_call, cycle(nodes), forward, module)
            if path:
                network.set_submodule(path, module)
            else:
                network = module
    file: Any = BytesIO()
    example = torch.zeros(2, *deployed.input_shape, dtype=getattr(torch, deployed.dtype))
    options: dict[str, Any] = {"dynamo": False, "opset_version": OPSET, "do_constant_folding": False}
    options |= {"input_names": [INPUT], "output_names": [OUTPUT]}
    options |= {"dynamic_axes": {name: {0: "batch"} for name in (INPUT, OUTPUT)}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's, that there is a newer exporter, which needs one more package
        torch.onnx.export(network, (example,), file, **options)
    return file.getvalue()


def _call(nodes: Iterator[Node], forward: Callable[..., Tensor], module: Any, x: Tensor) -> Tensor:
    """Run a module that may be used several times, for inputs of several sizes, in the order of its nodes."""
    return forward(next(nodes), module, x)


def _linear(node: Node, module: Any, x: Tensor) -> Tensor:
    return F.linear(x, _cast(module.weight, x), _cast(module.bias, x))


def _convolution(node: Node, module: Any, x: Tensor) -> Tensor:
    stride, dilation, groups = (node.settings[name] for name in ("stride", "dilation", "groups"))
    x, weight, bias = _pad(node, x), _cast(module.weight, x), _cast(module.bias, x)
    if x.dtype == torch.float32:
        convolve: Any = F.conv1d if weight.dim() == 3 else F.conv2d
        return convolve(x, weight, bias, stride, 0, dilation, groups)
    kernel = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = _columns(x, weight.shape[2:], stride, dilation)
    columns = columns.reshape(-1, groups, kernel.shape[2], columns.shape[3])
    y = (kernel @ columns).reshape(-1, *node.output_shape)
    return y if bias is None else y + _per_channel(bias, node)


def _average_pool(node: Node, module: Any, x: Tensor) -> Tensor:
    taps = node.settings["kernel_size"]
    columns = _columns(_pad(node, x), taps, node.settings["stride"], [1] * len(taps))
    return columns.sum(dim=2).reshape(-1, *node.output_shape) / (node.settings["divisor_override"] or math.prod(taps))


def _cast(tensor: Any, x: Tensor) -> Any:
    return None if tensor is None else tensor.to(x.dtype)


def _pad(node: Node, x: Tensor) -> Tensor:
    pads = [[p, p] if isinstance(p, int) else p for p in node.settings["padding"]]
    mode = node.settings.get("padding_mode", "zeros").replace("zeros", "constant")
    flat = [amount for pair in reversed(pads) for amount in pair]
    return F.pad(x, flat, mode=mode) if any(flat) else x


def _columns(x: Tensor, taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Return (N, C, taps, positions): the pixels that lie under the taps of a window, wherever it stands."""
    one = (1,) * (2 - len(taps))  # one-dimensional images have a height of 1
    places = torch.arange(math.prod(x.shape[2:]), dtype=torch.float64).reshape(1, 1, *one, *x.shape[2:])
    under = F.unfold(places, (*one, *taps), (*one, *dilation), stride=(*one, *stride))[0].long()
    return x.flatten(2).index_select(2, under.flatten()).reshape(-1, x.shape[1], *under.shape)


def _upsample(node: Node, module: Any, x: Tensor) -> Tensor:
    size = node.input_shape[1:]
    taken = node.module(torch.arange(size.numel(), dtype=torch.float64).reshape(1, 1, *size)).flatten().long()
    return x.flatten(2).index_select(2, taken).reshape(-1, *node.output_shape)


def _batch_norm(node: Node, module: Any, x: Tensor) -> Tensor:
    names = ("weight", "bias", "running_mean", "running_var")
    weight, bias, mean, variance = (_cast(getattr(module, name), x) for name in names)
    slope = 1 / (variance + node.settings["eps"]).sqrt()
    slope = slope if weight is None else slope * weight
    y = (x - _per_channel(mean, node)) * _per_channel(slope, node)
    return y if bias is None else y + _per_channel(bias, node)


def _per_channel(values: Tensor, node: Node) -> Tensor:
    return values.reshape(-1, *[1] * (len(node.output_shape) - 1))


def _leaky(node: Node, module: Any, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * node.settings["negative_slope"])


def _group_sort(node: Node, module: Any, x: Tensor) -> Tensor:
    size, axis, shape = node.settings["group_size"], node.settings.get("axis", 0), list(node.input_shape)
    groups = x.reshape(-1, *shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    return groups.topk(size, dim=axis + 1).values.reshape(-1, *shape)


def _norm_pool(node: Node, module: Any, x: Tensor) -> Tensor:
    taps = node.settings.get("kernel_size", list(node.input_shape[1:]))
    columns = _columns(x, taps, node.settings.get("stride", taps), [1, 1])
    return (columns * columns).sum(dim=2).sqrt().reshape(-1, *node.output_shape)


_FORWARDS: dict[type[nn.Module], Callable[[Node, Any, Tensor], Tensor]] = {
    GroupSort: _group_sort,
    L2NormPool2d: _norm_pool,
    nn.Linear: _linear,
    nn.LeakyReLU: _leaky,
    nn.Upsample: _upsample,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _convolution),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d), _average_pool),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
}
