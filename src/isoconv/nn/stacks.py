"""Like layers of several models in one batch.

The orthonormal matrices behind a layer are small, and what they cost on a GPU is the number of kernels: their
retraction, the convolution kernel that they make, its gradient and the optimiser's step are hundreds of them. In a
batch those of five models are no more than those of one.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoconv.linalg.matrices import full_precision
from isoconv.nn.orthogonalised import OrthogonalisedLayer
from isoconv.nn.prepare import BLIND_STEPS, is_capturing


class ParameterStack:
    """One tensor that holds the same parameter of several models: `whole`, (count·b, m, n), a batch of matrices.

    The models' parameters become views of it. It has the gradient, and they none; whoever changes it changes them, and
    tells them so (`torch.autograd.graph.increment_version`), as their caches go by their own versions.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        with torch.no_grad():
            self.whole = torch.stack([p.detach() for p in parameters]).flatten(0, -3)
            for parameter, view in zip(parameters, self.split(self.whole), strict=True):
                parameter.data, parameter.grad = view, None
        self.whole.requires_grad_()

    def split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """A tensor like `whole`, seen as one for each model."""
        return whole.detach().view(len(self.parameters), *self.parameters[0].shape).unbind()


class LayerStack:
    """Orthogonalised layers of one kind and shape, one of each model, built in one batch."""

    def __init__(self, layers: Sequence[OrthogonalisedLayer]) -> None:
        self.layers = list(layers)
        for layer in layers:
            layer.refresh()  # what it keeps holds on to the memory of its old parameters
        self.parameters = [ParameterStack(same) for same in zip(*(one._matrices() for one in layers), strict=True)]

    def build(self) -> tuple[Tensor, ...]:
        """The weights of the layers, joined to the gradients of the stacks. For training: the parameters are retracted.

        One graph leads to all of them, so what is computed with them is to be back-propagated at once.
        """
        first, wholes = self.layers[0], [stack.whole for stack in self.parameters]
        steps = BLIND_STEPS if is_capturing(wholes[0]) else None
        with full_precision(wholes[0]):
            with torch.no_grad():
                points = first._settle(*wholes, steps=steps)
                if first._writes_back:
                    for whole, point in zip(wholes, points, strict=True):
                        whole.copy_(point)
            torch.autograd.graph.increment_version([p for stack in self.parameters for p in stack.parameters])
            joined = first._join(wholes, points)
            shaped = [
                one.view(len(self.layers), *s.parameters[0].shape)
                for one, s in zip(joined, self.parameters, strict=True)
            ]
            weights = first._build(*shaped)
        return weights.unbind()


def stack_layers(models: Sequence[nn.Module]) -> list[LayerStack]:
    """Stacks of all layers that train orthonormal matrices of their own. The models must be built alike."""
    modules = [module for model in models for module in model.modules()]
    owners = Counter(p for module in modules for p in module.parameters(recurse=False))
    stacks = []
    for same in zip(*(model.modules() for model in models), strict=True):
        layers = [layer for layer in same if isinstance(layer, OrthogonalisedLayer)]
        matrices = [matrix for layer in layers for matrix in layer._matrices()]
        if layers and all(matrix.requires_grad and owners[matrix] == 1 for matrix in matrices):
            stacks.append(LayerStack(layers))
    return stacks
