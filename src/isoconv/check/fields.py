"""Typed reading of JSON: each function returns a value of the kind it is named for, or says where it did not find one."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

from .verdict import Malformed

# What float.hex() writes, for finite numbers. More digits would be rounded when they are read.
_HEXADECIMAL = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise Malformed(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object in which no name occurs twice: two readers could take two different values for it."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where} is not valid JSON ({error}).".replace("\n", " ")) from error
    return table(value, where)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return result


def entry(values: dict[str, Any], key: str, where: str) -> Any:
    if key not in values:
        raise Malformed(f"Expected {where} to have an entry {key!r}. Got none.")
    return values[key]


def table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"Expected {where} to be a JSON object. Got {_shown(value)}.")
    return value


def items(value: Any, where: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        expected = "a list" if count is None else f"a list of {count}"
        raise Malformed(f"Expected {where} to be {expected}. Got {_shown(value)}.")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"Expected {where} to be text. Got {_shown(value)}.")
    return value


def whole(value: Any, where: str, least: int = 0, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise Malformed(f"Expected {where} to be a whole number {limits}. Got {_shown(value)}.")
    return value


def wholes(value: Any, where: str, count: int, least: int = 0, most: int | None = None) -> tuple[int, ...]:
    return tuple(whole(number, where, least, most) for number in items(value, where, count))


def real(value: Any, where: str) -> float:
    """A finite number, exactly, from a string as `float.hex` writes it."""
    if not isinstance(value, str) or not _HEXADECIMAL.fullmatch(value):
        raise Malformed(f"Expected {where} to be a finite hexadecimal number such as 0x1.8p+0. Got {_shown(value)}.")
    try:
        return float.fromhex(value)
    except OverflowError as error:
        raise Malformed(f"Expected {where} to be a finite hexadecimal number. Got {_shown(value)}.") from error


def bound(value: Any, where: str) -> Fraction:
    """A number of at least 0, as a fraction to calculate with."""
    number = real(value, where)
    if number < 0:
        raise Malformed(f"Expected {where} to be at least 0. Got {number!r}.")
    return Fraction(number)


def _shown(value: Any) -> str:
    """The value on one short line."""
    try:
        shown = repr(value)
    except ValueError:  # an integer too long to print
        shown = "a very long number"
    return shown if len(shown) <= 60 else shown[:57] + "..."
