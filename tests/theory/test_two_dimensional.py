"""2-D kernels: components, the incompleteness of BCOP, networks with twice the channels, rotations and shifts."""

import pytest
import torch

from helpers import convolved
from isoconv import theory
from isoconv.linalg import bcop
from isoconv.linalg.bcop import bcop_kernel, block_convolve, is_projector, projector_rank
from isoconv.nn import ChannelShift

EYE = torch.eye(2, dtype=torch.float64)
P_PRINTED = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
Q_PRINTED = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64) / 2


def circular(x, kernel):
    return convolved(x, kernel, None, 1)


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


def test_ranks_come_from_the_kernel_alone(draw):
    for n, p, q, sign in ((1, 0, 1, 1), (2, 1, 1, -1), (4, 1, 3, 1), (4, 4, 2, -1)):
        H, P, Q = draw.orthogonal(n, sign), draw.projector(n, p), draw.projector(n, q)
        for kernel in (bcop_kernel(H, [P], [Q]), theory.reordered_kernel(H, P, Q)):
            for found, made in zip(theory.recover_2x2(kernel), (H, P, Q), strict=True):
                assert (found - made).abs().max() < 1e-13
            assert theory.component_2d(kernel) == (sign, p, q)
    for _ in range(5):
        kernel, ranks = mixture(draw, 2)
        assert theory.orthogonality_residual(kernel) < 1e-13
        assert all(is_projector(projector, 1e-13) for projector in theory.recover_2x2(kernel)[1:])
        assert theory.component_2d(kernel)[1:] == ranks


@pytest.mark.parametrize(("n", "K"), [(1, 1), (3, 2), (2, 3), (1, 4)])
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
    for sign in (1, -1) * 3:
        n = 3
        ranks = [(draw.integer(0, n), draw.integer(0, n)) for _ in range(2)]
        H, P, Q = draw.factors(n, *ranks, sign=sign)
        other = bcop.compose_kernels(*map(bcop.projector_row, Q), H[..., None, None], *map(bcop.projector_column, P))
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
    for n in (2, 3, 4) * 4:
        H = draw.orthogonal(n)
        P, Q = (draw.projector(n, draw.integer(1, n - 1)) for _ in range(2))
        commuting = torch.diag((draw.normal(n) > 0).double()), torch.diag((draw.normal(n) > 0).double())
        inner = bcop_kernel(H, [P], [Q]), theory.reordered_kernel(H, *commuting)
        assert all(map(theory.in_bcop_image_2x2, inner))
        for kernel in (*inner, theory.reordered_kernel(H, P, Q), mixture(draw, n)[0]):
            member = theory.in_bcop_image_2x2(kernel)
            assert member == bool(upper_taps_product(kernel).abs().max() < 1e-12)
            inside, outside = inside + member, outside + (not member)
    assert inside > 20 and outside > 6


# Theorem "BCOP Construction with Auxiliary Dimension" ----------------------------------------------------------------


def maxmin(x):
    a, b = x.chunk(2, dim=1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=1)


def run(network, x, biases):
    for kernel, bias in zip(network.kernels(), biases, strict=True):
        x = maxmin(circular(x, kernel) + bias[:, None, None])
    return x.flatten(1) @ network.head.mT


@pytest.mark.parametrize(("n", "K"), [(1, 4), (2, 2), (3, 3)])
def test_all_components_become_one(draw, n, K):
    """Kernels of all signs and ranks on n channels: once doubled, paths of orthogonal kernels join them."""
    hub = theory.double(*draw.factors(n, *[(0, n)] * (K - 1), sign=1))
    for sign, p, q in ((1, 0, n), (-1, 1, n - 1), (-1, n, n), (1, 1, 1)):
        factors = draw.factors(n, *[(p, q)] * (K - 1), sign=sign)
        doubled = theory.double(*factors)
        assert float(torch.linalg.det(doubled.H)) == pytest.approx(1)
        assert {int(projector_rank(p)) for p in (*doubled.P, *doubled.Q)} == {n}
        kernel = bcop_kernel(*doubled)
        x = draw.normal(2, 2 * n, 6, 5)  # the dummies carry anything
        assert (circular(x, kernel)[:, :n] - circular(x[:, :n], bcop_kernel(*factors))).abs().max() < 1e-13
        path = theory.path_2d(hub, doubled)
        assert (path(0.0) - bcop_kernel(*hub)).abs().max() < 1e-12 and (path(1.0) - kernel).abs().max() < 1e-12
        assert theory.orthogonality_residual(path(0.4)) < 1e-13


