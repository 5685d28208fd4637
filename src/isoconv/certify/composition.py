"""What is proved of a whole network, composed from its nodes: its Lipschitz constants and the rounding of its outputs.

Note [Composition]
A network is a graph of nodes. The constant of a node's value, as a function of the network's input, is at most the
node's own bound times that of the value it takes. Each node is bounded from the weights that it holds, at the size of
the image that reaches it, in float64 and outwards (`isoconv.linalg.bounds`). A module of which nothing is known is an
error that names it, never a silent 1. What is known of each kind stands in `isoconv.certify.rules`; what follows where
values meet again, in Note [Relations] of `isoconv.nn.graph`.

Note [Forward error]
Let h be the exact input of a node, ĥ what was computed for it, and ‖ĥ − h‖ ≤ E, ‖h‖ ≤ H. A layer with matrix A, bias b
(norm B over all positions), Lipschitz bound L and sums of n products gives, whatever the order of summation and with or
without fused multiply-add, |computed − exact| ≤ γ_{n+1}(|A||ĥ| + |b|) in every entry, plus what underflows, so

    E' = L·E + γ_{n+1}(‖|A|‖(H + E) + B) + √outputs·2(n + 1)·tiny,        H' = L·H + B,

with ‖|A|‖ ≤ √(largest row sum · largest column sum of |A|). Activations that choose among their inputs, padding,
reordering and max-pooling do not round: E' = L·E, H' = L·H. For the other kinds see Note [Rounding of kinds]. A sum takes
ΣH_k and ΣE_k for H and E, and then rounds as a layer with n = (its inputs) − 2 and ‖|A|‖ = 1. A concatenation takes
√ΣH_k² and √ΣE_k²; for affine functions √Σ(a_k + b_k‖x‖)² ≤ √Σa_k² + √Σb_k²·‖x‖. Beginning with H = ‖x‖, E = 0, all stay
affine functions of ‖x‖. So the logits err by at most α + β‖x‖, for every input x.

This takes a convolution for sums of products, the weights and the inputs as they are: no Winograd, no FFT, no TF32;
`isoconv.certify` switches the libraries off that may choose them.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from isoconv.certify.graph import naming, nodes_of, plain_network
from isoconv.certify.rules import ARITHMETICS, Node
from isoconv.errors import IsoconvError, require
from isoconv.linalg.rounding import add_up, div_up, mul_up, sqrt_up, up
from isoconv.nn.graph import INPUT, Relation, meet, relate

#: The error bound is for inputs up to this norm: beyond it something might overflow.
LARGEST_NORM = 2.0**30
T = TypeVar("T")


def compose(
    nodes: Sequence[Node], bounds: Sequence[float], start: T, step: Callable[[Node, float, list[T]], T]
) -> dict[str, T]:
    """Return what holds of each node's value by its name, `start` holding of the network's input.

    This is the one place that follows the graph. `step` takes a node, its own bound and what holds of each of its inputs.
    """
    values = {INPUT: start}
    for node, bound in zip(nodes, bounds, strict=True):
        with naming(node):
            values[node.name] = step(node, bound, [values[source] for source in node.inputs])
    return values


# Lipschitz constants ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerBound:
    """One module's share: its name in the plain model, its kind, and the bound of its own Lipschitz constant.

    `claimed`: the bound is what the registered rule of its kind says, a user's claim, and not proved by isoconv.
    """

    name: str
    kind: str
    bound: float
    claimed: bool = False


@dataclass(frozen=True)
class LipschitzBound:
    """The bound of the network, rounded up, and what it consists of."""

    value: float
    layers: tuple[LayerBound, ...]

    @property
    def claimed(self) -> tuple[str, ...]:
        """The layers whose bounds are the user's claims; the whole is proved if there are none."""
        return tuple(layer.name for layer in self.layers if layer.claimed)


def lipschitz_bound(model: nn.Module, input_shape: Sequence[int]) -> LipschitzBound:
    """Return a rigorous upper bound of the L2 Lipschitz constant of `plain(model)` in evaluation, for `input_shape`.

    The bound is for the exact function that the weights define; `Certifier` adds the rounding of the network that runs.

    `input_shape` is without the batch: (C, H, W), (C, L) or (features,). Works on any network whose forward can be traced
    (see `isoconv.plain`): convolutions, linear layers, MaxMin, GroupSort, ReLU and other activations, fixed scaling,
    padding, pooling, flatten, (un)shuffle, nearest-neighbour upsampling, batch normalisation, and modules with a rule from
    `register`; sums, concatenations, slices and reshapes of their values. Anything else is refused by name.
    """
    nodes = nodes_of(plain_network(model, input_shape), input_shape)
    return describe_bounds(nodes, [node_bound(node) for node in nodes])


@torch.no_grad()
def node_bound(node: Node) -> float:
    """Return the L2 bound of one node."""
    with naming(node):
        bound = float(node.rule.lipschitz(node))
        require(bound >= 0, "a bound of at least 0", bound)
    return bound


