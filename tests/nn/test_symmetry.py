"""Networks that are averaged over an image and its mirror image."""

import math

import pytest
import torch
from torch import nn

import isoconv
from isoconv.certify import Certifier, certified_radius, lipschitz_bound
from isoconv.errors import IsoconvError
from isoconv.models import FC3, ShiftNet, Small
from isoconv.nn import BCOPConv2d, MaxMin, NormalisedLinear, OrthogonalLinear, symmetrise


class Branches(nn.Module):
    """With a forward of its own, names that `symmetrise` would use, a layer that is used twice, and no linear layer last."""

    def __init__(self):
        super().__init__()
        self.mirror, self.mean = BCOPConv2d(2, 2, 3), nn.Sequential(nn.Flatten(), OrthogonalLinear(2 * 5 * 6, 4))

    def forward(self, x):
        return 0.5 * self.mean(self.mirror(self.mirror(x)) + x).abs()


NETWORKS = {
    "small": ((3, 8, 8), lambda: Small((3, 8, 8), 4)),
    "shift": ((3, 6, 8), lambda: ShiftNet((3, 6, 8), 4, channels=36, blocks=(1, 1))),
    "fc3": ((1, 3, 5), lambda: FC3((1, 3, 5), 4)),
    "nested": ((2, 4, 5), lambda: nn.Sequential(
        nn.Sequential(BCOPConv2d(2, 4, 3), MaxMin()), nn.Flatten(), nn.Linear(80, 4),
    )),
    "a forward of its own": ((2, 5, 6), Branches),
    "one layer": ((1, 1, 6), nn.Flatten),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_over_both_has_the_same_constant(name: str) -> None:
    torch.manual_seed(0)
    shape, build = NETWORKS[name]
    model = build().double()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    mean, x = symmetrise(model, shape), torch.rand(5, *shape, dtype=torch.float64)
    assert model.training and not mean.training
    model.eval()
    for batch in (x, x[:1]):
        assert torch.allclose(mean(batch), (model(batch) + model(batch.flip(-1))) / 2, rtol=0, atol=1e-13)
    assert torch.allclose(mean(x), mean(x.flip(-1)), rtol=0, atol=1e-13)
    plain = isoconv.plain(model, shape)
    assert mean.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in mean.state_dict().items())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert lipschitz_bound(mean, shape).value == pytest.approx(lipschitz_bound(model, shape).value, rel=1e-12)
    jacobian = torch.func.jacrev(lambda x: mean(x[None])[0])(x[0]).reshape(-1, math.prod(shape)).detach()
    assert torch.linalg.matrix_norm(jacobian, 2) <= lipschitz_bound(mean, shape).value * (1 + 1e-12)


def test_pairs_of_classes_keep_their_constants() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(BCOPConv2d(1, 4, 3), MaxMin(), nn.Flatten(), NormalisedLinear(48, 60)).eval()
    mean, shape = symmetrise(model, (1, 3, 4)), (1, 3, 4)
    assert torch.allclose(Certifier(mean, shape).pair_constants, Certifier(model, shape).pair_constants, rtol=1e-12)
    assert lipschitz_bound(mean, shape).value > 1.2  # which the constants of pairs do not feel


def test_radii_hold_for_both_orientations_and_are_attained() -> None:
    """For a linear network the radius is known: half of it is lost where the two orientations disagree."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(weight)
    mean = symmetrise(model, (1, 1, 2))
    assert certified_radius(mean, torch.tensor([[[[0.9, 0.1]]]]))[0] == 0  # both classes are as likely
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    x = torch.tensor([[[[0.25, 0.5]]]], dtype=torch.float64)
    radius = certified_radius(symmetrise(model, (1, 1, 2)), x)[0]
    assert radius == pytest.approx(0.75 / 2**0.5, rel=1e-6)


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(IsoconvError, match="LayerNorm"):
        lipschitz_bound(symmetrise(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), (3, 4)), (3, 4))
    with pytest.raises(IsoconvError, match="shape"):
        symmetrise(nn.Linear(4, 2), ())
