"""Alternating projections of a kernel: singular values at most 1, then k×k taps again; without one SVD.

Note [Clipping in Gram space]
Let A(ω) = Σ_t W_t e^{−iωt} be the symbol of a kernel with real taps W_t (m×n with m ≤ n; otherwise all is transposed).
Clipping its singular values at 1 takes away the excess h(G)A, where G = A Aᴴ and h(λ) = 1 − λ^(−½) for λ > 1, else 0.
Cutting back to the taps is linear and leaves W itself alone, so one clip-and-mask is W ← W − mask(h(G)A), with

    G(ω) = Σ_τ R_τ e^{−iωτ},     R_τ = Σ_{t−s=τ} W_t W_sᵀ            (τ: the differences of two taps)
    mask(h(G)A)_t = Σ_s H_{t−s} W_s,     H_τ = 1/N Σ_ω h(G(ω)) e^{iωτ}.

The n columns appear in products of taps only, never per frequency. Frequencies come in conjugate pairs, of which one is
enough. Where I − G has a Cholesky factor nothing exceeds 1 and h is zero: after the first few projections that is so at
most frequencies. What is left is h of one m×m Hermitian matrix per frequency; it has slope ½ at the most, so that going
through G loses nothing: an error of eps·‖G‖ in G is one of that size in the result.

Note [The positive part by products]
On a GPU eigenvectors of many small matrices are slow, products of them are not. T = (G − I)₊ is Π(G − I)Π, with the
projector Π = ½(I + sign(G − I)), and the sign is a composition of odd quintics (`isoconv.linalg.minimax`). It has converged
for eigenvalues further than `_RESOLVED` from 1; for those that are closer, T is wrong by less than that. (½(G − I)(I + sign)
would be T too, but an error of the sign would enter it in full, and not only where something exceeds 1.) Then h = T q(T),
with a polynomial q close to (1 − (1 + t)^(−½))/t on [0, `_TAME`]. All of this runs without a look at the numbers; whether
T stayed below `_TAME` is looked at afterwards.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from isoconv.linalg.gram import add_product, frobenius, identity_like
from isoconv.linalg.minimax import Quintic, best_quintic
from isoconv.linalg.spectrum import fold_kernel

_LOOK_EVERY = 10  # blind iterations between two looks, each of which makes the host wait for the device
_RESOLVED = 1e-6
_TAME = 4.0
_HEADROOM = 1.002
_DEGREE = 15


def clip_and_mask(kernel: Tensor, grid: tuple[int, int], iterations: int = 1, method: str | None = None) -> Tensor:
    """`iterations` times: all singular values of the circular convolution on `grid` at most 1, then K×K' taps again.

    kernel : (c_out, c_in, K, K'), float32 or float64, in whose precision this works
    method : "eigenvectors", or "products", which is for float32 and a GPU; by default whichever is faster

    A kernel that needs no clipping is returned as it is, and so is one with NaN or infinities.
    """
    folded = fold_kernel(kernel, grid)
    turned = folded.shape[0] > folded.shape[1]
    taps = folded.transpose(0, 1) if turned else folded
    by_products = (kernel.is_cuda and kernel.dtype == torch.float32) if method is None else method == "products"
    clipped = _iterate(taps, grid, iterations, by_products)
    if clipped is taps and folded is kernel:
        return kernel
    result = torch.zeros_like(kernel)
    result[:, :, : folded.shape[2], : folded.shape[3]] = clipped.transpose(0, 1) if turned else clipped
    return result


def _iterate(kernel: Tensor, grid: tuple[int, int], iterations: int, by_products: bool) -> Tensor:
    waves = _waves(grid, (kernel.shape[2], kernel.shape[3]), kernel.dtype, kernel.device)
    blind, left = by_products, iterations
    while left > 0:
        gram = _gram(kernel, waves)
        exceeding = _exceeds(gram, 1.0)
        if not bool(exceeding.any()) or not bool(kernel.isfinite().all()):
            return kernel
        steps, start = 1, kernel
        if blind and not bool(_exceeds(gram, 1 + _TAME).any()):
            steps = min(_LOOK_EVERY, left)
            kernel, largest = _blindly(kernel, gram, waves, steps)
            if not float(largest) <= _TAME:  # hardly ever: do these again, with open eyes
                kernel, steps, blind = start, 0, False
        else:
            kernel, blind = _minus_excess(kernel, _by_eigenvectors(gram[exceeding]), waves, exceeding), by_products
        left -= steps
    return kernel


def _blindly(kernel: Tensor, gram: Tensor, waves: "_Waves", steps: int) -> tuple[Tensor, Tensor]:
    """That many iterations without a look, and a bound of all the positive parts after the first, which is known."""
    excess, _ = _by_products(gram)
    kernel = _minus_excess(kernel, excess, waves)
    largest = torch.zeros((), dtype=kernel.dtype, device=kernel.device)
    for _ in range(steps - 1):
        excess, size = _by_products(_gram(kernel, waves))
        largest = torch.maximum(largest, size)
        kernel = _minus_excess(kernel, excess, waves)
    return kernel, largest


# Between taps and frequencies -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Waves:
    """One frequency of each conjugate pair, and what leads from taps to frequencies and back.

    cosine, sine : (frequencies, differences), of ωτ
    back : (2, differences, frequencies), the same over N, twice where a pair stands for two
    pairs : (taps, taps), which difference t − s is
    """

    cosine: Tensor
    sine: Tensor
    back: Tensor
    pairs: Tensor


@lru_cache(maxsize=64)
def _waves(grid: tuple[int, int], taps: tuple[int, int], dtype: torch.dtype, device: torch.device) -> _Waves:
    (rows, columns), (height, width) = grid, taps
    a, b = (axis.ravel() for axis in np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"))
    mirrored = (-a % rows) * columns + -b % columns
    chosen = np.flatnonzero(np.arange(rows * columns) <= mirrored)
    weight = np.where(mirrored[chosen] == chosen, 1, 2) / (rows * columns)
    y, x = (axis.ravel() for axis in np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    dy, dx = np.arange(1 - height, height), np.arange(1 - width, width)
    # Whole numbers, reduced to one turn before the division: exact until the cosine.
    turns = np.outer(a[chosen], dy)[:, :, None] % rows / rows + np.outer(b[chosen], dx)[:, None, :] % columns / columns
    angle = 2 * np.pi * turns.reshape(len(chosen), -1)
    pairs = (y[:, None] - y + height - 1) * (2 * width - 1) + (x[:, None] - x + width - 1)
    with torch.inference_mode(False):
        cosine, sine = (torch.from_numpy(wave).to(device, dtype) for wave in (np.cos(angle), np.sin(angle)))
        scaled = torch.from_numpy(weight).to(device, dtype)
        back = torch.stack([cosine * scaled[:, None], sine * scaled[:, None]]).mT.contiguous()
        return _Waves(cosine, sine, back, torch.from_numpy(pairs).to(device))


def _gram(kernel: Tensor, waves: _Waves) -> Tensor:
    """G(ω) for every frequency of `waves`: (frequencies, m, m), Hermitian."""
    m, n = kernel.shape[:2]
    stacked = kernel.permute(2, 3, 0, 1).reshape(-1, n)
    products = (
        (stacked @ stacked.mT).reshape(len(waves.pairs), m, len(waves.pairs), m).transpose(1, 2).reshape(-1, m, m)
    )
    correlation = products.new_zeros(waves.cosine.shape[1], m, m).index_add_(0, waves.pairs.flatten(), products)
    flat = correlation.flatten(1)
    return torch.complex(waves.cosine @ flat, -(waves.sine @ flat)).reshape(-1, m, m)


def _minus_excess(kernel: Tensor, excess: Tensor, waves: _Waves, chosen: Tensor | None = None) -> Tensor:
    """W − mask(h(G)A), given h at the chosen frequencies (else: all); it is zero at the others."""
    m, n = kernel.shape[:2]
    back = waves.back if chosen is None else waves.back[:, :, chosen]
    filters = back[0] @ excess.real.flatten(1) - back[1] @ excess.imag.flatten(1)
    blocks = filters.reshape(-1, m, m)[waves.pairs].transpose(1, 2).reshape(len(waves.pairs) * m, -1)
    stacked = kernel.permute(2, 3, 0, 1).reshape(-1, n)
    return torch.addmm(stacked, blocks, stacked, alpha=-1).reshape(*kernel.shape[2:], m, n).permute(2, 3, 0, 1)


# The excess of one Hermitian matrix -------------------------------------------------------------------------------


def _exceeds(gram: Tensor, limit: float) -> Tensor:
    """For each matrix, whether an eigenvalue reaches `limit`: whether limit·I − G is not positive definite."""
    return torch.linalg.cholesky_ex(limit * identity_like(gram) - gram).info != 0


def _by_eigenvectors(gram: Tensor) -> Tensor:
    """h(G), batched."""
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * (1 - values.clamp_min(1).rsqrt()).unsqueeze(-2)) @ vectors.mH


def _by_products(gram: Tensor) -> tuple[Tensor, Tensor]:
    """h(G), batched, where all eigenvalues are below 1 + `_TAME`, and an upper bound of max (G − I)₊ that says so."""
    eye = identity_like(gram)
    shifted = gram - eye
    sign = shifted / _TAME
    for a, b, c in _sign_schedule():
        square = sign @ sign
        sign = add_product(sign, sign, add_product(square, square, square, c, b), 1, a)
    projector = (sign + eye) / 2
    positive = projector @ shifted @ projector
    centred = positive / (_TAME / 2) - eye
    second = centred @ centred
    third, fourth = centred @ second, second @ second
    total: Tensor | None = None
    for p in reversed(_excess_polynomial()):
        part = p[0] * eye + p[1] * centred + p[2] * second + p[3] * third
        total = part if total is None else add_product(part, fourth, total)
    assert total is not None
    return positive @ total, frobenius(positive).amax()


@lru_cache(maxsize=1)
def _sign_schedule() -> tuple[Quintic, ...]:
    """The best quintics for [`_RESOLVED`/`_TAME`, 1] in turn, then Taylor's twice: what is near ±1 becomes ±1.

    Past its interval a quintic is steep: without headroom, seven of them would turn a rounding error there into anything.
    """
    low, high, error = _RESOLVED / _TAME, _HEADROOM, 1.0
    schedule: list[Quintic] = []
    while error > 0.1:
        quintic, error = best_quintic(low, high)
        schedule.append(quintic)
        low, high = 1 - error, (1 + error) * _HEADROOM
    taylor = (15 / 8, -10 / 8, 3 / 8)
    return (*schedule, taylor, taylor)


@lru_cache(maxsize=1)
def _excess_polynomial() -> tuple[tuple[float, ...], ...]:
    """The coefficients of q in u = 2t/`_TAME` − 1, four by four, lowest first; interpolated at Chebyshev's points."""
    u = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    t = _TAME * (u + 1) / 2
    q = np.polynomial.Chebyshev.fit(u, (1 - (1 + t) ** -0.5) / t, _DEGREE, domain=[-1, 1])
    c = [float(value) for value in q.convert(kind=np.polynomial.Polynomial).coef]
    return tuple(tuple(c[k : k + 4]) for k in range(0, _DEGREE + 1, 4))
