"""Networks that are no chains: the modules that join, select and move values, and `Graph`, which holds such a network.

Note [Relations]
Where values meet again it matters what they have in common. A *base* is the network's input, or a value that is taken
more than once. A *relation* (S, f) of a value v to a base b that every way from the input to v passes through says

    ‖Δv‖ ≤ f·‖(Δb)_S‖        for any two inputs of the network, S a set of b's entries and Δ the difference.

* b itself has (all, 1). A node of one input u and bound L has (S_u, L·f_u).
* Kinds that select (slices, flips, reshapes, permutations) have outputs that are some of their inputs, each at most once.
  While nothing else has happened since b, v is a list of entries of b, none of them twice: S is the set of those, f = 1.
* Concatenation: ‖Δv‖² = Σ‖Δu_k‖² ≤ Σ_k f_k²‖(Δb)_{S_k}‖² ≤ max_e(Σ_{k: e ∈ S_k} f_k²)·‖(Δb)_S‖² with S = ∪S_k, the
  maximum over the entries e of S. So slices that share no entry count by the largest f_k.
* Sum: ‖Δv‖ ≤ Σ f_k‖(Δb)_{S_k}‖ ≤ (Σ f_k)·‖(Δb)_S‖. If no two S_k share an entry, the inequality of Cauchy and Schwarz
  gives √(Σ f_k²).
* From base to base: if v has (S, f) to a, and a has (T, g) to b, then ‖Δv‖ ≤ f·‖Δa‖ ≤ f·g·‖(Δb)_T‖, and v has (T, f·g) to
  b. If a is a list of entries of b, then (Δa)_S is Δb at the entries that S stands for: they replace T, and g = 1.

A value keeps its relation to the last of its bases, and a base that to the one before. This loses nothing: a relation to an
older base that is followed node by node passes a, where it is (T, g), and every later set is T with at least the factor
f·g. The inputs of a join go from base to base until they have one in common. As ‖(Δb)_S‖ ≤ ‖Δb‖, the constant of a value is
at most f·constant(b).
"""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, is_number, is_whole, require
from isoconv.linalg.rounding import add_up, sqrt_up, up
from isoconv.records import Record

INPUT = "input"  # the name of the network's own input
_STEPS = 2**24  # weights of sums are whole multiples of 1/_STEPS


class Add(nn.Module):
    """The sum of two or more values of one shape."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return add(*inputs)


class Described(nn.Module):
    """A module that shows the arguments that make it."""

    def extra_repr(self) -> str:
        return show_arguments(self)


class Concat(Described):
    """Values side by side along an axis, `torch.cat`. `dim` counts the batch, which is axis 0 and is left alone."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        require(is_whole(dim, 1), "a dim of at least 1, behind the batch", repr(dim))
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)


class Slice(Described):
    """The entries `start:stop:step` of one axis. `dim` counts the batch, which is axis 0 and is left alone."""

    def __init__(self, dim: int, start: int, stop: int, step: int = 1) -> None:
        super().__init__()
        fits = is_whole(dim, 1) and is_whole(start, 0) and is_whole(stop, 1) and is_whole(step, 1) and start < stop
        require(fits, "a dim behind the batch, 0 ≤ start < stop and a step ≥ 1", (dim, start, stop, step))
        self.dim, self.start, self.stop, self.step = dim, start, stop, step

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None),) * self.dim + (slice(self.start, self.stop, self.step),)]


