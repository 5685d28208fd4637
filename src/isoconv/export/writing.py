"""Files that are written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from isoconv.errors import IsoconvError


def check_writable(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse, before any work, what could not be written or may not be replaced."""
    for path in paths:
        if path.is_dir():
            raise IsoconvError(f"Expected a file to write to. Got {path}, which is a folder.")
        if path.exists() and not overwrite:
            raise IsoconvError(f"{path} already exists: replace it (--overwrite) or name another file (--out).")
        if not path.parent.is_dir():
            raise IsoconvError(f"Expected a folder to write {path.name} to. There is no folder {path.parent}.")


def write_all(contents: Mapping[Path, bytes]) -> None:
    """All the files, each under its name only when all of them are complete and on the disk."""
    temporary: dict[Path, str] = {}
    path = Path()
    try:
        for path, content in contents.items():
            handle, temporary[path] = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary[path], 0o644)
        for path, name in temporary.items():
            os.replace(name, path)
    except BaseException as error:
        for name in temporary.values():
            with contextlib.suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError):
            raise IsoconvError(f"Cannot write {path}: {error.strerror}.") from None
        raise
