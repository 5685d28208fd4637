"""Drawings: the paper's three figures, and for each table one picture of ours beside the paper's. Needs matplotlib."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isoconv.report.reproduction.canvas import new_figure
from isoconv.report.reproduction.drawings import draw_block_convolution, draw_downsampling
from isoconv.report.reproduction.names import ACTIVATIONS, DATA, METHODS, NETWORKS, shown_radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
FIGURES = ("figure-bconv", "figure-downsampling", "figure-sv")
OURS, PAPERS, THIRD = "#2a6fbb", "#d9822b", "#6b6b6b"


def draw_target(target: str, rows: list[Row]) -> "Figure | None":
    """The picture of a target; None if it has none, or nothing is measured yet."""
    draw: dict[str, Callable[[list[Row]], Figure]] = {
        "table1": _accuracies,
        "ablation": _accuracies,
        "sota": _accuracies,
        "attacks": _attacks,
        "wasserstein": _distances,
        "time": _steps,
        "complexity": _complexity,
        "figure-sv": _singular_values,
        "figure-bconv": draw_block_convolution,
        "figure-downsampling": draw_downsampling,
    }
    measured = [row for row in rows if row["status"] == "ok"]
    return draw[target](measured) if target in draw and measured else None


# One picture per table --------------------------------------------------------------------------------------------


def _accuracies(rows: list[Row]) -> "Figure":
    """Clean and certified accuracy, one panel per data set and radius."""
    panels = list(dict.fromkeys((row["dataset"], row["epsilon"]) for row in rows))
    figure = new_figure(10, 0.9 + sum(0.3 * _count(rows, panel) + 0.7 for panel in panels))
    heights = [_count(rows, panel) + 1 for panel in panels]
    axes = figure.subplots(len(panels), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    for (dataset, epsilon), pair in zip(panels, axes, strict=True):
        here = [row for row in rows if (row["dataset"], row["epsilon"]) == (dataset, epsilon)]
        labels = [_label(row) for row in here]
        for axis, quantity, what in zip(pair, ("clean", "robust"), ("clean", "certified"), strict=True):
            for y, row in enumerate(here):
                paper = (row.get("paper") or {}).get("printed", {}).get(quantity)
                _dot(axis, paper, y, PAPERS, "D", "the paper")
                _dot(axis, row[quantity], y, OURS, "o", "ours")
            axis.set_yticks(range(len(here)), labels if quantity == "clean" else [""] * len(here))
            axis.set_ylim(len(here) - 0.5, -0.5)
            axis.set_title(
                f"{DATA[dataset]}, {what} %" + (f" at {shown_radius(epsilon)}" if quantity == "robust" else "")
            )
            axis.grid(axis="x", alpha=0.3)
    _one_legend(figure, axes[0][0])
    return figure


def _count(rows: list[Row], panel: tuple[str, float]) -> int:
    return sum((row["dataset"], row["epsilon"]) == panel for row in rows)


def _label(row: Row) -> str:
    parts = [NETWORKS[row["model"]], METHODS.get(row["conv"] or "", "")]
    return " ".join(part for part in parts if part) + (" (paper's recipe)" if row["recipe"] == "paper" else "")


def _dot(axis: Any, figure: dict[str, Any] | None, y: float, colour: str, marker: str, label: str) -> None:
    if figure is not None:
        axis.errorbar(
            figure["mean"], y, xerr=figure["std"] or 0, fmt=marker, color=colour, markersize=5, capsize=2, label=label
        )


def _one_legend(figure: "Figure", axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=len(unique), frameon=False)


def _attacks(rows: list[Row]) -> "Figure":
    """Per network: certified, attacked, clean."""
    figure = new_figure(9, 0.5 + 1.6 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False, sharex=True)
    names = {"robust": "certified", "pgd": "PGD", "fgsm": "FGSM"}
    for axis, row in zip(axes[:, 0], rows, strict=True):
        quantities = [q for q in ("robust", "pgd", "fgsm", "boundary", "pointwise", "clean") if row.get(q)]
        for y, quantity in enumerate(quantities):
            _dot(axis, row["paper"]["printed"].get(quantity), y, PAPERS, "D", "the paper")
            _dot(axis, row[quantity], y, OURS, "o", "ours")
        axis.set_yticks(range(len(quantities)), [names.get(q, q) for q in quantities])
        axis.set_ylim(len(quantities) - 0.5, -0.5)
        axis.set_title(f"{_label(row)}, {row['images']:,} images, accuracy in %", loc="left", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    _one_legend(figure, axes[0, 0])
    return figure


def _distances(rows: list[Row]) -> "Figure":
    """Shares of the best critic's distance, ours and the paper's."""
    figure = new_figure(8, 0.8 + 0.4 * len(rows))
    axis = figure.subplots()
    for y, row in enumerate(rows):
        axis.plot(row["paper_share"], y, "D", color=PAPERS, label="the paper")
        if row["share"] is not None:
            axis.plot(row["share"], y, "o", color=OURS, label="ours")
    axis.set_yticks(range(len(rows)), [f"{METHODS[r['conv']]}, {ACTIVATIONS[r['activation']]}" for r in rows])
    axis.invert_yaxis()
    axis.set_xlabel("distance found, as a share of that by BCOP with MaxMin")
    axis.grid(axis="x", alpha=0.3)
    _one_legend(figure, axis)
    return figure


def _steps(rows: list[Row]) -> "Figure":
    figure = new_figure(8, 0.8 + 0.4 * len(rows))
    axis = figure.subplots()
    for y, row in enumerate(rows):
        axis.plot(row["seconds"]["median"], y, "o", color=OURS, label=f"ours, {row['hardware']}")
        if row["paper"]:
            axis.plot(row["paper"]["seconds"], y, "D", color=PAPERS, label="the paper, NVIDIA P100")
    axis.set_yticks(range(len(rows)), [f"{METHODS[r['conv']]}, {r['recipe']} recipe" for r in rows])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("seconds per training step")
    axis.grid(axis="x", alpha=0.3)
    _one_legend(figure, axis)
    return figure


def _complexity(rows: list[Row]) -> "Figure":
    """Seconds against channels and against image size, both axes in logarithms."""
    figure = new_figure(10, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name, what in zip(axes, ("channels", "size"), ("channels c", "image size s"), strict=True):
        for number, row in enumerate(rows):
            x, y = zip(*row["seconds"][name], strict=True)
            slope = row["exponents"][name]["fitted"]
            label = f"{METHODS[row['conv']]}, {row['recipe']}: {slope:.2f}"
            axis.plot(x, y, "o-" if row["recipe"] == "default" else "s--", color=f"C{number}", label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(what)
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds to build")
    return figure


def _singular_values(rows: list[Row]) -> "Figure":
    """One histogram per method: blue before training, orange after, as in the paper."""
    figure = new_figure(3 * len(rows), 2.8)
    axes = figure.subplots(1, len(rows), squeeze=False)
    for axis, row in zip(axes[0], rows, strict=True):
        for when, colour, label in (("before", OURS, "at the start"), ("after", PAPERS, "after training")):
            axis.stairs(row[when]["counts"], row["edges"], fill=True, color=colour, alpha=0.6, label=label)
        axis.set_title(METHODS[row["conv"]])
        axis.set_xlabel("singular value")
        axis.set_yscale("log")
    axes[0][0].set_ylabel("how many")
    _one_legend(figure, axes[0][0])
    return figure
