"""What a network does to the norm of a gradient: the singular values of its layers, and the gradient's way through it.

These are estimates, to the precision of an SVD in float64, to look at and to compare. What is proved is in
`isoconv.certify.composition`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoconv.certify.graph import nodes_of, refuse_strangers
from isoconv.certify.rules import Node
from isoconv.errors import IsoconvError
from isoconv.linalg.bounds import fold_stride
from isoconv.linalg.spectrum import circular_singular_values
from isoconv.nn import plain


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """All singular values of one layer at the size of the image that reaches it, in descending order, float64.

    `title` counts the layers, "convolution 2"; `name` is the layer's own in the plain model.
    """

    title: str
    name: str
    kind: str
    values: Tensor


def singular_values(model: nn.Module, input_shape: Sequence[int]) -> list[LayerSpectrum]:
    """Return those of every convolution and every linear layer of `plain(model)`, in the order of their application.

    Convolutions must pad circularly, to their own size divided by the stride, as all of `isoconv.models` do: then one
    small SVD per frequency gives the values of the dense Jacobian.
    """
    nodes = [node for node in _nodes(model, input_shape) if _has_weights(node)]
    titled = zip(_titles(nodes), nodes, strict=True)
    return [LayerSpectrum(title, node.name, node.kind, _values(node)) for title, node in titled]


def _nodes(model: nn.Module, input_shape: Sequence[int]) -> list[Node]:
    refuse_strangers(model)
    return nodes_of(plain(model).eval(), input_shape)


@torch.no_grad()
def _values(node: Node) -> Tensor:
    module = node.module
    if isinstance(module, nn.Linear):
        return torch.linalg.svdvals(module.weight.double())
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    size, steps = node.input_shape[1:], node.settings["stride"]
    kept = torch.Size(n // s for n, s in zip(size, steps, strict=True))
    circular = node.circular is not None or module.padding_mode == "circular" or set(module.kernel_size) == {1}
    whole = all(n % s == 0 for n, s in zip(size, steps, strict=True)) and node.output_shape[1:] == kept
    if not (circular and whole) or module.groups != 1 or set(module.dilation) != {1}:
        raise IsoconvError(
            f"Expected convolutions that pad circularly to the size of the image, without groups or dilation. "
            f"Got another {node.kind} at {node.name}: its singular values are not those of small matrices."
        )
    # Where the padding begins only moves the image around in circles, which no singular value sees.
    return circular_singular_values(fold_stride(module.weight.double(), steps), kept)


@dataclass(frozen=True, eq=False)
class GradientNorms:
    """How long the gradient of the margin y_t − max y_j is on its way back, relative to its length √2 at the logits.

    `norms` is (places, N), a row for each of `places`: the image, the outputs of the layers with weights (after their
    activation), the logits. The last row is 1; in a network that preserves gradient norms all of them are. float64.
    """

    places: tuple[str, ...]
    norms: Tensor


def gradient_norms(model: nn.Module, images: Tensor, labels: Tensor) -> GradientNorms:
    """Measure `plain(model)` in evaluation at each of the images (N, …), floating-point, with their labels."""
    if not images.is_floating_point() or images.dim() < 2 or not len(images):
        raise IsoconvError(f"Expected floating-point images (N, …). Got {images.dtype} of shape {tuple(images.shape)}.")
    if labels.shape != images.shape[:1]:
        raise IsoconvError(f"Expected one label for each of {len(images)} images. Got shape {tuple(labels.shape)}.")
    nodes = _nodes(model, images.shape[1:])
    device = next((p.device for node in nodes for p in node.module.parameters()), images.device)
    inputs = []
    with torch.enable_grad():
        x = images.detach().to(device, torch.float64).requires_grad_()
        for node in nodes:
            # A layer with weights, or the circular padding that belongs to the one behind it.
            if node.merged or (_has_weights(node) and node.circular is None):
                inputs.append(x)
            x = node.module.double()(x)
        if x.dim() != 2 or x.shape[1] < 2 or not inputs:
            raise IsoconvError(f"Expected logits (N, classes) of at least 2 classes. Got shape {tuple(x.shape)}.")
        right = x.gather(1, labels.to(device)[:, None])[:, 0]
        others = x.scatter(1, labels.to(device)[:, None], -torch.inf).amax(dim=1)
        gradients = torch.autograd.grad((right - others).sum(), [*inputs, x])
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
    titles = _titles([node for node in nodes if _has_weights(node)])
    return GradientNorms(("image", *titles[:-1], "logits"), (norms / norms[-1]).cpu())


def _has_weights(node: Node) -> bool:
    return isinstance(node.module, (nn.Conv1d, nn.Conv2d, nn.Linear))


def _titles(nodes: Sequence[Node]) -> list[str]:
    """Return convolution 1, convolution 2, linear 1, …"""
    titles, counts = [], {"convolution": 0, "linear": 0}
    for node in nodes:
        word = "linear" if isinstance(node.module, nn.Linear) else "convolution"
        counts[word] += 1
        titles.append(f"{word} {counts[word]}")
    return titles
