"""Convolution at stride 1 that keeps the image's size: the padding of the paper, for images of any size."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from isoconv.linalg.spectrum import fold_kernel


def same_padding(taps: int) -> tuple[int, int]:
    """Pixels before and after: symmetric for odd kernels, k/2 before and k/2 − 1 after for even ones."""
    return taps // 2, (taps - 1) // 2


def convolve_same(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str, padding: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """conv1d or conv2d of a batch with (before, after) pixels of circular or zero padding per axis (default: same)."""
    sizes = x.shape[2:]
    pads = [same_padding(k) for k in weight.shape[2:]] if padding is None else list(padding)
    if padding_mode == "circular" and any(k > n for k, n in zip(weight.shape[2:], sizes, strict=True)):
        # Taps that fall on the same pixel of a small image are added up; PyTorch pads only once around.
        weight = fold_kernel(weight, sizes)
        starts = [before % n for (before, _), n in zip(pads, sizes, strict=True)]
        pads = [(start, k - 1 - start) for start, k in zip(starts, weight.shape[2:], strict=True)]
    flat = [pad for pair in reversed(pads) for pad in pair]
    if any(flat):
        x = F.pad(x, flat, mode="constant" if padding_mode == "zeros" else "circular")
    return F.conv1d(x, weight, bias) if weight.dim() == 3 else F.conv2d(x, weight, bias)
