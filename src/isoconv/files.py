"""Write files whole or not at all; read them with an error of one line if something is wrong."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from isoconv.errors import IsoconvError, require

if TYPE_CHECKING:
    from torch import Tensor


def check_writable(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise, before any work is done, if a file could not be written or may not be replaced."""
    for path in paths:
        folder = _find_target(path).parent
        if path.exists() and not overwrite:
            raise IsoconvError(f"{path} already exists: replace it (--overwrite) or name another file (--out).")
        if not folder.is_dir():
            missing = folder if path.is_symlink() else path.parent
            raise IsoconvError(f"Expected a folder to write {path.name} to. There is no folder {missing}.")
        writable = os.access(folder, os.W_OK)
        require(writable, f"a folder to write {path.name} to", f"{path.parent}, which is write-protected")


def _find_target(path: Path) -> Path:
    """Return the file that is written when a path is, where its links lead. Raise if it may not be replaced by a file."""
    require(not path.is_dir(), "a file to write to", f"{path}, which is a folder")
    require_ordinary(path)
    target = Path(os.path.realpath(path))
    require(not target.is_symlink(), "a file to write to", f"{path}, a link that leads to itself")
    return target


@contextlib.contextmanager
def replace_files(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """Open files to write to, which take the places of `paths` when the block ends without an error, or not at all.

    Each is the old one or the new one, never half of it; none is replaced before all are on disk. Of a link the file that
    it leads to is replaced.
    """
    temporary, targets = list[str](), [_find_target(path) for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            files: list[IO[bytes]] = []
            for target in targets:
                handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
                temporary.append(name)
                files.append(stack.enter_context(os.fdopen(handle, "wb")))
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for target, name in zip(targets, temporary, strict=True):
            os.chmod(name, 0o644)
            os.replace(name, target)
    except BaseException as error:
        for name in temporary:
            with contextlib.suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError):
            raise IsoconvError(f"Cannot write {', '.join(map(str, paths))}: {error.strerror}.") from None
        raise


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open one file to write to piece by piece, as `replace_files` does."""
    with replace_files(path) as (file,):
        yield file


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write whole files, as `replace_files` does."""
    with replace_files(*contents) as files:
        for file, content in zip(files, contents.values(), strict=True):
            file.write(content)


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

    # Copies: safetensors refuses tensors that share memory, as those of a layer used twice do.
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_bytes(path, save(copies, metadata))


def require_ordinary(path: Path) -> None:
    """Raise if a path is a pipe or a device: reading it might never end."""
    with contextlib.suppress(OSError):  # opening it says why
        ordinary = path.is_file() or path.is_dir() or not path.exists()
        require(ordinary, "an ordinary file", f"{path}, a pipe or a device")


def read_bytes(path: Path) -> bytes:
    """Read a whole file."""
    require_ordinary(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise IsoconvError(f"{path} cannot be read: {error.strerror}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    require_ordinary(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise IsoconvError(f"Expected JSON in {path}. Got: {error}.") from None
    require(isinstance(value, dict), f"a JSON object in {path}", type(value).__name__)
    return value


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Read a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    require_ordinary(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise IsoconvError(
            f"Expected weights in the safetensors file {path}. Got a file that cannot be read: {error}."
        ) from None
