"""Almost-orthogonal layers (Prach and Lampert 2022): each input channel is rescaled, by the row sums of |AᵀA|."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.linalg.bounds import fold_stride
from isoconv.nn.built_weight import constraint_dtype
from isoconv.nn.convolution import Conv2dWithKernel
from isoconv.nn.downsampling import unfold_stride


class AOLConv2d(Conv2dWithKernel):
    """The kernel P with its input channels divided by the roots of the row sums of |AᵀA|, A the convolution with P.

    Arguments as for `torch.nn.Conv2d`. 1-Lipschitz for every image size and padding.

    Note [Rescaling]. Let T be the diagonal matrix of the row sums of |AᵀA|. T − AᵀA is diagonally dominant, hence positive
    semidefinite, so ‖AT^(−½)‖ ≤ 1. AᵀA is a convolution, its taps Σ_t P_tᵀP_{t+τ}; so T is the same at every pixel. On an
    image so small that taps meet, or where zeros cut some off, the sums are at most these. With a stride it is so for the
    kernel of the downsampled image, and the pixels of a block have sums of their own; a dilation permutes them.
    """

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Random orthonormal matrices in the middle, zeros around them: an isometry unless channels are lost."""
        nn.init.zeros_(self.kernel)
        for part in self.kernel.chunk(self.groups):
            middle = part[:, :, part.shape[2] // 2, part.shape[3] // 2]
            middle.copy_(nn.init.orthogonal_(torch.empty_like(middle, dtype=constraint_dtype(middle))))
        self._reset_bias(self.out_channels)

    def _build(self, kernel: Tensor) -> Tensor:
        stride = (1, 1) if self.folded else self._own_stride
        folded = fold_stride(kernel, stride)
        rescaled = torch.cat([rescale_inputs(part) for part in folded.chunk(self.groups)])
        return unfold_stride(rescaled, stride)[..., : kernel.shape[2], : kernel.shape[3]]


def rescale_inputs(kernel: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return a kernel (c_out, c_in, k, k') at stride 1 rescaled by Note [Rescaling]; it does not depend on its scale.

    With weights q > 0 the sums are Σ_j |AᵀA|_ij·q_j/q_i, and the Note still holds: 2|v_i·v_j| ≤ v_i²·q_j/q_i + v_j²·q_i/q_j.
    """
    largest = kernel.detach().abs().amax()
    kernel = kernel / torch.where(largest > 0, largest, 1)  # so that no square overflows or vanishes
    inputs = kernel.transpose(0, 1)
    gram = F.conv2d(inputs, inputs, padding=(kernel.shape[2] - 1, kernel.shape[3] - 1))
    sums = gram.abs().sum(dim=(2, 3))
    sums = sums.sum(dim=1) if weights is None else sums @ weights / weights
    least = torch.finfo(kernel.dtype).eps ** 2  # smaller channels stay below 1
    return kernel * sums.clamp_min(least).rsqrt()[:, None, None]
