"""Build the weights of whole models at once, side by side."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor, nn

from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.side_streams import SideStreams


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
                    layer._prepared = weight, None
            return
        self.streams.fork()
        for turn, stack in zip(self._turns(), self.stacks, strict=True):
            with self.streams.use(turn) as stream:
                weights = stack.build()
                ready = torch.cuda.Event()
                ready.record(stream)
            for layer, weight in zip(stack.layers, weights, strict=True):
                layer._prepared = weight, ready
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
                layer._prepared = None
        if self.streams is not None:
            self.streams.join()


class _Alone:
    """One layer, built as it builds itself."""

    def __init__(self, layer: BuiltWeight) -> None:
        self.layers = (layer,)

    def build(self) -> tuple[Tensor, ...]:
        layer = self.layers[0]
        return (layer._attached(layer._current_build()),)
