"""The certificate file, read and typed. Nothing in it is believed here; only its form is checked.

Version 2 is a line of JSON for the network and one for each image. Version 1 is one JSON object; it is read as what it
would be in version 2: a chain of nodes, settings spelt out. Nobody writes it any more, but such files are about.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

from . import Malformed
from .files import (
    Json,
    bound,
    entries,
    entry,
    flag,
    items,
    open_file,
    parse_json,
    read_bytes,
    real,
    show,
    table,
    text,
    whole,
)
from .files import wholes as read_wholes

INPUT = "input"
ASSUMPTION = "elementary functions err by at most 8 units in the last place"
# The claim of every certificate of version 1. Another sentence would be a claim that nobody checks.
CLAIM = (
    "For every image listed and every input within its radius (L2) of it, this network, run in the arithmetic stated "
    "with sums in any order, predicts the class stated. A radius of 0 claims nothing."
)
UNIT_ROUNDOFF = {"float64": Fraction(1, 2**53), "float32": Fraction(1, 2**24)}
SMALLEST_NORMAL = {"float64": Fraction(1, 2**1022), "float32": Fraction(1, 2**126)}
LARGEST_FINITE = {"float64": 2**1024 - 2**971, "float32": 2**128 - 2**104}
LARGEST_SETTING = 1 << 20  # far beyond any network, and small enough for positions to be computed with

_BYTES = 1 << 28  # of a certificate of version 1, or of one line
_NODES = 4096
_HEADER = (
    *("format", "version", "isoconv", "arithmetic", "norm", "input_shape", "input_range", "classes", "weights_sha256"),
    *("assumptions", "nodes", "output", "lipschitz", "pair_constants", "error_offset", "error_slope", "images"),
)
_NODE = ("name", "kind", "module", "inputs", "settings", "lipschitz")
_IMAGE = ("index", "label", "prediction", "input_norm", "logits", "radius")


@dataclass(frozen=True)
class Node:
    """One module in its place. `claim` is the constant that the file gives it, `module` the prefix of its tensors."""

    name: str
    kind: str
    module: str | None
    inputs: tuple[str, ...]
    settings: Json
    claim: Fraction

    def __str__(self) -> str:
        return f"layer {self.name} ({self.kind})"

    def wholes(self, name: str, count: int, least: int = 1) -> tuple[int, ...]:
        return read_wholes(self.settings[name], f"the {name} of {self}", count, least, LARGEST_SETTING)

    def whole(self, name: str, least: int = 1) -> int:
        return whole(self.settings[name], f"the {name} of {self}", least, LARGEST_SETTING)

    def real(self, name: str) -> float:
        return real(self.settings[name], f"the {name} of {self}")

    def flag(self, name: str) -> bool:
        return flag(self.settings[name], f"the {name} of {self}")

    def pads(self, axes: int, least: int = 0) -> list[tuple[int, int]]:
        """Return the (before, after) of each axis."""
        where = f"the padding of {self}"
        pairs = items(self.settings["padding"], where, axes)
        return [(a, b) for a, b in (read_wholes(pair, where, 2, least, LARGEST_SETTING) for pair in pairs)]


@dataclass(frozen=True)
class Image:
    index: int
    prediction: int
    input_norm: Fraction
    logits: tuple[Fraction, ...]
    radius: Fraction


@dataclass(frozen=True)
class Certificate:
    """The network's part of a certificate. `images` can be gone through once."""

    arithmetic: str
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    classes: int
    weights_sha256: str
    version: int
    sentences: tuple[str, ...]  # the assumptions; of version 1, the claim
    nodes: tuple[Node, ...]
    output: str
    lipschitz: Fraction
    pair_constants: tuple[tuple[Fraction, ...], ...]
    error_offset: Fraction | float  # infinite: then no radius is claimed
    error_slope: Fraction | float
    images: Iterator[Image]


