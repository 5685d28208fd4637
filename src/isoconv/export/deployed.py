"""What is exported: the plain network, the hash of its weights, and what certificates say of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from isoconv import __version__
from isoconv.certify import Node, weights_sha256
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.errors import require

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
        """Say which certificates are about these weights, run in this arithmetic."""
        same = f"The weights are the network's own, bit for bit (sha256 {self.sha256}). This file runs in {self.dtype}."
        if self.dtype == "float64":
            return f"{same} Certificates for float64, the default of isoconv certify, apply to it."
        return (
            f"{same} Certificates made with isoconv certify --arithmetic float32 apply to it, without TF32 or the like; the "
            f"default ones, for float64, do not. For those: isoconv export --dtype float64."
        )

    def metadata(self) -> dict[str, str]:
        """Return what goes into the file beside the weights."""
        texts = {"version": __version__, "weights_sha256": self.sha256, "claim": self.claim}
        data = {"input_shape": self.input_shape, "input_range": [0, 1], "classes": self.classes}
        texts |= {name: json.dumps(value) for name, value in data.items()}
        return {f"isoconv.{name}": text for name, text in texts.items()}


def deploy(model: nn.Module, input_shape: Sequence[int], dtype: str, classes: Sequence[str] | None) -> Deployed:
    """Check that `model` can be exported, and take it apart."""
    require(dtype in DTYPES, f"dtype to be one of {', '.join(DTYPES)}", repr(dtype))
    network = plain_network(model, input_shape).cpu()
    weights = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()})
    require(dtypes in (["float32"], ["float64"]), "weights in float32, or all in float64", ", ".join(dtypes) or "none")
    require(dtype in ("float64", *dtypes), "dtype float64 for float64 weights", "float32, which would round them")
    odd = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    require(not odd, "finite weights", f"infinities or NaN in {', '.join(odd)}")
    nodes = nodes_of(network, input_shape)
    for node in nodes:
        require(node.rule.settings is not None, "modules that can be exported", f"{node.place}, a registered kind")
    output = nodes[-1].output_shape
    named = classes is None or output == (len(classes),)
    require(named, f"{len(classes or ())} logits, one per class", f"outputs of shape {tuple(output)}")
    return Deployed(network, nodes, tuple(input_shape), dtype, tuple(classes or ()), weights_sha256(network))