@pytest.mark.parametrize(("m", "n"), [(1, 4), (4, 4), (2, 6)])
def test_a_network(draw, m, n):
    ranks = [(1, 3), (0, n), (2, 1), (n, 2)]
    first, *rest = (draw.factors(n, *ranks[k : k + size - 1]) for k, size in ((0, 2), (1, 3), (3, 2)))
    network = theory.BCOPNetwork(first._replace(H=first.H[:m]), rest, draw.orthogonal(n * 4 * 4)[:5])
    doubled = theory.double_network(network)
    assert max(map(theory.orthogonality_residual, doubled.kernels())) < 1e-13
    for layer in (doubled.first, *doubled.rest):
        assert {int(projector_rank(p)) for p in (*layer.P, *layer.Q)} == {n}
        assert layer is doubled.first or float(torch.linalg.det(layer.H)) == pytest.approx(1)
    rows = doubled.head @ doubled.head.mT
    assert (rows - torch.eye(5, dtype=torch.float64)).abs().max() < 1e-13
    biases = [draw.normal(n) for _ in network.kernels()]
    wide = [torch.zeros(2 * n, dtype=torch.float64).index_copy(0, theory.real_channels(n), bias) for bias in biases]
    x = draw.normal(3, m, 4, 4)
    expected = run(network, x, biases)
    assert expected.abs().max() > 0.1
    assert (run(doubled, x, wide) - expected).abs().max() < 1e-12


# Rotations and shifts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("c_out", "n", "K"), [(4, 4, 2), (3, 6, 3), (1, 5, 4), (2, 2, 1)])
def test_a_bcop_kernel_is_the_product_of_its_rotated_shifts(c_out, n, K, draw):
    H = draw.orthogonal(n)[:c_out]
    P, Q = ([draw.projector(n, draw.integer(0, n)) for _ in range(K - 1)] for _ in range(2))
    shifts = theory.bcop_as_shifts(P, Q)
    assert [shift.axis for shift in shifts] == [0, 1] * (K - 1)
    kernel = theory.kernel_of_shifts(H, shifts)
    assert kernel.shape == (c_out, n, K, K)
    assert (kernel - bcop_kernel(H, P, Q)).abs().max() <= 1e-13


def test_a_rotated_shift_does_what_it_says(draw):
    """Applied step by step: matrices on the channels and torch.roll, no kernel."""
    R, x = draw.orthogonal(5), draw.normal(1, 5, 4, 6)
    for staying, axis in ((2, 0), (0, 1), (5, 0)):
        turned = torch.einsum("ij,bjhw->bihw", R.mT, x)
        turned[:, staying:] = turned[:, staying:].roll(-1, 2 + axis)  # tap 1 of a cross-correlation sees the next pixel
        expected = torch.einsum("ij,bjhw->bihw", R, turned)
        found = circular(x.roll(-1, 2 + axis), theory.RotatedShift(R, staying, axis).kernel())
        assert (found - expected).abs().max() <= 1e-13


def test_the_layer_is_a_depthwise_convolution_with_signed_shifts_for_taps():
    """The kernel of `ChannelShift`, read off an impulse, is what `depthwise_shift` finds."""
    impulse = torch.zeros(1, 16, 5, 5)
    impulse[:, :, 2, 2] = 1
    shift = theory.depthwise_shift(ChannelShift()(impulse).transpose(0, 1))
    assert shift.defect == 0 and shift.sign.tolist() == [1.0] * 16
    moves = [[3, 2]] * 2 + [[1, 2]] * 2 + [[2, 3]] * 2 + [[2, 1]] * 2 + [[2, 2]] * 8
    assert shift.tap.tolist() == moves


@pytest.mark.parametrize("shape", [(6, 1, 4), (5, 1, 3, 4), (1, 1, 1, 1)])
def test_signed_shifts_are_recovered(shape, draw):
    kernel, signs = torch.zeros(shape).flatten(1), [2.0 * draw.integer(0, 1) - 1 for _ in range(shape[0])]
    for channel, sign in zip(kernel, signs, strict=True):
        channel[draw.integer(0, len(channel) - 1)] = sign
    kernel = kernel.reshape(shape)
    shift = theory.depthwise_shift(kernel)
    assert shift.defect == 0 and shift.sign.tolist() == signs and shift.tap.shape == (shape[0], len(shape) - 2)
    assert [float(kernel[(c, 0, *tap)]) for c, tap in enumerate(shift.tap.tolist())] == signs


@pytest.mark.parametrize(("K", "L"), [(1, 4), (3, 3), (2, 5)])
def test_no_other_filter_is_isometric(K, L, draw):
    """The defect agrees with the dense test of orthogonality, channel by channel, and is large for every unit filter."""
    kernel = draw.normal(8, 1, K, L)
    kernel /= kernel.flatten(1).norm(dim=1)[:, None, None, None]
    residuals = [theory.orthogonality_residual(channel[None]) for channel in kernel]
    assert theory.depthwise_shift(kernel).defect == pytest.approx(max(residuals), rel=1e-12)
    assert min(residuals) > 1e-3
    # The product of the first and the last tap is one entry, so it bounds the defect from below.
    for channel, residual in zip(kernel, residuals, strict=True):
        assert residual >= abs(float(channel[0, 0, 0] * channel[0, -1, -1])) * (1 - 1e-12)


def test_on_one_size_alone_there_are_others():
    taps = torch.tensor([-1.0, 1, 1, 1], dtype=torch.float64) / 2
    on_four = torch.stack([taps.roll(k) for k in range(4)])
    assert torch.equal(on_four @ on_four.mT, torch.eye(4, dtype=torch.float64))
    assert theory.depthwise_shift(taps[None, None]).defect == 0.25
    assert theory.depthwise_shift(2 * torch.ones(1, 1, 1)).defect == 3  # a shift that stretches
