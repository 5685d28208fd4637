"""isoconv demo"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from isoconv.cli.attack import attack_record
from isoconv.cli.collect import certify_run, diagnose_run
from isoconv.cli.progress import TrainingProgress
from isoconv.cli.runs import open_runs
from isoconv.cli.tables import console
from isoconv.data import ImageSet, load_splits
from isoconv.errors import IsoconvError
from isoconv.files import read_json, write_text
from isoconv.report import check_replaceable, write_report
from isoconv.train.classifier import train_classifiers
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from isoconv.train.run_folder import RunFolder

_STEPS = 20  # of PGD, each a fifth of the budget: the paper's 200 steps of 0.01 would take ten times as long
_OTHER_BUDGETS = (0.5, 1.0, 2.2)  # points of the attack's curve on the page, beside the table's own
_MARK = "isoconv demo"  # in demo.json: this folder was made by the demo, which may fill it again


@dataclass(frozen=True)
class _Network:
    """What is trained, and what the table calls it."""

    folder: str
    title: str
    settings: dict[str, Any]


_NETWORKS = (
    _Network("bcop", "BCOP: orthogonal convolutions", {"conv": "bcop"}),
    _Network("rko", "RKO: reshaped kernels", {"conv": "rko"}),
    # As people train one: ReLU, and the cross-entropy as it is, without a margin.
    _Network(
        "ordinary",
        "ordinary network",
        {"conv": "standard", "activation": "relu", "temperature": 1.0, "offset": 0.0},
    ),
)


def demo(
    out: Annotated[Path, typer.Option(help="for the runs and the page; an earlier demo is replaced")] = Path(
        "isoconv-demo"
    ),
    epochs: Annotated[int, typer.Option(help="passes over the 4,000 training digits")] = 15,
    images: Annotated[int, typer.Option(help="how many of the 1,000 test digits to certify and attack")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="print the table as JSON on stdout")] = False,
) -> None:
    """Train two 1-Lipschitz networks and an ordinary one on real digits, certify and attack them, draw a page.

    It takes about a minute on two CPU cores, and needs no download.

    Example: isoconv demo
    """
    train, test = load_splits("digits")
    if not 1 <= images <= len(test):
        raise IsoconvError(f"Expected from 1 to {len(test):,} images. Got {images}.")
    configs = [_config(network, train, epochs) for network in _NETWORKS]
    folders = [RunFolder(out / network.folder) for network in _NETWORKS]
    page = out / "report.html"
    _claim(out, folders, page)
    rows = [
        _row(network, config, folder, train, test.take(images))
        for network, config, folder in zip(_NETWORKS, configs, folders, strict=True)
    ]
    write_text(out / "demo.json", json.dumps({"made_by": _MARK, "table": rows}, indent=2) + "\n")
    write_report([folder.path for folder in folders], page)
    if as_json:
        print(json.dumps(rows))
    else:
        _print(rows)
    print(f"The page is in {page}: open it in a browser. The networks are in {out}.", file=sys.stderr)


def _config(network: _Network, train: ImageSet, epochs: int) -> TrainConfig:
    settings = recipe_settings("default", "digits", network.settings["conv"]) | network.settings
    return TrainConfig(
        data="digits", input_shape=train.shape, classes=train.classes, model="small", **(settings | {"epochs": epochs})
    )


def _claim(out: Path, folders: Sequence[RunFolder], page: Path) -> None:
    """The demo's folder is new, or empty, or one that the demo has made before; nothing else is touched."""
    if out.exists() and not out.is_dir():
        raise IsoconvError(f"Expected a folder for the demo. {out} is a file: name another (--out).")
    if out.exists() and any(out.iterdir()) and not _made_before(out):
        raise IsoconvError(
            f"Expected a new folder, or one of an earlier demo. {out} holds other files: name another (--out)."
        )
    for folder in folders:
        folder.check_free(overwrite=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IsoconvError(f"Cannot write the demo to {out}: {error.strerror}.") from None
    check_replaceable(page)
    write_text(out / "demo.json", json.dumps({"made_by": _MARK}) + "\n")


def _made_before(out: Path) -> bool:
    try:
        return read_json(out / "demo.json").get("made_by") == _MARK
    except IsoconvError:
        return False


def _row(network: _Network, config: TrainConfig, folder: RunFolder, train: ImageSet, test: ImageSet) -> dict[str, Any]:
    """Train, certify and attack one network; its line of the table."""
    folder.start(config, overwrite=True)
    print(f"Training: {network.title}", file=sys.stderr)
    epsilon = default_epsilons("digits")[0]
    with TrainingProgress(len(train) // config.batch_size * config.epochs) as shown:
        (result,) = train_classifiers([config], [folder], train, test, default_epsilons("digits"), shown)
    (one,) = open_runs(folder.path)
    found, record = certify_run(one, test, default_epsilons("digits"))
    attacked = [
        attack_record(one, test, kind, budget, found, None, settings)
        for budget in sorted({epsilon, *_OTHER_BUDGETS})
        for kind, settings in (("pgd", {"steps": _STEPS, "step_size": budget / 5, "seed": 0}), ("fgsm", {}))
    ]
    write_text(folder.path / "attacks.json", json.dumps(attacked, indent=2) + "\n")
    if broken := sum(row["violations"] for row in attacked):
        raise IsoconvError(
            f"Expected no attack to succeed where the network is certified. Got {broken}: a certificate is false."
        )
    diagnose_run(one, test, found)
    at = {row["attack"]: row["accuracy"] for row in attacked if row["epsilon"] == epsilon}
    return {
        "network": network.title,
        "run": str(folder.path),
        "images": len(test),
        "epsilon": epsilon,
        "clean": record["clean"],
        "certified": record["robust"][str(epsilon)],
        **at,
        "lipschitz_bound": record["lipschitz_bound"],
        "train_seconds": result.train_seconds,
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    first = rows[0]
    table = Table(
        title=f"{first['images']:,} digits that no network has seen: percent right, under attack with ε = {first['epsilon']}"
    )
    table.add_column("network")
    for heading in ("clean", "certified", "PGD", "FGSM", "Lipschitz bound", "training"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = [f"{row[name]:.1f}" for name in ("clean", "certified", "pgd", "fgsm")]
        table.add_row(row["network"], *figures, f"{row['lipschitz_bound']:.7g}", f"{row['train_seconds']:.0f} s")
    console().print(table)
    console().print(
        "certified: proved to be right, whatever the attack does within ε (L2, pixels from 0 to 1). PGD and FGSM are two\n"
        "attacks: what survives them is only known to survive them. The larger the Lipschitz bound, the less is proved.",
        highlight=False,
    )
