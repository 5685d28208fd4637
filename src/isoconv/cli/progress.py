"""Progress on stderr: a bar with rate and time left on a terminal, plain lines when piped."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isoconv.train.engine import EpochReport

_SECONDS_BETWEEN_LINES = 5.0  # of short pieces of work, when piped
_SECONDS_WITHIN_AN_EPOCH = 30.0


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
