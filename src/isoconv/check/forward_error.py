"""How far computed logits can lie from the exact ones, whatever the order of summation: offset + slope·‖x‖."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .certificate import LARGEST_FINITE, SMALLEST_NORMAL, UNIT_ROUNDOFF, Certificate, Layer
from .exact import root_up, shown
from .fields import real
from .layers import Step
from .verdict import Invalid


@dataclass(frozen=True)
class Affine:
    """offset + slope·‖x‖."""

    offset: Fraction
    slope: Fraction

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(self.offset + other.offset, self.slope + other.slope)

    def times(self, factor: Fraction) -> "Affine":
        return Affine(self.offset * factor, self.slope * factor)

    def at(self, norm: Fraction) -> Fraction:
        return self.offset + self.slope * norm


def forward_error(steps: list[Step], arithmetic: str) -> tuple[Affine, list[tuple[Layer, Affine]]]:
    """The bound on the logits' error, and for each layer that rounds a bound on all numbers that occur in its sums.

    Two norms are followed through the layers: of the exact activations, and of the error of the computed ones. A layer
    x ↦ Wx + b of constant L takes the error E over as at most L·E. It adds its own: a sum of n products and a bias is
    off by at most γ_{n+1} times the sum of the absolute values, plus what underflows, so all outputs together by at most
    γ·(‖|W|‖·(‖x‖ + E) + ‖b‖) + √outputs·(n + 1)·(smallest normal number). That holds as long as nothing overflows.
    """
    unit, smallest = UNIT_ROUNDOFF[arithmetic], SMALLEST_NORMAL[arithmetic]
    size, error = Affine(Fraction(0), Fraction(1)), Affine(Fraction(0), Fraction(0))
    sums = []
    for step in steps:
        if step.part_of_next:
            continue
        constant, rounding = step.layer.claim, step.rounding
        if rounding is None:
            size, error = size.times(constant), error.times(constant)
            continue
        terms = rounding.products + 1
        if terms * unit >= 1:
            raise Invalid(f"{step.layer} adds up {terms} terms, for which {arithmetic} has no error bound.")
        gamma = terms * unit / (1 - terms * unit)
        amplification = constant if rounding.amplification is None else rounding.amplification
        absolute = (size + error).times(amplification) + Affine(rounding.bias, Fraction(0))
        underflow = Affine(root_up(rounding.outputs) * terms * smallest, Fraction(0))
        error = error.times(constant) + absolute.times(gamma) + underflow
        size = size.times(constant) + Affine(rounding.bias, Fraction(0))
        sums.append((step.layer, absolute.times(1 + gamma) + underflow))
    return error, sums


def require_error_terms(certificate: Certificate, steps: list[Step]) -> None:
    if certificate.arithmetic == "float32":
        for layer in (step.layer for step in steps if step.layer.kind == "Scale"):
            factor = real(layer.settings["factor"], f"the factor of {layer}")
            if float(np.float32(factor)) != factor:
                raise Invalid(f"{layer}: float32 cannot hold the factor {factor!r}.")
    error, sums = forward_error(steps, certificate.arithmetic)
    for name, claimed, needed in (
        ("error_offset", certificate.error_offset, error.offset),
        ("error_slope", certificate.error_slope, error.slope),
    ):
        if claimed < needed:
            raise Invalid(f"{name} is {shown(claimed)}, less than the {shown(needed)} that rounding may cause.")
    _require_no_overflow(certificate, sums)


def _require_no_overflow(certificate: Certificate, sums: list[tuple[Layer, Affine]]) -> None:
    """The network is run on every input within a radius of an image."""
    farthest = max((image.input_norm + image.radius for image in certificate.images if image.radius > 0), default=None)
    if farthest is None:
        return
    for layer, largest in sums:
        if largest.at(farthest) > LARGEST_FINITE[certificate.arithmetic]:
            raise Invalid(f"{layer}: sums may overflow in {certificate.arithmetic} within the certified radii.")
