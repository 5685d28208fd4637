"""Pictures that stay in their files and are decoded when they are asked for, so that memory does not grow with their number.

Note [Streamed batches]
A batch of a streamed set holds the same bytes as one of a set in memory: both are decoded by the same function, and which
pictures are in it is decided by whoever asks. Worker processes of torch's `DataLoader` decode ahead; batches come in the
order in which they were asked for, however many workers there are. No random number is drawn from torch's own generator.
Workers live as long as the iterator: they end with its last batch, when it is closed, on an error, and when the process
that started them is gone.
"""

import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from isoconv.data.image_set import Array, ImageSet
from isoconv.errors import IsoconvError, require

_MOST_WORKERS = 8
_COPIES = 3  # of the images, which reading them into memory and training on them may hold at once


class PathTable:
    """Paths in one piece of memory: a million take as much as their names, and worker processes share it."""

    def __init__(self, paths: Iterable[Path]) -> None:
        names = [os.fsencode(path) for path in paths]
        self._names, self._ends = b"".join(names), np.cumsum([0, *map(len, names)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Path:
        return Path(os.fsdecode(self._names[self._ends[index] : self._ends[index + 1]]))

    def __iter__(self) -> Iterator[Path]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Files, and how each becomes (C, H, W): `decode` returns (H, W, 1 or C) of one of them.

    workers : how many processes decode ahead; 0 leaves it to threads of this one
    """

    paths: PathTable
    shape: tuple[int, int, int]
    decode: Callable[[Path], Array]
    workers: int

    def read(self, index: int) -> Array:
        """Return one picture, uint8 (C, H, W)."""
        path = self.paths[index]
        array, (_, height, width) = self.decode(path), self.shape
        if array.shape[:2] != (height, width):
            problem = f"{width}×{height} in {self.paths[0]} and {array.shape[1]}×{array.shape[0]} in {path}"
            require(False, "pictures of one size, or a size to bring them to (--size)", problem)
        return np.broadcast_to(array.transpose(2, 0, 1), self.shape)

    def __getitems__(self, indices: Sequence[int]) -> Tensor | IsoconvError:
        """Return a batch, or what is wrong with a picture of it: raised in a worker, it would be wrapped in a traceback."""
        try:
            return _stack(self, map(self.read, indices), len(indices))
        except IsoconvError as error:
            return error

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the pictures of each batch of indices, uint8 (n, C, H, W), decoded ahead. See Note [Streamed batches]."""
        return self._by_workers(indices) if self.workers else self._by_threads(indices)

    def read_all(self, indices: Tensor) -> Tensor:
        """Return pictures, uint8 (n, C, H, W), all in memory."""
        return next(self._by_threads([indices]))

    def _by_threads(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        # Pillow works outside of Python's lock, so threads help.
        with ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1)) as pool:
            for index in indices:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow warns of odd metadata, which changes no pixel
                    batch = _stack(self, pool.map(self.read, index.tolist()), len(index))
                yield batch

    def _by_workers(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of more workers than cores, and that a process with threads is forked
            loader: DataLoader[Tensor] = DataLoader(
                self,  # type: ignore[arg-type]
                batch_sampler=(index.tolist() for index in indices),
                num_workers=self.workers,
                collate_fn=_as_it_is,
                worker_init_fn=_start_worker,
                generator=torch.Generator(),  # or it would draw from torch's own, which belongs to training
            )
            iterator: Any = iter(loader)
        try:
            for batch in iterator:
                if isinstance(batch, IsoconvError):
                    raise batch
                yield batch
        except RuntimeError as error:
            reason = (str(error).splitlines() or [""])[0].rstrip(".")
            advice = "With little shared memory, use fewer (--workers) or none (--workers 0)."
            raise IsoconvError(f"A process that decodes pictures has failed ({reason}). {advice}") from error
        finally:
            iterator._shutdown_workers()  # not left to the garbage collector: a traceback may keep the iterator


def _stack(files: PictureFiles, arrays: Iterable[Array], count: int) -> Tensor:
    images = np.empty((count, *files.shape), dtype=np.uint8)
    for image, array in zip(images, arrays, strict=True):
        image[:] = array
    return torch.from_numpy(images)


def _as_it_is(batch: Any) -> Any:
    return batch


def _start_worker(number: int) -> None:
    """Leave Ctrl-C to the process that trains, and end when it says so: a fork inherits how that one takes signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")


class StreamedSet(ImageSet):
    """An image set whose pictures stay in their files.

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
        """Read all pictures into memory."""
        return self.files.read_all(self.index)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.files.shape

    def to(self, device: torch.device | str) -> ImageSet:
        """Read all pictures into the memory of a device."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.classes, self.name)

    def _part(self, at: Any) -> ImageSet:
        return StreamedSet(self.files, self.index[at], self.labels[at], self.classes, self.name)

    def select(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the pictures of each batch of indices, decoded ahead."""
        return self.files.batches(self.index[index] for index in indices)

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
