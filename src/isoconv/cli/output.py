"""What commands show: tables on stdout, the progress of long work on stderr."""

import csv
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoconv.cli import print_line
from isoconv.data import ProgressLine
from isoconv.data.fetch import format_duration
from isoconv.linalg.rounding import show_up
from isoconv.report.demo import SHIPPED
from isoconv.report.page import show_radius
from isoconv.train.distributed import Abandoned
from isoconv.train.engine import Stopped
from isoconv.train.runs import format_radius

if TYPE_CHECKING:
    from isoconv.report.demo import DemoRow
    from isoconv.train.classifier import TrainResult
    from isoconv.train.engine import EpochReport
    from isoconv.train.runs import AttackRecord, CertifiedRecord, Prediction
    from isoconv.wasserstein import CriticConfig

_WIDE = 160  # characters of a table in a pipe or a file
_SECONDS_WITHIN_AN_EPOCH = 10.0  # between lines, when piped

# Tables -------------------------------------------------------------------------------------------------------------


def print_table(title: str, words: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with columns of words, then columns of figures; an empty row is a rule.

    In a pipe or a file it is as wide as it needs.
    """
    table = Table(title=Text(title))
    for k, heading in enumerate((*words, *figures)):
        table.add_column(heading, overflow="fold", justify="left" if k < len(words) else "right")
    for row in rows:
        if row:
            table.add_row(*map(Text, row))  # as they are, without markup
        else:
            table.add_section()
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def print_json(records: Iterable[Any]) -> None:
    """Print records as one JSON document."""
    print(json.dumps([record.to_fields() for record in records]))


def print_csv(records: Sequence[Any]) -> None:
    """Print records as CSV, with a column for every field that one of them has."""
    rows = [record.to_fields() for record in records]
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_results(results: "Sequence[TrainResult | CertifiedRecord]", title: str) -> None:
    """Print clean and certified accuracy of each seed, with mean and population standard deviation for several."""
    radii = list(results[0].robust or ())
    certified = [f"certified % at {format_radius(float(radius))}" for radius in radii]
    columns = [[result.clean or 0.0 for result in results]]
    columns += [[(result.robust or {})[radius] for result in results] for radius in radii]
    several = len(results) > 1
    rows = [
        [str(result.seed)] * several
        + [*(f"{column[k]:.2f}" for column in columns), show_up(result.lipschitz_bound or 0.0)]
        for k, result in enumerate(results)
    ]
    if several:
        rows += [[], ["mean", *(f"{fmean(column):.2f} ± {pstdev(column):.2f}" for column in columns)]]
    print_table(title, ["seed"] * several, ["clean %", *certified, "Lipschitz bound"], rows)


def print_certified(records: "Sequence[CertifiedRecord]", title: str) -> None:
    """Print clean and certified accuracy, and what rounding costs."""
    print_results(records, title)
    for record in records:
        rounding = f"{record.error_offset:.1e} + {record.error_slope:.1e}·‖x‖"
        which = f"Seed {record.seed}: rounding" if len(records) > 1 else "Rounding"
        print(f"{which} changes the logits of x by at most {rounding}; the radii account for it.")


def print_attacks(records: "Sequence[AttackRecord]", title: str) -> None:
    """Print one line per attack and radius: certified ≤ under attack ≤ clean."""
    rows, several = [], len({record.seed for record in records}) > 1
    for row in records:
        radius = "each image's" if row.epsilon is None else format_radius(row.epsilon)
        figures = ["–" if value is None else f"{value:.2f}" for value in (row.certified, row.accuracy, row.clean)]
        ending = (str(row.violations), f"{row.seconds:.1f}")
        rows.append([*[str(row.seed)] * several, row.attack, radius, f"{row.images:,}", *figures, *ending])
    headings = ("radius", "images", "certified %", "under attack %", "clean %", "certificates broken", "seconds")
    print_table(title, [*["seed"] * several, "attack"], headings, rows)


def print_predictions(predictions: "Sequence[Prediction]", input_shape: tuple[int, ...]) -> None:
    """Print the class and the certified radius of each image, and the class that comes next."""
    if not predictions:
        return
    channels, height, width = input_shape
    rows = []
    for x in predictions:
        radii = (show_radius(x.radius, 4), show_radius(x.radius_255, 2)) if x.radius > 0 else ("none", "none")
        rows.append([x.image, x.prediction, x.runner_up, f"{x.margin:.4f}", *radii])
    title = f"as the network sees them: {height}×{width} pixels, {'grey' if channels == 1 else 'colour'}"
    figures = ("margin", "radius (pixels 0–1)", "radius (pixels 0–255)")
    print_table(title, ("image", "class", "runner-up"), figures, rows)
    resized = sum(x.resized for x in predictions)
    if resized:
        which = "" if resized == len(predictions) else f" of {resized:,} of the images"
        print_line(f"The radius{which} is for the resized image, not for the file.")


def print_first(predictions: "Sequence[Prediction]") -> None:
    """Print what a network that comes with isoconv says of digits."""
    rows = [[x.image, x.prediction, show_radius(x.radius, 3)] for x in predictions]
    print_table(f"{SHIPPED}, which comes with isoconv", ["digit", "classified as"], ["certified radius"], rows)
    print("No perturbation within the radius (L2, pixels from 0 to 1) changes the class.", flush=True)


def print_demo(rows: "Sequence[DemoRow]") -> None:
    """Print the demo's table, and what its columns mean."""
    title = f"{rows[0].images:,} held-out digits: accuracy in percent, attacks within ε = {rows[0].epsilon}"
    lines = []
    for row in rows:
        figures = [f"{percent:.1f}" for percent in (row.clean, row.certified, row.pgd, row.fgsm)]
        lines.append([row.network, *figures, show_up(row.lipschitz_bound), f"{row.train_seconds:.0f} s"])
    print_table(title, ["network"], ("clean", "certified", "PGD", "FGSM", "Lipschitz bound", "training"), lines)
    print("Certified: proved to stay correct under every perturbation within ε (L2, pixels from 0 to 1).")
    print("PGD, FGSM: correct after that attack; a stronger one may succeed.")


# Progress -----------------------------------------------------------------------------------------------------------

show_reading = ProgressLine("images", 1)


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Shows epochs, loss, training accuracy, images per second and the time left."""

    def __init__(self, steps: int, done: int = 0) -> None:
        self.steps, self.done = steps, done
        self.line = ProgressLine("steps", 1, interval=_SECONDS_WITHIN_AN_EPOCH)

    def __exit__(self, *error: object) -> None:
        pass

    def step(self, steps: int) -> None:
        self.done += steps
        if self.done < self.steps:  # the line ends with the figures of the last epoch
            self.line("training", self.done, self.steps)

    def figures(self, report: "EpochReport") -> str:
        accuracy = f"train {report.accuracy:.1f} %"
        if "validation" in report.metrics:
            accuracy += f"  validation {report.metrics['validation']:.1f} %"
        return f"loss {report.loss:.4f}  {accuracy}  {report.images_per_second:,.0f} images/s"

    def epoch(self, report: "EpochReport") -> None:
        self.line.figures = f"epoch {report.epoch}/{report.epochs}  {self.figures(report)}"
        if sys.stderr.isatty():
            self.line("training", self.done, self.steps)
        else:
            self.line.shown = time.monotonic()
            print_line(f"{self.line.figures}  {format_duration(report.seconds_left)} left")
            self.line.figures = ""


class DifferenceProgress(TrainingProgress):
    """Shows epochs, a critic's difference of means on its training batches, samples per second and the time left.

    unit : about what the critic's Lipschitz constant is; differences are shown divided by it
    """

    def __init__(self, steps: int, done: int = 0, unit: float = 1.0) -> None:
        super().__init__(steps, done)
        self.unit = unit

    def figures(self, report: "EpochReport") -> str:
        return f"difference {-report.loss / self.unit:.4f}  {report.images_per_second:,.0f} samples/s"


def watch_critic(config: "CriticConfig", done: int) -> DifferenceProgress:
    """Show the training of a critic, by its name: there may be several, one after the other."""
    print_line(f"critic {config.model}")
    return DifferenceProgress(config.epochs * config.steps_per_epoch, done, config.scale * config.upsample)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C and SIGTERM finish the step; yield a function that says whether one came. A second Ctrl-C is ordinary."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def resumable(out: Path, resume: bool, quiet: bool = False) -> Iterator[Callable[[], bool]]:
    """Interrupt training as `interruptible` does; print how to continue what is saved in `out`, and exit.

    Say how to continue, too, if another process of the run has ended.
    """
    again = shlex.join(["isoconv", *sys.argv[1:], *([] if resume else ["--resume"])]).replace(" --overwrite", "")
    with interruptible() as should_stop:
        try:
            yield should_stop
        except Stopped:
            if not quiet:
                print_line(f"Stopped, and saved in {out}. To continue: {again}")
            raise SystemExit(130) from None
        except Abandoned:
            begun = any(path.exists() for path in (out / "config.json", *out.glob("seed-*/config.json")))
            advice = f" To continue from what was saved, with any number of processes: {again}" if begun else ""
            raise Abandoned(f"Another process of this run has ended, and training with it.{advice}") from None
