"""Critics on the engine: what they optimise, what they are judged by, and that stopping costs nothing."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.known_distances import exact_distance, funnel_pair, translation
from isoconv.models.networks import Generator
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein import DistanceBound, DrawnSamples, FiniteSamples, GeneratedSamples, NearestAnchor
from isoconv.wasserstein.critic import CriticTask, PairBatches, critic_config, train_critics, typical_scale
from isoconv.wasserstein.distance import open_samples
from train.toys import stopped

CPU = torch.device("cpu")


def drawn(pair, count=4000):
    return [DrawnSamples("drawn", (pair.dimension,), draw, count) for draw in (pair.first, pair.second)]


def train(first, second, config, path=None, **options):
    folders = None if path is None else [RunFolder(path)]
    if folders and not options.get("resume"):
        folders[0].start(config, overwrite=False)
    (result,) = train_critics([config], folders, first, second, **options)
    return result


def vectors(model="fc", features=4, fitted=(), **options):
    """A configuration, with the scale that fits two distributions."""
    settings = {"epochs": 3, "steps_per_epoch": 20, "batch_size": 64} | options
    config = critic_config("first", "second", (features,), model, **settings)
    return replace(config, scale=typical_scale(*fitted, config)) if fitted else config


def pictures(n, seed=0, bright=0, shape=(1, 16, 16)):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 128, (n, *shape), generator=generator) + bright).to(torch.uint8)


# The objective ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 3])
def test_columns_are_trained_each_for_itself_and_the_largest_difference_of_means_is_shown(columns):
    model, xs, ys = nn.Linear(4, columns), torch.randn(6, 4), torch.randn(6, 4)
    loss = CriticTask(vectors())(model, xs, ys)
    loss.backward()
    differences = (model(xs) - model(ys)).mean(dim=0)
    assert loss.item() == pytest.approx(-differences.max().item(), abs=1e-6)
    torch.testing.assert_close(model.weight.grad, (ys - xs).mean(dim=0).expand(columns, 4))


def test_bytes_are_pixels_of_the_configurations_range():
    black, white = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    for pixels in ((0.0, 1.0), (-1.0, 1.0)):
        task = CriticTask(critic_config("a", "b", (1, 4, 4), "fc", pixel_range=pixels))
        assert float(task(nn.Sequential(nn.Flatten(), nn.MaxPool1d(16)), white, black)) == pixels[0] - pixels[1]


# What it finds ----------------------------------------------------------------------------------------------------


def test_a_translation_is_found_to_one_per_cent():
    samples = drawn(translation(8, 3.0), 60_000)
    found = train(*samples, vectors("fc", 8, samples, depth=0, lr=0.05, batch_size=256))
    assert found.bound.estimate == pytest.approx(3.0, rel=0.01)
    assert found.bound.lower > 0.98 * 3.0


@pytest.mark.parametrize("sign", [1, -1], ids=["wells", "peaks"])
def test_anchors_find_funnels_whichever_way_up(sign):
    pair = funnel_pair(3, 4, draws=2**15)
    samples = drawn(pair, 20_000)
    config = vectors("anchors", 3, samples, anchors=32, steps_per_epoch=50, epochs=5)
    found = train(*samples[::sign], config, value_range=pair.support)
    assert isinstance(found.critic[-1], NearestAnchor) and found.critic[-1].sign == sign
    assert found.bound.method == "betting"
    assert 0.93 * pair.distance < found.bound.estimate < 1.03 * pair.distance


@pytest.mark.parametrize(("conv", "activation"), [("bcop", "maxmin"), ("rko", "relu"), ("ossn", "maxmin")])
def test_every_method_stays_below_the_exact_distance_of_the_images(conv, activation):
    images = pictures(40), pictures(40, 1, 100)
    settings = {"epochs": 1, "steps_per_epoch": 25, "batch_size": 16, "pixel_range": (-1.0, 1.0)}
    config = critic_config("dark", "light", (1, 16, 16), "small", conv=conv, activation=activation, **settings)
    config = replace(config, lr=0.01 if config.optimiser == "adam" else 0.1)
    found = train(*(FiniteSamples("set", side, whole=True) for side in images), config)
    truth = exact_distance(*(side.double() / 127.5 - 1 for side in images))
    assert found.bound.method == "exact"
    assert 0.3 * truth < found.bound.estimate <= truth


def test_upsampling_is_counted_and_the_paper_recipe_is_the_papers():
    sides = (FiniteSamples("set", pictures(24, k, 90 * k), whole=True) for k in (0, 1))
    paper = partial(critic_config, "d", "l", (1, 16, 16), recipe="paper")
    config = paper("small", activation="relu", upsample=2, epochs=1, steps_per_epoch=2, batch_size=8)
    assert train(*sides, config).bound.lipschitz_bound == pytest.approx(2, rel=0.01)
    config = paper()
    assert (config.optimiser, config.lr, config.schedule, config.batch_size) == ("rmsprop", 1e-4, "exponential", 64)
    assert config.epochs * config.steps_per_epoch == 25_600 and paper(activation="relu").lr == 1e-3
    assert (config.project_every, config.project_iterations) == (100, 50)  # SVCM's


def test_two_critics_side_by_side_are_what_they_are_alone(tmp_path):
    samples = drawn(translation(4, 1.0))
    configs, folders = [vectors(width=16, depth=1, seed=k) for k in (0, 1)], [RunFolder(tmp_path / k) for k in "01"]
    for folder, config in zip(folders, configs, strict=True):
        folder.start(config, overwrite=False)
    first, second = (trained.bound for trained in train_critics(configs, folders, *samples))
    alone = train(*samples, configs[1]).bound
    assert replace(second, train_seconds=0.0, replicas=1) == replace(alone, train_seconds=0.0)
    assert first.estimate != alone.estimate and DistanceBound.read(tmp_path / "0" / "result.json").lower == first.lower


@pytest.mark.parametrize(("model", "stop"), [("fc", 20), ("anchors", 33)])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(model, stop, tmp_path):
    values = torch.randn(150, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    config = vectors(model, width=16, depth=1, anchors=20)

    def run(name, **options):
        first, (_, second) = FiniteSamples("values", values, seed=1), drawn(translation(4, 1.0))
        return train(first, second, config, tmp_path / name, **options)

    whole = run("whole")
    stopped(stop, run, "cut")
    resumed = run("cut", resume=True)
    torch.testing.assert_close(resumed.critic.state_dict(), whole.critic.state_dict(), rtol=0, atol=0)
    assert replace(resumed.bound, train_seconds=0.0) == replace(whole.bound, train_seconds=0.0)
    one, other = ([line["loss"] for line in RunFolder(tmp_path / run).read_metrics()] for run in ("whole", "cut"))
    assert one == other and len(one) == 3


# The samples ------------------------------------------------------------------------------------------------------


def test_what_is_held_out_is_never_trained_on_and_depends_on_the_seed_alone():
    values = torch.arange(100.0)[:, None]
    samples, same, other = (
        FiniteSamples(name, values, held_out=0.3, seed=seed, side="first")
        for name, seed in (("a", 5), ("b", 5), ("a", 6))
    )
    (held,) = samples.judged(0, "first", CPU)
    batches = itertools.chain(*(samples.batches(0, epoch, 10, 16, "first", CPU) for epoch in range(3)))
    seen = torch.cat(list(batches)).flatten().tolist()
    assert len(held) == 30 and not set(held.flatten().tolist()) & set(seen)
    assert {*held.flatten().tolist(), *seen} == set(range(100))
    assert torch.equal(same.readings[0], held) and not torch.equal(other.readings[0], held)


def test_each_pass_over_a_whole_distribution_shows_all_of_it_and_epochs_may_be_cut_anywhere():
    samples = FiniteSamples("numbers", torch.arange(12.0)[:, None], whole=True)
    long = torch.cat(list(samples.batches(0, 0, 9, 4, "first", CPU)))
    parts = [torch.cat(list(samples.batches(0, epoch, 3, 4, "first", CPU))) for epoch in range(3)]
    assert torch.equal(long, torch.cat(parts)) and not torch.equal(parts[0], parts[1])
    for part in (*parts, samples.judged(0, "first", CPU)[0]):
        assert sorted(part.flatten().tolist()) == list(range(12))


def test_batches_come_from_seed_and_epoch_and_the_two_sides_differ():
    first = drawn(translation(3, 1.0))[0]
    pairs = [PairBatches(first, first, vectors(features=3, batch_size=8, steps_per_epoch=4, seed=k)) for k in (2, 2, 3)]
    one, two, three = (list(p.epoch(5)) for p in pairs)
    assert len(pairs[0]) == 4 == len(one)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0][0], one[0][1])  # one distribution on both sides, yet independent draws
    assert not torch.equal(one[0][0], three[0][0]) and not torch.equal(one[0][0], one[1][0])
    assert not torch.equal(first.judged(2, "first", CPU)[0], first.judged(2, "second", CPU)[0])


def test_a_generator_is_judged_by_batches():
    generator = Generator((1, 8, 8))
    samples = GeneratedSamples("generator", generator, count=100, batch=16)
    (judged,) = samples.judged(0, "first", CPU)
    assert samples.group == 16 and len(judged) == 96 and not samples.whole
    assert [len(batch) for batch in samples.batches(0, 0, 3, 24, "first", CPU)] == [24, 24, 24]
    unit = GeneratedSamples("generator", generator, count=16, batch=16, pixel_range=(0.0, 1.0))
    torch.testing.assert_close(unit.judged(0, "first", CPU)[0], (judged[:16] + 1) / 2)


def test_named_data_sets_give_their_training_or_their_test_images():
    train, test = (open_samples(name, reading={"size": 8}, whole=True) for name in ("digits", "digits:test"))
    assert (len(train.train), len(test.train)) == (4000, 1000) and train.shape == (1, 8, 8)
    part = open_samples("digits:train", reading={"size": 8}, held_out=0.1)
    assert len(part.readings[0]) == 400 and part.observations == 400 and train.observations is None
