"""An attack on certificates: look among the floats at the very edge of a certified ball (Jin, Ohrimenko, Rubinstein, 2022).

A radius that is right over the real numbers can be wrong for the network that runs: its logits are rounded, and so was
the radius. Both errors matter only where the true margin all but vanishes, on the sphere, in the direction in which the
margin falls fastest. So climb there in float64, and then try floats around the point that was found: on the line to the
image, and its neighbours a few units in the last place away, all of them inside the ball by exact arithmetic.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from isoconv.attacks.apgd import apgd_runs
from isoconv.attacks.ascent import climb, generator
from isoconv.attacks.ball import column, exactly_inside, excess, norm_bound
from isoconv.attacks.checks import checked_count
from isoconv.attacks.findings import Findings, Progress
from isoconv.attacks.result import AttackResult

_BATCH_SIZES = (1, 2, 3, 7, 32)  # libraries sum in another order for another number of images
_TARGETS = 3
# An image leaves whose smallest margin is this many times what the margin varies by among neighbouring floats.
_OUT_OF_REACH = 1000
_EXACT_CHECKS = 16  # of points of one image in one round; what comes here is inside by 100 bits already


@torch.inference_mode(False)
@torch.no_grad()
def rounding_search(
    model: nn.Module,
    images: Tensor,
    predictions: Tensor,
    radii: Tensor | float,
    *,
    steps: int = 100,
    rounds: int = 8,
    candidates: int = 64,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """Look for float64 points within each image's claimed radius that the float64 network does not predict as claimed.

    predictions : the classes that the radii are claimed for
    radii : one per image; a radius of 0 claims nothing, and is never refuted
    steps : of gradient ascent (`apgd`, in float64) to find the worst direction
    rounds, candidates : how many times, and how many floats at a time, to try around the worst point of each image

    `success` refutes a certificate: the exact norm, in integers, is at most the radius, and the prediction is another, or
    tied, in a batch of some size. A sound certificate never loses to it.
    """
    for name, count in (("steps", steps), ("rounds", rounds), ("candidates", candidates)):
        checked_count(count, name)
    checked_count(seed, "seed", least=0)
    findings = Findings(
        model,
        images,
        predictions,
        radii,
        batch_size=batch_size,
        device=device,
        progress=progress,
        search_dtype=torch.float64,
        budget="radii",
    )
    runs = apgd_runs(findings, "margin", 1, steps, 1, seed)
    runs += apgd_runs(findings, "targeted-margin", _TARGETS, steps, 1, seed + 1)
    offsets = [_offsets(candidates, images.shape[1:], seed, number) for number in range(1, rounds)]
    offsets = [each.to(findings.network.device) for each in offsets]
    for batch in findings.batches(findings.standing()):
        climb(findings, batch, runs, early_stop=True, finished=lambda count: None)
        for index in findings.standing(batch).split(max(1, findings.batch_size // candidates)):
            _walk(findings, index, candidates, offsets)
        findings.finish(len(batch))
    found = findings.result()
    return replace(found, success=found.success & (found.epsilon > 0))


def _walk(findings: Findings, index: Tensor, candidates: int, offsets: list[Tensor]) -> None:
    """Floats around the worst points, from the worst ones found so far each time; last in batches of several sizes.

    What no rounding can reach is given up: most images, where the network is less steep than it might be.
    """
    images, labels, radii = findings.rows(index)
    centres = findings.points[index].to(images)
    lowest = findings.margins[index].to(radii)
    for offset in (None, *offsets):
        if not len(index):
            return
        points = _on_the_line(images, centres, radii, candidates) if offset is None else _neighbours(centres, offset)
        repeated = images.repeat_interleave(candidates, dim=0)
        inside = excess(repeated, points, radii.repeat_interleave(candidates)) <= 0
        margins = findings.network.margins(points, labels.repeat_interleave(candidates))
        everywhere = margins.reshape(len(images), candidates)
        variation = everywhere.amax(dim=1) - everywhere.amin(dim=1)
        margins = torch.where(inside, margins, torch.inf).reshape(len(images), candidates)
        points = points.reshape(len(images), candidates, *images.shape[1:])
        _refute(findings, index, images, radii, points, margins)
        best = margins.min(dim=1)
        lower = best.values <= lowest
        lowest = torch.where(lower, best.values, lowest)
        chosen = points[torch.arange(len(images), device=images.device), best.indices]
        centres = torch.where(column(lower, images), chosen, centres)
        # Those that were refuted leave, and those that cannot be (NaN and infinities stay).
        standing = (findings.margins[index] > 0).to(images.device)
        left = (standing & ~(lowest > _OUT_OF_REACH * variation)).nonzero()[:, 0]
        images, labels, radii, centres, lowest = (t[left] for t in (images, labels, radii, centres, lowest))
        index = index[left.to(index.device)]
    for size in _BATCH_SIZES:
        pairs = zip(centres.split(size), labels.split(size), strict=True)
        margins = torch.cat([findings.network.margins(*pair) for pair in pairs]) if len(index) else lowest
        _refute(findings, index, images, radii, centres[:, None], margins[:, None])


def _on_the_line(images: Tensor, points: Tensor, radii: Tensor, count: int) -> Tensor:
    """Floats on the line from the image through the point, where it leaves the ball, one last place after the other.

    From one to the next about one pixel moves by one: they are 2⁻⁵³ apart below 1, and a share s of the way moves all
    pixels together by s·‖perturbation‖₁.
    """
    away = points - images
    away = torch.where(column(away.flatten(1).any(dim=1), away), away, 1.0)  # any direction is as good
    lengths = torch.linalg.vector_norm(away.flatten(1), dim=1)
    scale = radii / lengths
    step = (2.0**-53 / (away.flatten(1).abs().sum(dim=1) * scale)).clamp_min(2.0**-52)
    places = torch.arange(count, device=images.device, dtype=torch.float64) - count // 2
    scales = scale[:, None] * (1 + places * step[:, None])
    wide = scales.reshape(*scales.shape, *[1] * (images.dim() - 1))
    return (images[:, None] + wide * away[:, None]).clamp(0, 1).flatten(0, 1)


def _neighbours(centres: Tensor, offsets: Tensor) -> Tensor:
    """Each centre moved by each row of offsets, counted in units in the last place."""
    spacing = torch.nextafter(centres, torch.full_like(centres, torch.inf)) - centres
    return (centres[:, None] + offsets * spacing[:, None]).clamp(0, 1).flatten(0, 1)


def _offsets(count: int, shape: torch.Size, seed: int, number: int) -> Tensor:
    """Small whole numbers, row by row of another size (up to 1, 2, 4 or 8) and density (all pixels, half of them, …).

    The same for every image: they are different questions anyway.
    """
    own = generator(seed, number)
    rows = torch.arange(count, device="cpu")
    widest = 2.0 ** (rows % 4)
    density = 0.5 ** (rows // 4 % 8)
    amount = torch.rand(count, shape.numel(), generator=own, dtype=torch.float64, device="cpu") * 2 - 1
    moved = torch.rand(count, shape.numel(), generator=own, dtype=torch.float64, device="cpu") < density[:, None]
    moved[rows, torch.randint(shape.numel(), (count,), generator=own, device="cpu")] = True  # at least one
    offsets = torch.where(amount > 0, amount.mul(widest[:, None]).ceil(), amount.mul(widest[:, None]).floor()) * moved
    return offsets.reshape(count, *shape)


def _refute(findings: Findings, index: Tensor, images: Tensor, radii: Tensor, points: Tensor, margins: Tensor) -> None:
    """Keep a point with another prediction (images, candidates, …) for each image that has one which is exactly inside."""
    for row in (margins <= 0).any(dim=1).nonzero()[:, 0].tolist():
        for place in (margins[row] <= 0).nonzero()[:_EXACT_CHECKS, 0].tolist():
            point, radius = points[row, place], float(radii[row])
            if exactly_inside(images[row], point, radius):
                norm = norm_bound(images[row, None], point[None]).clamp_max(radius)
                where = torch.tensor([row], device=index.device)
                findings.keep(index[where], point[None], norm, margins[row, place, None])
                break
