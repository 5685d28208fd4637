"""The L2 ball around an image within [0, 1], with norms that are proved and norms that are exact. float64.

Note [Norm of a difference]
Let D_i = y_i − x_i be exact, d_i its float64 value, m = max|d_i| and r_i = d_i/m. |d_i| ≥ |D_i|(1 − u) with u = 2⁻⁵³, for a
difference of floats never underflows; the quotient and the square round once each, and the sum S of the n squares n − 1
times, in any order. Hence S ≥ (1 − u)^(n+4)·ΣD_i²/m² − n·2⁻¹⁰²⁰, the last term for what underflows on the way. The largest
r_i is exactly 1, so that S ≥ 1 − n·u, and ΣD_i² ≤ m²·S·(1 + (n + 8)·2⁻⁵²) as long as n < 2⁴⁰. That factor is exact;
the product with it, the root (within one unit in the last place) and the two products that follow lose less than 2⁻⁵⁰ of the
norm between them, for which the last factor is there; one float further up covers a subnormal result.

Note [Clamping]
x_i lies in [0, 1]. If y_i > 1 then x_i ≤ 1 < y_i, so |1 − x_i| < |y_i − x_i|; likewise below 0; otherwise nothing moves. So
clamping brings every coordinate nearer to x_i or leaves it, and no norm of y − x grows.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

_ATTEMPTS = 50


def column(values: Tensor, images: Tensor) -> Tensor:
    """Return one value per image in a shape that multiplies images."""
    return values.reshape(-1, *[1] * (images.dim() - 1))


def choose(mask: Tensor, values: Tensor, others: Tensor) -> Tensor:
    """Return the rows of `values` where the mask (one per image) is true, and those of `others` elsewhere."""
    return torch.where(column(mask, others), values, others)


def norm_bound(images: Tensor, points: Tensor) -> Tensor:
    """Return an upper bound of each exact ‖point − image‖₂; zero where they are equal. See Note [Norm of a difference]."""
    difference = (points - images).flatten(1)
    largest = difference.abs().amax(dim=1)
    scaled = difference / torch.where(largest > 0, largest, 1.0)[:, None]
    total = scaled.square().sum(dim=1) * (1 + (difference.shape[1] + 8) * 2.0**-52)
    bound = largest * total.sqrt() * (1 + 2.0**-50)
    return torch.where(largest > 0, torch.nextafter(bound, torch.full_like(bound, torch.inf)), 0.0)


def into_ball(images: Tensor, candidates: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """Return points in [0, 1] whose exact distance from the images is at most epsilon (one per image), and bounds of it.

    A candidate that already is such a point stays as it is; others are drawn towards the image until they are.
    """
    wanted = torch.where(candidates.isnan(), images, candidates).clamp(0, 1) - images
    for attempt in range(_ATTEMPTS):
        points = (images + wanted).clamp(0, 1)  # see Note [Clamping]
        # Each coordinate is rounded towards the image's.
        points = torch.where((points - images).abs() > wanted.abs(), torch.nextafter(points, images), points)
        norms = norm_bound(images, points)
        outside = norms > epsilon
        if not bool(outside.any()):
            break
        shrinkage = torch.where(outside, epsilon / norms * (1 - 2.0 ** (attempt - _ATTEMPTS)), 1.0)
        wanted = wanted * column(shrinkage, images)
    # A budget below the spacing of the floats around the image may leave nothing but the image.
    return choose(outside, images, points), torch.where(outside, 0.0, norms)


def exactly_inside(image: Tensor, point: Tensor, radius: float) -> bool:
    """Return whether ‖point − image‖₂ ≤ radius holds, in exact integers."""
    ratios = [value.as_integer_ratio() for value in [*image.flatten().tolist(), *point.flatten().tolist(), radius]]
    # Every denominator is a power of two: bring all numbers to the largest.
    largest = max(denominator for _, denominator in ratios)
    *coordinates, limit = [numerator * (largest // denominator) for numerator, denominator in ratios]
    half = image.numel()
    return sum((q - p) ** 2 for p, q in zip(coordinates[:half], coordinates[half:], strict=True)) <= limit**2


def excess(images: Tensor, points: Tensor, radii: Tensor) -> Tensor:
    """Return ‖point − image‖² − radius² from about 100 bits of either.

    The sign is wrong only where those agree in nearly all of them.
    """
    high, low = _two_sum(points.flatten(1), -images.flatten(1))
    squares, errors = _two_square(torch.cat([high, radii[:, None]], dim=1))
    errors[:, :-1] += 2 * high * low
    total, rest = (torch.cat([values[:, :-1], -values[:, -1:]], dim=1) for values in (squares, errors))
    while total.shape[1] > 1:  # a tree of exact sums, whose errors are added up beside it
        halves, rests = (pad(values, (0, values.shape[1] % 2)).chunk(2, dim=1) for values in (total, rest))
        total, error = _two_sum(*halves)
        rest = rests[0] + rests[1] + error
    return (total + rest)[:, 0]


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum and its error, exactly (Knuth)."""
    total = a + b
    moved = total - a
    return total, (a - (total - moved)) + (b - moved)


def _two_square(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded square and its error, exactly unless it underflows (Dekker)."""
    split = a * (2.0**27 + 1)
    high = split - (split - a)
    low = a - high
    square = a * a
    return square, ((high * high - square) + 2 * high * low) + low * low
