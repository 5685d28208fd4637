"""Appendix A: the Lemma "Steepest descent by matrix 2-norm" and the counter-example before it."""

import pytest
import torch

from isoconv.theory import ascend, steepest_direction


@pytest.mark.parametrize(("m", "n", "rank"), [(1, 1, 1), (3, 3, 3), (2, 5, 2), (5, 3, 2), (4, 4, 1)])
def test_no_direction_of_unit_norm_descends_faster(draw, m, n, rank):
    G = draw.normal(m, rank) @ draw.normal(rank, n)
    D = steepest_direction(G)
    nuclear = float(torch.linalg.svdvals(G).sum())
    assert float(torch.linalg.matrix_norm(D, ord=2)) == pytest.approx(1)
    assert int(torch.linalg.matrix_rank(D, atol=1e-9)) == rank
    assert float((G * D).sum()) == pytest.approx(-nuclear)
    others = draw.normal(4000, m, n)
    near = D + 0.1 * draw.normal(4000, m, n)
    for candidates in (others, near):
        unit = candidates / torch.linalg.matrix_norm(candidates, ord=2)[:, None, None]
        assert (G * unit).sum((1, 2)).min() >= -nuclear - 1e-12
    # Orthogonal matrices are the extreme points of the ball, so they come closest.
    if m == n:
        extreme = torch.stack([draw.orthogonal(n) for _ in range(500)])
        assert (G * extreme).sum((1, 2)).min() >= -nuclear - 1e-12


def test_the_euclidean_direction_is_not_the_steepest(draw):
    G = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    euclidean = -G / 2  # of unit operator norm
    assert float((G * steepest_direction(G)).sum()) == -3 < float((G * euclidean).sum()) == -2.5


def test_batches_and_zeros(draw):
    batch = draw.normal(3, 2, 4)
    batch[1] = 0
    D = steepest_direction(batch)
    assert torch.equal(D[1], torch.zeros(2, 4, dtype=torch.float64))
    assert torch.allclose(D[2], steepest_direction(batch[2]))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_spectral_normalisation_misses_the_solution(draw, rate):
    """Tr(AD) with D = diag(2, 1): Euclidean steps end at diag(1, ½), steepest ones at the identity, from any start."""
    D = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    paper = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64))
    eye = torch.eye(2, dtype=torch.float64)
    starts = [torch.zeros(2, 2, dtype=torch.float64), eye / 2, eye, -eye, torch.diag(D.diagonal().flip(0)) / 4]
    for start in (*starts, *(draw.orthogonal(2) for _ in range(3)), *(draw.normal(2, 2) / 3 for _ in range(3))):
        misled = ascend(D, start, steepest=False, rate=rate, steps=2000)
        assert (misled - paper).abs().max() < 1e-9
        right = ascend(D, start, steepest=True, rate=rate, steps=2000)
        assert (right - eye).abs().max() < 1e-9
        assert float((right * D).sum()) == pytest.approx(3) and float((misled * D).sum()) == pytest.approx(2.5)


def test_the_papers_update_rule():
    """On diagonals (x, y) it is: min(x + 2α, 1) and (y + α)/max(x + 2α, 1)."""
    D = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    x, y, alpha = 0.3, 0.4, 0.1
    for step in range(1, 30):
        x, y = min(x + 2 * alpha, 1), (y + alpha) / max(x + 2 * alpha, 1)
        start = torch.diag(torch.tensor([0.3, 0.4], dtype=torch.float64))
        A = ascend(D, start, steepest=False, rate=alpha, steps=step)
        assert A.diagonal().tolist() == pytest.approx([x, y])
