"""Pure functions on tensors: orthogonalisation, projectors, block convolution, spectra and proved norm bounds."""

from isoconv.linalg.bcop import (
    bcop_kernel,
    bcop_kernel_1d,
    block_convolve,
    compose_kernels,
    is_projector,
    projector_column,
    projector_from_basis,
    projector_pair_1d,
    projector_rank,
    projector_row,
    random_projector,
)
from isoconv.linalg.bounds import conv_norm_bound, fold_stride, matrix_norm_bound
from isoconv.linalg.manifold import is_orthonormal, on_manifold, project_to_tangent, retract
from isoconv.linalg.matrices import norm_upper_bound
from isoconv.linalg.polar import bjorck, polar
from isoconv.linalg.spectrum import circular_singular_values, circular_symbol

__all__ = [
    "bcop_kernel",
    "bcop_kernel_1d",
    "bjorck",
    "block_convolve",
    "circular_singular_values",
    "circular_symbol",
    "compose_kernels",
    "conv_norm_bound",
    "fold_stride",
    "is_orthonormal",
    "is_projector",
    "matrix_norm_bound",
    "norm_upper_bound",
    "on_manifold",
    "polar",
    "project_to_tangent",
    "projector_column",
    "projector_from_basis",
    "projector_pair_1d",
    "projector_rank",
    "projector_row",
    "random_projector",
    "retract",
]
