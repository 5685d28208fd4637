"""Critics for vectors: 1-Lipschitz, with gradients that are their own, and a soft minimum that hardens."""

import pytest
import torch

from isoconv.wasserstein.vector_critic import AnchorCritics, FCCritic, NearestAnchor


def anchored(sign=1, heat=0.0, steps=4):
    generator = torch.Generator().manual_seed(0)
    critic = NearestAnchor(torch.randn(7, 3, generator=generator, dtype=torch.float64), sign, heat, steps)
    with torch.no_grad():
        critic.raw_offsets.copy_(torch.randn(7, generator=generator, dtype=torch.float64))
    return critic


def points(n=50):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_the_least_height_over_the_anchors(sign):
    critic = anchored(sign).eval()
    x = torch.cat([points(), critic.anchors.detach() + 1e-9])  # next to an anchor a distance has all its digits too
    heights = (x[:, None] - critic.anchors).square().sum(dim=2).sqrt() + critic.offsets
    torch.testing.assert_close(critic(x), sign * heights.min(dim=1, keepdim=True).values, rtol=0, atol=1e-14)
    torch.testing.assert_close(anchored(sign).train()(x), critic(x))


@pytest.mark.parametrize("heat", [0.0, 0.5])
def test_no_slope_exceeds_one(heat):
    x = points(300).requires_grad_(True)
    (slopes,) = torch.autograd.grad(anchored(heat=heat)(x).sum(), x)
    lengths = torch.linalg.vector_norm(slopes, dim=1)
    assert float(lengths.max()) <= 1 + 1e-9
    assert (float(lengths.min()) >= 1 - 1e-6) == (heat == 0)  # where one anchor decides, the slope is 1 everywhere


def test_the_soft_minimums_gradients_are_its_own():
    critic = anchored(heat=0.7, steps=10**9)

    def soft(x, anchors, offsets):
        heights = torch.cdist(x, anchors, compute_mode="donot_use_mm_for_euclid_dist") + offsets / 8
        return -0.7 * torch.logsumexp(-heights / 0.7, dim=1, keepdim=True)

    x = points(20).requires_grad_(True)
    inputs = (x, critic.anchors, critic.raw_offsets)
    torch.testing.assert_close(critic(x), soft(*inputs), rtol=1e-6, atol=1e-8)
    weights = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    mine = torch.autograd.grad((critic(x) * weights).sum(), inputs)
    theirs = torch.autograd.grad((soft(*inputs) * weights).sum(), inputs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_it_cools_with_every_training_pass_and_never_in_evaluation():
    critic, x = anchored(heat=0.8, steps=4), points(5)
    hard = anchored().eval()(x).detach()
    gaps = [float((critic(x).detach() - hard).abs().max()) for _ in range(6)]
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3] and gaps[3] < 1e-3 < gaps[2]
    assert float(critic.temperature) == pytest.approx(0.8e-3)
    fresh = anchored(heat=0.8)
    torch.testing.assert_close(fresh.eval()(x).detach(), hard)
    assert float(fresh.temperature) == pytest.approx(0.8)


def test_two_columns_side_by_side():
    x, both = points(), AnchorCritics(points(4), points(6)[2:]).eval()
    columns = [both.column(0), both.column(1)]
    assert [critic.sign for critic in columns] == [1, -1]
    torch.testing.assert_close(both(x), torch.cat([critic(x) for critic in columns], dim=1))


@pytest.mark.parametrize("activation", ["groupsort", "maxmin", "relu"])
def test_fully_connected_critics_are_1_lipschitz_and_scaled_ones_as_their_scale_says(activation):
    x, y = torch.randn(200, 5), torch.randn(200, 5)
    for scale in (1.0, 4.0):
        critic = FCCritic(5, 32, 2, activation, scale=scale).eval()
        with torch.no_grad():
            steepest = ((critic(x) - critic(y)).abs()[:, 0] / torch.linalg.vector_norm(x - y, dim=1)).max()
        assert 0.1 * scale < float(steepest) <= scale * (1 + 1e-5)
    assert FCCritic(5, depth=0)(x).shape == (200, 1) and len(FCCritic(5, depth=0)) == 2
