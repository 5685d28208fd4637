"""Proofs that the norm of a matrix or of a convolution is at most what is claimed.

Note [Witness]. Let M be a matrix of whole numbers with m rows and t a whole number. To prove ‖M‖² ≤ t, guess another
integer matrix R with m rows, and compute D = t·I − [M R][M R]ᵀ exactly. If D is diagonally dominant (in each row, the
diagonal is at least the sum of the other entries' absolute values), D is positive semidefinite, hence
t·I − MMᵀ = D + RRᵀ is, hence ‖M‖² ≤ t. A good guess is the Cholesky factor of t·I − MMᵀ, computed in floating point from a t
that is smaller by a relative 2⁻³¹. No property of the factorisation is needed: a bad guess only fails. The same holds
for complex matrices, with the conjugate transpose.

Note [Units]. Weights become whole numbers of a unit 2ᵉ chosen such that the claim, and the sum of the absolute values of a
kernel's taps, are less than about 2⁵². What the roundings can do to the operator's norm, in units, is added up and
subtracted from the claim.

Note [Torus]. On a torus of n·g positions per axis, a convolution of stride g is, at each of the n frequencies per axis, the
matrix whose columns belong to a channel and a residue r modulo g:
Ŵ(f)[o, (i, r)] = Σ W[o, i, t]·exp(2πi·f·q/n), over the taps t whose position is q·g + r.
The operator's norm is the largest of these matrices' norms. A shift of the input does not change it. A convolution of
which only some outputs are asked for has at most that norm, and one that gives outputs up to c times over at most √c
times that.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import floor, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from .exact import power_of_two, root_down, root_up
from .geometry import Window
from .products import LARGEST, Ints, normalised, product, rescaled
from .unit_circle import circle

Floats = npt.NDArray[np.float64]
Estimate = float | None  # None: proved. A number: not proved, and nothing below about this can be

_SHRINK = 1 - 2.0**-31  # room for the rounding of a witness; a squared claim has 2e-9 to spare, this is 5e-10
_DENSE_WORK = 1 << 30  # multiplications that writing an operator out as one matrix may cost
_DENSE_ENTRIES = 1 << 23
_CHUNK = 1 << 19  # entries of the matrices of frequencies that are handled together


def matrix_norm(weight: Floats, claim: Fraction) -> Estimate:
    """Proves ‖weight‖ ≤ claim for a matrix."""
    if not weight.any():
        return None
    exponent, integers = _in_units(weight, claim, 1)
    rounding = root_up(Fraction(weight.size, 4))  # Frobenius norm of what was rounded, at most ½ per entry
    return _proved([(integers[None], None)], claim, exponent, rounding)


def convolution_norm(kernel: Floats, groups: int, window: Window, claim: Fraction) -> Estimate:
    """Proves that the convolution with kernel (outputs, inputs per group, taps, taps) has at most the claimed norm."""
    if not kernel.any():
        return None
    parts = kernel.reshape(groups, -1, *kernel.shape[1:])
    exact_on_torus = window.circular and all(axis.whole_circle for axis in window.axes)
    if not exact_on_torus and dense_is_affordable(parts, window):
        return dense_norm(parts, window, claim)
    if window.circular:
        sizes = (window.axes[0].size // window.axes[0].fold, window.axes[1].size // window.axes[1].fold)
        folds = (window.axes[0].fold, window.axes[1].fold)
        estimate = torus_norm(parts, window, sizes, folds, root_down(claim**2 / window.copies))
        return None if estimate is None else estimate * window.copies**0.5
    return zero_padded_norm(parts, window, claim)


def zero_padded_norm(parts: Floats, window: Window, claim: Fraction) -> Estimate:
    """On a torus that is large enough for the padding: each such torus gives an upper bound, one of them may be enough."""
    first, second = (axis.circles() for axis in window.axes)
    folds = (window.axes[0].stride, window.axes[1].stride)
    estimates = []
    for number in range(max(len(first), len(second))):
        sizes = (first[min(number, len(first) - 1)], second[min(number, len(second) - 1)])
        estimate = torus_norm(parts, window, sizes, folds, claim)
        if estimate is None:
            return None
        estimates.append(estimate)
    return min(estimates)


def torus_norm(
    parts: Floats, window: Window, sizes: tuple[int, int], folds: tuple[int, int], claim: Fraction
) -> Estimate:
    """Note [Torus], for kernels (groups, outputs, inputs, taps, taps) and a torus of sizes·folds positions.

    Three roundings, each bounded in the Frobenius norm at any frequency, with T taps and N weights of at most 2⁵² in a
    group: the weights' (½ each: √T·√N/2 by Cauchy–Schwarz), the phases' (√2·2⁻⁵³ each: √T·√N·2⁵²·√2·2⁻⁵³), the result's (√2
    each).
    """
    _, outputs, inputs, *taps = parts.shape
    exponent, integers = _in_units(parts, claim, taps[0] * taps[1])
    weights = outputs * inputs * taps[0] * taps[1]
    rounding = Fraction(3, 2) * root_up(taps[0] * taps[1] * weights)
    rounding += root_up(2 * outputs * inputs * folds[0] * folds[1])
    return _proved(_spectrum(integers, window, sizes, folds), claim, exponent, rounding)


def _spectrum(
    parts: Ints, window: Window, sizes: tuple[int, int], folds: tuple[int, int]
) -> Iterator[tuple[Ints, Ints]]:
    """Real and imaginary parts of the matrices at all frequencies, in batches, one of each pair that is conjugate."""
    groups, outputs, inputs, *taps = parts.shape
    circumference = lcm(*sizes)
    cosines, sines = circle(circumference)
    steps = [np.arange(count) * axis.dilation for count, axis in zip(taps, window.axes, strict=True)]
    turns = [
        step // fold % size * (circumference // size) for step, fold, size in zip(steps, folds, sizes, strict=True)
    ]
    residues = (steps[0] % folds[0])[:, None] * folds[1] + (steps[1] % folds[1])
    by_tap = np.moveaxis(parts, (3, 4), (0, 1))  # (taps, taps, groups, outputs, inputs)
    entries = groups * (outputs * inputs * folds[0] * folds[1] + min(outputs, inputs * folds[0] * folds[1]) ** 2)
    frequencies = np.stack(np.meshgrid(np.arange(sizes[0]), np.arange(sizes[1] // 2 + 1), indexing="ij"), -1)
    frequencies = frequencies.reshape(-1, 2)
    step = max(1, _CHUNK // entries)
    for start in range(0, len(frequencies), step):
        chunk = frequencies[start : start + step]
        angles = chunk[:, 0, None, None] * turns[0][:, None] + chunk[:, 1, None, None] * turns[1]
        angles = angles % circumference
        matrices = np.zeros((2, len(chunk), groups, outputs, inputs, folds[0] * folds[1]), np.int64)
        for residue in np.unique(residues):
            here = residues == residue
            phases = np.concatenate([cosines[angles[:, here]], sines[angles[:, here]]])
            symbol = rescaled(product(phases, by_tap[here].reshape(phases.shape[1], -1)))
            matrices[..., residue] = symbol.reshape(matrices.shape[:-1])
        real, imaginary = matrices.reshape(2, len(chunk) * groups, outputs, -1)
        yield real, imaginary


def dense_is_affordable(parts: Floats, window: Window) -> bool:
    groups, outputs, inputs, *_ = parts.shape
    rows, columns = outputs * window.outputs, inputs * window.axes[0].size * window.axes[1].size
    work = groups * min(rows, columns) ** 2 * (rows + columns)
    return work <= _DENSE_WORK and groups * rows * columns <= _DENSE_ENTRIES


def dense_norm(parts: Floats, window: Window, claim: Fraction) -> Estimate:
    """The operator as one matrix per group: what small ones, which no torus describes exactly, are checked as.

    What was rounded is a convolution with taps of at most ½, so it has row sums of at most inputs·T/2 and column sums of
    at most copies·outputs·T/2, and the norm is at most the root of their product.
    """
    _, outputs, inputs, *taps = parts.shape
    exponent, integers = _in_units(parts, claim, taps[0] * taps[1])
    rounding = Fraction(taps[0] * taps[1], 2) * root_up(outputs * inputs * window.copies)
    return _proved(((_written_out(part, window)[None], None) for part in integers), claim, exponent, rounding)


def _written_out(part: Ints, window: Window) -> Ints:
    outputs, inputs, *taps = part.shape
    height, width = (axis.size for axis in window.axes)
    rows, columns = window.positions(0), window.positions(1)
    matrix = np.zeros((outputs, len(rows), len(columns), inputs, height, width), np.int64)
    for t in range(taps[0]):
        y = np.flatnonzero((rows[:, t] >= 0) & (rows[:, t] < height))
        for u in range(taps[1]):
            x = np.flatnonzero((columns[:, u] >= 0) & (columns[:, u] < width))
            # Each output once, so that += adds to every one of them; taps that meet on one input pixel add up.
            matrix[:, y[:, None], x, :, rows[y, t][:, None], columns[x, u]] += part[None, None, :, :, t, u]
    return matrix.reshape(outputs * len(rows) * len(columns), inputs * height * width)


def _in_units(weight: Floats, claim: Fraction, taps: int) -> tuple[int, Ints]:
    """(e, integers): the weights as multiples of 2ᵉ, each rounded by at most ½. See Note [Units]."""
    _, of_weight = np.frexp(np.abs(weight).max())  # |weight| < 2^of_weight
    of_claim = claim.numerator.bit_length() - claim.denominator.bit_length() + 1  # claim < 2^of_claim
    exponent = max(of_claim, int(of_weight) + taps.bit_length()) - 52
    return exponent, np.rint(np.ldexp(weight, -exponent)).astype(np.int64)


def _proved(
    batches: Iterable[tuple[Ints, Ints | None]], claim: Fraction, exponent: int, rounding: Fraction
) -> Estimate:
    """Whether all matrices, in units of 2^exponent and known up to `rounding`, have at most the claimed norm."""
    most = claim / power_of_two(exponent) - rounding
    for real, imaginary in batches:
        if real.shape[-2] > real.shape[-1]:
            real = np.swapaxes(real, -1, -2)
            imaginary = None if imaginary is None else np.swapaxes(imaginary, -1, -2)
        if most <= 0 or not has_witness(real, imaginary, floor(most**2)):
            with np.errstate(over="ignore", under="ignore"):
                return float(np.ldexp(_estimate(real, imaginary), exponent))
    return None


def has_witness(real: Ints, imaginary: Ints | None, limit: int) -> bool:
    """Proves ‖real + i·imaginary‖² ≤ limit for each matrix of a batch, by Note [Witness]; False if it could not."""
    witness = _witness(real, imaginary, limit)
    if witness is None:
        return False
    columns = np.concatenate([real, witness.real.astype(np.int64)], axis=-1)
    if imaginary is None:
        return _dominant(normalised(product(columns, np.swapaxes(columns, -1, -2))), None, limit)
    others = np.concatenate([imaginary, witness.imag.astype(np.int64)], axis=-1)
    both = np.concatenate([columns, others], axis=-1)
    real_gram = product(both, np.swapaxes(both, -1, -2))
    half = product(others, np.swapaxes(columns, -1, -2))  # the imaginary part is this minus its transpose
    imaginary_gram = [limb - np.swapaxes(limb, -1, -2) for limb in half]
    return _dominant(normalised(real_gram), normalised(imaginary_gram), limit)


def _dominant(real_gram: list[Ints], imaginary_gram: list[Ints] | None, limit: int) -> bool:
    """Whether limit·I minus the matrix with these limbs is diagonally dominant: |a + ib| ≤ |a| + |b|, limb by limb."""
    margin: Any = limit  # an array of Python integers, soon
    for k, limb in enumerate(real_gram):
        diagonal = np.diagonal(limb, axis1=-2, axis2=-1)
        used = diagonal - np.abs(diagonal) + np.abs(limb).sum(-1)
        if imaginary_gram is not None:
            used = used + np.abs(imaginary_gram[k]).sum(-1)
        margin = margin - used.astype(object) * (1 << 18 * k)
    return bool((margin >= 0).all())


def _witness(real: Ints, imaginary: Ints | None, limit: int) -> npt.NDArray[np.complex128] | Floats | None:
    """A guess, in floating point. Whole numbers up to 2⁵³, or None."""
    if max(np.abs(real).max(), 0 if imaginary is None else np.abs(imaginary).max()) > LARGEST:
        return None
    gram = _gram(real, imaginary)
    diagonal = np.arange(gram.shape[-1])
    rest = -gram
    rest[..., diagonal, diagonal] += float(limit) * _SHRINK
    try:
        factor = np.rint(np.linalg.cholesky(rest))
    except np.linalg.LinAlgError:
        return None
    fits = np.isfinite(factor).all() and max(np.abs(factor.real).max(), np.abs(factor.imag).max()) <= LARGEST
    return factor if fits else None


def _gram(real: Ints, imaginary: Ints | None) -> npt.NDArray[np.complex128] | Floats:
    matrix = real.astype(np.float64) if imaginary is None else real + 1j * imaginary
    return matrix @ np.conj(np.swapaxes(matrix, -1, -2))


def _estimate(real: Ints, imaginary: Ints | None) -> float:
    """For the message only."""
    try:
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(_gram(real, imaginary)).max())))
    except np.linalg.LinAlgError:
        return float("nan")
