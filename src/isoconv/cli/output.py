"""What commands show: tables on stdout; on stderr a bar with rate and time left, or plain lines when piped."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, pstdev
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from isoconv.data import ProgressLine
from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from isoconv.train.classifier import TrainResult
    from isoconv.train.engine import EpochReport
    from isoconv.train.runs import AttackRecord, CertifiedRecord
    from isoconv.wasserstein import CriticConfig

_WIDE = 160  # characters of a table in a pipe or a file
_SECONDS_BETWEEN_LINES = 5.0  # of short pieces of work, when piped
_SECONDS_WITHIN_AN_EPOCH = 30.0
_MANY = 2000  # pictures, from which on reading them is worth a line
_reading = ProgressLine("pictures", 1.0)

# Tables -------------------------------------------------------------------------------------------------------------


def make_console() -> Console:
    """Return the console for tables; in a pipe or a file it is as wide as they need."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def format_radius(radius: float) -> str:
    """Return a radius as people write it: 36/255 where it is one, else a decimal number."""
    steps = round(radius * 255)
    return f"{steps}/255" if steps and abs(radius * 255 - steps) < 1e-9 else f"{radius:g}"


def print_results(results: "Sequence[TrainResult | CertifiedRecord]", title: str) -> None:
    """Print clean and certified accuracy of each seed, with mean and population standard deviation for several."""
    radii = list(results[0].robust or ())
    table = Table(title=title)
    table.add_column("seed")
    for heading in ("clean %", *(f"certified % at {format_radius(float(e))}" for e in radii), "Lipschitz bound"):
        table.add_column(heading, justify="right")
    columns = [[result.clean or 0.0 for result in results]]
    columns += [[(result.robust or {})[e] for result in results] for e in radii]
    for k, result in enumerate(results):
        table.add_row(str(result.seed), *(f"{column[k]:.2f}" for column in columns), f"{result.lipschitz_bound:.7f}")
    if len(results) > 1:
        table.add_section()
        table.add_row("mean", *(f"{fmean(column):.2f} ± {pstdev(column):.2f}" for column in columns), "")
    make_console().print(table)


def print_certified(records: "Sequence[CertifiedRecord]", title: str) -> None:
    """Print clean and certified accuracy, and what rounding costs."""
    print_results(records, title)
    for record in records:
        rounding = f"{record.error_offset:.1e} + {record.error_slope:.1e}·‖x‖"
        line = (
            f"seed {record.seed}: rounding moves the logits of an image x by at most {rounding}; the radii allow for it"
        )
        make_console().print(line, highlight=False)


def print_attacks(records: "Sequence[AttackRecord]", title: str) -> None:
    """Print one line per attack and budget: certified ≤ attacked ≤ clean."""
    table = Table(title=title)
    table.add_column("seed")
    table.add_column("attack")
    for heading in ("epsilon", "images", "certified", "attacked", "clean", "certificates broken", "seconds"):
        table.add_column(heading, justify="right")
    for row in records:
        budget = "each radius" if row.epsilon is None else format_radius(row.epsilon)
        figures = ["–" if value is None else f"{value:.2f}" for value in (row.certified, row.accuracy, row.clean)]
        ending = (str(row.violations), f"{row.seconds:.1f}")
        table.add_row(str(row.seed), row.attack, budget, f"{row.images:,}", *figures, *ending)
    make_console().print(table)


# Progress -----------------------------------------------------------------------------------------------------------


class _Bar:
    """What a terminal shows while a `with` block runs."""

    bar: Progress | None = None
    task: TaskID | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, before anything else is printed: lines would be broken to the bar's width."""
        if self.bar is not None:
            self.bar.stop()


class TrainingProgress(_Bar):
    """Shows epochs, loss, training accuracy, images per second and the time left."""

    def __init__(self, steps: int, done: int = 0, quiet: bool = False) -> None:
        self.steps, self.done, self.quiet = steps, done, quiet
        self.began = self.last_line = time.monotonic()
        self.first = done

    def __enter__(self) -> "TrainingProgress":
        if sys.stderr.isatty() and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
            self.bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), refresh_per_second=4)
            self.bar.start()
            self.task = self.bar.add_task("training", total=self.steps, completed=self.done, figures="")
        return self

    def begin(self, steps: int, done: int) -> None:
        """Set how many steps there are, and how many of them were done before."""
        self.steps, self.done, self.first = steps, done, done
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, total=steps, completed=done)

    def step(self, steps: int) -> None:
        self.done += steps
        now = time.monotonic()
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task, steps)
        elif now - self.last_line >= _SECONDS_WITHIN_AN_EPOCH and not self.quiet:
            left = (now - self.began) / (self.done - self.first) * (self.steps - self.done)
            print(f"step {self.done:,} of {self.steps:,}  {left:.0f} s left", file=sys.stderr, flush=True)
            self.last_line = now

    def figures(self, report: "EpochReport") -> str:
        return f"loss {report.loss:.4f}  train {report.accuracy:.1f} %  {report.images_per_second:,.0f} images/s"

    def epoch(self, report: "EpochReport") -> None:
        figures = self.figures(report)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=f"epoch {report.epoch}/{report.epochs}", figures=figures)
        elif not self.quiet:
            left = f"{report.seconds_left:.0f} s left"
            self.last_line = time.monotonic()
            print(f"epoch {report.epoch}/{report.epochs}  {figures}  {left}", file=sys.stderr, flush=True)


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
    print(f"critic {config.model}", file=sys.stderr)
    return DifferenceProgress(config.epochs * config.steps_per_epoch, done, config.scale * config.upsample)


def show_reading(what: str, done: int, total: int) -> None:
    """Show how many pictures have been read, if there are many of them."""
    if total >= _MANY:
        _reading(what, done, total)


class CountingProgress(_Bar):
    """Shows how many of how many are done, and the time left: `show(done, total)` as often as you like."""

    def __init__(self, title: str, unit: str) -> None:
        self.title, self.unit = title, unit
        self.began = self.last_line = time.monotonic()

    def __enter__(self) -> "CountingProgress":
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=None)
        return self

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=total)
        elif now - self.last_line >= _SECONDS_BETWEEN_LINES and done:
            left = (now - self.began) / done * (total - done)
            print(f"{self.title}: {done:,} of {total:,} {self.unit}, {left:.0f} s left", file=sys.stderr, flush=True)
            self.last_line = now


class TensorBoardToo:
    """Passes everything on, and writes TensorBoard events as well."""

    def __init__(self, shown: TrainingProgress, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise IsoconvError("--tensorboard needs a package: pip install 'isoconv[tensorboard]'.") from None
        self.shown, self.writer = shown, SummaryWriter(folder)  # type: ignore[no-untyped-call]

    def step(self, steps: int) -> None:
        self.shown.step(steps)

    def epoch(self, report: "EpochReport") -> None:
        self.shown.epoch(report)
        for name in ("loss", "accuracy", "images_per_second"):
            self.writer.add_scalar(f"train/{name}", getattr(report, name), report.epoch)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]


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
    """Interrupt training as `interruptible` does; print how to continue what is saved in `out`, and exit."""
    from isoconv.train.engine import Stopped

    with interruptible() as should_stop:
        try:
            yield should_stop
        except Stopped:
            if not quiet:
                again = shlex.join(["isoconv", *sys.argv[1:], *([] if resume else ["--resume"])])
                line = f"Stopped, and saved in {out}. To continue: {again.replace(' --overwrite', '')}"
                print(line, file=sys.stderr)
            raise SystemExit(130) from None
