"""One network in training: its optimiser, its step, and on a GPU the CUDA graph of that step."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from isoconv.nn import OSSNConv2d, SVCMConv2d
from isoconv.nn.prepare import PreparedWeights
from isoconv.nn.side_streams import STREAMS_IN_POOL, SideStreams
from isoconv.optim import SteepestDescent
from isoconv.train.schedules import schedule_factor
from isoconv.train.task import Task

# Eager steps before the capture. PyTorch asks for a few; the first steps of Adam are so long (every entry of a matrix
# moves by the full rate, all in step) that the captured retraction, which cannot look at the matrix, would not quite
# make up for them. A steepest-descent step is never longer than its rate.
_WARM_UP_STEPS = {"steepest": 3, "adam": 20, "rmsprop": 20}
_SIDE_STREAMS = 10  # per replica, while there are enough of them


class Settings(Protocol):
    """What the engine asks a configuration for, whatever is trained."""

    @property
    def optimiser(self) -> str: ...

    @property
    def lr(self) -> float: ...

    @property
    def momentum(self) -> float: ...

    @property
    def schedule(self) -> str: ...

    @property
    def epochs(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def project_every(self) -> int: ...

    @property
    def project_iterations(self) -> int: ...


class Replica:
    """A model with its own optimiser, buffers and stream; `step(images, labels)` is one update.

    Layers of `projected_rarely` are not projected by a step, but between steps: see `isoconv.train.projections`.

    On a GPU the whole step (build, forward, backward, update) is captured once as a CUDA graph and replayed. Every
    replica captures on streams of its own: graphs captured on one stream share a cuBLAS workspace, and replayed side
    by side they would corrupt each other; `side_by_side` says how many replicas share the device's streams. On a CPU,
    and where `wrap` hangs a communication layer around the model, the same function runs eagerly.
    """

    def __init__(
        self,
        config: Settings,
        model: nn.Module,
        task: Task,
        steps_per_epoch: int,
        device: torch.device,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
        side_by_side: int = 1,
    ) -> None:
        self.config, self.task, self.device = config, task, device
        self.model = model.to(device).train()
        self.wrapped = wrap(self.model) if wrap else self.model
        self.steps_per_epoch, self.steps = steps_per_epoch, steps_per_epoch * config.epochs
        self.done = 0  # updates so far
        self.seconds = 0.0  # of training so far
        self.graphed = device.type == "cuda" and wrap is None
        self.rate = torch.full((), config.lr, device=device)
        self.optimiser = make_optimiser(config, (p for p in self.model.parameters() if p.requires_grad), self.rate)
        self.stream: torch.cuda.Stream | None = None
        self.prepared: PreparedWeights | None = None
        if self.graphed:
            # The step itself has priority (and streams of another pool) over what is built beside it.
            self.stream = torch.cuda.Stream(device, priority=-1)
            side = SideStreams(device, max(1, min(_SIDE_STREAMS, STREAMS_IN_POOL // side_by_side)))
            self.prepared = PreparedWeights([self.model], side)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor] | None = None
        self.eager_steps = 0
        self.loss_sum = torch.zeros((), device=device)
        self.right = torch.zeros((), device=device, dtype=torch.int64)
        self.projected_in_step = [
            m for m in self.model.modules() if isinstance(m, OSSNConv2d) and m.projection != "forward"
        ]
        self.projected_rarely = [m for m in self.model.modules() if isinstance(m, SVCMConv2d)]

    # One update ---------------------------------------------------------------------------------------------------

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One update on a batch (pixels 0 … 255). On a GPU it is only launched, on the replica's own stream."""
        rate = self.scheduled_rate()
        if self.stream is None:
            self.rate.fill_(rate)
            self._update(images, labels)
            self.eager_steps += 1
        else:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                self.rate.fill_(rate)
                self._replay(images, labels)
        self.done += 1

    def scheduled_rate(self) -> float:
        """The learning rate of the next step."""
        return self.config.lr * schedule_factor(self.config.schedule, self.done, self.steps, self.steps_per_epoch)

    @property
    def warming_up(self) -> bool:
        """Whether the next step is still one of those before a capture."""
        return self.eager_steps < _WARM_UP_STEPS[self.config.optimiser]

    def _update(self, images: Tensor, labels: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        if self.prepared is None:
            loss, right = self.task.loss(self.wrapped, images, labels)
            loss.backward()
        else:
            with self.prepared:
                loss, right = self.task.loss(self.wrapped, images, labels)
                loss.backward()
        self.optimiser.step()
        for layer in self.projected_in_step:
            layer.project()
        self.loss_sum += loss.detach()
        self.right += right

    def _replay(self, images: Tensor, labels: Tensor) -> None:
        if self.inputs is None:
            self.inputs = images.clone(), labels.clone()
        for static, given in zip(self.inputs, (images, labels), strict=True):
            static.copy_(given)
            # The host runs ahead: without this, the batch's memory would hold a later batch by the time it is copied.
            given.record_stream(torch.cuda.current_stream(self.device))
        if self.graph is None and not self.warming_up:
            self.graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._update(*self.inputs)
        if self.graph is None:
            self._update(*self.inputs)
            self.eager_steps += 1
        else:
            self.graph.replay()
            # A replay changes parameters behind PyTorch's back; this is what tells the layers' caches.
            torch.autograd.graph.increment_version(list(self.model.parameters()))

    # What a step leaves -------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Let the current stream see all that has been launched."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def end(self) -> None:
        """Leave the model as any other: nothing listens to its gradients any more."""

    def is_finite(self) -> bool:
        """Whether all parameters are numbers."""
        self.wait()
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def take_sums(self) -> tuple[float, int]:
        """The losses added up and the number right, since this was last asked."""
        self.wait()
        sums = float(self.loss_sum), int(self.right)
        self.loss_sum.zero_()
        self.right.zero_()
        return sums


def make_optimiser(config: Settings, parameters: Iterable[Tensor], rate: Tensor) -> torch.optim.Optimizer:
    """The optimiser of a configuration. `rate` is a tensor, so that a captured graph reads the schedule's value."""
    on_gpu = rate.is_cuda
    if config.optimiser == "steepest":
        return SteepestDescent(parameters, lr=rate, momentum=config.momentum)
    if config.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, fused=on_gpu, capturable=on_gpu)
    return torch.optim.RMSprop(parameters, lr=rate, capturable=on_gpu)
