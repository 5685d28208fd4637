"""From a network to its nodes: the modules that it consists of, in order, with the shapes that reach them.

Today every network is a chain, an `nn.Sequential` nested as you like. Nodes name their inputs, and what is proved of the
whole is composed along those names, in `isoconv.certify.composition` alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

import isoconv.nn
from isoconv.certify.rules import RULES, Node, unknown
from isoconv.errors import IsoconvError
from isoconv.nn.plain_model import is_patched

INPUT = "input"  # the name of the network's own input
_TWO_BATCHES = (2, 3)  # what takes a batch apart and happens to fit one of them does not fit the other
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# What a subclass of nn.Sequential may define that torch's has too: how it is made, and how it is shown.
_HARMLESS = {"__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__dict__", "__weakref__"}
_HARMLESS |= {"__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__", "extra_repr"}


def nodes_of(network: nn.Module, input_shape: Sequence[int]) -> list[Node]:
    """Return the nodes of a plain network in evaluation mode, for inputs of `input_shape` (without the batch)."""
    shape, inputs = check_shape(input_shape), (INPUT,)
    nodes: list[Node] = []
    with torch.no_grad():
        for path, module in _leaves(network):
            name = path if path.isprintable() and path != INPUT else ascii(path)
            node = _node(Node(name or "model", module, inputs, shape, shape, path))
            nodes.append(node)
            shape, inputs = node.output_shape, (node.name,)
    if not nodes:
        raise IsoconvError("Expected a network of at least one module. Got an empty one.")
    return _merge_circular_pads(nodes)


def check_shape(input_shape: Sequence[int]) -> torch.Size:
    """Return the shape of an input without the batch: some positive whole numbers."""
    sizes = list(input_shape) if isinstance(input_shape, (tuple, list)) else []
    if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
        shown = tuple(input_shape) if isinstance(input_shape, (tuple, list)) else input_shape
        raise IsoconvError(f"Expected input_shape without the batch, such as (3, 32, 32). Got {shown}.")
    return torch.Size(sizes)


@contextmanager
def naming(node: Node) -> Iterator[None]:
    """Add to whatever is refused inside where in the network that is."""
    try:
        yield
    except IsoconvError as error:
        raise IsoconvError(str(error) if node.place in str(error) else f"{error} (in {node.place})") from None


def _leaves(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return the leaf modules of nested Sequentials in the order in which they are applied, each as often as it is."""
    if type(model) is not nn.Sequential:
        return [(path, model)]
    children = [(name, child) for name, child in model._modules.items() if child is not None]
    return [leaf for name, child in children for leaf in _leaves(child, f"{path}.{name}" if path else name)]


