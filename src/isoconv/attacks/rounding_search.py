"""An attack on certificates: search the floats at the very edge of a certified ball (Jin, Ohrimenko, Rubinstein, 2022).

A radius that is right over the real numbers can be wrong for the network that runs: its logits are rounded, and so was
the radius. Both errors matter only where the true margin all but vanishes, on the sphere, in the direction in which the
margin falls fastest. So climb there in float64, and then try floats around the point that was found: on the line to the
image, and its neighbours a few units in the last place away, all of them inside the ball by exact arithmetic.
"""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from isoconv.attacks.ball import choose, exactly_inside, excess, norm_bound
from isoconv.attacks.gradient import apgd_runs, climb, generator
from isoconv.attacks.search import AttackResult, Budget, Options, Search, check_counts, refuse_options, without_autograd

_BATCH_SIZES = (1, 2, 3, 7, 32)  # libraries sum in another order for another number of images
_TARGETS = 3
# An image leaves whose smallest margin is this many times what the margin varies by among neighbouring floats.
_OUT_OF_REACH = 1000
_EXACT_CHECKS = 16  # of points of one image in one round; what comes here is inside by 100 bits already


@without_autograd
def rounding_search(
    model: nn.Module,
    images: Tensor,
    predictions: Tensor,
    radii: Budget,
    *,
    steps: int = 100,
    rounds: int = 8,
    candidates: int = 64,
    **options: Unpack[Options],
) -> AttackResult:
    """Search for float64 points within each image's claimed radius that the float64 network does not predict as claimed.

    predictions : the classes that the radii are claimed for
    radii : one per image; a radius of 0 claims nothing, and is never refuted
    steps : of gradient ascent (`apgd`, in float64) to find the worst direction
    rounds, candidates : how many times, and how many floats at a time, to try around the worst point of each image

    `success` refutes a certificate: the exact norm, in integers, is at most the radius, and the prediction is another, or
    tied, in a batch of some size. A sound certificate is never refuted.
    """
    check_counts(steps=steps, rounds=rounds, candidates=candidates)
    refuse_options(options, "early_stop")  # one refutation is enough
    progress = options.pop("progress", None)  # a batch is finished after its walk, not when it has been climbed
    search = Search(model, images, predictions, radii, dtype=torch.float64, budget="radii", **options)
    seed = search.seed
    shape = images.shape[1:]
    offsets = [_offsets(candidates, shape, seed, number).to(search.device) for number in range(1, rounds)]
    done = len(images) - len(search.standing())
    for batch in search.batches(search.standing()):
        climb(search, batch, apgd_runs(search, "margin", 1, steps), seed)
        targeted = apgd_runs(search, "targeted-margin", _TARGETS, steps)
        climb(search, search.standing(batch), targeted, seed + 1)
        for index in search.standing(batch).split(max(1, search.batch_size // candidates)):
            _walk(search, index, candidates, offsets)
        done += len(batch)
        if progress is not None:
            progress(done, len(images))
    result = search.result()
    return replace(result, success=result.success & (result.epsilon > 0))


def _walk(search: Search, index: Tensor, candidates: int, offsets: list[Tensor]) -> None:
    """Try floats around the worst points, each round around the worst ones so far; last in batches of several sizes.

    Images that no rounding can reach leave: most of them, where the network is less steep than it might be.
    """
    centres, lowest = search.points[index], search.margins[index]
    for offset in (None, *offsets):
        if not len(index):
            return
        images, labels, radii = search.originals[index], search.labels[index], search.epsilon[index]
        points = _on_the_line(images, centres, radii, candidates) if offset is None else _neighbours(centres, offset)
        centre, true, radius = (tensor.repeat_interleave(candidates, dim=0) for tensor in (images, labels, radii))
        inside = excess(centre, points, radius) <= 0
        margins = search.judge_points(points, true).reshape(-1, candidates)
        variation = margins.amax(dim=1) - margins.amin(dim=1)
        margins = torch.where(inside.reshape(-1, candidates), margins, torch.inf)
        points = points.unflatten(0, (-1, candidates))
        _refute(search, index, points, margins)
        least, places = margins.amin(dim=1), torch.arange(candidates, device=index.device)
        last = torch.where(margins == least[:, None], places, -1).argmax(dim=1)  # of equal ones on a line the outermost
        lower, worst = least <= lowest, points[torch.arange(len(index), device=index.device), last]
        lowest, centres = choose(lower, least, lowest), choose(lower, worst, centres)
        # Refuted images leave, and those out of reach (NaN and infinities stay).
        left = (search.margins[index] > 0) & ~(lowest > _OUT_OF_REACH * variation)
        index, centres, lowest = index[left], centres[left], lowest[left]
    for size in _BATCH_SIZES if len(index) else ():
        pairs = zip(centres.split(size), search.labels[index].split(size), strict=True)
        margins = torch.cat([search.judge_points(*pair) for pair in pairs])
        _refute(search, index, centres[:, None], margins[:, None])


def _on_the_line(images: Tensor, points: Tensor, radii: Tensor, count: int) -> Tensor:
    """Return floats on the line from the image through the point, where it leaves the ball, one last place after the other.

    From one to the next about one pixel moves by one: they are 2⁻⁵³ apart below 1, and a share s of the way moves all
    pixels together by s·‖perturbation‖₁.
    """
    away = (points - images).flatten(1)
    away = torch.where(away.any(dim=1, keepdim=True), away, 1.0)  # any direction is as good
    scale = radii / torch.linalg.vector_norm(away, dim=1)
    step = (2.0**-53 / (away.abs().sum(dim=1) * scale)).clamp_min(2.0**-52)
    places = torch.arange(count, device=images.device, dtype=torch.float64) - count // 2
    scales = scale[:, None] * (1 + places * step[:, None])
    moved = images.flatten(1)[:, None] + scales[..., None] * away[:, None]
    return moved.clamp(0, 1).reshape(-1, *images.shape[1:])


def _neighbours(centres: Tensor, offsets: Tensor) -> Tensor:
    """Move each centre by each row of offsets, counted in units in the last place."""
    spacing = torch.nextafter(centres, torch.full_like(centres, torch.inf)) - centres
    return (centres[:, None] + offsets * spacing[:, None]).clamp(0, 1).flatten(0, 1)


def _offsets(count: int, shape: torch.Size, seed: int, number: int) -> Tensor:
    """Draw small whole numbers, row by row of another size (up to 1, 2, 4 or 8) and density (all pixels, half of them, …).

    The same for every image: they are different questions anyway.
    """
    stream = generator(seed, number)
    rows = torch.arange(count, device="cpu")
    largest, density = 2.0 ** (rows % 4), 0.5 ** (rows // 4 % 8)
    amount, chance = torch.rand(2, count, shape.numel(), generator=stream, dtype=torch.float64, device="cpu")
    amount = (amount * 2 - 1) * largest[:, None]
    moved = chance < density[:, None]
    moved[rows, torch.randint(shape.numel(), (count,), generator=stream, device="cpu")] = True  # at least one
    return (torch.where(amount > 0, amount.ceil(), amount.floor()) * moved).reshape(count, *shape)


def _refute(search: Search, index: Tensor, points: Tensor, margins: Tensor) -> None:
    """Keep for each image one of its points (images, candidates, …) with another prediction that is exactly inside."""
    for row in (margins <= 0).any(dim=1).nonzero()[:, 0].tolist():
        image, radius = search.originals[index[row]], float(search.epsilon[index[row]])
        for place in (margins[row] <= 0).nonzero()[:_EXACT_CHECKS, 0].tolist():
            point = points[row, place]
            if exactly_inside(image, point, radius):
                norm = norm_bound(image[None], point[None]).clamp_max(radius)
                search.keep(index[row, None], point[None], norm, margins[row, place, None])
                break
