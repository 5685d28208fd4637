"""Appendices A and D: zero padding, residual connections and spectral normalisation, and what they cost."""

from itertools import product
from math import cos, pi, sin

import pytest
import torch
from torch.nn import functional as F

from isoconv import theory


def excess(kernel, length):
    """MMᵀ − I."""
    M = theory.zero_padded_matrix(kernel, length)
    return M @ M.mT - torch.eye(M.shape[0], dtype=M.dtype)


@pytest.mark.parametrize(("K", "length"), [(1, 3), (3, 5), (5, 6), (5, 2)])
def test_the_matrix_is_the_convolution(draw, K, length):
    kernel, x = draw.normal(3, 2, K), draw.normal(1, 2, length)
    expected = F.conv1d(x, kernel, padding=K // 2)[0].mT.flatten()
    assert (theory.zero_padded_matrix(kernel, length) @ x[0].mT.flatten() - expected).abs().max() < 1e-13


@pytest.mark.parametrize("n", [1, 2, 4])
def test_what_an_orthogonal_kernel_of_size_3_loses(draw, n):
    """The first block row lacks A₋₁ and the last A₁, as in the proof: these are the only losses, and they add up."""
    for ranks in product(range(n + 1), repeat=2):
        kernel, length = draw.kernel(n, ranks), 6
        blocks = -excess(kernel, length).reshape(length, n, length, n)
        for end, outer in ((0, kernel[..., 0]), (-1, kernel[..., 2])):
            assert (blocks[end, :, end] - outer @ outer.mT).abs().max() < 1e-13
            blocks[end, :, end] = 0
        assert blocks.abs().max() < 1e-13
        size_one = bool(kernel[..., [0, 2]].abs().max() < 1e-12)
        assert (float(theory.zero_padding_loss(kernel)) < 1e-12) == size_one


@pytest.mark.parametrize(("K", "length"), [(3, 3), (5, 5), (5, 8)])
def test_the_loss_counts_taps_by_their_offset(draw, K, length):
    for _ in range(10):
        kernel, _ = draw.lattice(3, K)
        defect = -excess(kernel, length)
        assert float(defect.trace()) == pytest.approx(float(theory.zero_padding_loss(kernel)), abs=1e-12)
        assert torch.linalg.eigvalsh(defect).min() > -1e-12


def test_minimising_the_residual_leaves_one_tap(draw):
    """From random kernels of size 3, what becomes orthogonal with zero padding becomes a kernel of size 1.

    All along, A₋₁A₋₁ᵀ is a difference of two diagonal blocks of MMᵀ − I, as in the proof, so the residual bounds the
    outer taps. Some starts get stuck: at kernels that delay one channel, whose loss is a whole dimension.
    """
    n, length, arrived = 2, 4, 0
    settings = {"max_iter": 300, "history_size": 30, "tolerance_grad": 0, "tolerance_change": 0}
    for _ in range(6):
        kernel = (draw.normal(n, n, 3) / 2).requires_grad_()
        optimiser = torch.optim.LBFGS([kernel], **settings, line_search_fn="strong_wolfe")

        def loss(kernel=kernel, optimiser=optimiser):
            optimiser.zero_grad()
            value = excess(kernel, length).square().sum()
            value.backward()
            outer = kernel.detach()[..., [0, 2]].square().sum((0, 1))
            assert bool((outer <= (2 * n * value.detach()) ** 0.5).all())
            return value

        optimiser.step(loss)
        kernel = kernel.detach()
        residual, middle = float(excess(kernel, length).norm()), kernel[..., 1]
        if residual < 1e-3:
            arrived += 1
            assert kernel[..., [0, 2]].abs().max() < 0.03
            assert (middle @ middle.mT - torch.eye(n, dtype=middle.dtype)).abs().max() < 1e-3
        else:
            assert residual > 1 - 1e-6
            assert torch.linalg.svdvals(theory.zero_padded_matrix(kernel, length)).min() < 1e-2
    assert arrived >= 2


def test_a_signal_shorter_than_the_kernel_escapes():
    """The proof needs a position that sees all taps. Without one it is false: a rotation as a kernel of size 3."""
    for angle in (0.3, 1.0, pi / 2):
        kernel = torch.tensor([[[-sin(angle), cos(angle), sin(angle)]]], dtype=torch.float64)
        assert excess(kernel, 2).abs().max() < 1e-15
        assert excess(kernel, 3).abs().max() > 0.05


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_halved_residual_preserves_norms_only_for_the_identity(draw, n):
    for _ in range(50):
        J = draw.normal(n, n)
        contraction = J / torch.linalg.matrix_norm(J, ord=2) * torch.rand((), generator=draw.generator)
        loss, bound = theory.halved_residual_loss(contraction)
        assert loss >= bound - 1e-12 and bound > 1e-6
        loss, bound = theory.halved_residual_loss(draw.orthogonal(n))  # orthogonal Jacobians attain the bound
        assert float(loss) == pytest.approx(float(bound), abs=1e-12)
    assert theory.halved_residual_loss(torch.eye(n, dtype=torch.float64)) == (0, 0)


def test_a_residual_branch_may_double_the_norm_or_leave_a_rotation(draw):
    """Lip f = L > 0 alone guarantees nothing better than 1 + L, and f = Lx attains it; yet a rotation is x + f(x)."""
    x = draw.normal(2)
    for L in (1e-3, 0.5, 1.0):
        assert float((x + L * x).norm() / x.norm()) == pytest.approx(1 + L)
    for angle in (0.1, 1.0, pi):
        branch = theory.rotation_branch(angle)
        assert float(torch.linalg.matrix_norm(branch, ord=2)) == pytest.approx(2 * sin(angle / 2))
        whole = torch.eye(2, dtype=torch.float64) + branch
        assert (whole @ whole.mT - torch.eye(2, dtype=torch.float64)).abs().max() < 1e-15


@pytest.mark.parametrize(("m", "n", "rank"), [(1, 1, 1), (3, 3, 3), (2, 5, 2), (5, 3, 2), (4, 4, 1)])
def test_no_direction_of_unit_norm_descends_faster(draw, m, n, rank):
    G = draw.normal(m, rank) @ draw.normal(rank, n)
    D = theory.steepest_direction(G)
    nuclear = float(torch.linalg.svdvals(G).sum())
    assert float(torch.linalg.matrix_norm(D, ord=2)) == pytest.approx(1)
    assert int(torch.linalg.matrix_rank(D, atol=1e-9)) == rank
    assert float((G * D).sum()) == pytest.approx(-nuclear)
    batch = torch.stack([G, torch.zeros_like(G)])  # a zero gradient has a zero direction
    assert torch.allclose(theory.steepest_direction(batch), torch.stack([D, torch.zeros_like(G)]))
    others = draw.normal(4000, m, n)
    near = D + 0.1 * draw.normal(4000, m, n)
    for candidates in (others, near):
        unit = candidates / torch.linalg.matrix_norm(candidates, ord=2)[:, None, None]
        assert (G * unit).sum((1, 2)).min() >= -nuclear - 1e-12
    # Orthogonal matrices are the extreme points of the ball, so they come closest.
    if m == n:
        extreme = torch.stack([draw.orthogonal(n) for _ in range(500)])
        assert (G * extreme).sum((1, 2)).min() >= -nuclear - 1e-12


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_spectral_normalisation_misses_the_solution(draw, rate):
    """Tr(AD) with D = diag(2, 1): Euclidean steps end at diag(1, ½), steepest ones at the identity, from any start."""
    D, paper = (torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([2.0, 1.0], [1.0, 0.5]))
    eye = torch.eye(2, dtype=torch.float64)
    for start in (
        0 * eye,
        eye,
        -eye,
        *(draw.orthogonal(2) for _ in range(2)),
        *(draw.normal(2, 2) / 3 for _ in range(2)),
    ):
        misled = theory.ascend(D, start, steepest=False, rate=rate, steps=2000)
        assert (misled - paper).abs().max() < 1e-9
        right = theory.ascend(D, start, steepest=True, rate=rate, steps=2000)
        assert (right - eye).abs().max() < 1e-9
        assert float((right * D).sum()) == pytest.approx(3) and float((misled * D).sum()) == pytest.approx(2.5)


def test_the_papers_update_rule():
    """On diagonals (x, y) it is: min(x + 2α, 1) and (y + α)/max(x + 2α, 1)."""
    D, start = (torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([2.0, 1.0], [0.3, 0.4]))
    x, y, alpha = 0.3, 0.4, 0.1
    for step in range(1, 30):
        x, y = min(x + 2 * alpha, 1), (y + alpha) / max(x + 2 * alpha, 1)
        A = theory.ascend(D, start, steepest=False, rate=alpha, steps=step)
        assert A.diagonal().tolist() == pytest.approx([x, y])
