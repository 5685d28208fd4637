"""Shared by the tests of the attacks: exact norms, classifiers whose answer is known, the attacks by name."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import isoconv
from isoconv.attacks import AttackResult, apgd, boundary, fgsm, pgd, pointwise
from isoconv.attacks.decision import import_foolbox
from isoconv.errors import IsoconvError
from isoconv.models import Small

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# Every attack by gradients, short.
GRADIENT_ATTACKS: dict[str, Callable[..., AttackResult]] = {
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


def assert_norms(images: Tensor, result: AttackResult, budgets: Tensor | float) -> None:
    """Assert, in rational numbers, that no norm is understated or above its budget, and that points lie in [0, 1]."""
    assert bool(((result.images >= 0) & (result.images <= 1)).all())
    limits = (torch.ones(len(images), dtype=torch.float64) * budgets).tolist()
    for image, point, norm, limit in zip(images, result.images, result.norms.tolist(), limits, strict=True):
        assert exact_square(image, point) <= Fraction(norm) ** 2 <= Fraction(limit) ** 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_square(image: Tensor, point: Tensor) -> Fraction:
    """Return ‖point − image‖² as a rational number."""
    pairs = zip(image.flatten().tolist(), point.flatten().tolist(), strict=True)
    return sum(((Fraction(q) - Fraction(p)) ** 2 for p, q in pairs), Fraction(0))


def logits64(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of the deployed network in float64."""
    with torch.no_grad():
        return isoconv.plain(model).eval().double()(images.double().clone())


def wrong(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return where the label's is not the one largest logit, computed otherwise than in the attacks."""
    logits = logits64(model, images)
    right = [bool((row[t] > row[torch.arange(len(row)) != t]).all()) for row, t in zip(logits, labels, strict=True)]
    return ~torch.tensor(right)


def linear_classifier(features: int, classes: int, seed: int = 0) -> nn.Sequential:
    """Return one whose boundaries all pass through a point near the grey image, so that grey images are near them."""
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(classes, features, generator=generator(seed)) / features**0.5)
        layer.bias.copy_(0.01 * torch.randn(classes, generator=generator(seed)) - layer.weight.sum(dim=1) / 2)
    return nn.Sequential(nn.Flatten(), layer)


def minimal_distances(model: nn.Sequential, images: Tensor, labels: Tensor) -> Tensor:
    """Return how far a linear classifier's boundary is: the least (y_t − y_j)/‖w_t − w_j‖."""
    logits, rows = logits64(model, images), torch.arange(len(images))
    weight = model[1].weight.detach().double()  # type: ignore[union-attr,operator]
    distances = (logits[rows, labels, None] - logits) / (weight[labels][:, None] - weight).norm(dim=2)
    distances[rows, labels] = torch.inf
    return distances.amin(dim=1)


class Lead(nn.Module):
    """Two classes: the logit of the first is a function (N,) of the images, that of the second is 0."""

    def __init__(self, lead: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lead = lead

    def forward(self, x: Tensor) -> Tensor:
        lead = self.lead(x.flatten(1))
        return torch.stack([lead, torch.zeros_like(lead)], dim=1)


class Asked(nn.Module):
    """Records the size of every batch, and whether its gradient is wanted, in all copies of it together."""

    seen: ClassVar[list[tuple[int, bool]]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), x.requires_grad))
        return x


def watch(
    attack: Callable[..., AttackResult], model: nn.Module, *arguments: Any, **options: Any
) -> tuple[AttackResult, list[int], list[int]]:
    """Run an attack; return the sizes of the batches that it asks about, and of those whose gradients it takes, too."""
    Asked.seen.clear()
    result = attack(nn.Sequential(Asked(), model), *arguments, **options)
    return result, [size for size, _ in Asked.seen], [size for size, gradient in Asked.seen if gradient]


def linear_problem(count: int, classes: int, *shape: int) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """Return a linear classifier, grey images, the classes predicted for them, and how far each is from the boundary."""
    model, images = linear_classifier(torch.Size(shape).numel(), classes), grey_images(count, *shape)
    labels = logits64(model, images).argmax(dim=1)
    return model, images, labels, minimal_distances(model, images, labels)


def small() -> Small:
    torch.manual_seed(0)
    return Small((1, 8, 8), classes=5)


def relu_network(features: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(inplace=True), nn.Linear(16, 5))


def grey_images(count: int, *shape: int, seed: int = 1) -> Tensor:
    """Return images around 0.5, whose small balls do not meet the ends of [0, 1]."""
    return 0.45 + 0.1 * torch.rand(count, *shape, generator=generator(seed), dtype=torch.float64)


def easy_images(model: nn.Module, count: int, *shape: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return images over all of [0, 1], the ends included, with the network's own predictions for labels."""
    images = (1.4 * torch.rand(count, *shape, generator=generator(seed), dtype=torch.float64) - 0.2).clamp(0, 1)
    return images, logits64(model, images).argmax(dim=1)
