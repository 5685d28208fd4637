"""Shared by the tests of the attacks: exact norms, classifiers whose answer is known, the attacks by name."""

from fractions import Fraction
from functools import partial

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


def assert_norms(images, result, budgets):
    """Assert, in rational numbers, that no norm is understated or above its budget, and that points lie in [0, 1]."""
    points, norms = (result.images, result.norms) if hasattr(result, "norms") else result
    assert bool(((points >= 0) & (points <= 1)).all())
    limits = (torch.ones(len(images), dtype=torch.float64) * budgets).tolist()
    for image, point, norm, limit in zip(images, points, norms.tolist(), limits, strict=True):
        assert exact_square(image, point) <= Fraction(norm) ** 2 <= Fraction(limit) ** 2


def uniform(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def logits64(model, images):
    """Return the logits of the deployed network in float64."""
    with torch.no_grad():
        return isoconv.plain(model).eval().double()(images.double().clone())


def wrong(model, images, labels):
    """Return where the label's is not the one largest logit, computed otherwise than in the attacks."""
    logits = logits64(model, images)
    right = [bool((row[t] > row[torch.arange(len(row)) != t]).all()) for row, t in zip(logits, labels, strict=True)]
    return ~torch.tensor(right)


def linear_classifier(features, classes):
    """Return one whose boundaries all pass through a point near the grey image, so that grey images are near them."""
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.copy_(normal(classes, features, dtype=torch.float32) / features**0.5)
        layer.bias.copy_(0.01 * normal(classes, dtype=torch.float32) - layer.weight.sum(dim=1) / 2)
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


class Function(nn.Module):
    """A function of the images, for a network."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def lead(function):
    """Return a network of two classes: the logit of the first is a function (N,) of the images, that of the second is 0."""

    def logits(x):
        first = function(x.flatten(1))
        return torch.stack([first, torch.zeros_like(first)], dim=1)

    return Function(logits)


def watch(attack, model, *arguments, **options):
    """Run an attack; return the sizes of the batches that it asks about, and of those whose gradients it takes, too."""
    seen = []
    watched = Function(lambda x: seen.append((len(x), x.requires_grad)) or x)
    result = attack(nn.Sequential(watched, model), *arguments, **options)
    return result, [size for size, _ in seen], [size for size, gradient in seen if gradient]


def relu_network(features):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(inplace=True), nn.Linear(16, 5))


def grey_images(count, *shape):
    """Return images around 0.5, whose small balls do not meet the ends of [0, 1]."""
    return 0.45 + 0.1 * uniform(count, *shape)


def easy_images(model, count, *shape):
    """Return images over all of [0, 1], the ends included, with the network's own predictions for labels."""
    images = (1.4 * uniform(count, *shape) - 0.2).clamp(0, 1)
    return images, logits64(model, images).argmax(dim=1)


def small_problem(count):
    """Return a network of isoconv, and easy images for it."""
    torch.manual_seed(0)
    model = Small((1, 8, 8), classes=5)
    return model, *easy_images(model, count, 1, 8, 8)
