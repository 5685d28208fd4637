"""The nearest adversarial example that can be found: Auto-PGD in balls that grow, and then shrink."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from isoconv.attacks.ball import column, into_ball, norm_bound
from isoconv.attacks.gradient import apgd
from isoconv.attacks.search import AttackResult, Progress, Search, check_counts

_FIRST = 64  # the first ball's radius is this fraction of the farthest point's distance
_HALVINGS = 20  # on the line between an image and an adversarial example


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
    """Find for every image the smallest perturbation (L2, within [0, 1]) that fools the network.

    The ball's radius is doubled until `apgd` succeeds in it, or it holds every image there is; then follow `rounds`
    bisections between there and `certified`, a radius per image (or one number) within which nothing can be found.
    Each point is drawn towards its image as long as it fools the network. `success` and `norms` are judged in float64, as
    in `apgd`. The norm is one that suffices; the smallest of all may lie below it.
    `progress(round, rounds)` is called after every bisection.
    """
    check_counts(steps=steps, seed=seed)
    check_counts(0, rounds=rounds)
    search = Search(model, images, labels, certified, search_dtype=torch.float64, budget="certified", device=device)
    images, low = search.originals, search.epsilon
    farthest = norm_bound(images, (images < 0.5).to(images))  # to the corner of [0, 1]ⁿ that is farthest away
    best = replace(search.result(), epsilon=farthest)

    def attack(budget: Tensor, where: Tensor, number: int) -> None:
        """Attack some of the images within these budgets, and keep what is nearer than what is known."""
        if not bool(where.any()):
            return
        rows = where.nonzero()[:, 0]
        part, part_labels = images[rows], search.labels[rows]
        found = apgd(model, part, part_labels, budget[rows], steps=steps, seed=seed + number, device=device)
        found = _draw_in(search, part, part_labels, found)
        better = found.success & (~best.success[rows] | (found.norms < best.norms[rows]))
        for name in ("images", "norms", "success", "margins"):
            getattr(best, name)[rows[better]] = getattr(found, name)[better]

    budget = torch.maximum(farthest / _FIRST, 2 * low).minimum(farthest)
    number = 0
    while bool((~best.success).any()):
        missing = ~best.success
        attack(budget, missing, number)
        number += 1
        low = torch.where(missing & ~best.success, budget, low)
        if not bool((~best.success & (budget < farthest)).any()):
            break
        budget = torch.where(best.success, budget, (2 * budget).minimum(farthest))
    for done in range(rounds):
        middle, before = (low + best.norms) / 2, best.norms.clone()
        worth_it = best.clean & best.success & (low < best.norms)
        attack(middle, worth_it, number + done)
        low = torch.where(worth_it & (best.norms == before), middle, low)
        if progress is not None:
            progress(done + 1, rounds)
    return best


def _draw_in(search: Search, images: Tensor, labels: Tensor, found: AttackResult) -> AttackResult:
    """Move adversarial examples along the line to their image as long as they fool the network: bisection in float64."""
    points, norms, margins = found.images, found.norms, found.margins
    low, high = torch.zeros_like(norms), torch.ones_like(norms)
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        candidates = images + column(share, images) * (found.images - images)
        closer, lengths = into_ball(images, candidates, found.epsilon)
        judged = search.network.margins(closer, labels).to(margins.device)
        fooled = found.success & (judged <= 0)
        nearer = fooled & (lengths < norms)
        points = torch.where(column(nearer, points), closer, points)
        norms, margins = torch.where(nearer, lengths, norms), torch.where(nearer, judged, margins)
        high, low = torch.where(fooled, share, high), torch.where(fooled, low, share)
    return replace(found, images=points, norms=norms, margins=margins)
