"""isoconv demo"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoconv.cli import print_line
from isoconv.cli.options import Json
from isoconv.data import ProgressLine
from isoconv.errors import require
from isoconv.files import read_json, write_json

if TYPE_CHECKING:
    from isoconv.data import ImageSet

_STEPS = 20  # of PGD, each a fifth of the budget: the paper's 200 steps of 0.01 would take ten times as long
_OTHER_BUDGETS = (0.5, 1.0, 2.2)  # points of the attack's curve on the page, beside the table's own
_MARK = "isoconv demo"  # in demo.json: this folder was made by the demo, which may fill it again
# The ordinary network is trained as people train one: ReLU, and cross-entropy without a margin.
_ORDINARY = {"conv": "standard", "activation": "relu", "temperature": 1.0, "offset": 0.0}
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

    It takes about a minute on two CPU cores and needs no download.

    Example: isoconv demo
    """
    from isoconv.cli.output import print_demo
    from isoconv.data import load_splits
    from isoconv.report import check_replaceable, write_report

    test = load_splits("digits").test
    require(1 <= images <= len(test), f"from 1 to {len(test):,} images", images)
    _claim(out)
    page = out / "report.html"
    check_replaceable(page)
    rows = [_run(name, out / name, epochs, test.take(images)) for name in _NETWORKS]
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


def _run(name: str, folder: Path, epochs: int, test: "ImageSet") -> dict[str, Any]:
    """Train, certify and attack one network; return its line of the table."""
    from isoconv.cli.output import TrainingProgress
    from isoconv.train import complete_run, open_run, refuse_violations, train

    title, settings = _NETWORKS[name]
    print_line(f"Training: {title}")
    options = settings | {"model": "small", "epochs": epochs, "device": "cpu"}
    (result,), _ = train("digits", folder, overwrite=True, watch=TrainingProgress, **options)
    run, epsilon = open_run(folder), float(next(iter(result.robust or ())))
    progress = ProgressLine("images", 1)
    accuracy, record = run.certify(test, progress=progress)
    run.keep("certified.json", record.to_fields())
    attacks = [
        run.attack(test, attack, budget, accuracy, progress=progress, **choices)
        for budget in sorted({epsilon, *_OTHER_BUDGETS})
        for attack, choices in (("pgd", {"steps": _STEPS, "step_size": budget / 5, "seed": 0}), ("fgsm", {}))
    ]
    run.keep_attacks(attacks)
    refuse_violations(attacks)
    complete_run(run, test, accuracy=accuracy, progress=progress)
    row = {"network": title, "run": str(folder), "images": len(test), "epsilon": epsilon, "clean": record.clean}
    row |= {"certified": record.robust[str(epsilon)], "lipschitz_bound": record.lipschitz_bound}
    row |= {attack.attack: attack.accuracy for attack in attacks if attack.epsilon == epsilon}
    return row | {"train_seconds": result.train_seconds}
