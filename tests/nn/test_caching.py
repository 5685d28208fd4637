"""A kernel is rebuilt exactly when its parameters changed: never stale, never built twice."""

import copy
import pickle
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import LAYERS, is_built, is_manifold, made, singular_values
from isoconv import IsoconvError
from isoconv.models import Small
from isoconv.nn import OrthogonalLinear, fixed_weights, plain

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
BUILT = [name for name in LAYERS if is_built(name)]
TRAINABLE = [name for name in BUILT if "fixed" not in name]
# OSSN sharpens its estimate in every training pass.
STEADY = [name for name in TRAINABLE if not name.startswith("ossn")]
layers = pytest.mark.parametrize("name", LAYERS)
built = pytest.mark.parametrize("name", BUILT)
trainable = pytest.mark.parametrize("name", TRAINABLE)


def counting(layer: nn.Module) -> list[int]:
    """A list that grows by one with every build of the layer's weight."""
    calls, build = [], layer._build
    layer._build = lambda *sources: calls.append(1) or build(*sources)
    return calls


def rebuilt(layer: nn.Module) -> Tensor:
    """What the weight should be now: that of a fresh layer of the same state, in evaluation."""
    fresh = copy.deepcopy(layer).eval()
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        return fresh.weight.clone()


def warm(layer: nn.Module, x: Tensor, mode: str = "grad") -> Tensor:
    """Fill the cache; the weight that is in it."""
    with MODES[mode]():
        layer.eval()(x)
        return layer.weight.detach().clone()


def assert_current(layer: nn.Module, before: Tensor | None) -> None:
    expected = rebuilt(layer)
    for mode in MODES.values():
        with mode():
            assert torch.equal(layer.weight, expected)
    assert before is None or not torch.allclose(before, expected.to(before), atol=1e-4), "nothing changed"


# Never stale ----------------------------------------------------------------------------------------------------------


def load(layer: nn.Module, assign: bool) -> None:
    other = copy.deepcopy(layer)
    other.reset_parameters()
    layer.load_state_dict(other.state_dict(), assign=assign)


def edit(change: Callable[[nn.Module, str, Tensor, Tensor], object]) -> Callable[[nn.Module], object]:
    """Change each parameter, given the layer, its name, itself and new numbers for it."""
    return lambda layer: [change(layer, name, p, torch.randn_like(p)) for name, p in list(layer.named_parameters())]


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "reset": lambda layer: layer.reset_parameters(),
    "loaded": lambda layer: load(layer, assign=False),
    "assigned": lambda layer: load(layer, assign=True),
    "parameters replaced": edit(lambda layer, name, p, new: setattr(layer, name, nn.Parameter(new))),
    "data replaced": edit(lambda layer, name, p, new: setattr(p, "data", new)),
    "data edited": edit(lambda layer, name, p, new: p.data.copy_(new)),
    "numpy": edit(lambda layer, name, p, new: np.copyto(p.detach().numpy(), new.numpy())),
}


# A method's own changes, and settings.
OWN_CHANGES: dict[str, list[Callable[[nn.Module], object]]] = {
    "ossn": [
        lambda layer: layer.power_iterate(),
        lambda layer: layer.project(),
        lambda layer: setattr(layer, "power_iterations", 100),
    ],
    "ossn-after-update": [lambda layer: layer.project()],
    "svcm": [lambda layer: layer.project()],
    "bcop": [lambda layer: setattr(layer, "orthogonalisation", "bjorck")],
}


@layers
def test_not_stale_after_a_change(name):
    layer, x = made(name)
    for change in CHANGES.values():
        for mode in MODES:  # more than once: freed memory comes back at the same address sooner or later
            before = warm(layer, x, mode)
            change(layer)
            assert_current(layer, before)
    for change in OWN_CHANGES.get(name, []):
        warm(layer, x)
        change(layer)
        assert_current(layer, None)


@pytest.mark.parametrize("name", [name for name in LAYERS if "fixed" not in name])
def test_not_stale_after_an_optimiser_step(name):
    """Fused optimisers write to the parameters without raising their version counters."""
    for training, options in ((True, {"fused": True}), (False, {"fused": True}), (True, {"foreach": True})):
        layer, x = made(name)
        descent = torch.optim.Adam(layer.parameters(), lr=0.1, **options)
        target = torch.randn_like(layer(x))
        before = warm(layer, x)
        layer.train(training)
        for _ in range(2):
            descent.zero_grad()
            (layer(x) * target).sum().backward()
            descent.step()
            with torch.no_grad():
                assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        assert_current(layer.eval(), before)


@layers
def test_a_copy_is_equal_and_independent(name):
    layer, x = made(name)
    layer.train()(x)  # also in the middle of a step
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        clone(x.requires_grad_()).sum().backward()
    before = warm(layer, x)
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone.weight, before)
        assert torch.equal(clone(x), layer(x))
        CHANGES["data edited"](clone)
        assert_current(clone, before)
        assert torch.equal(layer.weight, before)


