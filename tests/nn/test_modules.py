"""Modules of norm one that are no convolutions: their definitions, their dense Jacobians, however they are run."""

import copy
import io
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import isoconv.nn as ours
from helpers import jacobian_at, unshuffled
from isoconv import plain
from isoconv.nn import GroupSort, L2NormPool2d, MaxMin, Residual, ScaledAvgPool2d

# torch's compiler still uses parts of torch that torch has deprecated, and TorchScript is deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-13}


# Definitions, written once more ---------------------------------------------------------------------------------------


def sort_groups(x: Tensor, size: int | None = 2, dim: int = 1) -> Tensor:
    """Channels j, j + g, j + 2g, … are group j of g; in each the largest comes first."""
    x = x.transpose(1, dim)
    result, groups = x.clone(), x.shape[1] // (size or x.shape[1])
    for j in range(groups):
        result[:, j::groups] = x[:, j::groups].sort(dim=1, descending=True).values
    return result.transpose(1, dim)


def reflect(x: Tensor, vectors: Tensor) -> Tensor:
    """Channels i and i + C/2 are mirrored where they lie on the other side of a vector."""
    result, half = x.clone(), len(vectors) // 2
    for i in range(half):
        v, z = F.normalize(vectors[[i, i + half]], dim=0), x[:, [i, i + half]]
        side = torch.einsum("c,nc...->n...", v, z)[:, None] >= 0
        mirror = torch.eye(2).to(x) - 2 * torch.outer(v, v)
        result[:, [i, i + half]] = torch.where(side, z, torch.einsum("dc,nc...->nd...", mirror, z))
    return result


def patches(x: Tensor, pool: Any, padding: int = 0) -> Tensor:
    """The pixels of each window, (N, C, pixels, rows, columns)."""
    x = F.pad(x, [padding] * 4)
    (k, l), (s, t) = pool.kernel_size, pool.stride
    return x.unfold(2, k, s).unfold(3, l, t).flatten(4).movedim(4, 2)


def shifted(x: Tensor, count: int) -> Tensor:
    """Four groups of so many channels by one pixel: down, up, right, left."""
    parts = [x[:, k * count : (k + 1) * count].roll(*move) for k, move in enumerate([(1, 2), (-1, 2), (1, 3), (-1, 3)])]
    return torch.cat([*parts, x[:, 4 * count :]], 1)


