"""Losses against their papers' formulas, in plain Python; their gradients, invariances and limits; what they refuse."""

import itertools
import math
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv import losses
from isoconv.errors import IsoconvError
from isoconv.losses import LOSSES, REDUCTIONS

Rows = list[tuple[list[float], int]]

# The formulas, literally -------------------------------------------------------------------------------------------


def average(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def softmax(row: list[float]) -> list[float]:
    return [math.exp(y) / sum(map(math.exp, row)) for y in row]


def wrong(row: list[float], t: int) -> list[float]:
    return row[:t] + row[t + 1 :]


def hinge(rows: Rows, margin: float) -> float:
    return average(sum(max(0.0, margin - row[t] + y) for y in wrong(row, t)) / len(row) for row, t in rows)


def right_share(row: list[float], t: int, temperature: float, offset: float) -> float:
    """p_t of the softmax of (y − offset·e_t)/temperature."""
    return softmax([(y - offset * (j == t)) / temperature for j, y in enumerate(row)])[t]


def cross_entropy(rows: Rows, temperature: float, offset: float) -> float:
    return average(-temperature * math.log(right_share(row, t, temperature, offset)) for row, t in rows)


def tau_cross_entropy(rows: Rows, tau: float) -> float:
    return average(-math.log(math.exp(tau * row[t]) / sum(math.exp(tau * y) for y in row)) / tau for row, t in rows)


def annealed(rows: Rows, temperature: float, offset: float, power: float) -> float:
    """Lai et al. 2025: −T (1 − p_t)^β log p_t, p the softmax of (z − ξ·1_t)/T."""
    shares = [right_share(row, t, temperature, offset) for row, t in rows]
    return average(-temperature * (1 - p) ** power * math.log(p) for p in shares)


def emma(rows: Rows, temperature: float, radius: float, constants: list[list[float]] | None = None) -> float:
    """Hu et al. 2023: each wrong logit raised by K·ε_j, with ε_j = clip((y_t − y_j)/K, 0, ε)."""
    values = []
    for row, t in rows:
        raised = []
        for j, y in enumerate(row):
            k = math.sqrt(2) if constants is None else constants[t][j]
            raised.append(y if j == t else y + k * min(max((row[t] - y) / k, 0.0), radius))
        values.append(-temperature * math.log(softmax([y / temperature for y in raised])[t]))
    return average(values)


def certificate(
    rows: Rows, temperature: float, offset: float, weight: float, constants: list[list[float]] | None = None
) -> float:
    """Singla et al. 2022: ℓ(f(x), t) − γ·max(0, R), R the radius at which some class could overtake t."""
    values = []
    for row, t in rows:
        scales = [math.sqrt(2)] * len(row) if constants is None else constants[t]
        radius = min((row[t] - y) / scales[j] for j, y in enumerate(row) if j != t)
        values.append(-temperature * math.log(right_share(row, t, temperature, offset)) - weight * max(0.0, radius))
    return average(values)


def kr(rows: Rows) -> float:
    """Serrurier et al. 2021: the mean over classes of E[f_k | not k] − E[f_k | k]."""
    differences = []
    for k in range(len(rows[0][0])):
        own, others = [row[k] for row, t in rows if t == k], [row[k] for row, t in rows if t != k]
        differences.append(average(others) - average(own) if own and others else 0.0)
    return average(differences)


def hinge_kr(rows: Rows, margin: float, alpha: float) -> float:
    classes = range(len(rows[0][0]))
    lacks = [
        (len(classes) - 1) * max(0.0, margin / 2 - row[k]) if k == t else max(0.0, margin / 2 + row[k])
        for row, t in rows
        for k in classes
    ]
    return alpha * average(lacks) + (1 - alpha) * kr(rows)


def soft_hinge_kr(rows: Rows, margin: float, alpha: float, temperature: float) -> float:
    """Serrurier et al. 2023: the wrong classes weighted by their softmax."""
    values = []
    for row, t in rows:
        others = wrong(row, t)
        weights = softmax([y / temperature for y in others])
        lack = max(0.0, margin / 2 - row[t])
        lack += sum(w * max(0.0, margin / 2 + y) for w, y in zip(weights, others, strict=True))
        distance = row[t] - sum(w * y for w, y in zip(weights, others, strict=True))
        values.append(alpha * lack - (1 - alpha) * distance)
    return average(values)


FORMULAS = {
    "hinge": hinge,
    "cross-entropy": cross_entropy,
    "tau-cross-entropy": tau_cross_entropy,
    "annealed": annealed,
    "emma": emma,
    "certificate": certificate,
    "kr": kr,
    "hinge-kr": hinge_kr,
    "soft-hinge-kr": soft_hinge_kr,
}
SETTINGS: dict[str, tuple[float, ...]] = {
    "margin": (0.1, 0.7, 4.0),
    "temperature": (0.25, 0.5, 3.0),
    "offset": (-0.5, 0.0, 0.7),
    "tau": (0.3, 1.0, 6.0),
    "power": (0.5, 2.0, 5.0, 0.0),
    "radius": (0.0, 0.2, 9.0),
    "weight": (0.0, 0.2, 3.0),
    "alpha": (0.0, 0.9, 1.0),
}


def batch(n: int = 9, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def rows_of(logits: Tensor, labels: Tensor) -> Rows:
    return list(zip(logits.tolist(), labels.tolist(), strict=True))


def options_of(name: str, which: int = 1) -> dict[str, float]:
    return {option: SETTINGS[option][which] for option in LOSSES[name].options}


def every(*others: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in LOSSES if name not in others])


def test_every_loss_has_a_formula():
    assert FORMULAS.keys() == LOSSES.keys()


@every()
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 2), (9, 5), (30, 10)])
def test_a_loss_is_its_formula(name, n, classes):
    choices = [SETTINGS[option] for option in LOSSES[name].options]
    for k, values in enumerate(itertools.product(*choices)):
        logits, labels = batch(n, classes, seed=k)
        labels = labels.clamp_min(1) if k % 2 else labels  # without class 0
        options = dict(zip(LOSSES[name].options, values, strict=True))
        expected = FORMULAS[name](rows_of(logits, labels), **options)
        assert LOSSES[name].function(logits, labels, **options).item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("name", "function"), [("emma", emma), ("certificate", certificate)])
