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
projector Π = ½(I + sign(G − I)), and the sign is a composition of odd quintics (see `linalg.orthogonalisation`). It has
converged for eigenvalues further than `_RESOLVED` from 1; for those that are closer, T is wrong by less than that.
(½(G − I)(I + sign) would be T too, but an error of the sign would enter it in full, and not only where something exceeds 1.)
Then h = T q(T), with a polynomial q close to (1 − (1 + t)^(−½))/t on [0, `_TAME`]. All of this runs without a look at the
numbers; whether T stayed below `_TAME` is looked at afterwards.

Note [Many kernels at once]
The matrices of one kernel are so few and small that a GPU takes longer to begin with them than to be done. So kernels of
one shape go side by side, in step; none enters another's result. At each look those leave that need no clipping (any
more), and nothing touches their bits again; those that hold NaN leave at the first. As soon as one of the others needs
eigenvectors, all of them get these.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isoconv.linalg.matrices import add_product, frobenius, identity_like
from isoconv.linalg.orthogonalisation import Quintic, best_quintic
from isoconv.linalg.spectrum import fold_kernel

_LOOK_EVERY = 10  # blind iterations between two looks, each of which makes the host wait for the device
_RESOLVED = 1e-6
_TAME = 4.0
_HEADROOM = 1.002
_DEGREE = 15


def clip_and_mask(kernel: Tensor, grid: tuple[int, int], iterations: int = 1, method: str | None = None) -> Tensor:
    """`iterations` times: all singular values of the circular convolution on `grid` at most 1, then K×K' taps again.

    kernel : (c_out, c_in, K, K'), or (networks, c_out, c_in, K, K'), of which each is projected as if it were alone;
        float32 or float64, in whose precision this works
    method : "eigenvectors", or "products", which is for float32 and a GPU; by default whichever is faster

    A kernel that needs no clipping stays as it is, and so does one with NaN, infinities or entries so large that sums of
    their squares might overflow. If that is so of all that is given, it is returned itself.
    """
    single = kernel.flatten(0, -4)  # whose output channel it is does not matter to the folding
    folded = fold_kernel(single, grid)
    c_out, c_in, height, width = *kernel.shape[-4:-2], *folded.shape[2:]
    there, back = ((0, 3, 4, 2, 1), (0, 4, 3, 1, 2)) if c_out > c_in else ((0, 3, 4, 1, 2), (0, 3, 4, 1, 2))
    taps = folded.reshape(-1, c_out, c_in, height, width).permute(there)  # (networks, K, K', m, n) with m ≤ n
    stacked = taps.reshape(len(taps), -1, taps.shape[-1])
    by_products = (kernel.is_cuda and kernel.dtype == torch.float32) if method is None else method == "products"
    clipped = _iterate(stacked, _waves(grid, (height, width), kernel.dtype, kernel.device), iterations, by_products)
    if clipped is stacked and folded is single:
        return kernel
    result = torch.zeros_like(kernel)
    result[..., :height, :width] = clipped.reshape(taps.shape).permute(back).reshape(*kernel.shape[:-2], height, width)
    return result


# From here on kernels are (networks, taps·m, n): each has its taps W_t below each other.


def _iterate(kernels: Tensor, waves: "_Waves", iterations: int, by_products: bool) -> Tensor:
    """See Note [Many kernels at once]."""
    result, rows = kernels, torch.arange(len(kernels), device=kernels.device)
    blind, left = by_products, iterations
    while left > 0:
        gram = _gram(kernels, waves)
        exceeding = _exceeds(gram, 1.0)
        # Far from overflow all Gram matrices are numbers. NaN could keep a GPU's `eigh` from ending.
        usable = frobenius(kernels) < 1e-3 * torch.finfo(kernels.dtype).max ** 0.5
        going_on = (exceeding.any(0) & usable).nonzero().flatten()
        if len(going_on) < len(kernels):
            result = _with_rows(result, rows, kernels)
            if len(going_on) == 0:
                return result
            kernels, rows = kernels[going_on], rows[going_on]
            gram, exceeding = gram[:, going_on], exceeding[:, going_on]
        if blind and not bool(_exceeds(gram, 1 + _TAME).any()):
            steps = min(_LOOK_EVERY, left)
            found, largest = _blindly(kernels, gram, waves, steps)
            blind = float(largest) <= _TAME
            if blind:  # almost always; otherwise these steps are repeated with eigenvectors
                kernels, left = found, left - steps
        else:  # h(G) at those frequencies where any kernel exceeds 1; zero for one that does not
            chosen = exceeding.any(1)
            excess = gram.new_zeros(int(chosen.sum()), *gram.shape[1:])
            excess[exceeding[chosen]] = _by_eigenvectors(gram[exceeding])
            kernels, left, blind = _minus_excess(kernels, excess, waves, chosen), left - 1, by_products
    return _with_rows(result, rows, kernels)


