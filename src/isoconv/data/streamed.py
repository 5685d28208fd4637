"""Images that stay in their files and are decoded when they are asked for, so that memory does not grow with their number.

Note [Streamed batches]
A batch of a streamed set holds the same bytes as one of a set in memory: both are decoded by the same function, and which
images are in it is decided by whoever asks. Worker processes decode ahead, whole batches in turn, and batches come in the
order in which they were asked for, however many workers there are.
Workers write into memory that they share with the process that asks, a slot for each batch that is on its way. A slot is
free again when its batch has been copied: new shared memory for each batch would cost a tenth of the time of decoding, for
the kernel to find and clear its pages.
Workers live as long as the iterator: they end with its last batch, when it is closed, on an error, and when the process
that started them is gone.
"""

import atexit
import errno
import math
import os
import signal
import warnings
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, multiprocessing

from isoconv.data.image_set import Array, Batch, ImageSet, gather
from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
_MOST_WORKERS = 8
_AHEAD = 2  # batches that each worker may be ahead
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


def require_one_size(size: tuple[int, ...], first: Source, pixels: Array, source: Source) -> None:
    """Raise unless pixels (H, W, C) have the size of the first picture."""
    if pixels.shape[:2] != size:
        problem = f"{size[1]}×{size[0]} in {first} and {pixels.shape[1]}×{pixels.shape[0]} in {source}"
        raise IsoconvError(f"Expected images of one size, or a size to bring them to (--size). Got {problem}.")


def map_by_threads(read: Callable[[Any], T], sources: Iterable[Any]) -> Iterator[T]:
    """Yield what becomes of each, in order, by several threads: Pillow works outside of Python's lock."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata, which changes no pixel
        yield from pool.map(read, sources)


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
        pixels = self.decode(source)
        require_one_size(self.shape[1:], self.sources[0], pixels, source)
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
        for index in indices:
            batch = self._new_batch(len(index), pinned)
            for image, pixels in zip(batch.numpy(), map_by_threads(self.read, index.tolist()), strict=True):
                image[:] = pixels
            yield batch

    def _by_workers(self, indices: Sequence[Tensor], pinned: bool) -> Iterator[Tensor]:
        # Slots for the batches ahead and for the one being copied: batch n goes to slot n % count, by worker n % workers.
        count = min(_AHEAD * self.workers + 1, len(indices))
        try:
            slots = self._new_batch(count * max(map(len, indices))).unflatten(0, (count, -1)).share_memory_()
            with _start_workers(self, slots) as workers:

                def ask(n: int) -> None:
                    workers[n % self.workers].send((n % count, indices[n].tolist()))

                for n in range(count):
                    ask(n)
                for n, index in enumerate(indices):
                    if (error := workers[n % self.workers].recv()) is not None:
                        raise error
                    batch, slot = self._new_batch(len(index), pinned), slots[n % count, : len(index)]
                    batch.numpy()[:] = slot.numpy()  # torch would copy with threads, which workers lack
                    if n + count < len(indices):
                        ask(n + count)
                    yield batch
        except (RuntimeError, EOFError, ConnectionError) as error:
            reason = str(error).split("\n")[0].rstrip(".") or "it has ended"
            advice = "With little shared memory, use fewer (--workers) or none (--workers 0)."
            raise IsoconvError(f"A process that decodes images has failed ({reason}). {advice}") from error


@contextmanager
def _start_workers(files: PictureFiles, slots: Tensor) -> "Iterator[list[Connection]]":
    """Start the processes that fill slots, and end them with this block, or with this process."""
    processes, connections, owner = list[multiprocessing.Process](), list["Connection"](), os.getpid()

    def end() -> None:
        for process in processes if os.getpid() == owner else ():  # they are not those of a process that was forked
            process.kill()
            process.join()

    try:
        with _hold_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a process with threads that is forked
            for _ in range(files.workers):
                ours, theirs = multiprocessing.Pipe()
                connections.append(ours)
                process = multiprocessing.Process(target=_fill_slots, args=(files, slots, ours, theirs), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()  # or the end of the worker would not be noticed
        atexit.register(end)  # before multiprocessing waits for them: a traceback may keep this block from ending
        yield connections
    finally:
        atexit.unregister(end)
        end()


def _fill_slots(files: PictureFiles, slots: Tensor, ours: "Connection", theirs: "Connection") -> None:
    """Read the pictures of each batch into the slot that is asked for; answer with what is wrong with one, or with None.

    Signals are for the process that trains: terminals, torchrun and schedulers send them to its workers too, and it needs
    them until it has saved. When it is gone, they end: they would hold its connections to other processes open, which would
    wait.
    """
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    ours.close()
    warnings.simplefilter("ignore")
    with suppress(EOFError, ConnectionError):
        while True:
            slot, indices = theirs.recv()
            try:
                files.read_into(slots[slot, : len(indices)].numpy(), indices)
                theirs.send(None)
            except (OSError, MemoryError, IsoconvError) as error:
                theirs.send(error)
            except Exception as error:  # which pickle may not be able to send
                theirs.send(IsoconvError(f"Expected images that can be decoded. Got {type(error).__name__}: {error}."))


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Let signals wait, in this process until it has started others, and in those until they ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING) if hasattr(signal, "pthread_sigmask") else set()
    try:
        yield
    finally:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StreamedSet(ImageSet):
    """An image set that stays in its files.

    `images` reads all of them, each time. `batches`, `select` and `isoconv.data.EpochBatches` need memory for a few
    batches only. A part of a streamed set is a streamed set.
    """

    def __init__(self, files: PictureFiles, index: Tensor, labels: Tensor, classes: Sequence[str], name: str) -> None:
        vars(self).update(files=files, index=index, labels=labels, classes=tuple(classes), name=name)  # it is frozen

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

    def select(self, indices: Sequence[Tensor], pinned: bool = False) -> Generator[Batch, None, None]:
        """Yield images, decoded ahead, and labels of each batch of indices, in pinned memory if asked for."""
        images = self.files.batches([self.index[index] for index in indices], pinned)
        for index, part in zip(indices, images, strict=True):
            yield part, gather(self.labels, index, pinned)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        return self.select(torch.arange(len(self)).split(batch_size) if len(self) else [])


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
