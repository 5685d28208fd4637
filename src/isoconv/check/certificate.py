"""The certificate file, read and typed. Nothing in it is believed here; only its form is checked."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from .fields import bound, entry, items, parse_json, read_bytes, real, table, text, whole
from .verdict import Malformed

UNIT_ROUNDOFF = {"float64": Fraction(1, 2**53), "float32": Fraction(1, 2**24)}
SMALLEST_NORMAL = {"float64": Fraction(1, 2**1022), "float32": Fraction(1, 2**126)}
LARGEST_FINITE = {"float64": 2**1024 - 2**971, "float32": 2**128 - 2**104}


@dataclass(frozen=True)
class Layer:
    """One module of the network; `claim` is the Lipschitz constant that the file gives it."""

    name: str
    kind: str
    settings: dict[str, Any]
    claim: Fraction

    def __str__(self) -> str:
        return f"layer {self.name} ({self.kind})"


@dataclass(frozen=True)
class Image:
    index: int
    prediction: int
    input_norm: Fraction
    logits: tuple[Fraction, ...]
    radius: Fraction


@dataclass(frozen=True)
class Certificate:
    arithmetic: str
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    classes: int
    weights_sha256: str
    layers: tuple[Layer, ...]
    lipschitz: Fraction
    pair_constants: tuple[tuple[Fraction, ...], ...]
    error_offset: Fraction
    error_slope: Fraction
    images: tuple[Image, ...]


def read_certificate(path: Path) -> Certificate:
    values = parse_json(read_bytes(path), str(path))

    def get(key: str) -> Any:
        return entry(values, key, "the certificate")

    for key, expected in (("format", "isoconv certificate"), ("version", 1), ("norm", "2")):
        found = get(key)
        if found != expected or isinstance(found, bool):
            raise Malformed(f"Expected {key} {expected!r}. Got {found!r:.60}.")
    arithmetic = text(get("arithmetic"), "arithmetic")
    if arithmetic not in UNIT_ROUNDOFF:
        raise Malformed(f"Expected arithmetic 'float64' or 'float32'. Got {arithmetic!r:.60}.")
    text(get("claim"), "claim")
    classes = whole(get("classes"), "classes", least=1)
    rows = items(get("pair_constants"), "pair_constants", classes)
    return Certificate(
        arithmetic=arithmetic,
        input_shape=_shape(get("input_shape")),
        input_range=_range(get("input_range")),
        classes=classes,
        weights_sha256=text(get("weights_sha256"), "weights_sha256"),
        layers=_layers(get("layers")),
        lipschitz=bound(get("lipschitz"), "lipschitz"),
        pair_constants=tuple(_pair_row(row, i, classes) for i, row in enumerate(rows)),
        error_offset=bound(get("error_offset"), "error_offset"),
        error_slope=bound(get("error_slope"), "error_slope"),
        images=tuple(_image(value, number, classes) for number, value in enumerate(items(get("images"), "images"))),
    )


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(whole(size, "input_shape", least=1) for size in items(value, "input_shape"))
    if not shape:
        raise Malformed("Expected input_shape to have at least one axis. Got [].")
    return shape


def _range(value: Any) -> tuple[float, float]:
    low, high = (real(limit, "input_range") for limit in items(value, "input_range", 2))
    if low > high:
        raise Malformed(f"Expected input_range to begin with its smaller number. Got {low!r}, {high!r}.")
    return low, high


def _layers(value: Any) -> tuple[Layer, ...]:
    layers = tuple(_layer(entry, number) for number, entry in enumerate(items(value, "layers")))
    if not layers:
        raise Malformed("Expected at least one layer. Got none.")
    return layers


def _layer(value: Any, number: int) -> Layer:
    where = f"entry {number} of layers"
    values = table(value, where)
    name = text(entry(values, "name", where), f"the name of {where}")
    kind = text(entry(values, "kind", where), f"the kind of {where}")
    settings = table(entry(values, "settings", where), f"the settings of {where}")
    return Layer(name, kind, settings, bound(entry(values, "lipschitz", where), f"the lipschitz of {where}"))


def _pair_row(row: Any, i: int, classes: int) -> tuple[Fraction, ...]:
    where = f"row {i} of pair_constants"
    return tuple(bound(value, where) for value in items(row, where, classes))


def _image(value: Any, number: int, classes: int) -> Image:
    where = f"entry {number} of images"
    values = table(value, where)

    def get(key: str) -> Any:
        return entry(values, key, where)

    if get("label") is not None:  # nothing is claimed about it
        whole(get("label"), f"the label of {where}", most=classes - 1)
    logits = items(get("logits"), f"the logits of {where}", classes)
    return Image(
        index=whole(get("index"), f"the index of {where}"),
        prediction=whole(get("prediction"), f"the prediction of {where}", most=classes - 1),
        input_norm=bound(get("input_norm"), f"the input_norm of {where}"),
        logits=tuple(Fraction(real(logit, f"the logits of {where}")) for logit in logits),
        radius=bound(get("radius"), f"the radius of {where}"),
    )
