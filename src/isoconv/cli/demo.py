"""isoconv demo"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoconv.cli.options import JsonOption
from isoconv.errors import IsoconvError

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


def demo(
    out: Annotated[Path, typer.Option(help="folder for runs and page; an earlier demo is replaced")] = Path(
        "isoconv-demo"
    ),
    epochs: Annotated[int, typer.Option(help="passes over the 4,000 training digits")] = 15,
    images: Annotated[int, typer.Option(help="how many of the 1,000 test digits to certify and attack")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Train two 1-Lipschitz networks and an ordinary one on real digits, certify and attack them, draw a page.

    It takes about a minute on two CPU cores, and needs no download.

    Example: isoconv demo
    """
    from isoconv.data import load_splits
    from isoconv.files import write_json
    from isoconv.report import check_replaceable, write_report

    test = load_splits("digits").test
    if not 1 <= images <= len(test):
        raise IsoconvError(f"Expected from 1 to {len(test):,} images. Got {images}.")
    _claim(out)
    page = out / "report.html"
    check_replaceable(page)
    rows = [_run(name, out / name, epochs, test.take(images)) for name in _NETWORKS]
    write_json(out / "demo.json", {"made_by": _MARK, "table": rows})
    write_report([out / name for name in _NETWORKS], page)
    if as_json:
        print(json.dumps(rows))
    else:
        _print(rows)
    print(f"The page is in {page}: open it in a browser. The networks are in {out}.", file=sys.stderr)


def _claim(out: Path) -> None:
    """Raise unless the folder is new, or empty, or one that the demo has made before; mark it."""
    from isoconv.files import read_json, write_json

    try:
        if out.exists() and not out.is_dir():
            raise IsoconvError(f"Expected a folder for the demo. {out} is a file: name another (--out).")
        marked = (out / "demo.json").exists() and read_json(out / "demo.json").get("made_by") == _MARK
        if out.exists() and any(out.iterdir()) and not marked:
            raise IsoconvError(
                f"Expected a new folder, or one of an earlier demo. {out} holds other files: name another (--out)."
            )
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IsoconvError(f"Cannot write the demo to {out}: {error.strerror}.") from None
    write_json(out / "demo.json", {"made_by": _MARK})


def _run(name: str, folder: Path, epochs: int, test: "ImageSet") -> dict[str, Any]:
    """Train, certify and attack one network; return its line of the table."""
    from isoconv.cli.output import CountingProgress, TrainingProgress
    from isoconv.train.diagnostics import complete_run
    from isoconv.train.job import train
    from isoconv.train.runs import attack_run, certify_run, keep_attacks, open_run, refuse_violations

    title, settings = _NETWORKS[name]
    options = settings | {"model": "small", "epochs": epochs, "device": "cpu"}
    print(f"Training: {title}", file=sys.stderr)
    with TrainingProgress(0) as bar:
        (result,), _ = train("digits", folder, overwrite=True, observer=bar, begin=bar.begin, **options)
    run, epsilons = open_run(folder), [float(radius) for radius in result.robust or ()]
    with CountingProgress(f"certifying {name}", "images") as shown:
        accuracy, record = certify_run(run, test, epsilons, progress=shown.show)
    run.keep("certified.json", record.to_fields())
    with CountingProgress(f"attacking {name}", "images") as shown:
        attacked = [
            attack_run(run, test, attack, budget, accuracy, progress=shown.show, **choices)
            for budget in sorted({epsilons[0], *_OTHER_BUDGETS})
            for attack, choices in (("pgd", {"steps": _STEPS, "step_size": budget / 5, "seed": 0}), ("fgsm", {}))
        ]
    keep_attacks(run, attacked)
    refuse_violations(attacked)
    complete_run(run, test, accuracy=accuracy)
    row = {"network": title, "run": str(folder), "images": len(test), "epsilon": epsilons[0], "clean": record.clean}
    row |= {"certified": record.robust[str(epsilons[0])]}
    row |= {attack.attack: attack.accuracy for attack in attacked if attack.epsilon == epsilons[0]}
    return row | {"lipschitz_bound": record.lipschitz_bound, "train_seconds": result.train_seconds}


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from isoconv.cli.output import make_console

    count, epsilon = rows[0]["images"], rows[0]["epsilon"]
    table = Table(title=f"{count:,} digits that no network has seen: accuracy in percent, attacks within ε = {epsilon}")
    table.add_column("network")
    for heading in ("clean", "certified", "PGD", "FGSM", "Lipschitz bound", "training"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = [f"{row[name]:.1f}" for name in ("clean", "certified", "pgd", "fgsm")]
        table.add_row(row["network"], *figures, f"{row['lipschitz_bound']:.7g}", f"{row['train_seconds']:.0f} s")
    make_console().print(table)
    make_console().print(
        "Certified: proved to be classified correctly, whatever the attack within ε (L2, pixels from 0 to 1). PGD and\n"
        "FGSM are two attacks: what survives them may fall to a third. The larger the Lipschitz bound, the less is proved.",
        highlight=False,
    )
