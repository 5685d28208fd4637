"""Lies about smooth activations, softmax, uneven pooling, interpolation and transposed convolutions are refused."""

import math
import tracemalloc
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
from certify.test_more_kinds import CURVES, LINEAR
from helpers import jacobian_at
from isoconv.check import Budget, Malformed
from isoconv.check.exact import ARITHMETICS
from isoconv.check.files import Node
from isoconv.check.kinds import Place, Step
from isoconv.check.proof import KINDS

MODULES: list[tuple[nn.Module, tuple[int, ...]]] = [(curve, (3,)) for curve in [*CURVES, nn.Softmax(1)]]
MODULES += [(module, shape) for module, shape, _ in LINEAR]


def make_step(kind: str, shape: tuple[int, ...] = (1,), budget: float = math.inf, **settings: Any) -> Step:
    """What the checker says about a kind without weights."""
    node, limited = Node("0", kind, None, ("input",), {}, Fraction(1)), Budget(1000)
    limited.left = budget
    return KINDS[kind].make(Place(node, settings, (shape,), {}, set(), ARITHMETICS["float64"], limited))


def test_the_largest_slopes_are_proved() -> None:
    """What Note [Largest slopes] says, in rational arithmetic, in intervals and in cells with room for numpy's rounding."""
    x = Fraction("2.3993572808")
    assert (x - 2) * sum(x**k / math.factorial(k) for k in range(30)) > x + 2
    assert make_step("SiLU").square >= ((2 + x) / 4) ** 2
    iv, terms = mpmath.iv, range(25)
    series = sum((iv.mpf((-1) ** k) / (math.factorial(k) * (2 * k + 1)) for k in terms), iv.mpf(0))
    erf = 2 / iv.sqrt(iv.pi) * (series + iv.mpf([-1, 1]) / math.factorial(25))
    largest = Fraction(float(((1 + erf) / 2 + iv.exp(-1) / iv.sqrt(iv.pi)).b))
    assert largest**2 < make_step("GELU", approximate="none").square
    edges = np.unique(np.concatenate([np.arange(20 * 2**12 + 1) / 2**12, np.arange(2**19, 2**20) / 2**19]))
    a, b = edges[:-1], edges[1:]  # small cells where the slopes are largest
    u, v = (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) for x in (a, b))
    rise = math.sqrt(2 / math.pi) * b * (1 + 3 * 0.044715 * b**2)
    cells = 0.5 * (1 + np.tanh(v) + rise * (1 - np.tanh(u) ** 2))
    assert Fraction(cells.max() + 1e-9) ** 2 < make_step("GELU", approximate="tanh").square
    low, high = np.exp(a), np.exp(b)
    cells = 1 - 2 / (high**2 + 2 * high + 2) + 4 * b * high * (high + 1) / (low**2 + 2 * low + 2) ** 2
    assert Fraction(cells.max() + 1e-9) ** 2 < make_step("Mish").square
    selu = Fraction("1.05070098735548049") * Fraction("1.67326324235437728")
    assert make_step("SELU").square >= selu**2


