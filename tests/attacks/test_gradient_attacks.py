"""PGD, FGSM and Auto-PGD: exactly within the budget, judged in float64, and as strong as mathematics allows."""

from functools import partial

import pytest
import torch

from attacks import attack_reference as given
from attacks.attack_reference import GRADIENT_ATTACKS, assert_norms, grey_images, lead, linear_problem, small_problem
from isoconv.attacks import apgd, fgsm, pgd
from isoconv.attacks.gradient import AutoAscent, checkpoints, nearest, random_starts
from isoconv.attacks.search import Search
from isoconv.certify import Certifier

attacks = pytest.mark.parametrize("attack", GRADIENT_ATTACKS.values(), ids=GRADIENT_ATTACKS)
untargeted = pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd"])


@attacks
def test_networks_of_isoconv(attack):
    """The margins are those of the points; where it fails the smallest, by Lipschitz continuity at most √2·ε lower."""
    model, images, labels = small_problem(12)
    result = attack(model, images.float(), labels, 0.15)
    assert torch.equal(result.success, given.wrong(model, result.images, labels))
    assert 0 < result.accuracy < 100
    logits = given.logits64(model, result.images)
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    torch.testing.assert_close(result.margins, logits.gather(1, labels[:, None])[:, 0] - others, rtol=0, atol=1e-14)
    clean, near = fgsm(model, images, labels, 0.0).margins, attack(model, images, labels, 0.01).margins
    assert bool(((near < clean) & (near >= clean - 2**0.5 * 0.01 * 1.0001)).all())


@untargeted
@pytest.mark.parametrize("shape", [(6,), (3, 8, 8)], ids=str)
def test_linear_classifier_of_two_classes(name, shape):
    """A half-space's distance is known: fooled just outside it, never inside, and 99 % of the possible at half of it."""
    attack = partial(pgd, steps=60) if name == "pgd" else GRADIENT_ATTACKS[name]
    model, images, labels, distances = linear_problem(20, 2, *shape)
    assert 1e-3 < float(distances.max()) < 0.4  # the ends of [0, 1] are further away
    assert bool(attack(model, images, labels, distances * 1.001).success.all())
    assert not bool(attack(model, images, labels, distances * (1 - 1e-9)).success.any())
    distances[0] = 0  # each image has its own budget
    half, clean = attack(model, images, labels, distances / 2), attack(model, images, labels, 0.0).margins
    assert torch.equal(half.epsilon, distances / 2)
    assert half.margins[0] == clean[0] and bool((half.margins <= clean * (1 - 0.99 / 2))[1:].all())
    assert bool((half.margins >= clean * (1 - 1 / 2) * (1 - 1e-9)).all())


@untargeted
@pytest.mark.parametrize("epsilon", [1e-10, 1e-4])
def test_a_budget_that_float32_cannot_see_is_used(name, epsilon):
    model, images, labels, _ = linear_problem(10, 2, 3, 4, 4)
    weight = model[1].weight.detach().double()
    before, after = (GRADIENT_ATTACKS[name](model, images, labels, budget) for budget in (0.0, epsilon))
    gained = (before.margins - after.margins)[after.survived]
    assert len(gained) >= 5
    assert bool((gained >= 0.99 * epsilon * (weight[0] - weight[1]).norm() - 1e-14).all())


def test_targets_find_the_nearest_of_many_classes():
    model, images, labels, distances = linear_problem(30, 6, 3, 5, 5)
    strong = partial(apgd, model, images, labels, loss="targeted-margin", targets=5, steps=40)
    assert bool(strong(epsilon=distances * 1.001).success.all())
    assert not bool(strong(epsilon=distances * (1 - 1e-9)).success.any())


