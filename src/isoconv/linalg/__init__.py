"""Pure functions on tensors: orthogonalisation, projectors, block convolution, spectra and proved norm bounds."""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.linalg.bcop import bcop_kernel as bcop_kernel
    from isoconv.linalg.bcop import bcop_kernel_1d as bcop_kernel_1d
    from isoconv.linalg.bcop import block_convolve as block_convolve
    from isoconv.linalg.bcop import compose_kernels as compose_kernels
    from isoconv.linalg.bcop import is_projector as is_projector
    from isoconv.linalg.bcop import projector_column as projector_column
    from isoconv.linalg.bcop import projector_from_basis as projector_from_basis
    from isoconv.linalg.bcop import projector_pair_1d as projector_pair_1d
    from isoconv.linalg.bcop import projector_rank as projector_rank
    from isoconv.linalg.bcop import projector_row as projector_row
    from isoconv.linalg.bcop import random_projector as random_projector
    from isoconv.linalg.bounds import conv_norm_bound as conv_norm_bound
    from isoconv.linalg.bounds import fold_stride as fold_stride
    from isoconv.linalg.bounds import matrix_norm_bound as matrix_norm_bound
    from isoconv.linalg.matrices import norm_upper_bound as norm_upper_bound
    from isoconv.linalg.orthogonalisation import bjorck as bjorck
    from isoconv.linalg.orthogonalisation import is_orthonormal as is_orthonormal
    from isoconv.linalg.orthogonalisation import on_manifold as on_manifold
    from isoconv.linalg.orthogonalisation import polar as polar
    from isoconv.linalg.orthogonalisation import project_to_tangent as project_to_tangent
    from isoconv.linalg.orthogonalisation import retract as retract
    from isoconv.linalg.spectrum import circular_singular_values as circular_singular_values
    from isoconv.linalg.spectrum import circular_symbol as circular_symbol

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
