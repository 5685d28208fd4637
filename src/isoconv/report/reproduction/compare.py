"""Our figure beside the paper's: the difference, and what to make of it.

The rule: let d be our mean minus the paper's (the higher of its printed and its corrected one) and s the root of the sum
of the squares of the two standard deviations. Ours is *within* two standard deviations if |d| ≤ 2s, *better* if d > 2s
and *worse* if d < −2s. A deviation that the paper does not state counts as 0; one seed has none of its own, and is taken
to spread like the paper's.
"""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from isoconv.report.reproduction.paper import Printed

RULE = (
    "d: our mean minus the paper's, the higher of its printed and its corrected one; s² the sum of the squares of the two "
    "standard deviations (one seed: the paper's, twice); within: |d| ≤ 2s, better: d > 2s, worse: d < −2s."
)


Figure = dict[str, float | None]  # mean and std


def mean_and_std(values: Sequence[float]) -> Figure:
    """Mean and population standard deviation (of one value: None), to a ten-thousandth of a percent."""
    return {"mean": round(fmean(values), 4), "std": round(pstdev(values), 4) if len(values) > 1 else None}


def compared(ours: Figure | None, paper: Printed | None) -> tuple[float | None, str | None]:
    """(difference, verdict); nothing where one of the two is missing."""
    if ours is None or paper is None:
        return None, None
    mean, std = paper.bar
    own, spread = ours["mean"], ours["std"]
    assert own is not None
    difference = own - mean
    allowed = 2 * math.hypot((std if spread is None else spread) or 0.0, std or 0.0) + 1e-9  # rounding to decimals
    verdict = "within" if abs(difference) <= allowed else "better" if difference > 0 else "worse"
    return round(difference, 4), verdict


def with_paper(ours: dict[str, Figure | None], paper: dict[str, Printed | None]) -> dict[str, Any]:
    """The fields of a row about the paper: its figures, printed and corrected, differences and verdicts."""
    known = {name: figure for name, figure in paper.items() if figure is not None}
    printed = {name: {"mean": figure.printed[0], "std": figure.printed[1]} for name, figure in known.items()}
    corrected = {
        name: {"mean": figure.corrected, "std": None} for name, figure in known.items() if figure.corrected is not None
    }
    judged = {name: compared(ours.get(name), figure) for name, figure in known.items()}
    return {
        "paper": {"printed": printed, "corrected": corrected or None},
        "difference": {name: difference for name, (difference, _) in judged.items()},
        "verdict": {name: verdict for name, (_, verdict) in judged.items()},
    }
