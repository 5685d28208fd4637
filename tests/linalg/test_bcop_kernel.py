"""The kernels of the paper's equations 1 and 2 against those equations, evaluated by explicit sums over all taps."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.linalg import bcop_kernel, bcop_kernel_1d, random_projector
from isoconv.linalg.bcop import append_pair, append_pair_from_basis
from linalg.linalg_reference import PRECISIONS, dense_convolution, normal, orthonormal


def projectors(n: int, ranks: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [random_projector(n, rank, generator=generator, dtype=torch.float64) for rank in ranks]


def every_choice(H: Tensor, *families: list[Tensor]) -> np.ndarray:
    """Equations 1 and 2 multiplied out: each factor contributes its first matrix, P or Q, or its second, I−P or I−Q.

    How often the second was taken in a [P; I−P] is the tap's row, in a [Q I−Q] its column.
    """
    K, n, dimensions = len(families[0]) + 1, H.shape[1], len(families)
    factors = [projector.numpy() for pair in zip(*families, strict=True) for projector in pair]
    kernel = np.zeros((*H.shape, *[K] * dimensions))
    for choice in product([0, 1], repeat=len(factors)):
        matrix = H.numpy()
        for taken, projector in zip(choice, factors, strict=True):
            matrix = matrix @ (np.eye(n) - projector if taken else projector)
        kernel[(slice(None), slice(None), *[sum(choice[d::dimensions]) for d in range(dimensions)])] += matrix
    return kernel


@pytest.mark.parametrize("K", [1, 2, 3, 4])
@pytest.mark.parametrize(("c_out", "c_in"), [(1, 1), (1, 2), (2, 3), (3, 3), (1, 4), (4, 4)])
def test_equals_equations_1_and_2(c_out, c_in, K):
    H = orthonormal(c_out, c_in, seed=1)
    for shift in range(c_in + 1):  # projectors of every rank, 0 and c_in among them
        ranks = [(shift + i) % (c_in + 1) for i in range(2 * (K - 1))]
        P, Q = projectors(c_in, ranks[0::2], seed=shift), projectors(c_in, ranks[1::2], seed=100 + shift)
        kernel, line = bcop_kernel(H, P, Q), bcop_kernel_1d(H, P)
        assert kernel.shape == (c_out, c_in, K, K)
        np.testing.assert_allclose(kernel.numpy(), every_choice(H, P, Q), rtol=0, atol=1e-12)
        np.testing.assert_allclose(line.numpy(), every_choice(H, P), rtol=0, atol=1e-12)
        if K > 1:
            assert torch.equal(bcop_kernel(H, torch.stack(P), torch.stack(Q)), kernel)


def test_rows_belong_to_p_and_columns_to_q():
    """With P = I the taps are in the first row, with P = 0 in the last; Q does the same to columns."""
    eye, zero, H = torch.eye(2), torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    for P, Q, row, column in [(eye, eye, 0, 0), (zero, eye, 2, 0), (eye, zero, 0, 2), (zero, zero, 2, 2)]:
        kernel = bcop_kernel(H, [P, P], [Q, Q])
        assert torch.equal(kernel[:, :, row, column], H)
        assert int((kernel != 0).sum()) == 2


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("c_out", "c_in", "K"), [(1, 1, 3), (2, 2, 2), (2, 4, 3), (3, 3, 3), (2, 3, 4)])
def test_the_convolution_is_orthogonal_at_every_size(c_out, c_in, K, dtype):
    P, Q = projectors(c_in, [1] * (K - 1), seed=5), projectors(c_in, [c_in // 2] * (K - 1), seed=6)
    kernel = bcop_kernel(orthonormal(c_out, c_in).to(dtype), [p.to(dtype) for p in P], [q.to(dtype) for q in Q])
    assert kernel.dtype == dtype
    line = bcop_kernel_1d(orthonormal(c_out, c_in).to(dtype), [p.to(dtype) for p in P])
    for size in [(1, 1), (2, 3), (4, 5), (1,), (3,), (9,)]:
        operator = dense_convolution((kernel if len(size) == 2 else line).double().numpy(), size)
        gram = operator @ operator.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), rtol=0, atol=20 * K * c_in * torch.finfo(dtype).eps)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_gradcheck(K):
    H = normal(2, 3, seed=8).requires_grad_()
    P, Q = normal(K - 1, 3, 3, seed=9).requires_grad_(), normal(K - 1, 3, 3, seed=10).requires_grad_()
    families = (P, Q) if K > 1 else (P.detach(), Q.detach())
    assert torch.autograd.gradcheck(bcop_kernel, (H, *families))
    assert torch.autograd.gradcheck(bcop_kernel_1d, (H, families[0]))


@pytest.mark.parametrize(("taps", "dim"), [((1,), -3), ((3,), -3), ((1, 1), -4), ((2, 3), -4), ((2, 3), -3)], ids=str)
def test_appending_a_pair_from_its_basis(taps, dim):
    """The same value as from the projector and, with P = RRᵀ, the same gradient; each of a batch with its own basis."""
    W = normal(3, *taps, 2, 5, seed=11).requires_grad_()
    R = torch.stack([orthonormal(5, 2, seed=seed) for seed in range(3)]).requires_grad_()
    batch = append_pair_from_basis(W, R, dim)
    expected = torch.stack([append_pair(w, r @ r.mT, dim + W.dim() - 1) for w, r in zip(W, R, strict=True)])
    torch.testing.assert_close(batch, expected, rtol=0, atol=1e-14)
    cotangent = normal(*batch.shape, seed=13)
    for a, b in zip(*(torch.autograd.grad(y, (W, R), cotangent) for y in (batch, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    assert torch.autograd.gradcheck(lambda w, r: append_pair_from_basis(w, r, dim), (W, R))
