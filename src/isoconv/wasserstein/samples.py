"""The two distributions that a critic tells apart: batches to train on, and samples that it has not seen to judge by."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isoconv.data.seeds import epoch_generator
from isoconv.data.stream import fits
from isoconv.errors import IsoconvError
from isoconv.models.generator import Generator

Draw = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Judged:
    """Samples for evaluation: whether they are the whole distribution, and how many in a row depend on each other."""

    values: Tensor
    whole: bool = False
    group: int = 1


class Samples(Protocol):
    """One distribution."""

    name: str
    shape: tuple[int, ...]

    @property
    def observations(self) -> int | None:
        """How many independent ones it is judged by; None if that is all of the distribution."""
        ...

    def batches(
        self, seed: int, epoch: int, steps: int, batch_size: int, purpose: str, device: torch.device
    ) -> Iterator[Tensor]:
        """The training batches of an epoch, which depend on (seed, epoch, purpose) alone."""
        ...

    def judged(self, seed: int, purpose: str, device: torch.device) -> Judged:
        """What the critic is evaluated on; no training batch holds any of it, unless it is the whole distribution."""
        ...


class FiniteSamples:
    """A set of samples. Either it is the distribution (`whole`), trained on and evaluated on all of it; or it is a sample
    of one: then a part, chosen by `seed` before any training, is held out for the evaluation."""

    def __init__(
        self, name: str, values: Tensor, *, whole: bool = False, held_out: float = 0.25, seed: int = 0, side: str = ""
    ) -> None:
        if len(values) < (1 if whole else 2):
            raise IsoconvError(f"Expected at least two samples, one to train and one to hold out. Got {len(values)}.")
        if not 0 < held_out < 1:
            raise IsoconvError(f"Expected a fraction between 0 and 1 to hold out. Got {held_out}.")
        self.name, self.shape, self.whole = name, tuple(values.shape[1:]), whole
        if whole:
            self.train = self.rest = values
            return
        order = torch.randperm(len(values), generator=epoch_generator(seed, 0, f"held out {side}"))
        held = min(max(round(held_out * len(values)), 1), len(values) - 1)
        self.rest, self.train = values[order[:held]], values[order[held:]]

    @property
    def observations(self) -> int | None:
        return None if self.whole else len(self.rest)

    def fingerprint(self) -> str:
        """A hash of all samples and of which of them are held out."""
        found = hashlib.sha256()
        for part in (self.train,) if self.whole else (self.train, self.rest):
            found.update(part.contiguous().cpu().numpy().data)
        return found.hexdigest()

    def batches(
        self, seed: int, epoch: int, steps: int, batch_size: int, purpose: str, device: torch.device
    ) -> Iterator[Tensor]:
        per_pass = len(self.train) // batch_size
        if per_pass == 0:
            raise IsoconvError(
                f"Expected at least one batch of {batch_size} samples to train on in {self.name}. "
                f"Got {len(self.train)}: make the batch smaller (--batch-size)."
            )
        if fits(self.train.nbytes, device):
            self.train = self.train.to(device)
        passed = -1
        order = torch.empty(0)
        for step in range(epoch * steps, (epoch + 1) * steps):
            if step // per_pass != passed:
                passed = step // per_pass
                order = torch.randperm(len(self.train), generator=epoch_generator(seed, passed, f"{purpose} order"))
                order = order.to(self.train.device)
            start = step % per_pass * batch_size
            yield self.train.index_select(0, order[start : start + batch_size]).to(device)

    def judged(self, seed: int, purpose: str, device: torch.device) -> Judged:
        return Judged(self.rest, self.whole)

    def move(self, shift: Tensor) -> None:
        """Add a vector to every sample."""
        self.train = self.train + shift
        self.rest = self.train if self.whole else self.rest + shift


class DrawnSamples:
    """A distribution that can be drawn from without end; `count` fresh draws are what a critic is evaluated on."""

    def __init__(self, name: str, shape: tuple[int, ...], draw: Draw, count: int = 6400) -> None:
        self.name, self.shape, self.draw, self.count = name, shape, draw, count

    @property
    def observations(self) -> int | None:
        return self.count

    def batches(
        self, seed: int, epoch: int, steps: int, batch_size: int, purpose: str, device: torch.device
    ) -> Iterator[Tensor]:
        generator = epoch_generator(seed, epoch, f"{purpose} draws", device)
        for _ in range(steps):
            yield self.draw(batch_size, generator)

    def judged(self, seed: int, purpose: str, device: torch.device) -> Judged:
        return Judged(self.draw(self.count, epoch_generator(seed, 0, f"{purpose} judged", device)))


class GeneratedSamples:
    """Images of a generator that normalises over batches of `batch`: each batch is one draw.

    pixel_range : where its tanh's [−1, 1] is mapped to
    """

    def __init__(
        self,
        name: str,
        generator: Generator,
        *,
        count: int = 6400,
        batch: int = 64,
        pixel_range: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        if count < batch:
            raise IsoconvError(f"Expected at least one batch of {batch} images from {name}. Got {count}.")
        self.name, self.generator = name, generator
        self.shape: tuple[int, ...] = generator.image_shape
        self.count, self.batch, self.pixel_range = count - count % batch, batch, pixel_range

    @property
    def observations(self) -> int | None:
        return self.count // self.batch

    @torch.no_grad()
    def draw(self, random: torch.Generator) -> Tensor:
        """One batch."""
        images = self.generator.to(random.device)(self.generator.noise(self.batch, random))
        low, high = self.pixel_range
        return images if (low, high) == (-1, 1) else ((images + 1) * ((high - low) / 2) + low).clamp(low, high)

    def batches(
        self, seed: int, epoch: int, steps: int, batch_size: int, purpose: str, device: torch.device
    ) -> Iterator[Tensor]:
        random = epoch_generator(seed, epoch, f"{purpose} draws", device)
        left = torch.empty(0, *self.shape, device=device)
        for _ in range(steps):
            while len(left) < batch_size:
                left = torch.cat([left, self.draw(random)])
            yield left[:batch_size]
            left = left[batch_size:]

    def judged(self, seed: int, purpose: str, device: torch.device) -> Judged:
        random = epoch_generator(seed, 0, f"{purpose} judged", device)
        images = [self.draw(random).cpu() for _ in range(self.count // self.batch)]
        return Judged(torch.cat(images), group=self.batch)


class PairBatches:
    """Batches (xs, ys) of two distributions: `pairs.epoch(e)` iterates over those of epoch e."""

    def __init__(
        self,
        first: Samples,
        second: Samples,
        batch_size: int,
        steps_per_epoch: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        require_one_shape(first, second)
        self.first, self.second, self.batch_size, self.steps = first, second, batch_size, steps_per_epoch
        self.seed, self.device = seed, torch.device(device)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        asked = (self.seed, epoch, self.steps, self.batch_size)
        return zip(
            self.first.batches(*asked, "first", self.device),
            self.second.batches(*asked, "second", self.device),
            strict=True,
        )


def require_one_shape(first: Samples, second: Samples) -> None:
    if first.shape != second.shape:
        images = len(first.shape) == len(second.shape) == 3
        raise IsoconvError(
            f"Expected two distributions of one shape{' (--size, --channels)' if images else ''}. "
            f"Got {_shown(first.shape)} in {first.name} and {_shown(second.shape)} in {second.name}."
        )


def _shown(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return f"{'grey' if shape[0] == 1 else 'colour'} images of {shape[1]}×{shape[2]}"
    return f"vectors of dimension {shape[0]}" if len(shape) == 1 else f"samples of shape {shape}"
