"""How a training step runs on its device. The only file that knows CUDA streams, CUDA graphs and stacked replicas.

On a GPU the whole step (build, forward, backward, update) is captured once as a CUDA graph and replayed. On a CPU, and
where processes share the work, the same functions run eagerly.

Note [Side by side]
The pieces of a step that happen to the weights (retraction, building, their gradient, the optimiser's step) are small,
many and independent: one after the other they would leave the device idle. So
* each layer's weight is built on a side stream, and waited for only by the layer that uses it (`PreparedWeights`);
* each matrix moves on a side stream as soon as its own gradient is there (`_SideMoves`);
* like layers of several networks are built, and moved, in one batch (`LayerStack`): those of five networks take as many
  kernels as those of one. The passes through the networks run on a stream each.

Note [Streams of one's own]
Graphs that were captured on one stream share a cuBLAS workspace, and corrupt each other when they are replayed side by
side. So each captures on streams of its own, and all together use no more of them than PyTorch has; the step itself has
priority, and thereby streams of another pool, over what is built beside it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.linalg.matrices import full_precision
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, constraint_dtype
from isoconv.nn.svcm import project_together
from isoconv.optim import SteepestDescent

if TYPE_CHECKING:
    from isoconv.train.engine import Batch, Learner

#: How many different streams PyTorch has to give; it hands them out again after that.
STREAMS_IN_POOL = 32

_SIDE_STREAMS = 10  # per network, while there are enough of them
_SIDE_STREAMS_STACKED = 24  # the networks' own are out of use by then
_BLIND_STEPS = 1  # enough after a step of 0.02 in operator norm; what a longer one leaves, the next retraction takes
_EAGER_RUNS = 2  # with a batch of a new shape, before a step with it is captured
_MOST_GRAPHS = 4  # of one step, for batches of different shapes; others run eagerly


def make_stepper(learners: "Sequence[Learner]", captured: bool = True) -> "Stepper":
    """Return what advances these networks: on a GPU by CUDA graphs, if `captured`, like networks all by one."""
    if not captured or learners[0].device.type != "cuda" or not all(map(_can_be_captured, learners)):
        return Stepper(learners)
    if len(learners) > STREAMS_IN_POOL:
        raise IsoconvError(f"Expected at most {STREAMS_IN_POOL} networks side by side on a GPU. Got {len(learners)}.")
    return GraphStepper(learners)


def _can_be_captured(learner: "Learner") -> bool:
    """Return False where a step looks at numbers on the device, which a graph cannot.

    Optimisers do that unless they say otherwise; our layers where nothing is prepared for them, in an update of one's own.
    """
    optimiser = learner.optimiser
    blind = all(group.get("capturable") or group.get("fused") for group in optimiser.param_groups)
    ours = any(isinstance(module, BuiltWeight) for module in learner.model.modules())
    return (blind or isinstance(optimiser, SteepestDescent)) and not (ours and learner.update)


def lay_out(values: Tensor) -> Tensor:
    """Return a batch in float32, as a network takes it fastest: on a GPU images have their channels side by side.

    It is always a copy there: torch would say that images with one channel are laid out so already.
    """
    if not values.is_cuda or values.dim() != 4:
        return values.to(torch.float32)
    return values.to(torch.float32, memory_format=torch.channels_last, copy=True)


# Steppers -------------------------------------------------------------------------------------------------------------


class Stepper:
    """Advances networks by one update each, eagerly, one after the other."""

    def __init__(self, learners: "Sequence[Learner]") -> None:
        self.learners = list(learners)

    def step(self, batches: "Sequence[Batch | None]") -> None:
        """Update each network on its batch; None leaves it where it is. On a GPU the work is only launched."""
        for learner, batch in zip(self.learners, batches, strict=True):
            if batch is not None:
                learner.rate.fill_(learner.scheduled_rate())
                learner.step([part.to(learner.device, non_blocking=True) for part in batch])
                learner.done += 1

    def wait(self) -> None:
        """Let the current stream see all that has been launched."""

    def end(self) -> None:
        """Leave the networks as any others: nothing listens to their gradients any more."""

    def project_where_due(self) -> None:
        """Project what is projected rarely, after every `project_every` updates and after the last; call after a step."""
        self.project([one for one in self.learners if one.done % one.project_every == 0 or one.done == one.steps])

    def project(self, learners: "Sequence[Learner]", together: bool | None = None) -> None:
        """Project the layers that these networks project rarely: together on a GPU, unless said.

        There like layers of all networks take hardly longer than those of one. On a CPU they are projected one by one:
        what is trained beside others is bit for bit what is trained alone.
        """
        learners = [learner for learner in learners if learner.projected_rarely]
        if learners:
            self.wait()  # the next step waits for the current stream, so for what is launched here
        if together is None:
            together = any(learner.device.type == "cuda" for learner in learners)
        for iterations in dict.fromkeys(learner.project_iterations for learner in learners):
            layers = [m for one in learners if one.project_iterations == iterations for m in one.projected_rarely]
            for group in [layers] if together else [[layer] for layer in layers]:
                project_together(group, iterations)


class GraphStepper(Stepper):
    """Advances networks by CUDA graphs: those that differ in their weights only all by one, others each by its own."""

    def __init__(self, learners: "Sequence[Learner]") -> None:
        super().__init__(learners)
        together = len(learners) > 1 and are_alike(learners)
        groups = [self.learners] if together else [[learner] for learner in learners]
        self.groups = [_Group(group, STREAMS_IN_POOL // len(groups)) for group in groups]

    def step(self, batches: "Sequence[Batch | None]") -> None:
        of = dict(zip(self.learners, batches, strict=True))
        for group in self.groups:
            group.step([of[learner] for learner in group.learners])

    def wait(self) -> None:
        for group in self.groups:
            torch.cuda.current_stream(group.device).wait_stream(group.stream)

    def end(self) -> None:
        for group in self.groups:
            if group.update is not None:
                group.update.end()


def are_alike(learners: "Sequence[Learner]") -> bool:
    """Return True if networks differ in their weights only, and take the same kind of steps."""

    def kind(one: "Learner") -> tuple[object, ...]:
        layout = [(type(module), *(p.shape for p in module.parameters(False))) for module in one.model.modules()]
        return layout, one.update, one.choice, one.momentum, one.lr, one.schedule

    return all(kind(one) == kind(learners[0]) and one.update is None for one in learners)


class _Group:
    """Networks that step as one, on streams of their own: some times eagerly, then as a CUDA graph per shape of batch."""

    def __init__(self, learners: "Sequence[Learner]", streams: int) -> None:
        self.learners, self.device, self.side_streams = list(learners), learners[0].device, streams
        self.stream = torch.cuda.Stream(self.device, priority=-1)
        self.update: SharedUpdate | None = None
        self.steps = 0
        self.inputs: dict[object, list[Tensor]] = {}
        self.runs: Counter[object] = Counter()
        self.graphs: dict[object, torch.cuda.CUDAGraph] = {}

    def step(self, batches: "Sequence[Batch | None]") -> None:
        """Launch an update of each network whose batch is not None."""
        due = [(one, batch) for one, batch in zip(self.learners, batches, strict=True) if batch is not None]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for one, _ in due:
                one.rate.fill_(one.scheduled_rate())
            inputs = self._store([part for _, batch in due for part in batch])
            if self.steps < self.learners[0].warm_up or len(due) < len(self.learners):
                length = len(inputs) // max(1, len(due))
                for k, (one, _) in enumerate(due):
                    one.step(inputs[k * length : (k + 1) * length])
            else:
                self._run(inputs)
        self.steps += len(due) == len(self.learners)
        # A replay changes parameters behind PyTorch's back, and a stack those that are parts of it.
        torch.autograd.graph.increment_version([p for one in self.learners for p in one.model.parameters()])
        for one, _ in due:
            one.done += 1

    def _store(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """Copy a batch to where the graph of its shape reads it."""
        kind = tuple((part.shape, part.dtype) for part in batch)
        if kind not in self.inputs:
            self.inputs[kind] = [torch.empty_like(part, device=self.device) for part in batch]
        for static, part in zip(self.inputs[kind], batch, strict=True):
            static.copy_(part, non_blocking=True)
            if part.is_cuda:
                # The host runs ahead: without this, the batch's memory would hold a later batch when it is copied.
                part.record_stream(self.stream)
        self.runs[kind] += 1
        return self.inputs[kind]

    def _run(self, inputs: list[Tensor]) -> None:
        kind = tuple((part.shape, part.dtype) for part in inputs)
        if self.update is None:
            torch.cuda.synchronize(self.device)
            self.update = SharedUpdate(self.learners, self.stream, self.side_streams)
            torch.cuda.synchronize(self.device)
        if kind not in self.graphs and self.runs[kind] > _EAGER_RUNS and len(self.graphs) < _MOST_GRAPHS:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, stream=self.stream):
                self.update(inputs)
            self.graphs[kind] = graph
        if kind in self.graphs:
            self.graphs[kind].replay()
        else:
            self.update(inputs)


class SharedUpdate:
    """The update of networks at once, from all their batches in a row. See Note [Side by side].

    Like parameters of several networks lie in stacks from now on. Each network goes on having its parameters and its
    optimiser's state, as parts of what all have: so it can be saved and evaluated. What it must not do any more is to
    step, or to be loaded, on its own. Without a stream (on a CPU) everything runs in a row.
    """

    def __init__(
        self, learners: "Sequence[Learner]", stream: "torch.cuda.Stream | None" = None, count: int = 0
    ) -> None:
        self.learners, self.stream = learners, stream
        models, device = [learner.model for learner in learners], learners[0].device
        layers = stack_layers(models) if len(models) > 1 else []
        self.optimiser = learners[0].optimiser
        if len(models) > 1:
            self.optimiser = _join_optimisers(learners, [stack for layer in layers for stack in layer.parameters])
        # The passes of several networks run on streams of their own; those that build and move weights are others.
        self.branches: list[torch.cuda.Stream] = []
        streams = None
        if stream is not None:
            self.branches = [torch.cuda.Stream(device, priority=-1) for _ in models] if len(models) > 1 else []
            most = _SIDE_STREAMS if len(models) == 1 else _SIDE_STREAMS_STACKED
            streams = SideStreams(device, max(1, min(most, count)))
        # An update of one's own changes parameters in between: nothing can be prepared for it.
        self.prepared = None if learners[0].update else PreparedWeights(models, streams, layers)
        self.moves = None
        if streams is not None and isinstance(self.optimiser, SteepestDescent) and self.prepared is not None:
            self.moves = _SideMoves(self.optimiser, streams)

    def __call__(self, flat: "Batch") -> None:
        if self.prepared is None:
            self.learners[0].step(flat)
            return
        self.optimiser.zero_grad(set_to_none=True)
        length = len(flat) // len(self.learners)
        with self.prepared:
            losses = []
            for k, learner in enumerate(self.learners):
                with self._branch(k):
                    losses.append(learner.compute_loss(flat[k * length : (k + 1) * length]))
            self._wait_for_branches()
            (losses[0] if len(losses) == 1 else torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]
            self._wait_for_branches()
        (self.moves or self.optimiser).step()
        for learner in self.learners:
            learner.project_in_step()

    def _branch(self, k: int) -> AbstractContextManager[object]:
        """Return a context that runs on a network's own stream, after what has been launched on this one."""
        if not self.branches:
            return nullcontext()
        self.branches[k].wait_stream(torch.cuda.current_stream(self.branches[k].device))
        return torch.cuda.stream(self.branches[k])

    def _wait_for_branches(self) -> None:
        for branch in self.branches:
            torch.cuda.current_stream(branch.device).wait_stream(branch)

    def end(self) -> None:
        """Leave the networks as any others."""
        if self.moves is not None:
            self.moves.gradients.stop()


