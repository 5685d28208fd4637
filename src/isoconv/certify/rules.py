"""What is known of each kind of module: one `Rule` per kind, from which everything else is derived.

The network's Lipschitz bound, the rounding error of its logits, its constants in other norms, what a certificate file
says of it and what is refused all follow from these rules. The independent checker has its own (`isoconv.check`).

Note [Kinds]
A rule is about one class exactly. For the kinds without weights the bounds are matters of counting and of slopes:

* A map whose outputs are each one of its inputs, or a constant, and that copies every input at most m times multiplies
  the norm by at most √m, and by exactly that if it copies one input m times: padding, nearest-neighbour upsampling.
* A maximum is 1-Lipschitz in what it looks at in the largest norm, so max-pooling has at most √m if a pixel lies in at
  most m windows.
* A function of each entry has the largest of its slopes: 1 for ReLU, ReLU6, Hardtanh, Abs, Tanh, Softsign; at most 1 for
  Sigmoid. Sorting is a permutation on either side of a tie.
* Average pooling is a convolution of each channel with equal weights.
* ChannelShift permutes its inputs; PositionBias adds a constant; HalfAbs has slopes ±1. The norm over positions obeys
  |‖a‖ − ‖b‖| ≤ ‖a − b‖ in every channel: constant 1 for p = 2 and, as ‖·‖₂ ≤ ‖·‖₁, for p = 1; √positions for p = ∞.
* Batch normalisation in evaluation is y = α(x − μ) + β for each channel, α = γ/√(v + ε): the largest |α|.

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
* PositionBias: one sum, n = 0, c the norm of the bias over all channels.
* L2NormPool2d adds up n squares, in any order, with fused multiply-add or without, in this precision or a wider one, and
  takes the root: that is what torch.linalg.vector_norm does, and what an exported graph says. (Scaling the numbers first,
  as BLAS does, would round more often; neither does.) A square passes through at most n roundings, and all are positive,
  so the computed sum is s(1 + θ) + e with |θ| ≤ γ_n. Underflow makes e: a square or a sum that vanishes, or is flushed to
  zero, loses at most tiny, so |e| ≤ 2n·tiny. As |√a − √b| ≤ √|a − b| and |√(1 + θ) − 1| ≤ |θ|, the root is off by at most
  γ_n√s + √|e|, and rounding it makes that γ_{n+1}√s + √(4n·tiny). The roots' norm is that of the input: A = 1. Squares
  overflow from √huge on: inputs have to stay below that.
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
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.convolutions import Pads, absolute_sums, convolution_bound, copying_bound, padding_of
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import conv_norm_bound, largest_absolute_sums, matrix_norm_bound
from isoconv.linalg.rounding import add_up, div_up, mul_up, sqrt_up, up
from isoconv.nn import Abs, ChannelShift, GroupSort, HalfAbs, L2NormPool2d, MaxMin, PositionBias, Scale

#: unit roundoff, smallest normal number, and a size far below the largest, of the arithmetics a network can be run in
ARITHMETICS = {"float64": (2.0**-53, 2.0**-1022, 2.0**1000), "float32": (2.0**-24, 2.0**-126, 2.0**120)}
#: what a certificate has to say of kinds whose rounding is not proved
ULP_ASSUMPTION = "elementary functions err by at most 8 units in the last place"


@dataclass(frozen=True)
class Node:
    """One module in its place in a network.

    `inputs` are the names of the nodes whose values it takes ("input" is the network's own input), `path` the prefix of
    its tensors in the state of the plain model, `settings` what it computes with beside them, spelt out for each axis.

    Circular padding and a convolution without padding behind it are bounded as one: the padding is `merged`, and the
    convolution has its `circular` amounts, (before, after) per axis, and for `input_shape` what comes before both.
    """

    name: str
    module: nn.Module
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
        return RULES[type(self.module)]

    @property
    def outputs(self) -> int:
        return math.prod(self.output_shape)


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
    settings : what a certificate says of a module, for its input and output shapes; it refuses what cannot be said.
        None: the checker does not know this kind, so no certificate file is written
    image : whether it takes images alone, (channels, length) or (channels, height, width) as its name says
    tensors : the parameters and buffers that it may hold
    from_weights : whether the bound is computed from numbers, so that another way of computing finds another
    assumption : what its rounding takes for granted
    """

    lipschitz: Callable[[Node], float]
    rounding: Callable[[Node, float, str], Rounding] | None = None
    norms: Callable[[Node], tuple[float, float]] | None = None
    settings: Callable[[Any, torch.Size, torch.Size], dict[str, Any]] | None = None
    image: bool = False
    tensors: tuple[str, ...] = ()
    from_weights: bool = False
    assumption: str | None = None


def register(kind: type[nn.Module], rule: Rule) -> None:
    """Tell the certifier what is known of a module of your own. It holds for this class, not for its subclasses.

    The rule is your claim: nothing of it is proved. `lipschitz_bound` marks the layer as `claimed`, radii need a rule with
    `rounding`, and no certificate file is written, as the checker does not know the kind.
    """
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise IsoconvError(f"Expected a class of modules to register a rule for. Got {kind!r}.")
    if RULES.get(kind, rule).settings is not None or rule.settings is not None:
        raise IsoconvError(f"Expected a rule without settings for a kind that has none yet. Got {kind.__name__}.")
    RULES[kind] = rule


def unknown(kind: str, name: str) -> IsoconvError:
    return IsoconvError(f"Expected modules with a known Lipschitz constant. Got {kind} at {name}, which has no rule.")


# Bounds -----------------------------------------------------------------------------------------------------------


def _one(node: Node) -> float:
    return 1.0


def _copies(node: Node) -> float:
    return copying_bound(node.module, node.input_shape)


def _convolution(node: Node) -> float:
    return convolution_bound(node.module, node.settings, node.input_shape, node.circular)  # type: ignore[arg-type]


def _linear(node: Node) -> float:
    return matrix_norm_bound(node.module.weight)  # type: ignore[arg-type]


def _max_pool(node: Node) -> float:
    """Return √m for the m windows, at most Π⌈k/s⌉, that a pixel lies in."""
    names = ("kernel_size", "stride", "dilation")
    axes = zip(*(node.settings[name] for name in names), strict=True)
    windows = math.prod(min(k, -(-((k - 1) * d + 1) // s)) for k, s, d in axes)
    return sqrt_up(float(windows)) if windows > 1 else 1.0


def _average_pool(node: Node) -> float:
    sizes = node.settings["kernel_size"]
    ones = torch.ones(1, 1, *sizes, dtype=torch.float64)
    bound = conv_norm_bound(ones, node.settings["stride"], node.input_shape[1:], "zeros")
    return div_up(bound, abs(float(node.settings["divisor_override"] or math.prod(sizes))))


def _gains(node: Node) -> list[float]:
    """Return upper bounds of |γ|/√(v + ε) of every channel of a batch normalisation."""
    module: Any = node.module
    weight = torch.ones_like(module.running_var) if module.weight is None else module.weight
    gains = []
    for gamma, variance in zip(weight.double().tolist(), module.running_var.double().tolist(), strict=True):
        total = math.nextafter(variance + module.eps, 0.0)
        if not variance >= 0 or not 0 < total < math.inf or not math.isfinite(gamma):
            raise IsoconvError(f"Expected finite weights and positive running variances. Got {gamma} and {variance}.")
        gains.append(div_up(abs(gamma), math.nextafter(math.sqrt(total), 0.0)))
    return gains


def _largest_gain(node: Node) -> float:
    return up(max(_gains(node), default=1.0))


def _slope(node: Node) -> float:
    return max(1.0, abs(node.settings["negative_slope"]))


def _factor(node: Node) -> float:
    return abs(node.settings["factor"])


def _absolute_sums(node: Node) -> tuple[float, float]:
    """Return the largest column sum and the largest row sum of |A|, A a layer's matrix: its norms for p = 1 and ∞."""
    if isinstance(node.module, nn.Linear):
        return largest_absolute_sums(node.module.weight)[::-1]
    return absolute_sums(node.module, node.settings, node.input_shape, node.circular)[::-1]  # type: ignore[arg-type]


# Rounding ---------------------------------------------------------------------------------------------------------


def _exact(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding()


def _weighted(node: Node, bound: float, arithmetic: str) -> Rounding:
    weight, bias = node.module.weight, node.module.bias
    assert isinstance(weight, Tensor)
    columns, rows = _absolute_sums(node)
    constant = 0.0 if bias is None else _norm_over_positions(bias, node)  # type: ignore[arg-type]
    return Rounding(weight[0].numel(), sqrt_up(mul_up(rows, columns)), constant)


def _average(node: Node, bound: float, arithmetic: str) -> Rounding:
    count = math.prod(node.settings["kernel_size"])
    divisor = max(1.0, abs(float(node.settings["divisor_override"] or count)))
    return Rounding(count, bound, 0.0, divisor)  # the weights have one sign, so ‖|A|‖ = ‖A‖


def _scaled(node: Node, bound: float, arithmetic: str) -> Rounding:
    _check_held(node, arithmetic, "factor")
    return Rounding(0, bound)


def _clipped(node: Node, bound: float, arithmetic: str) -> Rounding:
    low, high = _check_held(node, arithmetic, "min_val", "max_val", most=ARITHMETICS[arithmetic][2])
    return Rounding(constant=_repeated(node, min(max(0.0, low), high)))


def _squashed(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding(15, 0.0, _repeated(node, 1.0))


def _constant_pad(node: Node, bound: float, arithmetic: str) -> Rounding:
    (value,) = _check_held(node, arithmetic, "value", most=ARITHMETICS[arithmetic][2])
    return Rounding(constant=_repeated(node, value))


def _normalised(node: Node, bound: float, arithmetic: str) -> Rounding:
    module: Any = node.module
    _, tiny, huge = ARITHMETICS[arithmetic]
    means = module.running_mean.double().abs().tolist()
    if not max(means) < huge or not all(v + module.eps >= tiny for v in module.running_var.double().tolist()):
        raise IsoconvError(f"Expected means and variances that {arithmetic} can hold. Got others.")
    gains = [add_up(gain, tiny) for gain in _gains(node)]
    shifts = [0.0] * len(gains) if module.bias is None else module.bias.double().abs().tolist()
    sizes = [add_up(mul_up(gain, 2 * mean), shift) for gain, mean, shift in zip(gains, means, shifts, strict=True)]
    return Rounding(7, max(gains), _norm_over_positions(torch.tensor(sizes, dtype=torch.float64), node))


def _translated(node: Node, bound: float, arithmetic: str) -> Rounding:
    return Rounding(0, 1.0, _norm_over_positions(node.module.bias, node))  # type: ignore[arg-type]


def _norm_pool(node: Node, bound: float, arithmetic: str) -> Rounding:
    _, tiny, huge = ARITHMETICS[arithmetic]
    positions = math.prod(node.input_shape[1:])
    vanished = sqrt_up(mul_up(float(4 * positions * node.outputs), tiny))
    return Rounding(positions, divisor=math.sqrt(huge), vanished=vanished)


def _check_held(node: Node, arithmetic: str, *names: str, most: float = math.inf) -> list[float]:
    """Return these settings, if they are numbers of the arithmetic: otherwise another function would be computed."""
    values = [float(node.settings[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        if arithmetic == "float32" and float(torch.tensor(value, dtype=torch.float32)) != value:
            raise IsoconvError(f"Expected a {name} that float32 can hold. Got {value}.")
        if not abs(value) < most:
            raise IsoconvError(f"Expected a {name} far below overflow in {arithmetic}. Got {value}.")
    return values


def _repeated(node: Node, value: float) -> float:
    """Return the norm of `value` in every output."""
    return mul_up(abs(value), sqrt_up(float(node.outputs))) if value else 0.0


def _norm_over_positions(vector: Tensor, node: Node) -> float:
    """Return an upper bound of the norm of a vector that is added at every position."""
    (largest, _), positions = largest_absolute_sums(vector[:, None]), node.outputs // vector.numel()
    if largest == 0:
        return 0.0
    # Scaled, so that neither the squares of tiny numbers vanish nor those of huge ones overflow.
    scaled = (vector.detach().double() / largest).square().sum()
    length = sqrt_up(up(float(scaled) * (1 + (vector.numel() + 4) * 2.0**-52)))
    return mul_up(largest, length, sqrt_up(float(positions)))


# Settings ---------------------------------------------------------------------------------------------------------


def per_axis(value: int | Sequence[int], axes: int) -> list[int]:
    """Return a setting as one whole number for each axis."""
    values = [value] * axes if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


def _none(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    return {}


def _numbers(*names: str) -> Callable[[Any, torch.Size, torch.Size], dict[str, Any]]:
    """Return the settings of a kind that has these finite numbers, and nothing else."""

    def settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
        found = {name: float(getattr(module, name)) for name in names}
        for name, value in found.items():
            if not math.isfinite(value):
                raise IsoconvError(f"Expected a finite {name} of {type(module).__name__}. Got {value}.")
        return found

    return settings


def _hardtanh_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    found = _numbers("min_val", "max_val")(module, shape, output)
    if not found["min_val"] < found["max_val"]:
        raise IsoconvError(f"Expected Hardtanh with min_val below max_val. Got {module.min_val} and {module.max_val}.")
    return found


def _convolution_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    axes, pads = len(shape) - 1, padding_of(module)
    if min(map(min, pads)) < 0:
        raise IsoconvError(f"Expected padding of at least 0 for {type(module).__name__}. Got {module.padding}.")
    return {
        "stride": per_axis(module.stride, axes),
        "padding": [list(pair) for pair in pads],
        "dilation": per_axis(module.dilation, axes),
        "groups": module.groups,
        "padding_mode": module.padding_mode if any(map(any, pads)) else "zeros",
    }


def _pad_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    axes, kind = len(shape) - 1, type(module)
    flat = per_axis(module.padding, 2 * axes)  # torch's order: the last axis comes first
    if len(flat) > 2 * axes:  # torch would pad, or cut, the channels and the batch too
        raise IsoconvError(f"Expected padding of the image alone. Got {tuple(flat)} for {kind.__name__}.")
    if min(flat) < 0 and kind not in (nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d):
        # torch may fill what is cut off at one end and padded at the other with whatever lies in memory
        raise IsoconvError(f"Expected padding of at least 0 for {kind.__name__}. Got {tuple(flat)}.")
    flat += [0] * (2 * axes - len(flat))
    pads = [[flat[2 * axis], flat[2 * axis + 1]] for axis in reversed(range(axes))]
    constant = kind in (nn.ConstantPad1d, nn.ConstantPad2d)
    return {"padding": pads, **(_numbers("value")(module, shape, output) if constant else {})}


def _max_pool_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    if not bool(module(torch.zeros(1, *shape)).isfinite().all()):
        raise IsoconvError("Expected every window to reach the image. Got one that sees padding alone.")
    found = {n: per_axis(getattr(module, n), len(shape) - 1) for n in ("kernel_size", "stride", "padding", "dilation")}
    return {**found, "ceil_mode": bool(module.ceil_mode)}


def _average_pool_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    found: dict[str, Any] = {
        n: per_axis(getattr(module, n), len(shape) - 1) for n in ("kernel_size", "stride", "padding")
    }
    if module.ceil_mode or (any(found["padding"]) and not module.count_include_pad):
        raise IsoconvError(
            "Expected pooling that divides by the same number everywhere. Got ceil_mode or uncounted padding."
        )
    divisor = getattr(module, "divisor_override", None)
    return {
        **found,
        "ceil_mode": False,
        "count_include_pad": bool(module.count_include_pad),
        "divisor_override": divisor,
    }


def _batch_norm_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    if module.running_var is None or module.running_mean is None:
        raise IsoconvError("Expected batch normalisation with running statistics. Got one that uses the batch's own.")
    return _numbers("eps")(module, shape, output)


def _upsample_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    """Whole multiples: of others it is a matter of rounding, and so of the device, which pixels are taken."""
    if module.mode != "nearest" or len(shape) > 3:
        raise IsoconvError(f"Expected mode 'nearest' on one or two axes. Got {module.mode!r} on {len(shape) - 1}.")
    if module.size is not None:
        factors = [after / before for after, before in zip(output[1:], shape[1:], strict=True)]
    else:
        scale = module.scale_factor
        factors = [float(f) for f in scale] if isinstance(scale, (tuple, list)) else [float(scale)] * (len(shape) - 1)
    if not all(factor == int(factor) >= 1 for factor in factors):
        shown = ", ".join(f"{factor:g}" for factor in factors)
        raise IsoconvError(f"Expected upsampling by whole numbers. Got {shown}, of which no bound is known.")
    return {"factors": [int(factor) for factor in factors]}


def _flatten_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    axes = len(shape) + 1  # with the batch, as torch counts
    return {"start_dim": module.start_dim % axes, "end_dim": module.end_dim % axes}


def _unflatten_settings(module: Any, shape: torch.Size, output: torch.Size) -> dict[str, Any]:
    if not isinstance(module.dim, int):
        raise IsoconvError(f"Expected an nn.Unflatten of an axis that has a number. Got {module.dim!r}.")
    first = module.dim % (len(shape) + 1)
    return {"dim": first, "unflattened_size": list(output[first - 1 : len(output) - len(shape) + first])}


# The table --------------------------------------------------------------------------------------------------------


def _ones(node: Node) -> tuple[float, float]:
    """Each output is an input or a constant, and no input is copied; or a function of one input with slopes up to 1."""
    return 1.0, 1.0


def _norm_pool_norms(node: Node) -> tuple[float, float]:
    return 1.0, sqrt_up(float(math.prod(node.input_shape[1:])))


def _select(settings: Callable[[Any, torch.Size, torch.Size], dict[str, Any]] = _none, image: bool = False) -> Rule:
    """Return the rule of a kind that only chooses among its inputs, or moves them, with constant 1."""
    return Rule(_one, _exact, _ones, settings, image)


_AFFINE = ("weight", "bias")
_NORM = (*_AFFINE, "running_mean", "running_var", "num_batches_tracked")
_WRAP = (nn.CircularPad1d, nn.CircularPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d)
_REPEAT = (nn.ReplicationPad1d, nn.ReplicationPad2d)
RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((Abs, MaxMin, nn.ReLU, nn.ReLU6, nn.Identity, nn.Dropout), _select()),
    GroupSort: _select(lambda module, shape, output: {"group_size": module.group_size or shape[0]}),
    HalfAbs: _select(),
    ChannelShift: _select(lambda module, shape, output: {"channels": int(module.share * shape[0])}, image=True),
    PositionBias: Rule(_one, _translated, _ones, _none, True, ("bias",)),
    L2NormPool2d: Rule(_one, _norm_pool, _norm_pool_norms, _none, True),
    nn.Flatten: _select(_flatten_settings),
    nn.Unflatten: _select(_unflatten_settings),
    nn.PixelShuffle: _select(lambda module, shape, output: {"factor": module.upscale_factor}, image=True),
    nn.PixelUnshuffle: _select(lambda module, shape, output: {"factor": module.downscale_factor}, image=True),
    nn.Hardtanh: Rule(_one, _clipped, _ones, _hardtanh_settings),
    nn.Softsign: Rule(_one, lambda *_: Rounding(2), _ones, _none),
    nn.Tanh: Rule(_one, lambda *_: Rounding(15), _ones, _none, assumption=ULP_ASSUMPTION),
    nn.Sigmoid: Rule(_one, _squashed, _ones, _none, assumption=ULP_ASSUMPTION),
    nn.LeakyReLU: Rule(_slope, lambda node, bound, _: Rounding(1, bound), None, _numbers("negative_slope")),
    Scale: Rule(_factor, _scaled, lambda node: (_factor(node), _factor(node)), _numbers("factor")),
    nn.Linear: Rule(_linear, _weighted, _absolute_sums, _none, False, _AFFINE, from_weights=True),
    **dict.fromkeys(
        (nn.Conv1d, nn.Conv2d),
        Rule(_convolution, _weighted, _absolute_sums, _convolution_settings, True, _AFFINE, from_weights=True),
    ),
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d), Rule(_copies, _exact, _ones, _pad_settings, True)),
    **dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d), Rule(_copies, _constant_pad, _ones, _pad_settings, True)),
    **dict.fromkeys((*_WRAP, *_REPEAT), Rule(_copies, _exact, None, _pad_settings, True)),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), Rule(_max_pool, _exact, None, _max_pool_settings, True)),
    **dict.fromkeys(
        (nn.AvgPool1d, nn.AvgPool2d),
        Rule(_average_pool, _average, None, _average_pool_settings, True, from_weights=True),
    ),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d),
        Rule(_largest_gain, _normalised, None, _batch_norm_settings, False, _NORM, from_weights=True),
    ),
    nn.Upsample: Rule(_copies, _exact, None, _upsample_settings),
}