def true_constant(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Slopes on a grid, or the norm of the Jacobian at a place where it is largest."""
    if len(shape) > 1 or isinstance(module, nn.Softmax):
        at = torch.zeros(shape, dtype=torch.float64)
        at[:1] = -99.0 if isinstance(module, nn.Softmax) else 0.0  # the other two are equal
        return float(torch.linalg.matrix_norm(jacobian_at(module.double(), at), 2))
    grid = torch.linspace(-40, 40, 80_001, dtype=torch.float64)
    rises = (module(grid).diff() / grid.diff()).abs()
    return float(rises[rises <= 10].max()) if isinstance(module, nn.Softplus) else float(rises.max())


@pytest.mark.parametrize("number", range(len(MODULES)), ids=lambda n: f"{n} {MODULES[n][0]}"[:60])
def test_a_constant_and_error_terms_that_are_too_small(number: int, tmp_path: Path, capsys: Any) -> None:
    (module, shape), arithmetic = MODULES[number], ("float64", "float32")[number % 2]
    module = module.float()
    arguments = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path, arithmetic=arithmetic)
    file = Path(arguments[0])
    assert check(arguments) == 0
    honest, lines = read(file)
    terms = [term for term in ("error_offset", "error_slope") if float.fromhex(honest[term]) > 1e-25]  # not underflow
    assert terms or isinstance(module, nn.UpsamplingNearest2d)
    for term in terms:
        write(file, honest | {term: (float.fromhex(honest[term]) / 2).hex()}, lines)
        assert check(arguments) == 1, term
    honest["nodes"][0]["lipschitz"] = (true_constant(module, shape) * (1 - 2e-4)).hex()
    write(file, honest, lines)
    capsys.readouterr()
    assert check(arguments) == 1 and "layer 0" in capsys.readouterr().out


LINEAR_UPSAMPLE = (nn.Upsample(scale_factor=2, mode="linear"), (1, 5))
TRANSPOSED = (nn.ConvTranspose1d(1, 1, 2), (1, 5))


def positions(outputs: int, first: float, step: float) -> list[dict[str, Any]]:
    return [{"outputs": outputs, "first": first.hex(), "step": step.hex()}]


REFUSED: list[tuple[tuple[nn.Module, tuple[int, ...]], str, list[Any]]] = [
    ((nn.Softplus(), (3,)), "threshold", [(-1.0).hex(), (750.0).hex()]),
    ((nn.Softplus(), (3,)), "beta", [(0.0).hex()]),
    ((nn.CELU(), (3,)), "alpha", [(-1.0).hex()]),
    ((nn.GELU(), (3,)), "approximate", ["erf"]),
    ((nn.Softmax(1), (3,)), "dim", [0, 2]),
    ((nn.AdaptiveAvgPool1d(2), (1, 5)), "output_size", [[0], [2, 1]]),
    (TRANSPOSED, "padding", [[[3, 3]]]),
    (TRANSPOSED, "stride", [[1 << 20]]),
    (TRANSPOSED, "groups", [2]),
    (LINEAR_UPSAMPLE, "factors", [[2, 2], [], {}, [{}], [{"outputs": 10, "first": (0.0).hex()}], [[10, 0, 1]]]),
    (LINEAR_UPSAMPLE, "factors", [positions(10, *at) for at in ((-9.0, 0.5), (0.0, 1e-9), (0.0, 5.0), (0.4, 0.5))]),
    (LINEAR_UPSAMPLE, "factors", [positions(5, 0.0, 0.75), positions(1 << 20, 0.0, 1e-5)]),
]


@pytest.mark.parametrize(("case", "name", "values"), REFUSED, ids=lambda value: str(value)[:40])
def test_settings_that_make_no_sense(case: Any, name: str, values: list[Any], tmp_path: Path, capsys: Any) -> None:
    module, shape = case
    arguments = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path)
    header, lines = read(Path(arguments[0]))
    for value in values:
        header["nodes"][0]["settings"][name] = value
        write(Path(arguments[0]), header, lines)
        capsys.readouterr()
        assert check(arguments) == 2, value
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_jump_of_softplus_is_not_in_the_checkers_own_logits() -> None:
    """In float32 its own error, for float64, leaves the jump out."""
    x = np.array([20.0, 20.001])
    assert np.abs(make_step("Softplus", beta=1.0, threshold=20.0).apply(x) - x - np.exp(-x)).max() < 1e-14


def test_a_window_far_smaller_than_the_others(tmp_path: Path) -> None:
    model = nn.Sequential(nn.AvgPool1d(2000, 2000, ceil_mode=True), nn.Flatten())
    assert check(write_all(model, images(1, 1, 4001), tmp_path)) == 0


def test_work_in_proportion() -> None:
    """Pooling and interpolation that would take long are refused before they do."""
    for kind, size, settings in (
        ("AdaptiveAvgPool1d", 1 << 18, {"output_size": (1 << 16,)}),
        ("Upsample", 1 << 15, {"factors": positions(1 << 16, -0.25, 0.5)}),
    ):
        with pytest.raises(Malformed, match="computation"):
            make_step(kind, (1, size), 1e9, **settings)


def test_a_kernel_of_ones_is_paid_for_before_it_is_made() -> None:
    """An average over more pixels than there are weights in the files: the memory is not in proportion to them."""
    settings = {"kernel_size": (6001, 6001), "stride": (6001, 6001), "padding": ((3000, 3000),) * 2, "ceil_mode": False}
    step = make_step("AvgPool2d", (1, 1, 1), 1e11, **settings, count_include_pad=True, divisor_override=1)
    assert step.prove is not None
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="computation"):
            step.prove()
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("padding", "said"), [(9000, "numbers at once"), (1200, "more computation")])
def test_padding_that_no_image_needs(padding: int, said: str, tmp_path: Path, capsys: Any) -> None:
    """One pixel among very many zeros, of which four are seen: all of them would be kept and moved."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1, 2, 1), nn.Flatten())
    arguments = write_all(model, images(60, 1, 1, 1), tmp_path)
    header, lines = read(Path(arguments[0]))
    header["nodes"][0]["settings"] |= {"padding": [[padding, padding]] * 2, "stride": [2 * padding] * 2}
    write(Path(arguments[0]), header, lines)
    capsys.readouterr()
    assert check(arguments) == 2
    assert said in capsys.readouterr().err
