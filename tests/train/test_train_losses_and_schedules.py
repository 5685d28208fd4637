"""Losses and schedules against their formulas."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from isoconv.train.losses import LOSSES, hinge_loss, offset_cross_entropy
from isoconv.train.schedules import SCHEDULES


def batch(n: int = 9, classes: int = 5) -> tuple[Tensor, Tensor, list[tuple[list[float], int]]]:
    """Logits, labels, and both as a list of rows."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=generator)
    return logits, labels, list(zip(logits.tolist(), labels.tolist(), strict=True))


@pytest.mark.parametrize("margin", [0.1, 0.7071, 10.0])
def test_hinge_is_the_mean_over_batch_and_classes_of_what_lacks_to_the_margin(margin):
    logits, labels, rows = batch()
    lacking = [max(0.0, margin - row[t] + other) for row, t in rows for j, other in enumerate(row) if j != t]
    assert hinge_loss(logits, labels, margin).item() == pytest.approx(sum(lacking) / 9 / 5, rel=1e-12)


@pytest.mark.parametrize(("temperature", "offset"), [(0.25, 0.0), (1.0, 0.0), (1.0, 0.7071), (3.0, 4.0)])
def test_offset_cross_entropy_is_its_formula(temperature, offset):
    logits, labels, rows = batch()
    total = 0.0
    for row, label in rows:
        changed = [(y - offset * (j == label)) / temperature for j, y in enumerate(row)]
        total += math.log(sum(map(math.exp, changed))) - changed[label]
    loss = offset_cross_entropy(logits, labels, temperature, offset)
    assert loss.item() == pytest.approx(temperature * total / 9, rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("where", [0, 1], ids=["label", "other"])
def test_a_nan_logit_is_a_nan_loss(where, name):
    """Otherwise a network that has diverged would look like one that has learned everything."""
    logits = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]])
    logits[1, where] = torch.nan
    options = {option: setting.default for option, setting in LOSSES[name].options.items()}
    assert LOSSES[name].function(logits, torch.tensor([0, 0]), **options).isnan()


@pytest.mark.parametrize(("step", "exponent"), [(0, 1), (9, 1), (10, 2), (599, 60), (600, 61), (1999, 200)])
def test_exponential_is_a_tenth_every_sixty_epochs_counted_from_one(step, exponent):
    assert SCHEDULES["exponential"](step, 2000, 10) == pytest.approx(0.1 ** (exponent / 60), rel=1e-12)


@pytest.mark.parametrize(
    ("step", "linear", "cosine"),
    [(0, 1.0, 1.0), (25, 0.75, (1 + math.sqrt(0.5)) / 2), (50, 0.5, 0.5), (100, 0.0, 0.0)],
)
def test_linear_cosine_and_constant(step, linear, cosine):
    for name, factor in (("linear", linear), ("cosine", cosine), ("constant", 1.0)):
        assert SCHEDULES[name](step, 100, 10) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_is_positive_and_never_rises(kind):
    factors = [SCHEDULES[kind](step, 240, 12) for step in range(240)]
    assert all(0 < later <= earlier <= 1 for earlier, later in itertools.pairwise(factors))