def read_certificate(path: Path) -> Certificate:
    with open_file(path) as file:
        line = file.readline(_BYTES)
        try:
            values = parse_json(line, path)
        except Malformed:
            values = {}
        if values.get("version") == 2:
            return _read_version_2(values, path, file.tell())
        return _read_version_1(parse_json(line + read_bytes(file, _BYTES, path), path))


def _read_version_2(values: Json, path: Path, position: int) -> Certificate:
    entries(values, _HEADER, "the certificate")
    text(values["isoconv"], "isoconv")  # who wrote it; nothing follows from it
    nodes = [_node(value, f"entry {n} of nodes") for n, value in enumerate(items(values["nodes"], "nodes"))]
    count = None if values["images"] is None else whole(values["images"], "images")
    images = _image_lines(path, position, count, whole(values["classes"], "classes", least=1))
    return _certificate(values, nodes, text(values["output"], "output"), images)


def _node(value: Any, where: str) -> Node:
    name, kind, module, inputs, settings, claim = entries(table(value, where), _NODE, where)
    return Node(
        name=text(name, f"the name of {where}"),
        kind=text(kind, f"the kind of {where}"),
        module=None if module is None else text(module, f"the module of {where}"),
        inputs=tuple(text(value, f"the inputs of {where}") for value in items(inputs, f"the inputs of {where}")),
        settings=table(settings, f"the settings of {where}"),
        claim=bound(claim, f"the lipschitz of {where}"),
    )


def _image_lines(path: Path, position: int, count: int | None, classes: int) -> Iterator[Image]:
    number = 0
    with open_file(path) as file:
        file.seek(position)
        while line := file.readline(_BYTES):
            where = f"line {number + 2}"
            values = parse_json(line, where)
            entries(values, _IMAGE, where)
            yield _image(values, where, classes)
            number += 1
    if count not in (None, number):
        raise Malformed(f"Expected {count} images, as the first line says. Got {number}.")


def _certificate(values: Json, nodes: list[Node], output: str, images: Iterator[Image]) -> Certificate:
    """Read what both versions have."""

    def get(key: str) -> Any:
        return entry(values, key, "the certificate")

    for key, expected in (("format", ("isoconv certificate",)), ("version", (1, 2)), ("norm", ("2",))):
        found = get(key)
        if found not in expected or isinstance(found, bool):
            raise Malformed(f"Expected {key} {' or '.join(map(repr, expected))}. Got {show(found)}.")
    sentences = get("assumptions" if get("version") == 2 else "claim")
    arithmetic = text(get("arithmetic"), "arithmetic")
    if arithmetic not in UNIT_ROUNDOFF:
        raise Malformed(f"Expected arithmetic 'float64' or 'float32'. Got {arithmetic!r:.60}.")
    if not 1 <= len(nodes) <= _NODES:
        raise Malformed(f"Expected at least one layer and at most {_NODES}, the limit. Got {len(nodes)}.")
    shape = items(get("input_shape"), "input_shape")
    low, high = (real(limit, "input_range") for limit in items(get("input_range"), "input_range", 2))
    if low > high:
        raise Malformed(f"Expected input_range to begin with its smaller number. Got {low!r}, {high!r}.")
    if not 1 <= len(shape) <= 8:
        raise Malformed(f"Expected input_shape to have at least one axis and at most 8. Got {len(shape)}.")
    classes = whole(get("classes"), "classes", least=1)
    rows = items(get("pair_constants"), "pair_constants", classes)
    return Certificate(
        arithmetic=arithmetic,
        input_shape=read_wholes(shape, "input_shape", len(shape), least=1),
        input_range=(low, high),
        classes=classes,
        weights_sha256=text(get("weights_sha256"), "weights_sha256"),
        version=int(get("version")),
        sentences=tuple(text(value, "assumptions") for value in items(sentences, "assumptions")) if get("version") == 2
        else (text(sentences, "claim"),),
        nodes=tuple(nodes),
        output=output,
        lipschitz=bound(get("lipschitz"), "lipschitz"),
        pair_constants=tuple(
            tuple(bound(value, f"row {i} of pair_constants") for value in items(row, f"row {i} of pair_constants", classes))
            for i, row in enumerate(rows)
        ),
        error_offset=_error(get("error_offset"), "error_offset"),
        error_slope=_error(get("error_slope"), "error_slope"),
        images=images,
    )  # fmt: skip


