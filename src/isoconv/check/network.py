"""The layers put together: shapes from the input to the logits, the product of constants, pairs of classes."""

from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from . import affine, layers, windows
from .certificate import Certificate, Layer
from .exact import as_integers, power_of_two, shown
from .layers import Shape, Step, at_least, checked
from .tensors import Tensor, as_float64
from .verdict import Invalid, Malformed

Floats = npt.NDArray[np.float64]

_WITHOUT_WEIGHTS = {**layers.KINDS, **windows.KINDS}
_WITH_WEIGHTS = ("Conv1d", "Conv2d", "Linear")


def assembled(certificate: Certificate, tensors: dict[str, Tensor]) -> list[Step]:
    """Every layer in its place, with the weights that the model holds for it. All of the model's weights must be used."""
    _require_order([layer.name for layer in certificate.layers])
    unused = dict(tensors)
    shape = certificate.input_shape
    steps: list[Step] = []
    for layer, following in zip(certificate.layers, [*certificate.layers[1:], None], strict=True):
        step = _step(layer, following, checked(shape, layer), steps, unused, certificate.arithmetic)
        steps.append(step)
        shape = step.shape
    if unused:
        raise Invalid(f"the model holds {min(unused)}, which no layer of the certificate uses.")
    if shape != (certificate.classes,):
        raise Malformed(f"Expected layers that give {certificate.classes} logits. Got shape {list(shape)}.")
    return steps


def _step(
    layer: Layer, following: Layer | None, shape: Shape, before: list[Step], unused: dict[str, Tensor], arithmetic: str
) -> Step:
    if layer.kind in _WITHOUT_WEIGHTS:
        if following is not None and _belongs_to(layer, following):
            return Step(layer, shape, at_least(layer, 1), lambda x: x, part_of_next=True)
        return _WITHOUT_WEIGHTS[layer.kind](layer, shape)
    if layer.kind not in _WITH_WEIGHTS:
        raise Malformed(
            f"Expected a kind of layer that has a known bound. Got {layer.kind!r:.60} (layer {layer.name})."
        )
    weight = _taken(layer, "weight", unused, arithmetic)
    if weight is None:
        raise Invalid(f"{layer}: the model holds no {layer.name}.weight.")
    bias = _taken(layer, "bias", unused, arithmetic)
    if layer.kind == "Linear":
        return affine.linear(layer, shape, weight, bias)
    pad = before[-1].layer if before and before[-1].part_of_next else None
    wrapped = None if pad is None else windows.pads_of(pad, int(pad.kind[-2]))
    return affine.convolution(layer, shape, weight, bias, wrapped)


def _belongs_to(pad: Layer, following: Layer) -> bool:
    """A circular pad directly in front of a convolution without padding: the two are bounded as one."""
    return (
        pad.kind.startswith("CircularPad") and following.kind == f"Conv{pad.kind[-2:]}" and affine.unpadded(following)
    )


def _taken(layer: Layer, part: str, unused: dict[str, Tensor], arithmetic: str) -> Floats | None:
    name = f"{layer.name}.{part}"
    tensor = unused.pop(name, None)
    if tensor is None:
        return None
    if arithmetic == "float32" and tensor.dtype.itemsize > 4:
        raise Malformed(f"Expected float32 weights for float32 arithmetic. Got float64 for {name}.")
    return as_float64(tensor, name)


def _require_order(names: list[str]) -> None:
    """Each name once. Where names are the numbers that nested Sequentials give, they count up without a gap."""
    if len(set(names)) < len(names):
        raise Malformed(f"Expected each layer once. Got {next(n for n in names if names.count(n) > 1)!r:.60} again.")
    for earlier, later in pairwise(names):
        differing = [(a, b) for a, b in zip(earlier.split("."), later.split("."), strict=False) if a != b]
        a, b = differing[0] if differing else ("0", "0")  # one inside of the other, which is no place for a layer
        numbered = all(part.isdecimal() and len(part) < 10 for part in (a, b))
        if numbered and int(b) != int(a) + 1:
            raise Invalid(f"layer {later} follows layer {earlier}: one is left out or out of order.")


def require_claims(steps: list[Step]) -> None:
    """Every layer's constant, proved."""
    reached: Shape | None = None
    for step in steps:
        if (reason := step.refute()) is not None:
            place = "" if reached is None else f" for an input of shape {list(reached)}"
            raise Invalid(f"{step.layer} claims a constant of {shown(step.layer.claim)}{place}, but {reason}.")
        reached = step.shape


def require_product(certificate: Certificate) -> None:
    product = prod(layer.claim for layer in certificate.layers)
    if certificate.lipschitz < product:
        raise Invalid(f"lipschitz is {shown(certificate.lipschitz)}, less than the product of the layers' constants.")


def require_pair_constants(certificate: Certificate, tensors: dict[str, Tensor]) -> None:
    """logit_i − logit_j has at most √2 times the network's constant, and ‖w_i − w_j‖ times that of all but the last layer.

    Either will do. Squares are compared, exactly.
    """
    last = certificate.layers[-1]
    everything = Fraction(prod(layer.claim for layer in certificate.layers)) ** 2
    distances = None
    if last.kind == "Linear":
        distances = as_integers(as_float64(tensors[f"{last.name}.weight"], last.name))
        rest = Fraction(prod(layer.claim for layer in certificate.layers[:-1])) ** 2
    for i in range(certificate.classes):
        for j in range(certificate.classes):
            claimed = certificate.pair_constants[i][j]
            if claimed != certificate.pair_constants[j][i] or (i == j and claimed != 0):
                raise Invalid(f"pair_constants of classes {i} and {j}: expected symmetric, and 0 on the diagonal.")
            if i >= j or claimed**2 >= 2 * everything:
                continue
            if distances is not None:
                rows, exponent = distances
                difference = rows[i] - rows[j]
                if claimed**2 >= int(difference.dot(difference)) * power_of_two(2 * exponent) * rest:
                    continue
            raise Invalid(f"the pair constant of classes {i} and {j}, {shown(claimed)}, is too small.")
