"""`isoconv.plain(model, input_shape)`: any network that can be traced, as a graph of plain modules."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import isoconv
from helpers import randomised
from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.nn import (
    Add,
    BCOPConv2d,
    Concat,
    Flip,
    Graph,
    MaxMin,
    OrthogonalLinear,
    Permute,
    Reshape,
    Slice,
    Translate,
)

SHAPE = (4, 6, 6)


class Function(nn.Module):
    """A network whose forward is one function of itself and its input, with some parameters to use."""

    def __init__(self, function: Callable[["Function", Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.kernel = nn.Parameter(torch.randn(4, 2, 3, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.share = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("shift", torch.randn(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def statistics(net: Function) -> tuple[Tensor, Tensor]:
    return net.bias.detach(), net.bias.detach().abs() + 0.5


def add_in_place(net: Function, x: Tensor) -> Tensor:
    out = net.relu(net.conv(x))
    out += x
    out.mul_(0.5).sub_(x)
    return F.relu(out, inplace=True)


def statement_in_place(net: Function, x: Tensor) -> Tensor:
    """What a statement changes is what the variable holds from then on, under each of its names."""
    out = same = net.conv(x)
    out.relu_()
    return out + same


def branch_on_shapes(net: Function, x: Tensor) -> Tensor:
    assert x.dim() == 4 and x.shape[-1] == 6
    for k in range(x.size(1)):
        x = x + k if k % 2 else x.relu()
    return x.view(x.size(0), -1, x.shape[2] // 2, 2).reshape(len(x), -1)


ACCEPTED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "sums": lambda net, x: x + net.conv(x) - 2 * x + x / 4 + (-x) + (1 - x) + 0.5,
    "functions of sums": lambda net, x: torch.add(torch.sub(x, net.conv(x)), x.mul(0.5).neg().div(2)),
    "constants": lambda net, x: x + net.shift - net.bias[:, None, None].type_as(x) + (net.shift - x) * net.share,
    "mixing": lambda net, x: torch.sigmoid(net.share) * x + (1 - torch.sigmoid(net.share)) * net.conv(x),
    "factors of channels": lambda net, x: (
        ((x * net.bias[:, None, None]).flatten(2) * net.bias[:, None]).mean(2) * net.bias[None]
    ),
    "twice": lambda net, x: net.conv(net.conv(x)),
    "cat": lambda net, x: torch.cat([x, net.conv(x), x], dim=1),
    "chunk": lambda net, x: torch.concat(x.chunk(2, 1)[::-1], 1),
    "split": lambda net, x: torch.cat([part.abs() for part in torch.split(x, [1, 3], dim=-3)], -3),
    "stack": lambda net, x: torch.stack(x.unbind(2), dim=-1),
    "indices": lambda net, x: x[:, 1:, ::2, -1][..., 1:] + x[:, :3, 0:5:2, 2][:, :, 1:],
    "new axes": lambda net, x: x[:, None, :, 2, ..., None].squeeze(1) + x[:, :, 0, None].mT,
    "deviations": lambda net, x: ((x - net.bias[:, None, None]) / statistics(net)[1][None, :, None, None]).flatten(1),
    "narrow": lambda net, x: x.narrow(1, -3, 2).select(2, 3),
    "shapes": lambda net, x: x.flatten(2).unsqueeze(1).squeeze(1).unflatten(1, (2, 2)).reshape(-1, 4, 36),
    "axes": lambda net, x: x.permute(0, 3, 1, 2).transpose(1, -1).movedim(1, 2).mT.contiguous(),
    "shuffle": lambda net, x: x.view(len(x), 2, 2, 6, 6).transpose(1, 2).contiguous().view(len(x), 4, 6, 6),
    "activations": lambda net, x: torch.tanh(F.leaky_relu(x, 0.1)).abs().sigmoid() + F.relu6(F.softsign(F.hardtanh(x))),
    "clamp": lambda net, x: x.clamp(-0.5, 0.25) + torch.clamp(x, min=0),
    "slopes": lambda net, x: F.elu(F.celu(F.selu(x), 2.0), 0.5) + F.gelu(x, approximate="tanh") + F.softplus(x, 2, 16),
    "other slopes": lambda net, x: F.silu(F.mish(x)) + F.hardswish(F.hardsigmoid(x)) + F.logsigmoid(F.softmax(x, 1)),
    "pooling": lambda net, x: torch.max_pool2d(x, 4, 2, 1, 1, True) + F.avg_pool2d(x, kernel_size=2, stride=2),
    "sizes of others": lambda net, x: F.interpolate(F.adaptive_avg_pool2d(x, x.shape[-1] // 2), x.shape[2:]),
    "factors of other axes": lambda net, x: (
        x.permute(0, 2, 3, 1) * net.bias
        + (x * net.shift[0, 0]).mT.mT.movedim(1, -1)
        + x.movedim(1, -1) * net.bias[None]
    ),
    "means": lambda net, x: x.mean(dim=(-2, -1)),
    "means and maxima over axes": lambda net, x: torch.cat(
        [
            (x.mean(1, keepdim=True) + x.amax((1,), keepdim=True)).flatten(1),
            torch.amax(x, (2, 3), True).mean((1, -1)),
            x.unflatten(1, (2, 2)).mean((3, 1)).mean((1, 2), keepdim=True).flatten(1),
        ],
        dim=1,
    ),
    "matrices": lambda net, x: torch.matmul(x @ net.weight.t(), net.weight),
    "padding": lambda net, x: (
        F.pad(F.pad(x, (1, 2)), (1, 1, 2, 0), mode="circular") + F.pad(x, (2, 3, 1, 1), value=0.5)
    ),
    "channels": lambda net, x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2)),
    "weights": lambda net, x: F.conv2d(F.linear(x, net.weight), net.kernel, net.bias, 2, 1, groups=2),
    "transposed": lambda net, x: F.conv_transpose2d(x, net.kernel, net.bias, 2, 1, 1, 2, dilation=2),
    "one axis": lambda net, x: F.conv1d(input=F.max_pool1d(x.flatten(2), 2), weight=net.kernel[:, :, 0], groups=2),
    "statistics": lambda net, x: F.batch_norm(net.norm(x), *statistics(net)),
    "dropout": lambda net, x: F.dropout(x, 0.5, net.training).clone().detach(),
    "resizing": lambda net, x: F.pixel_unshuffle(F.interpolate(x, scale_factor=2), 2),
    "flips": lambda net, x: x.flip(-1) - torch.flip(net.relu(x), (1, 2)) + torch.flip(x, dims=[1]),
    "in place": add_in_place,
    "statement in place": statement_in_place,
    "shapes in branches": branch_on_shapes,
    "nothing": lambda net, x: x,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_graph_is_the_same_function(name: str) -> None:
    model = Function(ACCEPTED[name]).double()
    x = torch.randn(3, *SHAPE, dtype=torch.float64)
    state = copy.deepcopy(model.state_dict())
    graph = isoconv.plain(model, SHAPE)
    assert type(graph) is Graph and not graph.training and model.training
    expected = model.eval()(x.clone())
    for batch in (x, x[:1]):  # also of a size that was not traced
        assert torch.allclose(graph(batch), expected[: len(batch)], rtol=0, atol=1e-13)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    again = Graph.from_record(graph.to_record(), {type(module).__name__: type(module) for module in graph.modules()})
    again.load_state_dict(graph.state_dict(), assign=True)
    assert torch.equal(again.eval()(x), graph(x))
    with torch.inference_mode():
        assert lipschitz_bound(model, SHAPE).value == lipschitz_bound(graph, SHAPE).value > 0


def view_in_place(net: Function, x: Tensor) -> Tensor:
    half = x[:, :2]
    x.add_(1)
    return half


def overwritten(net: Function, x: Tensor) -> Tensor:
    flat = x.flatten(1)
    net.relu(flat[:, 3:])
    return flat


REFUSED: dict[str, tuple[Callable[[Function, Tensor], object], str]] = {
    "numbers": (lambda net, x: x if x.mean((2, 3))[:, 0] > 0 else -x, "gt"),
    "a number": (lambda net, x: x * float(x.mean((2, 3))), "float"),
    "products": (lambda net, x: x * x, "products with constants"),
    "products with a map": (lambda net, x: x * torch.ones(x.shape[2:]), "one for each channel"),
    "products that enlarge": (lambda net, x: x[:, :1] * net.bias[:, None, None], "one for each channel"),
    "a mask of samples": (lambda net, x: x * torch.ones(len(x), 1, 1, 1), "one for each channel"),
    "matrices in front": (lambda net, x: net.weight @ x, "matmul"),
    "a mean of samples": (lambda net, x: x - x.mean(0), "behind the batch"),
    "logits": (lambda net, x: F.log_softmax(x, 1), "the logits themselves"),
    "matrices": (lambda net, x: x @ x, "matmul"),
    "unknown": (lambda net, x: torch.cumsum(x, 1), "cumsum"),
    "instance norm": (lambda net, x: F.instance_norm(x), "instance_norm, which divides"),
    "attention": (lambda net, x: F.scaled_dot_product_attention(x, x, x), "attention, which"),
    "broadcasting": (lambda net, x: x + x[:, :1], "one shape"),
    "a multiple": (lambda net, x: torch.add(x, x, alpha=2), "alpha"),
    "a sample": (lambda net, x: x[0], "batch axis"),
    "a part of the batch": (lambda net, x: x[:1], "batch axis"),
    "batch in front": (lambda net, x: x.permute(1, 0, 2, 3), "batch axis"),
    "batch and channels": (lambda net, x: x.reshape(-1, 6, 6), "batch axis"),
    "cat of batches": (lambda net, x: torch.cat([x, x])[: len(x)], "batch axis"),
    "split batch": (lambda net, x: x.split(1)[0], "batch axis"),
    "size of the batch": (lambda net, x: x / x.shape[0], "size of the batch"),
    "chance": (lambda net, x: x + torch.randn(6), "chance"),
    "dropout": (lambda net, x: F.dropout(x), "dropout"),
    "antialiasing": (lambda net, x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True), "antialias"),
    "a weight": (lambda net, x: F.linear(x[:, 0, 0], net.weight, x[:, 0, 0, :5]), "weights"),
    "batch statistics": (lambda net, x: F.batch_norm(x, *statistics(net), training=True), "running"),
    "constant that enlarges": (lambda net, x: x[:, :1] + net.shift, "one shape"),
    "index": (lambda net, x: x[:, [0, 2]], "numbers, slices"),
    "new axis": (lambda net, x: x[..., None, :, :, :, :].flatten(1, 2), "batch axis"),
    "deviation": (lambda net, x: x[..., :4] / statistics(net)[1], "each channel"),
    "negative deviation": (lambda net, x: x / -net.bias.abs()[:, None, None], "above 0"),
    "out": (lambda net, x: torch.add(x, x, out=torch.empty(0)), "add"),
    "samples": (lambda net, x: next(iter(x)), "batch axis"),
    "flipped batch": (lambda net, x: x.flip(0, 1), "batch axis"),
    "assignment": (lambda net, x: x.__setitem__(0, 1.0) or x, "setitem"),
    "a view": (view_in_place, "in place"),
    "what a view changed": (overwritten, "in place"),
    "other precision": (lambda net, x: x.half(), "float32"),
    "data": (lambda net, x: x.data, "data"),
    "two": (lambda net, x: (x, x), "one tensor"),
    "constant": (lambda net, x: net.shift, "one tensor"),
    "error": (lambda net, x: net.missing(x), "missing"),
    "wrong shape": (lambda net, x: net.conv(x[:, :3]), "channel"),
    "list": (lambda net, x: nn.Conv2d(4, 4, 1)(x.tolist()), "tolist"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_name_and_line(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(IsoconvError, match=message) as error:
        lipschitz_bound(Function(function), SHAPE)
    late = ("size of the batch", "chance", "two", "constant", "a view", "what a view changed")  # found after the line
    assert "\n" not in str(error.value) and ("test_trace.py:" in str(error.value) or name in late)


def test_layers_of_ours_containers_and_modules_of_graphs() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleDict({"a": BCOPConv2d(4, 4, 2), "b": nn.Sequential(BCOPConv2d(4, 4, 3), MaxMin())})
            self.join, self.pick = Concat(1), Slice(1, 0, 8, 2)
            self.more = nn.Sequential(Permute((1, 2, 0)), Reshape((36, 4)), Translate(torch.ones(4)))

        def forward(self, x: Tensor) -> Tensor:
            a, b = (self.branches[name](x) for name in "ab")
            return self.more(self.pick(self.join(a, Add()(b, b))))

    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * super().forward(x)

    model = randomised(Net(Block(), nn.Flatten(), OrthogonalLinear(144, 3)), gain=1.0).eval()
    graph, x = isoconv.plain(model, SHAPE), torch.rand(2, *SHAPE)
    assert torch.allclose(graph(x), model(x), atol=1e-5)
    assert {"0.branches.b.0.weight", "0.more.2.bias", "2.weight"} <= set(graph.state_dict())
    assert not any(isinstance(module, BCOPConv2d) for module in graph.modules())
    nested = nn.Sequential(graph, nn.ReLU())
    assert torch.equal(isoconv.plain(nested, SHAPE)(x), graph(x).relu())


def test_a_subclass_of_a_leaf_is_never_taken_for_its_parent() -> None:
    class Louder(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * super().forward(x)

    model, x = nn.Sequential(Louder(4, 4, 3)), torch.rand(2, *SHAPE)
    assert torch.allclose(isoconv.plain(model, SHAPE)(x), model(x), atol=1e-5)
    with pytest.raises(IsoconvError, match="Louder at 0"):
        lipschitz_bound(model, SHAPE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_wrappers_are_taken_off() -> None:
    model = Function(ACCEPTED["in place"])
    expected = lipschitz_bound(model, SHAPE).value
    averaged = AveragedModel(model)
    for wrapped in (averaged, nn.DataParallel(model), torch.compile(averaged)):
        assert lipschitz_bound(wrapped, SHAPE).value == expected
        assert type(isoconv.plain(wrapped, SHAPE)) is Graph
    averaged.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(IsoconvError, match="AveragedModel"):
        lipschitz_bound(averaged, SHAPE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_graph_survives() -> None:
    graph, x = isoconv.plain(Function(ACCEPTED["in place"]), SHAPE), torch.rand(2, *SHAPE)
    expected, double = graph(x), copy.deepcopy(graph).double()
    assert torch.allclose(double(x.double()).float(), expected, atol=1e-6)
    double.load_state_dict(graph.state_dict())
    forms = torch.export.export(graph, (x,)).module(), torch.compile(graph, backend="eager", fullgraph=True)
    for form in (*forms, torch.fx.symbolic_trace(graph), torch.jit.trace(graph, x), double.float()):
        assert torch.equal(form(x), expected)
    assert graph(x[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize(
    "bad",
    [Concat(3), Slice(1, 0, 9), Slice(3, 0, 1), Flip(2), Permute((1, 0)), Reshape((3,)), Translate(torch.zeros(1, 2))],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_do_not_fit_the_input(bad: nn.Module) -> None:
    with pytest.raises(IsoconvError, match=type(bad).__name__):
        lipschitz_bound(bad, (2,))
