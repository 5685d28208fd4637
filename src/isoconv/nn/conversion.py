"""From an ordinary network to a 1-Lipschitz one with the same input and output shapes.

The forward is traced (`isoconv.nn.trace`), and every module of the graph replaced by one of norm one that does its work:
`_RULES` says which, kind by kind. What joins values is settled along the graph, see Note [Joins].

Note [Joins]
Every value of the new network is to be 1-Lipschitz in the network's input. So is a base; of a value with a relation
(S, f) to a base, as in Note [Relations] of `isoconv.nn.graph`, f is a Lipschitz constant. A sum stays if its f is at most
1, and becomes a convex combination otherwise, whose f is at most the largest of its parts'. What still has an f above 1 is
divided by it: a concatenation of disjoint slices of one value by nothing, of a value and its branch by √2.

A sum begins with equal weights: on held-out images a ResNet-18 that began with most of the weight on either side was worse
(results/convert/trials.json).
"""

import copy
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, require
from isoconv.linalg.bounds import fold_stride
from isoconv.nn.activations import Abs, MaxMin, Normalize, Scale
from isoconv.nn.bcop import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d
from isoconv.nn.built_weight import require_numbers
from isoconv.nn.centring import BatchCentering, LayerCentering
from isoconv.nn.convolution import StandardConv2d, chain
from isoconv.nn.graph import (
    INPUT,
    Add,
    Concat,
    ConvexSum,
    Graph,
    GraphNode,
    Relation,
    Translate,
    check_shape,
    meet,
    relate,
)
from isoconv.nn.linear import NormalisedLinear
from isoconv.nn.methods import METHODS, Method, load
from isoconv.nn.nearest_weight import begin_as_identity, carry_weight
from isoconv.nn.plain_model import is_chain, unwrap
from isoconv.nn.pooling import L2NormPool2d, ScaledAvgPool2d
from isoconv.nn.shift import HalfAbs
from isoconv.nn.trace import OPAQUE, REFUSED, find_probe, is_leaf, modules_of, name_node, number, our_kinds, trace

#: what `_describe` says of a module
_SIZES = ("in_channels", "out_channels", "in_features", "out_features", "num_features", "kernel_size", "output_size")
_ROUNDING = 1e-12
_SUMMED = 2**24  # weights at most of what stands for an average over whole images
_TOGETHER = 8  # channels at most in a group of what was a depthwise convolution


@dataclass(frozen=True)
class Replacement:
    """One module of a network, and what it became.

    path : where it is
    before, after : the modules in words; `after` is None if nothing could be found, for the reason in `note`
    note : what is different now
    distance : between the old weight and the new one, each divided by its Frobenius norm: from 0, the same, to 2;
        None where no weight was carried over
    """

    path: str
    before: str
    after: str | None
    note: str = ""
    distance: float | None = None


@dataclass(frozen=True)
class ConversionTable:
    """What became what, in the order in which values pass through the network. `print` it."""

    rows: tuple[Replacement, ...]

    @property
    def refused(self) -> tuple[Replacement, ...]:
        """The modules that could not be replaced."""
        return tuple(row for row in self.rows if row.after is None)

    def __str__(self) -> str:
        texts = [("module", "was", "became", "distance", "")]
        for row in self.rows:
            distance = "" if row.distance is None else f"{row.distance:.2f}"
            texts.append((row.path, row.before, row.after or "could not", distance, row.note))
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in texts]
        return "\n".join(line.rstrip() for line in lines)


