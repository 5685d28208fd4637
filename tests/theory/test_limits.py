"""Appendices A and D: zero padding, residual connections, spectral normalisation, and dynamical isometry."""

from math import cos, pi, sin

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from isoconv import theory
from isoconv.models import Small
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear


def excess(kernel, length):
    """MMᵀ − I."""
    M = theory.zero_padded_matrix(kernel, length)
    return M @ M.mT - torch.eye(M.shape[0], dtype=M.dtype)


@pytest.mark.parametrize(("K", "length"), [(1, 3), (3, 5), (5, 6), (5, 2)])
def test_the_matrix_is_the_convolution(draw, K, length):
    kernel, x = draw.normal(3, 2, K), draw.normal(1, 2, length)
    expected = F.conv1d(x, kernel, padding=K // 2)[0].mT.flatten()
    assert (theory.zero_padded_matrix(kernel, length) @ x[0].mT.flatten() - expected).abs().max() < 1e-13


@pytest.mark.parametrize(("K", "length"), [(3, 3), (5, 8)])
def test_the_loss_counts_taps_by_their_offset(draw, K, length):
    for _ in range(5):
        kernel, _ = draw.lattice(3, K)
        defect = -excess(kernel, length)
        assert float(defect.trace()) == pytest.approx(float(theory.zero_padding_loss(kernel)), abs=1e-12)
        assert torch.linalg.eigvalsh(defect).min() > -1e-12


def test_a_signal_shorter_than_the_kernel_escapes():
    """The proof needs a position that sees all taps. Without one it is false: a rotation as a kernel of size 3."""
    kernel = torch.tensor([[[-sin(0.3), cos(0.3), sin(0.3)]]], dtype=torch.float64)
    assert excess(kernel, 2).abs().max() < 1e-15 and excess(kernel, 3).abs().max() > 0.05


@pytest.mark.parametrize("n", [1, 4])
def test_a_halved_residual_preserves_norms_only_for_the_identity(draw, n):
    for _ in range(20):
        J = draw.normal(n, n)
        contraction = J / torch.linalg.matrix_norm(J, ord=2) * torch.rand((), generator=draw.generator)
        loss, bound = theory.halved_residual_loss(contraction)
        assert loss >= bound - 1e-12 and bound > 1e-6
        loss, bound = theory.halved_residual_loss(draw.orthogonal(n))  # orthogonal Jacobians attain the bound
        assert float(loss) == pytest.approx(float(bound), abs=1e-12)
    assert theory.halved_residual_loss(torch.eye(n, dtype=torch.float64)) == (0, 0)


@pytest.mark.parametrize("angle", [0.1, pi])
def test_a_residual_branch_may_leave_a_rotation(angle):
    branch = theory.rotation_branch(angle)
    assert float(torch.linalg.matrix_norm(branch, ord=2)) == pytest.approx(2 * sin(angle / 2))
    whole = torch.eye(2, dtype=torch.float64) + branch
    assert (whole @ whole.mT - torch.eye(2, dtype=torch.float64)).abs().max() < 1e-15


@pytest.mark.parametrize(("m", "n", "rank"), [(1, 1, 1), (3, 3, 3), (2, 5, 2), (5, 3, 2)])
def test_no_direction_of_unit_norm_descends_faster(draw, m, n, rank):
    G = draw.normal(m, rank) @ draw.normal(rank, n)
    D = theory.steepest_direction(G)
    nuclear = float(torch.linalg.svdvals(G).sum())
    assert float(torch.linalg.matrix_norm(D, ord=2)) == pytest.approx(1)
    assert int(torch.linalg.matrix_rank(D, atol=1e-9)) == rank
    assert float((G * D).sum()) == pytest.approx(-nuclear)
    batch = torch.stack([G, torch.zeros_like(G)])  # a zero gradient has a zero direction
    assert torch.allclose(theory.steepest_direction(batch), torch.stack([D, torch.zeros_like(G)]))
    for candidates in (draw.normal(1000, m, n), D + 0.1 * draw.normal(1000, m, n)):
        unit = candidates / torch.linalg.matrix_norm(candidates, ord=2)[:, None, None]
        assert (G * unit).sum((1, 2)).min() >= -nuclear - 1e-12


def test_spectral_normalisation_misses_the_solution(draw):
    """Tr(AD) with D = diag(2, 1): Euclidean steps end at diag(1, ½), steepest ones at the identity, from any start."""
    D, paper, start = (torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([2.0, 1.0], [1.0, 0.5], [0.3, 0.4]))
    eye = torch.eye(2, dtype=torch.float64)
    for begin in (0 * eye, -eye, draw.orthogonal(2), draw.normal(2, 2) / 3):
        misled, right = (theory.ascend(D, begin, steepest=steepest, rate=0.5) for steepest in (False, True))
        assert (misled - paper).abs().max() < 1e-9 and (right - eye).abs().max() < 1e-9
    # The paper's update rule, on diagonals (x, y): min(x + 2α, 1) and (y + α)/max(x + 2α, 1).
    x, y, alpha = 0.3, 0.4, 0.1
    for step in range(1, 12):
        x, y = min(x + 2 * alpha, 1), (y + alpha) / max(x + 2 * alpha, 1)
        A = theory.ascend(D, start, steepest=False, rate=alpha, steps=step)
        assert A.diagonal().tolist() == pytest.approx([x, y])


# Dynamical isometry: a BCOP network with MaxMin maps the input's neighbourhood isometrically; no other method does ----


def spectrum_of(conv, activation="maxmin", shape=(4, 8, 8)):
    """Of Small, which leads from 256 numbers to 256, 128, 100 and 10: no layer enlarges, but with one channel."""
    torch.manual_seed(0)
    return theory.jacobian_spectrum(Small(shape, conv=conv, activation=activation).eval(), torch.rand(1, *shape))


def test_spectrum_of_known_jacobians(draw):
    matrix = draw.normal(3, 5)
    spectrum = theory.jacobian_spectrum(lambda x: x @ matrix.mT, draw.normal(1, 5))
    assert (spectrum - torch.linalg.svdvals(matrix)).abs().max() < 1e-13
    with torch.no_grad():  # gradients are enabled inside
        spectrum = theory.jacobian_spectrum(lambda x: x.square() / 2, torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    assert spectrum.tolist() == pytest.approx([4, 3])


def test_bcop_is_isometric_in_double_and_single_precision(draw):
    double = {"dtype": torch.float64}
    convolutions = BCOPConv2d(4, 16, 4, stride=2, **double), MaxMin(), BCOPConv2d(16, 8, 3, **double), MaxMin()
    model = nn.Sequential(*convolutions, nn.Flatten(), OrthogonalLinear(128, 20, **double), MaxMin()).eval()
    assert (theory.jacobian_spectrum(model, draw.normal(1, 4, 8, 8)) - 1).abs().max() < 1e-12
    assert (spectrum_of("bcop") - 1).abs().max() < 1e-5


@pytest.mark.parametrize("conv", ["rko", "ossn", "svcm", "rkl2ne", "standard"])
def test_the_other_methods_shrink_and_spread(conv):
    spectrum = spectrum_of(conv)
    assert spectrum.max() < 0.9 and spectrum.max() > 1.2 * spectrum.min()


@pytest.mark.parametrize("options", [{"activation": "relu"}, {"shape": (1, 8, 8)}], ids=["relu", "enlarging"])
def test_relu_and_layers_that_enlarge_the_dimension_lose_directions(options):
    spectrum = spectrum_of("bcop", **options)
    assert spectrum.max() <= 1 + 1e-5 and spectrum.min() < 0.9
