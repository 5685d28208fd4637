"""SVCM's projection is fifty batched SVDs in the paper; ours has none, and gives the same kernels."""

import pytest
import torch
from torch import Tensor

from isoconv.linalg import clipping
from isoconv.linalg.clipping import clip_and_mask
from isoconv.linalg.spectrum import circular_singular_values, fold_kernel
from isoconv.nn import SVCMConv2d

# c_out, c_in, taps, grid: wide, tall, square, one channel, odd and even grids, grids smaller than the kernel or its reach.
SHAPES = [
    (4, 9, (2, 2), (8, 8)),
    (9, 4, (3, 3), (7, 10)),
    (5, 5, (3, 3), (6, 5)),
    (1, 1, (3, 3), (9, 9)),
    (1, 6, (2, 2), (4, 4)),
    (6, 2, (1, 1), (3, 3)),
    (3, 4, (5, 5), (4, 3)),
    (4, 3, (3, 3), (2, 2)),
    (3, 3, (3, 3), (1, 5)),
    (4, 6, (2, 3), (8, 6)),
]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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


def random_kernel(shape: tuple, norm: float, dtype: torch.dtype = torch.float64) -> Tensor:
    c_out, c_in, taps, grid = shape
    kernel = torch.randn(c_out, c_in, *taps, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (kernel * (norm / circular_singular_values(kernel, grid)[0])).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("norm", [7.07, 1.5, 1.01])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_fifty_svds(shape, norm, dtype):
    kernel = random_kernel(shape, norm, dtype)
    expected = by_svd(kernel.double(), shape[3], 50)
    assert (expected - kernel).abs().max() > 1e-4  # there is something to do
    found = clip_and_mask(kernel, shape[3], 50)
    assert found.dtype == dtype and (found - expected).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("norm", [7.07, 2.2, 1.5, 1.01])
@pytest.mark.parametrize("shape", [*SHAPES[:5], (24, 40, (2, 2), (8, 8))], ids=str)
def test_by_products_too(shape, norm):
    kernel = random_kernel(shape, norm, torch.float32)
    expected = by_svd(kernel.double(), shape[3], 25)
    assert (clip_and_mask(kernel, shape[3], 25, "products") - expected).abs().max() <= 1e-5


@pytest.mark.parametrize(
    "eigenvalues", [[0.0, 0.5, 1.0, 1.0 + 1e-7, 1.1, 4.9], [0.0] * 6, [1.0] * 6, [0.2, 0.999999] * 3]
)
def test_the_excess_of_a_matrix_by_products(eigenvalues):
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(3, 6, 6, generator=generator, dtype=torch.complex128)
    basis = torch.linalg.qr(random).Q
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    expected = (basis * (1 - values.clamp_min(1).rsqrt())) @ basis.mH
    gram = ((basis * values) @ basis.mH).to(torch.complex64)
    excess, bound = clipping._by_products(gram)
    assert (excess - expected).abs().max() < 4 * torch.finfo(torch.float32).eps * max(1, *eigenvalues)
    assert bound >= max(0, max(eigenvalues) - 1) - 1e-6


def test_what_grows_wild_on_the_way_is_done_again(monkeypatch):
    """Blind iterations are only kept if the polynomial that they used was made for what they met."""
    shape = SHAPES[0]
    kernel = random_kernel(shape, 1.5, torch.float32)
    blindly, calls = clipping._blindly, []

    def worried(*arguments):
        calls.append(1)
        found, _ = blindly(*arguments)
        return found * torch.nan, torch.tensor(torch.nan if len(calls) == 1 else 99.0)

    monkeypatch.setattr(clipping, "_blindly", worried)
    found = clip_and_mask(kernel, shape[3], 12, "products")
    assert calls and (found - by_svd(kernel.double(), shape[3], 12)).abs().max() <= 1e-5


@pytest.mark.parametrize("method", ["eigenvectors", "products"])
def test_what_needs_nothing_is_left_alone(method):
    shape = SHAPES[1]
    kernel = random_kernel(shape, 0.999, torch.float32)
    assert clip_and_mask(kernel, shape[3], 50, method) is kernel
    broken = kernel.clone()
    broken[0, 0, 0, 0] = torch.nan
    assert clip_and_mask(broken, shape[3], 50, method) is broken
    assert torch.equal(clip_and_mask(torch.zeros(2, 3, 2, 2), (4, 4), 3, method), torch.zeros(2, 3, 2, 2))


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
def test_the_layer_projects_at_the_size_that_it_convolves(padding_mode):
    torch.manual_seed(0)
    layer = SVCMConv2d(3, 5, 4, 2, input_size=(12, 8), padding_mode=padding_mode)
    with torch.no_grad():
        layer.kernel.mul_(3)
    before = layer.kernel.detach().clone()
    layer.project(20)
    grid = (6, 4) if padding_mode == "circular" else (7, 5)
    assert (layer.kernel - by_svd(before.double(), grid, 20)).abs().max() <= 1e-5
    assert (layer.kernel - before).abs().max() > 1e-2


def test_half_precision_is_projected_in_single():
    layer = SVCMConv2d(3, 5, 2, input_size=6, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.kernel.mul_(5)
    expected = by_svd(layer.kernel.detach().double(), (6, 6), 10).to(torch.bfloat16)
    layer.project(10)
    assert layer.kernel.dtype == torch.bfloat16 and torch.equal(layer.kernel, expected)


@needs_gpu
@pytest.mark.parametrize("norm", [7.07, 1.5, 1.01])
@pytest.mark.parametrize("shape", [*SHAPES, (32, 128, (2, 2), (16, 16)), (64, 256, (2, 2), (8, 8))], ids=str)
def test_on_a_gpu(shape, norm):
    kernel = random_kernel(shape, norm, torch.float32)
    expected = by_svd(kernel.double(), shape[3], 50)
    assert (clip_and_mask(kernel.cuda(), shape[3], 50).cpu() - expected).abs().max() <= 1e-5
    assert (clip_and_mask(kernel.double().cuda(), shape[3], 50).cpu() - expected).abs().max() <= 1e-10
