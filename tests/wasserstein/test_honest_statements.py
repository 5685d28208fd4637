"""What is said holds: repeated rows prove nothing, an asymptotic interval is an estimate, each assumption is stated."""

import math
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch

from isoconv.data import load_splits
from isoconv.errors import IsoconvError
from isoconv.models.networks import Generator
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein import DistanceBound, distance_bound
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.samples import FiniteSamples, read_samples
from isoconv.wasserstein.vector_critic import NearestAnchor
from train.toys import refused

ANCHORS = {"epochs": 3, "batch_size": 64, "critic": "anchors", "anchors": 64}
TWO = {"epochs": 1, "batch_size": 16, "steps_per_epoch": 10}  # both critics for vectors
QUICK = {**TWO, "width": 16, "depth": 1}
CPU = torch.device("cpu")


def uniform(n, seed, dimension=8):
    return torch.rand(n, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Repeated rows ----------------------------------------------------------------------------------------------------


def test_rows_that_were_copied_fifty_times_prove_nothing():
    """Taken for independent draws they "prove" a distance that is not there: the other readings are not idle.

    Where there is one, copies prove it.
    """
    a, b = (uniform(40, seed).repeat_interleave(50, dim=0) for seed in (0, 1))
    options = {"value_range": (0, 1), **ANCHORS, "batch_size": 16, "confidence": 0.9999}
    either, copies, draws = (distance_bound(a, b, repeats=name, **options) for name in ("either", "copies", "draws"))
    assert either.lower == copies.lower == 0 and either.method == "betting" and draws.lower > 0.3
    assert any("1,960 of 2,000 samples in a repeat" in warning for warning in either.warnings)
    a, b = (uniform(400, k).repeat_interleave(3, dim=0) / 2 + k / 2 for k in (0, 1))
    for repeats in ("either", "copies"):
        result = distance_bound(a, b, value_range=(0, 1), repeats=repeats, **ANCHORS)
        assert 0.3 < result.lower < math.sqrt(2)


@pytest.mark.parametrize(("dimension", "offset"), [(1, 0.0), (8, 1e5), (512, 0.0)])
def test_copies_that_were_rounded_differently_are_copies(dimension, offset):
    values, noise = uniform(80, 0, dimension).repeat(5, 1), uniform(400, 1, dimension)
    assert FiniteSamples("a", offset + values + 1e-15 * max(offset, 1) * noise).repeated.startswith("320 of 400")
    values[:80] += 1e-3 * noise[:80]
    assert FiniteSamples("a", offset + values).repeated.startswith("240 of 400")


def test_a_rare_value_that_leaves_nothing_to_train_on_is_said():
    for seed in range(40):
        with suppress(IsoconvError):
            samples = FiniteSamples("a", torch.eye(12)[:, :1], seed=seed)
            assert len(samples.train) and min(map(len, samples.readings))


def test_images_in_any_layout_are_the_same_images():
    images = load_splits("digits").test.images[:40].numpy()
    expected = read_samples(images, "a").fingerprint()
    for layout in (images[::-1].copy()[::-1], np.moveaxis(np.moveaxis(images, 0, 3).copy(), 3, 0)):
        assert read_samples(layout, "a").fingerprint() == expected
    one, other = (read_samples(part, "a").fingerprint() for part in ((images / 255).astype(">f8"), images / 255))
    assert one == other


def test_no_copy_of_a_judged_row_is_trained_on_and_each_counts_once():
    values = uniform(300, 0, 2)[torch.arange(900) % 300 // (1 + torch.arange(900) % 2)]
    samples = FiniteSamples("rows", values, seed=3)
    judged = samples.judged(0, "first", CPU)
    rows, trained = ({tuple(row) for row in part.tolist()} for part in (judged[1], samples.train))
    assert len(rows) == len(judged[1]) == samples.observations and not rows & trained
    assert len(rows) == pytest.approx(75, abs=25)
    assert len(judged[0]) == 225  # if they are draws: the split as it would be without repeats
    plain = FiniteSamples("rows", values, seed=3, repeats="draws")
    assert torch.equal(plain.readings[0], judged[0]) and len(plain.readings) == 1
    single = FiniteSamples("rows", values, seed=3, repeats="copies")
    both = [*single.train.tolist(), *single.readings[0].tolist()]
    assert len(both) == len({tuple(row) for row in both}) == len({tuple(row) for row in values.tolist()})


def test_minus_zero_repeats_zero_and_samples_without_repeats_are_split_as_ever():
    values = uniform(50, 0, 3)
    assert not FiniteSamples("a", values).repeated
    assert torch.equal(FiniteSamples("a", values).train, FiniteSamples("a", values, repeats="draws").train)
    values[7], values[9] = 0.0, -0.0
    assert "row 9 repeats row 7" in FiniteSamples("a", values).repeated
    around = torch.tensor([[-1.0], [1.0], [1e-20], [-1e-20]])  # the last two round to 0 and to −0
    assert "row 3 repeats row 2" in FiniteSamples("a", around, repeats="draws").repeated
    assert not FiniteSamples("a", values, whole=True).repeated


def test_a_law_with_atoms_is_bounded_if_its_repeats_may_be_either():
    """Poisson vectors, 4,000 of one sample and 200 of the other: the distinct rows of the two differ, the laws do not."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.poisson(torch.full((n, 3), 1.5), generator=generator).clamp(max=9).double() for n in (4000, 200))
    assert distance_bound(a, b, value_range=(0, 9), **ANCHORS).lower == 0


def test_too_few_distinct_rows_are_said_to_be_too_few():
    coins = (uniform(200, 0, 1) < 0.5).double()
    few = uniform(60, 0).repeat_interleave(4, dim=0)
    for samples, word in ((coins, "distinct samples"), (few, "30 independent samples")):
        refused(rf"{word}.* repeat others .*--repeats", distance_bound, samples, samples, **ANCHORS, seed=1)
    assert distance_bound(coins, coins + 1, repeats="draws", **ANCHORS).estimate == pytest.approx(1, abs=0.2)


# Estimates, assumptions, warnings ---------------------------------------------------------------------------------


def test_an_asymptotic_interval_is_an_estimate_and_no_inequality():
    a, b = uniform(200, 0), uniform(200, 1) + 1
    options = TWO | {"critic": "anchors", "anchors": 8}
    estimate = distance_bound(a, b, **options)
    assert not estimate.proved and str(estimate).startswith("Estimate: ")
    assert "≥" not in str(estimate) and "independent" in str(estimate)
    for known, assumed in (({"value_range": (0, 2)}, True), ({"whole": (True, True)}, False)):
        bound = distance_bound(a, b, **known, **options)
        assert bound.proved and str(bound).startswith("W1 ≥ ") and ("independent" in str(bound)) == assumed
    same = distance_bound(a, uniform(200, 2), value_range=(0, 2), **options)
    assert same.lower == 0 and "says nothing" in str(same) and "says nothing" not in str(bound)


def test_images_have_a_range_so_their_bound_holds_for_every_sample_size():
    images = (255 * uniform(60, 0, 64)).to(torch.uint8).reshape(60, 1, 8, 8)
    options = {"critic": "small", "epochs": 1, "steps_per_epoch": 2, "batch_size": 8}
    for a, b in ((images, 255 - images), (images / 127.5 - 1, images.flip(2) / 127.5 - 1)):
        assert distance_bound(a, b, **options).method == "betting"
    refused("from -1 to 1 in a", distance_bound, images / 1.0, images / 255, **options)


@pytest.mark.parametrize("n", [30, 1000])
def test_heavy_tails_and_a_variance_of_zero_are_warnings(n):
    generator = torch.Generator().manual_seed(0)
    normal, other, third = (torch.randn(n, 1, generator=generator) for _ in range(3))
    rare, one = (torch.arange(n)[:, None] < 2).float(), torch.ones(n, 1)

    def warnings(xs, ys, **options):
        return " ".join(wasserstein_lower_bound(NearestAnchor(torch.zeros(1, 1)), xs, ys, **options).warnings)

    assert "tail" in warnings(rare, 0.01 * normal) and "tail" in warnings(other / third, 0.01 * normal)
    assert "variance" in warnings(one, 0 * one) and not warnings(one, 0 * one, whole=(True, True))
    assert not warnings(normal, other + 1) and not warnings(rare, normal.clamp(-1, 1), value_range=(-1, 1))


# One call ---------------------------------------------------------------------------------------------------------


def test_one_call_takes_what_is_in_memory():
    a, b = uniform(120, 0, 3), uniform(120, 1, 3) + 1
    tensors, arrays = distance_bound(a, b, **QUICK), distance_bound(a.numpy(), b.float().numpy(), **QUICK)
    assert tensors.estimate == pytest.approx(arrays.estimate, rel=1e-5) and tensors.first == "a"
    digits, generator = load_splits("digits", size=8).test, Generator((1, 8, 8))
    options = {"whole": (True, False), "critic": "small", "count": 128, "epochs": 1, "steps_per_epoch": 2}
    images = distance_bound(digits, generator, batch_size=16, **options)
    assert images.samples == (1000, 128) and images.observations == (1000, 2) and images.method == "betting"
    refused("Got int", distance_bound, a, 3)


def test_a_translation_is_found_wherever_and_however_large_the_vectors_are():
    generator = torch.Generator().manual_seed(0)
    a, b = (1000 * (torch.randn(600, 3, generator=generator) + k) + 1e6 for k in (0, 1))
    result = distance_bound(a, b, epochs=3, batch_size=64, width=16, depth=1)
    assert result.lower < 1000 * math.sqrt(3) and result.estimate == pytest.approx(1000 * math.sqrt(3), rel=0.15)


@pytest.mark.parametrize("option", [{"depth": 1}, {"activation": "relu"}, {"lr": 0.1}, {"anchors": 4}], ids=str)
def test_an_option_of_one_critic_asks_for_that_one(option):
    result = distance_bound(uniform(120, 0), uniform(120, 1), **TWO, **option)
    assert result.model == ("anchors" if "anchors" in option else "fc") and not result.critics


def test_vectors_have_two_critics_at_half_the_risk_each_which_are_resumed_where_they_were_stopped(tmp_path):
    a, b, run = uniform(120, 0), uniform(120, 1) + 1, tmp_path / "run"
    first = distance_bound(a, b, folder=run, confidence=0.9, **TWO)
    each = {name: DistanceBound.read(run / name / "result.json") for name in ("fc", "anchors")}
    assert [bound.confidence for bound in each.values()] == [pytest.approx(0.95)] * 2 and first.confidence == 0.9
    assert first.lower == max(bound.lower for bound in each.values()) == each[first.model].lower
    assert {name: figures.estimate for name, figures in first.critics.items()} == {n: each[n].estimate for n in each}
    assert sorted(path.name for path in run.iterdir()) == ["anchors", "fc", "result.json"]
    assert DistanceBound.read(run / "result.json") == first and (run / "anchors" / "estimate.png").exists()
    for path in (run / "anchors").iterdir():  # as if stopped in between
        if path.name != "config.json":
            path.unlink()
    kept = (run / "fc" / "state.safetensors").stat().st_mtime_ns
    again = distance_bound(a, b, folder=run, resume=True)
    assert again.critics == first.critics and (run / "fc" / "state.safetensors").stat().st_mtime_ns == kept
    shutil.rmtree(run / "anchors")
    refused("resume in .*anchors. There is none", distance_bound, a, b, folder=run, resume=True)
    with pytest.raises(ZeroDivisionError):  # a run that is started anew has no result until it ends
        distance_bound(a, b, folder=run, overwrite=True, watch=lambda config, done: 1 / 0, **TWO)
    assert not (run / "result.json").exists()
    distance_bound(a, b, folder=tmp_path / "one", **QUICK)
    for folder, words, options in (
        (run, "run/fc already holds a run", TWO),
        (run, "run holds other files", QUICK | {"overwrite": True}),  # one critic and two do not share a folder
        (tmp_path / "one", "one already holds a run of one", TWO | {"overwrite": True}),
    ):
        refused(words, distance_bound, a, b, folder=folder, **options)


def test_a_run_is_resumed_with_its_options_and_its_samples_and_no_others(tmp_path):
    """Of other samples, others would be held out, and a critic could be judged by what it was trained on."""
    a, b, run = uniform(120, 0, 3), uniform(120, 1, 3) + 1, {"folder": tmp_path / "run", **QUICK}
    first = distance_bound(a, b, **run)
    assert DistanceBound.read(tmp_path / "run" / "result.json").lower == first.lower
    again = distance_bound(a, b, resume=True, folder=run["folder"])
    assert again.lower == first.lower and again.updates == RunFolder(tmp_path / "run").updates_done() == 10
    for options in ({"seed": 1}, {"held_out": 0.5}, {"whole": (True, False)}):  # these change what is held out
        refused("the run that is resumed", distance_bound, a, b, resume=True, **run, **options)
    refused("the folder of the run to resume", distance_bound, a, b, resume=True)
    for pair, name in (((a + 1e-9, b), "a"), ((a, b[:-1]), "b")):
        refused(f"{name} has changed", distance_bound, *pair, resume=True, **run)
    assert distance_bound(a, b, overwrite=True, **run).lower == first.lower
