"""Losses against their papers' formulas, in plain Python; their gradients, invariances and limits; what they refuse."""

import itertools
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from isoconv import losses
from isoconv.losses import LOSSES, REDUCTIONS
from train.toys import refused

# The formulas, literally: what a row of logits of the right class t adds to the mean -------------------------------


def average(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def softmax(row):
    return [math.exp(y) / sum(map(math.exp, row)) for y in row]


def wrong(row, t):
    return row[:t] + row[t + 1 :]


def scales(constants, t, row):
    """K_tj: by default √2."""
    return [math.sqrt(2)] * len(row) if constants is None else constants[t]


def hinge(row, t, margin):
    return sum(max(0.0, margin - row[t] + y) for y in wrong(row, t)) / len(row)


def right_share(row, t, temperature, offset):
    """p_t of the softmax of (y − offset·e_t)/temperature."""
    return softmax([(y - offset * (j == t)) / temperature for j, y in enumerate(row)])[t]


def cross_entropy(row, t, temperature, offset):
    return -temperature * math.log(right_share(row, t, temperature, offset))


def tau_cross_entropy(row, t, tau):
    return -math.log(math.exp(tau * row[t]) / sum(math.exp(tau * y) for y in row)) / tau


def annealed(row, t, temperature, offset, power):
    """Lai et al. 2025: −T (1 − p_t)^β log p_t, p the softmax of (z − ξ·1_t)/T."""
    return (1 - right_share(row, t, temperature, offset)) ** power * cross_entropy(row, t, temperature, offset)


def emma(row, t, temperature, radius, constants=None):
    """Hu et al. 2023: each wrong logit raised by K·ε_j, with ε_j = clip((y_t − y_j)/K, 0, ε)."""
    pairs = list(zip(row, scales(constants, t, row), strict=True))
    raised = [y + k * min(max((row[t] - y) / k, 0.0), radius) if k else y for y, k in pairs]
    raised[t] = row[t]
    return -temperature * math.log(softmax([y / temperature for y in raised])[t])


def certificate(row, t, temperature, offset, weight, constants=None):
    """Singla et al. 2022: ℓ(f(x), t) − γ·max(0, R), R the radius at which some class could overtake t."""
    radius = min((row[t] - y) / k for y, k in zip(wrong(row, t), wrong(scales(constants, t, row), t), strict=True))
    return cross_entropy(row, t, temperature, offset) - weight * max(0.0, radius)


def soft_hinge_kr(row, t, margin, alpha, temperature):
    """Serrurier et al. 2023: the wrong classes weighted by their softmax."""
    others = list(zip(wrong(row, t), softmax([y / temperature for y in wrong(row, t)]), strict=True))
    lack = max(0.0, margin / 2 - row[t]) + sum(w * max(0.0, margin / 2 + y) for y, w in others)
    return alpha * lack - (1 - alpha) * (row[t] - sum(w * y for y, w in others))


def kr(rows):
    """Serrurier et al. 2021: the mean over classes of E[f_k | not k] − E[f_k | k]."""
    differences = []
    for k in range(len(rows[0][0])):
        own, others = [row[k] for row, t in rows if t == k], [row[k] for row, t in rows if t != k]
        differences.append(average(others) - average(own) if own and others else 0.0)
    return average(differences)


def hinge_kr(rows, margin, alpha):
    classes = range(len(rows[0][0]))
    lacks = (
        (len(classes) - 1) * max(0.0, margin / 2 - row[k]) if k == t else max(0.0, margin / 2 + row[k])
        for row, t in rows
        for k in classes
    )
    return alpha * average(lacks) + (1 - alpha) * kr(rows)


OF_ROWS = {
    "hinge": hinge,
    "cross-entropy": cross_entropy,
    "tau-cross-entropy": tau_cross_entropy,
    "annealed": annealed,
    "emma": emma,
    "certificate": certificate,
    "soft-hinge-kr": soft_hinge_kr,
}
OF_BATCHES = {"kr": kr, "hinge-kr": hinge_kr}
SETTINGS = {
    "margin": (0.1, 0.7, 4.0),
    "temperature": (0.25, 0.5, 3.0),
    "offset": (-0.5, 0.0, 0.7),
    "tau": (0.3, 1.0, 6.0),
    "power": (0.5, 2.0, 5.0, 0.0),
    "radius": (0.0, 0.2, 9.0),
    "weight": (0.0, 0.2, 3.0),
    "alpha": (0.0, 0.9, 1.0),
}


def batch(n=9, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def options_of(name, which=1):
    return {option: SETTINGS[option][which] for option in LOSSES[name].options}


every = pytest.mark.parametrize("name", LOSSES)
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)


def assert_formula(name, logits, labels, **options):
    """Return the loss, which must be its formula: of each row, or of the batch."""
    loss, rows = LOSSES[name].function, list(zip(logits.tolist(), labels.tolist(), strict=True))
    arrays = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    value = loss(logits, labels, **options)
    if name in OF_ROWS:
        expected = [OF_ROWS[name](row, t, **arrays) for row, t in rows]
        assert loss(logits, labels, reduction="none", **options).tolist() == pytest.approx(
            expected, rel=1e-10, abs=1e-12
        )
    mean = average(expected) if name in OF_ROWS else OF_BATCHES[name](rows, **arrays)
    assert value.item() == pytest.approx(mean, rel=1e-10, abs=1e-12)
    return value


@every
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 2), (9, 5), (30, 10)])
def test_a_loss_is_its_formula(name, n, classes):
    choices = [SETTINGS[option] for option in LOSSES[name].options]
    for k, values in enumerate(itertools.product(*choices)):
        logits, labels = batch(n, classes, seed=k)
        labels = labels.clamp_min(1) if k % 2 else labels  # without class 0
        assert_formula(name, logits, labels, **dict(zip(LOSSES[name].options, values, strict=True)))


