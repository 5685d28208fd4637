"""Saving and resuming, without pickle: tensors in safetensors, the rest in JSON, both replaced atomically."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from isoconv.errors import IsoconvError


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place only when it is complete and on disk."""
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        yield Path(name)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise IsoconvError(f"Cannot write {path}: {error.strerror}.") from None
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old one or the new one, never half of it."""
    with _replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """A text file, written like `write_bytes`."""
    with _replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, written like `write_text`."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _replacing(path) as temporary:
        temporary.write_bytes(save(contiguous, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise IsoconvError(f"Expected weights in {path}. Got a file that cannot be read: {error}.") from None


def pack_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Raw parameters, buffers and the optimiser's state, by name."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimiser/{index}/{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def unpack_state(tensors: dict[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """The inverse of `pack_state`, into a model and an optimiser of the same kind."""
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser/"):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = value
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise IsoconvError(
            f"Expected a saved state of this network. Got another: {str(error).splitlines()[-1]}"
        ) from None
    groups = optimiser.state_dict()["param_groups"]
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate  # the very tensor that the schedule writes to: loading has put a copy in its place


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise IsoconvError(f"Expected JSON in {path}. Got: {error}.") from None
    if not isinstance(found, dict):
        raise IsoconvError(f"Expected a JSON object in {path}. Got {type(found).__name__}.")
    return found
