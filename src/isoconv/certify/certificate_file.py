"""A certificate as a file: everything that it takes to check it again, by a program that shares no code with this one.

JSON lines. The first line says what is proved of the network: its nodes with their inputs and bounds, the constants of
pairs of classes, the error of its logits. Each further line is one image, written as soon as it is certified. All numbers
that matter are hexadecimal floats, so that none is rounded on the way. To check one: `python -m isoconv.check FILE MODEL`.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import Certified, Certifier
from isoconv.certify.rules import Node
from isoconv.errors import IsoconvError
from isoconv.files import replace_file
from isoconv.version import __version__

VERSION = 2


def write_certificate(
    path: Path | str, certifier: Certifier, certificates: Certified, labels: Tensor | None = None
) -> None:
    """Write what `certifier` has proved of the images behind `certificates`. Nothing is left half-written."""
    with open_certificate(path, certifier, images=len(certificates.radius)) as file:
        file.add(certificates, labels)


@contextmanager
def open_certificate(path: Path | str, certifier: Certifier, images: int | None = None) -> Iterator["CertificateFile"]:
    """Open a certificate file to which batches are added as they are certified; `images` is their number, if known.

    The file appears, or is replaced, when the block ends without an error.
    """
    header = _header(certifier, images)
    with replace_file(Path(path)) as file:
        writer = CertificateFile(file, certifier)
        writer.write_line(header)
        yield writer
        if images not in (None, writer.count):
            raise IsoconvError(f"Expected certificates of {images} images. Got {writer.count}.")


class CertificateFile:
    """A certificate that is being written: holds no more than one batch of images."""

    def __init__(self, file: IO[bytes], certifier: Certifier) -> None:
        self._file, self._certifier = file, certifier
        self.count = 0

    def add(self, certificates: Certified, labels: Tensor | None = None) -> None:
        """Write the lines of a batch, with its labels if they are known."""
        found, certifier = certificates.cpu(), self._certifier
        known = _check_labels(labels, len(found.radius), len(certifier.pair_constants))
        if found.logits.shape[1:] != (len(certifier.pair_constants),) or not torch.equal(
            torch.minimum(certifier.from_logits(found.logits, found.input_norm).radius, found.radius), found.radius
        ):
            raise IsoconvError("Expected certificates of this certifier. Got radii that do not follow from its bounds.")
        finite = found.input_norm.isfinite() & found.logits.isfinite().all(dim=1)
        if not bool(finite.all()):
            odd = self.count + int((~finite).int().argmax())
            raise IsoconvError(f"Expected finite inputs and logits in a certificate. Got others for image {odd}.")
        columns = (found.prediction, found.input_norm, found.logits, found.radius)
        for label, prediction, norm, logits, radius in zip(known, *(c.tolist() for c in columns), strict=True):
            image = {"index": self.count, "label": label, "prediction": prediction}
            self.write_line({**image, **_hexadecimal({"input_norm": norm, "logits": logits, "radius": radius})})
            self.count += 1

    def write_line(self, content: dict[str, Any]) -> None:
        self._file.write(json.dumps(content).encode() + b"\n")


def _header(certifier: Certifier, images: int | None) -> dict[str, Any]:
    """Return the first line, or refuse what the checker cannot be told."""
    if certifier.p != 2 or certifier.criterion != "pairs":
        raise IsoconvError("Expected a certificate for p = 2 with a constant per pair of classes. Others have no file.")
    tensors = certifier.deployed.state_dict().values()
    if rough := {t.dtype for t in tensors if t.is_floating_point()} - {torch.float32, torch.float64}:
        raise IsoconvError(f"Expected weights in float32 or float64, for which there is a checker. Got {rough.pop()}.")
    claims = {
        "lipschitz": certifier.lipschitz.value,
        "pair_constants": certifier.pair_constants.tolist(),
        "error_offset": certifier.error.offset,
        "error_slope": certifier.error.slope,
    }
    finite = certifier.pair_constants.isfinite().all()
    if not finite or not all(
        map(math.isfinite, (certifier.lipschitz.value, certifier.error.offset, *certifier.bounds))
    ):
        raise IsoconvError("Expected finite bounds for a certificate. Got a network whose numbers may overflow.")
    nodes = [_describe(node, bound) for node, bound in zip(certifier.nodes, certifier.bounds, strict=True)]
    return {
        "format": "isoconv certificate",
        "version": VERSION,
        "isoconv": __version__,
        "arithmetic": certifier.arithmetic,
        "norm": "2",
        "input_shape": list(certifier.input_shape),
        "input_range": _hexadecimal(list(certifier.input_range)),
        "classes": len(certifier.pair_constants),
        "weights_sha256": weights_sha256(certifier.deployed),
        "assumptions": sorted({node.rule.assumption for node in certifier.nodes if node.rule.assumption}),
        "nodes": nodes,
        "output": certifier.nodes[-1].name,
        **_hexadecimal(claims),
        "images": images,
    }


def _describe(node: Node, bound: float) -> dict[str, Any]:
    if node.rule.settings is None:
        raise IsoconvError(f"Expected modules that the checker knows. Got {node.place}, a kind that was registered.")
    return {
        "name": node.name,
        "kind": node.kind,
        "module": node.path,
        "inputs": list(node.inputs),
        "settings": _hexadecimal(dict(node.settings)),
        "lipschitz": bound.hex(),
    }


def _hexadecimal(value: Any) -> Any:
    """Return plain data with its floats as hexadecimal strings."""
    if isinstance(value, dict):
        return {name: _hexadecimal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hexadecimal(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def _check_labels(labels: Tensor | None, images: int, classes: int) -> list[int | None]:
    if labels is None:
        return [None] * images
    if labels.shape != (images,) or labels.is_floating_point() or not all(0 <= n < classes for n in labels.tolist()):
        raise IsoconvError(f"Expected a label from 0 to {classes - 1} for each of {images} images. Got others.")
    return list(labels.tolist())


def weights_sha256(model: nn.Module) -> str:
    """Return the hash of a plain network's weights: names, types, shapes and bytes of its state, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        digest.update(name.encode() + b"\0" + kind.encode() + b"\0" + shape.encode() + b"\0")
        digest.update(_little_endian(tensor))
    return digest.hexdigest()


def _little_endian(tensor: Tensor) -> bytes:
    octets = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    swapped = octets.reshape(-1, tensor.element_size())[:, ::-1] if sys.byteorder == "big" else octets
    return bytes(swapped.tobytes())
