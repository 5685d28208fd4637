"""Three small networks on digits, trained, certified and attacked side by side: the demo, and its page."""

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from isoconv.certify import Certifier
from isoconv.data import ImageSet, as_float, load_splits
from isoconv.errors import require
from isoconv.files import read_json, write_json
from isoconv.pretrained import load_pretrained
from isoconv.records import Count, Percent, Record, Size
from isoconv.report.page import check_replaceable, write_page
from isoconv.train.classifier import Say, train
from isoconv.train.diagnostics import complete_run
from isoconv.train.engine import EpochReport, Silent
from isoconv.train.runs import Prediction, open_run, refuse_violations

SHIPPED = "mnist-large"  # the network that is shown before anything is trained

_FIRST = 5  # how many digits it classifies
_STEPS = 20  # of PGD, each a fifth of the budget: the paper's 200 steps of 0.01 would take ten times as long
_OTHER_BUDGETS = (1.0,)  # a point of PGD's curve on the page, beside the table's own
_MARK = "isoconv demo"  # in demo.json: this folder was made by the demo, which may fill it again
# Wide margins: on held-out training digits 12 points more certified than by the recipe, for less than one of clean accuracy
# (results/record/digits-small-trials.json).
_WIDE = {"lr": 0.04, "offset": 1.5 * math.sqrt(2), "temperature": 0.25, "augment": (0.5, 0.3)}
# The ordinary network is trained as people train one: ReLU, and cross-entropy without a margin. Of the rates 0.001, 0.003,
# 0.01 and 0.02, with and without crops, this was the best on 400 held-out training digits.
_ORDINARY = {"conv": "standard", "activation": "relu", "temperature": 1.0, "offset": 0.0, "lr": 0.01}
_NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bcop": ("BCOP: orthogonal convolutions", {"conv": "bcop", **_WIDE}),
    "rko": ("RKO: reshaped kernels", {"conv": "rko", **_WIDE}),
    "ordinary": ("ordinary network", _ORDINARY),
}

_lines: "SimpleQueue[str | None]"  # of a process that trains: what it has to say


