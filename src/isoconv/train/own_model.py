"""A user's own network: built by a function in a file that the user names, and kept in a run's folder as data.

Note [No code from a run]
What is trained comes from a function that the user names, for each training. What is kept is the plain network: its
weights, model.safetensors, and its graph, graph.json, which names classes that have a rule and the numbers that make them.
Whoever opens a run reads these two, so a folder from a stranger can say what to compute but not run code. The name of the
function is in config.json to be shown, and is never looked up from there.
"""

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.graph import nodes_of, plain_network
from isoconv.certify.rules import RULES, Node
from isoconv.errors import IsoconvError, require
from isoconv.files import read_tensors
from isoconv.nn import Graph
from isoconv.nn.graph import GraphRecord
from isoconv.nn.trace import users_line
from isoconv.train.config import TrainConfig

#: A function, or a class, without arguments, or with input_shape, (channels, height, width), and classes, their number.
Build = Callable[..., nn.Module]


def find_function(model: str | Path | Build) -> tuple[str, Build]:
    """Return the name, FILE.py:FUNCTION, and the function of a user's network, which may be given as either.

    The file is run, as `import` would run it, and can import what lies beside it.
    """
    require(not isinstance(model, nn.Module), "a function that builds the network", "a network")
    if callable(model):
        try:
            file = Path(inspect.getfile(model))
        except (TypeError, OSError):  # of what is not written in Python, or not in a file
            file = Path(type(model).__name__)
        return f"{file.name}:{getattr(model, '__qualname__', 'call')}", model
    text, _, name = str(model).rpartition(":")
    file = Path(text)
    require(file.suffix == ".py" and name.isidentifier(), "a network of your own as FILE.py:FUNCTION", model)
    require(file.is_file(), f"a file with the function {name}", f"{file}, which does not exist")
    module = ModuleType(f"_own_{file.stem}")
    module.__file__, sys.modules[module.__name__] = str(file.resolve()), module
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    with _one_line(f"a Python file that runs, {file}"):
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    build = vars(module).get(name)
    require(callable(build), f"a function {name} in {file}", "none" if build is None else type(build).__name__)
    return f"{file.name}:{name}", build  # type: ignore[return-value]


@contextmanager
def _one_line(expected: str) -> Iterator[None]:
    """Make one line of whatever a user's code raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        frames = traceback.extract_tb(error.__traceback__)
        where = "" if isinstance(error, SyntaxError) else f" ({users_line(frames)})"
        raise IsoconvError(f"Expected {expected}. Got {type(error).__name__}: {reason}{where}.") from None


def build_network(build: Build | None, config: TrainConfig) -> nn.Module:
    """Return the network that a user's function builds for the data of a configuration."""
    if build is None:
        raise IsoconvError(f"Expected the function that builds the network, {config.model}: no run holds code.")
    known: dict[str, Any] = {"input_shape": config.input_shape, "classes": len(config.classes)}
    with _one_line(f"{config.model} to build a network"):
        declared = inspect.signature(build).parameters
        network = build(**{name: value for name, value in known.items() if name in declared})
    require(isinstance(network, nn.Module), f"a torch.nn.Module from {config.model}", type(network).__name__)
    return network


def load_weights(network: nn.Module, path: Path, title: str = "this network") -> None:
    """Load a safetensors file into a network whose tensors it has, all of them and no others, without rounding any."""
    tensors, state = read_tensors(path), network.state_dict()
    expected = f"the weights of {title} in {path}"
    missing, unknown = sorted(state.keys() - tensors.keys()), sorted(tensors.keys() - state.keys())
    require(not missing, expected, f"none called {', '.join(missing)}")
    require(not unknown, expected, f"others, {', '.join(unknown)}")
    for name, tensor in tensors.items():
        own = state[name]
        require(tensor.shape == own.shape, f"{expected}, {tuple(own.shape)} for {name}", tuple(tensor.shape))
        known = tensor.dtype.itemsize > 1 or not tensor.is_floating_point()  # torch promotes no floats of 8 bits
        exact = known and torch.promote_types(tensor.dtype, own.dtype) == own.dtype
        exact = exact and tensor.is_floating_point() == own.is_floating_point()
        require(exact, f"{expected}, numbers that {own.dtype} can hold for {name}", tensor.dtype)
    network.load_state_dict(tensors)


def check_classifier(network: nn.Module, config: TrainConfig) -> list[Node]:
    """Return the nodes of a plain network, if it has a logit for each class."""
    nodes, classes = nodes_of(network, config.input_shape), len(config.classes)
    expected = f"{classes} outputs of {config.model}, one per class"
    require(nodes[-1].output_shape == (classes,), expected, tuple(nodes[-1].output_shape))
    return nodes


def hash_graph(network: nn.Module, config: TrainConfig) -> str:
    """Return a hash of what a network computes, apart from its weights. Refuse what cannot be trained and kept."""
    kinds = sorted({str(tensor.dtype) for tensor in network.parameters()})
    require(kinds == ["torch.float32"], f"float32 parameters in {config.model}", ", ".join(kinds) or "none")
    return hashlib.sha256(to_graph(network, config)[1].to_json().encode()).hexdigest()


# As data ----------------------------------------------------------------------------------------------------------------


def to_graph(model: nn.Module, config: TrainConfig) -> tuple[Graph, GraphRecord]:
    """Return the plain network as a graph, and as data. Refuse what data cannot say."""
    nodes = check_classifier(plain_network(model, config.input_shape), config)
    for node in nodes:
        require(node.kind in _kinds(), "modules that can be kept as data", f"{node.place}, a kind that was registered")
    paths = [node.path or node.name for node in nodes]  # a network of one module has no path
    steps = [(node.name, path, node.inputs) for path, node in zip(paths, nodes, strict=True)]
    graph = Graph({path: node.module for path, node in zip(paths, nodes, strict=True)}, steps)
    record = graph.to_record()
    again = from_graph(record, graph.state_dict(), config)
    for node, twin in zip(nodes, nodes_of(again, config.input_shape), strict=True):
        same = (type(node.module), node.settings) == (type(twin.module), twin.settings)
        require(same, "modules that their constructors would make", f"{node.place}, which was changed afterwards")
    return graph, record


def from_graph(record: GraphRecord, tensors: Mapping[str, Tensor], config: TrainConfig) -> Graph:
    """Return the plain network that a record and its weights describe, in evaluation mode, if it is one for these data."""
    graph = Graph.from_record(record, _kinds())
    floats = torch.float32, torch.float64
    kinds = {name: floats if own.is_floating_point() else (own.dtype,) for name, own in graph.state_dict().items()}
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in kinds.get(name, floats)]
    require(not odd, "weights in float32 or float64", ", ".join(f"{name} in {tensors[name].dtype}" for name in odd))
    graph.load_state_dict(tensors, assign=True)
    check_classifier(graph.eval(), config)
    return graph


def _kinds() -> dict[str, type[nn.Module]]:
    return {kind.__name__: kind for kind, rule in RULES.items() if rule.settings is not None}
