"""Fetch the official files of a data set, check them, and leave either a whole file or none."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from isoconv.data.progress import Progress, ProgressLine
from isoconv.errors import IsoconvError


@dataclass(frozen=True)
class RemoteFile:
    """Where a file goes under the data folder, its md5, and the addresses to try one after the other."""

    path: str
    md5: str
    urls: tuple[str, ...]


Registry = Mapping[str, Sequence[RemoteFile]]

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

OFFICIAL: Registry = {
    "mnist": tuple(
        RemoteFile(f"MNIST/raw/{name}.gz", md5, tuple(f"{mirror}{name}.gz" for mirror in _MNIST))
        for name, md5 in {
            "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
        }.items()
    ),
    "cifar10": (
        RemoteFile(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
            ),
        ),
    ),
    "stl10": (
        RemoteFile(
            "stl10_binary.tar.gz",
            "91f7769df0f17e558f3565bffb0c7dfb",
            (
                "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            ),
        ),
    ),
}


def download(
    name: str,
    folder: str | PathLike[str],
    *,
    registry: Registry = OFFICIAL,
    progress: Progress | None = None,
    tries: int = 3,
    wait: float = 1.0,
) -> tuple[Path, ...]:
    """The paths of the files of a data set under `folder`, fetched where they are not there yet (or damaged).

    Each address is tried `tries` times, with pauses of wait, 2·wait, … seconds, before the next one. A file appears
    under its name only once it is complete and its md5 is right. Progress goes to stderr unless `progress` takes it.
    """
    if name not in registry:
        raise IsoconvError(f"Expected a data set that can be downloaded: {', '.join(registry)}. Got {name!r}.")
    show = ProgressLine() if progress is None else progress
    return tuple(_fetch(name, Path(folder), remote, show, tries, wait) for remote in registry[name])


def _fetch(name: str, folder: Path, remote: RemoteFile, progress: Progress, tries: int, wait: float) -> Path:
    try:
        import pooch  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import requests  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise IsoconvError(
            "Downloading needs the package pooch, which is not installed: pip install 'isoconv[download]'."
        ) from error

    target = folder / remote.path
    failures = []
    with _quiet(pooch.get_logger()), _without_empty_folders(target.parent):
        for url in remote.urls:
            for attempt in range(1, tries + 1):
                bar = _Bar(target.name, progress)
                # Without Accept-Encoding a server may unpack a .gz file on the way.
                fetch = pooch.HTTPDownloader(bar, chunk_size=1 << 16, timeout=30, headers={"Accept-Encoding": None})
                try:
                    pooch.retrieve(url, f"md5:{remote.md5}", fname=target.name, path=target.parent, downloader=fetch)
                    return target
                except requests.exceptions.RequestException as error:
                    failure, final = _explain(error, requests.exceptions)
                except ValueError:
                    failure, final = f"sent a file whose md5 is not {remote.md5}", True
                except OSError as error:
                    raise IsoconvError(f"{target} cannot be written: {error.strerror or error}.") from error
                if final or attempt == tries:
                    failures.append(f"{url} {failure}" + (f" ({attempt} tries)" if attempt > 1 else ""))
                    break
                time.sleep(wait * attempt)
    raise IsoconvError(
        f"{name} could not be downloaded: {'; '.join(failures)}. "
        f"Try again later, or put {target.name} into {target.parent} by other means."
    )


def _explain(error: Exception, kinds: Any) -> tuple[str, bool]:
    """What went wrong, to follow the address in a sentence, and whether trying again is no use."""
    if isinstance(error, kinds.HTTPError):
        response = error.response
        busy = response.status_code in (408, 425, 429) or response.status_code >= 500
        return f"answered {response.status_code} {response.reason}", not busy
    if isinstance(error, kinds.Timeout):
        return "did not answer in time", False
    if isinstance(error, kinds.ChunkedEncodingError) or "IncompleteRead" in str(error):
        return "broke off before the file was complete", False
    if isinstance(error, kinds.ConnectionError):
        return "cannot be reached", False
    return f"failed ({type(error).__name__})", True


class _Bar:
    """What pooch expects of a progress bar."""

    def __init__(self, what: str, progress: Progress):
        self.what, self.progress = what, progress
        self.total = self.done = 0

    def update(self, size: int) -> None:
        # pooch reports whole chunks, and after its reset() the whole file once more.
        self.done = min(self.done + size, self.total) if self.total else self.done + size
        self.progress(self.what, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """pooch announces each download in its log; here the progress line does."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _without_empty_folders(folder: Path) -> Iterator[None]:
    """Folders that were made for a download that then failed are taken away again."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):  # not empty, as it should be
                path.rmdir()