@overload
def convert(
    model: nn.Module,
    method: str = ...,
    *,
    input_shape: Sequence[int],
    carry_weights: bool = ...,
    report_only: Literal[True],
) -> "ConversionTable": ...
@overload
def convert(
    model: nn.Module,
    method: str = ...,
    *,
    input_shape: Sequence[int],
    carry_weights: bool = ...,
    report_only: Literal[False] = ...,
) -> tuple[nn.Module, "ConversionTable"]: ...
def convert(
    model: nn.Module,
    method: str = "bcop",
    *,
    input_shape: Sequence[int],
    carry_weights: bool = True,
    report_only: bool = False,
) -> tuple[nn.Module, ConversionTable] | ConversionTable:
    """Return a 1-Lipschitz network made after an ordinary one, to be trained, and a table of what became what.

    The new network takes and returns tensors of the same shapes. It is an `nn.Sequential` if the model is one of torch's and
    isoconv's modules, and an `isoconv.nn.Graph` of the traced forward otherwise. The model itself is left alone.

    method : which convolutions it gets, a name in `isoconv.nn.METHODS`
    input_shape : of one input, without the batch: (C, H, W), (C, L) or (features,)
    carry_weights : begin with the weights nearest to the model's that the constraint allows: the nearest orthogonal
        matrices, and for kernels above size 1 the nearest ones that a short search finds. If not: at random
    report_only : return the table alone. Otherwise a module that cannot be replaced is an error

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))
    >>> converted, table = convert(network, input_shape=(3, 4, 4))
    >>> converted(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 10])
    """
    known = [name for name in METHODS if name != "standard"]
    require(method in known, f"a method that constrains: one of {', '.join(known)}", repr(method))
    require_numbers()
    input_shape, network = check_shape(input_shape), unwrap(model)
    list(modules_of(network))  # refuse what is no tree of modules
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        dense = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
        real = tensor.is_floating_point() or type(tensor) is Tensor  # buffers may count
        got = f"{name}: {type(tensor).__name__} of {tensor.dtype} on {tensor.device}"
        require(dense and real, "dense weights of real numbers", got)
        require(bool(tensor.isfinite().all()), "finite weights", f"NaN or infinity in {name}")
    if is_leaf(network):
        network = nn.Sequential(network)
    conversion = _Conversion(trace(copy.deepcopy(network), input_shape), input_shape, METHODS[method])
    conversion.run(carry_weights and not report_only)
    table = ConversionTable(tuple(conversion.rows))
    if report_only:
        return table
    if table.refused:
        first, more = table.refused[0], len(table.refused) - 1
        others = f", and {more} more (report_only=True lists them)" if more else ""
        got = f"{first.before} at {first.path}: {first.note}{others}"
        raise IsoconvError(f"Expected modules that can be made 1-Lipschitz. Got {got}.")
    modules, nodes = conversion.modules, conversion.nodes
    if is_chain(network):
        return _rebuild(network, iter([modules[node.path] for node in nodes])).train(model.training), table
    return Graph(modules, nodes).train(model.training), table


def _rebuild(model: nn.Module, leaves: Iterator[nn.Module]) -> nn.Module:
    """Return a sequence with the same names and other leaves."""
    if is_leaf(model):
        return next(leaves)
    children = [(name, _rebuild(child, leaves)) for name, child in model._modules.items() if child is not None]
    return nn.Sequential(OrderedDict(children))


