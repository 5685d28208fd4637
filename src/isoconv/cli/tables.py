"""Tables on the terminal."""

import sys
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from rich.console import Console
from rich.table import Table

from isoconv.report.reproduction.names import shown_radius

_WIDE = 160


def console() -> Console:
    """Where tables go; in a pipe or a file, as wide as they need to be."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def print_results(results: Sequence[dict[str, Any]], title: str) -> None:
    """Clean and certified accuracy of each seed, with mean and population standard deviation for several."""
    if "clean" not in results[0]:
        return
    radii = list(results[0]["robust"])
    table = Table(title=title)
    table.add_column("seed")
    for heading in ("clean %", *(f"certified % at {shown_radius(float(e))}" for e in radii), "Lipschitz bound"):
        table.add_column(heading, justify="right")
    for result in results:
        robust = [f"{result['robust'][e]:.2f}" for e in radii]
        table.add_row(str(result["seed"]), f"{result['clean']:.2f}", *robust, f"{result['lipschitz_bound']:.7f}")
    if len(results) > 1:
        columns = [[r["clean"] for r in results], *([r["robust"][e] for r in results] for e in radii)]
        table.add_section()
        table.add_row("mean", *(f"{fmean(c):.2f} ± {pstdev(c):.2f}" for c in columns), "")
    console().print(table)


def print_certified(results: Sequence[dict[str, Any]], title: str) -> None:
    """Clean and certified accuracy, and what was proved on the way."""
    print_results(results, title)
    for result in results:
        rounding = f"{result['error_offset']:.1e} + {result['error_slope']:.1e}·‖x‖"
        console().print(
            f"seed {result['seed']}: rounding moves the logits of an image x by at most {rounding}; the radii allow for it",
            highlight=False,
        )


def print_attacked(rows: Sequence[dict[str, Any]], title: str) -> None:
    """One line per attack and budget: certified ≤ attacked ≤ clean."""
    table = Table(title=title)
    table.add_column("seed")
    table.add_column("attack")
    for heading in ("epsilon", "images", "certified", "attacked", "clean", "certificates broken", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        budget = "each radius" if row["epsilon"] is None else shown_radius(row["epsilon"])
        figures = ["–" if row[name] is None else f"{row[name]:.2f}" for name in ("certified", "accuracy", "clean")]
        last = (str(row["violations"]), f"{row['seconds']:.1f}")
        table.add_row(str(row["seed"]), row["attack"], budget, f"{row['images']:,}", *figures, *last)
    console().print(table)
