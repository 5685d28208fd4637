"""foolbox's boundary and pointwise attacks within a budget. Skipped where it is not installed."""

import os
import sys
from functools import partial

import pytest
import torch
from torch import nn

from attacks import attack_reference as given
from attacks.attack_reference import assert_norms, grey_images, lead, linear_problem, needs_foolbox
from isoconv.attacks import boundary, pointwise
from isoconv.attacks.decision import Watched
from isoconv.attacks.search import Search
from train.toys import refused

both = pytest.mark.parametrize(
    "attack", [partial(boundary, steps=600), partial(pointwise, queries=600)], ids=["boundary", "pointwise"]
)


@needs_foolbox
@both
@pytest.mark.parametrize("device", given.DEVICES)
def test_success_is_within_the_budget(attack, device):
    """On a linear classifier: never below the true distance; with a multiple of it, often."""
    model, images, labels, distances = linear_problem(8, 3, 6)
    model.to(device)
    for factor, least, most in ((1 - 1e-9, 0, 0), (3.0, 4, 8), (30.0, 8, 8)):
        result = attack(model, images, labels, distances * factor)
        assert least <= int(result.success.sum()) <= most
        assert_norms(images, result, distances * factor)


@needs_foolbox
def test_the_boundary_attack_comes_close():
    model, images, labels, distances = linear_problem(8, 3, 6)
    assert int(boundary(model, images, labels, distances * 1.1, steps=2500).success.sum()) >= 6


@pytest.mark.parametrize("device", given.DEVICES)
def test_decisions_are_made_in_full_float32(device):
    """A step moves a pixel by a ten-thousandth, which the ten bits of TF32 do not show."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    images = torch.rand(50, 3, 8, 8)
    search = Search(model.to(device), images, torch.zeros(50, dtype=torch.int64), 0.1)
    logits = search.logits(images.to(device))
    assert (logits.cpu() - given.logits64(model.cpu(), images)).abs().max() < 2e-6


@needs_foolbox
def test_attacks_end_when_they_have_asked_enough():
    def queries(attack, features, factor, **options):
        model, images, labels, distances = linear_problem(8, 3, features)
        return len(given.watch(attack, model, images, labels, distances * factor, **options)[1])

    assert queries(boundary, 6, 30, steps=600) < 200
    assert queries(boundary, 6, 30, steps=300, early_stop=False) > 300
    assert 100 <= queries(pointwise, 60, 1, queries=100) < 150
    assert queries(pointwise, 60, 1, queries=2000) > 250


@needs_foolbox
@both
def test_points_are_tried_further_out_too(attack):
    """The label is lost below 0.3 in float64, and already below 0.301 in float32: its direction reaches to the true one."""
    shifted = lead(lambda x: x[:, 0] - (0.3 if x.dtype == torch.float64 else 0.301))
    images, labels = grey_images(4, 3), torch.zeros(4, dtype=torch.int64)
    reach = images[:, 0] - 0.3
    assert bool(attack(shifted, images, labels, reach * 1.2, early_stop=False).success.all())
    assert not bool(attack(shifted, images, labels, reach * (1 - 1e-9), early_stop=False).success.any())


def test_the_first_query_is_answered_as_foolbox_expects():
    """It asks about the starting points, and stops if one is not misclassified; what is watched is the truth."""
    model, images, labels, _ = linear_problem(8, 3, 6)
    watched = Watched(Search(model, images, labels, 1.0), torch.arange(8))
    assert [bool((watched(images.float()).argmax(dim=1) == labels).any()) for _ in range(2)] == [False, True]
    assert bool((watched.distance == torch.inf).all())


@both
def test_foolbox_missing(attack, monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "warn")
    refused(r"need foolbox .* pip install 'isoconv\[attacks\]'", attack, *linear_problem(8, 3, 6)[:3], 0.5)
    assert os.environ["GIT_PYTHON_REFRESH"] == "warn"
