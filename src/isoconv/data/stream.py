"""Shuffled batches of a data set, the same ones wherever the data lives and however many processes share them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isoconv.data.augment import Draws, crop_and_flip, draw, require_padding
from isoconv.data.image_set import ImageSet
from isoconv.data.seeds import epoch_generator
from isoconv.errors import IsoconvError

Batch = tuple[Tensor, Tensor]


class EpochBatches:
    """Batches (images uint8, labels int64) on `device`; `batches.epoch(e)` iterates over those of epoch e.

    Which images are in which batch, and how each is cropped (from `padding` zeros around it) and mirrored (if `flip`),
    is drawn on the CPU from (seed, e) alone: the same on every device, and for a run that resumes at epoch e.

    If the images fit on the device they stay there, are augmented an epoch at a time, and batches are picked there.
    Otherwise (or if `resident` says so) batches are sent from pinned host memory, one ahead of the one in use. The
    batches are the same, bit for bit.

    `batch_size` is that of all `world_size` processes together. Process `rank` gets its share of each batch, the
    rank-th of world_size equal parts, so that together they see what one process alone would see.
    """

    def __init__(
        self,
        data: ImageSet,
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        drop_last: bool = True,
        padding: int = 0,
        flip: bool = False,
        resident: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        if not 0 <= rank < world_size:
            raise IsoconvError(f"Expected a rank from 0 to world_size − 1. Got {rank} of {world_size}.")
        if batch_size < 1 or batch_size % world_size:
            raise IsoconvError(
                f"Expected a batch size that is positive and a multiple of {world_size} processes. Got {batch_size}."
            )
        left = len(data) % batch_size
        if len(data) == 0 or (drop_last and len(data) < batch_size):
            raise IsoconvError(
                f"Expected at least one batch of {batch_size} images. Got {len(data)} images: make the batch smaller."
            )
        if not drop_last and left % world_size:
            raise IsoconvError(
                f"Expected a last batch that {world_size} processes can share equally. "
                f"Got {left} images in it: use drop_last=True, or another batch size."
            )
        require_padding(padding)
        self.data, self.batch_size, self.seed, self.drop_last = data, batch_size, seed, drop_last
        self.padding, self.flip, self.rank, self.world_size = padding, flip, rank, world_size
        self.device = torch.device(device)
        augmented = padding > 0 or flip
        if resident is None:
            copies = (data.images.device != self.device) + augmented
            resident = fits(data.images.nbytes * copies, self.device)
        self.resident = resident
        self._augmented = augmented
        self._images = data.images.to(self.device) if resident else data.images.cpu()
        self._labels = data.labels.to(self.device) if resident else data.labels.cpu()

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self.data) // self.batch_size if self.drop_last else -(-len(self.data) // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        parts = self.indices(epoch)
        draws = None
        if self._augmented:
            generator = epoch_generator(self.seed, epoch, "augmentation")
            draws = Draws(
                *(drawn.to(self.device) for drawn in draw(len(self.data), self.padding, self.flip, generator))
            )
        return self._picked(parts, draws) if self.resident else self._sent(parts, draws)

    def indices(self, epoch: int) -> list[Tensor]:
        """This process's part of each batch, as indices into the data set."""
        order = torch.randperm(len(self.data), generator=epoch_generator(self.seed, epoch, "order"))
        batches = _cut(order, self.batch_size)[: len(self)]
        return [batch.chunk(self.world_size)[self.rank] for batch in batches]

    def _picked(self, parts: Sequence[Tensor], draws: Draws | None) -> Iterator[Batch]:
        images = self._images if draws is None else crop_and_flip(self._images, *draws, self.padding)
        for index in _cut(torch.cat(list(parts)).to(self.device), len(parts[0])):
            yield images.index_select(0, index), self._labels.index_select(0, index)

    def _sent(self, parts: Sequence[Tensor], draws: Draws | None) -> Iterator[Batch]:
        on_device = _cut(torch.cat(list(parts)).to(self.device), len(parts[0]))
        slots = [_Slot(self._images, self._labels, len(parts[0]), self.device) for _ in range(min(2, len(parts)))]
        slots[0].send(parts[0])
        for k, index in enumerate(on_device):
            if k + 1 < len(parts):
                slots[(k + 1) % 2].send(parts[k + 1])
            images, labels = slots[k % 2].receive()
            if draws is not None:
                images = crop_and_flip(images, draws.offsets[index], draws.flips[index], self.padding)
            yield images, labels


def fits(size: int, device: torch.device | str) -> bool:
    """Whether so many bytes may live on the device: on CUDA if they leave half of the free memory to the training."""
    device = torch.device(device)
    return device.type != "cuda" or 2 * size <= torch.cuda.mem_get_info(device)[0]


def _cut(order: Tensor, length: int) -> list[Tensor]:
    return [order[start : start + length] for start in range(0, len(order), length)]


@dataclass
class _Slot:
    """One batch on its way: collected in host memory, copied by a stream of its own, received by the current stream."""

    images: Tensor
    labels: Tensor
    batch_size: int
    device: torch.device

    def __post_init__(self) -> None:
        self.cuda = self.device.type == "cuda"
        self.host_images = torch.empty(
            self.batch_size, *self.images.shape[1:], dtype=self.images.dtype, pin_memory=self.cuda
        )
        self.host_labels = torch.empty(self.batch_size, dtype=self.labels.dtype, pin_memory=self.cuda)
        if self.cuda:
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, index: Tensor) -> None:
        if self.cuda:
            self.copied.synchronize()  # the host memory may still be on its way out
        images, labels = self.host_images[: len(index)], self.host_labels[: len(index)]
        torch.index_select(self.images, 0, index, out=images)
        torch.index_select(self.labels, 0, index, out=labels)
        if not self.cuda:
            self.batch = images.to(self.device, copy=True), labels.to(self.device, copy=True)
            return
        with torch.cuda.stream(self.stream):
            self.batch = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            self.copied.record()

    def receive(self) -> Batch:
        if self.cuda:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(self.copied)
            for tensor in self.batch:
                tensor.record_stream(current)  # or the memory would be given away when the copying stream is done
        return self.batch
