"""Attacks on the certificates themselves: no point of a certified ball is classified otherwise, by any search we know."""

from fractions import Fraction
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import METHODS, distance_square, images, labelled_images, linear_classifier, trained_small
from isoconv.certify import Certified, certify
from isoconv.nn import Abs, MaxMin

attacks = pytest.importorskip("isoconv.attacks")

IMAGES = 4


def margins(network: nn.Module, points: Tensor, classes: Tensor) -> Tensor:
    """y_t − max_{j ≠ t} y_j: not positive where another class wins, or ties."""
    logits = network(points)
    own = logits.gather(1, classes[:, None])[:, 0]
    return own - logits.scatter(1, classes[:, None], -torch.inf).amax(dim=1)


def clipped(delta: Tensor, radius: Tensor) -> Tensor:
    """Onto the ball: a little inside, so that rounding does not carry it out again."""
    length = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    scale = (radius * (1 - 1e-14) / length.clamp_min(1e-300)).clamp_max(1)
    return delta * scale.reshape(-1, *[1] * (delta.dim() - 1))


def pgd_on_the_margin(
    network: nn.Module, x: Tensor, classes: Tensor, radius: Tensor, steps: int = 60, restarts: int = 3, seed: int = 0
) -> Tensor:
    """For every image the point of the ball with the smallest margin seen, in float64, not kept within [0, 1].

    The first restart begins at the image, the others at random points of the sphere; steps fall linearly to nothing.
    """
    count = len(x)
    x, classes, radius = (t.repeat_interleave(restarts, dim=0) for t in (x, classes, radius))
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    delta = clipped(delta * 1e6, radius)
    delta[::restarts] = 0
    best, lowest = delta.clone(), torch.full_like(radius, torch.inf)
    for step in range(steps + 1):
        delta.requires_grad_()
        margin = margins(network, x + delta, classes)
        (gradient,) = torch.autograd.grad(margin.sum(), delta)
        delta = delta.detach()
        lower = margin.detach() < lowest
        lowest = torch.where(lower, margin.detach(), lowest)
        best[lower] = delta[lower]
        length = torch.linalg.vector_norm(gradient.flatten(1), dim=1).clamp_min(1e-300)
        size = radius * (2 - 1.9 * step / steps) / length
        delta = clipped(delta - gradient * size.reshape(-1, *[1] * (x.dim() - 1)), radius)
    choice = lowest.reshape(count, restarts).argmin(dim=1) + torch.arange(count) * restarts
    return (x + best)[choice]


def refuted(network: nn.Module, x: Tensor, points: Tensor, classes: Tensor, radius: Tensor) -> list[int]:
    """The images whose point is inside the ball, exactly, and classified otherwise (or tied) in float64."""
    with torch.no_grad():
        wrong = (margins(network, points, classes) <= 0) & (radius > 0)
    squares = {n: distance_square(points[n], x[n]) for n in wrong.nonzero()[:, 0].tolist()}
    return [n for n, square in squares.items() if square <= Fraction(radius[n].item()) ** 2]


class Case:
    """A trained network, images and their certificates."""

    def __init__(self, method: str) -> None:
        shape = (1 + 2 * (METHODS.index(method) % 2), 8, 8)
        self.method, self.model = method, trained_small(method, shape)
        self.network = isoconv.plain(self.model).double().eval()
        self.x, _ = labelled_images(IMAGES, shape, seed=0)
        self.found: Certified = certify(self.model, self.x)

    def search(self, times: float) -> list[int]:
        """Return the images refuted at so many times their radius."""
        radius, prediction = times * self.found.radius, self.found.prediction
        points = pgd_on_the_margin(self.network, self.x, prediction, radius)
        with torch.no_grad():
            near, clean = (margins(self.network, at, prediction) for at in (points, self.x))
        assert (near < 0.8 * clean).any()  # it does come closer to the boundary than the image is
        return refuted(self.network, self.x, points, prediction, radius)


@pytest.fixture(params=METHODS, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_pgd_on_the_margin(case: Case) -> None:
    assert (case.found.radius > 0).sum() >= IMAGES - 1 and case.search(1.0) == []


@pytest.mark.parametrize("case", METHODS[::2], indirect=True)
def test_attacks_of_the_library(case: Case) -> None:
    arguments = (case.model, case.x, case.found.prediction, case.found.radius)
    results = {
        "pgd": attacks.pgd(*arguments, steps=20, step_size=0.05, restarts=1),
        "fgsm": attacks.fgsm(*arguments),
        "apgd": attacks.apgd(*arguments, steps=20),
        "rounding_search": attacks.rounding_search(*arguments, steps=20, rounds=2, candidates=16),
    }
    if case.method == "bcop" and find_spec("foolbox"):
        results["boundary"] = attacks.boundary(*arguments, steps=50)
        results["pointwise"] = attacks.pointwise(*arguments, queries=500)
    for name, result in results.items():
        assert not (result.success & (case.found.radius > 0)).any(), name
        assert refuted(case.network, case.x, result.images, case.found.prediction, case.found.radius) == [], name


def test_the_search_has_teeth() -> None:
    """At 1.5 times the radius it refutes certificates."""
    assert Case("bcop").search(1.5) and Case("soc").search(1.5)


@pytest.mark.parametrize("activation", [MaxMin, Abs])
def test_a_radius_that_is_a_millionth_too_large_is_refuted(activation: type[nn.Module]) -> None:
    """Orthogonal matrices and gradients that keep their norm: the bound is tight, and the search finds the edge of it."""
    first, second = (torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q for _ in range(2))
    layers = linear_classifier(first, torch.randn(8)), activation(), linear_classifier(second[:2], None)
    model, x = nn.Sequential(*layers).double(), images(24, 8, seed=1)
    found = certify(model, x)
    for radius, expected in ((found.radius, False), (found.radius * (1 + 1e-6), True)):
        points = pgd_on_the_margin(model, x, found.prediction, radius, steps=200, restarts=5)
        assert bool(refuted(model, x, points, found.prediction, radius)) == expected


@pytest.mark.parametrize("conv", ["bcop", "rko"])
def test_float32_certificates(conv: str) -> None:
    """Certified for float32: attacked in float32, judged in float32, in batches of several sizes and orders."""
    model, (x, _) = trained_small(conv, (1, 8, 8)), labelled_images(IMAGES, (1, 8, 8), seed=0)
    x = x.float().double()
    found = certify(model, x, arithmetic="float32")
    single = isoconv.plain(model).float().eval()
    assert (found.radius > 0).sum() >= IMAGES // 2
    points = pgd_on_the_margin(isoconv.plain(model).double(), x, found.prediction, found.radius * (1 - 1e-5)).float()
    with torch.no_grad():
        for size in (1, 3, IMAGES):
            predictions = torch.cat([single(batch).argmax(dim=1) for batch in points.split(size)])
            assert ((predictions == found.prediction) | (found.radius == 0)).all()
