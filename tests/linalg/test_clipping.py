"""SVCM's projection is fifty batched SVDs in the paper; ours has none, and gives the same kernels."""

import pytest
import torch
from torch import Tensor

from isoconv.linalg import clipping
from isoconv.linalg.clipping import clip_and_mask
from isoconv.linalg.spectrum import circular_singular_values, fold_kernel
from linalg.linalg_reference import DEVICES

# c_out, c_in, taps, grid: wide, tall, one channel, odd and even grids, grids smaller than the kernel or its reach.
SHAPES = [
    (4, 9, (2, 2), (8, 8)),
    (9, 4, (3, 3), (7, 10)),
    (1, 1, (3, 3), (9, 9)),
    (6, 2, (1, 1), (3, 3)),
    (3, 4, (5, 5), (4, 3)),
    (3, 3, (3, 3), (1, 5)),
    (4, 6, (2, 3), (8, 6)),
]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
ON_A_GPU = [(32, 128, (2, 2), (16, 16)), (64, 256, (2, 2), (8, 8))] if torch.cuda.is_available() else []


def by_svd(kernel: Tensor, grid: tuple[int, int], iterations: int) -> Tensor:
    """The paper's projection, word for word."""
    for _ in range(iterations):
        folded = fold_kernel(kernel, grid)
        symbol = torch.fft.fftn(folded, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
        left, values, right = torch.linalg.svd(symbol, full_matrices=False)
        spatial = torch.fft.ifftn(((left * values.clamp_max(1).unsqueeze(-2)) @ right).permute(2, 3, 0, 1), dim=(2, 3))
        assert spatial.imag.abs().max() < 1e-5
        kernel = torch.zeros_like(kernel)
        rows, columns = folded.shape[2:]
        kernel[:, :, :rows, :columns] = spatial.real[:, :, :rows, :columns]
    return kernel


def random_kernel(shape: tuple, norm: float, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    c_out, c_in, taps, grid = shape
    kernel = torch.randn(c_out, c_in, *taps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (kernel * (norm / circular_singular_values(kernel, grid)[0])).to(dtype)


def mixed_batch(shape: tuple, dtype: torch.dtype) -> Tensor:
    """Of one shape: 0, wild; 1, needs nothing; 2, mild; 3, broken; 4, in between."""
    kernels = torch.stack([random_kernel(shape, norm, dtype, k) for k, norm in enumerate([7, 0.99, 1.01, 1.5, 1.5])])
    kernels[3, 0, -1, 0, 0] = torch.nan
    return kernels


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", [7.07, 1.5, 1.01])
@pytest.mark.parametrize("shape", [*SHAPES, (24, 40, (2, 2), (8, 8)), *ON_A_GPU], ids=str)
def test_equal_to_fifty_svds(shape, norm, device):
    for dtype, methods in {torch.float64: [None], torch.float32: [None, "products"]}.items():
        kernel = random_kernel(shape, norm, dtype)
        expected = by_svd(kernel.double(), shape[3], 50)
        assert (expected - kernel).abs().max() > 1e-4  # there is something to do
        for method in methods:
            found = clip_and_mask(kernel.to(device), shape[3], 50, method).cpu()
            assert found.dtype == dtype and (found - expected).abs().max() <= TOLERANCE[dtype]


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


@pytest.mark.parametrize("method", ["eigenvectors", "products"])
def test_what_needs_nothing_is_left_alone(method):
    shape = SHAPES[1]
    kernel = random_kernel(shape, 0.999, torch.float32)
    assert clip_and_mask(kernel, shape[3], 50, method) is kernel
    for unusable in (torch.nan, torch.inf, 1e19, -1e25):  # the squares of the last ones are infinite
        broken = kernel.clone()
        broken[0, 0, 0, 0] = unusable
        assert clip_and_mask(broken, shape[3], 50, method) is broken
    quiet = torch.stack([kernel, broken])
    assert clip_and_mask(quiet, shape[3], 50, method) is quiet
    assert torch.equal(clip_and_mask(torch.zeros(2, 3, 2, 2), (4, 4), 3, method), torch.zeros(2, 3, 2, 2))


# Many kernels at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("method", ["eigenvectors", "products"])
@pytest.mark.parametrize("shape", [*SHAPES, *ON_A_GPU], ids=str)
def test_a_batch_is_each_of_it_alone(shape, method, dtype, device):
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
        tolerance = TOLERANCE[dtype] if method == "eigenvectors" else 1e-5
        assert (found[k] - by_svd(kernels[k].double(), shape[3], 25)).abs().max() <= tolerance


@pytest.mark.parametrize("method", ["eigenvectors", "products"])
def test_what_needs_nothing_or_is_broken_is_not_worked_on(method, monkeypatch):
    """NaN may keep a GPU's eigenvectors from ever being found, and every matrix costs."""
    shape, met = SHAPES[0], []
    for name in ("_by_eigenvectors", "_by_products"):
        inner = getattr(clipping, name)
        monkeypatch.setattr(clipping, name, lambda gram, inner=inner: met.append(gram) or inner(gram))
    clip_and_mask(mixed_batch(shape, torch.float32)[1:4], shape[3], 12, method)  # only the mild one has work
    frequencies = 34  # of 64, one of each conjugate pair
    assert met and all(gram.isfinite().all() and gram.flatten(0, -3).shape[0] <= frequencies for gram in met)
