"""Choosing the learning rate on a validation split of the training set, as the paper did. The test set plays no part."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isoconv.data import ImageSet, hold_out
from isoconv.errors import IsoconvError
from isoconv.train.classifier import train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons
from isoconv.train.distributed import Processes
from isoconv.train.run_folder import RunFolder


def search_learning_rate(
    config: TrainConfig,
    train: ImageSet,
    rates: Sequence[float],
    device: str,
    processes: Processes,
    validation: float = 0.1,
) -> tuple[float, dict[float, tuple[float, float]]]:
    """Return the rate whose network is most robust on the held-out part, and (clean, robust) accuracy for every rate.

    Robust accuracy at the data set's first radius decides, clean accuracy where it is tied. A rate that diverges scores
    nothing; if all do, that is an error.
    """
    kept, held_out = hold_out(train, validation, seed=config.seed)
    radius = default_epsilons(config.data)[0]
    scores: dict[float, tuple[float, float]] = {}
    for rate in rates:
        with tempfile.TemporaryDirectory() as scratch:
            folder = RunFolder(Path(scratch) / "run")
            trial = replace(config, lr=rate)
            folder.start(trial, overwrite=False)
            try:
                (result,) = train_classifiers(
                    [trial], [folder], kept, held_out, [radius], device=device, processes=processes
                )
            except IsoconvError as error:
                if "diverged" not in str(error):
                    raise
                continue
            assert result.clean is not None and result.robust is not None
            scores[rate] = result.clean, result.robust[str(radius)]
    if not scores:
        raise IsoconvError(
            f"Expected a learning rate that trains. All of {', '.join(f'{r:g}' for r in rates)} diverged."
        )
    return max(scores, key=lambda rate: (scores[rate][1], scores[rate][0])), scores
