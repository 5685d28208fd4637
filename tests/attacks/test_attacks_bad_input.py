"""Everything that an attack must refuse, and with which words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.attack_reference import grey_images, linear_classifier
from isoconv import IsoconvError
from isoconv.attacks import apgd, boundary, fgsm, pgd, pointwise, rounding_search
from isoconv.attacks.decision import _foolbox
from isoconv.nn import MaxMin

MODEL = linear_classifier(6, 3)
IMAGES = grey_images(4, 6)
LABELS = torch.tensor([0, 1, 2, 0])

ATTACKS: dict[str, Callable[..., Any]] = {"pgd": pgd, "fgsm": fgsm, "apgd": apgd, "rounding_search": rounding_search}
try:
    _foolbox()
    ATTACKS |= {"boundary": boundary, "pointwise": pointwise}
except IsoconvError:
    pass


class Returns(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


def spoilt(value: float) -> Tensor:
    images = IMAGES.clone()
    images[2, 3] = value
    return images


def nan_on_the_second(x: Tensor) -> Tensor:
    logits = torch.zeros(len(x), 3, dtype=x.dtype)
    logits[1, 2] = torch.nan
    return logits


# what is given instead, and what is said of it
COMMON: dict[str, tuple[dict[str, Any], str]] = {
    "pixels too large": ({"images": spoilt(1.01)}, r"Expected pixels in \[0, 1\]\. Got 1\.01\."),
    "pixels negative": ({"images": spoilt(-1e-9)}, r"Expected pixels in \[0, 1\]\. Got -1e-09\."),
    "pixels NaN": ({"images": spoilt(torch.nan)}, r"Expected pixels in \[0, 1\]\. Got nan\."),
    "pixels infinite": ({"images": spoilt(torch.inf)}, r"Expected pixels in \[0, 1\]\. Got inf\."),
    "bytes": (
        {"images": torch.zeros(4, 6, dtype=torch.uint8)},
        r"Expected floating-point images .* Got torch\.uint8\.",
    ),
    "complex": ({"images": torch.zeros(4, 6) * 1j}, r"Expected floating-point images .* Got torch\.complex64\."),
    "a list": ({"images": [[0.5] * 6]}, r"Expected floating-point images .* Got list\."),
    "one image without a batch": ({"images": IMAGES[0]}, r"Expected a batch of images \(N, …\)\. Got shape \(6,\)\."),
    "images of nothing": ({"images": torch.zeros(4, 0)}, r"Expected a batch of images \(N, …\)\. Got shape \(4, 0\)\."),
    "images of another shape": (
        {"images": grey_images(4, 7)},
        r"Expected images that the model can take in torch\.float64\. Got shape \(4, 7\): mat1 and mat2",
    ),
    "labels too large": ({"labels": torch.tensor([0, 1, 3, 0])}, r"Expected labels from 0 to 2\. Got 3\."),
    "labels negative": ({"labels": torch.tensor([0, -1, 2, 0])}, r"Expected labels from 0 to 2\. Got -1\."),
    "too few labels": ({"labels": LABELS[:3]}, r"one label for each of 4 images\. Got shape \(3,\)\."),
    "labels in a column": ({"labels": LABELS[:, None]}, r"one label for each of 4 images\. Got shape \(4, 1\)\."),
    "labels not whole": ({"labels": LABELS.float()}, r"Expected integer labels\. Got torch\.float32\."),
    "labels true or false": ({"labels": LABELS > 0}, r"Expected integer labels\. Got torch\.bool\."),
    "a list of labels": ({"labels": [0, 1, 2, 0]}, r"Expected integer labels\. Got list\."),
    "budget negative": ({"epsilon": -0.1}, r"Expected (epsilon|radii) finite and not negative\. Got -0\.1\."),
    "budget NaN": ({"epsilon": float("nan")}, r"Expected (epsilon|radii) finite and not negative\. Got nan\."),
    "budget infinite": ({"epsilon": float("inf")}, r"Expected (epsilon|radii) finite and not negative\. Got inf\."),
    "budget a word": ({"epsilon": "0.1"}, r"Expected (epsilon|radii), one number or one for each of 4 .* Got '0\.1'\."),
    "budget true": (
        {"epsilon": True},
        r"Expected (epsilon|radii), one number or one for each of 4 images\. Got True\.",
    ),
    "too few budgets": ({"epsilon": torch.ones(3)}, r"one for each of 4 images\. Got torch\.float32 of shape \(3,\)\."),
    "whole budgets": ({"epsilon": torch.ones(4, dtype=torch.int64)}, r"Got torch\.int64 of shape \(4,\)\."),
    "one of the budgets NaN": (
        {"epsilon": torch.tensor([0.1, torch.nan, 0.1, 0.1])},
        r"Expected (epsilon|radii) finite and not negative\. Got nan\.",
    ),
    "one of the budgets negative": ({"epsilon": torch.tensor([0.1, 0.1, 0.1, -1.0])}, r"not negative\. Got -1\.0\."),
    "a function for a model": ({"model": lambda x: x}, r"Expected a torch\.nn\.Module\. Got function\."),
    "one class": (
        {"model": nn.Linear(6, 1)},
        r"Expected logits \(4, classes\) of at least 2 classes\. Got .*\(4, 1\)\.",
    ),
    "logits of an image": (
        {"model": Returns(lambda x: x[:, None])},
        r"Expected logits \(4, classes\) .* \(4, 1, 6\)\.",
    ),
    "logits of one image": (
        {"model": Returns(lambda x: x[:1])},
        r"Expected logits \(4, classes\) .* Got shape \(1, 6\)\.",
    ),
    "two answers": ({"model": Returns(lambda x: (x, x))}, r"Expected logits \(4, classes\) .* Got tuple\."),
    "NaN": ({"model": Returns(nan_on_the_second)}, r"Expected a model that gives numbers\. Got NaN for image 1\."),
    "a layer of ours that refuses": (
        {"model": nn.Sequential(nn.Linear(6, 3), MaxMin())},
        r"^MaxMin: Expected .* Got 3\.",
    ),
    "batch size zero": ({"batch_size": 0}, r"Expected batch_size, a whole number of at least 1\. Got 0\."),
    "batch size half": ({"batch_size": 2.5}, r"Expected batch_size, a whole number of at least 1\. Got 2\.5\."),
    "no such device": ({"device": "abacus"}, r"Expected a device that has float64\. Got 'abacus': "),
    "no such GPU": ({"device": "cuda:99"}, r"Expected a device that has float64\. Got 'cuda:99': "),
    "a device without numbers": ({"device": "meta"}, r"Expected a device that has float64\. Got 'meta': "),
}


def called(attack: Callable[..., Any], **changes: Any) -> Any:
    given: dict[str, Any] = {"model": MODEL, "images": IMAGES, "labels": LABELS, "epsilon": 0.1} | changes
    return attack(given.pop("model"), given.pop("images"), given.pop("labels"), given.pop("epsilon"), **given)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("case", COMMON)
def test_refused_by_all(name: str, case: str) -> None:
    changes, message = COMMON[case]
    with pytest.raises(IsoconvError, match=message) as caught:
        called(ATTACKS[name], **changes)
    assert "\n" not in str(caught.value)


OWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "pgd steps": ("pgd", {"steps": 0}, r"Expected steps, a whole number of at least 1\. Got 0\."),
    "pgd half a step": ("pgd", {"steps": 1.5}, r"Expected steps, a whole number of at least 1\. Got 1\.5\."),
    "pgd restarts": ("pgd", {"restarts": 0}, r"Expected restarts, a whole number of at least 1\. Got 0\."),
    "pgd step size zero": ("pgd", {"step_size": 0.0}, r"Expected step_size finite and positive\. Got 0\.0\."),
    "pgd step size NaN": ("pgd", {"step_size": float("nan")}, r"Expected step_size finite and positive\. Got nan\."),
    "pgd step size word": ("pgd", {"step_size": "big"}, r"Expected step_size finite and positive\. Got 'big'\."),
    "pgd seed": ("pgd", {"seed": -1}, r"Expected seed, a whole number of at least 0\. Got -1\."),
    "apgd steps": ("apgd", {"steps": 0}, r"Expected steps, a whole number of at least 1\. Got 0\."),
    "apgd restarts": ("apgd", {"restarts": -2}, r"Expected restarts, a whole number of at least 1\. Got -2\."),
    "apgd targets": ("apgd", {"targets": 0}, r"Expected targets, a whole number of at least 1\. Got 0\."),
    "apgd seed": ("apgd", {"seed": 0.5}, r"Expected seed, a whole number of at least 0\. Got 0\.5\."),
    "apgd loss": ("apgd", {"loss": "cw"}, r"Expected loss to be one of margin, dlr, .* Got 'cw'\."),
    "apgd two classes": (
        "apgd",
        {"loss": "dlr", "model": linear_classifier(6, 2), "labels": LABELS % 2},
        r"Expected at least 3 classes for the loss 'dlr'\. Got 2\.",
    ),
    "apgd three classes": (
        "apgd",
        {"loss": "targeted-dlr"},
        r"Expected at least 4 classes for the loss 'targeted-dlr'\. Got 3\.",
    ),
    "rounding steps": ("rounding_search", {"steps": 0}, r"Expected steps, a whole number of at least 1\. Got 0\."),
    "rounding rounds": ("rounding_search", {"rounds": 0}, r"Expected rounds, a whole number of at least 1\. Got 0\."),
    "rounding candidates": ("rounding_search", {"candidates": 0}, r"Expected candidates, a whole number .* Got 0\."),
    "rounding seed": ("rounding_search", {"seed": -1}, r"Expected seed, a whole number of at least 0\. Got -1\."),
    "no gradient": (
        "pgd",
        {"model": Returns(lambda x: x.detach()[:, :3]), "labels": IMAGES[:, :3].argmax(dim=1)},
        r"Expected logits that can be differentiated in the pixels\. Got a constant\.",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_refused(case: str) -> None:
    name, changes, message = OWN[case]
    with pytest.raises(IsoconvError, match=message) as caught:
        called(ATTACKS[name], **changes)
    assert "\n" not in str(caught.value)


def test_decision_attacks_check_their_counts_before_foolbox() -> None:
    with pytest.raises(IsoconvError, match=r"Expected steps, a whole number of at least 1\. Got 0\."):
        called(boundary, steps=0)
    with pytest.raises(IsoconvError, match=r"Expected queries, a whole number of at least 1\. Got 0\."):
        called(pointwise, queries=0)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_images_are_no_mistake(name: str) -> None:
    result = called(ATTACKS[name], images=IMAGES[:0], labels=LABELS[:0])
    assert result.images.shape == (0, 6) and result.images.dtype == torch.float64
    assert result.success.tolist() == [] and result.accuracy != result.accuracy
