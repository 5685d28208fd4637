"""CUDA streams on which the small, independent pieces of a training step run side by side."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

#: How many different streams PyTorch has to give; it hands them out again after that.
STREAMS_IN_POOL = 32


class SideStreams:
    """Some streams beside the current one. Work is dealt out to them in turn, and joined again at the end.

    Of `count` streams, two in five are spare: pieces of work that others wait for may use those for parts of their own.
    Streams belong to one training step: graphs that were captured on the same stream share a cuBLAS workspace, and
    corrupt each other when they are replayed at the same time. Several steps at a time need an object each, and all
    together no more streams than PyTorch has.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        streams = [torch.cuda.Stream(device) for _ in range(count)]
        spare = count * 2 // 5
        self.streams, self.spare = streams[spare:], streams[:spare] or streams
        self._next_spare = 0

    def fork(self) -> None:
        """All that is launched on the current stream so far comes before what follows on these."""
        current = torch.cuda.current_stream(self.device)
        for stream in self._all():
            stream.wait_stream(current)

    def join(self) -> None:
        """All that is launched on these so far comes before what follows on the current stream."""
        current = torch.cuda.current_stream(self.device)
        for stream in self._all():
            current.wait_stream(stream)

    @contextmanager
    def use(self, turn: int) -> Iterator[torch.cuda.Stream]:
        """Launch on the stream whose turn it is. Within, `in_parts` uses the spare ones too."""
        stream = self.streams[turn % len(self.streams)]
        before = _ACTIVE.set(self)
        try:
            with torch.cuda.stream(stream):
                yield stream
        finally:
            _ACTIVE.reset(before)

    def take_spare(self) -> torch.cuda.Stream:
        """One of the spare streams, in turn."""
        self._next_spare += 1
        return self.spare[self._next_spare % len(self.spare)]

    def _all(self) -> list[torch.cuda.Stream]:
        return list(dict.fromkeys([*self.streams, *self.spare]))


_ACTIVE: ContextVar[SideStreams | None] = ContextVar("active side streams", default=None)


def in_parts(parts: Sequence[Callable[[], None]]) -> None:
    """Run independent parts of a piece of work: side by side within `SideStreams.use`, else one after the other."""
    active = _ACTIVE.get()
    if active is None:
        for part in parts:
            part()
        return
    current = torch.cuda.current_stream(active.device)
    busy = []
    for part in parts[1:]:
        stream = active.take_spare()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            part()
        busy.append(stream)
    for part in parts[:1]:
        part()
    for stream in busy:
        current.wait_stream(stream)


class GradientEvents:
    """Says when a gradient is there: the backward pass records an event for each parameter, on whatever stream it uses.

    So that an update can begin while the gradients of other parameters are still on their way.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._there: dict[Tensor, tuple[torch.cuda.Event, Tensor, int]] = {}
        self._hooks = [p.register_post_accumulate_grad_hook(self._record) for p in parameters if p.requires_grad]

    def _record(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            event = torch.cuda.Event()
            event.record()
            self._there[parameter] = event, parameter.grad, parameter.grad._version

    def wait(self, parameter: Tensor, instead: torch.cuda.Stream) -> None:
        """What follows on the current stream comes after the gradient; after all of `instead`, if it was changed since."""
        stream = torch.cuda.current_stream(parameter.device)
        seen = self._there.pop(parameter, None)
        if seen is not None and seen[1] is parameter.grad and seen[1]._version == seen[2]:
            stream.wait_event(seen[0])
        else:
            stream.wait_stream(instead)

    def stop(self) -> None:
        """Record no more."""
        for hook in self._hooks:
            hook.remove()
        self._there.clear()
