"""The settings of a node: what a certificate says of it beside its weights, spelt out for each axis.

Each function here refuses what cannot be said, and what may be another function than its kind is known for.
"""

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isoconv.errors import require

if TYPE_CHECKING:
    from isoconv.certify.rules import Node

Settings = dict[str, Any]


def spell(node: "Node", *names: str) -> Settings:
    """Return these attributes of a module: sizes for each axis, flags, and numbers, which must be finite."""
    settings, axes = {name: getattr(node.module, name) for name in names}, len(node.input_shape) - 1
    for name, value in settings.items():
        if name in ("kernel_size", "stride", "padding", "dilation", "output_padding"):
            settings[name] = sizes = per_axis(value, axes)
            whole = len(sizes) == axes and all(isinstance(size, Integral) for size in sizes)
            require(whole, f"a whole number for each axis as {name} of {node.kind}", value)
        elif name not in ("ceil_mode", "count_include_pad"):
            require(math.isfinite(value), f"a finite {name} of {node.kind}", value)
            settings[name] = float(value)
    return settings


def per_axis(value: Any, axes: int) -> list[Any]:
    """Return a setting as one number for each axis."""
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * axes if len(values) == 1 else values


# Axes and channels ------------------------------------------------------------------------------------------------


def _axis(node: "Node", dim: int) -> int:
    """Return an axis without the batch, given one as torch counts."""
    axes = len(node.input_shape) + 1
    require(-axes < dim < axes and dim != 0, f"an axis of {node.kind} behind the batch", dim)
    return dim % axes - 1


def spell_axis(node: "Node") -> Settings:
    """Return the axis of an activation if it is not the usual one, that of the channels."""
    axis = _axis(node, node.module.dim)
    return {"axis": axis} if axis else {}


def spell_group_sort(node: "Node") -> Settings:
    size = node.module.group_size
    require(size is None or size >= 1, "a group size of at least 1, or None for all channels", size)
    whole = node.input_shape[_axis(node, node.module.dim)]
    return {"group_size": whole if size is None else size} | spell_axis(node)


def spell_layer_centring(node: "Node") -> Settings:
    dims = range(1, len(node.input_shape) + 1) if node.module.dim is None else node.module.dim
    require(len(dims) > 0, "at least one axis to centre over", "none")
    return {"axes": sorted(_axis(node, dim) for dim in dims)}


def spell_softmax(node: "Node") -> Settings:
    axis, axes = node.module.dim, len(node.input_shape) + 1
    require(isinstance(axis, int) and axis % axes != 0, "a dim for Softmax other than the batch", axis)
    return {"dim": axis % axes}


def spell_flatten(node: "Node") -> Settings:
    axes = len(node.input_shape) + 1  # with the batch, as torch counts
    return {name: getattr(node.module, name) % axes for name in ("start_dim", "end_dim")}


def spell_unflatten(node: "Node") -> Settings:
    axis, shape, output = node.module.dim, node.input_shape, node.output_shape
    require(isinstance(axis, int), "an nn.Unflatten of an axis that has a number", repr(axis))
    axis %= len(shape) + 1
    return {"dim": axis, "unflattened_size": list(output[axis - 1 : len(output) - len(shape) + axis])}


def spell_slice(node: "Node") -> Settings:
    module, axes = node.module, len(node.input_shape)
    inside = 1 <= module.dim <= axes and 0 <= module.start < module.stop <= node.input_shape[module.dim - 1]
    require(inside and module.step >= 1, "a slice within its input", tuple(node.input_shape))
    return {"axis": module.dim - 1, "start": module.start, "stop": module.stop, "step": module.step}


# Tensors ----------------------------------------------------------------------------------------------------------


def spell_batch_centring(node: "Node") -> Settings:
    shapes = [tuple(tensor.shape) for tensor in (node.module.running_mean, node.module.bias) if tensor is not None]
    require(set(shapes) <= {tuple(node.input_shape[:1])}, "one mean and one bias for each channel", shapes)
    return {}


