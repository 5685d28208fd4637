"""Training classifiers: seeds side by side, from data to run folders."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from isoconv.data import EpochBatches, ImageSet
from isoconv.errors import IsoconvError
from isoconv.nn.side_streams import STREAMS_IN_POOL
from isoconv.train.config import TrainConfig
from isoconv.train.distributed import Processes
from isoconv.train.engine import Observer, run
from isoconv.train.evaluate import evaluate
from isoconv.train.replica import Replica
from isoconv.train.run_folder import RunFolder
from isoconv.train.task import Classification, make_model


def seed_folders(out: Path, seeds: Sequence[int]) -> list[RunFolder]:
    """One seed lives in the run's folder itself, several in seed-0, seed-1, … inside it."""
    return [RunFolder(out if len(seeds) == 1 else out / f"seed-{seed}") for seed in seeds]


def train_classifiers(
    configs: Sequence[TrainConfig],
    folders: Sequence[RunFolder],
    train: ImageSet,
    test: ImageSet | None,
    epsilons: Sequence[float],
    observer: Observer,
    *,
    device: str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 10.0,
) -> list[dict[str, Any]]:
    """Train one network per configuration (they differ in the seed only) and evaluate the last epoch of each.

    The folders must have been started. Returns each seed's result, which is also in its folder. The test set is looked at
    once, after the last update.
    """
    processes = processes or Processes()
    check_trainable(configs, train, device, processes)
    place = processes.device(device)
    batches = [_batches(config, train, place, processes) for config in configs]
    wrap = processes.wrap if processes.count > 1 else None
    replicas = [
        Replica(config, make_model(config), Classification(config), len(batch), place, wrap, len(configs))
        for config, batch in zip(configs, batches, strict=True)
    ]
    if resume:
        for replica, folder in zip(replicas, folders, strict=True):
            folder.load(replica)
    finished = [r.done == r.steps and f.result.exists() for r, f in zip(replicas, folders, strict=True)]
    if resume and all(finished):
        return [folder.read_result() for folder in folders]
    run(replicas, batches, folders, observer, processes, should_stop, save_every)
    results = []
    for config, replica, folder in zip(configs, replicas, folders, strict=True):
        replica.model.eval()
        result: dict[str, Any] = {"seed": config.seed, "epochs": config.epochs}
        result |= {"train_seconds": replica.seconds, "replicas": len(replicas), "device": device_name(place)}
        result |= {"torch": torch.__version__, "peak_memory_mib": _peak_memory(place)}
        if test is not None:
            result |= evaluate(replica.model, test, epsilons, place)
        if processes.first:
            folder.finish(replica.model, result)
        results.append(result)
    processes.wait()
    return results


def check_trainable(configs: Sequence[TrainConfig], train: ImageSet, device: str, processes: Processes) -> None:
    """Refuse what cannot be trained before anything is written: too many seeds, too large a batch, a misfit of sizes."""
    if processes.count > 1 and len(configs) > 1:
        raise IsoconvError(f"Expected one seed at a time under torchrun. Got {len(configs)}.")
    if device == "cuda" and len(configs) > STREAMS_IN_POOL:
        raise IsoconvError(f"Expected at most {STREAMS_IN_POOL} seeds side by side on a GPU. Got {len(configs)}.")
    _batches(configs[0], train, torch.device("cpu"), processes)
    make_model(configs[0])


def _batches(config: TrainConfig, train: ImageSet, device: torch.device, processes: Processes) -> EpochBatches:
    return EpochBatches(
        train,
        config.batch_size,
        seed=config.seed,
        device=device,
        padding=config.crop_padding,
        flip=config.flip,
        rank=processes.rank,
        world_size=processes.count,
    )


def device_name(device: torch.device) -> str:
    """What the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def _peak_memory(device: torch.device) -> float | None:
    """The most that the process has held so far, in MiB: of the GPU's memory, or of the machine's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
