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

Note [Betting]
Let z₁, z₂, … be independent with mean μ and values in [0, 1], and m a candidate for μ. Someone starts with a capital of 1
and, before zᵢ is shown, bets λᵢ ∈ [0, 1/m) on it: the capital is multiplied by 1 + λᵢ(zᵢ − m) ≥ 0. If m = μ, its
expectation stays 1 whatever the strategy, so by Markov it ends at 1/δ or more with probability at most δ. All m at which
that happened are therefore rejected; the smallest that is not is a lower bound of μ with confidence 1 − δ, for every n and
every distribution in [0, 1] (Waudby-Smith and Ramdas, 2024). With λᵢ = min(λ̂ᵢ, c/m), λ̂ᵢ a function of z₁, …, zᵢ₋₁ alone,
each factor falls as m grows (it is 1 + λ̂ᵢ(zᵢ − m), then 1 − c + c·zᵢ/m), so the capital does, and the bound is found by
bisection. λ̂ᵢ = √(2 log(1/δ)/(n·σ̂²ᵢ₋₁)) makes it as tight as the normal approximation where n is large; where the variance
is small against the range it is several times tighter than Hoeffding's, and tighter than Maurer and Pontil's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import check_batch_size
from isoconv.certify.composition import LARGEST_NORM, ForwardError, forward_error, network_constants, node_bound
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.errors import is_number, require
from isoconv.linalg.rounding import add_up, div_up, gamma, mul_up, show_down, show_up, sqrt_up, up
from isoconv.records import Record

