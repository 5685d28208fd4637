"""From the name of a method to its layers."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from isoconv.errors import IsoconvError
from isoconv.nn import (
    BCOPConv2d,
    MaxMin,
    OrthogonalLinear,
    OSSNConv2d,
    RKL2NEConv2d,
    RKOConv2d,
    StandardConv2d,
    SVCMConv2d,
)

CONVOLUTIONS = ("bcop", "bcop-fixed", "rko", "ossn", "svcm", "rkl2ne", "standard")
ACTIVATIONS = ("maxmin", "relu")


class LayerMaker:
    """Makes the layers of one network: convolutions by method, linear layers that go with it, the activation.

    It follows the image size, because OSSN and SVCM must know it.
    `orthogonalisation` goes to every layer that has a choice of it.
    """

    def __init__(self, input_shape: Sequence[int], conv: str, activation: str, orthogonalisation: str) -> None:
        if conv not in CONVOLUTIONS:
            raise IsoconvError(f"Expected conv to be one of {', '.join(CONVOLUTIONS)}. Got {conv!r}.")
        if activation not in ACTIVATIONS:
            raise IsoconvError(f"Expected activation to be one of {', '.join(ACTIVATIONS)}. Got {activation!r}.")
        self.channels, self.height, self.width = checked_shape(input_shape)
        self.conv, self.kind = conv, activation
        self.orthogonalisation = orthogonalisation

    def convolution(self, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Module:
        """The next convolution, for the image that the ones before leave."""
        if self.height % stride or self.width % stride:
            raise IsoconvError(
                f"Expected an image whose height and width can be halved by each strided convolution: multiples of 4 for "
                f"small and large, of 16 for dcgan. Got {self.height}×{self.width} before a convolution of stride {stride}."
            )
        shape = (self.channels, out_channels, kernel_size, stride)
        size = (self.height, self.width)
        self.channels, self.height, self.width = out_channels, self.height // stride, self.width // stride
        orthogonal: dict[str, Any] = {"orthogonalisation": self.orthogonalisation}
        match self.conv:
            case "bcop" | "bcop-fixed":
                return BCOPConv2d(*shape, frozen=self.conv == "bcop-fixed", **orthogonal)
            case "rko":
                return RKOConv2d(*shape, **orthogonal)
            case "ossn":
                return OSSNConv2d(*shape, input_size=size)
            case "svcm":
                return SVCMConv2d(*shape, input_size=size)
            case "rkl2ne":
                return RKL2NEConv2d(*shape)
        return StandardConv2d(*shape)

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Orthogonal in every method's network, the last layer included; ordinary in the unconstrained one."""
        if self.conv == "standard":
            return nn.Linear(in_features, out_features)
        return OrthogonalLinear(in_features, out_features, orthogonalisation=self.orthogonalisation)

    def activation(self) -> nn.Module:
        return MaxMin() if self.kind == "maxmin" else nn.ReLU()

    @property
    def features(self) -> int:
        """How many numbers the image holds now."""
        return self.channels * self.height * self.width


def checked_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width), or an error that says so."""
    shape = tuple(input_shape)
    if len(shape) != 3 or any(not isinstance(n, int) or n < 1 for n in shape):
        raise IsoconvError(f"Expected input_shape (channels, height, width). Got {input_shape!r}.")
    return shape[0], shape[1], shape[2]
