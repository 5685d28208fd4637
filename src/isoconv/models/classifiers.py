"""The classifiers of the paper: Small, Large, FC-3 (its appendix E)."""

from collections.abc import Sequence

from torch import nn

from isoconv.errors import IsoconvError
from isoconv.models.layers import LayerMaker


class Small(nn.Sequential):
    """Two convolutions (k4 s2 → 16, k4 s2 → 32) and two linear layers (100, classes).

    conv : bcop, bcop-fixed, rko, ossn, svcm, rkl2ne or standard (unconstrained, with ordinary linear layers)
    activation : maxmin or relu
    orthogonalisation : "manifold" (fast) or "bjorck" (the paper's own), see `isoconv.nn.orthogonalised`
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        make = LayerMaker(input_shape, conv, activation, orthogonalisation)
        super().__init__(
            make.convolution(16, 4, stride=2),
            make.activation(),
            make.convolution(32, 4, stride=2),
            make.activation(),
            *_head(make, [100], classes),
        )


class Large(nn.Sequential):
    """Four convolutions (k3 → 32, k4 s2 → 32, k3 → 64, k4 s2 → 64) and three linear layers (512, 512, classes).

    Arguments as for `Small`.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        make = LayerMaker(input_shape, conv, activation, orthogonalisation)
        super().__init__(
            make.convolution(32, 3),
            make.activation(),
            make.convolution(32, 4, stride=2),
            make.activation(),
            make.convolution(64, 3),
            make.activation(),
            make.convolution(64, 4, stride=2),
            make.activation(),
            *_head(make, [512, 512], classes),
        )


class FC3(nn.Sequential):
    """Fully connected, three hidden layers of 1,024. Of `conv` only "standard" or not matters: it has no convolutions."""

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        make = LayerMaker(input_shape, conv, activation, orthogonalisation)
        super().__init__(*_head(make, [1024, 1024, 1024], classes))


def _head(make: LayerMaker, hidden: list[int], classes: int) -> list[nn.Module]:
    """The linear layers after the convolutions."""
    if not isinstance(classes, int) or classes < 1:
        raise IsoconvError(f"Expected at least one class. Got {classes!r}.")
    layers: list[nn.Module] = [nn.Flatten()]
    features = make.features
    for width in hidden:
        layers += [make.linear(features, width), make.activation()]
        features = width
    return [*layers, make.linear(features, classes)]
