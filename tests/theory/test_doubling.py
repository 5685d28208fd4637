"""Theorem "BCOP Construction with Auxiliary Dimension", for one convolution and for a whole network."""

from itertools import product

import pytest
import torch

from isoconv import theory
from isoconv.linalg.bcop import bcop_kernel, projector_rank
from theory.conftest import circular


def maxmin(x):
    a, b = x.chunk(2, dim=1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=1)


def run(network, x, biases):
    for kernel, bias in zip(network.kernels(), biases, strict=True):
        x = maxmin(circular(x, kernel) + bias[:, None, None])
    return x.flatten(1) @ network.head.mT


def random_factors(draw, m, n, K):
    families = ([draw.projector(n, draw.integer(0, n)) for _ in range(K - 1)] for _ in range(2))
    return theory.BCOPFactors(draw.orthogonal(n)[:m], *families)


def random_network(draw, m=3, n=4, size=4):
    rest = [random_factors(draw, n, n, 3), random_factors(draw, n, n, 2)]
    return theory.BCOPNetwork(random_factors(draw, m, n, 2), rest, draw.orthogonal(n * size * size)[:5])


@pytest.mark.parametrize(("n", "K"), [(1, 2), (2, 2), (3, 3), (4, 4)])
def test_one_convolution(draw, n, K):
    for sign in (1, -1):
        H, P, Q = random_factors(draw, n, n, K)
        H = draw.orthogonal(n, sign)
        doubled = theory.double(H, P, Q)
        assert float(torch.linalg.det(doubled.H)) == pytest.approx(1)
        assert {int(projector_rank(p)) for p in (*doubled.P, *doubled.Q)} == {n}
        kernel, doubled_kernel = bcop_kernel(H, P, Q), bcop_kernel(*doubled)
        assert theory.orthogonality_residual(doubled_kernel) < 1e-13
        x = draw.normal(2, 2 * n, 6, 5)  # the dummies carry anything
        assert (circular(x, doubled_kernel)[:, :n] - circular(x[:, :n], kernel)).abs().max() < 1e-13


def test_all_components_become_one(draw):
    """Kernels from all 2(n + 1)² components of n channels: once doubled, paths of orthogonal kernels join them."""
    n = 2
    doubled = [
        theory.double(draw.orthogonal(n, sign), [draw.projector(n, p)], [draw.projector(n, q)])
        for sign, p, q in product((1, -1), range(n + 1), range(n + 1))
    ]
    for other in doubled[1:]:
        path = theory.path_2d(doubled[0], other)
        assert (path(0.0) - bcop_kernel(*doubled[0])).abs().max() < 1e-12
        assert (path(1.0) - bcop_kernel(*other)).abs().max() < 1e-12
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
    network = random_network(draw)
    doubled = theory.double_network(network)
    order = torch.cat(
        [theory.real_channels(4), torch.tensor([i for i in range(8) if i not in theory.real_channels(4)])]
    )

    def reorder(matrix):
        return matrix[order][:, order]

    def plain(layer, H):
        return theory.BCOPFactors(H, [reorder(p) for p in layer.P], [reorder(q) for q in layer.Q])

    head = doubled.head.reshape(5, 8, -1)[:, order].flatten(1)
    naive = theory.BCOPNetwork(
        plain(doubled.first, doubled.first.H[:, order]),
        [plain(layer, reorder(layer.H)) for layer in doubled.rest],
        head,
    )
    x = draw.normal(3, 3, 4, 4)
    expected = run(network, x, torch.zeros(3, 4))
    assert (run(doubled, x, torch.zeros(3, 8)) - expected).abs().max() < 1e-12
    assert (run(naive, x, torch.zeros(3, 8)) - expected).abs().max() > 1e-2
