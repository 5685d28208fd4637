"""The modules of shift networks: what they compute, their dense Jacobians, their gradients, what they refuse."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from isoconv import IsoconvError, plain
from isoconv.nn import BCOPConv2d, ChannelShift, HalfAbs, L2NormPool2d, PositionBias

SHAPES = [(8, 3, 4), (16, 1, 5), (9, 2, 2), (3, 4, 1), (1, 2, 3)]  # channels, height, width
KINDS = {
    "shift": lambda shape: ChannelShift(1 / 8 if shape[0] != 9 else 1 / 4),
    "bias": lambda shape: PositionBias(*shape[1:]),
    "abs": lambda shape: HalfAbs(),
    "pool": lambda shape: L2NormPool2d(),
    "rotation": lambda shape: BCOPConv2d(shape[0], shape[0], 1),
    "embedding": lambda shape: BCOPConv2d(shape[0], shape[0] + 3, 1, bias=False),
}
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}


def random_module(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Module:
    module = KINDS[name](shape).to(dtype).eval()
    if name == "bias":
        nn.init.normal_(module.bias)
    return module


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(lambda z: module(z[None]).flatten(), x).reshape(-1, x.numel())


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_singular_values(name, dtype):
    """All 1 at a point where nothing is 0: of the pooling, one per channel."""
    for shape in SHAPES:
        module, x = random_module(name, shape, dtype), torch.randn(shape, dtype=dtype)
        values = torch.linalg.svdvals(jacobian(module, x))
        assert len(values) == (shape[0] if name == "pool" else x.numel())
        assert (values - 1).abs().max() <= ROUNDING[dtype], shape


def test_the_shift_by_its_definition():
    x = torch.randn(2, 11, 3, 4)
    y = ChannelShift(0.2)(x)  # two channels in each group, three that stay
    for group, (by, axis) in enumerate([(1, 2), (-1, 2), (1, 3), (-1, 3)]):
        part = slice(2 * group, 2 * group + 2)
        assert torch.equal(y[:, part], x[:, part].roll(by, axis))
    assert torch.equal(y[:, 8:], x[:, 8:])
    assert torch.equal(ChannelShift()(x[:, :7]), x[:, :7])  # an eighth of seven channels is none


def test_the_others_by_their_definitions():
    x = torch.randn(2, 5, 3, 4)
    assert torch.equal(HalfAbs()(x), torch.cat([x[:, :2].abs(), x[:, 2:]], 1))
    assert torch.equal(HalfAbs()(x[..., 0, 0]), torch.cat([x[:, :2].abs(), x[:, 2:]], 1)[..., 0, 0])
    assert torch.allclose(L2NormPool2d()(x), x.square().sum((2, 3)).sqrt())
    bias = PositionBias(3, 4)
    assert torch.equal(bias(x), x)
    nn.init.normal_(bias.bias)
    assert torch.equal(bias(x), x + bias.bias.reshape(3, 4))
    assert bias.bias.dim() == 1  # so that steepest descent treats it as the vector that it is
    assert bias(x.bfloat16()).dtype == torch.bfloat16  # whose products the next layer takes


def test_the_layouts_of_memory_are_kept():
    x = torch.randn(2, 16, 3, 4).to(memory_format=torch.channels_last)
    for module in (ChannelShift(), HalfAbs(), PositionBias(3, 4)):
        for layout, values in ((torch.channels_last, x), (torch.contiguous_format, x.contiguous())):
            y = module(values)
            assert y.is_contiguous(memory_format=layout) and torch.equal(y, module(x))


def test_the_gradient_of_the_pooling_at_zero_is_zero():
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    x[0, 1], x[1] = 0, 0
    x.requires_grad_()
    L2NormPool2d()(x).sum().backward()
    assert x.grad[0, 1].abs().max() == x.grad[1].abs().max() == 0
    assert torch.allclose(x.grad[0, 0].norm(), torch.ones(()).double())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", KINDS)
def test_one_function_however_it_is_run(name):
    """Compiled, scripted, under vmap, and without random choices in its plain form."""
    shape = (16, 3, 4)
    module, x = random_module(name, shape, torch.float64), torch.randn(5, *shape, dtype=torch.float64)
    expected = module(x)
    torch.compiler.reset()
    assert torch.allclose(torch.compile(module, fullgraph=True, backend="aot_eager")(x), expected, atol=1e-12)
    assert torch.allclose(torch.jit.script(plain(module))(x), expected, atol=1e-12)
    assert torch.allclose(vmap(lambda one: module(one[None])[0])(x), expected, atol=1e-12)
    mine = jacrev(lambda one: module(one[None])[0])(x[0])
    assert torch.allclose(mine.reshape(-1, x[0].numel()), jacobian(module, x[0]), atol=1e-12)


def test_a_kernel_of_size_one_is_a_matrix():
    """Nothing is convolved but H, and a layer costs what the product costs: its parameters are the matrix and the bias."""
    for c_in, c_out in ((6, 6), (4, 6), (6, 4)):
        layer = BCOPConv2d(c_in, c_out, 1).eval()
        assert [p.numel() for p in layer.parameters()] == [c_in * c_out, c_out]
        x = torch.randn(2, c_in, 3, 3)
        product = torch.einsum("ij,bjhw->bihw", layer.weight[:, :, 0, 0], x) + layer.bias[:, None, None]
        assert torch.allclose(layer(x), product, atol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 0.3, float("nan"), "1/8", None, True])
def test_shares_that_are_none(share):
    with pytest.raises(IsoconvError, match=r"share between 0 and 1/4"):
        ChannelShift(share)


@pytest.mark.parametrize("size", [(0, 3), (3, -1), (2.0, 3), (True, 2)])
def test_sizes_that_are_none(size):
    with pytest.raises(IsoconvError, match="height and a width"):
        PositionBias(*size)


def test_inputs_that_do_not_fit():
    for module in (ChannelShift(), PositionBias(2, 3), L2NormPool2d()):
        with pytest.raises(IsoconvError, match=rf"{type(module).__name__}: .*\(N, C, H, W\)"):
            module(torch.zeros(2, 3, 3))
    for shape in ((1, 4, 1, 3), (1, 4, 3, 2)):  # the first would broadcast
        with pytest.raises(IsoconvError, match=r"2×3\. Got"):
            PositionBias(2, 3)(torch.zeros(shape))
    with pytest.raises(IsoconvError, match="HalfAbs"):
        HalfAbs()(torch.zeros(3))
