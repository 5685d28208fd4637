"""How a training step runs on its device. The only file that knows CUDA streams, CUDA graphs and stacked replicas.

On a GPU the whole step (build, forward, backward, update) is captured once as a CUDA graph and replayed. On a CPU, and
where processes share the work, the same functions run eagerly.

Note [Side by side]
The pieces of a step that happen to the weights (retraction, building, their gradient, the optimiser's step) are small,
many and independent: one after the other they would leave the device idle. So
* each layer's weight is built on a side stream, and waited for only by the layer that uses it (`prepare_weights`);
* each matrix moves on a side stream as soon as its own gradient is there (`_SideMoves`);
* like layers of several networks are built, and moved, in one batch (`LayerStack`): those of five networks take as many
  kernels as those of one. The passes through the networks run on a stream each.

Note [Streams of one's own]
Graphs that were captured on one stream share a cuBLAS workspace, and corrupt each other when they are replayed side by
side. So each captures on streams of its own, and all together use no more of them than PyTorch has; the step itself has
priority, and thereby streams of another pool, over what is built beside it.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isoconv.linalg.matrices import full_precision
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, constraint_dtype
from isoconv.nn.svcm import project_together
from isoconv.optim import SteepestDescent
from isoconv.records import require

if TYPE_CHECKING:
    from isoconv.train.engine import Batch, Learner

#: How many different streams PyTorch has to give; it hands them out again after that.
STREAMS_IN_POOL = 32

_SIDE_STREAMS = 10  # per network, while there are enough of them
_SIDE_STREAMS_STACKED = 24  # the networks' own are out of use by then
_BLIND_STEPS = 1  # enough after a step of 0.02 in operator norm; what a longer one leaves, the next retraction takes
_EAGER_RUNS = 2  # with a batch of a new shape, before a step with it is captured
_MOST_GRAPHS = 4  # of one step, for batches of different shapes; others run eagerly


def lay_out(values: Tensor) -> Tensor:
    """Return a batch in float32, as a network takes it fastest: on a GPU images have their channels side by side.

    It is always a copy there: torch would say that images with one channel are laid out so already.
    """
    if not values.is_cuda or values.dim() != 4:
        return values.to(torch.float32)
    return values.to(torch.float32, memory_format=torch.channels_last, copy=True)


# Steppers -------------------------------------------------------------------------------------------------------------


class Stepper:
    """Advances networks by one update each: on a GPU by CUDA graphs, if `captured`, elsewhere eagerly, one by one.

    groups : on a GPU, networks that step by one graph: those that differ in their weights only; others each by its own
    """

    def __init__(self, learners: "Sequence[Learner]", captured: bool = True) -> None:
        self.learners, self.groups = list(learners), list[_Group]()
        if captured and all(map(_can_be_captured, learners)):
            count = len(learners)
            require(count <= STREAMS_IN_POOL, f"at most {STREAMS_IN_POOL} networks side by side on a GPU", count)
            together = count > 1 and are_alike(learners)
            groups = [self.learners] if together else [[learner] for learner in learners]
            self.groups = [_Group(group, STREAMS_IN_POOL // len(groups)) for group in groups]

    def step(self, batches: "Sequence[Batch | None]") -> None:
        """Update each network on its batch; None leaves it where it is. On a GPU the work is only launched."""
        due = {one: batch for one, batch in zip(self.learners, batches, strict=True) if batch is not None}
        for group in self.groups:
            group.step({one: due[one] for one in group.learners if one in due})
        for learner, batch in due.items():
            if not self.groups:
                learner.rate.fill_(learner.scheduled_rate())
                learner.step([part.to(learner.device, non_blocking=True) for part in batch])
            learner.done += 1

    def wait(self) -> None:
        """Let the current stream see all that has been launched."""
        for group in self.groups:
            torch.cuda.current_stream(group.device).wait_stream(group.stream)

    def end(self) -> None:
        """Leave the networks as any others: nothing listens to their gradients any more."""
        for group in self.groups:
            if group.update is not None:
                group.update.end()

    def project_where_due(self) -> None:
        """Project what is projected rarely, after every `project_every` updates and after the last; call after a step."""
        self.project([one for one in self.learners if one.done % one.project_every == 0 or one.done == one.steps])

    def project(self, learners: "Sequence[Learner]") -> None:
        """Project the layers that these networks project rarely.

        On a GPU like layers of all networks take hardly longer together than those of one. On a CPU they are projected
        one by one: what is trained beside others is bit for bit what is trained alone.
        """
        due = [(layer, one.project_iterations) for one in learners for layer in one.projected_rarely]
        if due:
            self.wait()  # the next step waits for the current stream, so for what is launched here
        for iterations in dict.fromkeys(number for _, number in due):
            layers = [layer for layer, number in due if number == iterations]
            for part in [layers] if layers[0].kernel.is_cuda else [[layer] for layer in layers]:
                project_together(part, iterations)


def _can_be_captured(learner: "Learner") -> bool:
    """Return False on a CPU, and where a step looks at numbers on the device, which a graph cannot.

    Optimisers do that unless they say otherwise; our layers where nothing is prepared for them, in an update of one's own.
    """
    optimiser = learner.optimiser
    blind = all(group.get("capturable") or group.get("fused") for group in optimiser.param_groups)
    blind = blind or isinstance(optimiser, SteepestDescent)
    ours = any(isinstance(module, BuiltWeight) for module in learner.model.modules())
    return learner.device.type == "cuda" and blind and not (ours and learner.update)


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
        self.inputs: dict[object, list[list[Tensor]]] = {}
        self.runs: Counter[object] = Counter()
        self.graphs: dict[object, torch.cuda.CUDAGraph] = {}

    def step(self, due: "dict[Learner, Batch]") -> None:
        """Launch an update of each network that is due on its batch."""
        kind = tuple((part.shape, part.dtype) for batch in due.values() for part in batch)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for one in due:
                one.rate.fill_(one.scheduled_rate())
            inputs = self._store(kind, list(due.values()))
            if self.steps >= self.learners[0].warm_up and len(due) == len(self.learners):
                self._run(kind, inputs)
            else:
                for one, batch in zip(due, inputs, strict=True):
                    one.step(batch)
        self.steps += len(due) == len(self.learners)
        # A replay changes parameters behind PyTorch's back, and a stack those that are parts of it.
        torch.autograd.graph.increment_version([p for one in self.learners for p in one.model.parameters()])

    def _store(self, kind: object, batches: "Sequence[Batch]") -> list[list[Tensor]]:
        """Copy batches to where the graph of their shapes reads them."""
        if kind not in self.inputs:
            self.inputs[kind] = [[torch.empty_like(part, device=self.device) for part in batch] for batch in batches]
        for inputs, batch in zip(self.inputs[kind], batches, strict=True):
            for static, part in zip(inputs, batch, strict=True):
                static.copy_(part, non_blocking=True)
                if part.is_cuda:
                    # The host runs ahead: without this, the batch's memory would hold a later batch when it is copied.
                    part.record_stream(self.stream)
        self.runs[kind] += 1
        return self.inputs[kind]

    def _run(self, kind: object, inputs: list[list[Tensor]]) -> None:
        if self.update is None:
            torch.cuda.synchronize(self.device)
            self.update = SharedUpdate(self.learners, self.side_streams)
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
    """The update of networks at once, each on its batch. See Note [Side by side].

    Like parameters of several networks lie in stacks from now on. Each network goes on having its parameters and its
    optimiser's state, as parts of what all have: so it can be saved and evaluated. What it must not do any more is to
    step, or to be loaded, on its own. With no side streams (on a CPU) everything runs in a row.
    """

    def __init__(self, learners: "Sequence[Learner]", side_streams: int = 0) -> None:
        self.learners = learners
        models, device, several = [one.model for one in learners], learners[0].device, len(learners) > 1
        self.stacks = list[LayerStack]() if learners[0].update else stack_layers(models)
        self.optimiser = _join_optimisers(learners, self.stacks) if several else learners[0].optimiser
        # The passes of several networks run on streams of their own; those that build and move weights are others.
        self.branches = SideStreams(device, len(models) if several and side_streams else 0, priority=-1)
        count = min(_SIDE_STREAMS_STACKED if several else _SIDE_STREAMS, side_streams)
        self.streams = SideStreams(device, count, spare=count * 2 // 5)
        self.moves = None
        if side_streams and isinstance(self.optimiser, SteepestDescent) and not learners[0].update:
            self.moves = _SideMoves(self.optimiser, self.streams)

    def __call__(self, batches: "Sequence[Batch]") -> None:
        if self.learners[0].update:  # it changes parameters in between: nothing can be prepared for it
            self.learners[0].step(batches[0])
            return
        self.optimiser.zero_grad(set_to_none=True)
        with prepare_weights(self.stacks, self.streams):
            losses = []
            self.branches.fork()
            for k, (learner, batch) in enumerate(zip(self.learners, batches, strict=True)):
                with self.branches.use(k):
                    losses.append(learner.compute_loss(batch))
            self.branches.join()
            (losses[0] if len(losses) == 1 else torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]
            self.branches.join()
        (self.moves or self.optimiser).step()
        for learner in self.learners:
            learner.project_in_step()

    def end(self) -> None:
        """Leave the networks as any others."""
        for hook in self.moves.hooks if self.moves else ():
            hook.remove()


def _join_optimisers(learners: "Sequence[Learner]", stacks: "Sequence[LayerStack]") -> torch.optim.Optimizer:
    """Return an optimiser of the stacks and of all other parameters, whose state is that of the networks' own ones."""
    owners: dict[Tensor, torch.optim.Optimizer]
    owners = {p: one.optimiser for one in learners for p in one.model.parameters() if p.requires_grad}
    stacked = {whole: parts for stack in stacks for whole, parts in stack.wholes.items()}
    alone = owners.keys() - {p for parts in stacked.values() for p in parts}
    joint = learners[0].make_optimiser([*stacked, *(p for p in owners if p in alone)])
    for whole, parts in stacked.items():
        states = [owners[p].state[p] for p in parts]
        for key, value in states[0].items():
            if isinstance(value, Tensor) and value.shape == parts[0].shape:
                value = torch.stack([state[key] for state in states]).flatten(0, -3)
                values = _split(value, parts)
            else:  # a count of steps, the same for all
                values = (value,) * len(states)
            joint.state[whole][key] = value
            for state, part in zip(states, values, strict=True):
                state[key] = part
    for p in alone:
        joint.state[p] = owners[p].state[p]
    return joint


