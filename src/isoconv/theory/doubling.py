"""Twice the channels, one component (Theorem "BCOP Construction with Auxiliary Dimension").

Every projector P of rank k becomes diag(P, S) with S of rank n − k, so that all ranks are n; H becomes diag(H, D).
The upper n channels never see the lower, "dummy" ones. The paper takes D = I, which leaves the sign of det H and with
it two components; D = diag(det H, 1, …, 1) puts everything into one.

Note [Where the dummies go]
MaxMin pairs channel i with channel i + C/2. With the real channels first, a doubled layer would pair each of them
with a dummy. So the channels of a doubled *network* are ordered in four blocks of n/2: first half of the real ones,
dummies, second half of the real ones, dummies. Real channels then meet the partners that they had before.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.bcop import bcop_kernel
from isoconv.theory.orthogonality import determinant_sign, require_orthonormal_rows, require_projector


class BCOPFactors(NamedTuple):
    """What a 2-D BCOP kernel is made of: `bcop_kernel(H, P, Q)`."""

    H: Tensor
    """(c_out, c_in), c_out ≤ c_in, with orthonormal rows."""
    P: list[Tensor]
    """K − 1 symmetric projectors (c_in, c_in) along the height."""
    Q: list[Tensor]
    """K − 1 symmetric projectors (c_in, c_in) along the width."""


class BCOPNetwork(NamedTuple):
    """Convolutions with MaxMin after each, then one matrix on the flattened features.

    The first convolution widens, as a network's first layer does: its kernel is built for the swapped channels, H of
    shape (m, n), and transposed. The others have n channels in and out. `head` is (classes, n·height·width).
    """

    first: BCOPFactors
    rest: list[BCOPFactors]
    head: Tensor

    def kernels(self) -> list[Tensor]:
        """The convolutions' weights, (n, m, K, K) and then (n, n, K, K)."""
        return [bcop_kernel(*self.first).transpose(0, 1), *(bcop_kernel(*layer) for layer in self.rest)]


def double(H: Tensor, P: Sequence[Tensor], Q: Sequence[Tensor]) -> BCOPFactors:
    """(H', P', Q') on 2n channels: all ranks n, det H' = 1, C'(x)_{1:n} = C(x_{1:n}); in the input's precision."""
    if H.dim() != 2 or H.shape[0] != H.shape[1]:
        raise IsoconvError(f"Expected a square matrix H (n, n). Got shape {tuple(H.shape)}.")
    require_orthonormal_rows(H)
    dummy = torch.eye(H.shape[0], dtype=H.dtype, device=H.device)
    dummy[0, 0] = determinant_sign(H)
    return BCOPFactors(_block_diagonal(H, dummy), [_double_projector(p) for p in P], [_double_projector(q) for q in Q])


def double_network(network: BCOPNetwork) -> BCOPNetwork:
    """The same function with 2n channels, where every projector has half rank and every square H determinant 1.

    The first layer's H gets n zero columns (its dummies are 0 throughout), the head zero columns for the dummies. The
    channels are ordered as in Note [Where the dummies go]; `real_channels(n)` says where those of a bias, say, are now.
    """
    first, rest, head = network
    if first.H.dim() != 2 or first.H.shape[0] > first.H.shape[1]:
        shape = tuple(first.H.shape)
        raise IsoconvError(f"Expected a first layer that does not narrow, H (m, n) with m ≤ n. Got shape {shape}.")
    n = first.H.shape[1]
    require_orthonormal_rows(first.H)
    if any(layer.H.shape != (n, n) for layer in rest):
        raise IsoconvError(
            f"Expected H of shape ({n}, {n}) after the first layer. Got {[tuple(r.H.shape) for r in rest]}."
        )
    if head.dim() != 2 or head.shape[1] % n:
        raise IsoconvError(f"Expected a head (classes, {n}·height·width). Got shape {tuple(head.shape)}.")
    order = _channel_order(n).to(head.device)
    widened = BCOPFactors(
        torch.cat([first.H, torch.zeros_like(first.H)], dim=1)[:, order],
        [_permuted(_double_projector(p), order) for p in first.P],
        [_permuted(_double_projector(q), order) for q in first.Q],
    )
    doubled = [
        BCOPFactors(
            _permuted(layer.H, order), [_permuted(p, order) for p in layer.P], [_permuted(q, order) for q in layer.Q]
        )
        for layer in (double(*given) for given in rest)
    ]
    per_channel = head.reshape(head.shape[0], n, -1)
    padded = torch.cat([per_channel, torch.zeros_like(per_channel)], dim=1)
    return BCOPNetwork(widened, doubled, padded[:, order].flatten(1))


def real_channels(n: int) -> Tensor:
    """Where channel i of n stands among the 2n channels of a doubled network."""
    return torch.argsort(_channel_order(n))[:n]


def _double_projector(projector: Tensor) -> Tensor:
    n, rank = projector.shape[0], require_projector(projector)
    complement = torch.diag((torch.arange(n, device=projector.device) < n - rank).to(projector.dtype))
    return _block_diagonal(projector, complement)


def _block_diagonal(upper: Tensor, lower: Tensor) -> Tensor:
    rows, columns = upper.shape
    whole = upper.new_zeros(rows + lower.shape[0], columns + lower.shape[1])
    whole[:rows, :columns], whole[rows:, columns:] = upper, lower
    return whole


def _channel_order(n: int) -> Tensor:
    """Which of the channels "n real ones, then n dummies" stands at each place of a doubled layer."""
    if n % 2:
        raise IsoconvError(f"Expected an even number of channels, since MaxMin pairs them. Got {n}.")
    channels = torch.arange(2 * n).reshape(2, 2, n // 2)  # real or dummy, half, place
    return channels.transpose(0, 1).reshape(-1)


def _permuted(matrix: Tensor, order: Tensor) -> Tensor:
    return matrix[order][:, order]
