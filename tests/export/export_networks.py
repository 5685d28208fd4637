"""Networks that an export has to get right, and a hash of weights that shares no code with the library's."""

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.models import CONVOLUTIONS, FC3, Large, Small
from isoconv.nn import Abs, BCOPConv1d, BCOPConv2d, GroupSort, InvertibleDownsampling, MaxMin, OrthogonalLinear, Scale

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]

NETWORKS: dict[str, Case] = {
    **{f"small, {conv}": (lambda conv=conv: Small((3, 8, 8), 5, conv), (3, 8, 8)) for conv in CONVOLUTIONS},
    "small, relu, not square": (lambda: Small((1, 8, 12), 5, activation="relu"), (1, 8, 12)),
    "large": (lambda: Large((3, 8, 8), 10), (3, 8, 8)),
    "large, relu": (lambda: Large((1, 8, 8), 3, "rko", "relu"), (1, 8, 8)),
    "fc3": (lambda: FC3((1, 4, 6), 2), (1, 4, 6)),
    "one matrix": (lambda: OrthogonalLinear(6, 4), (6,)),
    "one matrix without bias": (lambda: nn.Sequential(nn.Linear(6, 4, bias=False)), (6,)),
    "one-dimensional": (
        lambda: nn.Sequential(BCOPConv1d(2, 6, 4, stride=2), GroupSort(3), BCOPConv1d(6, 6, 2), nn.Flatten()),
        (2, 12),
    ),
    "zero padding": (
        lambda: nn.Sequential(BCOPConv2d(2, 4, 3, padding_mode="zeros"), BCOPConv2d(4, 4, 2, padding_mode="zeros")),
        (2, 5, 6),
    ),
    "groups, dilation, same": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, (2, 3), groups=2, dilation=(2, 1), padding="same"),
            nn.Conv2d(6, 6, (3, 2), stride=(1, 2), padding=(2, 1), padding_mode="circular", bias=False),
            nn.Conv2d(6, 4, 1, padding="valid"),
        ),
        (4, 5, 7),
    ),
    "without weights": (
        lambda: nn.Sequential(
            InvertibleDownsampling(2), Scale(0.3), GroupSort(None), nn.Identity(), nn.Dropout(0.5), nn.PixelShuffle(2),
            nn.CircularPad2d((1, 2, 3, 0)), Abs(), nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(2, 2, 2), MaxMin(),
        ),
        (2, 4, 4),
    ),
    "named and nested": (
        lambda: nn.Sequential()
        .append(nn.Sequential(nn.Flatten(), OrthogonalLinear(8, 6)))
        .append(nn.Sequential())
        .append(MaxMin()),
        (2, 2, 2),
    ),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A network by its name, always the same, in evaluation mode, and the shape of its inputs."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build().eval(), shape


def sha256_of(weights: Mapping[str, Tensor | np.ndarray]) -> str:
    """As the certificate's format defines it: name, type, shape and bytes of each, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.asarray(weights[name])
        shape = ",".join(str(n) for n in array.shape)
        digest.update("\0".join([name, array.dtype.name, shape, ""]).encode() + array.tobytes(order="C"))
    return digest.hexdigest()
