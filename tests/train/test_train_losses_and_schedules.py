"""Losses and schedules against their formulas."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from isoconv.errors import IsoconvError
from isoconv.train.losses import hinge_loss, margins, offset_cross_entropy
from isoconv.train.schedules import SCHEDULES, schedule_factor


def batch(n: int = 9, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


@pytest.mark.parametrize("margin", [0.1, 0.7071, 2.12, 10.0])
def test_hinge_is_the_mean_over_batch_and_classes_of_what_lacks_to_the_margin(margin):
    logits, labels = batch()
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        total += sum(max(0.0, margin - row[label] + other) for j, other in enumerate(row) if j != label)
    assert hinge_loss(logits, labels, margin).item() == pytest.approx(total / 9 / 5, rel=1e-12)
    torch.testing.assert_close(hinge_loss(logits, labels, margin), F.multi_margin_loss(logits, labels, margin=margin))


def test_hinge_is_zero_where_every_margin_is_reached():
    assert hinge_loss(torch.tensor([[2.0, 0.0, 0.5]]), torch.tensor([0]), 1.5).item() == 0.0
    assert hinge_loss(torch.tensor([[2.0, 0.0, 0.75]]), torch.tensor([0]), 1.5).item() == pytest.approx(0.25 / 3)


@pytest.mark.parametrize(
    "loss", [lambda y, t: hinge_loss(y, t, 1.0), lambda y, t: offset_cross_entropy(y, t, 1.0, 0.5)]
)
@pytest.mark.parametrize("where", [0, 1], ids=["label", "other"])
def test_a_nan_logit_is_a_nan_loss(where, loss):
    """Otherwise a network that has diverged would look like one that has learned everything."""
    logits = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]])
    logits[1, where] = torch.nan
    assert loss(logits, torch.tensor([0, 0])).isnan()


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("offset", [0.0, 0.7071, 4.0])
def test_offset_cross_entropy_is_its_formula(temperature, offset):
    logits, labels = batch()
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        changed = [(y - offset * (j == label)) / temperature for j, y in enumerate(row)]
        total += math.log(sum(map(math.exp, changed))) - changed[label]
    loss = offset_cross_entropy(logits, labels, temperature, offset)
    assert loss.item() == pytest.approx(temperature * total / 9, rel=1e-12)


def test_without_offset_at_temperature_one_it_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(offset_cross_entropy(logits, labels, 1.0, 0.0), F.cross_entropy(logits, labels))


def test_the_offset_is_taken_from_the_right_class():
    logits, labels = batch()
    assert offset_cross_entropy(logits, labels, 1.0, 1.0) > offset_cross_entropy(logits, labels, 1.0, 0.0)


def test_margins():
    logits = torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5], [1.0, 1.0, 0.0], [-5.0, -7.0, -6.0]])
    found = margins(logits, torch.tensor([0, 2, 1, 0]))
    assert found.tolist() == [0.5, -0.5, 0.0, 1.0]


def test_a_tie_is_not_positive():
    assert not (margins(torch.zeros(3, 4), torch.tensor([0, 2, 3])) > 0).any()


@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_is_not_positive(where):
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    logits[0, where] = torch.nan
    assert not (margins(logits, torch.tensor([0])) > 0).any()


def test_two_infinite_logits_are_not_positive():
    assert not (margins(torch.tensor([[torch.inf, torch.inf, 0.0]]), torch.tensor([0])) > 0).any()


def test_margins_leave_the_logits_alone():
    logits, labels = batch()
    before = logits.clone()
    margins(logits, labels)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.1 ** (1 / 60)), (9, 0.1 ** (1 / 60)), (10, 0.1 ** (2 / 60)), (590, 0.1), (599, 0.1), (600, 0.1 ** (61 / 60)),
     (1190, 0.01), (1999, 0.1 ** (200 / 60))],
)  # fmt: skip
def test_exponential_is_a_tenth_every_sixty_epochs_counted_from_one(step, factor):
    assert schedule_factor("exponential", step, 2000, 10) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(("step", "factor"), [(0, 1.0), (25, 0.75), (50, 0.5), (99, 0.01), (100, 0.0)])
def test_linear(step, factor):
    assert schedule_factor("linear", step, 100, 10) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 1.0), (25, (1 + math.sqrt(0.5)) / 2), (50, 0.5), (75, (1 - math.sqrt(0.5)) / 2), (100, 0.0)],
)
def test_cosine(step, factor):
    assert schedule_factor("cosine", step, 100, 10) == pytest.approx(factor, abs=1e-15)


def test_constant():
    assert {schedule_factor("constant", step, 100, 10) for step in range(100)} == {1.0}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_is_positive_and_never_rises(kind):
    factors = [schedule_factor(kind, step, 240, 12) for step in range(240)]
    assert all(0 < later <= earlier <= 1 for earlier, later in itertools.pairwise(factors))


def test_an_unknown_schedule_is_refused():
    message = r"^Expected a schedule out of exponential, linear, cosine, constant\. Got 'step'\.$"
    with pytest.raises(IsoconvError, match=message):
        schedule_factor("step", 0, 10, 1)
