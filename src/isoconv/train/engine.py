"""The training loop: replicas side by side, epoch by epoch, always able to go on after it was stopped."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.train.distributed import Processes
from isoconv.train.projections import project_where_due
from isoconv.train.replica import Replica
from isoconv.train.run_folder import RunFolder
from isoconv.train.together import Together


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


class Batches(Protocol):
    """Whatever gives the batches of an epoch: the same ones whenever it is asked."""

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]: ...


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to stop, and is saved)
    """Training was interrupted; everything is saved."""


def run(
    replicas: Sequence[Replica],
    batches: Sequence[Batches],
    folders: Sequence[RunFolder],
    observer: Observer,
    processes: Processes,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 10.0,
) -> None:
    """Train all replicas to their last epoch, from wherever they are.

    They advance step by step, on a GPU side by side (see `Together`); between steps, what is to be projected is.
    The state is saved every `save_every` seconds (at the end of an epoch) and when it is asked to stop.
    """
    first = replicas[0]
    if len({replica.done for replica in replicas}) > 1:
        raise IsoconvError("Expected all seeds of a run to have been saved at the same step. Resume them one by one.")
    per_epoch, epochs = first.steps_per_epoch, first.config.epochs
    images_per_epoch = per_epoch * first.config.batch_size * len(replicas)
    together = Together(replicas) if Together.suits(replicas) else None
    clock = _Clock(replicas)
    last_save = time.perf_counter()
    for epoch in range(first.done // per_epoch, epochs):
        started, done_before = time.perf_counter(), first.done
        streams = [batch.epoch(epoch) for batch in batches]
        stopping = False
        for k in range(per_epoch):
            skip = epoch * per_epoch + k < done_before  # done before the run was stopped
            drawn = [next(stream) for stream in streams]
            if skip:
                continue
            if together is not None:
                together.step(drawn)
            else:
                for replica, batch in zip(replicas, drawn, strict=True):
                    replica.step(*batch)
            project_where_due(replicas)
            observer.step(1)
            stopping = processes.any(should_stop())
            if stopping and k + 1 < per_epoch:
                _save(replicas, folders, processes, clock)
                raise Stopped
        lines = _epoch_lines(replicas, processes, epoch + 1, started)
        if processes.first:
            for line, folder in zip(lines, folders, strict=True):
                folder.append_metrics(line)
        if stopping or time.perf_counter() - last_save >= save_every or epoch + 1 == epochs:
            _save(replicas, folders, processes, clock)
            last_save = time.perf_counter()
        share = (first.done - done_before) / per_epoch
        seconds = time.perf_counter() - started
        observer.epoch(
            EpochReport(
                epoch + 1,
                epochs,
                sum(line["loss"] for line in lines) / len(lines),
                sum(line["accuracy"] for line in lines) / len(lines),
                share * images_per_epoch / seconds,
                (epochs - epoch - 1) * seconds / max(share, 1e-9),
            )
        )
        if stopping:
            raise Stopped
    clock.read()
    for ended in (together,) if together is not None else replicas:
        ended.end()


class _Clock:
    """Adds this session's seconds to those that the replicas have been trained for."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas, self.before = replicas, [replica.seconds for replica in replicas]
        self.began = time.perf_counter()

    def read(self) -> None:
        for replica in self.replicas:
            replica.wait()
            if replica.device.type == "cuda":
                torch.cuda.synchronize(replica.device)
        elapsed = time.perf_counter() - self.began
        for replica, before in zip(self.replicas, self.before, strict=True):
            replica.seconds = before + elapsed if replica.done else before


def _epoch_lines(
    replicas: Sequence[Replica], processes: Processes, epoch: int, started: float
) -> list[dict[str, float]]:
    """What goes into each replica's metrics after an epoch; an error if one has diverged."""
    lines = []
    for replica in replicas:
        loss_sum, right = processes.total(*replica.take_sums())
        loss = loss_sum / replica.steps_per_epoch / processes.count
        if not math.isfinite(loss) or not replica.is_finite():
            raise IsoconvError(
                f"Training diverged in epoch {epoch}: the loss is {loss:g}. "
                f"Try a smaller learning rate than {replica.config.lr:g}."
            )
        accuracy = 100 * right / (replica.steps_per_epoch * replica.config.batch_size)
        lines.append({"epoch": epoch, "loss": loss, "accuracy": accuracy, "seconds": time.perf_counter() - started})
    return lines


def _save(replicas: Sequence[Replica], folders: Sequence[RunFolder], processes: Processes, clock: _Clock) -> None:
    clock.read()
    if processes.first:
        for replica, folder in zip(replicas, folders, strict=True):
            folder.save(replica)
    processes.wait()
