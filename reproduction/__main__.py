"""python -m reproduction TARGET: print a table or draw a figure from results, and with --run measure what is missing."""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import fill_marks
from isoconv.cli.options import parse_seeds
from isoconv.cli.output import interruptible
from isoconv.errors import IsoconvError
from isoconv.files import write_bytes, write_text
from isoconv.train.config import RECIPES
from isoconv.train.distributed import choose_device
from reproduction.cells import RESULTS, ROOT, RUNS, TARGETS, cells_of, read_results
from reproduction.figures import DRAWINGS, to_svg
from reproduction.measure import Session, measure
from reproduction.tables import make_table

PAGES = ("README.md", "docs/paper.md", "docs/benchmarks.md", "docs/comparison.md")
_MORE_TO_DO = 3  # exit code: everything is saved, and the same command resumes


def fill_page(text: str, results: Path = RESULTS) -> str:
    """Return a page with the tables between <!-- TARGET --> and <!-- /TARGET --> made again from the results."""

    def make(target: str) -> str:
        return make_table(target, read_results(results, cells_of(target))).to_markdown()

    return fill_marks(text, TARGETS, make)


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument("target", help=f"{', '.join(TARGETS)}; all; readme (results); pages: fill in their tables")
    parser.add_argument("--run", action="store_true", help="measure what is missing")
    parser.add_argument("--quick", action="store_true", help="measure all on a few images: the figures mean nothing")
    parser.add_argument("--retry", action="store_true", help="measure cells again that have failed")
    parser.add_argument("--renew", action="store_true", help="measure networks again that had other settings than now")
    parser.add_argument("--data", type=Path, help="where the data sets' files are")
    parser.add_argument("--download", action="store_true", help="fetch data sets that are not there")
    parser.add_argument("--recipe", choices=list(RECIPES), help="only this recipe; by default both")
    parser.add_argument("--only", action="append", default=[], help="only cells with this in their name")
    parser.add_argument("--seeds", type=lambda text: tuple(parse_seeds(text)), help="such as 0,1,2 or 0-4")
    parser.add_argument("--epochs", type=int, help="instead of each cell's own number")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which to save and leave")
    parser.add_argument("--results", type=Path, help="the folder of the result files, by default results")
    parser.add_argument("--runs", type=Path, help="the folder of networks in training, by default runs/reproduction")
    parser.add_argument("--format", choices=["text", "markdown", "latex", "html", "json"], default="text")
    parser.add_argument("--out", type=Path, help="write to this file; a figure is drawn as SVG")
    try:
        with tempfile.TemporaryDirectory(prefix="reproduction-") as scratch:
            return run(parser.parse_args(words), Path(scratch))
    except IsoconvError as error:
        print(error, file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace, scratch: Path) -> int:
    """Do what the arguments ask for. A quick look leaves nothing behind unless it is told where."""
    if arguments.target == "pages":
        for page in PAGES:
            write_text(ROOT / page, fill_page((ROOT / page).read_text(encoding="utf-8")))
        return 0
    target = "results" if arguments.target == "readme" else arguments.target
    cells = cells_of(target, arguments.recipe or ("default" if arguments.quick else None))
    cells = [cell for cell in cells if not arguments.only or any(part in cell.name for part in arguments.only)]
    folder = arguments.results or (scratch / "results" if arguments.quick else RESULTS)
    runs = arguments.runs or (scratch / "runs" if arguments.quick else RUNS)
    left = 0
    if arguments.run or arguments.quick:
        names = ("data", "download", "seeds", "epochs", "quick", "retry", "renew", "time_limit")
        options = {name: getattr(arguments, name) for name in names}
        with interruptible() as interrupted:
            session = Session(folder, runs, device=choose_device(arguments.device), interrupted=interrupted, **options)
            left = len(measure(cells, session)[2])
    networks = {getattr(cell, "network", cell) for cell in cells}  # a network is shown for the sake of an attack on it
    for name in TARGETS if target == "all" else [target]:
        shown = [cell for cell in cells_of(name, arguments.recipe) if getattr(cell, "network", cell) in networks]
        if shown or name in DRAWINGS:
            results = read_results(folder, shown)
            if name in DRAWINGS:
                path = arguments.out or Path(f"{name}.svg")
                write_bytes(path, to_svg(DRAWINGS[name](shown, results)))
                print(f"Drawn in {path}", file=sys.stderr)
            else:
                text = make_table(name, results, shown).to_format(arguments.format)
                write_text(arguments.out, text) if arguments.out else print(text)
    if left:
        print(f"Stopped and saved, {left} cells to do. The same command resumes.", file=sys.stderr)
    return _MORE_TO_DO if left else 0


if __name__ == "__main__":
    sys.exit(main())
