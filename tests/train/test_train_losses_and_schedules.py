"""Losses and schedules against their formulas."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from isoconv.train.config import SCHEDULES
from isoconv.train.losses import LOSSES, hinge_loss, offset_cross_entropy


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


def softmax(row: list[float]) -> list[float]:
    return [math.exp(y) / sum(map(math.exp, row)) for y in row]


def by_formula(name: str, rows: list[tuple[list[float], int]]) -> float:
    """The losses of the field as their papers write them, with temperature 0.5, offset 0.7 and margin 0.6."""
    classes, losses = range(len(rows[0][0])), []
    for row, t in rows:
        p = softmax([(y - 0.7 * (j == t)) / 0.5 for j, y in enumerate(row)])[t]
        if name == "annealed":
            losses.append(-0.5 * (1 - p) ** 3 * math.log(p))
        elif name == "certificate":
            radius = (row[t] - max(y for j, y in enumerate(row) if j != t)) / math.sqrt(2)
            losses.append(-0.5 * math.log(p) - 0.2 * max(0.0, radius))
        elif name == "emma":
            targets = [min(max(row[t] - y, 0.0), math.sqrt(2) * 0.3) for y in row]
            losses.append(-0.5 * math.log(softmax([(y + e) / 0.5 for y, e in zip(row, targets, strict=True)])[t]))
    if name != "hinge-kr":
        return sum(losses) / len(rows)
    hinge = sum(4 * max(0, 0.3 - row[k]) if k == t else max(0, 0.3 + row[k]) for row, t in rows for k in classes)
    distance = 0.0
    for k in classes:
        own, others = [r[k] for r, t in rows if t == k], [r[k] for r, t in rows if t != k]
        distance += sum(own) / len(own) - sum(others) / len(others) if own else 0.0
    return 0.9 * hinge / len(rows) / 5 - 0.1 * distance / 5


OPTIONS = {
    "annealed": {"temperature": 0.5, "offset": 0.7, "power": 3.0},
    "certificate": {"temperature": 0.5, "offset": 0.7, "weight": 0.2},
    "emma": {"temperature": 0.5, "radius": 0.3},
    "hinge-kr": {"margin": 0.6, "alpha": 0.9},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("absent", [False, True], ids=["", "without class 0"])
def test_the_losses_of_the_field_are_their_formulas(name, absent):
    logits, labels, _ = batch()
    labels = labels.clamp_min(1) if absent else torch.arange(9) % 5
    rows = list(zip(logits.tolist(), labels.tolist(), strict=True))
    assert LOSSES[name].function(logits, labels, **OPTIONS[name]).item() == pytest.approx(
        by_formula(name, rows), rel=1e-9
    )


def test_emma_pushes_only_against_what_an_image_has():
    """What EMMA adds is a constant to the gradient, which is that of a softmax of the raised logits."""
    logits = torch.tensor([[0.5, 0.1, 0.9]], dtype=torch.float64, requires_grad=True)
    LOSSES["emma"].function(logits, torch.tensor([0]), temperature=1.0, radius=10.0).backward()
    expected = softmax([0.5, 0.5, 0.9])
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([expected[0] - 1, *expected[1:]], rel=1e-12)


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
