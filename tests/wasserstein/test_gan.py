"""The WGAN-GP: the paper's two networks, its two updates, stopping and going on, and what its folder holds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from isoconv.files import write_tensors
from isoconv.models.networks import Discriminator, Generator
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.gan import Gan, GanBatches, GanConfig, load_generator, train_gan, update_gan, write_grid
from train.toys import Watcher, refused, stopped, toy, toy_config

CONFIG = GanConfig("toy", (1, 8, 8), epochs=2, batch_size=16)
IMAGES = toy(96)
CPU = torch.device("cpu")


def trained(path, config=CONFIG, **options):
    folder = RunFolder(path)
    if not options.get("resume"):
        folder.start(config, overwrite=False)
    return train_gan(config, folder, IMAGES, options.pop("observer", Watcher()), **options)


def parameters(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def assert_gradients(one, other, atol):
    gradients = [[p.grad for p in network.parameters()] for network in (one, other)]
    torch.testing.assert_close(*gradients, atol=atol, rtol=1e-3)


# The networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 8, 12)])
def test_shapes_and_ranges_and_weights_that_begin_small(shape):
    generator, discriminator = Generator(shape), Discriminator(shape)
    images = generator(generator.noise(5, torch.Generator().manual_seed(0))).detach()
    assert images.shape == (5, *shape) and float(images.abs().max()) <= 1
    assert discriminator(images).shape == (5, 1)
    for module in (*generator, *discriminator):
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            assert float(module.bias.detach().abs().max()) == 0
            if module.weight.numel() > 1000:
                assert float(module.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_the_papers_parameter_counts_at_64_and_its_settings():
    """Linear 62→1024→32·16·16, deconvolutions 32→64→3; convolutions 3→64→32, linear 1024, 1; batch normalisation."""
    generator = 62 * 1024 + 1024 + 2 * 1024 + 1024 * 8192 + 8192 + 2 * 8192
    generator += 32 * 64 * 16 + 64 + 2 * 64 + 64 * 3 * 16 + 3
    discriminator = 3 * 64 * 16 + 64 + 64 * 32 * 16 + 32 + 2 * 32 + 8192 * 1024 + 1024 + 2 * 1024 + 1024 + 1
    assert len(parameters(Generator((3, 64, 64)))) == generator
    assert len(parameters(Discriminator((3, 64, 64)))) == discriminator
    config = GanConfig("stl10", (3, 64, 64))
    assert (config.epochs, config.batch_size, config.critic_steps, config.penalty) == (128, 64, 5, 50.0)
    assert (config.lr, config.beta1, config.beta2) == (2e-4, 0.5, 0.999)


def test_images_depend_on_their_batch_in_evaluation_too_and_noise_is_uniform():
    generator = Generator((1, 8, 8)).eval()
    noise, again = (generator.noise(1000, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(noise, again) and noise.shape == (1000, 62)
    assert float(noise.min()) >= 0 and float(noise.max()) < 1 and float(noise.mean()) == pytest.approx(0.5, abs=0.01)
    with torch.no_grad():
        together, half = generator(noise[:8]), generator(noise[:4])
        assert not torch.allclose(together[:4], half, atol=1e-4)
        assert torch.equal(together, generator.train()(noise[:8]))
    assert not list(generator.buffers())


# The updates ------------------------------------------------------------------------------------------------------


def test_five_updates_of_the_discriminator_to_one_of_the_generator():
    gan, batches = Gan(CONFIG), GanBatches(Gan(CONFIG), IMAGES, CPU)
    optimiser = gan.make_optimiser(gan.parameters(), torch.tensor(0.0))
    for k, batch in enumerate(itertools.chain(batches.epoch(0), batches.epoch(1)), start=1):
        before = parameters(gan.generator), parameters(gan.discriminator)
        update_gan(gan, optimiser, *batch)
        assert torch.equal(before[0], parameters(gan.generator)) == (k % 5 != 0)
        assert not torch.equal(before[1], parameters(gan.discriminator))
    assert k == 12


def test_the_gradients_are_those_of_the_penalised_loss_and_of_the_generators():
    """By hand, on one batch: the difference, and the penalty with the gradient at mixtures of real and fake."""
    gan, same = Gan(CONFIG).eval(), Gan(CONFIG).eval()
    images, noise, share = next(GanBatches(gan, IMAGES, CPU).epoch(0))
    update_gan(gan, torch.optim.SGD(gan.parameters(), 0.0), images, noise, share)
    real, fake = images.float() / 127.5 - 1, same.generator(noise).detach()
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    slopes = torch.autograd.grad(same.discriminator(mixed).sum(), mixed, create_graph=True)[0]
    penalty = 50 * (slopes.flatten(1).norm(dim=1) - 1).square().mean()
    (same.discriminator(fake).mean() - same.discriminator(real).mean() + penalty).backward()
    assert all(p.grad is None for p in gan.generator.parameters())
    assert_gradients(gan.discriminator, same.discriminator, atol=1e-4)
    update_gan(gan, torch.optim.SGD(gan.parameters(), 0.0), images, noise, share, noise.flip(0))
    same.discriminator(same.generator(noise.flip(0))).mean().neg().backward()
    assert_gradients(gan.generator, same.generator, atol=1e-6)


def test_the_noise_of_a_step_depends_on_the_seed_and_the_step_alone():
    gans = Gan(CONFIG), Gan(CONFIG), Gan(replace(CONFIG, seed=1))
    one, same, other = (list(GanBatches(gan, IMAGES, CPU).epoch(1)) for gan in gans)
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one[0][1], one[1][1]) and not torch.equal(one[0][1], other[0][1])
    one, same, other = map(parameters, gans)
    assert torch.equal(one, same) and not torch.equal(one, other)


# Runs -------------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_finished_run_and_of_one_that_was_stopped(tmp_path):
    watcher, names = Watcher(), ("config.json", "metrics.jsonl", "model.safetensors", "result.json")
    generator = trained(tmp_path / "run", observer=watcher)
    assert watcher.steps == 12 and [report.epoch for report in watcher.reports] == [1, 2]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*names, "state.safetensors", "samples.png"}
    with Image.open(tmp_path / "run" / "samples.png") as sheet:
        assert sheet.size == (8 * 10 - 2, 8 * 10 - 2) and sheet.mode == "L"
    loaded, config = load_generator(tmp_path / "run")
    assert config == CONFIG and torch.equal(parameters(loaded), parameters(generator))
    for stop in (3, 8):
        stopped(stop, trained, tmp_path / str(stop))
        assert torch.equal(parameters(generator), parameters(trained(tmp_path / str(stop), resume=True)))
        one, other = (RunFolder(tmp_path / run).read_metrics() for run in ("run", str(stop)))
        assert [line["difference"] for line in one] == [line["difference"] for line in other] and len(one) == 2


def test_a_grid_has_each_image_in_its_place(tmp_path):
    images = torch.linspace(-1, 1, 5)[:, None, None, None].expand(5, 3, 4, 6).clone()
    images[:, 1:] = -1
    write_grid(tmp_path / "grid.png", images, columns=3)
    with Image.open(tmp_path / "grid.png") as sheet:
        pixels = np.array(sheet)
    assert pixels.shape == (2 * 6 - 2, 3 * 8 - 2, 3)
    for k, level in enumerate((0, 64, 128, 191, 255)):
        top, left = k // 3 * 6, k % 3 * 8
        assert (abs(pixels[top : top + 4, left : left + 6, 0].astype(int) - level) <= 1).all()
    assert pixels[..., 1:].max() == 0 and pixels[4:6].max() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["grid.png"]


# What is refused --------------------------------------------------------------------------------------------------


def test_runs_that_are_no_generators_and_states_that_cannot_be_resumed(tmp_path):
    RunFolder(tmp_path / "classifier").start(toy_config(), overwrite=False)
    RunFolder(tmp_path / "begun").start(CONFIG, overwrite=False)
    for name, word in (
        ("classifier", "Got that of a classifier"),
        ("nothing", "config.json"),
        ("begun", "not finished"),
    ):
        refused(word, load_generator, tmp_path / name)
    state = tmp_path / "begun" / "state.safetensors"
    write_tensors(state, {"progress/done": torch.tensor(3), "generator/model/0.weight": torch.zeros(2)})  # an older one
    refused(r"state\.safetensors", trained, tmp_path / "begun", resume=True)
