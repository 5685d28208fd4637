"""What changes the function that runs changes its certificate, or is refused; none is certified as before."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize

import isoconv
from certify.exact_network import (
    images,
    labelled_images,
    linear_classifier,
    trained_small,
)
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound, robust_accuracy
from isoconv.models import Small
from isoconv.nn import MaxMin, OrthogonalLinear, Scale

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """The plain network of a trained Small."""
    return isoconv.plain(trained_small("bcop", SHAPE))


@pytest.fixture(scope="module")
def data() -> Tensor:
    return labelled_images(6, SHAPE, seed=3)[0]


def copied(model: nn.Module) -> nn.Sequential:
    network = isoconv.plain(model)
    assert isinstance(network, nn.Sequential)
    return network


def test_scaled_kernel(trained: nn.Module, data: Tensor) -> None:
    """Each kernel times 1.001, one after the other: the bound follows, and so does every pair's constant."""
    before = Certifier(trained, SHAPE)
    for place in range(4):
        network = copied(trained)
        layer = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))][place]
        with torch.no_grad():
            layer.weight.mul_(1.001)
        after = Certifier(network, SHAPE)
        assert after.lipschitz.value >= before.lipschitz.value * 1.0009
        assert after.error.slope > before.error.slope
        ratio = torch.as_tensor(after.pair_constants) / torch.as_tensor(before.pair_constants)
        assert (ratio[~ratio.isnan()] >= 1.0009).all()
        assert weights_differ(network, trained)


def weights_differ(a: nn.Module, b: nn.Module) -> bool:
    return isoconv.certify.weights_sha256(a) != isoconv.certify.weights_sha256(b)


def test_scale_appended_in_the_middle(trained: nn.Module) -> None:
    network = copied(trained)
    network.insert(2, Scale(3.0))
    assert Certifier(network, SHAPE).lipschitz.value >= 2.9999 * Certifier(trained, SHAPE).lipschitz.value


def test_scale_whose_factor_is_changed_afterwards() -> None:
    model = nn.Sequential(Scale(1.0), linear_classifier([[1.0], [0.0]], [0.0, 0.25]))
    x = torch.tensor([[0.5]])
    before = certified_radius(model, x)
    model[0].factor = 4.0  # type: ignore[assignment]
    after = certified_radius(model, x)
    assert before <= 0.25 and after <= (4 * 0.5 - 0.25) / 4
    for factor in (math.inf, math.nan):
        model[0].factor = factor  # type: ignore[assignment]
        with pytest.raises(IsoconvError, match="Expected a finite"):
            certified_radius(model, x)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_reflected_padding(mode: str) -> None:
    """An edge detector that is 1-Lipschitz on the circle: reflected, the border counts twice."""
    bounds = {}
    for padding_mode in ("circular", mode):
        conv = nn.Conv2d(1, 1, 3, padding=1, padding_mode=padding_mode, bias=False)
        with torch.no_grad():
            conv.weight.zero_()
            conv.weight[..., 1, 0] = 1  # a shift: an isometry of the circle
        bounds[padding_mode] = lipschitz_bound(conv, (1, 6, 6)).value
    assert bounds["circular"] == pytest.approx(1, abs=1e-6) and bounds[mode] >= math.sqrt(2) * (1 - 1e-12)


