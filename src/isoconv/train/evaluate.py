"""Clean and certified accuracy of a trained network."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from isoconv.certify import robust_accuracy
from isoconv.data import ImageSet


def evaluate(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], device: torch.device, batch_size: int = 500
) -> dict[str, Any]:
    """Accuracy in percent, clean and certified at each radius, of the plain network run in float64."""
    found = robust_accuracy(model.to(device), data, epsilons, batch_size=batch_size)
    robust = {str(epsilon): found.certified[epsilon] for epsilon in epsilons}
    return {"images": len(data), "clean": found.clean, "robust": robust, "lipschitz_bound": found.lipschitz_bound}
