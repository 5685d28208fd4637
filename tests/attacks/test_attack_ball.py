"""Norms that are proved against norms in rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from attacks.attack_reference import DEVICES, assert_norms, exact_square, normal, uniform
from isoconv.attacks.ball import exactly_inside, excess, into_ball, norm_bound

devices = pytest.mark.parametrize("device", DEVICES)
shapes = pytest.mark.parametrize("shape", [(1,), (5,), (1, 12, 12)])


def images_of(shape, count=4):
    """Random ones with black, white and nearly black pixels among them."""
    images = uniform(count, *shape, seed=0)
    kinds = torch.randint(8, images.shape, generator=torch.Generator().manual_seed(1))
    for kind, value in enumerate((0, 1, 1e-310)):
        images[kinds == kind] = value
    return images


@devices
@shapes
@pytest.mark.parametrize("size", [1e-320, 1e-160, 1e-12, 0.5])
def test_norm_bound(shape, size, device):
    images = images_of(shape) if size > 1e-20 else torch.zeros(4, *shape, dtype=torch.float64)
    points = images + size * normal(4, *shape, seed=2)
    bounds = norm_bound(images.to(device), points.to(device)).cpu()
    for image, point, bound in zip(images, points, bounds.tolist(), strict=True):
        truth = exact_square(image, point)
        nearly = max(Fraction(bound) - 3 * Fraction(5e-324), Fraction(0))  # subnormal numbers have no more digits
        assert truth <= Fraction(bound) ** 2 and nearly**2 <= truth * (1 + Fraction(image.numel() + 20, 2**52)) ** 2


@devices
def test_norm_bound_where_float64_loses_terms(device):
    """One large coordinate, and many whose squares are each less than half of a last place: most of them are lost."""
    points = torch.full((1, 500), 0.99 * 2.0**-26.5, dtype=torch.float64, device=device)
    points[0, 0] = 1
    images = torch.zeros_like(points)
    truth = exact_square(images[0], points[0])
    assert truth <= Fraction(float(norm_bound(images, points)[0])) ** 2
    assert device != "cpu" or truth - Fraction(float(points.square().sum())) > Fraction(8, 2**52)


@devices
@shapes
@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1e-200, 1e-17, 1e-4, 10.0])
def test_into_ball(shape, epsilon, device):
    images, directions = images_of(shape), normal(4, *shape, seed=3)
    spoilt = images + directions
    spoilt.flatten()[0], spoilt.flatten()[-1] = torch.nan, torch.inf
    edge = images + epsilon * torch.nn.functional.normalize(directions.flatten(1)).reshape(images.shape)
    for candidates in (edge, images + 3 * directions, spoilt, images):
        moved = into_ball(*(t.to(device) for t in (images, candidates, torch.full((4,), epsilon, dtype=torch.float64))))
        assert_norms(images, [t.cpu() for t in moved], epsilon)


def test_the_budget_is_used_and_what_is_inside_stays():
    images, directions = 0.25 + 0.5 * uniform(6, 3, 8, 8, seed=0), normal(6, 3, 8, 8, seed=3)
    for epsilon in (1e-9, 36 / 255):
        _, norms = into_ball(images, images + directions, torch.full((6,), epsilon, dtype=torch.float64))
        assert bool((norms >= epsilon * (1 - 1e-5)).all())
    candidates = (images + 0.1 * directions).clamp(0, 1)
    points, _ = into_ball(images, candidates, torch.full((6,), 5.0, dtype=torch.float64))
    assert bool(((points - candidates).abs() <= 2.0**-52).all())


@shapes
def test_exact_comparisons(shape):
    """Radii around the true norm, one float after the other: both ways to decide agree with rational numbers."""
    images = images_of(shape, 2)
    seen = set()
    for image, point in zip(images, (images + 0.01 * normal(2, *shape, seed=5)).clamp(0, 1), strict=True):
        truth = exact_square(image, point)
        nearest = np.float64(float(truth) ** 0.5)
        for places in range(-4, 4):
            radius = float(nearest + places * np.spacing(nearest))
            inside = truth <= Fraction(radius) ** 2
            assert exactly_inside(image, point, radius) is inside
            assert (float(excess(image[None], point[None], torch.tensor([radius], dtype=torch.float64))) <= 0) is inside
            seen.add(inside)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("image", "point", "radius"),
    [([0.0, 0.0], [1.0, 3 * 2.0**-50], 1.0), ([3 * 2.0**-55], [1 - 2.0**-53], 1 - 2.0**-52)],
)
def test_what_float64_does_not_see(image, point, radius):
    """3·2⁻⁵⁰ too far in one coordinate: the squares differ in the hundredth bit. And a difference that is no float:

    1 − 2⁻⁵³ − 3·2⁻⁵⁵ is rounded down to 1 − 2⁻⁵², which it exceeds. A norm of exactly the radius is inside.
    """
    image, point = (torch.tensor(values, dtype=torch.float64) for values in (image, point))
    assert float((point - image).norm()) == radius and not exactly_inside(image, point, radius)
    truth = exact_square(image, point) - Fraction(radius) ** 2
    result = excess(image[None], point[None], torch.tensor([radius], dtype=torch.float64))
    assert float(result) == pytest.approx(float(truth), rel=1e-9, abs=0)
    assert exactly_inside(torch.zeros(1), torch.ones(1), 1.0)