# Weights, built ahead -------------------------------------------------------------------------------------------------


@contextmanager
def prepare_weights(stacks: "Sequence[LayerStack]", streams: "SideStreams") -> Iterator[None]:
    """Let every layer use one weight, built on entry. The parameters must not change within the context.

    On a GPU the stacks are built on side streams; each layer waits for its own weight only, and its gradient runs on the
    same stream too. Stacks that share a parameter are built on one stream, since each may bring it back to the manifold.
    """
    turns: dict[Tensor, int] = {}  # whose turn it was to be used for a parameter
    try:
        streams.fork()
        for new, stack in enumerate(stacks):
            sources = [source for layer in stack.layers for source in layer._sources()]
            turn = next((turns[source] for source in sources if source in turns), new)
            turns |= dict.fromkeys(sources, turn)
            ready = None
            with streams.use(turn) as stream:
                weights = stack.build(streams)
                if stream is not None:
                    ready = torch.cuda.Event()
                    ready.record(stream)
            for layer, weight in zip(stack.layers, weights, strict=True):
                layer.weight_source = partial(_take, weight, ready)
        yield
    finally:
        for stack in stacks:
            for layer in stack.layers:
                layer.weight_source = None
        streams.join()


def _take(weight: Tensor, ready: "torch.cuda.Event | None") -> Tensor:
    """Return a weight that was built ahead, once the current stream has waited for it."""
    if ready is not None:
        stream = torch.cuda.current_stream(weight.device)
        stream.wait_event(ready)
        weight.record_stream(stream)
    return weight