class Case(NamedTuple):
    """What makes a module, a shape that it takes, what it computes, and its singular values where nothing is 0."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    define: Callable[[Any, Tensor], Tensor]
    values: str = "ones"  # or "projection", which has zeros too, or "at most one"


MODULES = {
    "maxmin rows": Case(lambda: MaxMin(dim=2), (3, 4, 5), lambda m, x: sort_groups(x, 2, 2)),
    "groupsort last": Case(lambda: GroupSort(3, dim=-1), (2, 5, 6), lambda m, x: sort_groups(x, 3, -1)),
    "householder": Case(lambda: ours.Householder(6), (6, 3, 2), lambda m, x: reflect(x, m.vectors)),
    "batch centring": Case(
        lambda: ours.BatchCentering(5), (5, 3, 2), lambda m, x: x + (m.bias - m.running_mean)[:, None, None]
    ),
    "layer centring": Case(
        lambda: ours.LayerCentering((-1, -2)), (3, 5, 2), lambda m, x: x - x.mean((2, 3), True), "projection"
    ),
    "norms of windows": Case(lambda: L2NormPool2d((2, 3)), (3, 5, 7), lambda m, x: patches(x, m).norm(dim=2)),
    "norms": Case(lambda: L2NormPool2d(), (3, 4, 3), lambda m, x: x.square().sum((2, 3)).sqrt()),
    "averages": Case(lambda: ScaledAvgPool2d(2), (3, 4, 6), lambda m, x: 2 * patches(x, m).mean(2)),
    "averages not square": Case(lambda: ScaledAvgPool2d((2, 3)), (1, 4, 7), lambda m, x: patches(x, m).sum(2) / 6**0.5),
    "shift": Case(lambda: ours.ChannelShift(1 / 4), (9, 2, 3), lambda m, x: shifted(x, 2)),
    "position bias": Case(lambda: ours.PositionBias(3, 4), (2, 3, 4), lambda m, x: x + m.bias.reshape(3, 4)),
    "half abs": Case(lambda: ours.HalfAbs(), (5, 2, 3), lambda m, x: torch.cat([x[:, :2].abs(), x[:, 2:]], 1)),
}
OTHERS = {
    "maxmin": Case(MaxMin, (12, 3, 4), lambda m, x: sort_groups(x)),
    "maxmin of one pair": Case(MaxMin, (2, 1, 1), lambda m, x: sort_groups(x)),
    "maxmin of vectors": Case(MaxMin, (6,), lambda m, x: sort_groups(x)),
    "maxmin of volumes": Case(MaxMin, (2, 2, 2, 2), lambda m, x: sort_groups(x)),
    "maxmin last": Case(lambda: MaxMin(-1), (3, 6), lambda m, x: sort_groups(x, 2, -1)),
    "groupsort": Case(GroupSort, (6, 2), lambda m, x: sort_groups(x)),
    "groupsort 4": Case(lambda: GroupSort(4), (12, 3), lambda m, x: sort_groups(x, 4)),
    "groupsort 1": Case(lambda: GroupSort(1), (3,), lambda m, x: x),
    "groupsort all": Case(lambda: GroupSort(None), (5, 3, 2), lambda m, x: sort_groups(x, None)),
    "groupsort all rows": Case(lambda: GroupSort(None, dim=2), (3, 5, 2), lambda m, x: sort_groups(x, None, 2)),
    "householder vector": Case(lambda: ours.Householder(2), (2,), lambda m, x: reflect(x, m.vectors)),
    "batch centring vector": Case(lambda: ours.BatchCentering(7, bias=False), (7,), lambda m, x: x - m.running_mean),
    "layer centring all": Case(
        lambda: ours.LayerCentering(), (3, 5, 2), lambda m, x: x - x.mean((1, 2, 3), True), "projection"
    ),
    "layer centring channels": Case(
        lambda: ours.LayerCentering(1), (3, 5), lambda m, x: x - x.mean(1, True), "projection"
    ),
    "norms of windows apart": Case(lambda: L2NormPool2d(2, (3, 2)), (1, 7, 5), lambda m, x: patches(x, m).norm(dim=2)),
    "averages apart": Case(lambda: ScaledAvgPool2d((1, 2), 3), (2, 7, 8), lambda m, x: patches(x, m).mean(2) * 2**0.5),
    "averages that overlap": Case(
        lambda: ScaledAvgPool2d(3, 2, 1), (2, 6, 7), lambda m, x: patches(x, m, 1).sum(2) / 6, "at most one"
    ),
    "averages of stride 1": Case(
        lambda: ScaledAvgPool2d((3, 2), 1), (1, 5, 5), lambda m, x: patches(x, m).mean(2), "at most one"
    ),
    "shift of an eighth of seven channels": Case(ours.ChannelShift, (7, 2, 3), lambda m, x: x),
    "half abs of one channel": Case(ours.HalfAbs, (1, 2, 3), lambda m, x: x),
    "flip": Case(lambda: ours.Flip(3), (2, 3, 4), lambda m, x: x[:, :, :, [3, 2, 1, 0]]),
    "downsampling": Case(ours.InvertibleDownsampling, (3, 4, 6), lambda m, x: unshuffled(x, 2)),
    "downsampling by 3": Case(lambda: ours.InvertibleDownsampling(3), (2, 6, 9), lambda m, x: unshuffled(x, 3)),
    "downsampling by 1": Case(lambda: ours.InvertibleDownsampling(1), (2, 3, 2), lambda m, x: x),
    "upsampling": Case(ours.InvertibleUpsampling, (8, 2, 3), lambda m, x: F.pixel_shuffle(x, 2)),
}
ALL = MODULES | OTHERS
SORTED = [name for name in ALL if name.startswith(("maxmin", "groupsort"))]


def make(name: str, dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[nn.Module, Tensor]:
    """Return a module with random parameters and statistics, and a batch for it."""
    module = ALL[name].make().to(dtype).eval()
    for tensor in (*module.parameters(), *module.buffers()):
        nn.init.normal_(tensor)
    return module, torch.randn(batch, *ALL[name].shape, dtype=dtype)


@pytest.mark.parametrize("name", ALL)
def test_definitions(name: str) -> None:
    """In either layout of memory, which modules that give images keep; in any precision; of an empty batch."""
    module, x = make(name)
    expected = ALL[name].define(module, x)
    for images in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
        y = module(images)
        assert torch.allclose(y, expected, rtol=2e-7 if "averages" in name else 1e-13, atol=1e-14)
        if y.dim() == 4 and not name.startswith(("norms of", "groupsort")):
            layout = torch.contiguous_format if images is x else torch.channels_last
            assert y.is_contiguous(memory_format=layout)
    assert module(x[:0]).shape == (0, *expected.shape[1:])
    for dtype in (torch.bfloat16, torch.float16):
        assert copy.deepcopy(module)(x.to(dtype)).dtype == dtype


@pytest.mark.parametrize("name", ALL)
def test_singular_values_and_secants(name: str) -> None:
    """Secants also cross the line where a pair is reflected, and begin at 0."""
    kind = ALL[name].values
    for dtype, rounding in ROUNDING.items():
        module, x = make(name, dtype)
        values = torch.linalg.svdvals(jacobian_at(module, x[0]))
        assert values.max() <= 1 + rounding
        if kind != "at most one":
            away = torch.minimum((values - 1).abs(), values) if kind == "projection" else (values - 1).abs()
            assert away.max() <= rounding + (2e-7 if getattr(module, "factor", 1.0) not in (1.0, 2, 3) else 0.0)
    module, x = make(name, batch=500)
    x[:50] = 0
    y = x + torch.randn_like(x) * 10.0 ** torch.linspace(-4, 1, 500).to(x).reshape(-1, *[1] * (x.dim() - 1))
    lengths = (module(x) - module(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert lengths.max() <= 1 + 1e-11


@pytest.mark.parametrize("name", [*MODULES, "maxmin", "groupsort", "groupsort all", "downsampling"])
def test_first_and_second_derivatives(name: str) -> None:
    module, x = make(name)
    for run in (module.eval(), copy.deepcopy(module).train()):
        inputs = x.requires_grad_(), *run.parameters()
        assert torch.autograd.gradcheck(lambda z, *_, run=run: run(z), inputs)
        assert torch.autograd.gradgradcheck(lambda z, *_, run=run: run(z).pow(3), inputs)


@pytest.mark.parametrize("name", MODULES)
def test_one_function_however_it_is_run(name: str) -> None:
    """Compiled, scripted, traced, under transforms, saved and loaded, in its plain form."""
    module, x = make(name)
    expected, deployed = module(x), plain(module)
    torch.compiler.reset()
    ways: list[Callable[[Tensor], Tensor]] = [torch.compile(module, fullgraph=True, backend="aot_eager")]
    ways += [deployed, torch.jit.script(deployed), torch.jit.trace(deployed, x)]
    ways += [] if name in ("shift", "position bias", "half abs") else [torch.fx.symbolic_trace(deployed)]
    ways += [torch.jit.script(module), lambda x: checkpoint(module, x, use_reentrant=False)]
    ways += [vmap(lambda one: module(one[None])[0]), torch.export.export(deployed, (x,)).module()]
    for way in ways:
        assert torch.allclose(way(x), expected, atol=1e-13)
    mine = jacrev(lambda one: module(one[None]).flatten())(x[0]).flatten(1)
    assert torch.allclose(mine, jacobian_at(module, x[0]), atol=1e-13)
    other = MODULES[name].make().double().eval()
    other.load_state_dict(module.state_dict())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(other(x), expected) and torch.equal(torch.load(file, weights_only=False)(x), expected)


# Where a value is special -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SORTED)
def test_the_jacobian_is_a_permutation_even_at_ties_and_no_nan_is_lost(name: str) -> None:
    module, given = make(name)
    for x in (given[0], torch.ones_like(given[0]), given[0].sign(), 0 * given[0]):
        J = jacobian_at(module, x)
        assert torch.equal(J * J, J)  # zeros and ones
        assert torch.equal(J.sum(0), torch.ones_like(J[0])) and torch.equal(J.sum(1), torch.ones_like(J[0]))
        assert torch.equal(J @ x.flatten(), module(x[None]).flatten())
    given.view(-1)[-1] = torch.nan  # a network that has produced one must not look healthy further on
    assert module(given).isnan().any()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_gradient_of_maxmin_recorded_transformed_and_traced(layout: torch.memory_format) -> None:
    x = torch.randn(3, 4, 5, 2).contiguous(memory_format=layout).requires_grad_()
    recorded, weights = MaxMin()(x), torch.randn(3, 4, 5, 2)
    assert torch.equal(recorded, MaxMin()(x.detach())) and recorded.is_contiguous(memory_format=layout)
    (once,) = torch.autograd.grad((recorded * weights).sum(), x, retain_graph=True)
    (twice,) = torch.autograd.grad((recorded * weights).sum(), x, create_graph=True)
    (first, second), (upper, lower) = x.detach().chunk(2, 1), weights.chunk(2, 1)
    expected = [torch.where(second > first, lower, upper), torch.where(second > first, upper, lower)]
    assert torch.equal(once, twice) and torch.equal(once, torch.cat(expected, dim=1))
    (expanded,) = torch.autograd.grad(MaxMin()(x).sum(), x)  # a gradient that is one number, seen everywhere
    assert torch.equal(expanded, torch.ones_like(x))
    given = torch.randn(3, 4).requires_grad_()
    one_by_one = torch.autograd.functional.jacobian(MaxMin(), given)
    assert torch.equal(torch.autograd.functional.jacobian(MaxMin(), given, vectorize=True), one_by_one)
    (many,) = torch.autograd.grad(MaxMin()(given), given, torch.eye(12).reshape(12, 3, 4), is_grads_batched=True)
    assert torch.equal(many, one_by_one.reshape(12, 3, 4))
    with forward_ad.dual_level():
        dual = MaxMin()(forward_ad.make_dual(given, torch.ones(3, 4)))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, torch.ones(3, 4))
    traced = make_fx(lambda y: MaxMin()(y))(given)
    assert torch.equal(traced(given), MaxMin()(given))
    assert torch.equal(torch.autograd.grad(traced(given).sum(), given)[0], torch.ones(3, 4))


def test_pooling_where_all_is_zero() -> None:
    for pool in (L2NormPool2d(), L2NormPool2d(2)):
        z = torch.randn(2, 3, 4, 4)
        z[0, 1] = 0
        pool(z.requires_grad_()).sum().backward()
        assert z.grad is not None and z.grad.isfinite().all() and z.grad[0, 1].abs().max() == 0


@pytest.mark.parametrize("shape", [(2, 8, 4, 6), (2, 1, 4, 4), (1, 4, 2, 2)], ids=str)
def test_channels_side_by_side_stay_so(shape: tuple[int, ...]) -> None:
    """One channel included, also where they were taken from more; and so do their gradients."""
    image = torch.randn(shape).clone(memory_format=torch.channels_last)
    for part in (image, image[:, :4], image[:, ::2]) if shape[1] > 1 else (image,):
        leaf = part.detach().requires_grad_()
        y = ours.InvertibleDownsampling(2)(leaf)
        assert torch.equal(y, F.pixel_unshuffle(part, 2))
        assert y.stride(1) == 1 and y.is_contiguous(memory_format=torch.channels_last)
        weights = torch.randn(y.shape)
        assert torch.equal(torch.autograd.grad((y * weights).sum(), leaf)[0], F.pixel_shuffle(weights, 2))


# With parameters --------------------------------------------------------------------------------------------------


def test_how_modules_begin() -> None:
    x = torch.randn(5, 8, 3, 4, dtype=torch.float64)
    assert torch.allclose(ours.Householder(8, dtype=torch.float64)(x), MaxMin()(x), atol=1e-15)
    bias = ours.PositionBias(3, 4)
    assert torch.equal(bias(x), x) and bias.bias.dim() == 1  # so that steepest descent treats it as a vector


def test_batch_centring_in_training_and_after() -> None:
    layer, batches = ours.BatchCentering(3, momentum=0.25).double(), torch.randn(10, 5, 3, 4, 2).double() + 2
    nn.init.normal_(layer.bias)
    mean = torch.zeros(3).double()
    for x in batches:
        y = layer(x)
        assert torch.allclose(y, x - x.mean((0, 2, 3), keepdim=True) + layer.bias[:, None, None])
        mean = 0.75 * mean + 0.25 * x.mean((0, 2, 3))
    assert torch.allclose(layer.running_mean, mean)
    state = copy.deepcopy(layer.eval().state_dict())
    assert torch.allclose(layer(batches[0]), batches[0] + (layer.bias - mean)[:, None, None])
    assert all(torch.equal(state[name], tensor) for name, tensor in layer.state_dict().items())
    assert torch.equal(layer.train()(batches[0][:0]), batches[0][:0]) and layer.running_mean.isfinite().all()


@pytest.mark.parametrize(("kernel", "bias"), [(1, True), (2, False), (3, True)])  # even: padding is a module of its own
def test_batch_centring_folds_into_a_convolution(kernel: int, bias: bool) -> None:
    shared = ours.BCOPConv2d(4, 4, kernel, bias=bias)
    centred = shared, ours.BatchCentering(4, bias=bias), MaxMin()
    model = nn.Sequential(*centred, shared, ours.BatchCentering(4), shared).double().eval()
    for tensor in model.buffers():
        nn.init.normal_(tensor)
    x, deployed = torch.randn(2, 4, 5, 5).double(), plain(model)
    assert not any(isinstance(module, ours.BatchCentering) for module in deployed.modules())
    assert torch.allclose(deployed(x), model(x), atol=1e-13)
    assert sum(isinstance(module, ours.BatchCentering) for module in model.modules()) == 2
    kept = plain(nn.Sequential(ours.OrthogonalLinear(4, 4), ours.BatchCentering(4)))  # where channels need not be last
    assert type(kept[1]) is ours.BatchCentering


def test_no_row_is_longer_than_one() -> None:
    for dtype in ROUNDING:
        for features, classes in ((1, 1), (3, 5), (120, 20)):
            layer = ours.NormalisedLinear(features, classes, dtype=dtype)
            for gain in (1.0, 1e-12, 1e12):
                nn.init.normal_(layer.matrix, std=gain)
                squares = [sum(Fraction(value) ** 2 for value in row) for row in layer.weight.double().tolist()]
                assert 1 - 4 * torch.finfo(dtype).eps - 1e-12 <= min(squares) and max(squares) <= 1  # exactly
            assert torch.equal(plain(layer).weight, layer.weight)


def test_normalised_rows_have_the_gradient_of_the_quotient() -> None:
    layer, x = ours.NormalisedLinear(6, 4, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    nn.init.normal_(layer.matrix)
    rows = layer.matrix.detach().clone().requires_grad_()
    F.linear(x, F.normalize(rows), layer.bias.detach()).square().sum().backward()
    layer(x).square().sum().backward()
    assert torch.allclose(layer.matrix.grad, rows.grad, rtol=1e-12)


def test_residual_is_a_convex_combination() -> None:
    branch, x = ours.OrthogonalLinear(6, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    for weight in (0.0, 0.25, 1 / 3, 1.0, None):
        block = Residual(branch, weight).double().eval()
        a = torch.as_tensor(block.weight).item()
        assert abs(a - (0.5 if weight is None else weight)) <= 2**-25 and a + (1 - a) == 1
        assert all(float(torch.tensor(share, dtype=torch.float32)) == share for share in (a, 1 - a))
        assert torch.allclose(block(x), (1 - a) * x + a * branch(x), atol=1e-15)
        for deployed in (plain(block), torch.fx.symbolic_trace(plain(block))):
            assert torch.equal(deployed(x), block(x))


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
        assert ours.orthogonal_conv_(kernel, groups) is kernel and kernel.requires_grad
        convolve = F.conv1d if len(shape) == 3 else F.conv2d
        columns = convolve(F.pad(eye, pads, mode="circular"), kernel.detach().double(), groups=groups)
        assert (torch.linalg.svdvals(columns.flatten(1)) - 1).abs().max() <= rounding
    again = [ours.orthogonal_conv_(torch.empty(shape), groups, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*again) and (shape[1] == 1 or not torch.allclose(again[0].to(dtype), kernel.detach()))
    assert ours.orthogonal_conv_(torch.empty(1, 1, 5, 3)).nonzero().tolist() == [[0, 0, 2, 1]]  # one channel stays
