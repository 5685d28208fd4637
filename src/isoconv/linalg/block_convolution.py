"""Block convolution □ (the paper, section 3.1): convolution whose scalars are matrices.

A kernel is stored as PyTorch stores a convolution's weight: `(c_out, c_in, K)` in 1-D, `(c_out, c_in, K, K')`
in 2-D, the matrix at tap t being `kernel[:, :, t]`. Then `X □ Y` is the kernel of "first Y, then X":

    Z_i = Σ_j X_j Y_{i−j}        X ∗ (Y ∗ v) = (X □ Y) ∗ v

This holds for the cross-correlation that PyTorch computes as it does for true convolution, since the taps'
offsets add up in both. □ is associative; it does not commute, because matrices do not.
"""

from itertools import product

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


def block_convolve(x: Tensor, y: Tensor) -> Tensor:
    """X □ Y for two 1-D kernels (c_out, c, K) or two 2-D kernels (c_out, c, K, K'), in the precision of the inputs.

    >>> h, p = torch.eye(2)[..., None], torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> block_convolve(h, torch.stack([p, torch.eye(2) - p], dim=-1)).shape
    torch.Size([2, 2, 2])
    """
    if x.dim() != y.dim() or x.dim() not in (3, 4):
        raise IsoconvError(
            f"Expected two 1-D kernels (c_out, c_in, K) or two 2-D kernels (c_out, c_in, K, K'). "
            f"Got shapes {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if x.shape[1] != y.shape[0]:
        raise IsoconvError(
            f"Expected the left kernel's input channels to equal the right kernel's output channels. "
            f"Got {x.shape[1]} and {y.shape[0]}."
        )
    # One matrix product per tap of Y. Not F.conv2d: on a GPU that runs in TF32 unless told otherwise.
    left = x.movedim(1, -1)  # (c_out, taps…, c)
    total = x.new_zeros(x.shape[0], *[p + q - 1 for p, q in zip(x.shape[2:], y.shape[2:], strict=True)], y.shape[1])
    for position, tap in enumerate(product(*[range(size) for size in y.shape[2:]])):
        window = tuple(slice(offset, offset + size) for offset, size in zip(tap, x.shape[2:], strict=True))
        total[(slice(None), *window)] += left @ y.flatten(2)[:, :, position]
    return total.movedim(-1, 1).contiguous()


def compose_kernels(*kernels: Tensor) -> Tensor:
    """K₁ □ K₂ □ … □ K_m."""
    if not kernels:
        raise IsoconvError("Expected at least one kernel. Got none.")
    composed = kernels[0]
    for kernel in kernels[1:]:
        composed = block_convolve(composed, kernel)
    return composed


def projector_pair_1d(projector: Tensor) -> Tensor:
    """[P  I−P] as a 1-D kernel (n, n, 2)."""
    return torch.stack([projector, _complement(projector)], dim=-1)


def projector_column(projector: Tensor) -> Tensor:
    """[P; I−P] as a 2-D kernel (n, n, 2, 1): P at the upper tap."""
    return projector_pair_1d(projector).unsqueeze(-1)


def projector_row(projector: Tensor) -> Tensor:
    """[P  I−P] as a 2-D kernel (n, n, 1, 2): P at the left tap."""
    return projector_pair_1d(projector).unsqueeze(-2)


def _complement(projector: Tensor) -> Tensor:
    eye = torch.eye(projector.shape[-1], dtype=projector.dtype, device=projector.device)
    return eye - projector
