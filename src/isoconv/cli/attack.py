"""isoconv attack"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from isoconv import attacks
from isoconv.attacks import AttackResult
from isoconv.certify import RobustAccuracy, robust_accuracy
from isoconv.cli.progress import CountingProgress
from isoconv.cli.runs import TrainedRun, open_runs, test_images
from isoconv.cli.tables import print_attacked
from isoconv.cli.values import parse_number
from isoconv.data import ImageSet, as_float
from isoconv.errors import IsoconvError
from isoconv.report.reproduction.names import shown_radius
from isoconv.train.config import default_epsilons
from isoconv.train.distributed import choose_device

ATTACKS = ("pgd", "fgsm", "apgd", "boundary", "pointwise", "rounding")
_FEW = 100  # the paper's number of images for attacks that ask thousands of questions per image


def attack(
    run: Annotated[Path, typer.Argument(help="the run's folder")],
    kinds: Annotated[list[str] | None, typer.Option("--attack", help=", ".join(ATTACKS))] = None,
    epsilon: Annotated[list[str] | None, typer.Option(help="budgets, such as 36/255")] = None,
    folder: Annotated[
        Path | None, typer.Option("--data", help="where the data set is, or pictures that have moved")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    images: Annotated[int | None, typer.Option(help="only the first of the test images")] = None,
    steps: Annotated[int, typer.Option(help="of PGD and APGD")] = 200,
    step_size: Annotated[float, typer.Option(help="of PGD")] = 0.01,
    restarts: Annotated[int, typer.Option(help="of PGD and APGD")] = 1,
    seed: Annotated[int, typer.Option(help="of the attacks' random choices")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")] = False,
) -> None:
    """Attack a trained network, and see that no attack succeeds where it is certified.

    boundary and pointwise take the first 100 test images unless --images says otherwise; rounding looks for a point
    within each image's own certified radius at which rounding changes the prediction.

    Example: isoconv attack runs/large --data DIR --attack pgd --attack fgsm --epsilon 36/255
    """
    kinds = kinds or ["pgd", "fgsm"]
    for kind in kinds:
        if kind not in ATTACKS:
            raise IsoconvError(f"Expected --attack to be one of {', '.join(ATTACKS)}. Got {kind!r}.")
    budgets = [parse_number(text, "--epsilon") for text in epsilon or []]
    place = choose_device(device)
    runs = open_runs(run)
    data = test_images(runs[0].config, folder, download, images)
    settings: dict[str, dict[str, Any]] = {
        "pgd": {"steps": steps, "step_size": step_size, "restarts": restarts, "seed": seed},
        "apgd": {"steps": steps, "restarts": restarts, "seed": seed},
        "fgsm": {},
        "boundary": {"seed": seed},
        "pointwise": {"seed": seed},
        "rounding": {"seed": seed},
    }
    rows: list[list[dict[str, Any]]] = []
    for one in runs:
        chosen = budgets or [default_epsilons(one.config.data)[0]]
        one.model.to(place)
        with CountingProgress("certifying", "images") as shown:
            certified = robust_accuracy(one.model, data, chosen, progress=shown.show)
        found = [
            attack_record(one, data, kind, budget, certified, images, settings[kind])
            for kind in dict.fromkeys(kinds)
            for budget in (chosen if kind != "rounding" else [None])
        ]
        rows.append(found)
    everything = [row for found in rows for row in found]
    if as_json:
        print(json.dumps(everything))
    else:
        print_attacked(everything, f"{data.name}: accuracy in percent")
    for one, found in zip(runs, rows, strict=True):
        one.keep("attacks.json", json.dumps([*_others(one.folder / "attacks.json", found), *found], indent=2) + "\n")
    broken = sum(row["violations"] for row in everything)
    if broken:
        raise IsoconvError(
            f"Expected no attack to succeed where the network is certified. Got {broken}: a certificate is false."
        )


def _others(path: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of other attacks and budgets, which stays; a file that holds something else is replaced."""
    try:
        known = json.loads(path.read_text()) if path.exists() else []
        new = {(row["attack"], row["epsilon"]) for row in found}
        return [row for row in known if (row["attack"], row["epsilon"]) not in new]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def attack_record(
    one: TrainedRun,
    data: ImageSet,
    kind: str,
    budget: float | None,
    certified: RobustAccuracy,
    asked: int | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """One attack with one budget (None: each image's own certified radius), as a row of the table."""
    count = min(_FEW, len(data)) if kind in ("boundary", "pointwise") and asked is None else len(data)
    part = data.take(count)
    pixels, radii = as_float(part.images, torch.float64), certified.certificates.radius[:count]
    began = time.perf_counter()
    title = f"{kind} at {shown_radius(budget)}" if budget is not None else kind
    with CountingProgress(title, "images") as shown:
        shown.show(0, count)  # it may be long until the first of them is done with
        if budget is None:
            prediction = certified.certificates.prediction[:count]
            result = attacks.rounding_search(one.model, pixels, prediction, radii, progress=shown.show, **settings)
        else:
            attack_of: Callable[..., AttackResult] = getattr(attacks, kind)
            result = attack_of(one.model, pixels, part.labels, budget, progress=shown.show, **settings)
    row: dict[str, Any] = {"seed": one.config.seed, "attack": kind, "epsilon": budget, "images": count}
    row |= {"settings": settings, "seconds": time.perf_counter() - began}
    if budget is not None:
        return row | attacks.against_certificates(result, certified, budget)
    # Here a success is a changed prediction within the radius.
    broken = int((result.success.cpu() & (radii > 0)).sum())
    return row | {"clean": certified.clean, "certified": None, "accuracy": None, "violations": broken}
