"""The bound against the truth: the norm of the dense Jacobian, module by module and composed."""

import pytest
import torch
from torch import nn

import isoconv
from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.models import CONVOLUTIONS, Small


def jacobian_norm(model: nn.Module, shape: tuple[int, ...], at: torch.Tensor | None = None) -> float:
    """The norm of the Jacobian of a linear (or piecewise linear) model at a point, in float64."""
    model = model.double().eval()
    point = torch.zeros(shape, dtype=torch.float64) if at is None else at
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], point)
    assert isinstance(jacobian, torch.Tensor)
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, point.numel()), 2))


def conv(*arguments: object, **keywords: object) -> nn.Module:
    torch.manual_seed(0)
    kind = nn.Conv1d if keywords.pop("one", False) else nn.Conv2d
    return kind(*arguments, bias=False, **keywords)  # type: ignore[arg-type]


# module, input shape, how far above the truth the bound may be
LINEAR: list[tuple[nn.Module, tuple[int, ...], float]] = [
    (conv(3, 4, 3, padding=1, padding_mode="circular"), (3, 8, 8), 1e-3),
    (conv(4, 3, 3, padding=1, padding_mode="circular"), (4, 7, 5), 1e-3),
    (conv(3, 4, 4, stride=2, padding=1, padding_mode="circular"), (3, 8, 8), 1e-3),
    (conv(4, 4, 3, padding=1, padding_mode="circular", groups=2), (4, 6, 6), 1e-3),
    (conv(6, 3, 3, padding=1, padding_mode="circular", groups=3), (6, 5, 4), 1e-3),
    (conv(2, 2, 3, padding=2, padding_mode="circular", dilation=2), (2, 9, 9), 1e-3),
    (conv(2, 3, 5, padding=2, padding_mode="circular"), (2, 4, 4), 1e-3),
    (conv(2, 3, 3, padding=4, padding_mode="circular"), (2, 5, 5), 1.0),
    (conv(2, 3, 3, stride=2, padding=1, padding_mode="circular"), (2, 7, 7), 0.7),
    (conv(3, 4, 3, padding=1), (3, 8, 8), 0.1),
    (conv(3, 4, 3), (3, 8, 8), 0.2),
    (conv(3, 4, 3, stride=2, padding=1), (3, 9, 8), 0.3),
    (conv(3, 4, 3, padding="same"), (3, 6, 6), 0.1),
    (conv(3, 4, 2, padding="same", dilation=2), (3, 6, 6), 0.2),
    (conv(2, 3, 3, padding=1, padding_mode="reflect"), (2, 6, 6), 1.5),
    (conv(2, 3, 3, padding=1, padding_mode="replicate"), (2, 6, 6), 1.5),
    (conv(3, 4, 3, padding=1, padding_mode="circular", one=True), (3, 9), 1e-3),
    (conv(3, 4, 3, stride=3, padding=2, one=True), (3, 10), 0.5),
    (nn.Sequential(nn.CircularPad2d((1, 0, 1, 0)), conv(3, 4, 2)), (3, 6, 5), 1e-3),
    (nn.Sequential(nn.CircularPad2d((2, 0, 2, 0)), conv(3, 4, 4, stride=2)), (3, 6, 8), 1e-3),
    (nn.Sequential(nn.CircularPad2d((1, 0, 0, 1)), conv(3, 4, 2)), (3, 6, 5), 1e-3),
    (nn.Sequential(nn.CircularPad2d(2), conv(3, 4, 3)), (3, 4, 4), 1.0),
    (nn.Sequential(nn.CircularPad1d((0, 1)), conv(3, 4, 2, one=True)), (3, 6), 1e-3),
    (nn.Sequential(nn.CircularPad2d(1), nn.Identity(), conv(2, 2, 3)), (2, 4, 4), 2.0),
    (nn.Linear(7, 5), (7,), 1e-6),
    (nn.ReflectionPad2d((2, 1, 1, 0)), (2, 4, 5), 1e-12),
    (nn.ReplicationPad2d(2), (1, 3, 3), 1e-12),
    (nn.ZeroPad2d(1), (1, 3, 3), 1e-12),
    (nn.CircularPad2d((3, 3, 0, 0)), (1, 3, 3), 1e-12),
    (nn.Upsample(scale_factor=2), (2, 3, 3), 1e-12),
    (nn.AvgPool2d(2), (2, 6, 6), 1e-6),
    (nn.AvgPool2d(3, stride=1, padding=1), (1, 6, 6), 0.2),
    (nn.AvgPool2d(3, stride=2), (1, 9, 9), 0.3),
    (nn.AvgPool1d(2), (2, 6), 1e-6),
    (nn.Flatten(), (2, 3, 3), 1e-12),
    (nn.PixelUnshuffle(2), (1, 4, 4), 1e-12),
    (nn.PixelShuffle(2), (4, 3, 3), 1e-12),
]


