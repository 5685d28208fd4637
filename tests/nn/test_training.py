"""The constraint holds after training with any optimiser, however badly it is tuned; and how far a reader has to go."""

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import is_manifold, jacobian, made, polar_by_svd, singular_values, train
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, OrthogonalLinear, RKOConv2d

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # the requirement
ISOMETRIES = {
    "2d 3-5": (partial(BCOPConv2d, 3, 5, 3), (3, 5, 4)),
    "2d 5-3": (partial(BCOPConv2d, 5, 3, 5), (5, 3, 3)),
    "2d 1-1": (partial(BCOPConv2d, 1, 1, 3), (1, 4, 4)),
    "2d s2": (partial(BCOPConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "1d 3-5": (partial(BCOPConv1d, 3, 5, 4), (3, 7)),
    "1d 4-4 ranks": (partial(BCOPConv1d, 4, 4, 3, ranks=[1, 3]), (4, 6)),
    "transposed s2": (partial(BCOPConvTranspose2d, 4, 1, 4, 2), (4, 3, 3)),
    "linear 4-9": (partial(OrthogonalLinear, 4, 9), (4,)),
    "linear 24-24": (partial(OrthogonalLinear, 24, 24), (24,)),
    "linear 8-64": (partial(OrthogonalLinear, 8, 64), (8,)),
}
CONTRACTIONS = {
    "rko 3-5": (partial(RKOConv2d, 3, 5, 3), (3, 5, 4)),
    "rko s2": (partial(RKOConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "rko s2 k2": (partial(RKOConv2d, 2, 9, 2, 2), (2, 4, 4)),
    **{
        f"{name} bjorck": (partial(ISOMETRIES[name][0], orthogonalisation="bjorck"), ISOMETRIES[name][1])
        for name in ("2d 3-5", "2d s2", "1d 3-5", "transposed s2", "linear 4-9", "linear 8-64")
    },
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("optimiser", "options"),
    [(torch.optim.SGD, {"lr": 10.0}), (torch.optim.SGD, {"lr": 1e6, "momentum": 0.9}), (torch.optim.Adam, {"lr": 1.0})],
    ids=["SGD 10", "SGD 1e6", "Adam 1"],
)
@pytest.mark.parametrize("name", [*ISOMETRIES, *CONTRACTIONS])
def test_after_50_steps_that_are_far_too_long(name, optimiser, options, dtype):
    """An isometry; or no expansion: 20 Björck steps leave very small singular values below 1, as in the paper."""
    make, shape = (ISOMETRIES | CONTRACTIONS)[name]
    layer = make(dtype=dtype)
    before = jacobian(layer, *shape)
    train(layer, shape, 50, optimiser, **options)
    for mode in (False, True):  # evaluation first: it must not rely on training to have retracted
        values = singular_values(layer.train(mode), *shape)
        assert values.max() <= 1 + TOLERANCE[dtype], f"training={mode}"
        assert name in CONTRACTIONS or values.min() >= 1 - TOLERANCE[dtype], f"training={mode}"
    if name in ISOMETRIES and name not in ("2d 1-1", "linear 24-24"):  # O(1) is two points; the others must have moved
        assert (jacobian(layer, *shape) - before).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["bcop", "bcop s2", "rko", "1d", "transposed", "linear", "linear tall"])
def test_training_writes_the_retracted_parameter_back_and_evaluation_does_not(name):
    layer, x = made(name, dtype=torch.float64)
    assert is_manifold(name)
    matrices = {k: p for k, p in layer.named_parameters() if k != "bias"}
    with torch.no_grad():
        for p in matrices.values():
            p.add_(0.2 * torch.randn_like(p))
    moved = {k: p.detach().clone() for k, p in matrices.items()}
    evaluated = layer.eval()(x)
    assert all(torch.equal(p, moved[k]) for k, p in matrices.items())
    trained = layer.train()(x)  # the kernel is already built; the parameters must be brought back nevertheless
    for k, p in matrices.items():
        assert torch.allclose(p, polar_by_svd(moved[k]), rtol=0, atol=1e-12)
    assert torch.allclose(trained, evaluated, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["bcop-bjorck", "rko-bjorck", "1d-bjorck", "transposed-bjorck", "linear-bjorck"])
def test_bjorck_never_writes_to_its_parameters(name):
    layer, x = made(name)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.2 * torch.randn_like(p))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer.train()(x).sum().backward()
    layer.eval()(x)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


def test_a_step_walks_through_few_frames_in_few_files():
    calls = runpy.run_path(str(Path(__file__).parents[2] / "tools/walk.py"))["walk"]()
    assert 0 < sum(calls.values()) <= 80
    assert len({file for file, _ in calls}) <= 6
