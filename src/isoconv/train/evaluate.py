"""Clean and robust accuracy of a trained network."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify import lipschitz_bound
from isoconv.data import ImageSet
from isoconv.nn import plain
from isoconv.train.losses import margins

_ROUNDING = 1e-9


@torch.no_grad()
def evaluate(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], device: torch.device, batch_size: int = 500
) -> dict[str, Any]:
    """Accuracy in percent: clean, and certified at each radius by the paper's margin test, margin > √2·ε·L.

    L is the network's proved Lipschitz bound. The plain network runs in float64, and the margin must exceed √2·ε·L by
    more than `_ROUNDING`, far above what float64 can lose on the way to logits of this size.
    """
    bound = lipschitz_bound(model, data.shape).value
    margin = all_margins(plain(model).eval().double().to(device), data, device, batch_size)
    clean = 100 * float((margin > 0).double().mean())
    robust = {str(e): 100 * float((margin > math.sqrt(2) * e * bound + _ROUNDING).double().mean()) for e in epsilons}
    return {"images": len(data), "clean": clean, "robust": robust, "lipschitz_bound": bound}


def all_margins(model: nn.Module, data: ImageSet, device: torch.device, batch_size: int = 500) -> Tensor:
    """The margin of every image's label by a float64 model, on the CPU."""
    found = []
    for images, labels in zip(data.images.split(batch_size), data.labels.split(batch_size), strict=True):
        logits = model(images.to(device).to(torch.float64) / 255)
        found.append(margins(logits, labels.to(device)).cpu())
    return torch.cat(found)
