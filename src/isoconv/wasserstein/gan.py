"""The WGAN-GP of the paper: it makes the generator whose distance from the data the critics then measure."""

import dataclasses
import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoconv.data import EpochBatches, ImageSet
from isoconv.data.resizing import NO_PILLOW
from isoconv.data.seeds import epoch_generator
from isoconv.errors import IsoconvError
from isoconv.files import read_json, read_tensors, write_bytes, write_tensors, write_text
from isoconv.models.generator import Discriminator, Generator
from isoconv.train.classifier import device_name
from isoconv.train.engine import EpochReport, Observer, Stopped
from isoconv.train.run_folder import RunFolder, pack_state, unpack_state
from isoconv.wasserstein.bound import as_values

_KIND = "gan"


@dataclass(frozen=True)
class GanConfig:
    """All that is needed to repeat the training of a generator; the defaults are the paper's."""

    data: str
    image_shape: tuple[int, int, int]
    epochs: int = 128
    batch_size: int = 64
    critic_steps: int = 5
    penalty: float = 50.0
    lr: float = 2e-4
    beta1: float = 0.5
    beta2: float = 0.999
    seed: int = 0
    kind: str = _KIND

    def __post_init__(self) -> None:
        for name in ("epochs", "critic_steps"):
            if getattr(self, name) < 1:
                raise IsoconvError(f"Expected {name} of at least 1. Got {getattr(self, name)}.")
        if self.batch_size < 2:
            raise IsoconvError(f"Expected a batch of at least 2 images, to normalise over. Got {self.batch_size}.")
        for name in ("lr", "penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise IsoconvError(f"Expected {name} to be a positive number. Got {getattr(self, name)}.")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "GanConfig":
        fields = read_json(path)
        if fields.get("kind") != _KIND:
            raise IsoconvError(f"Expected the run of a generator in {path.parent}. Got a run of another kind.")
        try:
            fields["image_shape"] = tuple(fields["image_shape"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise IsoconvError(f"Expected a generator's configuration in {path}. Got: {error}.") from None


class Gan:
    """Generator and discriminator with their optimisers; `step(images)` is one update of the discriminator, and after
    every fifth of them one of the generator. The noise of step k comes from (seed, k) alone."""

    def __init__(self, config: GanConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.generator = Generator(config.image_shape).to(device)
            self.discriminator = Discriminator(config.image_shape).to(device)
        betas, on_gpu = (config.beta1, config.beta2), device.type == "cuda"
        self.optimisers = tuple(
            torch.optim.Adam(network.parameters(), config.lr, betas, fused=on_gpu, capturable=on_gpu)
            for network in (self.generator, self.discriminator)
        )
        self.done = 0
        self.seconds = 0.0
        self.difference = torch.zeros((), device=device)  # of the discriminator, summed over the epoch's steps
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.eager_steps = 0
        self.graphs: dict[bool, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}  # by whether the generator has its turn

    def step(self, images: Tensor) -> None:
        """One update on a batch of bytes. On a GPU the update is captured as a CUDA graph, and replayed."""
        random = epoch_generator(self.config.seed, self.done, "gan step", self.device)
        inputs = [images, self.generator.noise(len(images), random)]
        inputs.append(torch.rand(len(images), 1, 1, 1, generator=random, device=self.device))
        generators_turn = (self.done + 1) % self.config.critic_steps == 0
        if generators_turn:
            inputs.append(self.generator.noise(len(images), random))
        if self.stream is None:
            self._updates(*inputs)
        else:
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                self._replay(generators_turn, inputs)
            current.wait_stream(self.stream)
        self.done += 1

    def _replay(self, generators_turn: bool, inputs: list[Tensor]) -> None:
        if self.eager_steps < 2 * self.config.critic_steps:  # a few before a capture, and both networks' first update
            self._updates(*inputs)
            self.eager_steps += 1
            return
        if generators_turn not in self.graphs:
            graph, static = torch.cuda.CUDAGraph(), [given.clone() for given in inputs]
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, stream=self.stream):
                self._updates(*static)
            self.graphs[generators_turn] = graph, static
        graph, static = self.graphs[generators_turn]
        for to, given in zip(static, inputs, strict=True):
            to.copy_(given)
        graph.replay()

    def _updates(self, images: Tensor, noise: Tensor, mixture: Tensor, more_noise: Tensor | None = None) -> None:
        """One update of the discriminator and, where there is more noise, one of the generator."""
        real = as_values(images, (-1.0, 1.0), torch.float32)
        with torch.no_grad():
            fake = self.generator(noise)
        difference = self.discriminator(real).mean() - self.discriminator(fake).mean()
        between = (mixture * real + (1 - mixture) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.discriminator(between).sum(), between, create_graph=True)
        excess = slope.flatten(1).square().sum(dim=1).clamp_min(1e-12).sqrt() - 1
        self._update(1, -difference + self.config.penalty * excess.square().mean())
        if more_noise is not None:
            self._update(0, -self.discriminator(self.generator(more_noise)).mean())
        self.difference += difference.detach()

    def _update(self, which: int, loss: Tensor) -> None:
        self.optimisers[which].zero_grad(set_to_none=True)
        loss.backward()
        self.optimisers[which].step()

    def is_finite(self) -> bool:
        parameters = [*self.generator.parameters(), *self.discriminator.parameters()]
        return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)

    def save(self, path: Path) -> None:
        tensors = {"progress/done": torch.tensor(self.done), "progress/difference": self.difference}
        tensors["progress/seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        for name, network, optimiser in self._parts():
            tensors |= {f"{name}/{key}": value for key, value in pack_state(network, optimiser).items()}
        write_tensors(path, tensors)

    def load(self, path: Path) -> None:
        tensors = read_tensors(path)
        try:
            self.done, self.seconds = int(tensors["progress/done"]), float(tensors["progress/seconds"])
            self.difference.copy_(tensors["progress/difference"])
        except (KeyError, RuntimeError) as error:
            raise IsoconvError(f"Expected the state of a generator in {path}. Got another file: {error}.") from None
        for name, network, optimiser in self._parts():
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            unpack_state(own, network, optimiser)

    def _parts(self) -> tuple[tuple[str, Any, torch.optim.Optimizer], ...]:
        return (
            ("generator", self.generator, self.optimisers[0]),
            ("discriminator", self.discriminator, self.optimisers[1]),
        )


def train_gan(
    config: GanConfig,
    folder: RunFolder,
    images: ImageSet,
    observer: Observer,
    *,
    device: str = "cpu",
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 10.0,
) -> Generator:
    """Train to the last epoch, from wherever the folder's state is; the folder must have been started.

    Beside what every run's folder holds there is `samples.png`, a grid of images from fixed noise.
    """
    gan = Gan(config, torch.device(device))
    batches = EpochBatches(images, config.batch_size, seed=config.seed, device=device)
    if resume and folder.state.exists():
        gan.load(folder.state)
    per_epoch = len(batches)
    kept = [line for line in folder.read_metrics() if line["epoch"] <= gan.done // per_epoch]
    write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in kept))
    last_save = time.perf_counter()
    for epoch in range(gan.done // per_epoch, config.epochs):
        began, done_before, seconds_before = time.perf_counter(), gan.done, gan.seconds
        stopping = False
        for k, (batch, _) in enumerate(batches.epoch(epoch)):
            if epoch * per_epoch + k < done_before:  # done before the run was stopped
                continue
            gan.step(batch)
            observer.step(1)
            stopping = should_stop()
            if stopping and k + 1 < per_epoch:
                gan.seconds = seconds_before + time.perf_counter() - began
                gan.save(folder.state)
                raise Stopped
        difference = float(gan.difference) / per_epoch
        gan.difference.zero_()
        if not math.isfinite(difference) or not gan.is_finite():
            raise IsoconvError(
                f"Training diverged in epoch {epoch + 1}. Try a smaller learning rate than {config.lr:g}."
            )
        elapsed = time.perf_counter() - began
        gan.seconds = seconds_before + elapsed
        folder.append_metrics({"epoch": epoch + 1, "difference": difference, "seconds": elapsed})
        if stopping or time.perf_counter() - last_save >= save_every or epoch + 1 == config.epochs:
            gan.save(folder.state)
            write_grid(folder.path / "samples.png", fixed_samples(gan.generator, config.seed))
            last_save = time.perf_counter()
        share = max((gan.done - done_before) / per_epoch, 1e-9)
        speed = share * per_epoch * config.batch_size / elapsed
        left = (config.epochs - epoch - 1) * elapsed / share
        observer.epoch(EpochReport(epoch + 1, config.epochs, -difference, 0.0, speed, left))
        if stopping:
            raise Stopped
    result = {"data": config.data, "epochs": config.epochs, "seed": config.seed, "train_seconds": gan.seconds}
    folder.finish(gan.generator, result | {"device": device_name(gan.device), "torch": torch.__version__})
    return gan.generator


def load_generator(path: Path | str) -> tuple[Generator, GanConfig]:
    """The generator of a finished run, and its configuration."""
    folder = RunFolder(Path(path))
    if not folder.exists:
        raise IsoconvError(f"Expected the run of a generator in {path}. There is no {folder.config.name} in it.")
    config = GanConfig.read(folder.config)
    if not folder.model.exists():
        raise IsoconvError(f"The generator in {path} is not finished: it has no {folder.model.name}. Go on: --resume.")
    generator = Generator(config.image_shape)
    try:
        generator.load_state_dict(read_tensors(folder.model))
    except RuntimeError:
        raise IsoconvError(f"Expected the weights of a generator in {folder.model}. Got others.") from None
    return generator.eval(), config


def start_gan(config: GanConfig, folder: RunFolder, overwrite: bool) -> None:
    """Begin a new run in the folder, where it may."""
    folder.start(config, overwrite)
    (folder.path / "samples.png").unlink(missing_ok=True)


# Samples to look at -----------------------------------------------------------------------------------------------


@torch.no_grad()
def fixed_samples(generator: Generator, seed: int, count: int = 64) -> Tensor:
    """Always the same noise, so that grids of different epochs can be compared."""
    device = next(generator.parameters()).device
    noise = generator.noise(count, epoch_generator(seed, 0, "grid of samples"))
    return generator(noise.to(device)).cpu()


def write_grid(path: Path, images: Tensor, columns: int = 8) -> None:
    """Images (N, C, H, W) with values in [−1, 1] as one PNG, row by row, two black pixels apart."""
    try:
        from PIL import Image
    except ImportError:
        raise IsoconvError(NO_PILLOW) from None
    pixels = ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    count, channels, height, width = pixels.shape
    rows = -(-count // columns)
    sheet = torch.zeros(channels, rows * (height + 2) - 2, columns * (width + 2) - 2, dtype=torch.uint8)
    for k, image in enumerate(pixels):
        top, left = k // columns * (height + 2), k % columns * (width + 2)
        sheet[:, top : top + height, left : left + width] = image
    array = sheet[0].numpy() if channels == 1 else sheet.permute(1, 2, 0).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    write_bytes(path, buffer.getvalue())
