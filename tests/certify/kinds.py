"""Every kind of module, for the tests of certificates, of the checker and of exports."""

import math

import torch
from torch import nn

import isoconv
import isoconv.nn as ours

TENTH = float(torch.tensor(0.1))  # as float32 holds it
around = {"padding_mode": "circular"}
Case = tuple[nn.Module, tuple[int, ...], float]
# A module, the shape of its input, and how far above the largest norm of a Jacobian its bound may be, as a share of it.
CASES: list[Case] = [
    (nn.Linear(7, 5), (7,), 1e-6),
    (nn.Linear(4, 3, bias=False), (2, 3, 4), 1e-6),
    (nn.Conv2d(3, 4, 3, padding=1, **around), (3, 6, 5), 1e-3),
    (nn.Conv2d(2, 3, (4, 3), (2, 1), 1, **around), (2, 6, 5), 5),
    (nn.Conv2d(6, 3, 3, padding=1, groups=3, **around), (6, 5, 4), 1e-3),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2, **around), (2, 7, 7), 1e-3),
    (nn.Conv2d(1, 2, 5, padding=2, **around), (1, 2, 3), 1e-3),  # a kernel larger than the image
    (nn.Conv2d(1, 2, 3, padding=(1, 3), **around), (1, 4, 4), 1.5),  # more padding than keeps the size
    (nn.Conv2d(2, 3, 3, 2, 1, **around), (2, 7, 5), 1.0),  # the stride does not divide
    (nn.Conv2d(2, 1, 3, padding=4, **around), (2, 4, 4), 5),  # twice around
    (nn.Conv2d(2, 3, 2, 3, **around), (2, 7, 7), 5),  # nor is it smaller than the kernel
    (nn.Conv2d(1, 2, 4, padding="same", **around), (1, 5, 5), 5),
    (nn.Conv2d(3, 4, 3), (3, 6, 6), 0.3),
    (nn.Conv2d(1, 2, 3, 2, 2, dilation=2), (1, 7, 7), 5),
    (nn.Conv2d(3, 4, 2, padding="same", dilation=2), (3, 5, 4), 0.5),
    (nn.Conv2d(1, 2, 3, padding=4, padding_mode="reflect"), (1, 5, 5), 5),
    (nn.Conv2d(1, 2, 2, 2, 3, padding_mode="replicate"), (1, 4, 4), 5),
    (nn.Conv1d(2, 3, 4, 3, 2, **around), (2, 7), 5),
    (nn.Conv1d(3, 4, 3, stride=3, padding=2), (3, 10), 0.7),
    (nn.Sequential(nn.CircularPad2d((1, 0, 0, 1)), nn.Conv2d(3, 4, 2)), (3, 6, 5), 1e-3),
    (nn.Sequential(nn.CircularPad2d((2, 0, 2, 0)), nn.Conv2d(3, 4, 4, stride=2)), (3, 6, 8), 1e-3),
    (nn.Sequential(nn.CircularPad1d((2, 1)), nn.Conv1d(2, 3, 4)), (2, 6), 1e-3),
    (nn.Sequential(nn.CircularPad2d(1), nn.Identity(), nn.Conv2d(2, 2, 3)), (2, 4, 4), 2.0),
    (nn.Sequential(nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, padding=1)), (1, 4, 4), 5),
    (nn.Sequential(nn.ZeroPad2d((-1, -1, 2, -1)), nn.Conv2d(1, 2, 2)), (1, 4, 4), 5),
    (nn.ConvTranspose2d(3, 2, 4, 2, 1), (3, 4, 4), 0.3),
    (nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), (0, 2), (1, 0), groups=2), (4, 3, 4), 0.7),
    (nn.ConvTranspose2d(2, 2, 3, 2, 1, 1, dilation=2), (2, 4, 3), 1.0),
    (nn.ConvTranspose2d(2, 1, 2, 1, 0, 2, dilation=3), (2, 3, 3), 2.0),  # more output padding than the stride
    (nn.ConvTranspose1d(2, 2, 3, 4, dilation=3, output_padding=3, groups=2), (2, 4), 1.5),
    *((nn.ReflectionPad2d((2, 1, 1, 0)), (2, 4, 5), 1e-12), (nn.ReflectionPad1d(2), (2, 4), 1e-12)),
    *((nn.ReplicationPad2d(2), (1, 3, 3), 1e-12), (nn.ReplicationPad1d((1, 0)), (2, 4), 1e-12)),
    *((nn.CircularPad2d((3, 3, 0, 0)), (1, 3, 3), 1e-12), (nn.CircularPad1d(1), (2, 3), 1e-12)),
    *((nn.ZeroPad2d(1), (1, 3, 3), 1e-12), (nn.ZeroPad1d((1, -1)), (2, 3), 1e-12)),
    *((nn.ConstantPad2d((1, 0, 3, -1), TENTH), (2, 4, 4), 1e-12), (nn.ConstantPad1d(1, 0.5), (2, 3), 1e-12)),
    *((nn.MaxPool2d(3, 2, 1), (1, 6, 7), 1e-12), (nn.MaxPool2d(2, 1, dilation=2), (1, 5, 5), 1e-12)),
    *((nn.MaxPool1d(2), (2, 5), 1e-12), (nn.MaxPool1d(1, 5, ceil_mode=True), (2, 7), 1e-12)),
    (nn.MaxPool2d((1, 2), (4, 6), ceil_mode=True), (2, 6, 13), 1e-12),  # some would begin outside
    (nn.MaxPool2d((3, 2), 1, 1, (1, 2), ceil_mode=True), (1, 5, 4), 1e-12),
    (nn.AvgPool2d(3, stride=1, padding=1), (1, 6, 6), 0.2),
    (nn.AvgPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), (1, 6, 5), 1e-2),
    (nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=False), (1, 6, 4), 1e-2),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=-2), (1, 6, 5), 0.2),
    (nn.AvgPool2d(2, 2, divisor_override=3), (1, 5, 4), 1e-6),
    (nn.AvgPool1d(3, 1, 1), (2, 5), 0.2),
    (nn.AvgPool1d(4, 3, 2, ceil_mode=True, count_include_pad=False), (2, 9), 1e-2),
    (nn.AvgPool1d(2000, 2000, ceil_mode=True), (1, 4001), 1e-6),  # one window of 1 pixel beside large ones
    *((nn.AdaptiveAvgPool2d((3, 4)), (2, 7, 5), 1e-3), (nn.AdaptiveAvgPool2d((None, 2)), (2, 7, 5), 1e-3)),
    *((nn.AdaptiveAvgPool1d(30), (2, 11), 1e-3), (ours.ScaledAvgPool2d((2, 3)), (2, 4, 7), 1e-6)),
    *((ours.L2NormPool2d((2, 3), (2, 4)), (3, 5, 8), 1e-12), (ours.L2NormPool2d(), (2, 3, 4), 1e-12)),
    *((nn.Upsample(scale_factor=(2.0, 3.0)), (1, 4, 5), 1e-12), (nn.Upsample(scale_factor=11), (1, 2, 3), 1e-12)),
    (nn.Upsample(size=(6, 9)), (1, 3, 3), 1e-12),
    (nn.Upsample(scale_factor=(3, 0.6), mode="bilinear"), (2, 4, 3), 1e-3),
    (nn.Upsample(scale_factor=1.7, mode="bilinear", align_corners=True), (2, 4, 3), 1e-3),
    (nn.Upsample((9, 1), mode="bilinear", align_corners=True), (1, 4, 5), 1e-3),
    (nn.Upsample(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True), (1, 6, 5), 1e-3),
    (nn.Upsample(scale_factor=2.5, mode="linear"), (2, 5), 1e-3),
    (nn.Upsample(7, mode="linear", align_corners=True), (2, 1), 1e-3),
    (nn.UpsamplingBilinear2d(scale_factor=3), (1, 3, 4), 1e-3),
    (nn.UpsamplingNearest2d(scale_factor=3), (1, 3, 4), 1e-9),
    (
        nn.Sequential(nn.PixelUnshuffle(2), nn.PixelShuffle(2), nn.Unflatten(1, (1, -1)), nn.Flatten(2)),
        (1, 4, 4),
        1e-12,
    ),
    (nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()), (2, 3, 3), 1e-12),
    *((nn.BatchNorm2d(3), (3, 2, 2), 1e-6), (nn.BatchNorm1d(3, 0.3, affine=False), (3,), 1e-6)),
    (ours.Normalize([0.4, 0.5], [0.25, 0.2]), (2, 3, 2), 1e-6),
    *((ours.LayerCentering(), (3, 4, 5), 1e-12), (ours.LayerCentering((2, 3)), (2, 9, 7), 1e-12)),
    *((ours.LayerCentering(1), (50,), 1e-12), (ours.BatchCentering(3), (3, 4, 2), 1e-12)),
    *((ours.BatchCentering(6, bias=False), (6,), 1e-12), (ours.Householder(4), (4, 3, 2), 1e-12)),
    (ours.ConvexPotential2d(2, 3, 3), (2, 4, 5), 5),
    (ours.ConvexPotential2d(2, 4, (4, 1), padding_mode="zeros"), (2, 4, 3), 5),
    *((ours.PositionBias(2, 3), (3, 2, 3), 1e-12), (ours.ChannelShift(0.25), (9, 2, 3), 1e-12)),
    *((ours.HalfAbs(), (3, 2, 2), 1e-12), (ours.MaxMin(2), (3, 4, 2), 1e-12)),
    *((ours.GroupSort(None), (4, 2), 1e-12), (ours.GroupSort(2, dim=2), (3, 4), 1e-12)),
    (nn.Sequential(nn.ReLU(), ours.Abs()), (5,), 1e-12),
    *((nn.LeakyReLU(TENTH), (6,), 1e-12), (nn.LeakyReLU(-1.5), (6,), 1e-12), (ours.Scale(-4 * TENTH), (6,), 1e-12)),
    *((nn.ReLU6(), (6,), 1e-12), (nn.Hardtanh(-TENTH, 0.25), (6,), 1e-12), (nn.Tanh(), (6,), 1e-12)),
    (nn.Hardtanh(-2.0, -1.0), (70,), 1e-12),  # 0 is beyond its limits, and a layer follows that rounds
    *((nn.Softsign(), (6,), 1e-12), (nn.Sigmoid(), (6,), 3 + 1e-12)),
    *((nn.Softmax(1), (2, 3, 2), 1e-9), (nn.Softmax(-1), (3, 2), 1e-9)),
]
CURVES = [
    *(nn.ELU(), nn.ELU(2.5), nn.ELU(-0.4), nn.ELU(-1.7), nn.CELU(), nn.CELU(0.25), nn.SELU(), nn.SiLU()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.Softplus(3.0, 15), nn.Softplus(TENTH, 30.5)),
    *(nn.LogSigmoid(), nn.Hardswish(), nn.Hardsigmoid()),
]
# Of interest to exports: pooling, interpolation, transposed convolutions.
LINEAR = [
    (module, shape)
    for module, shape, _ in CASES
    if type(module).__name__.startswith(("Avg", "Adaptive", "Scaled", "Upsampl", "ConvTranspose", "Normalize"))
    and getattr(module, "mode", "") != "nearest"
]


