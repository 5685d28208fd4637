"""What a training step optimises. The engine knows nothing of classes or critics; it asks a task."""

from typing import Protocol

import torch
from torch import Tensor, nn

from isoconv.models import FC3, Large, Small
from isoconv.train.config import TrainConfig
from isoconv.train.losses import hinge_loss, offset_cross_entropy


class Task(Protocol):
    """One objective on batches of a fixed shape."""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to minimise, and how many of the batch count as right (zero where that means nothing)."""
        ...


class Classification:
    """Images of pixels 0 … 255 and labels, a margin loss on the logits."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        pixels = laid_out(images) / 255
        with torch.autocast(images.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            logits = model(pixels)
        logits = logits.float()
        if config.loss == "hinge":
            loss = hinge_loss(logits, labels, config.margin)
        else:
            loss = offset_cross_entropy(logits, labels, config.temperature, config.offset)
        return loss, (logits.argmax(dim=1) == labels).sum()


def laid_out(values: Tensor) -> Tensor:
    """A batch in float32, as a network takes it fastest: on a GPU images have their channels side by side, as cuDNN reads.

    Always a copy there: of images with one channel torch would say that they are so already, and go on in the usual layout.
    """
    if not values.is_cuda or values.dim() != 4:
        return values.to(torch.float32)
    return values.to(torch.float32, memory_format=torch.channels_last, copy=True)


def make_model(config: TrainConfig) -> nn.Module:
    """The network of a configuration, initialised from its seed, on the CPU so that every device starts alike."""
    kinds = {"small": Small, "large": Large, "fc3": FC3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return kinds[config.model](
            config.input_shape,
            classes=len(config.classes),
            conv=config.conv,
            activation=config.activation,
            orthogonalisation=config.orthogonalisation,
        )
