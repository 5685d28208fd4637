"""Critics on the engine: what they optimise, what they are judged by, and that stopping costs nothing."""

import itertools
import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.models.generator import Generator
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.critic import (
    CriticConfig,
    CriticTask,
    critic_config,
    make_critic,
    train_critics,
    typical_scale,
)
from isoconv.wasserstein.distance import open_samples
from isoconv.wasserstein.samples import DrawnSamples, FiniteSamples, GeneratedSamples, PairBatches
from isoconv.wasserstein.vector_critic import NearestAnchor
from known_distances import funnel_pair, translation
from train.toys import stop_after


def drawn(pair, count=4000):
    shape = (pair.dimension,)
    return DrawnSamples("first", shape, pair.first, count), DrawnSamples("second", shape, pair.second, count)


def trained(path, first, second, config, **options):
    folder = RunFolder(path)
    if not options.get("resume"):
        folder.start(config, overwrite=False)
    (result,) = train_critics([config], [folder], first, second, **options)
    return result


def vectors(model="fc", **options):
    settings = {"epochs": 3, "steps_per_epoch": 20, "batch_size": 64} | options
    return critic_config("first", "second", (settings.pop("features", 4),), model, **settings)


def pictures(n, seed=0, bright=0, shape=(1, 16, 16)):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 128, (n, *shape), generator=generator) + bright).to(torch.uint8)


# The objective ----------------------------------------------------------------------------------------------------


def test_the_loss_is_minus_the_difference_of_means():
    config = vectors()
    model = nn.Linear(4, 1)
    xs, ys = torch.randn(6, 4), torch.randn(6, 4)
    loss = CriticTask(config)(model, xs, ys)
    assert loss.item() == pytest.approx((model(ys).mean() - model(xs).mean()).item(), abs=1e-6)


def test_several_columns_are_trained_each_for_itself_and_the_best_is_shown():
    model = nn.Linear(4, 3)
    xs, ys = torch.randn(6, 4), torch.randn(6, 4)
    loss = CriticTask(vectors())(model, xs, ys)
    loss.backward()
    differences = (model(xs) - model(ys)).mean(dim=0)
    assert loss.item() == pytest.approx(-differences.max().item(), abs=1e-6)
    expected = (ys - xs).mean(dim=0).expand(3, 4)
    torch.testing.assert_close(model.weight.grad, expected)


def test_bytes_are_pixels_of_the_configurations_range():
    config = CriticConfig("a", "b", (1, 4, 4), model="fc", pixel_range=(0.0, 1.0))
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x.flatten(1).sum(dim=1, keepdim=True)

    black, white = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    CriticTask(config)(Model(), white, black)
    CriticTask(replace(config, pixel_range=(-1.0, 1.0)))(Model(), white, black)
    assert [float(x.min()) for x in seen] == [0, -1] and [float(x.max()) for x in seen] == pytest.approx([1, 1])
    assert all(x.dtype == torch.float32 for x in seen)


# What it finds ----------------------------------------------------------------------------------------------------


def test_a_translation_is_found_to_one_per_cent(tmp_path):
    pair = translation(8, 3.0)
    first, second = drawn(pair, 60_000)
    config = vectors(features=8, depth=0, lr=0.05, batch_size=256)
    found = trained(tmp_path / "run", first, second, replace(config, scale=typical_scale(first, second, config)))
    assert found.bound.estimate == pytest.approx(3.0, rel=0.01)
    assert found.bound.lower > 0.98 * 3.0


@pytest.mark.parametrize("swapped", [False, True], ids=["wells", "peaks"])
def test_anchors_find_funnels_whichever_way_up(swapped, tmp_path):
    pair = funnel_pair(3, 4, draws=2**15)
    first, second = drawn(pair, 20_000)
    config = vectors("anchors", features=3, anchors=32, steps_per_epoch=50, epochs=5)
    config = replace(config, scale=typical_scale(first, second, config))
    pair_of_samples = (second, first) if swapped else (first, second)
    found = trained(tmp_path / "run", *pair_of_samples, config, value_range=pair.support)
    assert isinstance(found.critic[-1], NearestAnchor) and found.critic[-1].sign == (-1 if swapped else 1)
    assert found.bound.method == "betting"
    assert 0.93 * pair.distance < found.bound.estimate < 1.03 * pair.distance


@pytest.mark.parametrize(
    ("conv", "activation"), [("bcop", "maxmin"), ("rko", "relu"), ("ossn", "maxmin"), ("svcm", "relu")]
)
def test_every_method_stays_below_the_exact_distance_of_the_images(conv, activation, tmp_path):
    dark, light = pictures(40), pictures(40, 1, 100)
    first, second = FiniteSamples("dark", dark, whole=True), FiniteSamples("light", light, whole=True)
    settings = {"epochs": 1, "steps_per_epoch": 40, "batch_size": 16, "pixel_range": (-1.0, 1.0)}
    config = critic_config("dark", "light", (1, 16, 16), "small", conv=conv, activation=activation, **settings)
    config = replace(config, lr=0.01 if config.optimiser == "adam" else 0.1)
    found = trained(tmp_path / "run", first, second, config)
    scaled = [side.double().flatten(1) / 127.5 - 1 for side in (dark, light)]
    cost = torch.cdist(*scaled).numpy()
    truth = float(cost[linear_sum_assignment(cost)].mean())
    assert found.bound.method == "exact"
    assert 0.3 * truth < found.bound.estimate <= truth
    assert found.bound.units == "L2 distance between images of 1×16×16, pixels from -1 to 1"


