"""What others wrote, read and typed: certificates, weights in a safetensors file, images in a .npy file.

Nothing in them is believed here; only their form is checked. A reader takes a JSON value and where it stands, and returns a
typed value or raises `Malformed`, which names the place.
"""

import hashlib
import json
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from . import Malformed
from .exact import ARITHMETICS, Floats, show

Tensor = npt.NDArray[Any]  # little-endian, as in the file
Json = dict[str, Any]
T = TypeVar("T")
Reader = Callable[[Any, str], T]

# What float.hex() writes, for finite numbers. More digits, or a smaller exponent, would be rounded when they are read.
_HEXADECIMAL = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p([+-][0-9]{1,4})")
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}
_MODEL_BYTES = 1 << 34
INPUT = "input"
ASSUMPTION = "elementary functions err by at most 8 units in the last place"
# The claim of every certificate of version 1. Another sentence would be a claim that nobody checks.
CLAIM = (
    "For every image listed and every input within its radius (L2) of it, this network, run in the arithmetic stated "
    "with sums in any order, predicts the class stated. A radius of 0 claims nothing."
)
_BYTES = 1 << 28  # of a certificate of version 1, or of one line
_VALUES = 1 << 24  # in one JSON object
_NODES = 4096
AXES = 60  # of an array; numpy has 64


# Files ---------------------------------------------------------------------------------------------------------------


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file: a pipe or a device might never end."""
    try:
        ordinary = stat.S_ISREG(path.stat().st_mode) or path.is_dir()
        Malformed.unless(ordinary, f"Expected {path} to be an ordinary file. Got a pipe or a device.")
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise Malformed(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def read_bytes(file: BinaryIO, most: int, where: object) -> bytes:
    size = os.fstat(file.fileno()).st_size - file.tell()
    Malformed.unless(0 <= size <= most, f"Expected {where} to have at most {most} bytes, the limit. Got {size}.")
    return file.read(size)  # never `most`: Python asks for all of that memory at once


def parse_json(data: bytes, where: object) -> Json:
    """Parse a JSON object in which no name occurs twice: two readers could take two different values for it.

    Python's objects may take thirty times the memory of the text. Each begins at one of these characters, or at the start.
    """
    size, values = len(data), sum(map(data.count, (b",", b":", b"[", b"{")))
    Malformed.unless(size <= _BYTES, f"Expected {where} to have at most {_BYTES} bytes, the limit. Got {size}.")
    Malformed.unless(values <= _VALUES, f"Expected {where} to have at most {_VALUES} values, the limit. Got {values}.")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where} is not valid JSON ({error}).".replace("\n", " ")) from error
    return table(value, str(where))


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    result: Json = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the name {name!r:.60} occurs twice")
        result[name] = value
    return result


# Readers of values ---------------------------------------------------------------------------------------------------


def require(condition: bool, where: str, expected: str, value: Any) -> None:
    if not condition:
        raise Malformed(f"Expected {where} to be {expected}. Got {show(value)}.")


def _of(kind: type[T], expected: str) -> Reader[T]:
    def read(value: Any, where: str) -> T:
        require(isinstance(value, kind), where, expected, value)
        return value  # type: ignore[no-any-return]

    return read


table: Reader[Json] = _of(dict, "a JSON object")
text, flag = _of(str, "text"), _of(bool, "true or false")


def real(value: Any, where: str) -> float:
    """Read a finite number, exactly, from a string as `float.hex` writes it."""
    expected = "a finite hexadecimal number such as 0x1.8p+0"
    match = _HEXADECIMAL.fullmatch(value) if isinstance(value, str) else None
    require(match is not None and int(match[1]) >= -1022, where, expected, value)
    try:
        return float.fromhex(value)
    except OverflowError as error:
        raise Malformed(f"Expected {where} to be {expected}. Got {show(value)}.") from error


def bound(value: Any, where: str) -> Fraction:
    """Read a number of at least 0, as a fraction to calculate with."""
    number = real(value, where)
    require(number >= 0, where, "at least 0", number)
    return Fraction(number)


def whole(least: int = 0, most: int = 1 << 62) -> Reader[int]:
    def read(value: Any, where: str) -> int:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        require(fits, where, f"a whole number from {least} to {most}", value)
        return int(value)

    return read


def choice(*values: Any) -> Reader[Any]:
    """Read one of these values; `true` is not 1."""

    def read(value: Any, where: str) -> Any:
        fits = value in values and not isinstance(value, bool)
        require(fits, where, " or ".join(map(repr, values)), value)
        return value

    return read


def optional(read: Reader[T]) -> Reader[T | None]:
    return lambda value, where: None if value is None else read(value, where)


def each(read: Reader[T], least: int = 0, most: int | None = None) -> Reader[tuple[T, ...]]:
    """Read a list of so many values: of `least` where `most` is not given, of any number where neither is."""
    most = most or least

    def read_list(value: Any, where: str) -> tuple[T, ...]:
        fits = isinstance(value, list) and (not most or least <= len(value) <= most)
        expected = f" of {least}" if least == most else f" of {least} to {most}"
        require(fits, where, f"a list{expected if most else ''}", value)
        return tuple(read(item, where) for item in value)

    return read_list


def record(make: Callable[..., T], readers: dict[str, Reader[Any]] | None = None) -> Reader[T]:
    """Read a JSON object that has these entries and no others; by default, those that annotate the fields of a class."""
    if readers is None:
        hints = get_type_hints(make, include_extras=True)
        readers = {name: hint.__metadata__[0] for name, hint in hints.items()}

    def read(value: Any, where: str) -> T:
        if unknown := [name for name in table(value, where) if name not in readers]:
            raise Malformed(f"Expected {where} without an entry {unknown[0]!r:.60}. Got one.")
        return make(**read_entries(value, where, readers))

    return read


def read_entries(value: Any, where: str, readers: dict[str, Reader[Any]]) -> Json:
    """Read these entries of a JSON object, whatever else it has."""
    values = table(value, where)
    for name in readers:
        Malformed.unless(name in values, f"Expected {where} to have an entry {name!r}. Got none.")
    return {name: read(values[name], f"the {name} of {where}") for name, read in readers.items()}


def anything(value: Any, where: str) -> Any:
    return value


# Certificates: a line of JSON for the network and one for each image ----------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One module in its place. `lipschitz` is its claimed constant, `module` the prefix of its tensors."""

    name: Annotated[str, text]
    kind: Annotated[str, text]
    module: Annotated[str | None, optional(text)]
    inputs: Annotated[tuple[str, ...], each(text)]
    settings: Annotated[Json, table]
    lipschitz: Annotated[Fraction, bound]

    def __str__(self) -> str:
        return f"layer {self.name} ({self.kind})"


