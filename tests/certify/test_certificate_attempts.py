"""Ways in which somebody has tried to break a certificate, and succeeded; none of them works any more."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from certify.certificates import check, read, write, write_all
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, lipschitz_bound, robust_accuracy
from isoconv.nn import Scale
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.vector_critic import NearestAnchor


@pytest.mark.parametrize("scale", [1.1, 1.5, 0.5, 2.4])
def test_upsampling_by_fractions(scale: float) -> None:
    """Which pixels are taken is a matter of rounding, and torch's gradient counts others than its forward takes."""
    with pytest.raises(IsoconvError, match="whole numbers"):
        lipschitz_bound(nn.Sequential(nn.Upsample(scale_factor=scale)), (1, 2))
    with pytest.raises(IsoconvError, match=r"whole numbers\. Got 1\.5"):
        lipschitz_bound(nn.Sequential(nn.Upsample(size=3)), (1, 2))


@pytest.mark.parametrize("factor", range(1, 12))
@pytest.mark.parametrize("length", [1, 2, 3, 7, 49])
def test_upsampling_by_whole_numbers(factor: int, length: int) -> None:
    module = nn.Upsample(scale_factor=factor)
    columns = module(torch.eye(length, dtype=torch.float64)[:, None])[:, 0]
    truth = float(torch.linalg.matrix_norm(columns, 2))
    assert lipschitz_bound(nn.Sequential(module), (1, length)).value == pytest.approx(truth, rel=1e-12)


def patched(name: str) -> nn.Module:
    layer: nn.Module = nn.Conv2d(1, 1, 1, bias=False)
    if name == "_conv_forward":
        layer._conv_forward = lambda x, weight, bias: 10 * F.conv2d(x, weight, bias)  # type: ignore[assignment]
    else:
        setattr(layer, name, lambda x: 10 * x)
    return layer


