"""The bound of a convolution's norm against its dense matrix: above it, exactly; how close, in numbers."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg import (
    bcop_kernel,
    bcop_kernel_1d,
    circular_singular_values,
    conv_norm_bound,
    fold_stride,
    random_projector,
)
from linalg.linalg_reference import DEVICES, dense_convolution, exact, norm_at_most, normal, orthonormal, paddings


def projector(n: int, seed: int) -> Tensor:
    return random_projector(n, n // 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal_kernel(c_out: int, c_in: int, K: int, dimensions: int = 2) -> Tensor:
    H = orthonormal(c_out, c_in)
    P, Q = ([projector(c_in, seed + i) for i in range(K - 1)] for seed in (0, 50))
    return bcop_kernel(H, P, Q) if dimensions == 2 else bcop_kernel_1d(H, P)


def quarter_turns(taps: int) -> Tensor:
    """I, J, I, J, … with J a quarter turn, as a stride of 2 sees them: its symbol is largest between usual frequencies."""
    pair = torch.tensor([[1.0, 0.0, 0.0, -1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    return pair.repeat(1, -(-taps // 4))[:, None, :taps]


def one_frequency(taps: int, turns: float) -> Tensor:
    return torch.cos(2 * math.pi * turns * torch.arange(taps, dtype=torch.float64))[None, None]


def diagonal_frequency(taps: int) -> Tensor:
    """A wave from corner to corner: its frequencies are (1, −1) and (−1, 1), neither in the first quadrant."""
    along = torch.arange(taps, dtype=torch.float64)
    return torch.cos(2 * math.pi / taps * (along[:, None] - along))[None, None]


KERNELS = {
    "1x1": normal(2, 3, 1, seed=1),
    "1-D": normal(2, 2, 3, seed=2),
    "1-D tall": normal(3, 1, 5, seed=4),
    "1-D orthogonal": orthogonal_kernel(2, 2, 3, 1),
    "1-D quarter turns": quarter_turns(4),
    "difference": torch.tensor([[[1.0, -1.0]]], dtype=torch.float64),
    "frequency 1/3": one_frequency(6, 1 / 3),
    "one entry": F.pad(torch.full((1, 1, 1), -0.7, dtype=torch.float64), (1, 2, 1, 0, 0, 1)),
    "1 and 1e-160": normal(2, 2, 3, seed=5) * torch.tensor([1.0, 1e-160, 1e-300], dtype=torch.float64),
    "2-D": normal(2, 1, 2, 3, seed=6),
    "2-D square": normal(1, 2, 3, 3, seed=7),
    "2-D orthogonal": orthogonal_kernel(2, 2, 2),
    "2-D diagonal frequency": diagonal_frequency(3),
    "2-D nearly one": torch.full((1, 1, 2, 2), math.nextafter(0.25, 0), dtype=torch.float64),
}


def strides_for(kernel: Tensor) -> list[tuple[int, ...]]:
    return [(s,) for s in (1, 2, 3)] if kernel.dim() == 3 else [(1, 1), (2, 2), (3, 3), (2, 1), (1, 3)]


@pytest.mark.parametrize("name", KERNELS)
def test_circular_exactly(name):
    """Every stride, also where it does not divide the kernel; odd sizes; images smaller than the kernel."""
    kernel, taps = KERNELS[name], exact(KERNELS[name])
    for stride in strides_for(kernel):
        free = conv_norm_bound(kernel, stride)
        for blocks in product(*[(1, 2, 3, 5) if kernel.dim() == 3 else (1, 2, 3)] * len(stride)):
            size = [n * s for n, s in zip(blocks, stride, strict=True)]
            operator = dense_convolution(taps, size, stride)
            if min(operator.shape) <= 16:
                assert norm_at_most(operator, free)
                assert norm_at_most(operator, conv_norm_bound(kernel, stride, size))


@pytest.mark.parametrize("name", KERNELS)
def test_zero_padding_exactly(name):
    """Every stride, every size from one pixel on, and any amount of padding from none to full."""
    kernel, taps = KERNELS[name], exact(KERNELS[name])
    for stride in strides_for(kernel):
        free = conv_norm_bound(kernel, stride)
        for size in product(*[range(1, 7) if kernel.dim() == 3 else (1, 2, 3)] * len(stride)):
            bound = conv_norm_bound(kernel, stride, size, "zeros")
            for padding in paddings(kernel.shape[2:], size):
                operator = dense_convolution(taps, size, stride, padding)
                if min(operator.shape) <= 16:
                    assert norm_at_most(operator, free), (stride, size, padding)
                    assert norm_at_most(operator, bound), (stride, size, padding)


def test_without_a_size_it_holds_at_the_worst_frequency():
    """On a large circle the norm is the maximum of the symbol over all frequencies: 2000 of them."""
    for seed in range(5):
        kernel = normal(3, 3, 4, seed=20 + seed)
        supremum = float(circular_singular_values(kernel, 2000)[0])
        assert supremum <= conv_norm_bound(kernel) <= 2 * supremum


# How close


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)]
)
@pytest.mark.parametrize(("c_out", "c_in", "K"), [(1, 1, 3), (3, 16, 3), (32, 32, 3), (16, 16, 5), (64, 64, 1)])
def test_orthogonal_kernels_are_bounded_tightly_for_every_size(c_out, c_in, K, dtype, within, device):
    kernel = orthogonal_kernel(c_out, c_in, K).to(dtype)
    for scale in (1.0, 1.001, 1e-3):
        scaled = scale * kernel.double()
        true = max(float(circular_singular_values(scaled, n)[0]) for n in (5, 8))
        bound = conv_norm_bound(scaled.to(device))
        transposed = conv_norm_bound(scaled.transpose(0, 1).to(device))
        assert true * (1 - 1e-13) <= min(bound, transposed) <= max(bound, transposed) <= true * (1 + within)


@pytest.mark.parametrize(("c_out", "c_in", "s"), [(8, 2, 2), (4, 2, 2), (9, 1, 3), (4, 1, 3)])
def test_strided_orthogonal_kernels_are_bounded_tightly(c_out, c_in, s):
    """A kernel that is orthogonal on the unshuffled image, written back as a strided one."""
    folded = orthogonal_kernel(c_out, c_in * s * s, 2).float()
    strided = F.pixel_shuffle(folded.permute(0, 1, 2, 3), s)
    assert torch.equal(fold_stride(strided, (s, s)), folded)
    bound = conv_norm_bound(strided, s)
    operator = dense_convolution(strided.double().numpy(), [3 * s, 2 * s], [s, s])
    true = np.linalg.norm(operator, 2)
    assert true * (1 - 1e-13) <= bound <= true * (1 + 1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "stride", "size"),
    [
        ((3, 4, 5), 1, (7,)),
        ((2, 2, 9), 1, (4,)),
        ((16, 3, 3, 3), 1, (8, 8)),
        ((4, 8, 5, 5), 1, (3, 4)),
        ((2, 2, 3, 3), 1, (1, 1)),
        ((4, 3, 3, 3), 2, (8, 8)),
        ((5, 3, 3, 3), 3, (9, 9)),
        ((3, 4, 5), 3, (12,)),
    ],
    ids=str,
)
def test_random_kernels_are_bounded_tightly_with_a_size(shape, stride, size, device):
    """Within 1e-3; without a stride, in fact n^(1/2^15) and some rounding."""
    kernel = normal(*shape, seed=10)
    true = np.linalg.norm(dense_convolution(kernel.numpy(), size, [stride] * len(size)), 2)
    bound = conv_norm_bound(kernel.to(device), stride, size)
    within = min(shape[:2]) ** 2.0**-15 + 1e-9 if stride == 1 else 1 + 1e-3
    assert true * (1 - 1e-13) <= bound <= true * within
    assert bound <= conv_norm_bound(kernel.to(device), stride)


@pytest.mark.parametrize(
    ("shape", "s", "size", "padding"),
    [
        ((4, 3, 3, 3), 1, (8, 8), 1),
        ((3, 3, 5, 5), 1, (6, 7), 2),
        ((4, 3, 3, 3), 2, (8, 8), 1),
        ((4, 2, 7), 2, (32,), 3),
    ],
)
def test_zero_padded_random_kernels_with_a_size(shape, s, size, padding):
    """The circle of n + k − 1 pixels is not the image: 20 % above for large kernels, 0.3 % for a long image."""
    kernel = normal(*shape, seed=4)
    operator = dense_convolution(kernel.numpy(), size, [s] * len(size), [padding] * len(size))
    true, bound = np.linalg.norm(operator, 2), conv_norm_bound(kernel, s, size, "zeros")
    assert true * (1 - 1e-13) <= bound <= 1.25 * true
    assert bound <= conv_norm_bound(kernel, s)


def test_cancelling_taps_on_a_single_pixel():
    """[1 −1] on one pixel is zero: the sized bound says so, but for rounding, and the other one does not."""
    kernel = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    assert 0 <= conv_norm_bound(kernel, input_size=1) <= 1e-14
    assert conv_norm_bound(kernel) >= 2


# Any numbers


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float64, s) for s in (1e-308, 1e-160, 1.001, 1e200, 1e306)]
    + [(torch.float32, s) for s in (1e-44, 1e-30, 1e30)]
    + [(torch.float16, 1e-7), (torch.float16, 1e4), (torch.bfloat16, 1e-39), (torch.bfloat16, 1e30)],
)
@pytest.mark.parametrize("shape", [(2, 2, 3), (1, 2, 2, 2)], ids=str)
def test_any_scale_exactly(shape, dtype, scale):
    kernel = (scale * normal(*shape, seed=12)).to(dtype)
    size, padding = [3] * (len(shape) - 2), [1] * (len(shape) - 2)
    circular, padded = dense_convolution(exact(kernel), size), dense_convolution(exact(kernel), size, None, padding)
    free = conv_norm_bound(kernel)
    assert norm_at_most(circular, free)
    assert norm_at_most(padded, free)
    assert norm_at_most(circular, conv_norm_bound(kernel, 1, 3))
    assert norm_at_most(padded, conv_norm_bound(kernel, 1, 3, "zeros"))


def test_random_exponents_exactly():
    """Taps of all magnitudes in one kernel, 60 times."""
    rng = np.random.default_rng(0)
    powers = [0, 0, 0, -1, -26, -53, -160, -500, -537, -1000, -1074, 400, 900]
    for _ in range(60):
        shape = (*rng.integers(1, 3, 2), *rng.integers(1, 4, rng.integers(1, 3)))
        kernel = torch.tensor(np.ldexp(rng.standard_normal(shape), rng.choice(powers, size=shape)))
        stride = [int(s) for s in rng.integers(1, 3, len(shape) - 2)]
        size = [2 * s for s in stride]
        operator = dense_convolution(exact(kernel), size, stride)
        assert norm_at_most(operator, conv_norm_bound(kernel, stride))
        assert norm_at_most(operator, conv_norm_bound(kernel, stride, size))


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 3, 3, 3), (0, 3, 3), (2, 0, 3, 3), (2, 2, 0)], ids=str)
def test_zeros_and_nothing(shape):
    kernel = torch.zeros(shape)
    for mode in ("circular", "zeros"):
        assert conv_norm_bound(kernel) == conv_norm_bound(kernel, 2, 4, mode) == 0.0


# Folding a stride


def unshuffle(image: Tensor, strides: tuple[int, ...]) -> Tensor:
    """(c, n…) → (c·Πs, n/s…): channel c·Πs + phase, the phases in row-major order."""
    phases = [tuple(slice(p, None, s) for p, s in zip(phase, strides, strict=True)) for phase in np.ndindex(*strides)]
    return torch.stack([channel[phase] for channel in image for phase in phases])


@pytest.mark.parametrize("taps", [(1,), (3,), (5,), (1, 1), (2, 2), (4, 4), (5, 3), (1, 4)], ids=str)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 3), (2, 3), (1, 2), (4, 1)], ids=str)
def test_fold_stride_is_pixel_unshuffle(taps, strides):
    strides = strides[: len(taps)]
    kernel = normal(3, 2, *taps, seed=15)
    blocks = [-(-k // s) + 2 for k, s in zip(taps, strides, strict=True)]
    image = normal(2, *[b * s for b, s in zip(blocks, strides, strict=True)], seed=16)
    convolve = F.conv1d if len(taps) == 1 else F.conv2d
    folded = fold_stride(kernel, strides)
    assert folded.shape == (3, 2 * math.prod(strides), *[-(-k // s) for k, s in zip(taps, strides, strict=True)])
    ours = convolve(unshuffle(image, strides)[None], folded)
    theirs = convolve(image[None], kernel, stride=strides)
    window = tuple(slice(0, n) for n in ours.shape[2:])  # zeros were filled in: as many outputs as whole blocks
    torch.testing.assert_close(ours, theirs[(slice(None), slice(None), *window)], rtol=0, atol=1e-13)
    if len(set(taps)) == len(set(strides)) == 1 < len(taps) and taps[0] % strides[0] == 0:
        assert torch.equal(folded, F.pixel_unshuffle(kernel, strides[0]))  # torch's order of channels
