"""From a constrained model to ordinary torch modules."""

import copy
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from isoconv.errors import IsoconvError, require
from isoconv.nn.centring import BatchCentering
from isoconv.nn.convolution import LipschitzConvolution
from isoconv.nn.downsampling import InvertibleDownsampling, InvertibleUpsampling
from isoconv.nn.graph import ConvexSum, Residual, check_shape
from isoconv.nn.linear import LipschitzLinear
from isoconv.nn.peers import find_converter
from isoconv.nn.pooling import ScaledAvgPool2d
from isoconv.nn.trace import describe_error, find_probe, is_leaf, modules_of, trace

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def plain(model: nn.Module, input_shape: Sequence[int] | None = None) -> nn.Module:
    """Return the same function made of ordinary torch modules, to deploy, export and certify.

    Every layer of isoconv becomes an `nn.Conv2d` (with an `nn.CircularPad2d` in front where its padding is not
    symmetric), an `nn.Linear`, an `nn.AvgPool2d` or an `nn.PixelUnshuffle`, holding the weight that the layer applies in
    evaluation; MaxMin and the like stay; a BatchCentering behind a convolution becomes part of its bias. Other modules are
    copied. The model itself is left alone.

    Layers whose stride does not divide their images extend them by zeros, and the plain form those of one size. It is that
    of `input_shape` (without the batch), or else of the last image that the model saw.

    With `input_shape` a network that is no `nn.Sequential` of such modules becomes a
    `isoconv.nn.Graph` of them in evaluation mode: its forward is traced for inputs of that shape, and what cannot be
    traced is refused by name and line. `DataParallel`, `DistributedDataParallel`, `AveragedModel` and what
    `torch.compile` returns are unwrapped. Layers of deel-torchlip and orthogonium become ordinary modules too.
    """
    input_shape = None if input_shape is None else check_shape(input_shape)
    model = replace_peers(unwrap(model), input_shape)
    if input_shape is not None:
        show_image(model, input_shape)
    network = _plain(model, {})
    if input_shape is None or is_chain(network):
        return network
    graph = trace(copy.deepcopy(network), input_shape).eval()
    for seed in range(3):  # more than once: its forward may keep something from call to call,
        with torch.set_grad_enabled(seed % 2 == 1):  # or ask whether gradients are wanted
            _compare(network.eval(), graph, input_shape, seed)
    return graph


def _compare(network: nn.Module, graph: nn.Module, input_shape: Sequence[int], seed: int = 0) -> None:
    """Refuse a network that does something else than what was traced."""
    probe = find_probe(network.state_dict().values())
    x = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(probe)
    try:
        expected, found = network(x.clone()).detach(), graph(x).detach()
    except Exception as error:  # whatever a user's code may raise
        expected = f"a network that can be run on {tuple(x.shape)}"
        raise IsoconvError(f"Expected {expected}. Got {describe_error(error)}.") from None
    tolerance = torch.finfo(x.dtype).eps ** 0.5 * (1 + expected.abs().amax())
    same = expected.shape == found.shape and bool(((found - expected).abs() <= tolerance).all())
    require(same or not bool(expected.isfinite().all()), "a forward that does what was traced", "one that does not")


@torch.no_grad()
def replace_peers(model: nn.Module, input_shape: Sequence[int] | None = None) -> nn.Module:
    """Return a model with ordinary modules in place of other libraries' layers, or the model itself if it has none.

    The weights are those of evaluation mode, read once from a copy: such layers may change when they are used. With
    `input_shape` (without the batch) both models are run, and a model that does not do what is known of its layers is
    refused.
    """
    modules = list(modules_of(model))
    if all(find_converter(module) is None for module in modules):
        return model
    tensors = [value for module in modules for value in vars(module).values() if type(value) is Tensor]
    try:  # tensors with a history, which batch statistics have after training, cannot be copied as they are
        original, copied = (copy.deepcopy(model, {id(t): t.detach().clone() for t in tensors}).eval() for _ in range(2))
        result = _replace_peers(copied, {})
    except IsoconvError:
        raise
    except Exception as error:  # whatever another library may raise
        expected = "layers of deel-torchlip or orthogonium that can be read"
        raise IsoconvError(f"Expected {expected}. Got {describe_error(error)}.") from None
    if input_shape is not None:
        _compare(original, result.eval(), check_shape(input_shape))
    return result.train(model.training)


