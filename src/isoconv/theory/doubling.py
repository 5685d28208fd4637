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

from isoconv.linalg.bcop import bcop_kernel
from isoconv.records import require
from isoconv.theory.orthogonality import (
    leading_projector,
    require_orthogonal_matrix,
    require_orthonormal_rows,
    require_projector,
    signed_identity,
)


class BCOPFactors(NamedTuple):
    """What a 2-D BCOP kernel is made of: `bcop_kernel(H, P, Q)`.

    H : (c_out, c_in), c_out ≤ c_in, with orthonormal rows
    P : K − 1 symmetric projectors (c_in, c_in) along the height
    Q : K − 1 symmetric projectors (c_in, c_in) along the width
    """

    H: Tensor
    P: list[Tensor]
    Q: list[Tensor]


class BCOPNetwork(NamedTuple):
    """Convolutions with MaxMin after each, then one matrix on the flattened features.

    The first convolution widens, as a network's first layer does: its kernel is built for the swapped channels, H of
    shape (m, n), and transposed. The others have n channels in and out. `head` is (classes, n·height·width).
    """

    first: BCOPFactors
    rest: list[BCOPFactors]
    head: Tensor

    def kernels(self) -> list[Tensor]:
        """Return the convolutions' weights, (n, m, K, K) and then (n, n, K, K)."""
        return [bcop_kernel(*self.first).transpose(0, 1), *(bcop_kernel(*layer) for layer in self.rest)]


def double(H: Tensor, P: Sequence[Tensor], Q: Sequence[Tensor]) -> BCOPFactors:
    """Return (H', P', Q') on 2n channels: all ranks n, det H' = 1, C'(x)_{1:n} = C(x_{1:n}); in the input's precision."""
    sign = require_orthogonal_matrix(H)
    dummy = signed_identity(H.shape[0], sign, H.dtype).to(H.device)
    return BCOPFactors(torch.block_diag(H, dummy), [_double_projector(p) for p in P], [_double_projector(q) for q in Q])


def double_network(network: BCOPNetwork) -> BCOPNetwork:
    """Return the same function with 2n channels, where every projector has half rank and every square H determinant 1.

    The first layer's H gets n zero columns (its dummies are 0 throughout), the head zero columns for the dummies. The
    channels are ordered as in Note [Where the dummies go]; `real_channels(n)` says where those of a bias, say, are now.
    """
    first, rest, head = network
    fits = first.H.dim() == 2 and first.H.shape[0] <= first.H.shape[1]
    require(fits, "a first layer with H (m, n), m ≤ n", f"shape {tuple(first.H.shape)}")
    n = first.H.shape[1]
    require_orthonormal_rows(first.H)
    shapes = sorted({tuple(layer.H.shape) for layer in rest})
    require(shapes in ([], [(n, n)]), f"H of shape ({n}, {n}) after the first layer", shapes)
    fits = head.dim() == 2 and head.shape[1] % n == 0
    require(fits, f"a head (classes, {n}·height·width)", f"shape {tuple(head.shape)}")
    order = _channel_order(n).to(head.device)

    def arrange(H: Tensor, *families: Sequence[Tensor]) -> BCOPFactors:
        return BCOPFactors(H[:, order], *([p[order][:, order] for p in family] for family in families))

    widened = torch.cat([first.H, torch.zeros_like(first.H)], dim=1)
    families = ([_double_projector(p) for p in family] for family in (first.P, first.Q))
    doubled = [double(*layer) for layer in rest]
    layers = [arrange(H[order], P, Q) for H, P, Q in doubled]
    per_channel = head.reshape(head.shape[0], n, -1)
    padded = torch.cat([per_channel, torch.zeros_like(per_channel)], dim=1)
    return BCOPNetwork(arrange(widened, *families), layers, padded[:, order].flatten(1))


def real_channels(n: int) -> Tensor:
    """Return where channel i of n stands among the 2n channels of a doubled network."""
    return torch.argsort(_channel_order(n))[:n]


def _double_projector(projector: Tensor) -> Tensor:
    n, rank = projector.shape[0], require_projector(projector)
    return torch.block_diag(projector, leading_projector(n, n - rank, projector.dtype).to(projector.device))


def _channel_order(n: int) -> Tensor:
    """Return which of the channels "n real ones, then n dummies" stands at each place of a doubled layer."""
    require(n % 2 == 0, "an even number of channels, since MaxMin pairs them", n)
    channels = torch.arange(2 * n).reshape(2, 2, n // 2)  # real or dummy, half, place
    return channels.transpose(0, 1).reshape(-1)
