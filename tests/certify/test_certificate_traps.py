"""Numbers and settings made to get a certificate that is not deserved; the truth is known in each."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.exact_network import (
    error_bound,
    exact_logits,
    images,
    labelled_images,
    linear_classifier,
    logit_error,
    summed_in_order,
    trained_small,
)
from isoconv import IsoconvError
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound
from isoconv.nn import MaxMin, Scale

SHAPE = (1, 8, 8)
both = pytest.mark.parametrize("arithmetic", ["float64", "float32"])


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """The plain network of a trained Small."""
    return isoconv.plain(trained_small("bcop", SHAPE))


@pytest.fixture(scope="module")
def data() -> Tensor:
    return labelled_images(6, SHAPE, seed=3)[0]


# ---- Numbers that are too small, too large, or equal.


def chain(*factors: float, dtype: torch.dtype) -> nn.Sequential:
    """A product of diagonal matrices; the logits are (x₀, x₁) times the product of all factors."""
    eye = torch.eye(2, dtype=torch.float64)
    return nn.Sequential(*(linear_classifier((eye * f).to(dtype), None).requires_grad_(False) for f in factors))


CHAINS = {
    "float32 squares underflow": ((1e-30, 1e30), torch.float32),
    "float32 smallest": ((2.0**-149, 2.0**75, 2.0**74), torch.float32),
    "float32 overflows": ((1e30, 1e30, 1e-30, 1e-30), torch.float32),
    "float64 squares underflow": ((1e-170, 1e170), torch.float64),
    "float64 subnormal in the middle": ((1e200, 1e-310, 1e110), torch.float64),
    "float64 smallest at the end": ((2.0**1000, 2.0**74, 2.0**-1074), torch.float64),
    "float64 overflows": ((1e200, 1e200, 1e-200, 1e-200), torch.float64),
    "float64 overflows at the end": ((1e-200, 1e-200, 1e200, 1e200), torch.float64),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_extreme_weights(name: str) -> None:
    """The logits are about (x₀, x₁): the constant is about 1 and the distance |x₀ − x₁|/√2, however they are computed.

    What is certified is computed so, at the edge of the ball too.
    """
    factors, dtype = CHAINS[name]
    model = chain(*factors, dtype=dtype)
    bound = lipschitz_bound(model, (2,)).value
    truth = math.prod(Fraction(float(layer.weight[0, 0])) for layer in model)  # type: ignore[arg-type,index]
    assert bound == math.inf or Fraction(bound) >= truth
    x = torch.tensor([[1.0, 0.0], [0.25, 0.75]], dtype=torch.float64)
    towards = torch.tensor([[-1.0, 1.0], [1.0, -1.0]]).double() / math.sqrt(2)
    for arithmetic in ("float64", *(["float32"] if dtype == torch.float32 else [])):
        found = certify(model, x, arithmetic=arithmetic)
        assert ((found.radius >= 0) & (found.radius <= torch.tensor([1.0, 0.5]).double() / math.sqrt(2))).all()
        network = isoconv.plain(model).to(getattr(torch, arithmetic))
        for points in (x, x + towards * (found.radius * (1 - 1e-5))[:, None]):
            right = network(points.to(getattr(torch, arithmetic))).argmax(dim=1) == torch.tensor([0, 1])
            assert (right | (found.radius == 0)).all()


@pytest.mark.parametrize("size", [1e-30, 1e-40, 1e-45, 1e-154, 1e-300, 5e-324])
def test_rows_whose_difference_is_tiny(size: float) -> None:
    """The square of ‖w₀ − w₁‖ vanishes: a constant of 0 would certify everything. So too beside large equal entries."""
    dtype, arithmetics = (torch.float32, ("float64", "float32")) if size > 1e-50 else (torch.float64, ("float64",))
    for rows in ([[size, 0.0], [0.0, size]], [[1.0, size], [1.0, 0.0]]):
        model = linear_classifier(torch.tensor(rows, dtype=dtype), [0.0, 0.0])
        for arithmetic in arithmetics:
            assert 0 <= certified_radius(model, torch.tensor([[1.0, 0.0]]), arithmetic=arithmetic).item() <= 1
        weight = model.weight.detach().double()
        assert Certifier(model, (2,)).pair_constants[0, 1] >= (weight[0] - weight[1]).abs().max() > 0


@both
def test_ties_and_classes_that_cannot_be_reached(arithmetic: str) -> None:
    """Equal logits give 0, also where all weights are; classes that differ by their bias alone set no radius."""
    x = torch.tensor([[1.0, 0.5]])

    def radius(*layers: nn.Module) -> float:
        return certified_radius(nn.Sequential(*layers), x, arithmetic=arithmetic).item()

    twice = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    assert radius(linear_classifier(twice, [0.0, 0.0, -1.0])) == radius(linear_classifier(twice, [0.5] * 3)) == 0
    assert 1.2 * (1 - 1e-5) <= radius(linear_classifier(twice, [1.0, 0.5, 0.0])) <= 1.2  # (3 + 2 + 1)/5
    zero, ones = torch.zeros(2, 2), torch.ones(2, 2)
    assert radius(linear_classifier(zero, None)) == 0 < radius(linear_classifier(zero, [1.0, 0.0])) < math.inf
    assert radius(linear_classifier(zero, None), linear_classifier(ones, [1.0, 0.0])) >= 0


@pytest.mark.parametrize("options", [{}, {"arithmetic": "float32"}, {"p": 1}, {"p": 3}, {"p": math.inf}], ids=str)
def test_nan_and_infinity_are_not_certified(options: dict[str, Any]) -> None:
    model = linear_classifier(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [0.0, 0.0])
    x = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf], [0.0, 1.0]])
    radius = certified_radius(model, x, **options)
    assert (radius > 0).tolist() == [True, False, False, False, True] and (radius[1:4] == 0).all()


@both
def test_sums_that_are_longer_or_more_than_they_seem(arithmetic: str) -> None:
    """512 rows of one feature, to each of which the bias is added; a weight that was replaced by a wider one."""
    rows = nn.Sequential(linear_classifier(torch.ones(2, 1), [1 / 3, 1 / 3]), nn.Flatten())
    x = (images(1, 512, 1) / 1000).to(getattr(torch, arithmetic)).double()
    certifier = Certifier(rows, (512, 1), arithmetic=arithmetic)
    assert logit_error(certifier(x).logits[0], exact_logits(rows, x[0])) <= error_bound(certifier, x[0])
    wide, x = nn.Linear(2, 3), images(1, 5000)
    wide.weight = nn.Parameter(torch.rand(3, 5000, generator=torch.Generator().manual_seed(0)) + 0.5)
    logits = summed_in_order(wide, x[0], "forward", getattr(torch, arithmetic))
    bound = error_bound(Certifier(wide, (5000,), arithmetic=arithmetic), x[0])
    assert logit_error(logits, exact_logits(wide, x[0])) <= bound
    size, value = 512, 0.5195300579071045  # averaging it, float32 loses nearly half a last place each time
    pool = Certifier(nn.Sequential(nn.AvgPool2d(size), nn.Flatten()), (1, size, 2 * size), arithmetic=arithmetic)
    x = torch.full((1, 1, size, 2 * size), value)
    error = math.sqrt(2) * abs(pool(x).logits[0, 0].item() - value)
    assert 1e-4 * (arithmetic == "float32") <= error <= error_bound(pool, x[0])


@pytest.mark.parametrize(
    ("layers", "shape", "options"),
    [
        ([Scale(2.0**89), nn.Linear(2**20, 1, bias=False)], (2**20,), {"p": math.inf}),
        ([Scale(float(torch.tensor(1.99 * 2.0**89))), nn.AvgPool2d(1024), nn.Flatten()], (1, 1024, 1024), {}),
    ],
    ids=["wide ball", "average pooling"],
)
def test_overflow_within_the_ball(layers: list[nn.Module], shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Logits (0, 1) whatever comes in, unless infinity times zero does."""
    for p in layers[1].parameters():
        p.data.fill_(2.0**-10)
    model = nn.Sequential(*layers, linear_classifier(torch.zeros(2, 1), [0.0, 1.0]))
    x = torch.full((1, *shape), 0.5)
    radius = certified_radius(model, x, arithmetic="float32", **options).item()
    with torch.no_grad():
        logits = model(x + (radius if options else radius / 1024 * (1 - 1e-6)))
    assert logits.isfinite().all() and logits.argmax().item() == 1