def spell_normalize(node: "Node") -> Settings:
    channels = tuple(node.module.mean.shape) == tuple(node.module.std.shape) == tuple(node.input_shape[:1])
    require(channels, "a mean and an std for each channel", f"{len(node.module.mean)} for {node.input_shape[0]}")
    return {}


def spell_translate(node: "Node") -> Settings:
    fits = node.output_shape == node.input_shape and node.module.bias.dim() <= len(node.input_shape)
    require(fits, f"a tensor that fits into {tuple(node.input_shape)}, to add", tuple(node.module.bias.shape))
    return {}


def spell_batch_norm(node: "Node") -> Settings:
    measured = node.module.running_var is not None and node.module.running_mean is not None
    require(measured, "batch normalisation with running statistics", "one that uses the batch's own")
    return spell(node, "eps")


# Functions of each number -----------------------------------------------------------------------------------------


def spell_relu6(node: "Node") -> Settings:
    limits = node.module.min_val, node.module.max_val
    require(limits == (0, 6), "ReLU6 between 0 and 6", limits)
    return {}


def spell_hardtanh(node: "Node") -> Settings:
    settings = spell(node, "min_val", "max_val")
    low, high = settings.values()
    require(low < high, "Hardtanh with min_val below max_val", f"{low} and {high}")
    return settings


def spell_elu(node: "Node") -> Settings:
    settings = spell(node, "alpha")
    require(node.kind != "CELU" or settings["alpha"] > 0, "an alpha above 0 for CELU", settings["alpha"])
    return settings


def spell_gelu(node: "Node") -> Settings:
    approximate = node.module.approximate
    require(approximate in ("none", "tanh"), "GELU by 'none' or 'tanh'", approximate)
    return {"approximate": approximate}


def spell_softplus(node: "Node") -> Settings:
    settings = spell(node, "beta", "threshold")
    require(settings["beta"] > 0, "a beta above 0 for Softplus", settings["beta"])
    # Below, the jump to the identity is larger than what float32 rounds there.
    require(settings["threshold"] >= 15, "a threshold of at least 15 for Softplus", settings["threshold"])
    return settings


# Convolutions and padding -----------------------------------------------------------------------------------------


