"""The modules of isoconv that a plain network may hold, as an exported file defines them: with torch alone."""

import torch
from torch import Tensor, nn


class MaxMin(nn.Module):
    """Channel i and channel i + C/2 become their maximum and their minimum."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        swap = second > first
        return torch.cat([torch.where(swap, second, first), torch.where(swap, first, second)], dim=1)


class GroupSort(nn.Module):
    """Sorts channels within groups, largest first; with g groups, group j holds the channels j, j + g, j + 2g, …"""

    def __init__(self, group_size: int | None = 2) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, x: Tensor) -> Tensor:
        size = self.group_size or x.shape[1]
        groups = x.reshape(x.shape[0], size, x.shape[1] // size, *x.shape[2:])
        return groups.sort(dim=1, descending=True, stable=True).values.reshape(x.shape)


class Abs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(x)


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor
