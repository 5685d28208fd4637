"""A reproduction on the terminal: its plan, its progress, its tables."""

import sys
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text as TerminalText

from isoconv.cli.output import TrainingProgress, make_console
from isoconv.report.reproduction import Table, shown_seconds
from isoconv.train.engine import Observer
from isoconv.train.reproduction import PlannedCell


class PlanWatcher:
    """Lines on stderr, and a bar (or lines) for each training run."""

    def __init__(self) -> None:
        self.bar: TrainingProgress | None = None

    def __enter__(self) -> "PlanWatcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finished()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def training(self, title: str, steps: int, done: int) -> Observer:
        self.finished()
        self.bar = TrainingProgress(steps, done).__enter__()
        return self.bar

    def finished(self) -> None:
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
            self.bar = None


def print_plan(planned: Sequence[PlannedCell]) -> None:
    """What is to be done and about how long it takes, on stderr."""
    table = TerminalTable(title="What there is to measure", box=box.SIMPLE)
    table.add_column("what")
    table.add_column("cell")
    table.add_column("state")
    table.add_column("takes about", justify="right")
    for plan in planned:
        takes = shown_seconds(plan.seconds) if plan.seconds else ""
        table.add_row(plan.cell.kind, plan.cell.name, plan.state, takes)
    total = sum(plan.seconds for plan in planned)
    table.caption = f"In all about {shown_seconds(total)}, a rough guess." if total else "Nothing is left to do."
    Console(stderr=True, width=None if sys.stderr.isatty() else 120).print(table)


def shown_table(table: Table, to_file: bool = False) -> str:
    """The table as the terminal shows it; in a file or a pipe without colours, as wide as it needs to be."""
    drawn = TerminalTable(title=table.title, box=box.SIMPLE_HEAD, title_justify="left")
    for k, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if k < table.texts else "right")
    for k, line in enumerate(table.lines):
        drawn.add_row(
            *(TerminalText(p.text, style="bold" if p.bold else "") for p in line), end_section=k in table.rules
        )
    plain = to_file or not sys.stdout.isatty()
    place = Console(width=400, color_system=None, force_terminal=False) if plain else make_console()
    with place.capture() as captured:
        place.print(drawn)
        for note in table.notes:
            place.print(TerminalText(note), soft_wrap=plain)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
