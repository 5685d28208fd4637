"""Random networks, described by data: the same description builds the same torch modules with any version of isoconv.

A description is JSON: the input's shape, the modules with their arguments, and the seed and styles of the weights. Weights
come from the raw output of numpy's PCG64 and from operations that IEEE 754 rounds correctly, so they are the same bits
everywhere.
"""

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import isoconv.nn

Spec = dict[str, Any]
Floats = npt.NDArray[np.float64]

STYLES = ("rough", "orthogonal", "reshaped", "tiny", "huge", "integers", "sparse", "zero")
_OURS = ("BCOPConv2d", "RKOConv2d", "OSSNConv2d", "SVCMConv2d", "RKL2NEConv2d", "StandardConv2d")
_FACTORS = (0.5, -1.0, 3.0, 0.1, 1e-3, 1.0, 0.0)
_FAMILIES = 3 * ("conv", "conv", "conv", "ours", "pad", "pool", "pointwise", "pointwise") + ("other", "other", "rare")
_LARGEST = 2500  # numbers in an activation
_TRIES = 12


class Draw:
    """Random choices from the bits of PCG64, whose stream numpy promises to keep."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(list(seed))

    def uniform(self, count: int) -> Floats:
        return (self._bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def chance(self, probability: float) -> bool:
        return float(self.uniform(1)[0]) < probability

    def whole(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.uniform(1)[0] * (high - low + 1))

    def pick(self, values: Any) -> Any:
        return values[self.whole(0, len(values) - 1)]


# From a description to a network ----------------------------------------------------------------------------------


def build(spec: Spec) -> nn.Sequential:
    """Return the network that `spec` describes, with its weights, in evaluation mode."""
    names = spec.get("names") or [str(i) for i in range(len(spec["modules"]))]
    model = nn.Sequential()
    for name, module in zip(names, spec["modules"], strict=True):
        model.add_module(name, _module(*module))
    model = model.to(getattr(torch, spec["dtype"])).eval()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(sorted(model.state_dict().items())):
            if tensor.is_floating_point():
                draw = Draw(spec["seed"], number)
                tensor.copy_(torch.from_numpy(_values(name, tuple(tensor.shape), draw.pick(spec["styles"]), draw)))
    return model


def inputs(spec: Spec, count: int) -> Tensor:
    """Return inputs in [0, 1] for the network of `spec`, float64 numbers that float32 can hold."""
    shape = (count, *spec["shape"])
    return torch.from_numpy(Draw(spec["seed"], 10**6).uniform(math.prod(shape)).reshape(shape)).float().double()


def weights_hash(model: nn.Module) -> str:
    """Return a short hash of the state of `model`."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:12]


def _module(kind: str, arguments: Any) -> nn.Module:
    if kind == "Sequential":
        return nn.Sequential(*(_module(*module) for module in arguments))
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
    return getattr(isoconv.nn if hasattr(isoconv.nn, kind) else nn, kind)(**values)


