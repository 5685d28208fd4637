"""What the checker of certificates rests on: its proofs of norms against dense singular values, and its exact arithmetic."""

import itertools
import math
import time
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from check.certificate_maker import spectral_norm
from isoconv.check import Budget, exact, norms

# -------------------------------------------------------------------------------------------------- norms, by numpy

# inputs per group, outputs per group, groups, sizes, taps, strides, dilations, pads ((before, after), …), circular
OPERATORS = [
    (3, 4, 1, (5, 5), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), True),
    (4, 2, 1, (6, 4), (4, 4), (2, 2), (1, 1), ((2, 0), (2, 0)), True),
    (2, 2, 1, (7, 5), (3, 2), (1, 1), (1, 1), ((1, 1), (1, 0)), True),
    (2, 3, 2, (6, 6), (3, 3), (2, 3), (1, 1), ((1, 1), (2, 1)), True),
    (1, 1, 3, (4, 4), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), True),
    (2, 3, 1, (1, 9), (1, 4), (1, 3), (1, 1), ((0, 0), (2, 1)), True),
    (2, 3, 1, (1, 10), (1, 4), (1, 4), (1, 1), ((0, 0), (2, 1)), True),  # stride and size share a factor of 2
    (2, 2, 1, (5, 7), (3, 3), (1, 1), (2, 3), ((2, 2), (3, 3)), True),
    (3, 2, 1, (2, 3), (5, 5), (1, 1), (1, 1), ((2, 2), (2, 2)), True),  # taps meet
    (2, 2, 1, (1, 1), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), True),
    (2, 3, 1, (3, 4), (2, 2), (1, 1), (1, 1), ((2, 2), (3, 2)), True),  # outputs occur twice and more
    (2, 2, 1, (4, 5), (2, 2), (1, 1), (1, 1), ((0, 0), (5, 6)), True),  # exactly three and some times around
    (2, 3, 1, (6, 5), (3, 3), (1, 1), (1, 1), ((0, 0), (1, 1)), True),  # fewer outputs than the circle has
    (3, 4, 1, (5, 5), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), False),
    (2, 4, 1, (7, 6), (4, 4), (2, 2), (1, 1), ((1, 1), (1, 1)), False),
    (4, 2, 2, (5, 4), (3, 2), (1, 2), (1, 1), ((1, 1), (0, 0)), False),
    (2, 2, 1, (6, 5), (3, 3), (1, 1), (2, 1), ((2, 2), (0, 0)), False),
    (3, 4, 1, (7, 5), (3, 5), (1, 1), (1, 1), ((1, 1), (2, 2)), False),
    (2, 2, 1, (3, 3), (1, 1), (1, 1), (1, 1), ((2, 2), (3, 1)), False),  # windows that see padding alone
    (2, 2, 1, (4, 4), (1, 1), (3, 2), (1, 1), ((0, 0), (0, 0)), False),
    (1, 2, 1, (1, 8), (1, 5), (1, 2), (1, 1), ((0, 0), (2, 2)), False),
    (2, 1, 1, (1, 1), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), False),
]  # fmt: skip


BUDGET = Budget(0, unlimited=True)


def window_of(sizes, taps, strides, dilations, pads, circular) -> norms.Window:
    mode = "circular" if circular else "zeros"
    axes = (
        norms.Axis(size, k, s, d, before, after, mode)
        for size, k, s, d, (before, after) in zip(sizes, taps, strides, dilations, pads, strict=True)
    )
    return norms.Window(tuple(axes))


def prove(kernel: np.ndarray, window: norms.Window, claim: float) -> norms.Estimate:
    return norms.convolution_norm(kernel, window, Fraction(claim), BUDGET, "it")


