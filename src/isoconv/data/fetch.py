"""Fetch the official files of a data set, check them, leave either a whole file or none, and show the progress."""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from isoconv.data.datasets import DATASETS, DataSet
from isoconv.errors import IsoconvError

Progress = Callable[[str, int, int], None]
"""A function that is called as progress(what, done, total); total is 0 where it is not known."""


class ProgressLine:
    """Shows on stderr how much of some long work is done, the rate and the time left.

    On a terminal it is one line with a bar, rewritten; in a pipe or a file a new line every `interval` seconds.
    What is set as its `figures` is shown instead of numbers and rate.

    unit, scale : what is counted, and how many of it are one unit
    """

    def __init__(self, unit: str = "MB", scale: float = 1e6, interval: float = 5.0):
        self.unit, self.scale, self.interval, self.figures = unit, scale, interval, ""
        self.what, self.start, self.first, self.done, self.shown = "", 0.0, 0, 0, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.what or done < self.done:
            self.what, self.start, self.first, self.shown = what, now, done, 0.0
        self.done, finished, terminal = done, 0 < total <= done, sys.stderr.isatty()
        due = now - max(self.start, self.shown) >= (0.1 if terminal else self.interval)
        if not (due or (terminal and finished and self.shown)):
            return
        self.shown = now
        rate, digits = (done - self.first) / max(now - self.start, 1e-3), int(self.scale > 1)
        whole = f" of {total / self.scale:,.{digits}f}" if total else ""
        counts = f"{done / self.scale:,.{digits}f}{whole} {self.unit}, {rate / self.scale:,.1f} {self.unit}/s"
        left = f", {format_duration((total - done) / rate)} left" if total and rate and not finished else ""
        text = f"{what}: {self.figures or counts}{left}"
        if terminal:
            bar = f"[{'#' * (16 * done // total):16}] " if total else ""
            columns = shutil.get_terminal_size().columns - 1
            text = f"\r{f'{bar}{text}':{columns}.{columns}}" + "\n" * finished
        print(text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Return a time in the units that people would name: 40 s, 3 min, 1 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def download(
    data: str | DataSet,
    folder: str | PathLike[str],
    *,
    progress: Progress | None = None,
    tries: int = 3,
    wait: float = 1.0,
) -> tuple[Path, ...]:
    """Fetch the official files of a data set into `folder`, those that are missing or damaged, and return their paths.

    Each address is tried `tries` times, with pauses of wait, 2·wait, … seconds, before the next one. A file appears
    under its name only once it is complete and its md5 is right. Progress goes to stderr unless `progress` takes it.
    """
    record = DATASETS.get(data) if isinstance(data, str) else data
    if record is None or not record.downloads:
        names = ", ".join(name for name, record in DATASETS.items() if record.downloads)
        raise IsoconvError(f"Expected a data set that can be downloaded: {names}. Got {data!r}.")
    show = ProgressLine() if progress is None else progress
    return tuple(_fetch(record, Path(folder), path, show, tries, wait) for path in record.downloads)


def _fetch(record: DataSet, folder: Path, path: str, progress: Progress, tries: int, wait: float) -> Path:
    try:
        import pooch  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import requests  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise IsoconvError("Downloading needs the package pooch: pip install 'isoconv[download]'.") from error

    target, md5, failures = folder / path, record.downloads[path], []

    def stream(url: str, path: str, _: object) -> None:
        # A server must not compress, or unpack, a .gz file on the way.
        with requests.get(url, stream=True, timeout=30, headers={"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            total = int(response.headers.get("Content-Length", 0))
            with open(path, "wb") as file:
                for chunk in response.iter_content(1 << 16):
                    file.write(chunk)
                    progress(target.name, file.tell(), total)

    with _tidy(target.parent, pooch.get_logger()):
        for url in (f"{mirror}/{target.name}" for mirror in record.mirrors):
            for attempt in range(1, tries + 1):
                try:
                    pooch.retrieve(url, f"md5:{md5}", fname=target.name, path=target.parent, downloader=stream)
                    return target
                except requests.exceptions.RequestException as error:
                    failure, final = _explain(error, requests.exceptions)
                except ValueError:
                    failure, final = f"sent a file whose md5 is not {md5}", True
                except OSError as error:
                    raise IsoconvError(f"{target} cannot be written: {error.strerror or error}.") from error
                if final or attempt == tries:
                    failures.append(f"{url} {failure}" + (f" ({attempt} tries)" if attempt > 1 else ""))
                    break
                time.sleep(wait * attempt)
    raise IsoconvError(
        f"{record.name} could not be downloaded: {'; '.join(failures)}. "
        f"Try again later, or put {target.name} into {target.parent} by other means."
    )


def _explain(error: Exception, kinds: Any) -> tuple[str, bool]:
    """Return what went wrong, to follow the address in a sentence, and True if trying again is of no use."""
    if isinstance(error, kinds.HTTPError):
        code = error.response.status_code
        return f"answered {code} {error.response.reason}", code < 500 and code not in (408, 425, 429)
    if isinstance(error, kinds.Timeout):
        return "did not answer in time", False
    if isinstance(error, kinds.ChunkedEncodingError) or "IncompleteRead" in str(error):
        return "broke off before the file was complete", False
    if isinstance(error, kinds.ConnectionError):
        return "cannot be reached", False
    return f"failed ({type(error).__name__})", True


@contextlib.contextmanager
def _tidy(folder: Path, logger: Any) -> Iterator[None]:
    """Silence the log of pooch, as progress is shown, and leave no empty folder if the download fails."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
        for path in new_folders:
            with contextlib.suppress(OSError):  # not empty, as it should be
                path.rmdir()
