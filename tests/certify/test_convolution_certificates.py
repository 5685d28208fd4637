"""Convolutions with every kind of argument: certified close to 1, and the checker accepts their certificates."""

from functools import partial

import pytest
import torch
from torch import nn

from certify.certificates import check, write_all
from isoconv.certify import Certifier
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d, MaxMin, OrthogonalLinear, RKOConv2d

LAYERS = {
    "an odd image": (partial(BCOPConv2d, 2, 8, 3, 2), (2, 7, 7)),
    "fewer outputs": (partial(BCOPConv2d, 2, 20, 4, 3, 1), (2, 7, 7)),
    "groups": (partial(BCOPConv2d, 4, 8, 3, 2, groups=2), (4, 6, 6)),
    "dilation": (partial(BCOPConv2d, 2, 4, 3, dilation=2), (2, 6, 6)),
    "dilation and stride": (partial(BCOPConv2d, 2, 4, 3, 2, dilation=3), (2, 8, 8)),
    "rectangular": (partial(BCOPConv2d, 2, 6, (3, 2), (2, 1)), (2, 6, 5)),
    "zeros": (partial(BCOPConv2d, 2, 6, 3, 2, 1, padding_mode="zeros"), (2, 7, 6)),
    "transposed": (partial(BCOPConvTranspose2d, 4, 2, 3, 2, 1), (4, 3, 3)),
    "one axis": (partial(BCOPConv1d, 2, 6, 3, 2), (2, 7)),
    "rko": (partial(RKOConv2d, 4, 8, 3, 2, groups=2), (4, 5, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_checker_accepts_what_is_certified(name, tmp_path, capsys):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()  # has seen no image when it is certified
    features = make()(torch.zeros(1, *shape)).numel()
    model = nn.Sequential(layer, MaxMin(), nn.Flatten(), OrthogonalLinear(features, 3)).eval()
    x = torch.rand(2, *shape, dtype=torch.float64)
    deployed = Certifier(model, shape).deployed
    assert (deployed.double()(x) - model.double()(x)).abs().max() <= 1e-6
    assert check(write_all(model.float(), x, tmp_path)) == 0
    assert "Lipschitz constant at most 1.0000" in capsys.readouterr().out or name == "rko"
