"""Replicas of one configuration, but for the seed, that take their steps together: as one CUDA graph.

Each replica's passes through the network run on a stream of its own. What happens to the weights (retraction, building,
their gradient, the optimiser's step) happens to all replicas in one batch: see `isoconv.nn.stacks`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import Tensor

from isoconv.nn.prepare import PreparedWeights
from isoconv.nn.side_streams import SideStreams
from isoconv.nn.stacks import ParameterStack, stack_layers
from isoconv.train.replica import Replica, make_optimiser

_SIDE_STREAMS = 24  # of PyTorch's 32; the replicas' own are out of use by then


class Together:
    """`step(batches)` is one update of every replica, each on its own batch.

    Each replica goes on having its parameters and its optimiser's state, as parts of what all have: so it can be saved
    and evaluated. What it must not do any more is step, or be loaded, on its own.
    The first steps are those of the replicas themselves; then, on a GPU, this step is captured, and replayed.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = list(replicas)
        self.device = replicas[0].device
        self.prepared: PreparedWeights | None = None
        self.optimiser: torch.optim.Optimizer | None = None
        self.stream = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[tuple[Tensor, Tensor]] = []

    @staticmethod
    def suits(replicas: Sequence[Replica]) -> bool:
        """Whether there is something to gain and nothing but the seed to tell the replicas apart."""
        return len(replicas) > 1 and all(one.graphed for one in replicas) and _alike(replicas)

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """One update of each. On a GPU it is only launched; `Replica.wait` waits for it."""
        if any(one.warming_up for one in self.replicas):
            for one, batch in zip(self.replicas, batches, strict=True):
                one.step(*batch)
            return
        rate = self.replicas[0].scheduled_rate()
        if self.stream is None:
            self._join()
            self.replicas[0].rate.fill_(rate)
            self._update(batches)
        else:
            self._replay(rate, batches)
        # Parameters have changed behind their backs, as parts of a stack or in a replay; this tells the layers' caches.
        torch.autograd.graph.increment_version([p for one in self.replicas for p in one.model.parameters()])
        for one in self.replicas:
            one.done += 1

    def _replay(self, rate: float, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for one in self.replicas:
            assert one.stream is not None
            self.stream.wait_stream(one.stream)
        with torch.cuda.stream(self.stream):
            if not self.inputs:
                self.inputs = [(images.clone(), labels.clone()) for images, labels in batches]
            self.replicas[0].rate.fill_(rate)
            for static, given in zip(self.inputs, batches, strict=True):
                for to, source in zip(static, given, strict=True):
                    to.copy_(source)
                    source.record_stream(self.stream)  # as in `Replica`: the host runs ahead
            if self.graph is None:
                torch.cuda.synchronize(self.device)
                self._join()
                torch.cuda.synchronize(self.device)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self._update(self.inputs)
            self.graph.replay()
        for one in self.replicas:
            assert one.stream is not None
            one.stream.wait_stream(self.stream)

    def end(self) -> None:
        """As `Replica.end`, of all."""
        for one in self.replicas:
            one.end()

    # The update of all --------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Put like parameters, and the optimisers' state of them, into stacks."""
        if self.optimiser is not None:
            return
        for one in self.replicas:
            one.end()  # it is the stacks whose gradients count from now on
        models = [one.model for one in self.replicas]
        side = SideStreams(self.device, _SIDE_STREAMS) if self.stream is not None else None
        layers = stack_layers(models)
        stacks = [stack for layer in layers for stack in layer.parameters]
        self.prepared = PreparedWeights(models, side, layers)
        self.optimiser = _joint_optimiser(self.replicas, stacks)

    def _update(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        assert self.optimiser is not None and self.prepared is not None
        self.optimiser.zero_grad(set_to_none=True)
        with self.prepared:
            losses = []
            for one, batch in zip(self.replicas, batches, strict=True):
                with self._branch(one):
                    loss, right = one.task.loss(one.model, *batch)
                    one.loss_sum += loss.detach()
                    one.right += right
                    losses.append(loss)
            self._wait_for_branches()
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            self._wait_for_branches()
        self.optimiser.step()
        for one in self.replicas:
            for layer in one.projected_in_step:
                layer.project()

    def _branch(self, replica: Replica) -> Any:
        """The replica's own stream, after what has been launched on this one."""
        if self.stream is None or replica.stream is None:
            return nullcontext()
        replica.stream.wait_stream(self.stream)
        return torch.cuda.stream(replica.stream)

    def _wait_for_branches(self) -> None:
        for one in self.replicas:
            if self.stream is not None and one.stream is not None:
                self.stream.wait_stream(one.stream)


def _alike(replicas: Sequence[Replica]) -> bool:
    configs = [one.config for one in replicas]
    if not all(is_dataclass(config) for config in configs):
        return False
    fields = [asdict(config) | {"seed": None} for config in configs]  # type: ignore[call-overload]
    return all(other == fields[0] for other in fields[1:])


def _joint_optimiser(replicas: Sequence[Replica], stacks: Sequence[ParameterStack]) -> torch.optim.Optimizer:
    """An optimiser of the stacks and of all other parameters, whose state is that of the replicas' own optimisers."""
    owners = {p: one.optimiser for one in replicas for p in one.model.parameters() if p.requires_grad}
    stacked = {p for stack in stacks for p in stack.parameters}
    alone = [p for p in owners if p not in stacked]
    joint = make_optimiser(replicas[0].config, [*(stack.whole for stack in stacks), *alone], replicas[0].rate)
    for stack in stacks:
        states = [owners[p].state[p] for p in stack.parameters]
        for key, value in states[0].items():
            if isinstance(value, Tensor) and value.shape == stack.parameters[0].shape:
                whole = torch.stack([state[key] for state in states]).flatten(0, -3)
                joint.state[stack.whole][key] = whole
                for state, view in zip(states, stack.split(whole), strict=True):
                    state[key] = view
            else:  # a count of steps, the same for all
                joint.state[stack.whole][key] = value
                for state in states:
                    state[key] = value
    for p in alone:
        joint.state[p] = owners[p].state[p]
    return joint