def _join_optimisers(learners: "Sequence[Learner]", stacks: "Sequence[ParameterStack]") -> torch.optim.Optimizer:
    """Return an optimiser of the stacks and of all other parameters, whose state is that of the networks' own ones."""
    owners = {p: one.optimiser for one in learners for p in one.model.parameters() if p.requires_grad}
    stacked = {p for stack in stacks for p in stack.parameters}
    alone = [p for p in owners if p not in stacked]
    joint = learners[0].make_optimiser([*(stack.whole for stack in stacks), *alone])
    for stack in stacks:
        states = [owners[p].state[p] for p in stack.parameters]
        for key, value in states[0].items():
            if isinstance(value, Tensor) and value.shape == stack.parameters[0].shape:
                value = torch.stack([state[key] for state in states]).flatten(0, -3)
                parts = stack.split(value)
            else:  # a count of steps, the same for all
                parts = (value,) * len(states)
            joint.state[stack.whole][key] = value
            for state, part in zip(states, parts, strict=True):
                state[key] = part
    for p in alone:
        joint.state[p] = owners[p].state[p]
    return joint


# Weights, built ahead -------------------------------------------------------------------------------------------------


class PreparedWeights:
    """A context in which every layer of some models uses one weight, built on entry. The parameters must not change in it.

    With `streams` (on a GPU) the layers are built on those; each layer waits for its own weight only, and its gradient runs
    on the same stream too. What is in `stacks` is built in theirs, the other layers one by one; those that share a
    parameter on one stream, since each may bring it back to the manifold.
    """

    def __init__(
        self, models: Sequence[nn.Module], streams: "SideStreams | None" = None, stacks: "Sequence[LayerStack]" = ()
    ) -> None:
        stacked = {layer for stack in stacks for layer in stack.layers}
        layers = (module for model in models for module in model.modules() if isinstance(module, BuiltWeight))
        alone = [_SingleLayer(layer) for layer in layers if layer._sources() and layer not in stacked]
        self.stacks: list[LayerStack | _SingleLayer] = [*stacks, *alone]
        self.streams = streams

    def __enter__(self) -> None:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise

    def _build(self) -> None:
        if self.streams is not None:
            self.streams.fork()
        for turn, stack in zip(self._turns(), self.stacks, strict=True):
            ready = None
            with nullcontext() if self.streams is None else self.streams.use(turn) as stream:
                weights = stack.build(self.streams)
                if stream is not None:
                    ready = torch.cuda.Event()
                    ready.record(stream)
            for layer, weight in zip(stack.layers, weights, strict=True):
                layer.weight_source = partial(_take, weight, ready)

    def _turns(self) -> Iterator[int]:
        """Yield whose turn it is to be used, for each stack: a new stream's, but for parameters that were seen before."""
        seen: dict[Tensor, int] = {}
        for new, stack in enumerate(self.stacks):
            sources = [source for layer in stack.layers for source in layer._sources()]
            turn = next((seen[source] for source in sources if source in seen), new)
            seen |= dict.fromkeys(sources, turn)
            yield turn

    def __exit__(self, *error: object) -> None:
        for stack in self.stacks:
            for layer in stack.layers:
                layer.weight_source = None
        if self.streams is not None:
            self.streams.join()


