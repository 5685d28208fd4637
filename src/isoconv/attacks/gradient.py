"""Gradient attacks: PGD, its single step FGSM, and Auto-PGD (Croce and Hein, 2020), which chooses its own step sizes.

All climb the loss in the L2 ball around many images at once; images leave the batch as soon as they are fooled. Auto-PGD
starts with steps of twice the budget and momentum. At checkpoints that come ever closer together, an image whose loss has
not grown in three of four steps, or whose best point is old, returns to that point and halves its step.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.attacks.ball import column
from isoconv.attacks.search import AttackResult, Options, Search, check_counts, is_number, margin_loss
from isoconv.errors import IsoconvError

LossName = Literal["margin", "dlr", "targeted-margin", "targeted-dlr"]

Run = Callable[[Search, Tensor, Tensor | None], "Ascent"]
"""Makes the ascent of a batch: of the rows `index`, from a starting point or (None) from the images."""

_CHECK_EVERY = 10  # steps between two looks at who is fooled: each one waits for the device
_MOMENTUM = 0.75
_RISES = 0.75  # the share of steps that must raise the loss


@torch.inference_mode(False)
@torch.no_grad()
def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    steps: int = 200,
    step_size: float = 0.01,
    restarts: int = 1,
    random_start: bool = True,
    early_stop: bool = True,
    seed: int = 0,
    **options: Unpack[Options],
) -> AttackResult:
    """Run PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1], on the CW margin loss.

    The defaults are the paper's: 200 steps of 0.01 along the gradient scaled to length one, from one random point of the
    ball. Every restart starts elsewhere (without a random start there is only one). With `early_stop` an image that is
    fooled is finished; without, the search goes on for the smallest margin. Works on any classifier. The gradients are
    taken in float32 (TF32 where there is one), from the network that `isoconv.plain` returns; every point in the result was
    judged by that network in float64. The same seed gives the same random starts, whatever the batch size.
    `options` are `batch_size`, `device` (by default the model's) and `progress`.
    """
    check_counts(steps=steps, restarts=restarts, seed=seed)
    if not (is_number(step_size) and math.isfinite(step_size) and step_size > 0):
        raise IsoconvError(f"Expected step_size finite and positive. Got {step_size!r}.")
    search = Search(model, images, labels, epsilon, **options)
    runs = [partial(PGDAscent, steps=steps, step_size=step_size)] * (restarts if random_start else 1)
    climb(search, search.standing(), runs, early_stop, seed if random_start else None)
    return search.result()


@torch.inference_mode(False)
@torch.no_grad()
def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float | Tensor, **options: Unpack[Options]
) -> AttackResult:
    """Take one step of length `epsilon` from the image along the gradient of the CW margin loss, clamped to [0, 1]."""
    search = Search(model, images, labels, epsilon, **options)
    climb(search, search.standing(), [partial(PGDAscent, steps=1)])
    return search.result()


@torch.inference_mode(False)
@torch.no_grad()
def apgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    loss: LossName = "margin",
    targets: int = 9,
    steps: int = 100,
    restarts: int = 1,
    early_stop: bool = True,
    seed: int = 0,
    **options: Unpack[Options],
) -> AttackResult:
    """Run Auto-PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1].

    loss : "margin", max_{j≠t} y_j − y_t; "dlr", that divided by the difference of the largest and the third largest logit
        (at least three classes); or either of them "targeted-…", at each of the `targets` likeliest wrong classes in
        turn ("targeted-dlr" needs four classes)

    All else as in `pgd`: gradients in float32, judged in float64.
    """
    if loss not in get_args(LossName):
        raise IsoconvError(f"Expected loss to be one of {', '.join(get_args(LossName))}. Got {loss!r}.")
    check_counts(targets=targets, steps=steps, restarts=restarts, seed=seed)
    search = Search(model, images, labels, epsilon, **options)
    climb(search, search.standing(), apgd_runs(search, loss, targets, steps) * restarts, early_stop, seed)
    return search.result()


class Ascent:
    """One run on a batch of images. Each of its tensors has one row per image, so that images can leave.

    It moves `delta`, the perturbation, in the precision of the search, and remembers the one of the largest margin loss.
    A subclass says how to `advance`.
    """

    def __init__(self, search: Search, index: Tensor, start: Tensor | None, steps: int) -> None:
        images, self.labels, epsilon = search.rows(index)
        self.network, self.steps = search.network, steps
        self.pixels = images.to(self.network.search_dtype)
        self.epsilon = epsilon.to(self.network.search_dtype)
        self.delta = torch.zeros_like(self.pixels) if start is None else self.clip(start.to(self.pixels))
        self.best_delta = self.delta
        self.best_loss = torch.full_like(self.epsilon, -torch.inf)

    def advance(self, step: int) -> None:
        raise NotImplementedError

    def clip(self, delta: Tensor) -> Tensor:
        """Project into the ball, then into [0, 1]; the second does not undo the first (Note [Clamping])."""
        norms = torch.linalg.vector_norm(delta.flatten(1), dim=1).clamp_min(torch.finfo(delta.dtype).tiny)
        delta = delta * column((self.epsilon / norms).clamp_max(1), delta)
        return torch.clamp(delta, -self.pixels, 1 - self.pixels)

    def margin_loss(self, logits: Tensor) -> Tensor:
        return margin_loss(logits, self.labels)

    def look(self, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss at `delta` and the direction in which it grows, of length one."""
        logits, losses, gradient = self.network.gradient(self.pixels + self.delta, loss)
        self.remember(logits)
        return losses, unit(gradient)

    def remember(self, logits: Tensor) -> None:
        loss = self.margin_loss(logits)
        loss = torch.where(loss.isnan(), torch.inf, loss)  # for the judge to decide
        better = loss >= self.best_loss  # of equals the later: a step may be too small to be seen in this precision
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_delta = torch.where(column(better, self.delta), self.delta, self.best_delta)

    def select(self, rows: Tensor) -> None:
        """Keep only these images."""
        vars(self).update({name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)})


