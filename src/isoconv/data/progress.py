"""Say how far a long piece of work has come."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total); total is 0 where it is not known."""


class ProgressLine:
    """Writes to a terminal one line that is rewritten, and to a pipe or file a line for every tenth of the work."""

    def __init__(self, unit: str = "MB", scale: float = 1e6, stream: TextIO | None = None):
        self.unit, self.scale = unit, scale
        self.stream = sys.stderr if stream is None else stream
        self.what, self.start, self.shown, self.tenth = "", 0.0, 0.0, -1

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.what:
            self.what, self.start, self.shown, self.tenth = what, now, now, -1
        finished = 0 < total <= done
        tenth = 10 * done // total if total else 0
        terminal = self.stream.isatty()
        if not (finished or (now - self.shown >= 0.1 if terminal else tenth > self.tenth)):
            return
        self.shown, self.tenth = now, tenth
        rate = done / max(now - self.start, 1e-3)
        text = f"{what}: {done / self.scale:.1f}"
        if total:
            text += f" of {total / self.scale:.1f}"
        text += f" {self.unit}, {rate / self.scale:.1f} {self.unit}/s"
        if total and rate and not finished:
            text += f", {(total - done) / rate:.0f} s left"
        if terminal:
            self.stream.write(f"\r{text:<79}" + ("\n" if finished else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()
