"""The GAN's two networks: the paper's shapes, start, and batch statistics that never freeze."""

import pytest
import torch
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.models.generator import Discriminator, Generator


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 8, 12)])
def test_shapes_and_range(shape):
    torch.manual_seed(0)
    generator, discriminator = Generator(shape), Discriminator(shape)
    images = generator(generator.noise(5, torch.Generator().manual_seed(0))).detach()
    assert images.shape == (5, *shape)
    assert float(images.min()) >= -1 and float(images.max()) <= 1
    assert discriminator(images).shape == (5, 1)


def test_the_papers_parameter_counts_at_64():
    """Linear 62→1024→32·16·16, deconvolutions 32→64→3; convolutions 3→64→32, linear 1024, 1; batch normalisation."""
    generator = 62 * 1024 + 1024 + 2 * 1024 + 1024 * 8192 + 8192 + 2 * 8192
    generator += 32 * 64 * 16 + 64 + 2 * 64 + 64 * 3 * 16 + 3
    discriminator = 3 * 64 * 16 + 64 + 64 * 32 * 16 + 32 + 2 * 32 + 8192 * 1024 + 1024 + 2 * 1024 + 1024 + 1
    assert sum(p.numel() for p in Generator((3, 64, 64)).parameters()) == generator
    assert sum(p.numel() for p in Discriminator((3, 64, 64)).parameters()) == discriminator


def test_weights_begin_small_and_biases_at_zero():
    torch.manual_seed(0)
    for network in (Generator((3, 16, 16)), Discriminator((3, 16, 16))):
        for module in network:
            if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
                assert float(module.bias.detach().abs().max()) == 0
                if module.weight.numel() > 1000:
                    assert float(module.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_an_image_depends_on_its_batch_in_evaluation_too():
    torch.manual_seed(0)
    generator = Generator((1, 8, 8)).eval()
    noise = generator.noise(8, torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, half = generator(noise), generator(noise[:4])
        assert not torch.allclose(together[:4], half, atol=1e-4)
        assert torch.equal(together, generator.train()(noise))
    assert not list(generator.buffers())


def test_noise_is_uniform_and_comes_from_the_generator_alone():
    generator = Generator((1, 8, 8))
    first, again = (generator.noise(1000, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again) and first.shape == (1000, 62)
    assert float(first.min()) >= 0 and float(first.max()) < 1
    assert float(first.mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("network", [Generator, Discriminator])
def test_sizes_that_four_does_not_divide_are_refused(network):
    with pytest.raises(IsoconvError, match="30×32"):
        network((3, 30, 32))
    with pytest.raises(IsoconvError, match="input_shape"):
        network((3, 32))
