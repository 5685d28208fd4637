"""The WGAN-GP: its two updates, stopping and going on, and what its folder holds."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from isoconv.errors import IsoconvError
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.gan import (
    Gan,
    GanBatches,
    GanConfig,
    load_generator,
    train_gan,
    update_gan,
    write_grid,
)
from train.toys import Watcher, stop_after, toy, toy_config

CONFIG = GanConfig("toy", (1, 8, 8), epochs=2, batch_size=16)
IMAGES = toy(96)


def trained(path, config=CONFIG, **options):
    folder = RunFolder(path)
    if not options.get("resume"):
        folder.start(config, overwrite=False)
    return train_gan(config, folder, IMAGES, options.pop("observer", Watcher()), **options)


def test_the_defaults_are_the_papers():
    config = GanConfig("stl10", (3, 64, 64))
    assert (config.epochs, config.batch_size, config.critic_steps, config.penalty) == (128, 64, 5, 50.0)
    assert (config.lr, config.beta1, config.beta2) == (2e-4, 0.5, 0.999)


def steps(gan, images, epochs):
    """Update the networks, and yield a copy of all weights after each update."""
    optimiser = gan.make_optimiser(gan.parameters(), torch.tensor(0.0))
    batches = GanBatches(gan, images, torch.device("cpu"))
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            update_gan(gan, optimiser, *batch)
            yield [
                torch.cat([p.detach().flatten().clone() for p in network.parameters()])
                for network in (gan.generator, gan.discriminator)
            ]


def test_five_updates_of_the_discriminator_to_one_of_the_generator():
    gan = Gan(CONFIG)
    before = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in (gan.generator, gan.discriminator)]
    for k, now in enumerate(steps(gan, IMAGES, 2), start=1):
        assert torch.equal(before[0], now[0]) == (k % 5 != 0)
        assert not torch.equal(before[1], now[1])
        before = now
    assert k == 12


def test_the_discriminators_gradients_are_those_of_the_penalised_loss():
    """By hand, on one batch: the difference, and the penalty with the gradient at mixtures of real and fake."""
    gan, same = Gan(CONFIG), Gan(CONFIG)
    gan.eval(), same.eval()
    images, noise, share = next(GanBatches(gan, IMAGES, torch.device("cpu")).epoch(0))
    update_gan(gan, torch.optim.SGD(gan.parameters(), 0.0), images, noise, share)

    real = images.float() / 127.5 - 1
    fake = same.generator(noise).detach()
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    real_mean, fake_mean = same.discriminator(real).mean(), same.discriminator(fake).mean()
    slopes = torch.autograd.grad(same.discriminator(mixed).sum(), mixed, create_graph=True)[0]
    loss = fake_mean - real_mean + 50 * (slopes.flatten(1).norm(dim=1) - 1).square().mean()
    loss.backward()
    for name, p in same.discriminator.named_parameters():
        torch.testing.assert_close(gan.discriminator.get_parameter(name).grad, p.grad, atol=1e-4, rtol=1e-3)
    assert all(p.grad is None for p in gan.generator.parameters())


def test_the_noise_of_a_step_depends_on_the_seed_and_the_step_alone():
    gan = Gan(CONFIG)
    epochs = [list(GanBatches(gan, IMAGES, torch.device("cpu")).epoch(k)) for k in (0, 1, 1)]
    assert all(torch.equal(x, y) for one, two in zip(*epochs[1:], strict=True) for x, y in zip(one, two, strict=True))
    assert not torch.equal(epochs[0][0][1], epochs[1][0][1])
    assert [len(batch) for batch in epochs[0] + epochs[1]] == [3, 3, 3, 3, 4] * 2 + [3, 3]


def test_it_learns_to_imitate():
    """Pictures whose left half is bright: the generator's become like that, from none of it."""
    noise = torch.randint(0, 60, (16, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    pictures = (noise + 180 * (torch.arange(8) < 4)).to(torch.uint8)
    gan = Gan(replace(CONFIG, lr=2e-3, penalty=1.0, critic_steps=2))  # in a hurry
    optimiser = gan.make_optimiser(gan.parameters(), torch.tensor(0.0))
    batches = GanBatches(gan, IMAGES, torch.device("cpu"))

    def left_minus_right():
        with torch.no_grad():
            images = gan.generator(gan.generator.noise(64, torch.Generator().manual_seed(0)))
        return float(images[..., :4].mean() - images[..., 4:].mean())

    assert abs(left_minus_right()) < 0.1
    for _, *noise in itertools.chain(*map(batches.epoch, range(25))):
        update_gan(gan, optimiser, pictures, *noise)
    assert left_minus_right() > 0.4  # theirs is 1.4


@pytest.mark.parametrize("stop", [3, 6, 8])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(stop, tmp_path):
    whole = trained(tmp_path / "whole")
    with pytest.raises(Stopped):
        trained(tmp_path / "cut", should_stop=stop_after(stop))
    resumed = trained(tmp_path / "cut", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    lines = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("whole", "cut")]
    differences = [[json.loads(line)["difference"] for line in found] for found in lines]
    assert differences[0] == differences[1] and len(differences[0]) == 2


def test_the_folder_of_a_finished_run(tmp_path):
    watcher = Watcher()
    generator = trained(tmp_path / "run", observer=watcher)
    assert watcher.steps == 12 and [report.epoch for report in watcher.reports] == [1, 2]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "model.safetensors"),
        *("state.safetensors", "result.json", "samples.png"),
    }
    with Image.open(tmp_path / "run" / "samples.png") as sheet:
        assert sheet.size == (8 * 10 - 2, 8 * 10 - 2) and sheet.mode == "L"
    loaded, config = load_generator(tmp_path / "run")
    assert config == CONFIG
    noise = generator.noise(6, torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(loaded(noise), generator(noise))


def test_the_seed_decides(tmp_path):
    first, again, other = (
        trained(tmp_path / str(k), replace(CONFIG, epochs=1, seed=seed)) for k, seed in enumerate((0, 0, 1))
    )
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)


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


def test_other_runs_are_no_generators(tmp_path):
    RunFolder(tmp_path / "classifier").start(toy_config(), overwrite=False)
    RunFolder(tmp_path / "begun").start(CONFIG, overwrite=False)
    for name, word in (("classifier", "another kind"), ("nothing", "config.json"), ("begun", "not finished")):
        with pytest.raises(IsoconvError, match=word):
            load_generator(tmp_path / name)


def test_a_corrupt_state_is_one_sentence(tmp_path):
    trained(tmp_path / "run", replace(CONFIG, epochs=1))
    (tmp_path / "run" / "state.safetensors").write_bytes(b"garbage")
    with pytest.raises(IsoconvError, match=r"state\.safetensors"):
        trained(tmp_path / "run", replace(CONFIG, epochs=1), resume=True)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"batch_size": 1}, {"lr": 0.0}, {"seed": -1}], ids=str)
def test_refused(options):
    with pytest.raises(IsoconvError, match=next(iter(options)).split("_")[0]):
        GanConfig("toy", (1, 8, 8), **options)
