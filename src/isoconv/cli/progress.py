"""Progress on stderr: a bar with rate and time left on a terminal, plain lines when piped."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isoconv.train.engine import EpochReport


class TrainingProgress:
    """Shows epochs, loss, training accuracy, images per second and the time left."""

    def __init__(self, steps: int, done: int = 0, quiet: bool = False) -> None:
        self.steps, self.done, self.quiet = steps, done, quiet
        self.bar: Progress | None = None
        self.task: TaskID | None = None

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, steps: int) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task, steps)

    def epoch(self, report: EpochReport) -> None:
        figures = f"loss {report.loss:.4f}  train {report.accuracy:.1f} %  {report.images_per_second:,.0f} images/s"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=f"epoch {report.epoch}/{report.epochs}", figures=figures)
        elif not self.quiet:
            left = f"{report.seconds_left:.0f} s left"
            print(f"epoch {report.epoch}/{report.epochs}  {figures}  {left}", file=sys.stderr, flush=True)


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