@pytest.mark.parametrize("rank", [None, 0, 2])
def test_the_loss_is_dlr(rank):
    """Croce and Hein: (y_j − y_t)/(y_(1) − y_(3)), j the wrong class ahead; with a target the mean of y_(3) and y_(4)."""
    model, images, labels, _ = linear_problem(6, 5, 4)
    search = Search(model, images, labels, 0.1)
    for scaled in (False, True):
        loss = AutoAscent(search, torch.arange(6), 0 * images, 10, scaled, rank).loss(search.logits(images.float()))
        for value, row, t in zip(loss.tolist(), given.logits64(model, images).tolist(), labels.tolist(), strict=True):
            ordered = sorted(row, reverse=True)  # the label's logit is the first
            lead = ordered[1 + (rank or 0)] - row[t]
            third = ordered[2] if rank is None else (ordered[2] + ordered[3]) / 2
            assert value == pytest.approx(lead / (ordered[0] - third) if scaled else lead, rel=1e-4)


def test_more_steps_and_restarts_only_add():
    model = given.relu_network(48)
    images, labels = given.easy_images(model, 40, 3, 4, 4)
    one, four = (pgd(model, images, labels, 0.2, steps=5, restarts=r, early_stop=False).margins for r in (1, 4))
    assert bool((four <= one).all()) and bool((four < one).any())


@pytest.mark.parametrize("name", ["pgd", "apgd", "apgd targeted"])
def test_early_stop_has_the_same_survivors(name):
    model, images, labels = small_problem(24)
    stopped, full = (GRADIENT_ATTACKS[name](model, images, labels, 0.15, early_stop=early) for early in (True, False))
    assert torch.equal(stopped.success, full.success) and 0 < int(stopped.success.sum()) < 24
    assert bool((full.margins <= stopped.margins + 1e-6).all())


def test_auto_pgd_finds_its_step_size():
    """The label leads by ‖x − 0.48‖² + 0.01: there is a lowest point inside the ball, which long steps jump over."""
    valley = lead(lambda x: (x - 0.48).square().sum(dim=1) + 0.01)
    result = apgd(valley, grey_images(8, 20), torch.zeros(8, dtype=torch.int64), 0.5, steps=100)
    assert not bool(result.success.any())
    assert bool((result.margins - 0.01 < 1e-5).all())  # steps of 0.01 leave about 1e-4, steps of 2ε about 0.1
    # The checkpoints of Croce and Hein, rounded up.
    assert [step for step in checkpoints(100) if step < 100] == [22, 41, 57, 70, 80, 87, 93, 99]


@untargeted
def test_nan_is_wrong(name):
    """NaN where the mean is above 0.6, right below it."""
    root = lead(lambda x: (0.6 - x.mean(dim=1)).sqrt())
    images, more = torch.full((3, 4), 0.5, dtype=torch.float64), {"steps": 60} if name == "pgd" else {}
    result = GRADIENT_ATTACKS[name](root, images, torch.zeros(3, dtype=torch.int64), 0.3, **more)
    assert bool(result.clean.all()) and bool(result.success.all())
    assert bool((result.margins == -torch.inf).all()) and bool(result.images.isfinite().all())


def test_fooled_images_leave_the_batch():
    model, images, labels = small_problem(40)

    def gradients(epsilon=0.1, **options):
        result, _, sizes = given.watch(pgd, model, images, labels, epsilon, batch_size=40, **options)
        return int(result.survived.sum()), sizes

    survivors, seen = gradients(steps=60)
    assert seen[0] == 40 > seen[-1] >= survivors > 0
    assert seen == sorted(seen, reverse=True) and len(seen) == 60
    assert gradients(steps=20, early_stop=False)[1] == [40] * 20
    assert len(gradients(2.0, steps=200, step_size=0.1)[1]) < 100  # when all are fooled, it ends
    survivors, _ = gradients(steps=5)
    assert survivors < 40  # and later restarts are for those
    assert gradients(steps=5, restarts=2)[1][:10] == [40] * 5 + [survivors] * 5


def test_kernels_are_not_rebuilt():
    """The steps run on the plain network: the layers of the model, which build kernels, are never called."""
    model, images, labels = small_problem(6)
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(lambda *_: pytest.fail("a layer was called"))
    assert pgd(model, images, labels, 0.1, steps=3).clean.all()