def written_out(kernel: np.ndarray, window: norms.Window) -> np.ndarray:
    """The operator as a matrix, from the definition: output j sees the input at j·stride + t·dilation − before."""
    groups, outputs, inputs, *taps = kernel.shape
    (a, b), counts = window.axes, [axis.outputs for axis in window.axes]
    matrix = np.zeros((groups, outputs, *counts, groups, inputs, a.size, b.size))
    for g, o, j, k, i, t, u in np.ndindex(groups, outputs, *counts, inputs, *taps):
        y, x = j * a.stride + t * a.dilation - a.before, k * b.stride + u * b.dilation - b.before
        if window.mode == "circular":
            y, x = y % a.size, x % b.size
        if 0 <= y < a.size and 0 <= x < b.size:
            matrix[g, o, j, k, g, i, y, x] += kernel[g, o, i, t, u]
    return matrix.reshape(groups * outputs * math.prod(counts), -1)


def operator(row: tuple) -> tuple[np.ndarray, norms.Window, float]:
    inputs, outputs, groups, sizes, taps, *rest = row
    kernel = np.random.default_rng(0).standard_normal((groups, outputs, inputs, *taps)).astype(np.float32)
    window = window_of(sizes, taps, *rest)
    return kernel.astype(np.float64), window, spectral_norm(written_out(kernel, window))


@pytest.mark.parametrize("row", OPERATORS, ids=str)
def test_norms_of_convolutions_against_dense_singular_values(row):
    kernel, window, true = operator(row)
    assert prove(kernel, window, true * (1 + 1e-9)) is None
    assert prove(kernel, window, true * (1 - 1e-9)) == pytest.approx(true, rel=1e-8)
    assert norms.dense_norm(kernel, window, Fraction(true * (1 + 1e-9))) is None
    assert norms.dense_norm(kernel, window, Fraction(true * (1 - 1e-9))) == pytest.approx(true, rel=1e-8)


@pytest.mark.parametrize("row", OPERATORS, ids=str)
def test_what_is_too_large_to_be_written_out_goes_by_a_torus(row, monkeypatch):
    """Never below the truth. On a circle the norm of one whole turn, times √copies, is accepted; else that on n + k − 1.

    A stride that does not divide the size visits the multiples of what the two have in common.
    """
    monkeypatch.setattr(norms, "_DENSE_WORK", 0)
    kernel, window, true = operator(row)
    assert prove(kernel, window, true * (1 - 1e-9)) is not None
    if window.mode == "circular":
        common = tuple(math.gcd(axis.stride, axis.size) for axis in window.axes)
        once_around = tuple((axis.reach, 0) for axis in window.axes)
        one_turn = window_of(row[3], row[4], common, row[6], once_around, circular=True)
        bound = spectral_norm(written_out(kernel, one_turn)) * math.sqrt(window.copies)
        assert bound >= true * (1 - 1e-12)
        assert prove(kernel, window, bound * (1 + 1e-9)) is None
        return
    folds = tuple(axis.stride for axis in window.axes)
    for sizes in itertools.product(*(axis.circles() for axis in window.axes)):
        assert norms.torus_norm(kernel, window, sizes, folds, Fraction(true * (1 - 1e-9))) is not None
    if folds == (1, 1) and len(kernel) == 1 and all(axis.dilation == 1 for axis in window.axes):
        sizes = [axis.size + axis.taps - 1 for axis in window.axes]
        symbols = np.fft.fft2(kernel[0], s=sizes).transpose(2, 3, 0, 1)
        assert prove(kernel, window, float(np.linalg.svd(symbols, compute_uv=False).max()) * (1 + 1e-9)) is None


def test_windows_that_do_not_overlap_are_one_matrix():
    """Not one for each of a thousand frequencies; also where the last window reaches beyond the image."""
    kernel = np.random.default_rng(0).standard_normal((1, 128, 24, 2, 3))
    true = spectral_norm(kernel.reshape(128, -1))
    for size, pads, circular in ((60, (0, 0), True), (60, (0, 0), False), (59, (0, 1), False)):
        window = window_of((size, size), (2, 3), (2, 3), (1, 1), (pads, pads), circular)
        for factor, proved in ((1 + 1e-9, True), (1 - 1e-9, False)):
            budget = Budget(0)
            budget.left = 1e9
            claim = Fraction(true * factor)
            assert (norms.convolution_norm(kernel, window, claim, budget, "it") is None) == proved


