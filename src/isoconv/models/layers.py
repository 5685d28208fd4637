"""From the name of a method to the layers of a network."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from isoconv.errors import IsoconvError
from isoconv.nn.methods import ACTIVATIONS, METHODS


class LayerMaker:
    """Makes the layers of one network: convolutions by method, linear layers that go with it, the activation.

    It follows the image size, because OSSN and SVCM must know it.
    `orthogonalisation` goes to every layer that has a choice of it.
    """

    def __init__(self, input_shape: Sequence[int], conv: str, activation: str, orthogonalisation: str) -> None:
        if conv not in METHODS:
            raise IsoconvError(f"Expected conv to be one of {', '.join(METHODS)}. Got {conv!r}.")
        if activation not in ACTIVATIONS:
            raise IsoconvError(f"Expected activation to be one of {', '.join(ACTIVATIONS)}. Got {activation!r}.")
        self.channels, self.height, self.width = checked_shape(input_shape)
        self.method, self.kind, self.orthogonalisation = METHODS[conv], ACTIVATIONS[activation], orthogonalisation

    def convolution(self, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Module:
        """Return the next convolution, for the image that the ones before leave."""
        if self.height % stride or self.width % stride:
            raise IsoconvError(
                f"Expected an image whose height and width can be halved by each strided convolution: multiples of 4 for "
                f"small and large, of 16 for dcgan. Got {self.height}×{self.width} before a convolution of stride {stride}."
            )
        shape, size = (self.channels, out_channels, kernel_size, stride), (self.height, self.width)
        layer: Any = self.method.make(*shape, orthogonalisation=self.orthogonalisation, input_size=size)
        self.channels, self.height, self.width = out_channels, self.height // stride, self.width // stride
        return layer  # type: ignore[no-any-return]

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a linear layer: orthogonal in every method's network, the last one included; ordinary in the ordinary."""
        return self.method.make_linear(in_features, out_features, self.orthogonalisation)  # type: ignore[no-any-return]

    def activation(self) -> nn.Module:
        return self.kind.make()  # type: ignore[no-any-return]

    def head(self, hidden: Sequence[int], outputs: int) -> list[nn.Module]:
        """Return the linear layers after the convolutions."""
        layers: list[nn.Module] = [nn.Flatten()]
        features = self.features
        for width in hidden:
            layers += [self.linear(features, width), self.activation()]
            features = width
        return [*layers, self.linear(features, outputs)]

    @property
    def features(self) -> int:
        """How many numbers the image holds now."""
        return self.channels * self.height * self.width


def checked_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raise if it is something else."""
    shape = tuple(input_shape)
    if len(shape) != 3 or any(not isinstance(n, int) or n < 1 for n in shape):
        raise IsoconvError(f"Expected input_shape (channels, height, width). Got {input_shape!r}.")
    return shape[0], shape[1], shape[2]