def test_upsampling(data: Tensor) -> None:
    """Doubling the image doubles every norm: radii are half of what the network alone gives at the larger image."""
    model = trained_small("bcop", (1, 16, 16))
    longer = nn.Sequential(nn.Upsample(scale_factor=2), isoconv.plain(model))
    doubled = data.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    alone, together = certified_radius(model, doubled), certified_radius(longer, data)
    assert (together <= alone / 2 * (1 + 1e-9)).all()


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_pixels_up_to_255_are_refused(trained: nn.Module, data: Tensor, p: float) -> None:
    for x in (255 * data, data - 0.5, data.clone().index_fill_(0, torch.tensor([3]), 1 + 1e-12)):
        with pytest.raises(IsoconvError, match=r"Expected pixels from 0 to 1. Got values from"):
            certified_radius(trained, x, p=p)
    wide = certified_radius(trained, 255 * data, input_range=(0, 255), p=p)
    assert (wide >= 0).all()


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Steep(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * input.relu()


class SameLinear(nn.Linear):
    """The same function: refused all the same, because nobody looked into it."""


class Skipping(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class Repeating(nn.Sequential):
    def __iter__(self) -> Iterator[nn.Module]:
        return iter([*super().__iter__(), *super().__iter__()])


class TwiceOrthogonal(OrthogonalLinear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Called(nn.Sequential):
    def __call__(self, *arguments: Tensor) -> Tensor:
        return 2 * super().__call__(*arguments)


class SteepMaxMin(MaxMin):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class LoudSmall(Small):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def doubled(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return 2 * output


def doubled_before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (2 * inputs[0],)


def hooked(hook: str, function: Callable[..., object], **options: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    getattr(model[1], hook)(function, **options)
    return model


def hooked_outside() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model.register_forward_hook(doubled)
    return model


def orthogonal(change: str) -> nn.Module:
    layer = OrthogonalLinear(4, 4)
    if change == "hook":
        layer.register_forward_hook(doubled)
    else:
        layer.forward = lambda x: 2 * x  # type: ignore[method-assign]
    return nn.Sequential(layer, nn.Linear(4, 3))


def overridden() -> nn.Module:
    """A forward of the instance's own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].forward = lambda x: 2 * x[:, [1, 0, 3, 2]]  # type: ignore[assignment]
    return model


def overridden_outside() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    inner = nn.Sequential.forward
    model.forward = lambda x: 2 * inner(model, x)  # type: ignore[assignment,method-assign]
    return model


def parametrised() -> nn.Module:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    parametrize.register_parametrization(model[0], "weight", Doubled())
    return model


STRANGERS: dict[str, Callable[[], nn.Module]] = {
    "subclass of Linear": lambda: nn.Sequential(Twice(4, 4), nn.Linear(4, 3)),
    "subclass of Linear at the end": lambda: Twice(4, 3),
    "subclass of Linear, unchanged": lambda: SameLinear(4, 3),
    "subclass of ReLU": lambda: nn.Sequential(nn.Linear(4, 4), Steep(), nn.Linear(4, 3)),
    "subclass of MaxMin": lambda: nn.Sequential(nn.Linear(4, 4), SteepMaxMin(), nn.Linear(4, 3)),
    "subclass of Sequential": lambda: nn.Sequential(Skipping(nn.Linear(4, 4)), nn.Linear(4, 3)),
    "subclass of Sequential outside": lambda: Skipping(nn.Linear(4, 4)),
    "subclass of Sequential with a call": lambda: nn.Sequential(Called(nn.Linear(4, 4)), nn.Linear(4, 3)),
    "subclass of Sequential with an order": lambda: Repeating(nn.Linear(4, 4)),
    "subclass of OrthogonalLinear": lambda: nn.Sequential(TwiceOrthogonal(4, 4), nn.Linear(4, 3)),
    "forward hook on OrthogonalLinear": lambda: orthogonal("hook"),
    "forward of the instance of OrthogonalLinear": lambda: orthogonal("forward"),
    "hook on all modules": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    "forward hook": lambda: hooked("register_forward_hook", doubled),
    "forward pre-hook": lambda: hooked("register_forward_pre_hook", doubled_before),
    "forward hook outside": hooked_outside,
    "forward of the instance": overridden,
    "forward of the outer instance": overridden_outside,
    "parametrisation": parametrised,
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 3)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 3)),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)),
    "bilinear": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Upsample(scale_factor=2, mode="bilinear")),
    "module list": lambda: nn.ModuleList([nn.Linear(4, 3)]),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_nobody_looked_into_is_refused(name: str) -> None:
    """Each of them changes the function that runs (and one does not); none gets a certificate."""
    torch.manual_seed(0)
    model = STRANGERS[name]()
    if name == "hook on all modules":
        handle = register_module_forward_hook(lambda module, inputs, output: 2 * output)
    try:
        with pytest.raises(IsoconvError, match="Expected"):
            certified_radius(model, images(2, 4))
        with pytest.raises(IsoconvError, match="Expected"):
            robust_accuracy(model, (images(2, 4), torch.tensor([0, 1])), [0.1])
    finally:
        if name == "hook on all modules":
            handle.remove()


def test_a_subclass_of_small_is_refused(data: Tensor) -> None:
    torch.manual_seed(0)
    with pytest.raises(IsoconvError, match="LoudSmall"):
        certified_radius(LoudSmall(SHAPE, classes=4), data)


class TrainedHere(nn.Module):
    """Hides its layers from nobody, but runs them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.layers[0](x))


def test_a_module_of_ones_own_is_refused_by_name() -> None:
    with pytest.raises(IsoconvError, match="TrainedHere"):
        certified_radius(TrainedHere(), images(2, 4))


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
