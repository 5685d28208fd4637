"""2×2 kernels: "Connected Components of 2-D Orthogonal Convolution with K = 2", and the incompleteness of BCOP."""

from itertools import product

import pytest
import torch

from isoconv import theory
from isoconv.linalg.bcop import (
    bcop_kernel,
    block_convolve,
    compose_kernels,
    is_projector,
    projector_column,
    projector_row,
)
from theory.conftest import circular

EYE = torch.eye(2, dtype=torch.float64)
P_PRINTED = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
Q_PRINTED = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64) / 2


def mixture(draw, n):
    """An orthogonal kernel neither of BCOP's form nor of the other order: both, side by side, in a rotated basis."""
    H, ranks = draw.orthogonal(2 * n), [draw.integer(0, n) for _ in range(4)]
    first = bcop_kernel(torch.eye(n, dtype=torch.float64), [draw.projector(n, ranks[0])], [draw.projector(n, ranks[1])])
    second = theory.reordered_kernel(torch.eye(n, dtype=torch.float64), *(draw.projector(n, r) for r in ranks[2:]))
    kernel = torch.zeros(2 * n, 2 * n, 2, 2, dtype=torch.float64)
    kernel[:n, :n], kernel[n:, n:] = first, second
    rotated = torch.einsum("ab,bcij,dc->adij", H, kernel, draw.orthogonal(2 * n))
    return rotated, (ranks[0] + ranks[2], ranks[1] + ranks[3])


def upper_taps_product(kernel):
    return kernel[:, :, 0, 0] @ kernel[:, :, 0, 1].mT


@pytest.mark.parametrize("build", [lambda H, P, Q: bcop_kernel(H, [P], [Q]), theory.reordered_kernel])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_ranks_come_from_the_kernel_alone(draw, n, build):
    for p, q, sign in product(range(n + 1), range(n + 1), (1, -1)):
        H, P, Q = draw.orthogonal(n, sign), draw.projector(n, p), draw.projector(n, q)
        kernel = build(H, P, Q)
        for found, made in zip(theory.recover_2x2(kernel), (H, P, Q), strict=True):
            assert (found - made).abs().max() < 1e-13
        assert theory.component_2d(kernel) == (sign, p, q)


def test_ranks_of_kernels_outside_both_forms(draw):
    outside = 0
    for _ in range(20):
        kernel, ranks = mixture(draw, 2)
        assert theory.orthogonality_residual(kernel) < 1e-13
        _, P, Q = theory.recover_2x2(kernel)
        assert is_projector(P, 1e-13) and is_projector(Q, 1e-13)
        assert theory.component_2d(kernel)[1:] == ranks
        outside += not theory.in_bcop_image_2x2(kernel)
    assert outside > 0


@pytest.mark.parametrize(("n", "K"), [(1, 2), (2, 2), (3, 2), (5, 2), (2, 1), (1, 4), (2, 3)])
def test_components_are_exhibited(n, K):
    """2(n + 1)² of them for K = 2, as the paper says, and 2((K − 1)n + 1)² for every K."""
    exhibits = list(theory.exhibit_components_2d(n, K))
    assert len(exhibits) == 2 * ((K - 1) * n + 1) ** 2
    assert len({promised for promised, _ in exhibits}) == len(exhibits)
    for promised, kernel in exhibits:
        assert theory.orthogonality_residual(kernel) == 0
        assert theory.component_2d(kernel) == promised


def test_invariants_of_larger_kernels(draw):
    """Rank sums from the taps alone, for random BCOP kernels and for products of them in any order."""
    for _ in range(20):
        n, K, sign = 3, 3, draw.integer(0, 1) * 2 - 1
        ranks = [[draw.integer(0, n) for _ in range(K - 1)] for _ in range(2)]
        H, (P, Q) = draw.orthogonal(n, sign), [[draw.projector(n, r) for r in family] for family in ranks]
        assert theory.component_2d(bcop_kernel(H, P, Q)) == (sign, sum(ranks[0]), sum(ranks[1]))
        other = compose_kernels(
            projector_row(Q[0]), projector_row(Q[1]), H[..., None, None], projector_column(P[0]), projector_column(P[1])
        )
        assert theory.component_2d(other) == (sign, sum(ranks[0]), sum(ranks[1]))


def test_the_example_is_orthogonal_and_outside():
    example = theory.incompleteness_example()
    assert theory.orthogonality_residual(example) == 0
    assert upper_taps_product(example).abs().max() == 0.25
    assert not theory.in_bcop_image_2x2(example)


def test_the_example_is_the_reordered_product_of_the_printed_projectors():
    example = theory.incompleteness_example()
    assert torch.equal(theory.reordered_kernel(EYE, P_PRINTED, Q_PRINTED), example)
    # The order that the paper prints, with P along the height as everywhere, is another kernel, one of BCOP's.
    assert not torch.equal(bcop_kernel(EYE, [P_PRINTED], [Q_PRINTED]), example)
    # With the axes of the image exchanged, the example itself is one of BCOP's.
    assert theory.in_bcop_image_2x2(example.transpose(2, 3))


def test_a_reordered_product_is_two_bcop_convolutions(draw):
    cases = [(EYE, P_PRINTED, Q_PRINTED), (draw.orthogonal(3), draw.projector(3, 1), draw.projector(3, 2))]
    for H, P, Q in cases:
        kernel = theory.reordered_kernel(H, P, Q)
        assert not theory.in_bcop_image_2x2(kernel)
        outer, inner = theory.as_two_bcop_kernels(H, P, Q)
        assert theory.in_bcop_image_2x2(outer) and theory.in_bcop_image_2x2(inner)
        composed = block_convolve(outer, inner)
        assert (composed[:, :, 1:, 1:] - kernel).abs().max() < 1e-14
        assert composed[:, :, 0].abs().max() == composed[:, :, :, 0].abs().max() == 0
        x = draw.normal(2, P.shape[0], 5, 4)
        assert (circular(circular(x, inner), outer) - circular(x, kernel)).abs().max() < 1e-13


def test_one_equation_decides_membership(draw):
    """A₁A₂ᵀ = 0 for every BCOP kernel, as the paper says; and for no other orthogonal kernel."""
    inside = outside = 0
    for _ in range(40):
        n = draw.integer(2, 4)
        H = draw.orthogonal(n)
        P, Q = (draw.projector(n, draw.integer(1, n - 1)) for _ in range(2))
        commuting = torch.diag((draw.normal(n) > 0).double()), torch.diag((draw.normal(n) > 0).double())
        candidates = [
            bcop_kernel(H, [P], [Q]),
            theory.reordered_kernel(H, P, Q),
            theory.reordered_kernel(H, *commuting),
        ]
        assert theory.in_bcop_image_2x2(candidates[0]) and theory.in_bcop_image_2x2(candidates[2])
        for kernel in (*candidates, mixture(draw, n)[0]):
            member = theory.in_bcop_image_2x2(kernel)
            assert member == bool(upper_taps_product(kernel).abs().max() < 1e-12)
            inside, outside = inside + member, outside + (not member)
    assert inside > 80 and outside > 20
