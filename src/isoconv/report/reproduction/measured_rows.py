"""Rows of everything that is not an accuracy: distances, seconds, exponents, counts, singular values, drawings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isoconv.report.reproduction.compare import mean_and_std
from isoconv.report.reproduction.paper import COMPLEXITY, PARAMETERS, STEP_SECONDS, WASSERSTEIN
from isoconv.train.reproduction import Cell, ClassifierCell, CriticCell, default_epochs

Results = Mapping[Cell, dict[str, Any]]
Row = dict[str, Any]


def wasserstein_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """The paper's generator is lost, so that only the shares of the best critic's distance can be compared."""
    rows = []
    for cell in cells:
        if not isinstance(cell, CriticCell):
            continue
        row: Row = {**cell.identity(), **_status(results.get(cell)), "seeds": [], "epochs": default_epochs(cell)}
        row |= {"distance": None, "lower": None}
        record = results.get(cell)
        if record is not None and record["status"] == "ok":
            each = record["results"]
            row |= {name: record[name] for name in ("seeds", "epochs", "updates", "generator", "units")}
            row["distance"] = mean_and_std([result["estimate"] for result in each])
            row["lower"] = mean_and_std([result["lower"] for result in each])
            row["lipschitz_bound"] = max(result["lipschitz_bound"] for result in each)
            row |= {name: record[name] for name in ("train_seconds", "hardware")}
        mean, std = WASSERSTEIN[cell.activation, cell.conv]
        best = WASSERSTEIN["maxmin", "bcop"][0]
        row["paper"] = {"printed": {"distance": {"mean": mean, "std": std}}, "corrected": None}
        row["paper_share"] = round(mean / best, 4)
        rows.append(row)
    for row in rows:
        best_row = next((r for r in rows if _is_best(r) and r["recipe"] == row["recipe"]), None)
        known = row["distance"] and best_row is not None and best_row["distance"]
        row["share"] = round(row["distance"]["mean"] / best_row["distance"]["mean"], 4) if known and best_row else None
    return rows


def _is_best(row: Row) -> bool:
    return (row["activation"], row["conv"]) == ("maxmin", "bcop")


def step_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Seconds per step, and how many steps of an ordinary network each takes; the paper's for a P100."""
    (cell,) = cells
    record = results.get(cell)
    if record is None or record["status"] != "ok":
        methods = (*STEP_SECONDS, "svcm")
        rows = [
            {"conv": conv, "recipe": "default", **_status(record), "seconds": None, "ratio": None} for conv in methods
        ]
    else:
        ordinary = {r["recipe"]: r["seconds"]["median"] for r in record["results"] if r["conv"] == "standard"}
        rows = [
            {
                "conv": found["conv"],
                "recipe": found["recipe"],
                **_status(record),
                "seconds": found["seconds"],
                "ratio": round(found["seconds"]["median"] / ordinary[found["recipe"]], 4),
                "hardware": record["hardware"],
            }
            for found in record["results"]
        ]
    shared = {"dataset": "cifar10", "model": "large"}
    return [{**shared, **row, "paper": _paper_seconds(row["conv"])} for row in rows]


def _paper_seconds(conv: str) -> dict[str, Any] | None:
    seconds = STEP_SECONDS.get(conv)
    if seconds is None:
        return None
    return {"seconds": seconds, "ratio": round(seconds / STEP_SECONDS["standard"], 4), "hardware": "NVIDIA P100"}


def complexity_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """The exponents of c and s, fitted by least squares in the logarithms, over all points and over the last two."""
    (cell,) = cells
    record = results.get(cell)
    if record is None or record["status"] != "ok":
        return [
            {"conv": conv, "recipe": "default", **_status(record), "exponents": None, "paper": _paper_exponents(conv)}
            for conv in COMPLEXITY
        ]
    rows = []
    for found in record["results"]:
        points = {"channels": found["channels"], "size": found["sizes"]}
        exponents = {
            name: {"fitted": fitted_exponent(values), "last": fitted_exponent(values[-2:])}
            for name, values in points.items()
        }
        row: Row = {"conv": found["conv"], "recipe": found["recipe"], **_status(record), "exponents": exponents}
        row |= {"seconds": points, "hardware": record["hardware"], "paper": _paper_exponents(found["conv"])}
        rows.append(row)
    return rows


def fitted_exponent(points: Sequence[Sequence[float]]) -> float:
    """The slope of the line closest to (log x, log seconds)."""
    x, y = (np.log([point[k] for point in points]) for k in (0, 1))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def _paper_exponents(conv: str) -> dict[str, int] | None:
    known = COMPLEXITY[conv]
    return None if known is None else {"channels": known[0], "size": known[1]}


def parameter_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Effective counts, which the paper prints, and raw ones."""
    (cell,) = cells
    record = results.get(cell)
    if record is None or record["status"] != "ok":
        return []
    rows = []
    for found in record["results"]:
        printed = PARAMETERS[found["dataset"], found["model"]]
        rows.append({**found, **_status(record), "paper": printed, "equal": printed == found["effective"]})
    return rows


def singular_value_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Large's second layer, seed 0: quantiles and histograms before and after training."""
    rows = []
    for cell in cells:
        assert isinstance(cell, ClassifierCell)
        record = results.get(cell)
        row: Row = {**cell.identity(), **_status(record), "seeds": [], "epochs": default_epochs(cell)}
        row |= {"before": None, "after": None}
        if record is not None and record["status"] == "ok":
            layer = record["second_layer"]
            row |= {"seeds": [layer["seed"]], "epochs": record["epochs"], "count": layer["count"]}
            row |= {name: layer[name] for name in ("edges", "before", "after")}
        rows.append(row)
    return rows


def drawing_rows(target: str, cells: Sequence[Cell], results: Results) -> list[Row]:
    """One row: the numbers that are drawn."""
    (cell,) = cells
    record = results.get(cell)
    return [{"figure": target, **_status(record), **(record or {})}]


def _status(record: dict[str, Any] | None) -> Row:
    if record is None:
        return {"status": "missing"}
    failed = {"reason": record["reason"]} if record["status"] == "failed" else {}
    return {"status": record["status"], **failed, **({"quick": True} if record.get("quick") else {})}
