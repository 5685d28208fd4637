"""The WGAN-GP of the paper: it makes the generator whose distance from the data the critics then measure."""

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from isoconv.data import EpochBatches, ImageSet, Progress, epoch_generator
from isoconv.errors import IsoconvError, require
from isoconv.files import write_bytes
from isoconv.models.networks import Discriminator, Generator
from isoconv.train.classifier import device_name
from isoconv.train.config import Positive, PositiveInt, Settings, refuse_other_options
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport, Observer, Silent, fit
from isoconv.train.own_model import load_weights
from isoconv.train.run_folder import RunFolder, locked, open_runs
from isoconv.wasserstein.bound import as_values
from isoconv.wasserstein.samples import keep_shape, read_images, require_effect

_SECONDS_BETWEEN_GRIDS = 10.0


@dataclass(frozen=True)
class GanConfig(Settings):
    """All that is needed to repeat the training of a generator; the defaults are the paper's."""

    data: str
    image_shape: tuple[int, int, int]
    epochs: PositiveInt = 128
    batch_size: int = 64
    critic_steps: PositiveInt = 5
    penalty: Positive = 50.0
    lr: Positive = 2e-4
    beta1: float = 0.5
    beta2: float = 0.999
    seed: int = 0
    kind: str = "gan"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.batch_size >= 2, "a batch of at least 2 images, to normalise over", self.batch_size)


class Gan(nn.Module):
    """Generator and discriminator, initialised from the seed of a configuration."""

    def __init__(self, config: GanConfig) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.generator, self.discriminator = Generator(config.image_shape), Discriminator(config.image_shape)

    def make_optimiser(self, parameters: Any, rate: Tensor) -> Optimizer:
        """Return one Adam for both networks. It moves only parameters that have a gradient."""
        config, on_gpu = self.config, rate.is_cuda
        return torch.optim.Adam(parameters, config.lr, (config.beta1, config.beta2), fused=on_gpu, capturable=on_gpu)


