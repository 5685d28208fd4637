"""The attack on certificates refutes what is unsound, with proofs in rational numbers, and nothing that is sound."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.attack_reference import (
    DEVICES,
    Lead,
    assert_norms,
    exact_square,
    generator,
    grey_images,
    linear_problem,
    watch,
    wrong,
)
from isoconv.attacks import rounding_search


def cancelling(features: int) -> tuple[nn.Sequential, Tensor]:
    """Two logits, ⟨w, x⟩ and 0, the first as the difference of (2³⁰a + w)·x and 2³⁰a·x. And w, all of it exact.

    Over the real numbers it is as harmless as w; in float64 the difference of two large numbers is wrong by about 2⁻²³.
    """
    a, w = ((torch.randn(features, generator=generator(seed)) * 64).round().double() / 64 for seed in (0, 1))
    a[0], w[0] = 1.0, 1.0
    first, second = nn.Linear(features, 2).double(), nn.Linear(2, 2).double()
    with torch.no_grad():
        first.weight.copy_(torch.stack([2.0**30 * a + w, 2.0**30 * a]))
        first.bias.copy_(-first.weight.sum(dim=1) / 2 + torch.tensor([0.125, 0.0]))
        second.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        second.bias.zero_()
    assert torch.equal(first.weight[0] - first.weight[1], w)
    return nn.Sequential(first, second), w


def test_a_badly_conditioned_network() -> None:
    """Its certificate over the real numbers, margin/‖w‖, rounded down: true there, and refuted where it is run."""
    model, w = cancelling(20)
    images = grey_images(6, 20)
    bias = model[0].bias.detach()  # type: ignore[union-attr]
    constant = Fraction(float(bias[0])) - Fraction(float(bias[1]))
    norm = sum(Fraction(v) ** 2 for v in w.tolist())
    radii, predictions = [], []
    for image in images.tolist():
        margin = constant + sum(Fraction(v) * Fraction(p) for v, p in zip(w.tolist(), image, strict=True))
        predictions.append(0 if margin > 0 else 1)
        radius = float(abs(margin)) / float(norm) ** 0.5 * (1 - 1e-12)
        assert Fraction(radius) ** 2 * norm < margin**2  # so no real point within the radius has another sign
        radii.append(radius)
    claimed = torch.tensor(radii, dtype=torch.float64)
    result = rounding_search(model, images, torch.tensor(predictions), claimed)
    assert bool(result.clean.all())
    assert bool(result.success.all())
    assert_norms(images, result, claimed)
    for point, prediction in zip(result.images, predictions, strict=True):
        exact = constant + sum(Fraction(v) * Fraction(p) for v, p in zip(w.tolist(), point.tolist(), strict=True))
        assert (exact > 0) == (prediction == 0)  # the real network is right there,
        batches = [(point.expand(n, -1), torch.tensor([prediction]).expand(n)) for n in (1, 2, 3, 8, 64)]
        assert any(bool(wrong(model, *batch).any()) for batch in batches)  # the one that runs is not, in some batch
    # A certificate that leaves room for the rounding: each of the two large numbers is wrong by less than
    # 22·2⁻⁵³·Σ|2³⁰a_i x_i| and the like for the bias, less than 1e-4 in all, and ‖w‖ ≥ 1.
    sound = (claimed - 1e-4).clamp_min(0)
    assert bool((sound > 0).any())
    assert not bool(rounding_search(model, images, torch.tensor(predictions), sound).success.any())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("features", [12, 150])
def test_the_plain_radius_of_a_linear_classifier(features: int, device: str) -> None:
    """margin/‖w_t − w_j‖ in float64, without a thought for rounding, as Jin et al. broke it. A little less is sound:

    the logits' errors are below 152·2⁻⁵³·Σ|w_i x_i| < 2e-13 each, so that 1e-12 less leaves room for all of them.
    """
    model, images, predictions, radii = linear_problem(12, 3, features)
    model.to(device)
    result = rounding_search(model, images, predictions, radii)
    assert int(result.success.sum()) >= 4
    assert_norms(images, result, radii)
    assert bool((result.margins[result.success] <= 0).all())
    safe = radii - 1e-12
    careful = rounding_search(model, images, predictions, safe)
    assert not bool(careful.success.any())
    assert_norms(images, careful, safe)
    assert bool((careful.margins < 1e-10).all())  # it did get there


def test_neighbours_find_what_the_line_does_not() -> None:
    """A little inside the radius, where it takes some luck with the rounding: more rounds refute more."""
    model, images, predictions, radii = linear_problem(12, 3, 150)
    few, many = 0, 0
    for less in (2e-16, 5e-16):
        inside = radii - less
        few += int(rounding_search(model, images, predictions, inside, rounds=1).success.sum())
        many += int(rounding_search(model, images, predictions, inside, rounds=8).success.sum())
    assert many > few


class BatchOfOne(nn.Module):
    """Answers otherwise when asked about one image alone. Neighbouring floats have very different scores, all positive."""

    def forward(self, x: Tensor) -> Tensor:
        score = 1 + 0.5 * torch.sin(1e16 * x.sum(dim=1, keepdim=True))
        return torch.cat([score, -score], dim=1) * (-1 if len(x) == 1 else 1)


def test_batches_of_other_sizes_are_tried() -> None:
    images = grey_images(4, 3)
    result = rounding_search(BatchOfOne(), images, torch.zeros(4, dtype=torch.int64), 0.01, steps=2, rounds=1)
    assert bool(result.clean.all()) and bool(result.success.all())


def test_what_is_out_of_reach_is_given_up() -> None:
    """A margin that rounding cannot change is not walked around: only the first round asks about it."""
    arguments = grey_images(4, 3), torch.zeros(4, dtype=torch.int64), 1e-3
    options = {"steps": 2, "rounds": 8, "candidates": 16}
    steep, flat = (
        watch(rounding_search, model, *arguments, **options)[1].count(64)
        for model in (BatchOfOne(), Lead(lambda x: 1 + x.sum(dim=1)))
    )
    assert flat == 1 and steep == 8


def test_only_points_that_are_exactly_inside_refute() -> None:
    """The network is right up to the last float below 1/2: a claim of 1/2 is refuted, a claim of that float is not."""
    images, labels, below = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]), float(np.nextafter(0.5, 0))

    def lead(x: Tensor) -> Tensor:
        inside = [exact_square(images[0], row) <= Fraction(below) ** 2 for row in x.detach()]
        return torch.where(torch.tensor(inside), 1.0, -1.0).to(x) - 1e-9 * x.sum(dim=1)

    refuted = rounding_search(Lead(lead), images, labels, 0.5, steps=10, rounds=32)
    assert bool(refuted.success) and Fraction(below) ** 2 < exact_square(images[0], refuted.images[0]) <= Fraction(1, 4)
    sound = rounding_search(Lead(lead), images, labels, below, steps=10)
    assert not bool(sound.success)
    assert_norms(images, sound, below)


def test_a_radius_of_zero_claims_nothing() -> None:
    model, images, predictions, _ = linear_problem(4, 3, 6)
    radii = torch.tensor([0.0, 1e-5, 0.0, 1e-5], dtype=torch.float64)
    predictions[:2] = (predictions[:2] + 1) % 3
    result = rounding_search(model, images, predictions, radii)
    assert result.clean.tolist() == [False, False, True, True]
    assert result.success.tolist() == [False, True, False, False]
    assert result.norms[:3].tolist() == [0, 0, 0]
