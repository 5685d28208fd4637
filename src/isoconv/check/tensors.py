"""The model's weights: a safetensors file read byte by byte, and the hash that ties a certificate to it."""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .fields import entry, items, parse_json, read_bytes, table, text, wholes
from .verdict import Malformed

Floats = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]  # float32 or float64, little-endian, as in the file

_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_WORDS: dict[np.dtype[Any], str] = {np.dtype("<f4"): "float32", np.dtype("<f8"): "float64"}


def read_model(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of the model.safetensors in a run's folder."""
    if path.is_dir():
        path = path / "model.safetensors"
    data = read_bytes(path)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise Malformed(f"{path} is truncated or not a safetensors file.")
    header = parse_json(data[8 : 8 + length], f"the header of {path}")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    spans = {}
    tensors = {}
    for name, value in header.items():
        where = f"tensor {name!r:.60} of {path}"
        if not name.isprintable():  # nor can half a surrogate pair be hashed
            raise Malformed(f"Expected a printable name for {where}.")
        spans[name], tensors[name] = _tensor(value, where, body)
    _require_no_gaps(sorted(spans.values()), len(body), path)
    return tensors


def _tensor(value: Any, where: str, body: bytes) -> tuple[tuple[int, int], Tensor]:
    values = table(value, where)
    word = text(entry(values, "dtype", where), f"the dtype of {where}")
    if word not in _DTYPES:
        raise Malformed(f"Expected {where} to be F32 or F64. Got {word!r:.60}.")
    sizes = items(entry(values, "shape", where), f"the shape of {where}")
    shape = wholes(sizes, f"the shape of {where}", len(sizes), least=1)
    start, end = wholes(entry(values, "data_offsets", where), f"the data_offsets of {where}", 2)
    if not start <= end <= len(body):
        raise Malformed(f"{where} lies outside of the file: it is truncated.")
    if end - start != math.prod(shape) * _DTYPES[word].itemsize:
        raise Malformed(f"{where} has {end - start} bytes, which do not fit its shape {list(shape)}.")
    return (start, end), np.frombuffer(body[start:end], _DTYPES[word]).reshape(shape)


def _require_no_gaps(spans: list[tuple[int, int]], size: int, path: Path) -> None:
    """Every byte belongs to exactly one tensor, as the format demands: nothing hides between them."""
    position = 0
    for start, end in spans:
        if start != position:
            raise Malformed(f"{path} is corrupt: its tensors overlap or leave gaps.")
        position = end
    if position != size:
        raise Malformed(f"{path} is corrupt: {size - position} bytes belong to no tensor.")


def weights_sha256(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(str(size) for size in tensor.shape)
        digest.update(f"{name}\0{_WORDS[tensor.dtype]}\0{shape}\0".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def as_float64(tensor: Tensor, where: str) -> Floats:
    """The same numbers (float32 converts exactly), refused where one of them is not a number."""
    if not np.isfinite(tensor).all():
        raise Malformed(f"{where} holds a number that is not finite.")
    return tensor.astype(np.float64)
