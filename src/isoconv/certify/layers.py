"""A plain network taken apart: its modules in the order in which they are applied, with the shapes that reach them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from isoconv.certify.convolutions import Pads, pads_of
from isoconv.errors import IsoconvError
from isoconv.nn import plain
from isoconv.nn.plain_model import is_ordinary_sequence, is_patched


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
    shape = checked_shape(input_shape)
    refuse_strangers(model)
    found: list[Layer] = []
    with torch.no_grad():
        modules = _flattened(plain(model).eval())
        if not modules:
            raise IsoconvError("Expected a network of at least one module. Got an empty one.")
        for position, (name, module) in enumerate(modules):
            output = _output_shape(name, module, shape)
            following = modules[position + 1][1] if position + 1 < len(modules) else None
            before = found[-1] if found else None
            if _pads_circularly(module) and _pads_nothing(following):
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


def checked_shape(input_shape: Sequence[int]) -> torch.Size:
    """The shape of an input without the batch: some positive whole numbers."""
    sizes = list(input_shape) if isinstance(input_shape, (tuple, list)) else []
    if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
        shown = tuple(input_shape) if isinstance(input_shape, (tuple, list)) else input_shape
        raise IsoconvError(f"Expected input_shape without the batch, such as (3, 32, 32). Got {shown}.")
    return torch.Size(sizes)


def refuse_strangers(model: nn.Module) -> None:
    """Refuse whatever may compute something else than its class is known for.

    What is known of a class is known of that class alone: a subclass, an instance with a forward of its own, a hook or a
    parametrisation may do anything. A subclass of nn.Sequential that only says which layers it has is none of these.
    """
    if not isinstance(model, nn.Module):
        raise IsoconvError(f"Expected a network, a torch.nn.Module. Got {type(model).__name__}.")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta or parameter.is_complex():
            state = "lazy" if is_lazy(parameter) else "meta" if parameter.is_meta else "complex"
            raise IsoconvError(f"Expected weights that are real numbers. Got {state} ones: {name}.")
    refuse_global_hooks()
    for name, module in model.named_modules():
        place, kind = name or "model", type(module)
        if module._forward_hooks or module._forward_pre_hooks:
            raise IsoconvError(f"Expected modules without forward hooks. Got some at {place}: remove them first.")
        if parametrize.is_parametrized(module):
            raise IsoconvError(
                f"Expected plain weights. Got a parametrised {kind.__name__} at {place}: "
                f"call torch.nn.utils.parametrize.remove_parametrizations first."
            )
        if type(module) in (nn.Conv1d, nn.Conv2d, nn.Linear) and not {"weight", "bias"} <= module._parameters.keys():
            raise IsoconvError(
                f"Expected weights and biases that are parameters. Got others in {kind.__name__} at {place}."
            )
        home = kind.__module__
        known = home.startswith(("torch.nn.modules.", "isoconv.nn.", "isoconv.models.", "isoconv.wasserstein."))
        if is_patched(module) or not (known or is_ordinary_sequence(module)):
            raise IsoconvError(
                f"Expected modules with a known Lipschitz constant. Got {kind.__name__} at {place}: "
                f"its constant is unknown, so nothing can be certified."
            )


def refuse_global_hooks() -> None:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise IsoconvError("Expected no forward hooks on all modules. Got some: remove them first.")


def _flattened(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The leaf modules of nested Sequentials in the order in which they are applied, each as often as it is."""
    if type(model) is not nn.Sequential:
        return [(prefix or "model", model)]
    found = []
    for name, child in model._modules.items():
        if child is not None:
            found += _flattened(child, f"{prefix}.{name}" if prefix else name)
    return found


def _pads_circularly(module: nn.Module) -> bool:
    return type(module) in (nn.CircularPad1d, nn.CircularPad2d)


def _pads_nothing(module: nn.Module | None) -> bool:
    if type(module) not in (nn.Conv1d, nn.Conv2d):
        return False
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    return not any(any(pair) for pair in pads_of(module))


def _output_shape(name: str, module: nn.Module, shape: torch.Size) -> torch.Size:
    kind = type(module).__name__
    dimensions = _DIMENSIONS.get(kind[-2:]) if not kind.startswith("BatchNorm") else None
    dimensions = 2 if type(module) in (nn.PixelShuffle, nn.PixelUnshuffle) else dimensions
    if dimensions is not None and len(shape) != dimensions + 1:
        expected = "(channels, length)" if dimensions == 1 else "(channels, height, width)"
        raise IsoconvError(f"Expected an input {expected} for {kind} at {name}. Got {tuple(shape)}.")
    if isinstance(module, (nn.CircularPad1d, nn.CircularPad2d)) and any(pad < 0 for pad in module.padding):
        # torch may fill what is cut off at one end and padded at the other with whatever lies in memory
        raise IsoconvError(f"Expected circular padding of at least 0. Got {tuple(module.padding)} at {name}.")
    padding = getattr(module, "padding", 0) if "Pad" in kind else 0
    if isinstance(padding, (tuple, list)) and len(padding) > 2 * (dimensions or 0):
        # torch would pad, or cut, the channels and the batch too
        raise IsoconvError(f"Expected padding of the image alone. Got {tuple(padding)} for {kind} at {name}.")
    probe = next((p for p in module.parameters()), torch.zeros(()))
    try:
        sizes = [
            module(torch.zeros(count, *shape, dtype=probe.dtype, device=probe.device)).shape for count in _TWO_BATCHES
        ]
    except (RuntimeError, ValueError, AttributeError, IsoconvError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected an input that {kind} at {name} can take. {reason}") from None
    if [size[0] for size in sizes] != list(_TWO_BATCHES) or sizes[0][1:] != sizes[1][1:]:
        raise IsoconvError(
            f"Expected modules that leave the batch as it is. Got {kind} at {name}, which takes it apart."
        )
    return sizes[0][1:]


_DIMENSIONS = {"1d": 1, "2d": 2}
_TWO_BATCHES = (2, 3)  # what takes a batch apart and happens to fit one of them does not fit the other
