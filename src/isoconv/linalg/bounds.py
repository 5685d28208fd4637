"""Upper bounds of operator norms that are proved, rounding included. float64, outwards; never an estimate.

Note [Four bounds]
Each function takes the smallest of several bounds, all of them sound:

1. Near-orthogonal. For any s: ‖A‖² = ‖AAᵀ‖ ≤ s + ‖AAᵀ − sI‖_F. A convolution's AAᵀ is again a convolution, its taps
   C_τ = Σ_t W_t W_{t+τ}ᵀ, and a convolution's norm is at most the sum of its taps' norms:
   ‖conv‖² ≤ s + Σ_τ ‖C_τ − s·δ_τ·I‖_F. It holds for every image size, with circular or zero padding (a zero-padded
   convolution is a restriction of the convolution on an infinite grid). We take the mean diagonal entry for s, so that a
   multiple of an orthogonal operator is bounded as tightly as an orthogonal one.
2. Gram iteration. λ_max(G) ≤ ‖G^(2^t)‖_F^(1/2^t), at most n^(1/2^(t+1)) above it. The error of each squaring is bounded by
   Note [Error of a squaring].
3. Reshaping. ‖conv‖ ≤ √taps·‖reshaped kernel‖: every pixel occurs in as many patches as there are taps.
4. Per frequency. A circular convolution on an image of known size is unitarily equivalent to one matrix per
   frequency; bound 2 on each. With zero padding the image of size n embeds in a circular one of size n + k − 1. A kernel
   as large as its circular image, and not small, is made for that size: it gets this bound alone, and
   on each frequency also bound 1, λ_max(G) ≤ s + ‖G − sI‖_F. On an infinite grid its norm is larger, and costly to bound.

Note [Error of a squaring]
Let M̂ approximate a Hermitian M with ‖M̂ − M‖_F ≤ e. Then ‖M̂² − M²‖_F ≤ e(2‖M‖₂ + e), and the computed square is within
√2·γ_{2n}‖M̂‖_F² of M̂², real and imaginary parts being sums of 2n products, each at most the product of two row norms.
Between squarings the matrix is scaled by a power of two, which is exact; what might underflow is covered by `_TINY`.
A matrix product is taken to be n conventional dot products in float64, summed in any order: no Strassen, and no emulation
of float64 by a GPU's library (cuBLAS offers that, switched off by default).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.linalg.rounding import add_up, gamma, mul_up, root_up, sqrt_up, up
from isoconv.linalg.spectrum import fold_kernel

_LARGE = 4  # taps along an axis from which on a kernel as large as the image is taken to be made for that size
_SQUARINGS = 13  # the bound is then at most n^(1/2^15) above the truth: 2e-4 for n = 512
# More than all that can underflow in a product of matrices scaled to 1, or in the square root of a sum of squares: entries
# below 2⁻⁵¹¹ may have vanishing squares, and N of them a norm of √N·2⁻⁵¹¹.
_TINY = 2.0**-480


def matrix_norm_bound(matrix: Tensor) -> float:
    """Return an upper bound of the spectral norm of a real matrix (m, n), of any floating dtype (read exactly)."""
    require(matrix.dim() == 2, "a matrix (m, n)", f"shape {tuple(matrix.shape)}")
    scaled, exponent = _scaled(matrix)
    if exponent is None:
        return 0.0
    small = scaled if scaled.shape[0] <= scaled.shape[1] else scaled.mT
    gram = small @ small.mT
    error = add_up(mul_up(gamma(small.shape[1]), _frobenius(scaled), _frobenius(scaled)), _TINY)
    near = _near_multiple_of_identity([gram], error)
    best = min(near, _largest_eigenvalue(gram[None], None, error, near))
    return root_up(best, 2 * exponent, 1)


def conv_norm_bound(
    kernel: Tensor,
    stride: int | Sequence[int] = 1,
    input_size: int | Sequence[int] | None = None,
    padding_mode: str = "circular",
) -> float:
    """Return an upper bound of the L2 norm of a convolution with `kernel` (c_out, c_in, K) or (c_out, c_in, K, K').

    Without `input_size` it holds for every image size and for circular and zero padding alike. With the spatial size of
    the input it can be tighter, and then holds for that size and `padding_mode` ("circular" or "zeros") only.
    """
    require(padding_mode in ("circular", "zeros"), "padding_mode 'circular' or 'zeros'", repr(padding_mode))
    require(kernel.dim() in (3, 4), "a kernel (c_out, c_in, K) or (c_out, c_in, K, K')", tuple(kernel.shape))
    scaled, exponent = _scaled(kernel)
    if exponent is None:
        return 0.0
    strides = _per_axis("stride", stride, kernel.dim() - 2)
    size = None if input_size is None else _per_axis("input size", input_size, kernel.dim() - 2)
    folded = fold_stride(scaled, strides)
    taps = folded.shape[2:]
    if size is not None and padding_mode == "circular" and all(map(_covers, taps, size, strides)):
        return root_up(_per_frequency(folded, taps, math.inf, near=True), 2 * exponent, 1)
    bounds = [_orthogonal_convolution(folded), _reshaped(folded)]
    if size is not None:
        if padding_mode == "zeros":
            # n pixels touch at most ⌈(n − 1)/s⌉ + 1 blocks of s, wherever the padding makes the first one begin.
            grid = [(n + s - 2) // s + k for n, s, k in zip(size, strides, folded.shape[2:], strict=True)]
        else:
            divides = not any(n % s for n, s in zip(size, strides, strict=True))
            require(divides, f"an input size that the stride {strides} divides", size)
            grid = [n // s for n, s in zip(size, strides, strict=True)]
        grid = grid if folded[0, 0].numel() > 1 else [1] * len(grid)  # one tap is the same matrix at every frequency
        bounds.append(_per_frequency(folded, grid, min(bounds)))
    return root_up(min(bounds), 2 * exponent, 1)


def largest_absolute_sums(weight: Tensor) -> tuple[float, float]:
    """Upper bounds of max_o Σ|w| over all that goes into output o, and of max_i Σ|w| over all that comes of input i.

    `weight` is a matrix (out, in) or a kernel (out, in, taps…).
    """
    scaled, exponent = _scaled(weight)
    if exponent is None:
        return 0.0, 0.0
    sums = []
    for terms in (scaled.abs().flatten(1), scaled.abs().transpose(0, 1).flatten(1)):
        largest = float(terms.sum(dim=1).max())
        sums.append(root_up(add_up(mul_up(largest, 1 + gamma(terms.shape[1] + 2)), _TINY), exponent, 0))
    return sums[0], sums[1]


def row_distance_bounds(matrix: Tensor) -> Tensor:
    """Upper bounds of the distances ‖w_i − w_j‖₂ between the rows of a matrix (m, n): (m, m), float64, on the CPU."""
    scaled, exponent = _scaled(matrix)
    m, n = scaled.shape
    bounds = torch.zeros(m, m, dtype=torch.float64)
    if exponent is None:
        return bounds
    growth = 1 + gamma(n + 8)  # each difference rounds, then n squares, n sums and a root
    for i in range(m):
        distances = torch.linalg.vector_norm(scaled - scaled[i], dim=1).tolist()
        upper = [root_up(add_up(mul_up(distance, growth), _TINY), exponent, 0) for distance in distances]
        bounds[i] = torch.tensor(upper, dtype=torch.float64)
    return torch.maximum(bounds, bounds.mT).fill_diagonal_(0)


def fold_stride(kernel: Tensor, strides: Sequence[int]) -> Tensor:
    """The stride-1 kernel that does to the pixel-unshuffled image what `kernel` does with `strides`.

    (c_out, c_in, K…) becomes (c_out, c_in·Πs, ⌈K/s⌉…), torch's channel order; K is filled up with zeros if need be.
    """
    strides = _per_axis("stride", strides, kernel.dim() - 2)
    c_out, c_in, *sizes = kernel.shape
    taps = [-(-k // s) for k, s in zip(sizes, strides, strict=True)]
    missing = [n * s - k for n, s, k in zip(taps, strides, sizes, strict=True)]
    kernel = torch.nn.functional.pad(kernel, [zeros for more in reversed(missing) for zeros in (0, more)])
    split = kernel.reshape(c_out, c_in, *[n for pair in zip(taps, strides, strict=True) for n in pair])
    phases, positions = range(3, split.dim(), 2), range(2, split.dim(), 2)
    return split.permute(0, 1, *phases, *positions).reshape(c_out, c_in * math.prod(strides), *taps)


def _per_axis(what: str, given: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    numbers = (given,) * dimensions if isinstance(given, int) else tuple(given)
    fits = len(numbers) == dimensions and all(n >= 1 for n in numbers)
    require(fits, f"one positive {what} for each of {dimensions} dimensions", given)
    return numbers


def _scaled(weights: Tensor) -> tuple[Tensor, int | None]:
    """Float64 weights times a power of two that brings the largest to [½, 1), and the exponent taken out."""
    require(weights.is_floating_point(), "real floating-point weights, not complex ones or integers", weights.dtype)
    flushed = math.ulp(0.0) + 0.0 == 0.0
    require(not flushed, "subnormal numbers to be kept: else no bound is proved", "torch.set_flush_denormal(True)")
    weights = weights.detach().to(torch.float64)
    largest = float(weights.abs().amax()) if weights.numel() else 0.0
    require(largest < math.inf, "finite weights", "NaN or infinity")
    if largest == 0:
        return weights, None
    exponent = math.frexp(largest)[1]
    # In two halves: 2^exponent itself may be out of range.
    half = exponent // 2
    return weights * 2.0**-half * 2.0 ** (half - exponent), exponent


def _frobenius(matrix: Tensor) -> float:
    """An upper bound of the Frobenius norm (of all entries together)."""
    return add_up(mul_up(float(torch.linalg.vector_norm(matrix)), 1 + gamma(matrix.numel() + 8)), _TINY)


def _near_multiple_of_identity(taps: Sequence[Tensor], error: float) -> float:
    """Bound 1 of the Note, squared: the first tap is C_0, each other stands for itself and its mirror image."""
    centre = taps[0]
    multiple = float(centre.diagonal().mean())
    shifted = centre - multiple * torch.eye(centre.shape[0], dtype=centre.dtype, device=centre.device)
    # Subtracting rounds each of n diagonal entries once.
    subtraction = mul_up(gamma(2), math.sqrt(centre.shape[0]) + 1, up(abs(multiple) + _frobenius(centre)))
    return add_up(max(multiple, 0.0), _frobenius(shifted), subtraction, *(2 * _frobenius(t) for t in taps[1:]), error)


def _orthogonal_convolution(kernel: Tensor) -> float:
    """Bound 1 of the Note, squared, for a stride-1 kernel."""
    if kernel.shape[0] > kernel.shape[1]:
        kernel = kernel.transpose(0, 1)
    taps = kernel.unsqueeze(-1) if kernel.dim() == 3 else kernel
    rows, columns = taps.shape[2:]
    half_plane = [(i, j) for i in range(rows) for j in range(1 - columns, columns) if (i, j) >= (0, 0)]
    correlations = []
    for i, j in half_plane:
        left = taps[:, :, : rows - i, max(0, -j) : columns - max(0, j)]
        right = taps[:, :, i:, max(0, j) : columns - max(0, -j)]
        correlations.append(left.flatten(1) @ right.flatten(1).mT)
    absolute = add_up(*(_frobenius(taps[:, :, i, j]) for i in range(rows) for j in range(columns)))
    error = add_up(mul_up(gamma(taps[0].numel()), absolute, absolute), len(correlations) * _TINY)
    return _near_multiple_of_identity(correlations, error)


def _reshaped(kernel: Tensor) -> float:
    """Bound 3 of the Note, squared: the smaller one of the two ways to reshape."""
    taps = kernel[0, 0].numel()
    norm = min(matrix_norm_bound(kernel.flatten(1)), matrix_norm_bound(kernel.transpose(0, 1).flatten(1)))
    return mul_up(norm, norm, float(taps))


def _covers(taps: int, size: int, stride: int) -> bool:
    """Whether a kernel is as large as its image along an axis, and has some taps there."""
    return taps * stride == size and taps >= _LARGE


def _per_frequency(kernel: Tensor, grid: Sequence[int], known: float, near: bool = False) -> float:
    """Bound 4 of the Note, squared, for a stride-1 kernel on a circular grid; `near`: with bound 1 at each frequency."""
    folded = fold_kernel(kernel, grid)
    taps = folded[0, 0].numel()
    c_out, c_in = folded.shape[:2]
    cosines, sines = _twiddles(folded.shape[2:], grid, folded.device)
    flat = folded.flatten(2).permute(2, 0, 1).reshape(taps, -1)
    real, imaginary = ((waves @ flat).reshape(-1, c_out, c_in) for waves in (cosines, sines))
    # Folding and summing: at most 2T roundings for T taps, in the real and in the imaginary part. A twiddle: its angle,
    # up to 2π, is rounded three times (π, the quotient, the product), 2π·2.4u, its two parts to 2 ulp: below 18u ≤ 2γ_16.
    magnitude = add_up(*(_frobenius(kernel.flatten(2)[:, :, t]) for t in range(kernel[0, 0].numel())))
    symbol_error = add_up(mul_up(2.0, gamma(2 * kernel[0, 0].numel() + 16), magnitude), _TINY)
    if c_out > c_in:
        real, imaginary = real.mT, -imaginary.mT
    length = real.shape[-1]
    rows = torch.cat([real, imaginary], dim=-1)
    gram_real = rows @ rows.mT
    gram_imaginary = torch.cat([imaginary, -real], dim=-1) @ rows.mT
    largest = math.sqrt(float((rows * rows).sum(dim=(-2, -1)).amax()))
    size = add_up(mul_up(largest, 1 + gamma(rows[0].numel() + 8)), _TINY)
    of_symbol = mul_up(symbol_error, add_up(2 * size, symbol_error))
    error = add_up(mul_up(sqrt_up(2.0), gamma(2 * length), size, size), of_symbol, _TINY)
    known = min(known, _near_multiples(gram_real, gram_imaginary, error)) if near else known
    return _largest_eigenvalue(gram_real, gram_imaginary, error, known)


def _near_multiples(real: Tensor, imaginary: Tensor, error: float) -> float:
    """Return max s + ‖G − sI‖_F over Hermitian matrices G, computed within `error`, s the mean of each one's diagonal."""
    n = real.shape[-1]
    multiples = real.diagonal(dim1=-2, dim2=-1).mean(-1)
    shifted = real - multiples[:, None, None] * torch.eye(n, dtype=real.dtype, device=real.device)
    squares = (shifted * shifted).sum(dim=(-2, -1)) + (imaginary * imaginary).sum(dim=(-2, -1))
    # Subtracting rounds each of n diagonal entries once, as in `_near_multiple_of_identity`.
    subtraction = mul_up(gamma(2), math.sqrt(n) + 1, 2 * _frobenius(real.diagonal(dim1=-2, dim2=-1)))
    pairs = zip(multiples.tolist(), squares.tolist(), strict=True)
    sizes = [(max(s, 0.0), mul_up(sqrt_up(square), 1 + gamma(2 * n * n + 8))) for s, square in pairs]
    return max(add_up(s, size, _TINY, subtraction, error) for s, size in sizes)


def _twiddles(taps: Sequence[int], grid: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and −sin of 2π⟨ω, t⟩/n for all taps t and one of each pair of conjugate frequencies ω: (frequencies, taps).

    The phase is reduced to a fraction of a turn in integers, so that only one rounding precedes the cosine.
    """
    numerators, denominator = torch.zeros(1, 1, dtype=torch.int64, device=device), math.lcm(*grid)
    for axis, (k, n) in enumerate(zip(taps, grid, strict=True)):
        frequencies = n // 2 + 1 if axis == len(grid) - 1 else n
        turns = torch.arange(frequencies, device=device)[:, None] * torch.arange(k, device=device) % n
        numerators = numerators[:, None, :, None] + turns[None, :, None, :] * (denominator // n)
        numerators = numerators.flatten(2).flatten(0, 1)
    angles = (numerators % denominator).to(torch.float64) * (2 * math.pi / denominator)
    return torch.cos(angles), -torch.sin(angles)


def _largest_eigenvalue(real: Tensor, imaginary: Tensor | None, error: float, top: float) -> float:
    """Bound 2 of the Note: of λ_max over a batch of Hermitian matrices known within `error` (Frobenius norm)."""
    exponent = 0  # the true matrices are the current ones times 2^exponent
    best = math.inf  # `top` bounds the spectral norm of each current matrix
    n = real.shape[-1]
    # t squarings give at least n^(1/2^(t+1)) times the mean eigenvalue: of no use where `top` is below that already.
    if top <= float(real.diagonal(dim1=-2, dim2=-1).mean(-1).amax()) * n**2.0 ** -(_SQUARINGS + 1):
        return top
    for squaring in range(_SQUARINGS + 1):
        squares = (real * real).sum(dim=(-2, -1))
        if imaginary is not None:
            squares = squares + (imaginary * imaginary).sum(dim=(-2, -1))
        size = add_up(mul_up(sqrt_up(float(squares.amax())), 1 + gamma(2 * n * n + 8)), _TINY)
        top = min(top, up(size + error))
        best = min(best, root_up(top, exponent, squaring))
        if squaring == _SQUARINGS or not size < math.inf:
            break
        shift = math.frexp(size)[1]
        factor = 2.0**-shift
        real, imaginary = real * factor, None if imaginary is None else imaginary * factor
        size, error, top, exponent = size * factor, mul_up(error, factor), mul_up(top, factor), exponent + shift
        error = add_up(mul_up(sqrt_up(2.0), gamma(2 * n), size, size), mul_up(error, add_up(2 * top, error)), _TINY)
        top = mul_up(top, top)
        exponent *= 2
        if imaginary is None:
            real = real @ real
        else:
            stacked = torch.cat([real, imaginary], dim=-2)
            rows = torch.cat([real, -imaginary], dim=-1), torch.cat([imaginary, real], dim=-1)
            real, imaginary = rows[0] @ stacked, rows[1] @ stacked
    return best
