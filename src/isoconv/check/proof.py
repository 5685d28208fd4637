"""Everything that is checked, in order, and the sentence that says what that proves.

The nodes are put together from the input to the logits; each node's constant is proved; the network's constant, that of each
pair of classes and the error of the computed logits follow; then comes image after image, in exact fractions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np

from . import Budget, Invalid, Malformed
from .certificate import (
    ASSUMPTION,
    CLAIM,
    INPUT,
    LARGEST_FINITE,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Certificate,
    Image,
    Node,
    read_certificate,
    upgrade,
)
from .exact import Floats, as_integers, power_of_two, root_up, show, sum_of_squares, trim
from .files import Tensor, as_float64, read_images, read_model, weights_sha256
from .kinds import KINDS, Place, Shape, Step, make_step, require_shape

ROOT_OF_TWO = root_up(2)
_A_LITTLE = 1 + Fraction(1, 2**40)  # for the rounding of a norm that is as large as it can be
_NUMBERS = 1 << 22  # that a batch of activations may hold at once
_BATCH = 256
_PER_IMAGE, _PER_PAIR = 200_000, 200_000  # multiplications that a logit, or a pair of classes, costs in fractions


def examine(file: Path, model: Path, images: Path | None = None, unlimited: bool = False) -> str:
    """Return what was proved, in one line. Raise `Invalid` or `Malformed` otherwise."""
    certificate = read_certificate(file)
    tensors = read_model(model)
    pictures = None if images is None else read_images(images, certificate.input_shape)
    size = file.stat().st_size + sum(t.nbytes for t in tensors.values()) + (0 if pictures is None else pictures.nbytes)
    budget = Budget(size, unlimited)
    if certificate.weights_sha256 != (digest := weights_sha256(tensors)):
        raise Invalid(f"weights_sha256 is {certificate.weights_sha256!r:.70}, but the model's weights have {digest!r}.")
    network = assemble(certificate, tensors, budget)
    require_claims(network, budget)
    require_pair_constants(certificate, network, budget)
    error = require_error_terms(certificate, network)
    require_sentences(certificate)
    count, certified, replayed = require_images(certificate, network, error, pictures, budget)
    return _summarise(certificate, count, certified, replayed)


# The network ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """The nodes in their places. `constants` are those of the values as functions of the input, by name."""

    steps: tuple[Step, ...]
    tensors: dict[str, Tensor]
    constants: dict[str, Fraction]
    shapes: dict[str, Shape]

    @property
    def last(self) -> Step:
        return self.steps[-1]


def assemble(certificate: Certificate, tensors: dict[str, Tensor], budget: Budget) -> Network:
    """Put every node in its place, with the weights that the model holds for it. Every node and weight must be used."""
    nodes = certificate.nodes if certificate.version == 2 else tuple(upgrade(node) for node in _distinct(certificate))
    users: dict[str, list[Node]] = {node.name: [] for node in nodes}
    used: set[str] = set()
    shapes: dict[str, Shape] = {INPUT: require_shape(nodes[0], certificate.input_shape)}
    constants = {INPUT: Fraction(1)}
    for node in nodes:
        for name in node.inputs:
            users.get(name, []).append(node)
    steps: dict[str, Step] = {}
    for node in nodes:
        if missing := [name for name in node.inputs if name not in shapes]:
            raise Malformed(f"Expected {node} after its inputs. Got {missing[0]!r:.60}, which no node before it has.")
        if node.name in shapes:
            raise Malformed(f"Expected each layer once. Got {node.name!r:.60} again.")
        before = steps.get(node.inputs[0]) if node.inputs else None
        wrapped = before.node.pads(len(before.shape) - 1) if before and before.part_of_next else None
        inputs = tuple(shapes[name] for name in node.inputs)
        place = Place(inputs, tensors, used, certificate.arithmetic, budget, wrapped)
        following = users[node.name][0] if len(users[node.name]) == 1 and node.name != certificate.output else None
        steps[node.name] = step = make_step(node, place, following)
        shapes[node.name] = step.shape
        # As a function of all its inputs together, whose constant is the root of the sum of the squares of theirs.
        constants[node.name] = trim(node.claim * _root_of_squares([constants[name] for name in node.inputs]))
    if unused := [name for name in tensors if name not in used]:
        raise Invalid(f"the model holds {min(unused)}, which no layer of the certificate uses.")
    if idle := [node for node in nodes if not users[node.name] and node.name != certificate.output]:
        raise Malformed(f"Expected each node to be used. Got {idle[0]}, whose value goes nowhere.")
    if nodes[-1].name != certificate.output:
        raise Malformed(f"Expected the last node to be the output. Got {certificate.output!r:.60}.")
    if shapes[certificate.output] != (certificate.classes,):
        got = list(shapes[certificate.output])
        raise Malformed(f"Expected layers that give {certificate.classes} logits. Got shape {got}.")
    return Network(tuple(steps.values()), tensors, constants, shapes)


def _distinct(certificate: Certificate) -> tuple[Node, ...]:
    names = [node.name for node in certificate.nodes]
    if len(set(names)) < len(names):
        twice = next(name for n, name in enumerate(names) if name in names[:n])
        raise Malformed(f"Expected each layer once. Got {twice!r:.60} again.")
    return certificate.nodes


def _root_of_squares(values: list[Fraction]) -> Fraction:
    return values[0] if len(values) == 1 else root_up(sum(value**2 for value in values))


def require_claims(network: Network, budget: Budget) -> None:
    """Prove every node's constant."""
    for step in network.steps:
        if (reason := step.refute(budget)) is not None:
            shapes = ", ".join(str(list(network.shapes[name])) for name in step.node.inputs)
            claim = f"{step.node} claims a constant of {show(step.node.claim)} for an input of shape {shapes}"
            raise Invalid(f"{claim}, but {reason}.")


