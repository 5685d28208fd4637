"""The paper's tables and figures from result files: rows, tables, Markdown, LaTeX, one page of HTML, drawings."""

from isoconv.report.reproduction.canvas import check_drawable, is_drawable, to_bytes
from isoconv.report.reproduction.formats import to_latex, to_markdown
from isoconv.report.reproduction.names import shown_seconds
from isoconv.report.reproduction.page import Part, to_html
from isoconv.report.reproduction.plots import FIGURES, draw_target
from isoconv.report.reproduction.rows import rows_of
from isoconv.report.reproduction.table import Table, Text
from isoconv.report.reproduction.tables import table_of

__all__ = [
    "FIGURES",
    "Part",
    "Table",
    "Text",
    "check_drawable",
    "draw_target",
    "is_drawable",
    "rows_of",
    "shown_seconds",
    "table_of",
    "to_bytes",
    "to_html",
    "to_latex",
    "to_markdown",
]
