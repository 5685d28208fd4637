"""The parts of the page that are there without any script: the table's lines, and what made each run."""

import html
import math
from collections.abc import Sequence

from isoconv.report.run_files import Record

COLOURS = 8  # that the style sheet has


def subtitle(records: Sequence[Record]) -> str:
    counts = {record["images"] for record in records}
    images = f"{counts.pop():,} test images" if len(counts) == 1 and None not in counts else "test images"
    shapes = {(record["shape"][1], record["shape"][2]) for record in records}
    sizes = ", ".join(f"{height} × {width}" for height, width in sorted(shapes))
    return f"{images} of {sizes} pixels from 0 to 1, changed by at most ε in the L2 norm"


def table_row(index: int, record: Record) -> str:
    """A line of the table, readable without any script; the script keeps it up to date with ε."""
    esc = html.escape
    images = record["images"] or 0
    clean = "–" if record["clean"] is None else _percent(record["clean"], images)
    bound = "–" if record["bound"] is None else _bound(record["bound"])
    proved = "; ".join(f"{_percent(share, images)} at {epsilon:.4g}" for epsilon, share in record["robust"]) or "–"
    name = f'<span class="swatch" aria-hidden="true"></span>{esc(record["name"])}<small>{esc(record["about"])}</small>'
    return f"""<tr class="run run-{index % COLOURS}" data-run="{index}">
<th scope="row">{name}</th>
<td data-label="clean">{clean}</td>
<td data-label="certified" data-cell="certified">{proved}</td>
<td data-label="under attack" data-cell="attacked">–</td>
<td class="range" data-cell="range" aria-hidden="true"></td>
<td data-label="Lipschitz bound">{bound}</td>
<td data-label="training">{_duration(record["seconds"])}</td>
</tr>"""


def _percent(share: float, images: int) -> str:
    """Never rounded up, for it may be something that is proved; as exact as a share of so many images needs."""
    digits = 2 if images > 1000 else 1
    return f"{math.floor(share * 10**digits + 1e-6) / 10**digits:.{digits}f} %"


def _bound(value: float) -> str:
    """Seven digits, never rounded down."""
    text = f"{value:.7g}"
    if float(text) < value:
        unit = 10.0 ** (math.floor(math.log10(value)) - 6)
        text = f"{float(text) + unit:.7g}"
    return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def run_notes(record: Record) -> str:
    """What is missing on the page, and how to come by it."""
    name = html.escape(record["name"])
    return "".join(f'<p class="note"><b>{name}</b>: {html.escape(note)}</p>' for note in record["notes"])


def run_details(index: int, record: Record) -> str:
    esc = html.escape
    rows = "".join(
        f"<tr><th scope='row'>{esc(key)}</th><td>{esc(value)}</td></tr>"
        for key, value in [*record["config"], *record["made"]]
    )
    layers = "".join(
        f"<tr><th scope='row'>{esc(layer['name'])}</th><td>{esc(layer['kind'])}</td><td>{_bound(layer['bound'])}</td></tr>"
        for layer in record["layers"]
    )
    command = (
        '<p class="note">Made from Python with settings that no option of the command sets.</p>'
        if record["command"] is None
        else f'<div class="command"><code>{esc(record["command"])}</code>'
        f'<button type="button" class="copy">Copy</button></div>'
    )
    proved = (
        f"<h4>The proved bound of every layer</h4><div class='scroll'><table class='plain'>"
        f"<thead><tr><th>layer</th><th>kind</th><th>bound</th></tr></thead><tbody>{layers}</tbody></table></div>"
        if layers
        else ""
    )
    return f"""<details class="run-{index % COLOURS}">
<summary><span class="swatch" aria-hidden="true"></span>{esc(record["name"])}<small>{esc(record["about"])}</small></summary>
<h4>The command that makes this run</h4>
{command}
<h4>Its configuration</h4>
<div class="scroll"><table class="plain"><tbody>{rows}</tbody></table></div>
{proved}
</details>"""
