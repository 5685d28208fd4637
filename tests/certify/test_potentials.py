"""Residual layers of the form x − Wᵀ·relu(Wx + b): their constant, and training."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isoconv
from helpers import SHAPES_2D, convolution, jacobian_at, named, padded, randomised, train
from isoconv import IsoconvError
from isoconv.certify import Certifier, lipschitz_bound
from isoconv.nn import ConvexPotential2d, SLLConv2d

KINDS = ("sll", "cpl")
ROWS = [row for row in SHAPES_2D if row[0] * row[4] * row[5] <= 60]
CASES = [  # channels, hidden, kernel size, padding mode, image
    (2, 3, 3, "circular", (4, 5)),
    (3, 2, (2, 3), "circular", (3, 3)),
    (2, 4, (4, 1), "zeros", (3, 5)),
    (1, 1, 1, "zeros", (2, 2)),
]


def potential(case: Any, gain: float = 0.5) -> ConvexPotential2d:
    module = ConvexPotential2d(*case[:3], padding_mode=case[3])
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=gain)
    return module.eval()


def dense(module: ConvexPotential2d, size: tuple[int, int]) -> Tensor:
    """The matrix W, from its definition."""
    count = module.weight.shape[1] * size[0] * size[1]
    x = torch.eye(count, dtype=torch.float64).reshape(count, -1, *size)
    x = padded(x, module.weight.shape[2:], module.padding_mode)
    return nn.functional.conv2d(x, module.weight.detach().double()).reshape(count, -1).T


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_constant_of_the_module(case):
    """Above all Jacobians, and attained where all hidden numbers are positive and W is large."""
    for gain in (0.1, 0.5, 2.0):
        module, shape = potential(case, gain).double(), (case[0], *case[4])
        bound, W = lipschitz_bound(module, shape).value, dense(module, case[4])
        expected = max(1.0, float(torch.linalg.matrix_norm(W, 2)) ** 2 - 1)
        assert expected <= bound
        assert bound <= expected * (1 + 1e-3) or case[3] == "zeros"  # bounded on a larger, circular image
        for scale in (0.1, 1.0, 10.0):
            x = scale * torch.randn(shape, dtype=torch.float64)
            active = (W @ x.flatten() + module.bias.repeat_interleave(case[4][0] * case[4][1]) > 0).double()
            J = jacobian_at(module, x)
            assert (J - (torch.eye(len(J)) - W.T @ (active[:, None] * W))).abs().max() <= 1e-12
            assert torch.linalg.matrix_norm(J, 2) <= bound * (1 + 1e-14)
        nn.init.constant_(module.bias, 1e9)
        norm = torch.linalg.matrix_norm(jacobian_at(module, x), 2)
        assert norm <= expected * (1 + 1e-12) and (expected == 1 or norm >= expected * (1 - 1e-12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", ROWS[::4], ids=named(ROWS[::4]))
def test_the_layers_do_not_expand_for_any_shape(row, kind):
    """Dense Jacobians, where all hidden numbers are positive too; the plain form is the same function."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        for mode in ("circular", "zeros"):
            layer = randomised(convolution(kind, *row, dtype=dtype, padding_mode=mode)).eval()
            x = 3 * torch.randn(row[0], *row[4:], dtype=dtype)
            assert (isoconv.plain(layer)(x[None]) - layer(x[None])).abs().max() <= 10 * tolerance
            assert torch.linalg.matrix_norm(jacobian_at(layer, x).double(), 2) <= 1 + tolerance
            nn.init.constant_(layer.bias, 1e3)
            assert torch.linalg.matrix_norm(jacobian_at(layer, x).double(), 2) <= 1 + tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_any_size_and_steps_far_too_long_are_no_reason_for_nan(kind):
    """Long runs of the published codes end in NaN."""
    for scale in (0.0, 1e-30, 1e-3, 1e12, 1e18):
        layer = convolution(kind, 3, 3, 3, 1, 5, 4)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(scale * torch.randn_like(parameter))
        layer(torch.randn(2, 3, 5, 4)).square().mean().backward()
        assert layer.weight.isfinite().all() and layer.kernel.grad.isfinite().all()
        assert lipschitz_bound(layer.eval(), (3, 5, 4)).value <= 1 + 1e-5
    for optimiser, options in ((torch.optim.SGD, {"lr": 1e6, "momentum": 0.9}), (torch.optim.Adam, {"lr": 1.0})):
        layer = convolution(kind, 3, 5, 3, 1, 5, 4)
        train(layer, (3, 5, 4), 100, optimiser, **options)
        assert layer.weight.isfinite().all() and lipschitz_bound(layer.eval(), (3, 5, 4)).value <= 1 + 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 3])
def test_cpls_norm_is_a_bound_and_sharp(kind, size):
    layer = randomised(convolution(kind, 4, 4, 3, 1, size, size)).eval()
    norm = torch.linalg.matrix_norm(dense(isoconv.plain(layer), (size, size)), 2) ** 2
    assert norm <= 2 + 1e-5 and norm >= (1.99 if kind == "cpl" else 0.2)


def test_what_is_refused():
    for make, words in [
        (partial(SLLConv2d, 4, 4, 3, groups=2), "one group"),
        (partial(SLLConv2d, 4, 4, 3, dilation=2), "no dilation"),
        (partial(SLLConv2d, 4, 4, 3, 2), "divides the kernel"),
        (partial(ConvexPotential2d, 4, 0, 3), "at least 1"),
        (partial(ConvexPotential2d, 4, 4, 3, padding_mode="reflect"), "padding_mode"),
    ]:
        with pytest.raises(IsoconvError, match=words):
            make()
    changed = ConvexPotential2d(2, 2, 3)
    changed.padding_mode = "reflect"
    for module, shape in [(changed, (2, 4, 4)), (ConvexPotential2d(2, 2, 5), (2, 4, 4))]:
        with pytest.raises(IsoconvError, match="Expected"):
            Certifier(nn.Sequential(module, nn.Flatten()), shape)
