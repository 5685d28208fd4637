"""Critics for vectors: fully connected orthogonal networks, and minima of distances to learned points."""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.rules import Node, Rounding, Rule, register
from isoconv.errors import require
from isoconv.linalg.rounding import mul_up, sqrt_up
from isoconv.nn import GroupSort, MaxMin, OrthogonalLinear, Scale
from isoconv.nn.methods import ACTIVATIONS

FC_ACTIVATIONS = (*ACTIVATIONS, "groupsort")
_OFFSET_UNIT = 0.125  # offsets move an eighth as fast as anchors; a power of two, so that the product is exact


class FCCritic(nn.Sequential):
    """Orthogonal linear layers to one number: `depth` hidden ones of `width`, with none of them a linear critic.

    scale : what inputs are multiplied by first; it is part of the Lipschitz constant
    activation : groupsort (which sorts groups of `group_size`), maxmin (groups of two), householder or relu
    """

    def __init__(
        self,
        features: int,
        width: int = 256,
        depth: int = 3,
        activation: str = "groupsort",
        group_size: int = 8,
        scale: float = 1.0,
        orthogonalisation: str = "manifold",
    ) -> None:
        sizes = "a depth of at least 0 and a width of at least 1"
        require(depth >= 0 and width >= 1, sizes, f"{depth} and {width}")
        require(activation in FC_ACTIVATIONS, f"activation to be one of {', '.join(FC_ACTIVATIONS)}", repr(activation))
        group_size = group_size if activation == "groupsort" else 2
        divides = activation == "relu" or not depth or (group_size >= 2 and width % group_size == 0)
        require(divides, f"a group size of at least 2 that divides the width {width}", group_size)
        layers: list[nn.Module] = [nn.Flatten(), Scale(scale)] if scale != 1 else [nn.Flatten()]
        for _ in range(depth):
            layers.append(OrthogonalLinear(features, width, orthogonalisation=orthogonalisation))
            sort = MaxMin() if group_size == 2 else GroupSort(group_size)
            layers.append(sort if activation == "groupsort" else ACTIVATIONS[activation].make(width))
            features = width
        super().__init__(*layers, OrthogonalLinear(features, 1, orthogonalisation=orthogonalisation))


class NearestAnchor(nn.Module):
    """x ↦ sign · minₖ(‖x − aₖ‖ + bₖ), with learned points aₖ and offsets bₖ: exactly 1-Lipschitz, as each term is.

    Every Kantorovich potential is an infimum of this form, so with enough anchors any is approached: funnels down to the
    anchors with sign 1, peaks at them with sign −1. While it is trained the minimum is soft, −τ·log Σ exp(−·/τ), whose
    gradient is an average of unit vectors (1-Lipschitz as well); τ falls from `heat` to almost nothing over `steps`
    training passes. In evaluation it is the minimum itself.
    """

    temperature: Tensor

    def __init__(self, anchors: Tensor, sign: int = 1, heat: float = 0.0, steps: int = 1) -> None:
        super().__init__()
        shape = tuple(anchors.shape)
        require(len(shape) == 2 and 0 not in shape, "anchors as a matrix (number, features)", f"shape {shape}")
        possible = sign in (1, -1) and heat >= 0 and steps >= 1
        require(possible, "a sign of ±1, a heat ≥ 0 and steps ≥ 1", f"{sign}, {heat} and {steps}")
        self.anchors = nn.Parameter(anchors.detach().clone())
        self.raw_offsets = nn.Parameter(torch.zeros_like(self.anchors[:, 0]))
        self.sign, self.heat, self.steps = sign, heat, steps
        self.register_buffer("temperature", torch.full_like(self.anchors[0, 0].detach(), heat))

    @property
    def offsets(self) -> Tensor:
        return self.raw_offsets * _OFFSET_UNIT

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.heat == 0:
            # Directly: the fast way, by a product of matrices, loses half of the digits next to an anchor.
            exact = torch.cdist(x, self.anchors, compute_mode="donot_use_mm_for_euclid_dist")
            return self.sign * (exact + self.offsets).amin(dim=1, keepdim=True)
        with torch.no_grad():
            self.temperature.sub_(self.heat / self.steps).clamp_(min=self.heat * 1e-3)
        return self.sign * _SoftMinimum.apply(x, self.anchors, self.offsets, self.temperature.clone())  # type: ignore[no-any-return,no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.anchors.shape[0]} anchors, {self.anchors.shape[1]} features, sign {self.sign:+d}"


def _anchor_bound(node: Node) -> float:
    """Return 1: each ‖x − aₖ‖ + bₖ is 1-Lipschitz, and so is their minimum, and minus it."""
    require(node.module.sign in (1, -1), "anchors with a sign of ±1", node.module.sign)
    return 1.0


def _anchor_rounding(node: Node, bound: float, arithmetic: str) -> Rounding:
    """Return the rounding of ‖h − a‖ + b by D differences, squares, a sum, a root and the offset's sum.

    It is relative, γ of 2D + 8, to a size that is at most ‖h‖ + ‖a‖ + |b|. Squares may underflow: then that much, and the
    root of it.
    """
    module, features = node.module, node.input_shape[0]
    assert isinstance(module, NearestAnchor)
    lengths = torch.linalg.vector_norm(module.anchors.double(), dim=1) + module.offsets.double().abs()
    size = mul_up(float(lengths.max()), 1 + 1e-6)
    return Rounding(2 * features + 7, constant=size, vanished=mul_up(2.0**-510, sqrt_up(float(features))))


register(NearestAnchor, Rule(_anchor_bound, _anchor_rounding, tensors=("anchors", "raw_offsets", "temperature")))


class AnchorCritics(nn.Module):
    """Two critics side by side, one with wells and one with peaks at its anchors; one column each.

    Which of the two suits a pair of distributions cannot be known before. `column` takes one out.
    """

    def __init__(self, wells: Tensor, peaks: Tensor, heat: float = 0.0, steps: int = 1) -> None:
        super().__init__()
        self.wells, self.peaks = NearestAnchor(wells, 1, heat, steps), NearestAnchor(peaks, -1, heat, steps)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return torch.cat([self.wells(x), self.peaks(x)], dim=1)

    def column(self, index: int) -> NearestAnchor:
        return (self.wells, self.peaks)[index]


class _SoftMinimum(torch.autograd.Function):
    """−τ·log Σₖ exp(−(‖x − aₖ‖ + bₖ)/τ), a column. Autograd's own way goes over the N × K matrix twice as often."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchors: Tensor, offsets: Tensor, temperature: Tensor) -> Tensor:
        lengths = x.square().sum(dim=1, keepdim=True) + anchors.square().sum(dim=1)
        distances = torch.addmm(lengths, x, anchors.mT, alpha=-2).clamp_min(1e-12).sqrt()
        weights = distances + offsets
        lowest = weights.amin(dim=1, keepdim=True)
        weights.sub_(lowest).div_(-temperature).exp_()
        total = weights.sum(dim=1, keepdim=True)
        weights.div_(total)
        ctx.save_for_backward(x, anchors, distances, weights)
        return lowest - temperature * total.log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        x, anchors, distances, weights = ctx.saved_tensors
        shares = gradient * weights
        pulls = shares / distances  # each (x − aₖ)/‖x − aₖ‖ counts this often
        for_x = pulls.sum(dim=1, keepdim=True) * x - pulls @ anchors
        for_anchors = pulls.sum(dim=0)[:, None] * anchors - pulls.mT @ x
        return for_x, for_anchors, shares.sum(dim=0), None
