"""Rows of the tables of accuracies: ours over seeds, the paper's beside them, and what it quotes of others."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from isoconv.report.reproduction.compare import mean_and_std, with_paper
from isoconv.report.reproduction.paper import (
    QUOTED_ATTACKS,
    QUOTED_ATTACKS_OF_100,
    QUOTED_SOTA,
    Quoted,
    paper_accuracy,
)
from isoconv.train.config import default_epsilons
from isoconv.train.reproduction import AttackCell, Cell, ClassifierCell, default_epochs
from isoconv.train.reproduction.targets import DECISION_ATTACKS, GRADIENT_ATTACKS

Results = Mapping[Cell, dict[str, Any]]
Row = dict[str, Any]


def classifier_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Table 1 and the ablation: clean and robust accuracy at the data set's main radius."""
    return [_classifier_row(cell, results, 0) for cell in cells if isinstance(cell, ClassifierCell)]


def sota_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """BCOP-Large and FC-3 at both radii, with PGD and FGSM at the main one; KW, MMR and QW as the paper quotes them."""
    networks = [cell for cell in cells if isinstance(cell, ClassifierCell)]
    rows = []
    for dataset in dict.fromkeys(cell.dataset for cell in networks):
        for which, epsilon in enumerate(default_epsilons(dataset)):
            ours = [_classifier_row(cell, results, which) for cell in networks if cell.dataset == dataset]
            if which == 0:
                for row, cell in zip(ours, (c for c in networks if c.dataset == dataset), strict=True):
                    if _are_asked_for(GRADIENT_ATTACKS, cell, cells):
                        _add_attacks(row, cell, results, GRADIENT_ATTACKS)
            rows += ours
            rows += [_quoted_row(q) for q in QUOTED_SOTA if q.dataset == dataset and _number(q.epsilon) == epsilon]
    return rows


def attack_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Gradient attacks on the whole test set, decision attacks on its first 100 images."""
    rows = []
    for cell in cells:
        if not isinstance(cell, ClassifierCell):
            continue
        quoted = [] if cell.recipe == "paper" else [f"kw-{cell.model}"]
        if _are_asked_for(GRADIENT_ATTACKS, cell, cells):
            whole = _classifier_row(cell, results, 0)
            _add_attacks(whole, cell, results, GRADIENT_ATTACKS)
            rows += [whole, *(_quoted_row(q, 10_000) for q in QUOTED_ATTACKS if q.name in quoted)]
        if _are_asked_for(DECISION_ATTACKS, cell, cells):
            few = _few_images_row(cell, results)
            rows += [few, *(_quoted_row(q, 100) for q in QUOTED_ATTACKS_OF_100 if q.name in quoted)]
    return rows


def _are_asked_for(attacks: tuple[str, ...], network: ClassifierCell, cells: Sequence[Cell]) -> bool:
    """Of the paper's recipe only what has been measured is shown: a network is there, attacks on it perhaps not."""
    return any(AttackCell(network, attack) in cells for attack in attacks)


def _classifier_row(cell: ClassifierCell, results: Results, which: int) -> Row:
    """`which` of the data set's two radii."""
    epsilon = default_epsilons(cell.dataset)[which]
    record = results.get(cell)
    row: Row = {**cell.identity(), "epsilon": epsilon, **_status(record)}
    row |= {"seeds": [], "epochs": default_epochs(cell), "images": None, "clean": None, "robust": None}
    if record is not None and record["status"] == "ok":
        each = record["results"]
        row |= {name: record[name] for name in ("seeds", "epochs", "images")}
        row["clean"] = mean_and_std([result["clean"] for result in each])
        row["robust"] = mean_and_std([result["robust"][str(epsilon)] for result in each])
        row["lipschitz_bound"] = max(result["lipschitz_bound"] for result in each)
        row |= {name: record[name] for name in ("train_seconds", "peak_memory_mib", "hardware")}
    key = (cell.dataset, cell.model, row["conv"])
    paper = {
        "clean": paper_accuracy("clean", *key),
        "robust": paper_accuracy("robust close" if which else "robust", *key),
    }
    return row | with_paper({"clean": row["clean"], "robust": row["robust"]}, paper)


def _few_images_row(cell: ClassifierCell, results: Results) -> Row:
    """Everything in it is of the first 100 test images, certificates too."""
    row: Row = {**cell.identity(), "epsilon": cell.epsilon, **_status(None)}
    row |= {"seeds": [], "epochs": default_epochs(cell), "images": 100, "clean": None, "robust": None}
    key = (cell.dataset, cell.model, row["conv"])
    row |= with_paper({}, {"clean": paper_accuracy("clean of 100", *key)})
    _add_attacks(row, cell, results, DECISION_ATTACKS)
    return row


def _add_attacks(row: Row, cell: ClassifierCell, results: Results, attacks: tuple[str, ...]) -> None:
    """Accuracy under each attack, and whether certified ≤ attacked ≤ clean in every network that was attacked."""
    few = "boundary" in attacks
    ordered: list[bool] = []
    violations = 0
    for attack in attacks:
        record = results.get(AttackCell(cell, attack))
        row[attack] = None
        if record is None:
            continue
        if record["status"] == "failed":
            row[f"{attack}_failed"] = record["reason"]
            continue
        each = record["results"]
        row[attack] = mean_and_std([result["accuracy"] for result in each])
        ordered += [result["certified"] <= result["accuracy"] <= result["clean"] for result in each]
        violations += record["violations"]
        if few and row["status"] == "missing":  # of these few images only the attack knows anything
            row |= {"status": "ok", **{name: record[name] for name in ("seeds", "epochs", "images")}}
            row["clean"] = mean_and_std([result["clean"] for result in each])
            row["robust"] = mean_and_std([result["certified"] for result in each])
    key = (cell.dataset, cell.model, row["conv"])
    paper = {"clean": paper_accuracy("clean of 100" if few else "clean", *key)}
    paper |= {} if few else {"robust": paper_accuracy("robust", *key)}
    paper |= {attack: paper_accuracy("attacked", *key, attack) for attack in attacks}
    row |= with_paper({name: row[name] for name in paper}, paper)
    if ordered:
        means = [row[name]["mean"] for name in attacks if row[name] is not None]
        if row["status"] == "ok":
            ordered.append(row["robust"]["mean"] <= min(means) <= max(means) <= row["clean"]["mean"])
        row |= {"ordered": all(ordered), "violations": violations}


def _quoted_row(quoted: Quoted, images: int | None = None) -> Row:
    figures = {name: getattr(quoted, name) for name in ("clean", "robust", "pgd", "fgsm", "boundary", "pointwise")}
    shown = {name: None if value is None else {"mean": value, "std": None} for name, value in figures.items()}
    row: Row = {"dataset": quoted.dataset, "model": quoted.name, "conv": None, "recipe": None}
    row |= {"epsilon": _number(quoted.epsilon), "status": "quoted", "quoted": True, "source": quoted.source}
    row |= {"seeds": [], "epochs": None, "images": images, "clean": shown["clean"], "robust": shown["robust"]}
    return row | {name: shown[name] for name in ("pgd", "fgsm", "boundary", "pointwise") if shown[name] is not None}


def _status(record: dict[str, Any] | None) -> Row:
    if record is None:
        return {"status": "missing", "quoted": False}
    failed = {"reason": record["reason"]} if record["status"] == "failed" else {}
    quick = {"quick": True} if record.get("quick") else {}
    return {"status": record["status"], "quoted": False, **failed, **quick}


def _number(epsilon: str) -> float:
    return float(Fraction(epsilon))
