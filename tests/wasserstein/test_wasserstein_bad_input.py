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
    ({"batch_size": 0}, "batch size"),
    ({"confidence": 1.0}, "confidence"),
    ({"confidence": "0.9"}, "confidence"),
    ({"method": "guess"}, "guess"),
    ({"method": "betting"}, "range"),
    ({"xs": X[0]}, "xs as a tensor"),
    ({"ys": X[:0]}, "ys as a tensor"),
    ({"xs": [1.0]}, "list"),
    ({"ys": X[:, :2]}, "one shape"),
    ({"xs": NAN}, "finite numbers in xs"),
    ({"ys": X.long()}, "int64"),
    *(({"value_range": values}, "value range") for values in ((1.0, 0.0), "ab", (None, 1))),
    ({"value_range": (0.0, 1.0)}, "from 0 to 1 in xs. Got -1 to 1"),
    ({"whole": True}, "whole"),
    ({"group": 2}, "group"),
    ({"group": (1.0, 1)}, "group"),
    ({"group": (7, 1)}, "multiple of 7"),
    ({"ys": X[:10]}, "30 independent.* Got 10"),
    ({"group": (1, 4)}, "30 independent.* Got 10"),
    ({"critic": nn.Sequential(*list(CRITIC)[:-1])}, "one output"),
    ({"critic": AnchorCritics(X[:4], X[4:8])}, "AnchorCritics"),
    ({"critic": nn.Sequential(nn.Linear(3, 1), nn.Softmax(1))}, "Softmax"),
    ({"xs": X * 1e30}, "norm"),
]


@pytest.mark.parametrize(("changed", "word"), CASES, ids=[word for _, word in CASES])
def test_refused(changed, word):
    arguments = {"critic": CRITIC, "xs": X, "ys": X} | changed
    with pytest.raises(IsoconvError, match=word):
        wasserstein_lower_bound(**arguments)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: FCCritic(3, depth=-1), "depth"),
        (lambda: FCCritic(3, width=12), "group size"),
        (lambda: FCCritic(3, activation="tanh"), "tanh"),
        (lambda: NearestAnchor(X[0]), "matrix"),
        (lambda: NearestAnchor(X, sign=2), "sign"),
    ],
)
def test_critics_that_cannot_be(call, word):
    with pytest.raises(IsoconvError, match=word):
        call()


def test_a_sign_that_was_changed():
    anchor = NearestAnchor(X[:1])
    anchor.sign = 5
    with pytest.raises(IsoconvError, match="sign of ±1"):
        wasserstein_lower_bound(nn.Sequential(anchor), X, X, whole=(True, True))
