"""Critics and generators on a GPU: a captured step is the same step, and the command's way from samples to a bound works."""

import pytest
import torch
from torch import nn

from benchmarks.known_distances import translation
from isoconv.data import ImageSet
from isoconv.train.capture import Stepper
from isoconv.train.engine import Learner, Silent
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.critic import CriticConfig, CriticTask, critic_config, make_critic, train_critics
from isoconv.wasserstein.gan import Gan, GanBatches, GanConfig, train_gan, update_gan
from isoconv.wasserstein.samples import DrawnSamples, FiniteSamples, GeneratedSamples

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

CUDA = torch.device("cuda")
IMAGES = {"input_shape": (3, 16, 16), "pixel_range": (-1.0, 1.0), "model": "dcgan"}
VECTORS = {"input_shape": (32,), "width": 64, "depth": 2, "anchors": 64}
CASES = {
    "dcgan, steepest": {**IMAGES, "optimiser": "steepest", "lr": 1e-2},
    "dcgan, ReLU, RMSprop": {**IMAGES, "activation": "relu", "optimiser": "rmsprop", "lr": 1e-4},
    "dcgan, RKO": {**IMAGES, "conv": "rko", "optimiser": "steepest", "lr": 1e-2},
    "dcgan, OSSN": {**IMAGES, "conv": "ossn", "optimiser": "adam", "lr": 1e-4},
    "dcgan, the paper's way": {**IMAGES, "orthogonalisation": "bjorck", "optimiser": "rmsprop", "lr": 1e-4},
    "fc": {**VECTORS, "model": "fc", "activation": "groupsort", "optimiser": "steepest", "lr": 1e-2},
    "anchors": {**VECTORS, "model": "anchors", "optimiser": "adam", "lr": 2e-2},
}
STEPS = 40


@pytest.fixture(autouse=True)
def full_precision_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def samples(shape: tuple[int, ...]) -> tuple[FiniteSamples, FiniteSamples]:
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        xs, ys = (torch.randn(256, *shape, generator=generator) for _ in range(2))
        return FiniteSamples("a", xs + 1, whole=True), FiniteSamples("b", ys, whole=True)
    xs, ys = (torch.randint(0, 128, (256, *shape), generator=generator).to(torch.uint8) for _ in range(2))
    return FiniteSamples("a", xs + 64, whole=True), FiniteSamples("b", ys, whole=True)


def losses(name: str, captured: bool) -> list[float]:
    config = CriticConfig("a", "b", **({"batch_size": 32, "steps_per_epoch": STEPS, "epochs": 1} | CASES[name]))
    pair = samples(config.input_shape)
    one = Learner.from_config(config, make_critic(config, *pair), CriticTask(config), STEPS, device=CUDA)
    stepper = Stepper([one], captured=captured)
    sides = (side.batches(0, 0, STEPS, 32, side.name, CUDA) for side in pair)
    sums = []
    for k, batch in enumerate(zip(*sides, strict=True), start=1):
        stepper.step([batch])
        if k % 10 == 0:
            stepper.wait()
            sums.append(float(one.take_sums()["loss"]))
    assert bool(stepper.groups) == captured
    stepper.end()
    return sums


@pytest.mark.parametrize("name", CASES)
def test_a_captured_step_of_a_critic_is_the_eager_step(name: str) -> None:
    one, other = losses(name, captured=True), losses(name, captured=False)
    assert one == pytest.approx(other, rel=2e-2, abs=1e-3)
    assert one[-1] < one[0]  # it learns


def test_from_draws_to_a_bound() -> None:
    pair = translation(32, 4.0, "normal")
    sides = [DrawnSamples(name, (32,), draw, 8192) for name, draw in (("a", pair.first), ("b", pair.second))]
    config = critic_config("a", "b", (32,), "fc", epochs=3)
    for one in train_critics([config, config], None, *sides, device="cuda"):
        assert 0.95 * pair.distance < one.bound.lower <= one.bound.estimate < 1.05 * pair.distance


def pictures(count: int) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return ImageSet(pixels, torch.zeros(count, dtype=torch.int64), ("any",), "fake")


def test_a_generator_is_trained_and_can_be_measured(tmp_path) -> None:
    config, folder, images = GanConfig("fake", (3, 16, 16), epochs=16, batch_size=32), RunFolder(tmp_path), pictures(64)
    folder.start(config, overwrite=False)
    generator = train_gan(config, folder, images, Silent(), device="cuda")
    first = FiniteSamples("fake", images.images, whole=True)
    second = GeneratedSamples("generator", generator, count=256, batch=32)
    settings = {"epochs": 1, "steps_per_epoch": 30, "batch_size": 32, "pixel_range": (-1.0, 1.0)}
    critic = critic_config("fake", "generator", (3, 16, 16), **settings)
    (found,) = train_critics([critic], None, first, second, device="cuda")
    assert found.bound.estimate > 0 and found.bound.lipschitz_bound < 1.001


def test_a_captured_step_of_the_gan_is_the_eager_step() -> None:
    # In float64, since under Adam whatever has a small gradient follows the sign of its rounding. A bias in front of a
    # normalisation has no gradient but its rounding, and is left out.
    config, steps = GanConfig("fake", (3, 16, 16), batch_size=32, lr=1e-4), 32
    gans = [Gan(config).double() for _ in range(3)]
    for gan, captured in zip(gans, (True, False), strict=False):
        options = {"lr": config.lr, "schedule": "constant", "steps_per_epoch": steps, "device": CUDA}
        stepper = Stepper([Learner(gan, None, gan.make_optimiser, update=update_gan, **options)], captured=captured)
        for images, *noises in GanBatches(gan, pictures(32 * steps), CUDA).epoch(0):
            stepper.step([(images, *(noise.double() for noise in noises))])
        stepper.wait()
        stepper.end()
    gans[2].to(CUDA)
    for part in ("generator", "discriminator"):
        networks = [getattr(gan, part) for gan in gans]
        after = dict(enumerate([*networks[0]][1:]))
        idle = {f"{k}.bias" for k, module in after.items() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))}
        went, other, began = (
            torch.cat([p.detach().flatten() for name, p in network.named_parameters() if name not in idle])
            for network in networks
        )
        assert float((went - other).norm()) < 1e-5 * float((other - began).norm())
