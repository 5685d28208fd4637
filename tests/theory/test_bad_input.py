"""Everything that must be refused, and with which words."""

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.theory import (
    BCOPFactors,
    BCOPNetwork,
    ascend,
    canonical_ranks,
    canonicalise,
    component,
    component_2d,
    double,
    double_network,
    exhibit_components,
    exhibit_components_2d,
    factorise,
    grassmann_path,
    halved_residual_loss,
    in_bcop_image_2x2,
    jacobian_spectrum,
    kernel_elements,
    kernel_from_elements,
    move_rank,
    path,
    path_2d,
    projector_dimension,
    rank_sum,
    real_channels,
    recover_2x2,
    rotation_path,
    separation,
    steepest_direction,
    zero_padded_matrix,
    zero_padding_loss,
)

EYE = torch.eye(2, dtype=torch.float64)
NOTHING = torch.zeros(2, 2, dtype=torch.float64)
FIRST = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("function", [factorise, rank_sum, component])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (torch.zeros(2, 3, 2), r"square floating-point kernel \(n, n, K\)\. Got torch.float32 of shape \(2, 3, 2\)"),
        (torch.zeros(2, 2), r"square floating-point kernel \(n, n, K\)\. Got .* \(2, 2\)"),
        (torch.zeros(2, 2, 0), r"square floating-point kernel"),
        (torch.zeros(0, 0, 3), r"square floating-point kernel"),
        (torch.zeros(2, 2, 3, dtype=torch.int64), r"floating-point .* Got torch.int64"),
        (torch.zeros(2, 2, 3), r"orthogonal kernel, .* Got a residual of 1\.0e\+00"),
        (1.01 * EYE[..., None], r"≤ 4\.4e-15\. Got a residual of 2\.0e-02"),
        (torch.full((2, 2, 3), torch.nan), r"Got a residual of nan"),
    ],
)
def test_one_dimensional_kernels(function, kernel, message):
    with pytest.raises(IsoconvError, match=message):
        function(kernel)


def test_the_tolerance_is_the_callers():
    nearly = EYE[..., None] * (1 + 1e-6)
    with pytest.raises(IsoconvError, match=r"‖W □ Wᵀ − I‖_max ≤ 1\.0e-07\. Got a residual of 2\.0e-06"):
        factorise(nearly, tolerance=1e-7)
    H, P = factorise(nearly, tolerance=1e-5)
    assert torch.allclose(H, EYE) and P == []


@pytest.mark.parametrize("function", [recover_2x2, in_bcop_image_2x2])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (torch.zeros(2, 2, 3, 3), r"kernel \(n, n, 2, 2\)\. Got shape \(2, 2, 3, 3\)"),
        (torch.zeros(2, 2, 2), r"kernel \(n, n, 2, 2\)\. Got shape \(2, 2, 2\)"),
        (torch.zeros(2, 3, 2, 2), r"square floating-point kernel \(n, n, K, K\)"),
        (torch.ones(2, 2, 2, 2), r"orthogonal kernel, .* Got a residual of 8\.0e\+00"),
    ],
)
def test_two_dimensional_kernels(function, kernel, message):
    with pytest.raises(IsoconvError, match=message):
        function(kernel)


