"""The paper's theorems as code: what orthogonal convolutions are made of, what tells them apart, what cannot be had.

Each result is a function; its test would fail if the result were false. Proofs are in the notes at the head of the
files.
"""

from isoconv.theory.doubling import BCOPFactors, BCOPNetwork, double, double_network, real_channels
from isoconv.theory.limits import (
    ascend,
    halved_residual_loss,
    rotation_branch,
    steepest_direction,
    zero_padded_matrix,
    zero_padding_loss,
)
from isoconv.theory.one_dimensional import (
    Component,
    component,
    exhibit_components,
    factorise,
    kernel_elements,
    kernel_from_elements,
    rank_sum,
    separation,
)
from isoconv.theory.orthogonality import jacobian_spectrum, orthogonality_residual
from isoconv.theory.paths import grassmann_path, path, path_2d, rotation_path
from isoconv.theory.rank_balancing import (
    balancing_moves,
    canonical_ranks,
    canonicalise,
    imbalance_score,
    move_rank,
    projector_dimension,
)
from isoconv.theory.shifts import DepthwiseShift, RotatedShift, bcop_as_shifts, depthwise_shift, kernel_of_shifts
from isoconv.theory.two_dimensional import (
    Component2d,
    as_two_bcop_kernels,
    component_2d,
    exhibit_components_2d,
    in_bcop_image_2x2,
    incompleteness_example,
    recover_2x2,
    reordered_kernel,
)

__all__ = [
    "BCOPFactors",
    "BCOPNetwork",
    "Component",
    "Component2d",
    "DepthwiseShift",
    "RotatedShift",
    "as_two_bcop_kernels",
    "ascend",
    "balancing_moves",
    "bcop_as_shifts",
    "canonical_ranks",
    "canonicalise",
    "component",
    "component_2d",
    "depthwise_shift",
    "double",
    "double_network",
    "exhibit_components",
    "exhibit_components_2d",
    "factorise",
    "grassmann_path",
    "halved_residual_loss",
    "imbalance_score",
    "in_bcop_image_2x2",
    "incompleteness_example",
    "jacobian_spectrum",
    "kernel_elements",
    "kernel_from_elements",
    "kernel_of_shifts",
    "move_rank",
    "orthogonality_residual",
    "path",
    "path_2d",
    "projector_dimension",
    "rank_sum",
    "real_channels",
    "recover_2x2",
    "reordered_kernel",
    "rotation_branch",
    "rotation_path",
    "separation",
    "steepest_direction",
    "zero_padded_matrix",
    "zero_padding_loss",
]
