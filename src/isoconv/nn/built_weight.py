"""Layers whose weight is computed from parameters: computed once per change of them, never stale.

    weight = build(settle(sources))

`_settle` finds the points that the parameters stand for, without a gradient: on a manifold the retracted matrices,
elsewhere the parameters themselves. `_build` is a pure, differentiable function of these points. In training the points are
written back into the parameters, so that these stay on the manifold.

Note [When a weight is rebuilt]
A built weight is kept together with a copy of the numbers that it was built from, and every forward pass compares. So
whatever changes a parameter is seen, also what PyTorch's version counters do not see: edits through `.data` or numpy, a
fused optimiser's step, the replay of a CUDA graph. The comparison costs one pass over the parameters. On a GPU the host has
to wait for its result; so the first layer of a model that is asked compares for all layers of that model (`_Round`). A
compiled function builds in its graph, and keeps nothing.

Note [One build, many backward passes]
Within one step a weight may serve several forward passes (a critic's two batches) and each may be back-propagated
on its own, but autograd frees a graph after one pass. So the graph of the build is kept apart from the graph of the
network: the network sees a leaf-like tensor, made by `_Built`, and `_Built` asks the kept graph for the gradient, as
often as it is needed. In evaluation that graph is made only if somebody asks. Hooks on saved tensors (checkpointing,
offloading) do not see this graph: it outlives the pass that they are for.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from isoconv.linalg.matrices import full_precision


class BuiltWeight(nn.Module):
    """A layer with a `weight` that is a function of its parameters. Subclasses say which and how."""

    #: Set by a training engine for the time of a step: called whenever the weight is asked for.
    weight_source: Callable[[], Tensor] | None

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
        if torch.compiler.is_compiling():
            return self._weight_in_graph()
        if torch._C._are_functorch_transforms_active():
            return self._weight_under_transform()
        return self._attach(self._current_build())

    def refresh(self) -> None:
        """Forget the built weight, which frees its memory. The next pass builds it again."""
        self._kept = None

    # How it is done -----------------------------------------------------------------------------------------------

    def _attach(self, build: "_Build") -> Tensor:
        """Return the built weight, joined to the parameters' gradients."""
        if not torch.is_grad_enabled() or not build.differentiable:
            return build.value
        return _Built.apply(build, build.value, *self._sources())  # type: ignore[no-any-return,no-untyped-call]

    def _current_build(self) -> "_Build":
        updating = self.training and torch.is_grad_enabled()
        if updating:
            self._before_training_forward()
        if self._kept is None or not self._kept.is_of(self):
            self._kept = _Build(self, updating)
        return self._kept

    def _weight_in_graph(self) -> Tensor:
        updating = self.training and torch.is_grad_enabled()
        if updating:
            self._before_training_forward()
        return self._weight_of(self._sources(), write_back=updating and self._writes_back)

    def _weight_under_transform(self) -> Tensor:
        """For torch.func: a constant to the transform, unless it is the parameters that are transformed."""
        sources = self._sources()
        if not any(torch._C._functorch.is_functorch_wrapped_tensor(source) for source in sources):
            with temporarily_clear_interpreter_stack():
                return self._current_build().value
        training, self.training = self.training, False  # a transform stores nothing, as evaluation does not
        try:
            return self._weight_of(sources)
        finally:
            self.training = training

    def _weight_of(self, sources: Sequence[Tensor], write_back: bool = False, steps: int | None = None) -> Tensor:
        """Build the weight of these sources, joined to their gradient; nothing is kept. See `_settle` for `steps`."""
        with full_precision(sources[0]):
            precise = [source.to(constraint_dtype(source)) for source in sources]
            with torch.no_grad():
                points = self._settle(*precise, steps=steps)
                for source, point in zip(sources, points, strict=True) if write_back else ():
                    source.copy_(point)
            return self._build(*self._join(precise, points)).to(sources[0].dtype)

    def __getstate__(self) -> dict[str, Any]:
        # For copy.deepcopy and pickle: a copy builds its own.
        return {**self.__dict__, "_kept": None, "weight_source": None}


class _Build:
    """One built weight: its value, a copy of what it was built from, and, where needed, the graph from one to the other."""

    def __init__(self, layer: BuiltWeight, updating: bool) -> None:
        sources = layer._sources()
        self.build, self.join = layer._build, layer._join
        self.key, self.dtype = _key(layer, sources), sources[0].dtype
        self.differentiable = any(source.requires_grad for source in sources)
        self.graph: tuple[Tensor, list[Tensor]] | None = None
        # Outside inference mode, so that a weight built there can serve a training pass later.
        with torch.inference_mode(False), torch.no_grad(), full_precision(sources[0]):
            self.copies: Sequence[Tensor] = [source.detach().clone() for source in sources]
            precise = [copy.to(constraint_dtype(copy)) for copy in self.copies]
            self.points = layer._settle(*precise)
            if updating and layer._writes_back:
                for source, before, point in zip(sources, precise, self.points, strict=True):
                    if point is not before:
                        source.copy_(point)
                self.copies = self.points
            if updating and self.differentiable:
                self.value = self._make_graph()[0].detach()
            else:
                self.value = self.build(*self.points).to(self.dtype)

    def is_of(self, layer: BuiltWeight) -> bool:
        """Compare the layer's parameters with those that this was built from."""
        sources = layer._sources()
        return self.key == _key(layer, sources) and all(map(torch.equal, sources, self.copies))

    def _make_graph(self) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad(), full_precision(self.points[0]), _unseen_by_hooks():
            wanted = (requires_grad for _, _, requires_grad in self.key[1:])
            leaves = [point.detach().requires_grad_(w) for point, w in zip(self.points, wanted, strict=True)]
            self.graph = self.build(*self.join(leaves, leaves)).to(self.dtype), leaves
        return self.graph

    def pull_back(self, gradient: Tensor) -> list[Tensor | None]:
        """Return the gradient of each source, given that of the weight."""
        weight, leaves = self.graph or self._make_graph()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = iter(torch.autograd.grad(weight, wanted, gradient, retain_graph=True, allow_unused=True))
        return [next(gradients) if leaf.requires_grad else None for leaf in leaves]


class _Built(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, build: _Build, value: Tensor, *sources: Tensor) -> Tensor:
        ctx.build = build
        return value.view_as(value)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_sources = ctx.build.pull_back(gradient)
        return None, None, *(g if g is None else g.to(ctx.build.dtype) for g in of_sources)


def _key(layer: BuiltWeight, sources: Sequence[Tensor]) -> tuple[Any, ...]:
    return layer.training, *((s.dtype, s.device, s.requires_grad) for s in sources)


def _unseen_by_hooks() -> AbstractContextManager[None]:
    """Keep hooks on saved tensors away; torch.func forbids them altogether."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def constraint_dtype(tensor: Tensor) -> torch.dtype:
    """Return float32, or better if the tensor is."""
    return torch.promote_types(tensor.dtype, torch.float32)