def _error(value: Any, where: str) -> Fraction | float:
    return math.inf if value == "inf" else bound(value, where)


@dataclass(frozen=True)
class Certificate:
    """The network's part of a certificate. The error may be infinite: then no radius is claimed."""

    format: Annotated[str, choice("isoconv certificate")]
    version: Annotated[int, choice(2)]
    isoconv: Annotated[str, text]  # who wrote it; nothing follows from it
    arithmetic: Annotated[str, choice(*ARITHMETICS)]
    norm: Annotated[str, choice("2")]
    input_shape: Annotated[tuple[int, ...], each(whole(1), 1, AXES)]
    input_range: Annotated[tuple[float, float], each(real, 2)]
    classes: Annotated[int, whole(1)]
    weights_sha256: Annotated[str, text]
    assumptions: Annotated[tuple[str, ...], each(text)]
    nodes: Annotated[tuple[Node, ...], each(record(Node), 1, _NODES)]
    output: Annotated[str, text]
    lipschitz: Annotated[Fraction, bound]
    pair_constants: Annotated[tuple[tuple[Fraction, ...], ...], each(each(bound))]
    error_offset: Annotated[Fraction | float, _error]
    error_slope: Annotated[Fraction | float, _error]
    images: Annotated[int | None, optional(whole())]

    def __post_init__(self) -> None:
        low, high = self.input_range
        require(low <= high, "input_range", "the smallest number and the largest", [low, high])
        sizes = {len(row) for row in self.pair_constants} | {len(self.pair_constants)}
        require(sizes == {self.classes}, "pair_constants", f"{self.classes} rows of {self.classes}", sorted(sizes))


@dataclass(frozen=True)
class Image:
    index: Annotated[int, whole(most=10**400)]
    label: Annotated[int | None, optional(whole())]  # nothing is claimed about it
    prediction: Annotated[int, whole()]
    input_norm: Annotated[Fraction, bound]
    logits: Annotated[tuple[float, ...], each(real)]
    radius: Annotated[Fraction, bound]


_read_listed = record(Image)


