"""Clean and robust accuracy of a trained network."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.data import ImageSet
from isoconv.errors import IsoconvError
from isoconv.linalg import conv_norm_bound, matrix_norm_bound
from isoconv.linalg.rounding import mul_up
from isoconv.nn import BCOPConvTranspose2d, GroupSort, InvertibleDownsampling, MaxMin, plain
from isoconv.nn.convolution import LipschitzConvolution, evaluation_weight
from isoconv.nn.linear import OrthogonalLinear
from isoconv.train.losses import margins

_NORM_ONE = (MaxMin, GroupSort, nn.ReLU, nn.Flatten, nn.Identity, nn.PixelUnshuffle, InvertibleDownsampling)
_ROUNDING = 1e-9


def network_norm_bound(model: nn.Module, input_shape: Sequence[int]) -> float:
    """The product of proved bounds of a network's layers: its Lipschitz constant is at most that.

    For the networks of `isoconv.models`, and any other `nn.Sequential` of their kinds of layers. A module of another kind
    is refused by name: nothing is known of its Lipschitz constant.
    """
    if not isinstance(model, nn.Sequential):
        raise IsoconvError(f"Expected an nn.Sequential of known layers. Got {type(model).__name__}.")
    bounds = [1.0]
    size: tuple[int, ...] = tuple(input_shape[1:])
    for layer in model:
        if (
            isinstance(layer, LipschitzConvolution)
            and layer.dimensions == 2
            and not isinstance(layer, BCOPConvTranspose2d)
        ):
            size = tuple(n // layer.stride for n in size)
            bounds.append(conv_norm_bound(evaluation_weight(layer), 1, size, layer.padding_mode))
        elif isinstance(layer, OrthogonalLinear):
            bounds.append(matrix_norm_bound(evaluation_weight(layer)))
        elif isinstance(layer, nn.Linear):
            bounds.append(matrix_norm_bound(layer.weight))
        elif not isinstance(layer, _NORM_ONE):
            raise IsoconvError(f"Expected layers with a known Lipschitz constant. Got {type(layer).__name__}.")
    return mul_up(*bounds)


@torch.no_grad()
def evaluate(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], device: torch.device, batch_size: int = 500
) -> dict[str, Any]:
    """Accuracy in percent: clean, and certified at each radius by the paper's margin test, margin > √2·ε·L.

    L is the network's proved Lipschitz bound. The plain network runs in float64, and the margin must exceed √2·ε·L by
    more than `_ROUNDING`, far above what float64 can lose on the way to logits of this size.
    """
    bound = network_norm_bound(model, data.shape)
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
