"""The attack on certificates refutes what is unsound, with proofs in rational numbers, and nothing that is sound."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from attacks import attack_reference as given
from attacks.attack_reference import assert_norms, exact_square, grey_images, lead, linear_problem
from isoconv.attacks import rounding_search


def cancelling(features):
    """Two logits, ⟨w, x⟩ and 0, the first as the difference of (2³⁰a + w)·x and 2³⁰a·x. And w, all of it exact.

    Over the real numbers it is as harmless as w; in float64 the difference of two large numbers is wrong by about 2⁻²³.
    """
    a, w = ((given.normal(features, seed=seed, dtype=torch.float32) * 64).round().double() / 64 for seed in (0, 1))
    a[0], w[0] = 1.0, 1.0
    first, second = nn.Linear(features, 2).double(), nn.Linear(2, 2).double()
    with torch.no_grad():
        first.weight.copy_(torch.stack([2.0**30 * a + w, 2.0**30 * a]))
        first.bias.copy_(-first.weight.sum(dim=1) / 2 + torch.tensor([0.125, 0.0]))
        second.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        second.bias.zero_()
    assert torch.equal(first.weight[0] - first.weight[1], w)
    return nn.Sequential(first, second), w


def test_a_badly_conditioned_network():
    """Its certificate over the real numbers, margin/‖w‖, rounded down: true there, and refuted where it is run."""
    model, w = cancelling(20)
    images = grey_images(6, 20)
    bias = [Fraction(value) for value in model[0].bias.tolist()]
    norm = sum(Fraction(v) ** 2 for v in w.tolist())

    def exact_margin(image):
        return bias[0] - bias[1] + sum(Fraction(v) * Fraction(p) for v, p in zip(w.tolist(), image, strict=True))

    margins = [exact_margin(image) for image in images.tolist()]
    radii = [float(abs(margin)) / float(norm) ** 0.5 * (1 - 1e-12) for margin in margins]
    # No real point within the radius has another sign.
    assert all(Fraction(radius) ** 2 * norm < margin**2 for radius, margin in zip(radii, margins, strict=True))
    predictions, claimed = torch.tensor([int(m <= 0) for m in margins]), torch.tensor(radii, dtype=torch.float64)
    result = rounding_search(model, images, predictions, claimed)
    assert bool(result.clean.all()) and bool(result.success.all())
    assert_norms(images, result, claimed)
    for point, prediction in zip(result.images, predictions, strict=True):
        assert (exact_margin(point.tolist()) > 0) == (prediction == 0)  # the real network is right there,
        batches = [(point.expand(n, -1), prediction.expand(n)) for n in (1, 2, 3, 8, 64)]
        assert any(
            bool(given.wrong(model, *batch).any()) for batch in batches
        )  # the one that runs is not, in some batch
    # A certificate that leaves room for the rounding: each of the two large numbers is wrong by less than
    # 22·2⁻⁵³·Σ|2³⁰a_i x_i| and the like for the bias, less than 1e-4 in all, and ‖w‖ ≥ 1.
    sound = (claimed - 1e-4).clamp_min(0)
    assert bool((sound > 0).any())
    assert not bool(rounding_search(model, images, predictions, sound).success.any())


@pytest.mark.parametrize("device", given.DEVICES)
@pytest.mark.parametrize("features", [12, 150])
def test_the_plain_radius_of_a_linear_classifier(features, device):
    """margin/‖w_t − w_j‖ in float64, without a thought for rounding, as Jin et al. broke it. A little less is sound:

    the logits' errors are below 152·2⁻⁵³·Σ|w_i x_i| < 2e-13 each, so that 1e-12 less leaves room for all of them.
    """
    model, images, predictions, radii = linear_problem(12, 3, features)
    result, careful = (rounding_search(model.to(device), images, predictions, radii - less) for less in (0, 1e-12))
    assert int(result.success.sum()) >= 4 and bool((result.margins[result.success] <= 0).all())
    assert not bool(careful.success.any()) and bool((careful.margins < 1e-10).all())  # it did get there
    assert_norms(images, result, radii)
    assert_norms(images, careful, radii - 1e-12)


def test_neighbours_find_what_the_line_does_not():
    """A little inside the radius, where it takes some luck with the rounding: more rounds refute more."""
    model, images, predictions, radii = linear_problem(12, 3, 150)
    few, many = (
        sum(int(rounding_search(model, images, predictions, radii - d, rounds=n).success.sum()) for d in (2e-16, 5e-16))
        for n in (1, 8)
    )
    assert many > few


def answer_otherwise_alone(x):
    """Another class for a batch of one image. Neighbouring floats have very different scores, all positive."""
    score = 1 + 0.5 * torch.sin(1e16 * x.sum(dim=1, keepdim=True))
    return torch.cat([score, -score], dim=1) * (-1 if len(x) == 1 else 1)


def test_batches_of_other_sizes_are_tried_and_what_is_out_of_reach_is_given_up():
    """A margin that rounding cannot change is not walked around: only the first round asks about it."""
    problem = grey_images(4, 3), torch.zeros(4, dtype=torch.int64), 1e-3
    result = rounding_search(given.Function(answer_otherwise_alone), *problem, steps=2, rounds=1)
    assert bool(result.clean.all()) and bool(result.success.all())
    steep, flat = (
        given.watch(rounding_search, model, *problem, steps=2, rounds=8, candidates=16)[1].count(64)
        for model in (given.Function(answer_otherwise_alone), lead(lambda x: 1 + x.sum(dim=1)))
    )
    assert flat == 1 and steep == 8


def test_only_points_that_are_exactly_inside_refute():
    """The network is right up to the last float below 1/2: a claim of 1/2 is refuted, a claim of that float is not.

    Nor is a claim of 1/2 where it is right up to there: beside (1/2, 0) lie floats whose square vanishes in float64.
    """
    images, labels, below = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4).long(), float(np.nextafter(0.5, 0))

    def right_within(radius, value):
        def first(x):
            outside = [exact_square(images[0], row) > Fraction(radius) ** 2 for row in x.detach()]
            return value(x) - 2 * torch.tensor(outside).to(x)

        return lead(first)

    diagonal, axis = right_within(below, lambda x: 1 - 1e-9 * x.sum(dim=1)), right_within(0.5, lambda x: 1 - x[:, 0])
    refuted = rounding_search(diagonal, images[:1], labels[:1], 0.5, steps=10, rounds=32)
    assert bool(refuted.success) and Fraction(below) ** 2 < exact_square(images[0], refuted.images[0]) <= Fraction(1, 4)
    sound = rounding_search(diagonal, images[:1], labels[:1], below, steps=10)
    assert_norms(images[:1], sound, below)
    assert not bool(sound.success) and not bool(rounding_search(axis, images, labels, 0.5, steps=10).success.any())


def test_a_radius_of_zero_claims_nothing():
    model, images, predictions, _ = linear_problem(4, 3, 6)
    predictions[:2] = (predictions[:2] + 1) % 3
    result = rounding_search(model, images, predictions, torch.tensor([0.0, 1e-5, 0.0, 1e-5], dtype=torch.float64))
    assert result.clean.tolist() == [False, False, True, True]
    assert result.success.tolist() == [False, True, False, False] and result.norms[:3].tolist() == [0, 0, 0]
