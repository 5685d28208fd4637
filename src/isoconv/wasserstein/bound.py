"""From a critic and samples to a lower bound of a Wasserstein-1 distance.

Note [The bound]
Let f be the critic as it is deployed, L a proved bound of its Lipschitz constant, and f̂ what a computer finds for it,
|f̂(x) − f(x)| ≤ e(x) (Note [Forward error]). For every f, W1(P₁, P₂) ≥ (E f(X) − E f(Y))/L. The means are not known but
for samples, so what is proved is proved with a confidence. It holds if the samples are independent draws, and if f was
chosen without a look at them.

* A side that is `whole` is the distribution: its mean is exact, and looking at it beforehand costs nothing.
* If every coordinate lies in [low, high], d of them, then f lies within L·(high − low)·√d/2 of its value at the centre of
  that box: bounded, with bounds that were known before. Then the bound is one by betting (Note [Betting]), valid for
  every sample size. Two sides that are both samples are paired: the differences are independent, and lie in an interval
  twice as wide. The larger side is averaged in equal groups, so that all of it counts.
* Without such a box no bound of a mean can be valid for all distributions. Then the interval is Student's, labelled
  asymptotic: an estimate and no bound. It misleads where tails are heavy or the variance is zero; `warnings` says so.
* Samples that depend on each other in runs of `group` (a generator that normalises over its batch) give one observation
  per run: the run's mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import check_batch_size
from isoconv.certify.composition import LARGEST_NORM, ForwardError, forward_error, network_constants, node_bound
from isoconv.certify.graph import nodes_of, refuse_strangers
from isoconv.certify.rules import Node, Rounding, Rule, register
from isoconv.errors import IsoconvError
from isoconv.linalg.rounding import add_up, div_up, gamma, mul_up, sqrt_up, up
from isoconv.nn import plain
from isoconv.records import Record
from isoconv.wasserstein.mean_bounds import betting_lower_bound, standard_error, student_quantile, tail_weight
from isoconv.wasserstein.vector_critic import NearestAnchor

METHODS = ("auto", "betting", "asymptotic")
BYTES_RANGE = (-1.0, 1.0)  # the default pixel range of bytes: the paper's
Interval = tuple[float, float]
_FEWEST = 30  # independent observations for a statement that only holds for many


@dataclass(frozen=True)
class WassersteinBound(Record):
    """What samples say about W1, in `units`.

    If the samples are independent draws, W1 ≥ `lower` with probability at least `confidence`, unless the method is
    "asymptotic": then `lower` is an estimate, see `proved`. `interval` holds the critic's own value, its mean difference
    over L, with that confidence; W1 itself may lie above it.
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
    warnings: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether `lower` is a bound for every sample size, and not an asymptotic estimate."""
        return self.method != "asymptotic"

    def __str__(self) -> str:
        low, high = (f"{end:.6g}" for end in self.interval)
        first, second = (f"{count:,}" for count in self.samples)
        if self.method == "exact":
            head = f"W1 ≥ {self.lower:.6g} (both sets are whole distributions, so this is exact)"
        elif self.method == "betting":
            head = f"W1 ≥ {self.lower:.6g} (confidence {self.confidence:g}, by betting: valid for every sample size,"
            head += " if the samples are independent draws)"
        else:
            head = f"Estimate: W1 is at least about {self.lower:.6g} (confidence {self.confidence:g}, asymptotic: "
            head += "no bound, and right for many independent draws without heavy tails only)"
        return (
            f"{head}. The critic's difference of means is {self.estimate:.6g}, interval {low} to {high}, on {first} and "
            f"{second} samples, after division by its proved Lipschitz bound {self.lipschitz_bound:.7f}, which includes "
            f"the scaling in front of it. {self.units}."
        )


def wasserstein_lower_bound(
    critic: nn.Module,
    xs: Tensor,
    ys: Tensor,
    confidence: float = 0.95,
    *,
    value_range: Interval | None = None,
    whole: tuple[bool, bool] = (False, False),
    group: tuple[int, int] = (1, 1),
    method: str = "auto",
    units: str | None = None,
    batch_size: int = 500,
) -> WassersteinBound:
    """Return a lower bound of W1 between the distributions of xs and ys, from a critic that was not trained on them.

    xs, ys : (N, *shape) floating point, or bytes, which stand for pixels evenly spaced over `value_range`
    value_range : an interval known to hold every coordinate of both distributions; for bytes (−1, 1) by default
    whole : whether xs, and whether ys, is all of its distribution, and not a sample of it
    group : how many consecutive xs, and ys, depend on each other
    method : "betting" (valid for every sample size, needs a range), "asymptotic" (an estimate), or "auto": betting where
        the range is known, else asymptotic

    The critic runs as `plain(critic)` in float64, on the device that it is on; its rounding is accounted for.
    """
    check_confidence(confidence)
    check_batch_size(batch_size)
    value_range = _check_arguments(xs, ys, value_range, whole, group)
    counts = [None if exact else len(s) // n for exact, s, n in zip(whole, (xs, ys), group, strict=True)]
    method = choose_method(method, value_range is not None, counts)
    refuse_strangers(critic)
    network = plain(critic).eval().double()
    constant, error = critic_bounds(network, xs.shape[1:])
    if not 0 < constant < math.inf:
        raise IsoconvError(f"Expected a critic with a positive finite Lipschitz bound. Got {constant}.")
    (first, first_error), (second, second_error) = (
        _evaluate(network, samples, value_range, error, batch_size) for samples in (xs, ys)
    )
    rounding = add_up(first_error, second_error)
    means = [values.reshape(-1, size).mean(dim=1) for values, size in zip((first, second), group, strict=True)]
    difference = _mean(first) - _mean(second)
    sampled = [None if exact else values for exact, values in zip(whole, means, strict=True)]
    risk = 1 - confidence
    warnings: tuple[str, ...] = ()
    if method == "exact":
        lower, interval = difference, (difference, difference)
    elif method == "betting":
        assert value_range is not None
        box = _box(network, xs, value_range, constant, rounding)
        z, low, high = _pair(sampled, (first, second), box)
        lower = betting_lower_bound(z, low, high, risk)
        interval = (betting_lower_bound(z, low, high, risk / 2), -betting_lower_bound(-z, -high, -low, risk / 2))
    else:
        deviation, degrees = standard_error(*sampled)
        lower = difference - student_quantile(confidence, degrees) * deviation
        half = student_quantile(1 - risk / 2, degrees) * deviation
        interval = (difference - half, difference + half)
        warnings = _warn(deviation, tail_weight(*sampled), min(count for count in counts if count is not None))
    # Rounding goes against the bound at every step: f̂ for f, the means, the quotient.
    largest = max(float(first.abs().max()), float(second.abs().max()))
    slack = add_up(rounding, mul_up(4 * gamma(len(xs) + len(ys) + 8), largest))
    return WassersteinBound(
        difference / constant,
        max(0.0, _down((lower - slack) / constant)),
        (_down((interval[0] - slack) / constant), -_down(-(interval[1] + slack) / constant)),
        confidence,
        method,
        constant,
        (len(xs), len(ys)),
        (len(means[0]), len(means[1])),
        div_up(rounding, constant),
        units or _units(xs, value_range),
        warnings,
    )


@torch.no_grad()
def critic_bounds(network: nn.Module, shape: Sequence[int]) -> tuple[float, ForwardError]:
    """Return (Lipschitz bound, rounding error in float64) of a plain critic with one output."""
    nodes = nodes_of(network, shape)
    if tuple(nodes[-1].output_shape) != (1,):
        raise IsoconvError(f"Expected a critic with one output. Got outputs of shape {tuple(nodes[-1].output_shape)}.")
    bounds = [node_bound(node) for node in nodes]
    return network_constants(nodes, bounds)[nodes[-1].name], forward_error(nodes, bounds)


def _anchor_bound(node: Node) -> float:
    """Return 1: each ‖x − aₖ‖ + bₖ is 1-Lipschitz, and so is their minimum, and minus it."""
    if node.module.sign not in (1, -1):
        raise IsoconvError(f"Expected anchors with a sign of ±1. Got {node.module.sign}.")
    return 1.0


def _anchor_rounding(node: Node, bound: float, arithmetic: str) -> Rounding:
    """Return the rounding of ‖h − a‖ + b by D differences, squares, a sum, a root and the offset's sum.

    It is relative, γ of 2D + 8, to a size that is at most ‖h‖ + ‖a‖ + |b|. Squares may underflow: then that much, and the
    root of it.
    """
    module, features = node.module, node.input_shape[0]
    assert isinstance(module, NearestAnchor)
    lengths = torch.linalg.vector_norm(module.anchors.double(), dim=1) + module.offsets.double().abs()
    size = mul_up(float(lengths.max()), 1 + 1e-6)
    return Rounding(2 * features + 7, constant=size, vanished=mul_up(2.0**-510, sqrt_up(float(features))))


register(NearestAnchor, Rule(_anchor_bound, _anchor_rounding, tensors=("anchors", "raw_offsets", "temperature")))


# Values -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _evaluate(
    network: nn.Module, samples: Tensor, value_range: Interval | None, error: ForwardError, batch_size: int
) -> tuple[Tensor, float]:
    """Return the critic's values (N,), float64 on the CPU, and a bound of their mean's rounding error."""
    device = next((p.device for p in network.parameters()), samples.device)
    values, largest = [], 0.0
    for batch in samples.split(batch_size):
        x = as_values(batch.to(device), value_range)
        values.append(network(x).reshape(len(x)).cpu())
        largest = max(largest, float(torch.linalg.vector_norm(x.flatten(1), dim=1).max()))
    scores = torch.cat(values)
    if not bool(scores.isfinite().all()) or not largest < LARGEST_NORM / 2:
        raise IsoconvError(f"Expected samples of norm below 2²⁹, with finite values. Got a norm of {largest:g}.")
    return scores, add_up(error.offset, mul_up(error.slope, largest * (1 + 1e-6)))


def as_values(samples: Tensor, value_range: Interval | None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return samples as the critic takes them: bytes spaced evenly over the range, everything else unchanged."""
    if samples.dtype != torch.uint8:
        return samples.to(dtype)
    low, high = value_range or BYTES_RANGE
    return samples.to(dtype) * ((high - low) / 255) + low


