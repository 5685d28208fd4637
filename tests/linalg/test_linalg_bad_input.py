"""Everything that linalg must refuse, and with which words."""

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.linalg import (
    bcop_kernel,
    bcop_kernel_1d,
    bjorck,
    block_convolve,
    circular_singular_values,
    circular_symbol,
    compose_kernels,
    conv_norm_bound,
    fold_stride,
    is_orthonormal,
    matrix_norm_bound,
    norm_upper_bound,
    polar,
    project_to_tangent,
    random_projector,
    retract,
)

EYE = torch.eye(3)
KERNEL = torch.ones(2, 3, 3, 3)


@pytest.mark.parametrize(
    "function",
    [
        bjorck,
        polar,
        retract,
        lambda x: retract(x, 2),
        norm_upper_bound,
        is_orthonormal,
        lambda x: project_to_tangent(x, x),
    ],
    ids=["bjorck", "polar", "retract", "retract blindly", "norm_upper_bound", "is_orthonormal", "project_to_tangent"],
)
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(3), r"real floating-point matrix \(…, m, n\)\. Got torch\.float32 of shape \(3,\)"),
        (torch.ones(()), r"real floating-point matrix .* of shape \(\)"),
        (torch.eye(3, dtype=torch.int64), r"real floating-point matrix .* Got torch\.int64 of shape \(3, 3\)"),
        (torch.eye(3, dtype=torch.bool), r"Got torch\.bool"),
        (torch.eye(3, dtype=torch.complex64), r"Got torch\.complex64"),
    ],
    ids=["vector", "scalar", "integers", "bool", "complex"],
)
def test_matrices(function, matrix, message):
    with pytest.raises(IsoconvError, match=message):
        function(matrix)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    with pytest.raises(IsoconvError, match=rf"Expected float32 or float64.* Got {dtype}"):
        polar(torch.eye(3, dtype=dtype))
    with pytest.raises(IsoconvError, match="float32 or float64"):
        retract(5 * torch.ones(3, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (2, 4, 4)], ids=str)
def test_nan_and_infinity(shape, bad, dtype):
    a = torch.eye(shape[-2], shape[-1], dtype=dtype).expand(shape).clone()
    a.view(-1)[-1] = bad
    with pytest.raises(IsoconvError, match=r"Expected finite numbers\. Got NaN or infinity in a matrix"):
        polar(a)
    with pytest.raises(
        IsoconvError, match=r"Expected finite parameters\. Got NaN or infinity .*has training diverged\?"
    ):
        retract(a)
    assert not is_orthonormal(a)
    with pytest.raises(IsoconvError, match=r"Expected finite weights\. Got NaN or infinity"):
        matrix_norm_bound(a.reshape(-1, shape[-1]))
    for size in (None, 4):
        with pytest.raises(IsoconvError, match=r"Expected finite weights\. Got NaN or infinity"):
            conv_norm_bound(a.reshape(1, -1, shape[-1]), input_size=size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "matrix",
    [
        torch.zeros(1, 1),
        torch.zeros(4, 3),
        torch.ones(3, 4),
        torch.outer(torch.arange(5.0), torch.arange(1.0, 4.0)),
        torch.eye(4)[:, [0, 1, 1]],
        torch.stack([EYE, torch.diag(torch.tensor([1.0, 0.0, 1.0]))]),
        torch.arange(1.0, 10.0).reshape(3, 3),
        2.0**100 * torch.arange(1.0, 13.0).reshape(3, 4),
        2.0**-100 * torch.arange(1.0, 13.0).reshape(3, 4),
    ],
    ids=lambda m: f"{tuple(m.shape)}-{float(m.sum()):g}",
)
def test_polar_refuses_a_rank_deficient_matrix(matrix, dtype):
    with pytest.raises(IsoconvError, match=rf"matrix of full rank\. Got one of shape .* rank-deficient in {dtype}"):
        polar(matrix.to(dtype))


@pytest.mark.parametrize(("iterations", "order"), [(-1, 1), (5, 0), (5, -2)])
def test_bjorck(iterations, order):
    with pytest.raises(IsoconvError, match=rf"iterations ≥ 0 and order ≥ 1\. Got {iterations} and {order}"):
        bjorck(EYE, iterations, order)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), r"two 1-D kernels .* Got shapes \(2, 3\) and \(3, 2\)"),
        (torch.ones(2, 3, 2), torch.ones(3, 2, 2, 2), r"Got shapes \(2, 3, 2\) and \(3, 2, 2, 2\)"),
        (torch.ones(2, 3, 1, 1, 1), torch.ones(3, 2, 1, 1, 1), r"two 1-D kernels"),
        (torch.ones(2, 3, 2), torch.ones(2, 3, 2), r"input channels to equal .* Got 3 and 2"),
    ],
)
def test_block_convolution(x, y, message):
    for function in (block_convolve, compose_kernels):
        with pytest.raises(IsoconvError, match=message):
            function(x, y)


def test_no_kernel():
    with pytest.raises(IsoconvError, match=r"at least one kernel\. Got none"):
        compose_kernels()


