"""Gradient attacks: PGD, its single step FGSM, Auto-PGD (Croce and Hein, 2020), and the nearest adversarial example.

All climb the loss in the L2 ball around many images at once; images leave the batch as soon as they are fooled. Auto-PGD
chooses its own step sizes: it starts with steps of twice the budget and momentum. At checkpoints that come ever closer
together, an image whose loss has not grown in three of four steps, or whose best point is old, returns to that point and
halves its step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from numbers import Real
from typing import Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.attacks.ball import choose, column, into_ball, norm_bound
from isoconv.attacks.search import (
    AttackResult,
    Budget,
    Options,
    Search,
    check_counts,
    margin_loss,
    margins_of,
    refuse_options,
    without_autograd,
)
from isoconv.errors import require

LossName = Literal["margin", "dlr", "targeted-margin", "targeted-dlr"]

Run = Callable[[Search, Tensor, Tensor], "Ascent"]
"""Makes the ascent of a batch: of the rows `index`, from starting perturbations."""

_FIRST = 64  # the first ball of `nearest` has this fraction of the farthest point's distance for a radius
_HALVINGS = 20  # on the line between an image and an adversarial example
_CHECK_EVERY = 10  # steps between two looks at who is fooled: each one waits for the device
_MOMENTUM = 0.75
_RISES = 0.75  # the share of steps that must raise the loss


@without_autograd
def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: Budget,
    *,
    steps: int = 200,
    step_size: float | None = 0.01,
    restarts: int = 1,
    random_start: bool = True,
    **options: Unpack[Options],
) -> AttackResult:
    """Run PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1], on the CW margin loss.

    The defaults are the paper's: 200 steps of 0.01 along the gradient scaled to length one, from one random point of the
    ball. A `step_size` of None is each image's epsilon. Every restart starts elsewhere (without a random start there is
    only one). Works on any classifier. The gradients are taken in float32 (TF32 where there is one), from the network that
    `isoconv.plain` returns; every point in the result was judged by that network in float64. The same seed gives the same
    random starts, whatever the batch size. See `Options` for the options.
    """
    check_counts(steps=steps, restarts=restarts)
    positive = step_size is None or (isinstance(step_size, Real) and 0 < step_size < math.inf)
    require(positive, "step_size finite and positive", repr(step_size))
    search = Search(model, images, labels, epsilon, **options)
    runs = [partial(Ascent, steps=steps, step_size=step_size)] * (restarts if random_start else 1)
    climb(search, search.standing(), runs, search.seed if random_start else None)
    return search.result()


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, epsilon: Budget, **options: Unpack[Options]) -> AttackResult:
    """Take one step of length `epsilon` from the image along the gradient of the CW margin loss, clamped to [0, 1]."""
    refuse_options(options, "seed", "early_stop")
    return pgd(model, images, labels, epsilon, steps=1, step_size=None, random_start=False, **options)


@without_autograd
def apgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: Budget,
    *,
    loss: LossName = "margin",
    targets: int = 9,
    steps: int = 100,
    restarts: int = 1,
    **options: Unpack[Options],
) -> AttackResult:
    """Run Auto-PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1].

    loss : "margin", max_{j≠t} y_j − y_t; "dlr", that divided by the difference of the largest and the third largest logit
        (at least three classes); or either of them "targeted-…", at each of the `targets` likeliest wrong classes in
        turn ("targeted-dlr" needs four classes)

    All else as in `pgd`: gradients in float32, judged in float64.
    """
    require(loss in get_args(LossName), f"loss to be one of {', '.join(get_args(LossName))}", repr(loss))
    check_counts(targets=targets, steps=steps, restarts=restarts)
    search = Search(model, images, labels, epsilon, **options)
    climb(search, search.standing(), apgd_runs(search, loss, targets, steps) * restarts, search.seed)
    return search.result()


@without_autograd
def nearest(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    certified: Budget = 0.0,
    rounds: int = 8,
    steps: int = 40,
    **options: Unpack[Options],
) -> AttackResult:
    """Find for every image the smallest perturbation (L2, within [0, 1]) that fools the network.

    The ball's radius is doubled until `apgd` succeeds in it, or until it holds all of [0, 1]; then come `rounds` bisections
    between that radius and `certified`, a radius per image (or one number) within which nothing can be found.
    Each point is moved towards its image as long as it fools the network. `success` and `norms` are judged in float64, as
    in `apgd`. The norm is an upper bound of the smallest one.
    `progress(round, rounds)` is called after every bisection.
    """
    check_counts(steps=steps)
    check_counts(0, rounds=rounds)
    progress, options["seed"] = options.pop("progress", None), options.get("seed", 0)
    search = Search(model, images, labels, certified, dtype=torch.float64, budget="certified", **options)
    images, low = search.originals, search.epsilon
    farthest = norm_bound(images, (images < 0.5).to(images))  # to the corner of [0, 1]ⁿ that is farthest away

    def attack(budget: Tensor, where: Tensor) -> Tensor:
        """Attack some of the images within these budgets, keep what is nearer than what is known, return where it is."""
        rows, nearer = search.everything[where], torch.zeros_like(where)
        if len(rows):
            result = apgd(model, images[rows], search.labels[rows], budget[rows], steps=steps, **options)
            points, norms, margins = _draw_in(search, rows, result)
            nearer[rows] = (margins <= 0) & ((search.margins[rows] > 0) | (norms < search.norms[rows]))
            search.keep(rows, points, norms, margins, nearer[rows])
        options["seed"] += 1  # the next attack starts elsewhere
        return nearer

    budget = torch.maximum(farthest / _FIRST, 2 * low).minimum(farthest)
    while bool((missing := search.margins > 0).any()):
        missing = missing & ~attack(budget, missing)
        low = torch.where(missing, budget, low)
        if not bool((missing & (budget < farthest)).any()):
            break
        budget = torch.where(missing, (2 * budget).minimum(farthest), budget)
    for done in range(rounds):
        middle = (low + search.norms) / 2
        worth_it = search.clean & (search.margins <= 0) & (low < search.norms)
        low = torch.where(worth_it & ~attack(middle, worth_it), middle, low)
        if progress is not None:
            progress(done + 1, rounds)
    return replace(search.result(), epsilon=farthest.to(search.home))


def _draw_in(search: Search, rows: Tensor, result: AttackResult) -> tuple[Tensor, Tensor, Tensor]:
    """Move adversarial examples along the line to their image as long as they fool the network: bisection in float64."""
    images, labels, far = search.originals[rows], search.labels[rows], result.images
    points, norms, margins = far, result.norms, result.margins
    low, high = torch.zeros_like(norms), torch.ones_like(norms)
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        candidates, lengths = into_ball(images, images + column(share, images) * (far - images), result.epsilon)
        judged = search.judge_points(candidates, labels)
        fooled = result.success & (judged <= 0)
        nearer = fooled & (lengths < norms)
        points, norms, margins = map(partial(choose, nearer), (candidates, lengths, judged), (points, norms, margins))
        high, low = torch.where(fooled, share, high), torch.where(fooled, low, share)
    return points, norms, margins


class Ascent:
    """One run of PGD on a batch of images. Each of its tensors has one row per image, so that images can leave.

    It moves `delta`, the perturbation, in the precision of the search, by steps of length `step_size` (by default of each
    image's epsilon), and remembers the one of the largest margin loss.
    """

    def __init__(
        self, search: Search, index: Tensor, start: Tensor, steps: int, step_size: float | None = None
    ) -> None:
        self.search, self.index, self.labels, self.steps = search, index, search.labels[index], steps
        self.pixels = search.originals[index].to(search.dtype)
        self.epsilon = search.epsilon[index].to(search.dtype)
        self.lengths = self.epsilon if step_size is None else torch.full_like(self.epsilon, step_size)
        self.delta = self.clip(start.to(self.pixels))
        self.best_delta, self.best_loss = self.delta, torch.full_like(self.epsilon, -torch.inf)

    def advance(self, step: int) -> None:
        _, direction = self.look()
        self.delta = self.follow(direction)

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss to climb."""
        return margin_loss(logits, self.labels)

    def look(self) -> tuple[Tensor, Tensor]:
        """Return the loss at `delta` and the direction in which it grows, of length one."""
        logits, losses, gradient = self.search.gradient(self.pixels + self.delta, self.loss)
        self.remember(logits)
        return losses, unit(gradient)

    def remember(self, logits: Tensor) -> None:
        loss = -margins_of(logits, self.labels)  # of NaN the judge decides
        # Of equals the later: a step may be too small to be seen in this precision.
        self.update(loss >= self.best_loss, best_loss=loss, best_delta=self.delta)

    def follow(self, direction: Tensor) -> Tensor:
        """Return `delta` after a step."""
        return self.clip(self.delta + column(self.lengths, direction) * direction)

    def clip(self, delta: Tensor) -> Tensor:
        """Project into the ball, then into [0, 1]; the second does not undo the first (Note [Clamping])."""
        norms = torch.linalg.vector_norm(delta.flatten(1), dim=1).clamp_min(torch.finfo(delta.dtype).tiny)
        delta = delta * column((self.epsilon / norms).clamp_max(1), delta)
        return torch.clamp(delta, -self.pixels, 1 - self.pixels)

    def update(self, where: Tensor, **values: Tensor) -> None:
        """Replace the rows of some tensors for the images of a mask."""
        vars(self).update({name: choose(where, value, vars(self)[name]) for name, value in values.items()})

    def select(self, rows: Tensor) -> None:
        """Keep only these images."""
        vars(self).update({name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)})