class LayerStack:
    """One layer, or orthogonalised layers of one kind and shape, one of each model, that are built in one batch.

    wholes : of several layers, a tensor (count·b, m, n) for each parameter that they have: a batch of matrices, that of
        all layers. The layers' parameters become views of it. It has the gradient, and they none.
    frozen : the weight of one layer that is not trained, built once: a captured graph goes on reading it
    """

    def __init__(self, layers: Sequence[BuiltWeight]) -> None:
        self.layers = list(layers)
        self.wholes: dict[Tensor, tuple[Tensor, ...]] = {}
        trained = any(source.requires_grad for source in layers[0]._sources())
        self.frozen = None if trained else layers[0].weight.detach()
        if len(layers) > 1:
            for layer in layers:
                layer.refresh()  # what it keeps holds on to the memory of its old parameters
            self.wholes = dict(map(_stack, zip(*(one._sources() for one in layers), strict=True)))

    def build(self, streams: "SideStreams") -> tuple[Tensor, ...]:
        """Return the weights of the layers, joined to their gradients. The parameters are retracted.

        One graph leads to all of them, so what is computed with them is to be back-propagated at once.
        """
        if self.frozen is not None:
            return (self.frozen,)
        first = self.layers[0]
        if not self.wholes:
            first._before_training_forward()
            return (_build(first, first._sources(), None, streams),)
        shapes = [(len(parts), *parts[0].shape) for parts in self.wholes.values()]
        weights = _build(first, list(self.wholes), shapes, streams)
        torch.autograd.graph.increment_version([p for parts in self.wholes.values() for p in parts])
        return weights.unbind()


