"""2-D kernels: their components, the incompleteness of BCOP, and networks with twice the channels."""

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
    projector_rank,
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


@pytest.mark.parametrize(("n", "K"), [(1, 1), (5, 2), (2, 3), (1, 4)])
def test_components_are_exhibited(n, K):
    """As many as the paper says: 2(K − 1)n + 2 in 1-D; in 2-D 2(n + 1)² for K = 2, and 2((K − 1)n + 1)² for every K."""
    count = (K - 1) * n + 1
    for exhibits, component, expected in (
        (theory.exhibit_components(n, K), theory.component, 2 * count),
        (theory.exhibit_components_2d(n, K), theory.component_2d, 2 * count**2),
    ):
        kernels = dict(exhibits)
        assert len(kernels) == expected
        for promised, kernel in kernels.items():
            assert theory.orthogonality_residual(kernel) == 0
            assert component(kernel) == promised


def test_invariants_of_larger_kernels(draw):
    """Rank sums from the taps alone, for random BCOP kernels and for products of their factors in another order."""
    for _ in range(20):
        n, sign = 3, draw.integer(0, 1) * 2 - 1
        ranks = [(draw.integer(0, n), draw.integer(0, n)) for _ in range(2)]
        H, P, Q = draw.factors(n, *ranks, sign=sign)
        other = compose_kernels(*map(projector_row, Q), H[..., None, None], *map(projector_column, P))
        for kernel in (bcop_kernel(H, P, Q), other):
            assert theory.component_2d(kernel) == (sign, sum(p for p, _ in ranks), sum(q for _, q in ranks))


def test_the_example_is_orthogonal_and_outside():
    """And the reordered product of the printed projectors."""
    example = theory.incompleteness_example()
    assert theory.orthogonality_residual(example) == 0
    assert upper_taps_product(example).abs().max() == 0.25
    assert not theory.in_bcop_image_2x2(example)
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


# Theorem "BCOP Construction with Auxiliary Dimension" ----------------------------------------------------------------


def maxmin(x):
    a, b = x.chunk(2, dim=1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=1)


def run(network, x, biases):
    for kernel, bias in zip(network.kernels(), biases, strict=True):
        x = maxmin(circular(x, kernel) + bias[:, None, None])
    return x.flatten(1) @ network.head.mT


def random_network(draw, m=3, n=4, size=4):
    first, *rest = (
        draw.factors(n, *((draw.integer(0, n), draw.integer(0, n)) for _ in range(K - 1))) for K in (2, 3, 2)
    )
    return theory.BCOPNetwork(first._replace(H=first.H[:m]), rest, draw.orthogonal(n * size * size)[:5])


@pytest.mark.parametrize(("n", "K"), [(1, 4), (2, 2), (3, 3)])
def test_all_components_become_one(draw, n, K):
    """Kernels of all signs and ranks on n channels: once doubled, paths of orthogonal kernels join them."""
    hub = theory.double(*draw.factors(n, *[(0, n)] * (K - 1), sign=1))
    for sign, p, q in product((1, -1), range(n + 1), range(n + 1)):
        factors = draw.factors(n, *[(p, q)] * (K - 1), sign=sign)
        doubled = theory.double(*factors)
        assert float(torch.linalg.det(doubled.H)) == pytest.approx(1)
        assert {int(projector_rank(p)) for p in (*doubled.P, *doubled.Q)} == {n}
        kernel = bcop_kernel(*doubled)
        x = draw.normal(2, 2 * n, 6, 5)  # the dummies carry anything
        assert (circular(x, kernel)[:, :n] - circular(x[:, :n], bcop_kernel(*factors))).abs().max() < 1e-13
        path = theory.path_2d(hub, doubled)
        assert (path(0.0) - bcop_kernel(*hub)).abs().max() < 1e-12
        assert (path(1.0) - kernel).abs().max() < 1e-12
        assert max(theory.orthogonality_residual(path(t / 8)) for t in range(9)) < 1e-13


@pytest.mark.parametrize("m", [1, 3, 4])
def test_a_network(draw, m):
    n = 4
    network = random_network(draw, m)
    doubled = theory.double_network(network)
    for kernel in doubled.kernels():
        assert theory.orthogonality_residual(kernel) < 1e-13
    for layer in (doubled.first, *doubled.rest):
        assert {int(projector_rank(p)) for p in (*layer.P, *layer.Q)} == {n}
    for layer in doubled.rest:
        assert float(torch.linalg.det(layer.H)) == pytest.approx(1)
    rows = doubled.head @ doubled.head.mT
    assert (rows - torch.eye(5, dtype=torch.float64)).abs().max() < 1e-13
    biases = [draw.normal(n) for _ in network.kernels()]
    wide = [torch.zeros(2 * n, dtype=torch.float64).index_copy(0, theory.real_channels(n), bias) for bias in biases]
    x = draw.normal(3, m, 4, 4)
    expected = run(network, x, biases)
    assert expected.abs().max() > 0.1
    assert (run(doubled, x, wide) - expected).abs().max() < 1e-12


def test_without_the_permutation_channels_meet_dummies(draw):
    """Real channels first, as the paper has it: MaxMin then compares each with a dummy, and the function changes."""
    network, x = random_network(draw), draw.normal(3, 3, 4, 4)
    H, P, Q = network.first
    wide = torch.cat([H, torch.zeros_like(H)], dim=1)
    first = theory.BCOPFactors(wide, *theory.double(torch.eye(4, dtype=torch.float64), P, Q)[1:])
    head = torch.cat([network.head, torch.zeros_like(network.head)], dim=1)
    naive = theory.BCOPNetwork(first, [theory.double(*layer) for layer in network.rest], head)
    expected = run(network, x, torch.zeros(3, 4))
    assert (run(theory.double_network(network), x, torch.zeros(3, 8)) - expected).abs().max() < 1e-12
    assert (run(naive, x, torch.zeros(3, 8)) - expected).abs().max() > 1e-2
