"""Orthogonal beginnings for ordinary convolutions."""

from typing import Any

import torch
from torch import Tensor, nn

from isoconv.linalg.bcop import append_pair, random_projector
from isoconv.records import require


@torch.no_grad()
def orthogonal_conv_(tensor: Tensor, groups: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Fill the kernel of an `nn.Conv1d` or `nn.Conv2d`, in place, so that the convolution is orthogonal, and return it.

    All singular values are 1 with stride 1 and circular padding that keeps the image's size; with zeros they are at most 1.
    The kernel is a random one of the paper's (H □ [P I−P] □ …), computed in float64. For linear layers there is
    `torch.nn.init.orthogonal_`.

    >>> convolution = nn.Conv2d(3, 16, 3, padding=1, padding_mode="circular")
    >>> orthogonal_conv_(convolution.weight).shape
    torch.Size([16, 3, 3, 3])
    """
    kernel = tensor.dim() in (3, 4) and tensor.numel() > 0 and groups >= 1 and tensor.shape[0] % groups == 0
    got = f"shape {tuple(tensor.shape)} and {groups} groups"
    require(kernel, "a kernel (c_out, c_in, K) or (c_out, c_in, K, K'), its c_out divided by the groups", got)
    for part in tensor.chunk(groups):
        small, large = sorted(part.shape[:2])
        factory: dict[str, Any] = {"dtype": torch.float64, "device": tensor.device}
        taps = nn.init.orthogonal_(torch.empty(small, large, **factory), generator=generator)
        taps = taps[(None,) * (part.dim() - 2)]
        for turn in range(max(part.shape[2:]) - 1):  # one pair along each axis, as long as it is not full
            for axis, size in enumerate(part.shape[2:]):
                if turn < size - 1:
                    rank = (large + turn % 2) // 2  # half, in turns: an odd number of channels stays in the middle
                    projector = random_projector(large, rank, generator=generator, **factory)
                    taps = append_pair(taps, projector, axis)
        part.copy_((taps if part.shape[0] == small else taps.mT).movedim((-2, -1), (0, 1)))
    return tensor
