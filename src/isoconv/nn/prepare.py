"""Build the weights of a whole model at once, side by side."""

from types import TracebackType

import torch
from torch import nn

from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.side_streams import SideStreams


class PreparedWeights:
    """A context in which every layer of a model uses one weight, built on entry. The parameters must not change in it.

    With `streams` (on a GPU) the layers are built on those: the builds are small and independent, so one after the
    other they would leave the device idle; each layer waits for its own weight only, and its gradient runs on the
    same stream too. Inside a CUDA graph's capture, where nothing else is reused, this is also what lets several forward
    passes share one build.
    """

    def __init__(self, model: nn.Module, streams: SideStreams | None = None) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, BuiltWeight) and module._sources()]
        self.streams = streams

    def __enter__(self) -> None:
        if self.streams is None:
            for layer in self.layers:
                layer._prepared = layer._attached(layer._current_build()), None
            return
        self.streams.fork()
        for turn, layer in enumerate(self.layers):
            with self.streams.use(turn) as stream:
                weight = layer._attached(layer._current_build())
                ready = torch.cuda.Event()
                ready.record(stream)
            layer._prepared = weight, ready

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for layer in self.layers:
            layer._prepared = None
        if self.streams is not None:
            self.streams.join()