def test_fixed_weights_compare_on_entry_only():
    model, x = Small((1, 8, 8)), torch.rand(2, 1, 8, 8, requires_grad=True)
    for _ in range(2):  # a change before the context is seen
        model[0].O.data.neg_()
        expected = copy.deepcopy(model)(x)
        with fixed_weights(model):
            with fixed_weights(model[0]):  # which has nothing to add, nor to take away
                inside = model(x)
            torch.testing.assert_close(inside, expected)
            model[0].O.data.neg_()  # against the promise
            assert torch.equal(model(x), inside)
            model[0].O.data.neg_()
            inside.sum().backward()
            assert x.grad.abs().max() > 0 and model[0].O.grad is None and model[0].bias.grad is not None
    with pytest.raises(ZeroDivisionError), fixed_weights(model):
        raise ZeroDivisionError
    assert all(getattr(layer, "weight_source", None) is None for layer in model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_host_waits_once_per_layer_and_never_for_fixed_weights():
    model, x = Small((1, 8, 8)).eval().cuda(), torch.rand(2, 1, 8, 8, device="cuda")
    model(x), torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            model(x)
            count = len(waits)
            with fixed_weights(model):
                entered = len(waits)
                model(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert count == sum(hasattr(layer, "weight_source") for layer in model) and len(waits) == entered


@pytest.mark.parametrize("register", [nn.Module.register_forward_pre_hook, nn.Module.register_forward_hook])
def test_what_changes_parameters_within_a_forward_pass_is_seen(register):
    x, model = torch.rand(2, 6), nn.Sequential(OrthogonalLinear(6, 6), nn.ReLU(), OrthogonalLinear(6, 6)).eval()

    def negate(*_):
        model[2].matrix.data.neg_()

    register(model[1], negate)
    for _ in range(3):
        found = model(x)
        assert torch.equal(found, model[2](model[0](x).relu()))


WRITES = {
    "init": nn.init.normal_,
    "clipping": lambda weight: weight.detach().clamp_(-0.01, 0.01),
    "data": lambda weight: weight.data.add_(1),
    "numpy": lambda weight: weight.detach().numpy().fill(1),
}.values()


@built
def test_writing_into_the_weight_is_refused(name):
    """As `nn.init` does, or clipping: the weight is computed, so that it would be lost with the next change."""
    layer, x = made(name)
    layer.eval()
    for write in WRITES:
        for training in (False, True) if name in STEADY else (False,):
            layer.train(training)(x)
            write(layer.weight)
            with pytest.raises(IsoconvError, match="parameters"):
                layer(x)
            assert_current(layer.eval(), None)
    for use in (plain, lambda layer: fixed_weights(layer).__enter__()):
        layer(x)
        layer.weight.data.add_(1)
        with pytest.raises(IsoconvError, match="parameters"):
            use(layer)
        assert_current(layer, None)


# Never built twice ----------------------------------------------------------------------------------------------------


@built
def test_evaluation_builds_once_changes_no_state_and_repeats_itself(name):
    """Also for an attack, which asks for the gradient of the input; and at most once more for those of parameters."""
    for order in list(permutations(MODES))[::2]:
        layer, x = made(name)
        for p in layer.parameters():
            p.data.add_(0.3 * torch.randn_like(p))  # as an optimiser leaves them: off the manifold
        before, calls, outputs = copy.deepcopy(layer.eval().state_dict()), counting(layer), []
        for mode in order * 2:
            with MODES[mode]():
                outputs.append(layer(x).detach().clone())
        assert torch.allclose(layer(x[:1]), outputs[0][:1], atol=1e-5)  # nor does it depend on the rest of the batch
        torch.autograd.grad(layer(x.requires_grad_()).square().sum(), x)
        assert len(calls) == 1 and all(torch.equal(output, outputs[0]) for output in outputs), order
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
        layer.bias.data.add_(1)  # no reason to build
        assert name.startswith(("sll", "cpl")) or torch.allclose(layer(x), outputs[0] + 1, atol=1e-5)
    for n in (2, 3):
        for p in layer.parameters():
            p.data.add_(0.1)
        layer(x), layer(x)
        assert len(calls) == n
    for _ in range(3):
        layer(x).sum().backward()
    assert len(calls) <= 4


@pytest.mark.parametrize("name", STEADY)
def test_one_build_for_every_step(name):
    """Two passes of a critic, then gradient accumulation, then an evaluation, which may build without the graph."""
    layer, x = made(name)
    descent = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer.train()
        calls = counting(layer)
        descent.zero_grad()
        real, fake = layer(x).sum(), layer(torch.randn_like(x)).sum()
        real.backward()
        fake.backward()
        layer(x).sum().backward()
        assert len(calls) == 1
        expected = layer(x).detach()
        layer.eval()
        for mode in MODES.values():
            with mode():
                assert torch.allclose(layer(x), expected, rtol=0, atol=1e-5)
        assert len(calls) <= 2
        del layer._build
        descent.step()


# Modes that do not mix in careless code -------------------------------------------------------------------------------


@trainable
def test_inference_mode_first_and_training_afterwards(name):
    for first in (True, False):
        layer, x = made(name, dtype=torch.float64)
        reference = copy.deepcopy(layer)
        layer.train(first)
        with torch.inference_mode():
            layer(x)
        for model in (layer.train(), reference):
            descent = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                descent.zero_grad()
                model(x).sum().backward()
                descent.step()
        assert torch.allclose(layer.eval().weight, reference.eval().weight, rtol=0, atol=1e-12)


@built
def test_parameters_made_in_inference_mode_are_never_stale(name):
    with torch.inference_mode():
        layer, x = made(name)
        first = layer.eval()(x).clone()
        CHANGES["data edited"](layer)  # invisible to any version counter
        assert not torch.allclose(layer(x), first, atol=1e-3)


@layers
def test_parameters_of_no_rank_are_completed_without_random_numbers(name):
    """To an isometry, where the layer is one, and always to the same."""
    layer, x = made(name, dtype=torch.float64)
    for p in layer.parameters():
        p.data.zero_()
    before, outputs = torch.get_rng_state(), []
    for _ in range(2):
        layer.eval().refresh()
        outputs.append(layer(x).detach())
    assert torch.equal(*outputs) and torch.equal(torch.get_rng_state(), before)
    if is_manifold(name) and not name.startswith("rko"):
        assert (singular_values(layer, *x.shape[1:]) - 1).abs().max() <= 1e-12
