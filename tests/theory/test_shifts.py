"""BCOP's kernels are products of rotated shifts, and an isometric depthwise convolution is a signed shift."""

import pytest
import torch
from torch.nn import functional as F

from isoconv import IsoconvError
from isoconv.linalg.bcop import bcop_kernel
from isoconv.nn import ChannelShift
from isoconv.theory import RotatedShift, bcop_as_shifts, depthwise_shift, kernel_of_shifts
from isoconv.theory.orthogonality import orthogonality_residual


@pytest.mark.parametrize(("c_out", "n", "K"), [(4, 4, 2), (3, 6, 3), (1, 5, 4), (2, 2, 1)])
def test_a_bcop_kernel_is_the_product_of_its_rotated_shifts(c_out, n, K, draw):
    H = draw.orthogonal(n)[:c_out]
    P, Q = ([draw.projector(n, draw.integer(0, n)) for _ in range(K - 1)] for _ in range(2))
    shifts = bcop_as_shifts(P, Q)
    assert [shift.axis for shift in shifts] == [0, 1] * (K - 1)
    kernel = kernel_of_shifts(H, shifts)
    assert kernel.shape == (c_out, n, K, K)
    assert (kernel - bcop_kernel(H, P, Q)).abs().max() <= 1e-13


def test_a_rotated_shift_does_what_it_says(draw):
    """Applied step by step: matrices on the channels and torch.roll, no kernel."""
    R, x = draw.orthogonal(5), draw.normal(1, 5, 4, 6)
    for staying, axis in ((2, 0), (0, 1), (5, 0)):
        turned = torch.einsum("ij,bjhw->bihw", R.mT, x)
        turned[:, staying:] = turned[:, staying:].roll(-1, 2 + axis)  # tap 1 of a cross-correlation sees the next pixel
        expected = torch.einsum("ij,bjhw->bihw", R, turned)
        pad = F.pad(x, (0, axis, 0, 1 - axis), mode="circular")
        found = F.conv2d(pad, RotatedShift(R, staying, axis).kernel())
        assert (found - expected).abs().max() <= 1e-13


def test_the_layer_is_a_depthwise_convolution_with_signed_shifts_for_taps():
    """The kernel of `ChannelShift`, read off an impulse, is what `depthwise_shift` finds."""
    impulse = torch.zeros(1, 16, 5, 5)
    impulse[:, :, 2, 2] = 1
    shift = depthwise_shift(ChannelShift()(impulse).transpose(0, 1))
    assert shift.defect == 0 and shift.sign.tolist() == [1.0] * 16
    moves = [[3, 2]] * 2 + [[1, 2]] * 2 + [[2, 3]] * 2 + [[2, 1]] * 2 + [[2, 2]] * 8
    assert shift.tap.tolist() == moves


@pytest.mark.parametrize("shape", [(6, 1, 4), (5, 1, 3, 4), (1, 1, 1, 1)])
def test_signed_shifts_are_recovered(shape, draw):
    kernel, signs = torch.zeros(shape).flatten(1), [2.0 * draw.integer(0, 1) - 1 for _ in range(shape[0])]
    for channel, sign in zip(kernel, signs, strict=True):
        channel[draw.integer(0, len(channel) - 1)] = sign
    kernel = kernel.reshape(shape)
    shift = depthwise_shift(kernel)
    assert shift.defect == 0 and shift.sign.tolist() == signs and shift.tap.shape == (shape[0], len(shape) - 2)
    assert [float(kernel[(c, 0, *tap)]) for c, tap in enumerate(shift.tap.tolist())] == signs


@pytest.mark.parametrize(("K", "L"), [(1, 4), (3, 3), (2, 5)])
def test_no_other_filter_is_isometric(K, L, draw):
    """The defect agrees with the dense test of orthogonality, channel by channel, and is large for every unit filter."""
    kernel = draw.normal(8, 1, K, L)
    kernel /= kernel.flatten(1).norm(dim=1)[:, None, None, None]
    residuals = [orthogonality_residual(channel[None]) for channel in kernel]
    assert depthwise_shift(kernel).defect == pytest.approx(max(residuals), rel=1e-12)
    assert min(residuals) > 1e-3
    # The product of the first and the last tap is one entry, so it bounds the defect from below.
    for channel, residual in zip(kernel, residuals, strict=True):
        assert residual >= abs(float(channel[0, 0, 0] * channel[0, -1, -1])) * (1 - 1e-12)


def test_on_one_size_alone_there_are_others():
    taps = torch.tensor([-1.0, 1, 1, 1], dtype=torch.float64) / 2
    on_four = torch.stack([taps.roll(k) for k in range(4)])
    assert torch.equal(on_four @ on_four.mT, torch.eye(4, dtype=torch.float64))
    assert depthwise_shift(taps[None, None]).defect == 0.25


@pytest.mark.parametrize("kernel", [torch.ones(3, 2, 3), torch.ones(3, 1), torch.ones(2, 1, 3, 3).long()])
def test_other_kernels_are_refused(kernel):
    with pytest.raises(IsoconvError, match="depthwise"):
        depthwise_shift(kernel)