@dataclass(frozen=True)
class DemoRow(Record):
    """What the demo found out about one network, on so many images. Accuracies are in percent, certified at `epsilon`.

    pgd, fgsm : accuracy under these attacks, with a budget of `epsilon`
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound",)

    network: str
    run: str
    images: Count
    epsilon: Size
    clean: Percent
    certified: Percent
    lipschitz_bound: Size
    pgd: Percent
    fgsm: Percent
    train_seconds: Size


def write_demo(
    out: Path | str = "isoconv-demo",
    *,
    epochs: int = 15,
    images: int = 1000,
    say: Say = lambda line: None,
    show_first: Callable[[Sequence[Prediction]], None] | None = None,
) -> list[DemoRow]:
    """Train two 1-Lipschitz networks and an ordinary one on digits, certify and attack them, write `out`/report.html.

    It takes less than a minute on two CPU cores and needs no download.

    out : a new folder, or one of an earlier demo, which is replaced
    epochs, images : passes over the 4,000 training digits; how many of the 1,000 test digits to certify and attack
    say : called with lines worth showing
    show_first : called, within seconds, with what a network that comes with isoconv says of some digits, named as they are
    """
    out, test = Path(out), load_splits("digits").test
    require(1 <= images <= len(test), f"from 1 to {len(test):,} images", images)
    require(epochs >= 1, "epochs of at least 1", epochs)
    _claim(out)
    page = out / "report.html"
    check_replaceable(page)
    if show_first is not None:
        show_first(_classify(test.take(min(_FIRST, images))))
    say(f"Training {len(_NETWORKS)} networks for {epochs} epochs each.")
    rows = _run_all(out, epochs, images, say)
    write_json(out / "demo.json", {"made_by": _MARK, "table": [row.to_fields() for row in rows]})
    write_page([out / name for name in _NETWORKS], page)
    return rows


def _claim(out: Path) -> None:
    """Raise unless the folder is new, or empty, or one that the demo has made before; mark it."""
    marked = (out / "demo.json").exists() and read_json(out / "demo.json").get("made_by") == _MARK
    is_free = marked or not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(is_free, "a new folder, or one of an earlier demo (--out)", f"{out}, which is in use")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "demo.json", {"made_by": _MARK})


def _classify(digits: ImageSet) -> list[Prediction]:
    """Return what the shipped network says of digits, each named as it is."""
    certified = Certifier(load_pretrained(SHIPPED), digits.shape)(as_float(digits.images, torch.float64))
    columns = (digits.labels, certified.prediction, certified.radius)
    answers = zip(*(column.tolist() for column in columns), strict=True)
    names = digits.classes
    return [Prediction(names[label], names[prediction], radius) for label, prediction, radius in answers]


def _run_all(out: Path, epochs: int, images: int, say: Say) -> list[DemoRow]:
    """Return the lines of the table. Networks this small gain little from a second thread, so each has its own process."""
    tasks = [(name, out / name, epochs, images) for name in _NETWORKS]
    if os.cpu_count() == 1:
        return [_run(*task, say) for task in tasks]
    # Three processes on two cores, too: with two, one core would be idle while the other runs the third network.
    context = get_context("spawn")
    lines: SimpleQueue[str | None] = context.SimpleQueue()
    with _without_script():
        pool = context.Pool(len(tasks), _start_worker, (lines,))
    with pool:
        rows = pool.starmap_async(_run_in_worker, tasks, 1, lambda _: lines.put(None), lambda _: lines.put(None))
        for line in iter(lines.get, None):
            say(line)
        return rows.get()


@contextmanager
def _without_script() -> Iterator[None]:
    """Keep processes that start now from running the user's script, which may lack an `if __name__ == "__main__":`."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _start_worker(lines: "SimpleQueue[str | None]") -> None:
    global _lines
    _lines = lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one,
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by SIGTERM, which it may have been told to ignore
    torch.set_num_threads(1)


def _run_in_worker(name: str, folder: Path, epochs: int, images: int) -> DemoRow:
    return _run(name, folder, epochs, images, _lines.put)


class _Observer(Silent):
    """Says something every five epochs."""

    def __init__(self, name: str, say: Say) -> None:
        self.name, self.say = name, say

    def epoch(self, report: EpochReport) -> None:
        if report.epoch % 5 == 0:
            self.say(f"{self.name}: epoch {report.epoch}, {report.accuracy:.1f} % of the training digits right")


def _run(name: str, folder: Path, epochs: int, images: int, say: Say) -> DemoRow:
    """Train, certify and attack one network; return its line of the table."""
    title, settings = _NETWORKS[name]
    test = load_splits("digits").test.take(images)
    options = settings | {"model": "small", "epochs": epochs, "crop_padding": 1, "device": "cpu"}
    observer = _Observer(name, say)
    (result,), _ = train("digits", folder, overwrite=True, watch=lambda steps, done: observer, **options)
    run, epsilon = open_run(folder), float(next(iter(result.robust or ())))
    accuracy, record = run.certify(test)
    run.keep("certified.json", record.to_fields())
    say(f"{name}: {record.clean:.1f} % of the test digits right; attacking")
    attacks = [
        run.attack(test, "pgd", budget, accuracy, steps=_STEPS, step_size=budget / 5, seed=0)
        for budget in sorted({epsilon, *_OTHER_BUDGETS})
    ]
    attacks.append(run.attack(test, "fgsm", epsilon, accuracy))
    run.keep_attacks(attacks)
    refuse_violations(attacks)
    complete_run(run, test, accuracy=accuracy)
    attacked: dict[str, Any] = {attack.attack: attack.accuracy for attack in attacks if attack.epsilon == epsilon}
    figures = len(test), epsilon, record.clean, record.robust[str(epsilon)], record.lipschitz_bound
    return DemoRow(title, str(folder), *figures, **attacked, train_seconds=result.train_seconds)
