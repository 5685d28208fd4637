"""SVCM's projection is fifty batched SVDs in the paper; ours has none, and gives the same kernels."""

from itertools import product

import pytest
import torch
from torch import Tensor

from isoconv.linalg import clipping
from isoconv.linalg.clipping import clip_and_mask
from isoconv.linalg.spectrum import circular_singular_values, fold_kernel
from linalg.linalg_reference import DEVICES, PRECISIONS, normal

# c_out, c_in, taps, grid: wide, tall, one channel, odd and even grids, grids smaller than the kernel or its reach.
SHAPES = [
    *[(4, 9, (2, 2), (8, 8)), (9, 4, (3, 3), (7, 10)), (1, 1, (3, 3), (9, 9)), (6, 2, (1, 1), (3, 3))],
    *[(3, 4, (5, 5), (4, 3)), (3, 3, (3, 3), (1, 5)), (4, 6, (2, 3), (8, 6))],
]
ON_A_GPU = [(32, 128, (2, 2), (16, 16)), (64, 256, (2, 2), (8, 8))] if torch.cuda.is_available() else []
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
METHODS = ["eigenvectors", "products"]


def by_svd(kernel: Tensor, grid: tuple[int, int], iterations: int) -> Tensor:
    """The paper's projection, word for word."""
    for _ in range(iterations):
        folded = fold_kernel(kernel, grid)
        symbol = torch.fft.fftn(folded, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
        left, values, right = torch.linalg.svd(symbol, full_matrices=False)
        spatial = torch.fft.ifftn(((left * values.clamp_max(1).unsqueeze(-2)) @ right).permute(2, 3, 0, 1), dim=(2, 3))
        assert spatial.imag.abs().max() < 1e-5
        kernel, (rows, columns) = torch.zeros_like(kernel), folded.shape[2:]
        kernel[:, :, :rows, :columns] = spatial.real[:, :, :rows, :columns]
    return kernel


def random_kernel(shape: tuple, norm: float, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    c_out, c_in, taps, grid = shape
    kernel = normal(c_out, c_in, *taps, seed=seed)
    return (kernel * (norm / circular_singular_values(kernel, grid)[0])).to(dtype)


def mixed_batch(shape: tuple, dtype: torch.dtype) -> Tensor:
    """Of one shape: 0, wild; 1, needs nothing; 2, mild; 3, broken; 4, in between."""
    kernels = torch.stack([random_kernel(shape, norm, dtype, k) for k, norm in enumerate([7, 0.99, 1.01, 1.5, 1.5])])
    kernels[3, 0, -1, 0, 0] = torch.nan
    return kernels


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [*SHAPES, (12, 20, (2, 2), (8, 8)), *ON_A_GPU], ids=str)
def test_a_batch_is_each_of_it_alone_and_equal_to_many_svds(shape, device):
    for dtype, method in [(torch.float64, None), *product(PRECISIONS, METHODS)]:
        kernels = mixed_batch(shape, dtype)
        given = kernels.to(device, copy=True)
        found = clip_and_mask(given, shape[3], 25, method).cpu()
        assert found.shape == kernels.shape and found.dtype == dtype
        torch.testing.assert_close(given.cpu(), kernels, rtol=0, atol=0, equal_nan=True)  # it is not written to
        for k in (1, 3):
            alone = clip_and_mask(given[k], shape[3], 25, method).cpu()
            torch.testing.assert_close(found[k], alone, rtol=0, atol=0, equal_nan=True)
        for k in (0, 2, 4):
            assert (found[k] - kernels[k]).abs().max() > 1e-4  # there is something to do
            tolerance = TOLERANCE[dtype] if method != "products" else 1e-5
            assert (found[k] - by_svd(kernels[k].double(), shape[3], 25)).abs().max() <= tolerance


@pytest.mark.parametrize("size", [99.0, torch.nan])
def test_what_grows_wild_on_the_way_is_done_again(size, monkeypatch):
    """Blind iterations are only kept if the polynomial that they used was made for what they met."""
    shape = SHAPES[0]
    kernels = torch.stack([random_kernel(shape, norm, torch.float32) for norm in (1.5, 1.1)])
    by_products, calls = clipping._by_products, []

    def wild(gram):
        calls.append(1)
        excess, sizes = by_products(gram)
        return (excess * size, torch.full_like(sizes, size)) if len(calls) == 10 else (excess, sizes)

    monkeypatch.setattr(clipping, "_by_products", wild)
    for given in (kernels[0], kernels):
        calls.clear()
        found = clip_and_mask(given, shape[3], 12, "products")
        assert len(calls) > 12 and found.shape == given.shape
        for kernel, one in zip(kernels, found.reshape(-1, *kernels.shape[1:]), strict=False):
            assert (one - by_svd(kernel.double(), shape[3], 12)).abs().max() <= 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_what_needs_nothing_or_is_broken_is_left_alone_and_not_worked_on(method, monkeypatch):
    """NaN may keep a GPU's eigenvectors from ever being found, and every matrix costs."""
    kernel, grid, met = random_kernel(SHAPES[1], 0.999, torch.float32), SHAPES[1][3], []
    assert clip_and_mask(kernel, grid, 50, method) is kernel
    for unusable in (torch.nan, torch.inf, 1e19, -1e25):  # the squares of the last ones are infinite
        broken = kernel.clone()
        broken[0, 0, 0, 0] = unusable
        assert clip_and_mask(broken, grid, 50, method) is broken
    quiet = torch.stack([kernel, broken])
    assert clip_and_mask(quiet, grid, 50, method) is quiet
    assert torch.equal(clip_and_mask(torch.zeros(2, 3, 2, 2), (4, 4), 3, method), torch.zeros(2, 3, 2, 2))
    for name in ("_by_eigenvectors", "_by_products"):
        inner = getattr(clipping, name)
        monkeypatch.setattr(clipping, name, lambda gram, inner=inner: met.append(gram) or inner(gram))
    clip_and_mask(mixed_batch(SHAPES[0], torch.float32)[1:4], SHAPES[0][3], 12, method)  # only the mild one has work
    frequencies = 34  # of 64, one of each conjugate pair
    assert met and all(gram.isfinite().all() and gram.flatten(0, -3).shape[0] <= frequencies for gram in met)