CALLS = {
    "2-D kernel not square": (
        lambda: component_2d(torch.zeros(2, 3, 2, 2)),
        r"kernel \(n, n, K, K\)\. Got .*\(2, 3, 2, 2\)",
    ),
    "2-D kernel of two sizes": (
        lambda: component_2d(torch.zeros(2, 2, 2, 3)),
        r"kernel \(n, n, K, K\)\. Got .*\(2, 2, 2, 3\)",
    ),
    "2-D kernel not orthogonal": (lambda: component_2d(torch.ones(2, 2, 2, 2)), r"Got a residual of 8\.0e\+00"),
    "rank sum too large": (lambda: canonical_ranks(2, 3, 5), r"0 ≤ rank sum ≤ \(K − 1\)n\. Got n = 2, K = 3, 5"),
    "rank sum negative": (lambda: canonical_ranks(2, 3, -1), r"Got n = 2, K = 3, -1"),
    "no channels": (lambda: next(exhibit_components(0, 2)), r"Expected n, K ≥ 1\. Got n = 0 and K = 2"),
    "no channels in 2-D": (lambda: next(exhibit_components_2d(0)), r"Expected n, K ≥ 1\. Got n = 0 and K = 2"),
    "rank above n": (lambda: projector_dimension(3, 4), r"rank between 0 and 3\. Got 4"),
    "negative rank": (lambda: projector_dimension(3, -1), r"rank between 0 and 3\. Got -1"),
    "elements of a matrix": (lambda: kernel_elements(EYE), r"1-D kernel \(c_out, c_in, K\)\. Got shape \(2, 2\)"),
    "taps of a matrix": (lambda: kernel_from_elements(EYE), r"1-D kernel \(c_out, c_in, K\)"),
    "separation of two shapes": (
        lambda: separation(EYE[..., None], torch.zeros(2, 2, 2)),
        r"one shape\. Got \(2, 2, 1\) and \(2, 2, 2\)",
    ),
    "nothing to give": (lambda: move_rank(NOTHING, EYE), r"donor's range \(rank 0\) .* \(rank 2\)\. Got none"),
    "nothing that fits": (
        lambda: move_rank(FIRST, torch.full((2, 2), 0.5, dtype=torch.float64)),
        r"donor's range \(rank 1\) that is orthogonal to the receiver's \(rank 1\)\. Got none",
    ),
    "projectors of two sizes": (lambda: move_rank(EYE, torch.eye(3)), r"one shape\. Got \(2, 2\) and \(3, 3\)"),
    "no projector": (lambda: move_rank(2 * EYE, EYE), r"symmetric projector, P = Pᵀ = P²\. Got shape \(2, 2\)"),
    "no projectors": (lambda: canonicalise(EYE, [2 * EYE]), r"symmetric projector"),
    "H not square": (lambda: double(EYE[:1], [EYE], [EYE]), r"square matrix H \(n, n\)\. Got shape \(1, 2\)"),
    "H not orthogonal": (lambda: double(2 * EYE, [EYE], [EYE]), r"orthonormal rows\. Got a residual of 3\.0e\+00"),
    "P no projector": (lambda: double(EYE, [2 * EYE], [EYE]), r"symmetric projector"),
    "narrowing first layer": (
        lambda: double_network(BCOPNetwork(BCOPFactors(torch.zeros(3, 2), [], []), [], EYE)),
        r"first layer that does not narrow, .* Got shape \(3, 2\)",
    ),
    "first layer not orthogonal": (
        lambda: double_network(BCOPNetwork(BCOPFactors(torch.ones(1, 2), [], []), [], EYE)),
        r"orthonormal rows\. Got a residual of 1\.0e\+00 at shape \(1, 2\)",
    ),
    "layers of two widths": (
        lambda: double_network(BCOPNetwork(BCOPFactors(EYE, [], []), [BCOPFactors(torch.eye(3), [], [])], EYE)),
        r"H of shape \(2, 2\) after the first layer\. Got \[\(3, 3\)\]",
    ),
    "head of another width": (
        lambda: double_network(BCOPNetwork(BCOPFactors(EYE, [], []), [], torch.zeros(2, 5))),
        r"head \(classes, 2·height·width\)\. Got shape \(2, 5\)",
    ),
    "odd channels": (lambda: real_channels(3), r"even number of channels, .* Got 3"),
    "even kernel": (lambda: zero_padded_matrix(torch.zeros(1, 1, 2), 4), r"odd size\. Got shape \(1, 1, 2\)"),
    "even kernel's loss": (lambda: zero_padding_loss(torch.zeros(1, 1, 2)), r"odd size\. Got shape \(1, 1, 2\)"),
    "no length": (lambda: zero_padded_matrix(torch.zeros(1, 1, 3), 0), r"length of at least 1\. Got 0"),
    "Jacobian not square": (lambda: halved_residual_loss(EYE[:1]), r"square Jacobian .* Got shape \(1, 2\)"),
    "Jacobian too large": (lambda: halved_residual_loss(1.5 * EYE), r"norm at most 1\. Got 1\.5"),
    "Jacobian of NaN": (lambda: halved_residual_loss(EYE * torch.nan), r"norm at most 1\. Got nan"),
    "gradient of a vector": (lambda: steepest_direction(torch.zeros(3)), r"matrix \(…, m, n\)\. Got .* \(3,\)"),
    "gradient of NaN": (lambda: steepest_direction(EYE * torch.nan), r"finite gradient\. Got infinities or NaN"),
    "ascent of two shapes": (
        lambda: ascend(EYE, EYE[:1], steepest=True),
        r"one shape\. Got \(2, 2\) and \(1, 2\)",
    ),
    "path of two shapes": (
        lambda: path(EYE[..., None], torch.zeros(2, 2, 2)),
        r"one shape\. Got \(2, 2, 1\) and \(2, 2, 2\)",
    ),
    "path from no orthogonal kernel": (lambda: path(2 * EYE[..., None], EYE[..., None]), r"Got a residual of 3\.0"),
    "path between components": (lambda: path(EYE[..., None], FIRST[..., None] * 2 - EYE[..., None]), r"one component"),
    "2-D path, H not square": (
        lambda: path_2d(BCOPFactors(EYE[:1], [EYE], [EYE]), BCOPFactors(EYE, [EYE], [EYE])),
        r"square matrix H \(n, n\)\. Got shape \(1, 2\)",
    ),
    "2-D path, H not orthogonal": (
        lambda: path_2d(BCOPFactors(EYE * torch.nan, [EYE], [EYE]), BCOPFactors(EYE, [EYE], [EYE])),
        r"orthonormal rows\. Got a residual of nan",
    ),
    "2-D path between ranks": (
        lambda: path_2d(BCOPFactors(EYE, [EYE], [EYE]), BCOPFactors(EYE, [FIRST], [EYE])),
        r"same ranks of P and of Q\. Got \(1, \(2,\), \(2,\)\) and \(1, \(1,\), \(2,\)\)",
    ),
    "rotation and reflection": (lambda: rotation_path(EYE, 2 * FIRST - EYE), r"one shape and one determinant"),
    "rotation that is none": (lambda: rotation_path(EYE, 2 * EYE), r"two orthogonal matrices"),
    "subspaces of two ranks": (lambda: grassmann_path(EYE, FIRST), r"ranks 2 and 1"),
    "subspaces of two spaces": (lambda: grassmann_path(EYE, torch.eye(3)), r"shapes \(2, 2\) and \(3, 3\)"),
    "batch of two": (lambda: jacobian_spectrum(lambda x: x, torch.zeros(2, 3)), r"batch of one input .* \(2, 3\)"),
    "integer input": (
        lambda: jacobian_spectrum(lambda x: x, torch.zeros(1, 3, dtype=torch.int64)),
        r"floating-point batch of one input \(1, …\)\. Got torch.int64",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_refused(case):
    call, message = CALLS[case]
    with pytest.raises(IsoconvError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
