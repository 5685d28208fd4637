"""What every attack promises: exact norms, verdicts in float64, one seed for all randomness, nothing touched."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.attack_reference import (
    DECISION_ATTACKS,
    DEVICES,
    GRADIENT_ATTACKS,
    assert_norms,
    easy_images,
    relu_network,
    small,
    wrong,
)
from isoconv.attacks import AttackResult, pgd, rounding_search

Attack = Callable[..., AttackResult]
JUDGED = {**GRADIENT_ATTACKS, **DECISION_ATTACKS}
EVERY = {**JUDGED, "rounding": partial(rounding_search, steps=5, rounds=2, candidates=8)}

judged = pytest.mark.parametrize("attack", JUDGED.values(), ids=JUDGED)
every = pytest.mark.parametrize("attack", EVERY.values(), ids=EVERY)


@judged
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "epsilon"), [((3,), 0.0), ((2, 5), 1e-200), ((3, 4, 4), 36 / 255), ((3,), 10.0)], ids=str
)
def test_points_keep_their_promises(attack: Attack, shape: tuple[int, ...], epsilon: float, device: str) -> None:
    model = relu_network(torch.Size(shape).numel())
    images, labels = easy_images(model, 8, *shape)
    labels[0] = (labels[0] + 1) % 5
    result = attack(model.to(device), images, labels, epsilon)
    assert result.images.dtype == result.norms.dtype == torch.float64
    assert result.images.device == images.device
    assert_norms(images, result, epsilon)
    assert torch.equal(result.clean, ~wrong(model.cpu(), images, labels))
    assert torch.equal(result.success, wrong(model.cpu(), result.images, labels))
    assert torch.equal(result.survived, result.clean & ~result.success)
    assert result.accuracy <= result.clean_accuracy == 87.5
    assert not result.clean[0] and bool(result.success[0])
    assert torch.equal(result.images[0], images[0]) and result.norms[0] == 0


class Halved(nn.Module):
    """In place, on whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5)


@every
def test_the_model_and_the_images_are_left_alone(attack: Attack) -> None:
    model = nn.Sequential(Halved(), nn.Dropout(0.5), small()).train()
    images, labels = easy_images(model, 6, 1, 8, 8)
    kept, before = images.clone(), {name: value.clone() for name, value in model.state_dict().items()}
    result = attack(model, images, labels, 0.1)
    assert torch.equal(images, kept) and result.images.data_ptr() != images.data_ptr()
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(result.margins, attack(model.eval(), images, labels, 0.1).margins)
    assert_norms(images, result, 0.1)


@pytest.mark.parametrize("attack", [attack for name, attack in EVERY.items() if name != "fgsm"])
def test_the_seed_decides_and_global_randomness_is_left_alone(attack: Attack) -> None:
    model = small()
    images, labels = easy_images(model, 10, 1, 8, 8)
    options = {} if attack is EVERY["rounding"] else {"early_stop": False}
    first = attack(model, images, labels, 0.1, seed=3, **options)
    torch.manual_seed(2)
    np.random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    again = attack(model, images, labels, 0.1, seed=3, **options)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])
    other = attack(model, images, labels, 0.1, seed=4, **options)
    assert torch.equal(first.images, again.images) and torch.equal(first.margins, again.margins)
    assert not torch.equal(first.images, other.images)


@every
@pytest.mark.parametrize(("mistakes", "early_stop"), [(3, True), (3, False), (12, True)])
def test_progress(attack: Attack, mistakes: int, early_stop: bool) -> None:
    """Images that are wrong from the start are finished at once."""
    model = small()
    images, labels = easy_images(model, 12, 1, 8, 8)
    labels[:mistakes] = (labels[:mistakes] + 1) % 5
    told: list[tuple[int, int]] = []
    options = {"batch_size": 4, "progress": lambda *state: told.append(state)}
    options |= {"early_stop": False} if not early_stop and attack not in (EVERY["fgsm"], EVERY["rounding"]) else {}
    result = attack(model, images, labels, 0.1, **options)
    assert torch.equal(result.images[:mistakes], images[:mistakes]) and bool(result.success[:mistakes].all())
    assert [done for done, _ in told] == sorted({done for done, _ in told}) and {total for _, total in told} <= {12}
    assert mistakes == 12 or (told[0][0] in (3, 7) and told[-1] == (12, 12) and len(told) >= 3)


@judged
def test_a_tie_is_wrong(attack: Attack) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    model.requires_grad_(False)[1].weight.zero_()
    model[1].bias.zero_()
    images = torch.full((4, 3), 0.5)
    result = attack(model, images, torch.tensor([0, 1, 2, 0]), 0.5)
    assert not bool(result.clean.any()) and bool(result.success.all())
    assert torch.equal(result.images.float(), images) and result.accuracy == 0


@judged
def test_flat_logits_have_no_direction(attack: Attack) -> None:
    """A gradient of zero stops an attack, as does a class that nothing leaves; neither makes NaN."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
    model[1].weight.data.zero_()  # type: ignore[operator,union-attr]
    model[1].bias.data.copy_(torch.arange(5))  # type: ignore[operator,union-attr,arg-type]
    images = torch.rand(3, 4)
    result = attack(model, images, torch.full((3,), 4), 0.5)
    assert bool(result.survived.all()) and bool(result.images.isfinite().all())


def test_under_other_settings_of_torch() -> None:
    model = small()
    images, labels = easy_images(model, 10, 1, 8, 8)
    expected = pgd(model, images, labels, 0.1, steps=5)
    with torch.inference_mode():
        results = [pgd(model, images.clone(), labels.clone(), 0.1, steps=5)]
        loaded = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        assert len(pgd(loaded, images.clone(), labels.clone(), 0.1, steps=5).images) == 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results.append(pgd(model, images, labels, 0.1, steps=5))
    torch.set_default_dtype(torch.float64)
    try:
        results.append(pgd(model, images, labels, 0.1, steps=5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(result.images, expected.images) for result in results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_in_other_precisions(dtype: torch.dtype) -> None:
    model = relu_network(12).to(dtype)
    images, labels = easy_images(model, 10, 3, 2, 2)
    result = pgd(model, images, labels.int(), 0.5, steps=10, step_size=0.1)
    assert torch.equal(result.success, wrong(model, result.images, labels))
    assert next(model.parameters()).dtype == dtype
