"""Everything that is checked, in order, and the sentence that says what that proves.

The nodes are put together from the input to the logits; each node's constant is proved; the network's constant, that of each
pair of classes and the error of the computed logits follow; then comes image after image, in exact fractions.

Note [Relations]. Let Δ stand for the difference that any two inputs of the network make to a value. A base is the network's
input, or a value that is taken more than once. A relation of a value v to a base b is a set S of b's entries and a factor f
with ‖Δv‖ ≤ f·‖(Δb)_S‖.

- A base to itself: all entries, 1. A node of constant L that takes u: S of u, L·f of u.
- A value that consists of entries of b, each at most once, is an exact relation: f = 1, S what was selected. It stays exact
  through a node that selects and moves entries, and through no other.
- Concatenation: ‖Δv‖² = Σ‖Δu_k‖² ≤ Σ_k f_k²·‖(Δb)_{S_k}‖² ≤ f²·‖(Δb)_S‖², with S = ∪S_k and f² the largest sum, over the
  entries e, of those f_k² with e ∈ S_k. Disjoint slices count by their maximum, the same value twice by √2.
- Sum: ‖Δv‖ ≤ Σ f_k·‖(Δb)_{S_k}‖, so f = Σf_k; where the S_k are disjoint, √(Σf_k²), by Cauchy and Schwarz.
- Climbing: if u has (S, f) to a base a, and a has (T, g) to b, then ‖Δu‖ ≤ f·‖Δa‖ ≤ f·g·‖(Δb)_T‖. If a is exactly entries
  of b, ‖(Δa)_S‖ is ‖Δb‖ on those that S stands for, and g = 1.

Each value keeps the relation to one base, and so does each base; inputs of one node climb until they meet. A relation to
an older base, followed node by node, is never better: it has the same entries and at least the same factor.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np

from . import Budget, Invalid, Malformed, files
from .exact import ARITHMETICS, ONE, Arithmetic, Integers, add_up, root_up, show, squared_distance, sum_of_squares, trim
from .files import ASSUMPTION, INPUT, Certificate, Image, Json, Node, Tensor
from .kinds import LARGEST_ACTIVATION, MOVES, Place, Shape, Step
from .pointwise import POINTWISE
from .windows import WINDOWS

KINDS = MOVES | POINTWISE | WINDOWS
Largest = tuple[Fraction, str]  # the norm of an input up to which nothing overflows, and the node that sets it
ROOT_OF_TWO = root_up(2)
_A_LITTLE = 1 + Fraction(1, 2**40)  # for the rounding of a norm that is as large as it can be
_NOTHING = Fraction(1, 2**4096)  # a slope that is nothing for any float
_NUMBERS = 1 << 23  # that a batch of activations may hold at once
_BATCH = 256
_PER_IMAGE, _PER_PAIR = 200_000, 200_000  # multiplications that a logit, or a pair of classes, costs in fractions
_PER_PADDED = 500  # that a number of a padded input costs
# In multiplications: an input among many in fractions, here and where errors are added up; an entry of a set, in memory as
# well, where it has four bytes; adding to a sum, or climbing to another base.
_PER_INPUT, _PER_ENTRY, _PER_SUM = 1_000_000, 1_000, 50_000


def examine(file: Path, model: Path, images: Path | None = None, unlimited: bool = False) -> str:
    """Return what was proved, in one line. Raise `Invalid` or `Malformed` otherwise."""
    certificate, listed = files.read_certificate(file)
    tensors = files.read_model(model)
    pictures = None if images is None else files.read_images(images, certificate.input_shape)
    size = file.stat().st_size + sum(t.nbytes for t in tensors.values()) + (0 if pictures is None else pictures.nbytes)
    claimed, digest = certificate.weights_sha256, files.weights_sha256(tensors)
    Invalid.unless(
        claimed == digest,
        f"weights_sha256 is {claimed!r:.70}, but the model's weights have {digest!r}: it is of other weights.",
    )
    network = assemble(certificate, tensors, Budget(size, unlimited))
    require_claims(network)
    require_pair_constants(network)
    largest = require_error_terms(network)
    needed, found = [ASSUMPTION] * any(KINDS[node.kind].assumes for node, _ in network), [*certificate.assumptions]
    Invalid.unless(found == needed, f"assumptions are {found!s:.200}, but the proof needs {needed}.")
    return _summarise(certificate, *require_images(network, listed, pictures, largest))


# Constants along the graph, see Note [Relations] ---------------------------------------------------------------------


@dataclass(frozen=True)
class Relation:
    """See Note [Relations]. Entries are numbers of the flattened base, in the order of an exact value; None is all."""

    base: str
    factor: Fraction = ONE
    entries: Integers | None = None
    exact: bool = True


@dataclass(frozen=True)
class Relations:
    """Of every value that was added, the constant and the relation to its base; `takes` says how often each is taken."""

    takes: Counter[str]
    shapes: dict[str, Shape]
    budget: Budget
    constants: dict[str, Fraction] = field(default_factory=lambda: {INPUT: ONE})
    _of: dict[str, Relation] = field(default_factory=lambda: {INPUT: Relation(INPUT)})
    _links: dict[str, tuple[Relation, int]] = field(default_factory=dict)  # of a base to the one before, and its depth

    def add(self, node: Node, step: Step) -> None:
        relation = self._of[node.inputs[0]] if step.joins is None else self._join(node, step.joins)
        # Nobody meets at a base that is taken once.
        if step.selects and node.lipschitz == 1 and relation.exact and self.takes[relation.base] > 1:
            self.budget.spend(prod(step.shape) * _PER_ENTRY, node)
            entries = relation.entries
            if entries is None:
                shape = self.shapes[relation.base]
                entries = np.arange(prod(shape), dtype=np.int32).reshape(shape)
            relation = replace(relation, entries=step.apply(entries[None])[0])
        else:
            relation = replace(relation, factor=trim(relation.factor * node.lipschitz), exact=False)
        self.constants[node.name] = trim(relation.factor * self.constants[relation.base])
        if self.takes[node.name] > 1:
            self._links[node.name] = relation, self._depth(relation.base) + 1
            relation = Relation(node.name)
        self._of[node.name] = relation

    def _depth(self, base: str) -> int:
        return self._links[base][1] if base in self._links else 0

    def _join(self, node: Node, how: str) -> Relation:
        relations = [self._of[name] for name in node.inputs]
        self.budget.spend(len(relations) * _PER_INPUT, node)
        while len({relation.base for relation in relations}) > 1:
            self.budget.spend(len(relations) * _PER_SUM, node)
            deepest = max(self._depth(relation.base) for relation in relations)
            relations = [self._climb(r, node) if self._depth(r.base) == deepest else r for r in relations]
        base = relations[0].base
        largest, total, entries, disjoint = self._overlap(relations, prod(self.shapes[base]), node)
        if how == "sum" and not disjoint:
            factor = add_up(relation.factor for relation in relations)
        else:
            factor = root_up(total if how == "sum" else largest)
        return Relation(base, trim(factor), entries, exact=False)

    def _climb(self, relation: Relation, node: Node) -> Relation:
        link, _ = self._links[relation.base]
        entries = link.entries
        if link.exact and entries is not None and relation.entries is not None:
            self.budget.spend(relation.entries.size * _PER_ENTRY, node)
            entries = entries.ravel()[relation.entries]
        return Relation(link.base, trim(relation.factor * link.factor), entries, exact=False)

    def _overlap(
        self, relations: list[Relation], size: int, node: Node
    ) -> tuple[Fraction, Fraction, Integers | None, bool]:
        """Return the largest sum of squares over an entry, the sum of all, the union, and whether the sets are disjoint.

        Entries that are in the same sets have the same number in `group`, and `sums` has what they add up to.
        """
        everywhere = add_up(r.factor**2 for r in relations if r.entries is None)
        group, sums, members, union = np.zeros(1, np.int64), [Fraction(0)], 0, np.zeros(size, bool)
        for relation in relations:
            if relation.entries is None:
                members += size
                continue
            self.budget.spend(size * _PER_ENTRY, node)
            inside = np.zeros(size, bool)
            inside[relation.entries] = True
            union |= inside
            members += int(inside.sum())
            pairs = 2 * group + inside
            present = np.flatnonzero(np.bincount(pairs))
            self.budget.spend(len(present) * _PER_SUM, node)
            group, square = np.searchsorted(present, pairs), relation.factor**2
            sums = [trim(sums[pair // 2] + pair % 2 * square) for pair in present.tolist()]
        full = union.all() or any(r.entries is None for r in relations)
        entries = None if full else np.flatnonzero(union).astype(np.int32)
        disjoint = members == (size if entries is None else entries.size)
        return everywhere + max(sums), add_up(r.factor**2 for r in relations), entries, disjoint


# The network ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """The nodes in their places, by name, with the shapes of their values and their relations to each other.

    fused : circular pads that are bounded, and round, together with the convolution after them
    """

    certificate: Certificate
    budget: Budget
    nodes: dict[str, Node]
    steps: dict[str, Step]
    shapes: dict[str, Shape]
    relations: Relations
    fused: set[str]

    def __iter__(self) -> Iterator[tuple[Node, Step]]:
        return zip(self.nodes.values(), self.steps.values(), strict=True)

    def run(self) -> Iterator[tuple[Node, Step, set[str]]]:
        """Yield the nodes with the values that nobody takes after them: all together may be too many to keep."""
        last = {before: node for node, _ in self for before in node.inputs}
        for node, step in self:
            yield node, step, {before for before in node.inputs if last[before] is node}


def assemble(certificate: Certificate, tensors: dict[str, Tensor], budget: Budget) -> Network:
    """Put every node in its place, with the weights that the model holds for it. Every node and weight must be used."""
    names = Counter([INPUT, *(node.name for node in certificate.nodes)])
    twice, times = names.most_common(1)[0]
    Malformed.unless(times == 1, f"Expected each layer once. Got {twice!r:.60} again.")
    nodes = {node.name: node for node in certificate.nodes}
    settings = {name: _read_settings(node) for name, node in nodes.items()}
    taken_by: dict[str, str] = {before: name for name, node in nodes.items() for before in node.inputs}
    takes = Counter(before for node in nodes.values() for before in node.inputs)
    shapes = {INPUT: certificate.input_shape}
    network = Network(certificate, budget, nodes, {}, shapes, Relations(takes, shapes, budget), set())
    used, size = set[str](), prod(certificate.input_shape)
    most = f"at most {LARGEST_ACTIVATION} numbers, the limit"
    Malformed.unless(size <= LARGEST_ACTIVATION, f"Expected an input of {most}. Got {size}.")
    for name, node in nodes.items():
        missing = [before for before in node.inputs if before not in shapes]
        Malformed.unless(not missing, f"Expected {node} after its inputs. Got {missing!s:.60}, of no node before it.")
        reached = tuple(shapes[before] for before in node.inputs)
        place = Place(node, settings[name], reached, tensors, used, ARITHMETICS[certificate.arithmetic], budget)
        following = taken_by[name] if takes[name] == 1 and name != certificate.output else name
        if _pads_circularly(node, nodes[following], settings[following]):
            network.fused.add(name)
            settings[following] |= {"padding": settings[name]["padding"], "padding_mode": "circular"}
            step = Step(place.shape, 1, lambda x: x)
        else:
            step = KINDS[node.kind].make(place)
        place.spend(100 * (prod(place.shape) + prod(step.shape)))
        network.steps[name], shapes[name] = step, step.shape
        network.relations.add(node, step)
    unused = [name for name in tensors if name not in used]
    Invalid.unless(not unused, f"the model holds {min(unused, default='')}, which no layer of the certificate uses.")
    idle = [str(node) for name, node in nodes.items() if not takes[name] and name != certificate.output]
    Malformed.unless(not idle, f"Expected each node to be used. Got {''.join(idle[:1])}, whose value goes nowhere.")
    output, classes = certificate.output, certificate.classes
    Malformed.unless(name == output, f"Expected the last node to be the output. Got {output!r:.60}.")
    fits = step.shape == (classes,)
    Malformed.unless(fits, f"Expected layers that give {classes} logits. Got shape {list(step.shape)}.")
    return network


def _read_settings(node: Node) -> Json:
    kind = KINDS.get(node.kind)
    if kind is None:
        got = f"{node.kind!r:.60} (layer {node.name:.60})"
        raise Malformed(f"Expected a kind of layer that has a known bound. Got {got}.")
    given, least = len(node.inputs), kind.inputs.start
    expected = f"{least} inputs{' or more' if len(kind.inputs) > 1 else ''}"
    Malformed.unless(given in kind.inputs, f"Expected {node} to have {expected}. Got {given}.")
    return files.record(dict, kind.settings)(kind.defaults | node.settings, str(node))


def _pads_circularly(node: Node, following: Node, settings: Json) -> bool:
    """Whether a node is a circular pad directly in front of a convolution without padding: the two are bounded as one."""
    same = node.kind.startswith("CircularPad") and following.kind == f"Conv{node.kind[-2:]}"
    return same and not np.any(settings["padding"])


def require_claims(network: Network) -> None:
    """Prove every node's constant."""
    for node, step in network:
        if node.lipschitz**2 >= step.square:
            continue
        reason = f"its constant is {show(root_up(step.square))}"
        if step.prove is not None:
            if (estimate := step.prove()) is None:
                continue
            reason = f"no bound below about {estimate!r} could be proved"
        shapes = ", ".join(str(list(network.shapes[before])) for before in node.inputs)
        claim = f"{node} claims a constant of {show(node.lipschitz)} for an input of shape {shapes}"
        raise Invalid(f"{claim}, but {reason}.")


