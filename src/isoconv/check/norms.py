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
times that. An input whose pixels were copied up to c times first costs √c as well.

Note [Zeros]. Let n pixels lie on a line of zeros, seen by windows that reach from a to a + reach, where a is a multiple of
the stride s plus a constant. A circle of N positions, N a multiple of s, shows the same to each window that sees a pixel,
if no two of them begin at the same position of the circle and none sees a pixel that it does not see on the line. Windows
that see a pixel begin at −reach … n − 1, so both hold for N ≥ n + reach. If there are few zeros, smaller circles do: counted
from the first window, the pixels lie at before … before + n − 1, and the windows see 0 … last, so it is enough that N ≥ n,
N ≥ before + n and N ≥ last − before + 1. The norm on each such circle is a bound; none is the smallest for all kernels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import floor, gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from . import Budget
from .exact import LARGEST, Floats, Ints, circle, multiply, normalise, power_of_two, rescale, root_down, root_up

Pair = tuple[int, int]
Estimate = float | None  # None: proved. A number: not proved, and nothing below about this can be

_SHRINK = 1 - 2.0**-31  # room for the rounding of a witness; a squared claim has 2e-9 to spare, this is 5e-10
_DENSE_WORK = 1 << 30  # multiplications that writing an operator out as one matrix may cost
_DENSE_ENTRIES = 1 << 23
_DENSE_TAPS = 1 << 12
_CHUNK = 1 << 18  # entries of the matrices of frequencies that are handled together
_SIZES = 12  # of circles that are tried per axis
# In multiplications, measured: a number handled once on the way to a proof, a batch of matrices, a point of the circle.
_PER_ENTRY, _PER_BATCH, _PER_POINT = 3_000, 5_000_000, 150_000


