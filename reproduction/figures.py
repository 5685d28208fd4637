"""The paper's three figures, drawn from the real operators and the trained networks, and the curve of the record."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from isoconv.linalg import projector_pair_1d
from isoconv.nn import InvertibleDownsampling
from isoconv.nn.convolution import convolve_same
from isoconv.train.config import CLASSIFIERS
from reproduction.cells import Cell, ClassifierCell, Classifiers, Figures, Results
from reproduction.frames import NAMES
from reproduction.paper import BUDGETS

_X, _Y, _SHADES = "#d9822b", "#2a6fbb", ("#f4b183", "#9dc3e6", "#a9d18e", "#ffd966")


def to_svg(figure: Figure) -> bytes:
    """Return the file of a figure, the same for the same figure."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "isoconv", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return buffer.getvalue()


def draw_singular_values(cells: Sequence[Cell], results: Results) -> Figure:
    """Draw one histogram per method: blue before training, orange after, as in the paper."""
    records = [(cell, results[cell]) for cell in cells if isinstance(results.get(cell), Classifiers)]
    figure = Figure(figsize=(3 * max(1, len(records)), 2.8), layout="constrained")
    axes = figure.subplots(1, max(1, len(records)), squeeze=False)[0]
    for axis, (cell, record) in zip(axes, records, strict=False):
        assert isinstance(cell, ClassifierCell) and isinstance(record, Classifiers) and record.second_layer
        layer = record.second_layer
        for part, colour, label in ((layer.before, _Y, "at the start"), (layer.after, _X, "after training")):
            axis.stairs(part.counts, layer.edges, fill=True, color=colour, alpha=0.6, label=label)
        axis.set(title=NAMES[str(cell.conv)], xlabel="singular value", yscale="log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def convolve_blocks() -> dict[str, torch.Tensor]:
    """Return a signal of three places and two channels, P v moved on by one place, (I−P) v, and their sum [P  I−P] ∗ v.

    P projects onto the first channel. As PyTorch counts taps, P meets the place before, I−P the place itself.
    """
    signal = torch.tensor([[1.0, -0.6, 0.4], [0.7, 0.9, -0.8]], dtype=torch.float64)
    kernel = projector_pair_1d(torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    moved, kept = kernel.clone(), kernel.clone()
    moved[:, :, 1], kept[:, :, 0] = 0, 0
    parts = {"P v, moved on by one": moved, "(I−P) v, in place": kept, "[P  I−P] ∗ v": kernel}
    return {"v": signal} | {n: convolve_same(signal[None], k, None, "circular", [(1, 0)])[0] for n, k in parts.items()}


def draw_block_convolution(cells: Sequence[Cell], results: Results) -> Figure:
    """Draw what [P  I−P] does to a signal: P hands its x to the next place, I−P keeps its y."""
    figure, parts = Figure(figsize=(8, 5.2), layout="constrained"), convolve_blocks()
    for line, (title, values) in zip(figure.subplots(4, 3), parts.items(), strict=True):
        for axis, (x, y) in zip(line, values.T.tolist(), strict=True):
            arrows = [((x, 0), _X), ((0, y), _Y), *([((x, y), "black")] if "in place" not in title else [])]
            for end, colour in arrows:
                if any(end):
                    axis.annotate("", end, (0, 0), arrowprops={"arrowstyle": "-|>", "linewidth": 1.8, "color": colour})
            axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xticks=[], yticks=[])
        line[0].set_ylabel(title, rotation=0, ha="right", va="center")
    before, after = (float(parts[name].norm()) for name in ("v", "[P  I−P] ∗ v"))
    figure.suptitle(f"‖v‖ = {before:.4f} before, {after:.4f} after", fontsize=10)
    return figure


def draw_downsampling(cells: Sequence[Cell], results: Results) -> Figure:
    """Draw an image of 4×4; each of its four colours becomes a channel of 2×2."""
    image = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    channels = InvertibleDownsampling(2)(image)[0].int().tolist()
    colours = {value: _SHADES[k] for k, channel in enumerate(channels) for line in channel for value in line}
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    titles = ["1 channel, 4×4", *(f"channel {k}" for k in range(1, 5))]
    grids: list[Any] = [image[0, 0].int().tolist(), *channels]
    for axis, grid, title in zip(figure.subplots(1, 5, width_ratios=[4, 2, 2, 2, 2]), grids, titles, strict=True):
        for y, x in [(y, x) for y in range(len(grid)) for x in range(len(grid))]:
            axis.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color=colours[grid[y][x]], edgecolor="white")
            axis.text(x + 0.5, y + 0.5, str(grid[y][x]), ha="center", va="center")
        axis.set(xlim=(0, len(grid)), ylim=(len(grid), 0), aspect="equal")
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    return figure


def draw_budgets(cells: Sequence[Cell], results: Results) -> Figure:
    """Draw certified accuracy against training time: ours, means of networks alone on one H200, and published ones."""
    figure, radius = Figure(figsize=(5.6, 3.3), layout="constrained"), f"certified at {36 / 255}"
    axis = figure.subplots()
    points = [(name, 60.0 * hours, certified, _X) for (name, hours), certified in BUDGETS.items()]
    runs: dict[str, list[tuple[float, float]]] = {}
    for record in (record for record in results.values() if isinstance(record, Figures)):
        title = next(NAMES[model] for model in CLASSIFIERS if f"-{model}-" in f"{record.name}-")
        alone = [row for run, row in record.rows.items() if run.startswith("alone") and radius in row]
        runs.setdefault(title, []).extend((row["train_seconds"] / 60, row[radius]) for row in alone)
    points += [(f"isoconv, {title}", *np.mean(each, axis=0).tolist(), _Y) for title, each in runs.items()]
    for name, minutes, certified, colour in points:
        axis.plot(minutes, certified, "o", color=colour)
        axis.annotate(name, (minutes, certified), (6, -3), textcoords="offset points", fontsize=9)
    axis.set(xscale="log", xlim=(0.2, 4500), xlabel="training time", ylabel="certified at 36/255, %")
    axis.margins(y=0.1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xticks([1 / 3, 1, 10, 120, 600, 1440], ["20 s", "1 min", "10 min", "2 h", "10 h", "24 h"], minor=False)
    axis.minorticks_off()
    return figure


DRAWINGS: dict[str, Callable[[Sequence[Cell], Results], Figure]] = {
    "figure-sv": draw_singular_values,
    "figure-bconv": draw_block_convolution,
    "figure-downsampling": draw_downsampling,
    "figure-record": draw_budgets,
}
