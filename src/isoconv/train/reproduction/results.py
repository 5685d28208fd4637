"""Result files: one small JSON object per cell, with all that is needed to know what was measured, and on what.

Their fields are described in `results/README.md`.
"""

import json
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from isoconv.errors import IsoconvError
from isoconv.files import read_json, write_text
from isoconv.train.reproduction.cells import Cell
from isoconv.version import __version__

RESULTS = Path("results") / "reproduction"
RUNS = Path("runs") / "reproduction"


def find_results() -> Path:
    """Where results are looked for: in this folder, or, failing that, where isoconv's own sources are."""
    beside_sources = Path(__file__).resolve().parents[4] / RESULTS
    return beside_sources if not RESULTS.exists() and beside_sources.exists() else RESULTS


def result_path(folder: Path, cell: Cell) -> Path:
    return folder / cell.kind / f"{cell.name}.json"


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """What is known about a cell; None if nothing is."""
    path = result_path(folder, cell)
    if not path.exists():
        return None
    record = read_json(path)
    for name, value in cell.identity().items():
        if record.get(name) != value:
            raise IsoconvError(f"Expected the result of {cell.name} in {path}. Got {name} {record.get(name)!r}.")
    if record.get("status") not in ("ok", "failed"):
        raise IsoconvError(f"Expected status ok or failed in {path}. Got {record.get('status')!r}.")
    return record


def read_results(folder: Path, cells: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
    """The results that there are."""
    found = {cell: read_result(folder, cell) for cell in cells}
    return {cell: record for cell, record in found.items() if record is not None}


def write_result(folder: Path, cell: Cell, record: dict[str, Any]) -> None:
    path = result_path(folder, cell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise IsoconvError(f"Cannot write the result to {path}: {error.strerror}.") from None


def environment() -> dict[str, Any]:
    """Software, commit and time of a measurement."""
    return {
        "torch": torch.__version__,
        "isoconv": __version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def _commit() -> str | None:
    """The commit of the sources, with a + behind it if they have been changed since; None where git cannot tell."""
    here = Path(__file__).resolve().parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
