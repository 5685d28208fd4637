"""Pairs of distributions whose Wasserstein-1 distance is known: what an estimate can be checked against.

Note [Why the distances are exact]
By Kantorovich and Rubinstein, any coupling of P₁ and P₂ costs at least W1, and any 1-Lipschitz u gives at most W1:
E u(X) − E u(Y) ≤ W1(P₁, P₂) ≤ E‖X − Y‖. A pair is exact if some coupling and some u meet.

* Translations, Y = X + s: the coupling costs ‖s‖, and u(x) = −⟨x, s⟩/‖s‖ gives ‖s‖.
* One dimension: W1 = ∫|F₁ − F₂|, with the quantiles coupled.
* Radial pairs, X = R₁S and Y = R₂S with one law of directions S, independent of the radii: coupling equal directions and
  quantiles of the radii costs W1(R₁, R₂), and u(x) = g(‖x‖) gives the same, g the potential of the radii: x ↦ ‖x‖ is
  1-Lipschitz, so u is.
* Funnels (Korotin, Kolesov and Burnaev, 2022): u(x) = minₙ ‖x − aₙ‖ + bₙ is 1-Lipschitz, as a minimum of functions that
  are. Let n attain it at x, and y = aₙ + τ(x − aₙ) with 0 ≤ τ ≤ 1. Then u(x) − u(y) ≥ u(x) − ‖y − aₙ‖ − bₙ
  = ‖x − aₙ‖ − ‖y − aₙ‖ = ‖x − y‖, and being 1-Lipschitz u can do no more. So for every map T that moves each x towards
  its own aₙ, E u(X) − E u(T(X)) = E‖X − T(X)‖: potential and coupling meet, and that is W1 between the laws of X and
  T(X). Theirs is X uniform in the box [−2.5, 2.5]^D and, with the ray from aₙ through x that ends where it leaves the
  box or where another funnel becomes the lower one, T(aₙ + t·ray) = aₙ + t⁸·ray. Where exactly the rays end changes the
  pair but not the argument. E‖X − T(X)‖ itself is an average over many draws; its standard error is stated.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isoconv.data.seeds import epoch_generator
from isoconv.errors import IsoconvError

Draw = Callable[[int, torch.Generator], Tensor]

FUNNEL_DIMENSIONS = (2, 4, 8, 16, 32, 64, 128)
FUNNEL_COUNTS = (4, 16, 64, 256)


@dataclass(frozen=True)
class KnownPair:
    """Two distributions on ℝ^dimension, as functions that draw n vectors (float32, on the generator's device).

    The distance is exact up to `distance_error`, a standard error, where it is an average over draws. `support` is an
    interval that holds every coordinate of both, or None if there is none.
    """

    name: str
    dimension: int
    distance: float
    first: Draw
    second: Draw
    support: tuple[float, float] | None = None
    distance_error: float = 0.0


# Translations, one dimension, radial ------------------------------------------------------------------------------


def translation(dimension: int, length: float = 1.0, base: str = "normal", seed: int = 0) -> KnownPair:
    """A distribution and itself moved by `length` in a direction drawn from the seed.

    base : "normal", "uniform" in the box [−1, 1]^D, or "mixture" of four normal distributions far apart
    """
    _require_dimension(dimension)
    generator = epoch_generator(seed, 0, "translation")
    shift = torch.randn(dimension, generator=generator)
    shift *= length / torch.linalg.vector_norm(shift)
    centres = 4 * torch.randn(4, dimension, generator=generator)

    def first(n: int, generator: torch.Generator) -> Tensor:
        if base == "uniform":
            return 2 * _uniform(n, dimension, generator) - 1
        noise = _normal(n, dimension, generator)
        if base == "mixture":
            which = torch.randint(4, (n,), generator=generator, device=generator.device)
            return centres.to(noise.device)[which] + noise
        return noise

    if base not in ("normal", "uniform", "mixture"):
        raise IsoconvError(f"Expected base to be normal, uniform or mixture. Got {base!r}.")
    reach = 1 + float(shift.abs().max())
    return KnownPair(
        f"translation of a {base} distribution by {length:g}, D = {dimension}",
        dimension,
        length,
        first,
        lambda n, generator: first(n, generator) + shift.to(generator.device),
        (-reach, reach) if base == "uniform" else None,
    )


def line_pairs() -> list[KnownPair]:
    """One-dimensional pairs with W1 = ∫|F₁ − F₂| in closed form."""

    def exponential(mean: float) -> Draw:
        return lambda n, generator: -mean * torch.log1p(-_uniform(n, 1, generator))

    def coin(n: int, generator: torch.Generator) -> Tensor:
        return (_uniform(n, 1, generator) < 0.5).float() - 0.5

    return [
        KnownPair(
            "line: N(0, 1) and N(0, 4)",
            1,
            math.sqrt(2 / math.pi),
            lambda n, generator: _normal(n, 1, generator),
            lambda n, generator: 2 * _normal(n, 1, generator),
        ),
        KnownPair("line: exponential of mean 1 and 3", 1, 2.0, exponential(1.0), exponential(3.0)),
        KnownPair(
            "line: uniform and its eighth power",
            1,
            1 / 2 - 1 / 9,
            lambda n, generator: _uniform(n, 1, generator),
            lambda n, generator: _uniform(n, 1, generator) ** 8,
            (0.0, 1.0),
        ),
        KnownPair(
            "line: uniform in [−1, 1] and a coin of ±½",
            1,
            1 / 4,
            lambda n, generator: 2 * _uniform(n, 1, generator) - 1,
            coin,
            (-1.0, 1.0),
        ),
    ]


def radial_pairs(dimension: int) -> list[KnownPair]:
    """Pairs that differ in the law of the radius only: balls, normal distributions, a sphere between two others."""
    _require_dimension(dimension)
    mean_chi = math.sqrt(2) * math.exp(math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2))

    def ball(radius: float) -> Draw:
        return lambda n, generator: (
            radius * _uniform(n, 1, generator) ** (1 / dimension) * _directions(n, dimension, generator)
        )

    def between(n: int, generator: torch.Generator) -> Tensor:
        radii = 1.0 + 2.0 * (_uniform(n, 1, generator) < 0.5)
        return radii * _directions(n, dimension, generator)

    return [
        KnownPair(
            f"radial: balls of radius 1 and 2, D = {dimension}",
            dimension,
            dimension / (dimension + 1),
            ball(1.0),
            ball(2.0),
            (-2.0, 2.0),
        ),
        KnownPair(
            f"radial: N(0, I) and N(0, 4I), D = {dimension}",
            dimension,
            mean_chi,
            lambda n, generator: _normal(n, dimension, generator),
            lambda n, generator: 2 * _normal(n, dimension, generator),
        ),
        KnownPair(
            f"radial: the sphere of radius 2 and those of radius 1 and 3, D = {dimension}",
            dimension,
            1.0,
            lambda n, generator: 2 * _directions(n, dimension, generator),
            between,
            (-3.0, 3.0),
        ),
    ]


# Funnels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Funnels:
    """u(x) = minₙ ‖x − aₙ‖ + bₙ on the box [−half, half]^D, and the map along its rays; see the Note above."""

    centres: Tensor  # (N, D)
    offsets: Tensor  # (N,)
    half: float = 2.5
    power: float = 8.0

    def potential(self, x: Tensor) -> Tensor:
        """u, of a batch (n, D)."""
        exact = "donot_use_mm_for_euclid_dist"  # the fast way loses half of the digits next to a centre
        return (torch.cdist(x, self.centres.to(x), compute_mode=exact) + self.offsets.to(x)).amin(dim=1)

    def transport(self, x: Tensor) -> Tensor:
        """T(x) = aₙ + t^power·ray for x = aₙ + t·ray."""
        centres, offsets = self.centres.to(x), self.offsets.to(x)
        nearest = (torch.cdist(x, centres) + offsets).argmin(dim=1)
        start = centres[nearest]
        along = x - start
        length = torch.linalg.vector_norm(along, dim=1, keepdim=True)
        direction = along / length.clamp_min(torch.finfo(x.dtype).tiny)
        # Where the ray leaves the box: the first wall that it reaches.
        walls = (self.half - direction.sign() * start) / direction.abs().clamp_min(torch.finfo(x.dtype).tiny)
        # Where funnel m becomes the lower one: ‖Δ + s·v‖ = s + c with Δ = aₙ − aₘ and c = bₙ − bₘ, linear in s.
        inner = (direction * start).sum(dim=1, keepdim=True) - direction @ centres.mT
        c = offsets[nearest][:, None] - offsets
        gaps = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")[nearest]
        meets = (gaps.square() - c.square()) / (2 * (c - inner))
        another = torch.arange(len(centres), device=x.device) != nearest[:, None]
        meets = torch.where(another & (c - inner > 0), meets, torch.inf)
        end = torch.minimum(walls.amin(dim=1, keepdim=True), meets.amin(dim=1, keepdim=True))
        t = (length / end.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
        return start + along * t ** (self.power - 1)


def make_funnels(dimension: int, count: int, seed: int = 0) -> Funnels:
    """aₙ uniform in [−2.5, 2.5]^D and bₙ normal of standard deviation 0.1, as in the benchmark."""
    _require_dimension(dimension)
    if count < 1:
        raise IsoconvError(f"Expected at least one funnel. Got {count}.")
    generator = epoch_generator(seed, 0, f"funnels {dimension} {count}")
    centres = 5 * torch.rand(count, dimension, generator=generator, dtype=torch.float64) - 2.5
    return Funnels(centres, 0.1 * torch.randn(count, generator=generator, dtype=torch.float64))


def funnel_pair(dimension: int, count: int, seed: int = 0, draws: int = 2**17) -> KnownPair:
    """The law of T(X) and that of X, uniform in the box, for `count` funnels; the distance from `draws` draws in float64."""
    funnels = make_funnels(dimension, count, seed)
    distance, error = _funnel_distance(dimension, count, seed, draws)

    def uniform(n: int, generator: torch.Generator) -> Tensor:
        return 2 * funnels.half * _uniform(n, dimension, generator) - funnels.half

    return KnownPair(
        f"funnels: N = {count}, D = {dimension}",
        dimension,
        distance,
        uniform,
        lambda n, generator: funnels.transport(uniform(n, generator)),
        (-funnels.half, funnels.half),
        error,
    )


@functools.cache
def _funnel_distance(dimension: int, count: int, seed: int, draws: int) -> tuple[float, float]:
    """E‖X − T(X)‖ and its standard error."""
    funnels = make_funnels(dimension, count, seed)
    generator = epoch_generator(seed, 0, "distance of funnels")
    moved = []
    for start in range(0, draws, 8192):
        n = min(8192, draws - start)
        x = 2 * funnels.half * torch.rand(n, dimension, generator=generator, dtype=torch.float64) - funnels.half
        moved.append(torch.linalg.vector_norm(x - funnels.transport(x), dim=1))
    lengths = torch.cat(moved)
    return float(lengths.mean()), float(lengths.std()) / math.sqrt(draws)


def _uniform(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, dimension, generator=generator, device=generator.device)


def _normal(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, dimension, generator=generator, device=generator.device)


def _directions(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    normal = _normal(n, dimension, generator)
    return normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)


def _require_dimension(dimension: int) -> None:
    if dimension < 1:
        raise IsoconvError(f"Expected a dimension of at least 1. Got {dimension}.")