def _replace_peers(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    convert, result = find_converter(module), module
    if convert is not None:
        hooks = any(vars(module)[name] for name in ("_forward_hooks", "_forward_pre_hooks"))
        expected = "layers without hooks and methods of their own"
        require(not hooks and not is_patched(module), expected, f"{type(module).__name__}, which has some")
        result = convert(module)
    done[module] = result
    for name, child in result._modules.items():
        result._modules[name] = child and _replace_peers(child, done)
    return result


def unwrap(model: nn.Module, once: bool = False) -> nn.Module:
    """Return the network inside of what distributes, averages or compiles it."""
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
    if type(model) not in (*wrappers, compiled):
        return model
    inner: nn.Module = model._orig_mod if type(model) is compiled else model.module  # type: ignore[assignment]
    return inner if once else unwrap(inner)


def is_chain(model: nn.Module) -> bool:
    """Return whether a network is a leaf module, or a sequence of chains."""
    return is_leaf(model) or (is_ordinary_sequence(model) and all(map(is_chain, model.children())))


@torch.no_grad()
def show_image(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Let a model see an image of this shape in evaluation mode, if it has layers that must know the size for `plain`."""
    modes = [(module, module.training) for module in model.modules()]
    strided = [one for one, _ in modes if isinstance(one, LipschitzConvolution) and not one.fits_always]
    seen: dict[nn.Module, set[tuple[int, ...]]] = {layer: set() for layer in strided}

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], _: Tensor) -> None:
        seen[layer].add(tuple(layer._extension))  # type: ignore[arg-type]

    hooks = [layer.register_forward_hook(note) for layer in strided]
    try:
        with suppress(Exception):  # a model that cannot take the image: whoever runs the plain form finds out
            if strided:
                model.eval()(find_probe(model.parameters()).new_zeros(1, *input_shape))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    for layer, extensions in seen.items():
        alike = "one number of zeros to extend the images of a layer by, so that its stride divides them"
        require(len(extensions) < 2, alike, f"{type(layer).__name__} for images that need {sorted(extensions)}")


def _plain(model: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """`done` keeps a module that occurs twice one module."""
    if model not in done:
        done[model] = _converted(model, done)
    return done[model]


def _converted(model: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if isinstance(model, (LipschitzConvolution, LipschitzLinear, ScaledAvgPool2d)):
        own = [name for name in ("forward", "plain") if not getattr(model, name).__module__.startswith("isoconv.")]
        expected = "a method plain() of its own beside a forward of its own"
        require(own != ["forward"], expected, f"{type(model).__name__} without one")
        return model.plain().train(model.training)
    if isinstance(model, InvertibleDownsampling):
        return (nn.PixelShuffle if isinstance(model, InvertibleUpsampling) else nn.PixelUnshuffle)(model.factor)
    if isinstance(model, ConvexSum):
        weight = model.weight.item() if isinstance(model.weight, Tensor) else model.weight
        fixed = Residual(_plain(model.branch, done), weight) if isinstance(model, Residual) else ConvexSum(weight)
        return fixed.train(model.training)
    children = {name: _plain(child, done) for name, child in model._modules.items() if child is not None}
    if is_ordinary_sequence(model):
        _fold_centring(children)
        result: nn.Module = nn.Sequential()  # a Sequential of our own (a network of isoconv.models) becomes torch's
    else:
        result = copy.deepcopy(model, {id(child): None for child in model.children()})  # without its children
    for name, child in children.items():
        result._modules[name] = child
    return result.train(model.training)


def _fold_centring(children: dict[str, nn.Module]) -> None:
    """Move what a BatchCentering adds in evaluation into the bias of the convolution in front of it; an Identity is left."""
    for (name, layer), (following, centring) in pairwise(list(children.items())):
        if type(centring) is not BatchCentering:
            continue
        folded: Any = copy.deepcopy(layer)  # the layer itself may be used elsewhere
        last = folded
        while type(last) is nn.Sequential and len(last):
            last = last[-1]
        if type(last) in _CONVOLUTIONS and not last._forward_hooks and last.out_channels == centring.num_features:
            shifts = [(-1, centring.running_mean), (1, centring.bias), (1, last.bias)]
            bias = sum(sign * shift.detach().double() for sign, shift in shifts if shift is not None)
            last.bias = nn.Parameter(bias.to(last.weight.dtype))
            children[name], children[following] = folded, nn.Identity()


def is_ordinary_sequence(model: nn.Module) -> bool:
    """Whether a model is an nn.Sequential, or a subclass that only says which children it has, one after the other."""
    ways = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl", "__iter__")
    inherited = all(getattr(type(model), way, None) is getattr(nn.Sequential, way) for way in ways)
    return isinstance(model, nn.Sequential) and inherited and not is_patched(model)


def is_patched(module: nn.Module) -> bool:
    """Whether this one instance has a method of its own. What `module.compile()` leaves there is none."""
    own = {name for name in vars(module) if callable(getattr(type(module), name, None)) or name[:2] == "__"}
    compiled = vars(module).get("_compiled_call_impl")
    original = getattr(compiled, "_torchdynamo_orig_callable", None)
    foreign = compiled is not None and getattr(original, "__func__", None) is not nn.Module._call_impl
    return bool(own) or foreign
