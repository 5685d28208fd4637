"""Ctrl-C and a polite kill, for commands that save what they have."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill let the step finish; a second Ctrl-C is the ordinary one."""
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
def resumable(out: Path, resume: bool) -> Iterator[Callable[[], bool]]:
    """Interrupt training as `interruptible` does; say how to go on with what is saved in `out`, and exit."""
    from isoconv.train.engine import Stopped

    with interruptible() as should_stop:
        try:
            yield should_stop
        except Stopped:
            again = shlex.join(["isoconv", *sys.argv[1:], *([] if resume else ["--resume"])])
            print(f"Stopped, and saved in {out}. To go on: {again.replace(' --overwrite', '')}", file=sys.stderr)
            raise SystemExit(130) from None