def _take(weight: Tensor, ready: "torch.cuda.Event | None") -> Tensor:
    """Return a weight that was built ahead, once the current stream has waited for it."""
    if ready is not None:
        stream = torch.cuda.current_stream(weight.device)
        stream.wait_event(ready)
        weight.record_stream(stream)
    return weight


class _SingleLayer:
    """One layer. One that is not trained is built once: a captured graph goes on reading that weight."""

    def __init__(self, layer: BuiltWeight) -> None:
        self.layers = (layer,)
        trained = any(source.requires_grad for source in layer._sources())
        self.frozen = None if trained else layer.weight.detach()

    def build(self, streams: "SideStreams | None" = None) -> tuple[Tensor, ...]:
        (layer,) = self.layers
        if self.frozen is not None:
            return (self.frozen,)
        layer._before_training_forward()
        return (_build(layer, layer._sources(), None, streams),)


class LayerStack:
    """Orthogonalised layers of one kind and shape, one of each model, built in one batch."""

    def __init__(self, layers: Sequence[OrthogonalisedLayer]) -> None:
        self.layers = list(layers)
        for layer in layers:
            layer.refresh()  # what it keeps holds on to the memory of its old parameters
        self.parameters = [ParameterStack(same) for same in zip(*(one._sources() for one in layers), strict=True)]

    def build(self, streams: "SideStreams | None" = None) -> tuple[Tensor, ...]:
        """Return the weights of the layers, joined to the gradients of the stacks. The parameters are retracted.

        One graph leads to all of them, so what is computed with them is to be back-propagated at once.
        """
        shapes = [(len(self.layers), *stack.parameters[0].shape) for stack in self.parameters]
        weights = _build(self.layers[0], [stack.whole for stack in self.parameters], shapes, streams)
        torch.autograd.graph.increment_version([p for stack in self.parameters for p in stack.parameters])
        return weights.unbind()


