"""Training classifiers: seeds side by side, from data to run folders."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isoconv.certify import robust_accuracy
from isoconv.data import EpochBatches, ImageSet
from isoconv.errors import IsoconvError
from isoconv.records import Count, Percent, Record, Size, require
from isoconv.train.capture import STREAMS_IN_POOL, lay_out
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.distributed import Processes
from isoconv.train.engine import Observer, fit
from isoconv.train.losses import LOSSES
from isoconv.train.run_folder import RunFolder, locked


@dataclass(frozen=True)
class TrainResult(Record):
    """The final figures of one seed, as result.json holds them. Accuracies are in percent, None without test images.

    robust : certified accuracy of the plain network, run in float64, by the radius as text
    peak_memory_mib : the most that the process held, of the GPU's memory or of the machine's
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound",)
    ignores_unknown: ClassVar[bool] = True

    seed: int
    epochs: int
    train_seconds: Size
    replicas: Count
    device: str
    torch: str
    peak_memory_mib: float | None = None
    images: Count | None = None
    clean: Percent | None = None
    robust: dict[str, Percent] | None = None
    lipschitz_bound: Size | None = None
    finished: str = ""

    def __post_init__(self) -> None:
        missing = {value is None for value in (self.clean, self.images, self.lipschitz_bound)}
        require(len(missing) == 1, "clean, images and lipschitz_bound together", "a part of them")
        require(all(map(_is_radius, self.robust or ())), "radii in robust", ", ".join(self.robust or ()))

    @property
    def certified_accuracy(self) -> dict[float, float]:
        """Return the percentage of images certified at each radius."""
        return {float(radius): percent for radius, percent in (self.robust or {}).items()}

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain data, without those of an evaluation that did not take place."""
        absent = {"images", "clean", "robust", "lipschitz_bound"} if self.images is None else set()
        absent |= set() if self.finished else {"finished"}
        return {name: value for name, value in super().to_fields().items() if name not in absent}


def _is_radius(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


class Classification:
    """The loss of a configuration on images of pixels 0 … 255 and labels; counts how many are classified correctly."""

    def __init__(self, config: TrainConfig) -> None:
        self.function, self.options = LOSSES[config.loss].function, config.options_of_loss()
        self.half = config.precision == "bf16"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        pixels = lay_out(images) / 255
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            logits = model(pixels)
        logits = logits.float()
        loss = self.function(logits, labels, **self.options)
        return loss, {"accuracy": (logits.argmax(dim=1) == labels).sum()}


def train_classifiers(
    configs: Sequence[TrainConfig],
    folders: Sequence[RunFolder],
    train: ImageSet,
    test: ImageSet | None,
    epsilons: Sequence[float],
    observer: Observer | None = None,
    *,
    device: str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    models: Sequence[nn.Module] | None = None,
    **options: Any,
) -> list[TrainResult]:
    """Train one network per configuration (they differ in the seed only) and evaluate the last epoch of each.

    The folders must have been started. Return each seed's result, which is also in its folder. The test set is looked at
    once, after the last update.

    models : the networks, where `build_networks` has built them already
    options : other arguments of `fit`, such as `should_stop` and `save_every`
    """
    processes = processes or Processes()
    models = build_networks(configs, train, device, processes) if models is None else models
    torch_device, first = processes.device(device), configs[0]
    batches = [_batches(config, train, torch_device, processes) for config in configs]
    with locked(folders if processes.first else ()):
        if resume and all(
            folder.result.exists() and folder.updates_done() == len(batch) * first.epochs
            for folder, batch in zip(folders, batches, strict=True)
        ):
            return [TrainResult.read(folder.result) for folder in folders]
        fits = fit(
            models,
            batches,
            Classification(first),
            **first.training,
            folder=folders,
            resume=resume,
            device=torch_device,
            observer=observer,
            processes=processes,
            **options,
        )
        results = []
        for config, model, folder, fitted in zip(configs, models, folders, fits, strict=True):
            evaluation = {} if test is None else evaluate(model.eval(), test, epsilons, torch_device)
            result = TrainResult(
                seed=config.seed,
                epochs=config.epochs,
                train_seconds=fitted.seconds,
                replicas=len(configs),
                device=device_name(torch_device),
                torch=torch.__version__,
                peak_memory_mib=_peak_memory(torch_device),
                **evaluation,
            )
            if processes.first:
                folder.finish(model.eval(), result.to_fields())
            results.append(result)
        processes.wait()
    return results


def build_networks(
    configs: Sequence[TrainConfig], train: ImageSet, device: str, processes: Processes
) -> list[nn.Module]:
    """Build the network of each configuration; raise if they cannot be trained, before anything is written."""
    if processes.count > 1 and len(configs) > 1:
        raise IsoconvError(f"Expected one seed at a time under torchrun. Got {len(configs)}.")
    if device == "cuda" and len(configs) > STREAMS_IN_POOL:
        raise IsoconvError(f"Expected at most {STREAMS_IN_POOL} seeds side by side on a GPU. Got {len(configs)}.")
    _batches(configs[0], train, torch.device("cpu"), processes)
    return [make_model(config) for config in configs]


def evaluate(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], device: torch.device, batch_size: int = 500
) -> dict[str, Any]:
    """Return the accuracy in percent, clean and certified at each radius, as arguments of `TrainResult`."""
    accuracy = robust_accuracy(model.to(device), data, epsilons, batch_size=batch_size)
    robust = {str(epsilon): accuracy.certified[epsilon] for epsilon in epsilons}
    return {"images": len(data), "clean": accuracy.clean, "robust": robust, "lipschitz_bound": accuracy.lipschitz_bound}


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
    """Return what the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def _peak_memory(device: torch.device) -> float | None:
    """Return the most that the process has held so far, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