def require_pair_constants(network: Network) -> None:
    """Prove the network's constant and those of the pairs.

    logit_i − logit_j has at most √2 times the network's constant, and ‖w_i − w_j‖ times that of all but the last layer.
    Either will do. Squares are compared, exactly; but first with distances in floating point, enlarged by γ_{n+4}: two
    rounded operations per term, n sums, the root's square; and by twice the smallest normal number times n.
    """
    certificate, claimed = network.certificate, network.certificate.lipschitz
    whole, rows = network.relations.constants[certificate.output], network.steps[certificate.output].matrix
    Invalid.unless(claimed >= whole, f"lipschitz is {show(claimed)}, less than the product of the layers' constants.")
    network.budget.spend(certificate.classes**2 * _PER_PAIR, "pair_constants")
    if rows is not None:
        rest = network.relations.constants[network.nodes[certificate.output].inputs[0]] ** 2
        room = 1 + Fraction(rows.shape[1] + 8, 2**53 - rows.shape[1] - 8)
        tiny = rows.shape[1] * 2 * ARITHMETICS["float64"].smallest
    for i, constants in enumerate(certificate.pair_constants):
        squares = None
        for j, claimed in enumerate(constants):
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
                network.budget.spend(rows.shape[1] * 5_000, "the pair_constants")
                if claimed**2 >= squared_distance(rows[i], rows[j]) * rest:
                    continue
            raise Invalid(f"the pair constant of classes {i} and {j}, {show(claimed)}, is too small.")