class ParameterStack:
    """One tensor that holds the same parameter of several models: `whole`, (count·b, m, n), a batch of matrices.

    The models' parameters become views of it. It has the gradient, and they none.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        with torch.no_grad():
            self.whole = torch.stack([p.detach() for p in parameters]).flatten(0, -3)
            for parameter, view in zip(parameters, self.split(self.whole), strict=True):
                parameter.data, parameter.grad = view, None
        self.whole.requires_grad_()

    def split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Return a tensor like `whole`, seen as one for each model."""
        return whole.detach().view(len(self.parameters), *self.parameters[0].shape).unbind()


def stack_layers(models: Sequence[nn.Module]) -> list[LayerStack]:
    """Return stacks of all like layers that train orthonormal matrices of their own. The models must be built alike."""
    modules = [module for model in models for module in model.modules()]
    owners: Counter[Tensor] = Counter(p for module in modules for p in module.parameters(recurse=False))
    stacks = []
    for same in zip(*(model.modules() for model in models), strict=True):
        layers = [layer for layer in same if isinstance(layer, OrthogonalisedLayer)]
        matrices = [matrix for layer in layers for matrix in layer._sources()]
        alike = all(_settings(layer) == _settings(layers[0]) for layer in layers)
        if layers and alike and all(matrix.requires_grad and owners[matrix] == 1 for matrix in matrices):
            stacks.append(LayerStack(layers))
    return stacks


