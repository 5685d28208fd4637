"""A table before it is known whether a terminal, Markdown, LaTeX or HTML will show it, and what its places share."""

from dataclasses import dataclass, field
from typing import Any

from isoconv.report.reproduction.names import DATA, METHODS, NETWORKS, NOTHING, RECIPES, shown, shown_seconds

Row = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """What stands in one place of a table."""

    text: str
    bold: bool = False


@dataclass
class Table:
    """Headings, lines of as many places, and notes below. `rules` are the lines after which a rule is drawn."""

    title: str
    headings: list[str]
    lines: list[list[Text]] = field(default_factory=list)
    rules: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    texts: int = 2  # how many columns, from the left, are text and not figures

    def add(self, *places: str | Text) -> None:
        self.lines.append([place if isinstance(place, Text) else Text(place) for place in places])

    def rule(self) -> None:
        if self.lines:
            self.rules.add(len(self.lines) - 1)


def row_name(row: Row) -> str:
    parts = [DATA.get(row.get("dataset") or "", ""), NETWORKS.get(row.get("model") or "", "")]
    parts += [METHODS.get(row.get("conv") or "", ""), row.get("figure") or ""]
    return " ".join(part for part in parts if part) or "This"


def our_figure(row: Row, quantity: str, digits: int = 2) -> str:
    """Our figure, or why there is none."""
    if row.get(quantity) is not None:
        return shown(row[quantity], digits)
    if row["status"] in ("missing", "failed"):
        return row["status"]
    return "failed" if f"{quantity}_failed" in row else "missing"


def paper_figures(row: Row, version: str, quantities: tuple[str, ...]) -> str:
    figures = (row.get("paper") or {}).get(version) or {}
    return " / ".join(shown(figures.get(q)) for q in quantities) if figures else NOTHING


def differences(row: Row, quantities: tuple[str, ...]) -> str:
    found = [row["difference"].get(q) for q in quantities]
    return NOTHING if None in found else " / ".join(f"{value:+.2f}" for value in found)


def verdicts(row: Row, quantities: tuple[str, ...]) -> str:
    found = [row["verdict"].get(q) for q in quantities]
    if None in found:
        return NOTHING
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def is_best(rows: list[Row], row: Row, quantity: str) -> bool:
    """Whether no other method does better on the same data, network, radius and recipe."""
    same = ("dataset", "model", "recipe", "epsilon")
    rivals = [r[quantity]["mean"] for r in rows if r[quantity] and all(r[key] == row[key] for key in same)]
    return len(rivals) > 1 and row[quantity] is not None and row[quantity]["mean"] == max(rivals)


def epochs_and_recipe(row: Row) -> str:
    recipe = RECIPES.get(row["recipe"] or "", "")
    return f"{row['epochs']}{f', {recipe}' if recipe else ''}" if row["epochs"] else NOTHING


def seed_note(rows: list[Row]) -> str:
    def numbers(recipe: str) -> str:
        found = {len(row["seeds"]) for row in rows if row["seeds"] and row["recipe"] == recipe}
        return " or ".join(str(n) for n in sorted(found))

    ours, papers = numbers("default"), numbers("paper")
    but = f" ({papers} in the paper's recipe)" if papers and papers != ours else ""
    return f"Ours: mean ± population standard deviation of {ours or 'five'} seeds{but}, last epoch."


def place_notes(rows: list[Row]) -> list[str]:
    """The hardware, and the time that the lines took there, each by its own clock."""
    places: dict[str, float] = {}
    for row in {(row_name(r), r.get("recipe"), r.get("activation")): r for r in rows}.values():
        if row.get("hardware") and row.get("train_seconds"):
            places[row["hardware"]] = places.get(row["hardware"], 0.0) + row["train_seconds"]
    shared = "added up; lines may have been trained at the same time"
    return [f"Trained on {place}, all seeds side by side: {shown_seconds(s)} {shared}." for place, s in places.items()]