def test_zeros_beside_the_image_cost_once_and_not_for_each_tap():
    window = window_of((2, 2), (40, 40), (1 << 20,) * 2, (1, 1), ((1 << 20, 38),) * 2, False)
    kernel, start = np.random.default_rng(0).standard_normal((1, 1, 1, 40, 40)), time.process_time()
    true = spectral_norm(kernel[0, 0, 0, :2, :2].reshape(1, 4))  # the second window begins at the image
    assert prove(kernel, window, true * (1 + 1e-9)) is None
    assert prove(kernel, window, true * (1 - 1e-9)) == pytest.approx(true, rel=1e-8)
    assert time.process_time() - start < 10


def test_more_taps_cost_little_where_they_make_no_matrix_larger():
    """Without a stride, the matrix of a frequency has a row for each output and a column for each input."""
    spent = []
    for taps in (3, 7):
        kernel = np.random.default_rng(0).standard_normal((1, 8, 8, taps, taps))
        window, budget = window_of((16, 16), (taps, taps), (1, 1), (1, 1), ((taps - 1, 0),) * 2, True), Budget(0)
        assert norms.convolution_norm(kernel, window, Fraction(1000), budget, "it") is None
        spent.append(budget.limit - budget.left)
    assert spent[1] < 1.5 * spent[0]


def test_the_budget_grows_as_the_work_for_a_wider_network_does():
    assert Budget(0).left == Budget(Budget.SMALL).left
    assert Budget(4 * Budget.SMALL).left == 8 * Budget(Budget.SMALL).left
    assert Budget(0, unlimited=True).affords(10**100)


@pytest.mark.parametrize("kind", ["normal", "orthogonal", "rank one", "wide range"])
def test_norms_of_matrices_against_singular_values(kind):
    for shape in ((1, 1), (1, 7), (7, 1), (5, 9), (9, 5), (40, 40), (64, 300), (300, 64)):
        generator = np.random.default_rng(0)
        matrix = generator.standard_normal(shape)
        u, _, v = np.linalg.svd(matrix, full_matrices=False)
        wide = matrix * 10.0 ** generator.integers(-200, 3, shape)
        matrix = {"orthogonal": u @ v, "rank one": np.outer(matrix[:, 0], matrix[0]), "wide range": wide}.get(
            kind, matrix
        )
        true, kernel = spectral_norm(matrix), matrix[None, :, :, None, None]
        assert prove(kernel, norms.POINT, true * (1 + 1e-9)) is None
        assert prove(kernel, norms.POINT, true * (1 - 1e-9)) == pytest.approx(true, rel=1e-8)


