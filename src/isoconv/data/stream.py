"""Shuffled, augmented batches: the same ones wherever the data lives and however many processes share them.

Random crops, mirror images and distortions are made on the device that holds the images, where they fit for a whole
epoch at once. Every random choice of an epoch depends on (seed, epoch) alone, and on nothing that happened before.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from isoconv.data.image_set import ImageSet
from isoconv.data.streamed import StreamedSet
from isoconv.errors import require

Batch = tuple[Tensor, Tensor]

# Bytes of padded images to work on at a time. A core is fastest in its cache; a GPU wants few launches, but the index of
# a piece takes eight bytes for each pixel.
_PIECE = {"cpu": 1 << 21, "other": 1 << 27}
_NUMBERS = 11  # that decide how an image is distorted


def epoch_generator(seed: int, epoch: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for one purpose in one epoch, so that a resumed run draws what it would have drawn.

    Generators of different purposes, epochs or seeds are independent. On the CPU they draw the same on every machine; a
    CUDA generator draws other numbers than one on the CPU.
    """
    require(min(seed, epoch) >= 0, "a seed and an epoch that are not negative", f"{seed} and {epoch}")
    # SeedSequence mixes its numbers well; sums or products of seed and epoch would let (0, 1) and (1, 0) meet.
    mixed = np.random.SeedSequence([seed, epoch, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(mixed))


def draw(count: int, padding: int, flip: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw for each image, on the generator's device, where its crop starts and whether it is mirrored.

    Return offsets (row, column) from 0 to 2·padding, int64 (count, 2), and fair coins, bool (count,): no flip, no heads.
    """
    require(padding >= 0, "a padding of 0 or more pixels", padding)
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator, device=generator.device)
    flips = torch.randint(0, 1 + flip, (count,), generator=generator, device=generator.device).bool()
    return offsets, flips


@torch.no_grad()
def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Crop image n, padded with zeros, from row offsets[n, 0] and column offsets[n, 1], and mirror it if flips[n].

    A crop has the size of the image. Works through the images in pieces, so that it needs little memory beyond its
    result. Offsets are trusted to lie in 0..2·padding: checking them would make a GPU wait.
    """
    require(padding >= 0, "a padding of 0 or more pixels", padding)
    is_triple = images.ndim == 4 and offsets.shape == (len(images), 2) and flips.shape == (len(images),)
    shapes = f"{tuple(images.shape)}, {tuple(offsets.shape)} and {tuple(flips.shape)}"
    require(is_triple, "images (N, C, H, W), offsets (N, 2) and flips (N,)", shapes)
    N, C, H, W = images.shape
    padded_height, padded_width = H + 2 * padding, W + 2 * padding
    row, column = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    result = torch.empty(N, C, H, W, dtype=images.dtype, device=images.device)
    padded_bytes = C * padded_height * padded_width * images.element_size()
    piece = max(1, _PIECE.get(images.device.type, _PIECE["other"]) // padded_bytes)
    for start in range(0, N, piece):
        at = slice(start, start + piece)
        source = pad(images[at], [padding] * 4).reshape(-1, C, padded_height * padded_width)
        rows = offsets[at, :1] + row
        columns = offsets[at, 1:] + torch.where(flips[at, None], W - 1 - column, column)
        # One index for all channels of an image: expanded, not copied.
        index = (padded_width * rows[:, :, None] + columns[:, None, :]).reshape(-1, 1, H * W).expand(-1, C, -1)
        torch.gather(source, 2, index, out=result[at].view(-1, C, H * W))
    return result


@torch.no_grad()
def distort(images: Tensor, numbers: Tensor, share: float, strength: float) -> Tensor:
    """Change contrast, brightness and saturation of a share of the images, and turn, stretch, shear and move a share.

    images : bytes (N, C, H, W); the result is rounded to bytes again
    numbers : uniform ones in [0, 1), float32 (N, 11), on the images' device; an image depends on its own alone
    strength : 1 changes colours by up to 40 % (saturation 60 %), turns by 20°, stretches and shears by a fifth and
        moves by 6 % of the side; other values in proportion. What comes in from outside is black.
    """
    fits = images.ndim == 4 and images.dtype == torch.uint8 and numbers.shape == (len(images), _NUMBERS)
    shapes = f"{images.dtype} {tuple(images.shape)} and {tuple(numbers.shape)}"
    require(fits, f"bytes (N, C, H, W) and numbers (N, {_NUMBERS})", shapes)
    N, C, H, W = images.shape
    y, x = ((2 * torch.arange(n, device=images.device) + 1) / n - 1 for n in (H, W))  # centres of pixels, from −1 to 1
    result, piece = torch.empty_like(images), max(1, _PIECE.get(images.device.type, _PIECE["other"]) // (8 * C * H * W))
    for start in range(0, N, piece):
        bytes_, drawn = images[start : start + piece], numbers[start : start + piece].T[..., None, None, None]
        # How much of each change: nothing for the images that are not of the share.
        colour, turning = ((drawn[k] < share) * strength for k in (0, 4))
        contrast, brightness, saturation = (
            1 + colour * r * (2 * drawn[k] - 1) for k, r in ((1, 0.4), (2, 0.4), (3, 0.6))
        )
        # Sums of bytes are exact, and three channels are added in order: no result depends on what is beside it.
        mean = bytes_.sum(dim=(1, 2, 3), keepdim=True) / (C * H * W)
        pixels = (bytes_ - mean) * contrast + mean * brightness
        grey = sum(pixels.split(1, 1)) / C
        pixels = ((pixels - grey) * saturation + grey).clamp(0, 255)
        ranges = (0.35, 0.2, 0.2, 0.2, 0.12, 0.12)
        angle, wide, high, shear, right, down = (
            (turning * r * (2 * drawn[k] - 1))[..., 0] for k, r in enumerate(ranges, start=5)
        )
        column = (1 + wide) * angle.cos() * x + (shear - angle.sin()) * (H / W) * y[:, None] + right
        row = angle.sin() * (W / H) * x + (1 + high) * angle.cos() * y[:, None] + down
        turned = grid_sample(pixels, torch.stack([column, row], dim=-1), padding_mode="zeros", align_corners=False)
        result[start : start + piece] = turned.round().clamp(0, 255).to(torch.uint8)
    return result


class EpochBatches:
    """Batches (images uint8, labels int64) on `device`; `batches.epoch(e)` iterates over those of epoch e.

    Which images are in which batch, and how each is cropped (from `padding` zeros around it), mirrored (if `flip`) and
    distorted (by `augment`, a share and a strength; see `distort`), is drawn on the CPU from (seed, e) alone: the same on
    every device, but for the rounding of distorted pixels, and for a run that resumes at epoch e.

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
        padding: int = 0,
        flip: bool = False,
        augment: tuple[float, float] = (0.0, 1.0),
        resident: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        require(0 <= rank < world_size, "a rank from 0 to world_size − 1", f"{rank} of {world_size}")
        shared = batch_size > 0 and batch_size % world_size == 0
        require(shared, f"a batch size that is a positive multiple of {world_size}", batch_size)
        enough = len(data) >= (batch_size if drop_last else 1)
        require(enough, f"at least one batch of {batch_size} images", f"{len(data)} images: make the batch smaller")
        left = 0 if drop_last else len(data) % batch_size
        require(left % world_size == 0, f"a last batch that {world_size} processes can share", f"{left} images in it")
        require(padding >= 0, "a padding of 0 or more pixels", padding)
        self.data, self.batch_size, self.seed, self.drop_last = data, batch_size, seed, drop_last
        self.padding, self.flip, self.rank, self.world_size = padding, flip, rank, world_size
        fits_in = 0 <= augment[0] <= 1 and 0 <= augment[1] <= 2
        require(fits_in, "a share of images from 0 to 1 and a strength from 0 to 2", augment)
        self.augment = augment
        self._data: ImageSet
        self.device, self._augmented = torch.device(device), padding > 0 or flip or augment[0] > 0
        if isinstance(data, StreamedSet):
            require(not resident, "images in memory, to keep them on the device", "streamed ones")
            self.resident, self._data = False, data
            return
        copies = (data.images.device != self.device) + self._augmented
        self.resident = fits(data.images.nbytes * copies, self.device) if resident is None else resident
        self._data = data.to(self.device if self.resident else "cpu")

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.data) // self.batch_size if self.drop_last else -(-len(self.data) // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch. The first `start` are not needed: streamed, they have no pixels to see."""
        draws: list[Tensor] = []
        if self._augmented:
            draws += draw(len(self.data), self.padding, self.flip, epoch_generator(self.seed, epoch, "augmentation"))
        if self.augment[0]:
            random = epoch_generator(self.seed, epoch, "distortion")
            draws.append(torch.rand(len(self.data), _NUMBERS, generator=random))
        draws = [drawn.to(self.device) for drawn in draws]
        parts = self.indices(epoch)
        return self._select(parts, draws) if self.resident else self._send(parts, draws, start)

    def _augment(self, images: Tensor, draws: Sequence[Tensor]) -> Tensor:
        if draws:
            images = crop_and_flip(images, draws[0], draws[1], self.padding)
        return distort(images, draws[2], *self.augment) if len(draws) == 3 else images

    def indices(self, epoch: int) -> list[Tensor]:
        """Return this process's part of each batch, as indices into the data set."""
        order = torch.randperm(len(self.data), generator=epoch_generator(self.seed, epoch, "order"))
        batches = order.split(self.batch_size)[: len(self)]
        return [batch.chunk(self.world_size)[self.rank] for batch in batches]

    def _select(self, parts: Sequence[Tensor], draws: Sequence[Tensor]) -> Iterator[Batch]:
        images, labels = self._augment(self._data.images, draws), self._data.labels
        for index in torch.cat(list(parts)).to(self.device).split(len(parts[0])):
            yield images.index_select(0, index), labels.index_select(0, index)

    def _send(self, parts: Sequence[Tensor], draws: Sequence[Tensor], start: int) -> Iterator[Batch]:
        indices = torch.cat(list(parts)).to(self.device).split(len(parts[0]))
        start = start if isinstance(self._data, StreamedSet) else 0
        for index in parts[:start]:
            blank = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(index), *self._data.shape)
            yield blank, self._data.labels[index]
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with closing(self._collect(parts[start:], stream is not None)) as batches:
            transfers = (_Transfer(batch, self.device, stream) for batch in batches)
            ahead = next(transfers)
            for index in indices[start:]:
                transfer, ahead = ahead, next(transfers, ahead)
                images, labels = transfer.receive()
                yield self._augment(images, [drawn[index] for drawn in draws]), labels

    def _collect(self, parts: Sequence[Tensor], pinned: bool) -> Generator[Batch, None, None]:
        """Yield batches in host memory."""
        images = self._data.select(parts, pinned) if isinstance(self._data, StreamedSet) else None
        for index in parts:
            labels = _gather(self._data.labels, index, pinned)
            if images is None:
                yield _gather(self._data.images, index, pinned), labels
            else:
                yield next(images), labels


def _gather(source: Tensor, index: Tensor, pinned: bool) -> Tensor:
    host = torch.empty(len(index), *source.shape[1:], dtype=source.dtype, pin_memory=pinned)
    return torch.index_select(source, 0, index, out=host)


def fits(size: int, device: torch.device | str) -> bool:
    """Return True if `size` bytes may live on the device: on CUDA, if they leave half of the free memory to training."""
    device = torch.device(device)
    return device.type != "cuda" or 2 * size <= torch.cuda.mem_get_info(device)[0]


class _Transfer:
    """One batch in transfer: it lies in pinned memory, is copied on a stream of its own, received on the current one.

    torch keeps pinned memory for later batches, and gives it out again only when it has been copied.
    """

    def __init__(self, batch: Batch, device: torch.device, stream: torch.cuda.Stream | None):
        self.stream = stream
        with torch.cuda.stream(stream):
            images, labels = (host.to(device, non_blocking=True) for host in batch)
            self.copied = None if stream is None else stream.record_event()
        self.batch = images, labels

    def receive(self) -> Batch:
        if self.stream is not None and self.copied is not None:
            current = torch.cuda.current_stream(self.stream.device)
            current.wait_event(self.copied)
            for tensor in self.batch:
                tensor.record_stream(current)  # or the memory is reused when the copying stream is done
        return self.batch
