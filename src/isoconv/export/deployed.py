"""What is exported: the plain network, the hash of its weights, and what certificates say of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from isoconv.certify import Node, weights_sha256
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.errors import IsoconvError
from isoconv.version import __version__

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Deployed:
    """A plain network in evaluation mode, taken apart, and the arithmetic in which it will be run."""

    network: nn.Module
    nodes: list[Node]
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
        """Return what goes into the file beside the weights."""
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
    network = plain_network(model).cpu()
    weights = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}
    if len(kinds) != 1 or not kinds <= set(DTYPES):
        found = ", ".join(sorted(kinds)) or "none"
        raise IsoconvError(f"Expected weights in float32, or all in float64. Got {found}.")
    if "float64" in kinds and dtype == "float32":
        raise IsoconvError("Expected dtype float64 for float64 weights. Got float32, which would round them.")
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise IsoconvError(f"Expected finite weights. Got infinities or NaN in {name}.")
    nodes = nodes_of(network, input_shape)
    for node in nodes:
        if node.rule.settings is None:
            raise not_exportable(node, "a rule that was registered")
    if classes is not None and nodes[-1].output_shape != (len(classes),):
        raise IsoconvError(
            f"Expected {len(classes)} logits, one per class. Got outputs of shape {tuple(nodes[-1].output_shape)}."
        )
    return Deployed(network, nodes, tuple(input_shape), dtype, tuple(classes or ()), weights_sha256(network))


def not_exportable(node: Node, reason: str) -> IsoconvError:
    """Return the error for a module that has no place in an exported file."""
    return IsoconvError(f"Expected modules that can be exported. Got {node.kind} with {reason} at {node.name}.")
