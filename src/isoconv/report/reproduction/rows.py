"""The rows of a target, as plain data: what `--json` prints and what every table is made of."""

from collections.abc import Mapping
from typing import Any

from isoconv.report.reproduction.accuracy_rows import attack_rows, classifier_rows, sota_rows
from isoconv.report.reproduction.measured_rows import (
    complexity_rows,
    drawing_rows,
    parameter_rows,
    singular_value_rows,
    step_rows,
    wasserstein_rows,
)
from isoconv.train.reproduction import Cell

Results = Mapping[Cell, dict[str, Any]]


def rows_of(target: str, cells: list[Cell], results: Results) -> list[dict[str, Any]]:
    """One row per line of the target's table, those of the default recipe first; cells without a result are marked."""
    match target:
        case "table1" | "ablation":
            rows = classifier_rows(cells, results)
        case "sota":
            rows = sota_rows(cells, results)
        case "attacks":
            rows = attack_rows(cells, results)
        case "wasserstein":
            rows = wasserstein_rows(cells, results)
        case "time":
            rows = step_rows(cells, results)
        case "complexity":
            rows = complexity_rows(cells, results)
        case "parameters":
            rows = parameter_rows(cells, results)
        case "figure-sv":
            rows = singular_value_rows(cells, results)
        case _:
            rows = drawing_rows(target, cells, results)
    return sorted(rows, key=lambda row: row.get("recipe") == "paper")  # a stable sort: the default recipe first
