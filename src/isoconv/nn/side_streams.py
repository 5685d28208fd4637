"""CUDA streams on which the small, independent pieces of a training step run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: How many different streams PyTorch has to give; it hands them out again after that.
STREAMS_IN_POOL = 32


class SideStreams:
    """Some streams beside the current one. Work is dealt out to them in turn, and joined again at the end.

    Streams belong to one training step: graphs that were captured on the same stream share a cuBLAS workspace, and
    corrupt each other when they are replayed at the same time. Several steps at a time need an object each, and all
    together no more streams than PyTorch has.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(count)]

    def fork(self) -> None:
        """All that is launched on the current stream so far comes before what follows on these."""
        current = torch.cuda.current_stream(self.device)
        for stream in self.streams:
            stream.wait_stream(current)

    def join(self) -> None:
        """All that is launched on these so far comes before what follows on the current stream."""
        current = torch.cuda.current_stream(self.device)
        for stream in self.streams:
            current.wait_stream(stream)

    @contextmanager
    def use(self, turn: int) -> Iterator[torch.cuda.Stream]:
        """Launch on the stream whose turn it is."""
        stream = self.streams[turn % len(self.streams)]
        with torch.cuda.stream(stream):
            yield stream
