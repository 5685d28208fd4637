"""Clean and robust accuracy of a trained network."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.data import ImageSet
from isoconv.linalg import conv_norm_bound, matrix_norm_bound
from isoconv.linalg.rounding import mul_up
from isoconv.nn import BCOPConv1d, plain
from isoconv.nn.convolution import LipschitzConvolution, evaluation_weight
from isoconv.nn.linear import OrthogonalLinear
from isoconv.train.losses import margins


def network_norm_bound(model: nn.Module, input_shape: Sequence[int]) -> float:
    """The product of proved bounds of a network's linear layers: its Lipschitz constant is at most that."""
    bounds = [1.0]
    size: tuple[int, ...] = tuple(input_shape[1:])
    for layer in model.modules():
        if isinstance(layer, LipschitzConvolution) and not isinstance(layer, BCOPConv1d):
            size = tuple(n // layer.stride for n in size)
            bounds.append(conv_norm_bound(evaluation_weight(layer), 1, size, layer.padding_mode))
        elif isinstance(layer, OrthogonalLinear):
            bounds.append(matrix_norm_bound(evaluation_weight(layer)))
        elif isinstance(layer, nn.Linear):
            bounds.append(matrix_norm_bound(layer.weight))
    return mul_up(*bounds)


@torch.no_grad()
def evaluate(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], device: torch.device, batch_size: int = 1000
) -> dict[str, Any]:
    """Accuracy in percent: clean, and robust at each radius by the paper's margin test, margin > √2·ε·L.

    L is the network's proved Lipschitz bound. The logits are computed in float32, and their rounding is not part of
    the test.
    """
    bound = network_norm_bound(model, data.shape)
    margin = all_margins(plain(model).eval().to(device), data, device, batch_size)
    clean = 100 * float((margin > 0).double().mean())
    robust = {str(e): 100 * float((margin > math.sqrt(2) * e * bound).double().mean()) for e in epsilons}
    return {"images": len(data), "clean": clean, "robust": robust, "lipschitz_bound": bound}


def all_margins(model: nn.Module, data: ImageSet, device: torch.device, batch_size: int = 1000) -> Tensor:
    """The margin of every image's label, in float64 on the CPU."""
    found = []
    for images, labels in zip(data.images.split(batch_size), data.labels.split(batch_size), strict=True):
        pixels = images.to(device).to(torch.float32) / 255
        found.append(margins(model(pixels).double(), labels.to(device)).cpu())
    return torch.cat(found)