def spell_convolution(node: "Node") -> Settings:
    module, taps = node.module, node.module.weight.shape[2:]
    if module.padding_mode != "zeros":  # torch goes by this list, made when the module was
        flat = list(module._reversed_padding_repeated_twice)
        pads = [flat[2 * axis : 2 * axis + 2] for axis in reversed(range(len(taps)))]
    elif module.padding == "same":  # torch puts the odd one behind
        reach = [(k - 1) * d for k, d in zip(taps, per_axis(module.dilation, len(taps)), strict=True)]
        pads = [[r // 2, r - r // 2] for r in reach]
    else:
        pads = [[p, p] for p in per_axis(0 if module.padding == "valid" else module.padding, len(taps))]
    require(min(map(min, pads)) >= 0, f"padding of at least 0 for {node.kind}", module.padding)
    mode = module.padding_mode if any(map(any, pads)) else "zeros"
    settings = spell(node, "stride") | {"padding": pads} | spell(node, "dilation")
    return settings | {"groups": module.groups, "padding_mode": mode}


def spell_transposed(node: "Node") -> Settings:
    settings = spell(node, "stride", "padding", "output_padding", "dilation")
    return settings | {"padding": [[p, p] for p in settings["padding"]], "groups": node.module.groups}


def spell_potential(node: "Node") -> Settings:
    weight, bias, mode = node.module.weight, node.module.bias, node.module.padding_mode
    fits = weight.dim() == 4 and weight.shape[1] == node.input_shape[0]
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    require(fits, f"a kernel of {node.input_shape[0]} channels and a bias for each hidden one", tuple(weight.shape))
    require(mode in ("circular", "zeros"), "padding_mode 'circular' or 'zeros'", repr(mode))
    inside = mode == "zeros" or all(k <= n for k, n in zip(weight.shape[2:], node.input_shape[1:], strict=True))
    require(inside, "a kernel that is not larger than the image", tuple(weight.shape[2:]))
    return {"padding": [[k // 2, (k - 1) // 2] for k in weight.shape[2:]], "padding_mode": mode}


def spell_pad(node: "Node") -> Settings:
    axes, constant = len(node.input_shape) - 1, type(node.module) in (nn.ConstantPad1d, nn.ConstantPad2d)
    zeros = type(node.module) in (nn.ZeroPad1d, nn.ZeroPad2d)
    require(not zeros or node.module.value == 0, f"{node.kind} to pad with 0", getattr(node.module, "value", None))
    flat = per_axis(node.module.padding, 2 * axes)  # torch's order: the last axis comes first
    # torch would pad, or cut, the channels and the batch too
    require(len(flat) <= 2 * axes, f"padding of the image alone for {node.kind}", tuple(flat))
    # torch may fill what is cut off at one end and padded at the other with whatever lies in memory
    require(constant or zeros or min(flat) >= 0, f"padding of at least 0 for {node.kind}", tuple(flat))
    flat += [0] * (2 * axes - len(flat))
    pads = {"padding": [flat[2 * axis : 2 * axis + 2] for axis in reversed(range(axes))]}
    return pads | spell(node, "value") if constant else pads


# Pooling and upsampling -------------------------------------------------------------------------------------------


def spell_norm_pool(node: "Node") -> Settings:
    if node.module.kernel_size is None:
        return {}
    settings = spell(node, "kernel_size", "stride")
    apart = all(1 <= k <= s for k, s in zip(*settings.values(), strict=True))
    require(apart, "windows that do not overlap", f"kernel_size and stride {tuple(settings.values())}")
    return settings


def spell_max_pool(node: "Node") -> Settings:
    seen = bool(node.module(torch.zeros(1, *node.input_shape)).isfinite().all())
    require(seen, "every window to reach the image", "one that sees padding alone")
    return spell(node, "kernel_size", "stride", "padding", "dilation", "ceil_mode")


def spell_average_pool(node: "Node") -> Settings:
    settings = spell(node, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
    divisor = node.module.divisor_override if type(node.module) is nn.AvgPool2d else None
    return settings | {"divisor_override": divisor}


def spell_upsample(node: "Node") -> Settings:
    """Return the factors. Nearest neighbours by whole numbers alone: of others, which are taken depends on the device."""
    module, sizes, resized = node.module, node.input_shape[1:], node.output_shape[1:]
    linear = module.mode == {1: "linear", 2: "bilinear"}.get(len(sizes))
    known = linear or (module.mode == "nearest" and len(sizes) <= 2)
    require(known, "mode 'nearest', 'linear' or 'bilinear' on one or two axes", f"{module.mode!r} on {len(sizes)}")
    scales = None if module.recompute_scale_factor else module.scale_factor
    ratios = [after / before for after, before in zip(resized, sizes, strict=True)]
    factors = ratios if scales is None else [float(scale) for scale in per_axis(scales, len(sizes))]
    if not linear:
        whole, shown = all(f == int(f) >= 1 for f in factors), ", ".join(f"{f:g}" for f in factors)
        require(whole, "upsampling by whole numbers", f"{shown}, of which no bound is known")
        return {"factors": [int(factor) for factor in factors]}
    axes = []
    for before, after, factor in zip(sizes, resized, factors, strict=True):
        step = before / after if scales is None else 1 / factor
        step = (before - 1) / max(after - 1, 1) if module.align_corners else step
        kept = step == 1 or not before == after > 1
        require(kept, "another size, or a factor of 1", f"{factors}: libraries differ on whether that copies an axis")
        first = 0.0 if module.align_corners else 0.5 * step - 0.5
        axes.append({"outputs": after, "first": first, "step": step})
    return {"factors": axes}
