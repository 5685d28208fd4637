"""Random networks that are no chains, and what must hold of each. As a script: `python random_graphs.py [count] [seed]`."""

import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isoconv
from isoconv.certify import Certifier
from isoconv.nn import MaxMin

Step = Callable[["RandomGraph", list[Tensor]], Tensor]
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "in place": lambda x: F.relu(x * 0.875, inplace=True),
    "abs": abs,
    "leaky": lambda x: F.leaky_relu(x, 0.25),
    "tanh": torch.tanh,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "scale": lambda x: x * -0.75,
    "shift": lambda x: 0.5 - x,
    "halves": lambda x: torch.cat([F.relu(x.chunk(2, 1)[1]), x.chunk(2, 1)[0]], 1),
    "transposed": lambda x: x.transpose(2, 3),
    "reversed axes": lambda x: x.permute(0, 2, 1, 3).reshape(x.shape),
}


class RandomGraph(nn.Module):
    """A forward of random steps on images (4, 3, 3); each takes some of the values before it."""

    def __init__(self, seed: int, steps: int = 8) -> None:
        super().__init__()
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, draw.choice((1, 3)), padding="same", groups=g) for g in (1, 2))
        self.layers += [MaxMin(), nn.ReLU(inplace=True), nn.Dropout(), nn.Identity()]
        self.offset = nn.Parameter(torch.randn(4, 1, 3))
        self.head = nn.Linear(36, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5
        self.steps = [self._make_step(draw, count) for count in range(1, steps + 1)]

    def _make_step(self, draw: random.Random, count: int) -> Step:
        """Return a function of the network and of the `count` values so far, from which it takes those it was made for."""
        i, j, k = (draw.randrange(max(0, count - 3), count) for _ in range(3))
        name, layer, cut = draw.choice(list(POINTWISE)), draw.randrange(len(self.layers)), draw.randrange(1, 4)

        def run_layer(net: RandomGraph, v: list[Tensor]) -> Tensor:
            inplace = isinstance(net.layers[layer], nn.ReLU)
            return net.layers[layer](v[i] + 0.125 if inplace else v[i])

        def add_in_place(net: RandomGraph, v: list[Tensor]) -> Tensor:
            total = v[i] * 0.5
            total += v[j]
            return total.sub_(v[k])

        def cat_slices(net: RandomGraph, v: list[Tensor]) -> Tensor:
            return torch.cat([v[i][:, :cut], v[j][:, cut:].relu()], 1)

        def cat_steps(net: RandomGraph, v: list[Tensor]) -> Tensor:
            return torch.cat([v[i][..., ::2], torch.tanh(v[i][..., 1:2])], dim=-1)

        def sum_of_pieces(net: RandomGraph, v: list[Tensor]) -> Tensor:
            first, second = v[i].split([2, 2], dim=1)
            return torch.cat([first.abs() + second, first - v[j][:, 2:]], dim=1)

        choices: list[Step] = [
            run_layer,
            run_layer,
            lambda net, v: POINTWISE[name](v[i]),
            lambda net, v: POINTWISE[name](v[j]),
            lambda net, v: v[i] + v[j],
            lambda net, v: 0.5 * v[i] - v[j] / 4,
            lambda net, v: v[i] + net.offset,
            add_in_place,
            cat_slices,
            cat_steps,
            sum_of_pieces,
            lambda net, v: torch.stack(v[k].unbind(1)[::-1], dim=1),
        ]
        return draw.choice(choices)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step in self.steps:
            values.append(step(self, values))
        return self.head(values[-1].flatten(1))


def check_graph(seed: int) -> float:
    """Assert what must hold of a random graph. Return its bound over the largest slope that was seen."""
    shape, generator = (4, 3, 3), torch.Generator().manual_seed(seed)
    model = RandomGraph(seed, steps=3 + seed % 8).eval().requires_grad_(False)
    graph = isoconv.plain(model, shape)
    single, double = (
        Certifier(graph, shape, arithmetic=name, input_range=(-99, 99)) for name in ("float32", "float64")
    )
    model.double()
    x = torch.randn(4, *shape, generator=generator).double()
    expected, found = model(x.clone()), graph.double()(x)
    assert (found - expected).abs().max() <= 1e-12 * (1 + expected.abs().max()), seed
    allowed = [c.error.offset + c.error.slope * x.flatten(1).norm(dim=1) for c in (single, double)]
    assert ((single.logits(x) - double.logits(x)).norm(dim=1) <= sum(allowed)).all(), seed
    slopes = []
    for size in (1e-4, 0.1, 3.0):
        step = size * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        slopes.append(float(((model(x + step) - expected).norm(dim=1) / step.flatten(1).norm(dim=1)).max()))
    for point in x[:2]:
        jacobian = torch.func.jacrev(lambda p: model(p[None].clone())[0])(point).flatten(1)
        slopes.append(float(torch.linalg.matrix_norm(jacobian, 2)))
    bound = double.lipschitz.value
    assert max(slopes) <= bound * (1 + 1e-9) + 1e-9, (seed, slopes, bound)
    return bound / max(*slopes, 1e-9)


if __name__ == "__main__":
    count, start = (int(number) for number in (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    ratios = sorted(check_graph(seed) for seed in range(start, start + count))
    print(f"{count} graphs, no violation; bound over the largest slope seen: median {ratios[count // 2]:.3f}")
