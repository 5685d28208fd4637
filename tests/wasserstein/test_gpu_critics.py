"""Critics and generators on a GPU: a captured step is the same step, and the command's way from samples to a bound works."""

import pytest
import torch

from isoconv.data import ImageSet
from isoconv.train.capture import GraphStepper, make_stepper
from isoconv.train.engine import Learner
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.critic import CriticTask, make_critic, train_critics
from isoconv.wasserstein.critic_config import CriticConfig, critic_settings
from isoconv.wasserstein.gan import Gan, GanConfig, start_gan, train_gan
from isoconv.wasserstein.known import translation
from isoconv.wasserstein.samples import DrawnSamples, FiniteSamples, GeneratedSamples
from train.toys import Watcher

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
    stepper = make_stepper([one], captured)
    batches = zip(
        *(side.batches(0, 0, STEPS, 32, side.name, CUDA) for side in pair),
        strict=True,
    )
    found = []
    for k, (xs, ys) in enumerate(batches, start=1):
        stepper.step([(xs, ys)])
        if k % 10 == 0:
            stepper.wait()
            found.append(float(one.take_sums()["loss"]))
    assert isinstance(stepper, GraphStepper) == captured
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_captured_step_of_a_critic_is_the_eager_step(name: str) -> None:
    one, other = losses(name, captured=True), losses(name, captured=False)
    assert one == pytest.approx(other, rel=2e-2, abs=1e-3)
    assert one[-1] < one[0]  # it learns


def test_from_draws_to_a_bound(tmp_path) -> None:
    pair = translation(32, 4.0, "normal")
    sides = [DrawnSamples(name, (32,), draw, 8192) for name, draw in (("a", pair.first), ("b", pair.second))]
    config = CriticConfig("a", "b", (32,), **(critic_settings("default", "fc") | {"epochs": 3}))
    folders = [RunFolder(tmp_path / str(seed)) for seed in range(2)]
    for folder in folders:
        folder.start(config, overwrite=False)
    found = train_critics([config, config], folders, *sides, Watcher(), device="cuda")
    for one in found:
        assert 0.95 * pair.distance < one.bound.lower <= one.bound.estimate < 1.05 * pair.distance


def test_a_generator_trains_as_on_the_cpu_and_can_be_measured(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (64, 3, 16, 16), generator=generator).to(torch.uint8)
    config = GanConfig("fake", (3, 16, 16), epochs=2, batch_size=32)
    here, there = Gan(config, torch.device("cpu")), Gan(config, CUDA)
    here.step(pixels[:32])
    there.step(pixels[:32].cuda())  # other noise, but the same networks: the real images count alike
    assert float(there.difference) == pytest.approx(float(here.difference), abs=0.03) and there.is_finite()
    images = ImageSet(pixels, torch.zeros(64, dtype=torch.int64), ("any",), "fake")
    folder = RunFolder(tmp_path / "gan")
    start_gan(config, folder, overwrite=False)
    trained = train_gan(config, folder, images, Watcher(), device="cuda")
    first = FiniteSamples("fake", pixels, whole=True)
    second = GeneratedSamples("generator", trained, count=256, batch=32)
    settings = critic_settings("default", "dcgan") | {"epochs": 1, "steps_per_epoch": 30, "batch_size": 32}
    critic = CriticConfig("fake", "generator", (3, 16, 16), pixel_range=(-1.0, 1.0), **settings)
    run = RunFolder(tmp_path / "critic")
    run.start(critic, overwrite=False)
    (found,) = train_critics([critic], [run], first, second, Watcher(), device="cuda")
    assert found.bound.estimate > 0 and found.bound.lipschitz_bound < 1.001


def test_a_captured_step_of_the_gan_is_the_eager_step() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (16, 32, 3, 16, 16), generator=generator).to(torch.uint8).cuda()
    config = GanConfig("fake", (3, 16, 16), batch_size=32, lr=1e-4)
    captured, eager = Gan(config, CUDA), Gan(config, CUDA)
    eager.eager_steps = -1000
    for batch in pixels:
        captured.step(batch)
        eager.step(batch)
    assert set(captured.graphs) == {False, True}
    assert not eager.graphs
    assert float(captured.difference) == pytest.approx(float(eager.difference), rel=2e-2, abs=1e-3)
    # Entries without a gradient (a bias in front of a normalisation) follow the sign of their rounding, under Adam; so
    # what is compared is the way that a network went, as a whole.
    fresh = Gan(config, CUDA)
    for network in ("generator", "discriminator"):
        went, other, began = (
            torch.cat([p.detach().flatten() for p in getattr(gan, network).parameters()])
            for gan in (captured, eager, fresh)
        )
        assert float((went - other).norm()) < 0.1 * float((other - began).norm())
