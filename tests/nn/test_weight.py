"""`weight` is the kernel that is applied: an independent convolution with it gives what the layer gives."""

import pytest
import torch
from torch import Tensor

from helpers import (
    CONVOLUTIONS,
    LAYERS,
    SHAPES_1D,
    SHAPES_2D,
    convolution,
    convolved,
    jacobian,
    linear_part,
    made,
    named,
    padded,
    padding_modes,
    randomised,
)
from isoconv.linalg import bcop_kernel
from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d
from isoconv.nn.torus import TorusConv2d

TOLERANCE = 1e-12  # of sums of at most a few hundred products of order 1, in float64
layers = pytest.mark.parametrize("name", LAYERS)
modes = pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
LINEAR = [kind for kind in CONVOLUTIONS if kind not in ("sll", "cpl")]  # those are residual layers


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@modes
@pytest.mark.parametrize("row", [*SHAPES_2D, *SHAPES_1D], ids=named([*SHAPES_2D, *SHAPES_1D]))
@torch.no_grad()
def test_an_independent_convolution_with_weight(row, padding_mode):
    """The transposed layer is the adjoint: ⟨Wx, y⟩ = ⟨x, Wᵀy⟩."""
    c_in, c_out, k, s, *size = row
    options, small = {"padding_mode": padding_mode, "dtype": torch.float64}, [n // s for n in size]
    kinds = [kind for kind in LINEAR if padding_mode in padding_modes(kind)] if len(size) == 2 else []
    x, y = double(2, c_in, *size), double(2, c_out, *small)
    for layer in [convolution(kind, *row, **options) for kind in kinds] or [BCOPConv1d(*row[:4], **options)]:
        layer.eval()
        taps = small if isinstance(layer, TorusConv2d) else [k // s for _ in size]
        assert layer.weight.shape == (c_out, c_in * s ** len(size), *taps)
        expected = convolved(x, layer.weight, layer.bias, s, padding_mode)
        assert layer(x).shape == expected.shape == y.shape
        assert (layer(x) - expected).abs().max() <= TOLERANCE
    if len(size) == 2:
        layer = BCOPConvTranspose2d(c_out, c_in, k, s, **options).eval()
        assert layer.weight.shape == (c_out, c_in * s**2, k // s, k // s)
        backward = layer(y) - layer.bias[:, None, None]
        assert backward.shape == x.shape
        forward = convolved(x, layer.weight, None, s, padding_mode)
        assert float((forward * y).sum()) == pytest.approx(float((x * backward).sum()), abs=1e-11)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_sizes_given_as_tuples(kind):
    outputs, x = [], torch.randn(1, 2, 6, 4)
    for k, stride in [(4, 2), ((4, 4), (2, 2))]:
        torch.manual_seed(0)
        outputs.append(convolution(kind, 2, 3, k, stride, 6, 4).eval()(x))
    assert torch.equal(*outputs)
    assert BCOPConv1d(2, 3, (4,), (2,))(x[:, :, 0]).shape == (1, 3, 2)


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(("transposed", "sll", "cpl"))])
def test_in_training_too(name):
    layer, x = made(name, dtype=torch.float64)
    randomised(layer).train()
    # weight first: OSSN sharpens its estimate with every training pass, so let that converge
    if name.startswith("ossn"):
        layer.power_iterate(3000)
    weight = layer.weight.detach()
    y = layer(x).detach()
    if name.startswith("linear"):
        expected = x @ weight.T + layer.bias
    else:
        expected = convolved(x, weight, layer.bias, 2 if name.endswith("s2") else 1)
    assert (y - expected).abs().max() <= (1e-6 if name.startswith("ossn") else 1e-11)


@modes
@pytest.mark.parametrize("orthogonalisation", ["manifold", "bjorck"])
@pytest.mark.parametrize("row", SHAPES_2D[::3], ids=named(SHAPES_2D[::3]))
def test_transposed_gives_the_adjoint(row, orthogonalisation, padding_mode):
    c_in, c_out, _, s, H, W = row
    options = {"orthogonalisation": orthogonalisation, "padding_mode": padding_mode, "dtype": torch.float64}
    layer = BCOPConv2d(*row[:4], **options).eval()
    adjoint = layer.transposed()
    assert isinstance(adjoint, BCOPConvTranspose2d) and adjoint.bias is None
    matrix = jacobian(layer, c_in, H, W)
    assert (jacobian(adjoint, c_out, H // s, W // s) - matrix.T).abs().max() <= TOLERANCE


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_the_transposed_layer_shares_the_parameters(mode):
    layer = BCOPConv2d(2, 4, 3, dtype=torch.float64).train(mode)
    adjoint = layer.transposed().train(mode)
    own = {id(p) for p in layer.parameters()}
    assert list(adjoint.parameters()) and all(id(p) in own for p in adjoint.parameters())
    x = double(1, 2, 4, 4)
    layer(x), adjoint(layer(x))
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p))
    assert (adjoint(linear_part(layer, x)) - x).abs().max() <= TOLERANCE


def test_a_layer_and_its_adjoint_train_together():
    """An autoencoder of tied weights: both paths reach the shared parameters."""
    layer = BCOPConv2d(4, 2, 3, dtype=torch.float64)
    adjoint = layer.transposed()
    x, y = double(3, 4, 4, 4), double(3, 4, 4, 4)
    (adjoint(layer(x)) * y).sum().backward()
    both = layer.O.grad.clone()
    layer.zero_grad()
    with torch.no_grad():
        code = layer(x)
    (adjoint(code) * y).sum().backward()
    (layer(x) * linear_part(layer, y).detach()).sum().backward()
    assert torch.allclose(both, layer.O.grad, rtol=0, atol=1e-11)


@layers
def test_one_image_an_empty_batch_and_no_bias(name):
    layer, x = made(name)
    layer.eval()
    assert torch.allclose(layer(x[0]), layer(x)[0], rtol=0, atol=1e-6)
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    layer, _ = made(name, bias=False)
    assert layer.bias is None and "bias" not in layer.state_dict()
    assert torch.equal(layer.eval()(0 * x), torch.zeros_like(layer(x)))


@layers
def test_reset_parameters(name):
    layer, x = made(name)
    outputs = [layer.eval()(x).detach()]
    for seed in (7, 7):
        torch.manual_seed(seed)
        layer.reset_parameters()
        outputs.append(layer(x).detach())
    assert not torch.allclose(*outputs[:2], atol=1e-2)
    assert torch.equal(*outputs[1:])


@layers
def test_device_and_dtype_arguments(name):
    layer, x = made(name, device="cpu", dtype=torch.float64)
    assert {t.dtype for t in layer.state_dict().values()} == {torch.float64}
    assert layer(x).dtype == layer.weight.dtype == torch.float64
    assert {t.device.type for t in made(name, device="meta")[0].state_dict().values()} == {"meta"}


def test_the_reference_convolution_pads_as_agreed():
    """A check of the tests' own ruler: odd kernels symmetric, even ones with one more before."""
    row = torch.arange(3.0).reshape(1, 1, 3)
    assert padded(row, 3).tolist() == [[[2, 0, 1, 2, 0]]]
    assert padded(row, 4).tolist() == [[[1, 2, 0, 1, 2, 0]]]
    assert padded(row, 4, "zeros").tolist() == [[[0, 0, 0, 1, 2, 0]]]
    assert padded(row, 9).tolist() == [[[2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]]]
    assert padded(torch.arange(4.0).reshape(1, 1, 2, 2), 2, "zeros").tolist() == [[[[0, 0, 0], [0, 0, 1], [0, 2, 3]]]]


@pytest.mark.parametrize(("c_in", "c_out", "k"), [(4, 4, 2), (5, 3, 3), (3, 5, 3), (6, 6, 4)])
def test_bcop_weight_is_the_papers_equation(c_in: int, c_out: int, k: int) -> None:
    """Rows of taps belong to P, columns to Q; for c_in < c_out the kernel for the swapped channels, transposed."""
    layer = BCOPConv2d(c_in, c_out, k, dtype=torch.float64)
    P, Q = ([basis @ basis.mT for basis in list(layer.MN.detach())[start::2]] for start in (0, 1))
    kernel = bcop_kernel(layer.O.detach(), P, Q)
    expected = kernel if c_in >= c_out else kernel.transpose(0, 1)
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-12)
