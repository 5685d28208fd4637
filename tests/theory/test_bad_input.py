"""Everything that must be refused, in one line that names what is wrong."""

import pytest
import torch

from isoconv import theory as t
from isoconv.errors import IsoconvError

EYE = torch.eye(2, dtype=torch.float64)
ONE = EYE[..., None]  # a kernel of one tap
FIRST = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
HALF = torch.full((2, 2), 0.5, dtype=torch.float64)
FACTORS = t.BCOPFactors(EYE, [EYE], [EYE])


def network(H, rest=(), head=EYE):
    return t.BCOPNetwork(t.BCOPFactors(H, [], []), [t.BCOPFactors(h, [], []) for h in rest], head)


CASES = [
    (lambda: t.factorise(torch.zeros(2, 3, 2)), r"\(n, n, K\)\. Got torch.float32 of shape \(2, 3, 2\)"),
    (lambda: t.factorise(torch.zeros(2, 2, 3, dtype=torch.int64)), r"floating-point .* Got torch.int64"),
    (lambda: t.rank_sum(1.01 * ONE), r"≤ 4\.4e-15\. Got a residual of 2\.0e-02"),
    (lambda: t.component(torch.full((2, 2, 3), torch.nan)), r"residual of nan"),
    (lambda: t.factorise(ONE * (1 + 1e-6), tolerance=1e-7), r"≤ 1\.0e-07\. Got a residual of 2\.0e-06"),
    (lambda: t.recover_2x2(torch.zeros(2, 2, 3, 3)), r"\(n, n, 2, 2\)\. Got shape \(2, 2, 3, 3\)"),
    (lambda: t.in_bcop_image_2x2(torch.ones(2, 2, 2, 2)), r"residual of 8\.0e\+00"),
    (lambda: t.component_2d(torch.zeros(2, 3, 2, 2)), r"\(n, n, K, K\)\. Got .*\(2, 3, 2, 2\)"),
    (lambda: t.canonical_ranks(2, 3, 5), r"rank sum .* K = 3, 5"),
    (lambda: next(t.exhibit_components(0, 2)), r"n = 0 and K = 2"),
    (lambda: t.projector_dimension(3, 4), r"rank between 0 and 3\. Got 4"),
    (lambda: t.kernel_elements(EYE), r"1-D kernel .* \(2, 2\)"),
    (lambda: t.separation(ONE, torch.zeros(2, 2, 2)), r"one shape\. Got \(2, 2, 1\) and \(2, 2, 2\)"),
    (lambda: t.move_rank(0 * EYE, EYE), r"donor's range .* ranks 0 and 2"),
    (lambda: t.move_rank(FIRST, HALF), r"donor's range .* ranks 1 and 1"),
    (lambda: t.canonicalise(EYE, [2 * EYE]), r"symmetric projector"),
    (lambda: t.double(EYE[:1], [EYE], [EYE]), r"square matrix H .* \(1, 2\)"),
    (lambda: t.double(2 * EYE, [EYE], [EYE]), r"orthonormal rows\. Got a residual of 3\.0e\+00"),
    (lambda: t.double_network(network(torch.zeros(3, 2))), r"first layer .* \(3, 2\)"),
    (lambda: t.double_network(network(torch.ones(1, 2))), r"orthonormal rows\. .* \(1, 2\)"),
    (lambda: t.double_network(network(EYE, [torch.eye(3)])), r"after the first layer\. Got \[\(3, 3\)\]"),
    (lambda: t.double_network(network(EYE, head=torch.zeros(2, 5))), r"head .* \(2, 5\)"),
    (lambda: t.real_channels(3), r"even number of channels, .* Got 3"),
    (lambda: t.depthwise_shift(torch.ones(3, 2, 3)), "depthwise"),
    (lambda: t.zero_padded_matrix(torch.zeros(1, 1, 2), 4), r"odd size\. .* \(1, 1, 2\)"),
    (lambda: t.zero_padded_matrix(torch.zeros(1, 1, 3), 0), r"length of at least 1\. Got 0"),
    (lambda: t.halved_residual_loss(EYE[:1]), r"square Jacobian .* \(1, 2\)"),
    (lambda: t.halved_residual_loss(1.5 * EYE), r"norm at most 1\. Got 1\.5"),
    (lambda: t.steepest_direction(torch.zeros(3)), r"matrix \(…, m, n\)\. Got .* \(3,\)"),
    (lambda: t.steepest_direction(EYE * torch.nan), r"finite gradient"),
    (lambda: t.path(ONE, FIRST[..., None] * 2 - ONE), r"one component: .*sign=1.*sign=-1"),
    (lambda: t.path_2d(FACTORS._replace(H=EYE * torch.nan), FACTORS), r"orthonormal rows\. Got a residual of nan"),
    (lambda: t.path_2d(FACTORS, FACTORS._replace(P=[FIRST])), r"ranks .*\[\[\[2\], \[2\]\], \[\[1\], \[2\]\]\]"),
    (lambda: t.rotation_path(EYE, 2 * FIRST - EYE), r"one determinant"),
    (lambda: t.grassmann_path(EYE, FIRST), r"ranks 2 and 1"),
    (lambda: t.jacobian_spectrum(lambda x: x, torch.zeros(2, 3)), r"batch of one input .* \(2, 3\)"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_refused(call, message):
    with pytest.raises(IsoconvError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_tolerance_is_the_callers():
    H, P = t.factorise(ONE * (1 + 1e-6), tolerance=1e-5)
    assert (H - EYE).abs().max() < 1e-14 and P == []  # orthogonal, which the kernel is not
