"""The lower bound: never above the truth, in the right units, with the confidence that it states."""

import math
from fractions import Fraction

import pytest
import torch
from scipy.stats import binom, norm, t, ttest_ind
from torch import nn

from benchmarks.known_distances import exact_distance, funnel_pair, make_funnels, radial_pairs, translation
from isoconv.certify import lipschitz_bound
from isoconv.models import Small
from isoconv.nn import Scale, plain
from isoconv.wasserstein.bound import betting_lower_bound, critic_bounds, student_quantile, wasserstein_lower_bound
from isoconv.wasserstein.vector_critic import FCCritic, NearestAnchor

WHOLE = (True, True)


def true_critic(dimension, count):
    """The funnels' own potential, in float64."""
    funnels = make_funnels(dimension, count)
    critic = NearestAnchor(funnels.centres)
    with torch.no_grad():
        critic.raw_offsets.copy_(funnels.offsets * 8)
    return critic


def critics(features):
    torch.manual_seed(0)
    return {
        "fc": FCCritic(features, 32, 2),
        "relu": FCCritic(features, 32, 2, activation="relu"),
        "linear": FCCritic(features, depth=0),
        "scaled": FCCritic(features, 32, 1, scale=8.0),
        "peaks": nn.Sequential(Scale(0.5), NearestAnchor(torch.randn(20, features), sign=-1)),
        "layers, wells": nn.Sequential(*list(FCCritic(features, 32, 1))[:-1], NearestAnchor(torch.randn(20, 32))),
        "unconstrained": nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1)),
    }


def scores(critic, *sides):
    """The deployed network's values in float64."""
    with torch.no_grad():
        return [plain(critic).double()(side.double()).flatten() for side in sides]


# Never above the truth --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", critics(2))
def test_on_the_same_samples_no_critic_exceeds_the_exact_distance(name):
    """Trained for this very purpose, with no regard for anything but the difference."""
    xs, ys = radial_pairs(4)[2].draw(60)
    critic, truth = critics(4)[name], exact_distance(xs, ys)
    optimiser = torch.optim.Adam(critic.parameters(), 0.02)
    for _ in range(30):
        optimiser.zero_grad()
        (critic(ys).mean() - critic(xs).mean()).backward()
        optimiser.step()
    found = wasserstein_lower_bound(critic, xs, ys, whole=WHOLE)
    assert found.method == "exact"
    assert found.lower <= found.estimate <= truth < 20 * found.estimate


@pytest.mark.parametrize("support", [True, False], ids=["betting", "asymptotic"])
def test_at_its_confidence_the_bound_exceeds_the_truth_no_more_often_than_it_may(support):
    """With the best critic there is: its value is the distance itself, so nothing but the confidence keeps it below."""
    pair, critic = funnel_pair(4, 16, draws=2**17), true_critic(4, 16)
    trials, confidence, above = 100, 0.9, 0
    for trial in range(trials):
        xs, ys = pair.draw(80, seed=trial)
        found = wasserstein_lower_bound(critic, xs, ys, confidence, value_range=pair.support if support else None)
        assert found.method == ("betting" if support else "asymptotic")
        above += found.lower > pair.distance
    assert above <= binom.ppf(0.9999, trials, 1 - confidence)
    assert support or above > 0  # or the test could not fail


def test_the_true_potential_finds_the_distance():
    pair = funnel_pair(8, 16, draws=2**17)
    xs, ys = pair.draw(20_000)
    found = wasserstein_lower_bound(true_critic(8, 16), xs, ys, value_range=pair.support)
    assert found.estimate == pytest.approx(pair.distance, rel=0.02)
    assert 0.96 * pair.distance < found.lower < found.estimate


def test_the_box_holds_every_value_of_the_critic():
    """A fifth of the samples lies in the corner where a linear critic is lowest, and their mean is that of the others:

    an interval that left out the corner would take them for higher than they are, and prove a distance.
    """
    xs = torch.where(torch.arange(4000)[:, None] % 5 == 0, -1.0, 0.25).expand(4000, 9).contiguous()
    critic = nn.Linear(9, 1)
    with torch.no_grad():
        critic.weight.fill_(1 / 3)
    found = wasserstein_lower_bound(critic, xs, torch.zeros(1, 9), whole=(False, True), value_range=(-1, 1))
    assert found.method == "betting" and found.lower == 0 and -0.3 < found.interval[0] < 0 < found.interval[1] < 0.3


