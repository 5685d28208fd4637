"""From samples to the mean: confidence bounds that hold for every sample size, and asymptotic estimates.

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
from statistics import NormalDist

import torch
from torch import Tensor

_CAP = 0.95  # c: how much of the capital a single bet may lose
_PRIOR_VARIANCE = 1 / 64  # of one observation that was never made, so that the first bets are defined


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
