"""Progress on stderr: a bar with rate and time left on a terminal, plain lines when piped."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isoconv.data import ProgressLine
from isoconv.train.engine import EpochReport

if TYPE_CHECKING:
    from isoconv.wasserstein import CriticConfig

_SECONDS_BETWEEN_LINES = 5.0  # of short pieces of work, when piped
_SECONDS_WITHIN_AN_EPOCH = 30.0
_MANY = 2000  # pictures, from which on reading them is worth a line


class _Bar:
    """What is shown on a terminal while a `with` block runs."""

    bar: Progress | None = None
    task: TaskID | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Before anything else is printed: lines would be broken to the bar's width."""
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
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                refresh_per_second=4,
            )
            self.bar.start()
            self.task = self.bar.add_task("training", total=self.steps, completed=self.done, figures="")
        return self

    def step(self, steps: int) -> None:
        self.done += steps
        now = time.monotonic()
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task, steps)
        elif now - self.last_line >= _SECONDS_WITHIN_AN_EPOCH and not self.quiet:
            left = (now - self.began) / (self.done - self.first) * (self.steps - self.done)
            print(f"step {self.done:,} of {self.steps:,}  {left:.0f} s left", file=sys.stderr, flush=True)
            self.last_line = now

    def figures(self, report: EpochReport) -> str:
        return f"loss {report.loss:.4f}  train {report.accuracy:.1f} %  {report.images_per_second:,.0f} images/s"

    def epoch(self, report: EpochReport) -> None:
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

    def figures(self, report: EpochReport) -> str:
        return f"difference {-report.loss / self.unit:.4f}  {report.images_per_second:,.0f} samples/s"


def watch_critic(config: "CriticConfig", done: int) -> DifferenceProgress:
    """Show the training of a critic, by its name: there may be several, one after the other."""
    print(f"critic {config.model}", file=sys.stderr)
    return DifferenceProgress(config.epochs * config.steps_per_epoch, done, config.scale * config.upsample)


_reading = ProgressLine("pictures", 1.0)


def show_reading(what: str, done: int, total: int) -> None:
    """Show how many pictures have been read, if there are many of them."""
    if total >= _MANY:
        _reading(what, done, total)


class CountingProgress(_Bar):
    """So many of so many, with the time left: `show(done, total)` as often as one likes."""

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
        from isoconv.errors import IsoconvError

        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise IsoconvError("--tensorboard needs a package: pip install 'isoconv[tensorboard]'.") from None
        self.shown, self.writer = shown, SummaryWriter(folder)  # type: ignore[no-untyped-call]

    def step(self, steps: int) -> None:
        self.shown.step(steps)

    def epoch(self, report: EpochReport) -> None:
        self.shown.epoch(report)
        for name in ("loss", "accuracy", "images_per_second"):
            self.writer.add_scalar(f"train/{name}", getattr(report, name), report.epoch)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]
