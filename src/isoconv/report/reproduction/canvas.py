"""Figures of matplotlib and their files. matplotlib is imported when something is drawn, and no earlier."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure that belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise IsoconvError("Drawing needs matplotlib, which is not installed: pip install 'isoconv[plots]'.") from None
    return Figure(figsize=(width, height), layout="constrained")


def to_bytes(figure: "Figure", ending: str) -> bytes:
    """The file of a figure, the same for the same figure."""
    if ending not in ENDINGS:
        raise IsoconvError(f"Expected a file for the figure that ends in {', '.join(ENDINGS)}. Got {ending!r}.")
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata = {".svg": ("Date", "Creator", "Format", "Type"), ".pdf": ("CreationDate",)}
    nothing = dict.fromkeys(metadata.get(ending, ()))
    with rc_context({"svg.hashsalt": "isoconv", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=ending[1:], dpi=150, metadata=nothing)
    return buffer.getvalue()


def is_drawable(path: Path) -> bool:
    """Whether `path` names a kind of file that can be drawn."""
    return path.suffix.lower() in ENDINGS


def check_drawable(path: Path) -> None:
    """Refuse any other."""
    if not is_drawable(path):
        raise IsoconvError(f"Expected a file for the figure that ends in {', '.join(ENDINGS)}. Got {path}.")
