"""A plain network as an ONNX file, by torch's own exporter.

Note [What torch.onnx does not do]
The exporter follows the plain network module by module. A few kinds are first written otherwise (`_FORWARDS`), as the
same function in operators that keep its numbers:

* GroupSort is `TopK`, the exporter having no stable sort.
* Average pooling, upsampling and, in float64, convolution are `Gather`, which lays the pixels under each tap side by
  side, and a sum or `MatMul`: onnxruntime has no `AveragePool`, `Resize` and `Conv` for float64 on the CPU. They add
  the same products, so that a certificate, which allows for every order of summation, holds for either.
* Adaptive pooling, average pooling whose divisor varies and linear interpolation are a `Gemm` for each axis. So is a
  linear layer: onnxruntime merges a `MatMul` with a factor beside it, which it rounds to float32 in float64 too.
  Transposed convolution in float64, or with more output padding than onnxruntime takes, is `Gather` and `MatMul` too.
* Smooth activations are written in exp, log and tanh, of which onnxruntime has float64, in a way that does not
  overflow. It has no erf: there GELU takes it from a Chebyshev series, to a few units in the last place.
* The norm over positions is products, a sum and a root: what a certificate allows for, whatever a library's norm does.
* The ε of batch normalisation and the slope of LeakyReLU become constants: ONNX's attributes would round them to
  float32.
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

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.certify import Node
from isoconv.certify.windows import axis_taps
from isoconv.errors import IsoconvError, require
from isoconv.export.deployed import Deployed, deploy
from isoconv.files import check_writable, write_bytes
from isoconv.nn import ConvexPotential2d, GroupSort, L2NormPool2d, Normalize, Reshape

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
    deployed = deploy(model, input_shape, dtype, classes)
    check_writable([Path(path)], overwrite)
    try:
        import onnx  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise IsoconvError("Export to ONNX needs a package: pip install 'isoconv[onnx]'.") from None
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
    return _multiply(x, _cast(module.weight, x), _cast(module.bias, x)).reshape(-1, *node.output_shape)


def _multiply(x: Tensor, matrix: Tensor, bias: Any = None) -> Tensor:
    """Return x·matrixᵀ + bias for the rows of `x` as a `Gemm`."""
    bias = torch.zeros(len(matrix), dtype=x.dtype) if bias is None else bias
    return F.linear(x.reshape(-1, matrix.shape[1]), matrix, bias)


def _convolution(node: Node, module: Any, x: Tensor) -> Tensor:
    geometry = [node.settings[name] for name in ("stride", "dilation", "groups")]
    return _convolve(_pad(node, x), module.weight, module.bias, node.output_shape[1:], geometry)


def _convolve(x: Tensor, weight: Tensor, bias: Any, size: Sequence[int], geometry: Any = ((1, 1), (1, 1), 1)) -> Tensor:
    """Return the convolution of padded images, whose outputs have this size. `geometry` is stride, dilation, groups."""
    weight, bias, (stride, dilation, groups) = _cast(weight, x), _cast(bias, x), geometry
    if x.dtype == torch.float32:
        convolve: Any = F.conv1d if weight.dim() == 3 else F.conv2d
        return convolve(x, weight, bias, stride, 0, dilation, groups)
    kernel = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = _columns(x, weight.shape[2:], stride, dilation)
    columns = columns.reshape(-1, groups, kernel.shape[2], columns.shape[3])
    return _add_bias((kernel @ columns).reshape(-1, len(weight), *size), bias)


def _transposed(node: Node, module: Any, x: Tensor) -> Tensor:
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    stride, pads, extra, dilation, groups = (node.settings[name] for name in names)
    weight, bias = _cast(module.weight, x), _cast(module.bias, x)
    if x.dtype == torch.float32 and all(e < s for e, s in zip(extra, stride, strict=True)):
        convolve: Any = F.conv_transpose1d if weight.dim() == 3 else F.conv_transpose2d
        return convolve(x, weight, bias, stride, [before for before, _ in pads], extra, groups, dilation)
    size, outputs = node.input_shape[1:], node.output_shape[1:]
    # (taps, positions): the pixel that a tap brings there, and whether there is one
    under, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for n, m, k, s, d, (before, _) in zip(size, outputs, weight.shape[2:], stride, dilation, pads, strict=True):
        reached = np.arange(m) + before - d * np.arange(k)[:, None]
        here = (reached % s == 0) & (reached >= 0) & (reached < n * s)
        under = (under[:, None, :, None] * n + (reached // s)[:, None]).reshape(len(under) * k, -1)
        inside = (inside[:, None, :, None] & here[:, None]).reshape(len(inside) * k, -1)
    places = torch.from_numpy(np.where(inside, under, size.numel()))  # a zero behind the image
    columns = F.pad(x.flatten(2), (0, 1)).index_select(2, places.flatten())
    kernel = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).transpose(1, 2).flatten(2)
    y = (kernel @ columns.reshape(-1, groups, kernel.shape[2], places.shape[1])).reshape(-1, *node.output_shape)
    return _add_bias(y, bias)


def _potential(node: Node, module: Any, x: Tensor) -> Tensor:
    weight, bias, size = _cast(module.weight, x), _cast(module.bias, x), node.output_shape[1:]
    hidden, mirrored = _convolve(_pad(node, x), weight, bias, size).relu(), weight.transpose(0, 1).flip(2, 3)
    return x - _convolve(_pad(node, hidden, [pair[::-1] for pair in node.settings["padding"]]), mirrored, None, size)


def _separable(node: Node, module: Any, x: Tensor) -> Tensor:
    shape = list(node.input_shape)
    for axis, (places, weights, size) in enumerate(axis_taps(node), start=1):
        dense = np.zeros((len(places), size))
        np.add.at(dense, (np.arange(len(places))[:, None], places.numpy()), weights.numpy())
        shape[axis], shape[-1] = shape[-1], len(places)
        x = _multiply(x.transpose(axis + 1, -1), torch.from_numpy(dense).to(x.dtype)).reshape(-1, *shape)
        x, shape[axis], shape[-1] = x.transpose(axis + 1, -1), shape[-1], shape[axis]
    return x


def _max_pool(node: Node, module: Any, x: Tensor) -> Tensor:
    """Pad first: ONNX counts the windows of `ceil_mode` otherwise than torch."""
    sizes = zip(node.input_shape[1:], node.output_shape[1:], strict=True)
    names = "kernel_size", "stride", "padding", "dilation"
    taps, strides, pads, dilations = (node.settings[name] for name in names)
    axes = zip(sizes, taps, strides, pads, dilations, strict=True)
    padding = [n for (n, m), k, s, p, d in [*axes][::-1] for n in (p, (m - 1) * s + (k - 1) * d + 1 - n - p)]
    pool: Any = F.max_pool1d if len(taps) == 1 else F.max_pool2d
    return pool(F.pad(x, padding, value=-math.inf), taps, strides, 0, dilations)


def _average_pool(node: Node, module: Any, x: Tensor) -> Tensor:
    if node.settings["ceil_mode"] or not node.settings["count_include_pad"]:
        return _separable(node, module, x)
    taps = node.settings["kernel_size"]
    columns = _columns(_pad(node, x), taps, node.settings["stride"], [1] * len(taps))
    return columns.sum(dim=2).reshape(-1, *node.output_shape) / (node.settings["divisor_override"] or math.prod(taps))


def _cast(tensor: Any, x: Tensor) -> Any:
    return None if tensor is None else tensor.to(x.dtype)


def _pad(node: Node, x: Tensor, pads: Any = None) -> Tensor:
    pads = [[p, p] if isinstance(p, int) else p for p in pads or node.settings["padding"]]
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
    if isinstance(node.settings["factors"][0], dict):
        return _separable(node, module, x)
    size = node.input_shape[1:]
    taken = node.module(torch.arange(size.numel(), dtype=torch.float64).reshape(1, 1, *size)).flatten().long()
    return x.flatten(2).index_select(2, taken).reshape(-1, *node.output_shape)


def _batch_norm(node: Node, module: Any, x: Tensor) -> Tensor:
    names = ("weight", "bias", "running_mean", "running_var")
    weight, bias, mean, variance = (_cast(getattr(module, name), x) for name in names)
    slope = 1 / (variance + node.settings["eps"]).sqrt()
    slope = slope if weight is None else slope * weight
    return _add_bias((x - _per_channel(mean, x)) * _per_channel(slope, x), bias)


def _add_bias(y: Tensor, bias: Any) -> Tensor:
    return y if bias is None else y + _per_channel(bias, y)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.dim() - 2))


def _leaky(node: Node, module: Any, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * node.settings["negative_slope"])


def _normalize(node: Node, module: Any, x: Tensor) -> Tensor:
    return (x - _per_channel(_cast(module.mean, x), x)) / _per_channel(_cast(module.std, x), x)


def _elu(node: Node, module: Any, x: Tensor) -> Tensor:
    alpha, scale = node.settings.get("alpha", 1.6732632423543772), 1.0507009873554805 if node.kind == "SELU" else 1.0
    left = alpha * (torch.exp(x.clamp(max=0) / (alpha if node.kind == "CELU" else 1.0)) - 1)
    return scale * torch.where(x > 0, x, left)


def _softplus(node: Node, module: Any, x: Tensor) -> Tensor:
    beta = node.settings.get("beta", -1.0)  # LogSigmoid is −Softplus(−x)
    z = x * beta
    return (z.clamp(min=0) + torch.log(1 + torch.exp(-z.abs()))) / beta


def _mish(node: Node, module: Any, x: Tensor) -> Tensor:
    return x * torch.tanh(x.clamp(min=0) + torch.log(1 + torch.exp(-x.abs())))


def _gate(node: Node, module: Any, x: Tensor) -> Tensor:
    gate = (x + 3).clamp(0, 6)
    return (x * gate if node.kind == "Hardswish" else gate) / 6


# log erfc(z) + z² as a Chebyshev series in 2/(2 + z), from 1 at z = 0 to ¼ at z = 6; off by less than 3e-16.
_ERFC = (
    *(-1.0739143679162135, 1.1670031322180163, -0.10820315673623807, 0.019883924220231, -0.00615809769543211),
    *(0.001753072669482793, -0.000463523027480092, 0.000127986519745969, -3.7689331204858e-05, 1.133744752291e-05),
    *(-3.405791596245e-06, 1.02682207882e-06, -3.13013388302e-07, 9.6406389159e-08, -2.9877368477e-08),
    *(9.296636289e-09, -2.904094336e-09, 9.10889503e-10, -2.86771834e-10, 9.0567637e-11, -2.8680553e-11, 9.104791e-12),
    *(-2.896934e-12, 9.23658e-13, -2.95058e-13, 9.4419e-14, -3.0262e-14, 9.714e-15, -3.122e-15, 1.005e-15, -3.24e-16),
)


def _gelu(node: Node, module: Any, x: Tensor) -> Tensor:
    if x.dtype == torch.float32 or node.settings["approximate"] == "tanh":
        return F.gelu(x, approximate=node.settings["approximate"])

    z = (x.abs() * math.sqrt(0.5)).clamp(max=6)  # where erfc is 2e-17
    s, later, last = (2 / (2 + z) - 0.625) / 0.375, torch.zeros_like(z), torch.zeros_like(z)
    first, *others = _ERFC
    for coefficient in reversed(others):  # Clenshaw's recurrence
        later, last = 2 * s * later - last + coefficient, later
    tail = torch.exp(s * later - last + first - z * z) / 2
    return x * torch.where(x > 0, 1 - tail, tail)


def _group_sort(node: Node, module: Any, x: Tensor) -> Tensor:
    size, axis, shape = node.settings["group_size"], node.settings.get("axis", 0), list(node.input_shape)
    groups = x.reshape(-1, *shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    return groups.topk(size, dim=axis + 1).values.reshape(-1, *shape)


def _norm_pool(node: Node, module: Any, x: Tensor) -> Tensor:
    taps = node.settings.get("kernel_size", list(node.input_shape[1:]))
    columns = _columns(x, taps, node.settings.get("stride", taps), [1, 1])
    return (columns * columns).sum(dim=2).sqrt().reshape(-1, *node.output_shape)


def _reshape(node: Node, module: Any, x: Tensor) -> Tensor:
    """Keep the size of the batch free: the exporter loses it behind Unflatten, and writes that of its example."""
    return x.reshape(-1, *node.output_shape)


_FORWARDS: dict[type[nn.Module], Callable[[Node, Any, Tensor], Tensor]] = {
    GroupSort: _group_sort,
    L2NormPool2d: _norm_pool,
    ConvexPotential2d: _potential,
    nn.Linear: _linear,
    nn.LeakyReLU: _leaky,
    Normalize: _normalize,
    nn.GELU: _gelu,
    nn.Mish: _mish,
    **dict.fromkeys((Reshape, nn.Flatten, nn.Unflatten), _reshape),
    **dict.fromkeys((nn.ELU, nn.CELU, nn.SELU), _elu),
    **dict.fromkeys((nn.Softplus, nn.LogSigmoid), _softplus),
    **dict.fromkeys((nn.Hardswish, nn.Hardsigmoid), _gate),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), _separable),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d), _transposed),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), _upsample),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _convolution),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d), _average_pool),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), _max_pool),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
}