def _settings(layer: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, (int, float, str, tuple))}


def _build(
    layer: BuiltWeight,
    sources: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]] | None,
    streams: "SideStreams | None",
) -> Tensor:
    """Build the weight of these sources for a training step, joined to their gradient. Nothing is kept.

    The points that the sources stand for are written into them, where the layer does that. A captured step cannot look at
    the numbers: it retracts blindly.
    """
    steps = _BLIND_STEPS if sources[0].is_cuda and torch.cuda.is_current_stream_capturing() else None
    with full_precision(sources[0]):
        precise = [source.to(constraint_dtype(source)) for source in sources]
        points: Sequence[Tensor] = precise
        with torch.no_grad():
            if not layer._writes_back:
                points = layer._settle(*precise, steps=steps)
            elif isinstance(layer, OrthogonalisedLayer):  # each matrix settles by itself
                _run_parts([partial(_settle_in_place, layer, [source], steps) for source in sources], streams)
            else:
                _settle_in_place(layer, sources, steps)
        joined = layer._join(precise, points)
        if shapes is not None:
            joined = [point.view(shape) for point, shape in zip(joined, shapes, strict=True)]
        return layer._build(*joined).to(sources[0].dtype)


def _settle_in_place(layer: BuiltWeight, sources: Sequence[Tensor], steps: int | None) -> None:
    for source, point in zip(sources, layer._settle(*sources, steps=steps), strict=True):
        if point.data_ptr() != source.data_ptr():
            source.copy_(point)


# Streams --------------------------------------------------------------------------------------------------------------