# The sound constant and the units ---------------------------------------------------------------------------------


def test_the_estimate_is_divided_by_the_proved_constant():
    xs, ys = translation(6, 2.0).draw(400)
    torch.manual_seed(0)
    critic = FCCritic(6, 32, 2)
    found = wasserstein_lower_bound(critic, xs, ys)
    u, v = scores(critic, xs, ys)
    assert found.lipschitz_bound == lipschitz_bound(critic, (6,)).value
    assert found.estimate == pytest.approx(float(u.mean() - v.mean()) / found.lipschitz_bound, rel=1e-12)
    steeper = wasserstein_lower_bound(nn.Sequential(critic, Scale(1000.0)), xs, ys)
    assert steeper.lipschitz_bound == pytest.approx(1000, rel=1e-4)
    assert steeper.estimate == pytest.approx(found.estimate, rel=1e-9)


def test_bytes_are_pixels_of_the_range_that_is_asked_for():
    critic = FCCritic(3 * 4 * 4, depth=0)
    dark = torch.randint(0, 100, (50, 3, 4, 4), dtype=torch.uint8)
    light = torch.randint(100, 256, (50, 3, 4, 4), dtype=torch.uint8)
    paper = wasserstein_lower_bound(critic, dark, light, whole=WHOLE)
    unit = wasserstein_lower_bound(critic, dark, light, whole=WHOLE, value_range=(0.0, 1.0))
    floats = wasserstein_lower_bound(critic, dark.double() / 255, light.double() / 255, whole=WHOLE)
    assert paper.estimate == pytest.approx(2 * unit.estimate, rel=1e-9)
    assert unit.estimate == pytest.approx(floats.estimate, rel=1e-9)
    assert paper.units == "L2 distance between images of 3×4×4, pixels from -1 to 1"
    assert unit.units == "L2 distance between images of 3×4×4, pixels from 0 to 1"
    assert floats.units == "L2 distance between images of 3×4×4"


def test_float32_weights_run_in_float64_and_the_rounding_is_bounded():
    """The bound of the rounding holds for the anchors' own distances, against rational arithmetic, and is not idle."""
    images = torch.rand(4, 1, 16, 16)
    found = wasserstein_lower_bound(Small((1, 16, 16), classes=1), images, images.flip(0), whole=WHOLE)
    assert 0 < found.rounding < 1e-6 and found.interval[1] - found.interval[0] < 1e-6
    errors, origin = [], torch.zeros(1, 3, dtype=torch.float64)
    for anchor in 1e5 * torch.randn(20, 3):
        critic = plain(NearestAnchor(anchor[None])).eval().double()
        constant, error = critic_bounds(critic, (3,))
        value = Fraction(float(critic(origin).detach()))
        square = sum(Fraction(x) ** 2 for x in anchor.tolist())
        errors.append(abs(value**2 - square) / (2 * value))  # nearly that of the root
        assert 1 <= constant < 1 + 1e-15 and errors[-1] <= Fraction(error.offset) < Fraction(1, 10**9)
    assert max(errors) > Fraction(1, 10**13)


# Confidence -------------------------------------------------------------------------------------------------------


def test_whole_distributions_leave_nothing_to_chance():
    xs, ys = translation(3, 1.0).draw(40)
    torch.manual_seed(0)
    critic = FCCritic(3, 16, 1)
    results = [wasserstein_lower_bound(critic, xs, ys, whole=sides) for sides in (WHOLE, (True, False), (False, False))]
    widths = [found.interval[1] - found.interval[0] for found in results]
    assert widths[0] < 1e-9 < widths[1] < widths[2] and len({found.estimate for found in results}) == 1
    bounded = wasserstein_lower_bound(critic, xs, ys, whole=(True, False), value_range=(-9, 9))
    low, high = bounded.interval
    assert bounded.method == "betting" and low < bounded.estimate < high
    mirrored = wasserstein_lower_bound(critic, ys, xs, whole=(False, True), value_range=(-9, 9))
    assert mirrored.interval == pytest.approx((-high, -low), rel=1e-6)


