"""What is exported: the plain network, the hash of its weights, and what certificates say of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from isoconv.certify import weights_sha256
from isoconv.certify.graph import nodes_of, refuse_strangers
from isoconv.certify.rules import Node as Layer
from isoconv.errors import IsoconvError
from isoconv.nn import plain
from isoconv.version import __version__

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Deployed:
    """A plain network in evaluation mode, taken apart, and the arithmetic in which it will be run."""

    network: nn.Module
    layers: list[Layer]
    input_shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    sha256: str

    @property
    def claim(self) -> str:
        """Which certificates are about these weights, run in this arithmetic."""
        same = f"The weights are the network's own, bit for bit (sha256 {self.sha256}), so its certificates still apply"
        if self.dtype == "float64":
            return f"{same}: those for float64 (isoconv certify) as this file is run, in float64."
        return (
            f"{same}, but this file is run in float32, and only those for float32 (isoconv certify --arithmetic float32) "
            f"are about that, without TF32 or the like. Those for float64, the default, are about the same weights run in "
            f"float64 (isoconv export --dtype float64)."
        )

    def metadata(self) -> dict[str, str]:
        """What goes into the file beside the weights."""
        return {
            "isoconv.version": __version__,
            "isoconv.weights_sha256": self.sha256,
            "isoconv.claim": self.claim,
            "isoconv.input_shape": json.dumps(self.input_shape),
            "isoconv.input_range": json.dumps([0, 1]),
            "isoconv.classes": json.dumps(self.classes),
        }


def deploy(model: nn.Module, input_shape: Sequence[int], dtype: str, classes: Sequence[str] | None) -> Deployed:
    """Check that `model` can be exported, and take it apart."""
    if dtype not in DTYPES:
        raise IsoconvError(f"Expected dtype to be one of {', '.join(DTYPES)}. Got {dtype!r}.")
    network = plain(model).eval().requires_grad_(False).cpu()
    kinds = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in network.state_dict().items()}
    if len(set(kinds.values())) != 1 or not set(kinds.values()) <= set(DTYPES):
        found = ", ".join(dict.fromkeys(kinds.values())) or "none"
        raise IsoconvError(f"Expected weights in float32, or all in float64. Got {found}.")
    if "float64" in kinds.values() and dtype == "float32":
        raise IsoconvError("Expected dtype float64 for float64 weights. Got float32, which would round them.")
    for name, tensor in network.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise IsoconvError(f"Expected finite weights. Got infinities or NaN in {name}.")
    refuse_strangers(model)
    layers = nodes_of(network, input_shape)  # of the model itself, to refuse what `plain` would not notice
    if classes is not None and layers[-1].output_shape != (len(classes),):
        raise IsoconvError(
            f"Expected {len(classes)} logits, one per class. Got outputs of shape {tuple(layers[-1].output_shape)}."
        )
    return Deployed(network, layers, tuple(input_shape), dtype, tuple(classes or ()), weights_sha256(network))


def not_exportable(layer: Layer, reason: str = "") -> IsoconvError:
    """The error for a module that has no place in an exported file."""
    detail = f" with {reason}" if reason else ""
    return IsoconvError(f"Expected modules that can be exported. Got {layer.kind}{detail} at {layer.name}.")