def require_pair_constants(certificate: Certificate, network: Network, budget: Budget) -> None:
    """Prove the network's constant and those of the pairs.

    logit_i − logit_j has at most √2 times the network's constant, and ‖w_i − w_j‖ times that of all but the last layer.
    Either will do. Squares are compared, exactly; but first with distances in floating point, enlarged by γ_{n+4}: two
    rounded operations per term, n sums, the root's square; and by twice the smallest normal number times n.
    """
    last, whole = network.last.node, network.constants[certificate.output]
    if certificate.lipschitz < whole:
        raise Invalid(f"lipschitz is {show(certificate.lipschitz)}, less than the product of the layers' constants.")
    rows = None
    if last.kind == "Linear":
        rest = network.constants[last.inputs[0]] ** 2
        rows = as_float64(network.tensors[f"{last.module}.weight" if last.module else "weight"], last.name)
        room = 1 + Fraction(rows.shape[1] + 8, 2**53 - rows.shape[1] - 8)
        tiny = rows.shape[1] * 2 * SMALLEST_NORMAL["float64"]
    budget.spend(certificate.classes**2 * _PER_PAIR, "pair_constants")
    for i in range(certificate.classes):
        squares = None
        for j in range(certificate.classes):
            claimed = certificate.pair_constants[i][j]
            if claimed != certificate.pair_constants[j][i] or (i == j and claimed != 0):
                raise Invalid(f"pair_constants of classes {i} and {j}: expected symmetric, and 0 on the diagonal.")
            if i >= j or claimed**2 >= 2 * whole**2:
                continue
            if rows is not None:
                if squares is None:
                    with np.errstate(over="ignore"):
                        squares = ((rows - rows[i]) ** 2).sum(axis=1)
                near = float(squares[j])
                if near < float("inf") and claimed**2 >= (Fraction(near) * room + tiny) * rest:
                    continue
                budget.spend(rows.shape[1] * 5_000, "the pair_constants")
                if claimed**2 >= _square_of_difference(rows[i], rows[j]) * rest:
                    continue
            raise Invalid(f"the pair constant of classes {i} and {j}, {show(claimed)}, is too small.")


def _square_of_difference(a: Floats, b: Floats) -> Fraction:
    integers, exponent = as_integers(np.stack([a, b]))
    difference = integers[0] - integers[1]
    return int(difference.dot(difference)) * power_of_two(2 * exponent)


def require_sentences(certificate: Certificate) -> None:
    """Check the sentences of a certificate: its claim (version 1), or what it assumes, no more and no less."""
    if certificate.version == 1:
        if certificate.sentences != (CLAIM,):
            raise Invalid("the claim is not the sentence that is proved of certificates of version 1.")
        return
    needed = (ASSUMPTION,) if any(KINDS[node.kind].assumes for node in certificate.nodes) else ()
    if certificate.sentences != needed:
        raise Invalid(f"assumptions are {list(certificate.sentences)!s:.200}, but the proof needs {list(needed)}.")


# The error of computed logits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """offset + slope·‖x‖."""

    offset: Fraction
    slope: Fraction

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(trim(self.offset + other.offset), trim(self.slope + other.slope))

    def times(self, factor: Fraction) -> "Affine":
        return Affine(trim(self.offset * factor), trim(self.slope * factor))

    def at(self, norm: Fraction) -> Fraction:
        return self.offset + self.slope * norm


