"""How the layers of a converted network begin: near the weights of an ordinary network, or as the identity.

Note [Nearest weights]
An orthogonal weight W has a fixed Frobenius norm, so it is nearest to T where ⟨W, T⟩ is largest. W is a product of
orthonormal matrices. It is linear in the first of them, U, with a gradient G = ∂⟨W, T⟩/∂U that does not depend on U: the
best U is G's polar factor. A matrix, a kernel of size 1 or a reshaped kernel is nothing but U. Other kernels have bases of
projectors too; steepest descent under the operator norm finds good ones for all, and U comes last.

Note [Beginning as the identity]
(x + f(x))/2 preserves gradients only where f has the Jacobian of the identity (Note [Residual connections] in
`isoconv.theory.limits`). So where no weights are carried over, kernels between as many channels begin as the identity.
"""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.linalg.bounds import fold_stride
from isoconv.linalg.matrices import full_precision
from isoconv.linalg.orthogonalisation import descend, project_to_tangent, retract
from isoconv.nn.bcop import BCOPConv2d
from isoconv.nn.built_weight import OrthogonalisedLayer, constraint_dtype
from isoconv.nn.convolution import Conv2dWithKernel, LipschitzConvolution
from isoconv.nn.downsampling import unfold_stride
from isoconv.nn.potential import PotentialConv2d
from isoconv.nn.torus import TorusConv2d

_STEPS, _RATE, _MOMENTUM = 40, 0.3, 0.8  # of the search for the nearest kernel


def carry_weight(module: Any, layer: Any, scale: Tensor | None) -> float | None:
    """Give a layer the weight nearest to a module's, and return the distance of the two, both divided by their norms.

    Return None where nothing is carried over: the layer has another kind of parameter, or the module's weight is 0.
    """
    if isinstance(layer, (TorusConv2d, PotentialConv2d)):  # whose parameter is no kernel like the module's
        return None
    target = _unfolded(module, module.weight.detach()).to(constraint_dtype(module.weight))
    bias_scale = float(target.norm())
    if scale is not None and not isinstance(module, nn.ConvTranspose2d):
        target = target * scale.to(target)[(..., *(None,) * (target.dim() - 1))]
    if isinstance(layer, LipschitzConvolution):
        if layer.groups != module.groups:  # channels on their own are now in groups: the diagonals
            width = layer.in_channels // layer.groups
            diagonals = torch.eye(width).to(target).repeat(layer.groups, 1)
            target = target * diagonals[(..., *(None,) * (target.dim() - 2))]
        grown = zip(reversed(layer.kernel_size), reversed(target.shape[2:]), strict=True)
        target = nn.functional.pad(target, [n for new, old in grown for n in (0, new - old)])
    with full_precision(target):
        if isinstance(layer, OrthogonalisedLayer):
            _approach(layer, target)
        elif isinstance(layer, Conv2dWithKernel):
            layer.kernel.copy_(fold_stride(target, layer.stride) if layer.folded else target)
            getattr(layer, "project", lambda: None)()
        weight = _unfolded(layer, layer.evaluation_weight()).to(target.dtype)
    if module.bias is not None:
        layer.bias.copy_(module.bias * float(weight.norm()) / max(bias_scale, torch.finfo(target.dtype).tiny))
    if not target.any():
        return None
    return float((weight / weight.norm() - target / target.norm()).norm())


def begin_as_identity(layer: BCOPConv2d) -> None:
    """Give a kernel of odd size between as many channels the taps [… 0 I 0 …], by projectors that cancel.

    [P  I−P] □ [I−P  P] = [0 I 0] for any P, here a random one; it is the same for both axes, so that all of them commute.
    """
    channels, odd = layer.in_channels, all(size % 2 for size in layer.kernel_size) and set(layer.stride) == {1}
    if not odd or channels != layer.out_channels or channels % 2 or layer.groups > 1:
        return
    layer.O.copy_(torch.eye(channels))
    square = torch.empty(channels, channels, dtype=constraint_dtype(layer.O))
    halves = nn.init.orthogonal_(square).split(channels // 2, 1)
    for k, axis in enumerate(() if layer.MN is None else layer._axes):
        layer.MN[k] = halves[layer._axes[:k].count(axis) % 2]  # type: ignore[index]


def _unfolded(layer: Any, weight: Tensor) -> Tensor:
    """Return a layer's weight in the shape of the torch layer's."""
    return unfold_stride(weight, layer.stride) if getattr(layer, "folded", False) else weight


def _approach(layer: OrthogonalisedLayer, target: Tensor) -> None:
    """Move a layer's matrices towards a weight: Note [Nearest weights]."""
    if not target.any():
        return
    points = [source.detach().to(target.dtype).clone() for source in layer._sources()]
    momenta = [torch.zeros_like(point) for point in points]

    def measure() -> tuple[Tensor, ...]:
        leaves = [point.detach().requires_grad_() for point in points]
        with torch.enable_grad():
            product = (_unfolded(layer, layer._build(*leaves)) * target).sum()
        return torch.autograd.grad(product, leaves)

    for step in range(_STEPS if len(points) > 1 else 0):
        for k, gradient in enumerate(measure()):
            momenta[k] = _MOMENTUM * momenta[k] - project_to_tangent(points[k], gradient)
            descend(points[k], momenta[k], _RATE * (1 - step / _STEPS))
            points[k] = retract(points[k])
    left, _, right = torch.linalg.svd(measure()[0].double(), full_matrices=False)
    points[0] = (left @ right).to(target.dtype)
    for source, point in zip(layer._sources(), points, strict=True):
        source.copy_(point)
