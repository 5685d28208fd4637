"""isoconv demo"""

import json
import os
from contextlib import AbstractContextManager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoconv.cli import print_line
from isoconv.cli.options import Json
from isoconv.errors import require
from isoconv.files import read_json, write_json

if TYPE_CHECKING:
    from isoconv.data import ImageSet
    from isoconv.train.engine import EpochReport

_STEPS = 20  # of PGD, each a fifth of the budget: the paper's 200 steps of 0.01 would take ten times as long
_OTHER_BUDGETS = (1.0,)  # a point of PGD's curve on the page, beside the table's own
_MARK = "isoconv demo"  # in demo.json: this folder was made by the demo, which may fill it again
_SHIPPED, _FIRST = "mnist-small", 5  # what is shown before anything is trained: a network, and how many digits
# The ordinary network is trained as people train one: ReLU, and cross-entropy without a margin. Of the rates 0.001, 0.003,
# 0.01 and 0.02, with and without crops, this was the best on 400 held-out training digits.
_ORDINARY = {"conv": "standard", "activation": "relu", "temperature": 1.0, "offset": 0.0, "lr": 0.01}
_NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bcop": ("BCOP: orthogonal convolutions", {"conv": "bcop"}),
    "rko": ("RKO: reshaped kernels", {"conv": "rko"}),
    "ordinary": ("ordinary network", _ORDINARY),
}
_OUT = Path("isoconv-demo")


def demo(
    out: Annotated[Path, typer.Option(help="folder for runs and report; an earlier demo is replaced")] = _OUT,
    epochs: Annotated[int, typer.Option(help="passes over the 4,000 training digits")] = 15,
    images: Annotated[int, typer.Option(help="how many of the 1,000 test digits to certify and attack")] = 1000,
    as_json: Json = False,
) -> None:
    """Train two 1-Lipschitz networks and an ordinary one on digits, certify and attack them, write an HTML report.

    It takes about a minute on two CPU cores and needs no download. A network that comes with isoconv is shown first.

    Example: isoconv demo
    """
    from isoconv.cli.output import print_demo
    from isoconv.data import load_splits
    from isoconv.report import check_replaceable, write_report

    test = load_splits("digits").test
    require(1 <= images <= len(test), f"from 1 to {len(test):,} images", images)
    require(epochs >= 1, "epochs of at least 1", epochs)
    _claim(out)
    page = out / "report.html"
    check_replaceable(page)
    if not as_json:
        _show_shipped(test.take(min(_FIRST, images)))
    print_line(f"Training {len(_NETWORKS)} networks for {epochs} epochs each.")
    rows = _run_all(out, epochs, images)
    write_json(out / "demo.json", {"made_by": _MARK, "table": rows})
    write_report([out / name for name in _NETWORKS], page)
    if as_json:
        print(json.dumps(rows))
    else:
        print_demo(rows)
    print_line(f"The report is in {page}: open it in a browser. The runs are in {out}.")


def _claim(out: Path) -> None:
    """Raise unless the folder is new, or empty, or one that the demo has made before; mark it."""
    marked = (out / "demo.json").exists() and read_json(out / "demo.json").get("made_by") == _MARK
    is_free = marked or not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(is_free, "a new folder, or one of an earlier demo (--out)", f"{out}, which is in use")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "demo.json", {"made_by": _MARK})


def _show_shipped(digits: "ImageSet") -> None:
    """Classify some digits with a trained network, each with its certified radius: a first result within seconds."""
    import torch

    from isoconv.certify import Certifier
    from isoconv.cli.output import print_table
    from isoconv.data import as_float
    from isoconv.pretrained import load_pretrained

    certified = Certifier(load_pretrained(_SHIPPED), digits.shape)(as_float(digits.images, torch.float64))
    answers = zip(digits.labels.tolist(), certified.prediction.tolist(), certified.radius.tolist(), strict=True)
    names = digits.classes
    rows = [[names[label], names[prediction], f"{radius:.3f}"] for label, prediction, radius in answers]
    print_table(f"{_SHIPPED}, which comes with isoconv", ["digit", "classified as"], ["certified radius"], rows)
    print("No perturbation below the radius (L2, pixels from 0 to 1) changes the class.", flush=True)


def _run_all(out: Path, epochs: int, images: int) -> list[dict[str, Any]]:
    """Return the lines of the table. Networks this small gain little from a second thread, so each has its own process."""
    tasks = [(name, out / name, epochs, images) for name in _NETWORKS]
    if os.cpu_count() == 1:
        return [_run(*task) for task in tasks]
    # Three processes on two cores, too: with two, one core would be idle while the other runs the third network.
    with get_context("spawn").Pool(len(tasks), _use_one_thread) as pool:
        return pool.starmap(_run, tasks, chunksize=1)


def _use_one_thread() -> None:
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one,
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by SIGTERM, which it may have been told to ignore
    torch.set_num_threads(1)


class _Lines(AbstractContextManager["_Lines"]):
    """Prints a line every five epochs; there are other processes that print."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __exit__(self, *error: object) -> None:
        pass

    def step(self, steps: int) -> None:
        pass

    def epoch(self, report: "EpochReport") -> None:
        if report.epoch % 5 == 0:
            print_line(f"{self.name}: epoch {report.epoch}, {report.accuracy:.1f} % of the training digits right")


def _run(name: str, folder: Path, epochs: int, images: int) -> dict[str, Any]:
    """Train, certify and attack one network; return its line of the table."""
    from isoconv.data import load_splits
    from isoconv.train import complete_run, open_run, refuse_violations, train

    title, settings = _NETWORKS[name]
    test = load_splits("digits").test.take(images)
    options = settings | {"model": "small", "epochs": epochs, "crop_padding": 1, "device": "cpu"}
    (result,), _ = train("digits", folder, overwrite=True, watch=lambda steps, done: _Lines(name), **options)
    run, epsilon = open_run(folder), float(next(iter(result.robust or ())))
    accuracy, record = run.certify(test)
    run.keep("certified.json", record.to_fields())
    print_line(f"{name}: {record.clean:.1f} % of the test digits right; attacking")
    attacks = [
        run.attack(test, "pgd", budget, accuracy, steps=_STEPS, step_size=budget / 5, seed=0)
        for budget in sorted({epsilon, *_OTHER_BUDGETS})
    ]
    attacks.append(run.attack(test, "fgsm", epsilon, accuracy))
    run.keep_attacks(attacks)
    refuse_violations(attacks)
    complete_run(run, test, accuracy=accuracy)
    row = {"network": title, "run": str(folder), "images": len(test), "epsilon": epsilon, "clean": record.clean}
    row |= {"certified": record.robust[str(epsilon)], "lipschitz_bound": record.lipschitz_bound}
    row |= {attack.attack: attack.accuracy for attack in attacks if attack.epsilon == epsilon}
    return row | {"train_seconds": result.train_seconds}