def test_constants_of_pairs(name, function):
    """The last layer's rows decide how far a class is away; the constant of a class to itself is 0."""
    logits, labels = batch(20)
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    constants = torch.cdist(rows, rows)
    loss, options = LOSSES[name].function, options_of(name)
    logits.requires_grad_()
    value = loss(logits, labels, **options, constants=constants)
    value.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    expected = function(rows_of(logits, labels), **options, constants=constants.tolist())
    assert value.item() == pytest.approx(expected, rel=1e-10)
    same = loss(logits, labels, **options, constants=torch.full((5, 5), math.sqrt(2), dtype=torch.float64))
    assert same.item() == pytest.approx(loss(logits, labels, **options).item(), rel=1e-12) != value.item()


@every()
def test_reductions(name):
    logits, labels = batch()
    values = {r: LOSSES[name].function(logits, labels, **options_of(name), reduction=r) for r in REDUCTIONS}
    assert values["none"].shape == (9,) and values["sum"].shape == values["mean"].shape == ()
    assert values["none"].mean().item() == pytest.approx(values["mean"].item(), rel=1e-12)
    assert values["none"].sum().item() == pytest.approx(values["sum"].item(), rel=1e-12)


# Gradients ---------------------------------------------------------------------------------------------------------


@every("emma")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_are_exact(name, reduction):
    for which in range(3):
        logits, labels = batch(6, 4, seed=which)
        loss = partial(LOSSES[name].function, **options_of(name, which), reduction=reduction)
        assert torch.autograd.gradcheck(lambda y, f=loss, t=labels: f(y, t), logits.requires_grad_())


