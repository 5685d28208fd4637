"""The certificate file, read and typed. Nothing in it is believed here; only its form is checked.

Version 2 is a line of JSON for the network and one for each image. Version 1 is one JSON object. Nobody writes it any
more, but such files are about: it is translated into version 2 before it is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Annotated, Any

from . import Malformed
from . import files as read
from .exact import ARITHMETICS
from .files import Json, Reader

INPUT = "input"
ASSUMPTION = "elementary functions err by at most 8 units in the last place"
# The claim of every certificate of version 1. Another sentence would be a claim that nobody checks.
CLAIM = (
    "For every image listed and every input within its radius (L2) of it, this network, run in the arithmetic stated "
    "with sums in any order, predicts the class stated. A radius of 0 claims nothing."
)
_BYTES = 1 << 28  # of a certificate of version 1, or of one line
_NODES = 4096
AXES = 60  # of an array; numpy has 64


@dataclass(frozen=True)
class Node:
    """One module in its place. `lipschitz` is its claimed constant, `module` the prefix of its tensors."""

    name: Annotated[str, read.text]
    kind: Annotated[str, read.text]
    module: Annotated[str | None, read.optional(read.text)]
    inputs: Annotated[tuple[str, ...], read.each(read.text)]
    settings: Annotated[Json, read.table]
    lipschitz: Annotated[Fraction, read.bound]

    def __str__(self) -> str:
        return f"layer {self.name} ({self.kind})"


def _error(value: Any, where: str) -> Fraction | float:
    return inf if value == "inf" else read.bound(value, where)


@dataclass(frozen=True)
class Certificate:
    """The network's part of a certificate. The error may be infinite: then no radius is claimed."""

    format: Annotated[str, read.choice("isoconv certificate")]
    version: Annotated[int, read.choice(2)]
    isoconv: Annotated[str, read.text]  # who wrote it; nothing follows from it
    arithmetic: Annotated[str, read.choice(*ARITHMETICS)]
    norm: Annotated[str, read.choice("2")]
    input_shape: Annotated[tuple[int, ...], read.each(read.whole(1), 1, AXES)]
    input_range: Annotated[tuple[float, float], read.each(read.real, 2)]
    classes: Annotated[int, read.whole(1)]
    weights_sha256: Annotated[str, read.text]
    assumptions: Annotated[tuple[str, ...], read.each(read.text)]
    nodes: Annotated[tuple[Node, ...], read.each(read.record(Node), 1, _NODES)]
    output: Annotated[str, read.text]
    lipschitz: Annotated[Fraction, read.bound]
    pair_constants: Annotated[tuple[tuple[Fraction, ...], ...], read.each(read.each(read.bound))]
    error_offset: Annotated[Fraction | float, _error]
    error_slope: Annotated[Fraction | float, _error]
    images: Annotated[int | None, read.optional(read.whole())]

    def __post_init__(self) -> None:
        low, high = self.input_range
        read.require(low <= high, "input_range", "the smallest number and the largest", [low, high])
        sizes = {len(row) for row in self.pair_constants} | {len(self.pair_constants)}
        read.require(sizes == {self.classes}, "pair_constants", f"{self.classes} rows of {self.classes}", sorted(sizes))


@dataclass(frozen=True)
class Image:
    index: Annotated[int, read.whole(most=10**400)]
    label: Annotated[int | None, read.optional(read.whole())]  # nothing is claimed about it
    prediction: Annotated[int, read.whole()]
    input_norm: Annotated[Fraction, read.bound]
    logits: Annotated[tuple[float, ...], read.each(read.real)]
    radius: Annotated[Fraction, read.bound]


def read_certificate(path: Path) -> tuple[Certificate, Iterator[Image]]:
    """Return the certificate and its images, which can be gone through once."""
    with read.open_file(path) as file:
        line = file.readline(_BYTES)
        try:
            values = read.parse_json(line, path)
        except Malformed:
            values = {}
        if values.get("version") == 2:
            certificate = read.record(Certificate)(values, "the certificate")
            return certificate, _read_lines(path, file.tell(), certificate)
        values = _translate(read.parse_json(line + read.read_bytes(file, _BYTES, path), path))
    listed = values.pop("images")
    certificate = read.record(Certificate)(values | {"images": len(listed)}, "the certificate")
    images = [_read_image(image, f"entry {n} of images", certificate) for n, image in enumerate(listed)]
    return certificate, iter(images)


def _read_lines(path: Path, position: int, certificate: Certificate) -> Iterator[Image]:
    number = 0
    with read.open_file(path) as file:
        file.seek(position)
        while line := file.readline(_BYTES):
            number += 1
            yield _read_image(read.parse_json(line, f"line {number + 1}"), f"line {number + 1}", certificate)
    if certificate.images not in (None, number):
        raise Malformed(f"Expected {certificate.images} images, as the first line says. Got {number}.")


def _read_image(value: Any, where: str, certificate: Certificate) -> Image:
    image, classes = _IMAGE(value, where), certificate.classes
    for name, number in (("prediction", image.prediction), ("label", image.label or 0)):
        read.require(number < classes, f"the {name} of {where}", f"from 0 to {classes - 1}", number)
    read.require(len(image.logits) == classes, f"the logits of {where}", f"a list of {classes}", image.logits)
    return image


_IMAGE = read.record(Image)


# Version 1 -----------------------------------------------------------------------------------------------------------


def _translate(values: Json) -> Json:
    """Return a certificate of version 1 in version 2, with its list of images; what it says besides is ignored."""
    old = read.read_entries(values, "the certificate", _OLD)
    nodes, before = [], INPUT
    for number, layer in enumerate(old.pop("layers")):
        node = read.read_entries(layer, f"entry {number} of layers", _LAYER)
        # A name says whose the tensors are and nothing else: names need not count up.
        nodes.append(_translate_settings(node) | {"module": node["name"], "inputs": [before]})
        before = node["name"]
    claim = old.pop("claim")
    new = {"version": 2, "isoconv": "", "assumptions": [claim] * (claim != CLAIM), "nodes": nodes, "output": before}
    images = [read.read_entries(image, f"entry {n} of images", _IMAGE_1) for n, image in enumerate(old["images"])]
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


_LIST: Reader[Any] = read.each(read.anything)
_NEW = ("isoconv", "assumptions", "nodes", "output")
_OLD: dict[str, Reader[Any]] = {name: read.anything for name in Certificate.__annotations__ if name not in _NEW}
_OLD |= {"version": read.choice(1, 2), "claim": read.text, "layers": _LIST, "images": _LIST}
_LAYER: dict[str, Reader[Any]] = {
    "name": read.text,
    "kind": read.text,
    "settings": read.table,
    "lipschitz": read.anything,
}
_IMAGE_1: dict[str, Reader[Any]] = dict.fromkeys(Image.__annotations__, read.anything)
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