@dataclass(frozen=True)
class ForwardError:
    """How far computed logits can lie from the exact ones, and how large numbers get on the way, by node."""

    logits: Affine
    sums: list[tuple[Node, Affine]]


def forward_error(network: Network, arithmetic: str) -> ForwardError:
    """Follow two norms through the nodes, see Note [Sizes] in `kinds`: of exact values, and of the error of computed ones.

    Whatever the order of summation, as long as nothing overflows.
    """
    unit, smallest = UNIT_ROUNDOFF[arithmetic], SMALLEST_NORMAL[arithmetic]
    nothing = Fraction(0)
    state = {INPUT: (Affine(nothing, Fraction(1)), Affine(nothing, nothing))}
    sums = []
    for step in network.steps:
        size, error = (_join([state[name][k] for name in step.node.inputs]) for k in (0, 1))
        rounding = step.rounding
        if step.part_of_next:
            state[step.node.name] = size, error
            continue
        result = error.times(step.node.claim)
        if rounding is not None:
            relative = rounding.terms * unit
            if relative >= 1:
                raise Invalid(f"{step.node} adds up {rounding.terms} terms, for which {arithmetic} has no error bound.")
            relative = relative / (1 - relative)
            absolute = (size + error).times(rounding.amplification) + Affine(rounding.offset, nothing)
            underflow = Affine(rounding.underflow * smallest, nothing)
            result = result + absolute.times(relative) + underflow
            factor, offset = rounding.largest or (Fraction(0), nothing)
            largest = absolute if rounding.largest is None else (size + error).times(factor) + Affine(offset, nothing)
            sums.append((step.node, largest.times(1 + relative) + underflow))
        state[step.node.name] = size.times(step.node.claim) + Affine(step.at_zero, nothing), result
    return ForwardError(state[network.last.node.name][1], sums)


def _join(values: list[Affine]) -> Affine:
    """Bound the norm of several values together, by Minkowski's inequality."""
    return Affine(*(_root_of_squares([getattr(v, part) for v in values]) for part in ("offset", "slope")))


def require_error_terms(certificate: Certificate, network: Network) -> ForwardError:
    error = forward_error(network, certificate.arithmetic)
    for name, claimed, needed in (
        ("error_offset", certificate.error_offset, error.logits.offset),
        ("error_slope", certificate.error_slope, error.logits.slope),
    ):
        if claimed < needed:
            raise Invalid(f"{name} is {show(claimed)}, less than the {show(needed)} that rounding may cause.")
    return error


# Images --------------------------------------------------------------------------------------------------------------


