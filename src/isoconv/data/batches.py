"""Shuffled, augmented batches: the same ones wherever the data lives and however many processes share them.

Images are augmented on the device that holds them, where they fit for a whole epoch at once. Every random choice of an
epoch depends on (seed, epoch) alone, and on nothing that happened before.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoconv.data.augmentation import Augmentation
from isoconv.data.image_set import Batch, ImageSet
from isoconv.data.streamed import StreamedSet
from isoconv.errors import require


def epoch_generator(seed: int, epoch: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for one purpose in one epoch, so that a resumed run draws what it would have drawn.

    Generators of different purposes, epochs or seeds are independent. On the CPU they draw the same on every machine; a
    CUDA generator draws other numbers than one on the CPU.
    """
    require(min(seed, epoch) >= 0, "a seed and an epoch that are not negative", f"{seed} and {epoch}")
    # SeedSequence mixes its numbers well; sums or products of seed and epoch would let (0, 1) and (1, 0) meet.
    mixed = np.random.SeedSequence([seed, epoch, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(mixed))


class EpochBatches:
    """Batches (images uint8, labels int64) on `device`; `batches.epoch(e)` iterates over those of epoch e.

    Which images are in which batch, and what happens to each of them, is drawn on the CPU from (seed, e) alone: the same on
    every device, but for the rounding of pixels between pixels, and for a run that resumes at epoch e. Options such as
    `padding` and `flip` say what may happen: the fields of `Augmentation`.

    If the images fit on the device (or if `resident`) they stay there, are augmented an epoch at a time, and batches are
    selected there. Otherwise batches are sent from pinned host memory, one ahead of the one in use. Those of a
    `StreamedSet` are decoded ahead, by its workers, which end when the iterator is exhausted or closed. The batches are
    the same, bit for bit.

    `batch_size` counts the images of all `world_size` processes. Process `rank` gets the rank-th of world_size equal
    parts of each batch, so that together they see what one process alone would see.
    """

    def __init__(
        self,
        data: ImageSet,
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        drop_last: bool = True,
        resident: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
        **augmentation: Any,
    ):
        require(0 <= rank < world_size, "a rank from 0 to world_size − 1", f"{rank} of {world_size}")
        shared = batch_size > 0 and batch_size % world_size == 0
        require(shared, f"a batch size that is a positive multiple of {world_size}", batch_size)
        enough = len(data) >= (batch_size if drop_last else 1)
        require(enough, f"at least one batch of {batch_size} images", f"{len(data)} images: make the batch smaller")
        left = 0 if drop_last else len(data) % batch_size
        require(left % world_size == 0, f"a last batch that {world_size} processes can share", f"{left} images in it")
        self.data, self.batch_size, self.seed, self.drop_last = data, batch_size, seed, drop_last
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        self.augmentation = Augmentation(**augmentation)
        self.augmentation.check_channels(data.shape[0])
        self._data: ImageSet
        if isinstance(data, StreamedSet):
            require(not resident, "images in memory, to keep them on the device", "streamed ones")
            self.resident, self._data = False, data
            return
        copies = (data.images.device != self.device) + bool(self.augmentation)
        self.resident = fits(data.images.nbytes * copies, self.device) if resident is None else resident
        self._data = data.to(self.device if self.resident else "cpu")

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.data) // self.batch_size if self.drop_last else -(-len(self.data) // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch. The first `start` are not needed: streamed, they have no pixels to see."""
        drawn, parts = self.augmentation.draw(len(self.data), self.seed, epoch, self.device), self.indices(epoch)
        return self._select(parts, drawn) if self.resident else self._send(parts, drawn, start)

    def indices(self, epoch: int) -> list[Tensor]:
        """Return this process's part of each batch, as indices into the data set."""
        order = torch.randperm(len(self.data), generator=epoch_generator(self.seed, epoch, "order"))
        batches = order.split(self.batch_size)[: len(self)]
        return [batch.chunk(self.world_size)[self.rank] for batch in batches]

    def _select(self, parts: Sequence[Tensor], drawn: Mapping[str, Tensor]) -> Iterator[Batch]:
        images, labels = self.augmentation(self._data.images, drawn), self._data.labels
        for index in torch.cat(list(parts)).to(self.device).split(len(parts[0])):
            yield images.index_select(0, index), labels.index_select(0, index)

    def _send(self, parts: Sequence[Tensor], drawn: Mapping[str, Tensor], start: int) -> Iterator[Batch]:
        indices = torch.cat(list(parts)).to(self.device).split(len(parts[0]))
        start = start if isinstance(self._data, StreamedSet) else 0
        for index in parts[:start]:
            blank = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(index), *self._data.shape)
            yield blank, self._data.labels[index]
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with closing(self._data.select(parts[start:], pinned=stream is not None)) as batches:
            transfers = (self._transfer(batch, stream) for batch in batches)
            ahead = next(transfers)
            for index in indices[start:]:
                (images, labels, copied), ahead = ahead, next(transfers, ahead)
                if copied is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(copied)
                    for tensor in (images, labels):
                        tensor.record_stream(current)  # or the memory is reused when the copying stream is done
                yield self.augmentation(images, drawn, index), labels

    def _transfer(
        self, batch: Batch, stream: torch.cuda.Stream | None
    ) -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
        """Copy a batch from pinned memory on a stream of its own. Return it, and the event of having been copied.

        torch keeps pinned memory for later batches, and gives it out again only when it has been copied.
        """
        with torch.cuda.stream(stream):
            images, labels = (host.to(self.device, non_blocking=True) for host in batch)
            return images, labels, None if stream is None else stream.record_event()


def fits(size: int, device: torch.device | str) -> bool:
    """Return True if `size` bytes may live on the device: on CUDA, if they leave half of the free memory to training."""
    device = torch.device(device)
    return device.type != "cuda" or 2 * size <= torch.cuda.mem_get_info(device)[0]
