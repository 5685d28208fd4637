"""Layers whose weight is computed from parameters: computed once per change of them, never stale.

Note [When a weight is rebuilt]
A built weight is kept together with the identity of what it was built from: version, storage, dtype and device of
every source tensor. An optimiser step, `load_state_dict`, `.to()` and `.double()` all change one of these. Four things
do not, and are treated apart: a *fused* optimiser's step (a hook on all optimisers raises the versions); edits through
`.data` or numpy (call `refresh()`); inference tensors (they have no version: never kept); and the replay of a CUDA graph
(inside a capture nothing is kept or reused; whoever replays it raises the versions with
`torch.autograd.graph.increment_version`). The storage itself is kept alive with the weight, so that its address cannot
come back as that of other data. A compiled function builds in its graph.

Note [One build, many backward passes]
Within one step a weight may serve several forward passes (a critic's two batches) and each may be back-propagated
on its own, but autograd frees a graph after one pass. So the graph of the build is kept apart from the graph of the
network: the network sees a leaf-like tensor, made by `_Built`, and `_Built` asks the kept graph for the gradient, as
often as it is needed. In evaluation that graph is made only if somebody asks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from isoconv.errors import IsoconvError
from isoconv.linalg.precision import full_precision


def _raise_versions(optimiser: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
    """PyTorch's fused kernels change parameters without raising their versions. Raise them."""
    for group in optimiser.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])


register_optimizer_step_post_hook(_raise_versions)


class BuiltWeight(nn.Module):
    """A layer with a `weight` that is a function of its parameters. Subclasses say which and how."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: _Build | None = None
        self._prepared: tuple[Tensor, torch.cuda.Event | None] | None = None  # see `isoconv.nn.prepare`
        self._written_back = False

    # What a subclass fills in -------------------------------------------------------------------------------------

    def _sources(self) -> tuple[Tensor, ...]:
        """The tensors that the weight is computed from."""
        raise NotImplementedError

    #: The weight as a differentiable function of the sources, which come in float32 or better; autocast is off.
    _build: Callable[..., Tensor]

    def _before_training_forward(self) -> None:
        """What the method does to its own state before a training pass (a power iteration, say). Runs every time."""

    def _write_back(self) -> bool:
        """Bring the parameters themselves to where the build puts them; whether that was done.

        Runs in training when they have changed. The build that follows finds the answer in `_written_back`.
        """
        return False

    # What a user sees ---------------------------------------------------------------------------------------------

    @property
    def weight(self) -> Tensor:
        """The effective weight, the one that the layer applies. See Note [When a weight is rebuilt]."""
        if torch.compiler.is_compiling():
            return self._built_in_graph()
        if self._prepared is not None:
            return self._take_prepared(*self._prepared)
        if torch._C._are_functorch_transforms_active():
            return self._built_under_transform()
        return self._attached(self._current_build())

    def refresh(self) -> None:
        """Forget the built weight. Needed only after edits that PyTorch cannot see: through `.data` or numpy."""
        self._kept = None

    # How it is done -----------------------------------------------------------------------------------------------

    def _take_prepared(self, weight: Tensor, ready: torch.cuda.Event | None) -> Tensor:
        if ready is not None:
            stream = torch.cuda.current_stream(weight.device)
            stream.wait_event(ready)
            weight.record_stream(stream)
        return weight

    def _attached(self, build: "_Build") -> Tensor:
        """The built weight, joined to the parameters' gradients."""
        if not torch.is_grad_enabled() or not any(source.requires_grad for source in build.sources):
            return build.value
        return _Built.apply(build, build.value, *self._sources())  # type: ignore[no-any-return,no-untyped-call]

    def _current_build(self) -> "_Build":
        updating = self.training and torch.is_grad_enabled()
        if updating:
            self._before_training_forward()
        build = self._kept
        if build is None or not build.is_of(self):
            with torch.no_grad(), full_precision(self._sources()[0]):
                self._written_back = updating and self._write_back()
            try:
                build = _Build(self, with_graph=updating)
            finally:
                self._written_back = False
            self._kept = build if build.can_be_kept else None
        return build

    def _built_in_graph(self) -> Tensor:
        if self.training:
            self._before_training_forward()
        with torch.no_grad():
            self._written_back = self.training and self._write_back()
        weight = in_constraint_precision(self._build, self._sources())
        self._written_back = False
        return weight

    def _built_under_transform(self) -> Tensor:
        """For torch.func: a constant to the transform, unless it is the parameters that are transformed."""
        sources = self._sources()
        if any(torch._C._functorch.is_functorch_wrapped_tensor(source) for source in sources):
            return in_constraint_precision(self._build, sources)
        with temporarily_clear_interpreter_stack():
            return self._current_build().value

    def __getstate__(self) -> dict[str, Any]:
        # For copy.deepcopy and pickle: a copy builds its own.
        return {**self.__dict__, "_kept": None, "_prepared": None}


