"""Everything that a network must refuse, and with which words."""

import pytest
import torch

from isoconv import IsoconvError
from isoconv.models import FC3, DCGANCritic, Large, Small

ALL = [Small, Large, FC3, DCGANCritic]
CLASSIFIERS = [Small, Large, FC3]


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("conv", ["BCOP", "conv", "", None])
def test_unknown_convolutions(model, conv):
    with pytest.raises(IsoconvError, match=rf"conv to be one of bcop, bcop-fixed, rko, .*standard\. Got {conv!r}"):
        model((1, 16, 16), conv=conv)


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("activation", ["tanh", "MaxMin", None])
def test_unknown_activations(model, activation):
    with pytest.raises(IsoconvError, match=rf"activation to be one of maxmin, relu\. Got {activation!r}"):
        model((1, 16, 16), activation=activation)


@pytest.mark.parametrize("model", ALL)
def test_unknown_orthogonalisations(model):
    with pytest.raises(IsoconvError, match=r"orthogonalisation to be one of .*manifold.*bjorck.* Got 'qr'"):
        model((1, 16, 16), orthogonalisation="qr")


@pytest.mark.parametrize(
    ("model", "shape", "got"),
    [
        (Small, (1, 30, 28), "15×14"),
        (Small, (1, 28, 27), "28×27"),
        (Small, (3, 7, 7), "7×7"),
        (Large, (1, 32, 34), "16×17"),
        (Large, (1, 1, 1), "1×1"),
        (DCGANCritic, (3, 40, 64), "5×8"),
        (DCGANCritic, (3, 28, 28), "7×7"),
    ],
)
@pytest.mark.parametrize("conv", ["bcop", "ossn", "standard"])
def test_image_sizes_that_cannot_be_halved(model, shape, got, conv):
    with pytest.raises(IsoconvError, match=f"halved by each strided convolution: multiples of 4 .*Got {got}"):
        model(shape, conv=conv)


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize(
    "shape", [(16, 16), (1, 16), (1, 1, 16, 16), (), (0, 16, 16), (1, 0, 16), (1, -16, 16), (1, 16.0, 16)]
)
def test_input_shapes(model, shape):
    with pytest.raises(IsoconvError, match=r"Expected input_shape \(channels, height, width\)\. Got "):
        model(shape)


@pytest.mark.parametrize("model", CLASSIFIERS)
@pytest.mark.parametrize("classes", [0, -1, 2.5])
def test_numbers_of_classes(model, classes):
    with pytest.raises(IsoconvError, match=f"Expected at least one class. Got {classes}"):
        model((1, 16, 16), classes=classes)


@pytest.mark.parametrize("model", [Small, Large])
def test_images_of_the_wrong_channels(model):
    with pytest.raises(IsoconvError, match=r"Expected input \(N, 1, H, W\).*Got shape \(2, 3, 8, 8\)"):
        model((1, 8, 8))(torch.zeros(2, 3, 8, 8))


def test_images_of_another_size():
    with pytest.raises(IsoconvError, match=r"OrthogonalLinear: Expected input \(…, 128\)\. Got shape \(2, 512\)"):
        Small((1, 8, 8))(torch.zeros(2, 1, 16, 16))