@pytest.mark.parametrize("value_range", [None, (-9.0, 9.0)], ids=["asymptotic", "betting"])
def test_a_batch_of_dependent_samples_is_one_observation(value_range):
    xs, ys = translation(3, 1.0).draw(60)
    copies = xs.repeat_interleave(8, dim=0)  # eight times the same: no more is known than before
    torch.manual_seed(0)
    critic = FCCritic(3, 16, 1)
    honest = wasserstein_lower_bound(critic, copies, ys, group=(8, 1), value_range=value_range)
    single = wasserstein_lower_bound(critic, xs, ys, value_range=value_range)
    naive = wasserstein_lower_bound(critic, copies, ys, value_range=value_range)
    assert honest.interval == pytest.approx(single.interval, rel=1e-6)
    assert honest.observations == (60, 60) and honest.samples == (480, 60)
    assert value_range is not None or naive.interval[0] > honest.interval[0]


def test_the_asymptotic_interval_is_welchs():
    (xs, ys), critic = radial_pairs(2)[1].draw(50), FCCritic(2, depth=0)
    ys = torch.cat([ys, ys[:30] * 2])
    found = wasserstein_lower_bound(critic, xs, ys, 0.9)
    welch = ttest_ind(*scores(critic, xs, ys), equal_var=False)
    one_sided = welch.confidence_interval(0.8)[0] / found.lipschitz_bound
    assert found.lower == pytest.approx(max(0.0, one_sided), rel=1e-3)
    interval = tuple(end / found.lipschitz_bound for end in welch.confidence_interval(0.9))
    assert found.interval == pytest.approx(interval, rel=1e-3)


@pytest.mark.parametrize(("probability", "degrees"), [(0.05, 20), (0.9, 29.5), (0.9999, 20), (0.95, 1e6)])
def test_students_quantile(probability, degrees):
    assert student_quantile(probability, degrees) == pytest.approx(float(t.ppf(probability, degrees)), rel=2e-3)
    assert student_quantile(probability, math.inf) == pytest.approx(float(norm.ppf(probability)), rel=1e-9)


@pytest.mark.parametrize("rare", [0.02, 0.9])
def test_betting_covers_what_the_normal_approximation_does_not(rare):
    """Coins: without tails in 60 throws, every third time, its standard error is zero. Betting fails as it may."""
    trials, n, risk = 200, 60, 0.1
    generator = torch.Generator().manual_seed(0)
    failures = sum(
        betting_lower_bound((torch.rand(n, generator=generator) < 1 - rare).double(), 0.0, 1.0, risk) > 1 - rare
        for _ in range(trials)
    )
    assert failures <= binom.ppf(0.9999, trials, risk)


@pytest.mark.parametrize("n", [7, 200])
def test_every_bet_is_made_before_its_value_is_shown(n):
    """The game of Note [Betting] one round after the other: its capital reaches 1/risk exactly below the bound."""
    values, risk = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).tolist(), 0.1

    def log_capital(candidate):
        capital, total, spread = 0.0, 0.5, 1 / 64
        for seen, z in enumerate(values, start=1):
            bet = min(math.sqrt(2 * math.log(1 / risk) * seen / (n * spread)), 0.95 / candidate)
            capital += math.log1p(bet * (z - candidate))
            spread, total = spread + (z - total / seen) ** 2, total + z
        return capital

    bound = betting_lower_bound(torch.tensor(values, dtype=torch.float64), 0.0, 1.0, risk)
    assert betting_lower_bound(torch.zeros(n), 0.0, 1.0, risk) == 0
    assert log_capital(bound * (1 - 1e-5)) > math.log(1 / risk) > log_capital(bound * (1 + 1e-5))


def test_more_confidence_is_a_lower_bound():
    pair, critic = translation(3, 5.0, "uniform"), FCCritic(3, depth=0)
    xs, ys = pair.draw(500)
    with torch.no_grad():
        critic[-1].matrix.copy_(nn.functional.normalize((xs - ys).mean(dim=0, keepdim=True)))
    for value_range in (None, pair.support):
        lows = [wasserstein_lower_bound(critic, xs, ys, c, value_range=value_range).lower for c in (0.5, 0.95, 0.9999)]
        assert 4 < lows[2] < lows[1] < lows[0] < 5.1


@pytest.mark.parametrize("distance", [3e-162, 1e-150])
def test_distances_whose_squares_vanish(distance):
    xs, ys = (torch.full((1, 1), value, dtype=torch.float64) for value in (distance, 0.0))
    critic = nn.Sequential(NearestAnchor(ys.clone()))
    assert wasserstein_lower_bound(critic, xs, ys, whole=WHOLE).lower <= distance
