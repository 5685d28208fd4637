"""What the scripts of this folder share: a results file that grows, cases that take turns, steps of the engine, pages."""

import json
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoconv.files import write_text
from isoconv.train.capture import Stepper
from isoconv.train.classifier import device_name
from isoconv.train.engine import Learner, Stopped
from reproduction.cells import describe_environment


class Report:
    """One results file: hardware and versions, and the figures of each part as they come.

    path : None only prints them
    commit : of the sources, where they are no clone
    """

    def __init__(
        self, path: Path | None, device: torch.device | str, commit: str | None = None, **figures: Any
    ) -> None:
        self.path, environment = path, describe_environment(device_name(torch.device(device)))
        self.figures: dict[str, Any] = environment | ({"commit": commit} if commit else {}) | figures

    @contextmanager
    def part(self, name: str, seconds: float = 86_400) -> Iterator[dict[str, Any]]:
        """Give a place for figures, which are written at the end, whatever happens and after so many seconds at most.

        A part that fails says why, and costs the others nothing.
        """
        figures, began = self.figures.setdefault(name, {}), time.perf_counter()
        before = signal.signal(signal.SIGALRM, _raise_timeout)
        signal.alarm(max(1, math.ceil(seconds)))
        try:
            yield figures
        except (Exception, Stopped) as error:
            figures["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            figures["seconds_of_part"] = round(time.perf_counter() - began, 1)
            self.write()
        print(name, json.dumps(figures), flush=True)

    def write(self) -> None:
        self.figures["finished"] = time.strftime("%Y-%m-%dT%H:%M:%S")
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.figures, indent=1) + "\n")


def _raise_timeout(*_: object) -> None:
    raise TimeoutError("the part took longer than its limit")


# Times ------------------------------------------------------------------------------------------------------------


def race(
    cases: Mapping[str, Callable[[], Any]],
    device: torch.device | str,
    rounds: int,
    calls: int,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of one call of each case, round by round, in which the cases take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            if should_stop():
                raise Stopped
            wait(device)
            began = clock()
            for _ in range(calls):
                call()
            wait(device)
            seconds[name].append((clock() - began) / calls)
    return seconds


def wait(device: torch.device | str) -> None:
    """Wait until a GPU has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


class Step:
    """One step of each learner, as the engine takes it, on a batch that stays on the device. A call takes the step."""

    def __init__(
        self, learners: Sequence[Learner], batch: Iterable[Tensor], captured: bool = True, warm_up: int = 30
    ) -> None:
        self.learners, self.stepper = learners, Stepper(learners, captured)
        self.batches = [tuple(part.to(learners[0].device) for part in batch)] * len(learners)
        for _ in range(warm_up):  # compilation, and the capture of every kind of step
            self()
        wait(learners[0].device)

    def __call__(self) -> None:
        self.stepper.step(self.batches)

    def project(self) -> None:
        """Project what is projected every so often."""
        self.stepper.project(self.learners)


# Pages ------------------------------------------------------------------------------------------------------------


def to_markdown(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table whose first `texts` columns are words and the others figures."""
    ruler = "|".join("---" if k < texts else "---:" for k in range(len(head)))
    return f"| {' | '.join(head)} |\n|{ruler}|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def fill_marks(text: str, names: Iterable[str], make: Callable[[str], str]) -> str:
    """Return a page with all that stands between <!-- NAME --> and <!-- /NAME --> made again."""
    pattern = rf"<!-- ({'|'.join(names)}) -->\n.*?<!-- /\1 -->"
    return re.sub(pattern, lambda m: f"<!-- {m[1]} -->\n{make(m[1])}<!-- /{m[1]} -->", text, flags=re.DOTALL)
