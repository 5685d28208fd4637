"""SDP-based Lipschitz layers (Araujo et al. 2023): residual layers, rescaled by weighted row sums of |WWᵀ|."""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.nn.aol import rescale_inputs
from isoconv.nn.potential import PotentialConv2d


class SLLConv2d(PotentialConv2d):
    """x − 2WᵀT⁻¹relu(Wx + b), T diagonal, T_i = Σ_j |WWᵀ|_ij·q_j/q_i ⪰ WWᵀ, q > 0 learned; Note [Convex potential].

    Arguments as for `torch.nn.Conv2d`, with "same" padding; see `isoconv.nn.potential` for strides and channels.
    1-Lipschitz for every image size. q is the exponential of a number that is kept within ±10, so that none overflows.
    """

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        super()._make_parameters(factory)
        self.logarithms = nn.Parameter(torch.zeros(self.out_channels, **factory))

    def reset_parameters(self) -> None:
        """torch's own initialisation of a convolution, and q = 1."""
        super().reset_parameters()
        nn.init.zeros_(self.logarithms)

    def _sources(self) -> tuple[Tensor, ...]:
        return self.kernel, self.logarithms

    def _norm_one(self, kernel: Tensor, *others: Tensor) -> Tensor:
        weights = torch.exp(10 * torch.tanh(others[0] / 10))
        return rescale_inputs(kernel.transpose(0, 1), weights).transpose(0, 1)
