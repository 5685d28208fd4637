"""Random mathematical objects for the tests of the theory, all in float64 and from one seed per test."""

import pytest
import torch
from torch import Tensor

from isoconv.linalg.bcop import bcop_kernel_1d, random_projector
from isoconv.theory import BCOPFactors


class Draw:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def orthogonal(self, n: int, sign: int | None = None) -> Tensor:
        """Haar-distributed on O(n), or on the half of it with determinant `sign`."""
        Q, R = torch.linalg.qr(self.normal(n, n))
        Q = Q * R.diagonal().sign()
        if sign is not None and float(torch.linalg.det(Q)) * sign < 0:
            Q[:, 0] = -Q[:, 0]
        return Q

    def projector(self, n: int, rank: int) -> Tensor:
        return random_projector(n, rank, generator=self.generator, dtype=torch.float64)

    def ranks(self, n: int, count: int, total: int) -> tuple[int, ...]:
        """Ranks between 0 and n with this sum."""
        places = torch.randperm(n * count, generator=self.generator)[:total] % count
        return tuple(torch.bincount(places, minlength=count).tolist())

    def kernel(self, n: int, ranks: tuple[int, ...], sign: int | None = None) -> Tensor:
        """A 1-D kernel of the paper's form."""
        return bcop_kernel_1d(self.orthogonal(n, sign), [self.projector(n, rank) for rank in ranks])

    def factors(self, n: int, *ranks: tuple[int, int], sign: int | None = None) -> BCOPFactors:
        """What a 2-D BCOP kernel is made of, with these ranks of P and Q."""
        H, *projectors = self.orthogonal(n, sign), *([self.projector(n, r) for r in pair] for pair in ranks)
        return BCOPFactors(H, [p for p, _ in projectors], [q for _, q in projectors])

    def lattice(self, n: int, K: int) -> tuple[Tensor, int]:
        """A 1-D orthogonal kernel built without projectors, and the winding number of its determinant.

        U₀ diag(z^d) U₁ diag(z^d') U₂ …: Haar matrices, and channels that are delayed by random numbers of samples, as
        many as fit into K taps. Often the first or the last taps are zero.
        """
        taps = torch.zeros(K, n, n, dtype=torch.float64)
        taps[0] = self.orthogonal(n)
        room, winding = K - 1, 0
        while room and self.integer(0, 4):
            delays = [self.integer(0, min(room, 2)) for _ in range(n)]
            room -= max(delays)
            winding += sum(delays)
            delayed = torch.zeros_like(taps)
            for channel, delay in enumerate(delays):
                delayed[delay:, :, channel] = taps[: K - delay, :, channel]
            taps = delayed @ self.orthogonal(n)
        return taps.permute(1, 2, 0).contiguous(), winding


@pytest.fixture
def draw() -> Draw:
    return Draw()
