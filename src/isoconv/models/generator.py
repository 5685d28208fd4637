"""The generator and the discriminator of the paper's WGAN-GP."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoconv.models.networks import check_shape
from isoconv.records import require

LATENT = 62


class Generator(nn.Sequential):
    """From z ~ U[0, 1)^62 to an image in [−1, 1]: two linear layers, two transposed convolutions, for sizes that 4 divides.

    It normalises over its batch whenever it runs, in evaluation too: a batch of images is one draw of dependent images.
    """

    def __init__(self, image_shape: Sequence[int], latent: int = LATENT) -> None:
        channels, height, width = _divisible_by_four(image_shape)
        small = 32 * (height // 4) * (width // 4)
        super().__init__(
            nn.Linear(latent, 1024),
            nn.BatchNorm1d(1024, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(1024, small),
            nn.BatchNorm1d(small, track_running_stats=False),
            nn.ReLU(),
            nn.Unflatten(1, (32, height // 4, width // 4)),
            nn.ConvTranspose2d(32, 64, 4, 2, 1),
            nn.BatchNorm2d(64, track_running_stats=False),
            nn.ReLU(),
            nn.ConvTranspose2d(64, channels, 4, 2, 1),
            nn.Tanh(),
        )
        self.latent, self.image_shape = latent, (channels, height, width)
        _start(self)

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` draws of z, on the generator's device."""
        return torch.rand(count, self.latent, generator=generator, device=generator.device)


class Discriminator(nn.Sequential):
    """From an image to one number, unconstrained: two convolutions, two linear layers, LeakyReLU 0.2."""

    def __init__(self, image_shape: Sequence[int]) -> None:
        channels, height, width = _divisible_by_four(image_shape)
        super().__init__(
            nn.Conv2d(channels, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 1024),
            nn.BatchNorm1d(1024),
            nn.LeakyReLU(0.2),
            nn.Linear(1024, 1),
        )
        _start(self)


def _start(network: nn.Module) -> None:
    """All weights N(0, 0.02²), all biases zero, as the paper's code has it; batch normalisation as torch does."""
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, 0.02)
            assert module.bias is not None
            nn.init.zeros_(module.bias)


def _divisible_by_four(image_shape: Sequence[int]) -> tuple[int, int, int]:
    channels, height, width = check_shape(image_shape)
    require(height % 4 == width % 4 == 0, "images whose height and width 4 divides", f"{height}×{width}")
    return channels, height, width
