"""Networks that an export has to get right, and a hash of weights that shares no code with the library's."""

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.models import FC3, Large, ShiftNet, Small
from isoconv.nn import Abs, BCOPConv1d, BCOPConv2d, GroupSort, InvertibleDownsampling, MaxMin, OrthogonalLinear, Scale

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small, bcop": (lambda: Small((3, 8, 8), 5), (3, 8, 8)),
    "small, rko, not square": (lambda: Small((1, 8, 12), 5, "rko", "relu"), (1, 8, 12)),
    "large": (lambda: Large((3, 8, 8), 10), (3, 8, 8)),
    "shift": (lambda: ShiftNet((3, 7, 8), 5, channels=36, blocks=(1, 1), share=0.2), (3, 7, 8)),
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
            nn.Conv2d(6, 4, 1, padding="valid"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        ),
        (4, 5, 7),
    ),
    "without weights": (
        lambda: nn.Sequential(
            InvertibleDownsampling(2), Scale(0.3), GroupSort(None), nn.Identity(), nn.Dropout(0.5), nn.PixelShuffle(2),
            nn.CircularPad2d((1, 2, 3, 0)), Abs(), nn.ZeroPad2d((0, 1, 2, -1)), nn.Conv2d(2, 2, 2), MaxMin(),
        ),
        (2, 4, 4),
    ),
    "pools, pads and norms": (
        lambda: nn.Sequential(
            nn.ConstantPad2d((1, 0, 2, 1), 0.1), nn.ReflectionPad2d(1), nn.ReplicationPad2d((1, 0, 0, 2)),
            nn.BatchNorm2d(2, eps=0.1), nn.LeakyReLU(-0.3), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Upsample(scale_factor=(2, 1)), nn.AvgPool2d((2, 3), 2, 1, divisor_override=5), nn.Flatten(2),
            nn.BatchNorm1d(2, affine=False), nn.Unflatten(2, (2, -1)), nn.Flatten(),
        ),
        (2, 8, 8),
    ),
    "functions": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.Hardtanh(0.1, 0.3), nn.ReLU6()),
        (4,),
    ),
    "named and nested": (
        lambda: nn.Sequential().append(nn.Sequential(nn.Flatten(), OrthogonalLinear(8, 6))).append(MaxMin()),
        (2, 2, 2),
    ),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network by its name, always the same, in evaluation mode, and the shape of its inputs."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build().eval(), shape


def sha256_of(weights: Mapping[str, Tensor | np.ndarray]) -> str:
    """Hash as the certificate's format defines it: name, type, shape and bytes of each, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.asarray(weights[name])
        shape = ",".join(str(n) for n in array.shape)
        digest.update("\0".join([name, array.dtype.name, shape, ""]).encode() + array.tobytes(order="C"))
    return digest.hexdigest()