def _values(name: str, shape: tuple[int, ...], style: str, draw: Draw) -> Floats:
    count, taps = math.prod(shape), math.prod(shape[2:])
    u = 2 * draw.uniform(count).reshape(shape) - 1
    if name.endswith("running_var"):
        return abs(u) + 0.1
    rough = u * math.sqrt(3 / max(1, math.prod(shape[1:]))) * draw.pick((0.3, 1.0, 2.0))
    if style in ("tiny", "huge"):
        return rough * {"tiny": 1e-20, "huge": 1e12}[style]
    if style == "integers":
        return np.round(2 * u)
    if style == "zero":
        return np.zeros(shape)
    if style == "sparse":
        return np.where(draw.uniform(count).reshape(shape) < 0.7, 0.0, rough)
    if style == "rough" or len(shape) == 1:
        return rough
    noise = draw.pick((0.0, 1e-9, 1e-6, 1e-4, 1e-2)) * u
    if style == "reshaped":
        return _rotation(shape[0], count // shape[0], draw).reshape(shape) + noise
    kernel = np.zeros((shape[0], shape[1], taps))
    kernel[:, :, draw.whole(0, taps - 1)] = _rotation(shape[0], shape[1], draw)
    return kernel.reshape(shape) + noise


def _rotation(rows: int, columns: int, draw: Draw) -> Floats:
    """Return a matrix with orthonormal rows or columns: plane rotations with rational sines."""
    small, large = sorted((rows, columns))
    matrix = np.eye(large, small)
    for t in 2 * draw.uniform(2 * large) - 1:
        i, j = draw.whole(0, large - 1), draw.whole(0, large - 1)
        if i != j:
            c, s = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
            matrix[i], matrix[j] = c * matrix[i] - s * matrix[j], s * matrix[i] + c * matrix[j]
    return matrix if rows >= columns else matrix.T


# Random descriptions ----------------------------------------------------------------------------------------------


def random_spec(seed: int) -> Spec:
    """Return a random description: a few modules of all kinds, mostly with a linear layer of some classes at the end."""
    draw = Draw(seed)
    if seed % 10 == 9:
        return _wide_spec(seed, draw)
    axes = draw.pick((2, 2, 2, 2, 1, 1, 0))
    large = draw.chance(0.1)
    shape = [draw.whole(1, 8 if large else 4), *(draw.whole(3, 20 if large else 10) for _ in range(axes))]
    shape = shape if axes else [draw.whole(2, 24)]
    modules: list[Any] = []
    reached = tuple(shape)
    for _ in range(draw.whole(1, 5)):
        reached = _append(modules, reached, draw)
    if draw.chance(0.95):
        if len(reached) > 1:
            modules.append(["Flatten", {}])
        head = "OrthogonalLinear" if draw.chance(0.1) else "Linear"
        features = math.prod(reached)
        reached = (draw.whole(2, 6),)
        modules.append([head, {"in_features": features, "out_features": reached[0], "bias": draw.chance(0.7)}])
    if draw.chance(0.15):
        _append(modules, reached, draw)
    if len(modules) > 2 and draw.chance(0.2):
        cut = draw.whole(1, len(modules) - 1)
        modules = [["Sequential", modules[:cut]], *modules[cut:]]
    styles = draw.pick((STYLES[:1], STYLES[1:2], STYLES[:3], STYLES[:3], STYLES[1:3], STYLES))
    dtype = "float64" if draw.chance(0.15) else "float32"
    spec: Spec = {"shape": shape, "modules": modules, "seed": seed, "styles": list(styles), "dtype": dtype}
    if draw.chance(0.03):
        spec["names"] = [f"part{2 * i}" if draw.chance(0.5) else str(2 * i) for i in range(len(modules))]
    return spec


def _wide_spec(seed: int, draw: Draw) -> Spec:
    """Return a network with one zero-padded convolution of a larger image, whose axes differ in everything."""
    channels, outputs, *image = draw.whole(1, 2), draw.whole(1, 3), draw.whole(8, 48), draw.whole(8, 48)
    taps, padding = ([draw.whole(low, high) for _ in image] for low, high in ((2, 5), (0, 2)))
    features = outputs * math.prod(
        (n + 2 * p - k + 1) // (n // 3) for n, p, k in zip(image, padding, taps, strict=True)
    )
    modules = [
        ["Conv2d", {"in_channels": channels, "out_channels": outputs, "kernel_size": taps, "padding": padding}],
        ["MaxPool2d", {"kernel_size": [n // 3 for n in image]}],
        ["Flatten", {}],
        ["Linear", {"in_features": features, "out_features": 3}],
    ]
    return {"shape": [channels, *image], "modules": modules, "seed": seed, "styles": ["rough"], "dtype": "float32"}


def _append(modules: list[Any], shape: tuple[int, ...], draw: Draw) -> tuple[int, ...]:
    """Append a module that takes inputs of `shape`, and return the shape of its outputs."""
    for _ in range(_TRIES):
        kind, arguments = _proposal(shape, draw)
        try:
            with torch.no_grad():
                reached = tuple(_module(kind, arguments).eval()(torch.zeros(2, *shape)).shape)
        except Exception:  # it does not take this shape
            continue
        if reached[0] == 2 and len(reached) > 1 and 1 <= math.prod(reached[1:]) <= _LARGEST:
            modules.append([kind, arguments])
            return reached[1:]
    return shape


def _proposal(shape: tuple[int, ...], draw: Draw) -> tuple[str, dict[str, Any]]:
    axes, channels = len(shape) - 1, shape[0]
    family = draw.pick(_FAMILIES)
    if axes == 0 and family in ("conv", "ours", "pad", "pool"):
        features = {"in_features": channels, "out_features": draw.whole(2, 16), "bias": draw.chance(0.7)}
        return draw.pick(("Linear", "Linear", "OrthogonalLinear")), features

    def sizes(low: int, high: int) -> list[int]:
        return [draw.whole(low, high) for _ in range(axes)]

    if family == "conv":
        groups = draw.pick([g for g in range(1, channels + 1) if channels % g == 0]) if draw.chance(0.3) else 1
        arguments: dict[str, Any] = {
            "in_channels": channels,
            "out_channels": groups * draw.whole(1, max(1, 6 // groups)),
            "kernel_size": sizes(1, 4),
            "stride": sizes(1, 3) if draw.chance(0.3) else [1] * axes,
            "dilation": sizes(1, 3) if draw.chance(0.2) else [1] * axes,
            "padding": draw.pick(("same", "valid", sizes(0, 3), sizes(0, 2), [0] * axes, [1] * axes)),
            "groups": groups,
            "bias": draw.chance(0.7),
            "padding_mode": draw.pick(("zeros", "zeros", "circular", "circular", "reflect", "replicate")),
        }
        return f"Conv{axes}d", arguments
    if family == "ours":
        stride = draw.pick((1, 1, 2))
        arguments = {"in_channels": channels, "out_channels": draw.whole(1, 6), "stride": stride}
        arguments |= {"kernel_size": stride * draw.whole(1, 3), "padding_mode": draw.pick(("circular", "zeros"))}
        if axes == 1:
            return "BCOPConv1d", arguments
        kind = draw.pick(_OURS)
        return kind, arguments | ({"input_size": list(shape[1:])} if kind in ("OSSNConv2d", "SVCMConv2d") else {})
    if family == "pad":
        kind = draw.pick(("Zero", "Circular", "Circular", "Circular", "Constant", "Reflection", "Replication"))
        low = -1 if kind in ("Zero", "Constant") and draw.chance(0.3) else 0
        arguments = {"padding": [draw.whole(low, 3) for _ in range(2 * axes)]}
        return f"{kind}Pad{axes}d", arguments | ({"value": draw.pick((0.0, 0.5))} if kind == "Constant" else {})
    if family == "pool":
        kind = draw.pick(("Max", "Avg"))
        arguments = {"kernel_size": sizes(1, 3), "stride": sizes(1, 3), "padding": sizes(0, 1)}
        if kind == "Max" and draw.chance(0.2):
            arguments["dilation"] = sizes(1, 2)
        if draw.chance(0.1):
            arguments["ceil_mode" if kind == "Max" else draw.pick(("ceil_mode", "count_include_pad"))] = draw.chance(
                0.5
            )
        return f"{kind}Pool{axes}d", arguments
    if family == "pointwise":
        kind = draw.pick(("MaxMin", "MaxMin", "GroupSort", "Abs", "Scale", "ReLU", "LeakyReLU", "Dropout", "Identity"))
        return kind, {
            "GroupSort": {"group_size": draw.pick((None, 2, 3, 4))},
            "Scale": {"factor": draw.pick(_FACTORS)},
            "LeakyReLU": {"negative_slope": draw.pick((0.01, 0.25, 2.0, -1.0))},
        }.get(kind, {})
    if family == "other":
        kind = draw.pick(("Flatten", "Unflatten", "PixelShuffle", "PixelUnshuffle", "Upsample", "Linear"))
        rows = draw.pick((1, 2, 3))
        return kind, {
            "Flatten": {"start_dim": draw.pick((1, 1, -2)), "end_dim": draw.pick((-1, 2))},
            "Unflatten": {"dim": 1, "unflattened_size": [rows, channels // rows]},
            "PixelShuffle": {"upscale_factor": 2},
            "PixelUnshuffle": {"downscale_factor": 2},
            "Upsample": {
                "scale_factor": draw.pick((2, 1, 1.5, 3)),
                "mode": draw.pick(("nearest", "nearest", "linear")),
            },
            "Linear": {"in_features": shape[-1], "out_features": draw.whole(2, 8)},
        }[kind]
    kind = draw.pick(("BatchNorm", "BatchNorm", "ReLU6", "Hardtanh", "Tanh", "Sigmoid", "Softsign", "GELU", "Softmax"))
    if kind == "BatchNorm":
        return f"BatchNorm{max(1, axes)}d", {"num_features": channels, "affine": draw.chance(0.7)}
    return kind, {"dim": 1} if kind == "Softmax" else {}
