"""Dynamical isometry: the singular values of a whole network's input–output Jacobian (the paper, appendix D).

A composition of orthogonal layers and MaxMin has a Jacobian with orthonormal rows wherever no layer enlarges the
dimension: all its singular values are 1. A layer that enlarges it, say from 3 to 12 channels, has orthonormal columns
instead; what follows can then remove some of the directions that carry the input, and the network keeps singular
values of at most 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


def jacobian_spectrum(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The singular values of the Jacobian of `model` at one input, in descending order: min(outputs, inputs) of them.

    `x` is a batch of one, (1, …). A model with parameters should be in evaluation mode, so that the same function is
    differentiated for every output. In the precision of the input and the model; one backward pass for each output.
    """
    if x.dim() < 2 or x.shape[0] != 1 or not x.is_floating_point():
        raise IsoconvError(
            f"Expected a floating-point batch of one input (1, …). Got {x.dtype} of shape {tuple(x.shape)}."
        )
    point = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        outputs = model(point).flatten()
        rows = [torch.autograd.grad(output, point, retain_graph=True)[0].flatten() for output in outputs]
    values: Tensor = torch.linalg.svdvals(torch.stack(rows))
    return values