def read_certificate(path: Path) -> tuple[Certificate, Iterator[Image]]:
    """Return the certificate and its images, which can be gone through once."""
    with open_file(path) as file:
        line = file.readline(_BYTES)
        try:
            values = parse_json(line, path)
        except Malformed:
            values = {}
        if values.get("version") == 2:
            certificate = record(Certificate)(values, "the certificate")
            return certificate, _read_lines(path, file.tell(), certificate)
        rest = read_bytes(file, _BYTES, path)
    if rest.strip(b" \t\r\n") or not values:
        values = {}  # not two at once: Python's objects take far more memory than the file
        values = parse_json(line + rest, path)
    values = _translate(values)
    listed = values.pop("images")
    certificate = record(Certificate)(values | {"images": len(listed)}, "the certificate")
    images = [_read_image(image, f"entry {n} of images", certificate) for n, image in enumerate(listed)]
    return certificate, iter(images)


def _read_lines(path: Path, position: int, certificate: Certificate) -> Iterator[Image]:
    number = 0
    with open_file(path) as file:
        file.seek(position)
        while line := file.readline(_BYTES):
            number += 1
            yield _read_image(parse_json(line, f"line {number + 1}"), f"line {number + 1}", certificate)
    if certificate.images not in (None, number):
        raise Malformed(f"Expected {certificate.images} images, as the first line says. Got {number}.")


def _read_image(value: Any, where: str, certificate: Certificate) -> Image:
    image, classes = _read_listed(value, where), certificate.classes
    for name, number in (("prediction", image.prediction), ("label", image.label or 0)):
        require(number < classes, f"the {name} of {where}", f"from 0 to {classes - 1}", number)
    require(len(image.logits) == classes, f"the logits of {where}", f"a list of {classes}", image.logits)
    return image


# Certificates of version 1 -------------------------------------------------------------------------------------------
# They are one JSON object. Nobody writes them any more, but such files are about: they are translated into version 2.


def _translate(values: Json) -> Json:
    """Return a certificate of version 1 in version 2, with its list of images; what it says besides is ignored."""
    old = read_entries(values, "the certificate", _OLD)
    nodes, before = [], INPUT
    for number, layer in enumerate(old.pop("layers")):
        node = read_entries(layer, f"entry {number} of layers", _LAYER)
        # A name says whose the tensors are and nothing else: names need not count up.
        nodes.append(_translate_settings(node) | {"module": node["name"], "inputs": [before]})
        before = node["name"]
    claim = old.pop("claim")
    new = {"version": 2, "isoconv": "", "assumptions": [claim] * (claim != CLAIM), "nodes": nodes, "output": before}
    images = [read_entries(image, f"entry {n} of images", _IMAGE_1) for n, image in enumerate(old["images"])]
    return old | new | {"images": images}


def _translate_settings(node: Json) -> Json:
    """Give a layer the settings of version 2; a kind or a setting that version 1 did not have is marked as unknown."""
    family = node["kind"][:-2] if node["kind"][-2:] in ("1d", "2d") else node["kind"]
    if family not in _KINDS:
        return node | {"kind": f"{node['kind']} of version 1"}
    names = {name: _RENAMED.get(name, name) for name in _KINDS[family].split()}
    settings = {names.get(name, f"{name} of version 1"): value for name, value in node["settings"].items()}
    padding = settings.get("padding")
    if isinstance(padding, list) and family == "Conv":
        settings["padding"] = [[number, number] for number in padding]
    elif isinstance(padding, list) and family in ("ZeroPad", "CircularPad"):  # torch's order: the last axis comes first
        settings["padding"] = [padding[n : n + 2] for n in range(0, len(padding), 2)][::-1]
    return node | {"settings": settings | _ADDED.get(family, {})}


