"""Everything that a distance must refuse, in one line that names what is wrong."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from isoconv import wasserstein as w
from isoconv.models.networks import Discriminator, Generator
from isoconv.wasserstein.critic import PairBatches, make_critic, typical_scale
from isoconv.wasserstein.gan import GanConfig
from isoconv.wasserstein.samples import read_samples
from train.toys import refused

X = torch.linspace(-1, 1, 120).reshape(40, 3)
NAN = torch.where(torch.arange(40)[:, None] % 2 > 0, torch.nan, X)
CRITIC, CHANGED = w.FCCritic(3, 8, 1), w.NearestAnchor(X[:1])
CHANGED.sign = 5

# What is passed to the bound instead, and what the message must name.
BOUND = [
    ({"batch_size": 0}, "batch size"),
    *(({"confidence": value}, "confidence") for value in (1.0, "0.9")),
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
    *(({"group": value}, "group") for value in (2, (1.0, 1))),
    ({"group": (7, 1)}, "multiple of 7"),
    *((changes, "30 independent.* Got 10") for changes in ({"ys": X[:10]}, {"group": (1, 4)})),
    ({"critic": nn.Sequential(*list(CRITIC)[:-1])}, "one output"),
    ({"critic": w.AnchorCritics(X[:4], X[4:8])}, "outputs of shape"),
    ({"critic": nn.Sequential(nn.Linear(3, 1), nn.LayerNorm(1))}, "LayerNorm"),
    ({"critic": CHANGED}, "sign of ±1"),
    ({"xs": X * 1e30}, "norm"),
]
critic, samples = partial(w.critic_config, "first", "second", (3,), model="fc"), partial(w.FiniteSamples, "a")
A, B, FLAT = samples(X), w.FiniteSamples("b", X[:, :2]), samples(0 * X, whole=True)
GREY, COLOUR = (w.FiniteSamples(n, torch.rand(4, *s)) for n, s in (("a", (1, 16, 16)), ("b", (3, 8, 8))))
generator, generated = partial(GanConfig, "toy", (1, 8, 8)), partial(w.GeneratedSamples, "g", Generator((1, 8, 8)))

CASES = [
    *(
        (partial(w.wasserstein_lower_bound, **{"critic": CRITIC, "xs": X, "ys": X} | case), word)
        for case, word in BOUND
    ),
    *((partial(critic, model=name), word) for name, word in (("vgg", "vgg"), ("dcgan", "images"))),
    *((partial(critic, **{name: value}), name) for name, value in (("epochs", 0), ("lr", -1.0), ("seed", -1))),
    (partial(critic, upsample=2), "images"),
    (partial(critic, recipe="fast"), "fast"),
    *((partial(generator, **{name: value}), name) for name, value in (("epochs", 0), ("lr", 0.0), ("seed", -1))),
    (partial(generator, batch_size=1), "batch"),
    *((partial(network, (3, 30, 32)), "30×32") for network in (Generator, Discriminator)),
    (partial(Generator, (3, 32)), "input_shape"),
    (partial(w.FCCritic, 3, depth=-1), "depth"),
    (partial(w.FCCritic, 3, width=12), "group size"),
    (partial(w.FCCritic, 3, activation="tanh"), "tanh"),
    (partial(w.NearestAnchor, X[0], 1), "matrix"),
    (partial(w.NearestAnchor, X, 2), "sign"),
    (partial(samples, X[:1]), "at least 2 samples in a"),
    (partial(samples, X, held_out=1.0), "hold out"),
    (partial(samples, X, repeats="never"), "never"),
    (partial(samples, 0 * X, repeats="copies"), "distinct samples in a. Got 1"),
    (partial(generated, count=10), "batch of 64"),
    (partial(generated, batch=1), "at least 2 images"),
    *((partial(read_samples, np.zeros(shape), "a"), f"{shape}"[1:-1]) for shape in ((5,), (2, 3, 4), (0, 3))),
    (partial(read_samples, X.bfloat16(), "a"), "bfloat16"),
    (partial(read_samples, X.to_sparse(), "a"), "sparse"),
    (partial(read_samples, np.full((40, 2), 1e30), "a"), r"1e\+30"),
    (partial(read_samples, NAN, "a"), "in 20 of 40 rows .first: row 1"),
    (partial(read_samples, np.ma.masked_less(X.numpy(), 0), "a"), "masked"),
    (partial(read_samples, np.zeros((4, 1, 8, 8), object), "a"), "object"),
    (lambda: next(A.batches(0, 0, 1, 64, "first", torch.device("cpu"))), "in a. Got 30"),
    (partial(PairBatches, A, B, critic()), "dimension 3 in a"),
    (partial(PairBatches, GREY, COLOUR, critic()), "grey images of 16×16 in a and colour images of 8×8 in b"),
    (partial(typical_scale, FLAT, FLAT, critic(batch_size=4)), "apart"),
    (partial(make_critic, critic(conv="standard"), A, A), "standard"),
]


@pytest.mark.parametrize(("call", "word"), CASES, ids=[word for _, word in CASES])
def test_refused(call, word):
    refused(word, call)
