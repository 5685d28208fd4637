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
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from isoconv.data import epoch_generator

Draw = Callable[[int, torch.Generator], Tensor]


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

    def draw(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return n vectors of each distribution."""
        generator = torch.Generator().manual_seed(seed)
        return self.first(n, generator), self.second(n, generator)


def exact_distance(xs: Tensor, ys: Tensor) -> float:
    """W1 of two samples of one size: the cheapest assignment."""
    xs, ys = (side.double().flatten(1) for side in (xs, ys))
    cost = torch.cdist(xs, ys, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return float(cost[linear_sum_assignment(cost)].mean())


def _uniform(dimension: int, low: float = 0.0, high: float = 1.0) -> Draw:
    return lambda n, g: (high - low) * torch.rand(n, dimension, generator=g, device=g.device) + low


def _normal(dimension: int, deviation: float = 1.0) -> Draw:
    return lambda n, g: deviation * torch.randn(n, dimension, generator=g, device=g.device)


# Translations, one dimension, radial ------------------------------------------------------------------------------


def translation(dimension: int, length: float = 1.0, base: str = "normal", seed: int = 0) -> KnownPair:
    """A distribution and itself moved by `length` in a direction drawn from the seed.

    base : "normal", "uniform" in the box [−1, 1]^D, or "mixture" of four normal distributions far apart
    """
    generator = epoch_generator(seed, 0, "translation")
    shift = torch.randn(dimension, generator=generator)
    shift *= length / torch.linalg.vector_norm(shift)
    centres = 4 * torch.randn(4, dimension, generator=generator)

    def mixture(n: int, generator: torch.Generator) -> Tensor:
        noise = _normal(dimension)(n, generator)
        return centres.to(noise.device)[torch.randint(4, (n,), generator=generator, device=noise.device)] + noise

    first = {"normal": _normal(dimension), "uniform": _uniform(dimension, -1, 1), "mixture": mixture}[base]
    reach, name = 1 + float(shift.abs().max()), f"translation of a {base} distribution by {length:g}, D = {dimension}"
    support = (-reach, reach) if base == "uniform" else None
    return KnownPair(name, dimension, length, first, lambda n, g: first(n, g) + shift.to(g.device), support)


def line_pairs() -> list[KnownPair]:
    """One-dimensional pairs with W1 = ∫|F₁ − F₂| in closed form."""
    uniform = _uniform(1)

    def exponential(mean: float) -> Draw:
        return lambda n, generator: -mean * torch.log1p(-uniform(n, generator))

    eighth_power, coin = lambda n, g: uniform(n, g) ** 8, lambda n, g: (uniform(n, g) < 0.5).float() - 0.5
    return [
        KnownPair("line: N(0, 1) and N(0, 4)", 1, math.sqrt(2 / math.pi), _normal(1), _normal(1, 2.0)),
        KnownPair("line: exponential of mean 1 and 3", 1, 2.0, exponential(1.0), exponential(3.0)),
        KnownPair("line: uniform and its eighth power", 1, 1 / 2 - 1 / 9, uniform, eighth_power, (0.0, 1.0)),
        KnownPair("line: uniform in [−1, 1] and a coin of ±½", 1, 1 / 4, _uniform(1, -1, 1), coin, (-1.0, 1.0)),
    ]


def radial_pairs(dimension: int) -> list[KnownPair]:
    """Pairs that differ in the law of the radius only: balls, normal distributions, a sphere between two others."""
    mean_chi = math.sqrt(2) * math.exp(math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2))
    uniform, normal = _uniform(1), _normal(dimension)

    def sphere(n: int, generator: torch.Generator) -> Tensor:
        return torch.nn.functional.normalize(normal(n, generator), eps=0.0)

    def ball(radius: float) -> Draw:
        return lambda n, generator: radius * uniform(n, generator) ** (1 / dimension) * sphere(n, generator)

    def spheres(n: int, generator: torch.Generator) -> Tensor:
        return (1.0 + 2.0 * (uniform(n, generator) < 0.5)) * sphere(n, generator)

    names = ("balls of radius 1 and 2", "N(0, I) and N(0, 4I)", "the sphere of radius 2 and those of radius 1 and 3")
    balls, normals, between = (f"radial: {name}, D = {dimension}" for name in names)
    return [
        KnownPair(balls, dimension, dimension / (dimension + 1), ball(1.0), ball(2.0), (-2.0, 2.0)),
        KnownPair(normals, dimension, mean_chi, normal, _normal(dimension, 2.0)),
        KnownPair(between, dimension, 1.0, lambda n, g: 2 * sphere(n, g), spheres, (-3.0, 3.0)),
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
    generator = epoch_generator(seed, 0, f"funnels {dimension} {count}")
    centres = 5 * torch.rand(count, dimension, generator=generator, dtype=torch.float64) - 2.5
    return Funnels(centres, 0.1 * torch.randn(count, generator=generator, dtype=torch.float64))


@functools.cache
def funnel_pair(dimension: int, count: int, seed: int = 0, draws: int = 2**17) -> KnownPair:
    """The law of T(X) and that of X, uniform in the box, for `count` funnels; the distance from `draws` draws in float64."""
    funnels = make_funnels(dimension, count, seed)
    box = (-funnels.half, funnels.half)
    uniform, generator = _uniform(dimension, *box), epoch_generator(seed, 0, "distance of funnels")
    lengths = []  # ‖x − T(x)‖
    for start in range(0, draws, 8192):
        n = min(8192, draws - start)
        x = 2 * funnels.half * torch.rand(n, dimension, generator=generator, dtype=torch.float64) - funnels.half
        lengths.append(torch.linalg.vector_norm(x - funnels.transport(x), dim=1))
    distance, error = float(torch.cat(lengths).mean()), float(torch.cat(lengths).std()) / math.sqrt(draws)
    name = f"funnels: N = {count}, D = {dimension}"
    return KnownPair(name, dimension, distance, uniform, lambda n, g: funnels.transport(uniform(n, g)), box, error)