def _stack(parameters: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return one tensor that holds the same parameter of several layers, and these, which are views of it now."""
    with torch.no_grad():
        whole = torch.stack([p.detach() for p in parameters]).flatten(0, -3)
        for parameter, view in zip(parameters, _split(whole, parameters), strict=True):
            parameter.data, parameter.grad = view, None
    return whole.requires_grad_(), parameters


def _split(whole: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return a tensor like the whole of these parameters, seen as one for each."""
    return whole.detach().view(len(parameters), *parameters[0].shape).unbind()


def stack_layers(models: Sequence[nn.Module]) -> list[LayerStack]:
    """Return all layers that are built: like ones of several models in stacks, if they train matrices of their own.

    Several models must be built alike.
    """
    modules = [module for model in models for module in model.modules()]
    owners: Counter[Tensor] = Counter(p for module in modules for p in module.parameters(recurse=False))
    stacks = []
    for same in zip(*(model.modules() for model in models), strict=True) if len(models) > 1 else ():
        layers = [layer for layer in same if isinstance(layer, OrthogonalisedLayer)]
        matrices = [matrix for layer in layers for matrix in layer._sources()]
        alike = all(_settings(layer) == _settings(layers[0]) for layer in layers)
        if layers and alike and all(matrix.requires_grad and owners[matrix] == 1 for matrix in matrices):
            stacks.append(LayerStack(layers))
    stacked = {layer for stack in stacks for layer in stack.layers}
    built = (module for module in modules if isinstance(module, BuiltWeight) and module._sources())
    return stacks + [LayerStack([layer]) for layer in built if layer not in stacked]


def _settings(layer: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, (int, float, str, tuple))}


def _build(
    layer: BuiltWeight,
    sources: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]] | None,
    streams: "SideStreams",
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
                streams.run([partial(_settle_in_place, layer, [source], steps) for source in sources])
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

    Of `count` streams some may be spare: pieces of work that others wait for may use those for parts of their own. They
    belong to one training step. See Note [Streams of one's own]. With none, everything runs in a row.
    """

    def __init__(self, device: torch.device, count: int = 0, spare: int = 0, priority: int = 0) -> None:
        self.device = device
        self.all = [torch.cuda.Stream(device, priority=priority) for _ in range(count)]
        self.streams, self.spare = self.all[spare:], itertools.cycle(self.all[:spare] or self.all)

    def fork(self) -> None:
        """Let all that is launched on the current stream so far come before what follows on these."""
        for stream in self.all:
            stream.wait_stream(torch.cuda.current_stream(self.device))

    def join(self) -> None:
        """Let all that is launched on these so far come before what follows on the current stream."""
        for stream in self.all:
            torch.cuda.current_stream(self.device).wait_stream(stream)

    @contextmanager
    def use(self, turn: int) -> Iterator["torch.cuda.Stream | None"]:
        """Launch on the stream whose turn it is."""
        stream = self.streams[turn % len(self.streams)] if self.streams else None
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            yield stream

    def run(self, parts: Sequence[Callable[[], None]]) -> None:
        """Run independent parts of a piece of work: all but the first on spare streams, where there are streams."""
        busy = []
        for part in parts[1:] if self.all else ():
            stream = next(self.spare)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                part()
            busy.append(stream)
        for part in parts[:1] if self.all else parts:
            part()
        for stream in busy:
            torch.cuda.current_stream(self.device).wait_stream(stream)


class _SideMoves:
    """The step of steepest descent, each matrix on a spare stream as soon as its gradient is there.

    The backward pass records an event for each parameter, on whatever stream it uses. Between it and the step nothing may
    read the parameters or write the learning rate, and the loss may use no parameter both with and without its gradient.
    """

    def __init__(self, optimiser: SteepestDescent, streams: SideStreams) -> None:
        self.optimiser, self.streams = optimiser, streams
        self.there: dict[Tensor, tuple[torch.cuda.Event, Tensor, int]] = {}
        parameters = (p for group in optimiser.param_groups for p in group["params"] if p.requires_grad)
        self.hooks = [p.register_post_accumulate_grad_hook(self._record) for p in parameters]

    def _record(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            event = torch.cuda.Event()
            event.record()
            self.there[parameter] = event, parameter.grad, parameter.grad._version

    def step(self) -> None:
        current = torch.cuda.current_stream(self.streams.device)
        try:
            for group in self.optimiser.param_groups:
                moving = [p for p in group["params"] if p.grad is not None and p.numel()]
                matrices, vectors = [[p] for p in moving if p.dim() >= 2], [p for p in moving if p.dim() < 2]
                # Matrices about in the order in which a backward pass finds their gradients.
                for part in (*reversed(matrices), *([vectors] if vectors else [])):
                    with torch.cuda.stream(next(self.streams.spare)):
                        for p in part:
                            self._wait_for_gradient(p, current)
                        self.optimiser.update(group, part)
        finally:
            self.streams.join()

    def _wait_for_gradient(self, parameter: Tensor, instead: torch.cuda.Stream) -> None:
        """Let the current stream wait for a gradient; for all of `instead`, if it was changed since."""
        stream = torch.cuda.current_stream(parameter.device)
        seen = self.there.pop(parameter, None)
        if seen is not None and seen[1] is parameter.grad and seen[1]._version == seen[2]:
            stream.wait_event(seen[0])
        else:
            stream.wait_stream(instead)