def test_upsampling_is_counted_and_the_paper_recipe_is_the_papers(tmp_path):
    first, second = (
        FiniteSamples("dark", pictures(24), whole=True),
        FiniteSamples("light", pictures(24, 1, 90), whole=True),
    )
    paper = partial(critic_config, "d", "l", (1, 16, 16), recipe="paper")
    config = paper("small", activation="relu", upsample=2, epochs=1, steps_per_epoch=2, batch_size=8)
    assert trained(tmp_path / "run", first, second, config).bound.lipschitz_bound == pytest.approx(2, rel=0.01)
    config = paper()
    assert (config.optimiser, config.lr, config.schedule, config.batch_size) == ("rmsprop", 1e-4, "exponential", 64)
    assert config.epochs * config.steps_per_epoch == 25_600 and paper(activation="relu").lr == 1e-3


def test_two_critics_side_by_side_are_what_they_are_alone(tmp_path):
    first, second = drawn(translation(4, 1.0))
    configs = [vectors(width=16, depth=1, seed=seed) for seed in (0, 1)]
    folders = [RunFolder(tmp_path / str(config.seed)) for config in configs]
    for folder, config in zip(folders, configs, strict=True):
        folder.start(config, overwrite=False)
    together = train_critics(configs, folders, first, second)
    alone = trained(tmp_path / "alone", first, second, configs[1])
    same = {"train_seconds": 0.0, "replicas": 1}
    assert replace(together[1].bound, **same) == replace(alone.bound, **same)
    assert together[0].bound.estimate != alone.bound.estimate
    assert json.loads((tmp_path / "0" / "result.json").read_text())["lower"] == together[0].bound.lower


# Stopping and going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "stop"), [("fc", 7), ("fc", 20), ("anchors", 33)])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(model, stop, tmp_path):
    values = torch.randn(150, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    second = drawn(translation(4, 1.0))[1]
    config = vectors(model, width=16, depth=1, anchors=20)

    def first():
        return FiniteSamples("values", values, seed=1)

    whole = trained(tmp_path / "whole", first(), second, config)
    with pytest.raises(Stopped):
        trained(tmp_path / "cut", first(), second, config, should_stop=stop_after(stop))
    resumed = trained(tmp_path / "cut", first(), second, config, resume=True)
    for name, value in whole.critic.state_dict().items():
        assert torch.equal(value, resumed.critic.state_dict()[name]), name
    assert replace(resumed.bound, train_seconds=0.0) == replace(whole.bound, train_seconds=0.0)
    lines = [
        [json.loads(line)["loss"] for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "cut")
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 3


# The samples ------------------------------------------------------------------------------------------------------


def test_what_is_held_out_is_never_trained_on_and_depends_on_the_seed_alone():
    values = torch.arange(100.0)[:, None]
    samples = FiniteSamples("numbers", values, held_out=0.3, seed=5, side="first")
    held = set(samples.judged(0, "first", torch.device("cpu"))[0].flatten().tolist())
    seen = set()
    for epoch in range(3):
        for batch in samples.batches(0, epoch, 10, 16, "first", torch.device("cpu")):
            seen |= set(batch.flatten().tolist())
    assert len(held) == 30 and not held & seen and held | seen == set(range(100))
    same = FiniteSamples("others", values, held_out=0.3, seed=5, side="first")
    other = FiniteSamples("numbers", values, held_out=0.3, seed=6, side="first")
    assert torch.equal(same.readings[0], samples.readings[0])
    assert not torch.equal(other.readings[0], samples.readings[0])


def test_a_whole_distribution_is_trained_on_and_judged_by_all_of_it():
    values = torch.arange(10.0)[:, None]
    samples = FiniteSamples("numbers", values, whole=True)
    judged = samples.judged(0, "first", torch.device("cpu"))
    assert samples.whole and torch.equal(judged[0], values)
    seen = torch.cat(list(samples.batches(0, 0, 2, 5, "first", torch.device("cpu"))))
    assert sorted(seen.flatten().tolist()) == list(range(10))


def test_each_pass_shows_every_sample_once_and_epochs_may_be_cut_anywhere():
    samples = FiniteSamples("numbers", torch.arange(12.0)[:, None], whole=True)
    device = torch.device("cpu")
    long = list(samples.batches(0, 0, 9, 4, "first", device))
    parts = list(itertools.chain(*(samples.batches(0, epoch, 3, 4, "first", device) for epoch in range(3))))
    assert all(torch.equal(a, b) for a, b in zip(long, parts, strict=True))
    for k in range(0, 9, 3):
        assert sorted(torch.cat(long[k : k + 3]).flatten().tolist()) == list(range(12))
    assert not torch.equal(torch.cat(long[:3]), torch.cat(long[3:6]))


def test_batches_come_from_seed_and_epoch_and_the_two_sides_differ():
    first = drawn(translation(3, 1.0))[0]
    pairs = PairBatches(first, first, 8, 4, seed=2)
    again = PairBatches(first, first, 8, 4, seed=2)
    other = PairBatches(first, first, 8, 4, seed=3)
    one, two, three = (list(p.epoch(5)) for p in (pairs, again, other))
    assert len(pairs) == 4 == len(one)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0][0], one[0][1])  # one distribution on both sides, yet independent draws
    assert not torch.equal(one[0][0], three[0][0]) and not torch.equal(one[0][0], one[1][0])
    device = torch.device("cpu")
    assert not torch.equal(first.judged(2, "first", device)[0], first.judged(2, "second", device)[0])


