"""The certificate's images themselves, from a file: their norms, their range, and the network's logits for them."""

from collections.abc import Iterator
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .certificate import Certificate, Image
from .exact import root_up, shown, sum_of_squares
from .forward_error import forward_error
from .images import ROOT_OF_TWO
from .layers import Step
from .verdict import Invalid, Malformed

Floats = npt.NDArray[np.float64]

_NUMBERS = 1 << 24  # that the windows of a batch may hold at once


def read_images(path: Path, input_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or "it is not a complete .npy file"
        raise Malformed(f"{path} cannot be read: {reason}.") from error
    if not isinstance(images, np.ndarray) or images.dtype not in (np.dtype(np.float64), np.dtype(np.uint8)):
        raise Malformed(
            f"Expected {path} to hold one array of float64 or uint8. Got {getattr(images, 'dtype', 'several')}."
        )
    if images.shape[1:] != input_shape or images.ndim != len(input_shape) + 1:
        raise Malformed(f"Expected images of shape {list(input_shape)} in {path}. Got {list(images.shape)}.")
    return images


def require_logits(certificate: Certificate, steps: list[Step], images: npt.NDArray[Any]) -> int:
    """Checks the images of the certificate that the file holds, and counts them."""
    held = [image for image in certificate.images if image.index < len(images)]
    error, _ = forward_error(steps, "float64")  # of what is computed here
    for batch in _batches(held, steps, prod(certificate.input_shape)):
        x = np.stack([_pixels(images[image.index], certificate.arithmetic) for image in batch])
        norms = [_checked_norm(image, pixels, certificate) for image, pixels in zip(batch, x, strict=True)]
        y = x
        for step in steps:
            y = step.apply(y)
        for image, logits, norm in zip(batch, y, norms, strict=True):
            _require_same(image, logits, norm, certificate)
            _require_radius(image, logits, norm, certificate, error.at(norm))
    return len(held)


def _pixels(image: npt.NDArray[Any], arithmetic: str) -> Floats:
    """What the network is given: bytes divided by 255, and rounded to the arithmetic that it runs in."""
    pixels = image.astype(np.float64) / 255 if image.dtype == np.uint8 else np.array(image)
    return pixels.astype(np.float32).astype(np.float64) if arithmetic == "float32" else pixels


def _batches(images: list[Image], steps: list[Step], inputs: int) -> Iterator[list[Image]]:
    largest = max([inputs, *(_numbers(step) for step in steps)])
    size = max(1, _NUMBERS // largest)
    for start in range(0, len(images), size):
        yield images[start : start + size]


def _numbers(step: Step) -> int:
    """What one image needs while a step is computed: the products of its windows, roughly."""
    products = 1 if step.rounding is None or len(step.shape) == 1 else step.rounding.products
    return prod(step.shape[1:]) * max(step.shape[0], products)


def _checked_norm(image: Image, pixels: Floats, certificate: Certificate) -> Fraction:
    low, high = certificate.input_range
    if not ((pixels >= low) & (pixels <= high)).all():
        raise Invalid(f"image {image.index}: a pixel lies outside of the input range from {low!r} to {high!r}.")
    square = sum_of_squares(pixels)
    if image.input_norm**2 < square:
        raise Invalid(f"image {image.index}: its norm is larger than input_norm, {shown(image.input_norm)}.")
    return root_up(square)


def _require_radius(image: Image, logits: Floats, norm: Fraction, certificate: Certificate, error: Fraction) -> None:
    """The radius, proved from these logits: the file's may differ from the exact ones by more than they ought to."""
    in_the_ball = certificate.error_offset + certificate.error_slope * (norm + image.radius)
    margins = [Fraction(float(logits[image.prediction])) - Fraction(float(logit)) for logit in logits]
    constants = certificate.pair_constants[image.prediction]
    for j, margin in enumerate(margins):
        proved = margin - ROOT_OF_TWO * (error + in_the_ball)
        if image.radius > 0 and j != image.prediction and not proved > constants[j] * image.radius:
            raise Invalid(
                f"image {image.index}: the network's margin to class {j} does not carry a radius of "
                f"{shown(image.radius)}."
            )


def _require_same(image: Image, logits: Floats, norm: Fraction, certificate: Certificate) -> None:
    """The file's logits and these are each within the error bound of the exact ones."""
    allowed = 2 * (certificate.error_offset + certificate.error_slope * norm)
    for j, (claimed, found) in enumerate(zip(image.logits, logits, strict=True)):
        if not np.isfinite(found) or abs(claimed - Fraction(float(found))) > allowed:
            raise Invalid(
                f"image {image.index}: the network gives {float(found)!r} for logit {j}, not {shown(claimed)}."
            )
