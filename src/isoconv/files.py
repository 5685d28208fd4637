"""Files that are written whole or not at all, and read with one line for whatever is wrong with them."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from torch import Tensor


def check_writable(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise, before any work is done, if a file could not be written or may not be replaced."""
    for path in paths:
        if path.is_dir():
            raise IsoconvError(f"Expected a file to write to. Got {path}, which is a folder.")
        if path.exists() and not overwrite:
            raise IsoconvError(f"{path} already exists: replace it (--overwrite) or name another file (--out).")
        if not path.parent.is_dir():
            raise IsoconvError(f"Expected a folder to write {path.name} to. There is no folder {path.parent}.")


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files so that each is the old one or the new one, never half of it; none is replaced before all are on disk."""
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


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write to piece by piece, which takes its place when the block ends without an error, or not at all."""
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError):
            raise IsoconvError(f"Cannot write {path}: {error.strerror}.") from None
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write one file, as `write_files` does."""
    write_files({path: content})


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save

    write_bytes(path, save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, metadata))


def read_bytes(path: Path) -> bytes:
    """Read a whole file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IsoconvError(f"{path} cannot be read: {error.strerror}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise IsoconvError(f"Expected JSON in {path}. Got: {error}.") from None
    if not isinstance(value, dict):
        raise IsoconvError(f"Expected a JSON object in {path}. Got {type(value).__name__}.")
    return value


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Read a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise IsoconvError(f"Expected weights in {path}. Got a file that cannot be read: {error}.") from None
