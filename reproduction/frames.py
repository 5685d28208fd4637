"""Tables as text: what every target's table shares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from benchmarks.measuring import to_markdown
from isoconv.data.datasets import DATASETS
from isoconv.models import MODELS
from isoconv.nn.methods import ACTIVATIONS, METHODS
from reproduction.cells import Cell, Figures, Results

_TABLES: tuple[Mapping[str, Any], ...] = (DATASETS, MODELS, METHODS, ACTIVATIONS)
NAMES = {name: record.title for table in _TABLES for name, record in table.items()} | {"None": "–"}
Tabulate = Callable[[Sequence[Cell], Results], "Table"]


@dataclass
class Table:
    """A title, a frame of text, notes below it; the first `texts` columns are words, the others figures."""

    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    texts: int = 2

    def to_markdown(self) -> str:
        names, rows = [str(name) for name in self.frame.columns], self.frame.itertuples(index=False)
        notes = "".join("\n" + note.replace("|", "\\|") + "\n" for note in self.notes)
        return to_markdown(names, rows, self.texts) + notes

    def to_format(self, name: str) -> str:
        """Return the table as text, Markdown, LaTeX, HTML or JSON."""
        if name == "markdown":
            return self.to_markdown()
        frame = self.frame.map(lambda text: text.replace("**", ""))
        formats = {"latex": frame.to_latex, "html": frame.to_html, "text": frame.to_string}
        if name == "json":
            return str(frame.to_json(orient="records", force_ascii=False, indent=1))
        return "\n".join([self.title, "", formats[name](index=False), "", *self.notes, ""])


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that fits."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def tabulate_figures(title: str, make: Callable[[pd.DataFrame], pd.DataFrame], *notes: str, texts: int = 1) -> Tabulate:
    """Return a function that makes the table of `Figures`: `make` gets all rows in one frame, with cell and row names."""

    def tabulate(cells: Sequence[Cell], results: Results) -> Table:
        records = [r for r in results.values() if isinstance(r, Figures)]
        if not records:
            return Table(title, pd.DataFrame({"": ["missing"] * len(cells)}), texts=texts)
        heads = [({"cell": r.name, "hardware": r.hardware}, r.rows) for r in records]
        rows = [head | {"name": name} | row for head, rows in heads for name, row in rows.items()]
        places = dict.fromkeys(f"{r.hardware}, torch {r.torch}" for r in records if r.hardware and r.torch)
        where = [f"Measured on {'; '.join(places)}."] if places else []
        return Table(title, make(pd.DataFrame(rows)), [*notes, *where], texts)

    return tabulate
