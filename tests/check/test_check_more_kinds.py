"""Lies about smooth activations, softmax, uneven pooling, interpolation and transposed convolutions are refused."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from certify.certificates import check, read, write, write_all
from certify.exact_network import images
from certify.test_more_kinds import CURVES, LINEAR, jacobian
from isoconv.check import Budget, Malformed
from isoconv.check.certificate import Node
from isoconv.check.curves import CURVES as KNOWN
from isoconv.check.exact import ARITHMETICS
from isoconv.check.kinds import KINDS, Place

MODULES: list[tuple[nn.Module, tuple[int, ...]]] = [(curve, (3,)) for curve in [*CURVES, nn.Softmax(1)]]
MODULES += [(module, shape) for module, shape, _ in LINEAR]


def slope(name: str, **settings: Any) -> Fraction:
    return KNOWN[name](settings).slope


def test_the_largest_slopes_are_proved() -> None:
    """What Note [Largest slopes] says, in rational arithmetic, in intervals and in cells with room for numpy's rounding."""
    x = Fraction("2.3993572808")
    assert (x - 2) * sum(x**k / math.factorial(k) for k in range(30)) > x + 2 and slope("SiLU") >= (2 + x) / 4
    iv, terms = mpmath.iv, range(25)
    series = sum((iv.mpf((-1) ** k) / (math.factorial(k) * (2 * k + 1)) for k in terms), iv.mpf(0))
    erf = 2 / iv.sqrt(iv.pi) * (series + iv.mpf([-1, 1]) / math.factorial(25))
    assert Fraction(float(((1 + erf) / 2 + iv.exp(-1) / iv.sqrt(iv.pi)).b)) < slope("GELU", approximate="none")
    a, b = np.arange(8 * 2**19) / 2**19, (np.arange(8 * 2**19) + 1) / 2**19
    u, v = (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) for x in (a, b))
    rise = math.sqrt(2 / math.pi) * b * (1 + 3 * 0.044715 * b**2)
    assert (0.5 * (1 + np.tanh(v) + rise * (1 - np.tanh(u) ** 2))).max() + 1e-9 < slope("GELU", approximate="tanh")
    a, b = np.arange(20 * 2**18) / 2**18, (np.arange(20 * 2**18) + 1) / 2**18
    low, high = np.exp(a), np.exp(b)
    cells = 1 - 2 / (high**2 + 2 * high + 2) + 4 * b * high * (high + 1) / (low**2 + 2 * low + 2) ** 2
    assert cells.max() + 1e-9 < slope("Mish")
    assert slope("SELU") >= Fraction("1.05070098735548049") * Fraction("1.67326324235437728")


