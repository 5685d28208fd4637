"""`isoconv.plain`: the same function, made of ordinary torch modules."""

import copy

import pytest
import torch
from torch import Tensor, nn

import isoconv
from helpers import LAYERS, SHAPES_1D, SHAPES_2D, convolution, made, randomised
from isoconv.nn import (
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    GroupSort,
    InvertibleDownsampling,
    InvertibleUpsampling,
    MaxMin,
    OrthogonalLinear,
    RKOConv2d,
)

# torch's own circular padding wraps around the image once, so its padding may be as wide as the image and no wider.
WRAPPED_2D = [row for row in SHAPES_2D if row[2] // row[3] // 2 <= min(row[4:]) // row[3]]
WRAPPED_1D = [row for row in SHAPES_1D if row[2] // row[3] // 2 <= row[4] // row[3]]


def assert_ordinary(model: nn.Module, *own: type[nn.Module]) -> None:
    for module in model.modules():
        ordinary = type(module).__module__.startswith("torch.nn.")
        assert ordinary or type(module) in (MaxMin, GroupSort, *own), type(module)


def assert_same_function(model: nn.Module, x: Tensor, tolerance: float = 1e-5) -> nn.Module:
    """Also: the model is unchanged, nothing is shared with it, and nothing but kernels and biases is left."""
    model.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    plain = isoconv.plain(model)
    with torch.no_grad():
        assert (plain(x) - model(x)).abs().max() <= tolerance
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        expected = model(x)
        for p in plain.parameters():
            p.zero_()
        assert torch.equal(model(x), expected)
    return isoconv.plain(model)


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
@pytest.mark.parametrize("row", [*WRAPPED_2D[::2], *WRAPPED_1D[::3]], ids=str)
def test_convolutions(row, padding_mode):
    c_in, _, _, _, *size = row
    if len(size) == 1:
        layers = [BCOPConv1d(*row[:4], padding_mode=padding_mode)]
    else:
        kinds = ("bcop", "rko", "ossn", "svcm", "rkl2ne", "standard")
        layers = [convolution(kind, *row, padding_mode=padding_mode) for kind in kinds]
    for layer in layers:
        assert_ordinary(assert_same_function(layer, torch.randn(2, c_in, *size)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_with_parameters_from_the_middle_of_training(name, bias, dtype, tolerance):
    layer, x = made(name, bias=bias, dtype=dtype)
    plain = assert_same_function(randomised(layer, gain=1.0), x, tolerance)
    assert_ordinary(plain)
    assert type(plain(x)) is Tensor
    assert [p.dtype for p in plain.parameters()] == [dtype] * (1 + bias)


@pytest.mark.parametrize(
    ("k", "stride", "padding_mode"),
    [(1, 1, "circular"), (2, 1, "circular"), (3, 1, "zeros"), (4, 2, "circular"), (4, 2, "zeros"), (6, 3, "circular")],
)
def test_transposed(k, stride, padding_mode):
    layer = BCOPConvTranspose2d(5, 2, k, stride, padding_mode=padding_mode)
    assert_ordinary(assert_same_function(layer, torch.randn(2, 5, 4, 3)))


def test_a_single_strided_convolution_and_its_size():
    """Nothing of the downsampling is left, and as many numbers as the ordinary layer has."""
    plain = isoconv.plain(BCOPConv2d(3, 16, 4, 2))
    (conv,) = [module for module in plain.modules() if isinstance(module, nn.Conv2d)]
    assert conv.weight.shape == (16, 3, 4, 4)
    assert conv.stride == (2, 2)
    assert not any(isinstance(module, nn.PixelUnshuffle) for module in plain.modules())
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in nn.Conv2d(3, 16, 4, 2).parameters())


def test_the_other_modules():
    network = nn.Sequential(
        InvertibleDownsampling(2),
        BCOPConv2d(8, 8, 3),
        GroupSort(4),
        nn.Dropout(0.5),
        InvertibleUpsampling(2),
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        OrthogonalLinear(64, 4),
        MaxMin(),
        nn.Identity(),
    )
    assert_ordinary(assert_same_function(network, torch.randn(2, 2, 6, 6)))


class Residual(nn.Module):
    """A user's own module, with children, a list of them, a parameter and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first = BCOPConv2d(4, 4, 3)
        self.more = nn.ModuleList([RKOConv2d(4, 4, 3), nn.ModuleDict({"last": BCOPConv2d(4, 4, 2)})])
        self.mixing = nn.Parameter(torch.tensor(0.3))
        self.activation = MaxMin()
        self.name = "residual"

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.first(x))
        y = self.more[1]["last"](self.more[0](y))
        return self.mixing * x + (1 - self.mixing) * y


def test_a_users_own_module():
    model = nn.Sequential(Residual(), nn.Flatten(), OrthogonalLinear(4 * 25, 6))
    plain = assert_same_function(model, torch.randn(2, 4, 5, 5))
    assert_ordinary(plain, Residual)
    assert plain[0].name == "residual"
    assert plain[0].mixing is not model[0].mixing


def test_shared_submodules_stay_shared():
    shared, own = BCOPConv2d(4, 4, 3), Residual()
    model = nn.Sequential(shared, own, shared, nn.Sequential(shared, own))
    plain = assert_same_function(model, torch.randn(1, 4, 5, 5))
    assert plain[0] is plain[2] is plain[3][0]
    assert plain[1] is plain[3][1]


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_the_training_mode_is_kept_and_the_weights_are_those_of_evaluation(mode):
    layer, x = made("ossn")
    with torch.no_grad():
        layer.kernel.mul_(10)
    model = nn.Sequential(layer, nn.Dropout(0.5)).train(mode)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plain = isoconv.plain(model)
    for kept in (model, plain, isoconv.plain(model[0])):
        assert all(module.training == mode for module in kept.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.allclose(plain.eval()(x), model.eval()(x), atol=1e-5)


def test_a_copy_that_can_be_loaded_and_trained():
    plain = isoconv.plain(nn.Sequential(BCOPConv2d(2, 4, 3), MaxMin()))
    x = torch.randn(1, 2, 5, 5)
    again = copy.deepcopy(plain)
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again(x), plain(x))
    assert all(p.requires_grad and p.is_leaf for p in plain.parameters())


def test_plain_draws_no_random_numbers() -> None:
    model = nn.Sequential(BCOPConv2d(1, 4, 3), nn.Flatten(), OrthogonalLinear(64, 3))
    before = torch.get_rng_state()
    isoconv.plain(model)
    assert torch.equal(before, torch.get_rng_state())
