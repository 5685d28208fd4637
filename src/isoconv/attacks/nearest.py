"""The nearest point that fools the network, as far as one can find it: Auto-PGD in balls that grow, and then shrink."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from isoconv.attacks.apgd import apgd
from isoconv.attacks.ball import column, into_ball, norm_bound
from isoconv.attacks.checks import checked_budget, checked_count, checked_device, checked_images, checked_labels
from isoconv.attacks.deployed import Deployed
from isoconv.attacks.findings import Progress
from isoconv.attacks.result import AttackResult

_FIRST = 64  # the first ball's radius is this fraction of the farthest point's distance
_HALVINGS = 20  # on the line between an image and a point that fools the network


@torch.inference_mode(False)
@torch.no_grad()
def nearest(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    certified: Tensor | float = 0.0,
    rounds: int = 8,
    steps: int = 40,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """For every image the smallest change (L2, within [0, 1]) that was found to fool the network.

    The ball's radius is doubled until `apgd` succeeds in it, or it holds every image there is; then `rounds` bisections
    between there and `certified`, a radius per image (or one number) within which it is known that there is nothing.
    Each point found is drawn towards its image as far as it still fools the network. `success` and `norms` as in
    `apgd`: judged in float64. The norm is one that suffices; the smallest of all may lie below it.
    `progress(round, rounds)` is called after every bisection.
    """
    checked_count(rounds, "rounds", least=0)
    images, labels = checked_images(images), checked_labels(labels, len(images)).to(images.device)
    low = checked_budget(certified, len(images), "certified").to(images.device)
    farthest = norm_bound(images, (images < 0.5).to(images))  # the corner of [0, 1]ⁿ that is farthest away
    network = Deployed(model, checked_device(model, device), torch.float64)
    best = apgd(model, images, labels, torch.zeros_like(farthest), steps=1, device=device)
    best = replace(best, epsilon=farthest)
    if not len(images):
        return best

    def attack(budget: Tensor, where: Tensor, number: int) -> None:
        """Look in these balls, for these images only, and keep what is nearer than what is known."""
        nonlocal best
        rows = where.nonzero()[:, 0]
        if not len(rows):
            return
        found = apgd(model, images[rows], labels[rows], budget[rows], steps=steps, seed=seed + number, device=device)
        best = _kept(best, rows, _drawn_in(network, images[rows], labels[rows], found))

    budget = torch.maximum(farthest / _FIRST, 2 * low).minimum(farthest)
    number = 0
    while True:
        missing = ~best.success
        attack(budget, missing, number)
        number += 1
        failed = ~best.success
        low = torch.where(missing & failed, budget, low)
        if not bool((failed & (budget < farthest)).any()):
            break
        budget = torch.where(failed, (2 * budget).minimum(farthest), budget)
    for done in range(rounds):
        middle = (low + best.norms) / 2
        worth_it = best.clean & best.success & (low < best.norms)
        before = best.norms
        attack(middle, worth_it, number + done)
        low = torch.where(worth_it & (best.norms == before), middle, low)
        if progress is not None:
            progress(done + 1, rounds)
    return best


def _drawn_in(network: Deployed, images: Tensor, labels: Tensor, found: AttackResult) -> AttackResult:
    """The points that fool the network, moved along the line to their image as long as they do. Bisection in float64."""
    points, norms, margins = found.images, found.norms, found.margins
    low, high = torch.zeros_like(norms), torch.ones_like(norms)
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        candidates = images + column(share, images) * (found.images - images)
        tried, lengths = into_ball(images, candidates, found.epsilon)
        judged = network.margins(tried, labels.to(network.device)).to(margins.device)
        fooled = found.success & (judged <= 0)
        nearer = fooled & (lengths < norms)
        points = torch.where(column(nearer, points), tried, points)
        norms, margins = torch.where(nearer, lengths, norms), torch.where(nearer, judged, margins)
        high, low = torch.where(fooled, share, high), torch.where(fooled, low, share)
    return replace(found, images=points, norms=norms, margins=margins)


def _kept(best: AttackResult, rows: Tensor, found: AttackResult) -> AttackResult:
    """`best` with the rows in which `found` has succeeded with less."""
    better = found.success & (~best.success[rows] | (found.norms < best.norms[rows]))
    chosen = rows[better]
    images, norms, success, margins = (
        best.images.clone(),
        best.norms.clone(),
        best.success.clone(),
        best.margins.clone(),
    )
    images[chosen], norms[chosen] = found.images[better], found.norms[better]
    success[chosen], margins[chosen] = True, found.margins[better]
    return replace(best, images=images, norms=norms, success=success, margins=margins)
