"""A few test images, what is proved of each, and the nearest point found that fools the network, as small pictures."""

import base64
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isoconv.attacks.nearest import nearest
from isoconv.certify import Certifier
from isoconv.data import ImageSet, as_float

_LARGEST = 64  # pixels of a picture's longer side; larger images are shown smaller


def gallery_entries(
    certifier: Certifier,
    data: ImageSet,
    count: int = 12,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """The first images of the test set, but of all classes in turn, each as plain data.

    index, label, prediction; radius, 0 where nothing is proved; image, a PNG as a data URI; and `adversarial`: the norm
    of the smallest change that was found to fool the network, what it then predicts, and pictures of the changed image
    and of the change alone. None where the network is wrong to begin with, or where nothing was found.
    """
    chosen = _of_all_classes(data.labels, count)
    part = data.subset(chosen)
    pixels = as_float(part.images, torch.float64)
    proved = certifier(pixels).cpu()
    radii = torch.where(proved.prediction == part.labels, proved.radius, 0.0)
    found = nearest(certifier.deployed, pixels, part.labels, certified=radii, seed=seed, progress=progress)
    fooled = certifier(found.images).cpu().prediction
    entries = []
    for k, index in enumerate(chosen):
        entry: dict[str, Any] = {
            "index": index,
            "label": int(part.labels[k]),
            "prediction": int(proved.prediction[k]),
            "radius": float(proved.radius[k]),
            "image": picture_uri(pixels[k]),
            "adversarial": None,
        }
        if bool(found.clean[k]) and bool(found.success[k]):
            entry["adversarial"] = {
                "norm": float(found.norms[k]),
                "prediction": int(fooled[k]),
                "image": picture_uri(found.images[k]),
                "change": picture_uri(_visible(found.images[k] - pixels[k])),
            }
        entries.append(entry)
    return entries


def _of_all_classes(labels: Tensor, count: int) -> list[int]:
    """The first image of each class, in their order, then the second of each, …"""
    chosen: list[int] = []
    left = list(enumerate(labels.tolist()))
    while left and len(chosen) < count:
        seen: set[int] = set()
        later = []
        for index, label in left:
            if label in seen or len(chosen) == count:
                later.append((index, label))
            else:
                seen.add(label)
                chosen.append(index)
        left = later
    return chosen


def _visible(change: Tensor) -> Tensor:
    """Grey where nothing changes; the largest change becomes black or white."""
    largest = float(change.abs().max())
    return 0.5 + change / (2 * largest if largest > 0 else 1)


def picture_uri(pixels: Tensor) -> str:
    """Pixels in [0, 1], (1 or 3, H, W), rounded to 8 bits, as a PNG in a data URI."""
    from PIL import Image

    array = (pixels * 255).round().clamp(0, 255).to(torch.uint8).cpu()
    picture = Image.fromarray(array[0].numpy() if len(array) == 1 else array.permute(1, 2, 0).contiguous().numpy())
    if max(picture.size) > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