def test_exact_norms_of_integer_matrices_are_not_passed_by_one():
    """[[3, 4], …] has the squared norm 25·k exactly: 25k is provable with some room, 25k − 1 never."""
    matrix = np.array([[[[3, 4, 0, 0], [0, 0, 3, 4]]]], np.int64) << 20
    square = 25 << 40
    assert norms.has_witness(matrix, square + (square >> 29))
    for limit in (square - 1, square // 2, 1, 0, -1):
        assert not norms.has_witness(matrix, limit)


@pytest.mark.parametrize("rows", [1, 2, 3, 1024])
@pytest.mark.parametrize("complex_", [False, True])
def test_no_witness_proves_a_false_claim(complex_, rows, monkeypatch):
    """Whatever the factorisation returns: nothing, noise, infinities, the factor of another matrix, an exact root."""
    monkeypatch.setattr(norms, "_ROWS", rows)  # of a block of the product
    generator = np.random.default_rng(0)
    parts = generator.integers(-(1 << 40), 1 << 40, (2 if complex_ else 1, 2, 5, 7))
    matrix = parts[0] + 1j * parts[1] if complex_ else parts[0].astype(float)
    largest = np.linalg.svd(matrix, compute_uv=False).max()
    limit = int(largest**2 * (1 - 1e-7))

    def clipped_root(rest: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(rest)
        return vectors * np.sqrt(np.maximum(values, 0))[..., None, :]

    guesses: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "zeros": lambda rest: np.zeros_like(rest),
        "noise": lambda rest: generator.standard_normal(rest.shape) * largest,
        "infinite": lambda rest: np.full_like(rest, np.inf),
        "nan": lambda rest: np.full_like(rest, np.nan),
        "huge": lambda rest: np.full_like(rest, 2.0**62),
        "of another": lambda rest: np.broadcast_to(largest * np.eye(5), rest.shape) + 0 * rest,
        "clipped root": clipped_root,
    }
    for guess in guesses.values():
        monkeypatch.setattr(np.linalg, "cholesky", guess)
        assert not norms.has_witness(parts, limit)
    assert norms.has_witness(parts, int(largest**2 * (1 + 1e-7)))  # by the clipped root: a witness is a witness


@pytest.mark.parametrize("rows", [1, 1024])
def test_rows_may_be_parallel_in_the_imaginary_part_alone(rows, monkeypatch):
    """(1, 1) and (i, i): each of squared norm 2, real part of their product 0, and yet the matrix has squared norm 4."""
    monkeypatch.setattr(norms, "_ROWS", rows)
    monkeypatch.setattr(np.linalg, "cholesky", np.zeros_like)
    ones, zeros = [1, 1], [0, 0]
    parts = np.array([[[ones, zeros]], [[zeros, ones]]])
    assert [limit for limit in range(6) if norms.has_witness(parts, limit)] == [4, 5]


@pytest.mark.parametrize("parts", [1, 2])
def test_dominance_is_that_of_the_whole_product_whatever_the_blocks(parts, monkeypatch):
    """Without a witness, the least limit is the largest row sum of the product; a multiple of powers of two is one limb."""
    monkeypatch.setattr(np.linalg, "cholesky", np.zeros_like)
    generator = np.random.default_rng(parts)
    matrices = generator.integers(-100, 101, (parts, 3, 7, 4))
    matrix = matrices[0] + 1j * matrices[-1] * (parts - 1)
    product = matrix @ np.conj(np.swapaxes(matrix, -1, -2))
    least = int((np.abs(product.real) + np.abs(product.imag)).sum(-1).max())
    for rows in (1, 2, 3, 5, 7):
        monkeypatch.setattr(norms, "_ROWS", rows)
        assert norms.has_witness(matrices, least) and not norms.has_witness(matrices, least - 1)


# --------------------------------------------------------------------------------------------------- exact arithmetic


def integers(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers up to ±2⁵³, many of them at the ends of digits and of the range."""
    numbers = generator.integers(-(2**53), 2**53 + 1, shape)
    extremes = [2**53, -(2**53), 2**53 - 1, 2**17, -(2**17), 2**17 - 1, 2**35, -(2**35) - 2**17, 0, 1, -1]
    return np.where(generator.random(shape) < 0.5, generator.choice(extremes, shape), numbers)


def value(limbs: list[np.ndarray]) -> np.ndarray:
    return sum(limb.astype(object) * (1 << 18 * k) for k, limb in enumerate(limbs))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 2), (5, 70, 6), (2, 1000, 2)], ids=str)
def test_products_are_exact(shape):
    """Of batches of two matrices."""
    m, terms, n = shape
    generator = np.random.default_rng(m)
    left, right = integers(generator, 2, m, terms), integers(generator, 2, terms, n)
    limbs = exact.multiply(left, right)
    expected = np.stack([a.astype(object) @ b.astype(object) for a, b in zip(left, right, strict=True)])
    assert (value(limbs) == expected).all()
    assert (value(exact.multiply(left)) == value(exact.multiply(left, np.swapaxes(left, -1, -2)))).all()
    balanced = exact.normalise(limbs)
    assert (value(balanced) == value(limbs)).all()
    assert all(np.abs(limb).max() <= 1 << 17 for limb in balanced[:-1])


def test_products_of_the_largest_numbers_over_more_terms_than_one_piece_has():
    """The largest digits, all odd and of one sign, over so many terms that one float64 could not hold their sum."""
    terms = (1 << 20) + 3
    largest = 2**17 - 1 + (2**17 - 1) * 2**18 + (2**17 - 1) * 2**36
    numbers = np.full((1, terms), largest, np.int64)
    assert value(exact.multiply(numbers, numbers.T))[0, 0] == terms * largest**2
    lowest = np.full((1, terms), -(2**53), np.int64)
    assert value(exact.multiply(lowest, numbers.T))[0, 0] == -terms * largest * 2**53


def test_digits_refuse_what_they_cannot_hold():
    for number in (2**53 + 1, -(2**53) - 1, -(2**63), 2**63 - 1):
        with pytest.raises(ArithmeticError, match="beyond 2"):
            exact.digits(np.array([[number]], np.int64))


def test_rescaling_rounds_by_less_than_one():
    generator = np.random.default_rng(1)
    left, right = integers(generator, 6, 9), integers(generator, 9, 6) // 16
    limbs = exact.multiply(left, right)
    error = exact.rescale(limbs).astype(object) * 2**53 - value(limbs)
    assert np.abs(error).max() < 2**53


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 16, 34, 97])
def test_the_unit_circle_is_right_to_the_last_bit(parts):
    cosines, sines = exact.circle(parts)
    with mpmath.workdps(60):
        for j in range(parts):
            angle = 2 * mpmath.pi * j / parts
            assert abs(int(cosines[j]) - mpmath.cos(angle) * 2**53) <= mpmath.mpf("0.5000001")
            assert abs(int(sines[j]) - mpmath.sin(angle) * 2**53) <= mpmath.mpf("0.5000001")


@pytest.mark.parametrize(
    "square", [0, 1, 2, 4, Fraction(1, 4), Fraction(2, 3), Fraction(10**40, 7), Fraction(1, 3**500)]
)
def test_roots_lie_on_their_side_and_close(square):
    above, below = exact.root_up(square), exact.root_down(square)
    assert below**2 <= square <= above**2
    assert above - below <= below * Fraction(1, 2**90)
    if square in (0, 1, 4, Fraction(1, 4)):
        assert above == below


def test_floats_become_integers_exactly():
    generator = np.random.default_rng(0)
    values = generator.standard_normal((6, 5)) * 10.0 ** generator.integers(-320, 300, (6, 5))
    values[2, 3] = 0
    values[1] = [5e-324, -5e-324, 1e-310, 1.7e308, 0]
    whole, exponent = exact.as_integers(values)
    fractions = [[Fraction(v) for v in row] for row in values.tolist()]
    assert [[w * Fraction(2) ** exponent for w in row] for row in whole.tolist()] == fractions
    assert exact.sum_of_squares(values) == sum(v**2 for row in fractions for v in row)
    assert exact.largest_row_sum(values) == max(sum(abs(v) for v in row) for row in fractions)
    assert exact.largest_row_sum(np.zeros((2, 2))) == 0
    assert exact.largest_row_sum(np.array([[0.0, 2.0**70], [3.0, -(2.0**80)]])) == 2**80 + 3


def test_bytes_over_255_do_not_depend_on_the_way_to_float32():
    """float32 pixels are what torch makes of bytes directly, although the checker rounds twice."""
    pixels = np.arange(256, dtype=np.uint8)
    assert ((pixels / 255).astype(np.float32) == pixels.astype(np.float32) / np.float32(255)).all()
