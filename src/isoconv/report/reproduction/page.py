"""One page of HTML that stands by itself: each target's table with its picture."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from isoconv.report.reproduction.canvas import to_bytes
from isoconv.report.reproduction.plots import draw_target
from isoconv.report.reproduction.table import Row, Table, Text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
section { margin-block: 3rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.6rem; text-align: left; white-space: nowrap; }
th.figure, td.figure { text-align: right; }
thead th { border-bottom: 2px solid; }
tr.rule td { border-bottom: 1px solid #8886; }
figure { margin: 1.5rem 0; }
figure svg { max-width: 100%; height: auto; background: white; border-radius: 4px; }
p.note { margin: 0.3rem 0; font-size: 0.85rem; opacity: 0.8; }
"""


@dataclass(frozen=True)
class Part:
    """A target with its rows and the table of them."""

    target: str
    rows: list[Row]
    table: Table


def to_html(parts: Sequence[Part]) -> str:
    """The page of one target, or of several."""
    title = parts[0].table.title if len(parts) == 1 else "The paper, reproduced"
    sections = "\n".join(_section(part.target, part.rows, part.table) for part in parts)
    heading = "" if len(parts) == 1 else f"<h1>{escape(title)}</h1>\n"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n{heading}{sections}\n</body>\n</html>\n"
    )


def _section(target: str, rows: list[Row], table: Table) -> str:
    figure = draw_target(target, rows)
    drawing = "" if figure is None else f"<figure>{_inline(to_bytes(figure, '.svg').decode(), target)}</figure>\n"
    notes = "\n".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return f'<section id="{target}">\n<h2>{escape(table.title)}</h2>\n{_table(table)}\n{notes}\n{drawing}</section>'


def _table(table: Table) -> str:
    kinds = ["" if k < table.texts else ' class="figure"' for k in range(len(table.headings))]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, table.headings, strict=True))
    body = []
    for k, line in enumerate(table.lines):
        places = "".join(f"<td{kind}>{_place(place)}</td>" for kind, place in zip(kinds, line, strict=True))
        rule = ' class="rule"' if k in table.rules else ""
        body.append(f"<tr{rule}>{places}</tr>")
    parts = [
        '<div class="wide"><table>',
        f"<thead><tr>{head}</tr></thead>",
        "<tbody>",
        *body,
        "</tbody>",
        "</table></div>",
    ]
    return "\n".join(parts)


def _place(place: Text) -> str:
    return f"<b>{escape(place.text)}</b>" if place.bold else escape(place.text)


def _inline(svg: str, target: str) -> str:
    """The drawing as part of a page: without its own header, its identifiers apart from those of other drawings."""
    body = svg[svg.index("<svg") :]
    names = set(re.findall(r'\bid="([^"]+)"', body))
    pattern = re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
    return pattern.sub(lambda m: f"{m[1]}{target}-{m[2]}" if m[2] in names else m[0], body)
