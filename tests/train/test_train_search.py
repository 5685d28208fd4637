"""Choosing a learning rate on a validation split."""

import pytest

from isoconv.errors import IsoconvError
from isoconv.train import job
from isoconv.train.distributed import Processes
from train.toys import toy, toy_config


def find(rates, **options):
    config = toy_config(optimiser="adam", epochs=2, **options)
    return job.search_learning_rate(config, toy(), rates, "cpu", Processes())


@pytest.mark.parametrize("rates", [[1e-7, 1e-2], [1e-2, 1e-7]], ids=str)
def test_the_better_rate_is_chosen_on_a_part_of_the_training_set_that_is_not_trained_on(rates, tmp_path, monkeypatch):
    calls, train_classifiers = [], job.train_classifiers

    def watched(configs, folders, train, test, *args, **options):
        calls.append((configs[0].lr, train, test))
        return train_classifiers(configs, folders, train, test, *args, **options)

    monkeypatch.setattr(job, "train_classifiers", watched)
    monkeypatch.chdir(tmp_path)
    best, scores = find(rates)
    assert best == 1e-2 and list(tmp_path.iterdir()) == []  # nothing is written
    assert scores.keys() == set(rates) and scores[1e-2] > scores[1e-7]
    assert all(0 <= robust <= clean <= 100 for clean, robust in scores.values())
    assert [lr for lr, _, _ in calls] == rates
    for _, train, test in calls:
        kept, held_out = ({image.numpy().tobytes() for image in part.images} for part in (train, test))
        assert kept | held_out == {image.numpy().tobytes() for image in toy().images} and not kept & held_out
        assert len(test) == 26


def test_rates_that_diverge_are_skipped_and_those_that_are_none_refused():
    best, scores = find([1e20, 1e-3], conv="standard")
    assert best == 1e-3 and scores.keys() == {1e-3}
    with pytest.raises(IsoconvError, match=r"1e\+20, 1e\+25 diverged"):
        find([1e20, 1e25], conv="standard", loss="cross-entropy")
    with pytest.raises(IsoconvError, match="positive"):
        find([1e-3, 0.0])
