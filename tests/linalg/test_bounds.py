"""Bounds of norms against the matrices themselves: above them, by exact rational arithmetic; how close, in numbers."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.errors import IsoconvError
from isoconv.linalg import (
    bcop_kernel,
    bcop_kernel_1d,
    circular_singular_values,
    conv_norm_bound,
    fold_stride,
    matrix_norm_bound,
    random_projector,
)
from isoconv.linalg.bounds import _frobenius, largest_absolute_sums, row_distance_bounds
from linalg.linalg_reference import DEVICES, dense_convolution, exact, norm_at_most, normal, orthonormal, spectral_norm

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SCALES = [(torch.float64, s) for s in (1e-308, 1e-200, 1e-160, 1.001, 1e160, 1e306)]
SCALES += [(torch.float32, s) for s in (1e-44, 1e-30, 1e37)]
SCALES += [(torch.float16, 1e-7), (torch.float16, 1e4), (torch.bfloat16, 1e-39), (torch.bfloat16, 1e30)]
POWERS = [0, 0, 0, -1, -26, -53, -160, -500, -537, -1000, -1074, 400, 900]


def proved(matrix: Tensor, bound: float) -> bool:
    return norm_at_most(exact(matrix), bound)


def test_the_proof_itself_can_fail():
    """norm_at_most decides by a hair: ‖[3 4]‖ = 5, ‖H‖ = √2, which is rounded up."""
    row, hadamard = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    for matrix, norm in ((row, 5.0), (hadamard, math.sqrt(2.0))):
        assert proved(matrix, norm) and not proved(matrix, math.nextafter(norm, 0))
    assert not proved(torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 2.0]]), 2.0)
    assert proved(torch.zeros(2, 3), 0.0)
    for seed in range(20):
        a = normal(4, 3, seed=seed)
        norm = float(np.linalg.norm(a.numpy(), 2))
        assert proved(a, norm * (1 + 1e-14)) and not proved(a, norm * (1 - 1e-14))


# Matrices


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (3, 4), (6, 6), (8, 3)], ids=str)
def test_a_matrix_is_bounded_closely_at_any_scale(shape):
    for seed, dtype in enumerate(DTYPES):
        a = normal(*shape, seed=seed).to(dtype)
        bound = matrix_norm_bound(a)
        assert proved(a, bound)
        with mpmath.workdps(40):
            true = mpmath.svd_r(mpmath.matrix(a.double().tolist()), compute_uv=False)[0]
            # Gram iteration ends at most n^(1/2^15) above; what rounding adds is far below.
            assert bound <= true * (min(shape) ** 2.0**-15 + 1e-12)
    for dtype, scale in SCALES:
        a = (scale * normal(*shape, seed=7)).to(dtype)
        bound = matrix_norm_bound(a)
        assert proved(a, bound)
        if a.any():
            exponent = math.frexp(float(a.double().abs().max()))[1]
            unit = torch.tensor(np.ldexp(a.double().numpy(), -exponent))
            smallest = math.ldexp(1.0, -1073 - exponent)  # two subnormal steps
            assert math.ldexp(bound, -exponent) <= spectral_norm(unit) * (1 + 1e-4) + smallest


def adversaries() -> dict[str, Tensor]:
    eps, largest = np.finfo(float).eps, 1.7976931348623157e308
    full, ones = partial(torch.full, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    hadamard = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64)
    columns = torch.tensor([1.0, 1e-160, 1.0, 1e-160, 1e-300], dtype=torch.float64)
    found = {
        "below one": full((1, 1), 1 - eps / 2),
        "above one": full((1, 1), 1 + eps),
        "smallest": full((1, 1), math.ulp(0.0)),
        "largest": full((1, 1), largest),
        "all largest": full((3, 3), largest),
        "all smallest": full((3, 5), math.ulp(0.0)),
        "hadamard": hadamard,
        "nearly hadamard": hadamard + eps * normal(4, 4, seed=2).sign(),
        "nearly identity": torch.eye(5, dtype=torch.float64) * (1 + eps) - eps / 2 * torch.ones(5, 5),
        "ones less an ulp": full((5, 4), 1 - eps / 2),
        "parallel rows": torch.stack([normal(6, seed=3), normal(6, seed=3) * (1 + eps)]),
        "one entry": F.pad(full((1, 1), 1e-200), (2, 1, 1, 3)),
        "columns 1 and 1e-160": normal(4, 5, seed=6) * columns,
        "jordan": torch.diag(ones) + torch.diag(ones[1:], 1),
        "graded": normal(4, 4, seed=1) * 2.0 ** (-60 * torch.arange(4, dtype=torch.float64))[:, None],
    }
    # Entries whose squares, or whose products with the largest, fall just above and below what a float can hold.
    for power in (-511, -512, -536, -537, -538, -900, -901, -1021, -1022, -1023, -1074):
        small = full((3, 3), 2.0**power)
        found[f"all 2^{power}"] = small * (1 + eps)
        found[f"one and 2^{power}"] = small.clone().fill_diagonal_(1.0)
        found[f"off the diagonal 2^{power}"] = torch.eye(3, dtype=torch.float64) + small
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_adversaries(device):
    for name, a in adversaries().items():
        for matrix in (a, a.mT, -a, a.flip(0), a.contiguous().mT[:1], a[:, :1]):
            assert proved(matrix, matrix_norm_bound(matrix.to(device))), name


# How far above the norm for an orthonormal matrix of a precision; bfloat16's rounding leaves neither a multiple of I nor
# a gap to feed on, and what the Gram iteration promises.
FLAT = {torch.float64: 1e-10, torch.float32: 1e-6, torch.float16: 5e-3, torch.bfloat16: 256**2.0**-14 - 1}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(10, 10), (100, 300), (256, 256)], ids=str)
def test_orthonormal_and_random_matrices_are_bounded_tightly(shape, device):
    for (dtype, within), scale in product(FLAT.items(), (1.0, 1.001, 1e-8)):
        scaled = orthonormal(*shape).to(device, dtype).double() * scale
        true, bound = spectral_norm(scaled), matrix_norm_bound(scaled)
        assert true * (1 - 1e-13) <= bound <= true * (1 + within)
    random = normal(*shape, seed=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        true, bound = spectral_norm(random), matrix_norm_bound(torch.nn.Parameter(random.to(device)))
    assert true * (1 - 1e-13) <= bound <= true * (min(shape) ** 2.0**-15 + 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_subnormal_weights_where_the_processor_flushes_them(dtype):
    """A bound of zero would be no bound. It may refuse."""
    a = torch.full((3, 3), torch.finfo(dtype).tiny / 16, dtype=dtype)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        bound = matrix_norm_bound(a)
    except IsoconvError:
        bound = math.inf
    finally:
        torch.set_flush_denormal(False)
    assert proved(a, bound)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (30, 7)], ids=str)
def test_the_frobenius_norm_is_rounded_up_where_squares_underflow(shape):
    """All bounds are sums of these."""
    for entry in (1.0, 1e-155, 2.0**-530, 1e-162, 1e-250, math.ulp(0.0)):
        matrix = torch.full(shape, entry, dtype=torch.float64)
        assert Fraction(_frobenius(matrix)) ** 2 >= math.prod(shape) * Fraction(entry) ** 2


def with_dust(numbers: int, power: int) -> Tensor:
    """64 ones, then powers of two so small that no partial sum that has reached 1 notices one of them."""
    return torch.cat([torch.ones(64, dtype=torch.float64), torch.full((numbers,), 2.0**power, dtype=torch.float64)])


SQUARES, TERMS, LEVELS = with_dust(1 << 15, -27), with_dust(1 << 11, -53), with_dust(1 << 14, -56)
NEARLY = torch.tensor([[1.0, 2.0**-600], [1.0, 0.0]], dtype=torch.float64)
OF_SQUARES, OF_SUMS = 64 + Fraction(2) ** -39, (64 + Fraction(2) ** -42) ** 2
# What is bounded, and its exact square: the sum of squares of the first, the square of the sum of the others.
LOST: dict[str, tuple[Callable[[], Any], Fraction]] = {
    "frobenius": (lambda: _frobenius(SQUARES), OF_SQUARES),
    "row": (lambda: matrix_norm_bound(SQUARES[None]), OF_SQUARES),
    "column": (lambda: matrix_norm_bound(SQUARES[:, None]), OF_SQUARES),
    "row distance": (lambda: row_distance_bounds(torch.stack([0 * SQUARES, SQUARES]))[0, 1], OF_SQUARES),
    "one tap": (lambda: conv_norm_bound(SQUARES[None, :, None]), OF_SQUARES),
    "one pixel": (lambda: conv_norm_bound(SQUARES[None, :, None], 1, 1), OF_SQUARES),
    "difference": (lambda: conv_norm_bound(torch.stack([SQUARES, -SQUARES], 1)[None], 1, 2), 4 * OF_SQUARES),
    "taps": (lambda: conv_norm_bound(TERMS[None, None], 1, len(TERMS)), OF_SUMS),
    "row sum": (lambda: largest_absolute_sums(torch.stack([0 * LEVELS, -LEVELS]))[0], OF_SUMS),
    "column sum": (lambda: largest_absolute_sums(torch.stack([LEVELS, 0 * LEVELS], 1))[1], OF_SUMS),
    "rows that nearly agree": (lambda: row_distance_bounds(NEARLY)[0, 1], Fraction(2) ** -1200),
}


@pytest.mark.parametrize("name", LOST)
def test_small_terms_that_long_sums_lose_are_covered(name):
    bound, square = LOST[name]
    assert Fraction(float(bound())) ** 2 >= square


# Convolutions


def orthogonal_kernel(c_out: int, c_in: int, K: int, dimensions: int = 2) -> Tensor:
    options = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
    draw = [random_projector(c_in, c_in // 2, **options) for _ in range(2 * (K - 1))]
    P, Q = draw[: K - 1], draw[K - 1 :]
    H = orthonormal(c_out, c_in)
    return bcop_kernel(H, P, Q) if dimensions == 2 else bcop_kernel_1d(H, P)


def diagonal_frequency(taps: int) -> Tensor:
    """A wave from corner to corner: its frequencies are (1, −1) and (−1, 1), neither in the first quadrant."""
    along = torch.arange(taps, dtype=torch.float64)
    return torch.cos(2 * math.pi / taps * (along[:, None] - along))[None, None]


KERNELS = {
    "1x1": normal(2, 3, 1, seed=1),
    "1-D": normal(2, 2, 3, seed=2),
    "1-D tall": normal(3, 1, 5, seed=4),
    "1-D orthogonal": orthogonal_kernel(2, 2, 3, 1),
    # I, J with J a quarter turn, as a stride of 2 sees them: its symbol is largest between usual frequencies.
    "1-D quarter turns": torch.tensor([[[1.0, 0.0, 0.0, -1.0]], [[0.0, 1.0, 1.0, 0.0]]], dtype=torch.float64),
    "difference": torch.tensor([[[1.0, -1.0]]], dtype=torch.float64),
    "frequency 1/3": torch.cos(2 * math.pi / 3 * torch.arange(6, dtype=torch.float64))[None, None],
    "one entry": F.pad(torch.full((1, 1, 1), -0.7, dtype=torch.float64), (1, 2, 1, 0, 0, 1)),
    "1 and 1e-160": normal(2, 2, 3, seed=5) * torch.tensor([1.0, 1e-160, 1e-300], dtype=torch.float64),
    "2-D": normal(2, 1, 2, 3, seed=6),
    "2-D square": normal(1, 2, 3, 3, seed=7),
    "2-D orthogonal": orthogonal_kernel(2, 2, 2),
    "2-D diagonal frequency": diagonal_frequency(3),
    "2-D nearly one": torch.full((1, 1, 2, 2), math.nextafter(0.25, 0), dtype=torch.float64),
}


@pytest.mark.parametrize("name", KERNELS)
def test_convolutions_exactly(name):
    """Every stride, also where it does not divide the kernel; circular on odd sizes and on images smaller than the kernel;
    with zeros on every size from one pixel on, by any amount of padding from none to full."""
    kernel, taps, flat = KERNELS[name], exact(KERNELS[name]), KERNELS[name].dim() == 3
    for stride in [(1,), (2,), (3,)] if flat else [(1, 1), (2, 2), (3, 3), (2, 1), (1, 3)]:
        operators = []
        for blocks in product(*[(1, 2, 3, 5) if flat else (1, 2, 3)] * len(stride)):
            size = [n * s for n, s in zip(blocks, stride, strict=True)]
            operators.append((dense_convolution(taps, size, stride), conv_norm_bound(kernel, stride, size)))
        for size in product(*[range(1, 7) if flat else (1, 2, 3)] * len(stride)):
            bound, axes = conv_norm_bound(kernel, stride, size, "zeros"), list(zip(size, taps.shape[2:], strict=True))
            for padding in product(*(range(max(0, (k - n + 1) // 2), k) for n, k in axes)):
                operators.append((dense_convolution(taps, size, stride, padding), bound))
        free = conv_norm_bound(kernel, stride)
        for operator, bound in operators:
            if min(operator.shape) <= 16:
                assert norm_at_most(operator, free) and norm_at_most(operator, bound), stride


@pytest.mark.parametrize("size", [(4,), (5,), (4, 4), (4, 5)])
@pytest.mark.parametrize("channels", [(1, 1), (2, 1), (1, 2)])
def test_kernels_as_large_as_the_image_exactly(size, channels):
    """Made for that size, orthogonal there and not elsewhere, or of any norm."""
    for seed in range(3):
        kernel = normal(*channels, *size, seed=seed)
        symbol = torch.fft.fftn(kernel, dim=tuple(range(2, kernel.dim()))).movedim((0, 1), (-2, -1))
        left, _, right = torch.linalg.svd(symbol, full_matrices=False)
        isometry = torch.fft.ifftn((left @ right).movedim((-2, -1), (0, 1)), dim=tuple(range(2, kernel.dim()))).real
        for weights, closeness in (
            (kernel, 1e-3),
            (isometry, 1e-9),
            (isometry.float(), 1e-5),
            (3e-200 * isometry, 1e-9),
        ):
            bound = conv_norm_bound(weights, 1, size)
            assert norm_at_most(dense_convolution(exact(weights), size, [1] * len(size)), bound)
            assert bound <= float(circular_singular_values(weights.double(), size)[0]) * (1 + closeness)


def test_without_a_size_it_holds_at_the_worst_frequency():
    """On a large circle the norm is the maximum of the symbol over all frequencies: 2000 of them.

    [1 −1] on one pixel is zero: only the bound for that size says so, but for rounding.
    """
    for seed in range(5):
        kernel = normal(3, 3, 4, seed=20 + seed)
        supremum = float(circular_singular_values(kernel, 2000)[0])
        assert supremum <= conv_norm_bound(kernel) <= 2 * supremum
    assert 0 <= conv_norm_bound(KERNELS["difference"], input_size=1) <= 1e-14
    assert conv_norm_bound(KERNELS["difference"]) >= 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "within"), list(zip(DTYPES, (1e-10, 1e-6, 1e-2, 6e-2), strict=True)))
@pytest.mark.parametrize(
    ("c_out", "c_in", "K"), [(1, 1, 3), (3, 16, 3), (32, 32, 3), (16, 16, 5), (64, 64, 1), (3, 9, 2)]
)
def test_orthogonal_kernels_are_bounded_tightly_for_every_size(c_out, c_in, K, dtype, within, device):
    kernel = orthogonal_kernel(c_out, c_in, K).to(dtype)
    for scale in (1.0, 1.001, 1e-3):
        scaled = scale * kernel.double()
        true = max(float(circular_singular_values(scaled, n)[0]) for n in (5, 8))
        bounds = [conv_norm_bound(each.to(device)) for each in (scaled, scaled.transpose(0, 1))]
        assert true * (1 - 1e-13) <= min(bounds) <= max(bounds) <= true * (1 + within)
    for s in (2, 3):  # the same kernel, of an unshuffled image, written back as a strided one
        if c_in % s**2 == 0:
            strided = F.pixel_shuffle(kernel.double(), s).to(device)
            assert torch.equal(fold_stride(strided, (s, s)), kernel.double().to(device))
            assert conv_norm_bound(strided, s) == conv_norm_bound(kernel.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "stride", "size", "padding"),
    [
        *[
            (shape, 1, size, None)
            for shape, size in [((2, 2, 9), (4,)), ((16, 3, 3, 3), (8, 8)), ((4, 8, 5, 5), (3, 4))]
        ],
        *[((4, 3, 3, 3), 2, (8, 8), None), ((3, 4, 5), 3, (12,), None), ((4, 3, 3, 3), 1, (8, 8), 1)],
        *[((3, 3, 5, 5), 1, (6, 7), 2), ((4, 3, 3, 3), 2, (8, 8), 1), ((4, 2, 7), 2, (32,), 3)],
    ],
    ids=str,
)
def test_random_kernels_with_a_size(shape, stride, size, padding, device):
    """Circular within 1e-3; without a stride, in fact n^(1/2^15) and some rounding. With zeros the circle of n + k − 1
    pixels is not the image: 20 % above for large kernels, 0.3 % for a long image."""
    kernel = normal(*shape, seed=10)
    zeros = None if padding is None else [padding] * len(size)
    true = np.linalg.norm(dense_convolution(kernel.numpy(), size, [stride] * len(size), zeros), 2)
    bound = conv_norm_bound(kernel.to(device), stride, size, "circular" if padding is None else "zeros")
    within = min(shape[:2]) ** 2.0**-15 + 1e-9 if stride == 1 else 1 + 1e-3
    assert true * (1 - 1e-13) <= bound <= true * (within if padding is None else 1.25)
    assert bound <= conv_norm_bound(kernel.to(device), stride)


# Any numbers


def test_convolutions_of_any_scale_exactly():
    for (dtype, scale), shape, zeros in product(SCALES, [(2, 2, 3), (1, 2, 2, 2)], (False, True)):
        kernel, axes = (scale * normal(*shape, seed=12)).to(dtype), len(shape) - 2
        operator = dense_convolution(exact(kernel), [3] * axes, None, [1] * axes if zeros else None)
        assert norm_at_most(operator, conv_norm_bound(kernel))
        assert norm_at_most(operator, conv_norm_bound(kernel, 1, 3, "zeros" if zeros else "circular"))


def test_random_exponents_exactly():
    """Entries of all magnitudes in one matrix, 200 times; taps of all magnitudes in one kernel, 40 times."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(rng.integers(1, 5, 2))
        a = torch.tensor(np.ldexp(rng.standard_normal(shape), rng.choice(POWERS, size=shape)))
        assert proved(a, matrix_norm_bound(a))
    for _ in range(40):
        shape = (*rng.integers(1, 3, 2), *rng.integers(1, 4, rng.integers(1, 3)))
        kernel = torch.tensor(np.ldexp(rng.standard_normal(shape), rng.choice(POWERS, size=shape)))
        stride = [int(s) for s in rng.integers(1, 3, len(shape) - 2)]
        size = [2 * s for s in stride]
        operator = dense_convolution(exact(kernel), size, stride)
        assert norm_at_most(operator, conv_norm_bound(kernel, stride))
        assert norm_at_most(operator, conv_norm_bound(kernel, stride, size))


def test_zeros_and_nothing():
    for shape in [(3, 4), (0, 4), (3, 0), (0, 0)]:
        assert matrix_norm_bound(torch.zeros(shape)) == 0.0
    for shape, mode in product([(2, 3, 3), (2, 3, 3, 3), (0, 3, 3), (2, 0, 3, 3), (2, 2, 0)], ("circular", "zeros")):
        assert conv_norm_bound(torch.zeros(shape)) == conv_norm_bound(torch.zeros(shape), 2, 4, mode) == 0.0
