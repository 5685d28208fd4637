"""Paths of orthogonal kernels: within a component there always is one, between two components there is none.

A component is the image of SO(n) (or its other half) and of K − 1 Grassmannians, all path-connected. A path between
two kernels is thus made of a path between their H, a product of plane rotations whose angles grow with t, and of
geodesics between their projectors, along which each principal angle grows with t. Every point of it is a kernel built
as the ends were, so it is orthogonal by construction, and its speed is bounded by the sum of the angles.
"""

from collections.abc import Callable
from math import atan2, cos, sin

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.bcop import bcop_kernel, bcop_kernel_1d, projector_from_basis
from isoconv.theory.doubling import BCOPFactors
from isoconv.theory.one_dimensional import component, factorise
from isoconv.theory.orthogonality import range_and_null, require_one_shape, require_orthogonal_matrix, require_projector

Path = Callable[[float], Tensor]


def path(kernel_a: Tensor, kernel_b: Tensor) -> Path:
    """Return a path t ↦ kernel, t in [0, 1], of 1-D orthogonal kernels (n, n, K) from `kernel_a` to `kernel_b`.

    Theorem "Space of 1-D Convolution Kernel": it exists exactly if both have one `component`. Both
    kernels are factorised with their canonical ranks, and the factors are joined. In the precision of the kernels.
    """
    require_one_shape("kernels", kernel_a, kernel_b)
    invariants = component(kernel_a), component(kernel_b)
    if invariants[0] != invariants[1]:
        raise IsoconvError(f"Expected two kernels of one component: no path joins others. Got {invariants}.")
    (H_a, P_a), (H_b, P_b) = factorise(kernel_a), factorise(kernel_b)
    rotate = rotation_path(H_a, H_b)
    turns = [grassmann_path(a, b) for a, b in zip(P_a, P_b, strict=True)]
    return lambda t: bcop_kernel_1d(rotate(t), [turn(t) for turn in turns])


def path_2d(a: BCOPFactors, b: BCOPFactors) -> Path:
    """Return a path of BCOP kernels (n, n, K, K) between two with equal ranks and signs of det H, from their factors.

    In the precision of the factors. Kernels whose rank sums differ cannot be joined at all (`component_2d`); whether
    those can that share the sums but not the ranks is left open here.
    """
    a, b = BCOPFactors(*a), BCOPFactors(*b)
    signatures = _signature(a), _signature(b)
    if signatures[0] != signatures[1]:
        raise IsoconvError(f"Expected factors with one sign of det H and equal ranks of P and Q. Got {signatures}.")
    rotate = rotation_path(a.H, b.H)
    down = [grassmann_path(p, q) for p, q in zip(a.P, b.P, strict=True)]
    across = [grassmann_path(p, q) for p, q in zip(a.Q, b.Q, strict=True)]
    return lambda t: bcop_kernel(rotate(t), [turn(t) for turn in down], [turn(t) for turn in across])


def rotation_path(start: Tensor, end: Tensor) -> Path:
    """Return a path of orthogonal matrices between two of equal determinant: plane rotations whose angles grow from 0.

    Not the geodesic: its logarithm is not defined at an eigenvalue −1, and Givens' rotations are, without exceptions.
    """
    require_one_shape("orthogonal matrices", start, end)
    if require_orthogonal_matrix(start) != require_orthogonal_matrix(end):
        raise IsoconvError("Expected two orthogonal matrices of one determinant. Got +1 and −1.")
    rotations = _plane_rotations(start.mT @ end)

    def at(t: float) -> Tensor:
        matrix = start.clone()
        for i, j, angle in rotations:
            c, s = cos(t * angle), sin(t * angle)
            column_i, column_j = matrix[:, i].clone(), matrix[:, j].clone()
            matrix[:, i], matrix[:, j] = c * column_i + s * column_j, c * column_j - s * column_i
        return matrix

    return at


def grassmann_path(start: Tensor, end: Tensor) -> Path:
    """Return the shortest path between two symmetric projectors of equal rank: each principal angle grows with t."""
    ranks = require_projector(start), require_projector(end)
    require_one_shape("projectors", start, end)
    if ranks[0] != ranks[1]:
        raise IsoconvError(f"Expected two projectors of one rank. Got ranks {ranks[0]} and {ranks[1]}.")
    basis_a, basis_b = range_and_null(start)[0], range_and_null(end)[0]
    left, _, right = torch.linalg.svd(basis_a.mT @ basis_b)
    from_, to = basis_a @ left, basis_b @ right.mT
    cosines = (from_ * to).sum(0)
    offsets = to - from_ @ (from_.mT @ to)
    sines = torch.linalg.vector_norm(offsets, dim=0)
    # Where the angle vanishes the direction is arbitrary, and is multiplied by the sine of nothing.
    directions = offsets / sines.clamp_min(torch.finfo(sines.dtype).tiny)
    angles = torch.atan2(sines, cosines)
    return lambda t: projector_from_basis(from_ * torch.cos(t * angles) + directions * torch.sin(t * angles))


def _plane_rotations(rotation: Tensor) -> list[tuple[int, int, float]]:
    """Return (i, j, angle) of rotations that, multiplied from left to right, give a matrix of SO(n).

    Givens rotations from the left clear the matrix below its diagonal, column by column, each leaving a diagonal
    entry of +1; with determinant 1 the last one is +1 too.
    """
    remaining = rotation.clone()
    n = rotation.shape[0]
    rotations: list[tuple[int, int, float]] = []
    for i in range(n - 1):
        for j in range(i + 1, n):
            angle = atan2(float(remaining[j, i]), float(remaining[i, i]))
            c, s = cos(angle), sin(angle)
            row_i, row_j = remaining[i].clone(), remaining[j].clone()
            remaining[i], remaining[j] = c * row_i + s * row_j, c * row_j - s * row_i
            rotations.append((i, j, angle))
    return rotations


def _signature(factors: BCOPFactors) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    P, Q = (tuple(require_projector(p) for p in family) for family in (factors.P, factors.Q))
    return require_orthogonal_matrix(factors.H), P, Q