METHODS = ("auto", "betting", "asymptotic")
BYTES_RANGE = (-1.0, 1.0)  # the default pixel range of bytes: the paper's
Interval = tuple[float, float]
_FEWEST = 30  # independent observations for a statement that only holds for many
_CAP = 0.95  # c: how much of the capital a single bet may lose
_PRIOR_VARIANCE = 1 / 64  # of one observation that was never made, so that the first bets are defined


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
        lower = show_down(self.lower)
        if self.method == "exact":
            head = f"W1 ≥ {lower} (both sets are whole distributions, so this is exact)"
        elif self.method == "betting":
            head = f"W1 ≥ {lower} (confidence {self.confidence:g}, by betting: valid for every sample size,"
            head += " if the samples are independent draws)"
        else:
            head = f"Estimate: W1 is at least about {lower} (confidence {self.confidence:g}, asymptotic: "
            head += "no bound, and right for many independent draws without heavy tails only)"
        nothing = "" if self.lower > 0 else " That says nothing: take more samples, or train longer."
        return (
            f"{head}.{nothing}\nThe critic's difference of means is {self.estimate:.6g}, interval {low} to {high}, "
            f"on {first} and {second} samples, divided by its proved Lipschitz bound {show_up(self.lipschitz_bound)}, "
            f"which includes the scaling in front of it. {self.units}."
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
    check_batch_size(batch_size)
    value_range = _check_samples(xs, ys, value_range, whole, group)
    counts = [None if exact else len(s) // n for s, exact, n in zip((xs, ys), whole, group, strict=True)]
    method = choose_method(method, confidence, value_range is not None, counts)
    network = plain_network(critic, tuple(xs.shape[1:])).double()
    constant, error = critic_bounds(network, xs.shape[1:])
    require(0 < constant < math.inf, "a critic with a positive finite Lipschitz bound", constant)
    values, largest = zip(*(_evaluate(network, s, value_range, batch_size) for s in (xs, ys)), strict=True)
    rounding = add_up(*(add_up(error.offset, mul_up(error.slope, norm * (1 + 1e-6))) for norm in largest))
    means = [math.fsum(side.tolist()) / len(side) for side in values]
    # What is known of each side: independent observations of its mean, or where it is whole the mean itself.
    sides = [
        mean if exact else side.reshape(-1, size).mean(dim=1)
        for side, mean, exact, size in zip(values, means, whole, group, strict=True)
    ]
    difference, risk, doubt = means[0] - means[1], 1 - confidence, ""
    if method == "exact":
        lower, interval = difference, (difference, difference)
    elif method == "betting":
        assert value_range is not None
        z, low, high = _pair(sides, _box(network, xs, value_range, constant, rounding))
        lower = betting_lower_bound(z, low, high, risk)
        interval = (betting_lower_bound(z, low, high, risk / 2), -betting_lower_bound(-z, -high, -low, risk / 2))
    else:
        sampled = [side for side in sides if isinstance(side, Tensor)]
        deviation, degrees = standard_error(*sampled)
        lower = difference - student_quantile(confidence, degrees) * deviation
        half = student_quantile(1 - risk / 2, degrees) * deviation
        interval = (difference - half, difference + half)
        if deviation == 0:
            doubt = "a variance of zero: an interval of width zero says nothing about rare values"
        # Normal values lie below the second one at any size, Cauchy's above the first one.
        elif tail_weight(*sampled) > max(0.25, 2.1 / math.sqrt(min(map(len, sampled)))):
            doubt = "heavy tails: few samples make most of the variance, and the interval is unreliable"
    # Rounding goes against the bound at every step: f̂ for f, the means, the quotient.
    highest = max(float(side.abs().max()) for side in values)
    slack = add_up(rounding, mul_up(4 * gamma(len(xs) + len(ys) + 8), highest))
    return WassersteinBound(
        estimate=difference / constant,
        lower=max(0.0, _down((lower - slack) / constant)),
        interval=(_down((interval[0] - slack) / constant), up((interval[1] + slack) / constant)),
        confidence=confidence,
        method=method,
        lipschitz_bound=constant,
        samples=(len(xs), len(ys)),
        observations=(len(xs) // group[0], len(ys) // group[1]),
        rounding=div_up(rounding, constant),
        units=units or _describe_units(xs, value_range),
        warnings=(f"The critic's values have {doubt}.",) if doubt else (),
    )


@torch.no_grad()
def critic_bounds(network: nn.Module, shape: Sequence[int]) -> tuple[float, ForwardError]:
    """Return (Lipschitz bound, rounding error in float64) of a plain critic with one output."""
    nodes = nodes_of(network, shape)
    outputs = tuple(nodes[-1].output_shape)
    require(outputs == (1,), "a critic with one output", f"outputs of shape {outputs}")
    bounds = [node_bound(node) for node in nodes]
    return network_constants(nodes, bounds)[nodes[-1].name], forward_error(nodes, bounds)


@torch.no_grad()
def _evaluate(
    network: nn.Module, samples: Tensor, value_range: Interval | None, batch_size: int
) -> tuple[Tensor, float]:
    """Return the critic's values (N,), float64 on the CPU, and the largest norm of a sample."""
    device = next((p.device for p in network.parameters()), samples.device)
    values, largest = [], 0.0
    for batch in samples.split(batch_size):
        x = as_values(batch.to(device), value_range)
        values.append(network(x).reshape(len(x)).cpu())
        largest = max(largest, float(torch.linalg.vector_norm(x.flatten(1), dim=1).max()))
    scores = torch.cat(values)
    sound = bool(scores.isfinite().all()) and largest < LARGEST_NORM / 2
    require(sound, "samples of norm below 2²⁹, with finite values", f"a norm of {largest:g}")
    return scores, largest


def as_values(samples: Tensor, value_range: Interval | None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return samples as the critic takes them: bytes spaced evenly over the range, everything else unchanged."""
    if samples.dtype != torch.uint8:
        return samples.to(dtype)
    low, high = value_range or BYTES_RANGE
    return samples.to(dtype) * ((high - low) / 255) + low


@torch.no_grad()
def _box(network: nn.Module, xs: Tensor, value_range: Interval, constant: float, rounding: float) -> Interval:
    """Return the interval that f̂ stays in over the whole box, from its value at the centre."""
    low, high = value_range
    device = next((p.device for p in network.parameters()), xs.device)
    middle = float(network(torch.full((1, *xs.shape[1:]), (low + high) / 2, dtype=torch.float64, device=device)))
    radius = mul_up(constant, up(high - low) / 2, sqrt_up(float(math.prod(xs.shape[1:]))))
    reach = add_up(radius, 2 * rounding, 1e-9 * radius)
    return middle - reach, middle + reach


def _pair(sides: Sequence[Tensor | float], box: Interval) -> tuple[Tensor, float, float]:
    """Return independent observations whose mean is the difference of means, and the interval that holds them."""
    count = min(len(side) for side in sides if isinstance(side, Tensor))
    xs, ys = (
        side[: count * (len(side) // count)].reshape(count, -1).mean(dim=1) if isinstance(side, Tensor) else side
        for side in sides
    )
    (low, high), (y_low, y_high) = (box if isinstance(side, Tensor) else (side, side) for side in sides)
    return torch.as_tensor(xs - ys), low - y_high, high - y_low


def _describe_units(xs: Tensor, value_range: Interval | None) -> str:
    if xs.dim() == 4:
        pixels = "" if value_range is None else f", pixels from {value_range[0]:g} to {value_range[1]:g}"
        return f"L2 distance between images of {'×'.join(map(str, xs.shape[1:]))}{pixels}"
    return f"L2 distance between vectors of dimension {math.prod(xs.shape[1:])}"


def _down(value: float) -> float:
    return math.nextafter(value, -math.inf)


# From samples to the mean: confidence bounds that hold for every sample size, and asymptotic estimates --------------


def betting_lower_bound(values: Tensor, low: float, high: float, risk: float) -> float:
    """Return a lower bound of the mean of independent values in [low, high] that fails with probability at most `risk`.

    The bound depends on the order of the values; any order that does not depend on them is valid. float64.
    """
    z = ((values.double() - low) / (high - low)).clamp(0, 1)
    n = len(z)
    before = torch.arange(n, dtype=torch.float64, device=z.device)
    earlier = torch.cumsum(z, 0) - z
    means = (0.5 + earlier) / (1 + before)  # of what was seen before the i-th
    squares = (z - means).square()
    variances = (_PRIOR_VARIANCE + torch.cumsum(squares, 0) - squares) / (1 + before)
    bets = torch.sqrt(2 * math.log(1 / risk) / (n * variances))

    def is_rejected(candidate: float) -> bool:
        stakes = bets.clamp(max=_CAP / candidate)
        return float(torch.log1p(stakes * (z - candidate)).sum()) >= math.log(1 / risk) + 1e-9

    below, above = 0.0, float(z.mean())
    for _ in range(60):
        middle = (below + above) / 2
        if middle > 0 and is_rejected(middle):
            below = middle
        else:
            above = middle
    return low + below * (high - low)


def student_quantile(probability: float, degrees: float) -> float:
    """Return a quantile of Student's distribution, within 0.1 % from 20 degrees of freedom on.

    It is the expansion around the normal quantile.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees ** (k + 1) for k, term in enumerate(terms))


def standard_error(*samples: Tensor) -> tuple[float, float]:
    """Return the standard error of a sum or difference of means, and Welch's degrees of freedom.

    A mean that is known exactly is left out.
    """
    parts = [(float(values.double().var()) / len(values), len(values)) for values in samples]
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / (n - 1) for variance, n in parts)
    return math.sqrt(total), total**2 / spread if spread else math.inf


def tail_weight(*samples: Tensor) -> float:
    """Return Lyapunov's ratio of a difference of means: Σ|xᵢ|³ / (Σ xᵢ²)^(3/2), x the deviations as they enter it.

    By Berry and Esseen the error of a normal approximation is at most about half of it. It is 1.6/√n for normal values,
    and 1 where a single observation makes all of the variance.
    """
    parts = [(values.double() - values.double().mean()).abs() / len(values) for values in samples]
    cubes, squares = (sum(float(part.pow(power).sum()) for part in parts) for power in (3, 2))
    return cubes / squares**1.5 if squares > 0 else 0.0


# Arguments --------------------------------------------------------------------------------------------------------


def choose_method(method: str, confidence: float, bounded: bool, observations: Sequence[int | None]) -> str:
    """Return the method for so many independent observations of each side (None: it is whole), or raise if there is none.

    bounded : whether the range of the values is known
    """
    require(is_number(confidence) and 0 < confidence < 1, "a confidence between 0 and 1, such as 0.95", confidence)
    require(method in METHODS, f"method to be one of {', '.join(METHODS)}", repr(method))
    counts = [count for count in observations if count is not None]
    if not counts:
        return "exact"
    knows = "to know where the values lie (--range) for a bound by betting"
    require(bounded or method != "betting", knows, "no range")
    if bounded and method != "asymptotic":
        return "betting"
    least = f"at least {_FEWEST} independent samples of each distribution for an asymptotic interval"
    require(min(counts) >= _FEWEST, least, min(counts))
    return "asymptotic"


def _check_samples(
    xs: Tensor, ys: Tensor, value_range: Interval | None, whole: tuple[bool, bool], group: tuple[int, int]
) -> Interval | None:
    """Raise on samples and options that do not fit together; return the range, which bytes have by default."""
    for name, samples in (("xs", xs), ("ys", ys)):
        kind = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
        sized = isinstance(samples, Tensor) and samples.dim() >= 2 and len(samples) > 0
        require(sized, f"{name} as a tensor of samples (N, …)", kind)
    pairs = "whole and group for xs and for ys, such as (True, False) and (1, 64)"
    require(_are_two(whole, bool) and _are_two(group, int), pairs, f"{whole} and {group}")
    if value_range is None and torch.uint8 in (xs.dtype, ys.dtype):
        value_range = BYTES_RANGE
    if value_range is not None:
        ordered = _are_two(value_range, (int, float)) and -math.inf < value_range[0] < value_range[1] < math.inf
        require(ordered, "a value range such as (−1, 1)", value_range)
        value_range = float(value_range[0]), float(value_range[1])
    shapes = tuple(xs.shape[1:]), tuple(ys.shape[1:])
    require(shapes[0] == shapes[1], "xs and ys of one shape", f"samples of shape {shapes[0]} and {shapes[1]}")
    for name, samples, size in (("xs", xs, group[0]), ("ys", ys, group[1])):
        fits = size >= 1 and len(samples) % size == 0
        require(fits, f"a multiple of {size} samples (its group) in {name}", len(samples))
        check_range(samples, value_range, name)
    return value_range


def check_range(samples: Tensor, value_range: Interval | None, name: str) -> None:
    """Raise if samples are not bytes, or finite numbers in the range."""
    if samples.dtype == torch.uint8:
        return
    require(samples.is_floating_point(), f"{name} as bytes or as floating point", samples.dtype)
    require(bool(samples.isfinite().all()), f"finite numbers in {name}", "NaN or infinity")
    low, high = float(samples.min()), float(samples.max())
    bottom, top = value_range or (low, high)
    require(bottom <= low <= high <= top, f"values from {bottom:g} to {top:g} in {name}", f"{low:g} to {high:g}")


def _are_two(values: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(values, (tuple, list)) and len(values) == 2 and all(isinstance(value, kind) for value in values)