class PGDAscent(Ascent):
    """Steps of one length; without a `step_size`, of each image's epsilon."""

    def __init__(
        self, search: Search, index: Tensor, start: Tensor | None, steps: int, step_size: float | None = None
    ) -> None:
        super().__init__(search, index, start, steps)
        self.lengths = self.epsilon if step_size is None else torch.full_like(self.epsilon, step_size)

    def advance(self, step: int) -> None:
        _, direction = self.look(self.margin_loss)
        self.delta = self.clip(self.delta + column(self.lengths, direction) * direction)


class APGDAscent(Ascent):
    """Steps that halve where an image is stuck.

    `scaled` divides the loss as "dlr" does. `rank` is the wrong class to aim at, the likeliest being 0; None aims at
    whichever is ahead.
    """

    def __init__(
        self, search: Search, index: Tensor, start: Tensor | None, steps: int, scaled: bool, rank: int | None
    ) -> None:
        super().__init__(search, index, start, steps)
        self.scaled, self.checkpoints = scaled, checkpoints(steps)
        self.targets: Tensor | None = None
        if rank is not None:
            others = self.network.search_logits(self.pixels * 1).scatter(1, self.labels[:, None], -torch.inf)
            self.targets = others.topk(rank + 1, dim=1).indices[:, rank]
        self.lengths = 2 * self.epsilon
        self.previous = self.delta
        self.previous_loss = torch.full_like(self.epsilon, torch.inf)
        self.rises = torch.zeros_like(self.epsilon)
        # The best point by the loss that is climbed, which is not always the margin loss.
        self.peak, self.peak_direction = self.delta, torch.zeros_like(self.delta)
        self.peak_loss, self.peak_loss_at_checkpoint = self.best_loss, self.best_loss
        self.just_halved = torch.zeros_like(self.labels, dtype=torch.bool)

    def loss(self, logits: Tensor) -> Tensor:
        if self.targets is None:
            loss = self.margin_loss(logits)
        else:
            pair = logits.gather(1, torch.stack([self.targets, self.labels], dim=1))
            loss = pair[:, 0] - pair[:, 1]
        if not self.scaled:
            return loss
        ordered = logits.topk(3 if self.targets is None else 4, dim=1).values
        third = ordered[:, 2] if self.targets is None else (ordered[:, 2] + ordered[:, 3]) / 2
        return loss / (ordered[:, 0] - third + 1e-12)

    def advance(self, step: int) -> None:
        loss, direction = self.look(self.loss)
        self.rises = self.rises + (loss > self.previous_loss)
        self.previous_loss = loss
        higher = loss > self.peak_loss
        wide = column(higher, self.delta)
        self.peak_loss = torch.where(higher, loss, self.peak_loss)
        self.peak = torch.where(wide, self.delta, self.peak)
        self.peak_direction = torch.where(wide, direction, self.peak_direction)
        if step in self.checkpoints:
            direction = self._halve_where_stuck(self.checkpoints[step], direction)
        moved = self.clip(self.delta + column(self.lengths, direction) * direction)
        if step > 0:
            momentum = (1 - _MOMENTUM) * (self.delta - self.previous)
            moved = self.clip(self.delta + _MOMENTUM * (moved - self.delta) + momentum)
        self.previous, self.delta = self.delta, moved

    def _halve_where_stuck(self, interval: int, direction: Tensor) -> Tensor:
        old = ~self.just_halved & (self.peak_loss_at_checkpoint >= self.peak_loss)
        stuck = (self.rises < _RISES * interval) | old
        wide = column(stuck, self.delta)
        self.lengths = torch.where(stuck, self.lengths / 2, self.lengths)
        self.delta = torch.where(wide, self.peak, self.delta)
        self.previous = torch.where(wide, self.peak, self.previous)
        self.previous_loss = torch.where(stuck, self.peak_loss, self.previous_loss)
        self.just_halved, self.peak_loss_at_checkpoint = stuck, self.peak_loss
        self.rises = torch.zeros_like(self.rises)
        return torch.where(wide, self.peak_direction, direction)


