"""What a network does to the norm of a gradient: the singular values of its layers, and the gradient's way through it.

These are estimates, to the precision of an SVD in float64, to look at and to compare. What is proved is in
`isoconv.certify.composition`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoconv.certify.graph import nodes_of, plain_network
from isoconv.certify.rules import Node
from isoconv.errors import require
from isoconv.linalg.bounds import fold_stride
from isoconv.linalg.spectrum import circular_singular_values
from isoconv.nn.graph import INPUT


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """All singular values of one layer at the size of the image that reaches it, in descending order, float64.

    `title` counts the layers, "convolution 2"; `name` is the layer's own in the plain model.
    """

    title: str
    name: str
    kind: str
    values: Tensor


def singular_values(
    model: nn.Module, input_shape: Sequence[int], left_out: list[str] | None = None
) -> list[LayerSpectrum]:
    """Return those of every convolution and every linear layer of `plain(model)`, in the order of their application.

    Convolutions must pad circularly, to their own size divided by the stride, as all of `isoconv.models` do: then one
    small SVD per frequency gives the values of the dense Jacobian.

    left_out : receives the titles of other convolutions. Without it they are an error
    """
    nodes, spectra = nodes_of(plain_network(model, input_shape), input_shape), []
    for title, node in _layers(nodes).items():
        if left_out is not None and not _is_small(node):
            left_out.append(title)
        else:
            spectra.append(LayerSpectrum(title, node.name, node.kind, _values(node)))
    return spectra


def _is_small(node: Node) -> bool:
    """Return True if the singular values are those of small matrices."""
    module, size, stride = node.module, node.input_shape[1:], node.settings.get("stride", ())
    if isinstance(module, nn.Linear):
        return True
    circular = node.circular is not None or module.padding_mode == "circular" or set(module.kernel_size) == {1}
    whole = [n * s for n, s in zip(node.output_shape[1:], stride, strict=True)] == list(size)
    return bool(circular and whole and module.groups == 1 and set(module.dilation) == {1})


@torch.no_grad()
def _values(node: Node) -> Tensor:
    expected = "convolutions that pad circularly to the size of the image, without groups or dilation"
    expected = f"{expected}, whose singular values are those of small matrices"
    require(_is_small(node), expected, f"another {node.place}")
    weight = node.module.weight.double()
    if isinstance(node.module, nn.Linear):
        return torch.linalg.svdvals(weight)
    # Where the padding begins only moves the image around in circles, which no singular value sees.
    return circular_singular_values(fold_stride(weight, node.settings["stride"]), node.output_shape[1:])


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
    fits = images.is_floating_point() and images.dim() >= 2 and len(images) > 0
    require(fits, "floating-point images (N, …)", f"{images.dtype} of shape {tuple(images.shape)}")
    require(labels.shape == images.shape[:1], f"one label for each of {len(images)} images", tuple(labels.shape))
    nodes = nodes_of(plain_network(model, images.shape[1:]), images.shape[1:])
    layers = _layers(nodes)
    device = next((p.device for node in nodes for p in node.module.parameters()), images.device)
    inputs, labels = [], labels.to(device)[:, None]
    with torch.enable_grad():
        x = images.detach().to(device, torch.float64).requires_grad_()
        values = {INPUT: x}
        for node in nodes:
            taken = [values[source] for source in node.inputs]
            # A layer with weights, or the circular padding that belongs to the one behind it.
            if node.merged or (node in layers.values() and node.circular is None):
                inputs.append(taken[0])
            values[node.name] = x = node.module.double()(*taken)
        logits = x.dim() == 2 and x.shape[1] >= 2
        require(logits, "logits (N, classes) of at least 2 classes", f"shape {tuple(x.shape)}")
        margins = x.gather(1, labels)[:, 0] - x.scatter(1, labels, -torch.inf).amax(dim=1)
        inputs = inputs or [values[INPUT]]
        gradients = torch.autograd.grad(margins.sum(), [*inputs, x])
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
    return GradientNorms(("image", *list(layers)[:-1], "logits"), (norms / norms[-1]).cpu())


def _layers(nodes: Sequence[Node]) -> dict[str, Node]:
    """Return the layers with weights by their titles: convolution 1, convolution 2, linear 1, …"""
    linear = [node for node in nodes if isinstance(node.module, nn.Linear)]
    convolutions = [node for node in nodes if isinstance(node.module, (nn.Conv1d, nn.Conv2d))]
    titles = {node.name: f"convolution {n}" for n, node in enumerate(convolutions, start=1)}
    titles |= {node.name: f"linear {n}" for n, node in enumerate(linear, start=1)}
    return {titles[node.name]: node for node in nodes if node.name in titles}
