"""Look for the files of a download and read them; whatever is wrong with one becomes one line that names it."""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isoconv.errors import IsoconvError

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

DOWNLOAD_AGAIN = "Delete it and download it again (--download)."


@dataclass(frozen=True)
class Finding:
    """Which of the files that belong together lie in one folder: the paths of those, the names of the others."""

    place: Path
    found: dict[str, Path]
    missing: tuple[str, ...]


def find_together(folder: Path, places: Sequence[str], names: Sequence[str], endings: Sequence[str] = ("",)) -> Finding:
    """The first of the sub-folders that holds all the names, else the one that holds most of them.

    A set's files are taken from one place, so that two copies are never mixed. Each name may have any of the endings.
    """
    findings = []
    for place in (folder / place for place in places):
        candidates = {name: [place / (name + ending) for ending in endings] for name in names}
        found = {name: path for name, paths in candidates.items() for path in reversed(paths) if path.is_file()}
        findings.append(Finding(place, found, tuple(name for name in names if name not in found)))
    return min(findings, key=lambda finding: len(finding.missing))


def not_found(title: str, folder: Path, findings: Sequence[Finding], places: Sequence[str], files: str) -> IsoconvError:
    """The error for a set that is not in a folder, or only in part."""
    if not folder.is_dir():
        return IsoconvError(
            f"{title} was not found: there is no folder {folder}. Say where it is (--data), or fetch it (--download)."
        )
    for finding in findings:
        if finding.found:
            return IsoconvError(
                f"{title} is not complete in {finding.place}: {', '.join(finding.missing)} "
                f"{'is' if len(finding.missing) == 1 else 'are'} missing. Add what is missing, or use --download."
            )
    where = ", ".join(dict.fromkeys(str(folder / place) for place in places))
    return IsoconvError(
        f"{title} was not found: looked for {files} in {where}. "
        "Say where it is (--data), fetch it (--download), or put the official files there."
    )


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IsoconvError(f"{path} cannot be read: {error.strerror}.") from error


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of_file(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise IsoconvError(f"{path} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Files of a .tar.gz by their names in it, read in one pass that ends with the last of them, and not extracted."""
    members = {}
    try:
        with tarfile.open(archive, "r|gz", bufsize=1 << 20) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in names and (file := tar.extractfile(member)) is not None:
                    members[name] = file.read()
                    if len(members) == len(names):
                        break
    except (tarfile.TarError, OSError, EOFError) as error:
        raise IsoconvError(f"{archive} is truncated or corrupt ({error}). {DOWNLOAD_AGAIN}") from error
    if missing := [name for name in names if name not in members]:
        raise IsoconvError(f"{archive} does not hold {missing[0]}: not the official archive. {DOWNLOAD_AGAIN}")
    return members


def require_labels(labels: Bytes, low: int, high: int, source: str) -> None:
    wrong = np.flatnonzero((labels < low) | (labels > high))
    if len(wrong):
        raise IsoconvError(
            f"Expected labels from {low} to {high} in {source}. Got {labels[wrong[0]]} for image {wrong[0]}: "
            f"the file is corrupt. {DOWNLOAD_AGAIN}"
        )
