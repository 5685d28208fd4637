"""Projected gradient ascent, and its single step."""

from functools import partial

import torch
from torch import Tensor, nn

from isoconv.attacks.ascent import Ascent, climb, random_starts
from isoconv.attacks.ball import column
from isoconv.attacks.checks import checked_count, checked_step_size
from isoconv.attacks.findings import Findings, Progress
from isoconv.attacks.result import AttackResult


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
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """PGD in the L2 ball of radius `epsilon` (one number, or one per image) within [0, 1], on the CW margin loss.

    The defaults are the paper's: 200 steps of 0.01 along the gradient scaled to length one, from one random point of the
    ball. Every restart starts elsewhere (without a random start there is only one). With `early_stop` an image that is
    fooled is done with; without, the search goes on for the smallest margin. Works on any classifier. The gradients are
    taken in float32 (TF32 where there is one), from the network that `isoconv.plain` gives; every point that is returned
    was judged by that network in float64. The same seed gives the same random starts, whatever the batch size.
    `device` defaults to the model's.
    """
    checked_count(steps, "steps")
    checked_count(restarts, "restarts")
    checked_count(seed, "seed", least=0)
    step_size = checked_step_size(step_size)
    findings = Findings(model, images, labels, epsilon, batch_size=batch_size, device=device, progress=progress)

    def run(number: int, index: Tensor) -> Ascent:
        start = random_starts(findings, index, seed, number) if random_start else None
        return PGDAscent(findings, index, steps, step_size, start)

    numbers = range(restarts if random_start else 1)
    runs = [partial(run, number) for number in numbers]
    climb(findings, findings.standing(), runs, early_stop=early_stop, finished=findings.finish)
    return findings.result()


@torch.inference_mode(False)
@torch.no_grad()
def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """One step of length `epsilon` from the image along the gradient of the CW margin loss, clamped to [0, 1]."""
    findings = Findings(model, images, labels, epsilon, batch_size=batch_size, device=device, progress=progress)
    runs = [lambda index: PGDAscent(findings, index, 1, None, None)]
    climb(findings, findings.standing(), runs, early_stop=True, finished=findings.finish)
    return findings.result()


class PGDAscent(Ascent):
    """Steps of one length; without a `step_size`, of each image's epsilon."""

    def __init__(
        self, findings: Findings, index: Tensor, steps: int, step_size: float | None, start: Tensor | None
    ) -> None:
        super().__init__(findings, index, steps, start)
        self.lengths = self.epsilon if step_size is None else torch.full_like(self.epsilon, step_size)

    def advance(self, step: int) -> None:
        _, direction = self.look()
        self.delta = self.clip(self.delta + column(self.lengths, direction) * direction)