def apgd_runs(search: Search, loss: LossName, targets: int, steps: int) -> list[Run]:
    """Return one run or, where the loss has a target, one for each target."""
    least = {"dlr": 3, "targeted-dlr": 4}.get(loss, 2)
    if 0 < search.classes < least:
        raise IsoconvError(f"Expected at least {least} classes for the loss {loss!r}. Got {search.classes}.")
    ranks = range(min(targets, search.classes - 1)) if loss.startswith("targeted") else [None]
    return [partial(APGDAscent, steps=steps, scaled=loss.endswith("dlr"), rank=rank) for rank in ranks]


def checkpoints(steps: int) -> dict[int, int]:
    """Return the steps at which to look back and how many each looks back over: 22 % of all, then fewer, down to 6 %."""
    percents = [0, 22]
    while percents[-1] < 100:
        percents.append(percents[-1] + max(percents[-1] - percents[-2] - 3, 6))
    ends = sorted({-(-percent * steps // 100) for percent in percents})  # rounded up
    return {end: end - start for start, end in pairwise(ends)}


def unit(gradient: Tensor) -> Tensor:
    """Scale each image's gradient to length one; zero where it is zero or not finite."""
    gradient = torch.where(gradient.isfinite(), gradient, 0.0)
    largest = gradient.abs().flatten(1).amax(dim=1)
    gradient = gradient / column(torch.where(largest > 0, largest, 1.0), gradient)  # squares must not underflow
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return gradient / column(torch.where(largest > 0, norms, 1.0), gradient)


def random_starts(search: Search, index: Tensor, seed: int, run: int) -> Tensor:
    """Draw a uniform point of each image's ball, from a stream of its own: neither batch size nor company matters."""
    shape = search.originals.shape[1:]
    starts = torch.empty(len(index), *shape, dtype=torch.float32, device="cpu")
    for start, row, epsilon in zip(starts, index.tolist(), search.epsilon[index].tolist(), strict=True):
        stream = generator(seed, run, row)
        direction = torch.randn(shape, generator=stream, dtype=torch.float32, device="cpu")
        share = float(torch.rand((), generator=stream, dtype=torch.float64, device="cpu")) ** (1 / shape.numel())
        start.copy_(direction * (epsilon * share / float(direction.norm())))
    return starts


def generator(*numbers: int) -> torch.Generator:
    """Return a CPU generator of its own: the global one is left alone, and all devices draw the same."""
    # SeedSequence mixes its numbers well; sums or products would let (0, 1) and (1, 0) meet.
    mixed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator("cpu").manual_seed(int(mixed))


def climb(
    search: Search, waiting: Tensor, runs: Sequence[Run], early_stop: bool = True, seed: int | None = None
) -> None:
    """Do every run on every image of `waiting`; with `early_stop`, only on those not yet fooled.

    With a seed every run starts from random points, and otherwise from the images.
    """
    for number, run in enumerate(runs, start=1):
        for index in search.batches(waiting):
            start = None if seed is None else random_starts(search, index, seed, number - 1)
            _climb_batch(search, run(search, index, start), index, early_stop)
            if number == len(runs):
                search.finish(index)
            elif early_stop:
                search.finish(index[search.margins[index] <= 0])
        waiting = search.standing(waiting) if early_stop else waiting


def _climb_batch(search: Search, ascent: Ascent, index: Tensor, early_stop: bool) -> None:
    for step in range(1, ascent.steps + 1):
        ascent.advance(step - 1)
        if early_stop and step % _CHECK_EVERY == 0 and step < ascent.steps:
            index = _dismiss_fooled(search, ascent, index)
            if len(index) == 0:
                return
    ascent.remember(ascent.network.search_logits(ascent.pixels + ascent.delta))  # the last step has not been looked at
    images = search.originals[index].to(ascent.delta.device)
    for delta in (ascent.best_delta, ascent.delta):  # the precision of the search may not show that the last is best
        search.judge(index, images + delta.to(images))


def _dismiss_fooled(search: Search, ascent: Ascent, index: Tensor) -> Tensor:
    """Let the images leave that are fooled in float64, and return the others."""
    hopeful = (ascent.best_loss >= 0).nonzero()[:, 0]
    if len(hopeful) == 0:
        return index
    rows = index[hopeful.to(index.device)]
    images = search.originals[rows].to(ascent.delta.device)
    margins = search.judge(rows, images + ascent.best_delta[hopeful].to(images))
    # What float64 does not confirm is from now on compared by what float64 says.
    ascent.best_loss[hopeful] = -margins.to(ascent.best_loss)
    stay = torch.ones(len(index), dtype=torch.bool, device=margins.device)
    stay[hopeful] = margins > 0
    ascent.select(stay.nonzero()[:, 0])
    stay = stay.to(index.device)
    search.finish(index[~stay])
    return index[stay]
