"""Shared by the tests of the attacks: exact norms, classifiers whose answer is known, the attacks by name."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

import isoconv
from isoconv.attacks import AttackResult, apgd, fgsm, pgd

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
    logits = logits64(model, images)
    weight = model[1].weight.detach().double()  # type: ignore[union-attr,operator]
    found = []
    for row, t in zip(logits, labels.tolist(), strict=True):
        found.append(min(float((row[t] - row[j]) / (weight[t] - weight[j]).norm()) for j in range(len(row)) if j != t))
    return torch.tensor(found, dtype=torch.float64)


class Lead(nn.Module):
    """Two classes: the logit of the first is a function (N,) of the images, that of the second is 0."""

    def __init__(self, lead: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lead = lead

    def forward(self, x: Tensor) -> Tensor:
        lead = self.lead(x.flatten(1))
        return torch.stack([lead, torch.zeros_like(lead)], dim=1)


def linear_problem(count: int, classes: int, *shape: int) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """Return a linear classifier, grey images, the classes predicted for them, and how far each is from the boundary."""
    model, images = linear_classifier(torch.Size(shape).numel(), classes), grey_images(count, *shape)
    labels = logits64(model, images).argmax(dim=1)
    return model, images, labels, minimal_distances(model, images, labels)


def grey_images(count: int, *shape: int, seed: int = 1) -> Tensor:
    """Return images around 0.5, whose small balls do not meet the ends of [0, 1]."""
    return 0.45 + 0.1 * torch.rand(count, *shape, generator=generator(seed), dtype=torch.float64)


def easy_images(model: nn.Module, count: int, *shape: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return images over all of [0, 1], the ends included, with the network's own predictions for labels."""
    images = (1.4 * torch.rand(count, *shape, generator=generator(seed), dtype=torch.float64) - 0.2).clamp(0, 1)
    return images, logits64(model, images).argmax(dim=1)