def network_constants(nodes: Sequence[Node], bounds: Sequence[float]) -> dict[str, float]:
    """Return the constant of each node's value as a function of the input, by name: Note [Relations]."""
    taken = Counter(source for node in nodes for source in node.inputs)
    constants, links, joins = {INPUT: 1.0}, dict[str, Relation](), any(node.rule.joins for node in nodes)

    def step(node: Node, bound: float, inputs: list[Relation]) -> Relation:
        relation = relate(node.module, bound, meet(inputs, links), node.rule.joins)
        base = relation.base
        constants[node.name] = relation.factor if base == INPUT else up(relation.factor * constants[base])
        if not joins or taken[node.name] < 2:
            return relation
        links[node.name] = relation
        return Relation.of_base(node.name, node.output_shape)

    shape = nodes[0].input_shape
    start = Relation.of_base(INPUT, shape) if joins else Relation(INPUT, shape.numel())
    compose(nodes, bounds, replace(start, factor=up(1.0)), step)
    return constants


def describe_bounds(nodes: Sequence[Node], bounds: Sequence[float]) -> LipschitzBound:
    layers = (LayerBound(n.name, n.kind, b, n.rule.settings is None) for n, b in zip(nodes, bounds, strict=True))
    return LipschitzBound(network_constants(nodes, bounds)[nodes[-1].name], tuple(layers))


@torch.no_grad()
def constant_in_norm(nodes: Sequence[Node], p: float) -> float | None:
    """Return a bound of the network's constant from the p-norm to the p-norm, p = 1 or ∞; None if a kind has none."""
    norms = [node.rule.norms(node) for node in nodes if node.rule.norms is not None]
    if len(norms) < len(nodes):
        return None

    def step(node: Node, bound: float, inputs: list[float]) -> float:
        """Add the constants of several inputs; the largest norm of a concatenation is the largest of its parts."""
        largest = node.rule.joins is None or (node.rule.joins == "concat" and p != 1)
        return up((max(inputs) if largest else add_up(*inputs)) * bound)

    bounds = [one if p == 1 else infinity for one, infinity in norms]
    return compose(nodes, bounds, up(1.0), step)[nodes[-1].name]


# Rounding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardError:
    """‖computed logits − exact logits‖₂ ≤ offset + slope·‖x‖₂ for every input x of norm at most LARGEST_NORM.

    On the way there the norm of a value is bounded so too. Both numbers are non-negative, and rounded up.
    """

    offset: float
    slope: float

    def times(self, factor: float) -> "ForwardError":
        return ForwardError(mul_up(self.offset, factor), mul_up(self.slope, factor))

    def plus(self, other: "ForwardError") -> "ForwardError":
        return ForwardError(add_up(self.offset, other.offset), add_up(self.slope, other.slope))

    def shifted(self, offset: float) -> "ForwardError":
        return ForwardError(add_up(self.offset, offset), self.slope)


_Sizes = tuple[ForwardError, ForwardError]  # of a value's norm, and of its error
_INFINITE = ForwardError(math.inf, math.inf)


@torch.no_grad()
def forward_error(nodes: Sequence[Node], bounds: Sequence[float], arithmetic: str = "float64") -> ForwardError:
    """Return the error of the network of `nodes`, whose Lipschitz constants are at most `bounds`, run in `arithmetic`.

    Infinite where a number on the way might overflow.
    """
    unit, tiny, huge = ARITHMETICS[arithmetic]

    def step(node: Node, bound: float, inputs: list[_Sizes]) -> _Sizes:
        """Return the recursion of Note [Forward error]."""
        if any(error is _INFINITE for _, error in inputs):
            return inputs[0][0], _INFINITE
        size, error = (_join(node, part) for part in zip(*inputs, strict=True))
        if node.rule.rounding is None:
            raise IsoconvError(f"Expected modules whose rounding is known. Got {node.place}, whose rule has none.")
        rounding = node.rule.rounding(node, bound, arithmetic)
        if rounding.terms is None:
            size = size.times(bound)
            return size.shifted(rounding.constant) if rounding.constant else size, error.times(bound)
        relative = up((rounding.terms + 1) * unit)
        relative = div_up(relative, math.nextafter(1 - relative, 0.0))
        require(0 < relative < 1, f"sums short enough for {arithmetic}", f"{rounding.terms} terms")
        underflow = mul_up(sqrt_up(float(node.output_shape.numel())), float(2 * (rounding.terms + 1)), tiny)
        underflow = add_up(underflow, rounding.vanished) if rounding.vanished else underflow
        sums = size.plus(error).times(rounding.absolute).shifted(rounding.constant)
        if not (sums.offset + sums.slope * LARGEST_NORM) * rounding.divisor < huge:  # above all partial sums
            return size, _INFINITE
        rounded = sums.times(relative).shifted(underflow)
        return size.times(bound).shifted(rounding.constant), error.times(bound).plus(rounded)

    return compose(nodes, bounds, (ForwardError(0.0, 1.0), ForwardError(0.0, 0.0)), step)[nodes[-1].name][1]


def _join(node: Node, parts: Sequence[ForwardError]) -> ForwardError:
    """Return a bound of the norm of a sum, or of a concatenation, from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    sides = [part.offset for part in parts], [part.slope for part in parts]
    if node.rule.joins == "sum":
        return ForwardError(*(add_up(*side) for side in sides))
    return ForwardError(*(sqrt_up(add_up(*(up(value * value) for value in side))) for side in sides))
