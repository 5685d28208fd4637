"""Ordinary networks made 1-Lipschitz: shapes, dense Jacobians, proofs, weights that are carried over, what is refused."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import isoconv
from benchmarks.convert import ResNet18, gradient_norms
from certify.certificates import check, write_all
from certify.random_graphs import RandomGraph
from helpers import polar_by_svd
from isoconv import IsoconvError, convert
from isoconv.certify import lipschitz_bound
from isoconv.export import export_onnx
from isoconv.nn import BCOPConv2d, ConvexSum, Graph, MaxMin, OrthogonalLinear, RKOConv2d, Scale


def jacobian(network: nn.Module, x: Tensor) -> Tensor:
    """Return the dense Jacobian of what is deployed, at one input, in float64."""
    plain = isoconv.plain(network.eval(), tuple(x.shape)).double()
    return torch.autograd.functional.jacobian(lambda v: plain(v[None])[0].flatten(), x.double()).flatten(1)


def check_norm(network: nn.Module, x: Tensor, least: float = 0.0, slack: float = 1e-5) -> None:
    """Compare the norm of the Jacobian at one input with what is proved of the network, and both with one."""
    norm, bound = float(torch.linalg.matrix_norm(jacobian(network, x), 2)), lipschitz_bound(network, x.shape).value
    assert least <= norm <= bound + 1e-6 and norm <= 1 + slack and bound <= 1.001


def vgg() -> nn.Sequential:
    features = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.AvgPool2d(2)),
    )
    head = nn.Sequential(nn.Linear(12 * 4, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5))
    return nn.Sequential(features, nn.Flatten(), head)


class Of(nn.Module):
    """A network of some modules, whose forward is a function of itself and its input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def split(sums: bool) -> nn.Module:
    """Two halves take their own ways and come together again; then a value beside its branch; then a sum of three."""

    def forward(net: Any, x: Tensor) -> Tensor:
        left, right = net.first(x).chunk(2, 1)
        y = torch.cat([F.relu(net.left(left)), net.right(right)], 1)
        y = torch.cat([y, net.branch(y)], 1)
        return net.head((y + F.relu(y) + 3 * y).flatten(1)) if sums else y

    convolutions = {"left": nn.Conv2d(3, 3, 3, padding=1), "right": nn.Conv2d(3, 3, 1)}
    convolutions |= {"first": nn.Conv2d(2, 6, 3, padding=1), "branch": nn.Conv2d(6, 6, 3, padding=1)}
    return Of(forward, **convolutions, head=nn.Linear(12 * 16, 4))


def test_a_sequential() -> None:
    """A report and a conversion leave the model alone, and agree; the new network's weights can be loaded."""
    model, shape = vgg().train(), (3, 8, 8)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = convert(model, input_shape=shape, report_only=True)
    network, table = convert(model, input_shape=shape)
    assert type(network) is nn.Sequential and network.training and model.training
    assert [name for name, _ in network.named_modules()] == [name for name, _ in model.named_modules()]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert len(table.rows) == 13 and not table.refused
    assert [row.after for row in table.rows] == [row.after for row in report.rows]
    x = torch.rand(6, *shape)
    check_norm(network, x[0])
    again = convert(model, input_shape=shape, carry_weights=False)[0]
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(x), network.eval()(x))


def test_a_resnet() -> None:
    shape, x = (3, 32, 32), torch.rand(4, 3, 32, 32)
    network, table = convert(ResNet18(width=6), input_shape=shape, carry_weights=False)
    assert type(network) is Graph and network(x).shape == (4, 10)
    sums = [name for name, module in network.named_modules() if isinstance(module, ConvexSum)]
    assert len(sums) == 8 and len([row for row in table.rows if row.after and row.after.startswith("BCOP")]) == 21
    norms = gradient_norms(network, x)
    assert norms["layer1.0.add"] > 1 / 16, "less than eight unrelated sums would leave"
    losses, optimiser = [], torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(2):
        losses.append(F.cross_entropy(network(x), torch.arange(4)))
        losses[-1].backward()
        optimiser.step()
    assert losses[1] < losses[0]
    assert lipschitz_bound(network.eval(), shape).value <= 1.001