class _Conversion:
    """Follow a graph node by node, and make the modules and nodes of the new one, and the table's rows."""

    def __init__(self, graph: Graph, input_shape: Sequence[int], method: Method) -> None:
        self.graph, self.method = graph, method
        self.modules: dict[str, nn.Module] = {}
        self.nodes: list[GraphNode] = []
        self.rows: list[Replacement] = []
        self.made: dict[str, nn.Module] = {}  # for modules with parameters, by path: they are used again as one
        self.taken = Counter(source for node in graph.nodes for source in node.inputs)
        self.names, self.shapes = {INPUT: INPUT}, {INPUT: (1, *input_shape)}
        self.relations, self.links = {INPUT: Relation.of_base(INPUT, input_shape)}, dict[str, Relation]()
        probe = find_probe(graph.state_dict().values())
        self.factory: dict[str, Any] = {"device": probe.device, "dtype": probe.dtype}

    @torch.no_grad()
    def run(self, carry: bool) -> None:
        scales = _following_scales(self.graph, self.taken)
        for node in self.graph.nodes:
            module = self.graph.get_submodule(node.path)
            inputs = [torch.zeros(self.shapes[source], **self.factory) for source in node.inputs]
            self.shapes[node.name] = tuple(module(*inputs).shape)
            if type(module) in (Add, Concat):
                self._join(node, module)
                continue
            new, note, distance = self.made.get(node.path), "as above", None
            if new is None:
                new, note = self._replace(module, node)
                if carry and new is not None and type(module) in (*_CONVOLUTIONS, *_MATRICES):
                    distance = carry_weight(module, new, scales.get(node.path))
                elif type(new) is BCOPConv2d and new is not module:
                    begin_as_identity(new)
                if new is not None and (module._parameters or module._buffers):
                    self.made[node.path] = new
            after = None if new is None else _describe(new)
            self.rows.append(Replacement(node.name, _describe(module), after, note, distance))
            self._emit(node, new or nn.Identity(), [self.names[source] for source in node.inputs])
            factor = abs(new.factor) if isinstance(new, Scale) else 1.0
            self._relate(node, relate(module, factor, [self.relations[node.inputs[0]]]))

    def _replace(self, module: nn.Module, node: GraphNode) -> tuple[nn.Module | None, str]:
        """Return the first module of a rule that gives the same shape, and what to say of it."""
        before, after = self.shapes[node.inputs[0]], self.shapes[node.name]
        kind = type(module)
        rule = _RULES.get(kind) or (_keep if kind in {*our_kinds(), *OPAQUE} else None)
        reason = REFUSED.get(kind, "no 1-Lipschitz module is known that does its work").replace("which", "it", 1)
        if rule is None:
            return None, reason
        try:
            for new, note in rule(module, before, after, self.method):
                new = new.to(**self.factory).eval()
                if tuple(new(torch.zeros(before, **self.factory)).shape) == after:
                    return new, note
                reason = f"{_describe(new)} would give another shape"
        except IsoconvError as error:
            reason = str(error).rstrip(".")
        return None, reason

    def _join(self, node: GraphNode, module: nn.Module) -> None:
        """Make a sum or concatenation 1-Lipschitz: Note [Joins]."""
        parts = meet([self.relations[source] for source in node.inputs], self.links)
        joined = relate(module, 1.0, parts, "concat" if type(module) is Concat else "sum")
        after, notes = _describe(module), list[str]()
        if type(module) is Concat or joined.factor <= 1 + _ROUNDING:
            self._emit(node, module, [self.names[source] for source in node.inputs])
        else:
            self.names[node.name] = self.names[node.inputs[0]]
            for other in node.inputs[1:]:
                mixture = ConvexSum()
                self._emit(node, mixture.to(**self.factory), [self.names[node.name], self.names[other]])
            after, notes = _describe(mixture), ["learned weights that add up to 1"]
            joined = replace(joined, factor=max(part.factor for part in parts))
        if joined.factor > 1 + _ROUNDING:
            self._emit(node, Scale(1 / joined.factor), [self.names[node.name]])
            after, notes = f"{after}, Scale", [*notes, f"divided by {joined.factor:.4g}, the norm of what is joined"]
            joined = replace(joined, factor=1.0)
        self.rows.append(Replacement(node.name, _describe(module), after, ", ".join(notes)))
        self._relate(node, joined)

    def _relate(self, node: GraphNode, relation: Relation) -> None:
        """Keep the relation of a value, which is a base itself if it is taken more than once."""
        if self.taken[node.name] > 1:
            self.links[node.name] = relation
            relation = Relation.of_base(node.name, self.shapes[node.name][1:])
        self.relations[node.name] = relation

    def _emit(self, node: GraphNode, module: nn.Module, inputs: Sequence[str]) -> None:
        """Add a node whose value stands for the old node's from now on. Modules alike without parameters are one."""
        modules = self.modules
        free = (path for path in number(node.path, "_", 2) if path not in modules or _alike(modules[path], module))
        path = next(free)
        self.modules.setdefault(path, module)
        name = name_node(path, self.nodes)
        self.nodes.append(GraphNode(name, path, tuple(inputs)))
        self.names[node.name] = name


def _alike(a: nn.Module, b: nn.Module) -> bool:
    return a is b or (not (a.state_dict() or b.state_dict()) and repr(a) == repr(b))


def _describe(module: nn.Module) -> str:
    """Return a module's name and its sizes."""
    if isinstance(module, nn.Sequential):
        return ", ".join(map(_describe, module))
    sizes = [getattr(module, name) for name in _SIZES if getattr(module, name, None) is not None]
    words = ["×".join(map(str, size)) if isinstance(size, tuple) else f"{size:.4g}" for size in sizes]
    stride = getattr(module, "stride", 1)
    words += [f"stride {max(stride)}"] if isinstance(stride, tuple) and max(stride) > 1 else []
    return type(module).__name__ + (f"({', '.join(words)})" if words else "")


# Rules: from a module, its shapes with the batch and the method to candidates, each with a note --------------------------

_Shape = tuple[int, ...]
_Candidates = Iterator[tuple[nn.Module, str]]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, StandardConv2d)
_MATRICES = (nn.Linear, NormalisedLinear)


def _keep(module: nn.Module, *_: Any) -> _Candidates:
    yield module, ""


def _scale(module: Scale, before: Any, after: Any, method: Method) -> _Candidates:
    large = abs(module.factor) > 1
    yield Scale(math.copysign(1, module.factor)) if large else module, "a factor of at most 1" if large else ""


