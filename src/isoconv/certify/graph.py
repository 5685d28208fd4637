"""From a network to its nodes: the modules that it consists of, in order, with the shapes that reach them.

A network is a chain, an `nn.Sequential` nested as you like, or a `Graph`, which any other network is traced into. Nodes
name their inputs, and what is proved of the whole is composed along those names, in `isoconv.certify.composition` alone.
"""

import copy
from abc import ABCMeta
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from isoconv.certify.rules import RULES, Node, require_rule
from isoconv.errors import IsoconvError, require
from isoconv.nn import plain
from isoconv.nn.built_weight import BuiltWeight, require_numbers
from isoconv.nn.graph import INPUT, Graph, check_shape
from isoconv.nn.plain_model import is_ordinary_sequence, is_patched, replace_peers, unwrap
from isoconv.nn.trace import CONTAINERS, children_of, our_kinds

_TWO_BATCHES = (2, 3)  # what takes a batch apart and happens to fit one of them does not fit the other
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = {bool, int, float, str, type(None), *np.sctypeDict.values()}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")
_METHODS = ("forward", "_conv_forward", "__call__", "_call_impl", "_wrapped_call_impl")
_MODULE = set(vars(nn.Module()))
_SEQUENTIAL = set(dir(nn.Sequential()))
# What a subclass of nn.Sequential may define that torch's has too: how it is made, and how it is shown.
_HARMLESS = {"__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__dict__", "__weakref__"}
_HARMLESS |= {"__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__", "extra_repr"}


