"""How a training step runs on its device. The only file that knows CUDA streams, CUDA graphs and stacked replicas.

On a GPU the whole step (build, forward, backward, update) is captured once as a CUDA graph and replayed. On a CPU, and
where processes share the work, the same functions run eagerly.

Note [Side by side]
The pieces of a step that happen to the weights (retraction, building, their gradient, the optimiser's step) are small,
many and independent: one after the other they would leave the device idle. So
* each layer's weight is built on a side stream, and waited for only by the layer that uses it (`prepare_weights`);
* each matrix moves on a side stream as soon as its own gradient is there (`_SideMoves`);
* like layers, of one network and of several, are built, and moved, in one batch (`LayerStack`): those of five networks
  take as many kernels as those of one. The passes through the networks run on a stream each.

Note [Back to the manifold]
A step of steepest descent at rate r moves a matrix U by r in operator norm, so steps whose rates add up to s leave at most
‖UᵀU − I‖ ≤ 2s + s². (Not s²: that would need steps along the tangent space, and the momentum still points along older
tangents.) A captured step
* uses matrices as they are while s ≤ 5e-4: off by 1e-3 at most, as TF32 leaves them. Where the network runs in bfloat16,
  whose rounding of the weights alone is 2e-3, while s ≤ 0.01;
* then, up to s = 0.0125, brings them back by a Newton–Schulz step of order 1, which leaves ¾(2s + s²)² ≤ 5e-4; its Gram
  matrix is in TF32 where the network runs in bfloat16;
* beyond that, and after steps of other optimisers, whose length nobody knows, by one of order 3 that never diverges.
Whoever looks at a weight (evaluation, `plain`, what is saved as the network, an eager step) settles it exactly, as ever.

Note [Streams of one's own]
Graphs that were captured on one stream share a cuBLAS workspace, and corrupt each other when they are replayed side by
side. So each captures on streams of its own, and all together use no more of them than PyTorch has; the step itself has
priority, and thereby streams of another pool, over what is built beside it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isoconv.errors import require
from isoconv.linalg.matrices import add_product, as_tall, full_precision, gram_residual, matmul_precision
from isoconv.linalg.orthogonalisation import retract
from isoconv.nn.built_weight import BuiltWeight, OrthogonalisedLayer, constraint_dtype
from isoconv.nn.cayley import CayleyConv2d
from isoconv.nn.svcm import project_together
from isoconv.optim import SteepestDescent
from isoconv.train.passes import is_repeatable

if TYPE_CHECKING:
    from isoconv.train.engine import Batch, Learner

#: How many different streams PyTorch has to give; it hands them out again after that.
STREAMS_IN_POOL = 32

_SIDE_STREAMS = 10  # per network, while there are enough of them
_SIDE_STREAMS_STACKED = 24  # the networks' own are out of use by then
_BLIND_STEPS = 1  # enough after a step of 0.02 in operator norm; what a longer one leaves, the next retraction takes
_UNSEEN = {False: 5e-4, True: 0.01}  # how far a matrix may move unretracted, in bfloat16 or not
_NEAR = 0.0125  # how far a step of order 1 leads back; see Note [Back to the manifold]
_EAGER_RUNS = 2  # with a batch of a new shape, before a step with it is captured: they compile what is compiled
_MOST_GRAPHS = 8  # of one step, for batches of different shapes; others run eagerly


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
        self.stepped: list[Learner] = []  # by the last step
        if captured and all(map(_can_be_captured, learners)):
            count = len(learners)
            require(count <= STREAMS_IN_POOL, f"at most {STREAMS_IN_POOL} networks side by side on a GPU", count)
            together = count > 1 and are_alike(learners)
            groups = [self.learners] if together else [[learner] for learner in learners]
            self.groups = [_Group(group, STREAMS_IN_POOL // len(groups)) for group in groups]

    def step(self, batches: "Sequence[Batch | Sequence[Batch] | None]") -> None:
        """Update each network on its batch, or on the batches that it accumulates; None leaves it where it is.

        On a GPU the work is only launched.
        """
        due = {one: batch for one, batch in zip(self.learners, batches, strict=True) if batch is not None}
        for group in self.groups:
            group.step({one: due[one] for one in group.learners if one in due})  # type: ignore[misc]
        for learner, batch in due.items():
            if not self.groups:
                learner.rate.fill_(learner.scheduled_rate())
                parts: Sequence[Any] = batch if learner.accumulate > 1 else [batch]
                learner.step(*([tensor.to(learner.device, non_blocking=True) for tensor in part] for part in parts))
            learner.done += 1
        self.stepped = [*due]

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
        self.project([one for one in self.stepped if one.done % one.project_every == 0 or one.done == one.steps])

    def project(self, learners: "Sequence[Learner]") -> None:
        """Project the layers that these networks project rarely.

        On a GPU like layers of all networks take hardly longer together than those of one. On a CPU they are projected
        one by one: what is trained beside others is bit for bit what is trained alone.
        """
        due = [(layer, one.clippings) for one in learners for layer in one.projected_rarely]
        if due:
            self.wait()  # the next step waits for the current stream, so for what is launched here
        for iterations in dict.fromkeys(number for _, number in due):
            layers = [layer for layer, number in due if number == iterations]
            for part in [layers] if layers[0].kernel.is_cuda else [[layer] for layer in layers]:
                project_together(part, iterations)


def _can_be_captured(learner: "Learner") -> bool:
    """Return False on a CPU, and where a step looks at numbers on the device, which a graph cannot.

    Optimisers do that unless they say otherwise; our layers where nothing is prepared for them, in an update of one's own;
    and so does the library that inverts the Cayley layers' matrices; and torch where it keeps random numbers for a second
    pass. A graph of several batches that are accumulated is not written yet.
    """
    optimiser = learner.optimiser
    blind = all(group.get("capturable") or group.get("fused") for group in optimiser.param_groups)
    blind = blind or isinstance(optimiser, SteepestDescent)
    ours = [module for module in learner.model.modules() if isinstance(module, BuiltWeight)]
    looking = bool(ours and learner.update) or any(isinstance(layer, CayleyConv2d) for layer in ours)
    looking = looking or (learner.checkpoint_activations and not is_repeatable(learner.model))
    return learner.device.type == "cuda" and learner.accumulate == 1 and blind and not looking


def are_alike(learners: "Sequence[Learner]") -> bool:
    """Return True if networks differ in their weights only, and take the same kind of steps."""

    def kind(one: "Learner") -> tuple[object, ...]:
        layout = [(type(module), *(p.shape for p in module.parameters(False))) for module in one.model.modules()]
        return layout, one.update, one.choice, one.momentum, one.lr, one.schedule, one.precision

    return all(kind(one) == kind(learners[0]) and one.update is None for one in learners)


class _Group:
    """Networks that step as one, on streams of their own: some times eagerly, then as a CUDA graph per shape of batch."""

    def __init__(self, learners: "Sequence[Learner]", streams: int) -> None:
        self.learners, self.device, self.side_streams = list(learners), learners[0].device, streams
        self.stream = torch.cuda.Stream(self.device, priority=-1)
        self.pool = torch.cuda.graph_pool_handle()  # its graphs never run side by side
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
        return self.inputs[kind]

    def _run(self, kind: object, inputs: list[list[Tensor]]) -> None:
        if self.update is None:
            torch.cuda.synchronize(self.device)
            self.update = SharedUpdate(self.learners, self.side_streams, compiled=self.learners[0].half)
            torch.cuda.synchronize(self.device)
        self.runs[kind] += 1
        settle = self.update.choose_settling(max(one.scheduled_rate() for one in self.learners))
        key = kind, settle
        if key not in self.graphs and self.runs[kind] > _EAGER_RUNS and len(self.graphs) < _MOST_GRAPHS:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.update(inputs, settle)
            self.graphs[key] = graph
        if key in self.graphs:
            self.graphs[key].replay()
        else:
            self.update(inputs, settle)


class SharedUpdate:
    """The update of networks at once, each on its batch. See Note [Side by side].

    Like parameters of several networks lie in stacks from now on. Each network goes on having its parameters and its
    optimiser's state, as parts of what all have: so it can be saved and evaluated. What it must not do any more is to
    step, or to be loaded, on its own. With no side streams (on a CPU) everything runs in a row.

    way : how far matrices may have moved since they were on the manifold; see Note [Back to the manifold]
    """

    def __init__(self, learners: "Sequence[Learner]", side_streams: int = 0, compiled: bool = False) -> None:
        self.learners, self.compiled = learners, compiled and not learners[0].update
        models, device, several = [one.model for one in learners], learners[0].device, len(learners) > 1
        # An optimiser of the user's own may treat a tensor as a whole: it gets each parameter as it is.
        named = isinstance(learners[0].choice, str)
        self.stacks = list[LayerStack]() if learners[0].update else stack_layers(models, apart=not named)
        joint = several or any(stack.wholes for stack in self.stacks)
        self.optimiser = _join_optimisers(learners, self.stacks) if joint else learners[0].optimiser
        short = isinstance(self.optimiser, SteepestDescent) and not learners[0].update
        self.way = 1.0 if short else math.inf  # of the steps before this nobody knows
        for one in learners if self.compiled else ():
            one.call_in_pieces(compiled=True)
        # The passes of several networks run on streams of their own; those that build and move weights are others.
        self.branches = SideStreams(device, len(models) if several and side_streams else 0, priority=-1)
        count = min(_SIDE_STREAMS_STACKED if several else _SIDE_STREAMS, side_streams)
        self.streams = SideStreams(device, count, spare=count * 2 // 5)
        self.moves = None
        if side_streams and short and isinstance(self.optimiser, SteepestDescent):
            self.moves = _SideMoves(self.optimiser, self.streams)

    def __call__(self, batches: "Sequence[Batch]", settle: int = 3) -> None:
        """Update each network; `settle` as for `prepare_weights`."""
        if self.learners[0].update:  # it changes parameters in between: nothing can be prepared for it
            self.learners[0].step(batches[0])
            return
        self.optimiser.zero_grad(set_to_none=True)
        half = self.learners[0].half
        with prepare_weights(self.stacks, self.streams, settle, half, ahead=self.compiled):
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

    def choose_settling(self, rate: float) -> int:
        """Return `settle` of the next step, which has this rate."""
        far = self.way > _UNSEEN[self.learners[0].half] or self.way + rate > _NEAR  # or would be after the step
        settle = 3 if self.way > _NEAR else int(far)
        self.way = math.inf if self.way == math.inf else rate if settle else self.way + rate
        return settle

    def end(self) -> None:
        """Leave the networks as any others."""
        for hook in self.moves.hooks if self.moves else ():
            hook.remove()
        for one in self.learners if self.compiled else ():
            one.call_in_pieces(compiled=False)


def _join_optimisers(learners: "Sequence[Learner]", stacks: "Sequence[LayerStack]") -> torch.optim.Optimizer:
    """Return an optimiser of the stacks and of all other parameters, whose state is that of the networks' own ones."""
    owners: dict[Tensor, torch.optim.Optimizer]
    owners = {p: one.optimiser for one in learners for p in one.model.parameters() if p.requires_grad}
    stacked = {whole: parts for stack in stacks for whole, parts in stack.wholes.items()}
    alone = owners.keys() - {p for parts in stacked.values() for p in parts}
    joint = learners[0].make_optimiser([*stacked, *(p for p in owners if p in alone)])
    for whole, parts in stacked.items():
        states = [owners[p].state[p] for p in parts]
        for key, value in max(states, key=len).items():
            if isinstance(value, Tensor) and value.shape == parts[0].shape:
                # A layer that no pass has used yet has no state, which is one of zeros.
                value = torch.stack([state.get(key, torch.zeros_like(value)) for state in states]).flatten(0, -3)
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
def prepare_weights(
    stacks: "Sequence[LayerStack]", streams: "SideStreams", settle: int = 3, half: bool = False, ahead: bool = False
) -> Iterator[None]:
    """Let every layer use one weight, built on entry. The parameters must not change within the context.

    On a GPU the stacks are built on side streams; each layer waits for its own weight only, and its gradient runs on the
    same stream too. Stacks that share a parameter are built on one stream, since each may bring it back to the manifold.

    settle : 0 uses orthonormal matrices as they are; 1 brings them back to the manifold, which they are near, 3 from
        anywhere; see Note [Back to the manifold]
    half : give the weights in bfloat16
    ahead : wait for all weights at once; compiled code knows no streams
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
                weights = stack.build(streams, settle, half)
                if stream is not None and not ahead:
                    ready = torch.cuda.Event()
                    ready.record(stream)
            for layer, weight in zip(stack.layers, weights, strict=True):
                layer.weight_source = partial(_take, weight, ready)
                if stream is not None and ahead:
                    weight.record_stream(torch.cuda.current_stream(weight.device))
        if ahead:
            streams.join()
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
    """One layer, or orthogonalised layers of one kind and shape, that are built in one batch.

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

    def build(self, streams: "SideStreams", settle: int = 3, half: bool = False) -> tuple[Tensor, ...]:
        """Return the weights of the layers, joined to their gradients. The parameters are retracted as `settle` says.

        One graph leads to all of them, so what is computed with them is to be back-propagated at once.
        """
        if self.frozen is not None:
            return (self.frozen.to(torch.bfloat16) if half else self.frozen,)
        first = self.layers[0]
        if not self.wholes:
            first._before_training_forward()
            return (_build(first, first._sources(), None, streams, settle, half),)
        shapes = [(len(parts), *parts[0].shape) for parts in self.wholes.values()]
        weights = _build(first, list(self.wholes), shapes, streams, settle, half)
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