class SideStreams:
    """Some streams beside the current one. Work is dealt out to them in turn, and joined again at the end.

    Of `count` streams, two in five are spare: pieces of work that others wait for may use those for parts of their own.
    They belong to one training step. See Note [Streams of one's own].
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        streams = [torch.cuda.Stream(device) for _ in range(count)]
        spare = count * 2 // 5
        self.streams, self.spare = streams[spare:], streams[:spare] or streams
        self._next_spare = 0

    def fork(self) -> None:
        """Let all that is launched on the current stream so far come before what follows on these."""
        current = torch.cuda.current_stream(self.device)
        for stream in self._all():
            stream.wait_stream(current)

    def join(self) -> None:
        """Let all that is launched on these so far come before what follows on the current stream."""
        current = torch.cuda.current_stream(self.device)
        for stream in self._all():
            current.wait_stream(stream)

    @contextmanager
    def use(self, turn: int) -> Iterator[torch.cuda.Stream]:
        """Launch on the stream whose turn it is."""
        stream = self.streams[turn % len(self.streams)]
        with torch.cuda.stream(stream):
            yield stream

    def take_spare(self) -> torch.cuda.Stream:
        """Return one of the spare streams, in turn."""
        self._next_spare += 1
        return self.spare[self._next_spare % len(self.spare)]

    def _all(self) -> list[torch.cuda.Stream]:
        return list(dict.fromkeys([*self.streams, *self.spare]))


def _run_parts(parts: Sequence[Callable[[], None]], streams: SideStreams | None) -> None:
    """Run independent parts of a piece of work: all but the first on spare streams, where there are streams."""
    if streams is None:
        for part in parts:
            part()
        return
    current = torch.cuda.current_stream(streams.device)
    busy = []
    for part in parts[1:]:
        stream = streams.take_spare()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            part()
        busy.append(stream)
    for part in parts[:1]:
        part()
    for stream in busy:
        current.wait_stream(stream)


class _SideMoves:
    """The step of steepest descent, each matrix on a spare stream as soon as its gradient is there.

    Between the backward pass and the step nothing may read the parameters or write the learning rate, and the loss may use
    no parameter both with and without its gradient.
    """

    def __init__(self, optimiser: SteepestDescent, streams: SideStreams) -> None:
        self.optimiser, self.streams = optimiser, streams
        self.gradients = _GradientEvents(p for group in optimiser.param_groups for p in group["params"])

    def step(self) -> None:
        current = torch.cuda.current_stream(self.streams.device)
        try:
            for group in self.optimiser.param_groups:
                moving = [p for p in group["params"] if p.grad is not None and p.numel()]
                matrices, vectors = [[p] for p in moving if p.dim() >= 2], [p for p in moving if p.dim() < 2]
                # Matrices about in the order in which a backward pass finds their gradients.
                for part in (*reversed(matrices), *([vectors] if vectors else [])):
                    with torch.cuda.stream(self.streams.take_spare()):
                        for p in part:
                            self.gradients.wait(p, instead=current)
                        self.optimiser.update(group, part)
        finally:
            self.streams.join()


class _GradientEvents:
    """Says when a gradient is there: the backward pass records an event for each parameter, on whatever stream it uses."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._there: dict[Tensor, tuple[torch.cuda.Event, Tensor, int]] = {}
        self._hooks = [p.register_post_accumulate_grad_hook(self._record) for p in parameters if p.requires_grad]

    def _record(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            event = torch.cuda.Event()
            event.record()
            self._there[parameter] = event, parameter.grad, parameter.grad._version

    def wait(self, parameter: Tensor, instead: torch.cuda.Stream) -> None:
        """Let the current stream wait for the gradient; for all of `instead`, if it was changed since."""
        stream = torch.cuda.current_stream(parameter.device)
        seen = self._there.pop(parameter, None)
        if seen is not None and seen[1] is parameter.grad and seen[1]._version == seen[2]:
            stream.wait_event(seen[0])
        else:
            stream.wait_stream(instead)

    def stop(self) -> None:
        """Record no more."""
        for hook in self._hooks:
            hook.remove()
        self._there.clear()