@pytest.mark.parametrize(("module", "shape", "slack"), LINEAR, ids=lambda value: str(value)[:60])
def test_linear_modules(module: nn.Module, shape: tuple[int, ...], slack: float) -> None:
    truth = jacobian_norm(module, shape)
    found = lipschitz_bound(module, shape).value
    assert truth * (1 - 1e-13) <= found <= truth * (1 + slack)


def test_batch_normalisation_in_evaluation() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([0.5, 2.0, 1e-4]))  # type: ignore[union-attr]
        norm.weight.copy_(torch.tensor([1.0, -3.0, 0.01]))
    truth = jacobian_norm(norm, (3, 2, 2))
    assert truth * (1 - 1e-13) <= lipschitz_bound(norm, (3, 2, 2)).value <= truth * (1 + 1e-6)


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, 1)]
)
def test_max_pooling(pool: nn.Module) -> None:
    """At a point with a single bright pixel all windows that see it choose it: the Jacobian's norm is the bound there."""
    found = lipschitz_bound(pool, (1, 7, 7)).value
    best = 0.0
    for place in range(49):
        image = torch.zeros(49, dtype=torch.float64)
        image[place] = 1
        best = max(best, jacobian_norm(pool, (1, 7, 7), image.reshape(1, 7, 7)))
    assert best * (1 - 1e-13) <= found <= best * (1 + 1e-12)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_networks(conv: str) -> None:
    torch.manual_seed(0)
    model = Small((1, 8, 8), conv=conv)
    model(torch.rand(2, 1, 8, 8))
    found = lipschitz_bound(model, (1, 8, 8))
    per_layer = 1.0
    for layer in found.layers:
        per_layer *= layer.bound
    assert found.value == pytest.approx(per_layer, rel=1e-12)
    assert found.value >= per_layer * (1 - 1e-15)
    deployed = isoconv.plain(model)
    steepest = max(jacobian_norm(deployed, (1, 8, 8), torch.rand(1, 8, 8, dtype=torch.float64)) for _ in range(5))
    assert found.value >= steepest
    if conv.startswith("bcop"):
        assert 1 <= found.value <= 1 + 1e-4


def test_what_changes_the_network_changes_the_bound() -> None:
    torch.manual_seed(0)
    model = isoconv.plain(Small((3, 16, 16)))
    before = lipschitz_bound(model, (3, 16, 16)).value
    model[0][1].weight.data.mul_(1.001)  # type: ignore[index,union-attr]
    assert lipschitz_bound(model, (3, 16, 16)).value >= before * 1.0009
    longer = nn.Sequential(nn.Upsample(scale_factor=2), isoconv.plain(Small((3, 32, 32))))
    assert lipschitz_bound(longer, (3, 16, 16)).value >= 1.999


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), Doubled()), (4,), "Got Doubled at 1"),
        (Doubled(), (4,), "Got Doubled at model"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 4, 4), "mode 'nearest'"),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 8, 8), "divides by the same number everywhere"),
        (nn.AvgPool2d(3, 2, ceil_mode=True), (1, 8, 8), "divides by the same number everywhere"),
        (nn.LayerNorm(4), (4,), "Got LayerNorm"),
        (nn.Softmax(dim=1), (4,), "Got Softmax"),
        (nn.BatchNorm1d(4, track_running_stats=False), (4,), "running statistics"),
        (nn.Linear(4, 4), (5,), "Expected an input that Linear at model can take"),
        (nn.Linear(4, 4), (), "Expected input_shape without the batch"),
    ],
    ids=str,
)
def test_refused(model: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(IsoconvError, match=message):
        lipschitz_bound(model, shape)


def test_nan_weights_are_refused() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.data[0, 0] = float("nan")
    with pytest.raises(IsoconvError, match="Expected finite weights"):
        lipschitz_bound(layer, (3,))


def test_padding_and_convolution_have_an_entry_each() -> None:
    layers = lipschitz_bound(nn.Sequential(nn.CircularPad2d((1, 0, 1, 0)), conv(3, 4, 2)), (3, 6, 5)).layers
    assert [(layer.name, layer.kind) for layer in layers] == [("0", "CircularPad2d"), ("1", "Conv2d")]
    assert layers[0].bound == 1 != layers[1].bound