def test_emma_counts_what_it_adds_as_a_constant():
    logits, labels = batch()
    options = options_of("emma")
    logits.requires_grad_()
    losses.emma_loss(logits, labels, **options).backward()
    fixed = logits.detach().clone().requires_grad_()
    lead = logits.detach().gather(1, labels[:, None]) - logits.detach()
    added = torch.tensor([[min(max(x, 0.0), math.sqrt(2) * options["radius"]) for x in row] for row in lead.tolist()])
    F.cross_entropy((fixed + added) / options["temperature"], labels).mul(options["temperature"]).backward()
    assert added.count_nonzero() > 5
    torch.testing.assert_close(logits.grad, fixed.grad, rtol=1e-6, atol=1e-8)


@every()
def test_gradients_are_numbers_where_the_softmax_is_saturated(name):
    """In float32 p rounds to 1 and 0 long before a deep network's logits are large."""
    for which in range(3):
        logits = torch.tensor([[200.0, 0.0, -50.0], [200.0, 0.0, -50.0]], requires_grad=True)
        loss = LOSSES[name].function(logits, torch.tensor([0, 1]), **options_of(name, which))
        loss.backward()
        assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


# Two classes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_two_classes_by_one_score_are_two_classes_by_two(reduction):
    scores, labels = batch(11, 2)[0][:, 0], torch.arange(11) % 3 % 2
    logits = torch.stack([-scores, scores], dim=1)
    torch.testing.assert_close(
        losses.binary_kr_loss(scores, labels, reduction), losses.kr_loss(logits, labels, reduction)
    )
    for margin, alpha in itertools.product(SETTINGS["margin"], SETTINGS["alpha"]):
        options = {"margin": margin, "alpha": alpha, "reduction": reduction}
        torch.testing.assert_close(
            losses.binary_hinge_kr_loss(scores, labels, **options), losses.hinge_kr_loss(logits, labels, **options)
        )


def test_the_binary_losses_are_their_formulas():
    """Serrurier et al. 2021: α·E[max(0, m/2 − y·f)] − (1 − α)·(E[f | 1] − E[f | −1])."""
    scores, labels = batch(11, 2)[0][:, 0], torch.arange(11) % 3 % 2
    signs = [2 * t - 1 for t in labels.tolist()]
    pairs = list(zip(scores.tolist(), signs, strict=True))
    distance = average(f for f, s in pairs if s > 0) - average(f for f, s in pairs if s < 0)
    lack = average(max(0.0, 0.4 - f * s) for f, s in pairs)
    for form in (labels, labels.bool(), labels.double(), torch.tensor(signs), labels[:, None]):
        column = scores[:, None] if form.dim() == 2 else scores
        assert losses.binary_kr_loss(column, form).item() == pytest.approx(-distance, rel=1e-12)
        loss = losses.binary_hinge_kr_loss(column, form, margin=0.8, alpha=0.7)
        assert loss.item() == pytest.approx(0.7 * lack - 0.3 * distance, rel=1e-12)
    function = partial(losses.binary_hinge_kr_loss, labels=labels, alpha=0.5)
    assert torch.autograd.gradcheck(lambda x: function(x), scores.requires_grad_())


@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_of_one_class_has_no_distance(label):
    scores, labels = batch(5, 2)[0][:, 0], torch.full((5,), label)
    assert losses.binary_kr_loss(scores, labels).item() == 0
    assert losses.kr_loss(torch.stack([-scores, scores], dim=1), labels).item() == 0


# Numbers -----------------------------------------------------------------------------------------------------------


@every()
@pytest.mark.parametrize("where", [0, 1], ids=["label", "other"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_nan_logit_is_a_nan_loss(where, name, reduction):
    """Otherwise a network that has diverged would look like one that has learned everything."""
    logits = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]])
    logits[1, where] = torch.nan
    loss = LOSSES[name].function(logits, torch.tensor([0, 0]), **LOSSES[name].defaults, reduction=reduction)
    assert loss.isnan().tolist() == ([False, True] if reduction == "none" else True)


