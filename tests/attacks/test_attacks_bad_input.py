"""Everything that an attack must refuse, in one line that names it."""

from itertools import cycle

import pytest
import torch
from torch import nn

from attacks.attack_reference import DECISION_ATTACKS, Function, grey_images, linear_classifier
from isoconv.attacks import apgd, boundary, fgsm, pgd, pointwise, rounding_search
from isoconv.attacks.gradient import nearest
from isoconv.nn import MaxMin
from train.toys import refused

MODEL = linear_classifier(6, 3)
IMAGES = grey_images(4, 6)
LABELS = torch.tensor([0, 1, 2, 0])
NAN = float("nan")

ATTACKS = {"pgd": pgd, "fgsm": fgsm, "apgd": apgd, "rounding_search": rounding_search, **DECISION_ATTACKS}
EVERY = {
    "boundary": boundary,
    "pointwise": pointwise,
    "nearest": lambda m, x, y, _, **o: nearest(m, x, y, **o),
} | ATTACKS


def spoilt(values, place, value):
    values = values.clone()
    values[place] = value
    return values


# What is passed instead, and what the message must name. Each case meets one of the attacks, which share one check.
COMMON = [
    *(({"images": spoilt(IMAGES, (2, 3), v)}, rf"pixels .* Got \[{v}\]") for v in (1.01, -1e-09, NAN)),
    ({"images": torch.zeros(4, 6, dtype=torch.uint8)}, "images .*uint8"),
    ({"images": torch.zeros(4, 6) * 1j}, "images .*complex64"),
    ({"images": [[0.5] * 6]}, "images .* list"),
    *(({"images": images}, "batch of .*images") for images in (IMAGES[0], torch.zeros(4, 0))),
    ({"images": grey_images(4, 7)}, r"images that the model can take .* \(4, 7\)"),
    *(({"labels": torch.tensor([0, 1, t, 0])}, rf"labels from 0 to 2.* \[{t}\]") for t in (3, -1)),
    *(({"labels": labels}, "labels, one for each of 4") for labels in (LABELS[:3], LABELS[:, None], LABELS > 0, [0])),
    *(({"epsilon": epsilon}, rf"(epsilon|radii) .* \[{epsilon}\]") for epsilon in (-0.1, NAN, float("inf"))),
    *(({"epsilon": epsilon}, "one number or one for each of 4") for epsilon in ("0.1", True, torch.ones(3), LABELS)),
    ({"epsilon": spoilt(torch.ones(4), 1, NAN)}, "(epsilon|radii) finite .*nan"),
    ({"epsilon": spoilt(torch.ones(4), 3, -1.0)}, "not negative"),
    ({"model": lambda x: x}, "Module.* function"),
    ({"model": nn.Linear(6, 1)}, "at least 2 classes"),
    ({"model": Function(lambda x: x[:, None])}, r"logits .* \(4, 1, 6\)"),
    ({"model": Function(lambda x: x[:1])}, r"logits .* \(1, 6\)"),
    ({"model": Function(lambda x: (x, x))}, "logits .* tuple"),
    ({"model": Function(lambda x: spoilt(x[:, :3], (1, 2), NAN))}, "NaN for images .*1"),
    ({"model": nn.Sequential(nn.Linear(6, 3), MaxMin())}, "^MaxMin: .* 3"),
    *(({"batch_size": size}, f"batch_size, .* {size}") for size in (0, 2.5)),
    *(({"device": device}, f"device .*{device}") for device in ("abacus", "cuda:99", "meta")),
]
COUNTS = {
    "pgd": {"steps": (0, 1.5), "restarts": (0,), "step_size": (0.0, NAN, "big"), "seed": (-1,)},
    "apgd": {"targets": (0,), "seed": (0.5,)},
    "rounding_search": {"rounds": (0,), "candidates": (0,)},
    "nearest": {"rounds": (-1,), "certified": (-0.5,)},
    "boundary": {"steps": (0,)},  # before foolbox is looked for
    "pointwise": {"queries": (0,)},
}
OWN = [
    *((a, {k: v}, f"{k}.* Got .*{v}") for a, options in COUNTS.items() for k, vs in options.items() for v in vs),
    ("apgd", {"loss": "cw"}, "loss .* margin, dlr, .*'cw'"),
    ("apgd", {"loss": "dlr", "model": linear_classifier(6, 2), "labels": LABELS % 2}, "3 classes .*'dlr'.* 2"),
    ("apgd", {"loss": "targeted-dlr"}, "4 classes .*'targeted-dlr'.* 3"),
    ("pgd", {"model": Function(lambda x: x.detach()[:, :3]), "labels": IMAGES[:, :3].argmax(dim=1)}, "differentiated"),
    *((name, {"early_stop": False}, "none of .*early_stop") for name in ("fgsm", "rounding_search")),
    ("fgsm", {"seed": 1}, "none of .*seed"),
]
CASES = [*((name, *case) for name, case in zip(cycle(ATTACKS), COMMON, strict=False)), *OWN]


@pytest.mark.parametrize(("name", "changes", "message"), CASES, ids=[f"{case[0]} {case[2]}" for case in CASES])
def test_refused(name, changes, message):
    arguments = {"model": MODEL, "images": IMAGES, "labels": LABELS, "epsilon": 0.1} | changes
    positional = [arguments.pop(key) for key in ("model", "images", "labels", "epsilon")]
    refused(message, EVERY[name], *positional, **arguments)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_images_are_no_mistake(name):
    result = ATTACKS[name](MODEL, IMAGES[:0], LABELS[:0], 0.1)
    assert result.images.shape == (0, 6) and result.images.dtype == torch.float64
    assert result.success.tolist() == [] and result.accuracy != result.accuracy
    assert len(nearest(MODEL, IMAGES[:0], LABELS[:0]).norms) == 0