_LIST: Reader[Any] = each(anything)
_NEW = ("isoconv", "assumptions", "nodes", "output")
_OLD: dict[str, Reader[Any]] = {name: anything for name in Certificate.__annotations__ if name not in _NEW}
_OLD |= {"version": choice(1, 2), "claim": text, "layers": _LIST, "images": _LIST}
_LAYER: dict[str, Reader[Any]] = {"name": text, "kind": text, "settings": table, "lipschitz": anything}
_IMAGE_1: dict[str, Reader[Any]] = dict.fromkeys(Image.__annotations__, anything)
_RENAMED = {"downscale_factor": "factor", "upscale_factor": "factor"}
_KINDS = {
    "Conv": "stride padding dilation groups padding_mode",
    "CircularPad": "padding",
    "ZeroPad": "padding",
    "MaxPool": "kernel_size stride padding dilation",
    "AvgPool": "kernel_size stride padding",
    "GroupSort": "group_size",
    "Scale": "factor",
    "Flatten": "start_dim end_dim",
    "PixelUnshuffle": "downscale_factor",
    "PixelShuffle": "upscale_factor",
} | dict.fromkeys(("Linear", "MaxMin", "ReLU", "Abs", "Identity", "Dropout"), "")
_ADDED: dict[str, Json] = {
    "MaxPool": {"ceil_mode": False},
    "AvgPool": {"ceil_mode": False, "count_include_pad": True, "divisor_override": None},
}


# Weights -------------------------------------------------------------------------------------------------------------


def read_model(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of the model.safetensors in a run's folder."""
    with suppress(OSError, ValueError):  # opening it says why
        path = path / "model.safetensors" if path.is_dir() else path
    with open_file(path) as file:
        data = memoryview(read_bytes(file, _MODEL_BYTES, path))
    length = int.from_bytes(data[:8], "little")
    Malformed.unless(8 <= 8 + length <= len(data), f"{path} is truncated or not a safetensors file.")
    header = parse_json(bytes(data[8 : 8 + length]), f"the header of {path}")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    tensors, spans = {}, []
    for name, value in header.items():
        where = f"tensor {name!r:.60} of {path}"
        # Neither can be hashed without doubt: a zero ends the name, half a surrogate pair has no bytes.
        Malformed.unless(not re.search("[\0\ud800-\udfff]", name), f"Expected another name for {where}.")
        word, shape, (start, end) = read_entries(value, where, _FIELDS).values()
        dtype = _DTYPES[word]
        Malformed.unless(start <= end <= len(body), f"{where} lies outside of the file: it is truncated.")
        fits = end - start == math.prod(shape) * dtype.itemsize
        Malformed.unless(fits, f"{where} has {end - start} bytes, which do not fit its shape {list(shape)}.")
        tensors[name] = np.frombuffer(body[start:end], dtype).reshape(shape)
        spans.append((start, end))
    position = 0
    for start, end in sorted(spans):  # every byte belongs to exactly one tensor: nothing hides between them
        Malformed.unless(start == position, f"{path} is corrupt: its tensors overlap or leave gaps.")
        position = end
    rest = len(body) - position
    Malformed.unless(not rest, f"{path} is corrupt: {rest} bytes belong to no tensor.")
    return tensors


_FIELDS: dict[str, Reader[Any]] = {
    "dtype": choice(*_DTYPES),
    "shape": each(whole(1), 0, 9),
    "data_offsets": each(whole(), 2),
}


def weights_sha256(tensors: dict[str, Tensor]) -> str:
    """Hash names, types, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        shape = ",".join(str(size) for size in tensor.shape)
        digest.update(f"{name}\0{tensor.dtype.name}\0{shape}\0".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


# Images --------------------------------------------------------------------------------------------------------------


def read_images(path: Path, input_shape: tuple[int, ...]) -> Tensor:
    """Return the array (images, *input_shape) of float64 or bytes in a .npy file, without reading it all."""
    open_file(path).close()
    try:
        with warnings.catch_warnings(action="ignore"):  # about what is odd in a header
            images = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:
        raise Malformed(f"{path} cannot be read: it is not a complete .npy file of numbers.") from error
    kind, shape, rest = images.dtype.str, images.shape, path.stat().st_size - images.offset - images.nbytes
    Malformed.unless(kind in ("<f8", "|u1"), f"Expected {path} to hold float64 or uint8. Got {kind!r:.60}.")
    Malformed.unless(not rest, f"{path} cannot be read: {rest} bytes belong to no image.")
    fits = len(shape) > 0 and shape[1:] == input_shape
    Malformed.unless(fits, f"Expected images of shape {list(input_shape)} in {path}. Got {list(shape[:9])}.")
    return images


def as_float64(tensor: Tensor, where: str) -> Floats:
    """Return the same numbers (float32 converts exactly), refused where one of them is not finite."""
    Malformed.unless(tensor.dtype.kind == "f", f"Expected {where} to hold float32 or float64. Got {tensor.dtype}.")
    Malformed.unless(bool(np.isfinite(tensor).all()), f"{where} holds a number that is not finite.")
    return tensor.astype(np.float64)
