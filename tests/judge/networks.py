"""Networks described by data: the same description builds the same torch modules with any version of isoconv.

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
