"""The training loop: any networks, side by side, epoch by epoch, resumable at any time."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

from isoconv.data import EpochBatches, epoch_generator
from isoconv.errors import IsoconvError, require
from isoconv.nn import OSSNConv2d, SVCMConv2d
from isoconv.records import Record
from isoconv.train.capture import Stepper
from isoconv.train.config import (
    OPTIMISERS,
    PAPERS_PROJECTIONS,
    PRECISIONS,
    SCHEDULES,
    NetworkSettings,
    Schedule,
    Settings,
)
from isoconv.train.distributed import Processes
from isoconv.train.passes import run_in_pieces
from isoconv.train.run_folder import BestEpoch, RunFolder, locked, open_runs

#: A batch, as the loss takes it.
Batch = Sequence[Tensor]
LossFunction = Callable[..., Tensor | tuple[Tensor, Mapping[str, Tensor]]]
"""`loss(model, *batch)` returns a scalar, or a scalar and metrics. A metric that is a whole number counts samples and is
reported as a percentage of them; any other is averaged over the steps of an epoch."""
OptimiserChoice = str | Callable[[Iterable[Tensor], Tensor], torch.optim.Optimizer]
"""The name of an optimiser, or a function of the parameters and the learning rate, which is a tensor."""

_CPU = torch.device("cpu")
_FIRST_SAVE = 1.0  # seconds after the start; the time to the next one doubles, up to `save_every`


@dataclass(frozen=True)
class EpochReport:
    """What an observer is told after an epoch, averaged over the networks."""

    epoch: int
    epochs: int
    metrics: Mapping[str, float]
    images_per_second: float
    seconds_left: float

    @property
    def loss(self) -> float:
        return self.metrics["loss"]

    @property
    def accuracy(self) -> float:
        return self.metrics.get("accuracy", 0.0)


class Observer(Protocol):
    """Whoever shows progress."""

    def step(self, steps: int) -> None:
        """Take note of so many updates."""

    def epoch(self, report: EpochReport) -> None:
        """Take note of an epoch that has ended."""


class Silent:
    """Shows nothing."""

    def step(self, steps: int) -> None: ...

    def epoch(self, report: EpochReport) -> None: ...


class EpochBatchSource(Protocol):
    """Gives the batches of an epoch: the same ones whenever it is asked."""

    def epoch(self, epoch: int) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


Batches = EpochBatchSource | Iterable[Any]


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to stop, and is saved)
    """Training was interrupted; everything is saved."""


class Diverged(IsoconvError):  # noqa: N818  (as `Stopped`: what happened to the run)
    """The loss or the weights are no numbers any more."""


@dataclass(frozen=True)
class FitResult(Record):
    """What `fit` returns for each network: updates and seconds in all, and the figures of the last epoch.

    best_epoch, best_score : with `validate`, the epoch that was kept, counted from 1, and its score
    """

    updates: int
    seconds: float
    metrics: dict[str, float]
    best_epoch: int = 0
    best_score: float = 0.0


@dataclass(frozen=True)
class FitConfig(Settings):
    """What `fit` writes into a folder that it starts itself: enough to refuse to go on with other settings."""

    model: str
    optimiser: str
    lr: float
    schedule: str
    epochs: int
    steps_per_epoch: int
    seed: int
    precision: str = "float32"
    project_every: int = PAPERS_PROJECTIONS["project_every"]  # what a folder that does not say so was trained with
    project_iterations: int = PAPERS_PROJECTIONS["project_iterations"]
    accumulate: int = 1
    checkpoint_activations: bool = False

    not_compared = ("checkpoint_activations",)
    brief = ("project_every", "project_iterations", "accumulate", "checkpoint_activations")

    @classmethod
    def of(cls, learner: "Learner", seed: int) -> "FitConfig":
        """Return the settings of a learner; those of projections only where it has layers to project."""
        names = ["lr", "epochs", "steps_per_epoch", "precision", "accumulate", "checkpoint_activations"]
        names += PAPERS_PROJECTIONS if learner.projected_rarely else []
        settings: dict[str, Any] = {name: getattr(learner, name) for name in names}
        for name, kind in (("optimiser", learner.choice), ("schedule", learner.schedule)):
            settings[name] = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        return cls(type(learner.model).__name__, seed=seed, **settings)


@dataclass(eq=False)
class Learner:
    """A network in training: its loss, its optimiser, and how far it has come. `Stepper` advances it.

    choice : which optimiser
    precision : see `fit`
    update : `update(model, optimiser, *batch)` does all of a step itself and returns what a loss returns, for methods
        that are more than one loss and one step of one optimiser; `loss` is not called then
    wrap : hangs a communication layer around the model
    accumulate : how many batches give the gradient of one update
    checkpoint_activations : see `fit`
    """

    model: nn.Module
    loss: LossFunction | None
    choice: OptimiserChoice = "steepest"
    lr: float = 0.01
    schedule: str | Schedule = "linear"
    momentum: float = 0.9
    epochs: int = 1
    steps_per_epoch: int = 1
    project_every: int = 1
    project_iterations: int = 1
    precision: str = "float32"
    update: LossFunction | None = None
    device: torch.device = _CPU
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    accumulate: int = 1
    checkpoint_activations: bool = False

    def __post_init__(self) -> None:
        alone = self.accumulate == 1 or self.update is None
        require(alone, "no batches to accumulate with an update of your own", self.accumulate)
        for name, known in ((self.choice, OPTIMISERS), (self.schedule, SCHEDULES), (self.precision, PRECISIONS)):
            require(not isinstance(name, str) or name in known, f"one of {', '.join(known)}", repr(name))
        self.device = torch.device(self.device)  # its name will do
        self.model.to(self.device).train()
        self.call_in_pieces(compiled=False)
        self.steps, self.half = self.steps_per_epoch * self.epochs, self.precision == "bf16"
        self.rate = torch.full((), self.lr, device=self.device)  # a tensor: a captured graph follows the schedule
        self.optimiser = self.make_optimiser(p for p in self.model.parameters() if p.requires_grad)
        self.done = 0  # updates so far
        self.seconds = 0.0  # of training so far
        self.sums: dict[str, Tensor] = {}  # of losses and metrics, over the steps of the epoch so far
        self.random_state: dict[str, Tensor] = {}  # with which a run that is resumed goes on
        modules = list(self.model.modules())
        self.projected_in_step = [m for m in modules if isinstance(m, OSSNConv2d) and m.projection != "forward"]
        self.projected_rarely = [m for m in modules if isinstance(m, SVCMConv2d)]

    @classmethod
    def from_config(
        cls, config: NetworkSettings, model: nn.Module, loss: LossFunction, steps_per_epoch: int, **options: Any
    ) -> Self:
        """Return a learner with the settings of a configuration: its optimiser, rate, schedule and projections."""
        settings = config.training
        return cls(model, loss, settings.pop("optimiser"), steps_per_epoch=steps_per_epoch, **settings, **options)

    def make_optimiser(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Return the chosen optimiser of these parameters."""
        if isinstance(self.choice, str):
            return OPTIMISERS[self.choice].make(parameters, self.rate, self.momentum, self.half)
        optimiser = self.choice(parameters, self.rate)
        for group in optimiser.param_groups:
            if "capturable" in group and self.rate.is_cuda:
                group["capturable"] = True
        return optimiser

    def call_in_pieces(self, compiled: bool) -> None:
        """Let steps call the network as it is, compiled, or with activations that are computed again."""
        pieces = compiled or self.checkpoint_activations
        model = run_in_pieces(self.model, compiled, self.checkpoint_activations) if pieces else self.model
        self.called = self.wrap(model)

    @property
    def warm_up(self) -> int:
        """How many steps run eagerly before one is captured."""
        return OPTIMISERS[self.choice].warm_up if isinstance(self.choice, str) else 20

    @property
    def clippings(self) -> int:
        """How many iterations the next projection has: after the last update, when the network is kept, at least 50."""
        least = PAPERS_PROJECTIONS["project_iterations"] if self.done == self.steps else 1
        return max(least, self.project_iterations)

    def scheduled_rate(self) -> float:
        """Return the learning rate of the next step."""
        schedule = SCHEDULES[self.schedule] if isinstance(self.schedule, str) else self.schedule
        return self.lr * schedule(self.done, self.steps, self.steps_per_epoch)

    def step(self, *batches: Batch) -> None:
        """Update the network on batches, eagerly: one step of the optimiser, or what it was told to do instead.

        The gradient is the mean over the batches, each of which needs memory only for itself.
        """
        if self.update is not None:
            self.add_up(self.update(self.called, self.optimiser, *batches[0]))
        else:
            self.optimiser.zero_grad(set_to_none=True)
            for number, batch in enumerate(batches, start=1):
                # Processes average their gradients once, after the last batch.
                silent = number < len(batches) and isinstance(self.called, DistributedDataParallel)
                with self.called.no_sync() if silent else nullcontext():  # type: ignore[operator]
                    loss = self.compute_loss(batch)
                    (loss if len(batches) == 1 else loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
        self.project_in_step()

    def project_in_step(self) -> None:
        """Project the layers that are projected after each update."""
        for layer in self.projected_in_step:
            layer.project()

    def compute_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, and add it and its metrics to the sums."""
        assert self.loss is not None
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            return self.add_up(self.loss(self.called, *batch))

    def add_up(self, outcome: Tensor | tuple[Tensor, Mapping[str, Tensor]]) -> Tensor:
        """Add a loss and its metrics to the sums; return the loss."""
        loss, metrics = outcome if isinstance(outcome, tuple) else (outcome, {})
        for name, value in {"loss": loss, **metrics}.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=value.dtype, device=self.device)
            self.sums[name] += value.detach()
        return loss

    def take_sums(self) -> dict[str, Tensor]:
        """Return the sums of the epoch, and begin new ones."""
        sums = {name: value.cpu().clone() for name, value in self.sums.items()}
        for value in self.sums.values():
            value.zero_()
        return sums


def fit(
    models: nn.Module | Sequence[nn.Module],
    batches: Batches | Dataset[Any] | Sequence[Batches | Dataset[Any]],
    loss: LossFunction | Sequence[LossFunction] | None,
    optimiser: OptimiserChoice | Sequence[OptimiserChoice] = "steepest",
    *,
    epochs: int,
    batch_size: int | None = None,
    lr: float | Sequence[float] = 0.01,
    momentum: float = 0.9,
    schedule: str | Schedule | Sequence[str | Schedule] = "linear",
    update: LossFunction | None = None,
    project_every: int = 1,
    project_iterations: int = 1,
    precision: str = "float32",
    folder: Path | str | RunFolder | Sequence[Path | str | RunFolder] | None = None,
    resume: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 8.0,
    captured: bool = True,
    accumulate: int = 1,
    checkpoint_activations: bool = False,
    validate: Callable[[nn.Module], float] | None = None,
    patience: int = 0,
    processes: Processes | None = None,
) -> list[FitResult]:
    """Train any networks in place, from wherever they are to their last epoch. Return one result per network.

    On a GPU a step is captured as a CUDA graph and replayed, and like networks take their steps in one batch; on a CPU
    the same functions run eagerly, and what is trained beside others is bit for bit what is trained alone.

    models : a network, or a list of them, to train side by side. With a list, `batches` and `folder` are lists too, with
        one entry for each network; `loss`, `optimiser`, `lr` and `schedule` may be.
    batches : what an epoch consists of: an iterable with a length, such as a `DataLoader`, or an object with
        `epoch(number)`. A batch is a sequence of tensors. torch's random numbers are seeded from `seed` and the epoch, and a
        loader's own generator from its seed and the epoch; both are left as they were at the end. (The random numbers of
        `persistent_workers` are their own: resumed, they draw others.) A torch `Dataset` is split into batches of
        `batch_size`, shuffled unless it is an `IterableDataset`.
    loss : `loss(model, *batch)`; see `LossFunction`. None with an `update` of your own; see `Learner`.
    optimiser : "steepest", "adam", "rmsprop", or a function of the parameters and the learning rate
    project_every : after how many updates, and after the last, layers such as `SVCMConv2d` are projected, by
        `project_iterations` clippings each, at the end by at least 50; the paper has 100 and 50
    precision : "float32", or "bf16": the loss is computed under autocast, steepest descent finds the directions of large
        matrices in bfloat16, and on a GPU the network is compiled, which takes a while. Weights are built in float32.
    folder : where the run is kept, a path, or a `RunFolder` that was started and will be finished by the caller. None: no
        file is written.
    resume : resume the run in the folder; on a CPU the weights are bit for bit those of a run never stopped
    should_stop : asked after every step; True saves the state and raises `Stopped`
    save_every : seconds after which the state is saved again, also in the middle of an epoch
    captured : False runs every step eagerly, for networks with an operation that no CUDA graph can hold
    accumulate : how many batches give the gradient of one update, their mean: the update of one batch that is so many times
        as large, up to rounding, in the memory of a small one. Batches that are left over at the end of an epoch are not
        used. Steps are not captured then.
    checkpoint_activations : keep few activations of an `nn.Sequential`, and compute the others again in the backward pass:
        the same gradients in less memory and more time; see Note [Activations computed again] in `train/passes.py`. With
        modules of your own steps are not captured then, since those may draw random numbers.
    validate : called with each network, in evaluation mode, after every epoch; returns a score. At the end each network is
        as it was after the epoch with the highest score, the last one of equal scores. A folder keeps it in
        best.safetensors
    patience : with `validate`, end when no network has gained for so many epochs; 0: never before the last one
    processes : `Processes.join(device)` under torchrun. `batches` are this process's own, as many and as large as those of
        each other. One process writes; see Note [Any number of processes].
    """
    several = not isinstance(models, nn.Module)
    networks = _listed(models, several)
    sources = [_split(source, batch_size) for source in _listed(batches, several)]
    count, steps = len(networks), _steps_per_epoch(sources, accumulate)
    require(folder is not None or not resume, "a folder to resume from", "none")
    require(len(sources) == count, f"batches for each of {count} networks", len(sources))
    processes, observer = processes or Processes(), observer or Silent()
    each = zip(networks, *(_for_each(value, count) for value in (loss, optimiser, lr, schedule)), strict=True)
    shared: dict[str, Any] = {"momentum": momentum, "epochs": epochs, "steps_per_epoch": steps, "update": update}
    shared |= {"project_every": project_every, "project_iterations": project_iterations, "precision": precision}
    shared |= {"accumulate": accumulate, "checkpoint_activations": checkpoint_activations}
    shared |= {"device": device, "wrap": processes.wrap}
    learners = [Learner(*own, **shared) for own in each]
    places = [] if folder is None else _listed(folder, several)
    folders = [place if isinstance(place, RunFolder) else RunFolder(Path(place)) for place in places]
    owned = {folders[k]: learners[k] for k, place in enumerate(places) if not isinstance(place, RunFolder)}
    if processes.first and owned:
        configs = [FitConfig.of(learner, seed) for learner in owned.values()]
        open_runs([*owned], configs, resume and any(run.exists for run in owned), overwrite=False)
    processes.wait()
    generators = [learners[0].device] if learners[0].device.type == "cuda" else []
    with processes.guard(), locked(folders if processes.first else ()), torch.random.fork_rng(generators):
        for learner, run in zip(learners, folders, strict=True) if resume else ():
            run.load(learner, writes=processes.first)
            _divide_sums(learner, processes)
        loop = _Loop(
            learners, sources, folders, seed, observer, processes, should_stop, save_every, captured, validate, patience
        )
        loop.run()
        for learner, kept in zip(learners, loop.best, strict=True):
            try:
                if kept is not None:
                    learner.model.load_state_dict(kept.state)
            except RuntimeError:  # resumed with a file of another run
                raise IsoconvError("Expected the best epoch's network in best.safetensors. Got another one.") from None
        for run, learner in owned.items() if processes.first else ():
            run.finish(learner.model.eval(), {"updates": learner.done, "train_seconds": learner.seconds})
    kept_epochs = [(0, 0.0) if best is None else (best.epoch, best.score) for best in loop.best]
    each = zip(learners, loop.lines, kept_epochs, strict=True)
    return [FitResult(one.done, one.seconds, line, *kept) for one, line, kept in each]


def _listed(value: Any, several: bool) -> list[Any]:
    return list(value) if several else [value]


def _split(source: Any, batch_size: int | None) -> Any:
    """Return a data set as shuffled batches, all of one size but for a set that is smaller; anything else as it is."""
    if not isinstance(source, Dataset):
        require(batch_size is None, "batch_size with a torch Dataset alone", f"it with {type(source).__name__}")
        return source
    sized = _length(source) > 0 and batch_size is not None and batch_size > 0
    problem = f"{batch_size} for {type(source).__name__} of {_length(source)}"
    require(sized, "a batch_size of at least 1 for a torch Dataset that is not empty", problem)
    shuffled = not isinstance(source, IterableDataset)  # which has an order of its own
    return DataLoader(source, batch_size, shuffle=shuffled, drop_last=_length(source) > (batch_size or 1))


def _length(source: Any) -> int:
    """Return the length of a data set, or of batches; raise if there is none."""
    try:
        return len(source)
    except TypeError:  # also of a loader whose IterableDataset has none
        expected = "batches that have a length (__len__), so that the schedule is known"
        raise IsoconvError(f"Expected {expected}. Got {type(source).__name__}.") from None


def _for_each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def _steps_per_epoch(sources: Sequence[Any], accumulate: int) -> int:
    """Return how many updates an epoch has, which must be as many for each network."""
    for source in sources:
        gives = hasattr(source, "epoch") or hasattr(source, "__iter__") or hasattr(source, "__getitem__")
        require(gives, "batches, such as a DataLoader or isoconv.data.EpochBatches", type(source).__name__)
    lengths = sorted({_length(source) for source in sources})
    require(len(lengths) == 1 and lengths[0] > 0, "as many batches for each network, and at least one", lengths)
    enough = 1 <= accumulate <= lengths[0]
    require(enough, f"from 1 to {lengths[0]} batches to accumulate, as many as an epoch has", accumulate)
    return lengths[0] // accumulate


def _divide_sums(learner: Learner, processes: Processes) -> None:
    """Make the sums over all processes, as they were saved, those of each; see `_Loop.add_sums`."""
    same = set(processes.gather(learner.done)) == {learner.done}
    require(same, "a run's folder that all processes see", f"{learner.done} updates in it, and others elsewhere")
    for value in learner.sums.values():
        share = processes.count if value.is_floating_point() else 1
        value *= share if processes.first else 0


@dataclass
class _Loop:
    """The loop of `fit`. Networks that were saved at different steps (by a kill between two files) first draw level."""

    learners: Sequence[Learner]
    sources: Sequence[Any]
    folders: Sequence[RunFolder]
    seed: int
    observer: Observer
    processes: Processes
    should_stop: Callable[[], bool]
    save_every: float
    captured: bool
    validate: Callable[[nn.Module], float] | None
    patience: int

    def __post_init__(self) -> None:
        self.steps, self.epochs = self.learners[0].steps_per_epoch, self.learners[0].epochs
        self.accumulate = self.learners[0].accumulate
        self.stepper = Stepper(self.learners, captured=self.captured and self.processes.count == 1)
        metrics = [folder.read_metrics() for folder in self.folders] or [[] for _ in self.learners]
        self.lines: list[dict[str, float]] = [lines[-1] if lines else {} for lines in metrics]
        self.best: list[BestEpoch | None] = [folder.read_best() if self.validate else None for folder in self.folders]
        self.best = self.best or [None for _ in self.learners]
        self.read = self.saved = self.stepped = time.monotonic()  # the clock, the state, the last step
        self.pause = min(_FIRST_SAVE, self.save_every)
        self.streams: list[Iterator[Any]] = []
        loaders = [source for source in self.sources if isinstance(source, DataLoader)]
        generators = [loader.generator for loader in loaders if loader.generator is not None]
        self.generators = [(generator, generator.get_state()) for generator in dict.fromkeys(generators)]

    def run(self) -> None:
        try:
            for epoch in range(min(learner.done for learner in self.learners) // self.steps, self.epochs):
                if self._is_over(epoch):
                    break
                self._run_epoch(epoch)
            self._read_clock()
        finally:
            self._close_streams()
            self.stepper.end()
            for generator, state in self.generators:
                generator.set_state(state)

    def _open_streams(self, epoch: int, start: int) -> None:
        """Begin an epoch of batches, of which the first `start` were trained on before the run was stopped."""
        self._close_streams()
        for generator, state in self.generators:
            generator.set_state(state)
            generator.manual_seed(epoch_generator(generator.initial_seed(), epoch, "loader").initial_seed())
        for source in self.sources:
            if isinstance(source, EpochBatches):
                self.streams.append(source.epoch(epoch, start))
            else:
                self.streams.append(iter(source.epoch(epoch) if hasattr(source, "epoch") else source))

    def _close_streams(self) -> None:
        """End the worker processes of batches that are decoded ahead, also in the middle of an epoch."""
        for stream in self.streams:
            if isinstance(stream, Generator):
                stream.close()
        self.streams = []

    def _run_epoch(self, epoch: int) -> None:
        started, before = time.monotonic(), [learner.done for learner in self.learners]
        first, last = epoch * self.steps, (epoch + 1) * self.steps
        samples, taken, stopping, saving = [0] * len(self.learners), 0, False, False
        torch.manual_seed(epoch_generator(self.seed, epoch, "fit").initial_seed())
        self._open_streams(epoch, (min(before) - first) * self.accumulate)
        for step in range(first, last):
            if first < step == min(before):
                _restore_random_numbers(self.learners[before.index(step)])
            drawn = [[_as_batch(next(stream, None)) for _ in range(self.accumulate)] for stream in self.streams]
            samples = [n + sum(len(batch[0]) for batch in batches) for n, batches in zip(samples, drawn, strict=True)]
            steps = [batches if self.accumulate > 1 else batches[0] for batches in drawn]
            due = [batch if one.done == step else None for one, batch in zip(self.learners, steps, strict=True)]
            if all(batch is None for batch in due):  # done before the run was stopped
                continue
            self.stepper.step(due)
            self.stepper.project_where_due()
            taken += 1
            self.observer.step(1)
            stopping, saving = self.processes.any(self.should_stop(), self._save_is_due())
            if (stopping or saving) and step + 1 < last:
                self._save(epoch + 1)
                if stopping:
                    self.processes.wait()
                    raise Stopped
        ended = [k for k in range(len(self.learners)) if before[k] < last]  # the line of others was written before
        for k in ended:
            self.lines[k] = self._epoch_line(self.learners[k], epoch + 1, samples[k], started)
            if self.validate is not None:
                self.lines[k]["validation"] = self._validate(k, epoch + 1)
            if self.processes.first and self.folders:
                self.folders[k].append_metrics(self.lines[k])
        if any(self.processes.any(stopping, self._save_is_due() or saving, self._is_over(epoch + 1))):
            self._save(epoch + 1)
            self.processes.wait()
        seconds, share = time.monotonic() - started, max(taken / self.steps, 1e-9)
        means = {name: sum(self.lines[k][name] for k in ended) / len(ended) for name in self.lines[ended[0]]}
        speed, left = share * sum(samples) * self.processes.count / seconds, (self.epochs - epoch - 1) * seconds / share
        self.observer.epoch(EpochReport(epoch + 1, self.epochs, means, speed, left))
        if stopping:
            raise Stopped

    def _epoch_line(self, learner: Learner, epoch: int, samples: int, started: float) -> dict[str, float]:
        """Return what goes into a network's metrics after an epoch; raise if it has diverged."""
        self.stepper.wait()
        line = dict[str, float](epoch=epoch)
        for name, value in self.add_sums(learner).items():
            if value.is_floating_point():
                line[name] = float(value) / (self.steps * self.accumulate)
            else:
                line[name] = 100 * float(value) / (samples * self.processes.count)
        learner.take_sums()
        _check_finite(learner, epoch, line["loss"])
        return line | {"seconds": time.monotonic() - started}

    def _validate(self, k: int, epoch: int) -> float:
        """Return a network's score after an epoch; keep the network unless it has scored higher before.

        One that has gained nothing for `patience` epochs stays as it was, though others beside it may go on: it is what it
        would be alone.
        """
        assert self.validate is not None
        model = self.learners[k].model.eval()
        with torch.no_grad():
            (total,) = self.processes.total([self.validate(model)])
        model.train()
        score, best = total / self.processes.count, self.best[k]
        rank = -math.inf if math.isnan(score) else score
        if not self._gains_no_more(k, epoch - 1) and (best is None or rank >= best.score):
            state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            gained = epoch if best is None or rank > best.score else best.gained
            best = self.best[k] = BestEpoch(epoch, rank, state, gained)
            if self.processes.first and self.folders:
                self.folders[k].save_best(best)
        return score

    def _gains_no_more(self, k: int, epoch: int) -> bool:
        """Return True if a network has not gained for `patience` epochs when so many epochs are done."""
        best = self.best[k]
        return self.patience > 0 and best is not None and epoch - best.gained >= self.patience

    def _is_over(self, epoch: int) -> bool:
        """Return True if no network has anything to gain when so many epochs are done."""
        return epoch == self.epochs or all(self._gains_no_more(k, epoch) for k in range(len(self.learners)))

    # Saving -------------------------------------------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        """Return True if another step would come too late for the next save."""
        now = time.monotonic()
        step, self.stepped = now - self.stepped, now
        return bool(self.folders) and now - self.saved + step >= self.pause

    def _save(self, epoch: int) -> None:
        self._read_clock()
        self.saved, self.pause = time.monotonic(), min(2 * self.pause, self.save_every)
        for learner, folder in zip(self.learners, self.folders, strict=bool(self.folders)):
            sums = self.add_sums(learner)
            _check_finite(learner, epoch, float(sums["loss"]))
            if self.processes.first:
                folder.save(learner, sums)

    def add_sums(self, learner: Learner) -> dict[str, Tensor]:
        """Return the sums of all processes as one alone would have them: counts add up, and losses are means of parts."""
        if self.processes.count == 1:
            return learner.sums
        totals = self.processes.total([float(value) for value in learner.sums.values()])
        return {
            name: torch.tensor(total / self.processes.count if value.is_floating_point() else total, dtype=value.dtype)
            for (name, value), total in zip(learner.sums.items(), totals, strict=True)
        }

    def _read_clock(self) -> None:
        """Add the seconds since it was last read to those that the networks have been trained for."""
        self.stepper.wait()
        if self.learners[0].device.type == "cuda":
            torch.cuda.synchronize(self.learners[0].device)
        elapsed, self.read = time.monotonic() - self.read, time.monotonic()
        for learner in self.learners:
            learner.seconds += elapsed if learner.done else 0.0


def _as_batch(batch: Any) -> Batch:
    batch = (batch,) if isinstance(batch, Tensor) else batch
    fits = isinstance(batch, (tuple, list)) and all(isinstance(part, Tensor) and part.dim() for part in batch)
    require(fits, "batches of tensors, as many as their length says", type(batch).__name__)
    return batch  # type: ignore[no-any-return]


def _restore_random_numbers(learner: Learner) -> None:
    """Go on with torch's random numbers where a run was stopped in the middle of an epoch."""
    if "cpu" in learner.random_state:
        torch.set_rng_state(learner.random_state["cpu"])
    if "cuda" in learner.random_state and learner.device.type == "cuda":
        torch.cuda.set_rng_state(learner.random_state["cuda"], learner.device)


def _check_finite(learner: Learner, epoch: int, loss: float) -> None:
    tensors = (*learner.sums.values(), *learner.model.parameters())
    if not math.isfinite(loss) or not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        advice = f"Try a smaller learning rate than {learner.lr:g}."
        raise Diverged(f"Training diverged in epoch {epoch}: the loss is {loss:g}. {advice}")
