"""Tables on the terminal."""

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from rich.console import Console
from rich.table import Table


def print_results(results: Sequence[dict[str, Any]], title: str) -> None:
    """Clean and certified accuracy of each seed, with mean and population standard deviation for several."""
    if "clean" not in results[0]:
        return
    radii = list(results[0]["robust"])
    table = Table(title=title)
    table.add_column("seed")
    for heading in ("clean %", *(f"certified % at {float(e):.4g}" for e in radii), "Lipschitz bound"):
        table.add_column(heading, justify="right")
    for result in results:
        robust = [f"{result['robust'][e]:.2f}" for e in radii]
        table.add_row(str(result["seed"]), f"{result['clean']:.2f}", *robust, f"{result['lipschitz_bound']:.7f}")
    if len(results) > 1:
        columns = [[r["clean"] for r in results], *([r["robust"][e] for r in results] for e in radii)]
        table.add_section()
        table.add_row("mean", *(f"{fmean(c):.2f} ± {pstdev(c):.2f}" for c in columns), "")
    Console().print(table)