def test_a_residual_network_is_deployed(tmp_path: Path) -> None:
    """It is exported, and its certificate is accepted by the checker."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    x = torch.rand(2, 3, 8, 8)
    network, _ = convert(ResNet18(width=2, blocks=1), input_shape=(3, 8, 8), carry_weights=False)
    expected = network.eval()(x).detach()
    assert check(write_all(network, x, tmp_path)) == 0
    export_onnx(network, (3, 8, 8), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    logits = torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0])
    assert torch.allclose(logits, expected, atol=1e-5)


def shortcut(net: Any, x: Tensor) -> Tensor:
    """Halves of a later value, put together again, meet the input."""
    left, right = net.conv(x).chunk(2, 1)
    return x + torch.cat([net.branch(left), right], 1)


def test_joins() -> None:
    """What is cut apart and put together keeps norms; a value beside its branch is divided by √2, and keeps them too."""
    network, _ = convert(
        Of(shortcut, conv=nn.Conv2d(4, 4, 3, padding=1), branch=nn.Conv2d(2, 2, 1)), input_shape=(4, 3, 3)
    )
    assert not any(isinstance(module, Scale) for module in network.modules())
    check_norm(network, torch.rand(4, 3, 3))
    network, x = convert(split(True), input_shape=(2, 4, 4))[0], torch.rand(2, 4, 4)
    scales = [module.factor for module in network.modules() if isinstance(module, Scale)]
    assert scales == pytest.approx([math.sqrt(1 / 2), 1.0]), "the factor 3 goes, and the halves need none"
    check_norm(network, x)
    apart = Of(lambda net, x: 0.6 * x[:, :2] + 0.8 * x[:, 2:])
    for model, z in ((split(False), x), (apart, torch.rand(4, 3, 3))):
        singular = torch.linalg.svdvals(jacobian(convert(model, input_shape=tuple(z.shape))[0], z))
        assert torch.allclose(singular, torch.ones_like(singular), atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed: int) -> None:
    """Sums, slices, concatenations and shared modules in any order; the weights of sums are whatever training made them."""
    model = RandomGraph(seed, steps=4 + seed % 5).eval()
    refused = convert(model, input_shape=(4, 3, 3), report_only=True).refused
    if refused:
        known = {"Upsample", "ReflectionPad2d", "CircularPad2d"}  # they copy pixels
        assert {row.before for row in refused} <= known
        with pytest.raises(IsoconvError, match="made 1-Lipschitz"):
            convert(model, input_shape=(4, 3, 3))
        return
    network, _ = convert(model, input_shape=(4, 3, 3), carry_weights=False)
    for module in network.modules():
        if isinstance(module, ConvexSum) and module.logit is not None:
            nn.init.normal_(module.logit, std=2.0)
    x = torch.randn(4, 3, 3)
    assert network.eval()(x[None]).shape == model(x[None]).shape
    check_norm(network, x, slack=1e-3)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "constants around": (lambda: nn.ConstantPad2d(1, 0.5), (2, 3, 3)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=2), (4, 6, 6)),
    "dilation": (lambda: nn.Conv2d(2, 4, 3, padding=2, dilation=2), (2, 7, 6)),
    "stride": (lambda: nn.Conv2d(3, 6, 3, 2, 1), (3, 7, 6)),
    "stride above the kernel": (lambda: nn.Conv2d(3, 6, 1, 2), (3, 7, 6)),
    "rectangle": (lambda: nn.Conv2d(3, 4, (3, 1), (2, 1), (1, 0)), (3, 8, 5)),
    "no padding": (lambda: nn.Conv2d(3, 2, 3), (3, 6, 6)),
    "much padding": (lambda: nn.Conv2d(2, 2, 3, padding=2), (2, 4, 4)),
    "reflected": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 4, 4)),
    "one axis": (lambda: nn.Conv1d(2, 4, 4, 2, 1), (2, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 2, 4, 2, 1), (4, 3, 3)),
    "linear on tokens": (lambda: nn.Linear(4, 6), (3, 4)),
    "odd channels": (lambda: nn.ReLU(), (5, 3, 3)),
    "one channel": (lambda: nn.SiLU(), (1, 3, 3)),
    "overlapping maximum": (lambda: nn.MaxPool2d(3, 2, 1), (2, 7, 7)),
    "maximum of each neighbourhood": (lambda: nn.MaxPool2d(3, 1, 1), (2, 5, 4)),
    "maximum without the border": (lambda: nn.MaxPool2d((3, 2), 2, dilation=(1, 2)), (2, 8, 8)),
    "global maximum": (lambda: nn.AdaptiveMaxPool2d(1), (2, 4, 6)),
    "adaptive maximum, one axis": (lambda: nn.AdaptiveMaxPool1d(2), (2, 8)),
    "average": (lambda: nn.AvgPool2d(3, 2, 1), (2, 8, 8)),
    "adaptive average": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 4, 6)),
    "global average": (lambda: nn.AdaptiveAvgPool2d(1), (2, 4, 6)),
    "adaptive average of one pixel": (lambda: nn.AdaptiveAvgPool2d(3), (2, 1, 1)),
    "depthwise": (lambda: nn.Conv2d(12, 12, 3, 2, 1, groups=12), (12, 6, 6)),
    "overlapping average, one axis": (lambda: nn.AvgPool1d(4, 2), (2, 8)),
    "adaptive average, one axis": (lambda: nn.AdaptiveAvgPool1d(2), (2, 8)),
    "layer norm": (lambda: nn.LayerNorm((4, 4)), (2, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 4)),
    "group norm of vectors": (lambda: nn.GroupNorm(2, 6), (6,)),
    "instance norm": (lambda: nn.InstanceNorm1d(3, affine=True), (3, 6)),
    "batch norm of vectors": (lambda: nn.BatchNorm1d(4), (4,)),
    "inputs normalised": (lambda: isoconv.nn.Normalize([0.5, 0.4], [0.2, 2.0]), (2, 3, 3)),
    "repeated pixels": (lambda: nn.Upsample(scale_factor=2), (2, 3, 3)),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (2, 3, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_each_module(name: str) -> None:
    """Same shape, norm at most one, and for most of them one: the gradient does not vanish."""
    make, shape = MODULES[name]
    dtype = (torch.float32, torch.float64)[len(name) % 2]
    model, x = nn.Sequential(make()).to(dtype).eval(), torch.randn(shape, dtype=dtype)
    network, _ = convert(model, input_shape=shape)
    assert network(x[None]).shape == model(x[None]).shape
    lossy = name in ("average", "overlapping average, one axis", "much padding")
    overlap = name in ("maximum of each neighbourhood", "maximum without the border")  # attained by few inputs
    check_norm(network, x, least=0.3 if overlap else 0.6 if lossy else 1 - 1e-5)


@pytest.mark.parametrize("method", ["rko", "ossn", "rkl2ne", "bcop-fixed", "aol", "cayley", "soc", "bro", "sll", "cpl"])
def test_other_methods(method: str) -> None:
    model, shape = nn.Sequential(nn.Conv2d(3, 3, 3, 2, 1), vgg()), (3, 16, 16)
    network, _ = convert(model, method, input_shape=shape)
    assert network(torch.rand(2, *shape)).shape == (2, 5)
    assert lipschitz_bound(network, shape).value <= 1.1


# Weights ---------------------------------------------------------------------------------------------------------------


NEAREST = [
    (nn.Linear(6, 4), "bcop", (6,)),
    (nn.Linear(4, 6), "bcop", (4,)),
    (nn.Conv2d(3, 5, 1), "bcop", (3, 2, 2)),
    (nn.Conv2d(2, 5, 3, padding=1), "rko", (2, 4, 4)),
]


@pytest.mark.parametrize(("module", "method", "shape"), NEAREST, ids=str)
def test_the_nearest_matrix(module: Any, method: str, shape: tuple[int, ...]) -> None:
    """The polar factor, for a Linear, a 1×1 kernel and RKO's reshaped kernel; biases are scaled as the weights are."""
    network, table = convert(nn.Sequential(module), method, input_shape=shape)
    before, after = module.weight.detach(), network[0].weight.detach()
    scaled = after.flatten(1) * math.sqrt(before[0, 0].numel())
    assert torch.allclose(scaled, polar_by_svd(before.flatten(1)), atol=1e-5)
    distance = (before / before.norm() - after / after.norm()).norm()
    assert table.rows[0].distance == pytest.approx(float(distance), abs=1e-5)
    assert torch.allclose(network[0].bias, module.bias * after.norm() / before.norm())


