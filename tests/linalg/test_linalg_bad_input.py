"""Everything that linalg must refuse; each message names what was expected and what was given."""

from typing import Any

import pytest
import torch

import isoconv.linalg as ours
from isoconv.errors import IsoconvError

EYE = torch.eye(3)
KERNEL = torch.ones(2, 3, 3, 3)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (2, 4, 4)], ids=str)
def test_nan_and_infinity(shape, bad):
    a = torch.eye(shape[-2], shape[-1]).expand(shape).clone()
    a.view(-1)[-1] = bad
    assert not ours.is_orthonormal(a)
    kernel = a.reshape(1, -1, shape[-1])
    for function, arguments in [(ours.polar, (a,)), (ours.retract, (a,)), (ours.matrix_norm_bound, (kernel[0],))] + [
        (ours.conv_norm_bound, (kernel, 1, size)) for size in (None, 4)
    ]:
        with pytest.raises(IsoconvError, match=r"Expected finite .*Got NaN or infinity"):
            function(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polar_refuses_a_rank_deficient_matrix(dtype):
    counted, outer = torch.arange(1.0, 13.0).reshape(3, 4), torch.outer(torch.arange(5.0), torch.arange(1.0, 4.0))
    scaled, batch = [2.0**100 * counted, 2.0**-100 * counted], torch.stack([EYE, torch.diag(EYE[0] + EYE[2])])
    for matrix in [torch.zeros(1, 1), torch.ones(3, 4), outer, EYE[:, [0, 1, 1]], batch, *scaled]:
        with pytest.raises(IsoconvError, match=f"full rank.* rank-deficient in {dtype}"):
            ours.polar(matrix.to(dtype))


MATRICES = [ours.bjorck, ours.polar, ours.retract, ours.norm_upper_bound, ours.is_orthonormal]
CASES: list[tuple[Any, tuple[Any, ...], str]] = [
    *[
        (function, (matrix,), rf"matrix \(…, m, n\)\. Got {matrix.dtype} of shape")
        for function in (*MATRICES, lambda x: ours.project_to_tangent(x, x))
        for matrix in (torch.ones(3), torch.ones(()), EYE.long(), EYE.bool(), EYE.cfloat())
    ],
    *[
        (function, (5 * EYE.to(dtype),), f"float32 or float64.* Got {dtype}")
        for function in (ours.polar, ours.retract)
        for dtype in (torch.float16, torch.bfloat16)
    ],
    (ours.retract, (EYE, -1), "steps of at least 0"),
    *[(ours.bjorck, (EYE, *numbers), "iterations ≥ 0 and order ≥ 1") for numbers in [(-1, 1), (5, 0), (5, -2)]],
    *[(ours.random_projector, (3, rank), f"between 0 and 3. Got {rank}") for rank in (-1, 4, 100)],
    (ours.block_convolve, (torch.ones(2, 3), torch.ones(3, 2)), r"Got shapes \(2, 3\) and \(3, 2\)"),
    (ours.compose_kernels, (torch.ones(2, 3, 2), torch.ones(3, 2, 2, 2)), r"Got shapes \(2, 3, 2\)"),
    (ours.block_convolve, (torch.ones(2, 3, 1, 1, 1), torch.ones(3, 2, 1, 1, 1)), "two 1-D kernels"),
    (ours.block_convolve, (torch.ones(2, 3, 2), torch.ones(2, 3, 2)), "input channels .* Got 3 and 2"),
    (ours.compose_kernels, (), "at least one kernel"),
    (ours.bcop_kernel, (torch.ones(4, 3), [], []), r"c_out ≤ c_in\. Got shape \(4, 3\)"),
    (ours.bcop_kernel, (torch.ones(3), [], []), r"Got shape \(3,\)"),
    (ours.bcop_kernel, (EYE, [EYE], []), "as many projectors P as Q. Got 1 and 0"),
    (ours.bcop_kernel, (EYE, [torch.eye(2)], [EYE]), r"projectors of shape \(3, 3\)\. Got \(2, 2\)"),
    (ours.bcop_kernel, (EYE, [EYE], [EYE[:, :2]]), r"Got \(3, 2\)"),
    (ours.bcop_kernel, (EYE[:2], [torch.eye(2)], [torch.eye(2)]), r"projectors of shape \(3, 3\)\. Got \(2, 2\)"),
    (ours.bcop_kernel_1d, (torch.ones(4, 3), []), r"c_out ≤ c_in\. Got shape \(4, 3\)"),
    (ours.bcop_kernel_1d, (EYE, [EYE, torch.eye(4)]), r"Got \(4, 4\)"),
    *[(ours.matrix_norm_bound, (torch.ones(shape),), "matrix") for shape in [(3,), (2, 3, 4), ()]],
    *[(ours.conv_norm_bound, (torch.ones(shape),), "kernel") for shape in [(3,), (2, 3), (2, 3, 3, 3, 3)]],
    # Their imaginary part must not be dropped: ‖[1 + 5i]‖ = √26, and 1 is no bound of it.
    (ours.matrix_norm_bound, (torch.tensor([[1 + 5j]]),), "complex"),
    (ours.conv_norm_bound, (torch.tensor([[[1 + 5j]]]),), "complex"),
    (ours.conv_norm_bound, (KERNEL, 1, None, "reflect"), "padding_mode .*Got 'reflect'"),
    (ours.conv_norm_bound, (KERNEL, 2, 5), r"the stride \(2, 2\) divides\. Got \(5, 5\)"),
    (ours.conv_norm_bound, (KERNEL, (1, 3), (5, 5)), r"the stride \(1, 3\) divides"),
    *[(ours.conv_norm_bound, (KERNEL, 1, size), "size") for size in [(5,), (5, 5, 5), 0, -2, (4, 0)]],
    *[(ours.conv_norm_bound, (KERNEL, 1, size, "zeros"), "size") for size in [0, -2, (4, 0)]],
    # Also without an input size, where nothing else looks at the stride.
    *[(ours.conv_norm_bound, (KERNEL, s, n), "stride") for s in [0, -1, (2,), (2, 2, 2), (2, 0)] for n in (None, 6)],
    *[
        (function, (KERNEL, size), "1-D or 2-D kernel and one positive size")
        for function in (ours.circular_symbol, ours.circular_singular_values)
        for size in [(4,), (4, 4, 4), 0, (4, -1)]
    ],
    *[(ours.circular_symbol, (kernel, 4), "1-D or 2-D kernel") for kernel in (EYE, KERNEL[..., None])],
    *[(ours.fold_stride, (KERNEL, strides), "stride") for strides in [(2,), (2, 2, 2), (0, 1)]],
]


def test_arguments():
    for function, arguments, match in CASES:
        with pytest.raises(IsoconvError, match=match):
            function(*arguments)