def _box(network: nn.Module, xs: Tensor, value_range: Interval, constant: float, rounding: float) -> Interval:
    """Return the interval that f̂ stays in over the whole box, from its value at the centre."""
    low, high = value_range
    device = next((p.device for p in network.parameters()), xs.device)
    centre = torch.full((1, *xs.shape[1:]), (low + high) / 2, dtype=torch.float64, device=device)
    with torch.no_grad():
        middle = float(network(centre))
    radius = mul_up(constant, up(high - low) / 2, sqrt_up(float(math.prod(xs.shape[1:]))))
    reach = add_up(radius, 2 * rounding, 1e-9 * radius)
    return middle - reach, middle + reach


def _pair(
    sampled: Sequence[Tensor | None], values: tuple[Tensor, Tensor], box: Interval
) -> tuple[Tensor, float, float]:
    """Return independent observations whose mean is the difference of means, and the interval that holds them."""
    (first, second), (low, high) = sampled, box
    if first is not None and second is not None:
        count = min(len(first), len(second))
        xs, ys = (side[: count * (len(side) // count)].reshape(count, -1).mean(dim=1) for side in (first, second))
        return xs - ys, low - high, high - low
    if first is not None:
        known = _mean(values[1])
        return first - known, low - known, high - known
    assert second is not None
    known = _mean(values[0])
    return known - second, known - high, known - low


def _mean(values: Tensor) -> float:
    return math.fsum(values.tolist()) / len(values)


def _warn(deviation: float, weight: float, observations: int) -> tuple[str, ...]:
    """Return what speaks against an asymptotic interval."""
    values = "The critic's values have"
    if deviation == 0:
        return (f"{values} a variance of zero: an interval of width zero says nothing about rare values.",)
    # Normal values lie below the second one at any size, Cauchy's above the first one.
    if weight > max(0.25, 2.1 / math.sqrt(observations)):
        return (f"{values} heavy tails: few samples make most of the variance, and the interval is unreliable.",)
    return ()


def _units(xs: Tensor, value_range: Interval | None) -> str:
    if xs.dim() == 4:
        _, channels, height, width = xs.shape
        pixels = "" if value_range is None else f", pixels from {value_range[0]:g} to {value_range[1]:g}"
        return f"L2 distance between images of {channels}×{height}×{width}{pixels}"
    return f"L2 distance between vectors of dimension {math.prod(xs.shape[1:])}"


def _down(value: float) -> float:
    return math.nextafter(value, -math.inf)


# Arguments --------------------------------------------------------------------------------------------------------


def check_confidence(confidence: float) -> None:
    """Raise if the confidence is no probability."""
    if not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise IsoconvError(f"Expected a confidence between 0 and 1, such as 0.95. Got {confidence}.")


def choose_method(method: str, bounded: bool, observations: Sequence[int | None]) -> str:
    """Return the method for so many independent observations of each side (None: it is whole), or raise if there is none.

    bounded : whether the range of the values is known
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
        least = f"at least {_FEWEST} independent samples of each distribution"
        raise IsoconvError(f"Expected {least} for an asymptotic interval. Got {min(counts)}.")
    return "asymptotic"


def _check_arguments(
    xs: Tensor, ys: Tensor, value_range: Interval | None, whole: tuple[bool, bool], group: tuple[int, int]
) -> Interval | None:
    """Raise on samples and options that do not fit together; return the range, which bytes have by default."""
    for name, samples in (("xs", xs), ("ys", ys)):
        if not isinstance(samples, Tensor) or samples.dim() < 2 or len(samples) == 0:
            kind = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
            raise IsoconvError(f"Expected {name} as a tensor of samples (N, …). Got {kind}.")
    if not _are_two(whole, bool) or not _are_two(group, int):
        pairs = "whole and group for xs and for ys, such as (True, False) and (1, 64)"
        raise IsoconvError(f"Expected {pairs}. Got {whole} and {group}.")
    if value_range is None and torch.uint8 in (xs.dtype, ys.dtype):
        value_range = BYTES_RANGE
    if value_range is not None:
        if not _are_two(value_range, (int, float)) or not -math.inf < value_range[0] < value_range[1] < math.inf:
            raise IsoconvError(f"Expected a value range such as (−1, 1). Got {value_range}.")
        value_range = float(value_range[0]), float(value_range[1])
    if xs.shape[1:] != ys.shape[1:]:
        shapes = f"{tuple(xs.shape[1:])} and {tuple(ys.shape[1:])}"
        raise IsoconvError(f"Expected xs and ys of one shape. Got samples of shape {shapes}.")
    for name, samples, size in (("xs", xs, group[0]), ("ys", ys, group[1])):
        if size < 1 or len(samples) % size:
            raise IsoconvError(f"Expected a multiple of {size} samples (its group) in {name}. Got {len(samples)}.")
        check_range(samples, value_range, name)
    return value_range


def check_range(samples: Tensor, value_range: Interval | None, name: str) -> None:
    """Raise if samples are not bytes, or finite numbers in the range."""
    if samples.dtype == torch.uint8:
        return
    if not samples.is_floating_point():
        raise IsoconvError(f"Expected {name} as bytes or as floating point. Got {samples.dtype}.")
    if not bool(samples.isfinite().all()):
        raise IsoconvError(f"Expected finite numbers in {name}. Got NaN or infinity.")
    low, high = float(samples.min()), float(samples.max())
    if value_range is not None and not value_range[0] <= low <= high <= value_range[1]:
        limits = f"{value_range[0]:g} to {value_range[1]:g}"
        raise IsoconvError(f"Expected values from {limits} in {name}. Got {low:g} to {high:g}.")


def _are_two(values: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(values, (tuple, list)) and len(values) == 2 and all(isinstance(value, kind) for value in values)
