"""Several processes on one training run, or on one certification, as `torchrun` starts them.

Note [Any number of processes]
The batches, the state that is saved and the answer do not depend on how many processes share the work. Process r of N takes
the r-th of N equal parts of each batch, the gradients are averaged, and so every process takes the step that one alone would
take, up to rounding. What is saved are the weights and the optimiser's state, which all of them have, and sums over all of
them. So a run can go on with another N. What a loss or a layer makes of a batch as a whole (the means of `BatchCentering`,
random numbers in the loss) is of the process's part of it.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from isoconv.errors import IsoconvError, require

T = TypeVar("T")


class Abandoned(IsoconvError):  # noqa: N818  (what happened to the run)
    """Another process of the run has ended, so that this one cannot go on."""


@dataclass(frozen=True)
class Processes:
    """How many processes there are and which one this is. One alone needs no communication.

    store : what torchrun keeps for all of them, and what outlives each of them
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    store: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def join(cls, device: str) -> "Processes":
        """Join the others if torchrun started us (it says so in the environment)."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        store = None
        if not dist.is_initialized():
            # Numbers of the host, such as whether to stop, go over gloo: asking a GPU for them would make it wait.
            backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
            store, rank, count = next(iter(rendezvous("env://")))
            dist.init_process_group(backend, store=store, rank=rank, world_size=count)
        return cls(dist.get_rank(), count, int(os.environ.get("LOCAL_RANK", "0")), store)

    @property
    def first(self) -> bool:
        """Return True if this process is the one that writes files and talks."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Return the device of this process: each has its own GPU."""
        return torch.device("cuda", self.local_rank) if self.count > 1 and name == "cuda" else torch.device(name)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with its gradients averaged over all processes."""
        return DistributedDataParallel(model) if self.count > 1 else model

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        with self.guard():
            dist.all_reduce(sums)
        return sums.tolist()

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set in one of the processes: all must agree, or some would wait for ever."""
        return [bool(count) for count in self.total(flags)]

    def gather(self, value: T) -> list[T]:
        """Return what each process has, in the order of their ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with self.guard():
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until all processes have come this far."""
        self.total([0.0])

    def share(self, count: int, piece: int) -> range:
        """Return which of `count` items this process takes: as equal parts as whole pieces allow, in the order of ranks."""
        pieces = -(-count // piece)
        start, stop = (min(count, piece * (pieces * rank // self.count)) for rank in (self.rank, self.rank + 1))
        return range(start, stop)

    # When one of them ends ------------------------------------------------------------------------------------------

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Raise `Abandoned` where the connection to another process breaks."""
        try:
            yield
        except RuntimeError as error:
            # gloo raises plain errors, which name the file they come from.
            if self.count > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise Abandoned("Another process of this run has ended, and this one with it.") from None
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Leave the others at the end of this context, and let one process say what all of them have to say.

        Of those that raise the same error one does so, and the others exit without a word. That another process has ended
        is said by one of those that are left, unless that process has said why. After an error SIGTERM is ignored: torchrun
        sends it as soon as one has ended, and the sentence comes first.
        """
        try:
            with self.guard():
                yield
        except IsoconvError as error:
            if self.count > 1:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            said = self._count_in("any"), self._count_in(str(error))
            if said[not isinstance(error, Abandoned)] > 1:
                raise SystemExit(2) from None
            raise
        except Exception:
            self._count_in("any")
            raise
        finally:
            self.leave()

    def _count_in(self, key: str) -> int:
        """Return how many processes have said something by now, this one included; 1 if that cannot be known."""
        with suppress(RuntimeError):  # the store is gone too
            return int(self.store.add(f"isoconv/said/{key}", 1)) if self.store is not None else 1
        return 1

    def leave(self) -> None:
        """End the connection to the others."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


def choose_device(name: str) -> str:
    """Return the device that `name` stands for: `auto` is a GPU where there is one. Raise if the device is not there."""
    # Networks side by side need as many queues to the GPU as they have streams; its driver reads this once, at the
    # start. Five of Large, each with a graph of its own, took 7.0 ms a round instead of 10.5 (H200,
    # results/speed/queues.json).
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    require(name in ("cpu", "cuda"), "device to be auto, cpu or cuda", repr(name))
    if name == "cuda" and not torch.cuda.is_available():
        raise IsoconvError("Expected a CUDA device. This machine has none, or this PyTorch cannot use it.")
    return name
