"""Everything that a network must refuse, and with which words."""

import pytest
import torch

from isoconv import IsoconvError
from isoconv.models import FC3, DCGANCritic, Large, Small

ALL = [Small, Large, FC3, DCGANCritic]


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({"conv": conv}, f"bcop, bcop-fixed, rko, .*standard. Got {conv!r}") for conv in ("BCOP", "conv", "", None)],
        *[({"activation": name}, f"maxmin, relu. Got {name!r}") for name in ("tanh", "MaxMin", None)],
        ({"orthogonalisation": "qr"}, "manifold.*bjorck.* Got 'qr'"),
    ],
    ids=str,
)
def test_unknown_options(model, options, match):
    (name,) = options
    with pytest.raises(IsoconvError, match=f"Expected {name} to be one of .*{match}"):
        model((1, 16, 16), **options)


@pytest.mark.parametrize(
    ("model", "shape", "got"),
    [
        (Small, (1, 30, 28), "15×14"),
        (Small, (1, 28, 27), "28×27"),
        (Large, (1, 32, 34), "16×17"),
        (Large, (1, 1, 1), "1×1"),
        (DCGANCritic, (3, 40, 64), "5×8"),
        (DCGANCritic, (3, 28, 28), "7×7"),
    ],
)
@pytest.mark.parametrize("conv", ["bcop", "ossn", "standard"])
def test_image_sizes_that_cannot_be_halved(model, shape, got, conv):
    with pytest.raises(IsoconvError, match=f"multiples of 4 .*Got {got}"):
        model(shape, conv=conv)


@pytest.mark.parametrize("model", ALL)
def test_shapes_and_classes(model):
    for shape in [(16, 16), (1, 1, 16, 16), (), (0, 16, 16), (1, 0, 16), (1, -16, 16), (1, 16.0, 16)]:
        with pytest.raises(IsoconvError, match="input_shape"):
            model(shape)
    for classes in (0, -1, 2.5) if model is not DCGANCritic else ():
        with pytest.raises(IsoconvError, match=f"class.* Got {classes}"):
            model((1, 16, 16), classes=classes)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16)], ids=["channels", "size"])
def test_images_of_another_shape(shape):
    with pytest.raises(IsoconvError, match=r"Expected input .*Got shape"):
        Small((1, 8, 8))(torch.zeros(shape))