@pytest.mark.parametrize(
    "name", ["forward", "_conv_forward", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl"]
)
def test_methods_of_one_instance(name: str) -> None:
    for model in (patched(name), nn.Sequential(patched(name)), nn.Sequential(nn.Sequential(patched(name)))):
        with pytest.raises(IsoconvError, match=r"^Expected modules with a known Lipschitz constant. Got Conv2d at "):
            lipschitz_bound(model, (1, 2, 2))


def test_a_sequence_that_calls_otherwise() -> None:
    class Louder(nn.Sequential):
        _compiled_call_impl = staticmethod(lambda x: 10 * x)

    with pytest.raises(IsoconvError, match="Louder at model, which has a _compiled_call_impl"):
        lipschitz_bound(Louder(nn.Linear(2, 2)), (2,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiling_is_no_patch() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.compile()
    assert lipschitz_bound(model, (2,)).value > 0


@pytest.mark.parametrize("pads", [(0, 0, 0, 0, 1, -1), (0, 0, 0, 0, 0, 0, 1, -1)])
@pytest.mark.parametrize("make", [nn.ZeroPad2d, lambda pads: nn.ConstantPad2d(pads, 0.5)], ids=["zeros", "constant"])
def test_padding_of_channels_and_of_the_batch(pads: tuple[int, ...], make) -> None:
    model = nn.Sequential(make(pads), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(IsoconvError, match=r"padding of the image alone.* at 0"):
        lipschitz_bound(model, (1, 2, 2))


def test_a_bias_that_is_no_parameter() -> None:
    layer = nn.Linear(2, 2)
    del layer.bias
    layer.bias = torch.ones(2)  # type: ignore[assignment]
    with pytest.raises(IsoconvError, match="bias as a parameter of Linear at 0"):
        lipschitz_bound(nn.Sequential(layer), (2,))


def test_hooks_on_all_modules_that_come_later() -> None:
    certifier = Certifier(nn.Sequential(nn.Linear(2, 2)), (2,))
    handle = register_module_forward_hook(lambda module, given, output: 10 * output)
    try:
        with pytest.raises(IsoconvError, match=r"^Expected no forward hooks on all modules."):
            certifier(torch.rand(1, 2))
    finally:
        handle.remove()
    assert len(certifier(torch.rand(1, 2)).radius) == 1


def test_negative_variances() -> None:
    module = nn.BatchNorm1d(2)
    module.running_var.fill_(-9.99e-6)  # type: ignore[union-attr]
    with pytest.raises(IsoconvError, match=r"^Expected finite weights and positive running variances. Got"):
        lipschitz_bound(nn.Sequential(module), (2,))


# Certificate files ----------------------------------------------------------------------------------------------------


def signs(n: int = 400) -> tuple[nn.Sequential, Tensor]:
    """Two logits ±v·x/32, v = ±1, and dyadic pixels: every sum is exact in any order."""
    net = nn.Sequential(nn.Linear(n, 2, bias=False))
    v = torch.ones(n)
    v[::2] = -1
    with torch.no_grad():
        net[0].weight.copy_(torch.stack([v, -v]) / 32)  # type: ignore[union-attr, operator]
    x = torch.full((1, n), 0.5, dtype=torch.float64)
    x[0, 1:100:2] = 0.75
    return net, x


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
def test_logits_moved_by_what_a_second_run_may_differ_by(arithmetic: str, tmp_path, capsys) -> None:
    """Logits in the file may lie off those that are recomputed; a radius that only they carry is refused."""
    net, x = signs()
    arguments = write_all(net, x, tmp_path, arithmetic=arithmetic)  # without labels
    assert check(arguments) == 0
    table, (image,) = read(Path(arguments[0]))
    offset, slope = (float.fromhex(table[name]) for name in ("error_offset", "error_slope"))
    p, logits = image["prediction"], [float.fromhex(logit) for logit in image["logits"]]
    moved = 1.99 * (offset + slope * float(x.norm()))
    logits[p], logits[1 - p] = logits[p] + moved, logits[1 - p] - moved
    room = math.sqrt(2) * (2 * offset + 2 * slope * float.fromhex(image["input_norm"]))
    radius = (logits[p] - logits[1 - p] - room) / (1.25 + math.sqrt(2) * slope) * (1 - 1e-15)
    table["pair_constants"] = [[(0.0).hex(), (1.25).hex()], [(1.25).hex(), (0.0).hex()]]  # what it is exactly
    image["logits"], image["radius"] = [logit.hex() for logit in logits], radius.hex()
    truth = Fraction(abs(float((net[0].weight[0] - net[0].weight[1]).detach().double() @ x[0]))) / Fraction(5, 4)
    assert Fraction(radius) > truth  # a lie
    write(Path(arguments[0]), table, [image])
    capsys.readouterr()
    assert check(arguments) == 1 and "the network's margin to class" in capsys.readouterr().out


def test_a_factor_that_float32_cannot_hold(tmp_path, capsys) -> None:
    net = nn.Sequential(nn.Linear(2, 2), Scale(1.0))
    arguments = write_all(net, torch.tensor([[0.5, 0.25]]), tmp_path, arithmetic="float32")
    table, images = read(Path(arguments[0]))
    table["nodes"][1]["settings"]["factor"] = (1 - 2.0**-30).hex()
    write(Path(arguments[0]), table, images)
    assert check(arguments) == 1 and "float32 cannot hold" in capsys.readouterr().out


def test_radii_of_all_kinds_of_numbers() -> None:
    """As many as there are, also out of a generator; fractions rounded up; and none too large to be compared."""
    net, x = signs()
    asked = [Fraction(1, 3), 2**70, 10**400, 0]
    found = robust_accuracy(net, (x, torch.tensor([0])), (epsilon for epsilon in asked))
    assert len(found.certified) == 4 and found.at(10**400) == 0.0
    third = next(iter(found.certified))
    assert Fraction(1, 3) <= Fraction(third) < Fraction(1, 3) + Fraction(1, 2**50)


# Wasserstein bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [3e-162, 1e-160, 1e-155, 1e-150])
def test_distances_whose_squares_vanish(distance: float) -> None:
    critic = nn.Sequential(NearestAnchor(torch.zeros(1, 1, dtype=torch.float64)))
    xs, ys = torch.full((1, 1), distance, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    assert wasserstein_lower_bound(critic, xs, ys, whole=(True, True)).lower <= distance


def test_a_sign_that_was_changed() -> None:
    anchor = NearestAnchor(torch.zeros(1, 1, dtype=torch.float64))
    anchor.sign = 5
    xs, ys = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(IsoconvError, match=r"^Expected anchors with a sign of ±1. Got 5."):
        wasserstein_lower_bound(nn.Sequential(anchor), xs, ys, whole=(True, True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "Expected a batch size of at least 1. Got 0."),
        ({"confidence": "0.9"}, "Expected a confidence between 0 and 1, such as 0.95. Got 0.9."),
        ({"group": (1.0, 1)}, "Expected a group of xs and one of ys, such as (1, 64). Got (1.0, 1)."),
        ({"value_range": "ab"}, "Expected a value range such as (−1, 1). Got ab."),
        ({"value_range": (None, 1)}, "Expected a value range such as (−1, 1). Got (None, 1)."),
        ({"whole": True}, "Expected whole for xs and for ys, such as (True, False). Got True."),
    ],
    ids=str,
)
def test_options_of_another_kind(options: dict, message: str) -> None:
    with pytest.raises(IsoconvError) as refused:
        wasserstein_lower_bound(nn.Sequential(nn.Linear(2, 1)), torch.rand(4, 2), torch.rand(4, 2), **options)
    assert str(refused.value) == message


def test_radii_hold_where_logits_are_computed_again() -> None:
    """With three errors at the centre a radius follows from any float64 logits of the same image, not only from its own."""
    net, x = signs()
    certifier = Certifier(net, (x.shape[1],))
    exact = abs(float((net[0].weight[0] - net[0].weight[1]).detach().double() @ x[0])) / 1.25
    radius = float(certified_radius(net, x))
    assert exact * (1 - 1e-8) < radius < exact - 3 * math.sqrt(2) * certifier.error.slope * float(x.norm()) / 1.25