def _error(value: Any, where: str) -> Fraction | float:
    return inf if value == "inf" else bound(value, where)


def _image(values: Json, where: str, classes: int) -> Image:
    def get(key: str) -> Any:
        return entry(values, key, where)

    if get("label") is not None:  # nothing is claimed about it
        whole(get("label"), f"the label of {where}", most=classes - 1)
    logits = items(get("logits"), f"the logits of {where}", classes)
    return Image(
        index=whole(get("index"), f"the index of {where}", most=10**400),
        prediction=whole(get("prediction"), f"the prediction of {where}", most=classes - 1),
        input_norm=bound(get("input_norm"), f"the input_norm of {where}"),
        logits=tuple(Fraction(real(logit, f"the logits of {where}")) for logit in logits),
        radius=bound(get("radius"), f"the radius of {where}"),
    )


# Version 1 -----------------------------------------------------------------------------------------------------------


def _read_version_1(values: Json) -> Certificate:
    nodes: list[Node] = []
    for number, value in enumerate(items(entry(values, "layers", "the certificate"), "layers")):
        where = f"entry {number} of layers"
        layer = {key: entry(table(value, where), key, where) for key in ("name", "kind", "settings", "lipschitz")}
        # A name says whose the tensors are and nothing else: names need not count up, and the model's order is in no file.
        nodes.append(_node(layer | {"module": layer["name"], "inputs": [nodes[-1].name if nodes else INPUT]}, where))
    classes = whole(entry(values, "classes", "the certificate"), "classes", least=1)
    places = [
        (value, f"entry {n} of images")
        for n, value in enumerate(items(entry(values, "images", "the certificate"), "images"))
    ]
    images = [_image(table(value, where), where, classes) for value, where in places]
    return _certificate(values, nodes, nodes[-1].name if nodes else INPUT, iter(images))


def upgrade(node: Node) -> Node:
    """Return a node of version 1 with the settings that version 2 would give it."""
    family = node.kind[:-2] if node.kind[-2:] in ("1d", "2d") else node.kind
    if family not in _VERSION_1:
        raise Malformed(f"Expected a kind of layer that version 1 has. Got {node.kind!r:.60} (layer {node.name:.60}).")
    names, added = _VERSION_1[family]
    entries(node.settings, names, f"the settings of {node}")
    settings = node.settings | added
    padding = settings.get("padding")
    if isinstance(padding, list) and family == "Conv":
        settings["padding"] = [[number, number] for number in padding]
    if isinstance(padding, list) and family in ("ZeroPad", "CircularPad"):  # torch's order: the last axis comes first
        settings["padding"] = [padding[n : n + 2] for n in range(0, len(padding), 2)][::-1]
    for name in ("downscale_factor", "upscale_factor"):
        if name in settings:
            settings["factor"] = settings.pop(name)
    return replace(node, settings=settings)


_POOL = ("kernel_size", "stride", "padding")
_VERSION_1: dict[str, tuple[tuple[str, ...], Json]] = {
    "Conv": (("stride", "padding", "dilation", "groups", "padding_mode"), {}),
    "Linear": ((), {}),
    "CircularPad": (("padding",), {}),
    "ZeroPad": (("padding",), {}),
    "MaxPool": ((*_POOL, "dilation"), {"ceil_mode": False}),
    "AvgPool": (_POOL, {"ceil_mode": False, "count_include_pad": True, "divisor_override": None}),
    "MaxMin": ((), {}),
    "GroupSort": (("group_size",), {}),
    "ReLU": ((), {}),
    "Abs": ((), {}),
    "Scale": (("factor",), {}),
    "Flatten": (("start_dim", "end_dim"), {}),
    "PixelUnshuffle": (("downscale_factor",), {}),
    "PixelShuffle": (("upscale_factor",), {}),
    "Identity": ((), {}),
    "Dropout": ((), {}),
}
