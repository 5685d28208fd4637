"""From any network to a `Graph`: what its forward does to a batch is recorded, for one shape of inputs.

Note [Tracing]
The network runs twice in evaluation mode, on a batch of 2 and on one of 3, with tensors that have a shape and no numbers.
So branches on shapes are taken as they would be, and branches on numbers fail. Every function of torch that meets a value
is either translated into modules or refused; leaf modules are taken whole. Both runs must give the same modules with the
same numbers: what depends on the size of the batch, or is drawn at random, does not. Each translation keeps the batch axis
where it is, whatever the numbers.

In place. torch counts the changes of a tensor's memory, one count for all tensors that share it. A value is recorded with
its count. A function that works in place gives the tensor it changes a new value; whoever uses another tensor of that
memory afterwards finds another count, and is refused. The recorded modules all work out of place.
"""

import copy
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

import isoconv
import isoconv.nn
from isoconv.errors import IsoconvError, require
from isoconv.nn.activations import Abs, Normalize, Scale
from isoconv.nn.built_weight import BuiltWeight, with_parameters
from isoconv.nn.graph import INPUT, Add, Concat, Flip, Graph, GraphNode, Permute, Reshape, Slice, Translate, check_shape
from isoconv.nn.methods import METHODS, load

_BATCHES = (2, 3)
CONTAINERS = {nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict}
#: classes of users that are leaves, as a rule is registered for them
OPAQUE: set[type[nn.Module]] = set()


@cache
def our_kinds() -> set[type[nn.Module]]:
    """Return the classes of modules that isoconv has, without those of whole networks."""
    ours = [kind for name in isoconv.nn.__all__ if isinstance(kind := getattr(isoconv.nn, name), type)]
    return {*ours, *(load(path) for method in METHODS.values() for path in (method.layer, method.linear))} - {Graph}


def is_leaf(module: nn.Module) -> bool:
    """Return whether a module is one of torch's, of isoconv's (without children), or of a registered kind."""
    kind = type(module)
    torchs = getattr(nn, kind.__name__, None) is kind and kind not in CONTAINERS
    return torchs or kind in OPAQUE or (not module._modules and kind in our_kinds())


def _needs_numbers(module: nn.Module) -> bool:
    """Return whether a leaf may know tensors with numbers alone: registered ones, and those that build their weight."""
    return type(module) in OPAQUE or isinstance(module, BuiltWeight)


