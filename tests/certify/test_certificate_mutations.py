"""What changes the function that runs changes its certificate; what nobody looked into is in test_strangers.py."""

import math

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import images, labelled_images, linear_classifier, trained_small
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound, weights_sha256
from isoconv.nn import MaxMin, Scale

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """The plain network of a trained Small."""
    return isoconv.plain(trained_small("bcop", SHAPE))


@pytest.fixture(scope="module")
def data() -> Tensor:
    return labelled_images(6, SHAPE, seed=3)[0]


def test_scaled_kernel(trained: nn.Module, data: Tensor) -> None:
    """Each kernel times 1.001, one after the other: the bound follows, and so does every pair's constant."""
    before = Certifier(trained, SHAPE)
    for place in range(4):
        network = isoconv.plain(trained)
        layer = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))][place]
        with torch.no_grad():
            layer.weight.mul_(1.001)
        after = Certifier(network, SHAPE)
        assert after.lipschitz.value >= before.lipschitz.value * 1.0009
        assert after.error.slope > before.error.slope
        ratio = torch.as_tensor(after.pair_constants) / torch.as_tensor(before.pair_constants)
        assert (ratio[~ratio.isnan()] >= 1.0009).all()
        assert weights_sha256(network) != weights_sha256(trained)


def test_scale_whose_factor_is_changed_afterwards() -> None:
    model = nn.Sequential(Scale(1.0), linear_classifier([[1.0], [0.0]], [0.0, 0.25]))
    x = torch.tensor([[0.5]])
    before = certified_radius(model, x)
    model[0].factor = 4.0  # type: ignore[assignment]
    after = certified_radius(model, x)
    assert before <= 0.25 and after <= (4 * 0.5 - 0.25) / 4
    for factor in (math.inf, math.nan):
        model[0].factor = factor  # type: ignore[assignment]
        with pytest.raises(IsoconvError, match="finite"):
            certified_radius(model, x)


def test_upsampling(data: Tensor) -> None:
    """Doubling the image doubles every norm: radii are half of what the network alone gives at the larger image."""
    model = trained_small("bcop", (1, 16, 16))
    longer = nn.Sequential(nn.Upsample(scale_factor=2), isoconv.plain(model))
    doubled = data.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    alone, together = certified_radius(model, doubled), certified_radius(longer, data)
    assert (together <= alone / 2 * (1 + 1e-9)).all()


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_pixels_up_to_255_need_their_range(trained: nn.Module, data: Tensor, p: float) -> None:
    for x in (255 * data, data - 0.5, data.clone().index_fill_(0, torch.tensor([3]), 1 + 1e-12)):
        with pytest.raises(IsoconvError, match="pixels from 0 to 1"):
            certified_radius(trained, x, p=p)
    assert (certified_radius(trained, 255 * data, input_range=(0, 255), p=p) >= 0).all()


def test_one_module_used_twice_counts_twice() -> None:
    shared = linear_classifier([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0])
    assert lipschitz_bound(nn.Sequential(shared, shared), (2,)).value >= 4
    assert lipschitz_bound(nn.Sequential(shared, nn.Sequential(shared, MaxMin(), shared)), (2,)).value >= 8


def test_one_module_used_twice_has_a_radius_for_both() -> None:
    """y = (16x, 4): at x = ½ the boundary is ¼ away."""
    twice = Scale(4.0)
    model = nn.Sequential(twice, twice, linear_classifier([[1.0], [0.0]], [0.0, 4.0]))
    found = certify(model, torch.tensor([[0.5]]))
    assert found.prediction.item() == 0 and found.radius.item() <= 0.25


def test_dropout_is_certified_as_it_is_deployed() -> None:
    """In training it multiplies what it keeps by 1/(1 − p); in evaluation it is the identity, and that is the claim."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    x = images(4, 4)
    found = certify(model, x)
    network = nn.Sequential(model[0], model[2]).double()
    assert torch.allclose(found.logits, network(x), rtol=0, atol=1e-12)
    assert torch.equal(found.radius, certify(model.eval(), x).radius)