def test_a_generator_is_judged_by_batches():
    torch.manual_seed(0)
    generator = Generator((1, 8, 8))
    samples = GeneratedSamples("generator", generator, count=100, batch=16)
    judged = samples.judged(0, "first", torch.device("cpu"))
    assert samples.group == 16 and len(judged[0]) == 96 and not samples.whole
    batches = list(samples.batches(0, 0, 3, 24, "first", torch.device("cpu")))
    assert [len(batch) for batch in batches] == [24, 24, 24]
    unit = GeneratedSamples("generator", generator, count=16, batch=16, pixel_range=(0.0, 1.0))
    images = unit.judged(0, "first", torch.device("cpu"))[0]
    torch.testing.assert_close(images, (judged[0][:16] + 1) / 2)
    bound = wasserstein_lower_bound(
        make_critic(vectors(features=64), samples, samples),
        judged[0],
        judged[0],
        group=(16, 16),
        value_range=(-1, 1),
    )
    assert bound.observations == (6, 6)


def test_named_data_sets_give_their_training_or_their_test_images():
    train, test = (open_samples(name, reading={"size": 8}, whole=True) for name in ("digits", "digits:test"))
    assert (len(train.train), len(test.train)) == (4000, 1000) and train.shape == (1, 8, 8)
    part = open_samples("digits:train", reading={"size": 8}, held_out=0.1)
    assert len(part.readings[0]) == 400 and part.observations == 400 and train.observations is None


def test_the_scale_makes_learning_rates_fit_data_of_any_size(tmp_path):
    pair = translation(4, 2.0)
    estimates = []
    for size in (1.0, 1024.0):
        first, second = (
            DrawnSamples("s", (4,), lambda n, g, draw=draw, size=size: size * draw(n, g), 2000)
            for draw in (pair.first, pair.second)
        )
        config = vectors(width=16, depth=1)
        config = replace(config, scale=typical_scale(first, second, config))
        estimates.append(trained(tmp_path / str(size), first, second, config).bound.estimate)
    assert estimates[1] == pytest.approx(1024 * estimates[0], rel=1e-5)


# Bad input --------------------------------------------------------------------------------------------------------

X = torch.arange(60.0).reshape(20, 3)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: vectors(model="vgg"), "vgg"),
        (lambda: vectors(epochs=0), "epochs"),
        (lambda: vectors(lr=-1.0), "lr"),
        (lambda: vectors(seed=-1), "seed"),
        (lambda: vectors(model="dcgan"), "images"),
        (lambda: vectors(upsample=2), "images"),
        (lambda: vectors(recipe="fast"), "fast"),
        (lambda: FiniteSamples("few", X[:1]), "few"),
        (lambda: FiniteSamples("a", X, repeats="never"), "never"),
        (lambda: FiniteSamples("a", X, held_out=1.0), "hold out"),
        (lambda: next(FiniteSamples("few", X).batches(0, 0, 1, 64, "first", torch.device("cpu"))), "few.* Got 15"),
        (lambda: PairBatches(FiniteSamples("a", X), FiniteSamples("b", X[:, :2]), 4, 1), "dimension 3 in a"),
        (
            lambda: PairBatches(
                FiniteSamples("a", pictures(4)), FiniteSamples("b", pictures(4, shape=(3, 8, 8))), 2, 1
            ),
            "grey images of 16×16 in a and colour images of 8×8 in b",
        ),
        (
            lambda: typical_scale(*(FiniteSamples("a", 0 * X, whole=True),) * 2, vectors(features=3, batch_size=4)),
            "differ",
        ),
        (
            lambda: make_critic(vectors(conv="standard"), FiniteSamples("a", X), FiniteSamples("b", X)),
            "standard",
        ),
        (lambda: GeneratedSamples("g", Generator((1, 8, 8)), count=10), "batch of 64"),
    ],
)
def test_refused(call, word):
    with pytest.raises(IsoconvError, match=word):
        call()
