"""Networks that are no chains: the modules that join, select and move values, and `Graph`, which holds such a network."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.records import Record, require

INPUT = "input"  # the name of the network's own input


class Add(nn.Module):
    """The sum of two or more values of one shape."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return add(*inputs)


class _Settings(nn.Module):
    """A module that is described by the arguments that make it."""

    def extra_repr(self) -> str:
        return ", ".join(map(str, arguments_of(self).values()))


class Concat(_Settings):
    """Values side by side along an axis, `torch.cat`. `dim` counts the batch, which is axis 0 and is left alone."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        require(_is_whole(dim, 1), "a dim of at least 1, behind the batch", repr(dim))
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)


class Slice(_Settings):
    """The entries `start:stop:step` of one axis. `dim` counts the batch, which is axis 0 and is left alone."""

    def __init__(self, dim: int, start: int, stop: int, step: int = 1) -> None:
        super().__init__()
        fits = _is_whole(dim, 1) and _is_whole(start, 0) and _is_whole(stop, 1) and _is_whole(step, 1) and start < stop
        require(fits, "a dim behind the batch, 0 ≤ start < stop and a step ≥ 1", (dim, start, stop, step))
        self.dim, self.start, self.stop, self.step = dim, start, stop, step

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None),) * self.dim + (slice(self.start, self.stop, self.step),)]


class Reshape(_Settings):
    """The same entries, row by row, in another shape, which is without the batch."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        require(all(_is_whole(size, 1) for size in self.shape), "a shape of sizes of at least 1", self.shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(_Settings):
    """The axes in another order, the batch not counted: axis k of the output is axis `order[k]` of the input."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)
        whole = all(_is_whole(axis, 0) for axis in self.order) and sorted(self.order) == list(range(len(self.order)))
        require(whole, "an order of the axes behind the batch, such as (1, 2, 0)", self.order)

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, *[axis + 1 for axis in self.order])


class Translate(_Settings):
    """Add a learned tensor, which is repeated along the axes it does not have or where its size is 1."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        require(isinstance(bias, Tensor) and bias.is_floating_point(), "a floating-point tensor to add", type(bias))
        self.bias = nn.Parameter(bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


@torch.fx.wrap
def add(*inputs: Tensor) -> Tensor:
    """Return the sum of two or more values. Unlike torch's, it enlarges none."""
    if not torch._C._get_tracing_state() and (len(inputs) < 2 or len({value.shape for value in inputs}) > 1):
        shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
        raise IsoconvError(f"Add: Expected two or more values of one shape. Got {shapes}.")
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    return total


class GraphNode(NamedTuple):
    """One step of a `Graph`: the module at `path` takes the values `inputs`, and its value is called `name`."""

    name: str
    path: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class ModuleRecord(Record):
    """A module as data: the name of its class, and the arguments that make it."""

    kind: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class GraphRecord(Record):
    """A `Graph` as data, without its weights: modules by their paths, and the name, path and inputs of each node."""

    modules: dict[str, ModuleRecord]
    nodes: tuple[tuple[str, str, tuple[str, ...]], ...]


class Graph(nn.Module):
    """A network as data: modules by their paths, and the order in which values pass through them.

    A node takes values of nodes before it, or the network's own input, "input". The last node's value is the output. A
    module that is used twice has two nodes.
    """

    def __init__(self, modules: Mapping[str, nn.Module], nodes: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        super().__init__()
        self.nodes = tuple(GraphNode(name, path, tuple(inputs)) for name, path, inputs in nodes)
        known = {INPUT}
        for name, path, inputs in self.nodes:
            fits = path in modules and name not in known and set(inputs) <= known and len(inputs) > 0
            require(fits, "nodes of known modules, with names of their own, that take values before them", (name, path))
            known.add(name)
        require(bool(self.nodes), "a network of at least one module", "an empty one")
        for path, module in modules.items():
            *parents, name = path.split(".")
            parent: nn.Module = self
            for part in parents:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            require(not hasattr(parent, name), "modules with names that are free", f"one at {path}")
            parent.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        last_use = {name: k for k, node in enumerate(self.nodes) for name in node.inputs}
        values = {INPUT: x}
        for k, (name, path, inputs) in enumerate(self.nodes):
            values[name] = self.get_submodule(path)(*[values[source] for source in inputs])
            for source in set(inputs):
                if last_use[source] == k:
                    del values[source]
        return values[self.nodes[-1].name]

    def to_record(self) -> GraphRecord:
        """Return the graph as data. Its weights are in its `state_dict`."""
        records = {}
        for _, path, _ in self.nodes:
            module = self.get_submodule(path)
            usual = inspect.signature(type(module)).parameters
            settings = {name: value for name, value in arguments_of(module).items() if value != usual[name].default}
            records[path] = ModuleRecord(type(module).__name__, settings)
        return GraphRecord(records, tuple(map(tuple, self.nodes)))  # type: ignore[arg-type]

    @classmethod
    def from_record(cls, record: GraphRecord, kinds: Mapping[str, type[nn.Module]]) -> "Graph":
        """Return the graph that a record describes, without weights: load them with `assign=True`.

        Only classes among `kinds` are made, with numbers, names and sizes as their arguments: no code comes from a record.
        """
        modules = {}
        for path, module in record.modules.items():
            kind, settings = module.kind, module.settings
            require(kind in kinds, "modules of known kinds", f"{kind} at {path}")
            known = [name for name in inspect.signature(kinds[kind]).parameters if name not in _NOT_KEPT]
            odd = [name for name in settings if name not in known]
            require(not odd, f"settings of {kind} at {path}: {', '.join(known) or 'none'}", ", ".join(map(repr, odd)))
            try:
                arguments = {name: _as_argument(value) for name, value in settings.items()}
                with torch.device("meta"):
                    shaped = kinds[kind] is Translate
                    modules[path] = Translate(torch.empty(arguments["bias"])) if shaped else kinds[kind](**arguments)
            except Exception as error:  # whatever a constructor may have to say
                reason = (str(error).splitlines() or [""])[0].rstrip(".")
                raise IsoconvError(f"Expected settings that make a {kind} at {path}. Got: {reason}.") from None
        try:
            return cls(modules, record.nodes)
        except KeyError as error:  # torch's, of names that no module can have
            raise IsoconvError(f"Expected paths of modules. Got: {error}.") from None


# Where a module is, and what saves memory: nothing that says what it computes.
_NOT_KEPT = {"device", "dtype", "inplace"}


def arguments_of(module: nn.Module) -> dict[str, Any]:
    """Return the arguments that make a module like this one, as its attributes have them; of Translate's, the shape."""
    names = [name for name in inspect.signature(type(module)).parameters if name not in _NOT_KEPT]
    arguments = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if type(module) is Translate:
        arguments["bias"] = tuple(module.bias.shape)
    elif "bias" in arguments:
        arguments["bias"] = module.bias is not None or not getattr(module, "affine", True)
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _as_argument(value: Any) -> Any:
    """Return numbers, names, and tuples of them, which JSON has as lists; refuse anything else."""
    if type(value) in (list, tuple):
        return tuple(map(_as_argument, value))
    require(value is None or type(value) in (bool, int, float, str), "numbers, names and sizes", type(value).__name__)
    return value


def check_shape(input_shape: Sequence[int]) -> torch.Size:
    """Return the shape of an input without the batch: some positive whole numbers."""
    sizes = tuple(input_shape) if isinstance(input_shape, (tuple, list)) else ()
    whole = bool(sizes) and all(isinstance(n, int) and n > 0 for n in sizes)
    require(whole, "input_shape without the batch, such as (3, 32, 32)", sizes or input_shape)
    return torch.Size(sizes)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
