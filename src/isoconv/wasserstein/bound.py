"""From a critic and samples to a lower bound of a Wasserstein-1 distance.

Note [The bound]
Let f be the critic as it is deployed, L a proved bound of its Lipschitz constant, and f̂ what a computer finds for it,
|f̂(x) − f(x)| ≤ e(x) (Note [Forward error]). For every f, W1(P₁, P₂) ≥ (E f(X) − E f(Y))/L. The means are not known but
for samples, so what is proved is proved with a confidence; it holds if f was chosen without a look at them.

* A side that is `whole` is the distribution: its mean is exact, and looking at it beforehand costs nothing.
* If every coordinate lies in [low, high], d of them, then f lies within L·(high − low)·√d/2 of its value at the centre of
  that box: bounded, with bounds that were known before. Then the bound is one by betting (Note [Betting]), valid for
  every sample size. Two sides that are both samples are paired: the differences are independent, and lie in an interval
  twice as wide. The larger side is averaged in equal groups, so that all of it counts.
* Without such a box no bound of a mean can be valid for all distributions; then it is Student's, and labelled asymptotic.
* Samples that depend on each other in runs of `group` (a generator that normalises over its batch) give one observation
  per run: the run's mean.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import check_batch_size
from isoconv.certify.composition import LARGEST_NORM, ForwardError, forward_error, node_bound
from isoconv.certify.graph import nodes_of, refuse_strangers
from isoconv.certify.rules import Rule, register
from isoconv.errors import IsoconvError
from isoconv.linalg.rounding import add_up, div_up, gamma, mul_up, sqrt_up, up
from isoconv.nn import plain
from isoconv.wasserstein.mean_bounds import betting_lower_bound, standard_error, student_quantile
from isoconv.wasserstein.vector_critic import NearestAnchor

METHODS = ("auto", "betting", "asymptotic")
BYTES_RANGE = (-1.0, 1.0)  # the pixel range of bytes, unless another is asked for: the paper's
register(NearestAnchor, Rule(lambda node: 1.0))  # each ‖x − aₖ‖ + bₖ is 1-Lipschitz, and so is their minimum
_FEWEST = 30  # independent observations for a statement that only holds for many


@dataclass(frozen=True)
class WassersteinBound:
    """What is known of W1 after looking at some samples, in `units`.

    With probability at least `confidence`, W1 ≥ `lower` (approximately so if the method is "asymptotic"). `interval`
    holds the critic's own value, its mean difference over L, with that confidence; W1 itself may lie above it.
    """

    estimate: float
    lower: float
    interval: tuple[float, float]
    confidence: float
    method: str
    lipschitz_bound: float
    samples: tuple[int, int]
    observations: tuple[int, int]
    rounding: float
    units: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def wasserstein_lower_bound(
    critic: nn.Module,
    xs: Tensor,
    ys: Tensor,
    confidence: float = 0.95,
    *,
    value_range: tuple[float, float] | None = None,
    whole: tuple[bool, bool] = (False, False),
    group: tuple[int, int] = (1, 1),
    method: str = "auto",
    units: str | None = None,
    batch_size: int = 500,
) -> WassersteinBound:
    """A lower bound of W1 between the distributions of xs and ys, from a critic that was not trained on them.

    xs, ys : (N, *shape) floating point, or bytes, which stand for pixels evenly spaced over `value_range`
    value_range : where every coordinate of both distributions lies, if that is known; for bytes (−1, 1) by default
    whole : whether xs, and whether ys, is all of its distribution, and not a sample of it
    group : how many consecutive xs, and ys, depend on each other
    method : "betting" (valid for every sample size, needs a range), "asymptotic", or "auto" for the first where it can

    The critic runs as `plain(critic)` in float64, on the device that it is on; its rounding is accounted for.
    """
    if not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise IsoconvError(f"Expected a confidence between 0 and 1, such as 0.95. Got {confidence}.")
    check_batch_size(batch_size)
    if not _are_two(whole, bool):
        raise IsoconvError(f"Expected whole for xs and for ys, such as (True, False). Got {whole}.")
    if not _are_two(group, int):
        raise IsoconvError(f"Expected a group of xs and one of ys, such as (1, 64). Got {group}.")
    low_high = _checked_range(value_range, xs, ys)
    for name, samples, size in (("xs", xs, group[0]), ("ys", ys, group[1])):
        _check_samples(name, samples, xs.shape[1:], low_high, size)
    counts = [None if exact else len(s) // n for exact, s, n in zip(whole, (xs, ys), group, strict=True)]
    chosen = choose_method(method, low_high is not None, counts)
    refuse_strangers(critic)
    network = plain(critic).eval().double()
    constant, error = critic_bounds(network, xs.shape[1:])
    if not 0 < constant < math.inf:
        raise IsoconvError(f"Expected a critic with a positive finite Lipschitz bound. Got {constant}.")
    sides = [_evaluate(network, samples, low_high, error, batch_size) for samples in (xs, ys)]
    rounding = add_up(sides[0].error, sides[1].error)
    observed = [side.values.reshape(-1, size).mean(dim=1) for side, size in zip(sides, group, strict=True)]
    difference = math.fsum(sides[0].values.tolist()) / len(xs) - math.fsum(sides[1].values.tolist()) / len(ys)
    box = None if low_high is None else _box(network, xs, low_high, constant, rounding)
    sampled = [None if exact else values for exact, values in zip(whole, observed, strict=True)]
    risk = 1 - confidence
    if chosen == "exact":
        lower, interval = difference, (difference, difference)
    elif chosen == "betting":
        assert box is not None
        z, low, high = _paired(sampled, [side.values for side in sides], box)
        lower = betting_lower_bound(z, low, high, risk)
        interval = (betting_lower_bound(z, low, high, risk / 2), -betting_lower_bound(-z, -high, -low, risk / 2))
    else:
        deviation, degrees = standard_error(*sampled)
        lower = difference - student_quantile(confidence, degrees) * deviation
        half = student_quantile(1 - risk / 2, degrees) * deviation
        interval = (difference - half, difference + half)
    # Rounding goes against the bound at every step: f̂ for f, the means, the quotient.
    largest = max(float(side.values.abs().max()) for side in sides)
    slack = add_up(rounding, mul_up(4 * gamma(len(xs) + len(ys) + 8), largest))
    return WassersteinBound(
        difference / constant,
        max(0.0, _down((lower - slack) / constant)),
        (_down((interval[0] - slack) / constant), -_down(-(interval[1] + slack) / constant)),
        confidence,
        chosen,
        constant,
        (len(xs), len(ys)),
        (len(observed[0]), len(observed[1])),
        div_up(rounding, constant),
        units or _units(xs, ys, low_high),
    )


@torch.no_grad()
def critic_bounds(network: nn.Module, shape: Sequence[int]) -> tuple[float, ForwardError]:
    """(Lipschitz bound, rounding error in float64) of a plain critic with one output, which may end in a NearestAnchor."""
    parts = list(network) if isinstance(network, nn.Sequential) else [network]
    anchors = parts.pop() if type(parts[-1]) is NearestAnchor else None
    layers = nodes_of(nn.Sequential(*parts), shape) if parts else []
    bounds = [node_bound(layer) for layer in layers]
    error = forward_error(layers, bounds) if layers else ForwardError(0.0, 0.0)
    constant = mul_up(1.0, *bounds)
    output = tuple(layers[-1].output_shape) if layers else tuple(shape)
    if isinstance(anchors, NearestAnchor):
        # ‖h − a‖ by D differences, squares, a sum and a root: relative error γ of a size that is at most ‖h‖ + ‖a‖.
        # Squares may vanish: then that much, and the root of it.
        if anchors.sign not in (1, -1):
            raise IsoconvError(f"Expected anchors with a sign of ±1. Got {anchors.sign}.")
        relative = gamma(2 * anchors.anchors.shape[1] + 8)
        vanished = mul_up(2.0**-510, sqrt_up(float(anchors.anchors.shape[1])))
        lengths = torch.linalg.vector_norm(anchors.anchors.double(), dim=1) + anchors.offsets.double().abs()
        size = mul_up(float(lengths.max()), 1 + 1e-6)
        parts_of_bias = (mul_up(b, _bias_norm(x.module)) for b, x in zip(_products(bounds), layers, strict=True))
        biases = add_up(*parts_of_bias)
        offset = add_up(error.offset, vanished, mul_up(relative, add_up(size, biases, error.offset)))
        error = ForwardError(offset, add_up(error.slope, mul_up(relative, add_up(constant, error.slope))))
        output = (1,)
    if output != (1,):
        raise IsoconvError(f"Expected a critic with one output. Got outputs of shape {output}.")
    return constant, error


def _products(bounds: Sequence[float]) -> list[float]:
    """By how much each layer's output is enlarged by those behind it."""
    return [mul_up(1.0, *bounds[k + 1 :]) for k in range(len(bounds))]