def _with_rows(kernels: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The kernels, those in `rows` (ascending) replaced; where that is all of them, the new ones themselves."""
    return new if len(new) == len(kernels) else kernels.index_copy(0, rows, new)


def _blindly(kernels: Tensor, gram: Tensor, waves: "_Waves", steps: int) -> tuple[Tensor, Tensor]:
    """That many iterations without a look, and a bound of all the positive parts after the first, which is known."""
    largest = [gram.real.new_zeros(())]
    for step in range(steps):
        excess, sizes = _by_products((_gram(kernels, waves) if step else gram).flatten(0, 1))
        largest += [sizes.amax()] if step else []
        kernels = _minus_excess(kernels, excess.reshape(gram.shape), waves)
    return kernels, torch.stack(largest).amax()


# Between taps and frequencies -------------------------------------------------------------------------------------


class _Waves(NamedTuple):
    """One frequency of each conjugate pair, and what leads from taps to frequencies and back.

    there : (2·frequencies, differences), the real parts of e^{−iωτ}, then the imaginary ones
    back : (differences, frequencies), complex, e^{iωτ} over N, twice where a pair stands for two
    pairs : (taps, taps), which difference t − s is
    """

    there: Tensor
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
        there = torch.from_numpy(np.concatenate([np.cos(angle), -np.sin(angle)]))
        back = torch.from_numpy(np.ascontiguousarray((np.exp(1j * angle) * weight[:, None]).T))
        return _Waves(there.to(device, dtype), back.to(device, dtype.to_complex()), torch.from_numpy(pairs).to(device))


def _gram(kernels: Tensor, waves: _Waves) -> Tensor:
    """G(ω) for every frequency of `waves` and every kernel: (frequencies, networks, m, m), Hermitian."""
    networks, taps = len(kernels), len(waves.pairs)
    m = kernels.shape[1] // taps
    products = (kernels @ kernels.mT).reshape(networks, taps, m, taps, m).permute(1, 3, 0, 2, 4)
    correlation = kernels.new_zeros(waves.there.shape[1], networks, m, m)
    correlation.index_add_(0, waves.pairs.flatten(), products.reshape(-1, networks, m, m))
    real, imaginary = (waves.there @ correlation.flatten(1)).reshape(2, -1, networks, m, m)
    return torch.complex(real, imaginary)


def _minus_excess(kernels: Tensor, excess: Tensor, waves: _Waves, chosen: Tensor | None = None) -> Tensor:
    """W − mask(h(G)A), given h at the chosen frequencies (else: all); it is zero at the others."""
    networks, m = excess.shape[1:3]
    back = waves.back if chosen is None else waves.back[:, chosen]
    filters = (back @ excess.flatten(1)).real.reshape(-1, networks, m, m)
    blocks = filters[waves.pairs].permute(2, 0, 3, 1, 4).reshape(networks, kernels.shape[1], -1)
    return torch.baddbmm(kernels, blocks, kernels, alpha=-1)


# The excess of one Hermitian matrix -------------------------------------------------------------------------------


def _exceeds(gram: Tensor, limit: float) -> Tensor:
    """For each matrix, whether an eigenvalue reaches `limit`: whether limit·I − G is not positive definite."""
    return torch.linalg.cholesky_ex(limit * identity_like(gram) - gram).info != 0


def _by_eigenvectors(gram: Tensor) -> Tensor:
    """h(G), batched."""
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * (1 - values.clamp_min(1).rsqrt()).unsqueeze(-2)) @ vectors.mH


def _by_products(gram: Tensor) -> tuple[Tensor, Tensor]:
    """h(G), batched, where all eigenvalues are below 1 + `_TAME`, and for each an upper bound of (G − I)₊ that says so."""
    eye = identity_like(gram)
    shifted = gram - eye
    sign = shifted / _TAME
    for a, b, c in _sign_schedule():
        square = sign @ sign
        sign = add_product(sign, sign, add_product(square, square, square, c, b), 1, a)
    projector = (sign + eye) / 2
    positive = projector @ shifted @ projector
    centred = torch.sub(eye, positive, alpha=2 / _TAME)
    second = centred @ centred
    powers = torch.stack([eye.expand_as(centred), centred, second, centred @ second])
    fourth = second @ second
    # All the sums of scaled powers in one product: one by one they would be a third of all that is launched here.
    *parts, total = torch.tensordot(_excess_polynomial(gram.dtype, gram.device), powers, 1)
    for part in reversed(parts):
        total = add_product(part, fourth, total)
    return positive @ total, frobenius(positive)


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


@lru_cache(maxsize=8)
def _excess_polynomial(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The coefficients of q in u = 1 − 2t/`_TAME`, four by four, lowest first; interpolated at Chebyshev's points."""
    u = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    t = _TAME * (1 - u) / 2
    q = np.polynomial.Chebyshev.fit(u, (1 - (1 + t) ** -0.5) / t, _DEGREE, domain=[-1, 1])
    coefficients = q.convert(kind=np.polynomial.Polynomial).coef.reshape(-1, 4)
    with torch.inference_mode(False):
        return torch.from_numpy(coefficients).to(device, dtype)