@every()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_half_precision_is_computed_in_float32(name, dtype):
    logits, labels = batch()
    logits = logits.to(dtype)
    loss = LOSSES[name].function(logits, labels)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.item() == pytest.approx(LOSSES[name].function(logits.double(), labels).item(), rel=2e-6, abs=1e-6)


# Refusals ----------------------------------------------------------------------------------------------------------

LOGITS, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
BAD = [
    ((LOGITS[0], LABELS), "logits"),
    ((LOGITS[:0], LABELS[:0]), "logits"),
    ((LOGITS[:, :1], LABELS), "logits"),
    ((LOGITS.long(), LABELS), "logits"),
    ((LOGITS.tolist(), LABELS), "logits"),
    ((LOGITS, LABELS[:3]), "labels"),
    ((LOGITS, LABELS[:, None]), "labels"),
    ((LOGITS, LABELS.float()), "labels"),
    ((LOGITS, LABELS + 1), "labels"),
    ((LOGITS, LABELS - 1), "labels"),
    ((LOGITS, LABELS.tolist()), "labels"),
    ((LOGITS, F.one_hot(LABELS)), "labels"),
]


@every()
@pytest.mark.parametrize(("arguments", "word"), BAD)
def test_logits_and_labels_that_do_not_fit_are_refused(name, arguments, word):
    with pytest.raises(IsoconvError, match=rf"Expected {word} .*Got ") as caught:
        LOSSES[name].function(*arguments)
    assert "\n" not in str(caught.value)


@every()
def test_options_and_reductions_that_are_none_are_refused(name):
    loss = LOSSES[name].function
    with pytest.raises(IsoconvError, match=r"reduction.*'batchmean'"):
        loss(LOGITS, LABELS, reduction="batchmean")
    limits: dict[str, list[Any]] = {"margin": [0], "temperature": [0], "tau": [0], "alpha": [-0.1, 1.1], "offset": []}
    for option in LOSSES[name].options:
        for value in [math.nan, math.inf, "1", *limits.get(option, [-0.1])]:
            with pytest.raises(IsoconvError, match=rf"option {option} .*Got {value}"):
                loss(LOGITS, LABELS, **{option: value})


@pytest.mark.parametrize("constants", [0.0, -1.0, torch.ones(3), torch.ones(4, 4)], ids=str)
def test_constants_that_are_none_are_refused(constants):
    for loss in (losses.emma_loss, losses.certificate_loss):
        with pytest.raises(IsoconvError, match="constants"):
            loss(LOGITS, LABELS, constants=constants)


@pytest.mark.parametrize(
    ("scores", "labels", "word"),
    [
        (LOGITS, LABELS, "scores"),
        (torch.zeros(0), torch.zeros(0), "scores"),
        (torch.zeros(4).long(), LABELS.clamp_max(1), "scores"),
        (torch.zeros(4), LABELS, "labels"),
        (torch.zeros(4), LABELS[:3], "labels"),
        (torch.zeros(4), torch.full((4,), 0.5), "labels"),
    ],
)
def test_scores_and_labels_that_do_not_fit_are_refused(scores, labels, word):
    for loss in (losses.binary_kr_loss, losses.binary_hinge_kr_loss):
        with pytest.raises(IsoconvError, match=rf"Expected {word} .*Got "):
            loss(scores, labels)
    with pytest.raises(IsoconvError, match="alpha"):
        losses.binary_hinge_kr_loss(torch.zeros(4), LABELS.clamp_max(1), alpha=2.0)


def test_the_records_are_read_without_torch():
    code = "import sys, isoconv; assert isoconv.losses.LOSSES['hinge-kr'].defaults['alpha'] == 0.98; "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, timeout=60)
