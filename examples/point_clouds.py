"""How far apart are two point clouds? A Wasserstein critic that cannot cheat, beside the exact answer, with a plot.

    python examples/point_clouds.py [--steps 600] [--points 256] [--out point_clouds.png]

The Wasserstein distance is the largest difference E f(a) − E f(b) that a 1-Lipschitz function f can make. A network of
orthogonal layers is 1-Lipschitz by construction, and divided by its proved Lipschitz bound its difference can never
exceed the exact distance of the two clouds, which an optimal matching gives. Needs SciPy and matplotlib.
"""

import argparse
import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from isoconv.certify import lipschitz_bound
from isoconv.nn import MaxMin, OrthogonalLinear
from isoconv.optim import SteepestDescent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--points", type=int, default=256, help="in each cloud")
    parser.add_argument("--out", default="point_clouds.png", help="the plot")
    options = parser.parse_args()

    torch.manual_seed(0)
    ring, blobs = clouds(options.points)
    critic = nn.Sequential(
        OrthogonalLinear(2, 64),
        MaxMin(),
        OrthogonalLinear(64, 64),
        MaxMin(),
        OrthogonalLinear(64, 64),
        MaxMin(),
        OrthogonalLinear(64, 1),
    )
    optimiser = SteepestDescent(critic.parameters(), lr=0.02)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / options.steps)
    for step in range(options.steps):
        difference = critic(ring).mean() - critic(blobs).mean()
        optimiser.zero_grad()
        (-difference).backward()
        optimiser.step()
        falling.step()
        if step % 100 == 0:
            print(f"step {step}: difference {difference.item():.4f}")

    critic.eval().double()
    bound = lipschitz_bound(critic, (2,)).value
    with torch.no_grad():
        estimate = float(critic(ring.double()).mean() - critic(blobs.double()).mean()) / bound
    costs = torch.cdist(ring.double(), blobs.double())
    rows, columns = linear_sum_assignment(costs)
    exact = float(costs[rows, columns].mean())
    print(f"Lipschitz bound of the critic: {bound:.9f}")
    print(f"estimate, never too large: {estimate:.4f}")
    print(f"exact, by optimal matching: {exact:.4f}")
    print(f"the critic finds {100 * estimate / exact:.1f} % of it")
    draw(critic, ring, blobs, columns, options.out)
    print(f"The plot is in {options.out}")


def clouds(points: int) -> tuple[Tensor, Tensor]:
    """A noisy ring, and two blobs, one within it and one outside."""
    angles = 2 * math.pi * torch.rand(points)
    ring = torch.stack([angles.cos(), angles.sin()], dim=1) + 0.08 * torch.randn(points, 2)
    centres = torch.tensor([[0.3, 0.2], [2.0, -0.6]])[torch.arange(points) % 2]
    return ring, centres + 0.2 * torch.randn(points, 2)


def draw(critic: nn.Module, first: Tensor, second: Tensor, partner: list[int], path: str) -> None:
    """The critic's level lines, which the optimal matching crosses at right angles."""
    import matplotlib

    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot

    axis = torch.linspace(-2.2, 2.6, 200, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    with torch.no_grad():
        heights = critic(grid.reshape(-1, 2)).reshape(200, 200)
    figure, axes = pyplot.subplots(figsize=(6, 6))
    axes.contourf(axis.numpy(), axis.numpy(), heights.numpy(), levels=30, cmap="viridis", alpha=0.6)
    for start, end in zip(first.tolist(), second[partner].tolist(), strict=True):
        axes.plot([start[0], end[0]], [start[1], end[1]], color="white", linewidth=0.4, alpha=0.7)
    axes.scatter(*first.T.tolist(), s=8, color="black", label="a")
    axes.scatter(*second.T.tolist(), s=8, color="crimson", label="b")
    axes.set_aspect("equal")
    axes.set_title("the critic (colours) and an optimal matching (lines)")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
