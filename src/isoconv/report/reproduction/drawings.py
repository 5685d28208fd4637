"""The paper's two drawings, from the numbers that the real operators gave."""

from typing import TYPE_CHECKING, Any

from isoconv.report.reproduction.canvas import new_figure
from isoconv.report.reproduction.measured_tables import BLOCK_CONVOLUTION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
_X, _Y = "#d9822b", "#2a6fbb"  # the first channel and the second, as axes of a plane
_SHADES = ("#f4b183", "#9dc3e6", "#a9d18e", "#ffd966")


def draw_block_convolution(rows: list[Row]) -> "Figure":
    """[P  I−P] on a signal: each place holds a vector of two channels; P hands its x to the next place, I−P keeps its y."""
    (row,) = rows
    figure = new_figure(8, 5.2)
    axes = figure.subplots(len(BLOCK_CONVOLUTION), 3, squeeze=False)
    for line, (name, title) in zip(axes, BLOCK_CONVOLUTION, strict=True):
        for place, axis in enumerate(line):
            x, y = (row[name][channel][place] for channel in (0, 1))
            _vector(axis, x, y, name)
        line[0].set_ylabel(title, rotation=0, ha="right", va="center")
    norms = row["norms"]
    figure.suptitle(f"‖v‖ = {norms['input']:.4f} before, {norms['output']:.4f} after", fontsize=10)
    return figure


def _vector(axis: Any, x: float, y: float, name: str) -> None:
    axis.axhline(0, color="#cccccc", linewidth=0.8)
    axis.axvline(0, color="#cccccc", linewidth=0.8)
    arrow = {"arrowstyle": "-|>", "linewidth": 1.8}
    if name in ("input", "output"):
        axis.annotate("", (x, y), (0, 0), arrowprops={**arrow, "color": "black"})
    if x:
        axis.annotate("", (x, 0), (0, 0), arrowprops={**arrow, "color": _X})
    if y:
        axis.annotate("", (0, y), (0, 0), arrowprops={**arrow, "color": _Y})
    axis.set_xlim(-1.2, 1.2)
    axis.set_ylim(-1.2, 1.2)
    axis.set_xticks([])
    axis.set_yticks([])


def draw_downsampling(rows: list[Row]) -> "Figure":
    """An image of 4×4; each of its four colours becomes a channel of 2×2."""
    (row,) = rows
    figure = new_figure(7, 2.6)
    left, *_ = axes = figure.subplots(1, 5, width_ratios=[4, 2, 2, 2, 2])
    colour_of = {value: k for k, channel in enumerate(row["channels"]) for line in channel for value in line}
    _pixels(left, row["input"], colour_of)
    left.set_title("1 channel, 4×4", fontsize=10)
    for k, (axis, channel) in enumerate(zip(axes[1:], row["channels"], strict=True), start=1):
        _pixels(axis, channel, colour_of)
        axis.set_title(f"channel {k}", fontsize=10)
    return figure


def _pixels(axis: Any, values: list[list[int]], colour_of: dict[int, int]) -> None:
    size = len(values)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            axis.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color=_SHADES[colour_of[value]], edgecolor="white")
            axis.text(x + 0.5, y + 0.5, str(value), ha="center", va="center")
    axis.set_xlim(0, size)
    axis.set_ylim(size, 0)
    axis.set_aspect("equal")
    axis.axis("off")
