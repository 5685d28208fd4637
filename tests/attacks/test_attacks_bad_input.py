"""Everything that an attack must refuse, in one line that names it."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.attack_reference import grey_images, linear_classifier
from isoconv import IsoconvError
from isoconv.attacks import apgd, boundary, fgsm, pgd, pointwise, rounding_search
from isoconv.attacks.decision import import_foolbox
from isoconv.attacks.nearest import nearest
from isoconv.nn import MaxMin

MODEL = linear_classifier(6, 3)
IMAGES = grey_images(4, 6)
LABELS = torch.tensor([0, 1, 2, 0])

ATTACKS: dict[str, Callable[..., Any]] = {"pgd": pgd, "fgsm": fgsm, "apgd": apgd, "rounding_search": rounding_search}
try:
    import_foolbox()
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


# What is passed instead, and what the message must name. Each case meets two of the attacks, which share one check.
COMMON: list[tuple[dict[str, Any], str]] = [
    ({"images": spoilt(1.01)}, r"pixels .* Got 1\.01"),
    ({"images": spoilt(-1e-9)}, r"pixels .* Got -1e-09"),
    ({"images": spoilt(torch.nan)}, r"pixels .* Got nan"),
    ({"images": torch.zeros(4, 6, dtype=torch.uint8)}, r"images .* Got torch\.uint8"),
    ({"images": torch.zeros(4, 6) * 1j}, r"images .* Got torch\.complex64"),
    ({"images": [[0.5] * 6]}, r"images .* Got list"),
    ({"images": IMAGES[0]}, r"batch of images .* \(6,\)"),
    ({"images": torch.zeros(4, 0)}, r"batch of images .* \(4, 0\)"),
    ({"images": grey_images(4, 7)}, r"images that the model can take .* \(4, 7\)"),
    ({"labels": torch.tensor([0, 1, 3, 0])}, r"labels from 0 to 2\. Got 3"),
    ({"labels": torch.tensor([0, -1, 2, 0])}, r"labels from 0 to 2\. Got -1"),
    ({"labels": LABELS[:3]}, r"one label for each of 4 images\. Got shape \(3,\)"),
    ({"labels": LABELS[:, None]}, r"one label for each of 4 images\. Got shape \(4, 1\)"),
    ({"labels": LABELS.float()}, r"integer labels\. Got torch\.float32"),
    ({"labels": LABELS > 0}, r"integer labels\. Got torch\.bool"),
    ({"labels": [0, 1, 2, 0]}, r"integer labels\. Got list"),
    ({"epsilon": -0.1}, r"(epsilon|radii) .*not negative\. Got -0\.1"),
    ({"epsilon": float("nan")}, r"(epsilon|radii) finite .* Got nan"),
    ({"epsilon": float("inf")}, r"(epsilon|radii) finite .* Got inf"),
    ({"epsilon": "0.1"}, r"(epsilon|radii), one number or one for each .* Got '0\.1'"),
    ({"epsilon": True}, r"(epsilon|radii), one number or one for each .* Got True"),
    ({"epsilon": torch.ones(3)}, r"one for each of 4 images\. Got .*\(3,\)"),
    ({"epsilon": torch.ones(4, dtype=torch.int64)}, r"one for each of 4 images\. Got torch\.int64"),
    ({"epsilon": torch.tensor([0.1, torch.nan, 0.1, 0.1])}, r"(epsilon|radii) finite .* Got nan"),
    ({"epsilon": torch.tensor([0.1, 0.1, 0.1, -1.0])}, r"not negative\. Got -1\.0"),
    ({"model": lambda x: x}, r"torch\.nn\.Module\. Got function"),
    ({"model": nn.Linear(6, 1)}, r"at least 2 classes\. Got .*\(4, 1\)"),
    ({"model": Returns(lambda x: x[:, None])}, r"logits \(4, classes\) .* \(4, 1, 6\)"),
    ({"model": Returns(lambda x: x[:1])}, r"logits \(4, classes\) .* \(1, 6\)"),
    ({"model": Returns(lambda x: (x, x))}, r"logits \(4, classes\) .* Got tuple"),
    ({"model": Returns(nan_on_the_second)}, r"numbers\. Got NaN for image 1"),
    ({"model": nn.Sequential(nn.Linear(6, 3), MaxMin())}, r"^MaxMin: .* Got 3"),
    ({"batch_size": 0}, r"batch_size, .* at least 1\. Got 0"),
    ({"batch_size": 2.5}, r"batch_size, .* at least 1\. Got 2\.5"),
    ({"device": "abacus"}, r"device .* Got 'abacus'"),
    ({"device": "cuda:99"}, r"device .* Got 'cuda:99'"),
    ({"device": "meta"}, r"device .* Got 'meta'"),
]
NAMES = cycle(ATTACKS)
PAIRS = [(name, *case) for case in COMMON for name in (next(NAMES), next(NAMES))]

OWN: list[tuple[str, dict[str, Any], str]] = [
    ("pgd", {"steps": 0}, r"steps, .* at least 1\. Got 0"),
    ("pgd", {"steps": 1.5}, r"steps, .* Got 1\.5"),
    ("pgd", {"restarts": 0}, r"restarts, .* Got 0"),
    ("pgd", {"step_size": 0.0}, r"step_size .*positive\. Got 0\.0"),
    ("pgd", {"step_size": float("nan")}, r"step_size finite .* Got nan"),
    ("pgd", {"step_size": "big"}, r"step_size .* Got 'big'"),
    ("pgd", {"seed": -1}, r"seed, .* at least 0\. Got -1"),
    ("apgd", {"steps": 0}, r"steps, .* Got 0"),
    ("apgd", {"restarts": -2}, r"restarts, .* Got -2"),
    ("apgd", {"targets": 0}, r"targets, .* Got 0"),
    ("apgd", {"seed": 0.5}, r"seed, .* Got 0\.5"),
    ("apgd", {"loss": "cw"}, r"loss .* margin, dlr, .* Got 'cw'"),
    ("apgd", {"loss": "dlr", "model": linear_classifier(6, 2), "labels": LABELS % 2}, r"3 classes .*'dlr'\. Got 2"),
    ("apgd", {"loss": "targeted-dlr"}, r"4 classes .*'targeted-dlr'\. Got 3"),
    ("rounding_search", {"steps": 0}, r"steps, .* Got 0"),
    ("rounding_search", {"rounds": 0}, r"rounds, .* Got 0"),
    ("rounding_search", {"candidates": 0}, r"candidates, .* Got 0"),
    ("rounding_search", {"seed": -1}, r"seed, .* Got -1"),
    ("pgd", {"model": Returns(lambda x: x.detach()[:, :3]), "labels": IMAGES[:, :3].argmax(dim=1)}, r"differentiated"),
]


def call(attack: Callable[..., Any], **changes: Any) -> Any:
    arguments: dict[str, Any] = {"model": MODEL, "images": IMAGES, "labels": LABELS, "epsilon": 0.1} | changes
    positional = [arguments.pop(name) for name in ("model", "images", "labels", "epsilon")]
    return attack(*positional, **arguments)


def refuse(attack: Callable[..., Any], message: str, **changes: Any) -> None:
    with pytest.raises(IsoconvError, match=message) as caught:
        call(attack, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "changes", "message"), [*PAIRS, *OWN], ids=[f"{c[0]} {c[2]}" for c in [*PAIRS, *OWN]])
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    refuse(ATTACKS[name], message, **changes)


def test_decision_attacks_check_their_counts_before_foolbox() -> None:
    refuse(boundary, r"steps, .* at least 1\. Got 0", steps=0)
    refuse(pointwise, r"queries, .* at least 1\. Got 0", queries=0)


def test_nearest() -> None:
    for options, word in (({"rounds": -1}, "rounds"), ({"certified": -0.5}, "certified"), ({"steps": 0}, "steps")):
        with pytest.raises(IsoconvError, match=f"Expected {word}"):
            nearest(MODEL, IMAGES, LABELS, **options)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_images_are_no_mistake(name: str) -> None:
    result = call(ATTACKS[name], images=IMAGES[:0], labels=LABELS[:0])
    assert result.images.shape == (0, 6) and result.images.dtype == torch.float64
    assert result.success.tolist() == [] and result.accuracy != result.accuracy
