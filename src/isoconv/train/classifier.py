"""Training classifiers: seeds side by side, from data to run folders."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from isoconv.certify import Certifier, RobustAccuracy, robust_accuracy, write_certificate
from isoconv.certify.accuracy import default_batch_size
from isoconv.certify.certificate_file import open_certificate
from isoconv.certify.certifier import join
from isoconv.data import EpochBatches, ImageSet, StreamedSet
from isoconv.errors import require
from isoconv.losses import LOSSES
from isoconv.records import Count, Pattern, Percent, Size
from isoconv.train.capture import STREAMS_IN_POOL, lay_out
from isoconv.train.config import TrainConfig, make_model, to_deployed
from isoconv.train.distributed import Processes
from isoconv.train.engine import Observer, fit
from isoconv.train.own_model import Build
from isoconv.train.passes import check_checkpointing
from isoconv.train.run_folder import Finding, RunFolder, locked

#: What accuracies go by in a file: a finite number, at least 0, as Python prints it.
Radius = Annotated[str, Pattern("of radii as text", r"\d{1,17}(\.\d+)?|\d(\.\d+)?e(-\d{2,3}|\+[12]?\d\d|\+30[0-7])")]


@dataclass(frozen=True)
class TrainResult(Finding):
    """The final figures of one seed, as result.json holds them. Accuracies are in percent, None without test images.

    robust : certified accuracy of the plain network, run in float64, by the radius as text
    peak_memory_mib : the most that the process held, of the GPU's memory or of the machine's
    best_epoch, validation : with validation, the epoch that was kept, and its accuracy on the validation images
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lipschitz_bound",)

    seed: int
    epochs: int
    train_seconds: Size
    replicas: Count
    device: str
    torch: str
    peak_memory_mib: float | None = None
    images: Count | None = None
    clean: Percent | None = None
    robust: dict[Radius, Percent] | None = None
    lipschitz_bound: Size | None = None
    best_epoch: Count | None = None
    validation: Percent | None = None
    finished: str = ""

    def __post_init__(self) -> None:
        missing = {value is None for value in (self.clean, self.images, self.lipschitz_bound)}
        require(len(missing) == 1, "clean, images and lipschitz_bound together", "a part of them")

    @property
    def certified_accuracy(self) -> dict[float, float]:
        """Return the percentage of images certified at each radius."""
        return {float(radius): percent for radius, percent in (self.robust or {}).items()}

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain data, without those of an evaluation that did not take place."""
        return {name: value for name, value in super().to_fields().items() if value not in (None, "")}


class Classification:
    """The loss of a configuration on images of pixels 0 … 255 and labels; counts how many are classified correctly."""

    def __init__(self, config: TrainConfig) -> None:
        self.function, self.options = LOSSES[config.loss].function, config.options_of_loss()

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        logits = model(lay_out(images) / 255).float()
        loss = self.function(logits, labels, **self.options)
        return loss, {"accuracy": (logits.argmax(dim=1) == labels).sum()}


def train_classifiers(
    configs: Sequence[TrainConfig],
    folders: Sequence[RunFolder] | None,
    train: ImageSet,
    test: ImageSet | None,
    epsilons: Sequence[float],
    observer: Observer | None = None,
    *,
    device: str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    models: Sequence[nn.Module] | None = None,
    validation: ImageSet | None = None,
    **options: Any,
) -> list[TrainResult]:
    """Train one network per configuration (they differ in the seed only) and evaluate the last epoch of each.

    With `validation`, images that are not trained on, evaluate the epoch of each that classifies most of them correctly.

    The folders must have been started; without any, nothing is written. Return each seed's result, which is also in its
    folder. The test set is looked at once, after the last update.

    models : the networks, where `build_networks` has built them already
    options : other arguments of `fit`, such as `should_stop` and `save_every`
    """
    processes, first = processes or Processes(), configs[0]
    models = build_networks(configs, train, device, processes) if models is None else models
    target = processes.device(device)
    part = train.share_workers(len(configs)) if isinstance(train, StreamedSet) else train
    batches = [_batches(config, part, target, processes) for config in configs]
    with locked(folders if folders and processes.first else ()):
        steps = len(batches[0]) // first.accumulate * first.epochs
        if resume and folders and all(folder.finished and folder.updates_done() == steps for folder in folders):
            return [TrainResult.read(folder.result) for folder in folders]
        training = first.training | {"resume": resume, "observer": observer, "processes": processes} | options
        if validation is not None:
            judge = partial(measure_accuracy, data=validation, device=target)
            training |= {"validate": judge, "patience": first.patience}
        fits = fit(models, batches, Classification(first), folder=folders, device=target, **training)
        results = []
        for k, (config, model, fitted) in enumerate(zip(configs, models, fits, strict=True)):
            machine = device_name(target), torch.__version__
            deployed = to_deployed(model, config)
            figures = {} if test is None else figures_of(share_certifying(deployed, test, epsilons, processes))
            epochs = fitted.updates * first.epochs // steps  # fewer than planned where patience has ended
            run = config.seed, epochs, fitted.seconds, len(configs)
            if fitted.best_epoch:
                figures |= {"best_epoch": fitted.best_epoch, "validation": fitted.best_score}
            result = TrainResult(*run, *machine, _peak_memory(target), **figures)
            if folders and processes.first:
                folders[k].finish(model.eval(), result.to_fields(), config)
            results.append(result)
        processes.wait()
    return results


def build_networks(
    configs: Sequence[TrainConfig], train: ImageSet, device: str, processes: Processes, build: Build | None = None
) -> list[nn.Module]:
    """Build the network of each configuration; raise if they cannot be trained, before anything is written.

    build : the function of a network that is the user's own
    """
    count = len(configs)
    require(processes.count == 1 or count == 1, "one seed at a time under torchrun", count)
    most = STREAMS_IN_POOL if device == "cuda" else count
    require(count <= most, f"at most {most} seeds side by side on a GPU", count)
    batches, accumulate = len(_batches(configs[0], train, torch.device("cpu"), processes)), configs[0].accumulate
    require(accumulate <= batches, f"at most {batches} batches to accumulate, as many as an epoch has", accumulate)
    models = [make_model(config, build) for config in configs]
    check_checkpointing(models[0], configs[0].checkpoint_activations)
    return models


def measure_accuracy(model: nn.Module, data: ImageSet, device: torch.device) -> float:
    """Return the percentage of images that a network classifies correctly."""
    right = 0
    for images, labels in data.batches(default_batch_size(data.shape)):
        logits = model(lay_out(images.to(device)) / 255)
        right += int((logits.argmax(dim=1) == labels.to(device)).sum())
    return 100 * right / len(data)


def share_certifying(
    model: nn.Module, data: ImageSet, epsilons: Sequence[float], processes: Processes | None = None, **options: Any
) -> RobustAccuracy:
    """Return the robust accuracy of a network, each process having certified a part of the images.

    Each takes whole batches of those that one alone would certify, so that the answer is the same bit for bit where the
    arithmetic of one batch is. `options` are those of `robust_accuracy`, and `certificate`, a file for the certificates:
    one process alone writes it batch by batch, the first of several when it has all.
    """
    progress, certificate = options.pop("progress", None), options.pop("certificate", None)
    certifier = Certifier(model, data.shape, **options)
    if processes is None or processes.count == 1:
        with nullcontext() if certificate is None else open_certificate(certificate, certifier, len(data)) as file:
            add = None if file is None else file.add
            return robust_accuracy(certifier, data, epsilons, progress=progress, certified=add)
    size = default_batch_size(data.shape)
    share = processes.share(len(data), size)
    own = []
    if share:
        part = robust_accuracy(certifier, data.subset(share), epsilons, batch_size=size, progress=progress)
        own = [(part.certificates, part.epsilons)]
    parts = [part for others in processes.gather(own) for part in others]
    certificates, labels = join([certificates for certificates, _ in parts]), data.labels.cpu()
    if certificate is not None and processes.first:
        write_certificate(certificate, certifier, certificates, labels)
    return RobustAccuracy(certificates, labels, certifier, parts[0][1])


def figures_of(accuracy: RobustAccuracy) -> dict[str, Any]:
    """Return the accuracy in percent, clean and certified at each radius, as a record of a run names it."""
    robust = {str(radius): percent for radius, percent in accuracy.certified.items()}
    figures = {"clean": accuracy.clean, "robust": robust, "lipschitz_bound": accuracy.lipschitz_bound}
    return {"images": len(accuracy.labels), **figures}


def _batches(config: TrainConfig, train: ImageSet, device: torch.device, processes: Processes) -> EpochBatches:
    options: dict[str, Any] = {"device": device, "rank": processes.rank, "world_size": processes.count}
    return EpochBatches(train, config.batch_size, seed=config.seed, **options, **vars(config.augmentation))


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
