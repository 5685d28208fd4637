"""The methods: one record for each way to make a convolution, and for each activation. Does not import torch.

Everything else (choices, help texts, titles, networks) is derived from these. To add a method: its layer in a file of its
own, and a record here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

#: How layers keep their matrices orthonormal: see `isoconv.nn.built_weight.OrthogonalisedLayer`.
ORTHOGONALISATIONS = ("manifold", "bjorck")


@dataclass(frozen=True)
class Method:
    """One way to make a convolution.

    name : what users write
    title : what tables print
    layer : "module:class"; called with (in_channels, out_channels, kernel_size, stride) and the options
    summary : what its convolutions are, in a line
    on_manifold : whether its parameters stand for orthonormal matrices; then the layer takes `orthogonalisation`
    sized : whether it is made for one image size; then the layer takes `input_size`
    options : arguments that the layer always gets
    linear : the linear layers that go with it
    """

    name: str
    title: str
    layer: str
    summary: str
    on_manifold: bool = False
    sized: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    linear: str = "isoconv.nn.linear:OrthogonalLinear"

    def make(self, *shape: int, orthogonalisation: str, input_size: tuple[int, int]) -> Any:
        """Return a convolution (in_channels, out_channels, kernel_size, stride); it takes those settings that concern it."""
        options = dict(self.options)
        options |= {"orthogonalisation": orthogonalisation} if self.on_manifold else {}
        options |= {"input_size": input_size} if self.sized else {}
        return load(self.layer)(*shape, **options)

    def make_linear(self, in_features: int, out_features: int, orthogonalisation: str) -> Any:
        """Return a linear layer of a network that uses this method."""
        options = {} if self.linear.startswith("torch") else {"orthogonalisation": orthogonalisation}
        return load(self.linear)(in_features, out_features, **options)


@dataclass(frozen=True)
class Activation:
    """One activation: what users write, what tables print, "module:class", what it does in a line.

    sized : whether it is made for a number of channels
    """

    name: str
    title: str
    layer: str
    summary: str
    sized: bool = False

    def make(self, channels: int) -> Any:
        """Return the activation behind a layer with so many outputs."""
        return load(self.layer)(*[channels] * self.sized)


def load(path: str) -> Any:
    """Return the class that "module:class" names."""
    module, name = path.split(":")
    return getattr(import_module(module), name)


_BCOP, _TORCH_LINEAR = "isoconv.nn.bcop:BCOPConv2d", "torch.nn:Linear"
_OWN = "isoconv.nn.activations"
_STANDARD = "isoconv.nn.convolution:StandardConv2d"
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("bcop", "BCOP", _BCOP, "orthogonal: all their singular values are 1", on_manifold=True),
        Method("bcop-fixed", "BCOP-Fixed", _BCOP, "orthogonal, random, not trained", True, options={"frozen": True}),
        Method("rko", "RKO", "isoconv.nn.reshaped:RKOConv2d", "1-Lipschitz: orthonormal matrices, reshaped", True),
        Method("ossn", "OSSN", "isoconv.nn.ossn:OSSNConv2d", "divided by estimates of their norms", sized=True),
        Method("svcm", "SVCM", "isoconv.nn.svcm:SVCMConv2d", "projected after each update", sized=True),
        Method(
            "rkl2ne", "RK-L2NE", "isoconv.nn.reshaped:RKL2NEConv2d", "1-Lipschitz: divided by bounds of their norms"
        ),
        Method("aol", "AOL", "isoconv.nn.aol:AOLConv2d", "1-Lipschitz: input channels rescaled"),
        Method("cayley", "Cayley", "isoconv.nn.cayley:CayleyConv2d", "orthogonal, per frequency", sized=True),
        Method("soc", "SOC", "isoconv.nn.soc:SOCConv2d", "orthogonal: truncated exponentials", sized=True),
        Method("bro", "BRO", "isoconv.nn.bro:BROConv2d", "orthogonal: reflections per frequency", sized=True),
        Method("sll", "SLL", "isoconv.nn.sll:SLLConv2d", "residual, rescaled: 1-Lipschitz"),
        Method("cpl", "CPL", "isoconv.nn.cpl:CPLConv2d", "residual, divided by bounds of their norms", sized=True),
        Method("standard", "ordinary", _STANDARD, "unconstrained, for comparison", linear=_TORCH_LINEAR),
    )
}

ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("maxmin", "MaxMin", f"{_OWN}:MaxMin", "sorts pairs, which preserves gradient norms"),
        Activation(
            "householder", "Householder", f"{_OWN}:Householder", "reflects pairs, which preserves gradient norms", True
        ),
        Activation("relu", "ReLU", "torch.nn:ReLU", "sets negative values to 0, which loses gradient norm"),
    )
}