def true_constant(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Slopes on a grid, or the norm of the Jacobian at a place where it is largest."""
    if len(shape) > 1 or isinstance(module, nn.Softmax):
        at = torch.zeros(shape, dtype=torch.float64)
        at[:1] = -99.0 if isinstance(module, nn.Softmax) else 0.0  # the other two are equal
        return float(torch.linalg.matrix_norm(jacobian(module, at), 2))
    grid = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
    rises = (module(grid).diff() / grid.diff()).abs()
    return float(rises[rises <= 100].max()) if isinstance(module, nn.Softplus) else float(rises.max())


@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda value: str(value)[:70])
def test_a_constant_that_is_too_small(module: nn.Module, shape: tuple[int, ...], tmp_path: Path, capsys: Any) -> None:
    module = module.float()
    arguments = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path)
    assert check(arguments) == 0
    header, lines = read(Path(arguments[0]))
    header["nodes"][0]["lipschitz"] = (true_constant(module, shape) * (1 - 2e-4)).hex()
    write(Path(arguments[0]), header, lines)
    capsys.readouterr()
    assert check(arguments) == 1 and "layer 0" in capsys.readouterr().out


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda value: str(value)[:70])
def test_error_terms_that_are_too_small(
    module: nn.Module, shape: tuple[int, ...], arithmetic: str, tmp_path: Path
) -> None:
    arguments = write_all(
        nn.Sequential(module.float(), nn.Flatten()), images(1, *shape), tmp_path, arithmetic=arithmetic
    )
    honest, lines = read(Path(arguments[0]))
    rounded = 0
    for term in ("error_offset", "error_slope"):
        if float.fromhex(honest[term]) > 1e-25:  # else nothing but underflow
            rounded += 1
            write(Path(arguments[0]), honest | {term: (float.fromhex(honest[term]) / 2).hex()}, lines)
            assert check(arguments) == 1, term
    assert rounded or isinstance(module, nn.UpsamplingNearest2d)


SETTINGS: list[tuple[nn.Module, tuple[int, ...], str, Any]] = [
    (nn.Softplus(), (3,), "threshold", (-1.0).hex()),
    (nn.Softplus(), (3,), "threshold", (750.0).hex()),
    (nn.Softplus(), (3,), "beta", (0.0).hex()),
    (nn.CELU(), (3,), "alpha", (-1.0).hex()),
    (nn.GELU(), (3,), "approximate", "erf"),
    (nn.Softmax(1), (3,), "dim", 0),
    (nn.Softmax(1), (3,), "dim", 2),
    (nn.AdaptiveAvgPool1d(2), (1, 5), "output_size", [0]),
    (nn.AdaptiveAvgPool1d(2), (1, 5), "output_size", [2, 1]),
    (nn.ConvTranspose1d(1, 1, 2), (1, 5), "padding", [[3, 3]]),
    (nn.ConvTranspose1d(1, 1, 2), (1, 5), "stride", [1 << 20]),
    (nn.ConvTranspose1d(1, 1, 2), (1, 5), "groups", 2),
    *(
        (nn.Upsample(scale_factor=2, mode="linear"), (1, 5), "factors", factors)
        for factors in (
            *([2, 2], [], {}, [{}], [{"outputs": 10, "first": (0.0).hex()}], [[10, 0, 1]]),
            *(
                [{"outputs": 10, "first": f.hex(), "step": s.hex()}]
                for f, s in ((-9.0, 0.5), (0.0, 1e-9), (0.0, 5.0), (0.4, 0.5))
            ),
            [{"outputs": 5, "first": (0.0).hex(), "step": (0.75).hex()}],
            [{"outputs": 1 << 20, "first": (0.0).hex(), "step": (1e-5).hex()}],
        )
    ),
]


@pytest.mark.parametrize(("module", "shape", "name", "value"), SETTINGS, ids=lambda value: str(value)[:60])
def test_settings_that_make_no_sense(
    module: nn.Module, shape: tuple[int, ...], name: str, value: Any, tmp_path: Path, capsys: Any
) -> None:
    arguments = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path)
    header, lines = read(Path(arguments[0]))
    header["nodes"][0]["settings"][name] = value
    write(Path(arguments[0]), header, lines)
    capsys.readouterr()
    assert check(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_jump_of_softplus_is_not_in_the_checkers_own_logits() -> None:
    """In float32 its own error, for float64, leaves the jump out."""
    for x, near in ((20.0, 20.0), (20.001, 20.001)):
        computed = KNOWN["Softplus"]({"beta": 1.0, "threshold": 20.0}).apply(np.array([x]))[0]
        assert abs(computed - near - math.exp(-x)) < 1e-14


def test_a_window_far_smaller_than_the_others(tmp_path: Path) -> None:
    model = nn.Sequential(nn.AvgPool1d(2000, 2000, ceil_mode=True), nn.Flatten())
    assert check(write_all(model, images(1, 1, 4001), tmp_path)) == 0


def test_work_in_proportion() -> None:
    """Pooling and interpolation that would take long are refused before they do."""
    positions = [{"outputs": 1 << 16, "first": (-0.25).hex(), "step": (0.5).hex()}]
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("AdaptiveAvgPool1d", {"output_size": (1 << 16,)}, 1 << 18),
        ("Upsample", {"factors": positions}, 1 << 15),
    ]
    for kind, settings, size in cases:
        node, budget = Node("0", kind, "0", ("input",), {}, Fraction(1)), Budget(1000)
        budget.left = 1e9
        place = Place(node, settings, ((1, size),), {}, set(), ARITHMETICS["float64"], budget)
        with pytest.raises(Malformed, match="computation"):
            KINDS[kind].make(place)