@pytest.mark.parametrize("stride", [1, 2])
def test_a_kernel_that_can_be_had_is_found(stride: int) -> None:
    """The plain kernel of an orthogonal layer comes back; that of any other comes much nearer than at random."""
    layer = BCOPConv2d(8, 8, 3, stride, padding=1)
    _, table = convert(nn.Sequential(isoconv.plain(layer)), input_shape=(8, 6, 6))
    assert table.rows[0].distance is not None and table.rows[0].distance < 0.25
    for convolution in (nn.Conv2d(8, 8, 3, stride, 1), nn.Conv2d(3, 8, 3, stride, 1)):
        _, table = convert(nn.Sequential(convolution), input_shape=(convolution.in_channels, 6, 6))
        assert table.rows[0].distance is not None and table.rows[0].distance < 1.05, "at random it is √2"


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 4, 6), (1, 5, 1)])
def test_averages_over_whole_images_begin_as_averages(shape: tuple[int, ...]) -> None:
    network, _ = convert(nn.Sequential(nn.AdaptiveAvgPool2d(1)), input_shape=shape)
    x = torch.randn(2, *shape)
    torch.testing.assert_close(network(x), x.mean((2, 3), True) * math.sqrt(shape[1] * shape[2]))
    assert any(parameter.requires_grad for parameter in network.parameters())


