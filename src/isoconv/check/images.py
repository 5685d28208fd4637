"""Certified radii: each image's margin against the constants and the rounding, in exact fractions."""

from fractions import Fraction
from math import prod

from .certificate import Certificate, Image
from .exact import root_up, shown
from .verdict import Invalid

ROOT_OF_TWO = root_up(2)
_A_LITTLE = 1 + Fraction(1, 2**40)  # for the rounding of a norm that is as large as it can be


def require_radii(certificate: Certificate) -> int:
    """Checks every image, and counts those with a radius above 0."""
    seen: set[int] = set()
    largest = max(abs(Fraction(limit)) for limit in certificate.input_range)
    largest_square = prod(certificate.input_shape) * largest**2 * _A_LITTLE
    for image in certificate.images:
        where = f"image {image.index}"
        if image.index in seen:
            raise Invalid(f"{where} occurs twice.")
        seen.add(image.index)
        if image.input_norm**2 > largest_square:
            raise Invalid(f"{where}: no input in the range has the norm {shown(image.input_norm)}.")
        _require_prediction(image, where)
        if image.radius > 0:
            _require_radius(image, where, certificate)
    return sum(image.radius > 0 for image in certificate.images)


def _require_prediction(image: Image, where: str) -> None:
    best = max(image.logits)
    if image.logits[image.prediction] < best:
        raise Invalid(f"{where}: class {image.logits.index(best)} has the largest logit, not class {image.prediction}.")
    if image.radius > 0 and image.logits.count(best) > 1:
        raise Invalid(f"{where}: the largest logit is tied, so there is no prediction.")


def _require_radius(image: Image, where: str, certificate: Certificate) -> None:
    """The computed margin, less what rounding may do to it at the centre and in the ball, exceeds constant·radius."""
    norms = 2 * image.input_norm + image.radius
    rounding = ROOT_OF_TWO * (2 * certificate.error_offset + certificate.error_slope * norms)
    best = image.logits[image.prediction] - rounding
    constants = certificate.pair_constants[image.prediction]
    for j, logit in enumerate(image.logits):
        if j != image.prediction and not best - logit > constants[j] * image.radius:
            raise Invalid(f"{where}: the margin to class {j} does not carry a radius of {shown(image.radius)}.")
