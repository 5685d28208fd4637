"""The networks of the paper: the classifiers Small, Large and FC-3 (its appendix E), and the critic. A few lines each."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from isoconv.errors import IsoconvError
from isoconv.models.layers import LayerMaker


class Classifier(nn.Sequential):
    """Convolutions (channels, kernel size, stride), hidden linear layers (features), and one to the classes.

    conv : a name of `isoconv.nn.METHODS`; "standard" is unconstrained, with ordinary linear layers
    activation : a name of `isoconv.nn.methods.ACTIVATIONS`
    orthogonalisation : "manifold" (fast) or "bjorck" (the paper's own), see `isoconv.nn.built_weight`
    """

    convolutions: ClassVar[Sequence[tuple[int, int, int]]] = ()
    hidden: ClassVar[Sequence[int]] = ()

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        if not isinstance(classes, int) or classes < 1:
            raise IsoconvError(f"Expected at least one class. Got {classes!r}.")
        make = LayerMaker(input_shape, conv, activation, orthogonalisation)
        layers: list[nn.Module] = []
        for channels, kernel_size, stride in self.convolutions:
            layers += [make.convolution(channels, kernel_size, stride), make.activation()]
        super().__init__(*layers, *make.head(self.hidden, classes))


class Small(Classifier):
    """Two convolutions (k4 s2 → 16, k4 s2 → 32) and two linear layers (100, classes). Arguments as for `Classifier`."""

    convolutions = ((16, 4, 2), (32, 4, 2))
    hidden = (100,)


class Large(Classifier):
    """Four convolutions (k3 → 32, k4 s2 → 32, k3 → 64, k4 s2 → 64) and three linear layers (512, 512, classes)."""

    convolutions = ((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2))
    hidden = (512, 512)


class FC3(Classifier):
    """Fully connected, three hidden layers of 1,024. Of `conv` only "standard" or not matters: it has no convolutions."""

    hidden = (1024, 1024, 1024)


class DCGANCritic(Classifier):
    """The critic of the paper's Wasserstein experiments: k4 s2 → 64, 128, 256, 512, for images that 16 divides.

    The linear layer to one number is what the paper calls its fifth convolution: it covers the whole 4×4 image that a
    64×64 one leaves.
    """

    convolutions = tuple((channels, 4, 2) for channels in (64, 128, 256, 512))

    def __init__(
        self,
        input_shape: Sequence[int],
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        super().__init__(input_shape, 1, conv, activation, orthogonalisation)
