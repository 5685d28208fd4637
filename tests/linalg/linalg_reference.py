"""What the tests of linalg compare with: dense matrices, exact rationals and SVDs in float64. Nothing of isoconv."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from torch import Tensor

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PRECISIONS = [torch.float32, torch.float64]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthonormal(m: int, n: int, seed: int = 0) -> Tensor:
    """Orthonormal columns (rows, if m < n), in float64."""
    tall = torch.linalg.qr(normal(max(m, n), min(m, n), seed=seed)).Q
    return tall if m >= n else tall.mT


def with_singular_values(m: int, n: int, values: Tensor | Sequence[float], seed: int = 0) -> Tensor:
    r = min(m, n)
    middle = torch.as_tensor(values, dtype=torch.float64)
    return (orthonormal(m, r, seed=2 * seed) * middle) @ orthonormal(r, n, seed=2 * seed + 1)


def conditioned(m: int, n: int, condition: float, kind: str = "geometric", seed: int = 0) -> Tensor:
    """A float64 matrix of norm 1 whose smallest singular value is 1/condition."""
    r = min(m, n)
    values = {
        "geometric": torch.logspace(0, -np.log10(condition), r, dtype=torch.float64),
        "one small": [1.0] * (r - 1) + [1 / condition],
        "one large": [1.0] + [1 / condition] * (r - 1),
    }
    return with_singular_values(m, n, values[kind], seed=seed)


def polar_by_svd(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix.detach().cpu().double(), full_matrices=False)
    return left @ right


def orthonormality_error(matrix: Tensor) -> float:
    """‖UᵀU − I‖₂ (UUᵀ, if wide), in float64; the largest of a batch."""
    u = matrix.detach().cpu().double()
    u = u if u.shape[-2] >= u.shape[-1] else u.mT
    return float(torch.linalg.matrix_norm(u.mT @ u - torch.eye(u.shape[-1], dtype=torch.float64), 2).max())


def spectral_norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach().cpu().double(), 2))


# Convolutions as dense matrices. The taps may be floats or Fractions: an array of objects stays exact.


def exact(weights: Tensor) -> np.ndarray:
    """The same numbers as Fractions."""
    flat = [Fraction(float(x)) for x in weights.detach().cpu().double().flatten()]
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(tuple(weights.shape))


def dense_convolution(
    kernel: np.ndarray, size: Sequence[int], stride: Sequence[int] | None = None, padding: Sequence[int] | None = None
) -> np.ndarray:
    """The matrix of the cross-correlation with `kernel` (c_out, c_in, K…): out[o] = Σ_t W_t image[s·o + t − p].

    Circular without `padding` (then the stride divides the size), else with that many zeros on both sides.
    """
    c_out, c_in, *taps = kernel.shape
    strides, pads = stride or [1] * len(taps), padding or [0] * len(taps)
    outputs = [n // s for n, s in zip(size, strides, strict=True)]
    if padding is not None:
        outputs = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, padding, taps, strides, strict=True)]
    matrix = np.zeros((*outputs, c_out, *size, c_in), dtype=kernel.dtype)
    for out, tap in product(product(*map(range, outputs)), product(*map(range, taps))):
        at = [s * o + t - p for s, o, t, p in zip(strides, out, tap, pads, strict=True)]
        if padding is None or all(0 <= x < n for x, n in zip(at, size, strict=True)):
            pixel = [x % n for x, n in zip(at, size, strict=True)]
            matrix[(*out, slice(None), *pixel, slice(None))] += kernel[(slice(None), slice(None), *tap)]
    return matrix.reshape(int(np.prod(outputs)) * c_out, int(np.prod(size)) * c_in)


def norm_at_most(matrix: np.ndarray, bound: float) -> bool:
    """Whether ‖A‖ ≤ bound, decided exactly: b²I − AAᵀ is positive semidefinite.

    `matrix` holds Fractions. Everything is multiplied out to integers; then Bareiss' elimination, whose pivots are the
    leading principal minors.
    """
    if bound == np.inf:
        return True
    rows, columns = matrix.shape
    if rows > columns:
        matrix = matrix.T
    b = Fraction(bound)
    denominator = max([b.denominator, *(x.denominator for x in matrix.flat)])  # all of them are powers of two
    scaled = [[int(x * denominator) for x in row] for row in matrix]
    rest = [[-sum(p * q for p, q in zip(x, y, strict=True)) for y in scaled] for x in scaled]
    for i in range(len(rest)):
        rest[i][i] += int(b * denominator) ** 2
    last = 1
    while rest:
        pivot, row = rest[0][0], rest[0]
        if pivot < 0 or (pivot == 0 and any(row)):
            return False
        below = rest[1:]
        if pivot == 0:
            rest = [line[1:] for line in below]
            continue
        rest = [[(pivot * line[j] - line[0] * row[j]) // last for j in range(1, len(row))] for line in below]
        last = pivot
    return True
