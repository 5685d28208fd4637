"""One self-contained HTML file: style, script, data and pictures inside it, and nothing fetched from anywhere.

What users chose (names of classes, paths) reaches the page in two ways only: through `html.escape` into its text, and as
JSON in which no character can end the element that it stands in. The page's own policy allows no other script than its
own, by hash, and no connection at all.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from isoconv.errors import IsoconvError
from isoconv.files import write_text
from isoconv.report.fragments import run_details, run_notes, subtitle, table_row
from isoconv.report.records import run_record, short_names
from isoconv.report.run_files import Record, read_run_files
from isoconv.version import __version__

LARGEST = 3_000_000  # bytes of a page; what would make it larger is left out, galleries first

_MARK = '<meta name="generator" content="isoconv report'
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
# One scope: what a file defines is there for those after it.
_SCRIPT = ("elements", "known", "chart", "robustness", "summary", "gallery", "layers", "training", "main")
# What is in the HTML itself, and need not be in the script's data again.
_FOR_PEOPLE = {
    "command",
    "config",
    "made",
    "notes",
    "layers",
    "seconds",
    "bound",
    "about",
    "data",
    "conv",
    "arithmetic",
}


def write_report(runs: Sequence[Path], out: Path, notes: Mapping[Path, Sequence[str]] | None = None) -> int:
    """Make the page about these run folders (one seed's each), and give its size in bytes.

    `notes` are sentences to show with a run: why something is missing. An existing file is replaced if it is such a page.
    """
    if not runs:
        raise IsoconvError("Expected at least one run to report on. Got none.")
    check_replaceable(out)
    read = [read_run_files(path) for path in dict.fromkeys(runs)]
    names = short_names([run.path for run in read])
    records = [
        run_record(run, name, list((notes or {}).get(run.path, ()))) for run, name in zip(read, names, strict=True)
    ]
    page = _page(records)
    for record in reversed(records):
        if _size(page) <= LARGEST:
            break
        if record["gallery"] is not None:
            record["gallery"] = None
            record["notes"].append(
                "The gallery is left out, for the page to stay small: make a page of this run alone."
            )
            page = _page(records)
    if _size(page) > LARGEST:
        raise IsoconvError(
            f"Expected runs that fit into a page of {LARGEST // 10**6} MB. Got {len(records)}: make pages of fewer runs."
        )
    try:
        write_text(out, page)
    except OSError as error:
        raise IsoconvError(f"Cannot write the report to {out}: {error.strerror}.") from None
    return _size(page)


def check_replaceable(out: Path) -> None:
    """Whether a page may be written there: a report is made anew as often as one likes, anything else is left alone."""
    if out.is_dir():
        raise IsoconvError(f"Expected a file for the report, such as {out / 'report.html'}. Got {out}, a folder.")
    if not out.parent.is_dir():
        raise IsoconvError(f"Expected a folder to write the report to. There is no {out.parent}.")
    if out.exists():
        try:
            with out.open("rb") as file:
                ours = _MARK.encode() in file.read(4096)
        except OSError as error:
            raise IsoconvError(f"Cannot write the report to {out}: {error.strerror}.") from None
        if not ours:
            raise IsoconvError(
                f"Expected a new file, or an isoconv report to replace. {out} is something else: name another (--out)."
            )


def _page(records: Sequence[Record]) -> str:
    style, template = _resource("page.css"), _resource("page.html")
    parts = "\n".join(_resource(f"script/{name}.js") for name in _SCRIPT)
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_sha256(style)}'",
            f"script-src '{_sha256(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    places = list(dict.fromkeys(Path(record["data"]).name or record["data"] for record in records))
    count = _NUMBERS[len(records)] if len(records) < len(_NUMBERS) else str(len(records))
    title = f"{count} network{'s' if len(records) > 1 else ''} on {', '.join(places)}"
    content = {
        "policy": policy,
        "mark": f'{_MARK} {__version__}">',
        "title": html.escape(title),
        "subtitle": html.escape(subtitle(records)),
        "rows": "\n".join(table_row(index, record) for index, record in enumerate(records)),
        "notes": "\n".join(run_notes(record) for record in records),
        "details": "\n".join(run_details(index, record) for index, record in enumerate(records)),
        "version": __version__,
        "style": style,
        "data": _json({"runs": [{k: v for k, v in one.items() if k not in _FOR_PEOPLE} for one in records]}),
        "script": script,
    }
    # One pass over the template: what is filled in is not looked at again.
    pieces = template.split("{{")
    page = pieces[0] + "".join(content[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))
    return page.encode(errors="replace").decode()  # a path need not be text; what is not becomes a question mark


def _size(page: str) -> int:
    return len(page.encode())


def _resource(name: str) -> str:
    return files("isoconv.report").joinpath(*name.split("/")).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON inside a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
