"""Layers whose weight is computed from parameters: computed once per change of them, never stale.

    weight = build(settle(sources))

`_settle` finds the points that the parameters stand for, without a gradient: on a manifold the retracted matrices,
elsewhere the parameters themselves. `_build` is a pure, differentiable function of these points. In training the points are
written back into the parameters, so that these stay on the manifold.

Note [When a weight is rebuilt]
A built weight is kept together with a copy of the numbers that it was built from, and every forward pass compares. So
whatever changes a parameter is seen, also what PyTorch's version counters do not see: edits through `.data` or numpy, a
fused optimiser's step, the replay of a CUDA graph. The comparison is one pass over the parameters. On a GPU the host waits
for its result, once per layer; `fixed_weights(model)` compares on entry, and not again. A compiled function builds in its
graph, and keeps nothing. The weight itself is no parameter: writing into it, also through `.data` or numpy, is refused as
soon as the layer is used again, which a second copy of the weight makes known.

Note [One build, many backward passes]
Within one step a weight may serve several forward passes (a critic's two batches) and each may be back-propagated
on its own, but autograd frees a graph after one pass. So the graph of the build is kept apart from the graph of the
network: the network sees a leaf-like tensor, made by `_Built`, and `_Built` asks the kept graph for the gradient, as
often as it is needed. In evaluation that graph is made only if somebody asks. Hooks on saved tensors (checkpointing,
offloading) do not see this graph: it outlives the pass that they are for.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from isoconv.errors import IsoconvError, require
from isoconv.linalg.matrices import full_precision
from isoconv.linalg.orthogonalisation import bjorck, on_manifold, retract
from isoconv.nn.methods import ORTHOGONALISATIONS


class BuiltWeight(nn.Module):
    """A layer with a `weight` that is a function of its parameters. Subclasses say which and how."""

    #: Set for the time of a training step or of `fixed_weights`: called whenever the weight is asked for.
    weight_source: Callable[[], Tensor] | None
    bias: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.weight_source = None
        self._kept: _Build | None = None

    # What a subclass fills in -------------------------------------------------------------------------------------

    def _sources(self) -> tuple[Tensor, ...]:
        """Return the tensors that the weight is computed from."""
        raise NotImplementedError

    def _settle(self, *sources: Tensor, steps: int | None = None) -> tuple[Tensor, ...]:
        """Return the points that the sources stand for; runs without a gradient, in float32 or better.

        `steps=None` looks at the numbers. A number of steps works blindly, as a captured step must.
        """
        return sources

    def _join(self, sources: Sequence[Tensor], points: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the points with the gradient of the sources that they stand for."""
        return points

    #: The weight as a pure, differentiable function of the points, in float32 or better; leading batch dimensions allowed.
    _build: Callable[..., Tensor]

    @property
    def _writes_back(self) -> bool:
        """Whether a training pass writes the points into the sources. Then the points must settle to themselves."""
        return False

    def _before_training_forward(self) -> None:
        """Update the method's own state before a training pass (a power iteration, say). Runs every time."""

    # What a user sees ---------------------------------------------------------------------------------------------

    @property
    def weight(self) -> Tensor:
        """The effective weight, the one that the layer applies. See Note [When a weight is rebuilt]."""
        if self.weight_source is not None:
            return self.weight_source()
        sources, compiling = self._sources(), torch.compiler.is_compiling()
        if not compiling:
            if torch._C._get_tracing_state() is not None:
                self._refuse("torch.jit.trace")
            if torch._C._get_dispatch_mode(_FAKE) is not None:
                self._refuse("FakeTensorMode")
            if sources[0].is_meta or isinstance(sources[0], FakeTensor):
                raise IsoconvError(f"Expected parameters with numbers. Got {type(self).__name__} on the meta device.")
            if torch._C._are_functorch_transforms_active():
                return self._weight_under_transform(sources)
        # Within a backward pass it is a checkpoint that recomputes: nothing is updated twice.
        recomputing = not compiling and torch._C._current_graph_task_id() != -1
        updating = self.training and torch.is_grad_enabled() and not recomputing
        if updating:
            self._before_training_forward()
        if compiling:
            return self._weight_in_graph(sources, updating)
        kept = self._kept
        moves = updating and kept is not None and kept.is_away and self._writes_back
        if kept is None or moves or not kept.is_current(sources):
            kept = self._kept = _Build(self, sources, updating)
        differentiated = torch.is_grad_enabled() and any(kept.wanted)
        if not differentiated and forward_ad._current_level < 0:  # where there are dual numbers, `_Built` refuses them
            return kept.value
        return _Built.apply(kept, kept.value, *sources)  # type: ignore[no-any-return,no-untyped-call]

    def evaluation_weight(self) -> Tensor:
        """Return the weight that the layer applies in evaluation, whatever mode it is in; its state is left alone."""
        with self._in_evaluation():
            return self.weight.detach()

    def refresh(self) -> None:
        """Forget the built weight, which frees its memory. The next pass builds it again."""
        self._kept = None

    # How it is done -----------------------------------------------------------------------------------------------

    def _reset_bias(self, fan: int) -> None:
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(fan), 1 / math.sqrt(fan))

    def _weight_under_transform(self, sources: Sequence[Tensor]) -> Tensor:
        """For torch.func: a constant to the transform, unless it is the parameters that are transformed."""
        if not any(torch._C._functorch.is_functorch_wrapped_tensor(source) for source in sources):
            with temporarily_clear_interpreter_stack():
                return self.weight.detach()
        with self._in_evaluation():  # a transform stores nothing, as evaluation does not
            return self._weight_in_graph(sources, updating=False)

    def _weight_in_graph(self, sources: Sequence[Tensor], updating: bool) -> Tensor:
        """Build the weight of these sources, joined to their gradient; nothing is kept."""
        with full_precision(sources[0]):
            precise = [source.to(constraint_dtype(source)) for source in sources]
            points = self._settle(*precise)
            if updating and self._writes_back:
                with torch.no_grad():
                    for source, point in zip(sources, points, strict=True):
                        source.copy_(point)
            return self._build(*self._join(precise, points)).to(sources[0].dtype)

    @contextmanager
    def _in_evaluation(self) -> Iterator[None]:
        training, self.training = self.training, False
        try:
            yield
        finally:
            self.training = training

    def __getstate__(self) -> dict[str, Any]:
        # For copy.deepcopy and pickle: a copy builds its own.
        return {**self.__dict__, "_kept": None, "weight_source": None}

    # What would look at the parameters, or replace them, and not see the function behind ------------------------------

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name.endswith("_orig"):
            self._refuse("torch.nn.utils.prune")
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> NoReturn:
        self._refuse("torch.jit.script")

    def _refuse(self, what: str) -> NoReturn:
        got = f"{type(self).__name__}: use it on isoconv.plain(model)"
        raise IsoconvError(f"Expected ordinary layers for {what}. Got {got}.")


