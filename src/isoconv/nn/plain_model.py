"""From a constrained model to ordinary torch modules."""

import copy
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from isoconv.nn.convolution import LipschitzConvolution
from isoconv.nn.downsampling import InvertibleDownsampling, InvertibleUpsampling
from isoconv.nn.linear import OrthogonalLinear


def plain(model: nn.Module, input_shape: Sequence[int] | None = None) -> nn.Module:
    """Return the same function made of ordinary torch modules, to deploy, export and certify.

    Every layer of isoconv becomes an `nn.Conv2d` (with an `nn.CircularPad2d` in front where its padding is not
    symmetric), an `nn.Linear` or an `nn.PixelUnshuffle`, holding the weight that the layer applies in evaluation; MaxMin
    and GroupSort, which have no parameters, stay. Other modules are copied. The model itself is left alone.

    Layers whose stride does not divide their images extend them by zeros, and the plain form those of one size. It is that
    of `input_shape` (without the batch), or else of the last image that the model saw.
    """
    if input_shape is not None:
        show_image(model, input_shape)
    return _plain(model, {})


@torch.no_grad()
def show_image(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Let a model see an image of this shape in evaluation mode, if it has layers that must know the size for `plain`."""
    modes = [(module, module.training) for module in model.modules()]
    probe = next((p for p in model.parameters() if p.is_floating_point()), None)
    if probe is None or all(module.fits_always for module, _ in modes if isinstance(module, LipschitzConvolution)):
        return
    try:
        with suppress(Exception):  # a model that cannot take the image: whoever runs the plain form finds out
            model.eval()(probe.new_zeros(1, *input_shape))
    finally:
        for module, mode in modes:
            module.training = mode


def _plain(model: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """`done` keeps a module that occurs twice one module."""
    if model not in done:
        done[model] = _converted(model, done)
    return done[model]


def _converted(model: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if isinstance(model, (LipschitzConvolution, OrthogonalLinear)):
        return model.plain().train(model.training)
    if isinstance(model, InvertibleDownsampling):
        return (nn.PixelShuffle if isinstance(model, InvertibleUpsampling) else nn.PixelUnshuffle)(model.factor)
    children = {name: _plain(child, done) for name, child in model._modules.items() if child is not None}
    if is_ordinary_sequence(model):
        result: nn.Module = nn.Sequential()  # a Sequential of our own (a network of isoconv.models) becomes torch's
    else:
        result = copy.deepcopy(model, {id(child): None for child in model.children()})  # without its children
    for name, child in children.items():
        result._modules[name] = child
    return result.train(model.training)


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