@pytest.mark.parametrize("name", ["emma", "certificate"])
def test_constants_of_pairs(name):
    """The last layer's rows decide how far a class is away; the constant of a class to itself is 0."""
    logits, labels = batch(20)
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    constants = torch.cdist(rows, rows) * torch.tensor(
        [1.0, 1.0, 1.5, 1.0, 1.0]
    )  # of no symmetry that a slip could use
    value = assert_formula(name, logits.requires_grad_(), labels, **options_of(name), constants=constants)
    value.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    usual, same = (
        LOSSES[name].function(logits, labels, **options_of(name), **more)
        for more in ({}, {"constants": torch.full((5, 5), math.sqrt(2), dtype=torch.float64)})
    )
    assert same.item() == pytest.approx(usual.item(), rel=1e-12) != value.item()


@every
def test_reductions(name):
    logits, labels = batch()
    none, total, mean = (
        LOSSES[name].function(logits, labels, **options_of(name), reduction=r) for r in ("none", "sum", "mean")
    )
    assert none.shape == (9,) and total.shape == mean.shape == ()
    assert [none.mean().item(), none.sum().item()] == pytest.approx([mean.item(), total.item()], rel=1e-12)


# Gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"emma"}))
@reductions
def test_gradients_are_exact(name, reduction):
    for which in range(3):
        logits, labels = batch(6, 4, seed=which)
        loss = partial(LOSSES[name].function, labels=labels, **options_of(name, which), reduction=reduction)
        assert torch.autograd.gradcheck(lambda y, f=loss: f(y), logits.requires_grad_())


def test_emma_counts_what_it_adds_as_a_constant():
    logits, labels = batch()
    options = options_of("emma")
    losses.emma_loss(logits.requires_grad_(), labels, **options).backward()
    fixed = logits.detach().clone().requires_grad_()
    lead = logits.detach().gather(1, labels[:, None]) - logits.detach()
    added = lead.clamp(0, math.sqrt(2) * options["radius"])
    F.cross_entropy((fixed + added) / options["temperature"], labels).mul(options["temperature"]).backward()
    assert added.count_nonzero() > 5
    torch.testing.assert_close(logits.grad, fixed.grad, rtol=1e-6, atol=1e-8)


@every
def test_gradients_are_numbers_where_the_softmax_is_saturated(name):
    """In float32 p rounds to 1 and 0 long before a deep network's logits are large."""
    for which in range(3):
        logits = torch.tensor([[200.0, 0.0, -50.0], [200.0, 0.0, -50.0]], requires_grad=True)
        loss = LOSSES[name].function(logits, torch.tensor([0, 1]), **options_of(name, which))
        loss.backward()
        assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


# Two classes -------------------------------------------------------------------------------------------------------