def test_random_starts_belong_to_the_image():
    """Not to the batch; and they are spread over the ball: the n-th power of the share of the radius is uniform."""
    search = Search(*linear_problem(400, 2, 4)[:3], 0.01)
    everyone, some = random_starts(search, torch.arange(400), 0, 0), torch.tensor([7, 3, 399])
    assert torch.equal(random_starts(search, some, 0, 0), everyone[some])
    assert not torch.equal(random_starts(search, some, 0, 1), everyone[some])
    powers = (everyone.double().norm(dim=1) / 0.01) ** 4
    assert float(powers.max()) <= 1 + 1e-6
    assert float((powers.sort().values - (torch.arange(400) + 0.5) / 400).abs().max()) < 0.1
    assert float(everyone.double().mean(dim=0).abs().max()) < 0.001


def test_the_batch_size_does_not_matter_and_without_a_random_start_one_step_is_fgsm():
    model, images, labels = small_problem(15)
    first, *others = (pgd(model, images, labels, 0.1, steps=10, batch_size=size) for size in (15, 1, 7))
    for result in others:
        assert torch.equal(result.success, first.success)
        torch.testing.assert_close(result.margins, first.margins, rtol=0, atol=1e-4)
    step = pgd(model, images, labels, 0.1, steps=1, step_size=0.1, random_start=False, restarts=3)
    assert torch.equal(step.images, fgsm(model, images, labels, 0.1).images)


def test_float64_decides_who_is_fooled():
    """float32 rounds the label's lead to multiples of 2⁻⁷, often to nothing. 1e-3·x₀ cannot be lost; x₀ − 0.3 can."""
    images, labels = grey_images(5, 4), torch.zeros(5, dtype=torch.int64)
    noisy = lead(lambda x: (1e-3 * x[:, 0] + 1e5) - 1e5 + 0 * x[:, 1])
    for name in ("fgsm", "pgd", "apgd"):
        assert GRADIENT_ATTACKS[name](noisy, images, labels, 0.2).accuracy == 100
    far = lead(lambda x: (1e-2 * (x[:, 0] - 0.3) + 1e5) - 1e5)
    result = pgd(far, images, labels, 0.3, steps=80)
    assert bool(result.clean.all()) and bool(result.success.all())
    assert bool((result.images[:, 0] <= 0.3 + 1e-8).all())


# The nearest adversarial example: right where it is known, and never inside a certificate --------------------------


def test_nearest_finds_the_boundary_of_a_linear_classifier():
    """Never below the true distance, little above it; more rounds are never worse. The first image is wrong already."""
    model, images, labels, least = linear_problem(20, 4, 12)
    labels[0], least[0], told = (labels[0] + 1) % 4, 0, []
    few = nearest(model, images, labels, rounds=1, steps=20)
    many = nearest(model, images, labels, progress=lambda *state: told.append(state))
    assert bool(many.success.all()) and bool(given.wrong(model, many.images, labels).all())
    assert many.clean.tolist() == [False] + [True] * 19 and torch.equal(many.images[0], images[0])
    assert_norms(images, many, many.epsilon)
    assert bool(((least * (1 - 1e-9) <= many.norms) & (many.norms <= few.norms)).all())
    assert bool((many.norms <= 1.02 * least).all()) and told == [(k, 8) for k in range(1, 9)]


def test_nearest_is_never_within_a_certified_radius():
    model, images = small_problem(1)[0], given.uniform(6, 1, 8, 8, seed=0)
    certified = Certifier(model, (1, 8, 8))(images)
    found = nearest(model, images, certified.prediction, certified=certified.radius, rounds=4, steps=15)
    without = nearest(model, images, certified.prediction, rounds=4, steps=15)
    assert bool(found.success.all()) and bool((found.norms.minimum(without.norms) > certified.radius).all())
    assert float((found.norms / without.norms).max()) < 1.3  # the same boundary, from either start


def test_nearest_finds_nothing_where_there_is_nothing():
    images, labels = grey_images(3, 6), torch.zeros(3, dtype=torch.int64)
    found = nearest(lead(lambda x: 1 + 1e-3 * x.sum(dim=1)), images, labels, rounds=2, steps=5)
    assert not bool(found.success.any()) and bool(found.clean.all())
    assert torch.equal(found.images, images) and float(found.norms.max()) == 0
    farthest = (images - (images < 0.5).double()).norm(dim=1)
    assert bool((found.epsilon >= farthest).all())  # it has looked in all of [0, 1]ⁿ
