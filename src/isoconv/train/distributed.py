"""Several processes on one training run, as `torchrun` starts them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isoconv.errors import IsoconvError, require


@dataclass(frozen=True)
class Processes:
    """How many processes there are and which one this is. One alone needs no communication."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @classmethod
    def join(cls, device: str) -> "Processes":
        """Join the others if torchrun started us (it says so in the environment)."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(dist.get_rank(), count, int(os.environ.get("LOCAL_RANK", "0")))

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
        sums = torch.tensor(values, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(sums)
        return sums.tolist()

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set in one of the processes: all must agree, or some would wait for ever."""
        return self.total([float(flag)])[0] > 0

    def wait(self) -> None:
        """Wait until all processes have come this far."""
        if self.count > 1:
            dist.barrier()

    def leave(self) -> None:
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
