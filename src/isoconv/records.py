"""Dataclasses that write themselves as JSON, and read themselves back refusing what does not fit."""

import contextlib
import dataclasses
import json
import math
import re
import types
import typing
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from isoconv.errors import IsoconvError, require
from isoconv.files import read_json, write_json

SLACK = 1e-9  # of a percentage that was written in decimals


class Range(NamedTuple):
    """What the numbers of a field may be, in the field's annotation."""

    low: float
    high: float = math.inf

    def admits(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


class Pattern(NamedTuple):
    """What the text of a field may be, in the field's annotation."""

    title: str
    expression: str

    def admits(self, value: Any) -> bool:
        return re.fullmatch(self.expression, value) is not None

    def __str__(self) -> str:
        return self.title


Size = Annotated[float, Range(0)]
Index = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Percent = Annotated[float, Range(-SLACK, 100 + SLACK)]
Picture = Annotated[str, Pattern("PNG as a data URI", "data:image/png;base64,[A-Za-z0-9+/]+={0,2}")]


class Record:
    """Base of frozen dataclasses that live in files. Fields are int, float, str, bool, None, tuples, dicts or records.

    A field's annotation is what a file must hold for it, within a `Range` or of a `Pattern` where the annotation has one:
    `from_fields` raises one line that names the field otherwise.
    Numbers must be finite unless the field is listed in `may_be_infinite`. Unknown fields are refused, or with
    `ignores_unknown` left out: for records that need only a part of a file.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ()
    ignores_unknown: ClassVar[bool] = False

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain data, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self) -> str:
        return json.dumps(self.to_fields(), indent=2) + "\n"

    def write(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        write_json(path, self.to_fields())

    @classmethod
    def from_fields(cls, fields: Any, source: str = "") -> Self:
        """Make the record of plain data, which came from `source`. Raise if fields are unknown, missing or misfit."""
        where = f" in {source}" if source else ""
        expected = f"the fields of a {cls.__name__}{where}"
        require(isinstance(fields, dict), expected, type(fields).__name__)
        annotations, values = typing.get_type_hints(cls, include_extras=True), {}
        known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = [] if cls.ignores_unknown else [name for name in fields if name not in known]
        require(not unknown, expected, f"an unknown one, {', '.join(map(repr, unknown))}")
        for name, field in known.items():
            if name in fields:
                infinite = name in cls.may_be_infinite
                values[name] = fit_value(f"{name}{where}", annotations[name], fields[name], infinite)
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise IsoconvError(f"Expected {expected}. {name!r} is missing.")
        return cls(**values)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the record from a JSON file."""
        return cls.from_fields(read_json(path), str(path))


def fit_value(name: str, annotation: Any, value: Any, infinite: bool = False) -> Any:
    """Return a value as its annotation wants it (lists become tuples), or raise one line that names it."""
    try:
        return _fit(annotation, value, infinite)
    except TypeError:
        shown = json.dumps(value, default=str)[:60]
        raise IsoconvError(f"Expected {name} to be {_name(annotation)}. Got {shown}.") from None


def _fit(annotation: Any, value: Any, infinite: bool) -> Any:
    """Return the value as its annotation wants it (lists become tuples), or raise TypeError."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin is Annotated:
        value = _fit(arguments[0], value, infinite)
        if all(limit.admits(value) for limit in arguments[1:]):
            return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            with contextlib.suppress(TypeError):
                return _fit(option, value, infinite)
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            return tuple(_fit(kind, item, infinite) for kind, item in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {_fit(arguments[0], k, infinite): _fit(arguments[1], v, infinite) for k, v in value.items()}
    if isinstance(annotation, type) and issubclass(annotation, Record) and isinstance(value, dict):
        return annotation.from_fields(value)
    is_number = isinstance(value, Real) and not isinstance(value, bool)  # numpy's too
    if annotation is float and is_number and (infinite or math.isfinite(value)):
        return value if type(value) in (int, float) else float(value)
    if annotation is int and is_number and isinstance(value, Integral):
        return int(value)
    if annotation in (str, bool, types.NoneType, None) and type(value) is (annotation or types.NoneType):
        return value
    raise TypeError


def _name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return " ".join([_name(arguments[0]), *map(str, arguments[1:])])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_name, arguments))
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if kind is Ellipsis else _name(kind) for kind in arguments)}]"
    return "None" if annotation is types.NoneType else str(getattr(annotation, "__name__", annotation))
