"""Images that stay in their files and are decoded when they are asked for, so that memory does not grow with their number.

Note [Streamed batches]
A batch of a streamed set holds the same bytes as one of a set in memory: both are decoded by the same function, and which
images are in it is decided by whoever asks. Worker processes of torch's `DataLoader` decode ahead; batches come in the
order in which they were asked for, however many workers there are. No random number is drawn from torch's own generator.
Workers write into memory that they share with the process that asks, a slot for each batch that is on its way, and send the
slot's number. A slot is free again when its batch has been copied: new shared memory for each batch would cost a tenth of
the time of decoding, for the kernel to find and clear its pages.
Workers live as long as the iterator: they end with its last batch, when it is closed, on an error, and when the process
that started them is gone.
"""

import ctypes
import errno
import math
import os
import signal
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from isoconv.data.image_set import Array, ImageSet
from isoconv.errors import IsoconvError, require

_MOST_WORKERS = 8
_AHEAD = 2  # batches that each worker may be ahead
_SIGNAL_WHEN_PARENT_ENDS = 1  # PR_SET_PDEATHSIG of Linux's prctl
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_COPIES = 3  # of the images, which reading them into memory and training on them may hold at once


class Member(NamedTuple):
    """An image inside of a tar file: `size` bytes from `offset`. It is read like a path."""

    shard: Path
    offset: int
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.shard}:{self.name}"

    def read_bytes(self) -> bytes:
        with self.shard.open("rb", buffering=0) as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) < self.size:
            raise OSError(errno.EIO, "the tar file has become shorter")
        return content


Source = Path | Member


class SourceTable:
    """Where images lie, in little memory: a million take as much as their names, and worker processes share it.

    All of them are files, or all of them are members of tar files.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        names, places, shards = list[bytes](), array("q"), dict[Path, int]()
        for source in sources:
            if isinstance(source, Member):
                places.extend((shards.setdefault(source.shard, len(shards)), source.offset, source.size))
            names.append(os.fsencode(source.name if isinstance(source, Member) else source))
        self._names, self._ends = b"".join(names), np.cumsum([0, *map(len, names)])
        self._shards, self._places = list(shards), np.array(places).reshape(-1, 3)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Source:
        name = os.fsdecode(self._names[self._ends[index] : self._ends[index + 1]])
        if not self._shards:
            return Path(name)
        shard, offset, size = self._places[index].tolist()
        return Member(self._shards[shard], offset, size, name)

    def __iter__(self) -> Iterator[Source]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Image files, or members of tar files, and how each becomes (C, H, W): `decode` returns (H, W, 1 or C) of one.

    workers : how many processes decode ahead; 0 leaves it to threads of this one
    """

    sources: SourceTable
    shape: tuple[int, int, int]
    decode: Callable[[Source], Array]
    workers: int

    def read(self, index: int) -> Array:
        """Return one image, uint8 (C, H, W)."""
        source = self.sources[index]
        pixels, (_, height, width) = self.decode(source), self.shape
        if pixels.shape[:2] != (height, width):
            problem = f"{width}×{height} in {self.sources[0]} and {pixels.shape[1]}×{pixels.shape[0]} in {source}"
            require(False, "images of one size, or a size to bring them to (--size)", problem)
        return np.broadcast_to(pixels.transpose(2, 0, 1), self.shape)

    def read_into(self, images: Array, indices: Iterable[int]) -> None:
        """Write one image after the other into uint8 (n, C, H, W)."""
        for image, index in zip(images, indices, strict=True):
            image[:] = self.read(index)

    def batches(self, indices: Sequence[Tensor], pinned: bool = False) -> Iterator[Tensor]:
        """Yield the images of each batch of indices, uint8 (n, C, H, W), decoded ahead. See Note [Streamed batches]."""
        return self._by_workers(indices, pinned) if self.workers and indices else self._by_threads(indices, pinned)

    def read_all(self, indices: Tensor) -> Tensor:
        """Return images, uint8 (n, C, H, W), all in memory."""
        return next(self._by_threads([indices], pinned=False))

    def _new_batch(self, count: int, pinned: bool = False) -> Tensor:
        if pinned:
            return torch.empty(count, *self.shape, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(np.empty((count, *self.shape), dtype=np.uint8))  # numpy asks for large pages

    def _by_threads(self, indices: Iterable[Tensor], pinned: bool) -> Iterator[Tensor]:
        # Pillow works outside of Python's lock, so threads help.
        with ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1)) as pool:
            for index in indices:
                batch = self._new_batch(len(index), pinned)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow warns of odd metadata, which changes no pixel
                    for image, pixels in zip(batch.numpy(), pool.map(self.read, index.tolist()), strict=True):
                        image[:] = pixels
                yield batch

    def _by_workers(self, indices: Sequence[Tensor], pinned: bool) -> Iterator[Tensor]:
        ahead, iterator = _AHEAD * self.workers, None
        free = list(range(min(ahead + 1, len(indices))))  # slots for the batches ahead and for the one being copied
        try:
            memory = self._new_batch(len(free) * max(map(len, indices))).unflatten(0, (len(free), -1)).share_memory_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of more workers than cores, and that a process with threads is forked
                loader: DataLoader[int] = DataLoader(
                    _Slots(self, memory),  # type: ignore[arg-type]
                    batch_sampler=([free.pop(), *index.tolist()] for index in indices),
                    num_workers=self.workers,
                    prefetch_factor=_AHEAD,
                    collate_fn=_as_it_is,
                    worker_init_fn=_start_worker,
                    generator=torch.Generator(),  # or it would draw from torch's own, which belongs to training
                )
                with _hold_signals():
                    iterator = iter(loader)
            # Or torch raises an error as soon as a worker ends, wherever this process is. It comes with the next batch.
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False  # type: ignore[attr-defined]
            for index, slot in zip(indices, iterator, strict=True):
                if isinstance(slot, IsoconvError):
                    raise slot
                batch = self._new_batch(len(index), pinned)
                batch.numpy()[:] = memory[
                    slot, : len(index)
                ].numpy()  # torch would copy with threads, which workers lack
                free.append(slot)
                yield batch
        except RuntimeError as error:
            reason = (str(error).splitlines() or [""])[0].rstrip(".")
            advice = "With little shared memory, use fewer (--workers) or none (--workers 0)."
            raise IsoconvError(f"A process that decodes images has failed ({reason}). {advice}") from error
        finally:
            if iterator is not None:
                iterator._shutdown_workers()  # type: ignore[attr-defined]  # a traceback may keep the iterator