@reductions
@pytest.mark.parametrize("labels", [torch.arange(11) % 3 % 2, torch.zeros(11).long(), torch.ones(11).long()], ids=str)
def test_two_classes_by_one_score_are_two_classes_by_two(labels, reduction):
    """In whatever way the classes are written. A batch of one class alone has no distance."""
    scores = batch(11, 2)[0][:, 0]
    logits, forms = torch.stack([-scores, scores], dim=1), (labels, labels.bool(), labels.double(), 2 * labels - 1)
    expected = losses.kr_loss(logits, labels, reduction)
    assert (0 < labels.sum() < 11) or not expected.count_nonzero()
    assert losses.binary_kr_loss(scores.bfloat16(), labels, reduction).dtype == torch.float32
    for form in forms:
        torch.testing.assert_close(losses.binary_kr_loss(scores, form, reduction), expected)
    torch.testing.assert_close(losses.binary_kr_loss(scores[:, None], labels[:, None], reduction), expected)
    for margin, alpha in itertools.product(SETTINGS["margin"], SETTINGS["alpha"]):
        loss = partial(losses.binary_hinge_kr_loss, margin=margin, alpha=alpha, reduction=reduction)
        expected = losses.hinge_kr_loss(logits, labels, margin, alpha, reduction)
        for form in forms:
            torch.testing.assert_close(loss(scores, form), expected)
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, labels), scores.clone().requires_grad_())


# Numbers -----------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("where", [0, 1], ids=["label", "other"])
@reductions
def test_a_nan_logit_is_a_nan_loss(where, name, reduction):
    """Otherwise a network that has diverged would look like one that has learned everything."""
    logits = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]])
    logits[1, where] = torch.nan
    loss = LOSSES[name].function(logits, torch.tensor([0, 0]), **LOSSES[name].defaults, reduction=reduction)
    assert loss.isnan().tolist() == ([False, True] if reduction == "none" else True)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_half_precision_is_computed_in_float32(name, dtype):
    logits, labels = batch()
    logits = logits.to(dtype)
    loss = LOSSES[name].function(logits, labels)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.item() == pytest.approx(LOSSES[name].function(logits.double(), labels).item(), rel=2e-6, abs=1e-6)


# Refusals ----------------------------------------------------------------------------------------------------------

LOGITS, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
LOGITS_BAD = [(LOGITS[0], LABELS), (LOGITS[:0], LABELS[:0])]
LOGITS_BAD += [(logits, LABELS) for logits in (LOGITS[:, :1], LOGITS.long(), LOGITS.tolist())]
LABELS_BAD = [LABELS[:3], LABELS[:, None], LABELS.float(), LABELS + 1, LABELS - 1, LABELS.tolist(), F.one_hot(LABELS)]
SCORES = torch.zeros(4)
SCORES_BAD = [(LOGITS, LABELS), (SCORES[:0], SCORES[:0]), (SCORES.long(), LABELS.clamp_max(1))]
TABLE = [
    *((loss.function, *pair, "logits") for loss in LOSSES.values() for pair in LOGITS_BAD),
    *((loss.function, LOGITS, labels, "labels") for loss in LOSSES.values() for labels in LABELS_BAD),
]
for binary in (losses.binary_kr_loss, losses.binary_hinge_kr_loss):
    TABLE += [(binary, *pair, "scores") for pair in SCORES_BAD]
    TABLE += [(binary, SCORES, labels, "labels") for labels in (LABELS, LABELS[:3], SCORES + 0.5, [0] * 4)]


@pytest.mark.parametrize(("function", "scores", "labels", "word"), TABLE)
def test_what_does_not_fit_is_refused(function, scores, labels, word):
    refused(rf"Expected {word} .*Got ", function, scores, labels)


@every
def test_options_and_reductions_that_are_none_are_refused(name):
    loss = partial(LOSSES[name].function, LOGITS, LABELS)
    limits = {"margin": [0], "temperature": [0], "tau": [0], "alpha": [-0.1, 1.1], "offset": []}
    for option in LOSSES[name].options:
        for value in [math.nan, math.inf, "1", *limits.get(option, [-0.1])]:
            refused(rf"option {option} .*Got {value}", loss, **{option: value})
    bad = [{"reduction": "batchmean"}]
    if name in ("emma", "certificate"):
        bad += [{"constants": value} for value in (0.0, -1.0, torch.ones(3), torch.ones(4, 4))]
    for options in bad:
        refused(next(iter(options)), loss, **options)
    refused("alpha", losses.binary_hinge_kr_loss, SCORES, LABELS.clamp_max(1), alpha=2.0)


def test_the_records_are_read_without_torch():
    code = "import sys, isoconv; assert isoconv.losses.LOSSES['hinge-kr'].defaults['alpha'] == 0.98; "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, timeout=60)