def _node(node: Node) -> Node:
    """Return the node with its output shape and its settings, or refuse the module."""
    rule = RULES.get(type(node.module))
    if rule is None:
        raise unknown(node.kind, node.name)
    axes = 1 if node.kind.endswith("1d") else 2
    if rule.image and len(node.input_shape) != axes + 1:
        expected = "(channels, length)" if axes == 1 else "(channels, height, width)"
        raise IsoconvError(f"Expected an input {expected} for {node.place}. Got {tuple(node.input_shape)}.")
    tensors = node.module.state_dict().values()
    probe = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(()))
    batches = [torch.zeros(n, *node.input_shape, dtype=probe.dtype, device=probe.device) for n in _TWO_BATCHES]
    try:
        first, second = (node.module(batch).shape for batch in batches)
    except (RuntimeError, ValueError, AttributeError, IsoconvError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected an input that {node.place} can take. {reason}") from None
    if (first[0], second[0]) != _TWO_BATCHES or first[1:] != second[1:]:
        raise IsoconvError(f"Expected modules that leave the batch as it is. Got {node.place}, which takes it apart.")
    with naming(node):
        settings = rule.settings(node.module, node.input_shape, first[1:]) if rule.settings else {}
    return replace(node, output_shape=first[1:], settings=settings)


def _merge_circular_pads(nodes: list[Node]) -> list[Node]:
    """Mark each circular pad that nothing takes but a convolution without padding: the two are bounded as one."""
    merged: dict[str, Node] = {}
    for position, node in enumerate(nodes):
        takers = [other for other in nodes if node.name in other.inputs]
        if type(node.module) in (nn.CircularPad1d, nn.CircularPad2d) and len(takers) == 1:
            (taker,) = takers
            if type(taker.module) in (nn.Conv1d, nn.Conv2d) and not any(map(any, taker.settings["padding"])):
                nodes[position] = replace(node, merged=True)
                merged[taker.name] = node
    return [
        replace(node, input_shape=pad.input_shape, circular=pad.settings["padding"])
        if (pad := merged.get(node.name))
        else node
        for node in nodes
    ]


# What is refused --------------------------------------------------------------------------------------------------


def refuse_strangers(model: nn.Module) -> None:
    """Refuse whatever may compute something else than its class is known for.

    What is known of a class is known of that class alone: a subclass, an instance with a forward of its own, a hook, a
    parametrisation or a tensor subclass may do anything. A subclass of nn.Sequential that only says which layers it has
    is none of these.
    """
    if not isinstance(model, nn.Module):
        raise IsoconvError(f"Expected a network, a torch.nn.Module. Got {type(model).__name__}.")
    refuse_global_hooks()
    ours = [kind for name in isoconv.nn.__all__ if isinstance(kind := getattr(isoconv.nn, name), type)]
    for name, module, inside in _walk(model):
        kind, state, place = type(module), vars(module), name or "model"
        if parametrize.is_parametrized(module):
            raise IsoconvError(f"Expected plain weights. Got parametrised ones at {place}: remove_parametrizations.")
        if is_patched(module) or not (inside or kind in RULES or kind in ours or _is_sequence(module, place)):
            raise unknown(kind.__name__, place)
        if state["_forward_hooks"] or state["_forward_pre_hooks"]:
            raise IsoconvError(f"Expected modules without forward hooks. Got some at {place}: remove them first.")
        _check_tensors(module, place)


def refuse_global_hooks() -> None:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise IsoconvError("Expected no forward hooks on all modules. Got some: remove them first.")


def _walk(module: nn.Module, name: str = "", inside: bool = False) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield all modules by name, and whether they are part of one that a rule is about; no method is asked for them."""
    yield name, module, inside
    inside = inside or type(module) in RULES or not issubclass(type(module), nn.Sequential)
    for child_name, child in vars(module)["_modules"].items():
        if child is not None:
            yield from _walk(child, f"{name}.{child_name}" if name else child_name, inside)


def _is_sequence(module: nn.Module, place: str) -> bool:
    """Return whether a module is an nn.Sequential, or a subclass that only says which children it has."""
    kind = type(module)
    if not issubclass(kind, nn.Sequential):
        return False
    taken = set(dir(nn.Sequential()))
    for base in (base for base in kind.__mro__ if base not in nn.Sequential.__mro__):
        for name in vars(base).keys() - _HARMLESS:
            if name in taken or (name.startswith("__") and name.endswith("__")):
                found = f"{kind.__name__} at {place}, which has a {name} of its own"
                raise IsoconvError(f"Expected an nn.Sequential that only says which layers it has. Got {found}.")
    return type(kind) is type


def _check_tensors(module: nn.Module, place: str) -> None:
    """Refuse tensors that are no plain numbers, those that a rule expects elsewhere, and those that it does not know."""
    kind, state = type(module), vars(module)
    tensors: dict[str, Any] = {**state["_parameters"], **state["_buffers"]}
    for name, tensor in tensors.items():
        reason = None if tensor is None else _oddity(tensor, name in state["_parameters"])
        if reason or name in state:
            reason = reason or "hidden by another attribute"
            raise IsoconvError(f"Expected dense weights of 16, 32 or 64 bits. Got {place}.{name}: {reason}.")
    rule = RULES.get(kind)
    known = () if rule is None else rule.tensors
    closed = issubclass(kind, nn.Sequential) if rule is None else rule.settings is not None
    if missing := [name for name in known if name not in tensors]:
        raise IsoconvError(f"Expected {missing[0]} as a parameter of {kind.__name__} at {place}. Got none.")
    if closed and (extra := [n for n in tensors if n not in known] + list(state["_non_persistent_buffers_set"])):
        raise IsoconvError(f"Expected no tensor {extra[0]!r} in {kind.__name__} at {place}. Got one.")


def _oddity(tensor: Tensor, parameter: bool) -> str | None:
    """Return what is wrong with a parameter or buffer."""
    if is_lazy(tensor):
        return "lazy, without a shape yet"
    if type(tensor) is not (nn.Parameter if parameter else Tensor):
        return f"a tensor subclass, {type(tensor).__name__}, which may compute anything"
    if tensor.is_meta:
        return "on the meta device, without numbers"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "nested" if tensor.is_nested else f"sparse ({tensor.layout})"
    if tensor.is_quantized:
        return "quantised"
    if tensor.dtype not in _FLOATS and (parameter or tensor.is_floating_point()):
        return f"{'complex' if tensor.is_complex() else 'numbers'} of {tensor.dtype}"
    return None