class AutoAscent(Ascent):
    """A run of Auto-PGD, whose steps halve where an image is stuck.

    `scaled` divides the loss as "dlr" does. `rank` is the wrong class to aim at, the likeliest being 0; None aims at
    whichever is ahead.
    """

    def __init__(
        self, search: Search, index: Tensor, start: Tensor, steps: int, scaled: bool, rank: int | None
    ) -> None:
        super().__init__(search, index, start, steps)
        self.lengths = 2 * self.epsilon
        self.scaled, self.checkpoints = scaled, checkpoints(steps)
        self.targets: Tensor | None = None
        if rank is not None:
            others = search.logits(self.pixels).scatter(1, self.labels[:, None], -torch.inf)
            self.targets = others.topk(rank + 1, dim=1).indices[:, rank]
        self.previous, self.previous_loss = self.delta, torch.full_like(self.epsilon, torch.inf)
        self.rises = torch.zeros_like(self.epsilon)
        # The best point by the loss that is climbed, which is not always the margin loss.
        self.peak, self.peak_direction = self.delta, torch.zeros_like(self.delta)
        self.peak_loss, self.peak_loss_at_checkpoint = self.best_loss, self.best_loss
        self.just_halved = torch.zeros_like(self.labels, dtype=torch.bool)

    def loss(self, logits: Tensor) -> Tensor:
        if self.targets is None:
            loss = super().loss(logits)
        else:
            target, label = logits.gather(1, torch.stack([self.targets, self.labels], dim=1)).unbind(1)
            loss = target - label
        if not self.scaled:
            return loss
        ordered = logits.topk(3 if self.targets is None else 4, dim=1).values
        return loss / (ordered[:, 0] - ordered[:, 2:].mean(dim=1) + 1e-12)

    def advance(self, step: int) -> None:
        loss, direction = self.look()
        self.rises = self.rises + (loss > self.previous_loss)
        self.previous_loss = loss
        self.update(loss > self.peak_loss, peak_loss=loss, peak=self.delta, peak_direction=direction)
        if step in self.checkpoints:
            old = ~self.just_halved & (self.peak_loss_at_checkpoint >= self.peak_loss)
            stuck = (self.rises < _RISES * self.checkpoints[step]) | old
            peak = {"delta": self.peak, "previous": self.peak, "previous_loss": self.peak_loss}
            self.update(stuck, lengths=self.lengths / 2, **peak)
            direction = choose(stuck, self.peak_direction, direction)
            self.just_halved, self.peak_loss_at_checkpoint = stuck, self.peak_loss
            self.rises = torch.zeros_like(self.rises)
        delta = self.follow(direction)
        if step > 0:
            momentum = (1 - _MOMENTUM) * (self.delta - self.previous)
            delta = self.clip(self.delta + _MOMENTUM * (delta - self.delta) + momentum)
        self.previous, self.delta = self.delta, delta


