"""What is proved of shift networks: the rounding of their modules in exact arithmetic, radii under attack, certificates."""

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.certificates import check, read, write, write_all
from certify.exact_network import (
    exact_logits,
    images,
    input_norm,
    labelled_images,
    logit_error,
    summed_in_order,
)
from isoconv.certify import Certifier, certify, lipschitz_bound
from isoconv.models import ShiftNet
from isoconv.nn import ChannelShift, HalfAbs, L2NormPool2d, PositionBias, Scale

attacks = pytest.importorskip("isoconv.attacks")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A small network after some long steps of steepest descent, on images with a class each."""
    torch.manual_seed(0)
    model = ShiftNet(SHAPE, 4, channels=32, blocks=(1, 2))
    descent = isoconv.optim.SteepestDescent(model.parameters(), lr=0.03)
    data, labels = labelled_images(32, SHAPE)
    for _ in range(25):
        descent.zero_grad()
        nn.functional.multi_margin_loss(model(data.float()), labels, margin=2.0).backward()
        descent.step()
    return model.eval()


# Rounding ---------------------------------------------------------------------------------------------------------


def exact_norms(x: Tensor) -> list[Fraction]:
    """Return the L2 norm of each channel of an image, to 600 bits."""
    squares = [sum(Fraction(value) ** 2 for value in channel) for channel in x.flatten(1).double().tolist()]
    roots = [mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator) for square in squares]
    return [Fraction(int(mpmath.nint(root * 2**1200)), 2**1200) for root in roots]


def norms_in_order(x: np.ndarray, order: str) -> np.ndarray:
    """Return the norms computed one term after the other, or by halves, in the dtype of the input."""
    squares = np.square(x.reshape(len(x), -1))
    if order == "rising":
        squares = np.sort(squares, axis=1)
    if order == "falling":
        squares = -np.sort(-squares, axis=1)
    if order == "halves":
        while squares.shape[1] > 1:
            half = squares.shape[1] // 2
            squares = np.concatenate([squares[:, :half] + squares[:, half : 2 * half], squares[:, 2 * half :]], axis=1)
        return np.sqrt(squares[:, 0])
    return np.sqrt(np.cumsum(squares, axis=1)[:, -1])


INPUTS = {
    "random": lambda x: x,
    "alike": lambda x: torch.full_like(x, 0.9565422534942627),
    "one large": lambda x: x * 2.0 ** -(10 * torch.arange(x[0].numel()).reshape(x.shape[1:]) % 40),
    "large": lambda x: x * 2.0**20,
    "squares vanish": lambda x: x * 1e-25,
    "squares are subnormal": lambda x: x * 1e-20,
    "subnormal": lambda x: x * 1e-42,
    "far below": lambda x: x * 1e-160,
    "zero": lambda x: x * 0,
}


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("kind", INPUTS)
def test_the_rounding_of_a_norm_over_positions(kind, arithmetic):
    """As torch computes it, in both layouts and in orders of our own, against roots of exact sums."""
    for seed, shape in enumerate([(3, 4, 5), (2, 16, 16), (5, 1, 1)]):
        torch.manual_seed(seed)
        x = INPUTS[kind](torch.randn(shape, dtype=torch.float64)).to(DTYPES[arithmetic])
        error = Certifier(nn.Sequential(L2NormPool2d()), shape, arithmetic=arithmetic).error
        allowed, truth = Fraction(error.offset) + Fraction(error.slope) * input_norm(x), exact_norms(x)
        layouts = (x[None], x[None].to(memory_format=torch.channels_last))
        computed = [L2NormPool2d()(values)[0] for values in layouts]
        with np.errstate(under="ignore"):
            orders = ("forward", "rising", "falling", "halves")
            computed += [torch.from_numpy(norms_in_order(x.numpy(), order)) for order in orders]
        assert max(logit_error(norms, truth) for norms in computed) <= allowed


def test_where_all_squares_vanish_the_bound_is_as_large_as_it_must_be():
    """The norm is 0 then, and 2⁻⁶³ or so in truth: what a relative error would not allow."""
    x = torch.full((2, 4, 4), 2.0**-75)
    assert L2NormPool2d()(x[None]).max() == 0
    error = Certifier(nn.Sequential(L2NormPool2d()), x.shape, arithmetic="float32").error
    missing = logit_error(torch.zeros(2), exact_norms(x))
    assert error.slope * float(x.norm()) < missing <= error.offset <= 2.0**14 * float(missing)


def test_where_squares_may_overflow_nothing_is_certified():
    network = nn.Sequential(Scale(2.0**40), L2NormPool2d())
    x = torch.full((1, 2, 3, 3), 2.0**25)
    assert network(x).isinf().all() and network(x.double()).isfinite().all()
    errors = [Certifier(network, (2, 3, 3), arithmetic=a).error.offset for a in DTYPES]
    assert errors[0] < 1e-100 and errors[1] == float("inf")


MODULES = {
    "bias": (lambda: nn.Sequential(PositionBias(4, 5), nn.Flatten(), nn.Linear(60, 3)), (3, 4, 5)),
    "shift and halves": (
        lambda: nn.Sequential(nn.Conv2d(2, 9, 1), ChannelShift(0.25), HalfAbs(), nn.Flatten(), nn.Linear(36, 3)),
        (2, 2, 2),
    ),
    "pool": (lambda: nn.Sequential(nn.Conv2d(2, 5, 3), L2NormPool2d(), nn.Linear(5, 3)), (2, 6, 5)),
    "network": (lambda: ShiftNet((1, 7, 5), 3, channels=16, blocks=(1, 1)), (1, 7, 5)),
}


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_the_error_of_the_logits(name, arithmetic):
    torch.manual_seed(1)
    model, shape = MODULES[name][0]().eval(), MODULES[name][1]
    for module in (m for m in model.modules() if isinstance(m, PositionBias)):
        nn.init.normal_(module.bias)
    x, dtype = images(3, *shape), DTYPES[arithmetic]
    certifier = Certifier(model, shape, arithmetic=arithmetic)
    allowed = Fraction(certifier.error.offset) + Fraction(certifier.error.slope) * input_norm(x[0])
    truth = exact_logits(model, x[0])
    with torch.no_grad():
        computed = [isoconv.plain(model).to(dtype)(x[:n].to(dtype))[0] for n in (1, 3)]
    computed += [summed_in_order(model, x[0], order, dtype) for order in ("forward", "falling", "random")]
    largest = max(1.0, *map(abs, map(float, truth)))
    assert 0 < max(logit_error(logits, truth) for logits in computed) <= allowed
    assert allowed <= 4000 * torch.finfo(dtype).eps * largest


# Bounds, radii, certificates --------------------------------------------------------------------------------------


def test_the_bounds_of_fresh_and_trained_networks(trained):
    fresh, other = ShiftNet(SHAPE, 4, channels=32, blocks=(1, 2)), ShiftNet((3, 9, 7), 20, 16, blocks=(2,), patch=3)
    for model, shape in ((fresh, SHAPE), (trained, SHAPE), (fresh.double(), SHAPE), (other, (3, 9, 7))):
        bound = lipschitz_bound(model.eval(), shape)
        assert 1 - 1e-6 <= bound.value <= 1.001
        assert all(layer.bound == 1 for layer in bound.layers if layer.kind not in ("Conv2d", "Linear"))


@pytest.mark.parametrize(("p", "pixels", "constant"), [(1, 1, 1.0), (2, 12, 2**0.5), (float("inf"), 12, 2 * 12**0.5)])
def test_the_constants_in_other_norms_are_attained(p, pixels, constant):
    """Two channels, alike in some pixels and 0 elsewhere: what the margin loses to the best perturbation is known."""
    x = torch.zeros(1, 2, 12, dtype=torch.float64)
    x[0, 0, :pixels], x[0, 1, :pixels] = 0.75, 0.25
    margin, x = 0.5 * pixels**0.5, x.reshape(1, 2, 3, 4)
    radius = float(certify(nn.Sequential(L2NormPool2d()), x, p=p).radius)
    assert radius == pytest.approx(margin / constant, rel=1e-9) and radius * constant < margin


def test_no_attack_succeeds_just_inside_the_radius(trained):
    data, labels = labelled_images(12, SHAPE, seed=0)
    certified = certify(trained, data)
    assert (certified.radius > 0.01).sum() >= 8 and (certified.prediction == labels).float().mean() >= 0.7
    inside = certified.radius * (1 - 1e-9)
    result = attacks.pgd(trained, data, certified.prediction, inside, steps=60, step_size=0.05, restarts=2)
    assert not (result.success.cpu() & (certified.radius > 0)).any()
    far = attacks.pgd(trained, data, certified.prediction, certified.radius * 20, steps=60, step_size=0.2)
    assert far.success.any()  # it does succeed elsewhere


@pytest.mark.parametrize("arithmetic", DTYPES)
def test_certificates_are_accepted_and_lies_are_found(arithmetic, trained, tmp_path, capsys):
    data = labelled_images(4, SHAPE)[0].float().double()
    arguments = write_all(trained, data, tmp_path, arithmetic=arithmetic)
    assert check(arguments) == 0, capsys.readouterr()
    header, lines = read(tmp_path / "certificate.jsonl")
    kinds = [node["kind"] for node in header["nodes"]]
    assert {"ChannelShift", "PositionBias", "HalfAbs", "L2NormPool2d"} <= set(kinds)

    def judge(change: Callable[[dict[str, Any]], None]) -> str:
        lie = copy.deepcopy(header)
        change(lie)
        write(tmp_path / "certificate.jsonl", lie, lines)
        assert check(arguments) != 0
        return "".join(capsys.readouterr())

    for kind in ("ChannelShift", "PositionBias", "HalfAbs", "L2NormPool2d"):
        number = kinds.index(kind)
        assert kind in judge(lambda lie, n=number: lie["nodes"][n].update(lipschitz=(1 - 2**-40).hex()))
    for key in ("error_offset", "error_slope"):
        assert key in judge(lambda lie, key=key: lie.update({key: (float.fromhex(lie[key]) * 0.2).hex()}))
    shift = kinds.index("ChannelShift")
    assert "logit" in judge(lambda lie: lie["nodes"][shift]["settings"].update(channels=0))  # another function
    assert "channels" in judge(lambda lie: lie["nodes"][shift]["settings"].update(channels=100))