@contextmanager
def fixed_weights(model: nn.Module) -> Iterator[None]:
    """Promise that the parameters of a model do not change in this context: its layers compare them on entry only.

    For evaluation on a GPU, where the host waits for the comparison of each layer in each forward pass. The weights are
    constants there: gradients reach the inputs and the biases, not the matrices.
    """
    layers = [module for module in model.modules() if isinstance(module, BuiltWeight) and not module.weight_source]
    try:
        for layer in layers:
            layer.weight_source = partial(Tensor.detach, layer.evaluation_weight())
        yield
    finally:
        for layer in layers:
            layer.weight_source = None


class OrthogonalisedLayer(BuiltWeight):
    """A layer some of whose parameters stand for orthonormal matrices (batches of them), named in `_matrix_names`.

    There are two ways to have them:

    * "manifold" (the default): the parameter itself stays orthonormal; see Note [Staying on the manifold] in
      `isoconv.linalg.orthogonalisation`. After any optimiser's step the next training pass moves it back.
    * "bjorck": the paper's way. The parameter is unconstrained; 20 first-order Björck steps, differentiated through.
    """

    _matrix_names: tuple[str, ...]

    def __init__(self, orthogonalisation: str = "manifold") -> None:
        super().__init__()
        known = orthogonalisation in ORTHOGONALISATIONS
        require(known, f"orthogonalisation to be one of {ORTHOGONALISATIONS}", repr(orthogonalisation))
        self.orthogonalisation = orthogonalisation

    def _sources(self) -> tuple[Tensor, ...]:
        return tuple(map(partial(getattr, self), self._matrix_names))

    def _settle(self, *sources: Tensor, steps: int | None = None) -> tuple[Tensor, ...]:
        if self.orthogonalisation == "bjorck":
            return sources
        # A step that works blindly is one of training, where ten bits of the correction are enough.
        return tuple([retract(source, steps, "highest" if steps is None else "high") for source in sources])

    def _join(self, sources: Sequence[Tensor], points: Sequence[Tensor]) -> Sequence[Tensor]:
        return points if self.orthogonalisation == "bjorck" else list(map(on_manifold, sources, points))

    @property
    def _writes_back(self) -> bool:
        # Half precision cannot hold an orthonormal matrix; there only the built weight is retracted, in float32.
        movable = [m.requires_grad and m.dtype in (torch.float32, torch.float64) for m in self._sources()]
        return self.orthogonalisation == "manifold" and all(movable)

    def _orthonormal(self, point: Tensor) -> Tensor:
        """Return the orthonormal matrix (or matrices) of a settled parameter, differentiable."""
        if self.orthogonalisation == "manifold":
            return point
        batch = point.flatten(0, -3) if point.dim() > 3 else point
        return bjorck(batch, iterations=20, order=1).reshape(point.shape)

    @torch.no_grad()
    def _reset_matrices(self) -> None:
        """Draw random orthonormal matrices; in the paper's way over √n, the scale being the parameter's own."""
        sources = [source for source in self._sources() if not source.is_meta]
        for matrix in (matrix for source in sources for matrix in source.reshape(-1, *source.shape[-2:])):
            precise = torch.empty_like(matrix, dtype=constraint_dtype(matrix))
            gain = 1.0 if self.orthogonalisation == "manifold" else 1 / math.sqrt(sources[0].shape[-1])
            matrix.copy_(nn.init.orthogonal_(precise, gain))