def plain_network(model: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """Return `plain(model, input_shape)`, frozen and in evaluation mode: what is certified. Refuse what has no rule.

    A model that is plain already is copied. Every certification calls this once.
    """
    model = replace_peers(model, input_shape) if isinstance(model, nn.Module) else model
    refuse_strangers(model)
    containers = (Graph, nn.Module) if type(model) is Graph else (nn.Sequential,)
    is_plain = all(type(module) in containers or type(module) in RULES for module in model.modules())
    network = copy.deepcopy(model) if is_plain else plain(model, check_shape(input_shape))
    return network.eval().requires_grad_(False)


@torch.no_grad()
def nodes_of(network: nn.Module, input_shape: Sequence[int]) -> list[Node]:
    """Return the nodes of a plain network in evaluation mode, for inputs of `input_shape` (without the batch)."""
    shapes, nodes = {INPUT: check_shape(input_shape)}, list[Node]()
    for name, path, inputs, module in _steps(network):
        known = name not in shapes and set(inputs) <= set(shapes)  # what is proved of a node is kept by its name
        require(known, "a name of its own for each module, and inputs before it", f"{name} of {', '.join(inputs)}")
        shape = shapes[inputs[0]]
        nodes.append(_node(Node(name, module, tuple(inputs), shape, shape, path), [shapes[key] for key in inputs]))
        shapes[name] = nodes[-1].output_shape
    require(bool(nodes), "a network of at least one module", "an empty one")
    _merge_circular_pads(nodes)
    return nodes


@contextmanager
def naming(node: Node) -> Iterator[None]:
    """Add to whatever is refused inside where in the network that is."""
    try:
        yield
    except IsoconvError as error:
        raise IsoconvError(str(error) if node.place in str(error) else f"{error} (in {node.place})") from None


def _steps(network: nn.Module) -> Iterator[tuple[str, str, Sequence[str], nn.Module]]:
    """Yield the name, the path, the inputs and the module of each step, in the order in which they are made."""
    if type(network) is Graph:
        for node in network.nodes:
            module = network.get_submodule(node.path)
            separate = not getattr(module, "inplace", False)  # others may take the value that it would change
            require(separate, "modules of a Graph that work out of place", f"{type(module).__name__} at {node.path}")
            yield *node, module
        return
    source = INPUT
    for path, module in _leaves(network):
        name = (path if path.isprintable() and path != INPUT else ascii(path)) if path else "model"
        yield name, path, (source,), module
        source = name


def _leaves(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return the leaf modules of nested Sequentials in the order in which they are applied, each as often as it is."""
    if type(model) is not nn.Sequential:
        return [(path, model)]
    return [leaf for name, child in children_of(model, path) for leaf in _leaves(child, name)]


def _node(node: Node, shapes: Sequence[torch.Size]) -> Node:
    """Return the node with its output shape and its settings, or refuse the module. `shapes` are those of its inputs."""
    require_rule(type(node.module) in RULES, type(node.module), node.name)
    single = len(shapes) == 1 or node.rule.joins is not None
    require(single, f"one input of {node.place}", len(shapes))
    axes = ("channels", "length") if node.kind.endswith("1d") else ("channels", "height", "width")
    image = not node.rule.image or len(node.input_shape) == len(axes)
    require(image, f"an input ({', '.join(axes)}) for {node.place}, without the batch", tuple(node.input_shape))
    tensors = node.module.state_dict().values()
    probe = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(()))
    try:
        first, second = (node.module(*[probe.new_zeros(n, *s) for s in shapes]).shape for n in _TWO_BATCHES)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:  # IsoconvError is a ValueError
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected an input that {node.place} can take. {reason}") from None
    whole = (first[0], second[0]) == _TWO_BATCHES and first[1:] == second[1:]
    require(whole, "modules that keep the batch axis", f"{node.place}, which changes it")
    node = replace(node, output_shape=first[1:])
    with naming(node):
        return replace(node, settings=node.rule.settings(node)) if node.rule.settings else node


def _merge_circular_pads(nodes: list[Node]) -> None:
    """Mark each circular pad that nothing takes but a convolution without padding: the two are bounded as one."""
    for place, pad in enumerate(nodes):
        takers = [k for k, node in enumerate(nodes) if pad.name in node.inputs]
        if type(pad.module) in (nn.CircularPad1d, nn.CircularPad2d) and len(takers) == 1:
            taker = nodes[takers[0]]
            if type(taker.module) in (nn.Conv1d, nn.Conv2d) and not any(map(any, taker.settings["padding"])):
                nodes[place] = replace(pad, merged=True)
                nodes[takers[0]] = replace(taker, input_shape=pad.input_shape, circular=pad.settings["padding"])


# What is refused --------------------------------------------------------------------------------------------------


def refuse_strangers(model: nn.Module) -> None:
    """Refuse whatever may compute something else than its class is known for.

    What is known of a class is known of that class alone: a subclass of it, an instance with a forward of its own, a hook,
    a parametrisation or a tensor subclass may do anything. Classes of users that hold such modules are traced.
    """
    require(isinstance(model, nn.Module), "a network, a torch.nn.Module", type(model).__name__)
    refuse_global_hooks()
    while (inner := unwrap(model, once=True)) is not model:
        _refuse_hooks(model, type(model).__name__)
        model = inner
    _refuse_strangers(model, "", {*RULES, *our_kinds()}, inside=False)


def refuse_global_hooks() -> None:
    """Refuse what acts on all modules, or on all of torch, for the time being."""
    kinds = ("forward", "forward_pre", "parameter_registration")
    hooks = any(getattr(torch_module, f"_global_{kind}_hooks") for kind in kinds)
    require(not hooks, "no global forward hooks, nor global hooks on parameters", "some: remove them first")
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    others = [type(mode).__name__ for mode in modes if type(mode) is not DeviceContext]
    require(not others, "no mode that may compute something else", ", ".join(others))
    require_numbers()


def _refuse_strangers(module: nn.Module, name: str, known: set[type], inside: bool) -> None:
    """`inside`: the module is part of one that a rule is about, which may be anything."""
    kind, state, place = type(module), vars(module), name or "model"
    plain_weights = not parametrize.is_parametrized(module)
    require(plain_weights, "plain weights, by remove_parametrizations", f"parametrised ones at {place}")
    tables = {type(state[name]) for name in ("_modules", "_parameters", "_buffers")} <= {dict, OrderedDict}
    loss = issubclass(kind, nn.modules.loss._Loss) and getattr(nn, kind.__name__, None) is kind  # refused if it is used
    known_kind = inside or loss or kind in known
    original = tables and not is_patched(module) and _is_as_shipped(kind)
    require_rule(original and (known_kind or _is_container(module, place, known)), kind, place)
    _refuse_hooks(module, place)
    source = module.weight_source if isinstance(module, BuiltWeight) else None
    fixed = source is None or getattr(source, "func", None) is Tensor.detach  # by `fixed_weights`
    require(fixed, "a weight that follows from parameters", f"a weight_source of {place}, which may give any")
    _check_tensors(module, place)
    inside = inside or kind in RULES
    for child_name, child in children_of(module, name):
        _refuse_strangers(child, child_name, known, inside)


def _is_as_shipped(kind: type[nn.Module]) -> bool:
    """Return False if a method of a class of torch's or isoconv's was replaced for all its instances."""
    homes = ("torch.nn.", "isoconv.")
    if not kind.__module__.startswith(homes):
        return True
    methods = [getattr(kind, name) for name in _METHODS if hasattr(kind, name)]
    return all(getattr(method, "__globals__", {}).get("__name__", "").startswith(homes) for method in methods)


def _refuse_hooks(module: nn.Module, place: str) -> None:
    hooks = any(vars(module)[name] for name in _HOOKS)
    require(not hooks, "modules without forward hooks and state_dict hooks", f"some at {place}: remove them first")


def _is_container(module: nn.Module, place: str, known: set[type]) -> bool:
    """Return whether a module is a sequence, or of a class that holds others and says in its forward what they do."""
    kind = type(module)
    if issubclass(kind, nn.Sequential):
        return _is_sequence(module, place)
    bases = {base for base in kind.__mro__ if base in known or getattr(nn, base.__name__, None) is base}
    held = place != "model" and kind in CONTAINERS  # for the forward of the module around
    return held or (type(kind) in (type, ABCMeta) and bases <= CONTAINERS and kind.forward is not nn.Module.forward)


def _is_sequence(module: nn.Module, place: str) -> bool:
    """Return whether a module is an nn.Sequential, or a subclass that only says which children it has, or its forward."""
    kind = type(module)
    own = {name for base in kind.__mro__ if base not in nn.Sequential.__mro__ for name in vars(base)} - _HARMLESS
    own -= {"forward"} if callable(kind.forward) else set()
    taken = [name for name in sorted(own) if name in _SEQUENTIAL or (name.startswith("__") and name.endswith("__"))]
    expected = "an nn.Sequential that only says which layers it has"
    require(None not in vars(module)["_modules"].values(), expected, f"None among those at {place}")
    require(not taken, expected, f"{kind.__name__} at {place}, which has a {', '.join(taken)} of its own")
    return type(kind) is type


def _check_tensors(module: nn.Module, place: str) -> None:
    """Refuse tensors that are no plain numbers, those that a rule expects elsewhere, and those that it does not know."""
    kind, state = type(module), vars(module)
    tensors: dict[str, Tensor | None] = {**state["_parameters"], **state["_buffers"]}
    for name, tensor in tensors.items():
        reason = None if tensor is None else _oddity(tensor, name in state["_parameters"])
        reason = reason or ("hidden by another attribute" if name in state else None)
        require(reason is None, "dense weights of 16, 32 or 64 bits", f"{place}.{name}: {reason}")
    rule = RULES.get(kind)
    known = () if rule is None else rule.tensors
    missing = [name for name in known if name not in tensors]
    require(not missing, f"{', '.join(missing)} as a parameter of {kind.__name__} at {place}", "none")
    if rule is not None and rule.settings is not None:
        odd = [name for name, value in state.items() if name not in _MODULE and not _is_plain(value)]
        require(not odd, "attributes that are plain numbers, names or sizes", f"{', '.join(odd)} of {place}")
    if is_ordinary_sequence(module) if rule is None else rule.settings is not None:
        extra = [name for name in tensors if name not in known] + list(state["_non_persistent_buffers_set"])
        require(not extra, f"no tensor {', '.join(map(repr, extra))} in {kind.__name__} at {place}", "one")


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) in (tuple, list) else type(value) in _PLAIN


def _oddity(tensor: Tensor, parameter: bool) -> str | None:
    """Return what is wrong with a parameter or buffer."""
    if type(tensor) is not (nn.Parameter if parameter else Tensor):
        return f"a tensor subclass, {type(tensor).__name__}, which may compute anything"
    number = tensor.dtype in _FLOATS or not (parameter or tensor.is_floating_point())
    oddities = {
        "with a method of its own": any(callable(getattr(tensor.__class__, name, None)) for name in vars(tensor)),
        "on the meta device, without numbers": tensor.is_meta,
        "nested": tensor.is_nested,
        f"sparse ({tensor.layout})": tensor.layout != torch.strided,
        "quantised": tensor.is_quantized,
        f"numbers of {tensor.dtype}": not number,
    }
    return next((reason for reason, odd in oddities.items() if odd), None)