@dataclass(frozen=True, eq=False)
class _Slots:
    """What worker processes run: each batch goes to a slot, (n, C, H, W), of shared `memory`."""

    files: PictureFiles
    memory: Tensor

    def __getitems__(self, request: Sequence[int]) -> int | IsoconvError:
        """Fill the slot that comes first in the request with the pictures of the indices after it, and return its number.

        What is wrong with a picture is returned: raised in a worker, it would be wrapped in a traceback.
        """
        slot, *indices = request
        try:
            self.files.read_into(self.memory[slot, : len(indices)].numpy(), indices)
        except IsoconvError as error:
            return error
        return slot


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Let signals wait, in this process until it has started others, and in those until they ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING) if hasattr(signal, "pthread_sigmask") else set()
    try:
        yield
    finally:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(worker: int) -> None:
    """End when the process that trains says so, or is gone.

    Signals are for that process: terminals, torchrun and schedulers send them to its workers too, and it needs them until it
    has saved. Workers that outlived it would hold its connections to other processes open, which would wait; torch's own
    look after their parent takes five seconds.
    """
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
    warnings.simplefilter("ignore")


class StreamedSet(ImageSet):
    """An image set that stays in its files.

    `images` reads all of them, each time. `batches`, `select` and `isoconv.data.EpochBatches` need memory for a few
    batches only. A part of a streamed set is a streamed set.
    """

    def __init__(self, files: PictureFiles, index: Tensor, labels: Tensor, classes: Sequence[str], name: str) -> None:
        fields = {"files": files, "index": index, "labels": labels, "classes": tuple(classes), "name": name}
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    files: PictureFiles
    index: Tensor

    @property
    def images(self) -> Tensor:  # type: ignore[override]
        """Read all images into memory."""
        return self.files.read_all(self.index)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.files.shape

    def to(self, device: torch.device | str) -> ImageSet:
        """Read all images into the memory of a device."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.classes, self.name)

    def _part(self, at: Any) -> ImageSet:
        return StreamedSet(self.files, self.index[at], self.labels[at], self.classes, self.name)

    def share_workers(self, count: int) -> "StreamedSet":
        """Return the same set for one of so many that are streamed side by side: each has its share of the workers."""
        files = replace(self.files, workers=-(-self.files.workers // count))
        return StreamedSet(files, self.index, self.labels, self.classes, self.name)

    def select(self, indices: Iterable[Tensor], pinned: bool = False) -> Iterator[Tensor]:
        """Yield the images of each batch of indices, decoded ahead, in pinned memory if asked for."""
        return self.files.batches([self.index[index] for index in indices], pinned)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        if not len(self):
            return iter(())
        return zip(self.files.batches(self.index.split(batch_size)), self.labels.split(batch_size), strict=True)


def fit_in_memory(count: int, shape: tuple[int, int, int]) -> bool:
    """Return True if so many images may be held in memory, with the copies that are made of them."""
    free = free_memory()
    return free is None or _COPIES * count * math.prod(shape) <= free


def free_memory() -> int | None:
    """Return how many bytes the process may still use, of the machine's or of its container's; None if that is unknown."""
    known = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        known.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            # Files that the kernel keeps a copy of count as used, and are given up when memory is needed.
            text = Path(limit).with_name("memory.stat").read_text().split()
            cached = int(text[text.index("inactive_file") + 1])
            known.append(int(Path(limit).read_text()) - int(Path(used).read_text()) + cached)
    if not known:
        with suppress(AttributeError, OSError, ValueError):  # not on Windows
            known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return min(known, default=None)


def default_workers() -> int:
    """Return how many processes to decode with: the cores that this process may use, shared with others of one run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
