"""The paper's theorems as code: what orthogonal convolutions are made of, what tells them apart, what is impossible.

Each result is a tested function. Proofs are in the notes at the head of the files.
"""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.theory.limits import ascend as ascend
    from isoconv.theory.limits import halved_residual_loss as halved_residual_loss
    from isoconv.theory.limits import jacobian_spectrum as jacobian_spectrum
    from isoconv.theory.limits import rotation_branch as rotation_branch
    from isoconv.theory.limits import steepest_direction as steepest_direction
    from isoconv.theory.limits import zero_padded_matrix as zero_padded_matrix
    from isoconv.theory.limits import zero_padding_loss as zero_padding_loss
    from isoconv.theory.one_dimensional import Component as Component
    from isoconv.theory.one_dimensional import balancing_moves as balancing_moves
    from isoconv.theory.one_dimensional import canonical_ranks as canonical_ranks
    from isoconv.theory.one_dimensional import canonicalise as canonicalise
    from isoconv.theory.one_dimensional import component as component
    from isoconv.theory.one_dimensional import exhibit_components as exhibit_components
    from isoconv.theory.one_dimensional import factorise as factorise
    from isoconv.theory.one_dimensional import imbalance_score as imbalance_score
    from isoconv.theory.one_dimensional import kernel_elements as kernel_elements
    from isoconv.theory.one_dimensional import kernel_from_elements as kernel_from_elements
    from isoconv.theory.one_dimensional import move_rank as move_rank
    from isoconv.theory.one_dimensional import orthogonality_residual as orthogonality_residual
    from isoconv.theory.one_dimensional import projector_dimension as projector_dimension
    from isoconv.theory.one_dimensional import rank_sum as rank_sum
    from isoconv.theory.one_dimensional import separation as separation
    from isoconv.theory.paths import grassmann_path as grassmann_path
    from isoconv.theory.paths import path as path
    from isoconv.theory.paths import path_2d as path_2d
    from isoconv.theory.paths import rotation_path as rotation_path
    from isoconv.theory.two_dimensional import BCOPFactors as BCOPFactors
    from isoconv.theory.two_dimensional import BCOPNetwork as BCOPNetwork
    from isoconv.theory.two_dimensional import Component2d as Component2d
    from isoconv.theory.two_dimensional import DepthwiseShift as DepthwiseShift
    from isoconv.theory.two_dimensional import RotatedShift as RotatedShift
    from isoconv.theory.two_dimensional import as_two_bcop_kernels as as_two_bcop_kernels
    from isoconv.theory.two_dimensional import bcop_as_shifts as bcop_as_shifts
    from isoconv.theory.two_dimensional import component_2d as component_2d
    from isoconv.theory.two_dimensional import depthwise_shift as depthwise_shift
    from isoconv.theory.two_dimensional import double as double
    from isoconv.theory.two_dimensional import double_network as double_network
    from isoconv.theory.two_dimensional import exhibit_components_2d as exhibit_components_2d
    from isoconv.theory.two_dimensional import in_bcop_image_2x2 as in_bcop_image_2x2
    from isoconv.theory.two_dimensional import incompleteness_example as incompleteness_example
    from isoconv.theory.two_dimensional import kernel_of_shifts as kernel_of_shifts
    from isoconv.theory.two_dimensional import real_channels as real_channels
    from isoconv.theory.two_dimensional import recover_2x2 as recover_2x2
    from isoconv.theory.two_dimensional import reordered_kernel as reordered_kernel

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