def test_float32_convolutions_are_sums_of_products() -> None:
    """Both logits are sums of zeros. From 16 images on NNPACK makes them differ, by more than the error bound allows."""
    conv = nn.Conv2d(1, 1, 3, bias=False)
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0, 0, 0] = 0.47700902819633484
    x = torch.zeros(16, 1, 4, 3)
    x[:, 0, 2, 2] = 0.6238062977790833
    found = certify(nn.Sequential(conv, nn.Flatten()), x, arithmetic="float32")
    assert (found.logits == 0).all() and (found.radius == 0).all()


# ---- Settings of the process and of the model that must not reach the certificate.


@contextmanager
def changed(change: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


CIRCUMSTANCES = [
    ("float32", lambda: changed(torch.set_float32_matmul_precision, "medium", "highest")),
    *((name, lambda: torch.autocast("cpu", dtype=torch.bfloat16)) for name in ("float32", "float64")),
    ("float32", lambda: changed(torch.set_default_dtype, torch.float64, torch.float32)),
    ("float64", lambda: changed(torch.set_default_dtype, torch.float16, torch.float32)),
    *(("float64", torch.inference_mode), ("float32", torch.enable_grad)),
]


def test_circumstances_change_nothing(trained: nn.Module, data: Tensor) -> None:
    """The same radii, logits and constants as without; and logits within their error bound of the exact ones."""
    for arithmetic, circumstance in CIRCUMSTANCES:
        before = Certifier(trained, SHAPE, arithmetic=arithmetic)
        expected = before(data)
        with circumstance():
            certifier = Certifier(trained, SHAPE, arithmetic=arithmetic)
            found = certifier(data)
        assert torch.allclose(found.radius, expected.radius, rtol=1e-5, atol=0)
        assert torch.equal(found.prediction, expected.prediction)
        assert found.radius.dtype == torch.float64 and not found.radius.requires_grad
        assert certifier.lipschitz.value == pytest.approx(before.lipschitz.value, rel=1e-12)
        assert logit_error(found.logits[0], exact_logits(trained, data[0])) <= error_bound(certifier, data[0])
        assert torch.get_default_dtype() == torch.float32 and torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("conv", ["bcop", "ossn"])
def test_model_left_as_it_was(data: Tensor, conv: str) -> None:
    """In training mode, with and without gradients, with dropout: the same radii, and nothing about the model changes."""
    model = trained_small(conv, SHAPE)
    expected = certified_radius(model, data)
    model = nn.Sequential(nn.Dropout(), model).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.allclose(certified_radius(model, data), expected, rtol=1e-12, atol=0) and model.training
    model.requires_grad_(False)
    assert torch.allclose(certified_radius(model, data), expected, rtol=1e-12, atol=0)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32
    half = nn.Linear(6, 3).to(torch.bfloat16)  # means the numbers that its weights are
    assert torch.allclose(certify(half, images(4, 6)).logits, half.double()(images(4, 6)), rtol=0, atol=1e-12)


def test_subnormal_numbers_that_are_flushed_here_are_refused(trained: nn.Module, data: Tensor) -> None:
    with changed(torch.set_flush_denormal, True, False), pytest.raises(IsoconvError, match="set_flush_denormal"):
        certified_radius(trained, data)
    certifier = Certifier(trained, SHAPE)
    with changed(torch.set_flush_denormal, True, False):  # made before: what it proved includes numbers that vanish
        radius = certifier(data).radius
    assert torch.allclose(radius, certifier(data).radius, rtol=1e-5, atol=0)
    for name in ("float64 subnormal in the middle", "float64 smallest at the end"):  # logits of zero, where it is run
        model = chain(*CHAINS[name][0], dtype=torch.float64)
        model.append(linear_classifier(torch.eye(2).double(), torch.tensor([0.0, 0.25]).double()))
        found = certify(model, x := torch.tensor([[1.0, 0.0]]).double())
        with changed(torch.set_flush_denormal, True, False):
            assert found.radius.item() == 0 or model(x).argmax() == found.prediction


def test_layouts_of_the_input() -> None:
    """Not contiguous, channels last, expanded, requiring a gradient, float32: the same numbers, the same radii."""
    model, (x, _) = trained_small("bcop", (3, 8, 8)), labelled_images(6, (3, 8, 8), seed=3)
    x = x.float().double()
    wide = x.repeat_interleave(2, dim=3)[..., ::2]
    last = x.contiguous(memory_format=torch.channels_last)
    expected = certified_radius(model, x)
    for form in (last, wide, x.mT.contiguous().mT, x.clone().requires_grad_(), x.float(), x[:1].expand(6, -1, -1, -1)):
        radii = certified_radius(model, form)
        assert torch.allclose(radii, expected if form.stride(0) else expected[:1].expand(6), rtol=1e-12, atol=0)


def test_certifier_holds_on_to_the_weights_it_saw() -> None:
    """Training on after the certifier was made: it speaks of the weights that it bounded, never of a mixture."""
    model = linear_classifier([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    certifier = Certifier(model, (2,))
    with torch.no_grad():
        model.weight.mul_(1000)
    assert certifier(torch.tensor([[1.0, 0.0]])).logits.abs().max() <= 1.5 * certifier.lipschitz.value


def test_activations_that_work_in_place() -> None:
    """The caller's images stay as they are, their norm is that of before, and −∞ is not certified."""
    model = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), linear_classifier([[0.0, 1.0], [0.0, 0.0]], [0.0, 0.0]))
    x = torch.tensor([[-1.0, 0.5], [-math.inf, 0.5]], dtype=torch.float64)
    before = x.clone()
    found = certify(model, x, input_range=(-1, 1))
    assert torch.equal(x, before)
    assert found.input_norm[0] >= math.sqrt(1.25) and found.radius[1] == 0


# ---- What changes the function that runs changes its certificate; what nobody looked into is in test_strangers.py.


def test_scale_whose_factor_is_changed_afterwards() -> None:
    model, x = nn.Sequential(Scale(1.0), linear_classifier([[1.0], [0.0]], [0.0, 0.25])), torch.tensor([[0.5]])
    assert certified_radius(model, x) <= 0.25
    model[0].factor = 4.0
    assert certified_radius(model, x) <= (4 * 0.5 - 0.25) / 4
    for factor in (math.inf, math.nan):
        model[0].factor = factor
        with pytest.raises(IsoconvError, match="finite"):
            certified_radius(model, x)


def test_one_module_used_twice_counts_twice() -> None:
    """y = (16x, 4): at x = ½ the boundary is ¼ away."""
    shared, twice = linear_classifier([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0]), Scale(4.0)
    assert lipschitz_bound(nn.Sequential(shared, nn.Sequential(shared, MaxMin(), shared)), (2,)).value >= 8
    found = certify(nn.Sequential(twice, twice, linear_classifier([[1.0], [0.0]], [0.0, 4.0])), torch.tensor([[0.5]]))
    assert found.prediction.item() == 0 and found.radius.item() <= 0.25
