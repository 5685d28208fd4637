"""Everything that an attack must refuse, in one line that names it."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.attack_reference import DECISION_ATTACKS, grey_images, linear_classifier
from isoconv import IsoconvError
from isoconv.attacks import apgd, boundary, fgsm, pgd, pointwise, rounding_search
from isoconv.attacks.gradient import nearest
from isoconv.nn import MaxMin

MODEL = linear_classifier(6, 3)
IMAGES = grey_images(4, 6)
LABELS = torch.tensor([0, 1, 2, 0])

ATTACKS = {"pgd": pgd, "fgsm": fgsm, "apgd": apgd, "rounding_search": rounding_search, **DECISION_ATTACKS}


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
    *(({"images": spoilt(value)}, rf"pixels .* Got \[{value}\]") for value in (1.01, -1e-09, float("nan"))),
    ({"images": torch.zeros(4, 6, dtype=torch.uint8)}, "images .*uint8"),
    ({"images": torch.zeros(4, 6) * 1j}, "images .*complex64"),
    ({"images": [[0.5] * 6]}, "images .* list"),
    *(({"images": images}, "batch of .*images") for images in (IMAGES[0], torch.zeros(4, 0))),
    ({"images": grey_images(4, 7)}, r"images that the model can take .* \(4, 7\)"),
    *(({"labels": torch.tensor([0, 1, t, 0])}, rf"labels from 0 to 2.* \[{t}\]") for t in (3, -1)),
    *(({"labels": labels}, "labels, one for each of 4") for labels in (LABELS[:3], LABELS[:, None], LABELS > 0, [0])),
    *(({"epsilon": epsilon}, rf"(epsilon|radii) .* \[{epsilon}\]") for epsilon in (-0.1, float("nan"), float("inf"))),
    *(({"epsilon": epsilon}, "(epsilon|radii), one number or one for each") for epsilon in ("0.1", True)),
    *(({"epsilon": epsilon}, "one for each of 4 images") for epsilon in (torch.ones(3), torch.ones(4).long())),
    ({"epsilon": torch.tensor([0.1, torch.nan, 0.1, 0.1])}, "(epsilon|radii) finite .*nan"),
    ({"epsilon": torch.tensor([0.1, 0.1, 0.1, -1.0])}, "not negative"),
    ({"model": lambda x: x}, "Module.* function"),
    ({"model": nn.Linear(6, 1)}, "at least 2 classes"),
    ({"model": Returns(lambda x: x[:, None])}, r"logits .* \(4, 1, 6\)"),
    ({"model": Returns(lambda x: x[:1])}, r"logits .* \(1, 6\)"),
    ({"model": Returns(lambda x: (x, x))}, "logits .* tuple"),
    ({"model": Returns(nan_on_the_second)}, "NaN for images .*1"),
    ({"model": nn.Sequential(nn.Linear(6, 3), MaxMin())}, "^MaxMin: .* 3"),
    *(({"batch_size": size}, f"batch_size, .* {size}") for size in (0, 2.5)),
    *(({"device": device}, f"device .*{device}") for device in ("abacus", "cuda:99", "meta")),
]
NAMES = cycle(ATTACKS)
PAIRS = [(name, *case) for case in COMMON for name in (next(NAMES), next(NAMES))]

COUNTS = {
    "pgd": {"steps": (0, 1.5), "restarts": (0,), "step_size": (0.0, float("nan"), "big"), "seed": (-1,)},
    "apgd": {"steps": (0,), "restarts": (-2,), "targets": (0,), "seed": (0.5,)},
    "rounding_search": {"steps": (0,), "rounds": (0,), "candidates": (0,), "seed": (-1,)},
}
OWN: list[tuple[str, dict[str, Any], str]] = [
    *((a, {k: v}, f"{k}.* Got .*{v}") for a, options in COUNTS.items() for k, vs in options.items() for v in vs),
    ("apgd", {"loss": "cw"}, "loss .* margin, dlr, .*'cw'"),
    ("apgd", {"loss": "dlr", "model": linear_classifier(6, 2), "labels": LABELS % 2}, "3 classes .*'dlr'.* 2"),
    ("apgd", {"loss": "targeted-dlr"}, "4 classes .*'targeted-dlr'.* 3"),
    ("pgd", {"model": Returns(lambda x: x.detach()[:, :3]), "labels": IMAGES[:, :3].argmax(dim=1)}, "differentiated"),
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
    refuse(boundary, "steps, .* 0", steps=0)
    refuse(pointwise, "queries, .* 0", queries=0)


def test_nearest() -> None:
    for options, word in (({"rounds": -1}, "rounds"), ({"certified": -0.5}, "certified"), ({"steps": 0}, "steps")):
        with pytest.raises(IsoconvError, match=f"Expected {word}"):
            nearest(MODEL, IMAGES, LABELS, **options)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_images_are_no_mistake(name: str) -> None:
    result = call(ATTACKS[name], images=IMAGES[:0], labels=LABELS[:0])
    assert result.images.shape == (0, 6) and result.images.dtype == torch.float64
    assert result.success.tolist() == [] and result.accuracy != result.accuracy
    assert len(nearest(MODEL, IMAGES[:0], LABELS[:0]).norms) == 0
