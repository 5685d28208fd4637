"""Shared by the tests of the attacks: exact norms, classifiers whose answer is known, the attacks by name."""

from fractions import Fraction
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

import isoconv
from isoconv.attacks import apgd, boundary, fgsm, pgd, pointwise
from isoconv.attacks.decision import import_foolbox
from isoconv.errors import IsoconvError
from isoconv.models import Small

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# Every attack by gradients, short.
GRADIENT_ATTACKS = {
    "fgsm": fgsm,
    "pgd": partial(pgd, steps=25),
    "apgd": partial(apgd, steps=25),
    "apgd dlr": partial(apgd, steps=25, loss="dlr"),
    "apgd targeted": partial(apgd, steps=15, loss="targeted-margin", targets=3),
    "apgd targeted dlr": partial(apgd, steps=15, loss="targeted-dlr", targets=3),
}

try:
    import_foolbox()
    DECISION_ATTACKS = {"boundary": partial(boundary, steps=60), "pointwise": partial(pointwise, queries=60)}
except IsoconvError:
    DECISION_ATTACKS = {}
needs_foolbox = pytest.mark.skipif(not DECISION_ATTACKS, reason="foolbox is not installed")


def exact_square(image, point):
    """Return ‖point − image‖² as a rational number."""
    pairs = zip(image.flatten().tolist(), point.flatten().tolist(), strict=True)
    return sum(((Fraction(q) - Fraction(p)) ** 2 for p, q in pairs), Fraction(0))


def assert_norms(images, points, norms, budgets):
    """Assert, in rational numbers, that no norm is understated or above its budget, and that points lie in [0, 1]."""
    assert bool(((points >= 0) & (points <= 1)).all())
    limits = (torch.ones(len(images), dtype=torch.float64) * budgets).tolist()
    for image, point, norm, limit in zip(images, points, norms.tolist(), limits, strict=True):
        assert exact_square(image, point) <= Fraction(norm) ** 2 <= Fraction(limit) ** 2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def logits64(model, images):
    """Return the logits of the deployed network in float64."""
    with torch.no_grad():
        return isoconv.plain(model).eval().double()(images.double().clone())


def wrong(model, images, labels):
    """Return where the label's is not the one largest logit, computed otherwise than in the attacks."""
    logits = logits64(model, images)
    right = [bool((row[t] > row[torch.arange(len(row)) != t]).all()) for row, t in zip(logits, labels, strict=True)]
    return ~torch.tensor(right)


def linear_classifier(features, classes, seed=0):
    """Return one whose boundaries all pass through a point near the grey image, so that grey images are near them."""
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(classes, features, generator=generator(seed)) / features**0.5)
        layer.bias.copy_(0.01 * torch.randn(classes, generator=generator(seed)) - layer.weight.sum(dim=1) / 2)
    return nn.Sequential(nn.Flatten(), layer)


def linear_problem(count, classes, *shape):
    """Return a linear classifier, grey images, the classes predicted for them, and how far each is from the boundary.

    That is the least (y_t − y_j)/‖w_t − w_j‖.
    """
    model, images = linear_classifier(torch.Size(shape).numel(), classes), grey_images(count, *shape)
    logits, rows = logits64(model, images), torch.arange(count)
    labels, weight = logits.argmax(dim=1), model[1].weight.detach().double()
    distances = (logits[rows, labels, None] - logits) / (weight[labels][:, None] - weight).norm(dim=2)
    distances[rows, labels] = torch.inf
    return model, images, labels, distances.amin(dim=1)


class Lead(nn.Module):
    """Two classes: the logit of the first is a function (N,) of the images, that of the second is 0."""

    def __init__(self, lead):
        super().__init__()
        self.lead = lead

    def forward(self, x):
        lead = self.lead(x.flatten(1))
        return torch.stack([lead, torch.zeros_like(lead)], dim=1)


class Asked(nn.Module):
    """Records the size of every batch, and whether its gradient is wanted, in all copies of it together."""

    seen: ClassVar[list[tuple[int, bool]]] = []

    def forward(self, x):
        self.seen.append((len(x), x.requires_grad))
        return x


def watch(attack, model, *arguments, **options):
    """Run an attack; return the sizes of the batches that it asks about, and of those whose gradients it takes, too."""
    Asked.seen.clear()
    result = attack(nn.Sequential(Asked(), model), *arguments, **options)
    return result, [size for size, _ in Asked.seen], [size for size, gradient in Asked.seen if gradient]


def relu_network(features):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(inplace=True), nn.Linear(16, 5))


def grey_images(count, *shape):
    """Return images around 0.5, whose small balls do not meet the ends of [0, 1]."""
    return 0.45 + 0.1 * torch.rand(count, *shape, generator=generator(1), dtype=torch.float64)


def easy_images(model, count, *shape):
    """Return images over all of [0, 1], the ends included, with the network's own predictions for labels."""
    images = (1.4 * torch.rand(count, *shape, generator=generator(1), dtype=torch.float64) - 0.2).clamp(0, 1)
    return images, logits64(model, images).argmax(dim=1)


def small_problem(count):
    """Return a network of isoconv, and easy images for it."""
    torch.manual_seed(0)
    model = Small((1, 8, 8), classes=5)
    return model, *easy_images(model, count, 1, 8, 8)