class _Build:
    """One built weight: its value, what it was built from, and, where needed, the graph from one to the other."""

    def __init__(self, layer: BuiltWeight, with_graph: bool) -> None:
        self.layer = layer
        self.sources = layer._sources()
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        versioned = not any(source.is_inference() for source in self.sources)
        self.can_be_kept = versioned and not capturing
        self.identity = _identity(layer) if versioned else None
        self.storages = [source.untyped_storage() for source in self.sources]
        self.graph: tuple[Tensor, list[Tensor]] | None = None
        if with_graph and any(source.requires_grad for source in self.sources):
            self.value = self._make_graph()[0].detach()
        else:
            # Outside inference mode, so that a weight built there can serve a training pass later.
            with torch.inference_mode(False), torch.no_grad():
                self.value = in_constraint_precision(layer._build, self.sources).detach()

    def is_of(self, layer: BuiltWeight) -> bool:
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing and any(source.requires_grad for source in self.sources):
            return False
        return not any(s.is_inference() for s in layer._sources()) and self.identity == _identity(layer)

    def _make_graph(self) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():
            leaves = [source.detach().requires_grad_(source.requires_grad) for source in self.sources]
            self.graph = in_constraint_precision(self.layer._build, leaves), leaves
        return self.graph

    def pull_back(self, gradient: Tensor) -> list[Tensor | None]:
        """The gradient of each source, given that of the weight."""
        if self.graph is None and self.identity is not None and not self.is_of(self.layer):
            raise IsoconvError(
                f"{type(self.layer).__name__}: Expected parameters that are unchanged since the forward pass. "
                "Got changed ones in its backward pass."
            )
        weight, leaves = self.graph or self._make_graph()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(weight, wanted, gradient, retain_graph=True, allow_unused=True))
        return [next(found) if leaf.requires_grad else None for leaf in leaves]


class _Built(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, build: _Build, value: Tensor, *sources: Tensor) -> Tensor:
        ctx.build = build
        return value.view_as(value)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.build.pull_back(gradient)


def _identity(layer: BuiltWeight) -> tuple[object, ...]:
    sources = layer._sources()
    return (
        layer.training,
        *((s._version, s.data_ptr(), s.dtype, s.device, s.shape, s.stride(), s.requires_grad) for s in sources),
    )


def in_constraint_precision(build: Callable[..., Tensor], sources: Any) -> Tensor:
    """Run the build in float32 or better, whatever the parameters' dtype, autocast and TF32 say; give back their dtype."""
    with full_precision(sources[0]):
        weight = build(*(source.to(constraint_dtype(source)) for source in sources))
    return weight.to(sources[0].dtype)


def constraint_dtype(tensor: Tensor) -> torch.dtype:
    """float32, or better if the tensor is."""
    return torch.promote_types(tensor.dtype, torch.float32)