def randomise(model: nn.Module, seed: int = 0, gain: float = 1.0) -> nn.Module:
    """Draw all parameters, and statistics that were not measured anywhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.3)
            elif not name.endswith(("num_batches_tracked", "mean", "std")) or name.endswith("running_mean"):
                scale = gain / max(1, tensor[0].numel()) ** 0.5
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return model.eval()


def find_norms(model: nn.Module, shape: tuple[int, ...]) -> dict[float, float]:
    """Return the largest norms, p = 1, 2, ∞, of dense Jacobians at some points: zero, random ones, one bright pixel."""
    network, size = isoconv.plain(model).double(), math.prod(shape)
    points = torch.randn(4, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bright = torch.eye(size)[: 50 if "MaxPool" in str(model) else 0]
    points = torch.cat([points[:1] * 0, points[1:] / 10, points, bright])
    jacobians = [
        torch.autograd.functional.jacobian(lambda x: network(x[None])[0].flatten(), point.reshape(shape)).flatten(1)  # type: ignore[union-attr]
        for point in (points if not any(kind in str(model) for kind in ("Conv", "Avg")) else points[:1])
    ]
    return {p: max(float(torch.linalg.matrix_norm(jacobian, p)) for jacobian in jacobians) for p in (1, 2, math.inf)}


def find_slope(curve: nn.Module) -> float:
    """Return the largest secant over a fine grid, far out too, except over the jump of Softplus."""
    ends = ((-1e4, -30, 1000), (-30, 30, 600_001), (30, 1e4, 1000))
    grid = torch.cat([torch.linspace(*end, dtype=torch.float64) for end in ends]).unique()
    jump = getattr(curve, "threshold", math.inf) / getattr(curve, "beta", 1.0)
    slopes = (curve(grid).diff() / grid.diff()).abs()
    return float(slopes[(grid[1:] < jump) | (grid[:-1] > jump)].max())
