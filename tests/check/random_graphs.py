"""Random networks that are no chains, for the tests of the checker."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from check.certificate_maker import Abs, Add, Concat, Graph, Permute, Reshape, Scale, Slice, Translate
from isoconv.nn import MaxMin


def draw_graph(seed: int, nodes: int = 12) -> tuple[Graph, tuple[int, ...]]:
    """A graph with sums, concatenations, slices and modules that are used twice; its input has three axes."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    shape = (draw.choice((2, 4)), draw.randint(2, 4), draw.randint(2, 4))
    known: list[tuple[str, nn.Module, Sequence[str]]] = []
    values: dict[str, Tensor] = {"input": torch.rand(2, *shape)}

    def add(module: nn.Module, *inputs: str) -> str:
        name = f"{len(known)} {type(module).__name__}"
        values[name] = module(*(values[before] for before in inputs)).detach()
        known.append((name, module, inputs))
        return name

    while len(known) < nodes:
        recent = draw.choice(list(values)[-4:])
        x = values[recent]
        alike = [name for name, value in values.items() if value.shape == x.shape]
        axis = draw.randrange(x.dim() - 1)
        size = x.shape[axis + 1]
        cut = draw.randint(1, max(1, size - 1))
        match draw.randrange(11):
            case 0:
                add(Add(), *(draw.choice(alike) for _ in range(draw.choice((2, 2, 3)))))
            case 1 if x[0].numel() <= 100:
                add(Concat(axis), *(draw.choice(alike) for _ in range(2)))
            case 2 if size > 1:
                add(Slice(axis, *sorted(draw.sample(range(size + 1), 2)), draw.choice((1, 2))), recent)
            case 3 if size > 1:  # in two, and together again
                parts = (add(Slice(axis, 0, cut), recent), add(Slice(axis, cut, size), recent))
                add(Concat(axis), add(draw_function(draw, values[parts[0]]), parts[0]), parts[1])
            case 4:
                add(Reshape(*draw.choice((x.shape[1:], x.shape[:0:-1], (x[0].numel(),)))), recent)
            case 5:
                add(Permute(*draw.sample(range(x.dim() - 1), x.dim() - 1)), recent)
            case 6:
                bias = torch.randn(x.shape[1:] if draw.random() < 0.5 else (x.shape[1], *(1,) * (x.dim() - 2)))
                add(Translate(bias), recent)
            case 7 if known:  # once more
                name, module, _ = draw.choice(known)
                inputs = next(inputs for other, _, inputs in known if other == name)
                fits = [v for v, value in values.items() if value.shape == values[inputs[0]].shape]
                add(module, *(draw.choice(fits) if len(inputs) == 1 else before for before in inputs))
            case _:
                add(draw_function(draw, x), recent)
    taken = {before for _, _, inputs in known for before in inputs}
    flat = [add(nn.Flatten(), name) for name in list(values) if name not in taken]
    last = add(Concat(0), *flat)
    add(nn.Linear(values[last].shape[1], 3), last)
    return Graph(*known), shape


def draw_function(draw: random.Random, x: Tensor) -> nn.Module:
    choices = [Abs(), nn.ReLU(), Scale(draw.choice((-1.0, 0.5, 1.25))), nn.Linear(x.shape[-1], x.shape[-1])]
    choices += [MaxMin()] * (x.shape[1] % 2 == 0) + [nn.Tanh()]
    if x.dim() == 4:
        choices += [nn.Conv2d(x.shape[1], x.shape[1], draw.choice((1, 3)), padding="same", padding_mode="circular")] * 2
        choices += [nn.Conv2d(x.shape[1], x.shape[1], 3, padding=1)]
    return draw.choice(choices)