def children_of(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Return a module's children by their paths; no method is asked for them, as it might be one of its own."""
    scripted = isinstance(module, torch.jit.ScriptModule)  # type: ignore[attr-defined]
    require(not scripted, "modules of Python", f"TorchScript at {path or 'model'}, of which nothing is known")
    children = [(name, child) for name, child in vars(module)["_modules"].items() if child is not None]
    for name, child in children:
        named = type(name) is str and name != "" and "." not in name
        require(named, "names of modules without dots", f"{name!r} in {path or 'model'}")
        require(isinstance(child, nn.Module), "modules inside of modules", f"{type(child).__name__} at {name}")
    return [(f"{path}.{name}" if path else name, child) for name, child in children]


def modules_of(module: nn.Module, path: str = "", above: tuple[nn.Module, ...] = ()) -> Iterator[nn.Module]:
    """Yield a module and all inside of it, as often as they occur; refuse one that contains itself."""
    require(isinstance(module, nn.Module), "a network, a torch.nn.Module", type(module).__name__)
    inside = any(module is other for other in above)
    require(not inside, "modules that do not contain themselves", f"{type(module).__name__} at {path}")
    yield module
    for name, child in children_of(module, path):
        yield from modules_of(child, name, (*above, module))


@torch.inference_mode(False)  # whose tensors do not count their changes
def trace(model: nn.Module, input_shape: Sequence[int]) -> Graph:
    """Return the function of a network in evaluation mode as a `Graph`. The network is used up: give a copy."""
    shape, modules = check_shape(input_shape), dict(_walk(model, "", set()))
    for module in modules.values():
        module.training = False
    records = [_Recorder(modules, (n, *shape)) for n in _BATCHES]
    for record in records:
        record.run(model)
    used, again = (record.used() for record in records)
    same = records[0].nodes == records[1].nodes and all(map(_alike, used.values(), again.values()))
    other = "one that depends on the size of the batch or on chance"
    require(same, "a network that does the same to every input", other)
    for module in used.values():
        if getattr(module, "inplace", False) is True and type(module) not in OPAQUE:
            module.inplace = False  # type: ignore[assignment]
    return Graph(used, records[0].nodes)


def find_probe(tensors: Iterable[Tensor | None]) -> Tensor:
    """Return the first floating-point tensor, for its device and type; one of torch's usual type if there is none."""
    return next((t for t in tensors if t is not None and t.is_floating_point()), torch.zeros(()))


def describe_error(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def number(start: str, mark: str, first: int) -> Iterator[str]:
    """Yield a name, and then the same name with numbers behind a mark."""
    yield start
    yield from (f"{start}{mark}{k}" for k in count(first))


def name_node(path: str, nodes: Iterable[GraphNode]) -> str:
    """Return a name for another node of the module at `path`, behind these nodes."""
    start, taken = path if path.isprintable() and path != INPUT else ascii(path), {node.name for node in nodes}
    return next(name for name in number(start, "#", 2) if name not in taken)


def _walk(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules by their first path, those inside of leaves left out."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in [] if is_leaf(module) else children_of(module, path):
        yield from _walk(child, name, seen)


def _alike(a: nn.Module, b: nn.Module) -> bool:
    """Return whether two modules are of one kind, with the same settings and the same numbers."""

    def contents(module: nn.Module) -> dict[str, Any]:
        settings = {name: value for name, value in vars(module).items() if name[0] != "_"}
        return {"kind": type(module), **settings, **module.state_dict()}

    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x is y or bool(x == y)

    mine, others = contents(a), contents(b)
    return mine.keys() == others.keys() and all(equal(mine[key], others[key]) for key in mine)


class _Recorder(TorchFunctionMode):
    """Record a run of a network on a batch of one size: nodes, and the modules that were made for functions."""

    def __init__(self, modules: Mapping[str, nn.Module], shape: Sequence[int]) -> None:
        super().__init__()
        self.modules, self.made = modules, dict[str, nn.Module]()
        probe = find_probe(t for m in modules.values() for t in (*m._parameters.values(), *m._buffers.values()))
        users = [(path, m._parameters) for path, m in modules.items() if not is_leaf(m)]
        self.paths = {id(t): f"{path}.{p}" if path else p for path, table in users for p, t in table.items()}
        self.device, self.dtype, self.batch = probe.device, probe.dtype, shape[0]
        self.input = torch.empty(shape, dtype=self.dtype, device="meta")
        self.nodes: list[GraphNode] = []
        # By the id of a tensor: itself, the name of its value, and how often its memory had been changed.
        self.values: dict[int, tuple[Tensor, str, int]] = {}
        self.scopes, self.inside = [""], False
        self.call: Any = None  # torch's function that was called last,
        self.function, self.outputs = "", list[Tensor]()  # its name, and what it returned

    def run(self, model: nn.Module) -> None:
        """Run the network, and leave the nodes that its output depends on."""
        twins = {path: copy.deepcopy(m) for path, m in self.modules.items() if is_leaf(m)}
        twins = {path: twin if _needs_numbers(twin) else twin.to("meta") for path, twin in twins.items()}
        for path, module in self.modules.items():
            call = partial(self._call_leaf, path, twins[path]) if path in twins else partial(self._call, path, module)
            vars(module)["forward"] = call
        self._remember(self.input, INPUT)
        try:
            with self, torch.no_grad():
                output = model(self.input)
        except IsoconvError:
            raise
        except Exception as error:  # whatever a user's code may raise
            got = f"{describe_error(error)} ({users_line(traceback.extract_tb(error.__traceback__))})"
            taken = f"{tuple(self.input.shape)}, a batch of {self.batch} inputs of input_shape"
            raise IsoconvError(f"Expected a forward that takes {taken}. Got {got}.") from None
        finally:
            for module in self.modules.values():
                del vars(module)["forward"]
        single = "a network that returns one tensor computed from its input"
        require(self.is_value(output), single, type(output).__name__)
        name = self._current_name(output)
        name = self.emit("identity", nn.Identity(), name) if name == INPUT else name
        needed = {name}
        for node in reversed(self.nodes):
            needed |= set(node.inputs) if node.name in needed else set()
        self.nodes = [node for node in self.nodes if node.name in needed]

    def used(self) -> dict[str, nn.Module]:
        """Return the modules of the nodes, by path."""
        modules = {**self.modules, **self.made}
        return {node.path: modules[node.path] for node in self.nodes}

    def _call(self, path: str, module: Any, *arguments: Any, **keywords: Any) -> Any:
        self.scopes.append(path)
        result = type(module).forward(module, *arguments, **keywords)
        self.scopes.pop()
        return result

    def _call_leaf(self, path: str, twin: nn.Module, *inputs: Any, **keywords: Any) -> Any:
        """Record a leaf module. `twin` is a copy of it that works on tensors without numbers."""
        place = f"{type(twin).__name__} at {path}"
        joins = type(twin) in (Add, Concat)
        if keywords or not all(map(self.is_value, inputs)) or not (joins or len(inputs) == 1):
            self.refuse("modules that take one value computed from the input, and nothing else", place)
        names = tuple(map(self._current_name, inputs))
        self.inside = True
        if _needs_numbers(twin):
            x = torch.zeros(inputs[0].shape, dtype=self.dtype, device=self.device)
            before, y = x._version, twin(x)
            if x._version != before or not isinstance(y, Tensor):
                self.refuse("registered modules that work out of place and return a tensor", place)
            output = torch.empty(y.shape, dtype=y.dtype, device="meta")
            if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                output = inputs[0].flatten()[:1].expand(y.shape)  # it shares memory with the input, too
        else:
            output = twin(*inputs)
            if not isinstance(output, Tensor):
                self.refuse("modules that return one tensor", f"{place}, which returns a {type(output).__name__}")
        self.inside = False
        name = name_node(path, self.nodes)
        self.nodes.append(GraphNode(name, path, names))
        return self._remember(output, name)

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = dict(keywords or {})
        values = [leaf for leaf in tree_leaves((arguments, keywords)) if self.is_value(leaf)]
        if self.inside or not values:
            return function(*arguments, **keywords)
        name = function.__self__.__name__ if function.__name__ == "__get__" else function.__name__
        if name in _QUESTIONS:
            return self.device if name == "device" else function(*arguments, **keywords)
        home = getattr(function, "__module__", None) or "torch.Tensor"
        self.function = f"{home}.{name}"
        known = home.partition(".")[0] == "torch" and not home.startswith("torch._ops")  # where users have theirs
        in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        base = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_") if in_place else name
        translate = _TRANSLATIONS.get(base.strip("_")) if known and name not in _REASONS else None
        strangers = [kind.__name__ for kind in types if kind not in (Tensor, nn.Parameter)]
        if strangers:
            self.refuse("plain tensors", f"{', '.join(strangers)} in {self.function}, which may compute anything")
        if translate is None or keywords.get("out") is not None or (in_place and not self.is_value(arguments[0])):
            reason = f", {_REASONS[name]}" if name in _REASONS else ""
            self.refuse("operations with a known Lipschitz constant", f"{self.function}{reason}")
        for value in values:
            self._current_name(value)  # refused if it is stale
        if base in _SAME:
            if not self.is_value(arguments[0]):  # a constant is given the type of a value
                return arguments[0].to(self.device, self.dtype)
            asked = [getattr(argument, "dtype", argument) for argument in (*arguments[1:], *keywords.values())]
            asked.append(getattr(torch, base, None))
            if any(isinstance(dtype, torch.dtype) and dtype != self.dtype for dtype in asked):
                self.refuse(f"values that stay {self.dtype}", self.function)
            same = function(*arguments, **keywords) if base in ("clone", "contiguous", "detach") else arguments[0]
            return self._remember(same, self.name(arguments[0]))
        meta = [tree_map(self._without_numbers, part) for part in (arguments, keywords)]
        result = function(*meta[0], **meta[1])
        self.call, self.outputs = function, list(result) if isinstance(result, (tuple, list)) else [result]
        arguments = arguments or (keywords.pop(next(iter(keywords))),)
        try:
            names = translate(self, *arguments, **keywords)
            pairs = list(zip(self.outputs, [names] if isinstance(names, str) else names, strict=True))
        except IsoconvError:
            raise
        except (TypeError, ValueError) as error:
            self.refuse("arguments that are known", f"{self.function}: {str(error).splitlines()[0]}")
        for output, name in pairs:
            self._remember(output, name)
        return result

    # What translations use --------------------------------------------------------------------------------------------

    def emit(self, word: str, module: nn.Module, *inputs: str, path: str | None = None) -> str:
        """Record a module that stands for a function, under the path of the module that called it. Return its value."""
        start = path or (f"{self.scopes[-1]}.{word}" if self.scopes[-1] else word)
        start = f"{start}_" if start in (INPUT, "nodes") else start
        path = next(path for path in number(start, "_", 1) if path not in self.modules and path not in self.made)
        self.made[path] = module.eval()
        self.nodes.append(GraphNode(path, path, inputs))
        return path

    def name(self, value: Any) -> str:
        """Return the name of a value; refuse what is none."""
        if not self.is_value(value):
            self.refuse("a value computed from the input", f"{type(value).__name__} in {self.function}")
        return self.values[id(value)][1]

    def is_value(self, value: Any) -> bool:
        return isinstance(value, Tensor) and id(value) in self.values

    def axis(self, dim: Any, axes: int) -> int:
        """Return an axis counted from 0; refuse the batch."""
        axis = dim % axes if isinstance(dim, int) else 0
        if axis == 0:
            self.refuse("operations that leave the batch axis alone", f"{self.function} along {dim}")
        return axis

    def refuse(self, expected: str, got: str) -> NoReturn:
        scope = f" in {self.scopes[-1]}" if self.scopes[-1] else ""
        raise IsoconvError(f"Expected {expected}. Got {got} ({users_line(traceback.extract_stack())}{scope}).")

    def _current_name(self, tensor: Tensor) -> str:
        """Return the name of a value; refuse one whose memory was changed since."""
        _, name, version = self.values[id(tensor)]
        if tensor._version != version:
            self.refuse("values that are not changed in place before they are used", f"{name}, which was")
        return name

    def _remember(self, tensor: Any, name: str) -> Any:
        fits = isinstance(tensor, Tensor) and tensor.dim() > 0 and tensor.dtype == self.dtype
        if not fits or tensor.shape[0] != self.batch or 0 in tensor.shape:
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            self.refuse(f"values that keep the batch axis, and numbers of {self.dtype}", f"{got} from {name}")
        self.values[id(tensor)] = (tensor, name, tensor._version)
        return tensor

    def _without_numbers(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or self.is_value(value):
            return value
        if value.is_meta:
            self.refuse("operations that can be seen", "a tensor that was computed from the input out of sight")
        return value.to("meta")


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return where a user's code was, by the line of it that was reached last."""
    start = max((k for k, frame in enumerate(frames) if (frame.filename, frame.name) == (__file__, "run")), default=-1)
    ours, torchs = str(Path(isoconv.__file__).parent), str(Path(torch.__file__).parent)
    users = [frame for frame in frames[start + 1 :] if not frame.filename.startswith((ours, torchs, "<"))]
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}" if users else "at the end"


# Translations: functions of the recorder, which knows the call and its outputs, and of its arguments; they return names ---


def _bind(names: str, args: Sequence[Any], kw: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their names, those of a function behind the first."""
    if len(args) > len(names.split()):
        raise TypeError(f"{len(args) + 1} arguments")
    return {**dict(zip(names.split(), args, strict=False)), **kw}


def _twin(kind: type[nn.Module], r: _Recorder, x: Tensor, *args: Any, **kw: Any) -> str:
    """Use the module that does what a function does. It takes the same arguments, in the same order but for `_ORDERS`."""
    known = inspect.signature(kind).parameters
    arguments = _bind(_ORDERS.get(kind, " ".join(known)), args, kw)
    arguments = {name: tuple(n) if isinstance(n, torch.Size) else n for name, n in arguments.items()}
    odd = [name for name, value in arguments.items() if name not in known and value not in (None, False)]
    if any(name != "_stacklevel" for name in odd):
        raise TypeError(", ".join(odd))
    own = {name: value for name, value in arguments.items() if name in known and name != "inplace"}
    return r.emit(r.call.__name__.rstrip("_"), kind(**own), r.name(x))


def _dropout(r: _Recorder, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> str:
    if training and p:
        r.refuse("dropout that rests in evaluation", r.function)
    return r.name(x)


def _scaled(r: _Recorder, x: Tensor, factor: Any) -> str:
    """Multiply by a number, or by one for each place along an axis: that is a convolution of channels on their own."""
    if r.is_value(factor):
        r.refuse("products with constants", f"{r.function} of two values, which is not Lipschitz")
    if not isinstance(factor, Tensor) or (factor.numel() == 1 and factor.dim() <= x.dim()):
        return r.emit("scale", Scale(float(factor)), r.name(x))
    sizes = (*(1 for _ in range(x.dim() - factor.dim())), *factor.shape)
    axis = next((k for k, size in enumerate(sizes) if size > 1), 0)
    if len(sizes) > x.dim() or axis == 0 or factor.numel() != x.shape[axis]:
        expected = "products with a number, or with one for each channel or each place along another axis"
        r.refuse(expected, f"{r.function} of {tuple(x.shape[1:])} with {tuple(factor.shape)}")
    order = [axis, *(k for k in range(1, x.dim()) if k != axis)]
    channels, kind = x.shape[axis], nn.Conv2d if x.dim() == 4 else nn.Conv1d
    shape = [x.shape[k] for k in order]
    flat = shape if len(shape) in (2, 3) else [channels, math.prod(shape[1:])]
    layer = kind(channels, channels, 1, groups=channels, bias=False, device="meta")
    weight = factor.detach().to(r.device, r.dtype).reshape(layer.weight.shape)
    value = _shape(r, _order(r, r.name(x), order), shape, flat)
    value = _shape(r, r.emit("scale", with_parameters(layer, weight, None), value), flat, shape)
    return _order(r, value, [order.index(k) + 1 for k in range(1, x.dim())])


def _shape(r: _Recorder, name: str, before: Sequence[int], after: Sequence[int]) -> str:
    """Give a value another shape, both without the batch."""
    return name if list(before) == list(after) else r.emit("reshape", Reshape(after), name)


def _order(r: _Recorder, name: str, order: Sequence[int]) -> str:
    """Put the axes behind the batch, which are counted from 1, in another order."""
    return name if sorted(order) == list(order) else r.emit("permute", Permute([axis - 1 for axis in order]), name)


def _plus(sign: int, r: _Recorder, x: Any, other: Any, *, alpha: Any = 1) -> str:
    """Add two values, or a value and a constant; `sign` is that of the second."""
    shape, constant = r.outputs[0].shape, other if r.is_value(x) else x
    if alpha != 1 or any(term.shape != shape for term in (x, other) if r.is_value(term)):
        r.refuse("sums of values of one shape, with alpha = 1", f"{r.function} of what gives {tuple(shape)}")
    if r.is_value(other):
        second = _scaled(r, other, -1) if sign < 0 else r.name(other)
        if r.is_value(x):
            return r.emit("add", Add(), r.name(x), second)
    tensor = torch.as_tensor(constant, dtype=r.dtype, device=r.device).detach()
    tensor = tensor[0] if tensor.dim() == len(shape) and tensor.shape[0] == 1 else tensor
    if tensor.dim() >= len(shape):
        r.refuse(f"a constant that fits into {tuple(shape[1:])}", f"{tuple(tensor.shape)} in {r.function}")
    value, tensor = (r.name(x), sign * tensor) if r.is_value(x) else (second, tensor)
    return r.emit("translate", Translate(tensor), value, path=r.paths.get(id(constant)))


def _multiply(r: _Recorder, x: Any, other: Any) -> str:
    return _scaled(r, x, other) if r.is_value(x) else _scaled(r, other, x)


def _divide(r: _Recorder, x: Any, other: Any) -> str:
    """Divide by a number, or by a deviation for each channel, as in (x - mean) / std."""
    if not r.is_value(x) or r.is_value(other):
        r.refuse("quotients by constants", r.function)
    if not isinstance(other, Tensor) or other.numel() == 1:
        return _scaled(r, x, 1 / float(other))
    column = (*x.shape[1:2], *(1 for _ in x.shape[2:]))
    std = other.detach().to(r.device, r.dtype)
    if std.shape not in (column, (1, *column)) or not bool((std >= 1e-37).all() and (std < 1e38).all()):
        expected = f"quotients by numbers, or by stds above 0 for each channel, of shape {column}"
        r.refuse(expected, f"{r.function} by {tuple(std.shape)}")
    module = Normalize([0.0] * std.numel(), std.flatten().tolist())
    module.mean, module.std = torch.zeros_like(std).flatten(), std.flatten().clone()  # not rounded to float32
    return r.emit("normalize", module, r.name(x))


def _matmul(r: _Recorder, x: Any, other: Any) -> str:
    if not r.is_value(x) or r.is_value(other) or other.dim() != 2:
        r.refuse("products of a value with a constant matrix behind it", f"{r.function} of others")
    return _weigh(nn.Linear, "weight bias", r, x, other.mT)


def _reshape(r: _Recorder, x: Tensor, *_: Any, **__: Any) -> str:
    return r.emit("reshape", Reshape(r.outputs[0].shape[1:]), r.name(x))


def _permute(r: _Recorder, x: Tensor, *args: Any, **kw: Any) -> str:
    """Read the order of the axes off a tensor that has another size along each."""
    order = [size - 1 for size in r.call(torch.empty(*range(1, x.dim() + 1), device="meta"), *args, **kw).shape]
    if order[0] != 0:
        r.refuse("operations that leave the batch axis alone", r.function)
    return _order(r, r.name(x), order[1:])


def _concatenate(r: _Recorder, tensors: Sequence[Tensor], dim: int = 0, axis: int | None = None) -> str:
    axis = r.axis(dim if axis is None else axis, r.outputs[0].dim())
    return r.emit("cat", Concat(axis), *map(r.name, tensors))


def _stack(r: _Recorder, tensors: Sequence[Tensor], dim: int = 0) -> str:
    axis, shape = r.axis(dim, r.outputs[0].dim()), list(r.outputs[0].shape)
    shape[axis] = 1
    return r.emit("cat", Concat(axis), *(r.emit("reshape", Reshape(shape[1:]), r.name(t)) for t in tensors))


def _pieces(r: _Recorder, x: Tensor, number: Any = None, dim: int = 0, **kw: Any) -> list[str]:
    """Cut a value into consecutive pieces."""
    axis, start, names, whole = r.axis(dim, x.dim()), 0, [], r.name(x)
    for piece in r.outputs:
        stop = start + piece.shape[axis]
        names.append(r.emit("slice", Slice(axis, start, stop), whole) if start < stop else "")
        start = stop
    return names


def _unbind(r: _Recorder, x: Tensor, dim: int = 0) -> list[str]:
    axis, whole = r.axis(dim, x.dim()), r.name(x)
    slices = [r.emit("slice", Slice(axis, k, k + 1), whole) for k in range(len(r.outputs))]
    return [r.emit("reshape", Reshape(y.shape[1:]), name) for y, name in zip(r.outputs, slices, strict=True)]


def _index(r: _Recorder, x: Tensor, index: Any) -> str:
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, bool) or not isinstance(part, (int, slice, type(...), type(None))) for part in parts):
        r.refuse("indices that are numbers, slices and None", f"{index} in {r.function}")
    if ... in parts:
        place = parts.index(...)
        parts[place : place + 1] = [slice(None)] * (x.dim() + 1 + parts.count(None) - len(parts))
    if parts[:1] == [None]:
        r.refuse("operations that leave the batch axis alone", f"None as the first index in {r.function}")
    name, shape = r.name(x), x.shape
    for axis, part in enumerate(part for part in parts if part is not None):
        if isinstance(part, int):
            part = slice(part % shape[axis], part % shape[axis] + 1)
        start, stop, step = part.indices(shape[axis])
        if (start, stop, step) == (0, shape[axis], 1) and not (axis == 0 and part != slice(None)):
            continue
        name = r.emit("slice", Slice(r.axis(axis, x.dim()), start, stop, step), name)
    if any(part is None or isinstance(part, int) for part in parts):
        name = r.emit("reshape", Reshape(r.outputs[0].shape[1:]), name)
    return name


def _narrow(r: _Recorder, x: Tensor, dim: int, start: int, length: int) -> str:
    axis = r.axis(dim, x.dim())
    start %= x.shape[axis]
    return r.emit("slice", Slice(axis, start, start + length), r.name(x))


def _select(r: _Recorder, x: Tensor, dim: int, index: int) -> str:
    return _index(r, x, (*(slice(None),) * r.axis(dim, x.dim()), index))


def _flip(r: _Recorder, x: Tensor, *axes: Any, dims: Sequence[int] = ()) -> str:
    name = r.name(x)
    for dim in dims or (axes[0] if axes and isinstance(axes[0], (tuple, list)) else axes):
        name = r.emit("flip", Flip(r.axis(dim, x.dim())), name)
    return name


def _clamp(r: _Recorder, x: Tensor, min: Any = None, max: Any = None) -> str:
    if min == 0 and max is None:
        return r.emit("relu", nn.ReLU(), r.name(x))
    if min is None or max is None or isinstance(min, Tensor) or isinstance(max, Tensor):
        r.refuse("clamping between two numbers, or from 0 on", r.function)
    return r.emit("clamp", nn.Hardtanh(min, max), r.name(x))


def _pool(kind: str, r: _Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> str:
    """Take the average or the maximum over some axes."""
    axes = sorted(d % x.dim() for d in (dim if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]))
    if not axes or axes[0] == 0 or dtype is not None:
        r.refuse("means and maxima over axes behind the batch", f"{r.function} over {dim}")
    kept, sizes = [k for k in range(1, x.dim()) if k not in axes], [x.shape[k] for k in axes]
    if axes == [2, 3] and x.dim() == 4:
        name = r.emit(r.call.__name__, getattr(nn, f"{kind}Pool2d")(tuple(sizes)), r.name(x))
        return name if keepdim else _shape(r, name, [x.shape[1], 1, 1], r.outputs[0].shape[1:])
    rows = [math.prod(x.shape[k] for k in kept), math.prod(sizes)]
    name = _shape(r, _order(r, r.name(x), kept + axes), [x.shape[k] for k in kept + axes], rows)
    name = r.emit(r.call.__name__, getattr(nn, f"{kind}Pool1d")(rows[1]), name)
    return _shape(r, name, [rows[0], 1], r.outputs[0].shape[1:])


def _pad(r: _Recorder, x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> str:
    """Pad an image; or, with zeros, also its channels, which first become the rows of an image of one channel."""
    axes, flat = x.dim() - 2, [*pad, *[0] * (2 * (x.dim() - 2) - len(pad))]
    if axes not in (1, 2) or len(flat) > 2 * axes + 2:
        r.refuse("padding of images", f"{r.function} of {tuple(x.shape)}")
    word = {"constant": "Constant" if value else "Zero", "reflect": "Reflection", "replicate": "Replication"}
    kind = getattr(nn, f"{word.get(mode, 'Circular')}Pad{axes}d")
    options = (value,) if mode == "constant" and value else ()
    name, channels = r.name(x), flat[2 * axes :]
    if any(flat[: 2 * axes]):
        name = r.emit("pad", kind(tuple(flat[: 2 * axes]), *options), name)
    if any(channels):
        if mode != "constant" or value:
            r.refuse("padding of channels with zeros", r.function)
        name = r.emit("reshape", Reshape([1, x.shape[1], r.outputs[0].shape[2:].numel()]), name)
        name = r.emit("pad", nn.ZeroPad2d((0, 0, channels[0], channels[1])), name)
        name = r.emit("reshape", Reshape(r.outputs[0].shape[1:]), name)
    return name


def _weigh(kind: type[nn.Module], names: str, r: _Recorder, x: Tensor, *args: Any, **kw: Any) -> str:
    """Use the layer that applies a weight; `names` are the function's arguments behind the first."""
    options = _bind(names, args, kw)
    weight, bias, groups = options.pop("weight"), options.pop("bias", None), options.get("groups", 1)
    if r.is_value(weight) or r.is_value(bias):
        r.refuse("weights that do not depend on the input", r.function)
    first, second, *taps = weight.shape
    sizes = (first, second * groups) if "output_padding" in names else (second * groups, first)
    layer = kind(*sizes, *[tuple(taps)] * bool(taps), bias=False, device="meta", **options)
    return r.emit("conv" if taps else "linear", with_parameters(layer, weight, bias), r.name(x))


def _normalise(r: _Recorder, x: Tensor, *args: Any, **kw: Any) -> str:
    """Subtract means and divide by deviations that are constants."""
    state = _bind("running_mean running_var weight bias training momentum eps", args, kw)
    training = state.pop("training", False)
    options = {name: state.pop(name) for name in ("momentum", "eps") if name in state}
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    fixed = {"running_mean", "running_var"} <= state.keys() and not any(map(r.is_value, state.values()))
    if training or not fixed or r.call is not F.batch_norm:
        r.refuse("batch normalisation with running statistics", r.function)
    kind, affine = nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d, len(state) > 2
    norm = kind(x.shape[1], affine=affine, device=r.device, dtype=r.dtype, **options)
    norm.load_state_dict(state, strict=False)
    return r.emit("batch_norm", norm, r.name(x))


def _normalise_itself(kind: type[nn.Module], r: _Recorder, x: Tensor, *args: Any, **kw: Any) -> str:
    """Divide by the spread of a value: for `convert`, which has something instead; the certifier refuses the module."""
    layers = kind is nn.LayerNorm
    state = _bind("normalized_shape weight bias eps" if layers else "num_groups weight bias eps", args, kw)
    if any(map(r.is_value, state.values())):
        r.refuse("weights that do not depend on the input", r.function)
    size, eps = state.pop("normalized_shape" if layers else "num_groups"), state.pop("eps", 1e-5)
    norm = kind(*[size] if layers else [size, x.shape[1]], eps=eps, device=r.device, dtype=r.dtype)
    norm.load_state_dict({name: tensor for name, tensor in state.items() if tensor is not None}, strict=False)
    return r.emit(r.call.__name__, norm, r.name(x))


def _spread(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with one row for each of the names that a row begins with."""
    return {name: value for names, value in table.items() for name in names.split()}


# torch names functions as it names modules, but for capitals and underscores.
_KINDS = {name.lower(): kind for name, kind in vars(nn).items()}
_TWINS = """relu relu6 leaky_relu elu celu selu silu gelu mish softplus softsign hardswish hardsigmoid hardtanh tanh sigmoid
    log_sigmoid softmax max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d pixel_shuffle
    pixel_unshuffle"""
_MAX_POOL = "kernel_size stride padding dilation ceil_mode return_indices"
_ORDERS: dict[type[nn.Module], str] = {
    nn.Softmax: "dim _stacklevel dtype",
    nn.MaxPool1d: _MAX_POOL,
    nn.MaxPool2d: _MAX_POOL,
}
_WEIGHTS = {
    "linear": "weight bias",
    "conv1d conv2d": "weight bias stride padding dilation groups",
    "conv_transpose1d conv_transpose2d": "weight bias stride padding output_padding groups dilation",
}
_SAME = ("contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "type_as")
_TRANSLATIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(_twin, _KINDS[name.replace("_", "")]) for name in _TWINS.split()},
    **{name: partial(_weigh, _KINDS[name.replace("_", "")], names) for name, names in _spread(_WEIGHTS).items()},
    **_spread(
        {
            "abs absolute": partial(_twin, Abs),
            "interpolate upsample": partial(_twin, nn.Upsample),
            "dropout dropout1d dropout2d alpha_dropout": _dropout,
            "add radd": partial(_plus, 1),
            "sub subtract": partial(_plus, -1),
            "rsub": lambda r, x, other: _plus(-1, r, other, x),
            "mul multiply rmul": _multiply,
            "div divide true_divide truediv": _divide,
            "neg negative": lambda r, x: _scaled(r, x, -1),
            "view reshape flatten unflatten squeeze unsqueeze view_as reshape_as": _reshape,
            "permute transpose swapaxes swapdims movedim moveaxis mT": _permute,
            "cat concat concatenate": _concatenate,
            "chunk split split_with_sizes tensor_split": _pieces,
            "stack": _stack,
            "unbind": _unbind,
            "getitem": _index,
            "narrow": _narrow,
            "select": _select,
            "flip": _flip,
            "clamp clip": _clamp,
            "mean": partial(_pool, "Avg"),
            "amax": partial(_pool, "Max"),
            "matmul rmatmul mm": _matmul,
            "layer_norm": partial(_normalise_itself, nn.LayerNorm),
            "group_norm": partial(_normalise_itself, nn.GroupNorm),
            "pad": _pad,
            "batch_norm": _normalise,
        }
    ),
    **dict.fromkeys(_SAME, lambda *_: ""),
}
# What may be asked of a value: none of it depends on numbers.
_QUESTIONS = {
    *("shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "dtype", "device", "layout", "stride"),
    *("__len__", "_version", "is_contiguous", "is_floating_point", "is_complex", "requires_grad", "element_size"),
}
_OWN_NORM = "which divides by the spread or the norm of its own input: only eps limits its slope"
_PRODUCTS = "which multiplies values by values and is not Lipschitz"
_NUMBERS = "which looks at the numbers of an input; nothing may depend on them but values"
_NO_DIFFERENCE = "which leaves differences of logits as they are: return the logits themselves"
_REASONS = _spread(
    {
        "instance_norm normalize rms_norm local_response_norm": _OWN_NORM,
        "scaled_dot_product_attention bmm einsum": _PRODUCTS,
        "log_softmax": _NO_DIFFERENCE,
        "gt lt ge le eq ne equal allclose any all item tolist is_nonzero": _NUMBERS,
        "__bool__ __int__ __float__ __index__ __contains__": _NUMBERS,
    }
)
#: why modules of torch are refused that have no useful Lipschitz constant
REFUSED: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.RMSNorm), _OWN_NORM),
    nn.LocalResponseNorm: _OWN_NORM,
    nn.LogSoftmax: _NO_DIFFERENCE,
    **dict.fromkeys((nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), _PRODUCTS),
    **dict.fromkeys((nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder), _PRODUCTS),
}
