"""What is known of each kind of module: one `Rule` per kind, from which everything else is derived.

The network's Lipschitz bound, the rounding error of its logits, its constants in other norms, what a certificate file
says of it and what is refused all follow from these rules. How a node's settings are spelt out in a certificate stands in
`isoconv.certify.settings`. The independent checker has its own rules (`isoconv.check`).

Note [Kinds]
A rule is about one class exactly. For the kinds without weights the bounds are matters of counting and of slopes:

* A map whose outputs are each one of its inputs, or a constant, and that copies every input at most m times multiplies
  the norm by at most √m, and by exactly that if it copies one input m times: padding, nearest-neighbour upsampling.
* A maximum is 1-Lipschitz in what it looks at in the largest norm, so max-pooling has at most √m if a pixel lies in at
  most m windows.
* A function of each entry has the largest of its slopes: 1 for ReLU, ReLU6, Hardtanh, Abs, Tanh, Softsign; at most 1 for
  Sigmoid. Sorting is a permutation on either side of a tie.
* Average pooling is a convolution of each channel with equal weights.
* ChannelShift permutes its inputs; PositionBias and Translate add a constant; HalfAbs has slopes ±1.
* The norm over positions obeys
  |‖a‖ − ‖b‖| ≤ ‖a − b‖ in every channel: constant 1 for p = 2 and, as ‖·‖₂ ≤ ‖·‖₁, for p = 1; √positions for p = ∞.
  Windows that do not overlap are as good.
* LayerCentering is the projection x − mean(x), symmetric: constant 1, and 1 − 1/n + (n − 1)/n < 2 for p = 1 and ∞.
  BatchCentering in evaluation adds a constant to each channel.
* Householder maps a pair z to z where vᵀz ≥ 0 and to its mirror image elsewhere. Both are orthogonal maps and agree where
  vᵀz = 0, so a segment that crosses that line is not lengthened: constant 1. For p = 1 and ∞ the entries of a column or row
  are |cos| + |sin| ≤ √2.
* Batch normalisation in evaluation is y = α(x − μ) + β for each channel, α = γ/√(v + ε): the largest |α|. Normalize
  divides by the channel's σ: 1/(the least σ). Every dropout is the identity in evaluation.
* Smooth functions of each number: Note [Slopes] in `isoconv.certify.activations`. Average pooling whose divisor varies,
  adaptive pooling and linear interpolation: Note [Separable maps] in `isoconv.certify.windows`.
* ConvexPotential2d, x − Wᵀ·relu(Wx + b): max(1, ‖W‖² − 1), by Note [Convex potential] in `isoconv.nn.potential`; for p = 1
  and ∞ at most 1 + the product of W's largest row and column sums.
* Softmax p of some numbers has the Jacobian diag(p) − ppᵀ, symmetric, whose rows have absolute sums 2pᵢ(1 − pᵢ) ≤ ½:
  constant ½ in every norm.

Note [Rounding of kinds]
Each rule says how its module rounds, as a `Rounding`: for the computed input ĥ, ‖computed f(ĥ) − f(ĥ)‖ is at most

    γ_{n+1}·(A·‖ĥ‖ + c) + √outputs·2(n + 1)·tiny,        ‖f(h)‖ ≤ L·‖h‖ + c for every h,

with n, A and c the rounding's `terms`, `absolute` and `constant`; γ_k = ku/(1 − ku).

* Convolution, linear layer, average pooling: sums of n products with the weights' absolute values, plus a bias of norm c.
  Average pooling divides at the end; that is the (n + 1)st rounding.
* Scale: one product, n = 0. LeakyReLU: one product, with a slope that float32 may have rounded, n = 1.
* What only chooses, moves or repeats numbers does not round. Hardtanh and constant padding choose among their inputs and
  constants: ‖f(h)‖ ≤ L·‖h‖ + ‖f(0)‖, and ‖f(0)‖ is at most c = √outputs·|constant|. In float32 the constants must be
  float32 numbers, or another function would be computed.
* PositionBias, Translate: one sum, n = 0, c the norm of the bias over all that it is added to.
* Add of m values: m − 1 sums, in any order, so n = m − 2, of the sum of the values' absolute values.
* L2NormPool2d adds up n squares, in any order, with fused multiply-add or without, in this precision or a wider one, and
  takes the root: that is what torch.linalg.vector_norm does, and what an exported graph says. (Scaling the numbers first,
  as BLAS does, would round more often; neither does.) A square passes through at most n roundings, and all are positive,
  so the computed sum is s(1 + θ) + e with |θ| ≤ γ_n. Underflow makes e: a square or a sum that vanishes, or is flushed to
  zero, loses at most tiny, so |e| ≤ 2n·tiny. As |√a − √b| ≤ √|a − b| and |√(1 + θ) − 1| ≤ |θ|, the root is off by at most
  γ_n√s + √|e|, and rounding it makes that γ_{n+1}√s + √(4n·tiny). The roots' norm is that of the input: A = 1. Squares
  overflow from √huge on: inputs have to stay below that.
* LayerCentering: a sum of n numbers, a product with 1/n, itself rounded, and a difference: at most n + 2 roundings of each
  term, and one of h. The error is at most γ_{n+2}(|ĥ| + mean|ĥ|), and the mean's norm is at most ‖ĥ‖: A = 2. Sums are at
  most n times larger than means.
* BatchCentering: mean − bias, and a difference: n = 1, c the norm of |mean| + |bias| over all positions.
* Householder, h − (min(vᵀh, 0)·(2/vᵀv))·v: vᵀh rounds twice, as does vᵀv, then the quotient, the product, that with v and
  the difference once each: 8 roundings, of |h| and of 2|v||v|ᵀ|h|/vᵀv, whose norm is at most 2‖h‖: A = 3. ‖v‖ must lie
  between 2⁻²⁰ and 2²⁰. Squares that vanish there change vᵀv by less than u/2 of itself: one rounding more, n = 8. What
  vanishes of vᵀh, 3·tiny at the most, is multiplied by 2/‖v‖, what vanishes of the next product by ‖v‖: together less than
  2²³·tiny in each output. Numbers on the way are at most 2²¹ times as large as h.
* Softsign h/(1 + |h|): the sum and the quotient round once each, so the relative error is at most 2u/(1 − u) ≤ γ_3, and
  |f(h)| ≤ |h|: n = 2, A = 1. It cannot underflow before h itself is smaller than u, where 1 + |h| = 1.
* Tanh and Sigmoid are within 8 units in the last place, 16u relative to the result, or within `tiny` where the result is
  subnormal. That is assumed of the library, not proved, and a certificate says so. |tanh h| ≤ |h|: n = 15, A = 1.
  sigmoid ≤ 1: n = 15, A = 0, c = √outputs.
* Batch normalisation. Libraries compute (x − μ)·α̂ + β, or x·α̂ + (β − μ·α̂), with α̂ = γ·(v + ε)^(−1/2) rounded. Rounding ε
  and the sum v + ε changes α by 1u to first order (halved by the root), the root, its reciprocal and the product with γ
  by 1u each: 4u. The first way adds 3 roundings on the path of x and μ, the second 2 on that of x and 3 on that of μ, and
  at most 2 on that of β. So all paths have at most 7 roundings, of terms that are at most |α||x|, |α||μ| and |β|, the
  second of which we count twice: the error is at most γ_8(|α|(|ĥ| + 2|μ|) + |β|). Where γ·(v + ε)^(−1/2) underflows, α̂ is
  off by u·tiny more at the most, which taking |α| + tiny for |α| covers eight times over. v + ε must be a normal number.
  n = 7, A = the largest of |α| + tiny, and c the norm of (|α| + tiny)·2|μ| + |β| over all positions; ‖f(0)‖ is below c.
* Normalize (x − μ)/σ: the difference and the quotient, or x/σ − μ/σ, or products with 1/σ: at most 4 roundings of terms
  up to (|x| + |μ|)/σ. n = 3, A = 1/σ, c the norm of |μ|/σ over all positions. A difference that is flushed to zero
  costs tiny/σ.
* Softmax exp(xᵢ − m)/Σ, m the largest of N numbers, tᵢ = m − xᵢ: rounding the difference changes a term by a relative
  u·tᵢ, exp by 40u (torch has a fast one in float32, of 20 units in the last place), and the sum by (N − 1)u and the
  mean of those, in which Σpᵢtᵢ = −Σpᵢ log pᵢ − log Σ ≤ log N. With the quotient, or the product with the sum's
  reciprocal, the errors add up to at most Σᵢ pᵢ(82u + uN + u·tᵢ + u·log N) ≤ (82 + N + 2·log N)u in absolute value, for
  which n = 2N + 90 has room. A = 0, c = √(number of sums).
* ConvexPotential2d: sums of n products and a bias, relu, which does not round, sums of m products, and a difference. On
  each path there are at most n + m + 2 roundings, of terms that add up to |ĥ| + |W|ᵀ(|W||ĥ| + |b|). With a ≥ max(1, ‖|W|‖)
  their norm is at most (1 + a²)‖ĥ‖ + a‖b‖: n + m + 1 terms, A = 1 + a², c = a‖b‖, which is above ‖f(0)‖. The hidden numbers
  are not larger. What vanishes of them, at most 2(n + 1)·tiny each, is multiplied by a.
* Smooth functions: Note [Rounding of curves] in `isoconv.certify.activations`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import isoconv.nn as ours
from isoconv.certify import settings
from isoconv.certify.activations import CURVES
from isoconv.certify.windows import (
    Pads,
    absolute_sums,
    axis_taps,
    convolution_bound,
    is_transposed,
    most_copies,
    separable_bound,
)
from isoconv.errors import require
from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums, matrix_norm_bound
from isoconv.linalg.rounding import add_up, div_up, mul_up, sqrt_up, up
from isoconv.nn.trace import OPAQUE, REFUSED

#: unit roundoff, smallest normal number, and a size far below the largest, of the arithmetics a network can be run in
ARITHMETICS = {"float64": (2.0**-53, 2.0**-1022, 2.0**1000), "float32": (2.0**-24, 2.0**-126, 2.0**120)}
#: what a certificate has to say of kinds whose rounding is not proved
ULP_ASSUMPTION = "elementary functions err by at most 8 units in the last place"


@dataclass(frozen=True)
class Node:
    """One module in its place in a network.

    `inputs` are the names of the nodes whose values it takes ("input" is the network's own input), `path` the prefix of
    its tensors in the state of the plain model, `settings` what it computes with beside them, spelt out for each axis.

    Circular padding and a convolution without padding behind it are bounded as one, and the convolution carries the bound:
    the padding is `merged`, with bound 1, and the convolution has its `circular` amounts, (before, after) per axis, and
    for `input_shape` what comes before both.
    """

    name: str
    module: Any  # an nn.Module, of a kind that has a rule
    inputs: tuple[str, ...]
    input_shape: torch.Size
    output_shape: torch.Size
    path: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    circular: Pads | None = None
    merged: bool = False

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    @property
    def place(self) -> str:
        return f"{self.kind} at {self.name}"

    @property
    def rule(self) -> "Rule":
        rule = RULES[type(self.module)]
        return replace(rule, lipschitz=_one, norms=_ones) if self.merged else rule


@dataclass(frozen=True)
class Rounding:
    """How a module rounds; see Note [Rounding of kinds]. Without `terms` it does not.

    divisor : what sums are divided by at the end, or how many times larger numbers get on the way
    vanished : what underflow may add, if it is more than the smallest normal numbers
    """

    terms: int | None = None
    absolute: float = 1.0
    constant: float = 0.0
    divisor: float = 1.0
    vanished: float = 0.0


@dataclass(frozen=True)
class Rule:
    """What is known of one kind of module.

    lipschitz : a node's bound in the L2 norm
    rounding : how it rounds, given its bound and the arithmetic; None: unknown, so its networks cannot be certified
    norms : its bounds for p = 1 and p = ∞; None: unknown
    settings : what a certificate says of a node; it refuses what cannot be said.
        None: the checker does not know this kind, so no certificate file is written
    image : whether it takes images alone, (channels, length) or (channels, height, width) as its name says
    tensors : the parameters and buffers that it may hold
    from_weights : whether the bound is computed from numbers, so that another way of computing finds another
    assumption : what its rounding takes for granted
    joins : "sum" or "concat" for a kind that takes several values; its bound is 1 with respect to each
    """

    lipschitz: Callable[[Node], float]
    rounding: Callable[[Node, float, str], Rounding] | None = None
    norms: Callable[[Node], tuple[float, float]] | None = None
    settings: Callable[[Node], dict[str, Any]] | None = None
    image: bool = False
    tensors: tuple[str, ...] = ()
    from_weights: bool = False
    assumption: str | None = None
    joins: str | None = None


def register(kind: type[nn.Module], rule: Rule) -> None:
    """Tell the certifier what is known of a module of your own. It holds for this class, not for its subclasses.

    The rule is your claim and is not proved. `lipschitz_bound` marks the layer as `claimed`, radii need a rule with
    `rounding`, and no certificate file is written, as the checker does not know the kind.
    """
    require(isinstance(kind, type) and issubclass(kind, nn.Module), "a class of modules to register a rule for", kind)
    free = rule.settings is None and RULES.get(kind, rule).settings is None
    require(free, "a rule without settings for a kind that has none yet", kind.__name__)
    RULES[kind] = rule
    OPAQUE.add(kind)


def require_rule(holds: bool, kind: type[nn.Module], name: str) -> None:
    parent = next((parent for parent in kind.__mro__[1:] if parent in RULES or parent in REFUSED), None)
    unknown = f"a subclass of {parent.__name__}, which may compute anything" if parent else "which has no rule"
    reason = REFUSED.get(kind, unknown)
    require(holds, "modules with a known Lipschitz constant", f"{kind.__name__} at {name}, {reason}")


# Bounds -----------------------------------------------------------------------------------------------------------


def _one(node: Node) -> float:
    return 1.0


def _root(count: int) -> float:
    return sqrt_up(float(count)) if count != 1 else 1.0


def _copies(node: Node) -> float:
    """Return √m for a map that copies a pixel m times at the most."""
    return _root(most_copies(node.module, node.input_shape))


def _max_pool(node: Node) -> float:
    """Return √m for the m windows, at most Π⌈k/s⌉, that a pixel lies in."""
    axes = zip(*(node.settings[name] for name in ("kernel_size", "stride", "dilation")), strict=True)
    return _root(math.prod(min(k, -(-((k - 1) * d + 1) // s)) for k, s, d in axes))


def _average_pool(node: Node) -> float:
    if not _divides_evenly(node.settings):
        return separable_bound(node)
    sizes = node.settings["kernel_size"]
    ones = torch.ones(1, 1, *sizes, dtype=torch.float64)
    bound = conv_norm_bound(ones, node.settings["stride"], node.input_shape[1:], "zeros")
    return div_up(bound, abs(float(node.settings["divisor_override"] or math.prod(sizes))))


def _divides_evenly(options: Mapping[str, Any]) -> bool:
    """Return whether average pooling divides every sum by the same number."""
    counted = not options["ceil_mode"] and (options["count_include_pad"] or not any(options["padding"]))
    return counted or options["divisor_override"] is not None


def _is_linear(node: Node) -> bool:
    """Return whether upsampling interpolates, instead of copying nearest neighbours."""
    return isinstance(node.settings["factors"][0], dict)


def _narrowest(node: Node) -> float:
    least = float(node.module.std.min())
    require(0 < least < math.inf and bool(node.module.mean.isfinite().all()), "finite means, stds above 0", least)
    return div_up(1.0, least)


def _gains(node: Node) -> list[float]:
    """Return upper bounds of |γ|/√(v + ε) of every channel of a batch normalisation."""
    norm = node.module
    weight = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
    gains = []
    for gamma, variance in zip(weight.double().tolist(), norm.running_var.double().tolist(), strict=True):
        total = math.nextafter(variance + norm.eps, 0.0)
        positive = variance >= 0 and 0 < total < math.inf and math.isfinite(gamma)
        require(positive, "finite weights and positive running variances", f"{gamma} and {variance}")
        gains.append(div_up(abs(gamma), math.nextafter(math.sqrt(total), 0.0)))
    return gains


def _reflection(node: Node) -> float:
    vectors = node.module.vectors.double()
    squares = vectors.reshape(2, -1).square().sum(0) if vectors.dim() == 1 else vectors.new_zeros(1)
    ordinary = bool((squares >= 2.0**-40).all() and (squares <= 2.0**40).all())
    require(ordinary, "one vector of length between 2⁻²⁰ and 2²⁰ for each pair", "others")
    return 1.0


def _potential(node: Node) -> float:
    norm = conv_norm_bound(node.module.weight, 1, tuple(node.input_shape[1:]), node.settings["padding_mode"])
    return max(1.0, up(mul_up(norm, norm) - 1))


def _ones(node: Node) -> tuple[float, float]:
    """Each output is an input or a constant, and no input is copied; or a function of one input with slopes up to 1."""
    return 1.0, 1.0


def _twice(node: Node) -> tuple[float, float]:
    """Return the L2 bound for p = 1 and ∞ too: of functions of each number, and of Softmax."""
    return node.rule.lipschitz(node), node.rule.lipschitz(node)


def _absolute_sums(node: Node) -> tuple[float, float]:
    """Return the largest column sum and the largest row sum of |A|, A a layer's matrix: its norms for p = 1 and ∞."""
    return largest_absolute_sums(node.module.weight)[::-1] if type(node.module) is nn.Linear else absolute_sums(node)


# Rounding ---------------------------------------------------------------------------------------------------------


def _exact(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding()


def _weighted(node: Node, bound: float, arithmetic: str) -> Rounding:
    (columns, rows), weight = _absolute_sums(node), node.module.weight
    terms = weight[:, 0].numel() // node.module.groups if is_transposed(node) else weight[0].numel()
    return Rounding(terms, sqrt_up(mul_up(rows, columns)), _norm_over_positions(node.module.bias, node))


def _average(node: Node, bound: float, arithmetic: str) -> Rounding:
    count = math.prod(node.settings.get("kernel_size") or [places.shape[1] for places, *_ in axis_taps(node)])
    if "output_size" in node.settings or not _divides_evenly(node.settings):
        return Rounding(count + 2, bound, 0.0, float(count))
    divisor = max(1.0, abs(float(node.settings["divisor_override"] or count)))
    return Rounding(count, bound, 0.0, divisor)  # the weights have one sign, so ‖|A|‖ = ‖A‖


def _scaled(node: Node, bound: float, arithmetic: str) -> Rounding:
    _check_held(node, arithmetic, "factor")
    return Rounding(0, bound)


def _clipped(node: Node, bound: float, arithmetic: str) -> Rounding:
    low, high = _check_held(node, arithmetic, "min_val", "max_val", most=ARITHMETICS[arithmetic][2])
    return Rounding(constant=_repeated(node, min(max(0.0, low), high)))


def _constant_pad(node: Node, bound: float, arithmetic: str) -> Rounding:
    (value,) = _check_held(node, arithmetic, "value", most=ARITHMETICS[arithmetic][2])
    return Rounding(constant=_repeated(node, value))


def _normalised(node: Node, bound: float, arithmetic: str) -> Rounding:
    norm, (_, tiny, huge) = node.module, ARITHMETICS[arithmetic]
    means, variances = (tensor.double().tolist() for tensor in (norm.running_mean.abs(), norm.running_var))
    held = max(means) < huge and all(variance + norm.eps >= tiny for variance in variances)
    require(held, f"means and variances that {arithmetic} can hold", "some outside its range")
    gains = [add_up(gain, tiny) for gain in _gains(node)]
    shifts = [0.0] * len(gains) if norm.bias is None else norm.bias.double().abs().tolist()
    sizes = [add_up(mul_up(gain, 2 * mean), shift) for gain, mean, shift in zip(gains, means, shifts, strict=True)]
    return Rounding(7, max(gains), _norm_over_positions(sizes, node))


def _interpolated(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding(80 * sum(size + 1 for size in node.input_shape[1:]) + 9 if _is_linear(node) else None, bound)


def _curved(node: Node, bound: float, arithmetic: str) -> Rounding:
    curve, (_, tiny, huge) = CURVES[type(node.module)](node.settings), ARITHMETICS[arithmetic]
    threshold, alpha = node.settings.get("threshold", 0.0), abs(node.settings.get("alpha", 1.0))
    require(threshold < math.log(huge), f"a threshold whose exponential {arithmetic} can hold", threshold)
    require(node.kind != "CELU" or alpha >= tiny, f"an alpha whose reciprocal {arithmetic} can hold", alpha)
    constant, jump = _repeated(node, curve.constant), _repeated(node, curve.jump)
    return Rounding(curve.terms, curve.absolute, constant, curve.growth, jump)


def _softmax(node: Node, bound: float, arithmetic: str) -> Rounding:
    terms = node.input_shape[node.settings["dim"] - 1]
    return Rounding(2 * terms + 90, 0.0, sqrt_up(float(node.input_shape.numel() // terms)))


def _standardised(node: Node, bound: float, arithmetic: str) -> Rounding:
    mean, std, (_, tiny, huge) = node.module.mean.double().abs(), node.module.std.double(), ARITHMETICS[arithmetic]
    held = float(std.min()) >= tiny and max(float(std.max()), float(mean.max())) < huge
    require(held, f"means and stds that {arithmetic} can hold", "some outside its range")
    shifts = [div_up(m, s) if m else 0.0 for m, s in zip(mean.tolist(), std.tolist(), strict=True)]
    vanished = _repeated(node, mul_up(bound, tiny))
    return Rounding(3, bound, _norm_over_positions(shifts, node), max(1.0, float(std.max())), vanished)


def _translated(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding(0, constant=_norm_over_positions(node.module.bias, node))


def _norm_pool(node: Node, bound: float, arithmetic: str) -> Rounding:
    _, tiny, huge = ARITHMETICS[arithmetic]
    vanished = sqrt_up(mul_up(float(4 * node.input_shape.numel()), tiny))
    return Rounding(_pooled(node), divisor=math.sqrt(huge), vanished=vanished)


def _pooled(node: Node) -> int:
    """Return the number of positions that a norm is taken over."""
    return math.prod(node.settings.get("kernel_size", node.input_shape[1:]))


def _centred(node: Node, bound: float, arithmetic: str) -> Rounding:
    count = math.prod(node.input_shape[axis] for axis in node.settings["axes"])
    return Rounding(count + 1, 2.0, divisor=float(count))


def _centred_batch(node: Node, bound: float, arithmetic: str) -> Rounding:
    mean, bias = node.module.running_mean.double().abs(), node.module.bias
    sizes = mean if bias is None else torch.nextafter(mean + bias.double().abs(), torch.tensor(math.inf).to(mean))
    return Rounding(1, constant=_norm_over_positions(sizes, node))


def _reflected(node: Node, bound: float, arithmetic: str) -> Rounding:
    vanished = mul_up(sqrt_up(float(node.output_shape.numel())), 2.0**23, ARITHMETICS[arithmetic][1])
    return Rounding(8, 3.0, divisor=2.0**21, vanished=vanished)


def _descended(node: Node, bound: float, arithmetic: str) -> Rounding:
    weight, bias = node.module.weight, node.module.bias
    hidden = replace(node, output_shape=torch.Size((len(weight), *node.input_shape[1:])))
    absolute = max(1.0, sqrt_up(mul_up(*largest_absolute_sums(weight))))
    constant = 0.0 if bias is None else mul_up(absolute, _norm_over_positions(bias, hidden))
    terms = weight[0].numel() + weight[:, 0].numel() + 1
    vanished = (sqrt_up(float(hidden.output_shape.numel())), float(2 * (terms + 1)), ARITHMETICS[arithmetic][1])
    squared = add_up(1.0, mul_up(absolute, absolute))
    return Rounding(terms, squared, constant, vanished=mul_up(absolute, *vanished))


def _check_held(node: Node, arithmetic: str, *names: str, most: float = math.inf) -> list[float]:
    """Return these settings, if they are numbers of the arithmetic: otherwise another function would be computed."""
    values = [float(node.settings[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        held = arithmetic == "float64" or float(torch.tensor(value, dtype=torch.float32)) == value
        require(held, f"a {name} that float32 can hold", value)
        require(abs(value) < most, f"a {name} far below overflow in {arithmetic}", value)
    return values


def _repeated(node: Node, value: float) -> float:
    """Return the norm of `value` in every output."""
    return mul_up(abs(value), sqrt_up(float(node.output_shape.numel()))) if value else 0.0


def _norm_over_positions(vector: Tensor | list[float] | None, node: Node) -> float:
    """Return an upper bound of the norm of a vector that is added at every position; 0 for none."""
    numbers = torch.as_tensor([0.0] if vector is None else vector, dtype=torch.float64)
    largest, _ = largest_absolute_sums(numbers.reshape(-1, 1))
    if largest == 0:
        return 0.0
    # Scaled, so that neither the squares of tiny numbers vanish nor those of huge ones overflow.
    scaled = (numbers / largest).square().sum()
    length = sqrt_up(up(float(scaled) * (1 + (numbers.numel() + 4) * 2.0**-52)))
    return mul_up(largest, length, sqrt_up(float(node.output_shape.numel() // numbers.numel())))


# The table --------------------------------------------------------------------------------------------------------


def _select(spell: Callable[[Node], settings.Settings] = settings.spell, **options: bool) -> Rule:
    """Return the rule of a kind that only chooses among its inputs, or moves them, with constant 1."""
    return Rule(_one, _exact, _ones, spell, **options)  # type: ignore[arg-type]


_AFFINE = ("weight", "bias")
_NORM = (*_AFFINE, "running_mean", "running_var", "num_batches_tracked")
_bounded = partial(Rule, from_weights=True)
_CONVOLUTION = _bounded(convolution_bound, _weighted, _absolute_sums, settings.spell_convolution, True, _AFFINE)
_CURVE_SETTINGS: dict[type[nn.Module], Callable[[Node], settings.Settings]] = {
    **dict.fromkeys((nn.ELU, nn.CELU), settings.spell_elu),
    nn.GELU: settings.spell_gelu,
    nn.Softplus: settings.spell_softplus,
}
_COPYING_PADS = [
    *(nn.CircularPad1d, nn.CircularPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d),
]
RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((ours.Abs, nn.ReLU, nn.Identity, nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout), _select()),
    **dict.fromkeys((nn.Dropout1d, nn.Dropout2d), _select(image=True)),
    nn.ReLU6: _select(settings.spell_relu6),
    ours.MaxMin: _select(settings.spell_axis),
    ours.GroupSort: _select(settings.spell_group_sort),
    ours.HalfAbs: _select(),
    ours.ChannelShift: _select(lambda node: {"channels": int(node.module.share * node.input_shape[0])}, image=True),
    nn.PixelShuffle: _select(lambda node: {"factor": node.module.upscale_factor}, image=True),
    nn.PixelUnshuffle: _select(lambda node: {"factor": node.module.downscale_factor}, image=True),
    nn.Flatten: _select(settings.spell_flatten),
    nn.Unflatten: _select(settings.spell_unflatten),
    ours.Slice: _select(settings.spell_slice),
    ours.Flip: _select(lambda node: {"axis": node.module.dim - 1}),
    ours.Reshape: _select(lambda node: {"shape": list(node.module.shape)}),
    ours.Permute: _select(lambda node: {"order": list(node.module.order)}),
    ours.Add: Rule(_one, lambda node, *_: Rounding(len(node.inputs) - 2), _ones, settings.spell, joins="sum"),
    ours.Concat: Rule(_one, _exact, _ones, lambda node: {"axis": node.module.dim - 1}, joins="concat"),
    ours.PositionBias: Rule(_one, _translated, _ones, settings.spell, True, ("bias",)),
    ours.Translate: Rule(_one, _translated, _ones, settings.spell_translate, tensors=("bias",)),
    ours.L2NormPool2d: Rule(
        *(_one, _norm_pool, lambda node: (1.0, sqrt_up(float(_pooled(node)))), settings.spell_norm_pool), image=True
    ),
    ours.LayerCentering: Rule(_one, _centred, lambda _: (2.0, 2.0), settings.spell_layer_centring),
    ours.BatchCentering: Rule(
        *(_one, _centred_batch, _ones, settings.spell_batch_centring), tensors=("bias", "running_mean")
    ),
    ours.Householder: Rule(
        _reflection, _reflected, lambda _: (sqrt_up(2.0),) * 2, settings.spell, tensors=("vectors",)
    ),
    ours.Scale: Rule(lambda node: abs(node.settings["factor"]), _scaled, _twice, lambda n: settings.spell(n, "factor")),
    ours.Normalize: _bounded(_narrowest, _standardised, _twice, settings.spell_normalize, tensors=("mean", "std")),
    ours.ConvexPotential2d: replace(
        _CONVOLUTION,
        lipschitz=_potential,
        rounding=_descended,
        norms=lambda node: (add_up(1.0, mul_up(*largest_absolute_sums(node.module.weight))),) * 2,
        settings=settings.spell_potential,
    ),
    nn.Hardtanh: Rule(_one, _clipped, _ones, settings.spell_hardtanh),
    nn.Softsign: Rule(_one, lambda *_: Rounding(2), _ones, settings.spell),
    nn.Tanh: Rule(_one, lambda *_: Rounding(15), _ones, settings.spell, assumption=ULP_ASSUMPTION),
    nn.Sigmoid: Rule(
        *(_one, lambda n, *_: Rounding(15, 0.0, _repeated(n, 1.0)), _ones, settings.spell), assumption=ULP_ASSUMPTION
    ),
    nn.LeakyReLU: Rule(
        lambda node: max(1.0, abs(node.settings["negative_slope"])),
        lambda node, bound, _: Rounding(1, bound),
        settings=lambda node: settings.spell(node, "negative_slope"),
    ),
    **{
        kind: Rule(
            lambda node: CURVES[type(node.module)](node.settings).slope,
            *(_curved, _twice, _CURVE_SETTINGS.get(kind, settings.spell)),
            assumption=None if kind in (nn.Hardswish, nn.Hardsigmoid) else ULP_ASSUMPTION,
        )
        for kind in CURVES
    },
    nn.Softmax: Rule(lambda _: 0.5, _softmax, _twice, settings.spell_softmax, assumption=ULP_ASSUMPTION),
    nn.Linear: _bounded(
        lambda node: matrix_norm_bound(node.module.weight), _weighted, _absolute_sums, settings.spell, tensors=_AFFINE
    ),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _CONVOLUTION),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d), replace(_CONVOLUTION, settings=settings.spell_transposed)
    ),
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d), Rule(_copies, _exact, _ones, settings.spell_pad, True)),
    **dict.fromkeys(
        (nn.ConstantPad1d, nn.ConstantPad2d), Rule(_copies, _constant_pad, _ones, settings.spell_pad, True)
    ),
    **dict.fromkeys(_COPYING_PADS, Rule(_copies, _exact, None, settings.spell_pad, True)),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), Rule(_max_pool, _exact, None, settings.spell_max_pool, True)),
    **dict.fromkeys(
        (nn.AvgPool1d, nn.AvgPool2d), _bounded(_average_pool, _average, None, settings.spell_average_pool, True)
    ),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        _bounded(separable_bound, _average, None, lambda node: {"output_size": list(node.output_shape[1:])}, True),
    ),
    **dict.fromkeys(
        (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
        Rule(
            lambda n: separable_bound(n) if _is_linear(n) else _copies(n), _interpolated, None, settings.spell_upsample
        ),
    ),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d),
        _bounded(
            *(lambda node: up(max(_gains(node), default=1.0)), _normalised, None, settings.spell_batch_norm),
            tensors=_NORM,
        ),
    ),
}
