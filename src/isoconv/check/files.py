"""What others wrote: JSON read into typed values, weights from a safetensors file, images from a .npy file.

Each function returns a value of the kind that it is named for, or says where it did not find one.
"""

import hashlib
import json
import math
import re
import stat
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from . import Malformed
from .exact import Floats

Tensor = npt.NDArray[Any]  # little-endian, as in the file
Json = dict[str, Any]

# What float.hex() writes, for finite numbers. More digits would be rounded when they are read.
_HEXADECIMAL = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}")
_NPY_HEADER = re.compile(
    rb"\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape': \(((?:[0-9]{1,10}, ?)*(?:[0-9]{1,10})?)\), \} *\n"
)
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}
_WORDS: dict[np.dtype[Any], str] = {np.dtype("<f4"): "float32", np.dtype("<f8"): "float64", np.dtype("<i8"): "int64"}
_MODEL_BYTES = 1 << 34


# Files ---------------------------------------------------------------------------------------------------------------


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file: a pipe or a device might never end."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise Malformed(f"Expected {path} to be an ordinary file. Got a pipe or a device.")
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise Malformed(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def read_bytes(file: BinaryIO, most: int, where: object) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise Malformed(f"Expected {where} to have at most {most} bytes, the limit. Got more.")
    return data


def parse_json(data: bytes, where: object) -> Json:
    """Parse a JSON object in which no name occurs twice: two readers could take two different values for it."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where} is not valid JSON ({error}).".replace("\n", " ")) from error
    return table(value, str(where))


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r:.60} occurs twice")
    return result


# Values --------------------------------------------------------------------------------------------------------------


def entry(values: Json, key: str, where: str) -> Any:
    if key not in values:
        raise Malformed(f"Expected {where} to have an entry {key!r}. Got none.")
    return values[key]


def entries(values: Json, keys: tuple[str, ...], where: str) -> list[Any]:
    """Return the values of these keys; there may be no others."""
    if unknown := [key for key in values if key not in keys]:
        raise Malformed(f"Expected {where} without an entry {unknown[0]!r:.60}. Got one.")
    return [entry(values, key, where) for key in keys]


def table(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise Malformed(f"Expected {where} to be a JSON object. Got {show(value)}.")
    return value


def items(value: Any, where: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        expected = "a list" if count is None else f"a list of {show(count)}"
        raise Malformed(f"Expected {where} to be {expected}. Got {show(value)}.")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"Expected {where} to be text. Got {show(value)}.")
    return value


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"Expected {where} to be true or false. Got {show(value)}.")
    return value


def whole(value: Any, where: str, least: int = 0, most: int = 1 << 62) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Malformed(f"Expected {where} to be a whole number from {least} to {most}. Got {show(value)}.")
    return value


def wholes(value: Any, where: str, count: int, least: int = 0, most: int = 1 << 62) -> tuple[int, ...]:
    return tuple(whole(number, where, least, most) for number in items(value, where, count))


def real(value: Any, where: str) -> float:
    """Return a finite number, exactly, from a string as `float.hex` writes it."""
    if not isinstance(value, str) or not _HEXADECIMAL.fullmatch(value):
        raise Malformed(f"Expected {where} to be a finite hexadecimal number such as 0x1.8p+0. Got {show(value)}.")
    try:
        return float.fromhex(value)
    except OverflowError as error:
        raise Malformed(f"Expected {where} to be a finite hexadecimal number. Got {show(value)}.") from error


def bound(value: Any, where: str) -> Fraction:
    """Return a number of at least 0, as a fraction to calculate with."""
    number = real(value, where)
    if number < 0:
        raise Malformed(f"Expected {where} to be at least 0. Got {number!r}.")
    return Fraction(number)


def show(value: Any) -> str:
    """Return the value on one short line."""
    try:
        shown = repr(value)
    except ValueError:  # an integer too long to print
        shown = "a very long number"
    return shown if len(shown) <= 60 else shown[:57] + "..."


# Weights -------------------------------------------------------------------------------------------------------------


def read_model(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of the model.safetensors in a run's folder."""
    with suppress(OSError, ValueError):  # opening it says why
        path = path / "model.safetensors" if path.is_dir() else path
    with open_file(path) as file:
        data = memoryview(read_bytes(file, _MODEL_BYTES, path))
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise Malformed(f"{path} is truncated or not a safetensors file.")
    header = parse_json(bytes(data[8 : 8 + length]), f"the header of {path}")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    spans, tensors = [], {}
    for name, value in header.items():
        where = f"tensor {name!r:.60} of {path}"
        if not name.isprintable():  # nor can half a surrogate pair be hashed
            raise Malformed(f"Expected a printable name for {where}.")
        span, tensors[name] = _read_tensor(value, where, body)
        spans.append(span)
    position = 0
    for start, end in sorted(spans):  # every byte belongs to exactly one tensor: nothing hides between them
        if start != position:
            raise Malformed(f"{path} is corrupt: its tensors overlap or leave gaps.")
        position = end
    if position != len(body):
        raise Malformed(f"{path} is corrupt: {len(body) - position} bytes belong to no tensor.")
    return tensors


def _read_tensor(value: Any, where: str, body: memoryview) -> tuple[tuple[int, int], Tensor]:
    values = table(value, where)
    word = text(entry(values, "dtype", where), f"the dtype of {where}")
    if word not in _DTYPES:
        raise Malformed(f"Expected {where} to be F32, F64 or I64. Got {word!r:.60}.")
    sizes = items(entry(values, "shape", where), f"the shape of {where}")
    shape = wholes(sizes[:9], f"the shape of {where}", len(sizes), least=1)
    start, end = wholes(entry(values, "data_offsets", where), f"the data_offsets of {where}", 2)
    if not start <= end <= len(body):
        raise Malformed(f"{where} lies outside of the file: it is truncated.")
    if end - start != math.prod(shape) * _DTYPES[word].itemsize:
        raise Malformed(f"{where} has {end - start} bytes, which do not fit its shape {list(shape)}.")
    return (start, end), np.frombuffer(body[start:end], _DTYPES[word]).reshape(shape)


def weights_sha256(tensors: dict[str, Tensor]) -> str:
    """Hash names, types, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(str(size) for size in tensor.shape)
        digest.update(f"{name}\0{_WORDS[tensor.dtype]}\0{shape}\0".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


# Images --------------------------------------------------------------------------------------------------------------


def read_images(path: Path, input_shape: tuple[int, ...]) -> Tensor:
    """Return the array (images, *input_shape) of float64 or bytes in a .npy file, without reading it all."""
    with open_file(path) as file:
        start = _read_npy_header(file)
        header = _NPY_HEADER.fullmatch(start)
        position, size = file.tell(), path.stat().st_size
    if header is None:
        raise Malformed(f"{path} cannot be read: it is not a complete .npy file.")
    word, order = header[1].decode("latin-1"), "F" if header[2] == b"True" else "C"
    shape = tuple(int(number) for number in header[3].split(b",") if number.strip())
    if word not in ("<f8", "|u1"):
        raise Malformed(f"Expected {path} to hold one array of float64 or uint8. Got {word!r:.60}.")
    if shape[1:] != input_shape or not shape:
        raise Malformed(f"Expected images of shape {list(input_shape)} in {path}. Got {list(shape[:9])}.")
    if size - position != math.prod(shape) * np.dtype(word).itemsize:
        raise Malformed(f"{path} cannot be read: it is not a complete .npy file.")
    if not shape[0]:
        return np.zeros(shape, word)
    return np.memmap(path, word, "r", position, shape, order)  # type: ignore[call-overload,no-any-return]


def _read_npy_header(file: BinaryIO) -> bytes:
    """Return the header of a .npy file, or nothing where there is none."""
    magic = file.read(8)
    lengths = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4, b"\x93NUMPY\x03\x00": 4}
    if magic not in lengths:
        return b""
    return file.read(min(int.from_bytes(file.read(lengths[magic]), "little"), 1 << 16))


def as_float64(tensor: Tensor, where: str) -> Floats:
    """Return the same numbers (float32 converts exactly), refused where one of them is not finite."""
    if tensor.dtype.kind != "f":
        raise Malformed(f"Expected {where} to hold float32 or float64. Got {tensor.dtype}.")
    if not np.isfinite(tensor).all():
        raise Malformed(f"{where} holds a number that is not finite.")
    return tensor.astype(np.float64)
