"""What every attack promises: exact norms, verdicts in float64, one seed for all randomness, nothing touched."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from attacks import attack_reference as given
from attacks.attack_reference import DECISION_ATTACKS, GRADIENT_ATTACKS, assert_norms, easy_images, small_problem, wrong
from isoconv.attacks import pgd, rounding_search

JUDGED = {**GRADIENT_ATTACKS, **DECISION_ATTACKS}
EVERY = {**JUDGED, "rounding": partial(rounding_search, steps=5, rounds=2, candidates=8)}

judged = pytest.mark.parametrize("attack", JUDGED.values(), ids=JUDGED)
every = pytest.mark.parametrize("attack", EVERY.values(), ids=EVERY)


@judged
@pytest.mark.parametrize("device", given.DEVICES)
@pytest.mark.parametrize(
    ("shape", "epsilon"), [((3,), 0.0), ((2, 5), 1e-200), ((3, 4, 4), 36 / 255), ((3,), 10.0)], ids=str
)
def test_points_keep_their_promises(attack, shape, epsilon, device):
    model = given.relu_network(torch.Size(shape).numel())
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


@every
def test_the_model_and_the_images_and_global_randomness_are_left_alone_and_the_seed_decides(attack):
    in_place = given.Function(lambda x: x.mul_(0.5))
    model = nn.Sequential(in_place, nn.Dropout(0.5), small_problem(1)[0]).train()
    images, labels = easy_images(model, 6, 1, 8, 8)
    kept, before = images.clone(), {name: value.clone() for name, value in model.state_dict().items()}
    result = attack(model, images, labels, 0.1)
    torch.manual_seed(2)
    np.random.seed(7)
    random = torch.get_rng_state(), np.random.get_state()[1].copy()
    again = attack(model.eval(), images, labels, 0.1)
    assert torch.equal(torch.get_rng_state(), random[0]) and np.array_equal(np.random.get_state()[1], random[1])
    assert torch.equal(images, kept) and result.images.data_ptr() != images.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(result.margins, again.margins) and torch.equal(result.images, again.images)
    assert_norms(images, result, 0.1)
    if attack is not EVERY["fgsm"]:
        options = {} if attack is EVERY["rounding"] else {"early_stop": False}
        one, other = (attack(model.train(), images, labels, 0.1, seed=seed, **options) for seed in (3, 4))
        assert not torch.equal(one.images, other.images) and all(module.training for module in model.modules())


@every
@pytest.mark.parametrize(("mistakes", "early_stop"), [(3, True), (3, False), (12, True)])
def test_progress(attack, mistakes, early_stop):
    """Images that are wrong from the start are finished at once."""
    model, images, labels = small_problem(12)
    labels[:mistakes] = (labels[:mistakes] + 1) % 5
    told = []
    options = {"batch_size": 4, "progress": lambda *state: told.append(state)}
    options |= {"early_stop": False} if not early_stop and attack not in (EVERY["fgsm"], EVERY["rounding"]) else {}
    result = attack(model, images, labels, 0.1, **options)
    assert torch.equal(result.images[:mistakes], images[:mistakes]) and bool(result.success[:mistakes].all())
    assert [done for done, _ in told] == sorted({done for done, _ in told}) and {total for _, total in told} <= {12}
    assert mistakes == 12 or (told[0][0] in (3, 7) and told[-1] == (12, 12) and len(told) >= 3)


@judged
@pytest.mark.parametrize(("slope", "label"), [(0, 2), (1, 4)], ids=["tie", "flat"])
def test_a_tie_is_wrong_and_flat_logits_have_no_direction(attack, slope, label):
    """A gradient of zero stops an attack, as does a class that nothing leaves; neither makes NaN."""
    images, logits = torch.rand(4, 3), slope * torch.arange(5.0)
    result = attack(given.Function(lambda x: 0 * x[:, :1] + logits.to(x)), images, torch.full((4,), label), 0.5)
    assert bool(result.survived.all()) == bool(slope) and result.accuracy == 100 * slope
    assert bool(result.images.isfinite().all()) and (slope or torch.equal(result.images.float(), images))


def test_under_other_settings_of_torch():
    model, images, labels = small_problem(10)
    attack = partial(pgd, epsilon=0.1, steps=5)
    expected = attack(model, images, labels)
    with torch.inference_mode():
        results = [attack(model, images.clone(), labels.clone())]
        assert len(attack(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), images.clone(), labels.clone()).images) == 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results.append(attack(model, images, labels))
    torch.set_default_dtype(torch.float64)
    try:
        results.append(attack(model, images, labels))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(result.images, expected.images) for result in results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_in_other_precisions(dtype):
    model = given.relu_network(12).to(dtype)
    images, labels = easy_images(model, 10, 3, 2, 2)
    result = pgd(model, images, labels.int(), 0.5, steps=10, step_size=0.1)
    assert torch.equal(result.success, wrong(model, result.images, labels))
    assert next(model.parameters()).dtype == dtype