# The error of computed logits ----------------------------------------------------------------------------------------
# Norms that are affine in the norm of the input are arrays (offset, slope) of fractions.


def _affine(offset: Fraction | int, slope: Fraction | int = 0) -> Integers:
    return np.array([Fraction(offset), Fraction(slope)], object)


def _join(norms: list[Integers], how: str | None) -> Integers:
    if how is None:
        return norms[0]
    parts = zip(*norms, strict=True)
    if how == "sum":
        return np.array([add_up(part) for part in parts], object)
    return np.array([root_up(add_up(number**2 for number in part)) for part in parts], object)


def forward_error(network: Network, arithmetic: Arithmetic) -> tuple[Integers, Largest]:
    """Return how far computed logits can lie from the exact ones, and how large inputs may be, and for which node.

    Two norms are followed through the nodes, see Note [Sizes] in `kinds`: of exact values, and of the error of computed
    ones, whatever the order of summation, as long as nothing overflows. Those of several inputs are added where the values
    are; where they stand side by side, Minkowski's inequality joins them: the root of the sum of squares of both parts.
    """
    sizes, errors, largest = {INPUT: _affine(0, 1)}, {INPUT: _affine(0)}, (1 / _NOTHING, "")
    for node, step in network:
        size, error = (_join([norms[before] for before in node.inputs], step.joins) for norms in (sizes, errors))
        gain = ONE if node.name in network.fused else node.lipschitz
        sizes[node.name], errors[node.name] = size * gain + _affine(step.at_zero), error * gain
        if step.rounding is not None:
            terms, relative = step.rounding.terms, step.rounding.terms * arithmetic.unit
            bounded = relative < 1
            Invalid.unless(bounded, f"{node} adds up {terms} terms, for which {arithmetic.name} has no error bound.")
            relative = relative / (1 - relative)
            absolute = (size + error) * step.rounding.amplification + _affine(step.rounding.offset)
            underflow = _affine(step.rounding.underflow * arithmetic.smallest * root_up(prod(step.shape)))
            errors[node.name] = errors[node.name] + absolute * relative + underflow
            if step.rounding.largest is not None:
                factor, constant = step.rounding.largest
                absolute = (size + error) * factor + _affine(constant)
            offset, slope = absolute * (1 + relative) + underflow
            largest = min(largest, ((arithmetic.largest - offset) / max(slope, _NOTHING), str(node)))
        for norms in (sizes, errors):
            norms[node.name] = np.array([trim(part) for part in norms[node.name]], object)
    return errors[node.name], largest


