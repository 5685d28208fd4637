"""The critic of the paper's Wasserstein experiments."""

from collections.abc import Sequence

from torch import nn

from isoconv.models.layers import LayerMaker


class DCGANCritic(nn.Sequential):
    """Four convolutions (k4 s2 → 64, 128, 256, 512) and a linear layer to one number, for images that 16 divides.

    The linear layer is what the paper calls its fifth convolution: it covers the whole 4×4 image that a 64×64 one
    leaves. Arguments as for `Small`.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        make = LayerMaker(input_shape, conv, activation, orthogonalisation)
        layers: list[nn.Module] = []
        for channels in (64, 128, 256, 512):
            layers += [make.convolution(channels, 4, stride=2), make.activation()]
        super().__init__(*layers, nn.Flatten(), make.linear(make.features, 1))
