"""Modules of norm one that are no convolutions: what they compute, their dense Jacobians, however they are run."""

import copy
import io
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers import jacobian_at
from isoconv import IsoconvError, plain
from isoconv.nn import (
    BatchCentering,
    BCOPConv2d,
    ChannelShift,
    GroupSort,
    HalfAbs,
    Householder,
    L2NormPool2d,
    LayerCentering,
    MaxMin,
    NormalisedLinear,
    OrthogonalLinear,
    PositionBias,
    Residual,
    ScaledAvgPool2d,
    orthogonal_conv_,
)

# torch's compiler still uses parts of torch that torch has deprecated, and TorchScript is deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-13}


# What makes each, a shape that it takes, and its singular values where nothing is 0: all one, or zeros too (projections).
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "maxmin rows": (lambda: MaxMin(dim=2), (3, 4, 5), "ones"),
    "groupsort last": (lambda: GroupSort(3, dim=-1), (2, 5, 6), "ones"),
    "householder": (lambda: Householder(6), (6, 3, 2), "ones"),
    "batch centring": (lambda: BatchCentering(5), (5, 3, 2), "ones"),
    "layer centring": (lambda: LayerCentering((-1, -2)), (3, 5, 2), "projection"),
    "norms of windows": (lambda: L2NormPool2d((2, 3)), (3, 5, 7), "ones"),
    "norms": (lambda: L2NormPool2d(), (3, 4, 3), "ones"),
    "averages": (lambda: ScaledAvgPool2d(2), (3, 4, 6), "ones"),
    "averages not square": (lambda: ScaledAvgPool2d((2, 3)), (1, 4, 7), "ones"),
    "shift": (lambda: ChannelShift(1 / 4), (9, 2, 3), "ones"),
    "position bias": (lambda: PositionBias(3, 4), (2, 3, 4), "ones"),
    "half abs": (lambda: HalfAbs(), (5, 2, 3), "ones"),
}
OTHER_SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "maxmin last": (lambda: MaxMin(-1), (3, 6), "ones"),
    "groupsort all rows": (lambda: GroupSort(None, dim=2), (3, 5, 2), "ones"),
    "householder vector": (lambda: Householder(2), (2,), "ones"),
    "batch centring vector": (lambda: BatchCentering(7, bias=False), (7,), "ones"),
    "layer centring all": (lambda: LayerCentering(), (3, 5, 2), "projection"),
    "layer centring channels": (lambda: LayerCentering(1), (3, 5), "projection"),
    "norms of windows apart": (lambda: L2NormPool2d(2, (3, 2)), (1, 7, 5), "ones"),
    "averages apart": (lambda: ScaledAvgPool2d((1, 2), 3), (2, 7, 5), "ones"),
    "averages that overlap": (lambda: ScaledAvgPool2d(3, 2, 1), (2, 6, 7), "at most one"),
    "averages of stride 1": (lambda: ScaledAvgPool2d((3, 2), 1), (1, 5, 5), "at most one"),
    "one channel": (lambda: nn.Sequential(ChannelShift(), HalfAbs()), (1, 2, 3), "ones"),
}