def stack_layers(models: Sequence[nn.Module], apart: bool = False) -> list[LayerStack]:
    """Return all layers that are built: like ones in stacks, if they train matrices of their own, unless `apart`."""
    modules = [module for model in models for module in model.modules()]
    owners: Counter[Tensor] = Counter(p for module in modules for p in module.parameters(recurse=False))
    stacks: dict[object, list[BuiltWeight]] = {}
    for layer in (module for module in modules if isinstance(module, BuiltWeight) and module._sources()):
        own = all(matrix.requires_grad and owners[matrix] == 1 for matrix in layer._sources())
        alike = isinstance(layer, OrthogonalisedLayer) and own and not apart
        stacks.setdefault(_kind(layer) if alike else layer, []).append(layer)
    return [LayerStack(layers) for layers in stacks.values()]


def _kind(layer: BuiltWeight) -> object:
    """Return what layers that can be built in one batch have in common."""
    settings = ((name, value) for name, value in vars(layer).items() if isinstance(value, (int, float, str, tuple)))
    return type(layer), *settings, *((source.shape, source.dtype) for source in layer._sources())


def _build(
    layer: BuiltWeight,
    sources: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]] | None,
    streams: "SideStreams",
    settle: int,
    half: bool,
) -> Tensor:
    """Build the weight of these sources for a training step, joined to their gradient. Nothing is kept.

    The points that the sources stand for are written into them, where the layer does that. A captured step cannot look at
    the numbers: it retracts blindly.
    """
    steps = _BLIND_STEPS if sources[0].is_cuda and torch.cuda.is_current_stream_capturing() else None
    retraction = partial(_return, half=half) if settle == 1 else partial(_retract_in_place, steps=steps)
    with full_precision(sources[0]):
        precise = [source.to(constraint_dtype(source)) for source in sources]
        points: Sequence[Tensor] = precise
        with torch.no_grad():
            if not layer._writes_back:
                points = layer._settle(*precise, steps=steps)
            elif settle:  # each matrix by itself
                streams.run([partial(retraction, source) for source in sources])
        if half and layer._writes_back and len(sources) == 1:  # the weight is this matrix, reshaped: so is its gradient
            points = [point.to(torch.bfloat16) for point in points]
        joined = layer._join(precise, points)
        if shapes is not None:
            joined = [point.view(shape) for point, shape in zip(joined, shapes, strict=True)]
        return layer._build(*joined).to(torch.bfloat16 if half else sources[0].dtype)


def _retract_in_place(matrix: Tensor, steps: int | None) -> None:
    # A step that works blindly is one of training, where ten bits of the correction are enough.
    point = retract(matrix, steps, "highest" if steps is None else "high")
    if point.data_ptr() != matrix.data_ptr():
        matrix.copy_(point)


def _return(matrix: Tensor, half: bool) -> None:
    """Bring matrices that are near the manifold back to it, by a Newton–Schulz step of order 1."""
    tall, _ = as_tall(matrix.detach())
    with matmul_precision(tall, "high" if half else "highest"):
        residual = gram_residual(tall)
    with matmul_precision(tall, "high"):
        tall.copy_(add_product(tall, tall, residual, 0.5))


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