class _Build:
    """One built weight: its value, a copy of what it was built from, and, where needed, the graph from one to the other."""

    def __init__(self, layer: BuiltWeight, sources: Sequence[Tensor], updating: bool) -> None:
        self.layer, self.dtype = layer, sources[0].dtype
        self.key = _key(layer, sources)
        self.wanted = [source.requires_grad for source in sources]
        self.graph: tuple[Tensor, list[Tensor]] | None = None  # of the weight, and its leaves
        # Outside inference mode, so that a weight built there can serve a training pass later.
        with torch.inference_mode(False), torch.no_grad(), full_precision(sources[0]):
            moves = updating and layer._writes_back
            given = [source.detach().contiguous() for source in sources]
            copies = given if moves else list(map(Tensor.clone, given))
            precise = [copy.to(constraint_dtype(copy)) for copy in copies]
            self.points = list(layer._settle(*precise))
            for k, point in enumerate(self.points) if moves else ():
                if point is precise[k]:  # nothing moved: this is the parameter itself, which may change later
                    self.points[k] = point.clone()
                else:
                    sources[k].copy_(point)
            self.copies = self.points if moves else copies
            #: Whether the sources are no points, as a pass without gradients leaves them: training moves them.
            self.is_away = not moves and any(
                point is not copy for point, copy in zip(self.points, precise, strict=True)
            )
            if updating and any(self.wanted):
                self.value = self.make_graph()[0].detach()
            else:
                self.value = layer._build(*self.points).to(self.dtype)
            self.original = self.value.clone()
        self.version = self.value._version

    def is_current(self, sources: Sequence[Tensor]) -> bool:
        """Return whether the weight is that of these sources. Raise if somebody has written into the weight."""
        now, then = (self.value, *sources), (self.original, *self.copies)
        if self.key != _key(self.layer, sources):
            equal = []
        elif self.value.is_cpu:
            equal = list(map(torch.equal, now, then))
        else:  # the host waits once
            equal = torch.stack([flags.all() for flags in map(torch.eq, now, then)]).tolist()
        edited = self.value._version != self.version
        if equal and not equal[0]:  # or there are NaN in it, which equal nothing
            edited = edited or not torch.allclose(self.value, self.original, 0.0, 0.0, equal_nan=True)
        if edited:
            self.layer.refresh()
            got = f"one of the weight that {type(self.layer).__name__} computes from them"
            raise IsoconvError(f"Expected a change of parameters. Got {got}.")
        return len(equal) > 0 and all(equal[1:])

    def make_graph(self) -> tuple[Tensor, list[Tensor]]:
        # Hooks on saved tensors are kept away; torch.func forbids them altogether.
        enabled = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        with torch.enable_grad(), saved_tensors_hooks(Tensor.detach, Tensor.detach) if enabled else nullcontext():
            leaves = [point.detach().requires_grad_(w) for point, w in zip(self.points, self.wanted, strict=True)]
            self.graph = self.layer._build(*self.layer._join(leaves, leaves)).to(self.dtype), leaves
        return self.graph


