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

Note [Apart]. Where no two windows see the same pixel and no output occurs twice, the square of what comes out is the sum of
‖W·x_j‖² over the windows j, with W the kernel as one matrix (outputs, inputs·taps) and x_j what window j sees, 0 where it
sees nothing. The x_j share no pixel, so that is at most ‖W‖²·‖x‖². On a circle, windows begin at multiples of `fold` plus a
constant, and at different ones; on a line, at multiples of the stride.

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
from itertools import combinations_with_replacement, product
from math import floor, gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from . import Budget
from .exact import BITS, LARGEST, Floats, Ints, circle, multiply, normalise, power_of_two, rescale, root_down, root_up

Pair = tuple[int, int]
Estimate = float | None  # None: proved. A number: not proved, and nothing below about this can be

_SHRINK = 1 - 2.0**-31  # room for the rounding of a witness; a squared claim has 2e-9 to spare, this is 5e-10
_DENSE_WORK = 1 << 30  # multiplications that writing an operator out as one matrix may cost
_DENSE_ENTRIES = 1 << 23
_DENSE_TAPS = 1 << 12
_CHUNK = 1 << 18  # entries of the matrices of frequencies that are handled together
_SIZES = 12  # of circles that are tried per axis
_ROWS = 1 << 10  # of a block of a product
# In multiplications, measured: an entry of a witness, a matrix of one number, a larger one, a point of the circle, a batch.
_PER_ENTRY, _PER_NUMBER, _PER_MATRIX, _PER_POINT, _PER_BATCH = 3_000, 40_000, 340_000, 150_000, 5_000_000


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
    def apart(self) -> bool:
        """Whether no two windows see the same pixel, if no output occurs twice, see Note [Apart]."""
        return self.reach < (self.fold if self.mode == "circular" else self.stride)

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

    def sees(self) -> npt.NDArray[np.bool_]:
        """Return for each tap whether it sees a pixel in some window."""
        source = self.source()
        return np.array([(source[self.seen(t)] >= 0).any() for t in range(self.taps)])

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
    def inputs(self) -> int:
        return prod(axis.size for axis in self.axes)

    @property
    def copies(self) -> int:
        """How often, at most, one output occurs (on a torus) or one pixel (of a reflected or replicated input)."""
        if self.mode == "circular":
            return prod(-(-axis.outputs // (axis.size // axis.fold)) for axis in self.axes)
        return prod(axis.copies() for axis in self.axes)

    @property
    def overlap(self) -> int:
        """How many windows, at most, look at the same pixel, where what lies outside is no pixel."""
        return prod(axis.overlap() for axis in self.axes)

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


POINT = Window((Axis(1), Axis(1)))  # of one pixel: the operator is the kernel, as a matrix


def _unpadded(axis: Axis) -> Axis:
    return Axis(axis.padded, axis.taps, axis.stride, axis.dilation)


# Norms ---------------------------------------------------------------------------------------------------------------


def convolution_norm(kernel: Floats, window: Window, claim: Fraction, budget: Budget, what: object) -> Estimate:
    """Prove that the convolution with kernel (groups, outputs, inputs, taps, taps) has at most the claimed norm."""
    budget.spend(100 * sum(axis.taps * axis.outputs for axis in window.axes), what)
    first, second = window.axes
    kernel = kernel * np.outer(first.sees(), second.sees())  # a tap that sees no pixel does nothing
    if not kernel.any():
        return None
    groups, outputs, inputs, *taps = kernel.shape
    rows, columns = outputs * window.outputs, inputs * window.inputs
    exact_on_torus = window.mode == "circular" and all(axis.whole_circle for axis in window.axes)
    small = (
        prod(taps) <= _DENSE_TAPS
        and groups * rows * columns <= _DENSE_ENTRIES
        and groups * min(rows, columns) ** 2 * (rows + columns) <= _DENSE_WORK
    )
    small = small and not exact_on_torus
    apart = first.apart and second.apart and window.copies == 1
    if apart and (prod(taps) == 1 or not small):
        kernel, window = kernel.reshape(groups, outputs, -1, 1, 1), POINT
        rows, columns = kernel.shape[1:3]
    if window == POINT or small:
        budget.spend(groups * _witness_work(rows, columns, 3) + _PER_BATCH, what)
        return dense_norm(kernel, window, claim)
    tori = [(_torus_work(kernel, sizes, folds), sizes, folds, copies) for sizes, folds, copies in window.tori()]
    estimates: list[float] = []
    usual = tori[0][0]  # of the torus that a certifier takes: without it, nothing is refuted
    refutable = budget.affords(usual)
    for work, sizes, folds, copies in tori:
        if budget.affords(4 * work if estimates else work):
            budget.spend(work, what)
            estimate = torus_norm(kernel, window, sizes, folds, root_down(claim**2 / copies))
            if estimate is None:
                return None
            estimates.append(estimate * copies**0.5)
    if not refutable:
        budget.spend(usual, what)
    return min(estimates)


def dense_norm(kernel: Floats, window: Window, claim: Fraction) -> Estimate:
    """Prove it for the operator as one matrix per group: what is small, or what no torus describes exactly.

    What was rounded is a convolution with taps of at most ½, so it has row sums of at most inputs·T/2 and column sums of
    at most copies·outputs·T/2, and the norm is at most the root of their product.
    """
    groups, outputs, inputs, *taps = kernel.shape
    exponent, integers = _in_units(kernel, claim, prod(taps))
    rounding = Fraction(prod(taps), 2) * root_up(outputs * inputs * window.copies)
    step = max(1, _CHUNK * groups // (kernel[..., 0, 0].size * window.outputs * window.inputs))
    chunks = (integers[start : start + step] for start in range(0, groups, step))
    return _prove((_write_out(chunk, window)[None] for chunk in chunks), claim, exponent, rounding)


def _write_out(kernel: Ints, window: Window) -> Ints:
    """Return the matrix of each group."""
    groups, outputs, inputs, *taps = kernel.shape
    first, second = window.axes
    sources = first.source(), second.source()  # as long as the padding, whatever the image
    matrices = np.zeros((groups, outputs, first.outputs, second.outputs, inputs, first.size, second.size), np.int64)
    for t, u in np.ndindex(*taps):
        rows, columns = sources[0][first.seen(t)], sources[1][second.seen(u)]
        y, x = np.flatnonzero(rows >= 0), np.flatnonzero(columns >= 0)
        # Each output once, so that += adds to every one of them; taps that meet on one input pixel add up.
        matrices[:, :, y[:, None], x, :, rows[y][:, None], columns[x]] += kernel[None, None, ..., t, u]
    return matrices.reshape(groups, outputs * window.outputs, -1)


def torus_norm(kernel: Floats, window: Window, sizes: Pair, folds: Pair, claim: Fraction) -> Estimate:
    """Prove it by Note [Torus], on a torus of sizes·folds positions.

    An entry of a matrix is a sum of T weights with two phases each, rounded after the first (T′ sums, T′ ≤ T) and after the
    second. The weights are off by ½ (T/2 together), each of two phases by √2·2⁻⁵³ (√2/2 each, as the weights add up to at
    most 2⁵²), each rounded sum by √2. Together that is less than T/2 + √2·(T′ + 3), for which 3/2 stands below.
    """
    _, outputs, inputs, *taps = kernel.shape
    exponent, integers = _in_units(kernel, claim, prod(taps))
    entries = outputs * inputs * _residues(taps, folds)
    rounding = root_up(entries) * (Fraction(prod(taps), 2) + Fraction(3, 2) * (max(taps) + 3))
    return _prove(_spectrum(integers, window, sizes, folds), claim, exponent, rounding)


def _residues(taps: Iterable[int], folds: Pair) -> int:
    """Return how many residues modulo the strides the taps have at most."""
    return prod(min(pair) for pair in zip(taps, folds, strict=True))


def _spectrum(kernel: Ints, window: Window, sizes: Pair, folds: Pair) -> Iterator[Ints]:
    """Yield the matrices at all frequencies, in batches, one of each pair that is conjugate.

    First along the shorter axis, frequency by frequency, then along the other one.
    """
    groups, outputs, inputs, *taps = kernel.shape
    outer, inner = (0, 1) if sizes[0] <= sizes[1] else (1, 0)
    # (taps of the outer axis, taps of the inner axis · all else)
    by_tap = np.moveaxis(kernel, (3 + outer, 3 + inner), (0, 1)).reshape(taps[outer], -1)
    columns = inputs * _residues(taps, folds)
    step = max(1, _CHUNK // (groups * (outputs * columns + min(outputs, columns) ** 2)))
    for frequency in range(sizes[outer]):
        # Beyond half of the outer frequencies, those of the inner axis that are their own negatives, 0 and a half, have
        # had their conjugates.
        twice = 2 * frequency > sizes[outer]
        start, end = int(twice), sizes[inner] // 2 + 1 - (twice and sizes[inner] % 2 == 0)
        lines = []
        for here, cosines, sines in _phases(window.axes[outer], sizes[outer], folds[outer], np.array([frequency])):
            line = rescale(multiply(np.concatenate([cosines, sines]), by_tap[here]))
            lines.append(line.reshape(2, taps[inner], -1))
        half_turned = np.stack(lines, axis=2)  # (real and imaginary, taps of the inner axis, outer residues, all else)
        for first in range(start, end, step):
            chunk = np.arange(first, min(first + step, end))
            symbols = []
            for here, cosines, sines in _phases(window.axes[inner], sizes[inner], folds[inner], chunk):
                turn = np.block([[cosines, -sines], [sines, cosines]])
                symbol = rescale(multiply(turn, half_turned[:, here].reshape(turn.shape[1], -1)))
                symbols.append(symbol.reshape(2, len(chunk), -1, groups, outputs, inputs))
            matrices = np.moveaxis(np.concatenate(symbols, axis=2), 2, -1)
            yield matrices.reshape(2, len(chunk) * groups, outputs, -1)


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
    per_matrix = _PER_MATRIX if rows * columns > 1 else _PER_NUMBER
    return small * (rows + columns) * (factor * small + _PER_ENTRY) + per_matrix


def _torus_work(kernel: Floats, sizes: Pair, folds: Pair) -> int:
    groups, outputs, inputs, *taps = kernel.shape
    frequencies = (prod(sizes) + prod(2 - size % 2 for size in sizes)) // 2
    columns = inputs * _residues(taps, folds)
    batches = min(sizes) + frequencies * groups * outputs * columns // _CHUNK
    transforms = (min(sizes) * 20 + frequencies * 40) * kernel.size
    witnesses = frequencies * groups * _witness_work(outputs, columns, 22)
    return witnesses + transforms + batches * _PER_BATCH + sum(sizes) * _PER_POINT


# Witnesses -----------------------------------------------------------------------------------------------------------
# A batch of matrices is an array (parts, batch, rows, columns): one part if they are real, two if they are complex.


def _in_units(kernel: Floats, claim: Fraction, taps: int) -> tuple[int, Ints]:
    """Return (e, integers): the weights as multiples of 2ᵉ, each rounded by at most ½. See Note [Units]."""
    _, of_weight = np.frexp(np.abs(kernel).max())  # |weight| < 2^of_weight
    of_claim = claim.numerator.bit_length() - claim.denominator.bit_length() + 1  # claim < 2^of_claim
    exponent = max(of_claim, int(of_weight) + taps.bit_length()) - 52
    return exponent, np.rint(np.ldexp(kernel, -exponent)).astype(np.int64)


def _prove(batches: Iterable[Ints], claim: Fraction, exponent: int, rounding: Fraction) -> Estimate:
    """Prove that all matrices, in units of 2^exponent and known up to `rounding`, have at most the claimed norm."""
    most = claim / power_of_two(exponent) - rounding
    for matrices in batches:
        if matrices.shape[-2] > matrices.shape[-1]:
            matrices = np.swapaxes(matrices, -1, -2)
        if most <= 0 or not has_witness(matrices, floor(most**2)):
            with np.errstate(over="ignore", under="ignore"):
                return float(np.ldexp(_estimate(matrices), exponent))
    return None


def has_witness(matrices: Ints, limit: int) -> bool:
    """Prove ‖M‖² ≤ limit for each matrix of a batch, by Note [Witness]; return False if that failed."""
    witness = _guess(matrices, limit)
    return witness is not None and _is_dominant(np.concatenate([matrices, witness], axis=-1), limit)


def _is_dominant(matrices: Ints, limit: int) -> bool:
    """Whether limit·I − MMᴴ is diagonally dominant: |a + ib| ≤ |a| + |b|, limb by limb.

    MMᴴ is computed block by block, so that large matrices do not need many times their memory. A block above the diagonal
    stands for its mirror image too, whose entries have the same absolute values: its columns count for the rows there.
    """
    margin = np.full(matrices.shape[1:3], limit, object)
    blocks = [slice(start, start + _ROWS) for start in range(0, matrices.shape[2], _ROWS)]
    for here, there in combinations_with_replacement(blocks, 2):
        for k, limbs in enumerate(zip(*_gram_limbs(matrices, here, there), strict=True)):
            used = sum(map(np.abs, limbs[1:]), np.abs(limbs[0]))
            in_rows = used.sum(-1)
            if here is there:
                diagonal = np.diagonal(limbs[0], axis1=-2, axis2=-1)
                in_rows += diagonal - np.abs(diagonal)
            else:
                margin[:, there] -= used.sum(-2).astype(object) * (1 << BITS * k)
            margin[:, here] -= in_rows.astype(object) * (1 << BITS * k)
    return bool((margin >= 0).all())


def _gram_limbs(matrices: Ints, here: slice, there: slice) -> Iterator[list[Ints]]:
    """Yield the limbs of the real part of a block of MMᴴ, and of the imaginary part if there is one."""
    rows, others = (np.concatenate(matrices[:, :, block], axis=-1) for block in (here, there))
    yield normalise(multiply(rows) if here is there else multiply(rows, np.swapaxes(others, -1, -2)))
    if len(matrices) == 2:
        real, imaginary = np.swapaxes(matrices[:, :, there], -1, -2)
        half = multiply(matrices[1, :, here], real)
        transposed = [np.swapaxes(limb, -1, -2) for limb in half]  # the other half, of a block on the diagonal
        rest = transposed if here is there else multiply(matrices[0, :, here], imaginary)
        yield normalise([a - b for a, b in zip(half, rest, strict=True)])


def _guess(matrices: Ints, limit: int) -> Ints | None:
    """Return a witness found in floating point, whole numbers up to 2⁵³, or None."""
    if np.abs(matrices).max() > LARGEST:
        return None
    rest = _gram(matrices)
    np.negative(rest, out=rest)
    diagonal = np.arange(rest.shape[-1])
    rest[..., diagonal, diagonal] += float(limit) * _SHRINK
    try:
        factor = np.linalg.cholesky(rest)
    except np.linalg.LinAlgError:
        return None
    del rest
    parts = np.stack([factor.real, factor.imag][: len(matrices)])
    np.rint(parts, out=parts)
    return parts.astype(np.int64) if (np.abs(parts) <= LARGEST).all() else None


def _gram(matrices: Ints) -> npt.NDArray[Any]:
    matrix = matrices[0].astype(np.float64) if len(matrices) == 1 else matrices[0] + 1j * matrices[1]
    return matrix @ np.conj(np.swapaxes(matrix, -1, -2))


def _estimate(matrices: Ints) -> float:
    """Return about the largest norm, for a message."""
    try:
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(_gram(matrices)).max())))
    except np.linalg.LinAlgError:
        return float("nan")
