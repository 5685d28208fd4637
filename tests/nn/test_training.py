"""The constraint holds after training with any optimiser, however badly it is tuned."""

from functools import partial

import pytest
import torch

from helpers import is_manifold, jacobian, made, singular_values, train
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, OrthogonalLinear, RKOConv2d

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # the requirement

optimisers = pytest.mark.parametrize(
    ("optimiser", "options", "dtype"),
    [
        (torch.optim.SGD, {"lr": 10.0}, torch.float32),
        (torch.optim.SGD, {"lr": 10.0}, torch.float64),
        (torch.optim.SGD, {"lr": 1e6, "momentum": 0.9}, torch.float32),
        (torch.optim.Adam, {"lr": 1.0}, torch.float32),
        (torch.optim.Adam, {"lr": 1.0}, torch.float64),
    ],
    ids=["SGD 10", "SGD 10 float64", "SGD 1e6", "Adam 1", "Adam 1 float64"],
)

ISOMETRIES = {
    "2d 3-5": (partial(BCOPConv2d, 3, 5, 3), (3, 5, 4)),
    "2d 5-3": (partial(BCOPConv2d, 5, 3, 5), (5, 3, 3)),
    "2d 1-1": (partial(BCOPConv2d, 1, 1, 3), (1, 4, 4)),
    "2d s2": (partial(BCOPConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "1d 3-5": (partial(BCOPConv1d, 3, 5, 4), (3, 7)),
    "1d 4-4 ranks": (partial(BCOPConv1d, 4, 4, 3, ranks=[1, 3]), (4, 6)),
    "transposed 5-3": (partial(BCOPConvTranspose2d, 5, 3, 3), (5, 4, 4)),
    "transposed s2": (partial(BCOPConvTranspose2d, 4, 1, 4, 2), (4, 3, 3)),
    "linear 4-9": (partial(OrthogonalLinear, 4, 9), (4,)),
    "linear 24-24": (partial(OrthogonalLinear, 24, 24), (24,)),
    "linear 8-64": (partial(OrthogonalLinear, 8, 64), (8,)),
}
CONTRACTIONS = {
    "rko 3-5": (partial(RKOConv2d, 3, 5, 3), (3, 5, 4)),
    "rko 5-3": (partial(RKOConv2d, 5, 3, 1), (5, 4, 3)),
    "rko s2": (partial(RKOConv2d, 2, 7, 4, 2), (2, 6, 4)),
    "rko s2 k2": (partial(RKOConv2d, 2, 9, 2, 2), (2, 4, 4)),
    **{
        f"{name} bjorck": (partial(ISOMETRIES[name][0], orthogonalisation="bjorck"), ISOMETRIES[name][1])
        for name in ("2d 3-5", "2d s2", "1d 3-5", "transposed s2", "linear 4-9", "linear 8-64")
    },
}


@optimisers
@pytest.mark.parametrize("name", ISOMETRIES)
def test_an_isometry_after_50_steps_that_are_far_too_long(name, optimiser, options, dtype):
    make, shape = ISOMETRIES[name]
    layer = make(dtype=dtype)
    before = jacobian(layer, *shape)
    train(layer, shape, 50, optimiser, **options)
    for mode in (False, True):  # evaluation first: it must not rely on training to have retracted
        layer.train(mode)
        values = singular_values(layer, *shape)
        assert (values - 1).abs().max() <= TOLERANCE[dtype], f"from {values.min()} to {values.max()}, training={mode}"
    if name not in ("2d 1-1", "linear 24-24"):  # O(1) is two points; the others must have moved
        assert (jacobian(layer, *shape) - before).abs().max() > 1e-2


@optimisers
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_contraction_after_50_steps_that_are_far_too_long(name, optimiser, options, dtype):
    """20 Björck steps leave very small singular values below 1, as in the paper, but none may end above 1."""
    make, shape = CONTRACTIONS[name]
    layer = make(dtype=dtype)
    train(layer, shape, 50, optimiser, **options)
    assert singular_values(layer.eval(), *shape)[0] <= 1 + TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["bcop", "bcop s2", "rko", "1d", "transposed", "linear", "linear tall"])
def test_training_writes_the_retracted_parameter_back_and_evaluation_does_not(name):
    layer, x = made(name, dtype=torch.float64)
    assert is_manifold(name)
    matrices = {k: p for k, p in layer.named_parameters() if k != "bias"}
    with torch.no_grad():
        for p in matrices.values():
            p.add_(0.2 * torch.randn_like(p))
    moved = {k: p.detach().clone() for k, p in matrices.items()}
    layer.eval()
    evaluated = layer(x)
    assert all(torch.equal(p, moved[k]) for k, p in matrices.items())
    layer.train()  # the kernel is already built; the parameters must be brought back nevertheless
    trained = layer(x)
    for k, p in matrices.items():
        assert torch.allclose(p, polar(moved[k]), rtol=0, atol=1e-12)
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


def polar(matrix: torch.Tensor) -> torch.Tensor:
    U, _, Vh = torch.linalg.svd(matrix, full_matrices=False)
    return U @ Vh
