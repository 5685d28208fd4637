"""isoconv reproduce"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.cli.options import parse_seeds
from isoconv.cli.output import interruptible
from isoconv.cli.reproduction_tables import PlanWatcher, print_plan, shown_table
from isoconv.errors import IsoconvError
from isoconv.files import write_text
from isoconv.report.reproduction import (
    FIGURES,
    Part,
    check_drawable,
    draw_target,
    is_drawable,
    rows_of,
    table_of,
    to_bytes,
    to_html,
    to_latex,
    to_markdown,
)
from isoconv.train.distributed import choose_device
from isoconv.train.reproduction import (
    RESULTS,
    RUNS,
    TARGETS,
    Cell,
    Settings,
    cells_of,
    find_results,
    measure,
    plan_cells,
    read_results,
    with_instant,
)

FORMATS = ("table", "markdown", "latex", "html", "json")
_MORE_TO_DO = 3  # exit code: everything is saved, and the same command goes on


def reproduce(
    target: Annotated[str, typer.Argument(help=f"{', '.join(TARGETS)}, or all")],
    run: Annotated[bool, typer.Option("--run", help="measure what is missing")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="measure all of it on a few images, to see that it works")
    ] = False,
    folder: Annotated[Path | None, typer.Option("--data", help="where the data sets' files are")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch data sets that are not there")] = False,
    recipe: Annotated[str | None, typer.Option(help="only default, or only the paper's: paper")] = None,
    only: Annotated[list[str] | None, typer.Option(help="only cells with this in their name: cifar10-large")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="trained side by side; 0,1,2,3,4 (0 in the paper's recipe) if nothing is said")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="instead of each cell's own number")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    time_limit: Annotated[float | None, typer.Option(help="seconds after which to save and leave")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="measure cells again that have failed")] = False,
    results: Annotated[Path | None, typer.Option(help=f"the folder of the result files, {RESULTS}")] = None,
    runs: Annotated[Path | None, typer.Option(help=f"the folder of networks in training, {RUNS}")] = None,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
    out: Annotated[Path | None, typer.Option(help="write to this file; a drawing if it is .svg, .png or .pdf")] = None,
) -> None:
    """Reproduce a table or a figure of the paper, from training to the typeset result.

    What has been measured is shown; --run measures the rest. It may be stopped at any time, and the same command goes on
    with it (exit code 3: there is more to do).

    Example: isoconv reproduce table1 --run --data DIR
    """
    form = "json" if as_json else form
    if form not in FORMATS:
        raise IsoconvError(f"Expected --format to be one of {', '.join(FORMATS)}. Got {form!r}.")
    if quick and recipe is None:
        recipe = "default"  # the paper's takes too long for a quick look
    cells = _chosen_cells(target, recipe, only or [])
    drawing = _drawing_path(target, form, out)
    with _folders(results, runs, quick, run) as (results_folder, runs_folder):
        settings = Settings(
            results=results_folder,
            runs=runs_folder,
            data=folder,
            download=download,
            device=choose_device(device),
            seeds=None if seeds is None else tuple(parse_seeds(seeds)),
            epochs=epochs,
            quick=quick,
            retry=retry,
            time_limit=time_limit,
        )
        if target == "all":
            print_plan(plan_cells(cells, settings))
        complete = _measured(cells, settings) if run or quick else True
        names = list(TARGETS) if target == "all" else [target]
        parts = [part for name in names if (part := _part(name, recipe, only or [], settings)) is not None]
    if drawing is not None:
        _draw(parts[0], drawing)
    if drawing is None or target in FIGURES:
        _write(parts, form, None if drawing is not None else out)
    if not complete:
        raise typer.Exit(_MORE_TO_DO)


def _measured(cells: Sequence[Cell], settings: Settings) -> bool:
    """Measure what is missing; whether that is all of it now."""
    with interruptible() as interrupted, PlanWatcher() as watcher:
        settings.interrupted, settings.watcher = interrupted, watcher
        outcome = measure(cells, settings)
    if not outcome.complete:
        print(f"Stopped, and saved: {len(outcome.left)} to do. The same command goes on.", file=sys.stderr)
    return outcome.complete


@contextmanager
def _folders(results: Path | None, runs: Path | None, quick: bool, run: bool) -> Iterator[tuple[Path, Path]]:
    """Where results and runs are; those of a quick look are thrown away, unless somebody says where to keep them."""
    if not quick:
        yield results or (RESULTS if run else find_results()), runs or RUNS
        return
    with tempfile.TemporaryDirectory(prefix="isoconv-quick-") as scratch:
        yield results or Path(scratch) / "results", runs or Path(scratch) / "runs"


# What to measure and to show --------------------------------------------------------------------------------------


def _chosen_cells(target: str, recipe: str | None, only: Sequence[str]) -> list[Cell]:
    cells = cells_of(target, recipe)
    chosen = [cell for cell in cells if _wanted(cell, only)]
    if not chosen:
        raise IsoconvError(
            f"Expected --only to be a part of a name such as {cells[0].name}. Got {', '.join(only)}, which is in none."
        )
    return chosen


def _wanted(cell: Cell, only: Sequence[str]) -> bool:
    return not only or any(part in cell.name for part in only)


def _part(target: str, recipe: str | None, only: Sequence[str], settings: Settings) -> Part | None:
    """A target's rows: those asked for, and those of the paper's recipe that happen to have been measured; or nothing."""
    cells = cells_of(target, recipe)
    if recipe is None:
        others = [cell for cell in cells_of(target, "paper") if cell not in cells]
        cells += list(read_results(settings.results, others))
    # A network stays for the sake of an attack on it, and an attack for the sake of its network.
    networks = {getattr(cell, "network", cell) for cell in cells if _wanted(cell, only)}
    kept = [cell for cell in cells if getattr(cell, "network", cell) in networks]
    if not kept:
        return None
    rows = rows_of(target, kept, with_instant(kept, read_results(settings.results, kept)))
    return Part(target, rows, table_of(target, rows))


# What is printed --------------------------------------------------------------------------------------------------


def _drawing_path(target: str, form: str, out: Path | None) -> Path | None:
    """Where to draw, if that is what was asked for: a figure is drawn anyway."""
    if out is not None and out.is_dir():
        raise IsoconvError(f"Expected a file to write to. {out} is a folder.")
    if out is not None and is_drawable(out):
        if target == "all":
            raise IsoconvError("Expected one target to draw. Got all: --format html has every drawing.")
        return out
    if target not in FIGURES or form != "table":
        return None
    if out is not None:
        check_drawable(out)
    return Path(f"{target}.svg")


def _draw(part: Part, path: Path) -> None:
    figure = draw_target(part.target, part.rows)
    if figure is None:
        print(f"There is nothing to draw for {part.target} yet.", file=sys.stderr)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_bytes(figure, path.suffix.lower()))
    print(f"Drawn in {path}", file=sys.stderr)


def _write(parts: Sequence[Part], form: str, out: Path | None) -> None:
    text = _formatted(parts, form, to_file=out is not None)
    if out is None:
        print(text, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    print(f"Written to {out}", file=sys.stderr)


def _formatted(parts: Sequence[Part], form: str, to_file: bool) -> str:
    several = len(parts) > 1
    match form:
        case "json":
            return json.dumps(_flat(parts) if several else parts[0].rows, indent=1) + "\n"
        case "html":
            return to_html(parts)
        case "latex":
            return "\n".join(to_latex(part.table) for part in parts)
        case "markdown":
            return "\n".join(to_markdown(part.table, heading=several) for part in parts)
    return "\n".join(shown_table(part.table, to_file) for part in parts)


def _flat(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The rows of all targets in one list, each with its target."""
    return [{"target": part.target, **row} for part in parts for row in part.rows]