# Where windows lie ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One axis of a padded input. Output j looks at the positions j·stride + t·dilation − before, t = 0 … taps − 1.

    What lies outside of the input is 0 (mode "zeros") or a pixel ("circular", "reflect", "replicate").
    """

    size: int
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    mode: str = "zeros"

    @property
    def reach(self) -> int:
        """The distance from the first tap to the last."""
        return (self.taps - 1) * self.dilation

    @property
    def padded(self) -> int:
        return self.size + self.before + self.after

    @property
    def outputs(self) -> int:
        """How many windows there are; less than 1 where the padded input is too small for one."""
        return (self.padded - self.reach - 1) // self.stride + 1

    @property
    def fold(self) -> int:
        """On a circle the outputs lie at the multiples of this: of the stride, if it divides the size."""
        return gcd(self.stride, self.size)

    @property
    def whole_circle(self) -> bool:
        """On a circle, whether every multiple of `fold` is an output, and each equally often."""
        return self.outputs % (self.size // self.fold) == 0

    def source(self) -> Ints:
        """Return the pixel that lies at each position of the padded input, −1 where there is none."""
        positions = np.arange(-self.before, self.size + self.after)
        if self.mode == "zeros":
            return np.where((positions >= 0) & (positions < self.size), positions, -1)
        if self.mode == "circular":
            return positions % self.size
        if self.mode == "reflect":
            return self.size - 1 - np.abs(self.size - 1 - np.abs(positions))
        return np.clip(positions, 0, self.size - 1)

    def copies(self) -> int:
        """Return how often a pixel occurs at most in the padded input."""
        source = self.source()
        return int(np.bincount(source[source >= 0], minlength=1).max())

    def overlap(self) -> int:
        """Return how many windows, at most, look at the same pixel, where what lies outside is no pixel."""
        counts = np.zeros(max(self.padded, self.before + self.size), np.int64)
        for t in range(self.taps):
            counts[self.seen(t)] += 1
        return int(counts[self.before : self.before + self.size].max())

    def seen(self, tap: int) -> slice:
        """Return the positions of the padded input that a tap of all windows sees."""
        return slice(tap * self.dilation, tap * self.dilation + (self.outputs - 1) * self.stride + 1, self.stride)

    def circles(self) -> list[int]:
        """Return sizes, in strides, of circles that a zero-padded axis may be taken for, by Note [Zeros].

        The first is what one gets by rounding pixels and taps up to whole strides: ⌈(n − 1)/s⌉ + ⌈(reach + 1)/s⌉.
        """
        last = (self.outputs - 1) * self.stride + self.reach
        most = self.size + self.reach
        least = min(most, max(self.size + self.before, last - self.before + 1, self.size))
        least, most = -(-least // self.stride), -(-(most + self.before + self.after) // self.stride) + 1
        usual = -(-(self.size - 1) // self.stride) - (-(self.reach + 1) // self.stride)
        sizes = [usual, *range(least, min(most + 1, least + _SIZES)), 1 << (most - 1).bit_length()]
        return list(dict.fromkeys(sizes))


@dataclass(frozen=True)
class Window:
    """The two axes of a window; a one-dimensional one has a first axis of size 1."""

    axes: tuple[Axis, Axis]

    @property
    def mode(self) -> str:
        return self.axes[0].mode

    @property
    def outputs(self) -> int:
        return prod(axis.outputs for axis in self.axes)

    @property
    def copies(self) -> int:
        """How often, at most, one output occurs (on a torus) or one pixel (of a reflected or replicated input)."""
        if self.mode == "circular":
            return prod(-(-axis.outputs // (axis.size // axis.fold)) for axis in self.axes)
        return prod(axis.copies() for axis in self.axes)

    def tori(self) -> Iterator[tuple[Pair, Pair, int]]:
        """Yield tori that the operator may be taken for: sizes in strides, the strides, and how often things occur."""
        axes = self.axes
        if self.mode == "circular":
            first, second = (axis.size // axis.fold for axis in axes)
            yield (first, second), (axes[0].fold, axes[1].fold), self.copies
        if self.mode in ("reflect", "replicate"):
            axes = (_unpadded(axes[0]), _unpadded(axes[1]))
        elif self.mode == "circular" and any(axis.before or axis.after for axis in axes):
            return
        choices = product(*(enumerate(axis.circles()) for axis in axes))
        for (_, a), (_, b) in sorted(choices, key=lambda pair: abs(pair[0][0] - pair[1][0])):
            yield (a, b), (axes[0].stride, axes[1].stride), self.copies


def _unpadded(axis: Axis) -> Axis:
    return Axis(axis.padded, axis.taps, axis.stride, axis.dilation)


# Norms ---------------------------------------------------------------------------------------------------------------


def matrix_norm(weight: Floats, claim: Fraction, budget: Budget, what: object) -> Estimate:
    """Prove ‖weight‖ ≤ claim for a matrix, or for each of a batch."""
    if not weight.any():
        return None
    batch = weight.reshape(-1, *weight.shape[-2:])
    budget.spend(len(batch) * _witness_work(batch.shape[1], batch.shape[2], 3), what)
    exponent, integers = _in_units(batch, claim, 1)
    rounding = root_up(Fraction(batch[0].size, 4))  # Frobenius norm of what was rounded, at most ½ per entry
    return _prove([(integers, None)], claim, exponent, rounding)


def convolution_norm(
    kernel: Floats, groups: int, window: Window, claim: Fraction, budget: Budget, what: object
) -> Estimate:
    """Prove that the convolution with kernel (outputs, inputs per group, taps, taps) has at most the claimed norm."""
    budget.spend(100 * sum(axis.taps * axis.outputs for axis in window.axes), what)
    sources = [(axis, axis.source()) for axis in window.axes]
    sees = [[bool((source[axis.seen(t)] >= 0).any()) for t in range(axis.taps)] for axis, source in sources]
    kernel = kernel * np.outer(np.array(sees[0]), np.array(sees[1]))  # a tap that sees no pixel does nothing
    if not kernel.any():
        return None
    parts = kernel.reshape(groups, -1, *kernel.shape[1:])
    if prod(kernel.shape[2:]) == 1 and window.mode == "zeros":
        # One matrix at every output, and no two outputs see one pixel: the norm is the matrix's.
        return matrix_norm(parts[:, :, :, 0, 0], claim, budget, what)
    exact_on_torus = window.mode == "circular" and all(axis.whole_circle for axis in window.axes)
    if not exact_on_torus and dense_is_affordable(parts, window):
        budget.spend(3 * _dense_work(parts, window) + _PER_BATCH, what)
        return dense_norm(parts, window, claim)
    estimates: list[float] = []
    for sizes, folds, copies in window.tori():
        work = _torus_work(parts, sizes, folds)
        if estimates and not budget.affords(4 * work):
            break
        budget.spend(work, what)
        estimate = torus_norm(parts, window, sizes, folds, root_down(claim**2 / copies))
        if estimate is None:
            return None
        estimates.append(estimate * copies**0.5)
    return min(estimates)


def torus_norm(parts: Floats, window: Window, sizes: Pair, folds: Pair, claim: Fraction) -> Estimate:
    """Prove it by Note [Torus], for kernels (groups, outputs, inputs, taps, taps) and a torus of sizes·folds positions.

    An entry of a matrix is a sum of T weights with two phases each, rounded after the first (T′ sums, T′ ≤ T) and after the
    second. The weights are off by ½ (T/2 together), each of two phases by √2·2⁻⁵³ (√2/2 each, as the weights add up to at
    most 2⁵²), each rounded sum by √2. Together that is less than T/2 + √2·(T′ + 3), for which 3/2 stands below.
    """
    _, outputs, inputs, *taps = parts.shape
    exponent, integers = _in_units(parts, claim, taps[0] * taps[1])
    entries = outputs * inputs * _residues(taps, folds)
    rounding = root_up(entries) * (Fraction(taps[0] * taps[1], 2) + Fraction(3, 2) * (max(taps) + 3))
    return _prove(_spectrum(integers, window, sizes, folds), claim, exponent, rounding)


def _residues(taps: Iterable[int], folds: Pair) -> int:
    """Return how many residues modulo the strides the taps have at most."""
    return prod(min(pair) for pair in zip(taps, folds, strict=True))


def _spectrum(parts: Ints, window: Window, sizes: Pair, folds: Pair) -> Iterator[tuple[Ints, Ints]]:
    """Yield real and imaginary parts of the matrices at all frequencies, in batches, one of each pair that is conjugate.

    First along the shorter axis, frequency by frequency, then along the other one.
    """
    groups, outputs, inputs, *_ = parts.shape
    outer, inner = (0, 1) if sizes[0] <= sizes[1] else (1, 0)
    by_tap = np.moveaxis(parts, (3 + outer, 3 + inner), (0, 1)).reshape(
        window.axes[outer].taps, -1
    )  # (taps of the outer axis, taps of the inner axis · all else)
    columns = inputs * _residues(parts.shape[3:], folds)
    step = max(1, _CHUNK // (groups * (outputs * columns + min(outputs, columns) ** 2)))
    for frequency in range(sizes[outer]):
        lines = []
        for here, cosines, sines in _phases(window.axes[outer], sizes[outer], folds[outer], np.array([frequency])):
            line = rescale(multiply(np.concatenate([cosines, sines]), by_tap[here]))
            lines.append(line.reshape(2, window.axes[inner].taps, -1))
        half_turned = np.stack(lines, axis=2)  # (real and imaginary, taps of the inner axis, outer residues, all else)
        for start in range(0, sizes[inner] // 2 + 1, step):
            chunk = np.arange(start, min(start + step, sizes[inner] // 2 + 1))
            symbols = []
            for here, cosines, sines in _phases(window.axes[inner], sizes[inner], folds[inner], chunk):
                turn = np.block([[cosines, -sines], [sines, cosines]])
                symbol = rescale(multiply(turn, half_turned[:, here].reshape(turn.shape[1], -1)))
                symbols.append(symbol.reshape(2, len(chunk), -1, groups, outputs, inputs))
            matrices = np.moveaxis(np.concatenate(symbols, axis=2), 2, -1)
            real, imaginary = matrices.reshape(2, len(chunk) * groups, outputs, -1)
            yield real, imaginary


def _phases(axis: Axis, size: int, fold: int, frequencies: Ints) -> Iterator[tuple[npt.NDArray[np.bool_], Ints, Ints]]:
    """Yield, for each residue of taps modulo the stride, which taps have it, and their phases (frequencies, taps)."""
    cosines, sines = circle(size)
    steps = np.arange(axis.taps) * axis.dilation
    for residue in np.unique(steps % fold):
        here = steps % fold == residue
        angles = frequencies[:, None] * (steps[here] // fold % size) % size
        yield here, cosines[angles], sines[angles]


def _witness_work(rows: int, columns: int, factor: int) -> int:
    small = min(rows, columns)
    return small * (rows + columns) * (factor * small + _PER_ENTRY) + _PER_BATCH


def _torus_work(parts: Floats, sizes: Pair, folds: Pair) -> int:
    groups, outputs, inputs, *taps = parts.shape
    frequencies = min(sizes) * (max(sizes) // 2 + 1)
    columns = inputs * _residues(taps, folds)
    per_matrix = _witness_work(outputs, columns, 28) - _PER_BATCH + (340_000 if outputs * columns > 1 else 40_000)
    batches = min(sizes) + frequencies * groups * outputs * columns // _CHUNK
    transforms = (min(sizes) * 20 + frequencies * 40) * parts.size
    return frequencies * groups * per_matrix + transforms + batches * _PER_BATCH + sum(sizes) * _PER_POINT


def _dense_work(parts: Floats, window: Window) -> int:
    groups, outputs, inputs, *_ = parts.shape
    rows, columns = outputs * window.outputs, inputs * window.axes[0].size * window.axes[1].size
    return int(groups * min(rows, columns) ** 2 * (rows + columns))


def dense_is_affordable(parts: Floats, window: Window) -> bool:
    entries = parts.shape[1] * window.outputs * parts.shape[2] * window.axes[0].size * window.axes[1].size
    few = prod(parts.shape[3:]) <= _DENSE_TAPS
    return few and _dense_work(parts, window) <= _DENSE_WORK and parts.shape[0] * entries <= _DENSE_ENTRIES


def dense_norm(parts: Floats, window: Window, claim: Fraction) -> Estimate:
    """Prove it for the operator as one matrix per group: what small ones, which no torus describes exactly, are checked as.

    What was rounded is a convolution with taps of at most ½, so it has row sums of at most inputs·T/2 and column sums of
    at most copies·outputs·T/2, and the norm is at most the root of their product.
    """
    _, outputs, inputs, *taps = parts.shape
    exponent, integers = _in_units(parts, claim, taps[0] * taps[1])
    rounding = Fraction(taps[0] * taps[1], 2) * root_up(outputs * inputs * window.copies)
    return _prove(((_write_out(part, window)[None], None) for part in integers), claim, exponent, rounding)


def _write_out(part: Ints, window: Window) -> Ints:
    outputs, inputs, *taps = part.shape
    first, second = window.axes
    matrix = np.zeros((outputs, first.outputs, second.outputs, inputs, first.size, second.size), np.int64)
    for t, u in np.ndindex(*taps):
        rows, columns = first.source()[first.seen(t)], second.source()[second.seen(u)]
        y, x = np.flatnonzero(rows >= 0), np.flatnonzero(columns >= 0)
        # Each output once, so that += adds to every one of them; taps that meet on one input pixel add up.
        matrix[:, y[:, None], x, :, rows[y][:, None], columns[x]] += part[None, None, :, :, t, u]
    return matrix.reshape(outputs * first.outputs * second.outputs, -1)


def _in_units(weight: Floats, claim: Fraction, taps: int) -> tuple[int, Ints]:
    """Return (e, integers): the weights as multiples of 2ᵉ, each rounded by at most ½. See Note [Units]."""
    _, of_weight = np.frexp(np.abs(weight).max())  # |weight| < 2^of_weight
    of_claim = claim.numerator.bit_length() - claim.denominator.bit_length() + 1  # claim < 2^of_claim
    exponent = max(of_claim, int(of_weight) + taps.bit_length()) - 52
    return exponent, np.rint(np.ldexp(weight, -exponent)).astype(np.int64)


def _prove(batches: Iterable[tuple[Ints, Ints | None]], claim: Fraction, exponent: int, rounding: Fraction) -> Estimate:
    """Prove that all matrices, in units of 2^exponent and known up to `rounding`, have at most the claimed norm."""
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
    """Prove ‖real + i·imaginary‖² ≤ limit for each matrix of a batch, by Note [Witness]; False if that failed."""
    witness = _guess(real, imaginary, limit)
    if witness is None:
        return False
    columns = np.concatenate([real, witness.real.astype(np.int64)], axis=-1)
    if imaginary is None:
        return _is_dominant(normalise(multiply(columns, np.swapaxes(columns, -1, -2))), None, limit)
    others = np.concatenate([imaginary, witness.imag.astype(np.int64)], axis=-1)
    both = np.concatenate([columns, others], axis=-1)
    real_gram = multiply(both, np.swapaxes(both, -1, -2))
    half = multiply(others, np.swapaxes(columns, -1, -2))  # the imaginary part is this minus its transpose
    imaginary_gram = [limb - np.swapaxes(limb, -1, -2) for limb in half]
    return _is_dominant(normalise(real_gram), normalise(imaginary_gram), limit)


def _is_dominant(real_gram: list[Ints], imaginary_gram: list[Ints] | None, limit: int) -> bool:
    """Whether limit·I minus the matrix with these limbs is diagonally dominant: |a + ib| ≤ |a| + |b|, limb by limb."""
    margin: Any = limit  # an array of Python integers, soon
    for k, limb in enumerate(real_gram):
        diagonal = np.diagonal(limb, axis1=-2, axis2=-1)
        used = diagonal - np.abs(diagonal) + np.abs(limb).sum(-1)
        if imaginary_gram is not None:
            used = used + np.abs(imaginary_gram[k]).sum(-1)
        margin = margin - used.astype(object) * (1 << 18 * k)
    return bool((margin >= 0).all())


def _guess(real: Ints, imaginary: Ints | None, limit: int) -> npt.NDArray[np.complex128] | Floats | None:
    """Return a witness found in floating point, whole numbers up to 2⁵³, or None."""
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
    """Return about the largest norm, for a message."""
    try:
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(_gram(real, imaginary)).max())))
    except np.linalg.LinAlgError:
        return float("nan")
