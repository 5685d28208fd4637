"""Within a component a path of orthogonal kernels joins any two; between two components there is none."""

from itertools import pairwise, product

import pytest
import torch

from isoconv import theory
from isoconv.linalg.bcop import bcop_kernel, is_projector, projector_rank


def assert_is_path(between, start, end, invariant, tolerance=1e-10):
    assert (between(0.0) - start).abs().max() < tolerance
    assert (between(1.0) - end).abs().max() < tolerance
    steps = {}
    for grid in (4, 32):
        points = [between(t / grid) for t in range(grid + 1)]
        for point in points[:: grid // 4]:
            assert theory.orthogonality_residual(point) < tolerance
            assert invariant(point) == invariant(start)
        steps[grid] = max(float((b - a).norm()) for a, b in pairwise(points))
    # Lipschitz: eight times as fine a grid has steps an eighth as long, up to what the coarse one has cut off. And no
    # point of the path is skipped: the steps add up to a bounded length and each is short.
    assert (steps[32] <= steps[4] / 2 or steps[4] < 1e-12) and steps[32] * 32 < 60


@pytest.mark.parametrize(("n", "K"), [(1, 3), (2, 2), (3, 3), (4, 4)])
def test_kernels_of_one_component(draw, n, K):
    for sign, total in ((1, 1), (-1, (K - 1) * n // 2), (1, (K - 1) * n)):
        ends = [draw.kernel(n, draw.ranks(n, K - 1, total), sign) for _ in range(2)]  # two rank tuples, one sum
        assert_is_path(theory.path(*ends), *ends, theory.component)


def test_paths_between_kernels_built_without_projectors(draw):
    kernels = [draw.lattice(3, 3)[0] for _ in range(12)]
    pairs = [(a, b) for a, b in product(kernels, repeat=2) if theory.component(a) == theory.component(b) and a is not b]
    for a, b in pairs[:3]:
        assert_is_path(theory.path(a, b), a, b, theory.component)
    a, b = (kernel.float() for kernel in pairs[0])
    assert theory.path(a, b)(0.5).dtype == torch.float32
    assert_is_path(theory.path(a, b), a, b, theory.component, 100 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(("sign", "ranks"), [(-1, [(1, 2), (2, 0), (3, 1)]), (1, [(1, 2)])])
def test_two_dimensional_kernels(draw, sign, ranks):
    a, b = (draw.factors(3, *ranks, sign=sign) for _ in range(2))
    assert_is_path(theory.path_2d(a, b), bcop_kernel(*a), bcop_kernel(*b), theory.component_2d)


def test_rotations_that_have_no_logarithm_at_hand(draw):
    """Eigenvalues −1, on which a geodesic would have to choose: half-turns, permutations, reflections of all axes."""
    eye, start = torch.eye(4, dtype=torch.float64), draw.orthogonal(4, 1)
    for turn in (-eye, torch.diag(torch.tensor([1.0, -1, 1, -1]).double()), eye, eye.roll(2, dims=0)):
        between = theory.rotation_path(start, start @ turn)
        assert (between(0.0) - start).abs().max() < 1e-13 and (between(1.0) - start @ turn).abs().max() < 1e-13
        assert (between(0.2).mT @ between(0.2) - eye).abs().max() < 1e-13
    assert (theory.rotation_path(start, start)(0.5) - start).abs().max() < 1e-13


def test_grassmannian_geodesics(draw):
    """Orthogonal, equal and nearly equal subspaces; the path's length is the norm of the angles, so it is shortest."""
    e = torch.eye(5, dtype=torch.float64)
    first = e[:, :2] @ e[:, :2].mT
    tilt = torch.linalg.qr(e[:, :2] + 1e-9 * draw.normal(5, 2)).Q
    for end in (first, e[:, 2:4] @ e[:, 2:4].mT, e[:, 1:3] @ e[:, 1:3].mT, tilt @ tilt.mT, draw.projector(5, 2)):
        points = [theory.grassmann_path(first, end)(t / 50) for t in range(51)]
        assert (points[0] - first).abs().max() < 1e-13 and (points[-1] - end).abs().max() < 1e-13
        assert all(is_projector(p, 1e-13) and int(projector_rank(p)) == 2 for p in points)
        length = sum(float((b - a).norm()) for a, b in pairwise(points))
        angles = torch.acos(torch.linalg.svdvals(first @ end)[:2].clamp(max=1))
        assert length == pytest.approx(2**0.5 * float(angles.norm()), rel=1e-3, abs=1e-7)