def _convolve(module: Any, before: _Shape, after: Any, method: Method) -> _Candidates:
    """Same arguments, circular padding; where that cannot be, zeros; or padding "same". A stride may not skip pixels.

    Most methods want a kernel whose size the stride divides: they get the next larger one.
    """
    orthogonal = {nn.Conv1d: BCOPConv1d, nn.ConvTranspose2d: BCOPConvTranspose2d}.get(type(module))
    require(orthogonal is None or method.name == "bcop", "method 'bcop', the only one for it", repr(method.name))
    make, kernel = orthogonal or load(method.layer), tuple(map(max, module.kernel_size, module.stride))
    whole = tuple(-(-taps // step) * step for taps, step in zip(kernel, module.stride, strict=True))
    grown, groups = kernel != module.kernel_size, module.groups
    alone = module.in_channels == module.out_channels == groups > 1 and math.prod(kernel) > 1
    groups //= math.gcd(groups, _TOGETHER) if alone and make in (BCOPConv1d, BCOPConv2d) else 1
    options: dict[str, Any] = {"groups": groups, "dilation": module.dilation, "bias": module.bias is not None}
    options |= {"output_padding": module.output_padding} if isinstance(module, nn.ConvTranspose2d) else {}
    options |= dict(method.options) | ({"input_size": before[2:]} if method.sized else {})
    channels, error = (module.in_channels, module.out_channels), None
    tries = [(kernel, padding) for padding in (["same"] if grown else dict.fromkeys((module.padding, "same")))]
    for (taps, padding), mode in product([*tries, (whole, "same")], ("circular", "zeros")):
        try:
            layer = make(*channels, taps, module.stride, padding=padding, padding_mode=mode, **options)
        except IsoconvError as reason:
            error = error or reason
            continue
        other = mode != module.padding_mode and any(map(any, layer._pads))
        notes = {
            f"{mode} padding": other,
            "kernel enlarged to the stride; it skipped pixels": grown,
            "kernel grown, so that the stride divides its size": taps != kernel,
            f"{groups} group{'s' * (groups > 1)}: a channel alone can only be shifted": groups != module.groups,
        }
        yield layer, ", ".join(note for note, holds in notes.items() if holds)
    if error:
        raise error


def _multiply(module: nn.Linear, before: Any, after: Any, method: Method) -> _Candidates:
    yield load(method.linear)(module.in_features, module.out_features, module.bias is not None), ""


def _centre(module: Any, before: Any, after: Any, method: Method) -> _Candidates:
    momentum = 0.1 if module.momentum is None else module.momentum
    yield BatchCentering(module.num_features, momentum, module.affine), "subtracts means; its scale is gone"


def _centre_layer(module: nn.LayerNorm, before: Any, after: Any, method: Method) -> _Candidates:
    centring = LayerCentering([-axis for axis in range(len(module.normalized_shape), 0, -1)])
    yield chain(centring, _translate(module.bias)), "subtracts means; its scale is gone"


def _centre_groups(module: Any, before: _Shape, after: Any, method: Method) -> _Candidates:
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else before[1]
    centring = LayerCentering([-axis for axis in range(len(before) - 1, 0, -1)])
    apart = nn.Unflatten(1, (groups, before[1] // groups))
    bias = None if module.bias is None else module.bias[(..., *(None,) * len(before[2:]))]
    yield chain(apart, centring, nn.Flatten(1, 2), _translate(bias)), "subtracts means; its scale is gone"


def _translate(bias: Tensor | None) -> nn.Module | None:
    return None if bias is None else Translate(bias)


def _centre_input(module: Normalize, *_: Any) -> _Candidates:
    yield Normalize(module.mean.tolist(), [1.0] * len(module.mean)), "subtracts means; its scale is gone"


def _activate(module: nn.Module, before: _Shape, after: Any, method: Method) -> _Candidates:
    channels = before[1]
    if channels % 2 == 0:
        yield MaxMin(), ""
    yield (HalfAbs() if channels > 1 else Abs()), f"{channels} channels are no pairs"


def _average(module: Any, before: _Shape, after: _Shape, method: Method) -> _Candidates:
    """Averages over whole images become sums that are learned and begin as averages.

    Circular padding does not know places, as zeros at the border did. So the sums must: on held-out images a narrow
    ResNet-18 certified 20.7 % with them, and 12.8 % with L2 norms (results/convert/trials.json). Norms stand where sums
    would take too many weights: they preserve gradients too, and signs that differ do not cancel.
    """
    sizes = list(zip(before[2:], after[2:], strict=True))
    if after[2:] == (1, 1):
        if before[1] ** 2 * math.prod(before[2:]) <= _SUMMED:
            layer = BCOPConv2d(before[1], before[1], before[2:], before[2:], padding=0, bias=False)
            average = torch.eye(before[1])[:, :, None, None].expand(layer.O.shape[0], -1, *before[2:])
            layer.O.copy_(fold_stride(average / math.sqrt(math.prod(before[2:])), before[2:]).flatten(1))
            yield layer, "learned sums over all positions"
        yield L2NormPool2d((before[2], before[3])), "the norm over all positions"
    if after[2:] != before[2:] and not any(m % n for n, m in sizes):
        yield from _repeat(nn.Upsample(size=after[2:]), before, after, method)
    if isinstance(module, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)):
        module = (nn.AvgPool1d if len(sizes) == 1 else nn.AvgPool2d)(_windows(before, after))  # type: ignore[arg-type]
    if isinstance(module, nn.AvgPool2d):
        yield ScaledAvgPool2d(module.kernel_size, module.stride, module.padding), "norm one"
    else:  # the same along one axis
        (size,), (stride,) = module.kernel_size, module.stride
        pool = nn.AvgPool1d(size, stride, module.padding)
        yield nn.Sequential(pool, Scale(math.sqrt(size / -(-size // stride)))), "norm one"


def _take_maximum(module: Any, before: _Shape, after: _Shape, method: Method) -> _Candidates:
    """Windows that overlap count pixels twice; those of the stride's size do not."""
    sizes, strides, dilations = (
        n if isinstance(n, tuple) else (n,) * len(before[2:])
        for n in (module.kernel_size, module.stride, module.dilation)
    )
    overlaps = [min(k, -(-((k - 1) * d + 1) // s)) for k, s, d in zip(sizes, strides, dilations, strict=True)]
    if max(overlaps) == 1:
        yield module, ""
    for ceil_mode in (False, True) if min(strides) > 1 else ():
        yield type(module)(module.stride, ceil_mode=ceil_mode), "windows that do not overlap"
    norm = math.sqrt(math.prod(overlaps))
    yield nn.Sequential(module, Scale(1 / norm)), f"divided by {norm:.4g}: its windows overlap"


def _take_largest(module: Any, before: _Shape, after: _Shape, method: Method) -> _Candidates:
    pool = nn.MaxPool2d if isinstance(module, nn.AdaptiveMaxPool2d) else nn.MaxPool1d
    yield pool(_windows(before, after)), ""


def _windows(before: _Shape, after: _Shape) -> _Shape:
    sizes = list(zip(before[2:], after[2:], strict=True))
    require(not any(n % m for n, m in sizes), "windows of one size", f"{before[2:]} pixels to {after[2:]}")
    return tuple(n // m for n, m in sizes)


def _repeat(module: nn.Upsample, before: _Shape, after: _Shape, method: Method) -> _Candidates:
    whole = not any(m % n for n, m in zip(before[2:], after[2:], strict=True))
    require(whole, "pixels that are repeated a whole number of times", f"{before[2:]} pixels to {after[2:]}")
    nearest, times = nn.Upsample(size=after[2:]), math.prod(after[2:]) / math.prod(before[2:])
    yield nn.Sequential(nearest, Scale(1 / math.sqrt(times))), "pixels are repeated, with norm one"


_RULES: Mapping[type[nn.Module], Callable[[Any, _Shape, _Shape, Method], _Candidates]] = {
    Scale: _scale,
    Normalize: _centre_input,
    nn.LayerNorm: _centre_layer,
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d), _centre_groups),
    nn.Upsample: _repeat,
    **dict.fromkeys(_CONVOLUTIONS, _convolve),
    **dict.fromkeys(_MATRICES, _multiply),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _centre),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU), _activate),
    **dict.fromkeys((nn.SiLU, nn.GELU, nn.Softplus, nn.Hardswish, nn.Mish), _activate),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), _average),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), _take_maximum),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d), _take_largest),
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d), _keep),
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.Softmax), _keep),
    **dict.fromkeys((nn.PixelShuffle, nn.PixelUnshuffle), _keep),
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d), _keep),
}


def _following_scales(graph: Graph, taken: Mapping[str, int]) -> dict[str, Tensor]:
    """Return, for convolutions whose only reader is a batch normalisation, what that multiplies each channel by."""
    paths = {node.name: node.path for node in graph.nodes}
    scales = {}
    for node in graph.nodes:
        norm, source = graph.get_submodule(node.path), node.inputs[0]
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.running_var is not None and taken[source] == 1:
            deviation = (norm.running_var + norm.eps).sqrt()
            scales[paths.get(source, "")] = (1 if norm.weight is None else norm.weight) / deviation
    return scales
