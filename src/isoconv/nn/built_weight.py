"""Layers whose weight is computed from parameters: computed once per change of them, never stale.

    weight = build(settle(sources))

`_settle` finds the points that the parameters stand for, without a gradient: on a manifold the retracted matrices,
elsewhere the parameters themselves. `_build` is a pure, differentiable function of these points. In training the points are
written back into the parameters, so that these stay on the manifold.

Note [When a weight is rebuilt]
A built weight is kept together with a copy of the numbers that it was built from, and every forward pass compares. So
whatever changes a parameter is seen, also what PyTorch's version counters do not see: edits through `.data` or numpy, a
fused optimiser's step, the replay of a CUDA graph. The comparison is one pass over the parameters. On a GPU the host has to
wait for its result; see Note [One comparison per model]. A compiled function builds in its graph, and keeps nothing. The
weight itself is no parameter: writing into it, also through `.data` or numpy, is refused as soon as the layer is used again,
which a second copy of the weight makes known.

Note [One comparison per model]
In evaluation the first layer of a model compares for all of them, so that the host waits once per forward pass. That is as
good as if each compared when its turn comes, as long as nobody can change a parameter in between. So a layer looks at who
called it. The model is the outermost `nn.Sequential`, or module of isoconv's, that is reached through such modules only;
and all modules in it are torch's or isoconv's, with a forward of theirs and no hooks, and no layer in it trains. Then no
code of a user's runs between the first layer and the last. What was found is kept in the frame of the model's call, and
ends with it. Otherwise (a forward of a user's own, a hook, torch.func) each layer compares for itself. On entry to
`fixed_weights(model)`, whatever the model is, the host waits once, and not again.

Note [One build, many backward passes]
Within one step a weight may serve several forward passes (a critic's two batches) and each may be back-propagated
on its own, but autograd frees a graph after one pass. So the graph of the build is kept apart from the graph of the
network: the network sees a leaf-like tensor, made by `_Built`, and `_Built` asks the kept graph for the gradient, as
often as it is needed. In evaluation that graph is made only if somebody asks. Hooks on saved tensors (checkpointing,
offloading) do not see this graph: it outlives the pass that they are for.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import compress, islice
from operator import attrgetter
from types import FrameType
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
from isoconv.linalg.orthogonalisation import bjorck, on_manifold, project_to_tangent, retract
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

    def _project(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a source, given its point's: what `_join` does in a backward pass."""
        return gradient

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
        # Within a backward pass it is a checkpoint that recomputes: nothing is updated twice.
        recomputing = not compiling and torch._C._current_graph_task_id() != -1
        updating = self.training and torch.is_grad_enabled() and not recomputing
        if not compiling and torch._C._get_tracing_state() is not None:
            self._refuse("torch.jit.trace")
        if not compiling and torch._C._get_dispatch_mode(_FAKE) is not None:
            self._refuse("FakeTensorMode")
        if not compiling and (sources[0].is_meta or isinstance(sources[0], FakeTensor)):
            raise IsoconvError(f"Expected parameters with numbers. Got {type(self).__name__} on the meta device.")
        if not compiling and torch._C._are_functorch_transforms_active():
            return self._weight_under_transform(sources)
        if updating:
            self._before_training_forward()
        if compiling:
            return self._weight_in_graph(sources, updating)
        kept = self._kept
        compare = _Build.compare if self.training else _compare_once
        if kept is None or not kept.is_unchanged(compare(kept, sources)):
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

    For evaluation on a GPU, where the host waits for comparisons: once per forward pass of an `nn.Sequential`, but once per
    layer in a model with modules of your own. The weights are constants there: gradients reach the inputs and the biases,
    not the matrices.
    """
    layers = [module for module in model.modules() if isinstance(module, BuiltWeight) and not module.weight_source]
    try:
        for layer, weight in zip(layers, _evaluation_weights(layers), strict=True):
            layer.weight_source = partial(Tensor.detach, weight)
        yield
    finally:
        for layer in layers:
            layer.weight_source = None


def _evaluation_weights(layers: Sequence[BuiltWeight]) -> Iterator[Tensor]:
    """Yield the weights that layers apply in evaluation. On a GPU the host waits once for all comparisons."""
    comparisons: _Comparisons = {}
    if not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        with ExitStack() as modes:
            for layer in layers:
                modes.enter_context(layer._in_evaluation())
            comparisons = _compare(layers)
    for layer in layers:
        kept = layer._kept
        unchanged = kept is not None and kept.is_unchanged(comparisons.get(kept, []))
        yield kept.value if kept is not None and unchanged else layer.evaluation_weight()


def _compare(layers: Iterable[BuiltWeight]) -> "_Comparisons":
    """Compare the parameters of layers with those that their weights were built from. On a GPU the host waits once."""
    builds = [(layer._kept, layer._sources()) for layer in layers if layer._kept is not None]
    flags = {build: build.compare(sources) for build, sources in builds}
    answers = iter(_read([flag for each in flags.values() for flag in each]))
    return {build: list(islice(answers, len(each))) for build, each in flags.items()}


def _compare_once(kept: "_Build", sources: Sequence[Tensor]) -> "_Flags":
    """Compare for a layer what was not compared yet in this call of its model: see Note [One comparison per model]."""
    call = _find_call()
    if call is None:
        return kept.compare(sources)
    if "isoconv layers" not in call:
        modules = list(call["self"].modules())
        layers = [module for module in modules if isinstance(module, BuiltWeight)]
        alone = any(layer.training for layer in layers) or not all(map(_is_known, modules))
        call["isoconv layers"], call["isoconv comparisons"] = [] if alone else layers, {}
    comparisons: _Comparisons = call["isoconv comparisons"]
    if kept not in comparisons:
        comparisons |= _compare(call["isoconv layers"])
    return comparisons[kept] if kept in comparisons else kept.compare(sources)


def _find_call() -> dict[str, Any] | None:
    """Return the local variables of the outermost call of a module, as far as all code on the way is known."""
    frame: FrameType | None = sys._getframe(2)
    call = None
    while frame is not None and (frame.f_code in _CALLS or frame.f_globals.get("__name__", "").startswith(_OWN)):
        if frame.f_code is BuiltWeight._weight_under_transform.__code__:
            return None
        call = frame if frame.f_code is _CALL else call
        frame = frame.f_back
    return None if call is None else call.f_locals


def _is_known(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks
    # Not the forward's own __module__, which functools.wraps copies.
    runs = getattr(module.forward, "__globals__", {}).get("__name__", "")
    return not hooks and all(name.startswith(("torch.nn.", *_OWN)) for name in (type(module).__module__, runs))


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

    def _project(self, point: Tensor, gradient: Tensor) -> Tensor:
        return gradient if self.orthogonalisation == "bjorck" else project_to_tangent(point, gradient, "high")

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
            if updating and any(self.wanted):
                self.value = self.make_graph()[0].detach()
            else:
                self.value = layer._build(*self.points).to(self.dtype)
            self.original = self.value.clone()
        self.version = self.value._version

    def compare(self, sources: Sequence[Tensor]) -> "_Flags":
        """Compare the weight, first, and the sources with what they were. On a GPU the answers are tensors: nobody waits.

        Return nothing if the sources are of another kind.
        """
        if self.key != _key(self.layer, sources):
            return []
        equal = torch.equal if self.value.is_cpu else _equal_later
        return list(map(equal, (self.value, *sources), (self.original, *self.copies)))

    def is_unchanged(self, flags: "_Flags") -> bool:
        """Return whether all comparisons, the weight's first, say yes. Raise if somebody has written into the weight."""
        flags = _read(flags) if Tensor in map(type, flags) else flags
        edited = self.value._version != self.version
        if flags and not flags[0]:  # or there are NaN in it, which equal nothing
            edited = edited or not torch.allclose(self.value, self.original, 0.0, 0.0, equal_nan=True)
        if edited:
            self.layer.refresh()
            got = f"one of the weight that {type(self.layer).__name__} computes from them"
            raise IsoconvError(f"Expected a change of parameters. Got {got}.")
        return len(flags) > 0 and all(flags[1:])

    def make_graph(self) -> tuple[Tensor, list[Tensor]]:
        # Hooks on saved tensors are kept away; torch.func forbids them altogether.
        enabled = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        with torch.enable_grad(), saved_tensors_hooks(Tensor.detach, Tensor.detach) if enabled else nullcontext():
            leaves = [point.detach().requires_grad_(w) for point, w in zip(self.points, self.wanted, strict=True)]
            self.graph = self.layer._build(*leaves).to(self.dtype), leaves
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
        of_points = (next(gradients) if leaf.requires_grad else None for leaf in leaves)
        pairs = zip(build.points, of_points, strict=True)
        return None, None, *(g if g is None else build.layer._project(p, g).to(build.dtype) for p, g in pairs)


def is_built(weight: Tensor) -> bool:
    """Return whether the gradient of a weight goes through `_Built` to the parameters, and nowhere else."""
    return isinstance(weight.grad_fn, _Built._backward_cls)  # type: ignore[attr-defined]


def _equal_later(a: Tensor, b: Tensor) -> Tensor:
    """Return whether two tensors of one shape are equal, as a tensor: the host does not wait for a GPU."""
    return torch.eq(a, b).all()


def _read(flags: "_Flags") -> "_Flags":
    """Return the values of flags, for which the host waits once."""
    later = [flag for flag in flags if isinstance(flag, Tensor)]
    answers = iter(torch.stack([flag.to(later[0].device) for flag in later]).tolist() if later else [])
    return [next(answers) if isinstance(flag, Tensor) else flag for flag in flags]


_Flags = list[bool | Tensor]  # answers, that of the weight first; a tensor is one that is not known yet
_Comparisons = dict[_Build, _Flags]
_CALL = nn.Module._call_impl.__code__
_CALLS = frozenset((_CALL, nn.Module._wrapped_call_impl.__code__, nn.Sequential.forward.__code__))
_OWN = ("isoconv.nn.", "isoconv.models.")
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