def require_images(
    certificate: Certificate, network: Network, error: ForwardError, pictures: Tensor | None, budget: Budget
) -> tuple[int, int, int | None]:
    """Check every image; return how many there are, how many have a radius above 0, and how many were recomputed."""
    largest = max(abs(Fraction(limit)) for limit in certificate.input_range)
    largest_square = prod(certificate.input_shape) * largest**2 * _A_LITTLE
    seen: set[int] = set()
    count = certified = replayed = 0
    own_error = forward_error(network, "float64").logits  # of what is computed here
    size = max(1, min(_BATCH, _NUMBERS // max(prod(step.shape) for step in network.steps)))
    for batch in _batches(certificate.images, size):
        budget.spend(len(batch) * certificate.classes * _PER_IMAGE, "the images")
        for image in batch:
            if image.index in seen:
                raise Invalid(f"image {image.index} occurs twice.")
            seen.add(image.index)
            if image.input_norm**2 > largest_square:
                raise Invalid(f"image {image.index}: no input in the range has the norm {show(image.input_norm)}.")
            _require_radius(image, certificate, error)
            count, certified = count + 1, certified + (image.radius > 0)
        if pictures is not None:
            held = [image for image in batch if image.index < len(pictures)]
            budget.spend(len(held) * sum(step.work for step in network.steps), "recomputing the logits")
            _require_logits(held, certificate, network, pictures, own_error)
            replayed += len(held)
    return count, certified, None if pictures is None else replayed


def _batches(images: Iterable[Image], size: int) -> Iterator[list[Image]]:
    iterator = iter(images)
    while batch := list(islice(iterator, size)):
        yield batch


def _require_radius(image: Image, certificate: Certificate, error: ForwardError) -> None:
    """The computed margin, less what rounding may do to it at the centre and in the ball, exceeds constant·radius."""
    where, best = f"image {image.index}", max(image.logits)
    if image.logits[image.prediction] < best:
        raise Invalid(f"{where}: class {image.logits.index(best)} has the largest logit, not class {image.prediction}.")
    if image.radius == 0:
        return
    if image.logits.count(best) > 1:
        raise Invalid(f"{where}: the largest logit is tied, so there is no prediction.")
    for node, sums in error.sums:  # the network is run on every input within the radius
        if sums.at(image.input_norm + image.radius) > LARGEST_FINITE[certificate.arithmetic]:
            raise Invalid(f"{node}: sums may overflow in {certificate.arithmetic} within the certified radii.")
    norms = 2 * image.input_norm + image.radius
    rounding = ROOT_OF_TWO * (2 * certificate.error_offset + certificate.error_slope * norms)
    constants = certificate.pair_constants[image.prediction]
    for j, logit in enumerate(image.logits):
        if j != image.prediction and not best - rounding - logit > constants[j] * image.radius:
            raise Invalid(f"{where}: the margin to class {j} does not carry a radius of {show(image.radius)}.")


def _require_logits(
    images: list[Image], certificate: Certificate, network: Network, pictures: Tensor, own_error: Affine
) -> None:
    """Compute norms and logits of images from their pixels."""
    if not images:
        return
    pixels = np.stack([_pixels(pictures[image.index], certificate.arithmetic) for image in images])
    norms = [_require_norm(image, x, certificate) for image, x in zip(images, pixels, strict=True)]
    values = {INPUT: pixels}
    with np.errstate(all="ignore"):
        for step in network.steps:
            values[step.node.name] = step.apply(*(values[name] for name in step.node.inputs))
    for image, logits, norm in zip(images, values[certificate.output], norms, strict=True):
        where = f"image {image.index}"
        allowed = 2 * (certificate.error_offset + certificate.error_slope * norm)  # each errs by half of that
        for j, (claimed, found) in enumerate(zip(image.logits, logits.tolist(), strict=True)):
            if not np.isfinite(found) or abs(claimed - Fraction(found)) > allowed:
                raise Invalid(f"{where}: the network gives {found!r} for logit {j}, not {show(claimed)}.")
        if image.radius == 0:
            continue
        # The radius, proved from these logits: the file's may differ from the exact ones by more than they ought to.
        in_the_ball = certificate.error_offset + certificate.error_slope * (norm + image.radius)
        rounding = ROOT_OF_TWO * (own_error.at(norm) + in_the_ball)
        constants = certificate.pair_constants[image.prediction]
        for j, logit in enumerate(logits.tolist()):
            margin = Fraction(float(logits[image.prediction])) - Fraction(logit) - rounding
            if j != image.prediction and not margin > constants[j] * image.radius:
                raise Invalid(
                    f"{where}: the network's margin to class {j} does not carry a radius of {show(image.radius)}."
                )


def _pixels(image: Tensor, arithmetic: str) -> Floats:
    """Return what the network is given: bytes divided by 255, and rounded to the arithmetic that it runs in."""
    pixels = image.astype(np.float64) / 255 if image.dtype == np.uint8 else np.array(image)
    return pixels.astype(np.float32).astype(np.float64) if arithmetic == "float32" else pixels


def _require_norm(image: Image, pixels: Floats, certificate: Certificate) -> Fraction:
    low, high = certificate.input_range
    if not ((pixels >= low) & (pixels <= high)).all():
        raise Invalid(f"image {image.index}: a pixel lies outside of the input range from {low!r} to {high!r}.")
    square = sum_of_squares(pixels)
    if image.input_norm**2 < square:
        raise Invalid(f"image {image.index}: its norm is larger than input_norm, {show(image.input_norm)}.")
    return root_up(square)


def _summarise(certificate: Certificate, count: int, certified: int, replayed: int | None) -> str:
    low, high = certificate.input_range
    shape = "×".join(str(size) for size in certificate.input_shape)
    assumed = f", assuming that {ASSUMPTION}" if certificate.version == 2 and certificate.sentences else ""
    proved = (
        f"Lipschitz constant at most {show(certificate.lipschitz)} in the L2 norm from {shape} inputs to "
        f"{certificate.classes} logits, and {certified} of {count} images with a proved radius, for "
        f"inputs from {low!r} to {high!r}, run in {certificate.arithmetic}{assumed}"
    )
    order = "that the model applies the layers as they are listed"
    if replayed is None:
        return f"{proved}; not checked without --images: the images' norms and logits, {order}."
    unseen = count - replayed
    rest = f"{unseen} images that the file does not hold, " if unseen else ""
    return f"{proved}; {replayed} recomputed from their pixels; not checked: {rest}labels, {order} for other inputs."