def update_gan(
    gan: Gan, optimiser: Optimizer, images: Tensor, noise: Tensor, mixture: Tensor, more_noise: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Update the discriminator and, where there is more noise, the generator. Return minus the difference of means."""
    real = as_values(images, (-1.0, 1.0), noise.dtype)
    with torch.no_grad():
        fake = gan.generator(noise)
    difference = gan.discriminator(real).mean() - gan.discriminator(fake).mean()
    between = (mixture * real + (1 - mixture) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(gan.discriminator(between).sum(), between, create_graph=True)
    excess = slope.flatten(1).square().sum(dim=1).clamp_min(1e-12).sqrt() - 1
    _step(optimiser, gan.discriminator, -difference + gan.config.penalty * excess.square().mean())
    if more_noise is not None:
        _step(optimiser, gan.generator, -gan.discriminator(gan.generator(more_noise)).mean())
    return -difference, {"difference": difference}


def _step(optimiser: Optimizer, network: nn.Module, loss: Tensor) -> None:
    """Move one of the two networks."""
    optimiser.zero_grad(set_to_none=True)
    parameters = list(network.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()


class GanBatches:
    """Batches for `update_gan`: images and noise, and after every fifth of them more noise for the generator.

    The noise of step k comes from (seed, k) alone.
    """

    def __init__(self, gan: Gan, images: ImageSet, device: torch.device) -> None:
        self.gan, self.device = gan, device
        self.images = EpochBatches(images, gan.config.batch_size, seed=gan.config.seed, device=device)

    def __len__(self) -> int:
        return len(self.images)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        config, draw = self.gan.config, self.gan.generator.noise
        for step, (images, _) in enumerate(self.images.epoch(epoch), start=epoch * len(self)):
            random, n = epoch_generator(config.seed, step, "gan step", self.device), len(images)
            batch = images, draw(n, random), torch.rand(n, 1, 1, 1, generator=random, device=self.device)
            yield batch if (step + 1) % config.critic_steps else (*batch, draw(n, random))


class _GridWriter:
    """Passes everything on, and writes a grid of samples every few seconds and after the last epoch."""

    def __init__(self, observer: Observer, gan: Gan, path: Path) -> None:
        self.step, self.observer, self.gan, self.path = observer.step, observer, gan, path
        self.written = time.monotonic()

    def epoch(self, report: EpochReport) -> None:
        self.observer.epoch(report)
        if report.epoch == report.epochs or time.monotonic() - self.written >= _SECONDS_BETWEEN_GRIDS:
            generator, device = self.gan.generator, next(self.gan.parameters()).device
            # Always the same noise, so that grids of different epochs can be compared.
            noise = generator.noise(64, epoch_generator(self.gan.config.seed, 0, "grid of samples"))
            with torch.no_grad():
                write_grid(self.path, generator(noise.to(device)).cpu())
            self.written = time.monotonic()


def train_gan(
    config: GanConfig, folder: RunFolder, images: ImageSet, observer: Observer, *, device: str = "cpu", **training: Any
) -> Generator:
    """Train to the last epoch, from wherever the folder's state is; the folder must have been started.

    Beside what every run's folder holds there is `samples.png`, a grid of images from fixed noise. `training` says how to
    resume, stop and save; see `fit`.
    """
    gan, target = Gan(config), torch.device(device)
    training |= {"epochs": config.epochs, "lr": config.lr, "schedule": "constant", "update": update_gan}
    training |= {"observer": _GridWriter(observer, gan, folder.path / "samples.png"), "device": target}
    batches = GanBatches(gan, images, target)
    with locked([folder]):
        (fitted,) = fit([gan], [batches], None, gan.make_optimiser, folder=[folder], **training)
        result = {"data": config.data, "epochs": config.epochs, "seed": config.seed, "train_seconds": fitted.seconds}
        folder.finish(gan.generator, result | {"device": device_name(target), "torch": torch.__version__})
    return gan.generator


def train_generator(
    data: str,
    folder: Path,
    *,
    files: Path | None = None,
    download: bool = False,
    size: int | None = None,
    channels: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[int, int], Observer] = lambda updates, done: Silent(),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Generator:
    """Train a generator of the images of a data set or a folder; `settings` are fields of `GanConfig`.

    A run that is resumed keeps its settings, and refuses others.

    files, download, size, channels : how images are read; stl10 is resized to 64 by default
    watch : is called with the number of updates and those already done, and returns what shows the progress
    """
    device = choose_device(device)
    require(not (resume and overwrite), "--resume or --overwrite", "both")
    run = RunFolder(folder)
    reading: dict[str, Any] = {"folder": files, "download": download, "size": size, "channels": channels}
    require_effect([data], {"--data": files, "--download": download})
    if resume:
        stored = GanConfig.read_resumed(run)
        refuse_other_options(vars(stored), settings | {"data": data})
        reading = keep_shape(reading, stored.image_shape)
    elif data == "stl10" and size is None:
        reading["size"] = 64
    images = read_images(data, **reading, progress=progress)
    config = replace(stored, image_shape=images.shape) if resume else GanConfig(data, images.shape, **settings)
    updates = len(EpochBatches(images, config.batch_size)) * config.epochs
    Generator(config.image_shape)  # a shape that it cannot make is refused before anything is written
    open_runs([run], [config], resume, overwrite)
    observer = watch(updates, run.updates_done())
    return train_gan(config, run, images, observer, device=device, resume=resume, should_stop=should_stop)


def load_generator(path: Path | str) -> tuple[Generator, GanConfig]:
    """Return the generator of a finished run, and its configuration."""
    folder = RunFolder(Path(path))
    require(folder.exists, f"the run of a generator in {path}", f"no {folder.config.name} there")
    config = GanConfig.read(folder.config)
    if not folder.model.exists():
        raise IsoconvError(f"The generator in {path} is not finished: it has no {folder.model.name}. Use --resume.")
    generator = Generator(config.image_shape)
    load_weights(generator, folder.model, "a generator")
    return generator.eval(), config


def write_grid(path: Path, images: Tensor, columns: int = 8) -> None:
    """Write images (N, C, H, W) with values in [−1, 1] as one PNG, row by row, two black pixels apart."""
    levels = ((images + 1) * 127.5).round().clamp(0, 255)
    pixels = nn.functional.pad(levels, (0, 2, 0, 2, 0, 0, 0, -len(images) % columns))
    rows = pixels.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2)
    sheet = rows.flatten(2, 3).flatten(0, 1)[:-2, :-2].to(torch.uint8).numpy()
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(sheet.squeeze(2) if sheet.shape[2] == 1 else sheet).save(buffer, format="PNG")
    write_bytes(path, buffer.getvalue())
