"""Gradient ascent on many images at once, from which images leave as soon as they are fooled."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from isoconv.attacks.ball import column
from isoconv.attacks.deployed import margin_loss
from isoconv.attacks.findings import Findings

_CHECK_EVERY = 10  # steps between two looks at who is fooled: each one waits for the device


class Ascent:
    """One run on a batch of images. All that it knows of an image is a row of its tensors, so that rows can leave.

    It works on `delta`, the perturbation, in the precision of the search, and remembers the one of the largest margin loss.
    A subclass says how to `advance`.
    """

    def __init__(self, findings: Findings, index: Tensor, steps: int, start: Tensor | None = None) -> None:
        images, self.labels, epsilon = findings.rows(index)
        self.network, self.steps = findings.network, steps
        self.pixels = images.to(self.network.search_dtype)
        self.epsilon = epsilon.to(self.network.search_dtype)
        self.delta = torch.zeros_like(self.pixels) if start is None else self.clip(start.to(self.pixels))
        self.best_delta = self.delta
        self.best_loss = torch.full_like(self.epsilon, -torch.inf)

    def advance(self, step: int) -> None:
        raise NotImplementedError

    def clip(self, delta: Tensor) -> Tensor:
        """Into the ball and into [0, 1]; the second does not undo the first (Note [Clamping])."""
        norms = torch.linalg.vector_norm(delta.flatten(1), dim=1).clamp_min(torch.finfo(delta.dtype).tiny)
        delta = delta * column((self.epsilon / norms).clamp_max(1), delta)
        return torch.clamp(delta, -self.pixels, 1 - self.pixels)

    def look(self, loss: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The loss (by default the margin loss) at `delta` and the direction in which it grows, of length one."""
        logits, values, gradient = self.network.gradient(
            self.pixels + self.delta, loss or (lambda logits: margin_loss(logits, self.labels))
        )
        self.remember(values if loss is None else margin_loss(logits, self.labels))
        return values, unit(gradient)

    def remember(self, loss: Tensor) -> None:
        loss = torch.where(loss.isnan(), torch.inf, loss)  # for the judge to decide
        better = loss >= self.best_loss  # of equals the later: a step may be too small to be seen in this precision
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_delta = torch.where(column(better, self.delta), self.delta, self.best_delta)

    def finish(self) -> None:
        """The last step has not been looked at."""
        self.remember(margin_loss(self.network.search_logits(self.pixels + self.delta), self.labels))

    def keep(self, rows: Tensor) -> None:
        """Only these."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


def unit(gradient: Tensor) -> Tensor:
    """Each image's gradient scaled to length one; zero where it is zero or not finite."""
    gradient = torch.where(gradient.isfinite(), gradient, 0.0)
    largest = gradient.abs().flatten(1).amax(dim=1)
    gradient = gradient / column(torch.where(largest > 0, largest, 1.0), gradient)  # squares must not underflow
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return gradient / column(torch.where(largest > 0, norms, 1.0), gradient)


def random_starts(findings: Findings, index: Tensor, seed: int, run: int) -> Tensor:
    """Uniform in the ball of each image, from a stream of its own: the batch size and who else is there do not matter."""
    shape = findings.originals.shape[1:]
    starts = torch.empty(len(index), *shape, dtype=torch.float32, device="cpu")
    size = starts[0].numel()
    for start, place, epsilon in zip(starts, index.tolist(), findings.epsilon[index].tolist(), strict=True):
        own = generator(seed, run, place)
        direction = torch.randn(shape, generator=own, dtype=torch.float32, device="cpu")
        share = float(torch.rand((), generator=own, dtype=torch.float64, device="cpu")) ** (1 / size)
        start.copy_(direction * (epsilon * share / float(direction.norm())))
    return starts


def generator(*numbers: int) -> torch.Generator:
    """On the CPU, for this purpose only: the global one is left alone, and all devices draw the same."""
    # SeedSequence mixes its numbers well; sums or products would let (0, 1) and (1, 0) meet.
    mixed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator("cpu").manual_seed(int(mixed))


def climb(
    findings: Findings,
    waiting: Tensor,
    runs: Sequence[Callable[[Tensor], Ascent]],
    *,
    early_stop: bool,
    finished: Callable[[int], None],
) -> None:
    """Every run on every image of `waiting`; with `early_stop`, only on those not yet fooled.

    `finished` is told how many images have been finished with since it was called last.
    """
    for number, run in enumerate(runs):
        last = number == len(runs) - 1
        for index in findings.batches(waiting):
            left = _climb_batch(findings, run(index), index, early_stop, finished)
            if not last:
                left = left[findings.margins[left] <= 0] if early_stop else left[:0]
            finished(len(left))
        if early_stop:
            waiting = findings.standing(waiting)


def _climb_batch(
    findings: Findings, ascent: Ascent, index: Tensor, early_stop: bool, finished: Callable[[int], None]
) -> Tensor:
    """All steps of one batch. Those that stayed to the end; of the others `finished` is told when they leave."""
    for step in range(ascent.steps):
        ascent.advance(step)
        if early_stop and (step + 1) % _CHECK_EVERY == 0 and step + 1 < ascent.steps:
            remaining = _without_fooled(findings, ascent, index)
            finished(len(index) - len(remaining))
            index = remaining
            if len(index) == 0:
                return index
    ascent.finish()
    images = findings.originals[index].to(ascent.delta.device)
    for delta in (ascent.best_delta, ascent.delta):  # in the precision of the search the last one may seem not the best
        findings.judge(index, images + delta.to(images))
    return index


def _without_fooled(findings: Findings, ascent: Ascent, index: Tensor) -> Tensor:
    """Let those leave that the judge takes for fooled, and close the ranks."""
    hopeful = (ascent.best_loss >= 0).nonzero()[:, 0]
    if len(hopeful) == 0:
        return index
    places = index[hopeful.to(index.device)]
    images = findings.originals[places].to(ascent.delta.device)
    margins = findings.judge(places, images + ascent.best_delta[hopeful].to(images))
    # What float64 does not confirm is from now on compared by what float64 says.
    ascent.best_loss[hopeful] = -margins.to(ascent.best_loss)
    stay = torch.ones(len(index), dtype=torch.bool, device=margins.device)
    stay[hopeful] = margins > 0
    ascent.keep(stay.nonzero()[:, 0])
    return index[stay.to(index.device)]