def apgd_runs(search: Search, loss: LossName, targets: int, steps: int) -> list[Run]:
    """Return one run or, where the loss has a target, one for each target."""
    least = {"dlr": 3, "targeted-dlr": 4}.get(loss, 2)
    require(search.classes == 0 or search.classes >= least, f"at least {least} classes for {loss!r}", search.classes)
    ranks = range(min(targets, search.classes - 1)) if loss.startswith("targeted") else [None]
    return [partial(AutoAscent, steps=steps, scaled=loss.endswith("dlr"), rank=rank) for rank in ranks]


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


def random_starts(search: Search, index: Tensor, seed: int | None, run: int) -> Tensor:
    """Draw a uniform point of each image's ball, from a stream of its own: neither batch size nor company matters.

    Without a seed, return the centres.
    """
    shape = search.originals.shape[1:]
    starts = torch.zeros(len(index), *shape, dtype=torch.float32, device="cpu")
    if seed is None:
        return starts
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


def climb(search: Search, waiting: Tensor, runs: Sequence[Run], seed: int | None) -> None:
    """Do every run on every image of `waiting`; with early stopping, only on those not yet fooled.

    With a seed every run starts from random points, and otherwise from the images.
    """
    for number, run in enumerate(runs):
        for index in search.batches(waiting):
            _climb_batch(search, run(search, index, random_starts(search, index, seed, number)))
            if number == len(runs) - 1:
                search.finish(index)
            elif search.early_stop:
                search.finish(index[search.margins[index] <= 0])
        waiting = search.standing(waiting) if search.early_stop else waiting


def _climb_batch(search: Search, ascent: Ascent) -> None:
    for step in range(ascent.steps):
        ascent.advance(step)
        due = search.early_stop and (step + 1) % _CHECK_EVERY == 0 and step + 1 < ascent.steps
        if due and bool((hopeful := ascent.best_loss >= 0).any()):
            margins = search.judge(ascent.index[hopeful], ascent.best_delta[hopeful])
            # What float64 does not confirm is from now on compared by what float64 says.
            ascent.best_loss[hopeful] = -margins.to(ascent.best_loss)
            fooled = search.margins[ascent.index] <= 0
            search.finish(ascent.index[fooled])
            ascent.select(~fooled)
            if not len(ascent.index):
                return
    ascent.remember(search.logits(ascent.pixels + ascent.delta))  # the last step has not been looked at
    for delta in (ascent.best_delta, ascent.delta):  # the precision of the search may not show that the last is best
        search.judge(ascent.index, delta)
