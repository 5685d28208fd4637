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

_ATTEMPTS = 50


def column(values: Tensor, images: Tensor) -> Tensor:
    """One value per image, in a shape that multiplies images."""
    return values.reshape(-1, *[1] * (images.dim() - 1))


def norm_bound(images: Tensor, points: Tensor) -> Tensor:
    """An upper bound of each exact ‖point − image‖₂; zero where they are equal. See Note [Norm of a difference]."""
    difference = (points - images).flatten(1)
    largest = difference.abs().amax(dim=1)
    scaled = difference / torch.where(largest > 0, largest, 1.0)[:, None]
    total = scaled.square().sum(dim=1) * (1 + (difference.shape[1] + 8) * 2.0**-52)
    bound = largest * total.sqrt() * (1 + 2.0**-50)
    return torch.where(largest > 0, torch.nextafter(bound, torch.full_like(bound, torch.inf)), 0.0)


def into_ball(images: Tensor, candidates: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """Points in [0, 1] whose exact distance from the images is at most epsilon (one per image), and bounds of it.

    A candidate that already is such a point stays as it is; others are drawn towards the image until they are.
    """
    wanted = torch.where(candidates.isnan(), images, candidates).clamp(0, 1) - images
    points, norms, outside = images, torch.zeros_like(epsilon), torch.ones_like(epsilon, dtype=torch.bool)
    for attempt in range(_ATTEMPTS):
        points = _at_most(images, wanted)
        norms = norm_bound(images, points)
        outside = norms > epsilon
        if not bool(outside.any()):
            return points, norms
        shrinkage = torch.where(outside, epsilon / norms * (1 - 2.0 ** (attempt - _ATTEMPTS)), 1.0)
        wanted = wanted * column(shrinkage, images)
    # A budget below the spacing of the floats around the image may leave nothing but the image.
    return torch.where(column(outside, images), images, points), torch.where(outside, 0.0, norms)


def _at_most(images: Tensor, wanted: Tensor) -> Tensor:
    """image + wanted in [0, 1], with each coordinate rounded towards the image's. See Note [Clamping]."""
    points = (images + wanted).clamp(0, 1)
    too_far = (points - images).abs() > wanted.abs()
    return torch.where(too_far, torch.nextafter(points, images), points)


def exactly_inside(image: Tensor, point: Tensor, radius: float) -> bool:
    """Whether ‖point − image‖₂ ≤ radius holds, in exact integers."""
    ratios = [value.as_integer_ratio() for value in [*image.flatten().tolist(), *point.flatten().tolist(), radius]]
    shift = max(denominator.bit_length() for _, denominator in ratios)
    # Every denominator is a power of two: bring all numbers to the largest.
    whole = [numerator << (shift - denominator.bit_length()) for numerator, denominator in ratios]
    half = image.numel()
    return sum((q - p) ** 2 for p, q in zip(whole[:half], whole[half:-1], strict=True)) <= whole[-1] ** 2


def excess(images: Tensor, points: Tensor, radii: Tensor) -> Tensor:
    """‖point − image‖² − radius² from about 100 bits of either: the sign is wrong only where those agree in nearly all."""
    high, low = _two_sum(points.flatten(1), -images.flatten(1))
    square, error = _two_square(high)
    total, rest = square, error + 2 * high * low
    radius_square, radius_error = _two_square(radii)
    total = torch.cat([total, -radius_square[:, None]], dim=1)
    rest = torch.cat([rest, -radius_error[:, None]], dim=1)
    while total.shape[1] > 1:  # a tree of exact sums, whose errors are added up beside it
        half = total.shape[1] // 2
        odd_total, odd_rest = total[:, 2 * half :], rest[:, 2 * half :]
        total, error = _two_sum(total[:, :half], total[:, half : 2 * half])
        rest = rest[:, :half] + rest[:, half : 2 * half] + error
        total, rest = torch.cat([total, odd_total], dim=1), torch.cat([rest, odd_rest], dim=1)
    return (total + rest)[:, 0]


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Knuth: the rounded sum and its error, exactly."""
    total = a + b
    moved = total - a
    return total, (a - (total - moved)) + (b - moved)


def _two_square(a: Tensor) -> tuple[Tensor, Tensor]:
    """Dekker: the rounded square and its error, exactly unless it underflows."""
    split = a * (2.0**27 + 1)
    high = split - (split - a)
    low = a - high
    square = a * a
    return square, ((high * high - square) + 2 * high * low) + low * low
