"""A plain network taken apart: its modules in the order in which they are applied, with the shapes that reach them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrize

from isoconv.certify.convolutions import Pads
from isoconv.errors import IsoconvError
from isoconv.nn import plain


@dataclass(frozen=True)
class Layer:
    """One module of a network.

    Circular padding and a convolution without padding behind it are bounded as one: the padding is `merged`, and the
    convolution has its `circular` amounts, (before, after) per axis, and for `input_shape` what comes before both.
    """

    name: str
    module: nn.Module
    input_shape: torch.Size
    output_shape: torch.Size
    circular: Pads | None = None
    merged: bool = False

    @property
    def kind(self) -> str:
        return type(self.module).__name__


def layers_of(model: nn.Module, input_shape: Sequence[int]) -> list[Layer]:
    """The layers of `plain(model)` in evaluation, for inputs of `input_shape` (without the batch)."""
    shape = torch.Size(input_shape)
    if not shape or any(n < 1 for n in shape):
        raise IsoconvError(f"Expected input_shape without the batch, such as (3, 32, 32). Got {tuple(input_shape)}.")
    found: list[Layer] = []
    with torch.no_grad():
        modules = _flattened(plain(model).eval())
        for position, (name, module) in enumerate(modules):
            output = _output_shape(name, module, shape)
            following = modules[position + 1][1] if position + 1 < len(modules) else None
            before = found[-1] if found else None
            if type(module) in (nn.CircularPad1d, nn.CircularPad2d) and _pads_nothing(following):
                found.append(Layer(name, module, shape, output, merged=True))
            elif before is not None and before.merged:
                assert isinstance(before.module, (nn.CircularPad1d, nn.CircularPad2d))
                pads = list(before.module.padding)
                circular = list(zip(pads[-2::-2], pads[-1::-2], strict=True))
                found.append(Layer(name, module, before.input_shape, output, circular))
            else:
                found.append(Layer(name, module, shape, output))
            shape = output
    return found


def _flattened(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The leaf modules of nested Sequentials in the order in which they are applied.

    What is known of a class is known of that class alone: a subclass, a parametrised module or one with hooks may
    compute anything.
    """
    if model._forward_hooks or model._forward_pre_hooks:
        raise IsoconvError(
            f"Expected modules without forward hooks. Got some at {prefix or 'model'}: remove them first."
        )
    if parametrize.is_parametrized(model):
        raise IsoconvError(
            f"Expected plain weights. Got a parametrised {type(model).__name__} at {prefix or 'model'}: "
            f"call torch.nn.utils.parametrize.remove_parametrizations first."
        )
    if type(model) is not nn.Sequential:
        return [(prefix or "model", model)]
    found = []
    for name, child in model.named_children():
        found += _flattened(child, f"{prefix}.{name}" if prefix else name)
    return found


def _pads_nothing(module: nn.Module | None) -> bool:
    if type(module) not in (nn.Conv1d, nn.Conv2d):
        return False
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    return module.padding in ("valid", 0, (0,), (0, 0))


def _output_shape(name: str, module: nn.Module, shape: torch.Size) -> torch.Size:
    probe = next((p for p in module.parameters()), torch.zeros(()))
    try:
        return module(torch.zeros(2, *shape, dtype=probe.dtype, device=probe.device)).shape[1:]
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected an input that {type(module).__name__} at {name} can take. {reason}") from None