def test_kernels_begin_as_the_identity() -> None:
    """Where nothing is carried over, there are as many channels on both sides, and a kernel has a centre."""
    model = nn.Sequential(nn.Conv2d(6, 6, (3, 5), padding=(1, 2), bias=False), nn.Conv2d(6, 6, 1, bias=False)).double()
    network, _ = convert(model, input_shape=(6, 7, 8), carry_weights=False)
    x = torch.rand(2, 6, 7, 8, dtype=torch.float64)
    assert torch.allclose(network(x), x, atol=1e-12)
    assert not torch.allclose(convert(model, input_shape=(6, 7, 8))[0](x), x, atol=0.1)


def test_the_scale_of_a_batch_norm_counts() -> None:
    """It is not kept, but it decides which channels of the convolution before it matter."""
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.weight, 0.1, 3.0)
    norm.running_var.uniform_(0.1, 3.0)  # type: ignore[union-attr]
    convolution = nn.Conv2d(4, 4, 1, bias=False)
    network, _ = convert(nn.Sequential(convolution, norm), input_shape=(4, 2, 2))
    scaled = convolution.weight[:, :, 0, 0] * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]
    assert torch.allclose(network[0].weight[:, :, 0, 0], polar_by_svd(scaled.detach()), atol=1e-5)


def test_depthwise_convolutions() -> None:
    """A channel alone can only be shifted. In groups there are kernels that look around, and shifts are still found."""
    shifts = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    nn.init.zeros_(shifts.weight)
    for channel, tap in enumerate(((0, 1), (1, 0), (1, 2), (2, 1))):
        shifts.weight.data[channel, 0][tap] = 2.0
    network, table = convert(nn.Sequential(shifts), input_shape=(4, 5, 5))
    assert table.rows[0].distance is not None and table.rows[0].distance < 0.3
    assert network[0].groups == 1 and network[0].weight.shape == (4, 4, 3, 3)