def _bias_norm(module: nn.Module) -> float:
    bias = getattr(module, "bias", None)
    if not isinstance(bias, Tensor):
        return 0.0
    if type(module) is not nn.Linear:
        raise IsoconvError(f"Expected linear layers before a NearestAnchor. Got {type(module).__name__}.")
    return mul_up(float(torch.linalg.vector_norm(bias.double())), 1 + 1e-6)


# Values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Side:
    """The critic's values (N,), float64 on the CPU, and a bound of their mean's rounding error."""

    values: Tensor
    error: float


@torch.no_grad()
def _evaluate(
    network: nn.Module, samples: Tensor, low_high: tuple[float, float] | None, error: ForwardError, batch_size: int
) -> _Side:
    device = next((p.device for p in network.parameters()), samples.device)
    values, largest = [], 0.0
    for batch in samples.split(batch_size):
        x = as_values(batch.to(device), low_high)
        values.append(network(x).reshape(len(x)).cpu())
        largest = max(largest, float(torch.linalg.vector_norm(x.flatten(1), dim=1).max()))
    found = torch.cat(values)
    if not bool(found.isfinite().all()) or not largest < LARGEST_NORM / 2:
        raise IsoconvError(f"Expected samples of norm below 2²⁹, with finite values. Got a norm of {largest:g}.")
    return _Side(found, add_up(error.offset, mul_up(error.slope, largest * (1 + 1e-6))))


