"""Choosing a learning rate on a validation split."""

import pytest

from isoconv.errors import IsoconvError
from isoconv.train import job
from isoconv.train.distributed import Processes
from isoconv.train.job import search_learning_rate
from train.toys import toy, toy_config


def find(rates, **options):
    config = toy_config(optimiser="adam", epochs=2, **options)
    return search_learning_rate(config, toy(), rates, "cpu", Processes())


@pytest.mark.parametrize("rates", [[1e-7, 1e-2], [1e-2, 1e-7]], ids=str)
def test_the_better_rate_is_chosen_whatever_the_order(rates, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best, scores = find(rates)
    assert best == 1e-2 and list(tmp_path.iterdir()) == []  # nothing is written
    assert scores.keys() == set(rates)
    assert scores[1e-2] > scores[1e-7]
    assert all(0 <= robust <= clean <= 100 for clean, robust in scores.values())


def test_it_trains_on_one_part_of_the_training_set_and_judges_on_the_rest(monkeypatch):
    calls = []
    original = job.train_classifiers

    def watched(configs, folders, train, test, *args, **options):
        calls.append((configs[0].lr, train, test))
        return original(configs, folders, train, test, *args, **options)

    monkeypatch.setattr(job, "train_classifiers", watched)
    find([1e-3, 1e-2])
    whole = {image.numpy().tobytes() for image in toy().images}
    assert [lr for lr, _, _ in calls] == [1e-3, 1e-2]
    for _, train, test in calls:
        kept, held_out = ({image.numpy().tobytes() for image in part.images} for part in (train, test))
        assert kept | held_out == whole and not kept & held_out
        assert len(test) == 26


def test_rates_that_diverge_are_skipped_and_those_that_are_none_refused():
    best, scores = find([1e20, 1e-3], conv="standard")
    assert best == 1e-3 and scores.keys() == {1e-3}
    with pytest.raises(IsoconvError, match=r"1e\+20, 1e\+25 diverged"):
        find([1e20, 1e25], conv="standard", loss="cross-entropy")
    with pytest.raises(IsoconvError, match="positive"):
        find([1e-3, 0.0])
