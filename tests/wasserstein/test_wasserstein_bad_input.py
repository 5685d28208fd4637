"""What the lower bound refuses, each in one sentence."""

import pytest
import torch
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.vector_critic import AnchorCritics, FCCritic, NearestAnchor

X = torch.linspace(-1, 1, 120).reshape(40, 3)
CRITIC = FCCritic(3, 8, 1)
NAN = X.clone()
NAN[3, 1] = torch.nan

CASES = [
    ({"confidence": 1.0}, "Expected a confidence between 0 and 1, such as 0.95. Got 1.0."),
    ({"method": "guess"}, "Expected method to be one of auto, betting, asymptotic. Got 'guess'."),
    (
        {"method": "betting"},
        r"Expected to know where the values lie \(--range\) for a bound by betting. Got no range.",
    ),
    ({"xs": X[0]}, r"Expected xs as a tensor of samples \(N, …\). Got \(3,\)."),
    ({"ys": X[:0]}, r"Expected ys as a tensor of samples \(N, …\). Got \(0, 3\)."),
    ({"xs": [1.0]}, r"Expected xs as a tensor of samples \(N, …\). Got list."),
    ({"ys": X[:, :2]}, r"Expected xs and ys of one shape. Got samples of shape \(3,\) and \(2,\)."),
    ({"xs": NAN}, "Expected finite numbers in xs. Got NaN or infinity."),
    ({"ys": X.long()}, "Expected ys as bytes or as floating point. Got torch.int64."),
    ({"value_range": (1.0, 0.0)}, r"Expected a value range such as \(−1, 1\). Got \(1.0, 0.0\)."),
    ({"value_range": (0.0, 1.0)}, "Expected values from 0 to 1 in xs. Got -1 to 1."),
    ({"group": (7, 1)}, "Expected a multiple of 7 samples in xs, as many as depend on each other. Got 40."),
    (
        {"ys": X[:10]},
        "Expected at least 30 independent samples of each distribution for an asymptotic interval. Got 10.",
    ),
    (
        {"group": (1, 4)},
        "Expected at least 30 independent samples of each distribution for an asymptotic interval. Got 10.",
    ),
    ({"critic": nn.Sequential(*list(CRITIC)[:-1])}, r"Expected a critic with one output. Got outputs of shape \(8,\)."),
    ({"critic": AnchorCritics(X[:4], X[4:8])}, "Expected modules with a known Lipschitz constant. Got AnchorCritics.*"),
    ({"critic": nn.Sequential(nn.Linear(3, 1), nn.Softmax(1))}, "Expected modules with a known Lipschitz constant.*"),
    ({"xs": X * 1e30}, "Expected samples of norm below 2²⁹, with finite values. Got a norm of .*"),
]


@pytest.mark.parametrize(("changed", "message"), CASES, ids=[message[:60] for _, message in CASES])
def test_refused(changed, message):
    arguments = {"critic": CRITIC, "xs": X, "ys": X} | changed
    with pytest.raises(IsoconvError, match=f"^{message}$"):
        wasserstein_lower_bound(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FCCritic(3, depth=-1), "Expected a depth of at least 0 and a width of at least 1. Got -1 and 256."),
        (lambda: FCCritic(3, width=12), "Expected a group size of at least 2 that divides the width 12. Got 8."),
        (
            lambda: FCCritic(3, activation="tanh"),
            "Expected activation to be one of maxmin, relu, groupsort. Got 'tanh'.",
        ),
        (lambda: NearestAnchor(X[0]), r"Expected anchors as a matrix \(number, features\). Got shape \(3,\)."),
        (
            lambda: NearestAnchor(X, sign=2),
            "Expected a sign of ±1, a heat ≥ 0 and steps ≥ 1. Got 2, 0.0 and 1.",
        ),
    ],
)
def test_critics_that_cannot_be(call, message):
    with pytest.raises(IsoconvError, match=f"^{message}$"):
        call()
