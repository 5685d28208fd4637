"""`isoconv.plain`: the same function, made of ordinary torch modules."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import isoconv
from helpers import LAYERS, made, randomised
from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.nn import BCOPConv2d, GroupSort, MaxMin, OrthogonalLinear, RKOConv2d, Scale


def assert_same_function(model: nn.Module, x: Tensor, tolerance: float = 1e-5, own: tuple[type, ...] = ()) -> nn.Module:
    """Also: made of torch's modules (and the user's own) without random numbers, the model unchanged, nothing shared."""
    before, random_state = {k: v.clone() for k, v in model.eval().state_dict().items()}, torch.get_rng_state()
    plain = isoconv.plain(model)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(p.requires_grad and p.is_leaf for p in plain.parameters())
    for module in plain.modules():
        ordinary = type(module).__module__.startswith("torch.nn.")
        assert ordinary or type(module) in (MaxMin, GroupSort, *own), type(module)
    with torch.no_grad():
        expected = model(x)
        assert (plain(x) - expected).abs().max() <= tolerance
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        for p in plain.parameters():
            p.zero_()
        assert torch.equal(model(x), expected)
    return isoconv.plain(model)


@pytest.mark.parametrize("name", [name for name in LAYERS if name.split()[0] not in ("sll", "cpl")])
def test_every_layer_with_parameters_from_the_middle_of_training(name):
    for bias, dtype, tolerance in ((True, torch.float32, 1e-5), (False, torch.float64, 1e-12)):
        layer, x = made(name, bias=bias, dtype=dtype)
        plain = assert_same_function(randomised(layer, gain=1.0), x, tolerance)
        assert type(plain(x)) is Tensor
        assert [p.dtype for p in plain.parameters()] == [dtype] * (1 + bias)


def test_a_forward_that_is_not_ours_is_not_lost():
    class Doubled(BCOPConv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Halved(OrthogonalLinear):
        def forward(self, x):
            return super().forward(x) / 2

        def plain(self):
            return nn.Sequential(super().plain(), Scale(0.5))

    patched = OrthogonalLinear(3, 2)
    patched.forward = lambda x: x[:, :2]
    for layer, name in ((Doubled(2, 2, 3), "Doubled"), (patched, "OrthogonalLinear")):
        with pytest.raises(IsoconvError, match=f"forward of its own.*{name}"):
            isoconv.plain(nn.Sequential(layer))
    halved, x = Halved(3, 2), torch.randn(4, 3)
    assert torch.allclose(isoconv.plain(halved)(x), halved(x))


def test_a_single_strided_convolution_and_its_size():
    """Nothing of the downsampling is left, and as many numbers as the ordinary layer has."""
    plain = isoconv.plain(BCOPConv2d(3, 16, 4, 2))
    (conv,) = [module for module in plain.modules() if isinstance(module, nn.Conv2d)]
    assert conv.weight.shape == (16, 3, 4, 4) and conv.stride == (2, 2)
    assert not any(isinstance(module, nn.PixelUnshuffle) for module in plain.modules())
    assert [p.numel() for p in plain.parameters()] == [p.numel() for p in nn.Conv2d(3, 16, 4, 2).parameters()]
    assert [p.numel() for p in BCOPConv2d(4, 6, 1).parameters()] == [24, 6]  # a kernel of size 1 is a matrix


class Block(nn.Module):
    """A user's own module, with children, a list of them, a parameter and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.name = nn.Sequential(BCOPConv2d(4, 4, 3), MaxMin()), "block"
        self.more = nn.ModuleList([RKOConv2d(4, 4, 3), nn.ModuleDict({"last": BCOPConv2d(4, 4, 2)})])
        self.mixing = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.mixing * x + (1 - self.mixing) * self.more[1]["last"](self.more[0](self.first(x)))


def test_a_users_own_module_and_submodules_that_are_shared():
    shared, own = BCOPConv2d(4, 4, 3), Block()
    ordinary = [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), OrthogonalLinear(64, 4), MaxMin()]
    rearranged = [isoconv.nn.InvertibleDownsampling(2), GroupSort(4), isoconv.nn.InvertibleUpsampling(2)]
    model = nn.Sequential(shared, own, shared, nn.Sequential(shared, own), *rearranged, *ordinary)
    plain = assert_same_function(model, torch.randn(2, 4, 6, 6), own=(Block,))
    assert plain[0] is plain[2] is plain[3][0] and plain[1] is plain[3][1]
    assert plain[1].name == "block" and plain[1].mixing is not own.mixing


def test_the_training_mode_is_kept_and_the_weights_are_those_of_evaluation():
    layer, x = made("ossn")
    nn.init.normal_(layer.kernel, std=10.0)
    model = nn.Sequential(layer, nn.Dropout(0.5))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for mode in (True, False):
        plain = isoconv.plain(model.train(mode))
        for kept in (model, plain, isoconv.plain(model[0])):
            assert all(module.training == mode for module in kept.modules())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert torch.allclose(plain.eval()(x), copy.deepcopy(model).eval()(x), atol=1e-5)


@pytest.mark.parametrize(("kernel_size", "stride"), [(1, 1), (2, 1), (6, 2)], ids=str)
def test_convolutions_keep_channels_side_by_side(kernel_size, stride):
    """A channels-last image comes out, and its gradient goes back, in that layout."""
    layer = BCOPConv2d(4, 8, kernel_size, stride)
    x = torch.randn(2, 4, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    y = layer(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def contain(key: object, module: object) -> nn.Module:
    """A sequence with one more entry, put there behind torch's back."""
    model = nn.Sequential(OrthogonalLinear(4, 4))
    model._modules[key] = model if module is None else module
    return model


@pytest.mark.parametrize(
    "model",
    [None, contain("1", None), contain("1", torch.relu), *(contain(key, nn.ReLU()) for key in (7, None, "a.b", ""))],
    ids=["none", "itself", "function", "number", "no name", "dot", "empty"],
)
def test_what_is_no_tree_of_modules_is_one_line(model):
    for call in (isoconv.plain, isoconv.convert, lipschitz_bound):
        with pytest.raises(IsoconvError, match=r"^Expected [^\n]* Got [^\n]*$"):
            call(model, input_shape=(4,))


def test_shapes_of_inputs():
    model = nn.Sequential(BCOPConv2d(3, 2, 3), nn.Flatten(), OrthogonalLinear(50, 4))
    for shape in ((np.int64(3), np.int32(5), 5), torch.Size((3, 5, 5)), [3, 5, 5]):
        for call in (isoconv.plain, isoconv.convert, lipschitz_bound):
            call(model, input_shape=shape)
    for shape in ((3, 5, 0), (3, -5, 5), (3, 5.0, 5), (3, True, 5), (None, 3, 5, 5), 5, "355", (3, 5, np.float32(5))):
        for call in (isoconv.plain, isoconv.convert, lipschitz_bound):
            with pytest.raises(IsoconvError, match="without the batch"):
                call(model, input_shape=shape)
    with pytest.raises(IsoconvError, match="without the batch"):
        lipschitz_bound(model, (1, 3, 5, 5))