def as_values(samples: Tensor, low_high: tuple[float, float] | None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Samples as the critic takes them: bytes spaced evenly over the range, everything else as it is."""
    if samples.dtype != torch.uint8:
        return samples.to(dtype)
    low, high = BYTES_RANGE if low_high is None else low_high
    return samples.to(dtype) * ((high - low) / 255) + low


def _box(
    network: nn.Module, xs: Tensor, low_high: tuple[float, float], constant: float, rounding: float
) -> tuple[float, float]:
    """Where f̂ lies on all of the box, by its value at the centre."""
    low, high = low_high
    device = next((p.device for p in network.parameters()), xs.device)
    centre = torch.full((1, *xs.shape[1:]), (low + high) / 2, dtype=torch.float64, device=device)
    with torch.no_grad():
        middle = float(network(centre))
    radius = mul_up(constant, up(high - low) / 2, sqrt_up(float(math.prod(xs.shape[1:]))))
    reach = add_up(radius, 2 * rounding, 1e-9 * radius)
    return middle - reach, middle + reach


def _paired(
    sampled: Sequence[Tensor | None], values: Sequence[Tensor], box: tuple[float, float]
) -> tuple[Tensor, float, float]:
    """Independent observations whose mean is the difference of means, and the interval that holds them."""
    (first, second), (low, high) = sampled, box
    if first is not None and second is not None:
        count = min(len(first), len(second))
        pair = [side[: count * (len(side) // count)].reshape(count, -1).mean(dim=1) for side in (first, second)]
        return pair[0] - pair[1], low - high, high - low
    if first is not None:
        known = math.fsum(values[1].tolist()) / len(values[1])
        return first - known, low - known, high - known
    assert second is not None
    known = math.fsum(values[0].tolist()) / len(values[0])
    return known - second, known - high, known - low


# What was asked for -----------------------------------------------------------------------------------------------


def choose_method(method: str, bounded: bool, observations: Sequence[int | None]) -> str:
    """How a bound will be found from so many independent observations of each side (None: it is whole); or an error.

    bounded : whether it is known where the values lie
    """
    if method not in METHODS:
        raise IsoconvError(f"Expected method to be one of {', '.join(METHODS)}. Got {method!r}.")
    counts = [count for count in observations if count is not None]
    if not counts:
        return "exact"
    if method == "betting" and not bounded:
        raise IsoconvError("Expected to know where the values lie (--range) for a bound by betting. Got no range.")
    if method == "betting" or (method == "auto" and bounded):
        return "betting"
    if min(counts) < _FEWEST:
        raise IsoconvError(
            f"Expected at least {_FEWEST} independent samples of each distribution for an asymptotic interval. "
            f"Got {min(counts)}."
        )
    return "asymptotic"


def _checked_range(value_range: tuple[float, float] | None, xs: Tensor, ys: Tensor) -> tuple[float, float] | None:
    for name, samples in (("xs", xs), ("ys", ys)):
        if not isinstance(samples, Tensor) or samples.dim() < 2 or len(samples) == 0:
            found = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
            raise IsoconvError(f"Expected {name} as a tensor of samples (N, …). Got {found}.")
    if value_range is None:
        return BYTES_RANGE if torch.uint8 in (xs.dtype, ys.dtype) else None
    if not _are_two(value_range, (int, float)) or not -math.inf < value_range[0] < value_range[1] < math.inf:
        raise IsoconvError(f"Expected a value range such as (−1, 1). Got {value_range}.")
    return float(value_range[0]), float(value_range[1])


def _are_two(values: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(values, (tuple, list)) and len(values) == 2 and all(isinstance(value, kind) for value in values)


def _check_samples(
    name: str, samples: Tensor, shape: Sequence[int], low_high: tuple[float, float] | None, group: int
) -> None:
    if samples.shape[1:] != torch.Size(shape):
        raise IsoconvError(
            f"Expected xs and ys of one shape. Got samples of shape {tuple(shape)} and {tuple(samples.shape[1:])}."
        )
    if group < 1 or len(samples) % group:
        raise IsoconvError(
            f"Expected a multiple of {group} samples in {name}, as many as depend on each other. Got {len(samples)}."
        )
    if samples.dtype == torch.uint8:
        return
    if not samples.is_floating_point():
        raise IsoconvError(f"Expected {name} as bytes or as floating point. Got {samples.dtype}.")
    if not bool(samples.isfinite().all()):
        raise IsoconvError(f"Expected finite numbers in {name}. Got NaN or infinity.")
    if low_high is not None and not (float(samples.min()) >= low_high[0] and float(samples.max()) <= low_high[1]):
        found = f"{float(samples.min()):g} to {float(samples.max()):g}"
        raise IsoconvError(f"Expected values from {low_high[0]:g} to {low_high[1]:g} in {name}. Got {found}.")


def _units(xs: Tensor, ys: Tensor, low_high: tuple[float, float] | None) -> str:
    if xs.dim() == 4:
        _, channels, height, width = xs.shape
        pixels = "" if low_high is None else f", pixels from {low_high[0]:g} to {low_high[1]:g}"
        return f"L2 distance between images of {channels}×{height}×{width}{pixels}"
    return f"L2 distance between vectors of dimension {math.prod(xs.shape[1:])}"


def _down(value: float) -> float:
    return math.nextafter(value, -math.inf)
