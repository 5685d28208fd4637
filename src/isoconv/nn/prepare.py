"""Build the weights of a whole model at once, side by side."""

from types import TracebackType

import torch
from torch import nn

from isoconv.nn.built_weight import BuiltWeight


class PreparedWeights:
    """A context in which every layer of a model uses one weight, built on entry. The parameters must not change in it.

    On a GPU each layer is built on a stream of its own: the builds are small and independent, so one after the other
    they would leave the device idle; each layer waits for its own weight only, and its gradient runs on that stream too.
    Inside a CUDA graph's capture, where nothing else is reused, this is also what lets several forward passes share
    one build. The streams belong to this object: graphs that are to be replayed side by side need one each, because
    a stream's cuBLAS workspace is shared by all that was captured on it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, BuiltWeight) and module._sources()]
        devices = [layer._sources()[0].device for layer in self.layers]
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for device in devices]

    def __enter__(self) -> None:
        for layer, stream in zip(self.layers, self.streams, strict=True):
            if stream is None:
                layer._prepared = layer._attached(layer._current_build()), None
                continue
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            with torch.cuda.stream(stream):
                weight = layer._attached(layer._current_build())
                layer._prepared = weight, stream.record_event()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for layer, stream in zip(self.layers, self.streams, strict=True):
            layer._prepared = None
            if stream is not None:
                torch.cuda.current_stream(stream.device).wait_stream(stream)
