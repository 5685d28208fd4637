"""A certificate as a file: everything that a program that shares no code with this one needs to check it.

JSON lines. The first line says what is proved of the network: its nodes with their inputs and bounds, the constants of
pairs of classes, the error of its logits. Each further line is one image, written as soon as it is certified. All numbers
that enter a proof are hexadecimal floats, so that none is rounded. To check one: `python -m isoconv.check FILE MODEL`.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from isoconv import __version__
from isoconv.certify.certifier import Certified, Certifier
from isoconv.errors import require
from isoconv.files import replace_file

VERSION = 2


def write_certificate(
    path: Path | str, certifier: Certifier, certificates: Certified, labels: Tensor | None = None
) -> None:
    """Write what `certifier` has proved of the images behind `certificates`, to a whole file or none.

    `certifier = Certifier(model, input_shape)`, and `certificates = certifier(images)`.
    """
    taken = isinstance(certifier, Certifier) and isinstance(certificates, Certified)
    got = f"{type(certifier).__name__} and {type(certificates).__name__}"
    require(taken, "a Certifier, and what it returned for images", got)
    with open_certificate(path, certifier, images=len(certificates.radius)) as file:
        file.add(certificates, labels)


@contextmanager
def open_certificate(path: Path | str, certifier: Certifier, images: int | None = None) -> Iterator["CertificateFile"]:
    """Open a certificate file to which batches are added as they are certified; `images` is their number, if known.

    The file appears when the block ends without an error. An earlier certificate is replaced; anything else is left alone.
    """
    if Path(path).is_file():
        with Path(path).open("rb") as earlier:
            ours = b"isoconv certificate" in earlier.read(4096)
        require(ours, "a new file, or a certificate to replace", f"{path}, which is something else")
    header = _header(certifier, images)
    with replace_file(Path(path)) as file:
        writer = CertificateFile(file, certifier)
        writer.write_line(header, "a network whose numbers may overflow")
        yield writer
        require(images in (None, writer.count), f"certificates of {images} images", writer.count)


@dataclass
class CertificateFile:
    """A certificate that is being written: holds no more than one batch of images."""

    file: IO[bytes]
    certifier: Certifier
    count: int = 0

    def add(self, certificates: Certified, labels: Tensor | None = None) -> None:
        """Write the lines of a batch, with its labels if they are known."""
        batch, classes = certificates.cpu(), len(self.certifier.pair_constants)
        known = [None] * len(batch.radius) if labels is None else labels.tolist()
        whole = labels is None or (labels.shape == batch.radius.shape and not labels.is_floating_point())
        labelled = whole and all(label is None or 0 <= label < classes for label in known)
        require(labelled, f"a label from 0 to {classes - 1} for each of {len(batch.radius)} images", "other labels")
        own = batch.logits.shape[1:] == (classes,)
        own = own and bool((batch.radius <= self.certifier.from_logits(batch.logits, batch.input_norm).radius).all())
        require(own, "certificates of this certifier", "radii that do not follow from its bounds")
        columns = (known, *(tensor.tolist() for tensor in vars(batch).values()))
        for label, prediction, radius, logits, norm in zip(*columns, strict=True):
            image = {"index": self.count, "label": label, "prediction": prediction, "input_norm": norm}
            self.write_line({**image, "logits": logits, "radius": radius}, f"image {self.count}")
            self.count += 1

    def write_line(self, content: dict[str, Any], subject: str) -> None:
        self.file.write(json.dumps(_hexadecimal(content, subject), default=int).encode() + b"\n")


def _header(certifier: Certifier, images: int | None) -> dict[str, Any]:
    """Return the first line, or refuse what the checker cannot be told."""
    pairs = certifier.pair_constants
    usual = certifier.p == 2 and certifier.criterion == "pairs"
    require(usual, "p = 2 and the criterion pairs, for a certificate file", "another norm or criterion")
    rough = {t.dtype for t in certifier.deployed.state_dict().values() if t.is_floating_point()}
    rough -= {torch.float32, torch.float64}
    require(not rough, "weights in float32 or float64, for which there is a checker", ", ".join(map(str, rough)))
    nodes = []
    for node, bound in zip(certifier.nodes, certifier.bounds, strict=True):
        known = node.rule.settings is not None
        require(known, "modules that the checker knows", f"{node.place}, a kind that was registered")
        fields = {"name": node.name, "kind": node.kind, "module": node.path, "inputs": list(node.inputs)}
        nodes.append({**fields, "settings": dict(node.settings), "lipschitz": bound})
    return {
        "format": "isoconv certificate",
        "version": VERSION,
        "isoconv": __version__,
        "arithmetic": certifier.arithmetic,
        "norm": "2",
        "input_shape": list(certifier.input_shape),
        "input_range": list(certifier.input_range),
        "classes": len(pairs),
        "weights_sha256": weights_sha256(certifier.deployed),
        "assumptions": sorted({node.rule.assumption for node in certifier.nodes if node.rule.assumption}),
        "nodes": nodes,
        "output": certifier.nodes[-1].name,
        "lipschitz": certifier.lipschitz.value,
        "pair_constants": pairs.tolist(),
        "error_offset": certifier.error.offset,
        "error_slope": certifier.error.slope,
        "images": images,
    }


def _hexadecimal(value: Any, subject: str) -> Any:
    """Return plain data with its floats as hexadecimal strings."""
    if isinstance(value, dict):
        return {name: _hexadecimal(item, subject) for name, item in value.items()}
    if isinstance(value, list):
        return [_hexadecimal(item, subject) for item in value]
    if isinstance(value, float):
        require(math.isfinite(value), "finite numbers in a certificate", f"{value} of {subject}")
        return value.hex()
    return value


def weights_sha256(model: nn.Module) -> str:
    """Return the hash of a plain network's weights: names, types, shapes and bytes of its state, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        octets = tensor.detach().cpu().contiguous().reshape(-1, 1).view(torch.uint8)  # a row for each number
        octets = octets.flip(1) if sys.byteorder == "big" else octets
        digest.update(f"{name}\0{kind}\0{shape}\0".encode() + octets.numpy().tobytes())
    return digest.hexdigest()
