"""Random networks that are no chains, of all kinds, and what must hold of each; `tools/random_graphs.py` measures many."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isoconv
import isoconv.nn as inn
from certify.certificates import write_all
from check.certificate_maker import check
from isoconv.attacks import rounding_search
from isoconv.certify import Certifier

Step = Callable[["RandomGraph", list[Tensor]], Tensor]
SHAPE = (4, 3, 3)
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "in place": lambda x: F.relu(x * 0.875, inplace=True),
    "abs": abs,
    "leaky": lambda x: F.leaky_relu(x, 0.25),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "scale": lambda x: x * -0.75,
    "shift": lambda x: 0.5 - x,
    "halves": lambda x: torch.cat([F.relu(x.chunk(2, 1)[1]), x.chunk(2, 1)[0]], 1),
    "transposed": lambda x: x.transpose(2, 3),
    "reversed axes": lambda x: x.permute(0, 2, 1, 3).reshape(x.shape),
    "silu": lambda x: F.silu(x + 0.25, inplace=True),
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 16.0),
    "elu": lambda x: F.elu(x, -1.5),
    "celu": lambda x: F.celu(x, 0.25),
    "selu": torch.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "log of sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "softmax": lambda x: 3 * x.softmax(1),
    "reflected": lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1),
    "padded": lambda x: F.avg_pool2d(F.pad(x, (1, 1, 1, 1), value=0.5), 3, 1, divisor_override=5),
    "more channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 0))[:, :4],
    "narrow": lambda x: torch.stack([x.narrow(1, 1, 2), x[:, ::2]], 1).flatten(1, 2),
    "mean": lambda x: F.interpolate(x.mean((2, 3), keepdim=True), size=(3, 3), mode="bilinear", align_corners=True),
    "adaptive": lambda x: F.interpolate(F.adaptive_avg_pool2d(x, (2, 1)), scale_factor=(1.5, 3), mode="bilinear"),
}


USUAL = ["relu", "in place", "abs", "tanh", "scale", "shift", "halves", "transposed", "reversed axes", "narrow"]


def make_layer(draw: random.Random, usual: bool = False) -> nn.Module:
    """Return modules that map images of `SHAPE` to such."""
    stride, flag = draw.choice((1, 2, 3)), draw.random() < 0.5
    groups, taps = draw.choice((1, 2, 4)), draw.choice((1, 2, 3))
    back = draw.choice((nn.AdaptiveAvgPool2d(3), nn.Upsample(size=3, mode="bilinear", align_corners=flag)))
    mode = draw.choice(("zeros", "circular") if usual else ("zeros", "circular", "reflect", "replicate"))
    channels = draw.choice((2, 4))
    choices: list[Callable[[], nn.Module]] = [
        lambda: nn.Conv2d(4, 4, taps, padding="same", groups=groups, padding_mode=mode),
        lambda: nn.Conv2d(4, 4, 3, padding=2, dilation=2, padding_mode=mode if mode != "circular" else "zeros"),
        lambda: nn.Sequential(nn.Conv2d(4, 4, taps, stride, 1, groups=groups), back),
        lambda: nn.Sequential(nn.CircularPad2d((1, 2, 0, 1)), nn.Conv2d(4, 4, (2, 3)), back),
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 4, taps, stride, taps // 2, int(stride > 1), groups, dilation=1 + flag), back
        ),
        lambda: nn.Sequential(nn.AvgPool2d(2, stride, 1, ceil_mode=True, count_include_pad=flag), back),
        lambda: nn.Sequential(nn.MaxPool2d(2, stride, 1, ceil_mode=flag), back),
        lambda: nn.Sequential(inn.L2NormPool2d((2, 1), stride=(2, stride)), back),
        lambda: inn.ScaledAvgPool2d(3, 1, 1),
        lambda: nn.Sequential(
            nn.ReplicationPad2d((0, 1, 1, 0)), inn.ScaledAvgPool2d(2), nn.UpsamplingNearest2d(scale_factor=2), back
        ),
        lambda: nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)), nn.PixelUnshuffle(2), nn.Conv2d(16, 16, 1), nn.PixelShuffle(2), back
        ),
        lambda: inn.Residual(nn.Conv2d(4, 4, 3, padding=1), None if flag else 0.375),
        lambda: nn.BatchNorm2d(4, affine=flag),
        lambda: inn.BatchCentering(4, bias=flag),
        lambda: inn.LayerCentering(draw.choice((None, 1, (2, 3), -1))),
        lambda: inn.Householder(4),
        lambda: inn.Normalize([0.5, -0.25, 0, 1], [0.75, 1, 2, 0.625]),
        lambda: inn.GroupSort(draw.choice((2, 4, None))),
        lambda: inn.MaxMin(1),
        lambda: nn.Sequential(nn.Flatten(), inn.MaxMin(-1), nn.Unflatten(1, (4, 3, 3))),
        lambda: inn.HalfAbs(),
        lambda: inn.ChannelShift(0.25),
        lambda: inn.PositionBias(3, 3),
        lambda: nn.Sequential(
            *(nn.Flatten(2), nn.BatchNorm1d(4), nn.Conv1d(4, channels, 3, padding=1), nn.Linear(9, 36 // channels)),
            *(nn.Unflatten(2, (-1, 3)), nn.Flatten(1, 2), nn.Unflatten(1, (4, 3))),
        ),
        lambda: nn.ReLU(inplace=True),
        lambda: draw.choice((nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.Identity())),
        lambda: inn.BCOPConv2d(4, 4, taps),
        lambda: draw.choice((nn.SiLU, nn.ELU, nn.Hardswish, nn.SELU))(inplace=True),
    ]  # fmt: skip
    return draw.choice(choices[:1] if usual else choices)()


class RandomGraph(nn.Module):
    """A forward of random steps on images; each takes some of the values before it."""

    def __init__(self, seed: int, steps: int = 8, usual: bool = False) -> None:
        """`usual`: of the most usual kinds alone."""
        super().__init__()
        self.names = USUAL if usual else list(POINTWISE)
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(make_layer(draw, usual) for _ in range(min(3, (steps + 1) // 2)))
        self.offset = nn.Parameter(torch.randn(4, 1, 3))
        self.head = inn.NormalisedLinear(36, 3) if draw.random() < 0.1 else nn.Linear(36, 3)
        for module in self.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_var = 0.5 + torch.rand(4, generator=generator)
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, inn.BatchCentering)):
                module.running_mean = torch.randn(4, generator=generator)
            for parameter in module._parameters.values():
                if parameter is not None and not isinstance(module, inn.BCOPConv2d):
                    count = parameter[0].numel() if parameter.dim() else 1
                    parameter.data = torch.randn(parameter.shape, generator=generator) / count**0.5
        self.steps = [self._make_step(draw, count) for count in range(1, steps + 1)]

    def _make_step(self, draw: random.Random, count: int) -> Step:
        """Return a function of the network and of the `count` values so far, from which it takes those it was made for."""
        i, j, k = (draw.randrange(max(0, count - 3), count) for _ in range(3))
        name, layer, cut = draw.choice(self.names), draw.randrange(len(self.layers)), draw.randrange(1, 4)

        def run_layer(net: RandomGraph, v: list[Tensor]) -> Tensor:
            inplace = getattr(net.layers[layer], "inplace", False)
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


def check_graph(seed: int, kinds: Counter[str] | None = None, folder: Path | None = None) -> float:
    """Assert what must hold of a random graph. Return its bound over the largest slope that was seen.

    What is bounded is the traced network; what is run is the model itself, in float64. The computed logits are those of a
    float32 network for even seeds. `kinds` counts the networks that have a kind; the checker is run in `folder`.
    """
    generator = torch.Generator().manual_seed(seed)
    model = RandomGraph(seed, steps=2 + seed % 6).eval().requires_grad_(False)
    certifier = Certifier(model, SHAPE, arithmetic="float64" if seed % 2 else "float32", input_range=(-999, 999))
    if folder is not None:
        outcome = check(*write_all(certifier, torch.rand(2, *SHAPE, generator=generator).double(), folder))
        assert outcome.code == 0, outcome
    model = isoconv.plain(model).double().requires_grad_(False)  # not traced: its forward, with the same weights
    x = torch.randn(3, *SHAPE, generator=generator).mul(torch.tensor([1.0, 1.0, 100.0])[:, None, None, None]).double()
    expected, found = model(x.clone()), certifier.logits(x)
    allowed = certifier.error.offset + certifier.error.slope * x.flatten(1).norm(dim=1)
    allowed += 1e-12 * (1 + expected.norm(dim=1))  # for the model in float64
    assert ((found - expected).norm(dim=1) <= allowed).all(), (seed, found, expected, allowed)
    slopes = []
    for size in (1e-4, 0.1, 3.0):
        step = size * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        slopes.append(float(((model(x + step) - expected).norm(dim=1) / step.flatten(1).norm(dim=1)).max()))
    for point in x[::2]:
        jacobian = torch.func.jacrev(lambda p: model(p[None].clone())[0])(point).flatten(1)
        # torch's gradient of Hardsigmoid has 1/6 in float32.
        slopes.append(float(torch.linalg.matrix_norm(jacobian, 2)) * (1 - 1e-7))
    bound = certifier.lipschitz.value
    assert max(slopes) <= bound * (1 + 1e-9) + 1e-9, (seed, slopes, bound)
    if kinds is not None:
        kinds.update({node.kind for node in certifier.nodes})
    return bound / max(*slopes, 1e-9)


def attack_graph(seed: int) -> Counter[str]:
    """Assert that no float within the certified radii of some images has another prediction. Return what was attacked."""
    images = torch.rand(16, *SHAPE, generator=torch.Generator().manual_seed(seed)).double()
    certifier = Certifier(RandomGraph(seed, steps=seed % 5).eval().requires_grad_(False), SHAPE)
    certified = certifier(images)
    result = rounding_search(
        certifier.network, images, certified.prediction, certified.radius, steps=20, rounds=3, candidates=16
    )
    assert not result.success.any(), seed
    return Counter(radii=int((certified.radius > 0).sum()))
