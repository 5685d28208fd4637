"""The constraint holds after training with any optimiser, however badly it is tuned; and how far a reader has to go."""

import copy
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import convolution, is_manifold, jacobian, made, polar_by_svd, singular_values, train
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, OrthogonalLinear, RKOConv2d

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # the requirement
# Layers, and the shapes of their inputs. Those that are no isometries must not expand: 20 Björck steps leave very small
# singular values below 1, as in the paper; of BRO the projector is regularised.
ISOMETRIES = {
    "2d": (partial(BCOPConv2d, 5, 3, 5), (5, 3, 3)),
    "2d 1-1": (partial(BCOPConv2d, 1, 1, 3), (1, 4, 4)),
    "2d s2": (partial(BCOPConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "1d ranks": (partial(BCOPConv1d, 4, 4, 3, ranks=[1, 3]), (4, 6)),
    "transposed s2": (partial(BCOPConvTranspose2d, 4, 1, 4, 2), (4, 3, 3)),
    "linear 24-24": (partial(OrthogonalLinear, 24, 24), (24,)),
    "linear 8-64": (partial(OrthogonalLinear, 8, 64), (8,)),
    "cayley": (partial(convolution, "cayley", 2, 7, 4, 2, 6, 4), (2, 6, 4)),
    "soc": (partial(convolution, "soc", 5, 3, 3, 1, 5, 4), (5, 5, 4)),
}
CONTRACTIONS = {
    "rko": (partial(RKOConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "aol": (partial(convolution, "aol", 5, 3, 3, 1, 5, 4), (5, 5, 4)),
    "bro": (partial(convolution, "bro", 2, 7, 4, 2, 6, 4), (2, 6, 4)),
    "2d bjorck": (partial(BCOPConv2d, 2, 7, 4, 2, orthogonalisation="bjorck"), (2, 6, 4)),
    "1d bjorck": (partial(BCOPConv1d, 3, 5, 4, orthogonalisation="bjorck"), (3, 7)),
    "linear bjorck": (partial(OrthogonalLinear, 8, 64, orthogonalisation="bjorck"), (8,)),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("optimiser", "options"),
    [(torch.optim.SGD, {"lr": 1e6, "momentum": 0.9}), (torch.optim.Adam, {"lr": 1.0})],
    ids=["SGD 1e6", "Adam 1"],
)
@pytest.mark.parametrize("name", [*ISOMETRIES, *CONTRACTIONS])
def test_after_25_steps_that_are_far_too_long(name, optimiser, options, dtype):
    make, shape = (ISOMETRIES | CONTRACTIONS)[name]
    layer = make(dtype=dtype)
    before = jacobian(layer, *shape)
    train(layer, shape, 25, optimiser, **options)
    for mode in (False, True):  # evaluation first: it must not rely on training to have retracted
        values = singular_values(layer.train(mode), *shape)
        assert values.max() <= 1 + TOLERANCE[dtype], f"training={mode}"
        least = 1 - (1e-5 if name == "soc" else TOLERANCE[dtype])  # the exponential is truncated
        assert name in CONTRACTIONS or values.min() >= least, f"training={mode}"
    if name not in ("2d 1-1", "linear 24-24"):  # O(1) is two points; the others must have moved
        assert (jacobian(layer, *shape) - before).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["bcop", "bcop s2", "rko", "1d", "transposed", "linear", "linear tall"])
def test_training_writes_the_retracted_parameter_back_and_evaluation_does_not(name):
    layer, x = made(name, dtype=torch.float64)
    assert is_manifold(name)
    matrices = {k: p for k, p in layer.named_parameters() if k != "bias"}
    for p in matrices.values():
        p.data.add_(0.2 * torch.randn_like(p))
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
    for p in layer.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    before = copy.deepcopy(layer.state_dict())
    layer.train()(x).sum().backward()
    layer.eval()(x)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


def test_a_step_walks_through_few_frames_in_few_files():
    calls = runpy.run_path(str(Path(__file__).parents[2] / "tools/walk.py"))["walk"]()
    assert 0 < sum(calls.values()) <= 80
    assert len({file for file, _ in calls}) <= 6