def require_error_terms(network: Network) -> Largest:
    """Prove the error of the logits; return how large inputs may be."""
    certificate = network.certificate
    (offset, slope), largest = forward_error(network, ARITHMETICS[certificate.arithmetic])
    for name, needed in (("error_offset", offset), ("error_slope", slope)):
        claimed = getattr(certificate, name)
        little = f"{name} is {show(claimed)}, less than the {show(needed)} that rounding may cause"
        Invalid.unless(claimed >= needed, f"{little}.")
    return largest


# Images --------------------------------------------------------------------------------------------------------------


def require_images(
    network: Network, images: Iterator[Image], pictures: Tensor | None, largest_input: Largest
) -> tuple[int, int, int | None]:
    """Check every image; return how many there are, how many have a radius above 0, and how many were recomputed."""
    certificate = network.certificate
    own_error, _ = forward_error(network, ARITHMETICS["float64"])  # of what is computed here
    largest = max(abs(Fraction(limit)) for limit in certificate.input_range)
    largest_square = prod(certificate.input_shape) * largest**2 * _A_LITTLE
    seen: set[int] = set()  # of the indices from `first` on; those before it have all been seen
    first = count = certified = replayed = 0
    kept = _most_kept(network)
    size = max(1, min(_BATCH, _NUMBERS // kept))
    if pictures is not None:
        network.budget.require_memory(kept, "recomputing the logits")
    while batch := list(islice(images, size)):
        network.budget.spend(len(batch) * certificate.classes * _PER_IMAGE, "the images")
        for image in batch:
            where, norm = f"image {image.index}", image.input_norm
            Invalid.unless(image.index >= first and image.index not in seen, f"{where} occurs twice.")
            seen.add(image.index)
            while first in seen:  # where they are in order, memory does not grow with their number
                seen.remove(first)
                first += 1
            Invalid.unless(norm**2 <= largest_square, f"{where}: no input in the range has the norm {show(norm)}.")
            _require_radius(image, certificate, largest_input)
            certified += image.radius > 0
        count += len(batch)
        if pictures is not None and (held := [image for image in batch if image.index < len(pictures)]):
            steps = network.steps.values()
            work = sum(_PER_PADDED * step.padded + (step.work or 140 * prod(step.shape)) for step in steps)
            network.budget.spend(len(held) * work, "recomputing the logits")
            _require_logits(held, network, pictures, own_error)
            replayed += len(held)
    return count, certified, None if pictures is None else replayed


def _most_kept(network: Network) -> int:
    """Return how many numbers must be kept at once to recompute the logits of one image."""
    sizes = {name: prod(shape) for name, shape in network.shapes.items()}
    kept = most = sizes[INPUT]
    for node, step, done in network.run():
        kept += sizes[node.name]
        most = max(most, kept + step.padded)
        kept -= sum(sizes[before] for before in done)
    return most


def _require_radius(image: Image, certificate: Certificate, largest: Largest) -> None:
    """The computed margin, less what rounding may do to it at the centre and in the ball, exceeds constant·radius."""
    best = max(image.logits)
    where, found, prediction = f"image {image.index}", image.logits.index(best), image.prediction
    right = image.logits[prediction] == best
    Invalid.unless(right, f"{where}: class {found} has the largest logit, not class {prediction}.")
    if image.radius == 0:
        return
    Invalid.unless(image.logits.count(best) == 1, f"{where}: the largest logit is tied, so there is no prediction.")
    (limit, node), name = largest, certificate.arithmetic  # the network is run on every input within the radius
    finite = image.input_norm + image.radius <= limit
    Invalid.unless(finite, f"{node}: sums may overflow in {name} within the certified radii.")
    rounding = 2 * certificate.error_offset + certificate.error_slope * (2 * image.input_norm + image.radius)
    _require_margins(image, image.logits, rounding, certificate, "the margin")


def _require_margins(
    image: Image, logits: Sequence[float], rounding: Fraction | float, certificate: Certificate, what: str
) -> None:
    """Require that the margins to all other classes carry the radius, where logits err by `rounding` in the L2 norm."""
    constants = certificate.pair_constants[image.prediction]
    least = Fraction(logits[image.prediction]) - ROOT_OF_TWO * rounding
    for j, logit in enumerate(logits):
        if j != image.prediction and not least - Fraction(logit) > constants[j] * image.radius:
            raise Invalid(f"image {image.index}: {what} to class {j} does not carry a radius of {show(image.radius)}.")


def _require_logits(images: list[Image], network: Network, pictures: Tensor, own_error: Integers) -> None:
    """Compute norms and logits of images from their pixels: bytes over 255, as the arithmetic holds them."""
    certificate, (low, high) = network.certificate, network.certificate.input_range
    stored = np.stack([pictures[image.index] for image in images])
    pixels = ARITHMETICS[certificate.arithmetic].hold(stored / 255 if stored.dtype == np.uint8 else stored)
    values = {INPUT: pixels}
    with np.errstate(all="ignore"):
        for node, step, done in network.run():
            values[node.name] = step.apply(*(values[before] for before in node.inputs))
            for before in done:
                del values[before]
    for image, x, logits in zip(images, pixels, values[certificate.output].tolist(), strict=True):
        where, claimed = f"image {image.index}", image.input_norm
        inside = bool(((x >= low) & (x <= high)).all())
        Invalid.unless(inside, f"{where}: a pixel lies outside of the input range from {low!r} to {high!r}.")
        square = sum_of_squares(x)
        Invalid.unless(claimed**2 >= square, f"{where}: its norm is larger than input_norm, {show(claimed)}.")
        norm = root_up(square)
        allowed = 2 * (certificate.error_offset + certificate.error_slope * norm)  # each errs by half of that
        for j, (logit, found) in enumerate(zip(image.logits, logits, strict=True)):
            if not np.isfinite(found) or abs(Fraction(logit) - Fraction(found)) > allowed:
                raise Invalid(f"{where}: the network gives {found!r} for logit {j}, not {logit!r}.")
        if image.radius > 0:
            # The radius, proved from these logits: the file's may differ from the exact ones by more than they ought to.
            in_the_ball = certificate.error_offset + certificate.error_slope * (norm + image.radius)
            rounding = own_error[0] + own_error[1] * norm + in_the_ball
            _require_margins(image, logits, rounding, certificate, "the network's margin")


def _summarise(certificate: Certificate, count: int, certified: int, replayed: int | None) -> str:
    low, high = certificate.input_range
    shape = "×".join(str(size) for size in certificate.input_shape)
    assumed = f", assuming that {ASSUMPTION}" if certificate.assumptions else ""
    proved = (
        f"Lipschitz constant at most {show(certificate.lipschitz)} in the L2 norm from {shape} inputs to "
        f"{certificate.classes} logits, and {certified} of {count} images with a proved radius, for "
        f"inputs from {low!r} to {high!r}, run in {certificate.arithmetic}{assumed}"
    )
    order = "that the model applies the layers as they are listed"
    if replayed is None:
        return f"{proved}. Not checked without --images: the images' norms and logits, and {order}."
    unseen = count - replayed
    rest = f"{unseen} images that the file does not hold, " if unseen else ""
    return f"{proved}; {replayed} recomputed from their pixels; not checked: {rest}labels, {order} for other inputs."
