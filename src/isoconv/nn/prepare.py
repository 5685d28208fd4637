"""Build the weights of whole models at once, side by side."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor, nn

from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.side_streams import SideStreams

BLIND_STEPS = 1  # enough after a step of 0.02 in operator norm; what a longer one leaves, the next retraction takes


class Stack(Protocol):
    """Layers that are built in one batch (see `isoconv.nn.stacks`)."""

    @property
    def layers(self) -> Sequence[BuiltWeight]: ...

    def build(self) -> tuple[Tensor, ...]: ...


class PreparedWeights:
    """A context in which every layer of some models uses one weight, built on entry. The parameters must not change in it.

    With `streams` (on a GPU) the layers are built on those: the builds are small and independent, so one after the
    other they would leave the device idle; each layer waits for its own weight only, and its gradient runs on the
    same stream too. Inside a CUDA graph's capture, where nothing else is reused, this is also what lets several forward
    passes share one build. What is in `stacks` is built in theirs, the other layers one by one; those that share a
    parameter on one stream, since each may bring it back to the manifold.
    """

    def __init__(
        self, models: Sequence[nn.Module], streams: SideStreams | None = None, stacks: Sequence[Stack] = ()
    ) -> None:
        stacked = {layer for stack in stacks for layer in stack.layers}
        found = (module for model in models for module in model.modules() if isinstance(module, BuiltWeight))
        self.stacks: list[Stack] = [*stacks, *(_Alone(one) for one in found if one._sources() and one not in stacked)]
        self.streams = streams
        self._held: list[Tensor] = []

    def __enter__(self) -> None:
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _build(self) -> None:
        self._held.clear()
        if self.streams is None:
            for stack in self.stacks:
                for layer, weight in zip(stack.layers, stack.build(), strict=True):
                    layer.weight_source = _Prepared(weight, None)
            return
        self.streams.fork()
        for turn, stack in zip(self._turns(), self.stacks, strict=True):
            with self.streams.use(turn) as stream:
                weights = stack.build()
                ready = torch.cuda.Event()
                ready.record(stream)
            for layer, weight in zip(stack.layers, weights, strict=True):
                layer.weight_source = _Prepared(weight, ready)
                # A frozen layer keeps one weight until it is evaluated; a captured graph goes on reading it.
                self._held.append(weight.detach())

    def _turns(self) -> Iterator[int]:
        """Whose turn it is to be used, for each stack: a new one's, but for parameters that have been seen before."""
        seen: dict[Tensor, int] = {}
        for new, stack in enumerate(self.stacks):
            sources = [source for layer in stack.layers for source in layer._sources()]
            turn = next((seen[source] for source in sources if source in seen), new)
            seen |= dict.fromkeys(sources, turn)
            yield turn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stack in self.stacks:
            for layer in stack.layers:
                layer.weight_source = None
        if self.streams is not None:
            self.streams.join()


class _Alone:
    """One layer, built as it builds itself."""

    def __init__(self, layer: BuiltWeight) -> None:
        self.layers = (layer,)

    def build(self) -> tuple[Tensor, ...]:
        layer = self.layers[0]
        if not is_capturing(layer._sources()[0]):
            return (layer._attach(layer._current_build()),)
        if layer._kept is not None and not layer._kept.differentiable:
            return (layer._kept.value,)  # a frozen layer's, from the steps before the capture
        layer._before_training_forward()
        return (layer._weight_of(layer._sources(), write_back=layer._writes_back, steps=BLIND_STEPS),)


class _Prepared:
    """A weight that was built ahead, perhaps on another stream."""

    def __init__(self, weight: Tensor, ready: torch.cuda.Event | None) -> None:
        self.weight, self.ready = weight, ready

    def __call__(self) -> Tensor:
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.weight.device)
            stream.wait_event(self.ready)
            self.weight.record_stream(stream)
        return self.weight


def is_capturing(tensor: Tensor) -> bool:
    """Return True where a CUDA graph is being captured."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