@pytest.mark.parametrize("rank", [-1, 4, 100])
def test_rank(rank):
    with pytest.raises(IsoconvError, match=rf"a rank between 0 and 3\. Got {rank}"):
        random_projector(3, rank)


@pytest.mark.parametrize(
    ("H", "P", "Q", "message"),
    [
        (torch.ones(4, 3), [], [], r"c_out ≤ c_in\. Got shape \(4, 3\)"),
        (torch.ones(3), [], [], r"a matrix \(c_out, c_in\) .* Got shape \(3,\)"),
        (torch.ones(1, 3, 3), [], [], r"Got shape \(1, 3, 3\)"),
        (EYE, [EYE], [], r"as many projectors P as Q\. Got 1 and 0"),
        (EYE, [EYE], [EYE, EYE], r"Got 1 and 2"),
        (EYE, [torch.eye(2)], [EYE], r"projectors of shape \(3, 3\)\. Got \(2, 2\)"),
        (EYE, [EYE], [EYE[:, :2]], r"projectors of shape \(3, 3\)\. Got \(3, 2\)"),
        (EYE, [EYE[None]], [EYE], r"Got \(1, 3, 3\)"),
        (EYE[:2], [torch.eye(2)], [torch.eye(2)], r"projectors of shape \(3, 3\)\. Got \(2, 2\)"),
    ],
)
def test_bcop_kernels(H, P, Q, message):
    with pytest.raises(IsoconvError, match=message):
        bcop_kernel(H, P, Q)


@pytest.mark.parametrize(
    ("H", "P", "message"),
    [(torch.ones(4, 3), [], r"c_out ≤ c_in\. Got shape \(4, 3\)"), (EYE, [EYE, torch.eye(4)], r"Got \(4, 4\)")],
)
def test_bcop_kernels_1d(H, P, message):
    with pytest.raises(IsoconvError, match=message):
        bcop_kernel_1d(H, P)


@pytest.mark.parametrize("function", [circular_symbol, circular_singular_values])
@pytest.mark.parametrize(
    ("kernel", "size"),
    [
        (torch.ones(2, 2), 4),
        (torch.ones(2, 2, 3, 3, 3), 4),
        (KERNEL, (4,)),
        (KERNEL, (4, 4, 4)),
        (KERNEL, 0),
        (KERNEL, (4, -1)),
        (KERNEL[..., 0], (4, 4)),
    ],
    ids=lambda x: str(tuple(x.shape)) if isinstance(x, torch.Tensor) else str(x),
)
def test_spectra(function, kernel, size):
    with pytest.raises(IsoconvError, match=r"a 1-D or 2-D kernel and one positive size per dimension\. Got"):
        function(kernel, size)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), ()], ids=str)
def test_matrix_norm_bound(shape):
    with pytest.raises(IsoconvError, match=r"a matrix \(m, n\)\. Got shape"):
        matrix_norm_bound(torch.ones(shape))


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
def test_norm_bounds_of_complex_weights():
    """Their imaginary part must not be dropped: ‖[1 + 5i]‖ = √26, and 1 is no bound of it."""
    with pytest.raises(IsoconvError, match="complex"):
        matrix_norm_bound(torch.tensor([[1 + 5j]]))
    with pytest.raises(IsoconvError, match="complex"):
        conv_norm_bound(torch.tensor([[[1 + 5j]]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding_mode": "reflect"}, r"padding_mode 'circular' or 'zeros'\. Got 'reflect'"),
        ({"padding_mode": "same"}, r"Got 'same'"),
        ({"stride": 2, "input_size": 5}, r"an input size that the stride \(2, 2\) divides\. Got \(5, 5\)"),
        ({"stride": (1, 3), "input_size": (5, 5)}, r"the stride \(1, 3\) divides"),
        ({"input_size": (5,)}, "size"),
        ({"input_size": (5, 5, 5)}, "size"),
    ],
)
def test_conv_norm_bound(arguments, message):
    with pytest.raises(IsoconvError, match=message):
        conv_norm_bound(KERNEL, **arguments)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 3, 3, 3)], ids=str)
def test_kernels_that_are_none(shape):
    with pytest.raises(IsoconvError, match=r"a kernel \(c_out, c_in, K\) or \(c_out, c_in, K, K'\)\. Got"):
        conv_norm_bound(torch.ones(shape))


@pytest.mark.parametrize("stride", [0, -1, (2,), (2, 2, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("size", [None, 6])
def test_strides_that_are_none(stride, size):
    """Also without an input size, where nothing else looks at them."""
    with pytest.raises(IsoconvError, match="stride"):
        conv_norm_bound(KERNEL, stride, size)


@pytest.mark.parametrize("strides", [(2,), (2, 2, 2), (0, 1)], ids=str)
def test_fold_stride(strides):
    with pytest.raises(IsoconvError, match="stride"):
        fold_stride(KERNEL, strides)


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("size", [0, -2, (4, 0)], ids=str)
def test_sizes_that_are_none(size, mode):
    with pytest.raises(IsoconvError, match="size"):
        conv_norm_bound(KERNEL, 1, size, mode)
