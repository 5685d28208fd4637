"""The nearest adversarial example: right where it is known, honest everywhere, and never inside a certificate."""

import torch

from attacks.attack_reference import (
    Lead,
    assert_norms,
    easy_images,
    generator,
    grey_images,
    linear_classifier,
    linear_problem,
    small,
    wrong,
)
from isoconv.attacks.gradient import nearest
from isoconv.certify import Certifier


def test_it_finds_the_boundary_of_a_linear_classifier():
    """Never below the true distance, little above it; more rounds are never worse."""
    model, images, labels, least = linear_problem(20, 4, 12)
    told = []
    few = nearest(model, images, labels, rounds=1)
    many = nearest(model, images, labels, progress=lambda *state: told.append(state))
    assert bool(many.success.all()) and bool(many.clean.all())
    assert bool(((least * (1 - 1e-9) <= many.norms) & (many.norms <= few.norms)).all())
    assert float((many.norms / least).max()) < 1.02
    assert told == [(k, 8) for k in range(1, 9)]


def test_every_point_keeps_its_promises():
    model = linear_classifier(12, 4)
    images, labels = easy_images(model, 16, 12)
    labels[0] = (labels[0] + 1) % 4
    found = nearest(model, images, labels, rounds=3, steps=10)
    assert bool(wrong(model, found.images, labels)[found.success].all())
    assert_norms(images, found, found.epsilon)
    assert not bool(found.clean[0]) and float(found.norms[0]) == 0 and torch.equal(found.images[0], images[0])


def test_it_is_never_within_a_certified_radius():
    model = small()
    images = torch.rand(10, 1, 8, 8, generator=generator(), dtype=torch.float64)
    certified = Certifier(model, (1, 8, 8))(images)
    found = nearest(model, images, certified.prediction, certified=certified.radius)
    assert bool(found.success.all()) and bool((found.norms > certified.radius).all())
    without = nearest(model, images, certified.prediction)
    assert bool((without.norms > certified.radius).all())
    assert float((found.norms / without.norms).max()) < 1.3  # the same boundary, from either start


def test_nothing_is_found_where_there_is_nothing():
    images, labels = grey_images(3, 6), torch.zeros(3, dtype=torch.int64)
    found = nearest(Lead(lambda x: 1 + 1e-3 * x.sum(dim=1)), images, labels, rounds=2, steps=5)
    assert not bool(found.success.any()) and bool(found.clean.all())
    assert torch.equal(found.images, images) and float(found.norms.max()) == 0
    farthest = (images - (images < 0.5).double()).norm(dim=1)
    assert bool((found.epsilon >= farthest).all())  # it has looked in all of [0, 1]ⁿ
