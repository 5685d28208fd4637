"""Paths of orthogonal kernels: within a component there always is one, between two components there is none.

A component is the image of SO(n) (or its other half) and of K − 1 Grassmannians, all path-connected. A path between
two kernels is thus made of a path between their H, a product of plane rotations whose angles grow with t, and of
geodesics between their projectors, along which each principal angle grows with t. Every point of it is a kernel built
as the ends were, so it is orthogonal by construction, and its speed is bounded by the sum of the angles.
"""

from collections.abc import Callable
from itertools import combinations
from math import atan2, cos, sin

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.linalg.bcop import bcop_kernel, bcop_kernel_1d, projector_from_basis
from isoconv.theory.one_dimensional import (
    component,
    factorise,
    range_basis,
    require_one_shape,
    require_orthogonal_matrix,
    require_projector,
)
from isoconv.theory.two_dimensional import BCOPFactors

Path = Callable[[float], Tensor]


def path(kernel_a: Tensor, kernel_b: Tensor) -> Path:
    """Return a path t ↦ kernel, t in [0, 1], of 1-D orthogonal kernels (n, n, K) from `kernel_a` to `kernel_b`.

    Theorem "Space of 1-D Convolution Kernel": it exists exactly if both have one `component`. Both
    kernels are factorised with their canonical ranks, and the factors are joined. In the precision of the kernels.
    """
    require_one_shape("kernels", kernel_a, kernel_b)
    invariants = component(kernel_a), component(kernel_b)
    require(invariants[0] == invariants[1], "two kernels of one component: no path joins others", invariants)
    (H_a, P_a), (H_b, P_b) = factorise(kernel_a), factorise(kernel_b)
    rotate, turn = rotation_path(H_a, H_b), _join(P_a, P_b)
    return lambda t: bcop_kernel_1d(rotate(t), turn(t))


def path_2d(a: BCOPFactors, b: BCOPFactors) -> Path:
    """Return a path of BCOP kernels (n, n, K, K) between two with equal ranks and signs of det H, from their factors.

    In the precision of the factors. Kernels whose rank sums differ cannot be joined at all (`component_2d`); whether
    those can that share the sums but not the ranks is left open here.
    """
    (H_a, *families_a), (H_b, *families_b) = a, b
    signs = require_orthogonal_matrix(H_a), require_orthogonal_matrix(H_b)
    ranks = [[[require_projector(p) for p in family] for family in side] for side in (families_a, families_b)]
    alike = signs[0] == signs[1] and ranks[0] == ranks[1]
    require(alike, "factors with one sign of det H and equal ranks of P and Q", f"signs {signs} and ranks {ranks}")
    rotate, (down, across) = rotation_path(H_a, H_b), map(_join, families_a, families_b)
    return lambda t: bcop_kernel(rotate(t), down(t), across(t))


def rotation_path(start: Tensor, end: Tensor) -> Path:
    """Return a path of orthogonal matrices between two of equal determinant: plane rotations whose angles grow from 0.

    Not the geodesic: its logarithm is not defined at an eigenvalue −1, and Givens' rotations are, without exceptions.
    """
    require_one_shape("orthogonal matrices", start, end)
    signs = require_orthogonal_matrix(start), require_orthogonal_matrix(end)
    require(signs[0] == signs[1], "two orthogonal matrices of one determinant", signs)
    # Givens rotations from the left clear the matrix below its diagonal, column by column, each leaving a diagonal entry
    # of +1; with determinant 1 the last one is +1 too. Multiplied from left to right they give the matrix.
    remaining, rotations = (start.mT @ end).clone(), list[tuple[int, int, float]]()
    for i, j in combinations(range(len(start)), 2):
        angle = atan2(float(remaining[j, i]), float(remaining[i, i]))
        _rotate_rows(remaining, i, j, angle)
        rotations.append((i, j, angle))

    def at(t: float) -> Tensor:
        matrix = start.clone()
        for i, j, angle in rotations:
            _rotate_rows(matrix.mT, i, j, t * angle)
        return matrix

    return at


def grassmann_path(start: Tensor, end: Tensor) -> Path:
    """Return the shortest path between two symmetric projectors of equal rank: each principal angle grows with t."""
    ranks = require_projector(start), require_projector(end)
    require_one_shape("projectors", start, end)
    require(ranks[0] == ranks[1], "two projectors of one rank", f"ranks {ranks[0]} and {ranks[1]}")
    basis_a, basis_b = range_basis(start), range_basis(end)
    left, _, right = torch.linalg.svd(basis_a.mT @ basis_b)
    from_, to = basis_a @ left, basis_b @ right.mT
    cosines = (from_ * to).sum(0)
    offsets = to - from_ @ (from_.mT @ to)
    sines = torch.linalg.vector_norm(offsets, dim=0)
    # Where the angle vanishes the direction is arbitrary, and is multiplied by the sine of nothing.
    directions = offsets / sines.clamp_min(torch.finfo(sines.dtype).tiny)
    angles = torch.atan2(sines, cosines)
    return lambda t: projector_from_basis(from_ * torch.cos(t * angles) + directions * torch.sin(t * angles))


def _join(start: list[Tensor], end: list[Tensor]) -> Callable[[float], list[Tensor]]:
    turns = [grassmann_path(p, q) for p, q in zip(start, end, strict=True)]
    return lambda t: [turn(t) for turn in turns]


def _rotate_rows(matrix: Tensor, i: int, j: int, angle: float) -> None:
    """Rotate the plane of rows i and j, in place."""
    (a, b), c, s = matrix[[i, j]], cos(angle), sin(angle)
    matrix[i], matrix[j] = c * a + s * b, c * b - s * a
