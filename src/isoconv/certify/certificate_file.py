"""A certificate as a file: everything that it takes to check it again, by a program that shares no code with this one.

All numbers that matter are hexadecimal floats, so that none is rounded on the way. To check one:
`python -m isoconv.check FILE MODEL`.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import Certified, Certifier
from isoconv.certify.convolutions import pads_of
from isoconv.certify.layers import Layer
from isoconv.errors import IsoconvError
from isoconv.files import write_text
from isoconv.nn import Abs, GroupSort, MaxMin, Scale

_CLAIM = (
    "For every image listed and every input within its radius (L2) of it, this network, run in the arithmetic stated "
    "with sums in any order, predicts the class stated. A radius of 0 claims nothing."
)


def write_certificate(
    path: Path | str, certifier: Certifier, certificates: Certified, labels: Tensor | None = None
) -> None:
    """Write what `certifier` has proved of the images behind `certificates`. Nothing is left half-written."""
    if certifier.p != 2 or certifier.criterion != "pairs":
        raise IsoconvError("Expected a certificate for p = 2 with a constant per pair of classes. Others have no file.")
    if not isinstance(certifier.deployed, nn.Sequential):
        kind = type(certifier.deployed).__name__
        raise IsoconvError(f"Expected a network whose layers have names. Got one {kind}: put it into an nn.Sequential.")
    rough = {p.dtype for p in certifier.deployed.parameters()} - {torch.float32, torch.float64}
    if rough:
        raise IsoconvError(f"Expected weights in float32 or float64, for which there is a checker. Got {rough.pop()}.")
    found = certificates.cpu()
    known = _checked_labels(labels, len(found.radius), len(certifier.pair_constants))
    if found.logits.shape[1:] != (len(certifier.pair_constants),) or not torch.equal(
        torch.minimum(certifier.from_logits(found.logits, found.input_norm).radius, found.radius), found.radius
    ):
        raise IsoconvError(
            "Expected certificates that this certifier made. Got radii that do not follow from its bounds."
        )
    images = [
        {
            "index": index,
            "label": label,
            "prediction": prediction,
            "input_norm": norm.hex(),
            "logits": [logit.hex() for logit in logits],
            "radius": radius.hex(),
        }
        for index, (label, prediction, norm, logits, radius) in enumerate(
            zip(
                known,
                found.prediction.tolist(),
                found.input_norm.tolist(),
                found.logits.tolist(),
                found.radius.tolist(),
                strict=True,
            )
        )
    ]
    unreadable = [image["index"] for image in images if "n" in image["input_norm"] + "".join(image["logits"])]
    if unreadable:
        raise IsoconvError(f"Expected finite inputs and logits in a certificate. Got others for image {unreadable[0]}.")
    layers = [
        {"name": layer.name, "kind": layer.kind, "settings": _settings(layer), "lipschitz": bound.hex()}
        for layer, bound in zip(certifier.layers, certifier.bounds, strict=True)
    ]
    content = {
        "format": "isoconv certificate",
        "version": 1,
        "claim": _CLAIM,
        "arithmetic": certifier.arithmetic,
        "norm": "2",
        "input_shape": list(certifier.input_shape),
        "input_range": [bound.hex() for bound in certifier.input_range],
        "classes": len(certifier.pair_constants),
        "weights_sha256": weights_sha256(certifier.deployed),
        "layers": layers,
        "lipschitz": certifier.lipschitz.value.hex(),
        "pair_constants": [[constant.hex() for constant in row] for row in certifier.pair_constants.tolist()],
        "error_offset": certifier.error.offset.hex(),
        "error_slope": certifier.error.slope.hex(),
        "images": images,
    }
    write_text(Path(path), json.dumps(content, indent=1) + "\n")


def _checked_labels(labels: Tensor | None, images: int, classes: int) -> list[int | None]:
    if labels is None:
        return [None] * images
    if labels.shape != (images,) or labels.is_floating_point() or not all(0 <= n < classes for n in labels.tolist()):
        raise IsoconvError(f"Expected a label from 0 to {classes - 1} for each of {images} images. Got others.")
    return list(labels.tolist())


def weights_sha256(model: nn.Module) -> str:
    """The hash of a plain network's weights: names, types, shapes and bytes of its state, sorted by name."""
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


def _settings(layer: Layer) -> dict[str, Any]:
    """A module's constructor arguments, as far as they matter to what it computes."""
    module = layer.module
    unusual = [name for name in ("ceil_mode", "divisor_override", "return_indices") if getattr(module, name, None)]
    if isinstance(module, (nn.Conv1d, nn.Conv2d)) and pads_of(module) != [(p, p) for p in module.padding]:
        unusual.append("padding")
    for kind, names in _SETTINGS.items():
        if type(module) is kind and not unusual:
            dimensions = len(layer.input_shape) - 1
            return {name: _plain_value(name, getattr(module, name), dimensions) for name in names}
    raise IsoconvError(
        f"Expected modules that a certificate's checker knows. Got {layer.kind} at {layer.name}: "
        f"its certificate cannot be written to a file."
    )


def _plain_value(name: str, value: Any, dimensions: int) -> Any:
    if name == "factor":
        return float(value).hex()
    if name in ("kernel_size", "stride", "dilation") or (name == "padding" and isinstance(value, int)):
        return [value] * dimensions if isinstance(value, int) else list(value)
    return list(value) if isinstance(value, tuple) else value


_CONVOLUTION = ("stride", "padding", "dilation", "groups", "padding_mode")
_POOL = ("kernel_size", "stride", "padding")
_SETTINGS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Linear: (),
    nn.CircularPad1d: ("padding",),
    nn.CircularPad2d: ("padding",),
    nn.ZeroPad1d: ("padding",),
    nn.ZeroPad2d: ("padding",),
    MaxMin: (),
    GroupSort: ("group_size",),
    nn.ReLU: (),
    Abs: (),
    Scale: ("factor",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.PixelUnshuffle: ("downscale_factor",),
    nn.PixelShuffle: ("upscale_factor",),
    nn.Identity: (),
    nn.Dropout: (),
    nn.MaxPool1d: (*_POOL, "dilation"),
    nn.MaxPool2d: (*_POOL, "dilation"),
    nn.AvgPool1d: _POOL,
    nn.AvgPool2d: _POOL,
}