class _Built(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, build: _Build, value: Tensor, *sources: Tensor) -> Tensor:
        ctx.build = build
        return value.view_as(value)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        build = ctx.build
        with full_precision(gradient) if build.graph is None else nullcontext():
            weight, leaves = build.graph or build.make_graph()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = iter(torch.autograd.grad(weight, wanted, gradient, retain_graph=True, allow_unused=True))
        of_sources = (next(gradients) if leaf.requires_grad else None for leaf in leaves)
        return None, None, *(g if g is None else g.to(build.dtype) for g in of_sources)


def is_built(weight: Tensor) -> bool:
    """Return whether the gradient of a weight goes through `_Built` to the parameters, and nowhere else."""
    return isinstance(weight.grad_fn, _Built._backward_cls)  # type: ignore[attr-defined]


_KIND = attrgetter("dtype", "device", "requires_grad", "shape")
_FLOATS = frozenset((None, torch.float16, torch.bfloat16, torch.float32, torch.float64))
_FAKE = torch._C._TorchDispatchModeKey.FAKE  # type: ignore[attr-defined]
_SETTINGS = frozenset((bool, int, str, tuple))  # the mode, and what a method may be told: a number of iterations, say


def _key(layer: BuiltWeight, sources: Sequence[Tensor]) -> tuple[Any, ...]:
    values = vars(layer).values()
    return *compress(values, map(_SETTINGS.__contains__, map(type, values))), *map(_KIND, sources)


def constraint_dtype(tensor: Tensor) -> torch.dtype:
    """Return float32, or better if the tensor is."""
    if tensor.dtype not in _FLOATS:
        check_dtype(tensor.dtype)
    return torch.promote_types(tensor.dtype, torch.float32)


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raise unless a layer can have parameters of this type; None is torch's usual one."""
    if dtype not in _FLOATS:
        raise IsoconvError(f"Expected parameters of floats of 16, 32 or 64 bits. Got {dtype}.")


def require_numbers() -> None:
    """Raise where torch makes tensors without numbers: under `FakeTensorMode`, or with "meta" as the default device."""
    fake = torch._C._get_dispatch_mode(_FAKE) is not None
    require(not fake, "tensors with numbers", "FakeTensorMode")
    default = torch.get_default_device().type
    require(default != "meta", "tensors with numbers", "meta as torch's default device")


def with_parameters(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Give copies of a weight and a bias to an ordinary module that was made on the meta device: no number is drawn."""
    module.register_parameter("weight", nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format)))
    module.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach().clone()))
    return module