def make(name: str, dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[nn.Module, Tensor]:
    """Return a module with random parameters and statistics, and a batch for it."""
    factory, shape, _ = (MODULES | OTHER_SHAPES)[name]
    module = factory().to(dtype).eval()
    for tensor in (*module.parameters(), *module.buffers()):
        nn.init.normal_(tensor)
    return module, torch.randn(batch, *shape, dtype=dtype)


@pytest.mark.parametrize("name", [*MODULES, *OTHER_SHAPES])
def test_singular_values_and_secants(name: str) -> None:
    """Secants also cross the line where a pair is reflected, and begin at 0."""
    kind = (MODULES | OTHER_SHAPES)[name][2]
    for dtype, rounding in ROUNDING.items():
        module, x = make(name, dtype)
        values = torch.linalg.svdvals(jacobian_at(module, x[0]))
        assert values.max() <= 1 + rounding
        if kind != "at most one":
            away = torch.minimum((values - 1).abs(), values) if kind == "projection" else (values - 1).abs()
            assert away.max() <= rounding + (2e-7 if getattr(module, "factor", 1.0) != 1.0 else 0.0)
    module, x = make(name, batch=500)
    x[:50] = 0
    y = x + torch.randn_like(x) * 10.0 ** torch.linspace(-4, 1, 500).to(x).reshape(-1, *[1] * (x.dim() - 1))
    lengths = (module(x) - module(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert lengths.max() <= 1 + 1e-11


@pytest.mark.parametrize("name", MODULES)
def test_gradients(name: str) -> None:
    module, x = make(name)
    for run in (module.eval(), copy.deepcopy(module).train()):
        assert torch.autograd.gradcheck(lambda z, *_, run=run: run(z), (x.requires_grad_(), *run.parameters()))


@pytest.mark.parametrize("name", MODULES)
def test_one_function_however_it_is_run(name: str) -> None:
    """Compiled, scripted, traced, under transforms, saved and loaded, in its plain form, in either layout of memory."""
    module, x = make(name)
    expected, deployed = module(x), plain(module)
    torch.compiler.reset()
    ways: list[Callable[[Tensor], Tensor]] = [torch.compile(module, fullgraph=True, backend="aot_eager")]
    ways += [deployed, torch.jit.script(deployed), torch.jit.trace(deployed, x)]
    ways += [] if name in ("shift", "position bias", "half abs") else [torch.fx.symbolic_trace(deployed)]
    ways += [torch.jit.script(module), lambda x: checkpoint(module, x, use_reentrant=False)]
    ways += [vmap(lambda one: module(one[None])[0]), torch.export.export(deployed, (x,)).module()]
    ways += [lambda x: module(x.movedim(1, -1).contiguous().movedim(-1, 1))]
    for way in ways:
        assert torch.allclose(way(x), expected, atol=1e-13)
    mine = jacrev(lambda one: module(one[None]).flatten())(x[0]).flatten(1)
    assert torch.allclose(mine, jacobian_at(module, x[0]), atol=1e-13)
    other = MODULES[name][0]().double().eval()
    other.load_state_dict(module.state_dict())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(other(x), expected) and torch.equal(torch.load(file, weights_only=False)(x), expected)
    assert copy.deepcopy(module)(x.bfloat16()).dtype == torch.bfloat16


# By their definitions ---------------------------------------------------------------------------------------------


def test_activations_along_an_axis() -> None:
    x = torch.randn(2, 6, 12, 6, requires_grad=True)
    weights = torch.randn_like(x)
    for dim in (1, 2, -1, -3):
        for activation, usual in ((MaxMin(dim), MaxMin()), (GroupSort(3, dim), GroupSort(3))):
            assert torch.equal(activation(x), usual(x.transpose(1, dim)).transpose(1, dim))
        mine, theirs = (torch.autograd.grad((f(x) * weights).sum(), x)[0] for f in (MaxMin(dim), GroupSort(2, dim)))
        assert torch.equal(mine, theirs)


def test_householder_is_a_reflection_on_one_side_and_begins_as_maxmin() -> None:
    activation, x = Householder(8, dtype=torch.float64), torch.randn(20, 8, 3, dtype=torch.float64)
    assert torch.allclose(activation(x), MaxMin()(x), atol=1e-15)
    nn.init.normal_(activation.vectors)
    y = activation(x)
    for i in range(4):
        v = F.normalize(activation.vectors.detach()[[i, i + 4]], dim=0)
        z, mirror = x[:, [i, i + 4]], torch.eye(2).double() - 2 * torch.outer(v, v)
        side = torch.einsum("c,nck->nk", v, z)[:, None] >= 0
        assert torch.allclose(y[:, [i, i + 4]], torch.where(side, z, torch.einsum("dc,nck->ndk", mirror, z)))


def test_pooling_by_its_definition() -> None:
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    patches = F.unfold(x, (2, 3), stride=(3, 3)).unflatten(1, (3, 6))
    assert torch.allclose(L2NormPool2d((2, 3), 3)(x).flatten(2), patches.norm(dim=2))
    assert torch.allclose(L2NormPool2d()(x), x.square().sum((2, 3)).sqrt())
    assert torch.allclose(ScaledAvgPool2d((2, 3), 3)(x).flatten(2), patches.mean(2) * 6**0.5, rtol=1e-7)
    assert torch.allclose(ScaledAvgPool2d(2)(x), 2 * F.avg_pool2d(x, 2))
    assert torch.allclose(ScaledAvgPool2d(3, 1)(x), F.avg_pool2d(x, 3, 1))
    for pool in (L2NormPool2d(), L2NormPool2d(2)):
        z = x.clone()
        z[0, 1] = 0
        pool(z.requires_grad_()).sum().backward()
        assert z.grad is not None and z.grad.isfinite().all() and z.grad[0, 1].abs().max() == 0


def test_modules_of_shift_networks_by_their_definitions() -> None:
    x = torch.randn(2, 11, 3, 4)
    y = ChannelShift(0.2)(x)  # two channels in each group, three that stay
    for group, (by, axis) in enumerate([(1, 2), (-1, 2), (1, 3), (-1, 3)]):
        part = slice(2 * group, 2 * group + 2)
        assert torch.equal(y[:, part], x[:, part].roll(by, axis))
    assert torch.equal(y[:, 8:], x[:, 8:])
    assert torch.equal(ChannelShift()(x[:, :7]), x[:, :7])  # an eighth of seven channels is none
    assert torch.equal(HalfAbs()(x), torch.cat([x[:, :5].abs(), x[:, 5:]], 1))
    bias = PositionBias(3, 4)
    assert torch.equal(bias(x), x) and bias.bias.dim() == 1  # so that steepest descent treats it as a vector
    nn.init.normal_(bias.bias)
    assert torch.equal(bias(x), x + bias.bias.reshape(3, 4))
    for module in (ChannelShift(), HalfAbs(), bias):
        for layout in (torch.channels_last, torch.contiguous_format):
            assert module(x.contiguous(memory_format=layout)).is_contiguous(memory_format=layout)


def test_batch_centring_in_training_and_after() -> None:
    layer, batches = BatchCentering(3, momentum=0.25).double(), torch.randn(10, 5, 3, 4, 2).double() + 2
    nn.init.normal_(layer.bias)
    mean = torch.zeros(3).double()
    for x in batches:
        y = layer(x)
        assert torch.allclose(y.mean((0, 2, 3)), layer.bias)
        assert torch.allclose(y - y.mean((0, 2, 3), keepdim=True), x - x.mean((0, 2, 3), keepdim=True))
        mean = 0.75 * mean + 0.25 * x.mean((0, 2, 3))
    assert torch.allclose(layer.running_mean, mean)
    state = copy.deepcopy(layer.eval().state_dict())
    assert torch.allclose(layer(batches[0]), batches[0] + (layer.bias - mean)[:, None, None])
    assert all(torch.equal(state[name], tensor) for name, tensor in layer.state_dict().items())
    assert torch.equal(layer.train()(batches[0][:0]), batches[0][:0]) and layer.running_mean.isfinite().all()


@pytest.mark.parametrize(("kernel", "bias"), [(1, True), (2, False), (3, True)])  # even: padding is a module of its own
def test_batch_centring_folds_into_a_convolution(kernel: int, bias: bool) -> None:
    shared = BCOPConv2d(4, 4, kernel, bias=bias)
    model = nn.Sequential(shared, BatchCentering(4, bias=bias), MaxMin(), shared, BatchCentering(4), shared)
    for tensor in model.double().eval().buffers():
        nn.init.normal_(tensor)
    x, deployed = torch.randn(2, 4, 5, 5).double(), plain(model)
    assert not any(isinstance(module, BatchCentering) for module in deployed.modules())
    assert torch.allclose(deployed(x), model(x), atol=1e-13)
    assert sum(isinstance(module, BatchCentering) for module in model.modules()) == 2
    kept = plain(nn.Sequential(OrthogonalLinear(4, 4), BatchCentering(4)))  # where channels need not be the last axis
    assert type(kept[1]) is BatchCentering


def test_no_row_is_longer_than_one() -> None:
    for dtype in ROUNDING:
        for features, classes in ((1, 1), (3, 5), (120, 20)):
            layer = NormalisedLinear(features, classes, dtype=dtype)
            for gain in (1.0, 1e-12, 1e12):
                nn.init.normal_(layer.matrix, std=gain)
                squares = [sum(Fraction(value) ** 2 for value in row) for row in layer.weight.double().tolist()]
                assert 1 - 4 * torch.finfo(dtype).eps - 1e-12 <= min(squares) and max(squares) <= 1  # exactly
            assert torch.equal(plain(layer).weight, layer.weight)


def test_normalised_rows_have_the_gradient_of_the_quotient() -> None:
    layer, x = NormalisedLinear(6, 4, dtype=torch.float64).eval(), torch.randn(3, 6, dtype=torch.float64)
    nn.init.normal_(layer.matrix)
    assert torch.autograd.gradcheck(lambda *_: layer(x), tuple(layer.parameters()))
    rows = layer.matrix.detach().clone().requires_grad_()
    F.linear(x, F.normalize(rows), layer.bias.detach()).square().sum().backward()
    layer.train()(x).square().sum().backward()
    assert torch.allclose(layer.matrix.grad, rows.grad, rtol=1e-12)
    before = layer(x).detach()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()
    assert not torch.allclose(layer(x), before) and layer.weight.norm(dim=1).max() <= 1


def test_residual_is_a_convex_combination() -> None:
    branch, x = OrthogonalLinear(6, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    for weight in (0.0, 0.25, 1 / 3, 1.0, None):
        block = Residual(branch, weight).double().eval()
        a = torch.as_tensor(block.weight).item()
        assert abs(a - (0.5 if weight is None else weight)) <= 2**-25 and a + (1 - a) == 1
        assert all(float(torch.tensor(share, dtype=torch.float32)) == share for share in (a, 1 - a))
        assert torch.allclose(block(x), (1 - a) * x + a * branch(x), atol=1e-15)
        assert torch.linalg.svdvals(jacobian_at(block, x[0])).max() <= 1 + 1e-14
        assert torch.equal(torch.fx.symbolic_trace(plain(block))(x), plain(block)(x))
        assert torch.equal(plain(block)(x), block(x))


def test_the_weight_of_a_residual_is_learned() -> None:
    block, x = Residual(MaxMin()), torch.randn(4, 6)
    for logit in (-30.0, -1.7, 0.3, 40.0):
        nn.init.constant_(block.logit, logit)
        a = block.weight.detach().double()
        assert abs(a - torch.sigmoid(torch.tensor(logit))) <= 2**-24 and float(a * 2**24) % 1 == 0
        (mine,) = torch.autograd.grad(block(x).square().sum(), block.logit)
        free = torch.tensor(logit, requires_grad=True)
        mixed = (1 - torch.sigmoid(free)) * x + torch.sigmoid(free) * MaxMin()(x)
        assert torch.allclose(mine, torch.autograd.grad(mixed.square().sum(), free)[0], atol=1e-5)
    assert set(block.state_dict()) == {"logit"} and not list(Residual(MaxMin(), 0.5).parameters())
    assert block.double()(x.double()).dtype == torch.float64 and block(x.bfloat16()).dtype == torch.bfloat16


KERNELS = [((5, 3, 3, 3), 1), ((3, 5, 2, 4), 1), ((6, 6, 1, 1), 1), ((4, 7, 3), 1), ((6, 2, 3, 2), 2), ((5, 1, 3), 5)]


@pytest.mark.parametrize(("shape", "groups"), KERNELS, ids=str)
def test_initialised_convolutions_are_orthogonal(shape: tuple[int, ...], groups: int) -> None:
    channels, size = shape[1] * groups, (4, 5)[: len(shape) - 2]
    eye = torch.eye(channels * math.prod(size), dtype=torch.float64).reshape(-1, channels, *size)
    pads = [amount for k in reversed(shape[2:]) for amount in (k // 2, (k - 1) // 2)]
    for dtype, rounding in ROUNDING.items():
        kernel = nn.Parameter(torch.empty(shape, dtype=dtype))
        assert orthogonal_conv_(kernel, groups) is kernel and kernel.requires_grad
        convolve = F.conv1d if len(shape) == 3 else F.conv2d
        columns = convolve(F.pad(eye, pads, mode="circular"), kernel.detach().double(), groups=groups)
        assert (torch.linalg.svdvals(columns.flatten(1)) - 1).abs().max() <= rounding
    again = [orthogonal_conv_(torch.empty(shape), groups, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*again) and (shape[1] == 1 or not torch.allclose(again[0].to(dtype), kernel.detach()))
    assert orthogonal_conv_(torch.empty(1, 1, 5, 3)).nonzero().tolist() == [[0, 0, 2, 1]]  # one channel stays in place


# What is refused --------------------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[], object], str]] = [
    *((lambda dim=dim: MaxMin(dim), "batch") for dim in (0, True)),
    (lambda: GroupSort(2, dim=1.5), "batch"),
    *((lambda dim=dim: LayerCentering(dim), "batch") for dim in ((1, 0), ())),
    (lambda: Householder(5), "even"),
    (lambda: BatchCentering(0), "feature"),
    (lambda: BatchCentering(3, momentum=2.0), "momentum"),
    *((lambda size=size: ScaledAvgPool2d(size), "kernel_size") for size in (0, (2, 2, 2))),
    (lambda: ScaledAvgPool2d(2, padding=2), "padding"),
    (lambda: L2NormPool2d(3, 2), "overlap"),
    (lambda: L2NormPool2d(stride=2), "kernel_size"),
    (lambda: NormalisedLinear(3, 0), "feature"),
    (lambda: Residual(lambda x: x), "module"),
    *((lambda weight=weight: Residual(nn.ReLU(), weight), "weight") for weight in (1.5, float("nan"), True)),
    (lambda: orthogonal_conv_(torch.empty(3, 3)), "kernel"),
    (lambda: orthogonal_conv_(torch.empty(3, 3, 1, 1), groups=2), "groups"),
    *((lambda share=share: ChannelShift(share), "share") for share in (-0.1, 0.3, float("nan"), "1/8", None, True)),
    *((lambda size=size: PositionBias(*size), "height") for size in ((0, 3), (3, -1), (2.0, 3), (True, 2))),
    # inputs that do not fit
    *((lambda dim=dim: MaxMin(dim)(torch.zeros(2, 3)), "batch") for dim in (2, -2)),
    (lambda: MaxMin(2)(torch.zeros(2, 4, 3)), "divides"),
    (lambda: GroupSort(None, dim=-3)(torch.zeros(2, 4, 3)), "batch"),
    (lambda: LayerCentering(2)(torch.zeros(2, 3)), "axes"),
    (lambda: LayerCentering()(torch.zeros(3)), "batch"),
    (lambda: Householder(4)(torch.zeros(2, 6)), "batch"),
    *((lambda mode=mode: BatchCentering(4).train(mode)(torch.zeros(2, 6, 4)), "batch") for mode in (True, False)),
    *((lambda m=m: m(torch.zeros(3, 4, 4)), "image") for m in (ScaledAvgPool2d(2), L2NormPool2d(2), ChannelShift())),
    (lambda: NormalisedLinear(4, 2)(torch.zeros(2, 3)), "input"),
    (lambda: Residual(nn.Linear(4, 1))(torch.zeros(2, 4)), "one shape"),  # which would broadcast
    (lambda: PositionBias(2, 3)(torch.zeros(1, 4, 1, 3)), "2×3"),  # which would, too
    (lambda: HalfAbs()(torch.zeros(3)), "batch"),
]


@pytest.mark.parametrize("row", range(len(BAD)))
def test_what_is_refused(row: int) -> None:
    call, match = BAD[row]
    with pytest.raises(IsoconvError, match=rf"Expected .*{match}.* Got"):
        call()
