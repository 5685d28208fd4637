"""The training loop: replicas side by side, epoch by epoch, always able to go on after it was stopped."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from isoconv.data.stream import EpochBatches
from isoconv.errors import IsoconvError
from isoconv.train.distributed import Processes
from isoconv.train.replica import Replica
from isoconv.train.run_folder import RunFolder


@dataclass(frozen=True)
class EpochReport:
    """What the loop tells its observer after an epoch (and, with `epoch` not yet complete, within one)."""

    epoch: int
    epochs: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float


class Observer(Protocol):
    """Whoever shows progress."""

    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None: ...


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to stop, and is saved)
    """Training was interrupted; everything is saved."""


def run(
    replicas: Sequence[Replica],
    batches: Sequence[EpochBatches],
    folders: Sequence[RunFolder],
    observer: Observer,
    processes: Processes,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 10.0,
) -> float:
    """Train all replicas to their last epoch, from wherever they are; the seconds that this took.

    They advance together, a step each in turn, on a GPU each on its own stream. The state is saved every `save_every`
    seconds (at the end of an epoch) and when it is asked to stop.
    """
    first = replicas[0]
    if len({replica.done for replica in replicas}) > 1:
        raise IsoconvError("Expected all seeds of a run to have been saved at the same step. Resume them one by one.")
    per_epoch, epochs = first.steps_per_epoch, first.config.epochs
    images_per_epoch = per_epoch * first.config.batch_size * len(replicas)
    began = last_save = time.perf_counter()
    for epoch in range(first.done // per_epoch, epochs):
        started, done_before = time.perf_counter(), first.done
        streams = [batch.epoch(epoch) for batch in batches]
        for k in range(per_epoch):
            skip = epoch * per_epoch + k < done_before  # done before the run was stopped
            for replica, stream in zip(replicas, streams, strict=True):
                images, labels = next(stream)
                if not skip:
                    replica.step(images, labels)
            if not skip:
                observer.step(1)
            if should_stop():
                _save(replicas, folders, processes)
                raise Stopped
        sums = [processes.total(*replica.take_sums()) for replica in replicas]
        now = time.perf_counter()
        share = (first.done - done_before) / per_epoch
        lines = []
        for loss_sum, right in sums:
            loss = loss_sum / per_epoch / processes.count
            accuracy = 100 * right / (per_epoch * first.config.batch_size)
            lines.append({"epoch": epoch + 1, "loss": loss, "accuracy": accuracy, "seconds": now - started})
            if not math.isfinite(loss):
                raise IsoconvError(
                    f"Training diverged in epoch {epoch + 1}: the loss is {loss}. Try a smaller learning rate than "
                    f"{first.config.lr:g}."
                )
        if processes.first:
            for line, folder in zip(lines, folders, strict=True):
                folder.append_metrics(line)
        if now - last_save >= save_every or epoch + 1 == epochs:
            _save(replicas, folders, processes)
            last_save = time.perf_counter()
        per_replica = sum(line["loss"] for line in lines) / len(lines)
        observer.epoch(
            EpochReport(
                epoch + 1,
                epochs,
                per_replica,
                sum(line["accuracy"] for line in lines) / len(lines),
                share * images_per_epoch / (now - started),
                (epochs - epoch - 1) * (now - started) / max(share, 1e-9),
            )
        )
    if first.device.type == "cuda":
        torch.cuda.synchronize(first.device)
    return time.perf_counter() - began


def _save(replicas: Sequence[Replica], folders: Sequence[RunFolder], processes: Processes) -> None:
    if processes.first:
        for replica, folder in zip(replicas, folders, strict=True):
            folder.save(replica)
    processes.wait()