class Flip(Described):
    """The entries of one axis in reverse order. `dim` counts the batch, which is axis 0 and is left alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        require(is_whole(dim, 1), "a dim of at least 1, behind the batch", repr(dim))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(self.dim)


class Reshape(Described):
    """The same entries, row by row, in another shape, which is without the batch."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        require(all(is_whole(size, 1) for size in self.shape), "a shape of sizes of at least 1", self.shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(Described):
    """The axes in another order, the batch not counted: axis k of the output is axis `order[k]` of the input."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)
        whole = all(is_whole(axis, 0) for axis in self.order) and sorted(self.order) == list(range(len(self.order)))
        require(whole, "an order of the axes behind the batch, such as (1, 2, 0)", self.order)

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, *[axis + 1 for axis in self.order])


class Translate(Described):
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


class ConvexSum(nn.Module):
    """(1 − a)·x + a·y for two values of one shape: 1-Lipschitz if both are.

    weight : a number from 0 to 1 for a; or None: it is learned, the sigmoid of the parameter `logit`, and begins at ½

    Note [Exact weights]. a is rounded to a multiple of 2⁻²⁴. From 0 to 1 these are float32 numbers, a and 1 − a alike: in
    float32 and float64 they add up to 1 exactly, so that the sum's constant is not above those of its parts.
    """

    def __init__(self, weight: float | None = None) -> None:
        super().__init__()
        fits = weight is None or (is_number(weight) and 0 <= weight <= 1)
        require(fits, "a weight from 0 to 1, or None to learn it", repr(weight))
        self.add = Add()
        self.fixed = None if weight is None else round(weight * _STEPS) / _STEPS
        self.logit = nn.Parameter(torch.zeros(())) if weight is None else None

    @property
    def weight(self) -> Tensor | float:
        """The weight a that is applied. See Note [Exact weights]."""
        if self.logit is None:
            return self.fixed  # type: ignore[return-value]
        learned = torch.sigmoid(self.logit.to(torch.promote_types(self.logit.dtype, torch.float32)))
        return learned + ((learned.detach() * _STEPS).round() / _STEPS - learned.detach())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.weight
        a = a.to(x.dtype) if isinstance(a, Tensor) else a
        return self.add(x * (1 - a), y * a)

    def extra_repr(self) -> str:
        return "learned weight" if self.fixed is None else f"weight={self.fixed:g}"


class Residual(ConvexSum):
    """(1 − a)·x + a·branch(x): 1-Lipschitz if the branch is. The branch keeps the shape of its input.

    `weight` as for `ConvexSum`.
    """

    def __init__(self, branch: nn.Module, weight: float | None = None) -> None:
        super().__init__(weight)
        require(isinstance(branch, nn.Module), "a module as the branch", type(branch).__name__)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, self.branch(x))


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


# Relations ----------------------------------------------------------------------------------------------------------

SELECTIONS = (Slice, Flip, Reshape, Permute, nn.Flatten, nn.Unflatten)


@dataclass(frozen=True)
class Relation:
    """‖Δv‖ ≤ factor·‖(Δb)_entries‖ for a value v and a base b of `size` entries; without `entries`, all of them.

    `selection`, in the shape of v, has for each entry of v the entry of b that it is; None if v is no selection of b.
    """

    base: str
    size: int
    factor: float = 1.0
    entries: Tensor | None = None
    selection: Tensor | None = None

    @classmethod
    def of_base(cls, name: str, shape: Sequence[int]) -> "Relation":
        """Return the relation of a base to itself, whose parts can be told apart."""
        return cls(name, math.prod(shape), selection=torch.arange(math.prod(shape)).reshape(tuple(shape)))


def meet(relations: Sequence[Relation], links: dict[str, Relation]) -> list[Relation]:
    """Return relations of the same values to one base. `links`: of each base to the one before, in order."""
    relations = list(relations)
    for base in reversed(links):
        if len({relation.base for relation in relations}) > 1:
            relations = [_follow(r, links[base]) if r.base == base else r for r in relations]
    return relations


def _follow(relation: Relation, link: Relation) -> Relation:
    """Return the relation to the base before."""
    entries = link.entries
    if link.selection is not None and relation.entries is not None:
        entries = _mask(link.size, link.selection.flatten()[relation.entries])
    return Relation(link.base, link.size, up(relation.factor * link.factor), entries)


def relate(module: nn.Module, bound: float, inputs: Sequence[Relation], joins: str | None = None) -> Relation:
    """Return the relation of a module's value, rounded up, from those of the values that it takes, to the same base.

    joins : "sum" or "concat" of a module that takes several values
    """
    if joins is not None:
        return _relate_join(joins, inputs)
    (relation,) = inputs
    if type(module) not in SELECTIONS or relation.selection is None:
        return replace(relation, factor=up(relation.factor * bound), selection=None)
    selection = module(relation.selection[None])[0]
    return replace(relation, entries=_mask(relation.size, selection.flatten()), selection=selection)


def _mask(size: int, entries: Tensor) -> Tensor:
    return torch.zeros(size, dtype=torch.bool).index_fill(0, entries, True)


def _relate_join(joins: str, inputs: Sequence[Relation]) -> Relation:
    base, size = inputs[0].base, inputs[0].size
    whole = all(relation.entries is None for relation in inputs)  # then one entry stands for all
    counts = torch.zeros(1 if whole else size, dtype=torch.int64)
    squares = torch.zeros(counts.shape, dtype=torch.float64)
    for relation in inputs:
        entries = torch.ones_like(counts, dtype=torch.bool) if relation.entries is None else relation.entries
        larger = squares[entries] + up(relation.factor**2)
        squares[entries] = torch.nextafter(larger, torch.full_like(larger, math.inf))
        counts += entries
    disjoint, factors = int(counts.max()) <= 1, [relation.factor for relation in inputs]
    if joins == "concat":
        factor = max(factors) if disjoint else sqrt_up(float(squares.max()))
    else:
        factor = sqrt_up(add_up(*(up(f * f) for f in factors))) if disjoint else reduce(lambda a, b: up(a + b), factors)
    return Relation(base, size, factor, None if whole or bool(counts.all()) else counts > 0)


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


def show_arguments(module: nn.Module) -> str:
    """Return the arguments of the call that makes a module: without a default, and others where they differ from it."""
    parameters, shown = inspect.signature(type(module)).parameters, []
    for name, value in arguments_of(module).items():
        text, default = _literal(name, value), parameters[name].default
        if default is inspect.Parameter.empty or text != _literal(name, default):
            shown.append(text if default is inspect.Parameter.empty else f"{name}={text}")
    return ", ".join(shown)


def _literal(name: str, value: Any) -> str:
    """Return a value as Python writes it, but (3, 3) as 3 where that means the same."""
    sized = name in ("kernel_size", "stride", "dilation") and isinstance(value, tuple)
    return repr(value[0] if sized and len(set(value)) == 1 else value)


def _as_argument(value: Any) -> Any:
    """Return numbers, names, and tuples of them, which JSON has as lists; refuse anything else."""
    if type(value) in (list, tuple):
        return tuple(map(_as_argument, value))
    require(value is None or type(value) in (bool, int, float, str), "numbers, names and sizes", type(value).__name__)
    return value


def check_shape(input_shape: Sequence[int]) -> torch.Size:
    """Return the shape of an input without the batch: some positive whole numbers."""
    sizes = tuple(input_shape) if isinstance(input_shape, (tuple, list)) else ()
    sizes = tuple(int(n) if isinstance(n, np.integer) else n for n in sizes)
    whole = bool(sizes) and all(is_whole(n, 1) for n in sizes)
    require(whole, "input_shape without the batch, such as (3, 32, 32)", sizes or input_shape)
    return torch.Size(sizes)