def test_weights_that_say_nothing() -> None:
    """Zeros have no direction: the layer begins at random. NaN is refused."""
    zeros = nn.Conv2d(2, 4, 3, padding=1)
    nn.init.zeros_(zeros.weight)
    check_norm(convert(nn.Sequential(zeros), input_shape=(2, 4, 4))[0], torch.rand(2, 4, 4))
    nn.init.constant_(zeros.weight, math.nan)
    with pytest.raises(IsoconvError, match="finite"):
        convert(nn.Sequential(zeros), input_shape=(2, 4, 4))


# Reuse, reports and refusals ---------------------------------------------------------------------------------------------


def test_modules_used_twice() -> None:
    """One activation for even and odd channels, one convolution used twice."""
    model = Of(
        lambda net, x: net.relu(net.odd(net.relu(net.twice(net.relu(net.twice(x)))))),
        relu=nn.ReLU(),
        twice=nn.Conv2d(4, 4, 3, padding=1),
        odd=nn.Conv2d(4, 3, 1),
    )
    network, table = convert(model, input_shape=(4, 5, 5))
    assert sum(isinstance(module, BCOPConv2d) for module in network.modules()) == 2
    assert sum(isinstance(module, MaxMin) for module in network.modules()) == 1
    assert [row.after for row in table.rows if row.before == "ReLU"] == ["MaxMin", "MaxMin", "HalfAbs"]
    assert [row.note for row in table.rows if row.path == "twice#2"] == ["as above"]
    check_norm(network, torch.rand(4, 5, 5))


def test_a_network_of_ours_stays_and_one_module_becomes_a_sequence() -> None:
    model = nn.Sequential(RKOConv2d(3, 4, 3), MaxMin(), nn.Flatten(), OrthogonalLinear(64, 3)).eval()
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(convert(model, input_shape=(3, 4, 4))[0](x), model(x))
    converted, table = convert(nn.Linear(4, 3), input_shape=(4,))
    assert type(converted[0]) is OrthogonalLinear and len(table.rows) == 1


REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "rms norm": (nn.RMSNorm(4), (3, 4), "spread"),
    "attention": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 4), "values"),
    "uneven average": (nn.AdaptiveAvgPool2d(3), (2, 5, 5), "windows"),
    "uneven repetition": (nn.Upsample(5, mode="bilinear"), (2, 3, 3), "whole number"),
    "logarithms": (nn.LogSoftmax(1), (4,), "logits themselves"),
    "glu": (nn.GLU(1), (4, 3), "GLU"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted(name: str) -> None:
    module, shape, reason = REFUSED[name]
    model = nn.Sequential(nn.Tanh(), module).eval()
    table = convert(model, input_shape=shape, report_only=True)
    assert [row.path for row in table.refused] == ["1"] and "could not" in str(table)
    with pytest.raises(IsoconvError, match=reason):
        convert(model, input_shape=shape)


def test_bad_input() -> None:
    unknown = Of(lambda net, x: torch.fft.fft(x).real)
    for model, method, match in (
        (vgg(), "standard", "standard"),
        (vgg(), "x", "'x'"),
        (unknown, "bcop", "test_conv"),
    ):
        with pytest.raises(IsoconvError, match=match):
            convert(model, method, input_shape=(3, 8, 8))
    integers = nn.Linear(4, 2)
    integers.weight = nn.Parameter(torch.ones(2, 4, dtype=torch.int32), requires_grad=False)
    for layer in (nn.Linear(4, 2, device="meta"), nn.Linear(4, 2, dtype=torch.complex64), integers):
        with pytest.raises(IsoconvError, match=r"Got 0\.weight"):
            convert(nn.Sequential(layer), input_shape=(4,))


@pytest.mark.parametrize("name", ["default", "context", "fake"])
def test_where_tensors_have_no_numbers(name: str) -> None:
    model, modes = vgg(), {"context": torch.device("meta"), "fake": FakeTensorMode(allow_non_fake_inputs=True)}
    if name == "default":
        torch.set_default_device("meta")
    try:
        with modes.get(name, nullcontext()):
            for call in (convert, lipschitz_bound):
                with pytest.raises(IsoconvError, match=r"meta|FakeTensorMode"):
                    call(model, input_shape=(3, 8, 8))
    finally:
        torch.set_default_device(None)
