"""Auto-PGD (Croce and Hein, 2020): gradient ascent that chooses its own step sizes.

It starts with steps of twice the budget and momentum. At checkpoints that come ever closer together, an image whose loss
has not grown in three of four steps, or whose best point is old, goes back to that point and halves its step.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from isoconv.attacks.ascent import Ascent, climb, random_starts
from isoconv.attacks.ball import column
from isoconv.attacks.checks import checked_count
from isoconv.attacks.deployed import margin_loss
from isoconv.attacks.findings import Findings, Progress
from isoconv.attacks.result import AttackResult
from isoconv.errors import IsoconvError

LossName = Literal["margin", "dlr", "targeted-margin", "targeted-dlr"]

_MOMENTUM = 0.75
_RISES = 0.75  # the share of steps that must raise the loss


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
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """Auto-PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1]: no step size to choose.

    loss : "margin", max_{j≠t} y_j − y_t; "dlr", that divided by the difference of the largest and the third largest logit
        (at least three classes); or either of them "targeted-…", at each of the `targets` likeliest wrong classes in
        turn ("targeted-dlr" needs four classes)

    All else as in `pgd`: gradients in float32, judged in float64.
    """
    if loss not in get_args(LossName):
        raise IsoconvError(f"Expected loss to be one of {', '.join(get_args(LossName))}. Got {loss!r}.")
    checked_count(targets, "targets")
    checked_count(steps, "steps")
    checked_count(restarts, "restarts")
    checked_count(seed, "seed", least=0)
    findings = Findings(model, images, labels, epsilon, batch_size=batch_size, device=device, progress=progress)
    runs = apgd_runs(findings, loss, targets, steps, restarts, seed)
    climb(findings, findings.standing(), runs, early_stop=early_stop, finished=findings.finish)
    return findings.result()


def apgd_runs(
    findings: Findings, loss: LossName, targets: int, steps: int, restarts: int, seed: int
) -> list[Callable[[Tensor], Ascent]]:
    """One for each restart and, where the loss has a target, each target."""
    least = {"dlr": 3, "targeted-dlr": 4}.get(loss, 2)
    if 0 < findings.classes < least:
        raise IsoconvError(f"Expected at least {least} classes for the loss {loss!r}. Got {findings.classes}.")
    targeted = loss.startswith("targeted")
    ranks: list[int | None] = [*range(min(targets, findings.classes - 1))] if targeted else [None]

    def run(number: int, rank: int | None, index: Tensor) -> Ascent:
        start = random_starts(findings, index, seed, number)
        return APGDAscent(findings, index, steps, start, loss.endswith("dlr"), rank)

    return [partial(run, number, rank) for number, rank in enumerate(ranks * restarts)]


class APGDAscent(Ascent):
    """`rank`: aim at this one of the wrong classes, the likeliest being 0; None: at whichever is ahead."""

    def __init__(
        self, findings: Findings, index: Tensor, steps: int, start: Tensor | None, scaled: bool, rank: int | None
    ) -> None:
        super().__init__(findings, index, steps, start)
        self.scaled = scaled
        self.checkpoints = checkpoints(steps)
        self.targets: Tensor | None = None
        if rank is not None:
            logits = self.network.search_logits(self.pixels * 1)
            others = logits.scatter(1, self.labels[:, None], -torch.inf)
            self.targets = others.topk(rank + 1, dim=1).indices[:, rank]
        self.lengths = 2 * self.epsilon
        self.before = self.delta  # the point before
        self.loss_before = torch.full_like(self.epsilon, torch.inf)
        self.rises = torch.zeros_like(self.epsilon)
        # The best point by the loss that is climbed, which is not always the margin loss.
        self.peak, self.peak_direction = self.delta, torch.zeros_like(self.delta)
        self.peak_loss = torch.full_like(self.epsilon, -torch.inf)
        self.peak_at_checkpoint = self.peak_loss
        self.just_halved = torch.zeros_like(self.labels, dtype=torch.bool)

    def loss(self, logits: Tensor) -> Tensor:
        if self.targets is None:
            margin = margin_loss(logits, self.labels)
        else:
            chosen = logits.gather(1, torch.stack([self.targets, self.labels], dim=1))
            margin = chosen[:, 0] - chosen[:, 1]
        if not self.scaled:
            return margin
        ordered = logits.topk(3 if self.targets is None else 4, dim=1).values
        third = ordered[:, 2] if self.targets is None else (ordered[:, 2] + ordered[:, 3]) / 2
        return margin / (ordered[:, 0] - third + 1e-12)

    def advance(self, step: int) -> None:
        loss, direction = self.look(self.loss if self.scaled or self.targets is not None else None)
        self.rises = self.rises + (loss > self.loss_before)
        self.loss_before = loss
        higher = loss > self.peak_loss
        wide = column(higher, self.delta)
        self.peak_loss = torch.where(higher, loss, self.peak_loss)
        self.peak = torch.where(wide, self.delta, self.peak)
        self.peak_direction = torch.where(wide, direction, self.peak_direction)
        if step in self.checkpoints:
            direction = self._halve_where_stuck(self.checkpoints[step], direction)
        lengths = column(self.lengths, direction)
        moved = self.clip(self.delta + lengths * direction)
        if step > 0:
            moved = self.clip(
                self.delta + _MOMENTUM * (moved - self.delta) + (1 - _MOMENTUM) * (self.delta - self.before)
            )
        self.before, self.delta = self.delta, moved

    def _halve_where_stuck(self, interval: int, direction: Tensor) -> Tensor:
        few = self.rises < _RISES * interval
        old = ~self.just_halved & (self.peak_at_checkpoint >= self.peak_loss)
        stuck = few | old
        wide = column(stuck, self.delta)
        self.lengths = torch.where(stuck, self.lengths / 2, self.lengths)
        self.delta = torch.where(wide, self.peak, self.delta)
        self.before = torch.where(wide, self.peak, self.before)
        self.loss_before = torch.where(stuck, self.peak_loss, self.loss_before)
        self.just_halved, self.peak_at_checkpoint = stuck, self.peak_loss
        self.rises = torch.zeros_like(self.rises)
        return torch.where(wide, self.peak_direction, direction)


def checkpoints(steps: int) -> dict[int, int]:
    """Steps at which to look back, and how many each looks back over: 22 % of all, then ever fewer, down to 6 %."""
    percents = [0, 22]
    while percents[-1] < 100:
        percents.append(percents[-1] + max(percents[-1] - percents[-2] - 3, 6))
    places = sorted({-(-percent * steps // 100) for percent in percents})  # rounded up
    return {end: end - start for start, end in pairwise(places)}
